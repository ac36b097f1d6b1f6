"""Plain ADDs of our own protocol, nearly all that a writer sends: request and run in one. `native_requests.plain_add` opens them.

Source: `docs/formats/native-protocol.md`; `docs/formats/run.md`.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from quire.core.ids import NO_ENTRY
from quire.wire.native import NO_KEY, Kind, Request
from quire.wire.run import RunView

SHORT_BYTES_MAX: Final = 8192
"""A longer frame has memory of its own, which is stored without a copy."""


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
    term: int
    origin_term: int
    lafr: int


class PlainAdd(_Fields):
    """An ADD of a run with consecutive ids, whose request has no flag but RECOVERY.

    It is the request and the run at once: it has the fields of both that a bookie decides and stores by.
    """

    __slots__ = ()

    kind = Kind.ADD
    period = 1
    stripes = 1


AddRequest: TypeAlias = Request | PlainAdd
"""An ADD as a bookie decides on it."""
AddedRun: TypeAlias = RunView | PlainAdd
"""A run as a bookie stores it."""
OrdinaryRun: TypeAlias = tuple[int, int, int, bytes, int, int, int, int, int]
"""A run of consecutive ids that a writer without a term sent, and that tells the bookie nothing new of its ledger (key,
token, digest): ledger id, token, LAC, body, checksum of the body, digest type, first and last id, count. Python's
collector does not look at such tuples."""


def add_of(run: OrdinaryRun) -> PlainAdd:
    """The same run, as what is stored alone."""
    ledger_id, token, lac, body, body_crc, digest_type, first, last, count = run
    return PlainAdd(
        0, 0, ledger_id, token, NO_KEY, lac, digest_type, body_crc, body, first, last, count, 0, 0, NO_ENTRY
    )
