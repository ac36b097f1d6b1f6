"""Under-replicated marks: Java's texts byte for byte, Quire's records back and forth, and what merging them may not lose."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.errors import CorruptMetadataError, MisuseError
from quire.core.ids import ID_MAX, BookieId
from quire.core.ledger.notes import EntryRange
from quire.core.repair.under_replicated_marks import (
    ANY_BOOKIE,
    MARKS_MAX,
    AwayCount,
    LedgerRepairs,
    MarkReason,
    RepairAttempts,
    RepairWorkerState,
    UnderReplicatedMark,
    WaitsFor,
    merged,
)
from quire.wire.proto import quire_metadata_pb2 as pb
from quire.wire.repair_records import AWAY_CODEC, WORKER_CODEC, decode_repairs, encode_repairs
from quire.wire.underreplication import (
    MissingBookies,
    decode_delay,
    decode_holder,
    decode_missing,
    encode_delay,
    encode_holder,
    encode_missing,
)

JAVA = json.loads((Path(__file__).parents[1] / "vectors/replication_znodes.json").read_text())
UNKNOWN = st.sampled_from([b"", b"\xf8\x07\x05", b"\xfa\x07\x03abc\x80\x08\x01"])
BOOKIES = st.sampled_from([BookieId(f"b{number}:1") for number in range(4)])
NUMBERS = st.integers(0, 60) | st.integers(0, ID_MAX)


@st.composite
def ranges(draw):
    first, last = sorted((draw(NUMBERS), draw(NUMBERS)))
    period = draw(st.sampled_from([1, 1, 3]))
    return EntryRange(first, last, period, draw(st.integers(1, (1 << period) - 1)))


MARKS = st.builds(
    UnderReplicatedMark,
    st.sampled_from(MarkReason),
    BOOKIES,
    ranges(),
    st.integers(0, 9),
    st.sampled_from(["", "x"]),
    st.integers(0, 9),
    UNKNOWN,
)


# --- Java's ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", JAVA["underreplicated_ledger"], ids=lambda case: str(len(case["replicas"])))
def test_a_mark_of_gone_bookies_is_javas_text(case):
    mark = MissingBookies(tuple(case["replicas"]), case["ctime"])
    assert encode_missing(mark) == case["text"].encode()
    assert decode_missing(case["text"].encode(), 7) == mark


def test_locks_and_candidates_are_javas_texts():
    for kind, name in (("lock_text", "localhost"), ("auditor_vote_text", "127.0.0.1:3181")):
        assert encode_holder(name) == JAVA[kind].encode()
        assert decode_holder(JAVA[kind].encode(), kind) == name


@pytest.mark.parametrize(
    "text", [b"replica: 7\n", b'other: "x"\n', b"\xff", b'replica: "a', b"x" * (1 << 21)]
)
def test_what_is_no_mark_of_javas_is_named(text):
    with pytest.raises(CorruptMetadataError, match="mark of ledger 7"):
        decode_missing(text, 7)


def test_the_delay_is_a_decimal_number():
    assert decode_delay(encode_delay(300)) == decode_delay(b"300\n") == 300
    for text in (b"", b"-1", b"x", b"1e3", "٣".encode(), b"99999999999", b"9" * 5000):
        with pytest.raises(CorruptMetadataError, match="lostBookieRecoveryDelay"):
            decode_delay(text)


@given(st.lists(BOOKIES, max_size=4), st.lists(BOOKIES, max_size=4))
def test_a_mark_with_more_bookies_names_all_once(known, more):
    mark = MissingBookies(tuple(dict.fromkeys(known)), 1)
    after = mark.merged(tuple(more), 2)
    assert {*after.bookies} == {*known, *more}
    assert len({*after.bookies}) == len(after.bookies)
    assert after is mark or after.marked_ms == 2


# --- Quire's -----------------------------------------------------------------------------------------------------


ATTEMPTS = st.builds(
    RepairAttempts,
    st.integers(0, 2**32 - 1),
    st.sampled_from(WaitsFor),
    st.text(max_size=9),
    st.just("w"),
    NUMBERS,
    UNKNOWN,
)


@given(st.lists(MARKS, max_size=5), UNKNOWN, st.none() | ATTEMPTS)
def test_marks_and_attempts_come_back_with_the_fields_of_later_versions(marks, unknown, attempts):
    repairs = LedgerRepairs(tuple(marks), unknown, attempts)
    assert decode_repairs(encode_repairs(repairs, 7), 7) == repairs


@given(NUMBERS, NUMBERS, NUMBERS)
def test_what_a_worker_tells_comes_back(ledgers, size, rate):
    state = RepairWorkerState("w", ledgers, size, rate)
    assert WORKER_CODEC.decode(WORKER_CODEC.encode(state), "w") == state


@given(st.integers(0, 2**63 - 1), UNKNOWN)
def test_seconds_away_come_back(seconds, unknown):
    away = AwayCount(BookieId("b:1"), seconds, "auditor", unknown)
    assert AWAY_CODEC.decode(AWAY_CODEC.encode(away), "b:1") == away


def test_what_is_no_record_of_quires_is_named():
    good = encode_repairs(LedgerRepairs(()), 7)
    other_reason = pb.LedgerRepairs(format_version=1, ledger_id=7, marks=[pb.RepairMark(reason=9)])
    no_range = pb.LedgerRepairs(format_version=1, ledger_id=7, marks=[pb.RepairMark(reason=1)])
    many = pb.LedgerRepairs(format_version=1, ledger_id=7, marks=[pb.RepairMark(reason=1)] * (MARKS_MAX + 1))
    waits = pb.LedgerRepairs(format_version=1, ledger_id=7, attempts=pb.RepairAttempts(waits=9))
    bad = [waits, other_reason, no_range, many, pb.LedgerRepairs(format_version=2, ledger_id=7)]
    for data in (b"\xff", b"", *(each.SerializeToString() for each in bad)):
        with pytest.raises(CorruptMetadataError, match="ledger 7"):
            decode_repairs(data, 7)
    with pytest.raises(CorruptMetadataError, match="ledger 7"):
        decode_repairs(good, 8)
    with pytest.raises(CorruptMetadataError, match="b:1"):
        AWAY_CODEC.decode(AWAY_CODEC.encode(AwayCount(BookieId("b:1"), 1)), "c:1")
    with pytest.raises(CorruptMetadataError, match="b:1"):
        AWAY_CODEC.decode(b"\xff", "b:1")
    with pytest.raises(CorruptMetadataError, match="worker w"):
        WORKER_CODEC.decode(b"\xff", "w")
    mark = UnderReplicatedMark(MarkReason.HOLE, BookieId("b"), EntryRange(3, 2), 1, "", 1)
    with pytest.raises(MisuseError, match=r"3\.\.2"):
        encode_repairs(LedgerRepairs((mark,)), 7)
    with pytest.raises(MisuseError, match="may be 64"):
        encode_repairs(LedgerRepairs((replace(mark, entries=EntryRange(0, 0)),) * (MARKS_MAX + 1)), 7)


@given(st.lists(MARKS, max_size=12), st.lists(MARKS, max_size=12))
def test_merged_marks_say_what_both_said_and_nothing_twice(known, more):
    after = merged(known, more)
    for mark in (*known, *more):
        ends = mark.entries.first, mark.entries.last
        assert any(
            found.reason is mark.reason
            and found.bookie == mark.bookie
            and all(found.entries.first <= end <= found.entries.last for end in ends)
            and found.seen_ms >= mark.seen_ms
            for found in after
        )
    assert merged(after, more) == merged(after, ()) == after


def test_too_many_marks_become_longer_ranges_and_then_of_any_bookie():
    def holes(bookies, count):
        return [
            UnderReplicatedMark(MarkReason.HOLE, BookieId(f"b{b}"), EntryRange(10 * n, 10 * n), 1, "", n)
            for b in range(bookies)
            for n in range(count)
        ]

    assert len(merged(holes(1, MARKS_MAX), [])) == MARKS_MAX
    few = merged(holes(2, MARKS_MAX), [])
    assert [(mark.bookie, mark.entries, mark.seen_ms) for mark in few] == [
        (f"b{b}", EntryRange(0, 10 * (MARKS_MAX - 1)), MARKS_MAX - 1) for b in range(2)
    ]
    [one] = merged(holes(MARKS_MAX + 1, 2), [])
    assert (one.bookie, one.entries) == (ANY_BOOKIE, EntryRange(0, 10))
