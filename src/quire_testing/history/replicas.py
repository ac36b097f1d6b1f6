"""What bookies hold of one ledger: all copies alike, and enough of them.

Invariants 8 and 9. A conflict counts only up to the ledger's end, which may become known after the copy was seen, so that
conflicts wait for the end of the history.

Source: docs/formats/history.md, "What is judged": 8 and 9; docs/counterexamples.md, "What must hold".
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from quire_testing.history.cells import ACKED, FIRM, SCANNED, Cells, Runs
from quire_testing.history.verdict import Findings, ids


@dataclass(frozen=True, slots=True)
class ScannedStripes:
    """What one line of the scan says that a bookie holds: those of `first..last` whose id mod period is in the stripes.

    Args:
        first: the lowest id.
        last: the highest id.
        period: 1 if the ids have no holes.
        stripes: bit r is set if ids with `id mod period == r` belong to it.
    """

    first: int
    last: int
    period: int
    stripes: int

    def __contains__(self, number: int) -> bool:
        return self.first <= number <= self.last and bool(self.stripes >> number % self.period & 1)


@dataclass(slots=True)
class Conflict:
    """Copies that differ from what is known; whether that matters depends on where the ledger ends."""

    first: int
    last: int
    text: str
    places: tuple[int, int]


def stripes_of(facts: dict[str, Any], count: int) -> tuple[ScannedStripes, list[int] | None]:
    """The ids of a `stored` or `replica` line.

    Args:
        facts: the line's fields.
        count: how many hashes it has.

    Returns:
        What it covers, and its ids one by one if there are holes between them.
    """
    first, period = facts["first"], facts.get("period", 1)
    if period == 1:
        return ScannedStripes(first, first + count - 1, 1, 1), None
    stripes = facts["residues"]
    numbers: list[int] = []
    number = first
    while len(numbers) < count:
        if stripes >> number % period & 1:
            numbers.append(number)
        number += 1
    return ScannedStripes(first, numbers[-1] if numbers else first - 1, period, stripes), numbers


class Replicas:
    """The copies of one ledger.

    Args:
        ledger: its id.
        cells: what its clients know of its entries.
        findings: where violations go.
    """

    __slots__ = ("_cells", "_conflicts", "_cut", "_findings", "_held", "_ledger", "_scan_places", "_scanned")

    def __init__(self, ledger: int, cells: Cells, findings: Findings) -> None:
        self._ledger = ledger
        self._cells = cells
        self._findings = findings
        self._held: dict[str, list[ScannedStripes]] = {}
        self._scanned: dict[str, int] = {}
        self._cut: dict[str, tuple[int, int]] = {}
        """Where a bookie was truncated, moved up by what it accepted since."""
        self._conflicts: list[Conflict] = []
        self._scan_places = Runs()

    def noted(
        self, kind: str, facts: dict[str, Any], place: int, *, recorded: bool, unplaced: Counter[bytes]
    ) -> None:
        """A fact about a bookie's copy."""
        bookie = facts["bookie"]
        match kind:
            case "truncated":
                self._cut[bookie] = facts["last"], place
            case "scanned":
                self._scanned[bookie] = place
                self._held.setdefault(bookie, [])
            case "stored" | "replica":
                data = bytes.fromhex(facts["hashes"])
                copy, numbers = stripes_of(facts, len(data) // self._cells.width)
                if kind == "replica":
                    self._held.setdefault(bookie, []).append(copy)
                    self._check_cut(bookie, copy, place)
                elif bookie in self._cut:
                    self._cut[bookie] = max(self._cut[bookie][0], copy.last), self._cut[bookie][1]
                self._compare(kind, copy, numbers, data, place, bookie, recorded=recorded, unplaced=unplaced)

    def _check_cut(self, bookie: str, copy: ScannedStripes, place: int) -> None:
        if bookie not in self._cut:
            return
        self._findings.checked(8)
        last, where = self._cut[bookie]
        if copy.last > last:
            low = max(copy.first, last + 1)
            self._say(
                8, f"{bookie} holds {ids(low, copy.last)} although it was truncated at {last}", where, place
            )

    def _compare(
        self,
        kind: str,
        copy: ScannedStripes,
        numbers: list[int] | None,
        data: bytes,
        place: int,
        bookie: str,
        *,
        recorded: bool,
        unplaced: Counter[bytes],
    ) -> None:
        cells, width = self._cells, self._cells.width
        count = len(data) // width
        self._findings.checked(8, count)
        if numbers is None:
            if cells.same(copy.first, data) and cells.all_have(copy.first, count, FIRM | SCANNED):
                return
            if kind == "replica" and not recorded and cells.fresh(copy.first, count):
                cells.write(copy.first, data, SCANNED)
                self._scan_places.add(copy.first, copy.last, place)
                return
            numbers = list(range(copy.first, copy.last + 1))
        for index, number in enumerate(numbers):
            value = data[index * width : (index + 1) * width]
            mark, known = cells.look(number)
            if mark & (FIRM | SCANNED):
                if known != value and not (kind == "stored" and cells.candidate(number, value)):
                    how = (
                        "was acknowledged" if mark & ACKED else "was read" if mark & FIRM else "is elsewhere"
                    )
                    self._conflict(number, f"on {bookie} with another hash than it {how} with", place)
                continue
            if recorded and not cells.candidate(number, value) and not unplaced[value]:
                self._conflict(number, f"on {bookie} with a hash that no client had appended", place)
            elif kind == "replica":
                cells.write(number, value, SCANNED)
        if kind == "replica":
            self._scan_places.add(copy.first, copy.last, place)

    def _conflict(self, number: int, text: str, place: int) -> None:
        last = self._conflicts[-1] if self._conflicts else None
        if last is not None and last.last == number - 1 and last.text == text and last.places[1] == place:
            last.last = number
            return
        self._conflicts.append(Conflict(number, number, text, (self._scan_places.place_of(number), place)))

    def finish(self, end: int | None, acked: int, record: dict[str, Any] | None, *, guaranteed: bool) -> None:
        """The history is over.

        Args:
            end: the last entry if the ledger is closed.
            acked: the highest acknowledged entry.
            record: the last version of its record that was seen.
            guaranteed: every entry is promised to be on Qw bookies.
        """
        limit = acked if end is None else end
        for conflict in self._conflicts:
            if conflict.first <= limit:
                what = ids(conflict.first, min(conflict.last, limit), "is")
                self._say(8, f"{what} {conflict.text}", *conflict.places)
        if end is None or record is None or "fragments" not in record or "write_quorum" not in record:
            return
        if self._scanned:
            self._count_copies(end, record, record["write_quorum"] if guaranteed else record["ack_quorum"])

    def _count_copies(self, end: int, record: dict[str, Any], needed: int) -> None:
        fragments: list[Any] = record["fragments"]
        starts = [first for first, _ in fragments]
        for index, (first, ensemble) in enumerate(fragments):
            last = min(end, starts[index + 1] - 1) if index + 1 < len(starts) else end
            for low, high in self._stretches(first, last, ensemble):
                self._findings.checked(9, high - low + 1)
                self._check_stretch(low, high, ensemble, record["write_quorum"], needed)

    def _stretches(self, first: int, last: int, ensemble: list[str]) -> list[tuple[int, int]]:
        """A fragment cut wherever what a bookie holds begins or ends: within one stretch all is alike."""
        cuts = {first, last + 1}
        for bookie in ensemble:
            for copy in self._held.get(bookie, ()):
                cuts.update(cut for cut in (copy.first, copy.last + 1) if first < cut <= last)
        ordered = sorted(cuts)
        return [(low, high - 1) for low, high in pairwise(ordered) if low < high]

    def _check_stretch(
        self, low: int, high: int, ensemble: list[str], write_quorum: int, needed: int
    ) -> None:
        size = len(ensemble)
        count = 1 if size == write_quorum else min(size, high - low + 1)
        here = [
            [copy for copy in self._held.get(bookie, ()) if copy.first <= low <= copy.last]
            for bookie in ensemble
        ]
        for number in range(low, low + count):
            copies = 0
            for offset in range(write_quorum):
                slot = (number + offset) % size
                if ensemble[slot] not in self._scanned or any(number in copy for copy in here[slot]):
                    copies += 1
            if copies < needed:
                every = "" if count == 1 or low == high else f", as every {size}th from there to {high}"
                what = ids(low, high, "is") if count == 1 else f"entry {number}{every} is"
                self._say(
                    9,
                    f"{what} on {copies} bookies of the write set, and {needed} are needed",
                    *(self._scanned[bookie] for bookie in ensemble if bookie in self._scanned),
                )

    def _say(self, number: int, text: str, *places: int) -> None:
        self._findings.violation(number, f"ledger {self._ledger}: {text}", *places)
