"""Repair of a cluster's ledgers against real bookies: what was lost is copied, and only that; each obstacle is named.

Source: docs/protocol/repair.md.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quire.autorecovery import targets
from quire.autorecovery.repair import PASSES_MAX, ClusterRepair, checked_lost
from quire.autorecovery.targets import room_above_floor
from quire.client.client import Client
from quire.client.repairing.copy_rate import CopyRate
from quire.client.repairing.ledger_repair import LedgerRepair
from quire.core.errors import RefusedError, WrongPasswordError
from quire.core.ids import BookieId
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.notes import EntryRange
from quire.core.repair.effects import Loss, RepairEnded, RepairOutcome, RepairReport
from quire.core.repair.under_replication import MissingKind, MissingReason, UnderReplicatedLedger
from quire.metadata.records import OF_LEDGERS
from support.small_cluster import SmallCluster, small_cluster

COUNT = 30


async def written(client: Client, count: int = COUNT, size: int = 100, **shape: Any) -> int:
    async with await client.create_ledger(**shape) as writer:
        for number in range(count):
            writer.append_nowait(b"%06d" % number + bytes(size - 6))
    return int(writer.ledger_id)


def named(record: LedgerMetadata) -> set[str]:
    return {bookie for fragment in record.fragments for bookie in fragment.ensemble}


async def lose(cluster: SmallCluster, name: str) -> BookieId:
    """Stop a bookie for good."""
    bookie = next(each for each in cluster.servers if each.startswith(name))
    await cluster.stop_bookie(bookie, clean=False)
    return bookie


async def _replaced(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, 6) as cluster:
        client = await cluster.client()
        shapes: list[dict[str, Any]] = [
            {"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2},
            {"ensemble_size": 5, "write_quorum": 3, "ack_quorum": 2},
        ]
        made = [await written(client, count, **shape) for shape in shapes for count in (0, 1, COUNT) * 3]
        gone = await lose(cluster, "b1")
        before = {ledger: await client.ledger_metadata(ledger) for ledger in made}
        repair = ClusterRepair(client, lost=await checked_lost(client, [gone]))
        found = await repair.look()
        touched = {ledger for ledger, record in before.items() if gone in named(record)}
        assert touched == set(found.ledgers)
        wanted = sum(
            kind_count
            for each in found.ledgers.values()
            for kind, kind_count in each.entries.items()
            if kind.reason is MissingReason.GONE
        )
        assert found.entries == wanted > 0
        totals = await repair.run(found.to_repair)
        assert {end.outcome for end in totals.ended.values()} == {RepairOutcome.WHOLE}
        assert (totals.entries, totals.left, totals.failed) == (wanted, [], {})
        for ledger, record in before.items():
            after = await client.ledger_metadata(ledger)
            assert gone not in named(after)
            assert (after.state, after.last_entry, after.length) == (
                record.state,
                record.last_entry,
                record.length,
            )
            report = await client.verify_ledger(ledger)
            assert report.complete, report
        again = ClusterRepair(client, lost=[gone])
        found = await again.look()
        assert (found.ledgers, found.blocked, found.looked_at) == ({}, {}, len(made))


async def test_a_bookie_that_is_gone_is_replaced_in_every_closed_ledger(tmp_path: Path) -> None:
    await _replaced(tmp_path)


async def test_holes_of_a_bookie_that_was_away_are_filled_and_leave_the_record(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, 3) as cluster:
        client = await cluster.client()
        away = next(iter(cluster.servers))
        name = await cluster.stop_bookie(away)
        ledger = await written(client)
        await cluster.start_bookie(name)
        repair = ClusterRepair(client)
        found = (await repair.look()).ledgers[ledger]
        assert {(kind.reason, kind.copies_left, kind.bookie) for kind in found.entries} == {
            (MissingReason.HOLE, 2, away)
        }
        assert found.copyable == COUNT
        totals = await repair.run([found])
        assert (totals.entries, totals.left) == (COUNT, [])
        record, notes, _ = await client.records.ledgers.read_with_notes(ledger)
        assert notes.holes == ()
        assert away in named(record)
        assert (await client.verify_ledger(ledger)).complete


async def test_a_bookie_that_is_gone_since_the_repair_began_is_replaced_by_the_same_repair(
    tmp_path: Path,
) -> None:
    async with small_cluster(tmp_path, 5) as cluster:
        client = await cluster.client()
        ledger = await written(client, ensemble_size=3, write_quorum=3, ack_quorum=2)
        first, second, _ = (await client.ledger_metadata(ledger)).fragments[0].ensemble
        for bookie in (first, second):
            await cluster.stop_bookie(bookie, clean=False)
        spares = sorted({*cluster.servers} - named(await client.ledger_metadata(ledger)))

        async def may_send(bookie: BookieId, size: int) -> bool:
            repair.bookies_changed([first, second], spares)
            return True

        repair = LedgerRepair(
            ledger, client.context, lost_bookies=[first], candidates=spares[:1], may_send=may_send
        )
        ended = await repair.run()
        assert ended.outcome is RepairOutcome.WHOLE
        assert {old for _, old, _ in ended.report.replaced} == {first, second}
        assert not {first, second} & named(await client.ledger_metadata(ledger))
        assert (await client.verify_ledger(ledger)).complete


async def test_where_every_bookie_has_a_slot_already_the_repair_says_that_one_is_missing(
    tmp_path: Path,
) -> None:
    async with small_cluster(tmp_path, 3) as cluster:
        client = await cluster.client()
        ledger = await written(client)
        gone = await lose(cluster, "b2")
        ended = await LedgerRepair(
            ledger, client.context, lost_bookies=[gone], candidates=client.bookies.writable()
        ).run()
        assert ended.outcome is RepairOutcome.INCOMPLETE
        assert ended.report.left == {gone: "it is gone, and no other bookie can take its place"}
        assert gone in named(await client.ledger_metadata(ledger))


async def test_what_only_a_gone_bookie_has_is_kept_until_a_person_accepts_the_loss(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, 3) as cluster:
        client = await cluster.client()
        shape = {"ensemble_size": 2, "write_quorum": 1, "ack_quorum": 1}
        ledger = await written(client, **shape)
        gone = BookieId((await client.ledger_metadata(ledger)).fragments[0].ensemble[0])
        await cluster.stop_bookie(gone)
        spares = [
            bookie for bookie in cluster.servers if bookie not in named(await client.ledger_metadata(ledger))
        ]
        left = await LedgerRepair(ledger, client.context, lost_bookies=[gone], candidates=spares).run()
        assert left.outcome is RepairOutcome.QUIET
        assert sum(each.size() for each in left.report.gone_only) == COUNT // 2
        assert gone in named(await client.ledger_metadata(ledger))
        another = Loss(client.clock.wall_ms(), "an operator", (EntryRange(0, COUNT // 2),))
        same = await LedgerRepair(
            ledger, client.context, lost_bookies=[gone], candidates=spares, accepted=another
        ).run()
        assert (same.outcome, same.report.replaced) == (RepairOutcome.QUIET, [])
        word = Loss(client.clock.wall_ms(), "an operator", (EntryRange(0, COUNT - 1),))
        done = await LedgerRepair(
            ledger, client.context, lost_bookies=[gone], candidates=spares, accepted=word
        ).run()
        assert [old for _, old, _ in done.report.replaced] == [gone]
        _, notes, _ = await client.records.ledgers.read_with_notes(ledger)
        assert [(loss.accepted_by, loss.lost_bookies) for loss in notes.losses] == [("an operator", (gone,))]


async def _deleted(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, 4) as cluster:
        client = await cluster.client()
        ledger = await written(client)
        gone = BookieId((await client.ledger_metadata(ledger)).fragments[0].ensemble[0])
        await cluster.stop_bookie(gone)
        spares = [
            bookie for bookie in cluster.servers if bookie not in named(await client.ledger_metadata(ledger))
        ]

        async def deleting(_bookie: BookieId, _size: int) -> bool:
            await client.delete_ledger(ledger, fence=False)
            return True

        ended = await LedgerRepair(
            ledger, client.context, lost_bookies=[gone], candidates=spares, may_send=deleting
        ).run()
        assert ended.outcome is RepairOutcome.DELETED


async def test_a_ledger_that_is_deleted_in_the_middle_ends_its_repair(tmp_path: Path) -> None:
    await _deleted(tmp_path)


async def _full(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, 5) as cluster:
        client = await cluster.client()
        ledger = await written(client)
        record = await client.ledger_metadata(ledger)
        gone = BookieId(record.fragments[0].ensemble[0])
        await cluster.stop_bookie(gone)
        full, free = sorted(bookie for bookie in cluster.servers if bookie not in named(record))

        async def may_send(bookie: BookieId, _size: int) -> bool:
            return bookie != full

        ended = await LedgerRepair(
            ledger, client.context, lost_bookies=[gone], candidates=[full, free], may_send=may_send
        ).run()
        assert ended.outcome is RepairOutcome.WHOLE
        assert ended.report.replaced == [(0, gone, free)]
        assert ended.report.refused == {full: "it did not take copies: READ_ONLY"}


async def test_a_target_that_fills_up_is_left_for_another(tmp_path: Path) -> None:
    await _full(tmp_path)


async def test_a_record_without_password_or_sense_does_not_hold_up_others(tmp_path: Path) -> None:
    """BookKeeper's issue 3887: one ledger that cannot be read held up the repair of all."""
    async with small_cluster(tmp_path, 4) as cluster:
        client = await cluster.client()
        spoilt = await written(client)
        found = await client.store.get(OF_LEDGERS.key(spoilt))
        assert found is not None
        await client.store.put(OF_LEDGERS.key(spoilt), b"no record", found.version)
        shape = {"password": b"right", "digest": "mac"}
        plain = await written(client, **shape)
        other = await written(client, password=b"")
        record, version = await client.records.ledgers.read(plain)
        # As Java's first versions wrote it.
        old = replace(record, format_version=1, has_password=False, password=b"", custom=(), ack_quorum=3)
        await client.records.ledgers.write(old, version)
        gone = await lose(cluster, "b1")
        repair = ClusterRepair(client, lost=[gone])
        found = await repair.look()
        assert sorted(found.blocked) == [spoilt, plain]
        assert f"ledger {spoilt}" in found.blocked[spoilt].message
        assert isinstance(found.blocked[plain], WrongPasswordError)
        assert "give the ledger's password" in found.blocked[plain].message
        assert set(found.ledgers) <= {other}
        await repair.run(found.to_repair)
        assert gone not in named(await client.ledger_metadata(other))


