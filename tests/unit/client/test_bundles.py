"""Bundles between a client and real bookies: runs of many ledgers in one request, each of which fares as if alone."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager

import pytest

from quire.bookie.connections.bundle_requests import BundleRequests
from quire.client.config import ClientConfig
from quire.client.sending.bundles import Bundle
from quire.client.writing.choosing import BookieChoices
from quire.core.answers import Answer
from quire.core.errors import LedgerClosedError, LedgerFencedError, NotWritingError
from quire.net.channel import NativeCodec
from quire.wire.addresses import address_of
from quire.wire.bundles import ROW, ROWS_AT, BundlePart, encode_parts, open_bundle
from quire.wire.requests import AddRun
from quire.wire.run import RunView
from support.small_cluster import small_cluster
from support.waiting import until_async

NO_REST = ClientConfig(explicit_lac_after_ms=3_600_000)
ONE_ENTRY = ClientConfig(run_bytes_max=1, explicit_lac_after_ms=3_600_000)
"""A second entry of a turn is a second run."""


class Sent:
    """What a client gave to its connections: (bookie, first entry of each ledger), and whether it was a bundle."""

    def __init__(self, monkeypatch):
        self.requests = []
        self.damaged = None  # the bookie that gets the first body of its next bundle damaged
        send, send_bundle = NativeCodec.send, NativeCodec.send_bundle

        def plain(codec, request, *rest):
            if type(request) is AddRun:
                entries = {request.ledger.ledger_id: RunView.parse(request.body).first}
                self.requests.append((codec.channel.meant, entries, False))
            return send(codec, request, *rest)

        def bundle(codec, number, frame, *rest):
            rows, at = open_bundle(frame)
            entries = {}
            for ledger_id, _, _, _, size, _ in rows:
                assert ledger_id not in entries
                entries[ledger_id] = RunView.parse(frame[at : at + size]).first
                at += size
            self.requests.append((codec.channel.meant, entries, True))
            if codec.channel.meant == self.damaged:
                self.damaged, end = None, ROWS_AT + len(rows) * ROW.size
                last = end + rows[0][4] - 1
                frame = frame[:last] + bytes([frame[last] ^ 1]) + frame[last + 1 :]
            return send_bundle(codec, number, frame, *rest)

        monkeypatch.setattr(NativeCodec, "send", plain)
        monkeypatch.setattr(NativeCodec, "send_bundle", bundle)

    def to(self, bookie):
        """(entries, whether in a bundle) of each request to a bookie, since the last call; forgets the others."""
        found, self.requests = [each[1:] for each in self.requests if each[0] == bookie], []
        return found


@pytest.fixture
def sent(monkeypatch):
    return Sent(monkeypatch)


@asynccontextmanager
async def writers(directory, sent, count=2, config=NO_REST, **quorums):
    """A cluster, its bookies, and some writers that have appended one entry each."""
    async with small_cluster(directory) as cluster:
        client = await cluster.client(config)
        ledgers = [await client.create_ledger(**quorums) for _ in range(count)]
        for ledger in ledgers:
            assert await ledger.append(b"0") == 0
        await until_async(lambda: not any(ledger._outgoing.is_unacknowledged for ledger in ledgers))
        for ledger in ledgers:
            ledger._outgoing.rest()  # their runs lie in bundles from now on
        sent.requests.clear()
        yield cluster, sorted(cluster.servers), ledgers


def together(ledgers, payload=b"x"):
    return [ledger.append_nowait(payload) for ledger in ledgers]


async def acknowledged(ledgers, entry=1):
    assert await asyncio.gather(*together(ledgers)) == [entry] * len(ledgers)


def connection(ledger, bookie):
    return ledger._context.bookies._peers[bookie].channel


def unsent_bundles(channel):
    """Those that a connection has not taken; a writer with an absent slot also asks whether the bookie is back."""
    return [tag for tag in channel._queue.unsent if isinstance(tag, Bundle)]


def answers_of(monkeypatch, server, lie):
    """Have one bookie answer bundles as `lie` says, which gets the request's number and the parts."""
    encode = BundleRequests.encode

    def lying(requests):
        if requests._server is not server or not requests.answered:
            return encode(requests)
        number = requests.answered[0][0].number
        parts = sorted((row, answer) for rows, answer in requests.answered for row in rows.rows)
        requests.answered = []
        return lie(number, [BundlePart(row, 1, answer) for row, answer in parts])

    monkeypatch.setattr(BundleRequests, "encode", lying)


