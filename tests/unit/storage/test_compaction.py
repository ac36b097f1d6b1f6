"""Compaction on a disk in memory: which segments, what a relocated run holds, and what stays when something is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from quire.core.bookie.ledger import LedgerFacts
from quire.storage.formats.footer_format import OFFSET_UNIT, DirectoryEntry, Row
from quire.storage.index import RowTable
from quire.storage.ledger_storage import LedgerStorage
from quire.storage.reclaiming import compaction
from quire.storage.reclaiming.compaction import SealedSize, plan, sparse_share
from quire.storage.reclaiming.measuring import directory_of
from quire.storage.segments.segment import Segment
from quire.storage.segments.segment_files import SegmentFiles
from quire.storage.slices import run_through
from quire.wire.run import RunView, encode_run
from quire_testing.kit.stepped import HurriedClock
from support.storage_disk import (
    FILLER,
    SMALL,
    Answers,
    FaultyFiles,
    fill_oldest,
    make_run,
    open_storage,
    put,
    read_all,
    settle,
)


def payloads(storage: LedgerStorage, ledger_id: int, last: int) -> dict[int, Any]:
    return {
        key: bytes(value)[:1] if value else value
        for key, value in read_all(storage, ledger_id, 0, last).items()
    }


def a_sparse_segment(files: FaultyFiles, *, kept: int = 1) -> tuple[LedgerStorage, Answers, int]:
    """A sealed segment in which entries 0..9 of some ledgers live, and much of a deleted one lies."""
    storage, callback = open_storage(files, clock=HurriedClock(1_000_000)), Answers()
    for ledger_id in range(1, kept + 1):
        storage.put_facts(LedgerFacts(ledger_id, key=b"k" * 20, token=7), callback, None)
        put(storage, make_run(ledger_id, 0, 9, payload=b"a" * 50), callback, lac=4)
        settle(storage)
    first = fill_oldest(storage, callback)
    storage.delete(FILLER, 1 << 50, callback, None)
    settle(storage)
    return storage, callback, first


def compact(storage: LedgerStorage) -> int:
    done = run_through(storage.housekeeping.compact_slices(0.0))
    storage.housekeeping.reclaim()
    settle(storage)
    return done


def test_nothing_is_compacted_where_there_is_room_and_most_on_a_full_disk() -> None:
    assert sparse_share(1.0) == sparse_share(0.3) == 0.0
    assert sparse_share(0.0) == pytest.approx(0.8)
    assert sparse_share(0.29) == pytest.approx(0.25, abs=0.05)
    shares = [sparse_share(free / 100) for free in range(31)]
    assert all(less >= more for less, more in pairwise(shares))
    sealed = [
        SealedSize(1, 700, 1000),
        SealedSize(2, 100, 1000),
        SealedSize(3, 0, 1000),
        SealedSize(4, 100, 1000),
    ]
    assert plan(sealed, 0.0) == [2, 4, 1]
    assert plan(sealed, 0.2) == [2, 4]
    assert plan(sealed, 0.5) == []
    rooms = {0: [2], 150: [2], 200: [2, 4], 899: [2, 4], 900: [2, 4, 1]}
    assert {room: plan(sealed, 0.0, room) for room in rooms} == rooms


def test_a_sparse_segment_is_relocated_and_given_back_and_the_same_is_there_after_a_restart() -> None:
    files = FaultyFiles()
    storage, _, first = a_sparse_segment(files, kept=3)
    assert run_through(storage.housekeeping.compact_slices(0.5)) == 0
    assert storage.housekeeping.reclaim() == 0, "something lives in it"
    assert compact(storage) == 1
    assert first not in storage.segments
    for _ in range(2):
        for ledger_id in (1, 2, 3):
            assert payloads(storage, ledger_id, 20) == dict.fromkeys(range(10), b"a")
            assert storage.last_entry(ledger_id) == 9
            facts = storage.facts(ledger_id)
            assert facts is not None
            assert (facts.token, facts.lac) == (7, 4)
            assert not storage.drops.written_since(ledger_id, 100), "a relocated run is not put anew"
        assert storage.damages.kept == []
        storage.close(clean=False)
        storage = open_storage(files.crash())


def test_a_segment_is_measured_again_only_when_less_lives_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that ends early goes on where it was: on a large disk it would measure all segments, and end again."""
    storage, callback, first = a_sparse_segment(FaultyFiles(), kept=3)
    measured: list[int] = []

    def counting(files: SegmentFiles, segment: Segment) -> Iterator[DirectoryEntry]:
        measured.append(segment.sequence)
        return directory_of(files, segment)

    monkeypatch.setattr(compaction, "directory_of", counting)
    for times in (2, 3, 4):  # once to measure it, and each time to relocate
        run_through(storage.housekeeping.compact_slices(0.0, None, lambda: True))
        assert measured.count(first) == times
        assert first in storage.segments
    storage.delete(1, 1 << 50, callback, None)
    settle(storage)
    assert compact(storage) == 1
    assert measured.count(first) == 6
    assert compact(storage) == 0


