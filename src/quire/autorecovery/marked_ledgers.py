"""The marked ledgers of a cluster as one worker has listed them: what their marks say, and the versions by which they are removed.

A mark is removed by the version that was listed, so that what was marked since stays, and is listed next time. Marks that
cannot be read are named in the log once, and kept.

Source: docs/protocol/repair-queue.md; docs/formats/metadata.md, "Under-replicated marks".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from crc32c import crc32c

from quire.core.errors import CorruptMetadataError, NoSuchLedgerError, QuireError
from quire.core.ids import BookieId, LedgerId
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.repair.under_replicated_marks import (
    ANY_BOOKIE,
    LedgerRepairs,
    MarkReason,
    marked_through,
)
from quire.core.repair.work_queue import QueuedMark, queued_mark
from quire.metadata.records import AllRecords
from quire.metadata.repairs import RepairStore, Stored
from quire.metadata.store import LIST_LIMIT
from quire.wire.repair_records import encode_repairs
from quire.wire.underreplication import MissingBookies

READS_MAX: Final = 64
"""Most records that are read at the same time."""
M = TypeVar("M")
_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ListedMarks:
    """The marks of one ledger as they were listed.

    Attributes:
        missing: BookKeeper's, without what it says.
        own: Quire's, or what an earlier attempt left, without what it says.
        digest: another number when the marks have other contents; 0: they say nothing.
        bookies: the bookies that they name.
        lost: of those, the ones that were lost when they were named.
        through: as `marked_through` of Quire's.
        made: another number when they were made again, perhaps saying the same; what an attempt left does not count.
    """

    missing: Stored[MissingBookies] | None
    own: Stored[LedgerRepairs] | None
    digest: int
    bookies: tuple[BookieId, ...]
    lost: tuple[BookieId, ...] = ()
    through: int = -1
    made: int = 0

    @property
    def revisions(self) -> tuple[int, int]:
        """Of both marks in the store; 0 where there is none."""
        return self.missing.revision if self.missing else 0, self.own.revision if self.own else 0


class MarkedLedgers:
    """The ledgers that are marked for repair, as one worker has listed them.

    Args:
        marks: the cluster's marks.
        records: of ledgers and streams, which say how urgent a mark is.

    Attributes:
        listed: the marks of each ledger that has some.
        enabled: whether auto-recovery was switched on at the last listing.
    """

    def __init__(self, marks: RepairStore, records: AllRecords) -> None:
        self._marks, self._records = marks, records
        self.listed: dict[int, ListedMarks] = {}
        self.enabled = False
        self._found: dict[int, ListedMarks] = {}
        self._new: list[int] = []
        # New ledgers that were not offered yet: a listing that failed leaves them to the next one.
        self._pending: dict[int, None] = {}
        # Marks that were removed: a listing that was on its way shows them still.
        self._removed: dict[int, tuple[int, int]] = {}
        self._flaws: dict[tuple[int, bool], int] = {}
        self._looked_at: dict[int, ListedMarks | None] = {}

    async def refresh(
        self, offer: Callable[[int, QueuedMark], None], go_on: Callable[[], Awaitable[None]]
    ) -> list[int]:
        """List all marks, and read the records of ledgers whose marks are new or say something else.

        Args:
            offer: is called with each of these.
            go_on: is awaited after some of them.

        Returns:
            The ledgers that have no marks any more.

        Raises:
            QuireError: the metadata store does not respond; what was offered stands, and the next call offers the rest.
        """
        removed_before = list(self._removed)
        self.enabled = await self._marks.is_enabled()
        self._found, self._new = {}, []
        own = {ledger_id: stored async for ledger_id, stored in every_mark(self._marks.marks_page)}
        async for ledger_id, missing in every_mark(self._marks.missing_page):
            self._take(ledger_id, missing, own.pop(ledger_id, None))
            if len(self._new) >= LIST_LIMIT:
                await self._offer(offer, go_on)
        for ledger_id, stored in own.items():
            self._take(ledger_id, None, stored)
        await self._offer(offer, go_on)
        removed = [each for each in self.listed if each not in self._found]
        for each in removed:
            self._looked_at.pop(each, None)
        self.listed = self._found
        self._pending.clear()
        for each in removed_before:
            self._removed.pop(each, None)
        for each, marks in list(self.listed.items()):
            if not marks.digest and marks.missing is None and marks.own is not None:
                await self.remove(each)  # what attempts left of a mark that another program removed
        return removed

    def looks_at(self, ledger_id: int) -> ListedMarks | None:
        """A repair begins: the marks as they are now are those that `remove` removes. None: there are none."""
        marks = self._looked_at[ledger_id] = self.listed.get(ledger_id)
        return marks

    async def remove(self, ledger_id: int) -> bool:
        """Remove the marks of a ledger as they were when its repair began; False if they were changed since, or may not be removed.

        What was marked since stays, and is listed again.
        """
        marks = (
            self._looked_at.pop(ledger_id, None) or self.listed.get(ledger_id) or self._found.get(ledger_id)
        )
        self.listed.pop(ledger_id, None)
        self._found.pop(ledger_id, None)
        if marks is None:
            return True
        done = True
        # Before they go: a listing that is on its way may have read them.
        self._removed[ledger_id] = marks.revisions
        try:
            if marks.missing is not None:
                done = await self._marks.remove_missing(ledger_id, marks.missing)
            if marks.own is not None:
                done = await self._marks.remove_marks(ledger_id, marks.own) and done
        except QuireError as error:
            _LOG.warning("the marks of ledger %d cannot be removed: %s", ledger_id, error)
            self._removed.pop(ledger_id, None)
            return False
        return done

    # --- inside ---------------------------------------------------------------------------------------------------

    def _take(
        self,
        ledger_id: int,
        missing: Stored[MissingBookies] | None,
        own: Stored[LedgerRepairs] | None,
    ) -> None:
        """Take in what was listed of one ledger."""
        marks = ListedMarks(
            None if missing is None or missing.mark is None else replace(missing, mark=None),
            None if own is None or own.mark is None else replace(own, mark=None),
            *self._digest(ledger_id, missing, own),
            -1 if own is None or own.mark is None else marked_through(own.mark.marks),
            _made(missing, own),
        )
        if self._removed.get(ledger_id) == marks.revisions:
            return
        before = self.listed.get(ledger_id)
        self._found[ledger_id] = self.listed[ledger_id] = marks
        is_news = before is None or (before.digest, before.made) != (marks.digest, marks.made)
        if marks.digest and (is_news or ledger_id in self._pending):
            self._pending[ledger_id] = None
            self._new.append(ledger_id)

    def _digest(
        self, ledger_id: int, missing: Stored[MissingBookies] | None, own: Stored[LedgerRepairs] | None
    ) -> tuple[int, tuple[BookieId, ...], tuple[BookieId, ...]]:
        """A number for what marks say, the bookies that they name, and those as lost; what cannot be read says nothing."""
        text, bookies, lost = b"", dict[BookieId, None](), dict[BookieId, None]()
        for stored in (missing, own):
            if stored is not None and stored.flaw is not None:
                self._name(ledger_id, stored, stored is missing)
        if missing is not None and missing.mark is not None:
            text += repr((missing.mark.bookies, missing.mark.marked_ms)).encode()
            lost |= dict.fromkeys(missing.mark.bookies)
        if own is not None and own.mark is not None and own.mark.marks:
            said = tuple(replace(mark, seen_ms=0, seen_by="", record_version=0) for mark in own.mark.marks)
            text += encode_repairs(LedgerRepairs(said), ledger_id)
            lost |= dict.fromkeys(mark.bookie for mark in own.mark.marks if mark.reason is MarkReason.GONE)
            bookies |= dict.fromkeys(mark.bookie for mark in own.mark.marks if mark.bookie)
        lost.pop(ANY_BOOKIE, None)
        return (crc32c(text) | 1 << 32) if text else 0, tuple(lost | bookies), tuple(lost)

    def _name(self, ledger_id: int, stored: Stored[Any], is_bookkeepers: bool) -> None:
        """Say that a mark cannot be read, once."""
        where = ledger_id, is_bookkeepers
        if self._flaws.get(where) != stored.revision:
            self._flaws[where] = stored.revision
            _LOG.warning("a mark cannot be read, is kept, and is not acted on: %s", stored.flaw)

    async def _offer(
        self, offer: Callable[[int, QueuedMark], None], go_on: Callable[[], Awaitable[None]]
    ) -> None:
        """Hand on the ledgers whose marks are new, each with how urgent it is."""
        new, self._new = self._new, []
        for start in range(0, len(new), READS_MAX):
            some = new[start : start + READS_MAX]
            records = await asyncio.gather(*map(self._record, some))
            for ledger_id, record in zip(some, records, strict=True):
                self._pending.pop(ledger_id, None)
                if (marks := self._found.get(ledger_id)) is not None:
                    offer(ledger_id, queued_mark(marks.digest, record, marks.bookies, marks.made))
            await go_on()

    async def _record(self, ledger_id: int) -> LedgerMetadata | None:
        try:
            return (await self._records.read(ledger_id))[0]
        except (NoSuchLedgerError, CorruptMetadataError):
            return None  # its repair finds out which, and says so


def _made(missing: Stored[MissingBookies] | None, own: Stored[LedgerRepairs] | None) -> int:
    """See `ListedMarks.made`."""
    marks = () if own is None or own.mark is None else own.mark.marks
    seen = [(mark.seen_ms, mark.record_version, mark.seen_by) for mark in marks]
    return crc32c(repr((0 if missing is None else missing.revision, seen)).encode())


async def every_mark(
    page_of: Callable[[int | None], Awaitable[Sequence[tuple[LedgerId, Stored[M]]]]],
) -> AsyncIterator[tuple[LedgerId, Stored[M]]]:
    """The marks of one kind, page by page."""
    after: int | None = None
    while True:
        page = await page_of(after)
        for each in page:
            yield each
        if len(page) < LIST_LIMIT:
            return
        after = page[-1][0]