async def test_one_turn_is_one_request_to_each_bookie(tmp_path, sent):
    async with writers(tmp_path, sent, 5) as (_, bookies, ledgers):
        await acknowledged(ledgers)
        assert [len(sent.requests), *sent.to(bookies[0])] == [
            3,
            ({one.ledger_id: 1 for one in ledgers}, True),
        ]
        await asyncio.gather(*[ledger.append(b"x") for ledger in ledgers])
        assert sent.to(bookies[0]) == [({one.ledger_id: 2 for one in ledgers}, True)]


async def test_a_bundle_of_one_run_is_a_plain_add(tmp_path, sent):
    async with writers(tmp_path, sent) as (_, bookies, (one, _)):
        await acknowledged([one])
        assert [len(sent.requests), *sent.to(bookies[0])] == [3, ({one.ledger_id: 1}, False)]


async def test_a_ledger_that_is_refused_alone_ends_alone(tmp_path, sent):
    async with writers(tmp_path, sent) as (cluster, bookies, (fenced, other)):
        reader = await cluster.client()
        for bookie in bookies:
            reply = await reader.bookies.read_lac(bookie, fenced.access, fence=True)
            assert reply.answer is Answer.OK
        refused, stored = together([fenced, other])
        assert await stored == 1
        with pytest.raises(LedgerFencedError):
            await refused
        assert sent.to(bookies[0])[0] == ({fenced.ledger_id: 1, other.ledger_id: 1}, True)
        await acknowledged([other], 2)
        assert not other.holes


async def test_parts_arrive_in_any_order(tmp_path, sent, monkeypatch):
    async with writers(tmp_path, sent, 4, ack_quorum=3) as (cluster, bookies, ledgers):

        def backwards(number, parts):
            return [encode_parts(number, [part], 0) for part in reversed(parts)]

        answers_of(monkeypatch, cluster.servers[bookies[1]], backwards)
        await acknowledged(ledgers)
        await acknowledged(ledgers, 2)
        assert [is_bundle for _, is_bundle in sent.to(bookies[1])] == [True, True]


async def test_a_row_that_is_answered_twice_ends_the_connection(tmp_path, sent, monkeypatch):
    async with writers(tmp_path, sent) as (cluster, bookies, ledgers):
        before = connection(ledgers[0], bookies[2])

        def twice(number, parts):
            return [encode_parts(number, [parts[0], parts[0]], 0)]

        answers_of(monkeypatch, cluster.servers[bookies[2]], twice)
        await acknowledged(ledgers)
        await until_async(lambda: before.closed)
        monkeypatch.undo()
        await until_async(lambda: not any(ledger._machine.absent for ledger in ledgers), "it is back")
        await acknowledged(ledgers, 2)


async def test_a_connection_that_ends_fails_the_rows_without_an_answer(tmp_path, sent, monkeypatch):
    async with writers(tmp_path, sent, 4) as (cluster, bookies, ledgers):
        server = cluster.servers[bookies[0]]

        def half(number, parts):
            return [encode_parts(number, parts[:2], 0)]

        answers_of(monkeypatch, server, half)
        places = [
            ledger._outgoing.connection_at(ledger.metadata.ensemble_of(0).index(bookies[0]))
            for ledger in ledgers
        ]
        await acknowledged(ledgers)
        await until_async(lambda: [1 in place.unacked for place in places] == [False, False, True, True])
        connection(ledgers[0], bookies[0]).close()
        await until_async(lambda: sum(place.retired for place in places) == 2)
        assert [place.retired for place in places] == [False, False, True, True]


