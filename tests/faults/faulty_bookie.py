"""A bookie process, as `quire up` starts it, whose next write or sync fails when it gets a signal, and all after it.

After SIGUSR1 the bytes reach the disk nevertheless, after SIGUSR2 they do not: a bookie cannot know which.
"""

from __future__ import annotations

import errno
import signal
from typing import Any

from quire.cli.local.serve import main
from quire.env.interfaces import Buffer
from quire.env.real import RealFile

KEPT, LOST = signal.SIGUSR1, signal.SIGUSR2
WRITE, SYNC = RealFile.write_at, RealFile.sync
came: list[int] = []


def note(number: int, _frame: Any) -> None:
    came.append(number)


def fail() -> None:
    if came:
        raise OSError(errno.EIO, "injected")


def write_at(file: RealFile, data: Buffer, offset: int) -> None:
    if LOST not in came:
        WRITE(file, data, offset)
    fail()


def sync(file: RealFile) -> None:
    SYNC(file)
    fail()


if __name__ == "__main__":
    RealFile.write_at, RealFile.sync = write_at, sync  # type: ignore[method-assign]
    for each in (KEPT, LOST):
        signal.signal(each, note)
    raise SystemExit(main())
