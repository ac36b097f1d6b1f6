"""Tables of machines: which input may take a machine from which state to which.

A row holds `state state > state state; ...`: on the left states in which the input acts, on the right those that it may
lead to; `=` is the state itself. In every other state the input changes nothing, or is refused where the table says so.
The state diagrams of docs/protocol are drawn from these tables, and tests compare them with what the machines do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Generic, TypeVar

S = TypeVar("S", bound=Enum)


class Transitions(Generic[S]):
    """The table of one machine.

    Args:
        states: its states; rows name them by their values.
        rows: a row for each input.
        refused: inputs that raise where they do not act.

    Attributes:
        rows: for each input and each state in which it acts, the states that it may lead to.
    """

    def __init__(
        self, states: type[S], rows: Mapping[str, str], refused: frozenset[str] = frozenset()
    ) -> None:
        self.states = states
        self.refused = refused
        self.rows: dict[str, dict[S, frozenset[S]]] = {name: self._row(text) for name, text in rows.items()}
        self._pairs = {
            (old, new) for row in self.rows.values() for old, after in row.items() for new in after
        }

    def _row(self, text: str) -> dict[S, frozenset[S]]:
        row = {}
        for part in text.split(";"):
            before, after = (side.split() for side in part.split(">"))
            for old in before:
                row[self.states(old)] = frozenset(self.states(old if new == "=" else new) for new in after)
        return row

    def edges(self) -> Iterator[tuple[str, S, S]]:
        """(input, state, state that it may lead to), in the order of the rows."""
        for name, row in self.rows.items():
            for old, after in row.items():
                yield from ((name, old, new) for new in sorted(after, key=lambda state: str(state.value)))

    def acts(self, name: str, state: S) -> bool:
        """Whether an input acts in a state."""
        return state in self.rows[name]

    def moved(self, old: S, new: S) -> S:
        """The new state, asserted to be one that some input leads to from the old one."""
        assert (old, new) in self._pairs, f"no input leads from {old.value} to {new.value}"
        return new
