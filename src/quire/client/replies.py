"""What one bookie said, as a client takes it.

Source: `docs/formats/native-protocol.md`.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass, field

from quire.client.access import LedgerAccess
from quire.core.answers import Answer
from quire.core.errors import DigestMismatchError, MalformedFrameError
from quire.core.ids import NO_ENTRY
from quire.core.ledger_metadata import DigestType
from quire.wire import native, native_bodies
from quire.wire.native import AnswerFrame
from quire.wire.run import RunPlace, RunView

log = logging.getLogger(__name__)


@dataclass(slots=True)
class ReadReply:
    """One bookie's response about a range of entries; `wire.native_bodies.RangeAnswer` says what is conclusive.

    `places` holds runs that are still to be read where they lie; the callers of `BookieClient` find none.
    `damaged`: those of `unknown` that were stored there and do not verify; this names them, and decides nothing.
    """

    answer: Answer
    runs: list[RunView] = field(default_factory=list)
    vouched_through: int = NO_ENTRY
    unknown: list[tuple[int, int]] = field(default_factory=list)
    lac: int = NO_ENTRY
    places: list[RunPlace] = field(default_factory=list)
    damaged: list[tuple[int, int]] = field(default_factory=list)
    lac_term: int = 0


@dataclass(slots=True)
class LacReply:
    """What one bookie said about how far a ledger is confirmed.

    `lac` is a hint without a digest; `explicit_lac` and `evidence` (an entry) carry theirs. `lac_term`: of the writer
    that sent the LAC; `lafr`: the last entry known to be on its full write quorum.
    """

    answer: Answer
    lac: int = NO_ENTRY
    explicit_lac: bytes = b""
    evidence: bytes = b""
    lac_term: int = 0
    lafr: int = NO_ENTRY

    def trusted_lac(self, access: LedgerAccess) -> int:
        """The highest LAC of this response that can be relied on.

        With a MAC only what carries a valid one counts; otherwise the frame's LAC counts too.

        Source: Vanlightly's guide, "Reading from ledgers": "Quorum LAC read"; `docs/formats/native-protocol.md`,
        READ_LAC.
        """
        lac = int(NO_ENTRY)
        if access.digest.digest_type is not DigestType.HMAC:
            lac = self.lac
        with contextlib.suppress(DigestMismatchError):
            if self.explicit_lac:
                lac = max(lac, access.digest.open_lac_body(self.explicit_lac, access.ledger_id))
        with contextlib.suppress(DigestMismatchError):
            if self.evidence:
                lac = max(lac, access.digest.open(self.evidence, access.ledger_id, None).last_add_confirmed)
        return lac


def read_reply(frame: AnswerFrame, last: int, version: int, *, placed: bool = False) -> ReadReply:
    """The response to a request for entries up to `last`, as a client takes it.

    Args:
        frame: the response; one that does not fit becomes BAD_DIGEST.
        last: the highest id that was asked for.
        version: of the protocol on this connection.
        placed: places of runs were asked for. Places that were not requested are an error: their runs would count as
            entries that the bookie does not hold.
    """
    if frame.answer is Answer.NO_LEDGER:
        return ReadReply(frame.answer, vouched_through=last, lac=frame.lac)
    if frame.answer is not Answer.OK:
        return ReadReply(frame.answer, lac=frame.lac)
    has_places = bool(frame.flags & native.PLACED)
    if has_places and not placed:
        log.debug(
            "a response with entries of ledger %d has file offsets that were not requested", frame.ledger_id
        )
        return ReadReply(Answer.BAD_DIGEST)
    try:
        entries = native_bodies.decode_entries(frame.body, version=version, placed=has_places)
    except MalformedFrameError as error:
        log.debug("ignoring a malformed response with entries of ledger %d: %s", frame.ledger_id, error)
        return ReadReply(Answer.BAD_DIGEST)
    return ReadReply(
        Answer.OK,
        entries.runs,
        entries.vouched_through,
        entries.unknown,
        frame.lac,
        entries.places,
        entries.damaged,
        entries.lac_term,
    )
