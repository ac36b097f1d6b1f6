"""What a leader's machine wants done, the requests for the head that others have too, and the changes of the list.

Effects are data; `log/leader.py` carries them out. A change knows how to apply itself to any head and how to find
itself in one: so a lost response, or another party's change in between, is settled by reading the head again.

Source: BookKeeper ledgers to logs, "Opening a log", "Rolling ledgers"; docs/decisions/017-leader-epoch.md;
docs/decisions/020-next-ledger-waits.md; docs/decisions/021-batch-header.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from quire.core.ids import LedgerId
from quire.core.log.list import Leader, LedgerSummary, LogHead, LogItem, LogPage


class EndReason(Enum):
    """Why a log's handle ended. ABANDONED: stopped at once; the next opener recovers what is open."""

    CLOSED = "closed"
    ABANDONED = "abandoned"
    NOT_LEADER = "not_leader"
    NO_SUCH_LOG = "no_such_log"
    RECOVERY_FAILED = "recovery_failed"
    CREATE_FAILED = "create_failed"
    LEDGER_FAILED = "ledger_failed"
    CORRUPT = "corrupt"


# --- effects --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadHead:
    """Read the head, for a rewrite also all items of its pages; answer `head_read`."""


@dataclass(frozen=True, slots=True)
class RecoverLedger:
    """Fence and close this item's ledger; answer `recovered` with what it holds, or `recovery_failed`."""

    item: LogItem


@dataclass(frozen=True, slots=True)
class CreateLedger:
    """Create a ledger that carries this log's id; answer `created` or `create_failed`."""


@dataclass(frozen=True, slots=True)
class WriteHead:
    """Store the pages, then replace the head at `version`; answer `head_written`, `head_conflicted`, `head_unknown`.

    A machine without `head_unknown` is told of a conflict then. A rewrite's new ledgers must be there still.
    """

    head: LogHead
    version: int
    pages: tuple[LogPage, ...] = ()


@dataclass(frozen=True, slots=True)
class DeleteLedger:
    """Delete a ledger that is in no log's list. No answer."""

    ledger_id: LedgerId


@dataclass(frozen=True, slots=True)
class BackOff:
    """Another leader came first: ask the election, wait with jitter; answer `retry` or `abandon`."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Serve:
    """Lead: send appends to this ledger, whose first record has this offset (None only in a mutant of the explorer)."""

    ledger_id: LedgerId
    first_offset: int | None
    epoch: int


@dataclass(frozen=True, slots=True)
class DrainLedger:
    """Send no more to this ledger; when all it was sent is confirmed, answer `drained`."""

    ledger_id: LedgerId


@dataclass(frozen=True, slots=True)
class SwitchLedger:
    """Send what waits, and all that follows, to this ledger (first offset: as in `Serve`)."""

    ledger_id: LedgerId
    first_offset: int | None


@dataclass(frozen=True, slots=True)
class CloseLedger:
    """Close this ledger; answer `ledger_closed` or `ledger_failed`."""

    ledger_id: LedgerId


@dataclass(frozen=True, slots=True)
class Rolled:
    """A roll is over; the former ledger is closed and listed so. `done` is False when no ledger could be made."""

    done: bool


@dataclass(frozen=True, slots=True)
class LeadershipEnded:
    """The handle has ended; it sends nothing any more."""

    reason: EndReason
    detail: str


Effect: TypeAlias = (
    ReadHead
    | RecoverLedger
    | CreateLedger
    | WriteHead
    | DeleteLedger
    | BackOff
    | Serve
    | DrainLedger
    | SwitchLedger
    | CloseLedger
    | Rolled
    | LeadershipEnded
)


# --- changes of the head --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListLedger:
    """Put the next ledger on the list."""

    item: LogItem

    def applied(self, head: LogHead) -> LogHead:
        """The head with it."""
        return head.with_item(self.item)

    def is_in(self, head: LogHead) -> bool:
        """Whether the head has it already."""
        return head.item(self.item.ledger_id) is not None


@dataclass(frozen=True, slots=True)
class CompleteLedger:
    """Call a ledger closed, with what it holds."""

    ledger_id: LedgerId
    summary: LedgerSummary

    def applied(self, head: LogHead) -> LogHead:
        """The head with it."""
        return head.with_completed(self.ledger_id, self.summary)

    def is_in(self, head: LogHead) -> bool:
        """Whether the head has it already, or has let the ledger go since."""
        item = head.item(self.ledger_id)
        return item is None or not item.is_open


@dataclass(frozen=True, slots=True)
class PlaceAdoptions:
    """Call the current ledger closed, place what was adopted after it, and put the next ledger on the list."""

    ledger_id: LedgerId
    summary: LedgerSummary
    item: LogItem

    def applied(self, head: LogHead) -> LogHead:
        """The head with it."""
        return head.with_completed(self.ledger_id, self.summary).with_adoptions_placed().with_item(self.item)

    def is_in(self, head: LogHead) -> bool:
        """Whether the head has it already."""
        return head.item(self.item.ledger_id) is not None


@dataclass(frozen=True, slots=True)
class Resign:
    """Give the lead back and place what waits for a closing leader."""

    epoch: int

    def applied(self, head: LogHead) -> LogHead:
        """The head with it."""
        return head.with_adoptions_placed().with_leader(Leader(self.epoch))

    def is_in(self, head: LogHead) -> bool:
        """Whether the head has it already."""
        return head.leader.epoch == self.epoch and not head.leader.holder


Change: TypeAlias = ListLedger | CompleteLedger | PlaceAdoptions | Resign
