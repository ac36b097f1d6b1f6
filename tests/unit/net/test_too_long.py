"""What comes around a frame above the limit comes out the same however the stream was cut, and it takes no memory."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.errors import MalformedFrameError
from quire.net.connection_states import HELLO as FIRST_STATE
from quire.net.connection_states import OPEN
from quire.net.framing import FrameProtocol
from quire.net.receive_memory import ReceiveBudget, Scratch
from quire.wire import native_hello, too_long, v2, v3
from quire.wire.entry import Buffer
from support.hostile_worlds import Line, StillWorld
from support.wire_adds import KEY

HELLO = native_hello.encode_hello(native_hello.Hello("cluster", "bookie"))
LIMIT = 4096
TOLD = 96
SCRATCH = 8192


class Notes(FrameProtocol):
    """Keeps what it is handed, and what it is told of frames above the limit."""

    too_long_head_bytes = TOLD
    first, in_chunks = FIRST_STATE, False

    def __init__(self) -> None:
        super().__init__(Scratch(SCRATCH), ReceiveBudget(), LIMIT, self.first, in_chunks=self.in_chunks)
        self.seen: list[bytes | int] = []
        self.errors: list[str] = []

    def hello_received(self, body: memoryview) -> None:
        self.enter(OPEN)

    def frame_received(self, frame: memoryview) -> None:
        self.seen.append(bytes(frame))

    def frame_too_long(self, head: memoryview, size: int) -> None:
        assert len(head) >= TOLD
        assert int.from_bytes(head[:4], "big") + 4 == size
        self.seen.append(size)

    def broken(self, error: MalformedFrameError) -> None:
        self.errors.append(error.message)


class OldNotes(Notes):
    """The same for V2 and V3."""

    first, in_chunks = OPEN, True

    def frames_received(self, data: Buffer, starts: range | list[int]) -> None:
        for at in starts:
            self.seen.append(bytes(data[at : at + 4 + int.from_bytes(data[at : at + 4], "big")]))


def frame_of(size: int, mark: int) -> bytes:
    return (size - 4).to_bytes(4, "big") + bytes([mark % 251]) * (size - 4)


@pytest.mark.parametrize("kind", [Notes, OldNotes])
@given(
    sizes=st.lists(st.sampled_from([8, 100, LIMIT, LIMIT + 1, 2 * LIMIT, 9 * LIMIT]), max_size=8),
    data=st.data(),
)
def test_what_is_around_it_comes_out_however_it_was_cut(
    kind: type[Notes], sizes: list[int], data: st.DataObject
) -> None:
    frames = [frame_of(size, number) for number, size in enumerate(sizes)]
    stream = (HELLO if kind is Notes else b"") + b"".join(frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    protocol = kind()

    async def run() -> None:
        at = 0
        for cut in [*cuts, len(stream)]:
            while at < cut:
                buffer = protocol.get_buffer(-1)
                size = min(len(buffer), cut - at)
                buffer[:size] = stream[at : at + size]
                at += size
                protocol.buffer_updated(size)
                assert protocol._budget.taken <= LIMIT + TOLD

    asyncio.run(run())
    assert not protocol.errors
    assert protocol.partial_since is None
    assert protocol._budget.taken == 0
    longer = [size for size in sizes if size > LIMIT]
    assert [one for one in protocol.seen if isinstance(one, int)] == longer
    assert [one for one in protocol.seen if isinstance(one, bytes)] == [
        frame for frame in frames if len(frame) <= LIMIT
    ]


@pytest.mark.parametrize("kind", [Notes, OldNotes])
def test_a_length_beyond_reason_ends_the_connection_at_once(kind: type[Notes]) -> None:
    world = StillWorld()
    for size in (64 * LIMIT + 1, 1 << 31):
        protocol, line = kind(), Line()
        world.inside(lambda protocol=protocol, line=line: protocol.connection_made(line))
        start = (HELLO if kind is Notes else b"") + (size - 4).to_bytes(4, "big")
        protocol.get_buffer(-1)[: len(start)] = start
        world.inside(lambda protocol=protocol, start=start: protocol.buffer_updated(len(start)))
        assert protocol.errors == [
            f"a frame of {size} bytes far exceeds the limit of {LIMIT} (`frame_bytes_max`) and is not a frame"
        ]
        assert line.closed


@given(
    ledger_id=st.integers(0, (1 << 63) - 1),
    entry_id=st.integers(0, (1 << 63) - 1),
    txn_id=st.integers(0, (1 << 64) - 1),
    priority=st.sampled_from([0, 100]),
    recovery=st.booleans(),
)
def test_an_adds_head_tells_whose_it_is(
    ledger_id: int, entry_id: int, txn_id: int, priority: int, recovery: bool
) -> None:
    entry = ledger_id.to_bytes(8, "big") + entry_id.to_bytes(8, "big") + bytes(1000)
    sent = b"".join(
        v3.encode_add(txn_id, ledger_id, entry_id, KEY, entry, recovery=recovery, priority=priority)
    )
    head = memoryview(sent)[: too_long.HEAD_BYTES]
    assert too_long.long_add(head) == (ledger_id, entry_id, txn_id, v3.VERSION, True)
    assert too_long.long_add(head[:-1]) is None
    sent = b"".join(v2.encode_add(KEY, entry, v2.V2Flag.RECOVERY_ADD if recovery else 0))
    head = memoryview(sent)[: too_long.HEAD_BYTES]
    assert too_long.long_add(head) == (ledger_id, entry_id, 0, v2.VERSION, False)


@given(st.binary(min_size=too_long.HEAD_BYTES, max_size=too_long.HEAD_BYTES), st.booleans())
def test_any_head_is_an_add_or_none(head: bytes, is_v3: bool) -> None:
    found = too_long.long_add(memoryview(head[:4] + (b"\x0a" if is_v3 else b"\x02") + head[5:]))
    assert found is None or (0 <= found.ledger_id < 1 << 63 and 0 <= found.entry_id < 1 << 63)


def test_what_is_no_add_is_told_apart() -> None:
    read = v3.encode_read(1, 2, 3) + bytes(200)
    assert too_long.long_add(memoryview(read)[: too_long.HEAD_BYTES]) is None
    batch = v2.encode_batch_read(1, 2, 3, 4, 5) + bytes(200)
    assert too_long.long_add(memoryview(batch)[: too_long.HEAD_BYTES]) is None
    negative = b"".join(v2.encode_add(KEY, b"\xff" * 200))
    assert too_long.long_add(memoryview(negative)[: too_long.HEAD_BYTES]) is None