async def test_a_bundle_to_fewer_than_the_quorum_counts_when_a_bookie_returns(tmp_path, sent):
    """The one bookie that was there had acknowledged, and the callers waited for ever."""
    async with writers(tmp_path, sent) as (cluster, bookies, ledgers):
        names = [await cluster.stop_bookie(bookie) for bookie in bookies[1:]]
        first = together(ledgers)
        await until_async(lambda: all(len(ledger._machine.absent) == 2 for ledger in ledgers))
        sent.requests.clear()
        second = together(ledgers)
        await until_async(
            lambda: sent.requests and not any(ledger._outgoing.is_unacknowledged for ledger in ledgers)
        )
        assert sent.to(bookies[0])[0] == ({ledger.ledger_id: 2 for ledger in ledgers}, True)
        await cluster.start_bookie(names[0])
        assert await asyncio.gather(*first, *second) == [1, 1, 2, 2]


async def test_a_damaged_body_is_sent_again_alone(tmp_path, sent):
    async with writers(tmp_path, sent, ack_quorum=3) as (_, bookies, ledgers):
        sent.damaged = bookies[1]
        await acknowledged(ledgers)
        one = ledgers[0].ledger_id
        assert sent.to(bookies[1]) == [({ledger.ledger_id: 1 for ledger in ledgers}, True), ({one: 1}, False)]
        assert all(len(ledger.metadata.fragments) == 1 for ledger in ledgers)


async def test_beside_a_bookie_without_bundles_all_get_plain_adds(sent, cluster):
    other, *bookies = sorted(cluster.servers)
    at = address_of(*cluster.servers[other].address)
    client = await cluster.client(ClientConfig(protocol_of=((at, "v3"),)))
    ledgers = [await client.create_ledger() for _ in range(2)]
    await acknowledged(ledgers, 0)
    await until_async(lambda: not any(ledger._outgoing.is_unacknowledged for ledger in ledgers))
    sent.requests.clear()
    await acknowledged(ledgers)
    assert sorted(sent.requests, key=str) == sorted(
        [(bookie, {ledger.ledger_id: 1}, False) for bookie in bookies for ledger in ledgers], key=str
    )


async def test_a_run_overtakes_no_other_of_its_ledger(tmp_path, sent):
    async with writers(tmp_path, sent, config=ONE_ENTRY) as (_, bookies, ledgers):
        one, other = (ledger.ledger_id for ledger in ledgers)
        await asyncio.gather(*together(ledgers * 3), ledgers[0].append_nowait(bytes(100_000)))
        assert sent.to(bookies[0]) == [
            ({one: 1, other: 1}, True),
            ({one: 2, other: 2}, True),
            ({one: 3}, False),
            ({one: 4}, False),
            ({other: 3}, False),
        ]


@pytest.mark.parametrize("seed", range(6))
async def test_entries_are_confirmed_in_order_whether_they_lie_in_bundles_or_are_held(tmp_path, sent, seed):
    chance, done = random.Random(seed), []

    async with writers(tmp_path, sent, 4) as (_, bookies, ledgers):
        stopped = connection(ledgers[0], bookies[2])
        held = {
            "long": lambda ledger: ledger.append_nowait(bytes(20_000)),
            "followed": lambda ledger: ledger._outgoing.connection_at(0),
            "dissolved": lambda ledger: ledger._outgoing.leave_bundles(),
            "rests": lambda ledger: ledger._outgoing.rest(),
            "unsent": lambda _: stopped.pause_writing(),
            "sent": lambda _: stopped.resume_writing(),
        }
        for _ in range(150):
            for ledger in ledgers:
                what = chance.choice(["nothing"] * 12 + list(held))
                futures = [ledger.append_nowait(b"x")]
                if what != "nothing":
                    futures.append(held[what](ledger))
                for future in filter(asyncio.isfuture, futures):
                    future.add_done_callback(lambda one, ledger=ledger: done.append((ledger, one.result())))
            for _ in range(chance.randrange(3)):
                await asyncio.sleep(0)
        stopped.resume_writing()
        for ledger in ledgers:
            await ledger.drain()
            await asyncio.sleep(0)
            assert [entry for one, entry in done if one is ledger] == list(range(1, ledger._machine.lap + 1))
        await until_async(lambda: not any(ledger.held_bytes for ledger in ledgers), "all windows are empty")
        assert any(is_bundle for _, _, is_bundle in sent.requests)


