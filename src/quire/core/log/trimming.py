"""Truncating and deleting a log: the list first, with the intent in the same compare-and-swap, the ledgers after it.

Any client may do it, while a leader writes: it is one change of the head that the leader merges. Wherever it stops, the
intent stays in the head, and the next machine that runs carries it out; so a crash leaves no orphans. The machine must
not know stores; the driver is `log/trimming.py`.

    IDLE -> READING -> STORING -> DELETING -> CLEARING -> READING ... -> ENDED

Source: docs/protocol/log.md; docs/decisions/022-truncation-intent.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, TypeAlias

from quire.core.errors import MisuseError, PastEndError
from quire.core.ids import LedgerId
from quire.core.log.cas import HeadCas
from quire.core.log.effects import ReadHead, WriteHead
from quire.core.log.list import Intent, IntentKind, LogHead, LogItem, LogPage, PageRef
from quire.core.state_table import StateTable


class TrimStatus(Enum):
    """Where a truncation is. CLEARING: the intent that is carried out is removed, or the record of a deleted log."""

    IDLE = "idle"
    READING = "reading"
    STORING = "storing"
    DELETING = "deleting"
    CLEARING = "clearing"
    ENDED = "ended"


TRIM: Final = StateTable(
    TrimStatus,
    {
        "start": "idle > reading",
        "head_read": "reading > storing deleting clearing ended",
        "head_written": "storing clearing > deleting clearing ended",
        "head_conflicted": "storing clearing > reading",
        "ledger_deleted": "deleting > deleting clearing",
        "page_read": "deleting > deleting clearing",
        "page_deleted": "deleting > deleting clearing",
        "log_deleted": "clearing > ended",
    },
    refused=frozenset({"start"}),
)
"""Which input does what in which status."""


class TrimOutcome(Enum):
    """How a truncation or a deletion of a log ended."""

    DONE = "done"
    NO_SUCH_LOG = "no_such_log"
    PAST_END = "past_end"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class TrimReadPage:
    """Read a page; answer `page_read` (None: it is deleted already)."""

    page: PageRef


@dataclass(frozen=True, slots=True)
class TrimDeleteLedger:
    """Delete an item's ledger, fencing it first if it is open; a missing one is deleted. Answer `ledger_deleted`."""

    item: LogItem


@dataclass(frozen=True, slots=True)
class TrimDeletePage:
    """Delete a page's record; a missing one is deleted. Answer `page_deleted`."""

    page: PageRef


@dataclass(frozen=True, slots=True)
class TrimDeleteLog:
    """Delete the head and the name: nothing else of the log is left. Answer `log_deleted`."""


@dataclass(frozen=True, slots=True)
class TrimEnded:
    """The truncation, or the deletion, has ended."""

    outcome: TrimOutcome
    detail: str = ""


TrimEffect: TypeAlias = (
    ReadHead | WriteHead | TrimReadPage | TrimDeleteLedger | TrimDeletePage | TrimDeleteLog | TrimEnded
)


