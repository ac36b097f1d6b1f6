"""What a channel writes: one write for each loop turn, the same bytes as with a write for each request.

Source: `docs/protocol/writer.md`.
"""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from quire.client.access import LedgerAccess
from quire.core.answers import Answer
from quire.core.ids import BookieId, LedgerId
from quire.core.ledger.metadata import DigestType
from quire.net.channel import WRITE_BUFFER_BYTES, Channel, NativeCodec
from quire.net.channel_codec import ChannelContext
from quire.net.receive_memory import ReceiveBudget, Scratch
from quire.wire import native
from quire.wire.entry import EntryDigest, master_key
from quire.wire.requests import AddRun, ReadLac
from quire.wire.run import checksum

LEDGER = LedgerAccess(LedgerId(1), master_key(b""), 0, EntryDigest(DigestType.CRC32C, b""))
SIZES = st.sampled_from((0, 1, 100, 2048, 2049, 70_000, WRITE_BUFFER_BYTES))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), SIZES, st.integers(0, 2)),
        st.sampled_from([("ask",), ("turn",), ("pause",), ("resume",)]),
    ),
    max_size=40,
)


class Wire:
    """A transport that keeps what was written; its buffer is full when the test says so."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def get_extra_info(self, _name: str, default: Any = None) -> Any:
        return default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def write(self, data: bytes) -> None:
        self.writes.append(bytes(data))

    def writelines(self, parts: Any) -> None:
        self.writes.append(b"".join(parts))

    def abort(self) -> None:
        self.writes.append(b"")  # nothing more


class Sender:
    """Counts its answers."""

    def __init__(self) -> None:
        self.answers: list[tuple[Any, Answer]] = []

    def answered(self, tag: Any, response: Any) -> None:
        self.answers.append((tag, response.answer))


def opened(*, at_once: bool) -> tuple[Channel, Wire]:
    context = ChannelContext(Scratch(), ReceiveBudget(1 << 20), at_once=at_once)
    channel, wire = Channel(BookieId("b1"), context, NativeCodec(context, ""), lambda *_: None), Wire()
    channel.connection_made(wire)  # type: ignore[arg-type]
    channel.opened()
    wire.writes.clear()
    return channel, wire


def add(size: int) -> AddRun:
    body = bytes(size)
    return AddRun(LEDGER, body, checksum(body), -1, recovery=False)


async def turn() -> None:
    await asyncio.sleep(0)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_both_ways_write_the_same_bytes_in_the_same_order(steps: list[tuple[Any, ...]]) -> None:
    async def play() -> None:
        both = [opened(at_once=True), opened(at_once=False)]
        senders = [Sender(), Sender(), Sender()]
        for step in (*steps, ("resume",), ("turn",)):
            for channel, wire in both:
                before = len(wire.writes)
                match step:
                    case ("add", size, who):
                        gone = channel.send(add(size), senders[who], None, deadline=1.0)
                        assert gone == (len(wire.writes) > before), "what waits counts as unsent"
                    case ("ask",):
                        channel.send(ReadLac(LEDGER), senders[0], None, deadline=1.0)
                    case ("pause",):
                        channel.pause_writing()
                    case ("resume",):
                        channel.resume_writing()
            if step == ("turn",):
                await turn()
        (_, plain), (channel, together) = both
        assert b"".join(together.writes) == b"".join(plain.writes)
        assert not any(channel.unsent_bytes(sender) for sender in senders)
        assert len(together.writes) <= len(plain.writes)

    asyncio.run(play())


async def test_a_turn_is_one_write_and_what_waits_for_it_is_unsent() -> None:
    channel, wire = opened(at_once=False)
    one, other = Sender(), Sender()
    run = add(100)
    sent = [channel.send(run, who, tag, deadline=1.0) for tag in range(50) for who in (one, other)]
    assert not any(sent)
    assert not wire.writes
    assert channel.unsent_bytes(one) == channel.unsent_bytes(other) == 50 * 196
    channel.drop(other)
    await turn()
    assert len(wire.writes) == 1
    assert len(wire.writes[0]) == 50 * 196, "what was dropped in its turn never leaves"
    assert channel.unsent_bytes(one) == 0


async def test_a_client_that_reads_nothing_holds_the_rest_back() -> None:
    """The bookie's window is zero: the transport's buffer is full, and what is sent meanwhile can still be dropped."""
    channel, wire = opened(at_once=False)
    one, other = Sender(), Sender()
    channel.pause_writing()
    for tag in range(20):
        channel.send(add(100), one, tag, deadline=1.0)
        channel.send(add(100), other, tag, deadline=1.0)
        await turn()
    assert not wire.writes
    assert channel.unsent_bytes(one) == 20 * 196
    channel.drop(other)
    channel.resume_writing()
    assert [len(data) for data in wire.writes] == [20 * 196]


async def test_what_a_turn_sent_leaves_before_the_close_and_each_run_is_answered_once() -> None:
    channel, wire = opened(at_once=False)
    sender = Sender()
    for tag in range(10):
        channel.send(add(100), sender, tag, deadline=1.0)
    channel.close()
    assert list(map(len, wire.writes)) == [1960, 0]
    # Some of it came, and a part of the answers: the connection ends in the middle of one.
    answers = b"".join(
        b"".join(native.encode_answer(native.Kind.ADD, Answer.OK, number)) for number in range(1, 6)
    )
    received = answers[: 4 * native.ANSWER_BYTES + 17]
    channel.get_buffer(-1)[: len(received)] = received
    channel.buffer_updated(len(received))
    channel.connection_lost(None)
    await turn()
    assert sorted(sender.answers) == sorted(
        [(tag, Answer.OK) for tag in range(4)] + [(tag, Answer.UNREACHABLE) for tag in range(4, 10)]
    )
    assert len(wire.writes) == 2, "nothing leaves after the close"


async def test_a_bookie_that_answers_a_byte_at_a_time() -> None:
    channel, _ = opened(at_once=False)
    sender = Sender()
    for tag in range(3):
        channel.send(add(100), sender, tag, deadline=1.0)
    await turn()
    for number in (1, 2, 3):
        for byte in b"".join(native.encode_answer(native.Kind.ADD, Answer.OK, number)):
            channel.get_buffer(-1)[0] = byte
            channel.buffer_updated(1)
    assert sender.answers == [(tag, Answer.OK) for tag in range(3)]