async def test_what_is_acknowledged_while_an_ensemble_change_is_under_way_outlives_its_bundle(
    tmp_path, sent, monkeypatch
):
    """No bookie had failed, so nothing dissolved the bundle: it was forgotten with its last answer, and the run with it."""
    async with writers(tmp_path, sent) as (_, _, ledgers):
        (one, _), waiting = ledgers, []
        monkeypatch.setattr(BookieChoices, "choose", lambda _, effect: waiting.append(effect))
        futures = together(ledgers)
        one._machine.left_bookies_asked([(0, one._machine.ensemble[0])], 0, spare=True)
        one._effects.perform()
        assert await futures[1] == 1
        await until_async(lambda: not one._outgoing.is_unacknowledged)
        assert not futures[0].done()
        one._machine.replacements_chosen({}, 0)
        one._effects.perform()
        assert await futures[0] == 1
        await until_async(lambda: not any(ledger.held_bytes for ledger in ledgers), "all windows are empty")


async def test_a_bundle_that_is_complete_before_an_earlier_one_is_confirmed_after_it(
    tmp_path, sent, monkeypatch
):
    async with writers(tmp_path, sent) as (_, _, ledgers):
        late = []
        add_bundle = Bundle.answered

        def answered(bundle, tag, parts):
            if not late or bundle is late[0][0]:
                late.append((bundle, tag, parts))
            else:
                add_bundle(bundle, tag, parts)

        monkeypatch.setattr(Bundle, "answered", answered)
        first = together(ledgers)
        await asyncio.sleep(0)
        second = together(ledgers)
        await until_async(lambda: len(late) == 3 and not ledgers[0]._outgoing.is_unacknowledged)
        assert not any(future.done() for future in (*first, *second))
        for one in late:
            add_bundle(*one)
        assert [future.result() for future in (*first, *second)] == [1, 1, 2, 2]
        await until_async(lambda: not any(ledger.held_bytes for ledger in ledgers), "all windows are empty")


@pytest.mark.parametrize("leaves", ["abandon", "close"])
async def test_a_writer_leaves_in_the_turn_in_which_it_collected(tmp_path, sent, leaves):
    async with writers(tmp_path, sent, 3, ONE_ENTRY) as (_, bookies, (leaver, *others)):
        handed_over, collected = together([leaver] * 2)
        stay = together(others)
        await getattr(leaver, leaves)()
        assert await asyncio.gather(*stay) == [1, 1]
        for future in (handed_over, collected):
            with pytest.raises((LedgerClosedError, NotWritingError)):
                await future
        ((entries, is_bundle),) = sent.to(bookies[0])
        assert is_bundle
        assert (leaver.ledger_id in entries) == (leaves == "close"), (
            "what was handed over before a close is sent"
        )


async def test_a_bookie_that_does_not_read_counts_against_the_windows(tmp_path, sent):
    async with writers(tmp_path, sent) as (_, bookies, ledgers):
        stopped = connection(ledgers[0], bookies[0])
        stopped.pause_writing()
        await acknowledged(ledgers)
        assert [ledger.held_bytes > 1 for ledger in ledgers] == [True, True]
        assert [ledger._outgoing.all_sent for ledger in ledgers] == [False, False]
        assert ledgers[0]._context.bookies.anything_unsent
        stopped.resume_writing()
        await until_async(lambda: not any(ledger.held_bytes for ledger in ledgers))
        await until_async(lambda: not any(ledger._outgoing.is_unacknowledged for ledger in ledgers))


