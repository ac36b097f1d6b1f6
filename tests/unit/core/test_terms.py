"""A stream's record that is not possible, of the future or too large is refused, and says why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quire.core.errors import CorruptMetadataError, MisuseError
from quire.core.ids import BookieId, EntryId, LedgerId, Term
from quire.core.ledger.metadata import (
    DigestType,
    Fragment,
    LedgerMetadata,
    LedgerState,
    new_ledger,
    new_stream,
)
from quire.core.ledger.terms import (
    TermRange,
    Terms,
    by_origin,
    confirmed_in,
    last_of_range,
    origin_of,
    reach_of,
    resolve,
)
from quire.wire import ledger_metadata
from quire.wire.proto import quire_metadata_pb2 as pb
from quire.wire.stream_metadata import (
    STREAM_BYTES_MAX,
    decode_stream,
    decode_stream_name,
    encode_stream,
    encode_stream_name,
)

TERMS = Terms(Term(3), (TermRange(Term(1), EntryId(0)), TermRange(Term(3), EntryId(9))), owner=5)
OF_TERMS = frozenset(Terms.__dataclass_fields__)


def stream_of(**changes):
    of_terms = {name: changes.pop(name) for name in OF_TERMS & changes.keys()}
    stream = LedgerMetadata(
        ledger_id=LedgerId(7),
        ensemble_size=2,
        write_quorum=2,
        ack_quorum=1,
        digest_type=DigestType.CRC32C,
        password=b"",
        state=LedgerState.OPEN,
        fragments=(Fragment(EntryId(0), (BookieId("a"), BookieId("b"))),),
        terms=replace(TERMS, **of_terms),
    )
    return replace(stream, **changes)


def fragment(first, *bookies):
    return Fragment(EntryId(first), tuple(BookieId(bookie) for bookie in bookies))


CLOSED = {"state": LedgerState.CLOSED}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ack_quorum": 3}, "ack quorum"),
        ({"ledger_id": -1}, "its id is -1"),
        ({"owner": 2**64}, "its owner is"),
        ({"owner": -1}, "its owner is"),
        ({"start": 2**63}, "its start is"),
        ({"first_length": -1}, "its first length is"),
        ({"created_ms": -1}, "time of creation"),
        ({"creation_token": 2**63}, "creation token"),
        ({"fragments": ()}, "no fragment"),
        ({"fragments": (fragment(1, "a", "b"),)}, "first fragment starts at 1"),
        ({"fragments": (fragment(0, "a", "b"), fragment(0, "a", "b"))}, "fragment 0 does not come after 0"),
        ({"fragments": (fragment(0, "a"),)}, "1 bookies, not 2"),
        ({"fragments": (fragment(0, "a", "a"),)}, "names a bookie twice"),
        ({"fragments": (fragment(0, "a", "b"), fragment(2**63, "a", "b"))}, "last fragment"),
        ({"ranges": ()}, "no range"),
        ({"ranges": (TermRange(0, 0),)}, "first range is of term 0"),
        ({"ranges": (TermRange(1, 1),)}, "first range is of term 1, from entry 1"),
        ({"ranges": (TermRange(1, 0), TermRange(1, 9))}, "does not come after"),
        ({"ranges": (TermRange(1, 0), TermRange(2, 9), TermRange(3, 8))}, "does not come after"),
        ({"term": 2}, "in term 2, and its last range is of term 3"),
        ({"term": 2**63}, "in term"),
        ({"ranges": (TermRange(1, 0), TermRange(2, 2**63))}, "last range"),
        ({"last_entry": 3}, "is not closed"),
        ({"length": 3}, "is not closed"),
        (CLOSED | {"last_entry": -2}, "ends at -2"),
        (CLOSED | {"start": 5, "last_entry": 3}, "starts at 5"),
        (CLOSED | {"start": 5, "first_length": 9, "last_entry": 7, "length": 8}, "with length 8"),
        ({"custom": (("b", b""), ("a", b""))}, "order of the keys"),
        ({"custom": (("a", b""), ("a", b""))}, "order of the keys"),
    ],
)
def test_a_stream_that_is_not_possible_is_refused(changes, words):
    with pytest.raises(CorruptMetadataError, match=words):
        encode_stream(stream_of(**changes))


def test_every_entry_has_the_term_that_wrote_it():
    stream = stream_of(
        term=Term(9),
        ranges=(TermRange(1, 4), TermRange(3, 9), TermRange(4, 9)),
        start=EntryId(4),
        fragments=(fragment(2, "a", "b"),),
    ).checked()
    assert [stream.origin_of(entry) for entry in (3, 4, 8, 9, 10**18)] == [0, 1, 1, 4, 4]
    assert [last_of_range(entry, stream.ranges) for entry in (4, 8, 9)] == [8, 8, None]
    assert (reach_of(stream.ranges), reach_of(())) == (4, 0)
    assert origin_of(5, ()) == 0
    assert list(by_origin(5, 12, stream.ranges)) == [(5, 8, 1), (9, 12, 4)]
    assert list(by_origin(9, 9, stream.ranges)) == [(9, 9, 4)]
    assert list(by_origin(9, 8, stream.ranges)) == []


def test_what_a_superseded_term_wrote_is_kept_below_the_next_ones_first_entry():
    ranges = (TermRange(1, 0), TermRange(3, 4), TermRange(4, 4), TermRange(7, 9))
    assert [resolve(entry, 1, ranges) for entry in (0, 3, 4)] == [True, True, False]
    assert resolve(4, 3, ranges) is False
    assert [resolve(entry, 4, ranges) for entry in (4, 8, 9)] == [True, True, False]
    assert resolve(9, 7, ranges) is None


def test_a_take_over_is_announced_and_opens_its_range():
    stream = new_stream(
        new_ledger(
            LedgerId(7), ("a", "b"), write_quorum=2, ack_quorum=1, digest_type=DigestType.CRC32C, password=b""
        ),
        owner=1,
    )
    assert (stream.term, stream.ranges, stream.state) == (1, ((1, 0),), LedgerState.OPEN)
    begun = stream.taken_over(2, 77)
    assert (begun.term, begun.terms.owner, begun.ranges, begun.state) == (
        2,
        77,
        ((1, 0),),
        LedgerState.IN_RECOVERY,
    )
    again = begun.taken_over(3, 78)
    opened = again.opened(4, (*again.fragments, fragment(3, "a", "c")))
    assert opened.state is LedgerState.OPEN
    assert opened.ranges == ((1, 0), (3, 5))
    assert [each.first_entry for each in opened.fragments] == [0, 3]
    assert opened.ensemble_of(9) == ("a", "c")
    closed = opened.closed(6, 60)
    with pytest.raises(MisuseError, match="stream 7 is closed at entry 6"):
        closed.taken_over(4, 1)
    with pytest.raises(MisuseError, match="cannot be opened"):
        opened.opened(9, opened.fragments)


def test_a_stream_is_no_ledger_and_a_ledger_is_no_stream():
    ledger = replace(stream_of(), terms=None)
    with pytest.raises(MisuseError, match="7 is a ledger and no stream"):
        encode_stream(ledger)
    with pytest.raises(MisuseError, match="7 is a stream"):
        ledger_metadata.serialize(stream_of())
    with pytest.raises(MisuseError, match="is no stream"):
        ledger.taken_over(1, 1)
    with pytest.raises(MisuseError, match="taken over, not recovered"):
        stream_of().in_recovery()
    with pytest.raises(CorruptMetadataError):
        ledger_metadata.parse(encode_stream(stream_of()), 7)
    with pytest.raises(CorruptMetadataError):
        decode_stream(ledger_metadata.serialize(ledger), 7)


def test_a_stream_of_the_future_is_not_guessed_at():
    message = pb.Stream.FromString(encode_stream(stream_of()))
    for name in ("digest_type", "state", "mode"):
        changed = pb.Stream()
        changed.CopyFrom(message)
        setattr(changed, name, 99)
        with pytest.raises(CorruptMetadataError, match=r"99.*use a newer Quire"):
            decode_stream(changed.SerializeToString(), 7)
    for part in ("fragments", "ranges"):
        changed = pb.Stream()
        changed.CopyFrom(message)
        getattr(changed, part)[0].MergeFromString(b"\xf8\x07\x01")
        with pytest.raises(CorruptMetadataError, match="a part of it has a field"):
            decode_stream(changed.SerializeToString(), 7)


def test_a_stream_that_has_grown_too_large_is_named():
    many = tuple(TermRange(Term(term), EntryId(term)) for term in range(1, 20_000))
    with pytest.raises(MisuseError, match=rf"stream 7 would have \d+ bytes; it may have {STREAM_BYTES_MAX}"):
        encode_stream(stream_of(ranges=(TermRange(Term(1), EntryId(0)), *many[1:]), term=Term(30_000)))


def test_a_name_of_a_stream_that_cannot_be_read_is_named():
    for value in (
        b"\x08\x02\x10\x01",
        b"\x10\x01",
        b"\xff",
        b"\x08\x01\x10" + b"\xff" * 9 + b"\x01",
        bytes(9999),
    ):
        with pytest.raises(CorruptMetadataError, match="stream name 'n'"):
            decode_stream_name(value, "n")
    with pytest.raises(MisuseError, match="-1"):
        encode_stream_name(-1)


@pytest.mark.parametrize(
    ("term", "lac", "says"),
    [
        (1, 3, 3),
        (1, 8, 8),  # all that is left of its term
        (1, 9, 8),  # it was ignored: term 3 begins at 9
        (2, 12, 8),  # of a term that was never opened
        (3, 8, 8),  # what the term before it left
        (3, 13, 13),
        (3, 14, 13),
        (5, 13, 13),
        (5, 99, 99),  # nobody has taken over since
        (6, 99, 99),  # of a term that the record does not reach yet
        (0, 99, 99),  # nobody says of which term
        (1, -1, -1),
    ],
)
def test_a_lac_says_nothing_about_the_entries_of_later_terms(term, lac, says):
    ranges = [TermRange(Term(1), EntryId(0)), TermRange(Term(3), EntryId(9)), TermRange(Term(5), EntryId(14))]
    assert confirmed_in(term, lac, ranges) == says
    assert confirmed_in(term, lac, ()) == lac, "a ledger has no terms"
