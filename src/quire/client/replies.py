"""What one bookie said, as a client takes it.

Source: `docs/formats/native-protocol.md`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from quire.core.answers import Answer
from quire.core.errors import MalformedFrameError
from quire.core.ids import NO_ENTRY
from quire.wire import native
from quire.wire.native import AnswerFrame
from quire.wire.run import RunPlace, RunView

log = logging.getLogger(__name__)


@dataclass(slots=True)
class ReadReply:
    """What one bookie said about a range of entries; see `wire.native.RangeAnswer` for what is vouched.

    `places` holds runs that are still to be read where they lie; whoever gets a reply of `BookieClient` finds none.
    """

    answer: Answer
    runs: list[RunView] = field(default_factory=list)
    vouched_through: int = NO_ENTRY
    unknown: list[tuple[int, int]] = field(default_factory=list)
    lac: int = NO_ENTRY
    places: list[RunPlace] = field(default_factory=list)


@dataclass(slots=True)
class LacReply:
    """What one bookie said about how far a ledger is confirmed.

    `lac` is a hint without a digest; `explicit_lac` and `evidence` (an entry) carry theirs.
    """

    answer: Answer
    lac: int = NO_ENTRY
    explicit_lac: bytes = b""
    evidence: bytes = b""


def read_reply(frame: AnswerFrame, last: int) -> ReadReply:
    """The answer to a request for entries up to `last`; one that does not fit is BAD_DIGEST."""
    if frame.answer is Answer.NO_LEDGER:
        return ReadReply(frame.answer, vouched_through=last, lac=frame.lac)
    if frame.answer is not Answer.OK:
        return ReadReply(frame.answer, lac=frame.lac)
    try:
        entries = native.decode_entries(frame.body, placed=bool(frame.flags & native.PLACED))
    except MalformedFrameError as error:
        log.debug("an answer with entries of ledger %d does not fit: %s", frame.ledger_id, error)
        return ReadReply(Answer.BAD_DIGEST)
    return ReadReply(
        Answer.OK, entries.runs, entries.vouched_through, entries.unknown, frame.lac, entries.places
    )
