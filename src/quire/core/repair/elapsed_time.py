"""The time that a process sees elapse, in seconds: it is added up look by look, so that no clock that leaps ends a wait.

Source: docs/protocol/audit.md, "Lost bookies".
"""

from __future__ import annotations

from quire.core.repair.rules import RepairRules


class ElapsedTime:
    """Whole seconds between looks; what is less than a second counts at a later one, what is more than a tick never does.

    Args:
        tick_s: the most that one look adds.
        rules: the protocol's rules (`core/rules.py`).
    """

    __slots__ = ("_rules", "_seen_ms", "_tick_s")

    def __init__(self, tick_s: int, rules: RepairRules) -> None:
        self._tick_s, self._rules = tick_s, rules
        self._seen_ms: int | None = None

    def add(self, now_ms: int) -> int:
        """How many seconds to add at this time; none at the first look."""
        before = now_ms if self._seen_ms is None else self._seen_ms
        elapsed_s = (now_ms - before) // 1000
        added_s = self._rules.seconds_to_add(elapsed_s, self._tick_s)
        self._seen_ms = before + 1000 * added_s if added_s == elapsed_s else now_ms
        return added_s