async def _open(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, 4) as cluster:
        client = await cluster.client()
        writers = [await client.create_ledger() for _ in range(2)]
        await writers[1].append(b"one")
        for writer in writers:
            await writer.abandon()
        before = [await client.ledger_metadata(writer.ledger_id) for writer in writers]
        gone = BookieId(before[0].fragments[0].ensemble[0])
        await cluster.stop_bookie(gone, clean=False)
        for writer, record in zip(writers, before, strict=True):
            spares = [bookie for bookie in cluster.servers if bookie not in named(record)]
            ended = await LedgerRepair(
                writer.ledger_id, client.context, lost_bookies=[gone], candidates=spares
            ).run()
            assert (ended.outcome, ended.report.copied) == (RepairOutcome.WHOLE, 0)
            assert set(ended.report.undecided) == {gone} & named(record)
            assert await client.ledger_metadata(writer.ledger_id) == record


async def test_an_open_ledger_is_left_to_its_writer_also_an_empty_one(tmp_path: Path) -> None:
    """BookKeeper's issue 3692: an empty open ledger with a bookie that is gone."""
    await _open(tmp_path)


async def test_the_fewest_copies_come_first_and_what_is_left_again_while_copies_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    class Stopping:
        """A repair that copies an entry of ledger 1 each time, and never ends what it is to do."""

        def __init__(self, ledger_id: int, *_: Any, **__: Any) -> None:
            self.ledger_id, self.bytes_copied, self.stored = ledger_id, 0, {"b": int(ledger_id == 1)}

        async def run(self) -> RepairEnded:
            tried.append(self.ledger_id)
            return RepairEnded(RepairOutcome.INCOMPLETE, RepairReport(stopped="by a test"))

    monkeypatch.setattr("quire.autorecovery.repair.LedgerRepair", Stopping)
    async with small_cluster(tmp_path, 1) as cluster:
        for makes_copies, passes in ((1, PASSES_MAX), (3, 1)):
            tried.clear()
            lacking = [UnderReplicatedLedger(ledger, 100) for ledger in (makes_copies, 2)]
            for copies, each in zip((2, 1), lacking, strict=True):
                each.entries[MissingKind(MissingReason.HOLE, copies)] = 10
            totals = await ClusterRepair(await cluster.client()).run(lacking)
            assert tried == [2, makes_copies] * passes
            assert totals.left == sorted([2, makes_copies])


