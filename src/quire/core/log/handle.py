"""What a handle on a log knows, and the steps that its verbs share: one compare-and-swap at a time, changes, the end.

The verbs are in `log/opening.py`, `log/rolling.py` and `log/closing.py`; `log.py` gives them their inputs.

Source: BookKeeper ledgers to logs; docs/decisions/017-leader-epoch.md.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import Final

from quire.core.errors import CorruptMetadataError
from quire.core.ids import LedgerId
from quire.core.log.effects import (
    Change,
    DeleteLedger,
    Effect,
    EndReason,
    LeadershipEnded,
    ReadHead,
    WriteHead,
)
from quire.core.log.fencing import Fencing
from quire.core.log.list import (
    DEFAULT_LAYOUT,
    ItemFlags,
    Leader,
    LogHead,
    LogItem,
    PageLayout,
    PageNamer,
    paged,
)
from quire.core.log.roll import Roll, RollStep
from quire.core.log.rules import RULES, LogRules
from quire.core.log.swap import HeadSwap
from quire.core.state_table import StateTable


class LogStatus(Enum):
    """Where a handle is."""

    IDLE = "idle"
    READING = "reading"
    FENCING = "fencing"
    CREATING = "creating"
    SWAPPING = "swapping"
    BACKING_OFF = "backing_off"
    SERVING = "serving"
    CLOSING = "closing"
    ENDED = "ended"


LEADING: Final = (LogStatus.SERVING, LogStatus.CLOSING)

LOG: Final = StateTable(
    LogStatus,
    {
        "open": "idle > reading",
        "retry": "backing_off > reading",
        "head_read": "reading > fencing creating swapping ended;"
        "swapping > fencing swapping serving backing_off ended;"
        "serving > serving closing ended; closing > closing ended",
        "recovered": "fencing > fencing creating swapping",
        "recovery_failed": "fencing > reading ended",
        "created": "creating > swapping; idle reading fencing swapping backing_off serving closing ended > =",
        "create_failed": "creating > ended; serving > serving closing",
        "head_written": "swapping > serving; serving > serving closing; closing > closing ended",
        "head_conflicted": "swapping serving closing > =",
        "head_unknown": "swapping serving closing > =",
        "roll": "serving > =",
        "head_seen": "serving > =",
        "drained": "serving > =",
        "ledger_closed": "serving closing > =",
        "ledger_failed": "serving closing > ended",
        "close": "serving > serving closing",
        "abandon": "idle reading fencing creating swapping backing_off serving closing > ended",
    },
    refused=frozenset({"open", "roll", "close"}),
)
"""Which input does what in which status. A ledger that comes when it is not awaited is deleted."""


class HandleState:
    """The fields of a handle, and what must hold in them.

    Args:
        holder: names this handle and no other, ever.
        host: where it runs, for people.
        name_page: the name of a page, from its content.
        layout: when items move to pages.
        digest: BookKeeper's number of the digest of the ledgers that it makes.
        adopts: whether it places what others commit to the log while it leads; its driver calls `head_seen` then.
        rules: the judgements it works by.
    """

    __slots__ = (
        "_layout",
        "_name_page",
        "_seen",
        "attempt",
        "changes",
        "closing",
        "current",
        "current_offset",
        "digest",
        "ended",
        "epoch",
        "fencing",
        "me",
        "new",
        "out",
        "rolls",
        "rules",
        "served",
        "status",
        "swap",
    )

    def __init__(
        self,
        holder: str,
        *,
        name_page: PageNamer,
        host: str = "",
        layout: PageLayout = DEFAULT_LAYOUT,
        digest: int = 3,
        adopts: bool = False,
        rules: LogRules = RULES,
    ) -> None:
        self.me = Leader(0, holder, host, adopts)
        self._name_page = name_page
        self._layout = layout
        self.digest = digest
        self.rules = rules
        self.status = LogStatus.IDLE
        self.out: list[Effect] = []
        self.ended: LeadershipEnded | None = None
        self.epoch = 0
        self.current: LedgerId | None = None
        self.current_offset: int | None = None
        self.swap: HeadSwap[LogHead, int] = HeadSwap(-1)
        self.changes: list[Change] = []
        self.fencing = Fencing()
        self.rolls = Roll()
        # The ledger that was created and is not known to be in the list.
        self.new: LogItem | None = None
        self.attempt = 0
        self.served = False
        self.closing = False
        self._seen: dict[int, int] = {}

    @property
    def known(self) -> LogHead:
        """The newest head that was read or written; there is one as soon as a ledger may be fenced."""
        assert self.swap.value is not None
        return self.swap.value

    def to(self, status: LogStatus) -> None:
        """Go to another status."""
        self.status = LOG.moved[self.status, status]

    def read(self) -> None:
        """Ask for the head."""
        self.swap.read()
        self.out.append(ReadHead())

    def write(self, head: LogHead) -> None:
        """Ask for the compare-and-swap of the head."""
        head, pages = paged(replace(head, generation=head.generation + 1), self._layout, self._name_page)
        self.swap.write(head)
        self.out.append(WriteHead(head, self.swap.version, pages))

    def change(self, *changes: Change) -> None:
        """Have the head changed as soon as no other compare-and-swap is in flight."""
        self.changes += changes
        self.write_changes()

    def write_changes(self) -> None:
        """Write every change that waits, unless a compare-and-swap is in flight."""
        if self.changes and self.swap.awaits("write"):
            head = self.known
            for change in self.changes:
                head = change.applied(head)
            self.write(head)

    def surely_absent(self, head: LogHead, version: int) -> bool:
        """Whether the list does not hold the new ledger and never will.

        A compare-and-swap whose response is missing can still take effect while the version is the one that it names;
        and a list that was cut into pages or truncated since may hold, or have held, the ledger where this handle does
        not look. In doubt the ledger is left to the collector, which looks twice.
        """
        assert self.new is not None
        base = self.known
        alike = head.pages == base.pages and head.dropped_items == base.dropped_items
        return version != self.swap.version and alike and head.item(self.new.ledger_id) is None

    def delete_new(self) -> None:
        """Delete the new ledger: no list will name it."""
        if self.new is not None:
            self.out.append(DeleteLedger(self.new.ledger_id))
            self.new = None

    def end(self, reason: EndReason, detail: str) -> None:
        """The handle does nothing any more."""
        self.to(LogStatus.ENDED)
        self.ended = LeadershipEnded(reason, detail)
        self.new = None
        self.changes.clear()
        self.out.append(self.ended)

    def check(self) -> None:
        """Assert every invariant that one handle can see; tests and the checker call it after each input.

        Source: docs/counterexamples.md, "What must hold", L1 to L7: each line names the one that it is a part of.
        """
        head = self.swap.value
        if head is None:
            return
        try:
            head.checked()  # L2: dense offsets; L6: at most two open, the last ones
        except CorruptMetadataError as error:
            raise AssertionError(str(error)) from error
        # L4, L5: an item has one place for ever; the list grows at its end and shrinks at its front. Neighbours that
        # were copied into one ledger have the place of the last of them.
        for place, item in enumerate(head.items, head.first_item_place):
            if item.flags & ItemFlags.REWRITTEN:
                self._seen[place] = item.ledger_id
            known = self._seen.setdefault(place, item.ledger_id)
            assert known == item.ledger_id, f"L5: place {place} held ledger {known}, now {item.ledger_id}"
        assert head.start_offset <= head.closed_end or head.open_items, "the log starts behind its end"
        if self.status in LEADING:
            assert head.leader.epoch == self.epoch, "L3: serving under another epoch"
            assert self.current is not None
            current = head.item(self.current)
            assert current is not None, "L1: serving a ledger that the list does not hold"
            resigned = self.status is LogStatus.CLOSING and not current.is_open
            assert current.is_open or resigned, "L3: serving a ledger that the list calls closed"
            if current.first_offset is not None and self.current_offset is not None:
                assert current.first_offset == self.current_offset, "L2: two first offsets for one ledger"
        if self.rolls.step is RollStep.DRAINING:
            assert not self.rolls.switched or self.current_offset is not None, (
                "L7: sent before the former was confirmed"
            )
        if self.ended is not None:
            assert not self.changes, "an ended handle changes nothing"
