"""A channel's own queue: what waits for the transport is counted per sender, and can be forgotten at any moment."""

from __future__ import annotations

from quire.core.answers import Answer
from quire.net.channel import Channel
from quire.net.framing import ReceiveBudget, Scratch
from quire.wire.native import Kind


class Sender:
    """Keeps its answers; may drop the rest of its requests at the first."""

    def __init__(self, channel=None):
        self.channel = channel
        self.answers = []

    def answered(self, tag, frame):
        self.answers.append((tag, frame.answer))
        if self.channel is not None:
            self.channel.drop(self)


def channel():
    return Channel("b1", "", scratch=Scratch(), budget=ReceiveBudget(1 << 20), ended=lambda *_: None)


def send(queue, sender, count, deadline=1.0):
    for tag in range(count):
        queue.send(Kind.ADD, (b"x" * 1000,), sender, tag, deadline=deadline)


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
