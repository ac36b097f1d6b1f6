"""A channel's own queue: what waits for the transport is counted per sender, and can be forgotten at any moment."""

from __future__ import annotations

from quire.client.access import LedgerAccess
from quire.core.answers import Answer
from quire.core.ids import LedgerId
from quire.core.ledger.metadata import DigestType
from quire.net.channel import Channel, NativeCodec
from quire.net.channel_codec import ChannelContext
from quire.net.receive_memory import ReceiveBudget, Scratch
from quire.net.silence import SILENT_MS
from quire.wire import native
from quire.wire.entry import EntryDigest, master_key
from quire.wire.native import Kind
from quire.wire.requests import AddRun
from quire.wire.run import checksum

LEDGER = LedgerAccess(LedgerId(1), master_key(b""), 0, EntryDigest(DigestType.CRC32C, b""))


class Sender:
    """Keeps its answers; may drop the rest of its requests at the first."""

    def __init__(self, channel=None):
        self.channel = channel
        self.answers = []

    def answered(self, tag, response):
        self.answers.append((tag, response.answer))
        if self.channel is not None:
            self.channel.drop(self)


def channel(*, at_once=False):
    context = ChannelContext(Scratch(), ReceiveBudget(1 << 20), at_once=at_once)
    return Channel("b1", context, NativeCodec(context, ""), lambda *_: None)


def add(body):
    return AddRun(LEDGER, body, checksum(body), -1)


def send(queue, sender, count, deadline=1.0):
    for tag in range(count):
        queue.send(add(b"x" * 1000), sender, tag, deadline=deadline)


def test_unsent_bytes_are_counted_per_sender():
    queue, one, other = channel(), Sender(), Sender()
    send(queue, one, 3)
    send(queue, other, 2, deadline=9.0)
    assert (queue.unsent_bytes(one), queue.unsent_bytes(other)) == (3 * 1096, 2 * 1096)
    queue.expire(5.0)
    assert one.answers == [(tag, Answer.TIMED_OUT) for tag in range(3)]
    assert (queue.unsent_bytes(one), queue.unsent_bytes(other)) == (0, 2 * 1096)
    queue.drop(other)
    assert queue.unsent_bytes(other) == 0
    queue.end("gone")
    assert other.answers == []


def test_a_sender_may_drop_its_requests_while_they_expire():
    queue = channel()
    sender, other = Sender(queue), Sender()
    send(queue, sender, 5)
    send(queue, other, 1)
    queue.expire(5.0)
    assert sender.answers == [(0, Answer.TIMED_OUT)]
    assert other.answers == [(0, Answer.TIMED_OUT)]


class Wire:
    """A transport of which nothing comes back by itself."""

    def __init__(self):
        self.written = 0
        self.aborted = False

    def get_extra_info(self, name, default=None):
        return default

    def set_write_buffer_limits(self, high=None, low=None):
        pass

    def write(self, data):
        self.written += 1

    def writelines(self, parts):
        self.written += 1

    def abort(self):
        self.aborted = True


def open_channel():
    queue = channel(at_once=True)  # no loop runs here
    queue.connection_made(Wire())
    queue.opened()
    return queue


def answer(queue, number):
    frame = native.encode_answer(
        Kind.ADD, Answer.OK, number, flags=0, ledger_id=1, term=0, lac=-1, durable_lsn=0, body=(), runs=()
    )
    queue.has_received = True  # as it is where bytes come from a socket
    queue.frame_received(memoryview(b"".join(frame)))


def test_a_channel_that_swallows_a_request_is_closed():
    queue, sender = open_channel(), Sender()
    send(queue, sender, 1)
    written = queue.transport.written
    queue.expire(1.0)
    assert sender.answers == [(0, Answer.TIMED_OUT)]
    assert queue.transport.written == written + 1, "it is asked for a sign of life"
    for tick in range(1, SILENT_MS // 250):
        queue.expire(1.0 + 0.25 * tick)
    assert not queue.transport.aborted
    queue.expire(1.0 + SILENT_MS / 1000)
    assert queue.transport.aborted


def test_a_channel_is_closed_although_its_senders_wait_no_more():
    queue, sender = open_channel(), Sender()
    send(queue, sender, 1)
    queue.drop(sender)
    queue.expire(1.0)
    queue.expire(1.0 + SILENT_MS / 1000)
    assert queue.transport.aborted


def test_an_hour_of_stalls_closes_no_channel():
    """A bookie stalls for 100 ms ten times in two seconds, and its client waits for 50: each request expires."""
    queue, sender = open_channel(), Sender()
    for number in range(1, 3600 * 5 + 1):
        now = number / 5
        queue.send(add(b"x"), sender, number, deadline=now + 0.05)
        queue.expire(now + 0.06)
        answer(queue, number)  # 40 ms later: too late for its sender, but it came
        queue.expire(now + 0.1)
    assert [answered for _, answered in sender.answers] == [Answer.TIMED_OUT] * (3600 * 5)
    assert not queue.transport.aborted
