"""Which ledgers' LACs are to be sent to bookies by themselves, and when: those that no add's header carries soon.

One of these serves all writers of a client. It must not know the frame nor the bookies: its driver asks which LACs are
due, and sends them. Safety does not depend on it; what a new reader sees does.

A ledger waits from the first confirmation that no header has carried yet. The next add carries everything confirmed so
far, so it ends the wait. A ledger whose LAC was sent is dropped until its LAC rises again.

Source: Vanlightly's guide, "Last Add Confirmed (LAC)".
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import Generic, TypeVar

Writer = TypeVar("Writer")
"""Whatever the driver knows a writer by; it is the key of a dictionary."""


class PendingExplicitLacs(Generic[Writer]):
    """The writers of ledgers that wait, the longest first.

    Args:
        after_ms: how long a LAC waits for an add that carries it.
        pause_ms: at least so long lies between two moments at which LACs are sent, so that they share frames.
    """

    __slots__ = ("_after_ms", "_last_ms", "_pause_ms", "_since")

    def __init__(self, after_ms: int, pause_ms: int) -> None:
        self._after_ms = after_ms
        self._pause_ms = pause_ms
        # In the order of their times: time only rises, and a ledger that waits keeps its place.
        self._since: dict[Writer, int] = {}
        self._last_ms: int | None = None

    def confirmed(self, writer: Writer, now_ms: int) -> None:
        """A ledger's LAC has risen. One that waits already goes on waiting since then."""
        if writer not in self._since:
            self._since[writer] = now_ms

    def carried(self, writer: Writer) -> None:
        """An add's header carries all that is confirmed of a ledger, or its writer has ended: nothing is to be sent."""
        self._since.pop(writer, None)

    @property
    def next_ms(self) -> int | None:
        """When to ask what is `due`; None while no ledger waits."""
        if not self._since:
            return None
        due_ms = next(iter(self._since.values())) + self._after_ms
        return due_ms if self._last_ms is None else max(due_ms, self._last_ms + self._pause_ms)

    def __iter__(self) -> Iterator[Writer]:
        """All that wait, as they are now."""
        return iter(list(self._since))

    def due(self, now_ms: int) -> list[Writer]:
        """The writers whose LACs are to be sent now, the longest waiting first. They wait no more."""
        latest = now_ms - self._after_ms
        due = [writer for writer, _ in takewhile(lambda item: item[1] <= latest, self._since.items())]
        for writer in due:
            del self._since[writer]
        if due:
            self._last_ms = now_ms
        return due

    def check(self) -> None:
        """Assert what must always hold."""
        times = list(self._since.values())
        assert times == sorted(times), "ledgers wait in the order of their confirmations"
