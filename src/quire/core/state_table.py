"""Tables of machines, and of their parts: what each input does in each state, and where that may lead.

A row holds `state state > state state; ...`: on the left states in which the input acts, on the right those that it may
lead to; `=` is the state itself. `state state > -`: there it is ignored and changes nothing. In all other states it is
refused, or ignored if the table refuses only some inputs. The state diagrams of docs/protocol are drawn from these
tables, and tests compare them with what the machines do.

Source: docs/protocol/README.md, "States and inputs".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from typing import Generic, TypeVar

from quire.core.errors import MisuseError

S = TypeVar("S", bound=Enum)


class _Takes(dict[S, bool]):
    """Whether one input acts in a state; looking up a state in which it is refused raises."""

    __slots__ = ("_name",)

    def __init__(self, name: str, found: Mapping[S, bool]) -> None:
        super().__init__(found)
        self._name = name

    def __missing__(self, state: S) -> bool:
        raise MisuseError(f"{type(state).__name__}: {self._name} is not possible while {state.value}")


class _Moves(dict[tuple[S, S], S]):
    """The new state of each pair of states that some input leads from and to; any other pair fails an assertion."""

    __slots__ = ()

    def __missing__(self, pair: tuple[S, S]) -> S:
        raise AssertionError(f"no input leads from {pair[0].value} to {pair[1].value}")


class StateTable(Generic[S]):
    """The table of one machine, or of a part of one.

    Args:
        states: its states, the first is where it begins; rows name them by their values.
        rows: a row for each input.
        refused: inputs that raise where they neither act nor are ignored; None: all of them.

    Attributes:
        rows: for each input and each state in which it acts, the states that it may lead to.
        acts: for each input and state whether it acts there (False: it is ignored). Looking up a state in which the
            input is refused raises `MisuseError`; `state in acts[name]` asks without raising.
        moved: (old, new) -> new; fails an assertion where no input leads from the old state to the new one.
    """

    def __init__(
        self, states: type[S], rows: Mapping[str, str], refused: Collection[str] | None = None
    ) -> None:
        self.states = states
        self.rows: dict[str, dict[S, frozenset[S]]] = {}
        self.acts: dict[str, Mapping[S, bool]] = {}
        for name, text in rows.items():
            always_taken = refused is not None and name not in refused
            takes = dict.fromkeys(states, False) if always_taken else {}
            row = self.rows[name] = {}
            for part in text.split(";"):
                before, after = (side.split() for side in part.split(">"))
                takes |= dict.fromkeys(map(states, before), after != ["-"])
                for old in before if after != ["-"] else ():
                    row[states(old)] = frozenset(states(old if new == "=" else new) for new in after)
            self.acts[name] = _Takes(name, takes)
        self.moved: Mapping[tuple[S, S], S] = _Moves({(old, new): new for _, old, new in self.edges()})

    def edges(self) -> Iterator[tuple[str, S, S]]:
        """(input, state, state that it may lead to), in the order of the rows."""
        for name, row in self.rows.items():
            for old, after in row.items():
                yield from ((name, old, new) for new in self.states if new in after)
