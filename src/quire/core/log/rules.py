"""The rules of a log: its leader, its list, what may be cleared of it.

Source: BookKeeper ledgers to logs.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.rules import RuleSet


class LogRules(RuleSet):
    """What leaders of a log, and who clears it, go by."""

    @staticmethod
    def ledgers_to_fence(ledger_ids: Sequence[int], open_ids: Sequence[int]) -> list[int]:
        """The document: "fence the last 2 ledgers in the list"; and every ledger that the list calls open."""
        last_two = ledger_ids[-2:]
        return [ledger_id for ledger_id in ledger_ids if ledger_id in last_two or ledger_id in open_ids]

    @staticmethod
    def may_roll(open_items: int) -> bool:
        """No second roll before the previous ledger is closed: fencing two would no longer be enough."""
        return open_items <= 1

    @staticmethod
    def unlisted_is_garbage(unlisted_ms: int, grace_ms: int) -> bool:
        """A leader lists what it has created within the grace time, or never."""
        return unlisted_ms >= grace_ms

    @staticmethod
    def staged_is_garbage(*, log_gone: bool, replayed: bool, age_ms: int | None, grace_ms: int) -> bool:
        """What a sink staged is kept as long as its batch may be committed: not after another attempt's commit of it."""
        return log_gone or replayed or (age_ms is not None and age_ms >= grace_ms)


RULES = LogRules()
