"""Under-replicated marks on every driver; on ZooKeeper the bytes and places are those of Java's auditors and workers."""

import asyncio

import pytest

from quire.core.errors import AlreadyExistsError, CorruptMetadataError, MisuseError
from quire.core.ids import ID_MAX, BookieId
from quire.core.ledger.notes import EntryRange
from quire.core.repair.audit_effects import CountedState
from quire.core.repair.under_replicated_marks import (
    MarkReason,
    RepairAttempts,
    RepairWorkerState,
    UnderReplicatedMark,
    WaitsFor,
)
from quire.metadata.keys import (
    away_key,
    ledger_of,
    missing_key,
    read_only_for_key,
    repairs_key,
    worker_key,
)
from quire.metadata.repairs import LOST_DELAY_S, RepairStore
from quire.metadata.store import VersionConflictError
from quire.wire.underreplication import MissingBookies
from quire_testing.kit.stepped import StepClock

A, B, C = map(BookieId, ("127.0.0.1:3181", "bk_2", "c-abcde"))
IDS = (0, 7, 65_535, 65_536, 2**31 - 1, 2**48, ID_MAX)


def marks_of(store, name="auditor"):
    return RepairStore(store, StepClock(), name)


def hole(first, last, bookie=A, seen_ms=1):
    return UnderReplicatedMark(MarkReason.HOLE, bookie, EntryRange(first, last), 4, "", seen_ms)


async def test_marks_of_gone_bookies_are_merged_listed_in_order_and_removed_by_what_was_read(a, b):
    ours, theirs = marks_of(a), marks_of(b)
    for ledger_id in reversed(IDS):
        await ours.mark_missing(ledger_id, [A])
    first, second = await theirs.missing_page(limit=4), await theirs.missing_page(IDS[3])
    assert [ledger_id for ledger_id, _ in (*first, *second)] == list(IDS)
    read = await ours.missing(7)
    assert read.mark == MissingBookies((A,), ours._clock.wall_ms())
    again = await ours.mark_missing(7, [A])
    assert again > read.version  # it says the same, and is another: who looked before does not remove it
    assert (await ours.missing(7)).mark == read.mark
    await asyncio.gather(ours.mark_missing(7, [B, A]), theirs.mark_missing(7, [C]))
    assert {*(await ours.missing(7)).mark.bookies} == {A, B, C}
    assert not await ours.remove_missing(7, read)  # what was marked since stays
    assert await ours.remove_missing(7, await ours.missing(7))
    assert await theirs.missing(7) is None
    assert await ours.remove_missing(7, read)  # another has removed it
    await theirs.mark_missing(7, [B])
    assert not await ours.remove_missing(7, read)  # a new mark, on ZooKeeper with the old version
    assert (await ours.missing(7)).mark.bookies == (B,)


async def test_quires_marks_are_merged_and_one_that_cannot_be_read_is_named_and_kept(a, b):
    ours, theirs = marks_of(a), marks_of(b, "reader")
    await asyncio.gather(ours.mark(5, [hole(0, 3)]), theirs.mark(5, [hole(4, 9, seen_ms=2)]))
    read = await ours.marks(5)
    assert [(m.entries, m.seen_by, m.seen_ms) for m in read.mark.marks] == [(EntryRange(0, 9), "reader", 2)]
    await theirs.mark(5, [hole(20, 29)])
    assert not await ours.remove_marks(5, read)
    await a.create(repairs_key(6), b"another program's")
    await a.create(missing_key(6), b'replica: "x"\nunknown: 1\n')
    (_, five), (six, damaged) = await theirs.marks_page()
    assert len(five.mark.marks) == 2
    assert (six, damaged.mark) == (6, None)
    assert "ledger 6" in str(damaged.flaw)
    assert (await ours.missing(6)).flaw is not None
    with pytest.raises(CorruptMetadataError, match="ledger 6"):
        await ours.mark(6, [hole(0, 1)])
    with pytest.raises(CorruptMetadataError, match="ledger 6"):
        await ours.mark_missing(6, [A])
    assert (await a.get(repairs_key(6))).value == b"another program's"
    await a.create("repairs/x", b"")  # no ledger's
    assert [ledger_id for ledger_id, _ in await ours.marks_page(limit=3)] == [5, 6]
    await ours.note_attempts(5, RepairAttempts(1, WaitsFor.BOOKIE, "full"))
    noted = (await theirs.marks(5)).mark
    assert (len(noted.marks), noted.attempts.why, noted.attempts.tried_by) == (2, "full", "auditor")
    await theirs.mark(5, [hole(40, 49)])
    assert (await ours.marks(5)).mark.attempts == noted.attempts
    assert await ours.remove_marks(5, await ours.marks(5))
    assert await ours.marks(5) is None


