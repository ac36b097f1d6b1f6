"""Requests of tools to bookies: what a bookie holds, its state, and that a ledger's limbo has ended.

Source: `docs/formats/native-protocol.md`.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, TypeVar

from quire.client.access import LedgerAccess
from quire.core.answers import Answer
from quire.core.ids import ID_MAX, BookieId
from quire.core.ledger.shares import HeldInterval
from quire.core.ledger.terms import NO_TERM
from quire.wire.native_bodies import WHOLE_LIST
from quire.wire.native_info import InfoQuestion, SpaceTask
from quire.wire.requests import AskInfo, BookieRequest, ClearLimbo, ListEntries, Truncate

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_MS = 10_000
LISTED_MAX: Final = 1 << 19
"""Intervals of one ledger that are listed; more are an error, so that memory stays bounded."""

R = TypeVar("R")


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


class Inquiries(ABC):
    """Questions over connections that a subclass makes."""

    @abstractmethod
    async def _request(self, bookie: BookieId, request: BookieRequest[R], timeout_ms: int) -> R:
        """The response."""

    async def probe(self, bookies: Iterable[BookieId], *, timeout_ms: int) -> dict[BookieId, Answer]:
        """What each of these bookies answers to a question for its state."""
        asked = list(bookies)
        replies = await asyncio.gather(*(self.info(bookie, timeout_ms=timeout_ms) for bookie in asked))
        return {bookie: answer for bookie, (answer, _) in zip(asked, replies, strict=True)}

    async def list_entries(
        self, bookie: BookieId, access: LedgerAccess, *, timeout_ms: int = REQUEST_TIMEOUT_MS
    ) -> tuple[Answer, list[HeldInterval]]:
        """The intervals that a bookie holds of a ledger, ascending; `timeout_ms` is for each page of them."""
        intervals: list[HeldInterval] = []
        following = 0
        while following != WHOLE_LIST:
            answer, page, following = await self._request(bookie, ListEntries(access, following), timeout_ms)
            if answer is not Answer.OK:
                return answer, []
            intervals += page
            if len(intervals) > LISTED_MAX:
                log.warning(
                    "ignoring the list of entries of bookie %s: the entries of ledger %d form more than %d intervals, "
                    "which is the limit of a list",
                    bookie, access.ledger_id, LISTED_MAX,
                )  # fmt: skip
                return Answer.ERROR, []
        return Answer.OK, intervals

    async def truncate(
        self,
        bookie: BookieId,
        access: LedgerAccess,
        first: int,
        last: int = ID_MAX,
        kept: int = NO_TERM,
        *,
        timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> Answer:
        """Let entries first..last of a stream go at a bookie: below the sender's term, or of any other than `kept`."""
        request = Truncate(access, first, last, kept, access.term)
        return (await self._request(bookie, request, timeout_ms)).answer

    async def info(
        self, bookie: BookieId, access: LedgerAccess | None = None, *, timeout_ms: int = REQUEST_TIMEOUT_MS
    ) -> tuple[Answer, dict[str, Any]]:
        """What a bookie says of itself, or of one ledger (`fenced`, `limbo`, `lac`, `last_entry`, …)."""
        return await self._request(bookie, AskInfo(access), timeout_ms)

    async def orphans(
        self, bookie: BookieId, after: int = -1, *, timeout_ms: int = REQUEST_TIMEOUT_MS
    ) -> tuple[Answer, Orphans | None]:
        """A page of the ledgers that it keeps without a record, above an id; None if its version has no such page."""
        answer, info = await self._request(
            bookie, AskInfo(question=InfoQuestion(orphans_after=after)), timeout_ms
        )
        try:
            told = info.get("orphans")
            if told is None:
                return answer, None
            unknown, due = ([int(one) for one in told[kind]] for kind in ("unknown", "due"))
            through = int(told["through"])
            return (answer, Orphans(unknown, due, through)) if through > after else (Answer.ERROR, None)
        except (AttributeError, KeyError, TypeError, ValueError):
            return Answer.ERROR, None

    async def space(
        self, bookie: BookieId, task: SpaceTask, *, timeout_ms: int = REQUEST_TIMEOUT_MS
    ) -> tuple[Answer, dict[str, Any]]:
        """What holds its space, after a task: `space`, `came_back` and `failure`; BAD_REQUEST where its version cannot say."""
        question = InfoQuestion(space=task)
        answer, info = await self._request(bookie, AskInfo(question=question), timeout_ms)
        # A bookie of Java says what it says of its disk.
        return (Answer.BAD_REQUEST, {}) if answer is Answer.OK and "came_back" not in info else (answer, info)

    async def clear_limbo(
        self, bookie: BookieId, access: LedgerAccess, lsn: int, *, timeout_ms: int = REQUEST_TIMEOUT_MS
    ) -> Answer:
        """End a ledger's limbo on a bookie: it holds again all entries that it should.

        Args:
            lsn: of the doubt that this ends, as INFO reported it before the entries were restored (`doubt_lsn`). If
                there was another loss since then, the response is BAD_REQUEST.
        """
        return (await self._request(bookie, ClearLimbo(access, lsn), timeout_ms)).answer
