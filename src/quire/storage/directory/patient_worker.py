"""When no descriptor is left: the error that says so, and a worker that runs again what found none."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from quire.core.errors import DescriptorShortageError
from quire.env.descriptors import is_shortage
from quire.env.interfaces import Done, Worker


def shortage(where: Path | str, error: OSError) -> DescriptorShortageError:
    """The error of a caller that needs a file and has no descriptor for it."""
    return DescriptorShortageError(
        f"{where}: no file can be opened ({error.strerror}); nothing is damaged. The bookie tries "
        "again; raise the descriptor limit of the process (ulimit -n), or of the machine (sysctl "
        "fs.file-max)",
        path=str(where),
    )


class PatientWorker:
    """Runs jobs that may be run again from their beginning.

    At once if a descriptor can be taken from a file that is only read, else at the next `try_again`. Whatever depends
    on such a job waits meanwhile, as it does for any job.

    Args:
        worker: the thread.
        make_room: closes a file that is open for reading; False if there is none. Called on the loop.
        ended: nothing is run again any more, for example because the disk has failed.

    Attributes:
        waiting: how many jobs wait for a descriptor.
    """

    def __init__(self, worker: Worker, make_room: Callable[[], bool], ended: Callable[[], bool]) -> None:
        self._worker = worker
        self._make_room = make_room
        self._ended = ended
        self._short: list[tuple[Callable[[], Any], Done]] = []
        self._last_try = False

    @property
    def waiting(self) -> int:
        """How many jobs found no descriptor left."""
        return len(self._short)

    def submit(self, job: Callable[[], Any], done: Done) -> None:
        """Run a job on the thread, then `done` on the loop."""
        self._worker.submit(job, partial(self._tried, job, done))

    def _tried(self, job: Callable[[], Any], done: Done, result: Any) -> None:
        if not is_shortage(result) or self._last_try or self._ended():
            done(result)
            return
        self._short.append((job, done))
        if self._make_room():
            self.try_again()

    def try_again(self, *, last: bool = False) -> None:
        """Run again what found no descriptor left. Called now and then.

        Args:
            last: there will be no other call: from now on a shortage is a failure.
        """
        self._last_try = self._last_try or last
        short, self._short = self._short, []
        for job, done in short:
            self.submit(job, done)

    def finish(self) -> None:
        """Wait until all is done; what finds no descriptor left even now has failed. Without a loop only."""
        self._worker.finish()
        last, self._last_try = self._last_try, True
        while self._short:
            self.try_again()
            self._worker.finish()
        self._last_try = last
