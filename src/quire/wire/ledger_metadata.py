"""A ledger's record as bytes: BookKeeper's three stored formats.

Format 3 is a protobuf message with its length in front, format 2 the same message as text, format 1 plain lines. The
format that was found is the one that is written; new ledgers get format 3. Knows nothing of stores and versions.

Source: BookKeeper source, `LedgerMetadataFormat` in `DataFormats.proto`, `LedgerMetadataSerDe`;
tests/vectors/ledger_metadata.json.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, TypeVar, cast

from google.protobuf import text_format
from google.protobuf.message import DecodeError, Message

from quire.core.errors import CorruptMetadataError, MisuseError
from quire.core.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from quire.core.ledger.metadata import DigestType, Fragment, LedgerMetadata, LedgerState, StoredFragments
from quire.wire.proto.ledger_metadata_pb2 import (
    LedgerMetadataFirstEntries,
    LedgerMetadataFormat,
    LedgerMetadataHead,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HEADER: Final = b"BookieMetadataFormatVersion\t"
VERSION_DIGITS_MAX: Final = 10
IN_RECOVERY_MARK: Final = -102
"""Format 1 has no state: this last entry id stands for IN_RECOVERY."""
FRAGMENTS_AT_ONCE: Final = 16
"""A closed ledger with more fragments than these keeps them as bytes until they are looked at."""
_LINES_BEFORE_FRAGMENTS: Final = 3
_VARINT_BYTES_MAX: Final = 5
_INTEGER: Final = re.compile(r"-?[0-9]{1,19}", re.ASCII)

Parsed = TypeVar("Parsed", bound=Message)


def serialize(record: LedgerMetadata) -> bytes:
    """The bytes that the metadata store keeps, in the record's own format.

    Raises:
        MisuseError: the record's format cannot hold a field that is set, or there is no such format; or it is a
            stream's.
    """
    if record.terms is not None:
        msg = f"{record.ledger_id} is a stream: its record is no ledger's (wire/stream_metadata.py)"
        raise MisuseError(msg, ledger_id=record.ledger_id)
    head = HEADER + b"%d\n" % record.format_version
    match record.format_version:
        case 3:
            body = _message(record, with_token=True).SerializeToString()
            return head + _varint(len(body)) + body
        case 2:
            return head + "".join(_text_lines(_message(record, with_token=False))).encode("ascii")
        case 1:
            return head + _plain_lines(record)
        case _:
            msg = f"ledger {record.ledger_id}: there is no metadata format {record.format_version}; 1, 2 and 3 exist"
            raise MisuseError(msg, ledger_id=record.ledger_id)


def parse(data: bytes, ledger_id: int) -> LedgerMetadata:
    """The record in a stored value.

    A damaged fragment is found here, or when it is first looked at: see `StoredFragments`.

    Args:
        data: the whole value.
        ledger_id: the ledger whose value it is; the bytes do not name it.

    Raises:
        CorruptMetadataError: what is wrong, at which byte or line, of which ledger.
    """
    if not data.startswith(HEADER):
        at = next(
            (i for i, (ours, theirs) in enumerate(zip(HEADER, data, strict=False)) if ours != theirs),
            len(data),
        )
        raise _corrupt(ledger_id, f"its header is wrong at byte {at}")
    end = data.find(b"\n", len(HEADER), len(HEADER) + VERSION_DIGITS_MAX + 1)
    if end < 0:
        raise _corrupt(ledger_id, f"no line end follows the format number within {VERSION_DIGITS_MAX} digits")
    number = data[len(HEADER) : end]
    if not number.isdigit():
        raise _corrupt(ledger_id, f"its format number is {number!r}")
    body = data[end + 1 :]
    match int(number):
        case 3:
            record = _parse_message(_undelimited(body, ledger_id), ledger_id)
        case 2:
            message = _text_message(body, ledger_id)
            record = _record(message, _fragments(message, ledger_id), ledger_id, 2)
        case 1:
            record = _parse_plain(body, ledger_id)
        case other:
            what = f"it has format {other}; this version of Quire knows 1 to 3, a newer one may know it"
            raise _corrupt(ledger_id, what)
    return record.checked()


# --- the message of formats 2 and 3 -----------------------------------------------------------------------------


def _message(record: LedgerMetadata, *, with_token: bool) -> LedgerMetadataFormat:
    """Every field that Java writes, so that the bytes are equal."""
    message = LedgerMetadataFormat(
        quorumSize=record.write_quorum,
        ensembleSize=record.ensemble_size,
        length=record.length,
        lastEntryId=record.last_entry,
        state=record.state.name,
        ackQuorumSize=record.ack_quorum,
        digestType=record.digest_type.name if record.has_password else None,
        password=record.password if record.has_password else None,
        ctime=record.created_ms,
    )
    for fragment in record.fragments:
        message.segment.add(ensembleMember=fragment.ensemble, firstEntryId=fragment.first_entry)
    for key, value in record.custom:
        message.customMetadata.add(key=key, value=value)
    if with_token:
        message.cToken = record.creation_token
    return message


def _record(
    message: LedgerMetadataFormat | LedgerMetadataHead,
    fragments: Sequence[Fragment],
    ledger_id: int,
    format_version: int,
) -> LedgerMetadata:
    closed = message.state == LedgerMetadataFormat.CLOSED
    for item in message.customMetadata:
        _check_text(item.key, ledger_id)
    has_password = message.HasField("password")
    digest = message.digestType if has_password and message.HasField("digestType") else DigestType.CRC32
    return LedgerMetadata(
        ledger_id=LedgerId(ledger_id),
        ensemble_size=message.ensembleSize,
        write_quorum=message.quorumSize,
        ack_quorum=message.ackQuorumSize if message.HasField("ackQuorumSize") else message.quorumSize,
        digest_type=DigestType(digest),
        password=message.password,
        state=LedgerState(message.state),
        fragments=fragments,
        # Java ignores both unless the ledger is closed, so a leftover there means nothing.
        last_entry=EntryId(message.lastEntryId) if closed and message.HasField("lastEntryId") else NO_ENTRY,
        length=message.length if closed else 0,
        created_ms=message.ctime if message.HasField("ctime") else None,
        custom=tuple(sorted((item.key, item.value) for item in message.customMetadata)),
        creation_token=message.cToken,
        format_version=format_version,
        has_password=has_password,
    )


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _undelimited(body: bytes, ledger_id: int) -> bytes:
    size = 0
    for start in range(min(len(body), _VARINT_BYTES_MAX)):
        size |= (body[start] & 0x7F) << (7 * start)
        if body[start] < 0x80:
            break
    else:
        raise _corrupt(ledger_id, "the length in front of its message does not end")
    start += 1
    if len(body) - start != size:
        raise _corrupt(ledger_id, f"its message should have {size} bytes and has {len(body) - start}")
    return body[start:]


def _parse_message(data: bytes, ledger_id: int) -> LedgerMetadata:
    """The record of a message; the fragments of a long closed ledger stay bytes.

    Those of a ledger that is not closed do not: its record changes, and the machines rely on what was checked.
    """
    head = _message_of(LedgerMetadataHead, data, ledger_id)
    segments = head.segment
    if head.state != LedgerMetadataFormat.CLOSED or len(segments) <= FRAGMENTS_AT_ONCE:
        message = _message_of(LedgerMetadataFormat, data, ledger_id)
        return _record(message, _fragments(message, ledger_id), ledger_id, 3)

    def first_entries() -> list[int]:
        found = _message_of(LedgerMetadataFirstEntries, data, ledger_id).segment.firstEntryId
        if len(found) != len(segments):
            raise _corrupt(ledger_id, f"its {len(segments)} fragments have {len(found)} first entries")
        return found[:]

    def fragment(index: int) -> Fragment:
        return _fragment(_message_of(LedgerMetadataFormat.Segment, segments[index], ledger_id), ledger_id)

    stored = StoredFragments(LedgerId(ledger_id), head.ensembleSize, len(segments), first_entries, fragment)
    return _record(head, stored, ledger_id, 3)


def _fragments(message: LedgerMetadataFormat, ledger_id: int) -> tuple[Fragment, ...]:
    return tuple([_fragment(segment, ledger_id) for segment in message.segment])


def _fragment(segment: LedgerMetadataFormat.Segment, ledger_id: int) -> Fragment:
    members = tuple(segment.ensembleMember)
    for member in members:
        _check_text(member, ledger_id)
    return Fragment(EntryId(segment.firstEntryId), cast("tuple[BookieId, ...]", members))


def _check_text(value: object, ledger_id: int) -> None:
    """A protobuf text that is no UTF-8 comes as bytes.

    Raises:
        CorruptMetadataError: it does.
    """
    if not isinstance(value, str):
        raise _corrupt(ledger_id, f"a name in it is not UTF-8: {value!r}")


def _message_of(kind: type[Parsed], data: bytes, ledger_id: int) -> Parsed:
    message = kind()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise _corrupt(ledger_id, f"its message of {len(data)} bytes does not parse ({error})") from error
    return _complete(message, ledger_id)


def _text_message(body: bytes, ledger_id: int) -> LedgerMetadataFormat:
    message = LedgerMetadataFormat()
    try:
        text_format.Parse(body.decode(), message)
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise _corrupt(
            ledger_id, f"its text does not parse ({error}, lines counted after the header)"
        ) from error
    return _complete(message, ledger_id)


def _complete(message: Parsed, ledger_id: int) -> Parsed:
    if not message.IsInitialized():
        raise _corrupt(ledger_id, "a field that every record has is missing")
    return message


# --- format 2: text ---------------------------------------------------------------------------------------------


_ESCAPES: Final = {
    7: "\\a",
    8: "\\b",
    9: "\\t",
    10: "\\n",
    11: "\\v",
    12: "\\f",
    13: "\\r",
    34: '\\"',
    39: "\\'",
    92: "\\\\",
}


def _quoted(value: bytes) -> str:
    """A string in Java's text format. The library's own writer spells some control characters otherwise."""
    return '"' + "".join(_ESCAPES.get(b, chr(b) if 0x20 <= b < 0x7F else f"\\{b:03o}") for b in value) + '"'


def _text_lines(message: LedgerMetadataFormat) -> Iterator[str]:
    yield f"quorumSize: {message.quorumSize}\nensembleSize: {message.ensembleSize}\nlength: {message.length}\n"
    yield f"lastEntryId: {message.lastEntryId}\nstate: {LedgerMetadataFormat.State.Name(message.state)}\n"
    for segment in message.segment:
        members = "".join(
            f"  ensembleMember: {_quoted(member.encode())}\n" for member in segment.ensembleMember
        )
        yield f"segment {{\n{members}  firstEntryId: {segment.firstEntryId}\n}}\n"
    if message.HasField("digestType"):
        yield f"digestType: {LedgerMetadataFormat.DigestType.Name(message.digestType)}\n"
    if message.HasField("password"):
        yield f"password: {_quoted(message.password)}\n"
    yield f"ackQuorumSize: {message.ackQuorumSize}\n"
    if message.HasField("ctime"):
        yield f"ctime: {message.ctime}\n"
    for item in message.customMetadata:
        yield f"customMetadata {{\n  key: {_quoted(item.key.encode())}\n  value: {_quoted(item.value)}\n}}\n"


# --- format 1: lines --------------------------------------------------------------------------------------------


def _plain_lines(record: LedgerMetadata) -> bytes:
    """Qw, E, length, a line per fragment, and unless OPEN a last line without a line end.

    The format has no room for an ack quorum, a password or custom metadata; Java drops them in silence as well, and
    no record that was read from it has them.
    """
    lines = [f"{record.write_quorum}\n{record.ensemble_size}\n{record.length}\n"]
    lines += ["\t".join([str(f.first_entry), *f.ensemble]) + "\n" for f in record.fragments]
    if record.state is LedgerState.IN_RECOVERY:
        lines.append(f"{IN_RECOVERY_MARK}\tCLOSED")
    elif record.state is LedgerState.CLOSED:
        lines.append(f"{record.last_entry}\tCLOSED")
    return "".join(lines).encode()


def _parse_plain(body: bytes, ledger_id: int) -> LedgerMetadata:
    try:
        lines = body.decode().splitlines()
    except UnicodeDecodeError as error:
        raise _corrupt(ledger_id, f"it is not UTF-8 ({error})") from error
    if len(lines) < _LINES_BEFORE_FRAGMENTS:
        raise _corrupt(
            ledger_id, f"it has {len(lines)} lines after the header, fewer than {_LINES_BEFORE_FRAGMENTS}"
        )

    def integer(text: str, line: int) -> int:
        if not _INTEGER.fullmatch(text):
            raise _corrupt(ledger_id, f"line {line} after the header has {text!r} where a number belongs")
        return int(text)

    write_quorum, ensemble_size, length = (integer(lines[i], i + 1) for i in range(_LINES_BEFORE_FRAGMENTS))
    fragments: list[Fragment] = []
    state, last_entry = LedgerState.OPEN, int(NO_ENTRY)
    for number, line in enumerate(lines[_LINES_BEFORE_FRAGMENTS:], start=_LINES_BEFORE_FRAGMENTS + 1):
        first, *members = line.split("\t")
        if members == ["CLOSED"]:
            last_entry = integer(first, number)
            state = LedgerState.IN_RECOVERY if last_entry == IN_RECOVERY_MARK else LedgerState.CLOSED
            if number != len(lines):
                raise _corrupt(ledger_id, f"lines follow the closing line {number}")
        else:
            fragments.append(Fragment(EntryId(integer(first, number)), tuple(BookieId(m) for m in members)))
    closed = state is LedgerState.CLOSED
    return LedgerMetadata(
        ledger_id=LedgerId(ledger_id),
        ensemble_size=ensemble_size,
        write_quorum=write_quorum,
        ack_quorum=write_quorum,
        digest_type=DigestType.CRC32,
        password=b"",
        state=state,
        fragments=tuple(fragments),
        last_entry=EntryId(last_entry) if closed else NO_ENTRY,
        length=length if closed else 0,
        format_version=1,
        has_password=False,
    )


def _corrupt(ledger_id: int, what: str) -> CorruptMetadataError:
    msg = f"the stored metadata of ledger {ledger_id} cannot be read: {what}; restore the value, or delete the ledger"
    return CorruptMetadataError(msg, ledger_id=ledger_id)