def test_what_is_put_between_two_slices_wins_over_what_is_relocated_after_it() -> None:
    files = FaultyFiles()
    storage, callback, _ = a_sparse_segment(files, kept=2)
    put(
        storage, make_run(2, 20, 20, payload=b"n"), callback
    )  # the runs of ledger 2 are two pieces with a pause between
    steps = storage.housekeeping.compact_slices(0.0)
    relocated = 0
    put_at = -1
    for number in range(1000):
        before, relocated = relocated, storage.statistics()["carried_bytes"]
        if relocated > before and put_at < 0:
            put(
                storage, make_run(2, 3, 4, payload=b"n"), callback
            )  # ledger 2 has not had its turn, or is in the middle of it
            put_at = number
        if next(steps, "over") == "over":
            break
    assert put_at >= 0
    settle(storage)
    storage.housekeeping.reclaim()
    settle(storage)
    expected = dict.fromkeys(range(10), b"a") | {3: b"n", 4: b"n", 20: b"n"}
    assert payloads(storage, 2, 30) == expected
    storage.close(clean=False)
    assert payloads(open_storage(files.crash()), 2, 30) == expected


def test_a_row_is_taken_by_its_lsn_whenever_it_comes() -> None:
    newer, older = (make_run(1, first, last) for first, last in ((3, 5), (0, 9)))
    for period, stripes in ((1, 1), (3, 0b011)):
        table = RowTable()
        rows = [_row(run.first, run.last, lsn, period, stripes) for run, lsn in ((newer, 50), (older, 10))]
        table.add(rows[0], 7)
        table.add_relocated(rows[1])
        found = [
            (piece.first, piece.last, piece.row.lsn)
            for stream in table.pieces(1, 0, 20, 1)
            for piece in stream
        ]
        assert found == [(0, 2, 10), (3, 5, 50), (6, 9, 10)]
        assert table.newest_lsn(1) == 50
        assert table.lacs == {1: 7}


def _row(first: int, last: int, lsn: int, period: int, stripes: int) -> Row:
    return Row(1, 0, first, last, lsn, 8 * OFFSET_UNIT, 100, last - first + 1, period, 0, 3, 0x81, stripes)


def turned(files: FaultyFiles, storage: LedgerStorage, ledger_id: int, at: int) -> None:
    """A bit of the body of a ledger's first run is another one."""
    row = next(one for one in storage.scan() if one.ledger_id == ledger_id and one.kind == 0x81)
    [path] = [path for path in files.segments() if f"{row.segment:016x}" in path]
    files.nodes[path].data[row.offset + 104 + at] ^= 1


@pytest.mark.parametrize("table", [False, True])
def test_a_damaged_run_is_relocated_as_far_as_it_verifies_and_the_rest_stays_known_as_damaged(
    *, table: bool
) -> None:
    files = FaultyFiles()
    storage, callback, first = a_sparse_segment(files, kept=2)
    turned(files, storage, 2, 70 if table else 400)  # of the run's table, or in the middle of an entry
    assert compact(storage) == 1
    assert first not in storage.segments
    [damage] = storage.damages.kept
    assert damage.ledger_id == 2
    bad = range(damage.first, damage.last + 1)
    assert len(bad) == 10 if table else len(bad) == 1
    left = dict.fromkeys(range(10), b"a") | dict.fromkeys(bad)
    for clean in (True, False):
        assert payloads(storage, 2, 20) == left, "unknown, and no negative"
        assert payloads(storage, 1, 20) == dict.fromkeys(range(10), b"a")
        assert storage.last_entry(2) == 9
        held = [one for low, high, _, _ in storage.held(2) for one in range(low, high + 1)]
        assert held == [one for one in range(10) if one not in bad], "a repair copies what is damaged"
        storage.close(clean=clean)
        files = files.crash()
        storage = open_storage(files)
    # It goes on from segment to segment, until it is put back.
    while files.segments() and len(storage.segments) < 3:
        put(
            storage,
            make_run(FILLER + 1, storage.journal.last_lsn, storage.journal.last_lsn, payload=bytes(12_000)),
            callback,
        )
        settle(storage)
    storage.delete(FILLER + 1, 1 << 50, callback, None)
    settle(storage)
    before = set(storage.segments)
    assert compact(storage) >= 1
    assert before - set(storage.segments)
    assert payloads(storage, 2, 20) == left
    put(storage, make_run(2, 0, 9, payload=b"r"), callback, recovery=True)
    settle(storage)
    assert payloads(storage, 2, 20) == dict.fromkeys(range(10), b"r")
    assert storage.damages.kept == []