def spoilt_entries(directory: Path, text: bytes) -> int:
    """Change a byte of what has this text in a bookie's segments; how often it was there."""
    found = 0
    for file in directory.rglob("*.seg"):
        data = bytearray(file.read_bytes())
        at = data.find(text + bytes(90))
        if at >= 0:
            data[at] ^= 1
            file.write_bytes(data)
            found += 1
    return found


async def test_what_a_source_has_damaged_is_copied_from_another_and_mended(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, 4) as cluster:
        client = await cluster.client()
        ledger = await written(client)
        rotten, gone, _ = (await client.ledger_metadata(ledger)).fragments[0].ensemble
        name = await cluster.stop_bookie(rotten)
        assert spoilt_entries(tmp_path / name, b"%06d" % 7) == 1
        await cluster.start_bookie(name)
        await cluster.stop_bookie(gone)
        spares = [
            bookie for bookie in cluster.servers if bookie not in named(await client.ledger_metadata(ledger))
        ]
        ended = await LedgerRepair(ledger, client.context, lost_bookies=[gone], candidates=spares).run()
        assert ended.outcome is RepairOutcome.WHOLE
        assert (await client.verify_ledger(ledger)).complete


async def _registered(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, 3) as cluster:
        client = await cluster.client()
        with pytest.raises(RefusedError, match="is registered"):
            await checked_lost(client, [next(iter(cluster.servers))])
        with pytest.raises(RefusedError, match="no bookie of this name"):
            await checked_lost(client, ["nobody"])