async def test_a_lock_is_held_by_one_and_ends_with_its_owner(a, b):
    ours, theirs = marks_of(a, "one"), marks_of(b, "two")
    held = await ours.lock(ID_MAX)
    await ours.lock(7)
    with pytest.raises(AlreadyExistsError):
        await theirs.lock(7)
    assert await theirs.locks() == {7: "one", ID_MAX: "one"}
    await held.close()
    await a.close()
    assert await theirs.locks() == {}
    await theirs.lock(7)


async def test_workers_are_there_once_and_tell_what_they_did(a, b):
    ours, theirs = marks_of(a), marks_of(b)
    held = await ours.register_worker(RepairWorkerState("one"))
    with pytest.raises(AlreadyExistsError):
        await theirs.register_worker(RepairWorkerState("one"))
    await ours.update_worker(held, RepairWorkerState("one", 3, 400, 5))
    await a.register(worker_key("other"), b"another program's")
    assert await theirs.workers() == [RepairWorkerState("one", 3, 400, 5), RepairWorkerState("other")]


@pytest.mark.parametrize(
    ("state", "key"), [(CountedState.AWAY, away_key), (CountedState.READ_ONLY, read_only_for_key)]
)
async def test_seconds_are_counted_by_one_auditor_at_a_time(a, b, state, key):
    ours, theirs = marks_of(a, "one"), marks_of(b, "two")
    version = await ours.count_time(state, A, 10, None)
    with pytest.raises(AlreadyExistsError):
        await theirs.count_time(state, A, 10, None)
    read = (await theirs.times(state))[A]
    assert (read.mark.seconds, read.mark.counted_by, read.version) == (10, "one", version)
    await ours.count_time(state, A, 20, version)
    with pytest.raises(VersionConflictError):
        await theirs.count_time(state, A, 20, version)
    assert not await theirs.end_count(state, A, read)
    assert await theirs.end_count(state, A, (await theirs.times(state))[A])
    await a.create(key(B), b"\xff")
    assert (await ours.times(state))[B].flaw is not None


async def test_the_settings_are_the_clusters(a, b):
    ours, theirs = marks_of(a), marks_of(b)
    assert await ours.is_enabled()
    assert await ours.lost_delay_s() == LOST_DELAY_S
    for _ in range(2):
        await ours.set_enabled(False)
        assert not await theirs.is_enabled()
    for _ in range(2):
        await theirs.set_enabled(True)
        assert await ours.is_enabled()
    for seconds in (0, 90):
        await ours.set_lost_delay_s(seconds)
        assert await theirs.lost_delay_s() == seconds
    with pytest.raises(MisuseError):
        await ours.set_lost_delay_s(-1)


async def test_marks_and_candidates_are_watched(a, b):
    missing, repairs = marks_of(a).watch()
    async with (
        missing as gone,
        repairs as lacking,
        a.watch("underreplication/auditorelection/") as votes,
    ):
        for changes in (gone, lacking, votes):
            assert (await anext(changes)).reread_all
        await marks_of(b).mark_missing(9, [A])
        await marks_of(b).mark(8, [hole(0, 0)])
        held = [
            await b.register("underreplication/auditorelection/", b"", sequential=True, again=False)
            for _ in range(2)
        ]
        assert {*await anext(gone)} == {missing_key(9)}
        assert {*await anext(lacking)} == {repairs_key(8)}
        seen = set(await anext(votes))
        while len(seen) < 2:
            seen |= await anext(votes)
        assert seen == {each.key for each in held}
        assert held[0].key < held[1].key
        assert ledger_of(held[0].key) is not None
        listed = await a.list("underreplication/")
        assert [key for key, _ in listed] == sorted([missing_key(9), *seen])
