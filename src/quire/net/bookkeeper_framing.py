"""Splits a stream of BookKeeper's frames: all whole frames of a chunk are handed over together, in one piece.

Those frames hold one entry each, so they come by the thousand; a copy and a call for each would cost more than what
is done with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from quire.net.framing import FrameProtocol, ReceiveBudget, Scratch
from quire.wire.bookkeeper import FRAME_BYTES_MAX, whole_frames
from quire.wire.entry import Buffer

KEPT_BYTES_MAX: Final = 32 * 1024
"""A cut frame up to this long waits beside the scratch buffer; a longer one gets memory of its own, budgeted."""


class BookKeeperFrames(FrameProtocol):
    """One connection's incoming half without a hello; subclasses take frames in `frames_received`."""

    def __init__(
        self, scratch: Scratch, budget: ReceiveBudget, frame_bytes_max: int = FRAME_BYTES_MAX
    ) -> None:
        super().__init__(scratch, budget, frame_bytes_max)
        self._kept_bytes_max = min(KEPT_BYTES_MAX, frame_bytes_max - 3)
        self._greeted = True
        self._long_expected = False

    def frames_received(self, data: Buffer, starts: Sequence[int]) -> None:
        """Whole frames, length fields included, and where in `data` each begins.

        Frames of one size come as a `range`, and then `data` is `bytes`. The memory is the receiver's.
        """
        raise NotImplementedError

    def frame_received(self, frame: memoryview) -> None:
        self.frames_received(frame, [0])

    def _split(self, data: memoryview) -> None:
        self._long_expected = False  # small frames may follow a long one, many in a chunk
        stretches, end = whole_frames(data, self._frame_bytes_max)
        if stretches:
            self.partial_since = None
        rest = data[end:]
        too_long = 0
        if len(rest) >= 4 and (size := int.from_bytes(rest[:4], "big")) >= self._kept_bytes_max:
            if size + 4 > self._frame_bytes_max:
                too_long = size + 4
            else:
                self._begin(rest)
        elif rest:
            self._keep(rest)
        if stretches:
            chunk = bytes(data[:end])
            for starts in stretches:
                self.frames_received(chunk, starts)
        if too_long:
            self._too_long(rest, too_long)
