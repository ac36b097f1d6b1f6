"""Entries of streams on the disk: named by id and origin term, in segments that say so, and unknown rather than denied."""

from __future__ import annotations

import pytest

from quire.core.bookie.ledger import LedgerFacts
from quire.core.ledger.terms import ANY_ORIGIN
from quire.storage.config import StorageConfig
from quire.storage.ledger_storage import LedgerStorage
from support.storage_disk import SMALL, Answers, FaultyFiles, make_run, open_storage, put, read_all, settle

KEY = b"k" * 20
BIG = StorageConfig(segment_bytes=1 << 20, recent_bytes_max=0)


def take_term(storage: LedgerStorage, stream: int, term: int) -> None:
    facts = storage.facts(stream) or LedgerFacts(stream, KEY)
    facts.term = term
    storage.put_facts(facts, Answers(), None)


def payloads(first: int, last: int, payload: bytes) -> dict[int, bytes]:
    return {entry_id: payload + b"/%d" % entry_id for entry_id in range(first, last + 1)}


def terms_of(storage: LedgerStorage) -> list[bool]:
    return [segment.header.terms for segment in storage.segments.values()]


def two_terms(files: FaultyFiles, config: StorageConfig = BIG) -> LedgerStorage:
    """A stream whose ids 5..9 have entries of term 1 and of term 2, and a ledger."""
    storage = open_storage(files, config)
    put(storage, make_run(7, 0, 9, payload=b"ledger"), Answers())
    settle(storage)
    take_term(storage, 1, 1)
    put(storage, make_run(1, 0, 9, payload=b"one", origin_term=1), Answers(), lac=4)
    take_term(storage, 1, 2)
    put(storage, make_run(1, 5, 12, payload=b"two", origin_term=2), Answers(), lac=4)
    settle(storage)
    return storage


def holds_both(storage: LedgerStorage) -> None:
    assert read_all(storage, 1, 0, 20, origin_term=1) == payloads(0, 9, b"one")
    assert read_all(storage, 1, 0, 20, origin_term=2) == payloads(5, 12, b"two")
    assert read_all(storage, 1, 0, 20) == read_all(storage, 1, 0, 20, origin_term=3) == {}
    assert read_all(storage, 7, 0, 20) == payloads(0, 9, b"ledger")
    assert read_all(storage, 7, 0, 20, origin_term=1) == {}
    held = [(one.first, one.last, one.origin_term) for one in storage.held_from(1, 0)]
    assert held == [(0, 9, 1), (5, 12, 2)]
    assert [tuple(one) for one in storage.held_from(7, 0)] == [(0, 9, 1, 1, 0)]


def test_entries_of_two_terms_live_side_by_side_over_all_stops() -> None:
    files = FaultyFiles()
    storage = two_terms(files)
    holds_both(storage)
    storage.close(clean=False)
    files = files.crash()
    for _ in range(2):
        storage = open_storage(files, BIG)
        holds_both(storage)
        storage.close()


def test_only_segments_with_a_stream_say_that_they_may_have_terms() -> None:
    files = FaultyFiles()
    storage = two_terms(files)
    assert terms_of(storage) == [False, True], "the first record of a stream begins a new segment"
    storage.close()
    storage = open_storage(files, BIG)
    assert terms_of(storage)[-1], "as long as one is in use, new ones do"
    storage.delete(1, 1 << 50, Answers(), None)
    settle(storage)
    assert list(storage.held_from(1, 0)) == []


def test_a_bookie_without_streams_writes_segments_as_before() -> None:
    files = FaultyFiles()
    storage = open_storage(files)
    for entry_id in range(40):
        put(storage, make_run(1, entry_id, entry_id, payload=bytes(9000)), Answers())
        settle(storage)
    storage.close()
    assert not any(terms_of(open_storage(files)))


