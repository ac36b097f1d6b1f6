"""What is recovered before a client takes a log: an opener's step 2, and a sink's takeover.

Source: BookKeeper ledgers to logs, "Opening a log"; docs/decisions/016-open-items-are-recovered.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from quire.core.ids import LedgerId
from quire.core.log.list import LedgerSummary, LogHead, LogItem
from quire.core.log.rules import LogRules


@dataclass(slots=True)
class Fencing:
    """The ledgers that are being recovered, and those that were: a fence holds for ever, so none needs it twice.

    Attributes:
        deleted_at: the version of the list that named a ledger that did not exist.
    """

    deleted_at: object = None
    recovered: dict[LedgerId, LedgerSummary] = field(default_factory=dict)
    waiting: tuple[LedgerId, ...] = ()

    def begin(self, heads: Iterable[LogHead], rules: LogRules) -> list[LogItem]:
        """The items to recover now: named by the rules, and not fenced yet."""
        items: list[LogItem] = []
        for head in heads:
            open_ids = [item.ledger_id for item in head.open_items]
            named = [head.item(each) for each in rules.ledgers_to_fence(head.ledger_ids, open_ids)]
            items += [item for item in named if item is not None and item.ledger_id not in self.recovered]
        self.waiting = tuple(item.ledger_id for item in items)
        return items

    def done(self, ledger_id: LedgerId, summary: LedgerSummary) -> bool:
        """A ledger is closed for good; whether it was the last."""
        self.waiting = tuple(each for each in self.waiting if each != ledger_id)
        self.recovered = {**self.recovered, ledger_id: summary}
        return not self.waiting

    def failed(self, *, deleted: bool, version: object) -> bool:
        """A ledger could not be closed; whether to read again: a truncation may have taken one that is deleted."""
        self.waiting = ()
        again = deleted and version != self.deleted_at
        if again:
            self.deleted_at = version
        return again

    def completed(self, head: LogHead) -> LogHead:
        """The list with the ends of what was recovered."""
        for item in head.open_items:
            if item.ledger_id in self.recovered:
                head = head.with_completed(item.ledger_id, self.recovered[item.ledger_id])
        return head
