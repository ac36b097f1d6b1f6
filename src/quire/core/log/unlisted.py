"""Which of the things that crashes left of logs may be cleared: unlisted ledgers and pages, and unfinished intents.

A thing goes when it was unlisted at one look and, a grace time later, at every look until another one: a leader that has
created a ledger and not listed it yet has that long. A ledger that a sink *staged*, wrote for a batch that is
not committed yet, goes sooner where it cannot be committed any more. The deletion itself requires the list that was
looked at.

Source: docs/decisions/019-paged-list.md; docs/spark-sink.md, "Garbage".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from quire.core.log.rules import RULES, LogRules

Thing: TypeAlias = int | str
"""A ledger's id, or the key of a page or of an intent."""


class LogGarbage:
    """What one collector has seen so far.

    Args:
        grace_ms: how long a thing must have been unlisted.
        rules: the protocol's rules (`core/rules.py`).
    """

    __slots__ = ("_grace_ms", "_rules", "_since")

    def __init__(self, grace_ms: int, rules: LogRules = RULES) -> None:
        self._grace_ms = grace_ms
        self._rules = rules
        self._since: dict[Thing, int] = {}

    @property
    def suspected(self) -> int:
        """How many things are unlisted and not cleared."""
        return len(self._since)

    def looked(self, unlisted: Iterable[Thing], now_ms: int) -> set[Thing]:
        """One look at everything; whatever was listed since the last one begins anew.

        Returns:
            What may be cleared now.
        """
        self._since = {thing: self._since.get(thing, now_ms) for thing in unlisted}
        over = self._rules.unlisted_is_garbage
        return {thing for thing, since in self._since.items() if over(now_ms - since, self._grace_ms)}

    def staged_is_over(self, *, log_gone: bool, replayed: bool, age_ms: int | None) -> bool:
        """Whether an unlisted ledger that a sink staged may go at once.

        Args:
            log_gone: its log was deleted; ids of logs are never used again.
            replayed: the sink position of its query has reached its batch.
            age_ms: since it was created; None where its record does not say.
        """
        rule, grace_ms = self._rules.staged_is_garbage, self._grace_ms
        return rule(log_gone=log_gone, replayed=replayed, age_ms=age_ms, grace_ms=grace_ms)

    def cleared(self, things: Iterable[Thing]) -> None:
        """These are deleted."""
        for thing in things:
            self._since.pop(thing, None)