def without_type(run: RunView) -> RunView:
    """The same run as of a client that did not say the digest's type."""
    entries = [entry for _, entry in run.entries()]
    return RunView.parse(
        encode_run(run.ledger_id, run.first, run.last, entries, list(run.sizes), digest_type=0)
    )


def test_a_damaged_run_of_an_unknown_digest_is_damaged_as_a_whole_and_holds_nothing_up() -> None:
    files = FaultyFiles()
    storage, callback = open_storage(files, clock=HurriedClock(1_000_000)), Answers()
    for ledger_id in (1, 2):
        put(storage, without_type(make_run(ledger_id, 0, 9, payload=b"a" * 50)), callback)
        settle(storage)
    first = fill_oldest(storage, callback)
    storage.delete(FILLER, 1 << 50, callback, None)
    settle(storage)
    turned(files, storage, 2, 400)
    assert compact(storage) == 1
    assert first not in storage.segments
    for _ in range(2):
        assert payloads(storage, 1, 20) == dict.fromkeys(range(10), b"a")
        assert payloads(storage, 2, 20) == dict.fromkeys(range(10)), "unknown, and no negative"
        storage.close(clean=False)
        storage = open_storage(files.crash())


def test_a_segment_of_which_compaction_fails_is_put_aside_and_does_not_hold_up_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    files = FaultyFiles()
    storage, callback = open_storage(files, clock=HurriedClock(1_000_000)), Answers()
    strange = make_run(1, 0, 9)
    strange.body = bytes(len(strange.body))  # its checksum is right, and it is no run
    put(storage, strange, callback)
    settle(storage)
    first = fill_oldest(storage, callback)
    put(storage, make_run(2, 0, 9, payload=b"a" * 50), callback)
    settle(storage)
    second = fill_oldest(storage, callback, max(storage.segments))
    storage.delete(FILLER, 1 << 50, callback, None)
    settle(storage)
    assert compact(storage) == 1
    assert compact(storage) == 0
    assert [record.levelname for record in caplog.records] == ["ERROR"], "it is logged once"
    assert f"{first:016x}.seg cannot be compacted" in caplog.text
    assert second not in storage.segments
    assert first in storage.segments
    assert payloads(storage, 2, 20) == dict.fromkeys(range(10), b"a")


@pytest.mark.parametrize("strange", [0, 1, 2])
def test_one_of_several_segments_that_cannot_be_compacted_does_not_hold_up_the_others(
    caplog: pytest.LogCaptureFixture, strange: int
) -> None:
    files = FaultyFiles()
    storage, callback = open_storage(files, clock=HurriedClock(1_000_000)), Answers()
    firsts = []
    for number in range(3):
        run = make_run(1 + number, 0, 9, payload=b"a" * 50)
        if number == strange:
            run.body = bytes(len(run.body))  # its checksum is right, and it is no run
        put(storage, run, callback)
        settle(storage)
        firsts.append(fill_oldest(storage, callback, max(storage.segments)))
    storage.delete(FILLER, 1 << 50, callback, None)
    settle(storage)
    assert run_through(storage.housekeeping.compact_slices(0.0, 1 << 30)) == 2
    storage.housekeeping.reclaim()
    settle(storage)
    assert set(firsts) & set(storage.segments) == {firsts[strange]}
    assert [record.levelname for record in caplog.records] == ["ERROR"], "it is logged once"
    assert f"{firsts[strange]:016x}.seg cannot be compacted" in caplog.text
    for number in range(3):
        if number != strange:
            assert payloads(storage, 1 + number, 20) == dict.fromkeys(range(10), b"a")


def test_damage_is_forgotten_with_what_it_is_about() -> None:
    files = FaultyFiles()
    storage, callback, _ = a_sparse_segment(files, kept=2)
    turned(files, storage, 2, 400)
    assert compact(storage) == 1
    storage.drops.drop(2, 0, 9, storage.journal.last_lsn, callback, None)
    settle(storage)
    assert storage.damages.kept == []
    assert payloads(storage, 2, 20) == {}
    storage.close(clean=False)
    assert payloads(open_storage(files.crash()), 2, 20) == {}


