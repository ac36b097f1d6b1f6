"""One check of a window of a fragment's entries: of each bookie and entry whether the copy is there, absent, damaged or unknown.

| the copy | the answer |
|---|---|
| is there, and its digest is right | OK |
| is absent: the bookie says so conclusively | NO_ENTRY, NO_LEDGER |
| is damaged: the bookie says so, or its digest is wrong | DAMAGED, BAD_DIGEST |
| is unknown: an error is no negative | any other |

Copies are read. What a bookie only lists, without a look at the bytes, is the cheaper source of the same answers: a list
says "there" and "absent", and of a damaged copy neither (`client/repairing/replica_lists.py`).

Source: `docs/formats/native-protocol.md`, "Answers"; BookKeeper protocol, "Guarantees".
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from quire.client.access import LedgerAccess
from quire.client.bookies.bookies import BookieClient
from quire.client.reading.range_read import open_runs
from quire.core.answers import Answer
from quire.core.ids import BookieId
from quire.core.ledger.quorum import told_through
from quire.core.ledger.stripes import BookieStripes, Stretch
from quire.wire.entries import Entries
from quire.wire.native_bodies import ANY_TERM


@dataclass(frozen=True, slots=True)
class BookieCopies:
    """What one bookie says of its copies of a window.

    Attributes:
        entries: those that are there.
        answer: of all others if it is not OK; UNKNOWN too where the response is about none of them.
        through: the last entry that it is about.
    """

    entries: Entries
    answer: Answer
    through: int
    bad: Sequence[Stretch] = ()
    damaged: Sequence[Stretch] = ()
    unknown: Sequence[Stretch] = ()

    def answer_of(self, entry_id: int) -> Answer:
        """What the bookie says of an entry of the window."""
        return Answer.OK if entry_id in self.entries.entry_ids else self.why_not(entry_id)

    def why_not(self, entry_id: int) -> Answer:
        """What it says of one that is not among `entries`."""
        if self.answer is not Answer.OK:
            return self.answer
        for answer, some in (
            (Answer.BAD_DIGEST, self.bad),
            (Answer.DAMAGED, self.damaged),
            (Answer.UNKNOWN, self.unknown),
        ):
            if any(first <= entry_id <= last for first, last in some):
                return answer
        return Answer.NO_ENTRY if entry_id <= self.through else Answer.UNKNOWN


class CopyCheck:
    """Reads the copies of one ledger. A bookie that did not respond once is not waited for again.

    Args:
        bookies: the connections.
        access: the ledger's.
        bytes_max: of one response (one entry at least).
        timeout_ms: how long a bookie may take.
        low_priority: whether the bookies serve others first.

    Attributes:
        silent: bookies that did not respond, each with what is taken for its answer.
    """

    def __init__(
        self,
        bookies: BookieClient,
        access: LedgerAccess,
        bytes_max: int,
        timeout_ms: int,
        *,
        low_priority: bool = False,
    ) -> None:
        self._bookies, self._access, self._bytes_max = bookies, access, bytes_max
        self._timeout_ms, self._low_priority = timeout_ms, low_priority
        self.silent: dict[BookieId, Answer] = {}

    async def window(
        self, parts: Sequence[BookieStripes], first: int, last: int
    ) -> dict[BookieId, BookieCopies]:
        """What each bookie of a fragment says of the entries first..last.

        Args:
            parts: what each should hold. One that should hold none of these entries is not asked.
            first: the first entry.
            last: the last one.
        """
        asked = [part for part in (part.cut(first, last) for part in parts) if part.count]
        copies = await asyncio.gather(*map(self.read, asked))
        return {part.bookie: found for part, found in zip(asked, copies, strict=True)}

    async def read(self, part: BookieStripes) -> BookieCopies:
        """What one bookie says of what it should hold; one request."""
        first, last, access = part.first, part.last, self._access
        none = Entries.join(access.ledger_id, ())
        if part.bookie in self.silent:
            return BookieCopies(none, self.silent[part.bookie], last)
        reply = await self._bookies.read(
            part.bookie,
            access,
            first,
            last,
            self._bytes_max,
            origin_term=part.origin_term or ANY_TERM,
            low_priority=self._low_priority,
            timeout_ms=self._timeout_ms,
        )
        if reply.answer in {Answer.TIMED_OUT, Answer.UNREACHABLE}:
            self.silent[part.bookie] = reply.answer
        if reply.answer is not Answer.OK:
            # A response that cannot be taken apart says nothing about a copy.
            whole = Answer.ERROR if reply.answer is Answer.BAD_DIGEST else reply.answer
            return BookieCopies(none, whole, last)
        entries, bad, _ = open_runs(
            reply.runs, access, first, last, part.origin_term, no_ops=bool(part.origin_term)
        )
        ids, unknown = entries.entry_ids, reply.unknown + bad
        through = told_through(first, last, ids, reply.conclusive_through, unknown, part.stripes, part.period)
        if through < first:
            return BookieCopies(entries, Answer.UNKNOWN, last)
        return BookieCopies(entries, Answer.OK, through, bad, reply.damaged, reply.unknown)
