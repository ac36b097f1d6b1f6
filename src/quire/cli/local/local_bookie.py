"""One bookie process of a cluster on this machine, as the process that started it knows it."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

HOST: Final = "127.0.0.1"
LAST_LINES: Final = 12
"""How many last lines of a dead bookie's log are shown."""


@dataclass(slots=True)
class LocalBookie:
    """One bookie process of a local cluster.

    Attributes:
        port: the port it had or is to have; 0 before its first start.
        log: the file that takes what it says.
        id: its full id with the incarnation, once it has served.
        process: the running process, or the last one.
        first_line: what it has said on stdout so far, until the line is whole.
    """

    name: str
    directory: Path
    log: Path
    port: int = 0
    id: str = ""
    process: subprocess.Popen[bytes] | None = None
    first_line: bytes = b""
    chosen_port: bool = field(default=False)

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """The process id, 0 before the first start."""
        return self.process.pid if self.process else 0

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self.process is not None and self.process.poll() is None

    def facts(self) -> dict[str, object]:
        """What `quire up --json` says of it."""
        return {"id": self.id, "address": self.address, "pid": self.pid, "directory": str(self.directory)}

    def last_lines(self, count: int = LAST_LINES) -> list[str]:
        """The end of its log."""
        try:
            with self.log.open("rb") as stream:
                stream.seek(max(0, stream.seek(0, os.SEEK_END) - 64 * 1024))
                return stream.read().decode("utf-8", "replace").splitlines()[-count:]
        except FileNotFoundError:
            return []

    def how_it_ended(self) -> str:
        """`was killed by SIGKILL`, `ended with exit code 1`."""
        code = self.process.poll() if self.process else None
        if code is None:
            return "is running"
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"
