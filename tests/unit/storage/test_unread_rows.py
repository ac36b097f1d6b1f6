"""Rows of a footer that cannot be read for a while: nothing that lives is given up because of it, and nothing is denied."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from quire.core.bookie.ledger import LedgerFacts
from quire.storage.formats.footer_format import ROW_BYTES
from quire.storage.ledger_storage import LedgerStorage
from quire.storage.slices import run_through
from quire_testing.kit.stepped import HurriedClock
from support.storage_disk import (
    FILLER,
    Answers,
    FaultyFiles,
    make_run,
    open_storage,
    put,
    read_all,
    settle,
)

STREAM_TERM = 2


def compact(storage: LedgerStorage, free_share: float = 0.0) -> int:
    done = run_through(storage.housekeeping.compact_slices(free_share))
    settle(storage)
    storage.housekeeping.reclaim()
    settle(storage)
    return done


def forget_rows(storage: LedgerStorage) -> None:
    """What a start knows: no footer's rows are in memory."""
    storage.reader.cache._items.clear()


def filled(storage: LedgerStorage, callback: Answers, ledger_id: int) -> int:
    """The newest segment, sealed with entries of a ledger."""
    current, number = max(storage.segments), 0
    while storage.segments[current].trailer is None:
        put(storage, make_run(ledger_id, number, number, payload=bytes(12_000)), callback)
        settle(storage)
        number += 1
    return current


def one_ledger_in_two_segments(files: FaultyFiles) -> tuple[LedgerStorage, int, int]:
    """Entries 10..19 of ledger 1 live in a sparse segment, and 0..9 and 20..29 around them in a later one."""
    storage, callback = open_storage(files, clock=HurriedClock(1_000_000)), Answers()
    storage.put_facts(LedgerFacts(1, key=b"k" * 20, token=7), callback, None)
    put(storage, make_run(1, 0, 9, payload=b"a" * 50), callback)
    settle(storage)
    filled(storage, callback, 90)
    put(storage, make_run(1, 10, 19, payload=b"a" * 50), callback)
    settle(storage)
    sparse = filled(storage, callback, 91)
    put(storage, make_run(1, 20, 29, payload=b"a" * 50), callback)
    settle(storage)
    storage.delete(90, 1 << 50, callback, None)
    settle(storage)
    assert compact(storage, 0.25) == 1, "0..9 are relocated into the newest one"
    later = filled(storage, callback, 92)
    storage.delete(91, 1 << 50, callback, None)
    settle(storage)
    forget_rows(storage)
    spans = {span.sequence: (span.first, span.last) for span in storage._ledgers[1].spans_within(0, 99)}
    assert spans == {sparse: (10, 19), later: (0, 29)}
    return storage, sparse, later


class OneBadRead:
    """A disk of which one read fails."""

    def __init__(self, number: int, nth: int) -> None:
        self.number = number
        self.nth = nth
        self.reads = 0

    def reading(self, path: str, _: int) -> None:
        self.reads += 1
        if self.reads == self.nth:
            raise OSError(self.number, "injected", path)

    def reading_from(self, path: str, _: int) -> None:
        """All reads from that one on fail."""
        self.reads += 1
        if self.reads >= self.nth:
            raise OSError(self.number, "injected", path)


def failing(number: int, at: Callable[[str, int], bool]) -> Callable[[str, int], None]:
    def reading(path: str, offset: int) -> None:
        if at(path, offset):
            raise OSError(number, "injected", path)

    return reading


@pytest.mark.parametrize("what", ["rot", "EIO", "EMFILE"])
def test_what_another_segment_may_hold_too_is_not_given_up_while_its_rows_cannot_be_read(what: str) -> None:
    """A row that stands for unread ones won over what lives in the source, of which nothing was relocated."""
    files = FaultyFiles()
    storage, sparse, later = one_ledger_in_two_segments(files)
    trailer = storage.segments[later].trailer
    assert trailer is not None
    [span] = [one for one in storage._ledgers[1].spans_within(0, 99) if one.sequence == later]
    rows_at = trailer.rows_offset + span.row_index * ROW_BYTES
    [path] = [path for path in files.segments() if f"{later:016x}" in path]
    if what == "rot":
        files.nodes[path].data[rows_at + 30] ^= 1
    else:
        files.reading = failing(  # type: ignore[method-assign]
            getattr(errno, what), lambda where, offset: where == path and offset >= rows_at // 4096 * 4096
        )
    assert compact(storage, 0.25) == 0
    assert sparse in storage.segments
    files.__dict__.pop("reading", None)  # what stood in the way is over
    settle(storage)
    assert sorted(read_all(storage, 1, 0, 40)) == list(range(30))
    if what != "EIO":  # the disk is not trusted with it again before a start
        assert compact(storage, 0.25) == 1
        assert sparse not in storage.segments
    for _ in range(2):
        assert {key for key, value in read_all(storage, 1, 0, 40).items() if value} == set(range(30))
        storage.close(clean=False)
        storage = open_storage(files.crash())


