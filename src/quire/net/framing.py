"""Splits a stream into frames, with every limit checked before memory is taken.

One shared scratch buffer receives small frames of all connections; a frame that does not end in the chunk it began
in gets a buffer of its own, which the socket then fills directly. So an idle connection costs nothing. Behind a long
frame only the head of the next is received into the scratch buffer, so that of long frames one after another next to
nothing is copied. Buffers of long frames are used again when nobody looks at them any more: fresh memory of that
size costs more than what is received into it.

Source: `docs/formats/native-protocol.md`.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from typing import cast

from quire.core.errors import MalformedFrameError
from quire.wire import native

SCRATCH_BYTES = 256 * 1024
LONG_FRAME_BYTES = 128 * 1024
FRAME_STEP_BYTES = 32 * 1024
HEAD_BYTES = 4096
"""What is received of a frame that is expected to be long, to know its size."""
LONG_FRAMES_BYTES_MAX = 8 * 1024 * 1024
"""How much memory of long frames is kept to be used again, unless somebody keeps the frames themselves."""
LOOKED_AT = 4
"""How many buffers are tried at either end: the newest are still in the processor's cache, the oldest likely free."""
_LENGTH = struct.Struct(">I")
_LENGTH_BYTES = _LENGTH.size


class ReceiveBudget:
    """Bounds the memory of unfinished frames over all connections of one process.

    Args:
        bytes_max: how many bytes unfinished frames may take together.
    """

    __slots__ = ("_waiting", "bytes_max", "taken")

    def __init__(self, bytes_max: int = 128 * 1024 * 1024) -> None:
        self.bytes_max = bytes_max
        self.taken = 0
        self._waiting: deque[FrameProtocol] = deque()

    def take(self, protocol: FrameProtocol, size: int) -> bool:
        """Take `size` bytes; False if there is no room now: `protocol.budget_available()` is called later."""
        if self.taken and self.taken + size > self.bytes_max:
            self._waiting.append(protocol)
            return False
        self.taken += size
        return True

    def give(self, size: int) -> None:
        """Give bytes back and let the next that waits try again."""
        self.taken -= size
        if self._waiting:
            self._waiting.popleft().budget_available()

    def forget(self, protocol: FrameProtocol) -> None:
        """A connection that waited is gone."""
        if protocol in self._waiting:
            self._waiting.remove(protocol)


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
        """Memory for one frame, its receiver's until the last view of it is gone."""
        if size < LONG_FRAME_BYTES:
            return memoryview(bytearray(size))
        frames = self._frames
        for index in (*range(LOOKED_AT), *range(-1, -LOOKED_AT - 1, -1)):
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


def _is_free(buffer: bytearray) -> bool:
    """Whether there is no view of a buffer: while there is one, Python refuses to change its size."""
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return False
    return True


