"""Back-pressure of responses that clients do not read: how much memory they may take, and how long one may be."""

from __future__ import annotations

from typing import Final

SHARE: Final = 8
"""One more response takes at most this part of what is left."""
ANSWER_BYTES_MIN: Final = 64 * 1024
"""A response may have so many bytes however little is left; its first entry comes in any case."""
STALL_SECONDS: Final = 2.0
"""While more than half is taken, a client that has read nothing for so long is cut off."""


class ResponseBackPressure:
    """The connections whose responses wait until their clients read them; the more they take, the less each may add.

    Args:
        bytes_max: for all of them.
        read_bytes_max: the longest response to one read while there is plenty.

    Attributes:
        answer_bytes_max: the longest response to one read now.
    """

    def __init__(self, bytes_max: int, read_bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._read_bytes_max = read_bytes_max
        self._waiting: dict[object, int] = {}
        self._taken = 0
        self.answer_bytes_max = read_bytes_max

    def wait(self, connection: object, size: int) -> None:
        """So many bytes wait for a client to read; it is served no more until it has."""
        self.done(connection)
        self._waiting[connection] = size
        self._taken += size
        self._share()

    @property
    def held_bytes(self) -> int:
        """How many bytes wait for clients to read them."""
        return self._taken

    def done(self, connection: object) -> None:
        """It has read them, or has disconnected."""
        size = self._waiting.pop(connection, 0)
        if size:
            self._taken -= size
            self._share()

    def stall_seconds_max(self, usual_seconds: float) -> float:
        """How long a client may read nothing before it is cut off, in seconds."""
        return STALL_SECONDS if 2 * self._taken > self._bytes_max else usual_seconds

    def _share(self) -> None:
        left = (self._bytes_max - self._taken) // SHARE
        self.answer_bytes_max = max(min(left, self._read_bytes_max), ANSWER_BYTES_MIN)
