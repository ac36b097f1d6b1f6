"""Frames come out the same however the stream was cut, and memory is bounded whatever it announces."""

from __future__ import annotations

import asyncio
import struct

from hypothesis import given
from hypothesis import strategies as st

from quire.core.errors import MalformedFrameError
from quire.net.connection_states import OPEN
from quire.net.framing import FrameProtocol
from quire.net.receive_memory import (
    HEAD_BYTES,
    LONG_FRAME_BYTES,
    LONG_FRAMES_BYTES_MAX,
    SCRATCH_BYTES,
    ReceiveBudget,
    Scratch,
)
from quire.wire import native_hello

HELLO = native_hello.encode_hello(native_hello.Hello("cluster", "bookie"))
LIMIT = 1 << 20


class Collector(FrameProtocol):
    """Keeps what it is handed."""

    def __init__(self, scratch_bytes: int = 64, budget: ReceiveBudget | None = None) -> None:
        super().__init__(Scratch(scratch_bytes), budget or ReceiveBudget(), LIMIT)
        self.hellos: list[bytes] = []
        self.frames: list[bytes] = []
        self.errors: list[MalformedFrameError] = []

    def hello_received(self, body: memoryview) -> None:
        self.hellos.append(bytes(body))
        self.enter(OPEN)

    def frame_received(self, frame: memoryview) -> None:
        self.frames.append(bytes(frame))

    def broken(self, error: MalformedFrameError) -> None:
        self.errors.append(error)


