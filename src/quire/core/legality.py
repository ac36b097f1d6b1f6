"""Tables of states and inputs: what a machine takes in which state, and where that may lead.

Source: docs/protocol/README.md, "States and inputs".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from quire.core.errors import MisuseError

S = TypeVar("S", bound=Enum)


class Legality(Enum):
    """What an input does in a state."""

    ACTS = "acts"
    IGNORED = "ignored"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class StateTable(Generic[S]):
    """What the inputs of one machine, or of one part of a machine, do.

    Attributes:
        states: the states; the first is where it begins.
        legal: what each input does in each state.
        moves: (input, state) -> the other states that the input may lead to; an input that acts may always stay.
    """

    states: type[S]
    legal: Mapping[str, Mapping[S, Legality]]
    moves: Mapping[tuple[str, S], frozenset[S]]

    @classmethod
    def of(cls, states: type[S], rows: Mapping[str, str]) -> StateTable[S]:
        """The table of these rows.

        Args:
            states: an enumeration whose values are words.
            rows: for each input the states in which it acts, `closing>closed,ended` where it may lead elsewhere, then,
                after `-`, those in which it is ignored. In all others it is refused.
        """
        legal: dict[str, dict[S, Legality]] = {}
        moves: dict[tuple[str, S], frozenset[S]] = {}
        for name, text in rows.items():
            acts, _, ignored = text.partition("-")
            row = legal[name] = dict.fromkeys(states, Legality.REFUSED)
            row |= {states(word): Legality.IGNORED for word in ignored.split()}
            for word in acts.split():
                state, _, others = word.partition(">")
                row[states(state)] = Legality.ACTS
                moves[name, states(state)] = frozenset(states(each) for each in others.split(",") if each)
        return cls(states, legal, moves)

    def edges(self) -> Iterator[tuple[str, S, S]]:
        """(input, state, other state) of every move, in the order of the rows."""
        for (name, state), others in self.moves.items():
            yield from ((name, state, other) for other in self.states if other in others)

    def refusal(self, name: str, state: S, ledger_id: int) -> MisuseError:
        """What to raise for an input that is refused in this state."""
        assert self.legal[name][state] is Legality.REFUSED
        msg = f"ledger {ledger_id}: {name} is not possible while {state.value}"
        return MisuseError(msg, ledger_id=ledger_id)
