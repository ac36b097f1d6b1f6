"""A bundle: runs of many ledgers in one request, and the responses to it, each of which covers a part of its runs.

What one turn of a client's event loop appends to many ledgers on the same bookies is one frame: the header of a request,
then a row for each run under one checksum, then the runs' bodies as an ADD has them, each with a checksum in its row. A
bookie answers in as many responses as it likes: each names ranges of rows, and what happened to them. The request is
over when every row was answered once.

Layout: `docs/formats/native-protocol.md`, "Bundles". Functions only; limits are checked before anything is allocated.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

from crc32c import crc32c

from quire.core.answers import Answer
from quire.core.errors import MalformedFrameError
from quire.wire import native
from quire.wire.entry import Buffer
from quire.wire.layout import Field, FieldUse, Layout
from quire.wire.native import ANSWERS, REQUEST_BYTES, Kind

_SAID = FieldUse("client", "bookie")
_ANSWERED = FieldUse("bookie", "client")
ROW_FIELDS: Final = Layout(
    "Row of a bundle",
    [
        Field("ledger id", "q", _SAID),
        Field("ledger token", "Q", _SAID),
        Field("key", "20s", _SAID),
        Field("LAC", "q", _SAID),
        Field("bytes of the run's body", "I", _SAID),
        Field("checksum of the run's body", "I", _SAID),
    ],
)
ROW: Final = ROW_FIELDS.struct
ROW_BYTES: Final = ROW.size
_SIZE: Final = [field.name for field in ROW_FIELDS.fields].index("bytes of the run's body")
PART_FIELDS: Final = Layout(
    "Part of a response to a bundle",
    [
        Field("first row", "I", _ANSWERED),
        Field("rows", "I", _ANSWERED),
        Field("answer code", "H", _ANSWERED),
        Field("flags", "B", _ANSWERED),
    ],
)
PART: Final = PART_FIELDS.struct
_COUNT = struct.Struct(">I")
_BODY_CRC: Final = [field.name for field in native.REQUEST_FIELDS.fields].index("checksum of the body")
ROWS_AT: Final = REQUEST_BYTES + _COUNT.size
"""Where the rows begin in a frame, length field included."""
ROWS_MAX: Final = 1000
"""Rows of one bundle: a bookie stores them in 4 to 6 ms, and begins while the client's turn goes on."""

Row: TypeAlias = tuple[int, int, bytes, int, int, int]
"""As in `ROW_FIELDS`."""


class BundlePart(NamedTuple):
    """What happened to the runs of some rows of a bundle, one after another.

    Attributes:
        first, rows: the first row, and how many.
        answer: the same of all.
        flags: of the response to an ADD: `native.FOLLOWED`.
    """

    first: int
    rows: int
    answer: Answer
    flags: int = 0


def encode_bundle(number: int, rows: Sequence[bytes], bodies: Sequence[Buffer]) -> bytes:
    """The frame of a bundle; `rows` packed, in the order of their bodies."""
    table = b"".join((_COUNT.pack(len(rows)), *rows))
    size = len(table) + sum(map(len, bodies))
    return b"".join((native.encode_request(Kind.ADD_BUNDLE, number, size, crc32c(table)), table, *bodies))


def open_bundle(frame: Buffer) -> tuple[list[Row], int]:
    """The rows of a bundle's frame (header checked), and where the first body begins.

    Raises:
        MalformedFrameError: its rows are damaged, or have other sizes than it has; its runs cannot be separated.
    """
    (count,) = _COUNT.unpack_from(frame, REQUEST_BYTES) if len(frame) >= ROWS_AT else (0,)
    end = ROWS_AT + count * ROW_BYTES
    if not 0 < count <= ROWS_MAX or end > len(frame):
        msg = f"a bundle of {len(frame)} bytes announces {count} runs; it has 1 to {ROWS_MAX}, and a row for each"
        raise MalformedFrameError(msg)
    table = memoryview(frame)[REQUEST_BYTES:end]
    body_crc = native.REQUEST.unpack_from(frame)[_BODY_CRC]
    if crc32c(table) != body_crc:
        msg = f"the checksum of the rows of a bundle of {count} runs differs"
        raise MalformedFrameError(msg)
    rows = list(ROW.iter_unpack(table[_COUNT.size :]))
    if end + sum([row[_SIZE] for row in rows]) != len(frame):
        msg = f"the {count} rows of a bundle say other sizes of their runs than its {len(frame)} bytes hold"
        raise MalformedFrameError(msg)
    return rows, end


def encode_parts(number: int, parts: Iterable[BundlePart], durable_lsn: int) -> bytes:
    """A response to a bundle that covers these parts of it."""
    body = b"".join([PART.pack(*part) for part in parts])
    return b"".join(
        native.encode_answer(Kind.ADD_BUNDLE, Answer.OK, number, durable_lsn=durable_lsn, body=[body])
    )


def decode_parts(body: Buffer, count: int) -> list[BundlePart]:
    """The parts in the body of a response to a bundle of `count` runs.

    Raises:
        MalformedFrameError: it is cut, or names rows that the bundle has not, or an answer that there is not.
    """
    if not len(body) or len(body) % PART.size:
        msg = f"a response to a bundle has {len(body)} bytes: parts of {PART.size} do not fit"
        raise MalformedFrameError(msg)
    parts = []
    for first, rows, code, flags in PART.iter_unpack(body):
        answer = ANSWERS.get(code)
        if answer is None or not rows or first + rows > count:
            msg = f"a response to a bundle of {count} runs answers {code} to {rows} from row {first} on"
            raise MalformedFrameError(msg)
        parts.append(BundlePart(first, rows, answer, flags))
    return parts
