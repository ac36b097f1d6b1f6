"""Ranges over V2 and V3: which response is a request's, and when one with "no such entry" is an entry all the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from quire.client.access import LedgerAccess
from quire.core.answers import Answer
from quire.core.ids import LedgerId
from quire.core.ledger.metadata import DigestType
from quire.net.bookkeeper.pending_requests import PendingRange, PendingRequest
from quire.net.bookkeeper.v2_codec import V2Codec
from quire.net.bookkeeper.v3_codec import V3Codec
from quire.net.channel import Channel
from quire.net.channel_codec import ChannelContext
from quire.net.receive_memory import ReceiveBudget, Scratch
from quire.wire import bookkeeper, v2, v3
from quire.wire.entry import EntryDigest, master_key
from quire.wire.proto import bookkeeper_protocol_pb2 as pb
from quire.wire.requests import AddRun, ReadRange
from quire.wire.responses import AddReply, ReadReply
from quire.wire.run import checksum, encode_run

PASSWORD = b"pw"


class Connection:
    """Asks for nothing by itself, and keeps the response."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.replies: list[ReadReply] = []

    def ask_entries(self, asked: PendingRange, entry_ids: Sequence[int]) -> None:
        self.asked += entry_ids

    def finished(self, asked: PendingRequest) -> None:
        assert asked.done

    def answered(self, tag: object, response: ReadReply) -> None:
        self.replies.append(response)


def denied_with(digest_type: DigestType, body: bytes, *, recovery: bool) -> ReadReply:
    """What is made of "no such entry" about entry 7 of ledger 5, with a body."""
    ledger = LedgerAccess(LedgerId(5), master_key(PASSWORD), 0, EntryDigest(digest_type, PASSWORD))
    connection = Connection()
    request = ReadRange(ledger, 7, 7, 1000, fence=recovery, recovery=recovery)
    asked = PendingRange(connection, request, connection, None, 1.0)
    asked.start()
    assert connection.asked == [7]
    asked.got(7, Answer.NO_ENTRY, body, -1)
    [reply] = connection.replies
    return reply


def entry_of(digest_type: DigestType, ledger_id: int = 5, entry_id: int = 7) -> bytes:
    return EntryDigest(digest_type, PASSWORD).seal_one(ledger_id, entry_id, 6, 70, b"payload") + b"payload"


@pytest.mark.parametrize("recovery", [False, True])
@pytest.mark.parametrize("digest_type", [DigestType.CRC32, DigestType.CRC32C, DigestType.HMAC])
def test_the_entry_itself_is_the_response(digest_type: DigestType, recovery: bool) -> None:
    entry = entry_of(digest_type)
    reply = denied_with(digest_type, entry, recovery=recovery)
    assert [bytes(one) for run in reply.runs for _, one in run.entries()] == [entry]


@pytest.mark.parametrize(
    ("digest_type", "body"),
    [
        (DigestType.CRC32C, b""),
        (DigestType.CRC32C, b"x" * 60),
        (DigestType.CRC32C, entry_of(DigestType.CRC32C)[:-1]),
        (DigestType.CRC32C, entry_of(DigestType.CRC32C, entry_id=8)),
        (DigestType.CRC32C, entry_of(DigestType.CRC32C, ledger_id=6)),
        (DigestType.CRC32C, entry_of(DigestType.HMAC)),
        (DigestType.DUMMY, entry_of(DigestType.DUMMY)),
    ],
)
def test_what_proves_nothing_stays_a_negative(digest_type: DigestType, body: bytes) -> None:
    for recovery in (False, True):
        reply = denied_with(digest_type, body, recovery=recovery)
        assert not reply.runs
        assert reply.answer is Answer.OK
        assert (reply.conclusive_through, reply.unknown) == (7, [])


class Line:
    """A transport that keeps what is sent."""

    def __init__(self) -> None:
        self.sent = b""
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def write(self, data: bytes) -> None:
        self.sent += data

    def writelines(self, parts: Iterable[bytes]) -> None:
        self.sent += b"".join(parts)


class NoBatches:
    """A bookie before 4.17."""

    def usable(self) -> bool:
        return False

    def lost(self) -> None:
        pass


class Asker:
    """One who asks for entry 7 of ledger 5."""

    def __init__(self, channel: Channel, *, fence: bool) -> None:
        self.replies: list[ReadReply] = []
        ledger = LedgerAccess(LedgerId(5), master_key(PASSWORD), 0, EntryDigest(DigestType.CRC32C, PASSWORD))
        channel.send(ReadRange(ledger, 7, 7, 1000, fence=fence), self, None, deadline=1e9)

    def answered(self, tag: object, response: ReadReply) -> None:
        self.replies.append(response)


