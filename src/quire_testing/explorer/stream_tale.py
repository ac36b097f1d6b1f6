"""A stream's counterexample in a few sentences, as the published documents tell theirs: no frames, no responses.

What belongs together is one sentence: a take-over from its announcement to the record that opens it, the bookies that store an
entry, and what its writer acknowledges then.

Source: Vanlightly's unbounded ledgers, "Terms for fencing only"; docs/counterexamples.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from quire.core.ledger.metadata import LedgerState
from quire_testing.explorer.clients import bookie_name
from quire_testing.explorer.invariants import Violation
from quire_testing.explorer.stream_bookies import Value
from quire_testing.explorer.stream_world import StreamWorld
from quire_testing.explorer.tables import Label, State


def tale(world: StreamWorld, path: Sequence[tuple[Any, Any]], violation: Violation) -> list[str]:
    """The sentences of a counterexample, the violation last.

    Args:
        world: the stream's.
        path: (label, state after it), the first with label None.
        violation: of the last state.
    """
    teller = _Teller(world)
    for (_, before), (label, after) in pairwise(path):
        teller.step(label, before, after)
    teller.say()
    return [*teller.sentences, _ending(world, path[-1][1], violation)]


class _Teller:
    """Hears steps, and says a sentence when what comes next is about something else.

    Attributes:
        sentences: those that are said.
    """

    def __init__(self, world: StreamWorld) -> None:
        self._world = world
        self.sentences: list[str] = []
        self._taker = ""
        self._responded: list[str] = []
        self._stored: dict[str, list[str]] = {}
        self._acked: list[str] = []
        self._no_ops: set[Value] = set()

    def say(self) -> None:
        """Say what was stored and acknowledged."""
        parts = [f"{_names(names)} {_verb(names)} {what}" for what, names in self._stored.items()]
        text = ", ".join(parts)
        if self._acked:
            text += f"{': ' if text else ''}{' and '.join(self._acked)} is acknowledged"
        if text:
            self.sentences.append(text)
        self._stored, self._acked = {}, []

    def step(self, label: Label, before: State, after: State) -> None:
        """One step of the explorer."""
        self._of_bookies(label, before, after)
        self._of_clients(label, before, after)
        record, was = self._record(after), self._record(before)
        if record.term > was.term:
            self.say()
            self._taker, self._responded = label.other, []
        elif record.state is LedgerState.OPEN and was.state is LedgerState.IN_RECOVERY:
            self.say()
            who = f" ({_names(self._responded)} take{'s' * (len(self._responded) == 1)} the term)"
            first = record.ranges[-1].first_entry
            self.sentences.append(
                f"{label.other} takes the stream over in term {record.term}{who}; it is open from entry {first} on"
            )
        elif record.fragments != was.fragments:
            self.say()
            last = record.last_fragment
            self.sentences.append(
                f"{label.other} goes on with {_names(last.ensemble)} from entry {last.first_entry} on"
            )

    def _record(self, state: State) -> Any:
        return self._world.stores.parts[state[self._world.at.store]].record

    def _of_bookies(self, label: Label, before: State, after: State) -> None:
        for number in range(self._world.n):
            old, new = (self._world.bookies.parts[state[number]] for state in (before, after))
            name = bookie_name(number)
            if new.known.term > old.known.term and name not in self._responded:
                self._responded.append(name)
            came, went = {*new.entries} - {*old.entries}, {*old.entries} - {*new.entries}
            for entry, origin in sorted(came):
                over = [f" over that of term {other}" for same, other in went if same == entry]
                is_no_op = label.command.startswith(f"takes no-op {entry},")
                self._no_ops |= {(entry, origin)} if is_no_op else set()
                self._stored.setdefault(self._text((entry, origin)) + "".join(over), []).append(name)
            lost = sorted(value for value in went if value[0] not in {entry for entry, _ in came})
            if lost and label.kind != "loss":
                self.say()
                what = " and ".join(map(self._text, lost))
                self.sentences.append(f"{what} {'is' if len(lost) == 1 else 'are'} lost at {name}")
        if label.kind == "loss":
            self.say()
            self.sentences.append(f"{label.actor} {label.command}")

    def _of_clients(self, label: Label, before: State, after: State) -> None:
        clients = zip(self._world.clients_of(before), self._world.clients_of(after), strict=True)
        for name, (old, new) in zip(self._world.names, clients, strict=False):
            if new.written and new.written != old.written and label.command.startswith("append"):
                self.say()
                last = new.written[-1]
                self.sentences.append(f"{name} writes {self._text((last.lap, last.term))}")
            self._acked += [self._text(value) for value in new.acked if value not in old.acked]
        if label.kind in {"timeout", "break"} or label.actor.startswith(("reader", "repairer")):
            self.say()
            self.sentences.append(f"{label.actor}: {label.command}")

    def _text(self, value: Value) -> str:
        what = "the no-op" if value in self._no_ops else "entry"
        return f"{what} {value[0]} of term {value[1]}"


def _ending(world: StreamWorld, state: State, violation: Violation) -> str:
    """Who has what at an id at which bookies differ; else what is wrong."""
    held: dict[int, dict[int, list[str]]] = {}
    for number, bookie in enumerate(world.bookies_of(state)):
        for entry, origin in bookie.entries:
            held.setdefault(entry, {}).setdefault(origin, []).append(bookie_name(number))
    for entry, by_origin in sorted(held.items()):
        if violation.invariant == "U2" and violation.text.startswith(f"{entry} ") and len(by_origin) > 1:
            sides = [
                f"{_names(names)} {'has' if len(names) == 1 else 'have'} that of term {origin}"
                for origin, names in sorted(by_origin.items())
            ]
            return f"bookies differ at entry {entry}: {', '.join(sides)}"
    return violation.text


def _names(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _verb(names: Sequence[str]) -> str:
    return "stores" if len(names) == 1 else "store"
