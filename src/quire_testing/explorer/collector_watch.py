"""What must hold in every state of a collector's world: G1 to G3, by the names and texts of `invariants.COLLECTOR_INVARIANTS`.

Each of them is about a step, so the world notes what broke where it happens.

Source: docs/protocol/collection.md; docs/counterexamples.md, "What must hold".
"""

from __future__ import annotations

from quire_testing.explorer.collector_parts import CollectorState
from quire_testing.explorer.invariants import COLLECTOR_INVARIANTS, Violation


class CollectorWatch:
    """Looks at states of a collector's world."""

    def __init__(self, names: tuple[str, ...] = tuple(COLLECTOR_INVARIANTS)) -> None:
        self._names = frozenset(names)

    def __call__(self, state: CollectorState) -> Violation | None:
        """The first violation in a state, if there is one that is looked for."""
        return next((Violation(*fault) for fault in state.faults if fault[0] in self._names), None)
