"""The memory into which all connections of a process receive: a scratch buffer, and a budget for unfinished frames.

Source: `docs/formats/native-protocol.md`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

SCRATCH_BYTES = 256 * 1024
LONG_FRAME_BYTES = 128 * 1024
FRAME_STEP_BYTES = 32 * 1024
HEAD_BYTES = 4096
"""What is received of a frame that is expected to be long, to know its size."""
LONG_FRAMES_BYTES_MAX = 8 * 1024 * 1024
"""How much memory of long frames is kept to be used again, unless a caller keeps the frames themselves."""
STALL_SECONDS = 1.0
"""How long a frame may be unfinished while others wait for the memory that it takes."""
LOOK_SECONDS = STALL_SECONDS / 4
"""How often that is checked, while a connection waits."""
BUFFERS_TRIED = 4
"""How many buffers are tried at either end: the newest are still in the processor's cache, the oldest likely free."""


class Receiver(Protocol):
    """A connection, which stands above, as the budget sees it."""

    waits: bool
    budgeted: int
    partial_since: float | None

    def go_on(self) -> None:
        """There may be memory again for the frame that had to wait."""

    def give_up(self, reason: str) -> None:
        """End the connection because of its unfinished frame."""


class ReceiveBudget:
    """Bounds the memory of unfinished frames over all connections of one process.

    While less than half of it is taken, a connection that begins a frame gets memory for all of it. Beyond that a frame
    gets memory as its bytes come, twice what has come: so announcing alone takes no memory from others. Where there is
    no room even for that, a connection is not read; and a frame that has been unfinished for a second then ends with
    its connection, the oldest first, until none waits.

    Args:
        bytes_max: how many bytes unfinished frames may take together.

    Attributes:
        taken: how many they take.
        sips_from: with so many taken, little is received at one time.
    """

    __slots__ = ("_members", "_timer", "_waiting", "_whole_max", "bytes_max", "sips_from", "taken")

    def __init__(self, bytes_max: int = 128 * 1024 * 1024) -> None:
        self.bytes_max = bytes_max
        self.sips_from = bytes_max - bytes_max // 8
        self.taken = 0
        self._whole_max = bytes_max // 2
        self._members: dict[Receiver, None] = {}
        self._waiting: deque[Receiver] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def join(self, protocol: Receiver) -> None:
        """A connection begins."""
        self._members[protocol] = None

    def leave(self, protocol: Receiver) -> None:
        """A connection has ended."""
        self._members.pop(protocol, None)
        if protocol.waits:
            protocol.waits = False
            self._waiting.remove(protocol)

    def grant(
        self, protocol: Receiver, received: int, left: int, *, sends: bool, waited: bool = False
    ) -> int:
        """Take memory for a frame.

        Args:
            protocol: whose; what it has of the budget counts as its own.
            received: bytes of the frame that came.
            left: bytes that are still to come.
            sends: it has filled what it got before, so it waits before those that may send nothing.
            waited: it has done so, and is spared a second time if that is possible.

        Returns:
            For how many bytes more there is memory; 0: for none now, and `protocol.go_on()` is called later.
        """
        whole_max = self.bytes_max if waited and sends else self._whole_max
        if self.taken + left <= whole_max or self.taken == protocol.budgeted:
            more = left
        else:
            more = min(left, received)
            if self.taken + more > self.bytes_max:
                self.wait(protocol, first=sends)
                return 0
        self.taken += more
        protocol.budgeted += more
        return more

    def has_plenty(self, size: int) -> bool:
        """Whether a frame of this size gets memory for all of it."""
        return self.taken + size <= self._whole_max or not self.taken

    def is_full_for(self, protocol: Receiver) -> bool:
        """Whether no more may be taken; alone, a connection may always."""
        return self.taken > self.bytes_max and self.taken > protocol.budgeted

    def wait(self, protocol: Receiver, *, first: bool = False) -> None:
        """Call `protocol.go_on()` when there is room again; before all that wait now, or behind them."""
        if not protocol.waits:
            protocol.waits = True
            if first:
                self._waiting.appendleft(protocol)
            else:
                self._waiting.append(protocol)
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._make_room)

    def give(self, size: int) -> None:
        """Give bytes back; waiting connections try again."""
        self.taken -= size
        if self._waiting:
            self._try_again()

    def _try_again(self) -> None:
        for _ in range(len(self._waiting)):
            if self.taken >= self.bytes_max and self.taken > self._waiting[0].budgeted:
                return
            protocol = self._waiting.popleft()
            protocol.waits = False
            protocol.go_on()
            if protocol.waits:
                # Still too much for it: it keeps its place.
                self._waiting.remove(protocol)
                self._waiting.appendleft(protocol)
                return

    def _make_room(self) -> None:
        """Frames that have been unfinished for long, while others wait for memory, end with their connections."""
        loop = asyncio.get_running_loop()
        self._timer = None
        latest = loop.time() - STALL_SECONDS
        held = [
            (protocol.partial_since, protocol)
            for protocol in self._members
            if protocol.budgeted and not protocol.waits and protocol.partial_since is not None
        ]
        for_others = [
            protocol for since, protocol in sorted(held, key=lambda pair: pair[0]) if since <= latest
        ]
        if not held:
            # All that is taken is with those that wait for more: the last in the queue make room for the first.
            for_others = list(self._waiting)[:0:-1]
        for protocol in for_others:
            if not self._waiting:
                break
            protocol.give_up(
                f"a frame was incomplete for {STALL_SECONDS:.0f} s while other connections waited for memory"
            )
        if self._waiting:
            self._timer = loop.call_later(LOOK_SECONDS, self._make_room)


class Scratch:
    """The receive memory that all connections of one event loop share.

    Attributes:
        view: what is received into between two callbacks.
    """

    __slots__ = ("_frames", "_frames_bytes", "_frames_bytes_max", "view")

    def __init__(self, size: int = SCRATCH_BYTES, *, frames_bytes_max: int = LONG_FRAMES_BYTES_MAX) -> None:
        self.view = memoryview(bytearray(size))
        self._frames: deque[bytearray] = deque()
        self._frames_bytes = 0
        self._frames_bytes_max = frames_bytes_max

    def frame(self, size: int) -> memoryview:
        """Memory for one frame, its receiver's until the last view of it is released."""
        if size < LONG_FRAME_BYTES:
            return memoryview(bytearray(size))
        frames = self._frames
        for index in (*range(BUFFERS_TRIED), *range(-1, -BUFFERS_TRIED - 1, -1)):
            if index >= len(frames) or -index > len(frames):
                continue
            buffer = frames[index]
            if len(buffer) >= size and _is_free(buffer):
                del frames[index]
                break
        else:
            buffer = bytearray(-(-size // FRAME_STEP_BYTES) * FRAME_STEP_BYTES)
            self._frames_bytes += len(buffer)
        frames.appendleft(buffer)
        while self._frames_bytes > self._frames_bytes_max:
            self._frames_bytes -= len(frames.pop())
        return memoryview(buffer)[:size]

    def give_back(self) -> None:
        """Keep no memory of frames that nothing refers to any more."""
        self._frames = deque(buffer for buffer in self._frames if not _is_free(buffer))
        self._frames_bytes = sum(map(len, self._frames))


def _is_free(buffer: bytearray) -> bool:
    """Whether there is no view of a buffer: while there is one, Python refuses to change its size."""
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return False
    return True
