"""Frames that are longer than they may be: passed over without memory for them, so that the connection lives.

Source: `docs/formats/bookkeeper-protocol.md`, "How long a frame may be".
"""

from __future__ import annotations

from typing import ClassVar, Final

from quire.core.errors import MalformedFrameError
from quire.wire.frame_limits import SETTING

ABSURD: Final = 64
"""A frame so many times longer than the limit is no frame: its end is not awaited."""
ABSURD_BYTES: Final = 1 << 31
"""Nor is one whose length is negative to Java."""


class PassesOver:
    """What `FrameProtocol` does with a frame above its limit: ask what it is, then drop its bytes as they come.

    Attributes:
        told_bytes: how much of such a frame `frame_too_long` wants to see.
    """

    told_bytes: ClassVar[int] = 0
    partial_since: float | None
    _frame_bytes_max: int
    _passing: int

    def frame_too_long(self, head: memoryview, size: int) -> None:
        """A frame of `size` bytes, its length field included, is above the limit, and its rest will be passed over.

        Args:
            head: what is here of it: `told_bytes` at least.

        Raises:
            MalformedFrameError: the connection ends with it.
        """
        del head
        msg = f"a frame of {size} bytes is longer than the limit of {self._frame_bytes_max} ({SETTING})"
        raise MalformedFrameError(msg)

    def _too_long(self, data: memoryview, size: int) -> None:
        """`data` begins with a frame above the limit."""
        if size > min(ABSURD * self._frame_bytes_max, ABSURD_BYTES):
            msg = (
                f"a frame of {size} bytes far exceeds the limit of {self._frame_bytes_max} "
                f"({SETTING}) and is not a frame"
            )
            raise MalformedFrameError(msg)
        if len(data) < self.told_bytes:
            self._keep(data)
            return
        self.frame_too_long(data, size)
        self._mark_partial(partial=True)
        self._passing = size
        self._pass_over(data)

    def _pass_over(self, data: memoryview) -> None:
        """Drop what comes until the end of that frame."""
        left = self._passing
        if len(data) < left:
            self._passing = left - len(data)
            return
        self._passing = 0
        self._mark_partial(partial=False)
        if len(data) > left:
            self._split(data[left:])

    # --- what `FrameProtocol` has --------------------------------------------------------------------------------

    def _split(self, data: memoryview) -> None:
        raise NotImplementedError

    def _keep(self, rest: memoryview) -> None:
        raise NotImplementedError

    def _mark_partial(self, partial: bool) -> None:
        raise NotImplementedError
