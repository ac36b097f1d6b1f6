"""Who gets memory for unfinished frames while there is little of it, who waits, and who has to go."""

from __future__ import annotations

import asyncio
import ssl
import struct

import pytest

from quire.core.errors import MalformedFrameError
from quire.net.connection_states import OPEN
from quire.net.framing import FrameProtocol
from quire.net.receive_memory import HEAD_BYTES, STALL_SECONDS, ReceiveBudget, Scratch
from quire.net.security.tls import upgrade
from quire.wire import native_hello
from quire.wire.bookkeeper import FRAME_BYTES_MAX
from quire.wire.entry import Buffer
from quire_testing.sim.loop import SECOND
from support.hostile_worlds import Line, StillWorld, feed

HELLO = native_hello.encode_hello(native_hello.Hello("cluster", "bookie"))
FRAME = 100_000
STALL_NS = int(STALL_SECONDS * SECOND)


class ReadingLine(Line):
    """A line that knows whether it is read, and tells its receiver of its end."""

    def __init__(self, receiver: FrameProtocol) -> None:
        super().__init__()
        self.reading = True
        self.receiver = receiver

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def abort(self) -> None:
        self.closed = True
        self.receiver.connection_lost(None)


class Native(FrameProtocol):
    def __init__(self, budget: ReceiveBudget) -> None:
        super().__init__(Scratch(), budget, 1 << 20)
        self.frames: list[bytes] = []
        self.reasons: list[str] = []

    def hello_received(self, body: memoryview) -> None:
        self.enter(OPEN)

    def frame_received(self, frame: memoryview) -> None:
        self.frames.append(bytes(frame))

    def broken(self, error: MalformedFrameError) -> None:
        self.reasons.append(error.message)


class Old(FrameProtocol):
    def __init__(self, budget: ReceiveBudget) -> None:
        super().__init__(Scratch(), budget, FRAME_BYTES_MAX, OPEN, in_chunks=True)
        self.frames: list[bytes] = []
        self.reasons: list[str] = []

    def frames_received(self, data: Buffer, starts: list[int]) -> None:
        self.frames.append(bytes(data))

    def broken(self, error: MalformedFrameError) -> None:
        self.reasons.append(error.message)


