"""A stream whose terms only fence never has too many dead ranges: those that nobody needs are forgotten.

Source: docs/formats/segment.md, "Dead ranges".
"""

from __future__ import annotations

import pytest

from quire.core.ledger.terms import ANY_ORIGIN
from quire.storage.config import StorageConfig
from quire.storage.formats.state_format import DEAD_RANGES_MAX
from quire.storage.ledger_storage import LedgerStorage
from support.storage_disk import SMALL, Answers, FaultyFiles, make_run, open_storage, put, read_all, settle
from unit.storage.test_stream_entries import BIG, take_term

TAKE_OVERS = 3 * DEAD_RANGES_MAX


def truncate(storage: LedgerStorage, first: int, term: int, **only: int) -> str | None:
    callback = Answers()
    storage.drops.truncate(1, first, term, callback, "truncate", **only)
    settle(storage)
    [(_, error)] = callback.told
    return None if error is None else str(error)


def write(storage: LedgerStorage, entry_id: int, term: int, payload: bytes) -> None:
    put(storage, make_run(1, entry_id, entry_id, payload=payload, origin_term=term), Answers())
    settle(storage)


def by_id(storage: LedgerStorage, last: int) -> dict[int, bytes | None]:
    return read_all(storage, 1, 0, last, origin_term=ANY_ORIGIN)


def take_overs(storage: LedgerStorage) -> dict[int, bytes]:
    """Each finds an entry that its predecessor left behind a hole; what is there by id in the end."""
    right: dict[int, bytes] = {}
    for term in range(1, TAKE_OVERS + 1):
        first = 2 * (term - 1)
        take_term(storage, 1, term)
        assert truncate(storage, first, term) is None
        assert storage.last_entry(1) == first - 1
        write(storage, first, term, b"no-op")
        write(storage, first + 1, term, b"good")
        write(storage, first + 2, term, b"left")
        right |= {first: b"no-op/%d" % first, first + 1: b"good/%d" % (first + 1)}
    return right | {2 * TAKE_OVERS: b"left/%d" % (2 * TAKE_OVERS)}


@pytest.mark.parametrize("config", [BIG, SMALL], ids=["one segment", "many segments"])
def test_a_truncation_that_takes_something_is_never_one_too_many(config: StorageConfig) -> None:
    files = FaultyFiles()
    storage = open_storage(files, config)
    right = take_overs(storage)
    assert by_id(storage, 3 * TAKE_OVERS) == right
    storage.close(clean=False)
    storage = open_storage(files.crash(), config)
    assert by_id(storage, 3 * TAKE_OVERS) == right
    assert storage.last_entry(1) == 2 * TAKE_OVERS
    take_term(storage, 1, TAKE_OVERS + 1)
    assert truncate(storage, 2 * TAKE_OVERS, TAKE_OVERS + 1) is None
    assert by_id(storage, 3 * TAKE_OVERS) == {key: right[key] for key in range(2 * TAKE_OVERS)}


def test_what_was_hidden_is_not_right_after_compaction() -> None:
    """It is relocated with its old LSN."""
    files = FaultyFiles()
    storage = open_storage(files, SMALL)
    right = take_overs(storage)
    for _ in range(3):
        for _ in storage.housekeeping.compact_slices(0.0):
            settle(storage)
        storage.housekeeping.reclaim()
        settle(storage)
        assert by_id(storage, 3 * TAKE_OVERS) == right
    storage.close()
    assert by_id(open_storage(files, SMALL), 3 * TAKE_OVERS) == right


def test_a_range_whose_ids_were_not_put_again_is_kept() -> None:
    """What nothing else keeps dead must not come back: rather the next truncation is refused, with words that say why."""
    storage = open_storage(FaultyFiles(), BIG)
    take_term(storage, 1, 9)
    for entry_id in range(2 * DEAD_RANGES_MAX + 4):
        write(storage, entry_id, 9 if entry_id % 2 else 3, b"one")
    for number in range(DEAD_RANGES_MAX):
        assert truncate(storage, 2 * number, 9, last=2 * number, kept=9) is None
    error = truncate(storage, 2 * DEAD_RANGES_MAX, 9, last=2 * DEAD_RANGES_MAX, kept=9)
    assert error is not None
    assert "has 64 dead ranges already: nothing more of it is dropped" in error
    assert [*by_id(storage, 2 * DEAD_RANGES_MAX)] == [*range(1, 2 * DEAD_RANGES_MAX, 2), 2 * DEAD_RANGES_MAX]
    write(storage, 0, 9, b"copy")
    assert truncate(storage, 2 * DEAD_RANGES_MAX, 9, last=2 * DEAD_RANGES_MAX, kept=9) is None
    assert by_id(storage, 2) == {0: b"copy/0", 1: b"one/1"}


def test_what_a_repair_drops_is_one_range_where_nothing_stays_between() -> None:
    storage = open_storage(FaultyFiles(), BIG)
    take_term(storage, 1, 9)
    write(storage, 0, 9, b"right")
    for entry_id in range(1, 3 * DEAD_RANGES_MAX):
        write(storage, entry_id, 3, b"other")
    assert truncate(storage, 0, 9, last=3 * DEAD_RANGES_MAX, kept=9) is None
    assert by_id(storage, 3 * DEAD_RANGES_MAX) == {0: b"right/0"}
