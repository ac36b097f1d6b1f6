"""A cursor's record as bytes: protobuf, unknown fields carried over. Prose: `docs/formats/log-list.md`, "Cursors".

Source: docs/formats/log-list.md, "Cursors"; docs/decisions/019-paged-list.md: unknown fields are kept by every
writer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from quire.core.errors import CorruptMetadataError
from quire.wire.proto import quire_log_pb2 as pb

FORMAT_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Cursor:
    """A named position in a log.

    Attributes:
        owner: the log's id in hex; of a ledger that is read without a log, `ledger-` and its number and token.
        first_offset: where it began; it never changes.
        offset: everything below is done.
        hold: whether truncation waits for it.
        holder: the reader that moves it.
        created_ms: wall time, for people; so is `moved_ms`.
        unknown: fields of later versions.
    """

    owner: str
    name: str
    first_offset: int
    offset: int
    hold: bool = False
    holder: str = ""
    created_ms: int = 0
    moved_ms: int = 0
    unknown: bytes = b""


def encode_cursor(cursor: Cursor) -> bytes:
    """The record `log-cursors/<owner>/<name>`."""
    message = pb.LogCursor(
        format_version=FORMAT_VERSION,
        owner=cursor.owner,
        name=cursor.name,
        first_offset=cursor.first_offset,
        offset=cursor.offset,
        hold=cursor.hold,
        holder=cursor.holder,
        created_ms=cursor.created_ms,
        moved_ms=cursor.moved_ms,
    )
    message.MergeFromString(cursor.unknown)
    return message.SerializeToString(deterministic=True)


def decode_cursor(record: bytes, owner: str, name: str) -> Cursor:
    """The cursor that a record holds.

    Raises:
        CorruptMetadataError: not such a record, of a later version, or of another log.
    """
    where = f"the record of cursor {name!r} of {owner}"
    message = pb.LogCursor()
    try:
        message.MergeFromString(record)
    except DecodeError as error:
        raise CorruptMetadataError(f"{where} cannot be read: {error}") from error
    if message.format_version != FORMAT_VERSION or (message.owner, message.name) != (owner, name):
        raise CorruptMetadataError(
            f"{where} has version {message.format_version} and says that it is of {message.owner!r}"
        )
    rest = pb.LogCursor()
    rest.CopyFrom(message)
    for field, _ in message.ListFields():
        rest.ClearField(field.name)
    return Cursor(
        owner,
        name,
        message.first_offset,
        message.offset,
        message.hold,
        message.holder,
        message.created_ms,
        message.moved_ms,
        rest.SerializeToString(deterministic=True),
    )