class Room(StillWorld):
    """Connections over one budget."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__()
        self.budget = ReceiveBudget(bytes_max)

    def connect(self, kind: type = Native) -> tuple[FrameProtocol, ReadingLine]:
        protocol = kind(self.budget)
        line = ReadingLine(protocol)
        self.inside(lambda: protocol.connection_made(line))
        if kind is Native:
            self.hear(protocol, line, HELLO)
        return protocol, line

    def hear(self, protocol: FrameProtocol, line: ReadingLine, data: bytes) -> None:
        at = 0
        while at < len(data) and line.reading and not line.closed:
            step = data[at : at + 4096]
            self.inside(lambda step=step: feed(protocol, [step], line))
            at += len(step)


def frame_of(size: int) -> bytes:
    return struct.pack(">I", size - 4) + b"x" * (size - 4)


def test_beyond_half_of_it_announcing_takes_nothing() -> None:
    room = Room(4 * FRAME)
    for _ in range(50):
        room.hear(*room.connect(), frame_of(FRAME)[:10])
    assert room.budget.taken == 2 * FRAME + 48 * 10
    good, line = room.connect()
    room.hear(good, line, frame_of(FRAME))
    assert good.frames == [frame_of(FRAME)]
    assert room.budget.taken == 2 * FRAME + 48 * 10


@pytest.mark.parametrize("kind", [Native, Old])
def test_who_finds_no_room_waits_and_the_oldest_unfinished_frame_makes_it(kind: type) -> None:
    room = Room(4 * FRAME)
    stalled = [room.connect(kind) for _ in range(12)]
    for protocol, line in stalled:
        room.hear(protocol, line, frame_of(FRAME)[: FRAME // 2])
    assert room.budget.taken <= room.budget.bytes_max + 12 * HEAD_BYTES
    good, line = room.connect(kind)
    room.hear(good, line, frame_of(FRAME)[: FRAME // 2])
    assert not line.reading
    room.pass_time(STALL_NS // 2)
    assert not any(line.closed for _, line in stalled)
    for _ in range(8):
        room.pass_time(STALL_NS // 2)
    assert stalled[0][1].closed
    assert "incomplete for 1 s" in stalled[0][0].reasons[0]
    assert line.reading
    # It sends on as fast as it is read; whoever got memory meanwhile and does not use it soon makes room.
    for _ in range(8):
        got = good._filled if good._frame is not None else len(good._stub)
        room.hear(good, line, frame_of(FRAME)[got:])
        if good.frames:
            break
        room.pass_time(STALL_NS // 4)
    assert good.frames == [frame_of(FRAME)]
    for protocol, _ in [*stalled, (good, line)]:
        room.inside(lambda protocol=protocol: protocol.connection_lost(None))
    assert room.budget.taken == 0
    assert not room.budget._members


def test_what_comes_back_goes_to_who_waits_in_the_order_of_waiting() -> None:
    room = Room(4 * FRAME)
    holders = [room.connect() for _ in range(8)]
    for protocol, line in holders:
        room.hear(protocol, line, frame_of(FRAME)[: FRAME // 2])
    waiting = [(protocol, line) for protocol, line in holders if not line.reading]
    assert waiting
    first = holders[0]
    room.hear(*first, frame_of(FRAME)[FRAME // 2 :])
    assert first[0].frames == [frame_of(FRAME)]
    assert waiting[0][1].reading
    assert room.budget.taken <= room.budget.bytes_max + 8 * HEAD_BYTES


def test_short_cut_frames_stand_inside_the_budget() -> None:
    room = Room(8 * 30_000)
    for _ in range(40):
        room.hear(*room.connect(Old), frame_of(31_000)[:30_000])
    held = room.budget.taken
    assert held <= room.budget.bytes_max + 40 * HEAD_BYTES
    good, line = room.connect(Old)
    for _ in range(8):
        room.hear(good, line, frame_of(31_000)[len(good._stub) :])
        if good.frames:
            break
        room.pass_time(STALL_NS // 4)
    assert b"".join(good.frames) == frame_of(31_000)


def test_a_frame_larger_than_the_budget_passes_alone() -> None:
    room = Room(FRAME // 10)
    good, line = room.connect()
    room.hear(good, line, frame_of(FRAME))
    assert good.frames == [frame_of(FRAME)]
    assert room.budget.taken == 0


def test_who_is_gone_waits_no_more() -> None:
    room = Room(4 * FRAME)
    holders = [room.connect() for _ in range(12)]
    for protocol, line in holders:
        room.hear(protocol, line, frame_of(FRAME)[: FRAME // 2])
    for protocol, _ in holders:
        room.inside(lambda protocol=protocol: protocol.connection_lost(None))
    assert room.budget.taken == 0
    assert not room.budget._waiting
    room.pass_time(5 * STALL_NS)


def test_nobody_is_served_behind_a_refused_hello() -> None:
    room = Room(FRAME)

    class Refuses(Native):
        def hello_received(self, body: memoryview) -> None:
            self.transport.close()

    protocol, line = room.connect(Refuses)
    room.hear(protocol, line, HELLO + frame_of(100))
    assert protocol.frames == []


class Fed(Old):
    """Must not be asked for its memory without end."""

    asked = 0

    def get_buffer(self, sizehint: int) -> memoryview:
        self.asked += 1
        assert self.asked < 1000, "the loop stands still"
        return super().get_buffer(sizehint)


class SecuredLine(ReadingLine):
    def set_protocol(self, protocol: object) -> None:
        assert protocol is self.receiver


async def test_what_comes_with_the_end_of_a_handshake_does_not_wait_for_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is here already; the loop would wait for others to give memory back, and none of them could."""
    budget = ReceiveBudget(1 << 20)
    protocol = Fed(budget)
    protocol.connection_made(ReadingLine(protocol))  # type: ignore[arg-type]
    budget.taken += 950_000
    secured = SecuredLine(protocol)

    async def start_tls(
        _: object, meanwhile: asyncio.Protocol, *_arguments: object, **_options: object
    ) -> Line:
        meanwhile.data_received(frame_of(500_000)[:250_000])
        return secured

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "start_tls", start_tls)
    await upgrade(protocol, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), server_side=True, seconds=1)
    assert secured.closed
    assert protocol.reasons
    assert budget.taken == 950_000
    assert not protocol.waits
