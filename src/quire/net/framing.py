"""Splits a stream into frames, with every limit checked before memory is taken.

One shared scratch buffer receives small frames of all connections; a frame that does not end in the chunk it began
in gets a buffer of its own, which the socket then fills directly. So an idle connection costs nothing. After a long
frame only the head of the next is received into the scratch buffer, so that of long frames one after another next to
nothing is copied. Buffers of long frames are used again when nothing refers to them any more: fresh memory of that
size costs more than what is received into it.

Source: `docs/formats/native-protocol.md`.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import Sequence
from typing import ClassVar, Final, cast

from quire.core.errors import MalformedFrameError
from quire.net.connection_states import FIRST, FOLLOWS, HELLO, SECURING, ConnectionState
from quire.net.receive_memory import (
    HEAD_BYTES,
    LONG_FRAME_BYTES,
    LOOK_SECONDS,
    STALL_SECONDS,
    ReceiveBudget,
    Scratch,
)
from quire.net.security.tls import upgrade
from quire.wire import native_hello
from quire.wire.bookkeeper import whole_frames
from quire.wire.entry import Buffer
from quire.wire.frame_limits import SETTING

KEPT_BYTES_MAX = 32 * 1024
"""A cut frame of V2 or V3 up to this long waits outside the scratch buffer; a longer one gets memory of its own, budgeted."""
ABSURD: Final = 64
"""A frame so many times longer than the limit is no frame: its end is not awaited."""
ABSURD_BYTES: Final = 1 << 31
"""Nor is one whose length is negative to Java."""
_LENGTH = struct.Struct(">I")
_LENGTH_BYTES = _LENGTH.size


class FrameProtocol(asyncio.BufferedProtocol):
    """One connection's incoming half: a hello, then frames; or BookKeeper's frames, which begin without one.

    Subclasses say what to do with them in `hello_received`, `frame_received` or `frames_received`, `chunk_done`,
    `frame_too_long` and `broken`.

    Args:
        scratch, budget: the memory for what is received.
        frame_bytes_max: longest frame, its length field included.
        state: what comes first.
        in_chunks: V2 and V3: the whole frames of a chunk are handed over together, in one piece. They hold an entry
            each, so they come by the thousand; a copy and a call for each would cost more than what is done with it.

    Attributes:
        state: what comes next; only `enter` changes it.
        budgeted: bytes of the budget that its unfinished frame takes.
        waits: it is not read because there is no memory for its frame.
        partial_since: loop time at which the frame began that is not finished; None if there is none.
        has_received: something was received; the reader of the flag unsets it.
        short_kind: the kind, a frame's fifth byte, of those that `take_short` is asked about; -1: of none.
        too_long_head_bytes: how much of a frame above the limit `frame_too_long` wants to see.
    """

    short_kind = -1
    too_long_head_bytes: ClassVar[int] = 0

    def __init__(
        self,
        scratch: Scratch,
        budget: ReceiveBudget,
        frame_bytes_max: int,
        state: ConnectionState = HELLO,
        *,
        in_chunks: bool = False,
    ) -> None:
        self.state = state
        self._in_chunks = in_chunks
        self._kept_bytes_max = min(KEPT_BYTES_MAX, frame_bytes_max - 3)
        self._passing = 0
        self._scratch = scratch.view
        self._memory = scratch
        self._budget = budget
        self._frame_bytes_max = frame_bytes_max
        self._stub = b""
        self._frame: memoryview | None = None
        self._filled = 0
        self._frame_bytes = 0
        self._long_expected = False
        self.budgeted = 0
        self.waits = False
        self.has_received = False
        self.partial_since: float | None = None
        self.transport: asyncio.Transport | None = None
        self._upgrading: asyncio.Task[None] | None = None

    @property
    def buffered_bytes(self) -> int:
        """Bytes that the transport has taken and the system has not: they are lost if this process ends."""
        return 0 if self.transport is None else self.transport.get_write_buffer_size()

    @property
    def upgrading(self) -> bool:
        """Whether the handshake of TLS has begun, or is over."""
        return self._upgrading is not None

    def enter(self, state: ConnectionState) -> None:
        """Go on to another state, one that may follow."""
        assert state in FOLLOWS[self.state], f"a connection went from {self.state} to {state}"
        self.state = state

    # --- for subclasses ------------------------------------------------------------------------------------------

    def is_taken_over(self, start: memoryview) -> bool:  # noqa: ARG002 - subclasses look at it
        """The first bytes: whether another protocol's object takes them and all that follows."""
        self.enter(HELLO)
        return False

    def hello_received(self, body: memoryview) -> None:
        """The other side's hello, or its response to ours."""
        raise NotImplementedError

    def take_short(self, data: memoryview, at: int) -> int:  # noqa: ARG002 - subclasses look at it
        """Take frames that need no memory of their own, or many at once: those that begin at `at` in what was received.

        Returns:
            Where the rest begins; its first frame, if it is whole, goes to `frame_received`.
        """
        return at

    def frame_received(self, frame: memoryview) -> None:
        """One whole frame, length field included. The memory is the receiver's to keep."""
        raise NotImplementedError

    def frames_received(self, data: Buffer, starts: Sequence[int]) -> None:
        """Whole frames of V2 or V3, length fields included, and where in `data` each begins.

        Frames of one size come as a `range`, and then `data` is `bytes`. The memory is the receiver's.
        """
        raise NotImplementedError

    def frame_too_long(self, head: memoryview, size: int) -> None:
        """A frame of `size` bytes, its length field included, is above the limit, and its rest will be passed over.

        Args:
            head: what is here of it: `too_long_head_bytes` at least.

        Raises:
            MalformedFrameError: the connection ends with it.
        """
        del head
        msg = f"a frame of {size} bytes is longer than the limit of {self._frame_bytes_max} ({SETTING})"
        raise MalformedFrameError(msg)

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
        self.has_received = True
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
        if self.state is SECURING:
            self.enter(HELLO)

    def resume_reading(self) -> None:
        """Read on. Subclasses that have reasons of their own not to read check them here."""
        if self.transport is not None:
            self.transport.resume_reading()

    # --- splitting -----------------------------------------------------------------------------------------------

    def _split(self, data: memoryview) -> None:
        at, end = 0, len(data)
        self._long_expected = False
        if self._passing:
            self._pass_over(data)
            return
        if self._in_chunks:
            self._split_chunk(data)
            return
        if self.state is FIRST and self.is_taken_over(data):
            return
        if self.state is HELLO:
            hello = native_hello.split_hello(data)
            if hello is None:
                self._keep(data)
                return
            body, at = hello
            self.hello_received(body)
            if self.state is HELLO or (self.transport is not None and self.transport.is_closing()):
                return  # a refused client is not served
            if self.state is SECURING and at < end:
                msg = "unencrypted bytes after a START_TLS request"
                raise MalformedFrameError(msg)
        while True:
            if end - at > _LENGTH_BYTES and data[at + _LENGTH_BYTES] == self.short_kind:
                start, at = at, self.take_short(data, at)
                if at != start:
                    self.partial_since = None
            if end - at < _LENGTH_BYTES:
                break
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

    def _split_chunk(self, data: memoryview) -> None:
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
        if self._in_chunks:
            self.frames_received(frame, [0])
        else:
            self.frame_received(frame)

    def _release(self) -> None:
        self._frame = None
        if self.budgeted:
            size, self.budgeted = self.budgeted, 0
            self._budget.give(size)

    def _too_long(self, data: memoryview, size: int) -> None:
        """`data` begins with a frame above the limit."""
        if size > min(ABSURD * self._frame_bytes_max, ABSURD_BYTES):
            msg = (
                f"a frame of {size} bytes far exceeds the limit of {self._frame_bytes_max} "
                f"({SETTING}) and is not a frame"
            )
            raise MalformedFrameError(msg)
        if len(data) < self.too_long_head_bytes:
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