def frame_of(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


@given(
    sizes=st.lists(st.sampled_from([5, 3000, 9000, 40_000]), max_size=6),
    bytes_max=st.sampled_from([1, 1000, 20_000, 70_000]),
    other=st.sampled_from([0, 5000]),
    data=st.data(),
)
def test_a_short_budget_changes_nothing_but_the_pace(
    sizes: list[int], bytes_max: int, other: int, data: st.DataObject
) -> None:
    bodies = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    stream = HELLO + b"".join(map(frame_of, bodies))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    budget = ReceiveBudget(bytes_max + other)
    budget.taken = other
    protocol = Collector(scratch_bytes=SCRATCH_BYTES, budget=budget)
    # A frame that meets no room at all would wait; here there is room for all that one connection sends.
    if max(sizes, default=0) <= bytes_max or not other:
        feed(protocol, stream, cuts)
        assert protocol.frames == [frame_of(body) for body in bodies]
        assert budget.taken == other


def feed(protocol: FrameProtocol, data: bytes, cuts: list[int]) -> None:
    """Hand over `data` in pieces that end at the cuts, as a socket would: never more than the buffer takes."""

    async def run() -> None:
        at = 0
        for cut in [*cuts, len(data)]:
            while at < cut:
                buffer = protocol.get_buffer(-1)
                size = min(len(buffer), cut - at)
                buffer[:size] = data[at : at + size]
                at += size
                protocol.buffer_updated(size)

    asyncio.run(run())


@given(bodies=st.lists(st.binary(max_size=300), max_size=8), data=st.data())
def test_any_split_gives_the_same_frames(bodies: list[bytes], data: st.DataObject) -> None:
    stream = HELLO + b"".join(map(frame_of, bodies))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    protocol = Collector(scratch_bytes=128)
    feed(protocol, stream, cuts)
    assert protocol.frames == [frame_of(body) for body in bodies]
    assert len(protocol.hellos) == 1
    assert protocol.partial_since is None
    assert protocol._budget.taken == 0


@given(
    sizes=st.lists(st.sampled_from([0, 5, 5000, LONG_FRAME_BYTES, 3 * LONG_FRAME_BYTES]), max_size=8),
    data=st.data(),
)
def test_long_and_short_frames_follow_one_another(sizes: list[int], data: st.DataObject) -> None:
    bodies = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    stream = HELLO + b"".join(map(frame_of, bodies))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    protocol = Collector(scratch_bytes=SCRATCH_BYTES)
    feed(protocol, stream, cuts)
    assert protocol.frames == [frame_of(body) for body in bodies]


def test_behind_a_long_frame_little_is_received_until_the_next_is_known() -> None:
    protocol = Collector(scratch_bytes=SCRATCH_BYTES)
    feed(protocol, HELLO, [])
    assert len(protocol.get_buffer(-1)) == SCRATCH_BYTES
    feed(protocol, frame_of(bytes(LONG_FRAME_BYTES)), [])
    assert len(protocol.get_buffer(-1)) == HEAD_BYTES
    feed(protocol, frame_of(b"short"), [])
    assert len(protocol.get_buffer(-1)) == SCRATCH_BYTES


async def test_a_busy_stream_whose_chunks_end_inside_a_length_does_not_look_stalled() -> None:
    protocol = Collector(scratch_bytes=SCRATCH_BYTES)
    stream = HELLO + 3 * frame_of(b"x")
    seen: list[float] = []
    at = 0
    for end in (len(HELLO) + 2, len(HELLO) + 7, len(HELLO) + 12):
        protocol.get_buffer(-1)[: end - at] = stream[at:end]
        protocol.buffer_updated(end - at)
        assert protocol.partial_since is not None
        seen.append(protocol.partial_since)
        at = end
        await asyncio.sleep(0)
    assert seen[0] < seen[1] < seen[2]


def test_a_stream_byte_by_byte() -> None:
    protocol = Collector()
    stream = HELLO + frame_of(b"x" * 200) + frame_of(b"")
    feed(protocol, stream, list(range(len(stream))))
    assert protocol.frames == [frame_of(b"x" * 200), frame_of(b"")]


def test_an_oversized_frame_is_refused_before_memory_is_taken() -> None:
    protocol = Collector()
    feed(protocol, HELLO + struct.pack(">I", LIMIT) + b"x", [])
    assert "longer than the limit" in protocol.errors[0].message
    assert protocol._budget.taken == 0


def test_garbage_is_refused() -> None:
    protocol = Collector()
    feed(protocol, b"\x00\x00\x00\x05hello world", [])
    assert "not the native protocol" in protocol.errors[0].message


def test_a_lost_connection_gives_its_memory_back() -> None:
    budget = ReceiveBudget()
    protocol = Collector(budget=budget)
    feed(protocol, HELLO + frame_of(b"z" * 500)[:50], [])
    assert budget.taken > 0
    protocol.connection_lost(None)
    assert budget.taken == 0


def test_memory_of_a_long_frame_is_used_again_only_when_no_view_of_it_is_left() -> None:
    scratch = Scratch()
    first = scratch.frame(2 * LONG_FRAME_BYTES)
    first[:5] = b"first"
    part = first[:5]
    second = scratch.frame(2 * LONG_FRAME_BYTES - 1)
    assert second.obj is not first.obj
    memory = first.obj
    del first
    third = scratch.frame(2 * LONG_FRAME_BYTES)
    assert third.obj is not memory
    assert part == b"first"
    del part
    assert scratch.frame(2 * LONG_FRAME_BYTES - 7).obj is memory


def test_little_memory_of_long_frames_is_kept() -> None:
    scratch = Scratch()
    frames = [scratch.frame(LONG_FRAMES_BYTES_MAX // 4) for _ in range(9)]
    memory = [frame.obj for frame in frames]
    del frames
    again = [scratch.frame(LONG_FRAMES_BYTES_MAX // 4) for _ in range(5)]
    assert [any(frame.obj is one for one in memory) for frame in again] == [True, True, True, True, False]
    assert len(scratch.frame(2 * LONG_FRAMES_BYTES_MAX)) == 2 * LONG_FRAMES_BYTES_MAX


def test_memory_of_frames_that_nobody_looks_at_is_not_kept():
    scratch = Scratch(frames_bytes_max=1 << 24)
    kept = scratch.frame(1 << 20)
    gone = scratch.frame(1 << 20)
    del gone
    scratch.give_back()
    assert scratch._frames_bytes == 1 << 20
    assert len(kept) == 1 << 20
    del kept
    scratch.give_back()
    assert scratch._frames_bytes == 0
    assert len(scratch.frame(1 << 20)) == 1 << 20
