"""Unbounded ledgers over real bookies in this process: take-overs, terms, outcomes, reads and tails across them."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import Any

import pytest

from quire.client.config import ClientConfig
from quire.client.streams.unbounded import UnboundedLedger
from quire.core.errors import (
    AlreadyExistsError,
    ElectionUnavailableError,
    MisuseError,
    NoSuchLedgerError,
    NoSuchStreamError,
    NotEnoughBookiesError,
    NotWritingError,
    OutcomeUnknownError,
    StreamClosedError,
    TermSupersededError,
    WrongPasswordError,
)
from quire.core.ledger.metadata import LedgerMetadata, LedgerState, new_ledger
from quire.core.ledger.terms import TermRange
from quire.metadata.election import Election
from quire.metadata.records import RecordStore
from quire.metadata.store import StoreBusyError
from support.small_cluster import SmallCluster, small_cluster
from support.stream_modes import BOTH, taken
from support.waiting import until_async
from unit.client.test_reading import texts

DIGESTS = ["crc32c", "mac", "dummy"]


async def streams(
    cluster: SmallCluster, count: int = 2, mode: str = "identifiers", **options: Any
) -> list[UnboundedLedger]:
    """A new stream, as several clients have it."""
    handles = [(await cluster.client()).unbounded_ledger("s", b"p", mode=mode) for _ in range(count)]
    await handles[0].create(**options)
    return handles


async def payloads(stream: UnboundedLedger, last: int, first: int = 0) -> list[bytes]:
    """Entries up to the last one, which was acknowledged: its writer tells bookies that a moment later."""
    reader = await stream.open_reader()

    async def is_known() -> bool:
        return await reader.refresh() >= last

    await until_async(is_known, "the last add confirmed to be told")
    assert reader.last_add_confirmed == last
    return [bytes(entry.payload) async for entry in reader.read(first, last)]


def ranges(record: Any) -> list[tuple[int, int]]:
    return [(each.term, each.first_entry) for each in record.ranges]


@BOTH
async def test_custom_metadata_is_checked_as_that_of_a_ledger_is(mode, client) -> None:
    stream = client.unbounded_ledger("s", mode=mode)
    for custom, words in (
        ({"a": "text"}, "custom metadata 'a' must be bytes, not str"),
        ({"quire.guarantee": b"write_quorum"}, "a stream cannot guarantee its write quorum"),
    ):
        with pytest.raises(MisuseError, match=words):
            await stream.create(custom=custom)
    assert [name async for name in client.unbounded_ledgers()] == []
    assert (await stream.create(custom={"a": b"bytes"})).custom_value("a") == b"bytes"


@pytest.mark.parametrize("digest", DIGESTS)
@BOTH
async def test_clients_write_a_stream_in_turn(digest, mode, cluster) -> None:
    mine, theirs = await streams(cluster, mode=mode, digest=digest)
    async with await mine.open_writer() as writer:
        first = writer.last_add_confirmed + 1
        assert (writer.term, first) == (2, taken(mode))
        assert await asyncio.gather(*map(writer.append, texts(300))) == list(range(first, first + 300))
    other = await theirs.open_writer()
    second = other.last_add_confirmed + 1
    assert (other.term, second, other.length) == (3, 300 + taken(mode, 2), writer.length)
    assert await asyncio.gather(*map(other.append, texts(50))) == list(range(second, second + 50))
    with pytest.raises(NotWritingError, match="abandoned"):
        await writer.append(b"released")
    assert await payloads(mine, second + 49) == texts(300) + texts(50)
    around = [bytes(entry.payload) async for entry in theirs.read(second - taken(mode) - 5, second + 4)]
    assert around == texts(300)[-5:] + texts(50)[:5]
    record = await theirs.show()
    assert ranges(record) == [(1, 0), (2, 0), (3, second - taken(mode))]
    assert record.state is LedgerState.OPEN


@BOTH
async def test_entries_of_a_striped_stream_keep_their_names(tmp_path, mode) -> None:
    async with small_cluster(tmp_path, 4) as cluster:
        mine, theirs = await streams(cluster, mode=mode, ensemble_size=4, write_quorum=3, ack_quorum=2)
        first = await mine.open_writer()
        await asyncio.gather(*map(first.append, texts(41)))
        second = await theirs.open_writer()
        await asyncio.gather(*map(second.append, texts(43)))
        third = await mine.open_writer()
        last = max(await asyncio.gather(*map(third.append, texts(45))))
        assert await payloads(theirs, last) == texts(41) + texts(43) + texts(45)


@BOTH
async def test_a_superseded_writer_learns_what_became_of_each_entry(mode, cluster) -> None:
    mine, theirs = await streams(cluster, mode=mode)
    writer = await mine.open_writer()
    begin = writer.last_add_confirmed + 1
    futures: list[asyncio.Future[int]] = []

    async def press() -> None:
        with contextlib.suppress(NotWritingError):
            while True:
                futures.append(writer.append_nowait(b"%d" % len(futures)))
                await asyncio.sleep(0)

    pressing = asyncio.create_task(press())
    await until_async(lambda: writer.last_add_confirmed > 100, "some acknowledgements")
    other = await theirs.open_writer()
    await pressing
    outcomes = await asyncio.gather(*futures, return_exceptions=True)
    kept = await payloads(theirs, other.last_add_confirmed)
    assert kept == [b"%d" % number for number in range(len(kept))]
    unknown = 0
    for position, outcome in enumerate(outcomes):
        if isinstance(outcome, TermSupersededError):
            unknown += 1
            assert outcome.ids["entry_id"] == begin + position
            assert outcome.ids["term"] == writer.term
            assert await mine.resolve(outcome) is (position < len(kept))
        elif isinstance(outcome, NotWritingError):
            assert position >= len(kept), "it was never sent"
        else:
            assert outcome == begin + position
            assert position < len(kept)
    assert unknown > 0
    assert isinstance(writer.problem, TermSupersededError)
    with pytest.raises(NotWritingError):
        await writer.append(b"later")


@BOTH
async def test_an_outcome_is_open_until_the_next_term_is(mode, cluster) -> None:
    (mine,) = await streams(cluster, 1, mode)
    writer = await mine.open_writer()
    before = await writer.append(b"kept")
    bookies = list(writer.metadata.last_fragment.ensemble)
    names = [await cluster.stop_bookie(bookie) for bookie in bookies[:2]]
    lost = writer.append_nowait(b"lost or kept")
    await until_async(lambda: writer._machine.lap == before + 1, "it to be sent")
    await writer.abandon()
    with pytest.raises(OutcomeUnknownError) as raised:
        await lost
    assert await mine.resolve(raised.value) is None
    for name in names:
        await cluster.start_bookie(name)
    next_one = await (await cluster.client()).unbounded_ledger("s", b"p").open_writer()
    kept = next_one.last_add_confirmed == before + 1 + taken(mode)
    assert await mine.resolve(raised.value) is kept
    assert len(await payloads(mine, next_one.last_add_confirmed)) == 1 + kept
    for error in (NotWritingError("another", ledger_id=3), TimeoutError()):
        with pytest.raises(MisuseError, match=f"{type(error).__name__} .* names no entry"):
            await mine.resolve(error)


@BOTH
async def test_a_tail_goes_on_across_take_overs_and_ends_with_the_stream(mode, cluster) -> None:
    mine, theirs, reader = await streams(cluster, 3, mode=mode)
    seen: list[tuple[int, bytes]] = []

    async def follow() -> None:
        async for entry in reader.tail():
            seen.append((entry.entry_id, bytes(entry.payload)))

    following = asyncio.create_task(follow())
    wanted: list[tuple[int, bytes]] = []
    for turn in range(6):
        writer = await (mine, theirs)[turn % 2].open_writer()
        for text in texts(5):
            wanted.append((await writer.append(b"%d %b" % (turn, text)), b"%d %b" % (turn, text)))
        if turn != 3:
            await until_async(lambda: len(seen) == len(wanted), "the tail to see what was acknowledged")
    assert (await theirs.close()).state is LedgerState.CLOSED
    await following
    assert seen == wanted
    skipped = {*range(30 + taken(mode, 6))} - {entry_id for entry_id, _ in seen}
    assert len(skipped) == taken(mode, 6), "one for each take-over"


async def test_what_an_old_writer_left_on_one_bookie_is_no_entry_of_its_successor(cluster) -> None:
    """Its id is given again: the new entry and the old one have one id, and two names."""
    mine, theirs = await streams(cluster)
    writer = await mine.open_writer()
    await writer.append(b"0")
    left, *others = writer.metadata.last_fragment.ensemble
    names = [await cluster.stop_bookie(bookie) for bookie in others]
    old = writer.append_nowait(b"old 1")

    async def stored() -> bool:
        reply = await mine._context.bookies.read(left, writer.access, 1, 1, 1000, origin_term=writer.term)
        return bool(reply.runs)

    await until_async(stored, "the entry to be on one bookie")
    await writer.abandon()
    with pytest.raises(OutcomeUnknownError):
        await old
    gone = await cluster.stop_bookie(left)
    for name in names:
        await cluster.start_bookie(name)
    other = await theirs.open_writer()
    assert other.last_add_confirmed == 0, "two of three say that there is no entry 1"
    assert await other.append(b"new 1") == 1
    await cluster.start_bookie(gone)
    assert await payloads(mine, 1) == [b"0", b"new 1"]
    third = await mine.open_writer()
    assert third.last_add_confirmed == 1
    assert await payloads(theirs, 1) == [b"0", b"new 1"]


async def test_a_stream_goes_on_without_one_of_its_three_bookies(cluster) -> None:
    mine, theirs = await streams(cluster)
    writer = await mine.open_writer()
    await writer.append(b"0")
    dead = writer.metadata.last_fragment.ensemble[1]
    await cluster.stop_bookie(dead, clean=False)
    other = await theirs.open_writer()
    assert await other.append(b"1") == 1
    assert await payloads(mine, 1) == [b"0", b"1"]


@BOTH
async def test_a_writer_that_only_took_a_stream_over_replaces_a_bookie_that_left_before(
    tmp_path, mode
) -> None:
    async with small_cluster(tmp_path, 4) as cluster:
        mine, theirs = await streams(cluster, mode=mode)
        writer = await mine.open_writer()
        before = await writer.append(b"0")
        gone = writer.metadata.last_fragment.ensemble[1]
        await writer.release()
        await cluster.stop_bookie(gone)
        context = theirs._context
        theirs._context = replace(
            context, config=replace(context.config, left_wait_ms_min=0, left_wait_ms_max=0)
        )
        await theirs.open_writer()

        async def is_replaced() -> bool:
            return gone not in (await mine.show()).last_fragment.ensemble

        await until_async(is_replaced, "the bookie that left to be replaced")
        record = await mine.show()
        assert [each.first_entry for each in record.fragments] == [0, before + 1]
        assert (record.state, record.term, len(record.ranges)) == (LedgerState.OPEN, 3, 3)


@BOTH
async def test_a_take_over_writes_its_record_twice(monkeypatch, mode, cluster) -> None:
    mine, theirs = await streams(cluster, mode=mode)
    writer = await mine.open_writer()
    await asyncio.gather(*map(writer.append, texts(20)))
    written: list[LedgerState] = []
    write = RecordStore.write

    async def noted(self: RecordStore, record: LedgerMetadata, version: int, **knows: bool) -> int:
        written.append(record.state)
        return await write(self, record, version, **knows)

    monkeypatch.setattr(RecordStore, "write", noted)
    await theirs.open_writer()
    assert written == [LedgerState.IN_RECOVERY, LedgerState.OPEN]


@BOTH
async def test_a_close_ends_a_stream_for_good(mode, cluster) -> None:
    mine, theirs = await streams(cluster, mode=mode)
    writer = await mine.open_writer()
    last = await writer.append(b"0")
    await writer.close()
    record = await theirs.close()
    assert (record.state, record.last_entry) == (LedgerState.CLOSED, last)
    with pytest.raises(StreamClosedError, match=f"closed for good at entry {last}"):
        await theirs.open_writer()
    assert await payloads(theirs, last) == [b"0"]
    assert [bytes(entry.payload) async for entry in theirs.tail()] == [b"0"]


@BOTH
async def test_a_deleted_stream_is_gone_with_its_name(mode, cluster) -> None:
    mine, theirs = await streams(cluster, mode=mode)
    writer = await mine.open_writer()
    await writer.append(b"0")
    await theirs.delete()
    with pytest.raises(OutcomeUnknownError):
        await writer.append(b"1")
    with pytest.raises(NoSuchStreamError, match="no stream 's'"):
        await mine.show()
    assert [name async for name in cluster.clients[0].unbounded_ledgers()] == []
    await mine.create()
    assert [name async for name in cluster.clients[0].unbounded_ledgers()] == ["s"]


class Advice:
    """An election that says when, and counts how often it was asked."""

    def __init__(self, error: Exception | None = None) -> None:
        self.asked, self.error = 0, error

    async def campaign(self) -> None:
        self.asked += 1
        if self.error is not None:
            raise self.error


@BOTH
async def test_clients_that_want_to_write_at_once_all_do_in_turn(mode, cluster) -> None:
    handles = await streams(cluster, 4, mode)
    advice = [Advice() for _ in handles]
    pairs = zip(handles, advice, strict=True)
    writers = await asyncio.gather(*(stream.open_writer(election) for stream, election in pairs))
    assert len({writer.term for writer in writers}) == 4
    assert sum(election.asked for election in advice) >= 4
    last = max(writers, key=lambda writer: writer.term)
    first = await last.append(b"only the last one")
    record = await handles[0].show()
    assert record.ranges[-1] == TermRange(last.term, first - taken(mode))


@BOTH
async def test_one_client_does_not_take_a_stream_over_twice_at_once(mode, client) -> None:
    await client.unbounded_ledger("s", mode=mode).create()
    opened = (client.unbounded_ledger("s").open_writer() for _ in range(5))
    *early, last = await asyncio.gather(*opened)
    terms = [writer.term for writer in (*early, last)]
    assert terms == [2, 3, 4, 5, 6], "one after another: none is lost to another of the same client"
    entry_id = await last.append(b"0")
    assert entry_id == taken(mode, 5)
    with pytest.raises(TermSupersededError):
        await early[0].append(b"late")
    found = await payloads(client.unbounded_ledger("s"), entry_id)
    assert found == [b"0"], "told by the one that is left"


@BOTH
async def test_the_elected_client_writes(mode, cluster) -> None:
    mine, theirs = await streams(cluster, mode=mode)
    ours, other = (Election(client.store, "s", "c") for client in cluster.clients[:2])
    writer = await mine.open_writer(ours)
    waiting = asyncio.create_task(theirs.open_writer(other))
    await until_async(lambda: _stands(ours), "the other one to stand")
    assert await writer.append(b"0") == taken(mode)
    await writer.release()
    await ours.resign()
    assert (await waiting).last_add_confirmed == taken(mode, 2)


async def _stands(election: Election) -> bool:
    return len(await election.candidates()) == 2


@BOTH
async def test_an_election_that_is_away_changes_nothing(mode, cluster) -> None:
    (mine,) = await streams(cluster, 1, mode)
    _, before = await mine._record()
    with pytest.raises(ElectionUnavailableError, match="take the stream over without an election"):
        await mine.open_writer(Advice(StoreBusyError("it does not respond")))
    assert (await mine._record())[1] == before
    assert (await mine.open_writer()).term == 2


# --- bad input -------------------------------------------------------------------------------------------------------


@BOTH
async def test_what_a_stream_cannot_be_asked(mode, client) -> None:
    stream = client.unbounded_ledger("s", b"p", mode=mode)
    with pytest.raises(NoSuchStreamError, match="create it first"):
        await stream.open_writer()
    record = await stream.create()
    with pytest.raises(AlreadyExistsError, match="the name 's' is taken"):
        await client.unbounded_ledger("s", b"p").create()
    with pytest.raises(WrongPasswordError):
        await client.unbounded_ledger("s").open_writer()
    with pytest.raises(NoSuchLedgerError, match="is a stream and no ledger"):
        await client.open_ledger(record.ledger_id, b"p")
    with pytest.raises(NoSuchLedgerError, match="is a stream and no ledger"):
        await client.delete_ledger(record.ledger_id)
    ledger = await client.create_ledger()
    with pytest.raises(NoSuchStreamError, match="is a ledger and no stream"):
        await client.records.streams.read(ledger.ledger_id)
    with pytest.raises(AlreadyExistsError, match="is a stream already"):
        await client.records.ledgers.create(
            new_ledger(
                record.ledger_id,
                record.last_fragment.ensemble,
                write_quorum=3,
                ack_quorum=2,
                digest_type=record.digest_type,
                password=b"",
            )
        )
    for name in ("", "a//b", "/a"):
        with pytest.raises(MisuseError):
            client.unbounded_ledger(name)


@BOTH
async def test_a_stream_is_on_bookies_that_know_terms_only(mode, cluster) -> None:
    """As over V3, which has no terms; Java's bookies speak nothing else."""
    client = await cluster.client(ClientConfig(protocol="v3"))
    with pytest.raises(NotEnoughBookiesError, match="cannot hold a stream: they do not register"):
        await client.unbounded_ledger("s", mode=mode).create()
    await (await cluster.client()).unbounded_ledger("s", mode=mode).create()
    for use in (client.unbounded_ledger("s").open_writer, client.unbounded_ledger("s").open_reader):
        with pytest.raises(MisuseError, match="this client cannot use it: they do not register"):
            await use()


@BOTH
async def test_a_record_that_is_full_is_not_taken_over(mode, cluster) -> None:
    (mine,) = await streams(cluster, 1, mode)
    record, version = await mine._record()
    await mine._streams.write(replace(record, custom=(("full", bytes(63 * 1024)),)), version)
    _, before = await mine._record()
    with pytest.raises(MisuseError, match="no room for one more term; close the stream for good"):
        await mine.open_writer()
    assert (await mine._record())[1] == before
    assert (await mine.close()).state is LedgerState.CLOSED


async def test_a_mode_is_chosen_once(client) -> None:
    with pytest.raises(MisuseError, match="unknown mode 'both' of a stream: use identifiers or fencing"):
        client.unbounded_ledger("s", mode="both")
    record = await client.unbounded_ledger("s", mode="fencing").create()
    assert record.only_fences
    other = client.unbounded_ledger("s", mode="identifiers")
    for use in (other.show, other.open_writer, other.open_reader, other.close):
        with pytest.raises(MisuseError, match="has the mode fencing, which never changes"):
            await use()
    assert (await client.unbounded_ledger("s").show()).only_fences
