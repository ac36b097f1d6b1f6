"""When a connection is silent: it takes bytes, nothing ever comes back, and the system reports no error.

A firewall that forgot the flow and a host without power look like that. A slow bookie does not: it answers late, but it
answers. So a time-out alone ends no connection. The machine is looked at now and then, with what happened since:

| what happened since the last look | then |
| --- | --- |
| something was received | nothing is probed any more |
| nothing; a request has expired | it is probed from now on: ask for a sign of life |
| nothing; it has been probed for `SILENT_MS` | it is silent: close it, and make another |
| nothing else | wait |

A request that its sender gave up counts when its deadline has passed, as if it were waited for: else a client that asks
another bookie instead would never find out.

Source: RFC 5482 (TCP user timeout), section 1, on connections that neither end knows to be broken.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

SILENT_MS: Final = 2_000
"""How long nothing is received after an expired request until a connection counts as silent."""
KEEPALIVE_IDLE_SECONDS: Final = 6
KEEPALIVE_EVERY_SECONDS: Final = 3
KEEPALIVE_PROBES: Final = 3
USER_TIMEOUT_MS: Final = 12_000
"""What the system is asked for at both ends: it ends a connection whose other end has acknowledged nothing for 12 to 15 s."""


class Silence(Enum):
    """The result of a check of a connection."""

    NONE = auto()
    PROBED = auto()
    """A request has expired and nothing comes: ask something that is answered at once."""
    SILENT = auto()
    """Close it."""


class SilenceMachine:
    """One connection's. Times are milliseconds of one monotonic clock."""

    __slots__ = ("_given_up_ms", "_since_ms")

    def __init__(self) -> None:
        self._since_ms: int | None = None
        self._given_up_ms: int | None = None

    def given_up(self, deadline_ms: int) -> None:
        """A sender waits no more for the response to a request, which should have come until a moment."""
        if self._given_up_ms is None or deadline_ms < self._given_up_ms:
            self._given_up_ms = deadline_ms

    def look(self, now_ms: int, *, received: bool, expired: bool) -> Silence:
        """What the connection is now.

        Args:
            now_ms: the time.
            received: something was received since the last look.
            expired: a request has passed its deadline without a response since the last look.
        """
        if received:
            self._since_ms = self._given_up_ms = None
            return Silence.NONE
        if self._given_up_ms is not None and self._given_up_ms <= now_ms:
            self._given_up_ms, expired = None, True
        if self._since_ms is None:
            if not expired:
                return Silence.NONE
            self._since_ms = now_ms
            return Silence.PROBED
        return Silence.SILENT if now_ms - self._since_ms >= SILENT_MS else Silence.NONE
