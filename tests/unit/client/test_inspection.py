"""A look at what bookies hold: of a last fragment up to its LAC, and only as long as the record names the same copies.

Source: docs/protocol/repair.md, "What is missing".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from quire.autorecovery.repair import ClusterRepair
from quire.client.client import Client
from quire.client.repairing import inspection
from quire.core.answers import Answer
from quire.core.errors import NoSuchLedgerError
from quire.core.ids import BookieId
from quire.core.ledger.replica import ReplicaList
from quire.core.repair.under_replication import MissingKind, MissingReason
from quire.metadata.store import StoreBusyError
from support.small_cluster import SmallCluster

COUNT = 20
QUORUMS = {"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2}


async def written(client: Client, **settings: Any) -> int:
    async with await client.create_ledger(**(QUORUMS | settings)) as writer:
        for number in range(COUNT):
            await writer.append(b"<%d>" % number)
    return int(writer.ledger_id)


Step = Callable[[dict[BookieId, ReplicaList]], Awaitable[object]]


def during_looks(monkeypatch: pytest.MonkeyPatch, *steps: Step) -> list[list[BookieId]]:
    """Do a step after each of the first requests for lists, which it may change; returns who is asked each time."""
    ask, left, asked = inspection._lists, list(steps), list[list[BookieId]]()

    async def lists(bookies: Any, some: Any, *more: Any) -> dict[BookieId, ReplicaList]:
        asked.append(list(some))
        found = await ask(bookies, some, *more)
        if left:
            await left.pop(0)(found)
        return found

    monkeypatch.setattr(inspection, "_lists", lists)
    return asked


async def test_what_a_bookie_missed_while_it_was_away_is_missing_before_the_ledger_is_closed(
    cluster: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "ON_ITS_WAY_S", 0.01)
    client = await cluster.client()
    writer = await client.create_ledger(**QUORUMS)
    await writer.append(b"everywhere")
    await writer.flushed()
    away = list(cluster.servers)[2]
    name = await cluster.stop_bookie(away)
    for number in range(COUNT):
        await writer.append(b"<%d>" % number)
    await cluster.start_bookie(name)
    lacking = await ClusterRepair(await cluster.client()).look_at(writer.ledger_id)
    assert lacking is not None
    assert lacking.entries.keys() == {MissingKind(MissingReason.OPEN, 2, away)}
    assert COUNT - 1 <= lacking.of_open <= COUNT, "the LAC that other clients know may be one behind"
    assert not lacking.needs_repair
    report = await client.verify_ledger(writer.ledger_id)
    assert not report.complete
    await writer.close()


async def test_a_copy_on_its_way_is_not_missing(
    cluster: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "ON_ITS_WAY_S", 0.01)
    client = await cluster.client()
    writer = await client.create_ledger(**QUORUMS)
    for number in range(COUNT):
        await writer.append(b"<%d>" % number)
    await writer.flushed()
    late = list(cluster.servers)[1]

    async def not_yet_there(found: dict[BookieId, ReplicaList]) -> None:
        found[late] = ReplicaList(Answer.OK)

    asked = during_looks(monkeypatch, not_yet_there)
    assert await ClusterRepair(client).look_at(writer.ledger_id) is None
    assert asked == [sorted(cluster.servers), [late]], "only the one that lacked something is asked again"
    await writer.close()


async def test_a_ledger_that_is_deleted_during_a_look_has_not_lost_its_entries(
    cluster: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await cluster.client()
    ledger_id = await written(client)
    for server in cluster.servers.values():
        server.ledgers.delete(ledger_id, 1)  # as their collectors do, when the record is gone
    during_looks(monkeypatch, lambda _: client.delete_ledger(ledger_id))
    with pytest.raises(NoSuchLedgerError):
        await ClusterRepair(client).look_at(ledger_id)


async def test_a_ledger_whose_copies_move_during_a_look_is_looked_at_again(
    cluster: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await cluster.client()
    ledger_id = await written(client)
    record, version = await client.records.ledgers.read(ledger_id)
    await cluster.start_bookie("other")
    moved = record.with_replaced(0, 0, {record.fragments[0].ensemble[0]: list(cluster.servers)[3]})

    async def move(_: object) -> None:
        await client.records.ledgers.write(moved, version)

    asked = during_looks(monkeypatch, move)
    lacking = await ClusterRepair(client).look_at(ledger_id)
    assert lacking is not None
    assert lacking.entries == {MissingKind(MissingReason.HOLE, 2, list(cluster.servers)[3]): COUNT}
    assert [len(some) for some in asked] == [3, 3]


async def test_a_record_that_changes_at_each_look_is_not_judged(
    cluster: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await cluster.client()
    ledger_id = await written(client)

    async def change(_: object) -> None:
        record, version = await client.records.ledgers.read(ledger_id)
        longer = replace(record, length=record.length + 1, last_entry=record.last_entry + 1)
        await client.records.ledgers.write(longer, version)

    during_looks(monkeypatch, *[change] * inspection.LOOKS_MAX)
    with pytest.raises(StoreBusyError, match="changed during each of 8 looks"):
        await ClusterRepair(client).look_at(ledger_id)


async def test_a_stream_that_is_cut_during_a_look_has_not_lost_what_was_cut(
    cluster: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await cluster.client()
    stream = client.unbounded_ledger("s")
    await stream.create(**QUORUMS)
    async with await stream.open_writer() as writer:
        for number in range(COUNT):
            await writer.append(b"<%d>" % number)
        await writer.flushed()
    stream_id = await client.records.streams.find("s")
    record, version = await client.records.streams.read(stream_id)
    assert record.terms is not None
    cut = replace(record, terms=replace(record.terms, start=COUNT // 2))
    for server in cluster.servers.values():
        server.ledgers.drop(stream_id, 0, COUNT // 2 - 1, server.storage.journal.last_lsn, lambda _: None)
    asked = during_looks(monkeypatch, lambda _: client.records.streams.write(cut, version))
    assert await ClusterRepair(client).look_at(stream_id) is None
    assert len(asked[0]) == 3