def a_stream(files: FaultyFiles) -> tuple[LedgerStorage, Answers]:
    """Entries 0..9 of an origin term live in a sparse segment."""
    storage, callback = open_storage(files, clock=HurriedClock(1_000_000)), Answers()
    storage.put_facts(LedgerFacts(1, b"k" * 20, term=STREAM_TERM), callback, None)
    put(storage, make_run(1, 0, 9, payload=b"a" * 50, origin_term=STREAM_TERM), callback)
    settle(storage)
    filled(storage, callback, FILLER)
    storage.delete(FILLER, 1 << 50, callback, None)
    settle(storage)
    forget_rows(storage)
    return storage, callback


def with_one_bad_read(number: int, do: Callable[[LedgerStorage, Answers], Any]) -> list[dict[int, Any]]:
    """What is read of the stream after something, of which each read has failed once, in worlds of their own."""
    found: list[dict[int, Any]] = []
    reads: list[int] = []
    while len(found) <= max(reads, default=0):
        files = FaultyFiles()
        storage, callback = a_stream(files)
        one = OneBadRead(number, len(found))  # in the first world none fails
        files.reading = one.reading  # type: ignore[method-assign]
        do(storage, callback)
        settle(storage)
        del files.__dict__["reading"]
        reads.append(one.reads)
        found.append(read_all(storage, 1, 0, 12, origin_term=STREAM_TERM) | {-1: "done" in callback.ok})
    assert len(found) > 1
    return found


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE])
def test_a_stream_is_not_given_up_because_its_terms_could_not_be_read_once(number: int) -> None:
    for left in with_one_bad_read(number, lambda storage, _: compact(storage)):
        assert sorted(left) == [-1, *range(10)]


def test_a_drop_forgets_nothing_that_lives_because_its_terms_could_not_be_read_once() -> None:
    def drop(storage: LedgerStorage, callback: Answers) -> None:
        storage.drops.drop(1, 0, 3, storage.journal.last_lsn, callback, None)
        forget_rows(storage)
        # Both ends are dead then: the rows tell whether anything is left.
        storage.drops.drop(1, 8, 9, storage.journal.last_lsn, callback, "done")

    for left in with_one_bad_read(errno.EIO, drop):
        assert left.pop(-1), "it needs no look at what is there"
        assert sorted(left) == list(range(4, 8))


def test_a_truncation_that_could_not_read_the_terms_is_refused() -> None:
    def truncate(storage: LedgerStorage, callback: Answers) -> None:
        storage.drops.truncate(1, 4, STREAM_TERM + 1, callback, "done")

    for left in with_one_bad_read(errno.EIO, truncate):
        done = left.pop(-1)
        assert sorted(left) == list(range(4 if done else 10))


def test_terms_that_were_read_are_told_with_what_stands_for_the_others() -> None:
    files = FaultyFiles()
    storage, _ = a_stream(files)
    ledger = storage._ledgers[1]
    assert storage.reader.origin_terms(1, ledger, 0, 9) == ([0, STREAM_TERM], None)
    forget_rows(storage)
    files.reading = failing(errno.EIO, lambda *_: True)  # type: ignore[method-assign]
    terms, unknown = storage.reader.origin_terms(1, ledger, 0, 9)
    assert terms == [0]
    assert unknown is not None
    assert (unknown.first, unknown.last) == (0, 9)
    assert list(storage.held_from(1, 0)) == []


def test_a_segment_is_compacted_in_the_pass_after_a_shortage_of_descriptors() -> None:
    """It was put aside until a restart, as one that the disk does not give."""
    begin, compacted = 0, 0
    while not compacted:
        begin += 1
        files = FaultyFiles()
        storage, _ = a_stream(files)
        reads = OneBadRead(errno.EMFILE, begin)
        files.reading = reads.reading_from  # type: ignore[method-assign]
        compacted = compact(storage)
        del files.__dict__["reading"]
        assert compact(storage) == 1 - compacted, f"from read {begin} on"
        assert sorted(read_all(storage, 1, 0, 12, origin_term=STREAM_TERM)) == list(range(10))
    assert begin > 3
