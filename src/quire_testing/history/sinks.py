"""One sink's judge: the rows of each committed epoch are the source's rows, each once.

Invariant 11.

Source: docs/formats/history.md, "What is judged": 11.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from quire_testing.history.asked import Asked
from quire_testing.history.verdict import Findings

NUMBER: Final = 11


@dataclass(slots=True)
class Epoch:
    """One epoch of a sink.

    Args:
        difference: for each hash, how many more the source gave than the sink has; none where both have as many.
        source: rows that the source gave.
        sink: rows that the sink has.
        committed: where the commit was acknowledged, or -1.
        maybe: a commit was asked for and its outcome is unknown.
        places: where its rows were reported, the last of each side.
    """

    difference: Counter[bytes] = field(default_factory=Counter)
    source: int = 0
    sink: int = 0
    committed: int = -1
    maybe: int = 0
    places: dict[str, int] = field(default_factory=dict)


class SinkJudge:
    """What is known of one sink.

    Args:
        sink: its name.
        width: bytes of a hash.
        findings: where violations go.
    """

    __slots__ = ("_epochs", "_findings", "_scanned", "_sink", "_width")

    def __init__(self, sink: str, width: int, findings: Findings) -> None:
        self._sink = sink
        self._width = width
        self._findings = findings
        self._epochs: dict[int, Epoch] = {}
        self._scanned = False

    def _epoch(self, number: int) -> Epoch:
        return self._epochs.setdefault(number, Epoch())

    def invoked(self, asked: Asked) -> None:
        """A commit is asked for."""
        self._epoch(asked.facts["epoch"]).maybe += 1

    def answered(self, asked: Asked, outcome: str, place: int) -> None:
        """A commit was answered."""
        epoch = self._epoch(asked.facts["epoch"])
        if outcome == "ok":
            epoch.committed = place
        if outcome != "unknown":
            epoch.maybe -= 1

    def noted(self, kind: str, facts: dict[str, Any], place: int) -> None:
        """Rows of an epoch: what the source gave, or what the sink has."""
        epoch = self._epoch(facts["epoch"])
        data, width = bytes.fromhex(facts["hashes"]), self._width
        rows = [data[start : start + width] for start in range(0, len(data), width)]
        if kind == "source_rows":
            epoch.source += len(rows)
            epoch.difference.update(rows)
        else:
            self._scanned = True
            epoch.sink += len(rows)
            epoch.difference.subtract(rows)
        for row in rows:
            if not epoch.difference[row]:
                del epoch.difference[row]
        epoch.places[kind] = place

    def finish(self) -> None:
        """No more events will come."""
        if not self._scanned:
            return
        for number, epoch in sorted(self._epochs.items()):
            self._findings.checked(NUMBER, max(1, epoch.source))
            if epoch.committed < 0 and epoch.sink and not epoch.maybe:
                self._say(number, epoch, f"has {epoch.sink} rows in the sink, but it was never committed")
            elif epoch.difference and (epoch.committed >= 0 or epoch.sink):
                lost = sum(count for count in epoch.difference.values() if count > 0)
                extra = -sum(count for count in epoch.difference.values() if count < 0)
                row = min(epoch.difference).hex()
                self._say(
                    number,
                    epoch,
                    f"has {epoch.source} rows at the source and {epoch.sink} in the sink: {lost} are missing and {extra} "
                    f"are there too often, for example the row with hash {row}",
                )

    def _say(self, number: int, epoch: Epoch, text: str) -> None:
        places = sorted({*epoch.places.values(), epoch.committed})
        self._findings.violation(NUMBER, f"sink {self._sink}: epoch {number} {text}", *places)
