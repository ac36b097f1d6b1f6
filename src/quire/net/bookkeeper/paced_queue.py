"""Entries that do not leave yet: the bookie has as many as it should have at one time, or has refused them as too busy.

Source: `net/pacing.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from quire.net.pacing import PacingMachine


class PacedTurn:
    """Where the entries of one request wait.

    Attributes:
        queue: which.
        timeout_ms: how long the bookie may accept nothing while some wait.
        waiting: how many do.
    """

    __slots__ = ("queue", "timeout_ms", "waiting")

    def __init__(self, queue: PacedQueue, timeout_ms: int) -> None:
        self.queue = queue
        self.timeout_ms = timeout_ms
        self.waiting = 0

    @property
    def until_ms(self) -> int:
        """Until when those that wait may, since the bookie accepts others; 0 if it never did."""
        return self.queue.machine.may_wait_until(self.timeout_ms)


class PacedQueues(NamedTuple):
    """Those of one connection: ordinary adds, ordinary reads, and what a recovery asks for."""

    adds: PacedQueue
    reads: PacedQueue
    recovery: PacedQueue


class PacedQueue:
    """What one connection sends of one kind: refused entries first, then the others, first in, first out.

    An entry is a request, which counts in its turn how many of its entries are here, and a number that says which of
    its entries it is.

    Attributes:
        machine: decides how many may leave.
    """

    __slots__ = ("_again", "_waiting", "machine")

    def __init__(self) -> None:
        self.machine = PacingMachine()
        self._again: deque[tuple[Any, int]] = deque()
        self._waiting: deque[tuple[Any, Sequence[int]]] = deque()

    @property
    def waits(self) -> bool:
        """Whether anything is here."""
        return bool(self._waiting or self._again)

    def put(self, pending: Any, items: Sequence[int]) -> None:
        """Entries of a request wait until there is room for them."""
        pending.turn.waiting += len(items)
        self._waiting.append((pending, items))

    def put_again(self, pending: Any, item: int, now_ms: int) -> None:
        """The bookie has refused an entry as too busy."""
        self.machine.refused(now_ms)
        pending.turn.waiting += 1
        self._again.append((pending, item))

    def leave(self, now_ms: int) -> Iterator[tuple[Any, Sequence[int]]]:
        """The entries that leave now, of one request each time. What is over by now is forgotten."""
        while self.waits and (room := self.machine.may_leave(now_ms)):
            pending, items = self._again_of_one(room) if self._again else self._waiting.popleft()
            if pending.done:
                continue
            if len(items) > room:
                self._waiting.appendleft((pending, items[room:]))
                items = items[:room]
            pending.turn.waiting -= len(items)
            self.machine.left(len(items))
            yield pending, items

    def _again_of_one(self, count: int) -> tuple[Any, list[int]]:
        """The refused entries at the head that are of one request, so many at most."""
        pending, item = self._again.popleft()
        items = [item]
        while self._again and self._again[0][0] is pending and len(items) < count:
            items.append(self._again.popleft()[1])
        return pending, items

    def clear(self) -> None:
        """Nothing leaves any more."""
        self._again.clear()
        self._waiting.clear()