def v2_channels() -> list[Channel]:
    """A connection of V2; the one beside it comes behind it once it is made."""
    context = ChannelContext(Scratch(), ReceiveBudget(1 << 20), at_once=True)
    channels: list[Channel] = []

    def connected(codec: Any) -> Channel:
        channel = Channel("b1", context, codec, lambda *_: None)  # type: ignore[arg-type]
        channels.append(channel)
        channel.connection_made(Line())  # type: ignore[arg-type]
        return channel

    connected(V2Codec(context, lambda: connected(V3Codec(context)), NoBatches()))
    return channels


@pytest.mark.parametrize("fences_first", [False, True])
@pytest.mark.parametrize("given_up", [False, True])
async def test_a_response_to_a_read_without_a_fence_is_none_to_one_with_it(
    fences_first: bool, given_up: bool
) -> None:
    """In V2 they look alike: an entry that is denied before the fence may be acknowledged before it."""
    channels = v2_channels()
    [channel] = channels
    first = Asker(channel, fence=fences_first)
    if given_up:
        channel.drop(first)
    second = Asker(channel, fence=not fences_first)
    denied = b"".join(v2.encode_read_answer(bookkeeper.v2_code(Answer.NO_ENTRY), 5, 7))
    channel.frames_received(denied, [0])
    assert len(first.replies) == (0 if given_up else 1)
    assert not second.replies
    # The second one is asked for where each response names its request.
    [_, beside] = channels
    asked = v3.decode_request(beside.transport.sent)  # type: ignore[union-attr]
    assert v3.has_flag(asked.readRequest, v3.FENCE_LEDGER) is not fences_first
    # Once nothing is under way, both use V2 again.
    Asker(channel, fence=not fences_first)
    assert len(channels) == 2
    assert channel.transport.sent.count(b"\x02\x02") == 2  # type: ignore[union-attr]


class Adder:
    """One who adds entry 7 to ledger 5."""

    def __init__(self, channel: Channel, *, recovery: bool) -> None:
        self.answers: list[Answer] = []
        ledger = LedgerAccess(LedgerId(5), master_key(PASSWORD), 0, EntryDigest(DigestType.CRC32C, PASSWORD))
        entry = entry_of(DigestType.CRC32C)
        body = encode_run(5, 7, 7, [entry], [len(entry)], digest_type=DigestType.CRC32C)
        channel.send(AddRun(ledger, body, checksum(body), 6, recovery), self, None, deadline=1e9)

    def answered(self, tag: object, response: AddReply) -> None:
        self.answers.append(response.answer)


@pytest.mark.parametrize("given_up", [False, True])
async def test_a_late_response_to_an_add_is_none_to_a_recovery_of_its_entry(given_up: bool) -> None:
    """The writer is fenced. In V2 its response looks like the recovery's, which the fence does not stop."""
    channels = v2_channels()
    [channel] = channels
    first = Adder(channel, recovery=False)
    if given_up:
        channel.expire(2e9)
        assert first.answers == [Answer.TIMED_OUT]
    second = Adder(channel, recovery=True)
    channel.frames_received(v2.encode_add_answer(bookkeeper.v2_code(Answer.FENCED), 5, 7), [0])
    assert first.answers == [Answer.TIMED_OUT if given_up else Answer.FENCED]
    assert not second.answers
    [_, beside] = channels
    assert v3.decode_request(beside.transport.sent).addRequest.flag == v3.RECOVERY_ADD  # type: ignore[union-attr]
    # Nothing of the writer's is under way any more: V2 carries entries that V3 has no room for.
    third = Adder(channel, recovery=True)
    channel.frames_received(v2.encode_add_answer(0, 5, 7), [0])
    assert third.answers == [Answer.OK]


@pytest.mark.parametrize("operation", [pb.READ_ENTRY, pb.RANGE_READ_ENTRY, pb.START_TLS])
async def test_a_refusal_of_whatever_operation_says_that_the_client_is_unknown_there(operation: int) -> None:
    context = ChannelContext(Scratch(), ReceiveBudget(1 << 20), at_once=True)
    channel = Channel("b1", context, V3Codec(context), lambda *_: None)  # type: ignore[arg-type]
    line = Line()
    channel.connection_made(line)  # type: ignore[arg-type]
    Asker(channel, fence=False)
    txn_id = v3.decode_request(line.sent).header.txnId
    refusal = v3.response(v3.request(operation, txn_id).header, bookkeeper.v3_code(Answer.UNAUTHORISED))
    channel.frames_received(v3.frame_of(refusal), [0])
    assert channel.was_refused
    assert line.aborted