def test_after_a_start_a_lac_that_entries_told_has_the_bookies_term() -> None:
    files = FaultyFiles()
    storage = two_terms(files)
    put(storage, make_run(1, 13, 13, origin_term=2), Answers(), lac=12)
    facts = storage.facts(1)
    assert facts is not None
    assert (facts.lac, facts.lac_term) == (12, 2)
    take_term(storage, 1, 5)
    settle(storage)
    put(storage, make_run(1, 14, 14, origin_term=5), Answers(), lac=13)
    settle(storage)
    storage.close(clean=False)
    facts = open_storage(files.crash(), BIG).facts(1)
    assert facts is not None
    assert (facts.lac, facts.lac_term) == (13, 5), "of the term that told it, or of a later one"


def test_little_of_a_long_run_of_a_stream_is_read_without_reading_it_all() -> None:
    files = FaultyFiles()
    storage = open_storage(files, BIG)
    take_term(storage, 1, 3)
    put(storage, make_run(1, 0, 999, payload=b"y" * 200, origin_term=3), Answers())
    settle(storage)
    reads: list[int] = []
    read_at = storage._files.read_at
    storage._files.read_at = lambda sequence, offset, size: (  # type: ignore[method-assign]
        reads.append(size) or read_at(sequence, offset, size)  # type: ignore[func-returns-value]
    )
    assert read_all(storage, 1, 500, 501, origin_term=3) == payloads(500, 501, b"y" * 200)
    assert sum(reads) < 10_000


def test_rows_that_cannot_be_read_are_unknown_in_every_term() -> None:
    files = FaultyFiles()
    storage = two_terms(files, SMALL)
    for entry_id in range(10, 40):
        put(storage, make_run(7, entry_id, entry_id, payload=bytes(9000)), Answers())
        settle(storage)
    storage.close()
    storage = open_storage(files)
    files.bad_reads = "0000000000000002.seg"
    for term in (1, 2, 9):
        held = storage.read(1, 0, 20, 1 << 20, origin_term=term)
        assert held.unknown == [(0, 12)], "the footer does not say of which term"
        assert held.runs == []
    assert list(storage.held_from(1, 0)) == []
    [refusal] = truncated(storage, 0, 2)
    assert "cannot be read, so it is not truncated" in refusal
    files.bad_reads = None
    assert read_all(storage, 1, 0, 20, origin_term=1) == payloads(0, 9, b"one")


def test_damage_concerns_the_entries_of_its_term() -> None:
    files = FaultyFiles()
    storage = two_terms(files)
    record = next(one for one in storage.scan() if one.kind == 0x81 and (one.ledger_id, one.first) == (1, 5))
    files.nodes[str(storage._files.path(record.segment))].data[record.offset + 300] ^= 1
    assert set(read_all(storage, 1, 0, 20, origin_term=2).values()) == {None}
    assert read_all(storage, 1, 0, 20, origin_term=1) == payloads(0, 9, b"one")
    (damage,) = storage.damages.kept
    assert (damage.first, damage.last, damage.origin_term) == (5, 12, 2)
    assert [(one.first, one.last, one.origin_term) for one in storage.good_from(1, 0)] == [(0, 9, 1)]
    put(storage, make_run(1, 5, 12, payload=b"one", origin_term=1), Answers(), recovery=True)
    assert storage.damages.kept == [damage], "that was another entry"
    put(storage, make_run(1, 5, 12, payload=b"two", origin_term=2), Answers(), recovery=True)
    assert storage.damages.kept == []


def test_stripes_of_a_stream_have_terms_too() -> None:
    files = FaultyFiles()
    storage = open_storage(files)
    take_term(storage, 1, 2)
    for term, payload in ((1, b"one"), (2, b"two")):
        run = make_run(1, 0, 9, period=3, stripes=0b101, payload=payload, origin_term=term)
        put(storage, run, Answers())
    settle(storage)
    ids = [entry_id for entry_id in range(10) if entry_id % 3 != 1]
    for _ in range(2):
        for term, payload in ((1, b"one"), (2, b"two")):
            assert read_all(storage, 1, 0, 10, origin_term=term) == {
                entry_id: payload + b"/%d" % entry_id for entry_id in ids
            }
        storage.close()
        storage = open_storage(files)