def test_a_segment_of_small_ledgers_that_all_live_is_not_compacted() -> None:
    """Headers, states and rows are several times their entries: nothing came back, and a full disk went on for ever."""
    files = FaultyFiles()
    storage, callback = open_storage(files, clock=HurriedClock(1_000_000)), Answers()
    first = min(storage.segments)
    ledger_id = 1
    while storage.segments[first].trailer is None:
        storage.put_facts(LedgerFacts(ledger_id, key=b"k" * 20), callback, None)
        put(storage, make_run(ledger_id, 0, 0, payload=b"a" * 60), callback)
        ledger_id += 1
        if ledger_id % 60 == 0:
            settle(storage)
    assert compact(storage) == 0
    assert first in storage.segments
    for one in range(1, ledger_id, 8):
        for other in range(one, min(one + 7, ledger_id)):
            storage.delete(other, 1 << 50, callback, None)
    settle(storage)
    assert compact(storage) == 1
    assert first not in storage.segments


def test_what_was_put_into_larger_segments_is_relocated_in_parts_into_smaller_ones() -> None:
    """The bookie was started with another size: a run may be longer than a segment now, and an entry as well."""
    files = FaultyFiles()
    large = replace(SMALL, segment_bytes=1024 * 1024, group_bytes_max=512 * 1024)
    storage, callback = open_storage(files, large, clock=HurriedClock(1_000_000)), Answers()
    put(storage, make_run(1, 0, 29, payload=b"a" * 10_000), callback)
    put(storage, make_run(2, 0, 0, payload=b"b" * 200_000), callback)
    settle(storage)
    first = fill_oldest(storage, callback)
    put(storage, make_run(3, 0, 9, payload=b"c" * 100), callback)
    settle(storage)
    storage.delete(FILLER, 1 << 50, callback, None)
    settle(storage)
    storage.close()
    storage = open_storage(files, clock=HurriedClock(1_000_000))
    assert compact(storage) == 0
    assert first in storage.segments, "an entry of it is longer than a segment is now"
    assert payloads(storage, 1, 40) == dict.fromkeys(range(30), b"a")
    assert payloads(storage, 2, 1) == {0: b"b"}
    storage.delete(2, 1 << 50, callback, None)
    settle(storage)
    compact(storage)
    assert first not in storage.segments
    for _ in range(2):
        assert payloads(storage, 1, 40) == dict.fromkeys(range(30), b"a")
        assert payloads(storage, 3, 40) == dict.fromkeys(range(10), b"c")
        storage.close()
        storage = open_storage(files.crash())


def test_a_drop_up_to_an_lsn_reaches_what_was_relocated_since() -> None:
    files = FaultyFiles()
    storage, callback, _ = a_sparse_segment(files)
    assert compact(storage) == 1
    relocated = next(record for record in storage.scan() if record.ledger_id == 1 and record.kind == 0x81)
    through = relocated.lsn
    list_of_segment = next(record for record in storage.scan() if record.segment == relocated.segment)
    assert through < list_of_segment.lsn, "it bears a lower LSN than whatever was put into that segment"
    number = 1000
    current = max(storage.segments)
    while storage.segments[current].trailer is None:
        put(storage, make_run(FILLER + 1, number, number, payload=bytes(12_000)), callback)
        settle(storage)
        number += 1
    assert not storage.drops.written_since(1, through)
    storage.drops.drop(1, 2, 5, through, callback, "drop")
    settle(storage)
    assert ("drop", None) in callback.told
    left = dict.fromkeys([0, 1, 6, 7, 8, 9], b"a")
    assert payloads(storage, 1, 20) == left
    storage.drops.drop(1, 0, 9, through, callback, "rest")
    settle(storage)
    assert payloads(storage, 1, 20) == {}
    assert storage.last_entry(1) == -1
    storage.close(clean=False)
    storage = open_storage(files.crash())
    assert payloads(storage, 1, 20) == {}
    assert storage.last_entry(1) == -1


def test_a_full_disk_is_compacted_into_its_reserve_and_takes_adds_again() -> None:
    files = FaultyFiles()
    storage, callback = open_storage(files), Answers()
    files.space = 8 * 128 * 1024
    number = 0
    while storage.writable:
        put(storage, make_run(1 + number % 2, number, number, payload=bytes(6_000)), callback)
        settle(storage)
        number += 1
    assert storage.journal.full
    storage.drops.drop(1, 0, (1 << 63) - 1, storage.journal.last_lsn, callback, "half")
    settle(storage)
    assert storage.housekeeping.reclaim() == 0, "half of every segment lives"
    for _ in range(20):
        if not storage.journal.full:
            break
        compact(storage)
        storage.check_disk()
        settle(storage)
    assert not storage.journal.full
    assert sorted(read_all(storage, 2, 0, number)) == [*range(1, number - number % 2, 2)][: number // 2]
    assert read_all(storage, 1, 0, number) == {}
    storage.close(clean=False)
    again = open_storage(files.crash())
    assert len(read_all(again, 2, 0, number)) == len([tag for tag in range(1, number, 2)])
