"""A bundle on one connection: each row is answered exactly once, whatever a bookie says and however the connection ends."""

from __future__ import annotations

import pytest

from quire.core.answers import Answer
from quire.wire import native
from quire.wire.bundles import BundlePart, encode_parts
from quire.wire.native import Kind
from unit.net.test_channel_queue import Wire, channel

ROWS = 6


class Rows:
    """Keeps what it was told of each row; may let go of its connection at the first word."""

    def __init__(self):
        self.told = []

    def answered(self, tag, parts):
        self.told += [(row, answer) for first, rows, answer, _ in parts for row in range(first, first + rows)]


@pytest.fixture
def sent():
    """A bundle of some rows on an open connection, and who gets the answers."""
    line, rows = channel(at_once=True), Rows()
    line.connection_made(Wire())
    line.opened()
    number, frame = line.codec.encode_bundle([], [])
    assert line.codec.send_bundle(number, frame, ROWS, rows, 0, 1.0)
    return line, rows, number


def receive(line, frame):
    line.get_buffer(0)[: len(frame)] = frame
    line.buffer_updated(len(frame))


def of_all(answer, rows=range(ROWS)):
    return [(row, answer) for row in rows]


def test_parts_come_in_any_order(sent):
    line, rows, number = sent
    for part in (BundlePart(4, 2, Answer.OK), BundlePart(0, 1, Answer.FENCED), BundlePart(1, 3, Answer.OK)):
        receive(line, encode_parts(number, [part], 0))
    assert sorted(rows.told) == [(0, Answer.FENCED), *of_all(Answer.OK, range(1, ROWS))]
    receive(line, encode_parts(number, [BundlePart(0, 1, Answer.OK)], 0))
    line.end("gone")
    assert len(rows.told) == ROWS, "the request is over"


@pytest.mark.parametrize(
    "parts",
    [
        [BundlePart(0, 1, Answer.OK)],
        [BundlePart(3, 2, Answer.OK), BundlePart(4, 1, Answer.OK)],
        [BundlePart(5, 2, Answer.OK)],
        [BundlePart(3, 0, Answer.OK)],
        [BundlePart(3, 1, 999)],
        [],
    ],
    ids=["again", "twice in one response", "beyond the bundle", "no rows", "no such answer", "empty"],
)
def test_a_response_that_cannot_be_ends_the_connection_and_counts_for_no_row(sent, parts):
    line, rows, number = sent
    receive(line, encode_parts(number, [BundlePart(0, 2, Answer.OK)], 0))
    receive(line, encode_parts(number, parts, 0))
    assert line.transport.aborted
    line.connection_lost(None)
    assert rows.told == [*of_all(Answer.OK, range(2)), *of_all(Answer.UNREACHABLE, range(2, ROWS))]


def test_the_response_to_a_plain_add_is_none_to_a_bundle(sent):
    line, _, number = sent
    receive(line, native.encode_added([(number, 1, 0, 0)], 0))
    assert line.transport.aborted


def test_silence_counts_for_the_rows_that_are_left(sent):
    line, rows, number = sent
    receive(line, encode_parts(number, [BundlePart(2, 3, Answer.OK)], 0))
    line.expire(2.0)
    assert rows.told == [*of_all(Answer.OK, range(2, 5)), *of_all(Answer.TIMED_OUT, (0, 1, 5))]


def test_a_response_without_parts_is_for_all_that_are_left(sent):
    line, rows, number = sent
    receive(line, encode_parts(number, [BundlePart(1, 1, Answer.OK)], 0))
    receive(line, b"".join(native.encode_answer(Kind.ADD_BUNDLE, Answer.TOO_BUSY, number)))
    assert rows.told == [(1, Answer.OK), *of_all(Answer.TOO_BUSY, (0, 2, 3, 4, 5))]


def test_what_is_dropped_is_answered_no_more(sent):
    line, rows, _ = sent
    line.drop(rows)
    line.end("gone")
    assert rows.told == []
