"""The long polls of one connection: so many at one time, and none of them outlives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from quire.bookie.ledgers.followers import Poll
from quire.bookie.ledgers.ledgers import Ledgers

POLLS_MAX: Final = 4096
"""Long polls of one connection that may wait at one time."""


class Polls:
    """The long polls of one connection.

    Args:
        ledgers: the bookie's.
    """

    __slots__ = ("_ledgers", "_waiting")

    def __init__(self, ledgers: Ledgers) -> None:
        self._ledgers = ledgers
        self._waiting: dict[object, Poll] = {}

    def wait(self, ledger_id: int, previous_lac: int, seconds: float, wake: Callable[[], None]) -> bool:
        """Call `wake` once, as `Ledgers.poll` does, unless the connection ends before; False if too many wait."""
        if len(self._waiting) >= POLLS_MAX:
            return False
        mark = object()

        def woken() -> None:
            self._waiting.pop(mark, None)
            wake()

        poll = self._ledgers.poll(ledger_id, previous_lac, seconds, woken)
        if poll is not None:
            self._waiting[mark] = poll
        return True

    def drop(self) -> None:
        """The connection has ended."""
        waiting, self._waiting = self._waiting, {}
        for poll in waiting.values():
            self._ledgers.followers.forget(poll)
