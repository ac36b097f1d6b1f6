"""Which relocated runs become one, what that one holds and bears; and that many short runs come back as few."""

from __future__ import annotations

from itertools import pairwise

import pytest

from quire.core.bookie.ledger import LedgerFacts
from quire.core.ledger.terms import ANY_ORIGIN
from quire.storage.formats.footer_format import Row, RowFlag
from quire.storage.index import RunPiece
from quire.storage.ledger_storage import LedgerStorage
from quire.storage.reclaiming.merging import Merging
from quire.storage.slices import run_through
from quire.wire.run import RunView
from quire_testing.kit.stepped import HurriedClock
from support.storage_disk import (
    FILLER,
    Answers,
    FaultyFiles,
    fill_oldest,
    make_run,
    open_storage,
    put,
    read_all,
    settle,
)


def piece_of(run: RunView, lsn: int, *, recovery: bool = False) -> RunPiece:
    flags = RowFlag.RECOVERY if recovery else 0
    row = Row(
        1, run.origin_term, run.first, run.last, lsn, 8, len(run.body), run.count, run.period, flags, 3, 0x81,
        run.stripes,
    )  # fmt: skip
    return RunPiece(run.first, run.last, 1, row)


def merged(*runs: tuple[RunView, int], term_lsn: int = 0, bytes_max: int = 1 << 20) -> list[list[int]]:
    """The LSNs of the runs that become one, in groups."""
    merging, groups = Merging(bytes_max), []
    for run, lsn in runs:
        piece = piece_of(run, lsn)
        if not merging.fits(piece, run, term_lsn):
            groups.append([one.row.lsn for one in merging.pieces])
            merging.clear()
        merging.add(piece, run)
    return [*groups, [one.row.lsn for one in merging.pieces]]


def test_runs_that_follow_one_another_become_one_with_the_highest_lsn() -> None:
    merging = Merging(1 << 20)
    runs = [make_run(1, first, last) for first, last in ((0, 4), (5, 5), (6, 30))]
    for run, lsn in zip(runs, (50, 20, 30), strict=True):
        assert merging.fits(piece_of(run, lsn), run, 0)
        merging.add(piece_of(run, lsn), run)
    run, piece = merging.merged()
    assert (run.first, run.last, run.count, piece.row.lsn) == (0, 30, 31, 50)
    run.check_identity()
    entries = [(entry_id, bytes(entry)) for one in runs for entry_id, entry in one.entries()]
    assert [(entry_id, bytes(entry)) for entry_id, entry in run.entries()] == entries


def test_what_stands_between_them_keeps_runs_apart() -> None:
    one = make_run(1, 0, 4)
    assert merged((one, 1), (make_run(1, 5, 9), 2)) == [[1, 2]]
    assert merged((one, 1), (make_run(1, 6, 9), 2)) == [[1], [2]], "an id is missing"
    assert merged((one, 1), (make_run(1, 5, 9, origin_term=3), 2)) == [[1], [2]]
    assert merged((one, 1), (make_run(1, 5, 9, period=3, stripes=0b111), 2)) == [[1], [2]]
    assert merged((one, 1), (make_run(1, 5, 9), 2), bytes_max=2 * len(one.body) - 1) == [[1], [2]]
    merging = Merging(1 << 20)
    merging.add(piece_of(one, 1, recovery=True), one)
    follower = make_run(1, 5, 9)
    assert not merging.fits(piece_of(follower, 2), follower, 0), (
        "a recoverer's header tells nothing of the LAC"
    )
    assert merging.fits(piece_of(follower, 2, recovery=True), follower, 0)


@pytest.mark.parametrize(("term_lsn", "groups"), [(0, [[3, 7, 5]]), (3, [[3], [7, 5]]), (5, [[3], [7], [5]])])
def test_nothing_is_merged_across_the_lsn_of_a_term(term_lsn: int, groups: list[list[int]]) -> None:
    runs = [(make_run(1, first, first + 1), lsn) for first, lsn in ((0, 3), (2, 7), (4, 5))]
    assert merged(*runs, term_lsn=term_lsn) == groups


def test_striped_runs_are_merged_where_their_stripes_fill_the_range() -> None:
    both = [make_run(1, first, last, period=3, stripes=0b011) for first, last in ((0, 4), (6, 10))]
    assert merged((both[0], 1), (both[1], 2)) == [[1, 2]]
    stripes = [make_run(1, 0, 6, period=3, stripes=0b001), make_run(1, 7, 10, period=3, stripes=0b010)]
    assert merged((stripes[0], 1), (stripes[1], 2)) == [[1], [2]], "1 and 4 are missing"
    single = [make_run(1, 3, 3, period=3, stripes=0b001), make_run(1, 4, 4, period=3, stripes=0b010)]
    assert merged((single[0], 1), (single[1], 2)) == [[1, 2]]


def a_chatty_segment(storage: LedgerStorage) -> None:
    """A sealed segment with a hundred runs of an entry each, and much that is dead."""
    callback = Answers()
    storage.put_facts(LedgerFacts(1, key=b"k" * 20, token=7), callback, None)
    for number in range(100):
        put(storage, make_run(1, number, number, payload=b"p" * 50), callback)
    settle(storage)
    fill_oldest(storage, callback)
    storage.delete(FILLER, 1 << 50, callback, None)
    settle(storage)


