"""Which ledgers' LACs are to be sent to bookies by themselves, and when: those that no add's header carries soon.

One of these serves all writers of a client. It must not know the frame nor the bookies: its driver asks which LACs are
due, and sends them. Safety does not depend on it; what a new reader sees does.

A ledger waits from the first confirmation that no header has carried yet. The next add carries everything confirmed so
far, so it ends the wait. A ledger whose LAC was sent is dropped until its LAC rises again.

Source: Vanlightly's guide, "Last Add Confirmed (LAC)".
"""

from __future__ import annotations

from itertools import takewhile


class PendingExplicitLacs:
    """The ledgers that wait, the longest first.

    Args:
        after_ms: how long a LAC waits for an add that carries it.
        pause_ms: at least so long lies between two moments at which LACs are sent, so that they share frames.
    """

    __slots__ = ("_after_ms", "_last_ms", "_pause_ms", "_since")

    def __init__(self, after_ms: int, pause_ms: int) -> None:
        self._after_ms = after_ms
        self._pause_ms = pause_ms
        # In the order of their times: time only rises, and a ledger that waits keeps its place.
        self._since: dict[int, int] = {}
        self._last_ms: int | None = None

    def confirmed(self, ledger_id: int, now_ms: int) -> None:
        """A ledger's LAC has risen. One that waits already goes on waiting since then."""
        if ledger_id not in self._since:
            self._since[ledger_id] = now_ms

    def carried(self, ledger_id: int) -> None:
        """An add's header carries all that is confirmed of a ledger, or its writer has ended: nothing is to be sent."""
        self._since.pop(ledger_id, None)

    @property
    def next_ms(self) -> int | None:
        """When to ask what is `due`; None while no ledger waits."""
        if not self._since:
            return None
        due_ms = next(iter(self._since.values())) + self._after_ms
        return due_ms if self._last_ms is None else max(due_ms, self._last_ms + self._pause_ms)

    def due(self, now_ms: int) -> list[int]:
        """The ledgers whose LACs are to be sent now, the longest waiting first. They wait no more."""
        latest = now_ms - self._after_ms
        due = [ledger_id for ledger_id, _ in takewhile(lambda item: item[1] <= latest, self._since.items())]
        for ledger_id in due:
            del self._since[ledger_id]
        if due:
            self._last_ms = now_ms
        return due

    def check(self) -> None:
        """Assert what must always hold."""
        times = list(self._since.values())
        assert times == sorted(times), "ledgers wait in the order of their confirmations"