def truncated(storage: LedgerStorage, first: int, term: int) -> list[str]:
    """What a truncation is answered: nothing where it was taken."""
    callback = Answers()
    storage.drops.truncate(1, first, term, callback, "truncate")
    settle(storage)
    return [str(error) for _, error in callback.told if error is not None]


def test_what_a_truncation_took_is_gone_after_every_stop_and_what_its_own_term_has_stays() -> None:
    files = FaultyFiles()
    storage = two_terms(files)
    assert truncated(storage, 7, 2) == []
    for _ in range(3):
        assert read_all(storage, 1, 0, 20, origin_term=1) == payloads(0, 6, b"one")
        assert read_all(storage, 1, 0, 20, origin_term=2) == payloads(5, 12, b"two")
        storage.close(clean=False)
        files = files.crash()
        storage = open_storage(files, BIG)
    put(storage, make_run(1, 7, 7, payload=b"back", origin_term=1), Answers(), recovery=True)
    settle(storage)
    assert read_all(storage, 1, 7, 20, origin_term=1) == payloads(7, 7, b"back"), "put later, by another one"
    storage.close()


def test_an_id_alone_names_the_entry_that_was_put_last() -> None:
    files = FaultyFiles()
    storage = two_terms(files)
    named = payloads(0, 4, b"one") | payloads(5, 12, b"two")
    assert read_all(storage, 1, 0, 20, origin_term=ANY_ORIGIN) == named
    put(storage, make_run(1, 7, 7, payload=b"back", origin_term=1), Answers(), recovery=True)
    settle(storage)
    named |= payloads(7, 7, b"back")
    for clean in (False, True, False):
        assert read_all(storage, 1, 0, 20, origin_term=ANY_ORIGIN) == named
        storage.close(clean=clean)
        files = files.crash()
        storage = open_storage(files, BIG)
    assert truncated(storage, 6, 3) == []
    assert read_all(storage, 1, 0, 20, origin_term=ANY_ORIGIN) == {
        entry_id: value for entry_id, value in named.items() if entry_id < 6
    }


def dropped(storage: LedgerStorage, first: int, last: int, kept: int) -> None:
    """A repair has others than the entries of a term go."""
    callback = Answers()
    storage.drops.truncate(1, first, 3, callback, "drop", last=last, kept=kept)
    settle(storage)
    assert [error for _, error in callback.told] == [None]


def test_what_other_terms_left_goes_and_what_belongs_there_stays() -> None:
    files = FaultyFiles()
    storage = two_terms(files)
    put(storage, make_run(1, 7, 7, payload=b"back", origin_term=1), Answers(), recovery=True)
    dropped(storage, 5, 9, 2)
    dropped(storage, 0, 4, 1)
    kept = payloads(0, 4, b"one") | payloads(5, 6, b"two") | payloads(8, 12, b"two")
    for _ in range(2):
        assert read_all(storage, 1, 0, 20, origin_term=ANY_ORIGIN) == kept, "7 of term 1 was put last there"
        storage.close(clean=False)
        files = files.crash()
        storage = open_storage(files, BIG)
    put(storage, make_run(1, 7, 7, payload=b"two", origin_term=2), Answers(), recovery=True)
    dropped(storage, 5, 9, 2)
    assert read_all(storage, 1, 0, 20, origin_term=ANY_ORIGIN) == kept | payloads(7, 7, b"two"), (
        "once more, late"
    )