class FrameProtocol(asyncio.BufferedProtocol):
    """One connection's incoming half: a hello, then frames.

    Subclasses say what to do with them in `hello_received`, `frame_received`, `chunk_done` and `broken`.
    """

    def __init__(self, scratch: Scratch, budget: ReceiveBudget, frame_bytes_max: int) -> None:
        self._scratch = scratch.view
        self._memory = scratch
        self._budget = budget
        self._frame_bytes_max = frame_bytes_max
        self._greeted = False
        self._stub = b""
        self._frame: memoryview | None = None
        self._filled = 0
        self._long_expected = False
        self._budgeted = 0
        self._starved = b""
        self.partial_since: float | None = None
        self.transport: asyncio.Transport | None = None

    # --- for subclasses ------------------------------------------------------------------------------------------

    def hello_received(self, body: memoryview) -> None:
        """The other side's hello, or its answer to ours."""
        raise NotImplementedError

    def frame_received(self, frame: memoryview) -> None:
        """One whole frame, length field included. The memory is the receiver's to keep."""
        raise NotImplementedError

    def chunk_done(self) -> None:
        """All frames of what was received in one go have been handed over."""

    def broken(self, error: MalformedFrameError) -> None:
        """The stream cannot be understood any more; the connection is about to be closed."""
        raise NotImplementedError

    # --- asyncio -------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not an isinstance check: uvloop's transports have all methods of asyncio.Transport, but not the class.
        self.transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        if self._frame is not None:
            return self._frame[self._filled :]
        if not self._stub:
            return self._scratch[:HEAD_BYTES] if self._long_expected else self._scratch
        self._scratch[: len(self._stub)] = self._stub
        return self._scratch[len(self._stub) :]

    def buffer_updated(self, nbytes: int) -> None:
        try:
            if self._frame is not None:
                self._filled += nbytes
                if self._filled < len(self._frame):
                    return
                self._frame_complete()
            else:
                end = len(self._stub) + nbytes
                self._stub = b""
                self._split(self._scratch[:end])
        except MalformedFrameError as error:
            self._fail(error)
            return
        self.chunk_done()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._budget.forget(self)
        self._release()
        self.transport = None

    def budget_available(self) -> None:
        """Memory is free again: go on with the frame that had to wait."""
        if self.transport is None or self.transport.is_closing():
            return
        waiting, self._starved = self._starved, b""
        if self._begin(memoryview(waiting)):
            self.resume_reading()

    def resume_reading(self) -> None:
        """Read on. Subclasses that have reasons of their own not to read check them here."""
        if self.transport is not None:
            self.transport.resume_reading()

    # --- splitting -----------------------------------------------------------------------------------------------

    def _split(self, data: memoryview) -> None:
        at, end = 0, len(data)
        self._long_expected = False
        if not self._greeted:
            hello = native.split_hello(data)
            if hello is None:
                self._keep(data)
                return
            body, at = hello
            self._greeted = True
            self.hello_received(body)
        while end - at >= _LENGTH_BYTES:
            size = _LENGTH_BYTES + _LENGTH.unpack_from(data, at)[0]
            if size > self._frame_bytes_max:
                msg = f"a frame of {size} bytes is longer than the limit of {self._frame_bytes_max}"
                raise MalformedFrameError(msg)
            if size > end - at:
                self._begin(data[at:])
                return
            self._long_expected = size >= LONG_FRAME_BYTES
            self.partial_since = None
            self.frame_received(memoryview(bytes(data[at : at + size])))
            at += size
        if at < end:
            self._keep(data[at:])
        else:
            self.partial_since = None

    def _keep(self, rest: memoryview) -> None:
        """Keep what is too short to tell the size of its frame."""
        self._stub = bytes(rest)
        self._mark_partial(partial=True)

    def _begin(self, start: memoryview) -> bool:
        """Give the frame that starts here its own buffer; False if the budget has none now."""
        size = _LENGTH_BYTES + _LENGTH.unpack_from(start)[0]
        self._mark_partial(partial=True)
        if not self._budget.take(self, size):
            self._starved = bytes(start)
            if self.transport is not None:
                self.transport.pause_reading()
            return False
        self._budgeted = size
        self._frame = self._memory.frame(size)
        self._frame[: len(start)] = start
        self._filled = len(start)
        return True

    def _frame_complete(self) -> None:
        frame, self._frame = self._frame, None
        self._filled = 0
        self._mark_partial(partial=False)
        self._release()
        assert frame is not None
        self._long_expected = len(frame) >= LONG_FRAME_BYTES
        self.frame_received(frame)

    def _release(self) -> None:
        self._frame = None
        if self._budgeted:
            size, self._budgeted = self._budgeted, 0
            self._budget.give(size)

    def _mark_partial(self, partial: bool) -> None:
        if not partial:
            self.partial_since = None
        elif self.partial_since is None:
            self.partial_since = asyncio.get_running_loop().time()

    def _fail(self, error: MalformedFrameError) -> None:
        self._stub = b""
        self._release()
        self.broken(error)
        if self.transport is not None:
            self.transport.abort()
