"""Ledgers that were closed below the write quorum that they guaranteed: marked for repair, and whole afterwards.

Source: docs/protocol/write-quorum.md, "Closed below the guarantee".
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path

from quire.autorecovery.pending_replication import PendingReplication
from quire.client.bookies.bookies import BookieClient
from quire.client.client import Client
from quire.client.repairing.ledger_repair import LedgerRepair
from quire.client.writing.writer import LedgerWriter
from quire.core.ids import LedgerId
from quire.core.ledger.guarantee import GIVEN_UP, GUARANTEED, KEPT
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.notes import EntryRange
from quire.core.repair.effects import RepairOutcome
from quire.core.repair.under_replicated_marks import ANY_BOOKIE, MarkReason
from quire.env.real import RealClock
from quire.metadata.bookies import BookieRegistry
from quire.metadata.records import OF_LEDGERS
from quire.metadata.sqlite.store import SqliteStore
from support.small_cluster import SmallCluster, small_cluster
from unit.client.test_write_quorum import CONFIG, SHAPE, is_whole, without_one


async def marks_of(client: Client, ledger_id: int) -> list[tuple[MarkReason, str, EntryRange]]:
    found = await client.records.repairs("a test").marks(ledger_id)
    assert found is None or found.mark is not None
    return [] if found is None else [(each.reason, each.bookie, each.entries) for each in found.mark.marks]


async def repaired(client: Client, ledger_id: int) -> RepairOutcome:
    return (await LedgerRepair(ledger_id, client.context).run()).outcome


async def closed_as_java_does(client: Client, writer: LedgerWriter) -> LedgerMetadata:
    """Close a ledger at what its writer acknowledged; its own metadata goes with the record, unread."""
    await writer.abandon()
    record, version = await client.records.ledgers.read(writer.ledger_id)
    closed = record.in_recovery().closed(int(writer.last_add_confirmed), writer.length)
    await client.records.ledgers.write(replace(closed, custom=record.custom), version)
    return closed


@asynccontextmanager
async def below_its_guarantee(
    tmp_path: Path,
) -> AsyncIterator[tuple[SmallCluster, Client, LedgerWriter, str]]:
    """A writer with an entry on two of three bookies, since the third has stopped, and that one's name."""
    async with small_cluster(tmp_path) as cluster:
        client = await cluster.client(CONFIG)
        writer = await client.create_ledger(**SHAPE)
        _, away = await without_one(cluster, writer)
        yield cluster, client, writer, away


async def is_marked_until_it_is_repaired(
    cluster: SmallCluster, client: Client, ledger_id: int, away: str
) -> None:
    assert await marks_of(client, ledger_id) == [(MarkReason.HOLE, ANY_BOOKIE, EntryRange(0, 0))]
    assert await PendingReplication(client).mark() == 0, "it is marked already"
    assert await repaired(client, ledger_id) is RepairOutcome.INCOMPLETE
    assert (await client.ledger_metadata(ledger_id)).has_pending_replication, (
        "a bookie is away: nothing is known of its copies"
    )
    await cluster.start_bookie(away)
    assert await repaired(client, ledger_id) is RepairOutcome.WHOLE
    record = await client.ledger_metadata(ledger_id)
    assert {GUARANTEED, KEPT} <= {*record.custom}
    assert not record.has_pending_replication
    assert record.guaranteed
    assert await is_whole(client, ledger_id)


async def test_whoever_gives_a_guarantee_up_marks_the_ledger(tmp_path) -> None:
    async with below_its_guarantee(tmp_path) as (cluster, client, writer, away):
        await writer.close(at="ack_quorum")
        assert GIVEN_UP in (await client.ledger_metadata(writer.ledger_id)).custom
        await is_marked_until_it_is_repaired(cluster, client, writer.ledger_id, away)


async def test_a_recovery_that_gives_it_up_marks_the_ledger(tmp_path) -> None:
    async with below_its_guarantee(tmp_path) as (cluster, client, writer, away):
        await writer.abandon()
        await client.recover_ledger(writer.ledger_id, at="ack_quorum")
        await is_marked_until_it_is_repaired(cluster, client, writer.ledger_id, away)


async def test_a_close_by_who_does_not_know_the_guarantee_is_marked_by_the_auditor(tmp_path) -> None:
    async with below_its_guarantee(tmp_path) as (cluster, client, writer, away):
        await closed_as_java_does(client, writer)
        report = await client.verify_ledger(writer.ledger_id)
        assert not report.complete
        assert await PendingReplication(client).mark() == 1
        await is_marked_until_it_is_repaired(cluster, client, writer.ledger_id, away)


async def test_who_finds_it_closed_by_such_a_client_marks_it_too(tmp_path) -> None:
    async with below_its_guarantee(tmp_path) as (_, client, writer, _):
        read = client.records.ledgers.read

        async def closed_meanwhile(ledger_id: int) -> tuple[LedgerMetadata, int]:
            """The record as it was before the other client closed the ledger."""
            client.records.ledgers.read = read  # type: ignore[method-assign]
            before = await read(ledger_id)
            await closed_as_java_does(client, writer)
            return before

        client.records.ledgers.read = closed_meanwhile  # type: ignore[method-assign]
        await client.open_ledger(writer.ledger_id)
        assert len(await marks_of(client, writer.ledger_id)) == 1


async def test_nothing_is_marked_that_has_no_pending_replication(cluster) -> None:
    client = await cluster.client(CONFIG)
    async with await client.create_ledger(**SHAPE) as kept:
        await kept.append(b"on all three")
    assert KEPT in kept.metadata.custom
    recovered = await client.create_ledger(**SHAPE)
    await recovered.append(b"on all three")
    await recovered.abandon()
    await client.open_ledger(recovered.ledger_id)
    async with await client.create_ledger(guarantee=None) as ordinary:
        await ordinary.append(b"on two at least")
    assert ordinary.metadata.custom == tuple(
        x for x in ordinary.metadata.custom if x not in {KEPT, GUARANTEED}
    )
    empty = await client.create_ledger(**SHAPE)
    await closed_as_java_does(client, empty)
    writing = await client.create_ledger(**SHAPE)
    await writing.append(b"it is open")
    assert await PendingReplication(client).mark() == 0


async def test_a_record_that_is_damaged_in_the_store_keeps_no_other_from_being_marked(tmp_path) -> None:
    async with below_its_guarantee(tmp_path) as (_, client, writer, _):
        await closed_as_java_does(client, writer)
        closed = await client.ledger_metadata(writer.ledger_id)
    path = tmp_path / "elsewhere" / "metadata.db"
    async with await SqliteStore.open(path, create=True) as store:
        bookies = BookieClient(BookieRegistry(store), store.instance_id)
        audited = Client(store, bookies, RealClock(), random.Random(1))
        for ledger_id in (1, 2, 3):
            await audited.records.ledgers.create(replace(closed, ledger_id=LedgerId(ledger_id)))
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            cut = "UPDATE entries SET value = substr(value, 1, length(value) - 1) WHERE key = ?"
            assert connection.execute(cut, (OF_LEDGERS.key(2),)).rowcount == 1
        assert await PendingReplication(audited).mark() == 2
