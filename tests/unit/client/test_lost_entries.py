"""Real bookies say of single entries whether a copy is left; one that is away or in limbo keeps the question open."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from quire.client.client import Client
from quire.client.config import ClientConfig
from quire.client.reading.lost_entries import LostEntries, lost_entries
from quire.core.answers import Answer
from quire.core.errors import NoSuchLedgerError, ReadUnavailableError
from support.small_cluster import SmallCluster

COUNT = 40
QUICK = ClientConfig(read_timeout_ms=300)


def payload(number: int) -> bytes:
    return b"<entry %d>" % number * 200


def spoil(directory: Path, numbers: list[int]) -> int:
    """Change a byte of some entries in a bookie's segments; how many there were."""
    found = 0
    for file in directory.rglob("*.seg"):
        data = bytearray(file.read_bytes())
        for number in numbers:
            at = data.find(payload(number))
            if at >= 0:
                data[at] ^= 1
                found += 1
        file.write_bytes(data)
    return found


class Damaged:
    """A ledger of forty entries on three bookies, some entries of it damaged on some of them."""

    def __init__(self, cluster: SmallCluster, client: Client, ledger_id: int, token: int) -> None:
        self.cluster, self.client, self.ledger_id, self.token = cluster, client, ledger_id, token

    async def ask(self, first: int, last: int = COUNT - 1) -> LostEntries:
        client = self.client
        return await lost_entries(
            client.records.ledgers,
            client.bookies,
            self.ledger_id,
            first,
            last,
            token=self.token,
            timeout_ms=1000,
        )

    async def spoil(self, numbers: list[int], bookies: int = 3) -> None:
        for bookie in list(self.cluster.servers)[:bookies]:
            directory = self.cluster.servers[bookie].config.directory
            name = await self.cluster.stop_bookie(bookie)
            assert spoil(directory, numbers) == len(numbers)
            await self.cluster.start_bookie(name)
        self.client = await self.cluster.client(QUICK)


@pytest.fixture
async def at(cluster: SmallCluster) -> Damaged:
    client = await cluster.client(QUICK)
    async with await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=3) as writer:
        for number in range(COUNT):
            await writer.append(payload(number))
    record = await client.ledger_metadata(writer.ledger_id)
    return Damaged(cluster, client, writer.ledger_id, record.token)


async def test_what_is_damaged_everywhere_is_gone_and_nothing_else(at: Damaged) -> None:
    await at.spoil([7, 20, 21, 22, 23, 39])
    found = await at.ask(7)
    assert (found.last, {answer for _, answer in found.answers}) == (7, {Answer.DAMAGED})
    assert [(await at.ask(entry)).last for entry in (20, 22, 39)] == [23, 23, 39]
    assert (await at.ask(20, 21)).last == 21
    healthy = await at.ask(8)
    assert not healthy.are_proven
    assert {answer for _, answer in healthy.answers} == {Answer.OK}
    # The read does not wait for what cannot come: three bookies have said all there is to say.
    at.client = await at.cluster.client(ClientConfig(read_timeout_ms=3_600_000))
    reader = await at.client.open_ledger(at.ledger_id)
    with pytest.raises(ReadUnavailableError, match="entry 7"):
        [entry async for entry in reader.read(7, 7)]


async def test_one_copy_out_of_reach_keeps_the_question_open(at: Damaged) -> None:
    await at.spoil([7], bookies=2)
    assert not (await at.ask(7)).are_proven
    third = next(iter(at.cluster.servers))
    assert dict((await at.ask(7)).answers)[third] is Answer.OK
    name = await at.cluster.stop_bookie(third)
    found = await at.ask(7)
    assert (found.are_proven, dict(found.answers)[third]) == (False, Answer.UNREACHABLE)
    assert f"{third} UNREACHABLE" in found.said
    await at.cluster.start_bookie(name)


async def test_a_bookie_that_may_have_lost_something_proves_nothing(at: Damaged) -> None:
    record, version = await at.client.records.ledgers.read(at.ledger_id)
    await at.client.records.ledgers.write(replace(record, last_entry=COUNT, length=record.length), version)
    found = await at.ask(COUNT, COUNT)
    assert (found.are_proven, {answer for _, answer in found.answers}) == (True, {Answer.NO_ENTRY})
    server = next(iter(at.cluster.servers.values()))
    server.ledgers._machines[at.ledger_id].enter_limbo(1)
    found = await at.ask(COUNT, COUNT)
    assert (found.are_proven, dict(found.answers)[server.bookie_id]) == (False, Answer.UNKNOWN)


async def test_a_record_that_changes_meanwhile_proves_nothing_and_a_deleted_ledger_is_gone(
    at: Damaged,
) -> None:
    await at.spoil([7])
    store = at.client.records.ledgers
    read = store.read

    async def changing(ledger_id: int):  # type: ignore[no-untyped-def]
        record, version = await read(ledger_id)
        custom = {**dict(record.custom), "touched": b"%d" % version}
        await store.write(replace(record, custom=tuple(sorted(custom.items()))), version)
        return await read(ledger_id)

    store.read = changing  # type: ignore[method-assign]
    assert not (await at.ask(7)).are_proven
    store.read = read  # type: ignore[method-assign]
    assert (await at.ask(7)).are_proven
    token, at.token = at.token, at.token + 1
    with pytest.raises(NoSuchLedgerError, match="another ledger has its id now"):
        await at.ask(7)
    at.token = token
    await at.client.delete_ledger(at.ledger_id)
    with pytest.raises(NoSuchLedgerError):
        await at.ask(7)
