"""What a judgement says: which invariants were looked at, how often, and each violation as a sentence.

Source: docs/formats/history.md, "What is judged".
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from quire_testing.history.events import Event

INVARIANTS: Final = {
    1: "acknowledged entries stay readable",
    2: "read once, read always",
    3: "no gaps, no phantoms",
    4: "acknowledgements and the LAC are in order and true",
    5: "closed once, at one last entry",
    6: "no acknowledgement after the close or the next term",
    7: "a failed add is there or not, not both",
    8: "replicas agree",
    9: "enough copies",
    10: "a log is one chain, each append once and in order",
    11: "exactly once from source to sink",
    12: "registers are linearizable",
}
"""As docs/formats/history.md numbers them; the twelfth, about registers, and the list of the tenth need a search."""

KEPT_PER_INVARIANT: Final = 100
"""Violations beyond this many of one invariant are only counted."""


@dataclass(frozen=True, slots=True)
class HistoryViolation:
    """One thing that must not be.

    Args:
        number: the invariant's.
        name: the invariant's.
        text: one sentence: what contradicts what.
        lines: where the contradicting events stand: `12`, or `file:12`.
    """

    number: int
    name: str
    text: str
    lines: tuple[str, ...]

    def __str__(self) -> str:
        where = f" [line{'s' if len(self.lines) > 1 else ''} {', '.join(self.lines)}]" if self.lines else ""
        return f"invariant {self.number} ({self.name}): {self.text}{where}"


@dataclass(slots=True)
class Verdict:
    """What a history was judged to be.

    Args:
        events: how many there were.
        kinds: how many of each kind, by what became of them (`ok`, `fail`, `unknown`, `open`, `note`).
        checked: how often something was compared for each invariant: an invariant with 0 was not looked at.
        violations: what must not be; at most `KEPT_PER_INVARIANT` of each.
        counts: how many there were of each invariant.
        undecided: what a search gave up on.
    """

    events: int = 0
    kinds: dict[str, Counter[str]] = field(default_factory=dict)
    checked: dict[int, int] = field(default_factory=lambda: dict.fromkeys(INVARIANTS, 0))
    violations: list[HistoryViolation] = field(default_factory=list)
    counts: Counter[int] = field(default_factory=Counter)
    undecided: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Something was compared, all of it was decided, and nothing contradicts anything."""
        return not self.counts and not self.undecided and any(self.checked.values())


class Findings:
    """Where the parts of the judge put what they find; it knows on which line each event stood.

    A place is the number of an event in the order of judgement.
    """

    __slots__ = ("_file_numbers", "_files", "_lines", "place", "verdict")

    def __init__(self) -> None:
        self.verdict = Verdict()
        self.place = -1
        self._lines = array("q")
        self._files = array("H")
        self._file_numbers: dict[str, int] = {}

    def next_event(self, event: Event) -> int:
        """Another event comes; its place."""
        self.place += 1
        self._lines.append(event.line)
        self._files.append(self._file_numbers.setdefault(event.file, len(self._file_numbers)))
        return self.place

    def line_of(self, place: int) -> str:
        """The line of an event, with its file if there are several."""
        line = self._lines[place]
        if len(self._file_numbers) < 2:
            return str(line)
        return f"{list(self._file_numbers)[self._files[place]]}:{line}"

    def checked(self, number: int, count: int = 1) -> None:
        """So much was compared for an invariant."""
        self.verdict.checked[number] += count

    def violation(self, number: int, text: str, *places: int) -> None:
        """Something must not be."""
        verdict = self.verdict
        verdict.counts[number] += 1
        if verdict.counts[number] > KEPT_PER_INVARIANT:
            return
        lines = tuple(self.line_of(place) for place in sorted({place for place in places if place >= 0}))
        verdict.violations.append(HistoryViolation(number, INVARIANTS[number], text, lines))


_MANY: Final = {"entry": "entries", "offset": "offsets", "was": "were", "is": "are"}


def ids(first: int, last: int, verb: str = "", *, one: str = "entry") -> str:
    """`entry 5 was` or `entries 5..9 were`."""
    if first == last:
        return f"{one} {first} {verb}".rstrip()
    return f"{_MANY[one]} {first}..{last} {_MANY.get(verb, verb)}".rstrip()
