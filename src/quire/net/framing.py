"""Splits a stream into frames, with every limit checked before memory is taken.

One shared scratch buffer receives small frames of all connections; a frame that does not end in the chunk it began
in gets a buffer of its own, which the socket then fills directly. So an idle connection costs nothing. Behind a long
frame only the head of the next is received into the scratch buffer, so that of long frames one after another next to
nothing is copied. Buffers of long frames are used again when nothing refers to them any more: fresh memory of that
size costs more than what is received into it.

Source: `docs/formats/native-protocol.md`.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections import deque
from typing import cast

from quire.core.errors import MalformedFrameError
from quire.net.tls import upgrade
from quire.net.too_long import PassesOver
from quire.wire import native_hello

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
LOOKED_AT = 4
"""How many buffers are tried at either end: the newest are still in the processor's cache, the oldest likely free."""
_LENGTH = struct.Struct(">I")
_LENGTH_BYTES = _LENGTH.size


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
        self._members: dict[FrameProtocol, None] = {}
        self._waiting: deque[FrameProtocol] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def join(self, protocol: FrameProtocol) -> None:
        """A connection begins."""
        self._members[protocol] = None

    def leave(self, protocol: FrameProtocol) -> None:
        """A connection is gone."""
        self._members.pop(protocol, None)
        if protocol.waits:
            protocol.waits = False
            self._waiting.remove(protocol)

    def grant(
        self, protocol: FrameProtocol, received: int, left: int, *, sends: bool, waited: bool = False
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

    def is_full_for(self, protocol: FrameProtocol) -> bool:
        """Whether no more may be taken; alone, a connection may always."""
        return self.taken > self.bytes_max and self.taken > protocol.budgeted

    def wait(self, protocol: FrameProtocol, *, first: bool = False) -> None:
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


class FrameProtocol(PassesOver, asyncio.BufferedProtocol):
    """One connection's incoming half: a hello, then frames.

    Subclasses say what to do with them in `hello_received`, `frame_received`, `chunk_done`, `frame_too_long` and
    `broken`.

    Attributes:
        budgeted: bytes of the budget that its unfinished frame takes.
        waits: it is not read because there is no memory for its frame.
        partial_since: loop time at which the frame began that is not finished; None if there is none.
        heard: something was received; the reader of the flag unsets it.
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
        self._frame_bytes = 0
        self._long_expected = False
        self.budgeted = 0
        self.waits = False
        self.heard = False
        self.partial_since: float | None = None
        self.transport: asyncio.Transport | None = None
        self._upgrading: asyncio.Task[None] | None = None

    @property
    def buffered_bytes(self) -> int:
        """Bytes that the transport has taken and the system has not: they are gone if this process ends."""
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    # --- for subclasses ------------------------------------------------------------------------------------------

    def hello_received(self, body: memoryview) -> None:
        """The other side's hello, or its response to ours."""
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
        self._budget.join(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        if self._frame is not None:
            return self._frame[self._filled :]
        if not self._stub:
            if self._long_expected or self._budget.taken > self._budget.sips_from:
                return self._scratch[:HEAD_BYTES]
            return self._scratch
        self._scratch[: len(self._stub)] = self._stub
        return self._scratch[len(self._stub) :]

    def buffer_updated(self, nbytes: int) -> None:
        self.heard = True
        try:
            if self._frame is not None:
                self._filled += nbytes
                if self._filled < len(self._frame):
                    return
                if self._filled < self._frame_bytes:
                    self._grow()
                    return
                self._frame_complete()
            else:
                end = nbytes
                if self._stub:
                    end += len(self._stub)
                    self._stub = b""
                    self._release()
                self._split(self._scratch[:end])
        except MalformedFrameError as error:
            self._fail(error)
            return
        self.chunk_done()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._budget.leave(self)
        self._stub = b""
        self._release()
        self.transport = None

    def go_on(self) -> None:
        """There may be memory again for the frame that had to wait."""
        if self.transport is None or self.transport.is_closing():
            return
        if self._frame is not None:
            self._grow(waited=True)
        elif self._frame_bytes:
            stub, self._stub = self._stub, b""
            self._charge(-len(stub))
            self._begin(memoryview(stub))
        elif self._budget.is_full_for(self):
            self._budget.wait(self)
        if not self.waits:
            # It had to wait; now it has a moment to make use of what it got.
            self.partial_since = asyncio.get_running_loop().time() - STALL_SECONDS + LOOK_SECONDS
            self.resume_reading()

    def give_up(self, reason: str) -> None:
        """End the connection because of its unfinished frame."""
        self._budget.leave(self)
        self._fail(MalformedFrameError(reason))

    def begin_tls(
        self, context: ssl.SSLContext, *, server_side: bool, seconds: float, host: str | None = None
    ) -> None:
        """Go on under TLS: ends with `secured` or `connection_lost`; until then nothing may be written.

        Raises:
            MalformedFrameError: more came in clear, which a third party may have inserted.
        """
        if self._stub or self._frame is not None:
            msg = "unencrypted bytes after the agreement to use TLS"
            raise MalformedFrameError(msg)
        assert self.transport is not None
        self.transport.pause_reading()
        handshake = upgrade(self, context, server_side=server_side, seconds=seconds, host=host)
        self._upgrading = asyncio.get_running_loop().create_task(handshake, name="TLS handshake")

    def secured(self, transport: asyncio.Transport) -> None:
        """TLS is up: what comes and goes does so through this transport."""
        self.transport = transport

    def resume_reading(self) -> None:
        """Read on. Subclasses that have reasons of their own not to read check them here."""
        if self.transport is not None:
            self.transport.resume_reading()

    # --- splitting -----------------------------------------------------------------------------------------------

    def _split(self, data: memoryview) -> None:
        at, end = 0, len(data)
        self._long_expected = False
        if not self._greeted:
            hello = native_hello.split_hello(data)
            if hello is None:
                self._keep(data)
                return
            body, at = hello
            self._greeted = True
            self.hello_received(body)
            if self.transport is not None and self.transport.is_closing():
                return  # a refused client is not served
            if not self._greeted and at < end:
                msg = "unencrypted bytes after a START_TLS request"
                raise MalformedFrameError(msg)
        while end - at >= _LENGTH_BYTES:
            size = _LENGTH_BYTES + _LENGTH.unpack_from(data, at)[0]
            if size > self._frame_bytes_max:
                self._too_long(data[at:], size)
                return
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
        """Keep what is too short to contain the size of its frame, or to deserve memory for all of it."""
        self._stub = bytes(rest)
        self._frame_bytes = 0
        self._mark_partial(partial=True)
        self._charge(len(rest))
        if self._budget.is_full_for(self):
            self._budget.wait(self)
            self._pause()

    def _begin(self, start: memoryview) -> None:
        """Give the frame that starts here its own buffer, or wait for one."""
        received = len(start)
        size = _LENGTH_BYTES + _LENGTH.unpack_from(start)[0]
        if received < HEAD_BYTES <= len(self._scratch) // 2 and not self._budget.has_plenty(size):
            self._keep(start)
            return
        self._mark_partial(partial=True)
        self._frame_bytes = size
        self._charge(received)
        more = self._budget.grant(self, received, size - received, sends=False)
        if not more:
            self._stub = bytes(start)
            self._pause()
            return
        self._frame = self._memory.frame(received + more)
        self._frame[:received] = start
        self._filled = received

    def _grow(self, *, waited: bool = False) -> None:
        """Give a frame that has filled its memory more of it, or wait for that."""
        filled, frame = self._filled, self._frame
        assert frame is not None
        more = self._budget.grant(self, filled, self._frame_bytes - filled, sends=True, waited=waited)
        if not more:
            self._pause()
            return
        self._frame = self._memory.frame(filled + more)
        self._frame[:filled] = frame

    def _charge(self, size: int) -> None:
        """Count bytes that are here, whether there is room or not; fewer, when they are to be counted anew."""
        self._budget.taken += size
        self.budgeted += size

    def _pause(self) -> None:
        if self.transport is not None:
            self.transport.pause_reading()

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
        if self.budgeted:
            size, self.budgeted = self.budgeted, 0
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