async def test_a_bookie_that_does_not_keep_up_is_given_up_by_all_writers_of_its_frames(tmp_path, sent):
    config = ClientConfig(slow_after_ms=40, slot_unsent_bytes_max=16 * 1024, quarantine_ms=60_000)
    async with writers(tmp_path, sent, config=config) as (_, bookies, (fast, slow)):
        stopped = connection(fast, bookies[0])
        stopped.pause_writing()
        entries = 0
        while not (fast._machine.absent and slow._machine.absent):
            entries += 1
            await asyncio.gather(fast.append(bytes(8_000)), slow.append(b"x"))
        await fast.drain()
        assert not unsent_bundles(stopped)
        await until_async(lambda: not fast.held_bytes)
        assert {hole.bookie for hole in slow.holes} == {bookies[0]}
        await acknowledged([fast, slow], entries + 1)


async def test_bookies_that_all_answer_late_leave_a_bundle_whole(tmp_path, sent):
    async with writers(tmp_path, sent) as (_, bookies, ledgers):
        stopped = connection(ledgers[0], bookies[0])
        stopped.pause_writing()
        await acknowledged(ledgers)
        bundle = ledgers[0]._outgoing._bundle
        lane = bundle.lane
        await until_async(lambda: bundle.awaited.bit_count() == 1)

        lane.moved = bundle.awaited  # it has answered another request meanwhile
        assert lane.look(bundle.since, bundle.since - 1), "nobody is at fault"
        assert bundle.together
        assert not lane.look(bundle.since, bundle.since - 1), "and nothing since then"
        assert not bundle.together

        await acknowledged(ledgers, 2)
        second = ledgers[0]._outgoing._bundle
        lane.moved = second.awaited
        assert not lane.look(second.since, second.since), "for so long nothing keeps it whole"
        assert not second.together
        stopped.resume_writing()
        await acknowledged(ledgers, 3)


async def test_a_bundle_is_given_up_in_the_turn_in_which_it_is_open(tmp_path, sent):
    async with writers(tmp_path, sent, config=ONE_ENTRY) as (_, bookies, ledgers):
        stopped = connection(ledgers[0], bookies[0])
        stopped.pause_writing()
        futures = together(ledgers * 2)
        assert not sent.requests, "the first entry of each is in an open bundle"
        ledgers[0]._outgoing.give_up_bundles(bookies[0])
        assert await asyncio.gather(*futures) == [1, 1, 2, 2]
        assert not unsent_bundles(stopped)
        assert {hole.bookie for ledger in ledgers for hole in ledger.holes} == {bookies[0]}
        await until_async(lambda: not any(ledger.held_bytes for ledger in ledgers))


async def test_a_body_that_is_copied_into_a_frame_counts_twice(tmp_path, sent):
    async with writers(tmp_path, sent) as (_, bookies, ledgers):
        stopped = connection(ledgers[0], bookies[0])
        stopped.pause_writing()
        await asyncio.gather(*together(ledgers, bytes(5_000)))
        assert all(2 * 5_000 < ledger.held_bytes < 3 * 5_000 for ledger in ledgers)
        stopped.resume_writing()
        await until_async(lambda: not any(ledger.held_bytes for ledger in ledgers))


async def test_a_writer_that_fails_at_the_end_of_a_turn_keeps_no_other_from_sending(tmp_path, sent):
    class WriterError(Exception):
        pass

    class FailingWriter:
        def turn_ended(self):
            raise WriterError

    async with writers(tmp_path, sent) as (_, bookies, (one, other)):
        complaints = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        first = one.append_nowait(b"x")
        one._context.turn.at_its_end(FailingWriter())
        assert await asyncio.gather(first, other.append_nowait(b"x")) == [1, 1]
        assert sent.to(bookies[0]) == [({one.ledger_id: 1, other.ledger_id: 1}, True)]
        assert [type(each["exception"]) for each in complaints] == [WriterError]
        await acknowledged([one, other], 2)
