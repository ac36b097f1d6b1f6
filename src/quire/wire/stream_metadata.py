"""A stream's record as bytes, and that of a stream's name: protobuf, unknown fields carried over.

Not BookKeeper's bytes: Java has no streams, and must not take one for a ledger. The record is a ledger's with terms
(`core/ledger/metadata.py`, `core/ledger/terms.py`), the keys are in `metadata/keys.py`. Pure.

Source: docs/formats/stream.md, "The record".
"""

from __future__ import annotations

from typing import Final

from google.protobuf.unknown_fields import UnknownFieldSet

from quire.core.errors import CorruptMetadataError, MisuseError
from quire.core.ids import ID_MAX, NO_ENTRY, BookieId, EntryId, LedgerId, Term
from quire.core.ledger.metadata import DigestType, Fragment, LedgerMetadata, LedgerState
from quire.core.ledger.terms import StreamMode, TermRange, Terms
from quire.wire.layout import FieldUse, Message
from quire.wire.proto import quire_metadata_pb2 as pb
from quire.wire.records import check_number, check_version, corrupt, parse, serialized, unknown_of

FORMAT_VERSION: Final = 1
STREAM_BYTES_MAX: Final = 64 * 1024
"""Each take-over and each change of an ensemble writes the whole record; ranges before its start may be removed."""
NAME_BYTES_MAX: Final = 4096


def encode_stream(stream: LedgerMetadata) -> bytes:
    """The record `streams/<stream id>`.

    Raises:
        CorruptMetadataError: the record is not a possible one.
        MisuseError: it is a ledger's, or has more than `STREAM_BYTES_MAX` bytes.
    """
    terms = stream.checked().terms
    if terms is None:
        msg = f"{stream.ledger_id} is a ledger and no stream: its record has no terms"
        raise MisuseError(msg, ledger_id=stream.ledger_id)
    closed = stream.state is LedgerState.CLOSED and stream.last_entry != NO_ENTRY
    message = pb.Stream(
        format_version=FORMAT_VERSION,
        stream_id=stream.ledger_id,
        ensemble_size=stream.ensemble_size,
        write_quorum=stream.write_quorum,
        ack_quorum=stream.ack_quorum,
        digest_type=stream.digest_type,
        password=stream.password,
        state=stream.state,
        fragments=[
            pb.StreamFragment(first_entry=fragment.first_entry, ensemble=fragment.ensemble)
            for fragment in stream.fragments
        ],
        last_entry=stream.last_entry if closed else None,
        length=stream.length,
        created_ms=stream.created_ms,
        custom=[pb.CustomValue(key=key, value=value) for key, value in stream.custom],
        creation_token=stream.creation_token,
        term=terms.term,
        ranges=[pb.StreamRange(term=each.term, first_entry=each.first_entry) for each in terms.ranges],
        start=terms.start,
        first_length=terms.first_length,
        owner=terms.owner,
        mode=terms.mode,
    )
    return serialized(message, terms.unknown, _where(stream.ledger_id), STREAM_BYTES_MAX)


def decode_stream(data: bytes, stream_id: int) -> LedgerMetadata:
    """A stream's record.

    Raises:
        CorruptMetadataError: not such a record, of a later version, of another stream, or not a possible one.
    """
    where = _where(stream_id)
    message = parse(pb.Stream, data, where, STREAM_BYTES_MAX)
    check_version(message.format_version, FORMAT_VERSION, where)
    if message.stream_id != stream_id:
        raise corrupt(where, f"it is of stream {message.stream_id}")
    for part in (*message.fragments, *message.ranges, *message.custom):
        if len(UnknownFieldSet(part)):  # it may say which entries are meant, or where they are
            raise _newer(where, "a part of it has a field")
    try:
        digest, state = DigestType(message.digest_type), LedgerState(message.state)
        mode = StreamMode(message.mode)
    except ValueError as error:
        raise _newer(where, f"it has a digest, state or mode ({error})") from error
    terms = Terms(
        term=Term(message.term),
        ranges=tuple(TermRange(Term(each.term), EntryId(each.first_entry)) for each in message.ranges),
        owner=message.owner,
        mode=mode,
        start=EntryId(message.start),
        first_length=message.first_length,
        unknown=unknown_of(message),
    )
    return LedgerMetadata(
        ledger_id=LedgerId(stream_id),
        ensemble_size=message.ensemble_size,
        write_quorum=message.write_quorum,
        ack_quorum=message.ack_quorum,
        digest_type=digest,
        password=message.password,
        state=state,
        fragments=tuple(
            Fragment(EntryId(each.first_entry), tuple(BookieId(bookie) for bookie in each.ensemble))
            for each in message.fragments
        ),
        last_entry=EntryId(message.last_entry) if message.HasField("last_entry") else NO_ENTRY,
        length=message.length,
        created_ms=message.created_ms if message.HasField("created_ms") else None,
        custom=tuple((each.key, each.value) for each in message.custom),
        creation_token=message.creation_token,
        terms=terms,
    ).checked()


def encode_stream_name(stream_id: int, unknown: bytes = b"") -> bytes:
    """The record `stream-names/<name>`.

    Raises:
        MisuseError: no stream has this id.
    """
    number = check_number(stream_id, "the stream's id", "the name of a stream", ID_MAX)
    message = pb.StreamName(format_version=FORMAT_VERSION, stream_id=number)
    return serialized(message, unknown, f"the name of stream {stream_id}", NAME_BYTES_MAX)


def decode_stream_name(data: bytes, name: str) -> tuple[LedgerId, bytes]:
    """The id of the stream that a name stands for, and the fields of later versions.

    Raises:
        CorruptMetadataError: not such a record, or of a later version.
    """
    where = f"the record of the stream name {name!r}"
    message = parse(pb.StreamName, data, where, NAME_BYTES_MAX)
    check_version(message.format_version, FORMAT_VERSION, where)
    if message.stream_id > ID_MAX:
        raise corrupt(where, f"it names the stream {message.stream_id}")
    return LedgerId(message.stream_id), unknown_of(message)


def _where(stream_id: int) -> str:
    return f"the record of stream {stream_id}"


def _newer(where: str, what: str) -> CorruptMetadataError:
    return CorruptMetadataError(
        f"{where} cannot be read: {what} that this program does not know: use a newer Quire"
    )


# --- the tables of the pages ------------------------------------------------------------------------------------

_WRITER: Final = FieldUse("the stream's writer, take-overs", "clients and bookies")
STREAM_FIELDS: Final = Message("Record of a stream", pb.Stream.DESCRIPTOR, _WRITER)
STREAM_FRAGMENT_FIELDS: Final = Message("Fragment of a stream", pb.StreamFragment.DESCRIPTOR, _WRITER)
STREAM_RANGE_FIELDS: Final = Message("Range of a term in a stream", pb.StreamRange.DESCRIPTOR, _WRITER)
STREAM_CUSTOM_FIELDS: Final = Message("Custom metadata of a stream", pb.CustomValue.DESCRIPTOR, _WRITER)
STREAM_NAME_FIELDS: Final = Message("Name of a stream", pb.StreamName.DESCRIPTOR, _WRITER)
