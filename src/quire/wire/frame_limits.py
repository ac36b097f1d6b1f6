"""How long a frame may be, in our own protocol and in BookKeeper's two, and how large an entry then may be.

One setting, `frame_bytes_max`, changes both; a bookie and the clients that speak to it should have the same.

Source: `docs/formats/bookkeeper-protocol.md`, "How long a frame may be".
"""

from __future__ import annotations

from typing import Final, NamedTuple

from quire.core.settings import Range
from quire.wire import bookkeeper, native

NATIVE_ROOM: Final = 32 * 1024
"""What a frame of our own protocol has around an entry is less: 156 bytes in a request, and in a response up to 1,024
intervals of entries for which the response is inconclusive."""
BOOKKEEPER_ROOM: Final = 128
"""The same in V2 (40 bytes at most, in a batch) and in V3 (82, in an add)."""
HEADER_ROOM: Final = 96
"""An entry's own header with its digest is less (52 bytes with MAC)."""
FRAME_BYTES_LOWEST: Final = 64 * 1024
FRAME_BYTES_HIGHEST: Final = 1024 * 1024 * 1024 - 64 * 1024
"""Below 1 GiB, so that lengths stay positive for Java and no frame begins as our own hello does."""
SETTING: Final = "`frame_bytes_max`"
"""How a client's messages name the setting; a shell shows it as its option."""
OPTION: Final = "frame_bytes_max, --frame-bytes-max"
"""How a bookie's log names it."""


class FrameLimits(NamedTuple):
    """The longest frames, their length fields included, in bytes.

    Attributes:
        native: of our own protocol.
        bookkeeper: of V2 and V3.
    """

    native: int = native.FRAME_BYTES_MAX
    bookkeeper: int = bookkeeper.FRAME_BYTES_MAX

    @classmethod
    def of(cls, frame_bytes_max: int | None) -> FrameLimits:
        """What a setting means; None: the defaults.

        Frames of our own protocol may be `NATIVE_ROOM` longer than was said: an entry that came in the longest frame
        of V2 is to leave in one of ours, to a reader or to another bookie.
        """
        if frame_bytes_max is None:
            return cls()
        return cls(frame_bytes_max + NATIVE_ROOM, frame_bytes_max)

    @property
    def native_entry(self) -> int:
        """The largest entry, its header included, that our own protocol carries in any frame."""
        return self.native - NATIVE_ROOM

    @property
    def bookkeeper_entry(self) -> int:
        """The largest entry, its header included, that V2 and V3 carry in any frame."""
        return self.bookkeeper - BOOKKEEPER_ROOM


def frame_range(highest: int, why: str) -> Range:
    """What `frame_bytes_max` may be where a program holds this much at most, and where that comes from."""
    return Range(FRAME_BYTES_LOWEST, min(highest, FRAME_BYTES_HIGHEST), or_none=True, why=why)