def test_a_run_under_whose_ids_another_term_has_put_later_is_relocated_alone() -> None:
    """Merged, it would have the LSN of a run that came behind both, and its entry would be read by its id again."""
    files = FaultyFiles()
    storage = open_storage(files)
    callback = Answers()
    storage.put_facts(LedgerFacts(1, key=b"k" * 20, token=7, term=3), callback, None)
    put(storage, make_run(1, 0, 1, payload=b"one", origin_term=1), callback, recovery=True)
    put(storage, make_run(1, 1, 1, payload=b"two", origin_term=2), callback, recovery=True)
    put(storage, make_run(1, 2, 3, payload=b"one", origin_term=1), callback, recovery=True)
    settle(storage)
    before = read_all(storage, 1, 0, 9, origin_term=ANY_ORIGIN)
    assert before == {0: b"one/0", 1: b"two/1", 2: b"one/2", 3: b"one/3"}
    fill_oldest(storage, callback, max(storage.segments))
    storage.delete(FILLER, 1 << 50, callback, None)
    settle(storage)
    while run_through(storage.housekeeping.compact_slices(0.0)):
        storage.housekeeping.reclaim()
        settle(storage)
    assert storage.statistics()["merged_runs"] == 0
    for _ in range(2):
        assert read_all(storage, 1, 0, 9, origin_term=ANY_ORIGIN) == before
        storage.close(clean=False)
        storage = open_storage(files.crash())


def test_many_short_runs_come_back_as_few_and_hold_the_same() -> None:
    files = FaultyFiles()
    storage = open_storage(files)
    a_chatty_segment(storage)
    before = read_all(storage, 1, 0, 120)
    newest = max(one.lsn for one in storage.scan() if one.ledger_id == 1 and one.kind == 0x81)
    assert run_through(storage.housekeeping.compact_slices(0.0)) == 1
    storage.housekeeping.reclaim()
    settle(storage)
    assert storage.statistics()["merged_runs"] == 100
    runs = [one for one in storage.scan() if one.ledger_id == 1 and one.kind == 0x81]
    assert len(runs) == 1
    assert runs[0].lsn == newest
    for _ in range(2):
        assert read_all(storage, 1, 0, 120) == before
        assert len(before) == 100
        assert [each[:2] for each in storage.held_from(1, 0)] == [(0, 99)]
        assert not storage.drops.written_since(1, newest)
        storage.close(clean=False)
        storage = open_storage(files.crash())
    callback = Answers()
    storage.drops.drop(1, 10, 19, newest, callback, "drop")
    settle(storage)
    assert sorted(read_all(storage, 1, 0, 120)) == [*range(10), *range(20, 100)]
    assert all(one < other for one, other in pairwise(sorted(storage.segments)))


def test_what_lives_in_several_segments_comes_to_lie_together() -> None:
    """A segment that was relocated alone left a short run of each ledger in the next one."""
    files = FaultyFiles()
    storage, callback = open_storage(files), Answers()
    for turn in range(4):
        for ledger_id in (1, 2):
            for number in range(10 * turn, 10 * turn + 10):
                put(storage, make_run(ledger_id, number, number, payload=b"p" * 50), callback)
        settle(storage)
        fill_oldest(storage, callback, max(storage.segments))
    storage.delete(FILLER, 1 << 50, callback, None)
    settle(storage)
    before = {ledger_id: read_all(storage, ledger_id, 0, 50) for ledger_id in (1, 2)}
    sources = [sequence for sequence, one in storage.segments.items() if one.live]
    assert run_through(storage.housekeeping.compact_slices(0.0, 1 << 30)) >= 4
    storage.housekeeping.reclaim()
    settle(storage)
    assert not set(sources[:4]) & set(storage.segments)
    for _ in range(2):
        for ledger_id in (1, 2):
            runs = [one for one in storage.scan() if one.ledger_id == ledger_id and one.kind == 0x81]
            assert [(one.first, one.last) for one in runs] == [(0, 39)]
            assert read_all(storage, ledger_id, 0, 50) == before[ledger_id]
        storage.close(clean=False)
        storage = open_storage(files.crash())


def a_stream_with_two_versions(files: FaultyFiles) -> tuple[LedgerStorage, Answers]:
    """Entries 5..9 of term 1 in a sparse segment, of which 5 and 6 were put again behind the others."""
    storage, callback = open_storage(files, clock=HurriedClock(1_000_000)), Answers()
    storage.put_facts(LedgerFacts(1, b"k" * 20, term=1), callback, None)
    for entry_id in (5, 6, 7, 8, 9, 5, 6):
        put(storage, make_run(1, entry_id, entry_id, payload=b"p", origin_term=1), callback)
    settle(storage)
    fill_oldest(storage, callback, max(storage.segments))
    storage.delete(FILLER, 1 << 50, callback, None)
    settle(storage)
    return storage, callback


def test_what_was_truncated_while_compaction_paused_does_not_come_back() -> None:
    """What waited to be put was put all the same, with an LSN above that up to which it was dead."""
    at, over = 0, False
    while not over:
        files = FaultyFiles()
        storage, callback = a_stream_with_two_versions(files)
        steps, at = storage.housekeeping.compact_slices(0.0), at + 1
        over = any(next(steps, "over") == "over" for _ in range(at))
        storage.put_facts(LedgerFacts(1, b"k" * 20, term=2), callback, None)
        storage.drops.truncate(1, 7, 2, callback, "truncated")
        settle(storage)
        assert "truncated" in callback.ok
        run_through(steps)
        storage.housekeeping.reclaim()
        settle(storage)
        for _ in range(2):
            assert sorted(read_all(storage, 1, 0, 20, origin_term=ANY_ORIGIN)) == [5, 6], f"after {at} steps"
            storage.close(clean=False)
            storage = open_storage(files.crash())
    assert at > 5