async def test_a_bookie_that_is_there_cannot_be_called_gone(tmp_path: Path) -> None:
    await _registered(tmp_path)


def test_a_disk_is_filled_down_to_a_twentieth_or_two_segments() -> None:
    def says(size: int, free: int, segments: int, segment_bytes: int) -> dict[str, Any]:
        return {
            "disk": {"bytes": size, "free_bytes": free},
            "storage": {"segments": segments, "segment_bytes": segments * segment_bytes},
        }

    assert room_above_floor(says(1000, 60, 2, 10)) == 10
    assert room_above_floor(says(1000, 60, 2, 40)) == -20
    assert (
        room_above_floor({"disk": {"bytes": 1 << 40, "free_bytes": 1 << 39}}) == (1 << 39) - (1 << 40) // 20
    )
    small = 2 * targets.SEGMENT_BYTES + 7
    assert room_above_floor({"disk": {"bytes": small, "free_bytes": small}}) == 7
    assert room_above_floor({}) == float("inf")


async def test_copies_wait_for_the_rate_in_their_order() -> None:
    class Stopped:
        def now_ns(self) -> int:
            return 5_000_000_000

    async def waits() -> list[float]:
        slept: list[float] = []

        async def sleep(seconds: float) -> None:
            slept.append(seconds)

        rate = CopyRate(Stopped(), 1000, sleep)  # type: ignore[arg-type]
        for size in (500, 1000, 1):
            await rate.wait(size)
        await CopyRate(Stopped(), None, sleep).wait(1 << 40)  # type: ignore[arg-type]
        return slept

    assert await waits() == [0.5, 1.5]


async def test_a_copy_that_is_not_wanted_any_more_takes_nothing_of_the_rate() -> None:
    now_ns, woken = [0], asyncio.Event()

    class Clock:
        def now_ns(self) -> int:
            return now_ns[0]

    async def sleep(seconds: float) -> None:
        await woken.wait()
        now_ns[0] += int(seconds * 1e9)

    rate = CopyRate(Clock(), 1000, sleep)  # type: ignore[arg-type]
    await rate.wait(5_000)
    first, dropped, last = (asyncio.ensure_future(rate.wait(size)) for size in (1_000, 900_000, 2_000))
    await asyncio.sleep(0)
    dropped.cancel()
    rate.bytes_per_s = None
    woken.set()
    await asyncio.gather(first, last)
    assert rate.sent_bytes == 8_000
    assert now_ns[0] == 5_000_000_000, "who waits has no share of a rate that was lifted"
