"""Runs on their way to a bookie that answers each entry, and whose responses are known beforehand.

Everything but a failure is answered in the same bytes, and mostly in the order of the entries: so what comes is
compared with what should come, many responses at one time. What comes otherwise is looked up entry by entry.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Final

from quire.core.answers import Answer
from quire.net.bookkeeper.pending_requests import PendingRun
from quire.wire.entry import Buffer

_STEP_MAX: Final = 1 << 20


class RunsExpected:
    """The runs that one connection has sent and that are not wholly answered.

    Args:
        ledger_of: the ledger that a response is about, by the buffer and where in it the response begins; -1 if it is
            none.
        place_of: by run and position, the key under which a response names that entry (`v2_place_of`, `v3_place_of`);
            the connection looks up a response that is not the next one by it.
    """

    __slots__ = ("_ledger_of", "_odd", "_place_of", "_runs", "_step")

    def __init__(
        self, ledger_of: Callable[[Buffer, int], int], place_of: Callable[[PendingRun, int], Hashable]
    ) -> None:
        self._ledger_of = ledger_of
        self._place_of = place_of
        self._runs: dict[int, deque[PendingRun]] = {}
        self._odd: dict[Hashable, list[tuple[PendingRun, int]]] = {}  # entries that are waited for one by one
        self._step = 1  # how many responses are compared at one time

    def expect(self, pending: PendingRun) -> None:
        """A run has been sent."""
        runs = self._runs.get(pending.ledger_id)
        if runs is None:
            runs = self._runs[pending.ledger_id] = deque()
        runs.append(pending)

    def take(self, data: Buffer, starts: Sequence[int], number: int) -> int:
        """Count the responses that are the next ones of their runs, and finish the runs that have all.

        Args:
            data: a chunk.
            starts: where its frames begin.
            number: the first of them to look at.

        Returns:
            The number of the first one that is something else.
        """
        total = len(starts)
        while number < total:
            runs = self._of(data, starts[number])
            if runs is None:
                break
            run = runs[0]
            count = min(run.expected, total - number, self._step)
            after = number + count
            start = starts[number]
            end = starts[after] if after < total else _end(data, starts[-1])
            offset = run.offset + end - start
            if data[start:end] == run.answers[run.offset : offset]:
                number = after
                self._step = min(2 * self._step, _STEP_MAX)
                run.offset = offset
                run.expected -= count
                if run.turn is not None:
                    run.turn.queue.machine.accepted(count)
                if not run.expected:
                    self._remove(run)
                    run.finish_with(Answer.OK)
            elif count == 1:
                break
            else:
                self._step = count // 2
        return number

    def _of(self, data: Buffer, at: int) -> deque[PendingRun] | None:
        if len(self._runs) == 1:
            return next(iter(self._runs.values()))
        return self._runs.get(self._ledger_of(data, at)) if self._runs else None

    def odd(self, key: Hashable) -> tuple[PendingRun, int] | None:
        """The run, and the position in it, of a response that was not the next one; None if no request waits for it."""
        if self._runs:
            self._spread()
        waiting = self._odd.get(key)
        if waiting is None:
            return None
        found = waiting.pop(0)
        if not waiting:
            del self._odd[key]
        found[0].expected -= 1
        return found

    def expect_again(self, pending: PendingRun, position: int) -> None:
        """An entry whose response came is sent again."""
        self._odd.setdefault(self._place_of(pending, position), []).append((pending, position))
        pending.expected += 1

    def _spread(self) -> None:
        """From now on the entries of all runs that are on their way are waited for one by one."""
        for runs in self._runs.values():
            for run in runs:
                count = len(run.ids)
                for position in range(count - run.expected, count):
                    self._odd.setdefault(self._place_of(run, position), []).append((run, position))
        self._runs.clear()

    def forget(self, pending: PendingRun) -> None:
        """Wait for nothing more of a run."""
        pending.expected = 0
        if not self._remove(pending):
            for key in [key for key, waiting in self._odd.items() if _waits(waiting, pending)]:
                left = [(run, position) for run, position in self._odd[key] if run is not pending]
                if left:
                    self._odd[key] = left
                else:
                    del self._odd[key]

    def _remove(self, pending: PendingRun) -> bool:
        runs = self._runs.get(pending.ledger_id)
        if runs is None or pending not in runs:
            return False
        runs.remove(pending)
        if not runs:
            del self._runs[pending.ledger_id]
        return True


def _waits(waiting: list[tuple[PendingRun, int]], pending: PendingRun) -> bool:
    return any(run is pending for run, _ in waiting)


def _end(data: Buffer, start: int) -> int:
    return start + 4 + int.from_bytes(data[start : start + 4], "big")


def v2_ledger_of(data: Buffer, at: int) -> int:
    """The ledger of a response to an ADD."""
    return int.from_bytes(data[at + 12 : at + 20], "big")


def v2_place_of(pending: PendingRun, position: int) -> Hashable:
    """How V2's responses name an entry."""
    return pending.ledger_id, pending.ids[position]


def v3_place_of(pending: PendingRun, position: int) -> Hashable:
    """How V3's responses name an entry."""
    return pending.txn_id + position
