"""How a process's descriptors are shared out, what having none left means, and who makes room for a new connection.

Every file and every connection takes a descriptor, and a process has a limit. What has none left is short of them, no more:
nothing is damaged, and the same call succeeds when something else was closed. So a bookie divides what it has before it
begins, and connections can take no file's descriptor:

| share | of the limit |
| --- | --- |
| its own | `OWN`: the port, locks, the segments that are written, directories that are synced, the metadata store |
| arriving | connections that the system hands over before the bookie can count them: the length of the port's queue |
| files | a quarter of the rest: segments kept open for reading |
| connections | the other three quarters; a quarter of them, at most, are newcomers |

A newcomer has not yet shown who it is where that is asked, and has made no request. It gets in although the newcomers' share
is taken, or all places are: the oldest newcomer makes room. So a crowd that only says hello displaces itself.

Source: POSIX, open(), accept(): [EMFILE], [ENFILE]; POSIX, getrlimit(), RLIMIT_NOFILE.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from quire.core.errors import MisuseError

SHORTAGE: Final = frozenset({errno.EMFILE, errno.ENFILE})
OWN: Final = 24
QUEUE_MAX: Final = 100
LEAST: Final = 48


def is_shortage(error: object) -> bool:
    """Whether an error says that the process, or the system, has no descriptor left: temporary, and no damage."""
    return isinstance(error, OSError) and error.errno in SHORTAGE


@dataclass(frozen=True, slots=True)
class Shares:
    """What a process's descriptors are for.

    Attributes:
        connections: at one time.
        newcomers: of these, at most.
        files: segments kept open for reading.
        queue: connections that wait in the port's queue.
    """

    connections: int
    newcomers: int
    files: int
    queue: int


def share_out(limit: int, connections_max: int, files_max: int) -> Shares:
    """Divide a process's descriptors.

    Args:
        limit: how many it may have.
        connections_max, files_max: the configured maximum, which is not exceeded.

    Raises:
        MisuseError: there are too few for a bookie.
    """
    if limit < LEAST:
        msg = (
            f"this process may open {limit} files and connections, and a bookie needs at least "
            f"{LEAST}: raise the limit (ulimit -n)"
        )
        raise MisuseError(msg, limit=limit)
    queue = min(QUEUE_MAX, limit // 8)
    rest = limit - OWN - queue
    files = max(1, min(files_max, rest // 4))
    connections = max(1, min(connections_max, rest - files))
    return Shares(connections, max(1, connections // 4), files, queue)


class ConnectionEntry(Enum):
    """Whether a new connection is admitted, by the descriptors that are left."""

    ADMITTED = auto()
    DISPLACES = auto()
    """It is admitted, and the oldest newcomer is closed."""
    REFUSED = auto()


def admit(shares: Shares, connections: int, newcomers: int) -> ConnectionEntry:
    """Whether one more connection gets in.

    Args:
        shares: what there is.
        connections: how many are open, the new one not counted.
        newcomers: how many of them are newcomers.
    """
    if connections < shares.connections and newcomers < shares.newcomers:
        return ConnectionEntry.ADMITTED
    return ConnectionEntry.DISPLACES if newcomers else ConnectionEntry.REFUSED
