"""A cursor's record as bytes: protobuf, unknown fields carried over. Prose: `docs/formats/log-list.md`, "Cursors".

Source: docs/formats/log-list.md, "Cursors"; docs/decisions/019-paged-list.md: unknown fields are kept by every
writer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from quire.wire.proto import quire_log_pb2 as pb
from quire.wire.records import Number, RecordCodec


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


CURSOR_CODEC: Final = RecordCodec(
    Cursor,
    pb.LogCursor,
    "the record of cursor {name!r} of {owner}",
    ("owner", "name"),
    {
        "first_offset": Number("the first offset"),
        "offset": Number("the offset"),
        "created_ms": Number("the time of creation"),
        "moved_ms": Number("the time of the last move"),
    },
)
"""`log-cursors/<owner>/<name>`."""