def test_what_goes_of_a_striped_run_takes_no_entry_of_another_class() -> None:
    """Older entries of the right term lie between those that go; and a run without an id of the range gives no range."""
    files = FaultyFiles()
    storage = open_storage(files)
    right = make_run(1, 0, 9, period=3, stripes=1, payload=b"right", origin_term=2)
    others = make_run(1, 1, 10, period=3, stripes=2, payload=b"other", origin_term=1)
    for run in (right, others):
        put(storage, run, Answers())
    dropped(storage, 8, 9, 2)
    dropped(storage, 0, 8, 2)
    expected = {each: b"right/%d" % each for each in (0, 3, 6, 9)} | {10: b"other/10"}
    for _ in range(2):
        assert read_all(storage, 1, 0, 20, origin_term=ANY_ORIGIN) == expected
        storage.close(clean=False)
        files = files.crash()
        storage = open_storage(files)


def test_a_second_truncation_of_a_term_takes_nothing_and_keeps_no_dead_range() -> None:
    storage = two_terms(FaultyFiles())
    assert truncated(storage, 8, 2) == []
    ranges = storage.states.ledgers[1].dead_ranges
    assert len(ranges) == 1
    assert truncated(storage, 8, 2) == truncated(storage, 10, 2) == []
    assert storage.states.ledgers[1].dead_ranges == ranges
    assert truncated(storage, 0, 3) == [], "a later term takes all"
    assert read_all(storage, 1, 0, 20, origin_term=2) == {}
    callback = Answers()
    storage.drops.truncate(55, 0, 1, callback, "unknown ledger")
    assert callback.told == [("unknown ledger", None)]
    storage.close()


@pytest.mark.parametrize("striped", [False, True])
@pytest.mark.parametrize("segment_bytes", [SMALL.segment_bytes, 1 << 20])
def test_the_last_entry_that_a_truncation_leaves_is_found_far_below_what_it_took(
    segment_bytes: int, striped: bool
) -> None:
    """All entries came alone or by two; each take-over truncates lower, and the last one so that nothing is left."""
    storage = open_storage(FaultyFiles(), StorageConfig(segment_bytes=segment_bytes, recent_bytes_max=0))
    take_term(storage, 1, 1)
    shape = {"period": 3, "stripes": 0b011} if striped else {}
    ids = [entry_id for entry_id in range(999) if not striped or entry_id % 3 < 2]
    for first in range(0, 999, 3 if striped else 1):
        put(storage, make_run(1, first, first + (1 if striped else 0), origin_term=1, **shape), Answers())
    settle(storage)
    for term, first in enumerate((2000, 996, 995, 900, 331, 300, 1, 0), start=2):
        take_term(storage, 1, term)
        assert truncated(storage, first, term) == []
        left = [entry_id for entry_id in ids if entry_id < first]
        assert storage.last_entry(1) == (left[-1] if left else -1)
        assert list(read_all(storage, 1, 0, 999, origin_term=1)) == left
    storage.close()


@pytest.mark.parametrize("first", [1980, 2000])
def test_a_truncation_reads_no_rows_of_segments_that_it_takes_nothing_of(first: int) -> None:
    """A stream of many terms and segments: the rows of all of them together do not stay in memory."""
    storage = open_storage(FaultyFiles())
    for term in range(1, 201):
        take_term(storage, 1, term)
        at = 10 * (term - 1)
        put(storage, make_run(1, at, at + 9, payload=b"x" * 500, origin_term=term), Answers())
        settle(storage)
    storage.close()
    reads: list[str] = []
    files = storage._files._files
    assert isinstance(files, FaultyFiles)
    storage = open_storage(files)
    segments, ledger = storage.segments, storage.states.ledgers[1]
    assert sum(segments[span.sequence].trailer is not None for span in ledger.spans_within(0, 1999)) > 5
    files.reading = lambda path, _: reads.append(path)  # type: ignore[method-assign]
    assert truncated(storage, first, 201) == []
    assert storage.last_entry(1) == first - 1
    assert len({*reads}) <= 1, reads
    assert [each.first for each in storage.held_from(1, 1950)] == [*range(1950, first, 10)]
    storage.close()
