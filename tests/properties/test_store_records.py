"""Records in the metadata store: what was encoded is decoded, later versions' fields are kept, everything else is named."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.errors import CorruptMetadataError, MisuseError
from quire.core.ids import ENSEMBLE_MAX, ID_MAX, NO_ENTRY, BookieId, EntryId, LedgerId, Term
from quire.core.ledger.metadata import DigestType, Fragment, LedgerMetadata, LedgerState, new_ledger
from quire.core.ledger.notes import (
    ACCEPTED_BY_MAX,
    NO_NOTES,
    AcceptedLoss,
    BookieHoles,
    EntryRange,
    LedgerNotes,
)
from quire.core.ledger.terms import StreamMode, TermRange, Terms
from quire.wire import ledger_metadata
from quire.wire.ledger_notes import (
    HOLES_KEY,
    LOST_KEY,
    NOTES_BYTES_MAX,
    decode_notes,
    encode_notes,
    notes_of_record,
    record_with_notes,
)
from quire.wire.proto import quire_metadata_pb2 as pb
from quire.wire.store_records import (
    BOOT_CODEC,
    PASSES_CODEC,
    STOPPED_LENGTH_MAX,
    TOMBSTONE_CODEC,
    WATERMARK_CODEC,
    Passes,
    StoredBoot,
    Tombstone,
    Watermark,
)
from quire.wire.stream_metadata import (
    decode_stream,
    decode_stream_name,
    encode_stream,
    encode_stream_name,
)

U63 = st.integers(0, ID_MAX)
U64 = st.integers(0, 2**64 - 1)
IDS = st.builds(LedgerId, U63)
BOOKIES = st.from_regex(r"[a-z0-9.\-]{1,12}:[0-9]{1,5}", fullmatch=True).map(BookieId)
UNKNOWN = st.sampled_from([b"", b"\xf8\x07\x05", b"\xfa\x07\x03abc\x80\x08\x01"])
"""Fields with tags that no message has."""
TEXTS = st.text(min_size=1, max_size=40)


@st.composite
def ranges(draw):
    firsts = sorted(draw(st.lists(U63, min_size=1, max_size=4)))
    found = []
    for first in firsts:
        period = draw(st.integers(1, ENSEMBLE_MAX))
        last = draw(st.integers(first, ID_MAX))
        found.append(EntryRange(first, last, period, draw(st.integers(1, (1 << period) - 1))))
    return tuple(found)


HOLES = st.lists(
    st.builds(BookieHoles, BOOKIES, ranges(), UNKNOWN), max_size=3, unique_by=lambda hole: hole.bookie
).map(lambda holes: tuple(sorted(holes, key=lambda hole: hole.bookie)))
LOSSES = st.lists(
    st.builds(AcceptedLoss, ranges(), U63, TEXTS, st.lists(BOOKIES, max_size=3).map(tuple), UNKNOWN),
    max_size=3,
).map(tuple)
NOTES = st.builds(LedgerNotes, HOLES, LOSSES, UNKNOWN, UNKNOWN)


@st.composite
def streams(draw):
    ensemble_size = draw(st.integers(1, 4))
    write_quorum = draw(st.integers(1, ensemble_size))
    firsts = sorted(draw(st.sets(st.integers(0, 1000), min_size=1, max_size=4)))
    start = draw(st.integers(firsts[0], 2000))
    bookies = draw(st.lists(BOOKIES, min_size=4, max_size=8, unique=True))
    terms = sorted(draw(st.sets(st.integers(1, ID_MAX), min_size=1, max_size=4)))
    begins = [draw(st.integers(0, start))]
    begins += sorted(
        draw(st.lists(st.integers(start, ID_MAX), min_size=len(terms) - 1, max_size=len(terms) - 1))
    )
    state = draw(st.sampled_from(LedgerState))
    closed = state is LedgerState.CLOSED
    first_length = draw(st.integers(0, 10**9))
    return LedgerMetadata(
        ledger_id=draw(IDS),
        ensemble_size=ensemble_size,
        write_quorum=write_quorum,
        ack_quorum=draw(st.integers(1, write_quorum)),
        digest_type=draw(st.sampled_from(DigestType)),
        password=draw(st.binary(max_size=20)),
        state=state,
        fragments=tuple(
            Fragment(EntryId(first), tuple(draw(st.permutations(bookies))[:ensemble_size]))
            for first in firsts
        ),
        terms=Terms(
            term=Term(draw(st.integers(terms[-1], ID_MAX))),
            ranges=tuple(TermRange(Term(t), EntryId(b)) for t, b in zip(terms, begins, strict=True)),
            owner=draw(U64),
            mode=draw(st.sampled_from(StreamMode)),
            start=EntryId(start),
            first_length=first_length,
            unknown=draw(UNKNOWN),
        ),
        last_entry=EntryId(draw(st.integers(start - 1, ID_MAX))) if closed else NO_ENTRY,
        length=draw(st.integers(first_length, ID_MAX)) if closed else 0,
        created_ms=draw(st.none() | U63),
        custom=tuple(sorted(draw(st.dictionaries(TEXTS, st.binary(max_size=20), max_size=3)).items())),
        creation_token=draw(U63),
    )


TOMBSTONES = st.builds(Tombstone, IDS, U64, U63, U63, st.booleans(), UNKNOWN)
WATERMARKS = st.builds(Watermark, BOOKIES, U64, TEXTS, U64, UNKNOWN)
BOOTS = st.builds(StoredBoot, BOOKIES, U64, U64, U64, U63, st.booleans(), U64, UNKNOWN)
PASSES = st.builds(Passes, BOOKIES, U64, U64, st.text(max_size=40), U64, U64, UNKNOWN)


class Codec:
    """One record: how it is made, written and read, and whose it is."""

    def __init__(self, records, encode, decode, whose, other, kind):
        self.records, self.encode, self.decode = records, encode, decode
        self.whose, self.other, self.kind = whose, other, kind


CODECS = {
    "tombstone": Codec(
        TOMBSTONES,
        TOMBSTONE_CODEC.encode,
        TOMBSTONE_CODEC.decode,
        lambda record: record.ledger_id,
        lambda ledger_id: ledger_id ^ 1,
        pb.Tombstone,
    ),
    "watermark": Codec(
        WATERMARKS,
        WATERMARK_CODEC.encode,
        WATERMARK_CODEC.decode,
        lambda record: record.bookie,
        lambda bookie: f"{bookie}1",
        pb.Watermark,
    ),
    "boot": Codec(
        BOOTS,
        BOOT_CODEC.encode,
        BOOT_CODEC.decode,
        lambda record: record.bookie,
        lambda bookie: f"{bookie}1",
        pb.Boot,
    ),
    "passes": Codec(
        PASSES,
        PASSES_CODEC.encode,
        PASSES_CODEC.decode,
        lambda record: record.bookie,
        lambda bookie: f"{bookie}1",
        pb.Passes,
    ),
    "notes": Codec(
        NOTES, lambda notes: encode_notes(notes, 7), decode_notes, lambda _: 7, lambda _: 8, pb.LedgerNotes
    ),
    "stream": Codec(
        streams(), encode_stream, decode_stream, lambda record: record.ledger_id, lambda i: i ^ 1, pb.Stream
    ),
}
EACH = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)


@EACH
@given(st.data())
def test_what_was_encoded_is_decoded_and_written_back_as_it_was(codec, data):
    record = data.draw(codec.records)
    encoded = codec.encode(record)
    found = codec.decode(encoded, codec.whose(record))
    assert found == record
    assert codec.encode(found) == encoded


@EACH
@given(st.data())
def test_a_record_of_another_is_refused(codec, data):
    record = data.draw(codec.records)
    other = codec.other(codec.whose(record))
    with pytest.raises(CorruptMetadataError, match=str(other).replace(".", r"\.")):
        codec.decode(codec.encode(record), other)


@EACH
@given(st.data())
def test_another_version_is_refused(codec, data):
    record = data.draw(codec.records)
    message = codec.kind.FromString(codec.encode(record))
    for version, words in ((2, "reads 1: use a newer Quire"), (0, "does not exist"), (2**32 - 1, "newer")):
        message.format_version = version
        with pytest.raises(CorruptMetadataError, match=f"version {version}.*{words}"):
            codec.decode(message.SerializeToString(), codec.whose(record))


@EACH
@given(st.data())
def test_spoilt_bytes_are_a_possible_record_or_an_error_that_names_it(codec, data):
    record = data.draw(codec.records)
    spoilt = bytearray(codec.encode(record))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(spoilt) - 1))
        match data.draw(st.integers(0, 2)):
            case 0:
                spoilt[at] ^= 1 << data.draw(st.integers(0, 7))
            case 1:
                spoilt[at:at] = data.draw(st.binary(min_size=1, max_size=10))
            case _ if len(spoilt) > 1:
                del spoilt[at]
    whose = codec.whose(record)
    told = None
    try:
        codec.encode(codec.decode(bytes(spoilt), whose))  # what is possible can be written back
    except CorruptMetadataError as error:
        told = error.message
    assert told is None or str(whose) in told


@EACH
def test_a_value_that_is_too_long_is_not_parsed(codec):
    whose = 7 if codec.kind in {pb.Tombstone, pb.LedgerNotes, pb.Stream} else "b:1"
    with pytest.raises(CorruptMetadataError, match="has 100000 bytes, more than"):
        codec.decode(b"\xff" * 100_000, whose)
    with pytest.raises(CorruptMetadataError, match="do not parse"):
        codec.decode(b"\xff" * 1000, whose)


@pytest.mark.parametrize(
    ("codec", "record", "words"),
    [
        (TOMBSTONE_CODEC, Tombstone(LedgerId(-1), 0, 0, 0), "ledger -1: the ledger's id is -1"),
        (TOMBSTONE_CODEC, Tombstone(LedgerId(1), 2**64, 0, 0), "the token is"),
        (TOMBSTONE_CODEC, Tombstone(LedgerId(1), 0, -1, 0), "the time is -1"),
        (TOMBSTONE_CODEC, Tombstone(LedgerId(1), 0, 0, 2**63), "version is"),
        (TOMBSTONE_CODEC, Tombstone(LedgerId(1), 0, 0, 0, unknown=b"\xfa\x07\x80\x20" + bytes(4096)), "4096"),
        (WATERMARK_CODEC, Watermark(BookieId("b:1"), -1, "i", 0), "bookie b:1: the revision is -1"),
        (WATERMARK_CODEC, Watermark(BookieId("b:1"), 0, "", 0), "names no instance"),
        (WATERMARK_CODEC, Watermark(BookieId("b:1"), 0, "i", 2**64), "generation"),
        (BOOT_CODEC, StoredBoot(BookieId("b:1"), -1, 0, 0, 0), "boot number"),
        (BOOT_CODEC, StoredBoot(BookieId("b:1"), 0, 2**64, 0, 0), "LSN"),
        (BOOT_CODEC, StoredBoot(BookieId("b:1"), 0, 0, -1, 0), "inode"),
        (BOOT_CODEC, StoredBoot(BookieId("b:1"), 0, 0, 0, 2**63), "change time"),
        (PASSES_CODEC, Passes(BookieId("b:1"), 2**64), "passes"),
        (PASSES_CODEC, Passes(BookieId("b:1"), 0, own=-1), "own number of passes is -1"),
        (PASSES_CODEC, Passes(BookieId("b:1"), 0, accepted=2**64), "accepted number"),
    ],
)
def test_numbers_beyond_their_bounds_are_not_written(codec, record, words):
    with pytest.raises(MisuseError, match=words):
        codec.encode(record)


def test_a_watermark_without_a_store_and_a_time_before_all_are_refused():
    message = pb.Watermark(format_version=1, bookie="b:1")
    with pytest.raises(CorruptMetadataError, match="names no instance"):
        WATERMARK_CODEC.decode(message.SerializeToString(), "b:1")
    boot = pb.Boot(format_version=1, bookie="b:1", marker_changed_ns=-1)
    with pytest.raises(CorruptMetadataError, match="change time is -1"):
        BOOT_CODEC.decode(boot.SerializeToString(), "b:1")
    tombstone = pb.Tombstone(format_version=1, ledger_id=1, deleted_ms=-1)
    with pytest.raises(CorruptMetadataError, match="time is -1"):
        TOMBSTONE_CODEC.decode(tombstone.SerializeToString(), 1)


def test_records_without_the_later_fields_have_the_bytes_that_they_had():
    tombstone = Tombstone(LedgerId(7), 2**63, 1_700_000_000_000, 17)
    assert TOMBSTONE_CODEC.encode(tombstone).hex() == "080110071900000000000000802080d095ffbc312811"
    assert PASSES_CODEC.encode(Passes(BookieId("b:1"), 300)).hex() == "08011203623a3118ac02"


def test_a_long_reason_is_cut_and_what_is_no_unicode_replaced():
    passes = Passes(BookieId("b:1"), 3, 5, "\udcff" + "\U0001f512" * 5000)
    found = PASSES_CODEC.decode(PASSES_CODEC.encode(passes), "b:1")
    assert found.held == "?" + "\U0001f512" * (STOPPED_LENGTH_MAX - 1)


# --- notes ------------------------------------------------------------------------------------------------------


def record_of(stored_format=3):
    return new_ledger(
        LedgerId(7),
        [BookieId("a"), BookieId("b"), BookieId("c")],
        write_quorum=3,
        ack_quorum=2,
        digest_type=DigestType.CRC32C,
        password=b"",
        custom={"quire.token": bytes(8), "z": b"\xff"},
        format_version=stored_format,
    )


@given(NOTES, st.sampled_from([2, 3]))
def test_notes_travel_in_custom_metadata_and_leave_without_a_trace(notes, stored_format):
    record = record_of(stored_format)
    noted = record_with_notes(record, notes)
    read = ledger_metadata.parse(ledger_metadata.serialize(noted), 7)
    assert notes_of_record(read) == notes
    assert dict(read.custom).items() >= dict(record.custom).items()
    without = record_with_notes(read, NO_NOTES)
    assert ledger_metadata.serialize(without) == ledger_metadata.serialize(record)
    assert notes_of_record(without) == NO_NOTES


def hole(*places):
    return LedgerNotes(holes=(BookieHoles(BookieId("a"), places),))


def loss(**changes):
    return LedgerNotes(
        losses=(
            AcceptedLoss(
                **({"ranges": (EntryRange(0, 0),), "accepted_ms": 0, "accepted_by": "me"} | changes)
            ),
        )
    )


@pytest.mark.parametrize(
    ("notes", "words"),
    [
        (hole(), "no range"),
        (hole(EntryRange(2, 1)), "range 2..1 is none"),
        (hole(EntryRange(-1, 1)), "ids go up"),
        (hole(EntryRange(0, ID_MAX + 1)), "ids go up"),
        (hole(EntryRange(0, 1, 0)), "period 0"),
        (hole(EntryRange(0, 1, 65)), "period 65"),
        (hole(EntryRange(0, 1, 2, 0)), "stripes 0x0"),
        (hole(EntryRange(0, 1, 2, 4)), "stripes 0x4"),
        (hole(EntryRange(5, 6), EntryRange(1, 2)), "do not go up"),
        (LedgerNotes(hole(EntryRange(0, 1)).holes * 2), "order of their ids"),
        (loss(ranges=()), "no range"),
        (loss(accepted_by=""), "accepted by ''"),
        (loss(accepted_by="x" * (ACCEPTED_BY_MAX + 1)), "accepted by"),
        (loss(accepted_ms=-1), "-1 ms"),
    ],
)
def test_notes_that_are_not_possible_are_neither_written_nor_read(notes, words):
    with pytest.raises(MisuseError, match=words):
        encode_notes(notes, 7)
    with pytest.raises(MisuseError, match=words):
        record_with_notes(record_of(), notes)


@pytest.mark.parametrize("key", [HOLES_KEY, LOST_KEY])
def test_notes_in_a_record_that_cannot_be_read_are_named(key):
    for value, words in [
        (b"\xff" * 5, "do not parse"),
        (bytes(NOTES_BYTES_MAX + 1), "more than 65536"),
        (b"\x08\x02", "version 2.*newer"),
        (b"", "version 0"),
        (b"\x08\x01\x12\x00", "notes of ledger 7 .*(range|order)"),
        (b"\x08\x01\x12\x08\x0a\x01a\x12\x03\xf8\x07\x01", "newer" if key == HOLES_KEY else "cannot be read"),
    ]:
        record = replace(record_of(), custom=((key, value),))
        with pytest.raises(CorruptMetadataError, match=words):
            notes_of_record(record)


def test_too_many_notes_are_refused_with_their_size():
    places = tuple(EntryRange(10 * i, 10 * i + 5, 3, 2) for i in range(5000))
    for write in (
        lambda: encode_notes(hole(*places), 7),
        lambda: record_with_notes(record_of(), hole(*places)),
    ):
        with pytest.raises(
            MisuseError, match=r"notes of ledger 7 .* would have \d+ bytes; they may have 65536"
        ):
            write()
    with pytest.raises(MisuseError, match="format 1, which holds no custom metadata"):
        record_with_notes(replace(record_of(), format_version=1), NO_NOTES)


def test_later_fields_of_plain_notes_are_not_lost_in_silence():
    message = encode_notes(loss(), 7) + b"\xf8\x07\x05"
    with pytest.raises(CorruptMetadataError, match="use a newer Quire"):
        decode_notes(message, 7)


@given(IDS, UNKNOWN)
def test_a_name_of_a_stream_comes_back(stream_id, unknown):
    assert decode_stream_name(encode_stream_name(stream_id, unknown), "n") == (stream_id, unknown)
