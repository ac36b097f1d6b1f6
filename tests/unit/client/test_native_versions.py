"""A client and bookies of other programs: how it asks them, what it makes of their answers, and which it refuses."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from crc32c import crc32c

from quire.client.bookies import bookies as client_bookies
from quire.client.bookies.bookies import BookieClient
from quire.core.answers import Answer
from quire.core.ids import BookieId
from quire.core.ledger.stripes import HeldInterval
from quire.net.channel import Channel, NativeCodec
from quire.net.channel_codec import ChannelContext
from quire.net.receive_memory import ReceiveBudget, Scratch
from quire.wire import native, native_bodies, native_hello
from quire.wire.native import Kind
from quire.wire.native_hello import HelloAnswer
from quire.wire.native_requests import encode
from quire.wire.requests import AddRun, ReadRange
from quire.wire.responses import ReadReply
from quire.wire.run import SCHEME_TERMS, checksum, encode_run
from support.hostile_inputs import frames_of
from support.hostile_worlds import ACCESS, GOOD, LEDGER, NATIVE, SECOND, Line, StillClient, feed, item_of
from support.many_lacs import write_lacs

Speaks = Callable[[native.Request], "bytes | None"]
"""What a bookie says to a request; None: nothing."""


class Talk(StillClient):
    """A client, and a bookie of which the test says what it answers.

    Attributes:
        asked: the requests that came.
    """

    def __init__(self, **answer: Any) -> None:
        super().__init__()
        self.answer = HelloAnswer(**{"version": 2, "answer": Answer.OK, "bookie_id": "b", "cluster_instance": "cluster", "features": native_hello.OFFERED} | answer)  # fmt: skip
        self.asked: list[native.Request] = []

    def run(self, work: Callable[[BookieClient, BookieId], Coroutine[Any, Any, Any]], says: Speaks) -> Any:
        """What the client makes of the bookie's answers."""
        client = self.clients[NATIVE]
        task = self.loop.spawn(work(client, self.bookie))
        seen: dict[Line, int] = {}
        for _ in range(50):
            self.pass_time(SECOND // 100)
            for receiver, line in list(self.lines):
                if line not in seen:
                    seen[line] = len(self.hello_sent)
                    self.inside(
                        lambda r=receiver, at=line: feed(
                            r, [native_hello.encode_hello_answer(self.answer)], at
                        )
                    )
                for frame in frames_of(bytes(line.sent[seen[line] :])):
                    seen[line] += len(frame)
                    request = native.decode_request(memoryview(frame))
                    self.asked.append(request)
                    said = says(request)
                    if said is not None:
                        self.inside(lambda r=receiver, at=line, said=said: feed(r, [said], at))
                if line.closed:
                    self.inside(lambda r=receiver: r.connection_lost(None))
                    self.lines.remove((receiver, line))
            if task.done():
                break
        return task.result()


def said(request: native.Request, *body: bytes, ledger_id: int | None = None) -> bytes:
    whose = request.ledger_id if ledger_id is None else ledger_id
    return b"".join(
        map(bytes, native.encode_answer(request.kind, Answer.OK, request.number, ledger_id=whose, body=body))
    )


# --- how it asks ----------------------------------------------------------------------------------------------------


def test_a_read_tells_what_is_damaged_and_the_lacs_term() -> None:
    def answer(request: native.Request) -> bytes:
        assert native_bodies.decode_body(Kind.READ, request.body)[:3] == (3, 9, 1000)
        assert request.body_crc == crc32c(request.body)
        return said(request, native_bodies.encode_read_fields(8, [(3, 4)], [(3, 4)], 6))

    reply = Talk().run(lambda client, bookie: client.read(bookie, ACCESS, 3, 9, 1000), answer)
    assert (reply.answer, reply.conclusive_through, reply.unknown) == (Answer.OK, 8, [(3, 4)])
    assert (reply.damaged, reply.lac_term) == ([(3, 4)], 6)


def test_read_lac_tells_the_lacs_term_and_the_lafr() -> None:
    def answer(request: native.Request) -> bytes:
        return said(request, *map(bytes, native_bodies.encode_lac_body(b"", b"", 6, 4)))

    reply = Talk().run(lambda client, bookie: client.read_lac(bookie, ACCESS), answer)
    assert (reply.answer, reply.lac_term, reply.lafr) == (Answer.OK, 6, 4)


def test_a_read_names_the_term_of_the_entries() -> None:
    def work(client: BookieClient, bookie: BookieId) -> Any:
        return client.read(bookie, ACCESS, 0, 9, 1000, origin_term=4)

    talk = Talk()
    told = native_bodies.encode_read_fields(9, [])
    assert talk.run(work, lambda request: said(request, told)).answer is Answer.OK
    assert native_bodies.decode_body(Kind.READ, talk.asked[0].body)[3] == 4


@pytest.mark.parametrize("features", [0, native_hello.LOW_PRIORITY])
def test_many_lacs_go_only_to_who_announces_to_take_them(features: int) -> None:
    def work(client: BookieClient, bookie: BookieId) -> Any:
        return write_lacs(client, bookie, [item_of(ACCESS, 3)])

    talk = Talk(features=features)
    assert talk.run(work, lambda _: None) == (Answer.BAD_REQUEST, [])
    assert talk.asked == []


def test_many_lacs_and_what_is_refused_of_them() -> None:
    items = [item_of(ACCESS, 3), item_of(GOOD, 4)]

    def answer(request: native.Request) -> bytes:
        assert (request.kind, request.ledger_id) == (Kind.WRITE_LACS, -1)
        assert native_bodies.decode_lacs(request.body) == items
        return said(request, native_bodies.encode_refused_lacs([(GOOD.ledger_id, Answer.UNAUTHORISED)]))

    refused = Talk().run(lambda client, bookie: write_lacs(client, bookie, items), answer)
    assert refused == (Answer.OK, [(GOOD.ledger_id, Answer.UNAUTHORISED)])


@pytest.mark.parametrize("version", [1, 3])
def test_an_answer_in_a_version_that_was_not_offered_is_refused(version: int) -> None:
    talk = Talk(version=version)
    told = talk.run(lambda client, bookie: client.read_lac(bookie, ACCESS), lambda _: None)
    assert told.answer is Answer.UNREACHABLE
    [peer] = talk.clients[NATIVE]._peers.values()
    assert (
        f"the bookie responds in version {version} of the native protocol, and this client offered 2..2"
        in peer.trouble
    )


def test_a_run_of_entries_with_terms_is_not_taken_for_another() -> None:
    entry = ACCESS.digest.seal_with_term(LEDGER, 0, -1, 1, b"x", origin_term=1) + b"x"
    run = encode_run(LEDGER, 0, 0, [entry], [len(entry)], digest_type=3, scheme=SCHEME_TERMS)
    told = native_bodies.encode_read_fields(0, []) + len(run).to_bytes(4, "big") + run
    reply = Talk().run(lambda client, bookie: client.read(bookie, ACCESS, 0, 0, 99), lambda r: said(r, told))
    assert (reply.answer, reply.runs, reply.conclusive_through) == (Answer.BAD_DIGEST, [], -1)


# --- pages ----------------------------------------------------------------------------------------------------------


def interval(first: int, last: int) -> HeldInterval:
    return HeldInterval(first, last, 1, 1)


PAGES = {0: ([interval(0, 4), interval(7, 9)], 12), 12: ([interval(12, 12)], -1)}


def listed(pages: dict[int, tuple[list[HeldInterval], int]], *, ledger_id: int | None = None) -> Any:
    def answer(request: native.Request) -> bytes:
        first, _ = native_bodies.decode_body(Kind.LIST_ENTRIES, request.body)
        return said(request, native_bodies.encode_held(*pages[first]), ledger_id=ledger_id)

    return Talk().run(lambda client, bookie: client.list_entries(bookie, ACCESS), answer)


def test_a_list_comes_in_pages() -> None:
    assert listed(PAGES) == (Answer.OK, [interval(0, 4), interval(7, 9), interval(12, 12)])


@pytest.mark.parametrize(
    ("pages", "said"),
    [
        ({0: ([interval(7, 9), interval(0, 4)], -1)}, "out of order: the first id 0 follows 7"),
        (PAGES | {12: ([interval(11, 12)], -1)}, "from 12 on is out of order: the first id 11 follows 12"),
        (PAGES | {12: ([interval(12, 12)], 12)}, "names 12 as the next id"),
        (PAGES | {12: ([interval(12, 12)], 0)}, "names 0 as the next id"),
        (PAGES | {12: ([], 13)}, "a list of 0 intervals"),
    ],
)
def test_pages_out_of_order_are_an_error(
    pages: dict[int, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert listed(pages) == (Answer.ERROR, [])
    assert said in caplog.text


def test_a_page_of_another_ledger_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    assert listed(PAGES, ledger_id=5) == (Answer.ERROR, [])
    assert f"of ledger 5, but ledger {LEDGER}" in caplog.text


def test_a_list_without_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_bookies, "LISTED_MAX", 2)
    assert listed(PAGES) == (Answer.ERROR, [])


# --- the channel's queue --------------------------------------------------------------------------------------------


class Sender:
    def __init__(self) -> None:
        self.answers: list[tuple[object, Answer]] = []

    def answered(self, tag: object, response: ReadReply) -> None:
        self.answers.append((tag, response.answer))


def test_what_is_not_laid_out_yet_waits_expires_and_is_dropped_like_the_rest() -> None:
    context = ChannelContext(Scratch(), ReceiveBudget(1 << 20))
    channel = Channel(BookieId("b1"), context, NativeCodec(context, ""), lambda *_: None)
    one, other = Sender(), Sender()
    channel.send(ReadRange(ACCESS, 0, 9, 100), one, "late", deadline=1.0)
    channel.send(ReadRange(ACCESS, 0, 9, 100), other, "dropped", deadline=9.0)
    assert (channel.unsent_bytes(one), channel.unsent_bytes(other)) == (96, 96)
    channel.expire(5.0)
    channel.drop(other)
    assert (channel.unsent_bytes(one), channel.unsent_bytes(other)) == (0, 0)
    channel.end("gone")
    assert (one.answers, other.answers) == ([("late", Answer.TIMED_OUT)], [])


@pytest.mark.parametrize(("features", "marked"), [(native_hello.LOW_PRIORITY, True), (0, False)])
def test_low_priority_work_is_marked_for_bookies_that_know_it(features: int, marked: bool) -> None:
    body = bytes(64)
    for request in (
        AddRun(ACCESS, body, checksum(body), -1, recovery=True, low_priority=True),
        ReadRange(ACCESS, 0, 9, 100, recovery=True, low_priority=True),
    ):
        frame = encode(request, 1, features)
        assert frame is not None
        sent = native.decode_request(memoryview(b"".join(frame)))
        assert bool(sent.flags & native.Flag.LOW_PRIORITY) == marked
        assert sent.flags & native.Flag.RECOVERY