class TrimMachine:
    """One truncation or deletion. Use a new machine for the next one.

    Args:
        before: the new start of the log; None to delete the log; -1 only to carry out what others left.
        end: the log's end as the caller knows it, confirmed records of the open ledger included.
        now_ms: wall time, noted in the intent.
    """

    __slots__ = (
        "_before",
        "_cas",
        "_end",
        "_intent",
        "_now_ms",
        "_page",
        "_pages",
        "_waiting",
        "out",
        "status",
    )

    def __init__(self, before: int | None, *, end: int = 0, now_ms: int = 0) -> None:
        self._before = before
        self._end = end
        self._now_ms = now_ms
        self.status = TrimStatus.IDLE
        self.out: list[TrimEffect] = []
        self._cas: HeadCas[LogHead, int] = HeadCas(-1)
        self._intent: Intent | None = None
        # Pages still to be read, deepest first: memory is bounded by one page a level.
        self._pages: list[PageRef | _Finish] = []
        self._page: PageRef | None = None
        self._waiting: list[LedgerId] = []

    def start(self) -> None:
        """Begin. Effects: ReadHead."""
        assert TRIM.acts["start"][self.status]
        self._read()

    def head_read(self, head: LogHead | None, version: int) -> None:
        """The head as it is now.

        Effects:
            WriteHead with the new start and the intent; or, when that is in, the first step of an intent.
        """
        if not TRIM.acts["head_read"][self.status]:
            return
        if head is None:
            # A deletion that another client ended is done; any other intent has no log left.
            self._finish(TrimOutcome.DONE if self._before is None else TrimOutcome.NO_SUCH_LOG)
            return
        self._cas.found(head, version)
        try:
            wanted = self._wanted(head)
        except (PastEndError, MisuseError) as error:
            past = isinstance(error, PastEndError)
            self._finish(TrimOutcome.PAST_END if past else TrimOutcome.REFUSED, str(error))
            return
        if wanted is head:
            self._next_intent()
        else:
            self._write(wanted, TrimStatus.STORING)

    def _wanted(self, head: LogHead) -> LogHead:
        if self._before is None:
            return head.with_deletion(self._now_ms)
        if self._before < 0 or head.is_being_deleted:
            return head
        return head.with_truncation(self._before, self._end, self._now_ms)

    def head_written(self, version: int) -> None:
        """The compare-and-swap is done: the intent stands, or is removed."""
        if TRIM.acts["head_written"][self.status] and self._cas.awaits("written"):
            self._cas.written(version)
            self._next_intent()

    def head_conflicted(self) -> None:
        """The compare-and-swap was lost or its response was: read again, whatever is in stays in."""
        if TRIM.acts["head_conflicted"][self.status] and self._cas.awaits("written"):
            self._read()

    def _next_intent(self) -> None:
        head, self._cas.wanted = self._cas.value, None
        assert head is not None
        if not head.intents:
            self._finish(TrimOutcome.DONE)
            return
        self._to(TrimStatus.DELETING)
        self._intent = head.intents[0]
        self._pages = list(reversed(self._intent.pages))
        self._page = None
        self._delete(self._intent.items)

    def _delete(self, items: tuple[LogItem, ...]) -> None:
        self._waiting = [item.ledger_id for item in items]
        self.out += [TrimDeleteLedger(item) for item in items]
        if not items:
            self._items_deleted()

    def ledger_deleted(self, ledger_id: LedgerId) -> None:
        """A ledger is deleted. Effects: after the last of a page the page's own end, then the next page."""
        if TRIM.acts["ledger_deleted"][self.status] and ledger_id in self._waiting:
            self._waiting.remove(ledger_id)
            if not self._waiting:
                self._items_deleted()

    def _items_deleted(self) -> None:
        """A page goes after its ledgers: a crash between them finds the page, and them missing, again."""
        page, self._page = self._page, None
        assert self._intent is not None
        if page is not None and self._intent.covers(page):
            self.out.append(TrimDeletePage(page))
        else:
            self._next_page()

    def page_deleted(self, name: str) -> None:
        """A page is deleted."""
        del name
        if TRIM.acts["page_deleted"][self.status]:
            self._next_page()

    def _next_page(self) -> None:
        if not self._pages:
            self._intent_done()
            return
        page = self._pages.pop()
        if isinstance(page, _Finish):
            self._page = page.page
            self._items_deleted()
        else:
            self._page = page
            self.out.append(TrimReadPage(page))

    def page_read(self, page: LogPage | None) -> None:
        """A page of the intent, or None when it is deleted already.

        Effects:
            TrimDeleteLedger for its items; or TrimReadPage for the pages below it that reach under the new start.
        """
        if not TRIM.acts["page_read"][self.status] or self._page is None:
            return
        assert self._intent is not None
        intent = self._intent
        if page is None:
            self._page = None
            self._next_page()
        elif page.children:
            below = [
                child for child in page.children if intent.covers(child) or child.first_offset < intent.before
            ]
            self._pages.append(_Finish(self._page))
            self._pages += reversed(below)
            self._page = None
            self._next_page()
        else:
            self._delete(tuple(item for item in page.items if intent.still_to_delete(item)))

    def _intent_done(self) -> None:
        head = self._cas.value
        assert head is not None
        assert self._intent is not None
        if self._intent.kind is IntentKind.DELETE:
            self._to(TrimStatus.CLEARING)
            self.out.append(TrimDeleteLog())
        else:
            self._write(head.without_intent(self._intent), TrimStatus.CLEARING)

    def log_deleted(self) -> None:
        """Head and name are deleted."""
        if TRIM.acts["log_deleted"][self.status]:
            self._finish(TrimOutcome.DONE)

    def _to(self, status: TrimStatus) -> None:
        self.status = TRIM.moved[self.status, status]

    def _read(self) -> None:
        self._to(TrimStatus.READING)
        self._cas.read()
        self.out.append(ReadHead())

    def _write(self, head: LogHead, status: TrimStatus) -> None:
        self._to(status)
        made = replace(head, generation=head.generation + 1)
        self._cas.write(made)
        self.out.append(WriteHead(made, self._cas.version))

    def _finish(self, outcome: TrimOutcome, detail: str = "") -> None:
        self._to(TrimStatus.ENDED)
        self.out.append(TrimEnded(outcome, detail))

    def check(self) -> None:
        """Assert what must hold between inputs."""
        if self.status is TrimStatus.DELETING:
            assert self._cas.value is not None
            assert self._intent in self._cas.value.intents, "deleting without an intent in the head"
        if self._intent is not None and self._intent.kind is IntentKind.TRUNCATE:
            assert all(not item.is_open for item in self._intent.items), "an open item is never truncated"


@dataclass(frozen=True, slots=True)
class _Finish:
    """A marker in the work list: all pages below this one are done."""

    page: PageRef
