"""Plain ADDs of our own protocol, nearly all that a writer sends: request and run are checked and opened in one go.

What is not plain, or not intact, is none here: `native.receive_request` and `RunView.parse_sent` say what it is.

Source: `docs/formats/native-protocol.md`; `docs/formats/run.md`.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from crc32c import crc32c

from quire.core.errors import MalformedFrameError
from quire.core.ids import ID_MAX, NO_ENTRY
from quire.core.ledger_metadata import DigestType
from quire.wire.entry import HEADER, HEADER_BYTES
from quire.wire.native import REQUEST, REQUEST_BYTES, Flag, Kind, Request
from quire.wire.run import RUN_HEADER, RUN_HEADER_BYTES, RUN_VERSION, RunView

SHORT_BYTES_MAX: Final = 8192
"""A longer frame has memory of its own, which is stored without a copy."""
_ADD: Final = int(Kind.ADD)
_RECOVERY: Final = int(Flag.RECOVERY)
_DIGEST_TYPE_MAX: Final = max(DigestType)
_HEADER_END: Final = REQUEST_BYTES - 4
_RUN_HEADER_END: Final = RUN_HEADER_BYTES - 4
_ENTRY_AT: Final = RUN_HEADER_BYTES + 4
_BYTES_MIN: Final = REQUEST_BYTES + _ENTRY_AT + HEADER_BYTES
_RESERVED: Final = bytes(12)
_NO_KEY: Final = bytes(20)


class _Fields(NamedTuple):
    """What differs from one plain add to the next."""

    number: int
    flags: int
    ledger_id: int
    token: int
    key: bytes
    lac: int
    digest_type: int
    body_crc: int
    body: bytes
    first: int
    last: int
    count: int  # type: ignore[assignment]  # as `RunView` calls it; no tuple's items are counted


class PlainAdd(_Fields):
    """An ADD of a run with consecutive ids and no term, whose request has no flag but RECOVERY.

    It is the request and the run at once: it has the fields of both that a bookie decides and stores by.
    """

    __slots__ = ()

    kind = Kind.ADD
    term = 0
    period = 1
    residues = 1
    origin_term = 0


AddRequest: TypeAlias = Request | PlainAdd
"""An ADD as a bookie decides on it."""
AddedRun: TypeAlias = RunView | PlainAdd
"""A run as a bookie stores it."""


def take_short_adds(data: memoryview, at: int) -> tuple[list[bytes], int]:
    """The frames of ADDs that begin at a place one after another, whole and short; and where the rest begins."""
    frames: list[bytes] = []
    end = len(data)
    while end - at >= REQUEST_BYTES and data[at + 4] == _ADD:
        size = 4 + int.from_bytes(data[at : at + 4], "big")
        if size > SHORT_BYTES_MAX or size > end - at:
            break
        frames.append(bytes(data[at : at + size]))
        at += size
    return frames, at


def plain_add(frame: bytes) -> PlainAdd | None:
    """The ADD in a whole frame, length field included; None: it is another request, or something is wrong with it."""
    if len(frame) < _BYTES_MIN:
        return None
    (
        _, kind, digest_type, flags, number, _, ledger_id, token, key, term, lac, lafr, body_crc, reserved, head_crc,
    ) = REQUEST.unpack_from(frame)  # fmt: skip
    body = frame[REQUEST_BYTES:]
    (
        version, scheme, run_digest, period, count, run_ledger, first, last, residues, origin_term, table_crc, run_crc,
    ) = RUN_HEADER.unpack_from(body)  # fmt: skip
    if (
        kind != _ADD
        or (flags and flags != _RECOVERY)
        or term
        or origin_term
        or scheme
        or period != 1
        or residues != 1
        or version != RUN_VERSION
        or run_ledger != ledger_id
        or run_digest != digest_type
        or digest_type > _DIGEST_TYPE_MAX
        or ledger_id < 0
        or not 0 <= first <= last <= ID_MAX
        or count != last - first + 1
        or not lac >= NO_ENTRY
        or (lac >= last and not flags)
        or lafr < NO_ENTRY
        or key == _NO_KEY
        or reserved != _RESERVED
        or head_crc != crc32c(frame[:_HEADER_END])
        or body_crc != crc32c(body)
    ):
        return None
    if count == 1:
        table = body[RUN_HEADER_BYTES:_ENTRY_AT]
        if (
            int.from_bytes(table, "big") != len(body) - _ENTRY_AT
            or table_crc != crc32c(table)
            or run_crc != crc32c(body[:_RUN_HEADER_END])
            or HEADER.unpack_from(body, _ENTRY_AT)[:2] != (ledger_id, first)
        ):
            return None
    else:
        try:
            RunView.parse_sent(body)
        except MalformedFrameError:
            return None
    # Half the time of a call of `PlainAdd`, which every add would pay.
    return tuple.__new__(
        PlainAdd,
        (number, flags, ledger_id, token, key, lac, digest_type, body_crc, body, first, last, count),
    )
