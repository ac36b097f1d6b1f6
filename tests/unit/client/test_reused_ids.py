"""An id that was given out twice, as by a metadata store that was restored: writers and readers are told what it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quire.client.config import ClientConfig
from quire.core.errors import (
    LedgerClosedError,
    LedgerIdReusedError,
    OutcomeUnknownError,
    ReadUnavailableError,
)
from quire.core.ledger.metadata import TOKEN_KEY, LedgerState
from quire.metadata.records import OF_LEDGERS
from quire.metadata.store import Delete
from support.small_cluster import SmallCluster
from support.waiting import until_async
from unit.client.test_reading import texts

FOREVER_MS = 10**15
PATIENT = ClientConfig(recovery_patience_ms=3_600_000, read_timeout_ms=3_600_000)
"""A test that waits until such a client gives up runs into its own time limit."""


async def written(cluster: SmallCluster):
    """A closed ledger of ten entries on all three bookies."""
    client = await cluster.client()
    async with await client.create_ledger() as writer:
        await writer.append_many(texts(10))
    return await client.ledger_metadata(writer.ledger_id)


def restore(cluster: SmallCluster, ledger_id: int) -> None:
    """What a backup from before the ledger does: no record, and the id is given out again."""
    cluster.space.apply((Delete(OF_LEDGERS.key(ledger_id)),))
    cluster.space.ledger_ids = ledger_id - 1


async def test_a_writer_is_told_and_the_next_ledger_has_another_id(cluster) -> None:
    before = await written(cluster)
    restore(cluster, before.ledger_id)
    client = await cluster.client()
    client.chance.random()  # the clients of these tests have one seed: this one's tokens shall be others
    writer = await client.create_ledger()
    assert writer.ledger_id == before.ledger_id
    pending = [writer.append_nowait(text) for text in texts(3)]
    for each in pending:
        with pytest.raises(LedgerIdReusedError) as caught:
            await each
    told = caught.value
    assert (told.code, told.ids["ledger_id"]) == ("ledger_id_reused", before.ledger_id)
    for words in (
        f"id {before.ledger_id} was used before by another ledger",
        "answered WRONG_TOKEN",
        "create the ledger again, which gives it another id",
        "restored from a backup, see docs/metadata.md",
    ):
        assert words in told.message
    with pytest.raises(LedgerIdReusedError):
        await writer.close()
    record = await client.ledger_metadata(before.ledger_id)
    assert (record.state, record.last_entry) == (LedgerState.CLOSED, -1)
    assert len(record.fragments) == 1, "no bookie was taken for a failed one"
    async with await client.create_ledger() as writer:
        assert writer.ledger_id > before.ledger_id
        await writer.append(b"here")


async def test_what_a_writer_sent_before_it_was_told_may_be_recovered(cluster) -> None:
    """One bookie of three holds the earlier ledger; the others store the new one's entry, and a recovery finds it."""
    client = await cluster.client()
    async with await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1) as before:
        await before.append(b"before")
    restore(cluster, before.ledger_id)
    client = await cluster.client()
    client.chance.random()
    writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=3)
    assert writer.ledger_id == before.ledger_id
    await cluster.start_bookie("b4")
    other = await cluster.client()
    record, version = await other.records.ledgers.read(writer.ledger_id)
    await other.records.ledgers.write(record.in_recovery(), version)
    with pytest.raises(OutcomeUnknownError, match="may or may not be in the new one") as caught:
        await writer.append(b"sent")
    assert caught.value.code == "ledger_id_reused"
    others = [
        server
        for bookie, server in cluster.servers.items()
        if bookie in record.fragments[0].ensemble and bookie not in before.metadata.fragments[0].ensemble
    ]
    await until_async(
        lambda: all(server.ledgers.last_entry(writer.ledger_id) == 0 for server in others),
        "the other bookies to store it",
    )
    reader = await other.open_ledger(writer.ledger_id)
    assert [bytes(entry.payload) async for entry in reader.read()] == [b"sent"]


async def test_a_new_ledger_that_bookies_keep_as_deleted_is_told_so_and_an_older_one_is_not(cluster) -> None:
    before = await written(cluster)
    for server in cluster.servers.values():
        server.ledgers.delete(before.ledger_id, FOREVER_MS)
    restore(cluster, before.ledger_id)
    client = await cluster.client()
    writer = await client.create_ledger()
    with pytest.raises(LedgerIdReusedError, match="keeps a tombstone of that ledger"):
        await writer.append(b"x")
    known = await client.create_ledger()
    await known.append(b"confirmed")
    for server in cluster.servers.values():
        server.ledgers.delete(known.ledger_id, FOREVER_MS)
    with pytest.raises(LedgerClosedError, match="deleted the ledger"):
        await known.append(b"x")


async def test_an_open_that_hears_of_another_ledger_only_does_not_wait(cluster) -> None:
    before = await written(cluster)
    restore(cluster, before.ledger_id)
    client = await cluster.client(PATIENT)
    again = replace(
        before, state=LedgerState.OPEN, last_entry=-1, length=0, custom=((TOKEN_KEY, bytes(7) + b"\x01"),)
    )
    await client.records.ledgers.create(again)
    with pytest.raises(LedgerIdReusedError, match="hold entries of that ledger under it") as caught:
        await client.open_ledger(before.ledger_id)
    assert set(caught.value.ids["bookies"]) <= set(cluster.servers)


async def test_reading_a_ledger_whose_bookies_hold_another_does_not_wait(cluster) -> None:
    before = await written(cluster)
    restore(cluster, before.ledger_id)
    client = await cluster.client(PATIENT)
    await client.records.ledgers.create(replace(before, custom=((TOKEN_KEY, bytes(7) + b"\x01"),)))
    reader = await client.open_ledger(before.ledger_id)
    with pytest.raises(LedgerIdReusedError, match=r"b1.*see docs/metadata\.md"):
        await anext(aiter(reader.read()))
    # One that is away might have it.
    brief = await (await cluster.client(ClientConfig(read_timeout_ms=1))).open_ledger(before.ledger_id)
    await cluster.stop_bookie(sorted(cluster.servers)[0])
    with pytest.raises(ReadUnavailableError, match="WRONG_TOKEN"):
        await anext(aiter(brief.read()))
