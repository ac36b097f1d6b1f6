"""The memory that a crowd of clients took goes back to the system some seconds after they have disconnected."""

from __future__ import annotations

from quire.bookie.connections.response_back_pressure import ResponseBackPressure
from quire.env.interfaces import Worker
from quire.env.memory import MemoryPeakMachine
from quire.env.real import give_back_memory
from quire.net.receive_memory import ReceiveBudget, Scratch


class FreedMemory:
    """Watches how much memory a bookie holds for its clients.

    Args:
        scratch: keeps memory of frames to use it again.
        back_pressure: how many bytes of responses clients have not read.
        unfinished: the frames that are not finished.
    """

    def __init__(
        self, scratch: Scratch, back_pressure: ResponseBackPressure, unfinished: ReceiveBudget
    ) -> None:
        self._scratch = scratch
        self._back_pressure = back_pressure
        self._unfinished = unfinished
        self._peak = MemoryPeakMachine()

    def look(self, now_ms: int, worker: Worker) -> None:
        """Once a second: give memory back if it is time, on the worker.

        Args:
            now_ms: the time.
            worker: the bookie's.
        """
        if self._peak.look(now_ms, self._back_pressure.held_bytes + self._unfinished.taken):
            self._scratch.give_back()
            worker.submit(give_back_memory, _done)


def _done(result: object) -> None:
    """It is not awaited."""
