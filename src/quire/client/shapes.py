"""Bodies of requests that are laid out as the bookie's version asks, and lists that come in pages.

Source: `docs/formats/native-protocol.md`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from quire.core.answers import Answer
from quire.core.errors import MalformedFrameError
from quire.core.shares import HeldInterval
from quire.net.client_channel import Shape
from quire.wire import native_bodies, native_hello, native_info
from quire.wire.native import AnswerFrame
from quire.wire.native_bodies import ANY_TERM, PAGE_INTERVALS, WHOLE_LIST

LISTED_MAX: Final = 1 << 19
"""Intervals of one ledger that are listed; more are an error, so that memory stays bounded."""


def fixed(body: bytes) -> Shape:
    """A body that is the same in every version."""
    return lambda _version, _features: body


def read(first: int, last: int, bytes_max: int, origin_term: int = ANY_TERM) -> Shape:
    """The body of a READ; a bookie of version 1 cannot be asked for one origin term."""

    def shape(version: int, _features: int) -> bytes | None:
        if version == 1 and origin_term != ANY_TERM:
            return None
        return native_bodies.encode_read(first, last, bytes_max, origin_term, version=version)

    return shape


def long_poll(previous_lac: int, first: int, last: int, bytes_max: int, wait_ms: int) -> Shape:
    """The body of a LONG_POLL."""
    return lambda version, _features: native_bodies.encode_long_poll(
        previous_lac, first, last, bytes_max, wait_ms, version=version
    )


def page(first: int) -> Shape:
    """The body of a LIST_ENTRIES for the page from an id on."""
    return lambda version, _features: native_bodies.encode_list(first, PAGE_INTERVALS, version=version)


def end_of_doubt(lsn: int) -> Shape:
    """The body of a CLEAR_LIMBO."""
    return lambda version, _features: native_bodies.encode_clear_limbo(lsn, version=version)


def lacs(items: Sequence[bytes]) -> Shape:
    """The body of a WRITE_LACS of encoded items; only bookies that announce `LACS` take it."""
    return lambda _version, features: native_bodies.join_lacs(items) if features & native_hello.LACS else None


def orphans(after: int) -> Shape:
    """The body of an INFO that asks a bookie for ledgers without a record, those above an id."""
    return fixed(native_info.encode_info_question(after))


class Orphans(NamedTuple):
    """A page of the ledgers that a bookie keeps without a record, ascending.

    Attributes:
        unknown: there is no proof that they were deleted.
        due: they would be deleted if the bookie's collection were not held.
        through: the page covers all ids up to this; `ID_MAX` on the last one.
    """

    unknown: list[int]
    due: list[int]
    through: int


def orphans_of(frame: AnswerFrame) -> tuple[Answer, Orphans | None]:
    """A bookie's response; None from one that refused, or whose version has no such request."""
    if frame.answer is not Answer.OK:
        return frame.answer, None
    try:
        told = native_info.decode_info(frame.body).get("orphans")
        if told is None:
            return Answer.OK, None
        unknown, due = ([int(one) for one in told[kind]] for kind in ("unknown", "due"))
        return Answer.OK, Orphans(unknown, due, int(told["through"]))
    except (MalformedFrameError, AttributeError, KeyError, TypeError, ValueError):
        return Answer.ERROR, None


class HeldList:
    """What a bookie lists of a ledger, page after page.

    Attributes:
        intervals: of all pages so far, ascending by first id.
        following: the first id of the next page; `WHOLE_LIST` when there is none.
    """

    def __init__(self, ledger_id: int) -> None:
        self._ledger_id = ledger_id
        self.intervals: list[HeldInterval] = []
        self.following = 0

    @property
    def is_whole(self) -> bool:
        """Whether there is no further page."""
        return self.following == WHOLE_LIST

    def take(self, frame: AnswerFrame, version: int) -> None:
        """The page from `following` on has come.

        Raises:
            MalformedFrameError: it is another ledger's or out of order, does not fit, or the list is too long.
        """
        if frame.ledger_id != self._ledger_id:
            msg = (
                f"the response lists entries of ledger {frame.ledger_id}, but ledger "
                f"{self._ledger_id} was requested"
            )
            raise MalformedFrameError(msg, ledger_id=self._ledger_id)
        intervals, self.following = native_bodies.decode_held(frame.body, self.following, version=version)
        self.intervals += intervals
        if len(self.intervals) > LISTED_MAX:
            msg = (
                f"the entries of ledger {self._ledger_id} form more than {LISTED_MAX} intervals, "
                "which is the limit of a list"
            )
            raise MalformedFrameError(msg, ledger_id=self._ledger_id)
