"""A cluster of processes that may be killed while a sink writes to it, and come back on their data."""

from __future__ import annotations

import contextlib
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import quire
from quire.blocking import loop
from quire.cli.console.failures import BookieStartError
from quire.cli.local.local_cluster import LocalCluster
from quire.metadata.store import StoreAwayError
from support.etcd_server import EtcdServer
from support.waiting import until

BOOKIES = 4
"""One more than an ensemble, so that one may be away."""
OPTIONS = "session_timeout_ms=10000&patience_ms=5000"
"""A bookie that was killed comes back when its session is over."""
MORTAL = "session_timeout_ms=2000&patience_ms=5000"
"""Of leaders: that one is dead must be noticed soon."""


class SinkCluster:
    """Bookies, a metadata store, and a client of this process; a context manager.

    Args:
        folder: for its data.
        etcd: the metadata store, which may be killed; None for a file.

    Attributes:
        uri: the cluster; `mortal_uri` for clients whose death is noticed sooner.
    """

    def __init__(self, folder: Path, etcd: EtcdServer | None = None) -> None:
        place = f"etcd://{etcd.host}/ledgers?" if etcd else f"sqlite:{folder}/metadata.db"
        self.uri = place + (OPTIONS if etcd else "")
        self.mortal_uri = place + (MORTAL if etcd else "")
        self._etcd = etcd
        self._background = loop.current()
        self._local = LocalCluster(folder / "bookies", BOOKIES, cluster=self.uri)
        self._starting = ThreadPoolExecutor(1)
        self._started: list[Future[object]] = []

    def __enter__(self) -> Self:
        try:
            self._local.start()
            self.client = self._background.run(lambda: _connect(self.uri))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if hasattr(self, "client"):
            self._background.run(self.client.close)
        self._starting.shutdown()
        self._local.stop()
        if self._etcd is not None:
            self._etcd.stop()

    def run(self, function: Any, *args: Any) -> Any:
        """Run a coroutine function beside this thread and wait for it."""
        return self._background.run(function, *args)

    def pids(self, *, bookie: int | None = None) -> dict[str, int]:
        """Whom a fault would kill now.

        Args:
            bookie: which bookie, if one is to die; then those that died before are waited for, since only one may be
                away at a time.
        """
        found = {} if self._etcd is None else {"store": self._pid_of_store()}
        if bookie is not None:
            self.mend()
            for each in self._started:
                each.result()
            found["bookie"] = self._local.bookies[bookie % BOOKIES].pid
        return found

    def mend(self) -> None:
        """Whatever was killed is started again, on its data. Nobody waits for a bookie: there is one more."""
        self.mend_store()
        self._started = [each for each in self._started if not each.done() or each.result()]
        if self._started:
            return
        for number, bookie in enumerate(self._local.bookies):
            if not bookie.running:
                self._local.kill(number)  # it is; its pipes are to be closed
                self._started.append(self._starting.submit(self._restart, number))

    def mend_store(self) -> None:
        """The metadata store is started again if it was killed."""
        if self._etcd is not None and not lives(self._pid_of_store()):
            self._etcd.start()

    def await_store(self) -> None:
        """Wait until the metadata store answers: on a busy machine one that was killed is not back at once."""

        async def answers() -> bool:
            with contextlib.suppress(StoreAwayError):
                await self.client.logs()
                return True
            return False

        self.mend_store()
        until(lambda: self.run(answers), "an answer of the metadata store", 300)

    def _restart(self, number: int) -> None:
        try:
            self._local.restart(number)
        except BookieStartError:
            # It waits for two sessions, and a store that comes back twice meanwhile counts a third one.
            self._local.kill(number)
            self._local.restart(number)

    def _pid_of_store(self) -> int:
        assert self._etcd is not None
        return int((self._etcd.folder / "pid").read_text())


async def _connect(uri: str) -> Any:
    return await quire.connect(uri)


def state(pid: int) -> str:
    """A process's state as one letter, "" when there is none."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    return ""


def lives(pid: int) -> bool:
    """Whether a process runs or stands still."""
    return state(pid) not in {"", "Z", "X"}
