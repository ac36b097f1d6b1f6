"""Streams whose last acknowledged entries are lost on every bookie: an operator has the LACs ignored, and then they are over."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from quire.client.access import LedgerAccess
from quire.client.bookies.bookies import BookieClient
from quire.client.streams.unbounded import UnboundedLedger
from quire.client.writing.writer import LedgerWriter
from quire.core.answers import Answer
from quire.core.errors import PastEndError, RecoveryInconclusiveError
from quire.core.ids import EntryId
from quire.wire.entries import copies
from quire.wire.entry import Entry
from quire.wire.requests import AddRun
from quire.wire.responses import ReadReply
from support.small_cluster import SmallCluster
from support.stream_modes import BOTH, taken
from support.waiting import until_async
from unit.client.test_reading import Told, texts
from unit.client.test_unbounded_ledgers import payloads, ranges, streams

OLD_LAC = 6
KEPT = 2
"""Entries up to this one are not lost."""


async def lose_the_last(cluster: SmallCluster, stream: UnboundedLedger) -> list[bytes]:
    """Entries up to `OLD_LAC` are acknowledged, and all bookies know; then those behind `KEPT` are gone. What is left."""
    writer = await stream.open_writer()
    first = writer.last_add_confirmed + 1
    await asyncio.gather(*map(writer.append, texts(OLD_LAC + 1 - first)))
    for bookie in writer.metadata.last_fragment.ensemble:
        ledgers = cluster.servers[bookie].ledgers

        def is_told(ledgers=ledgers) -> bool:
            return ledgers.lac(writer.metadata.ledger_id) == OLD_LAC

        await until_async(is_told, "the last add confirmed to be told")
    await writer.release()
    for bookie in writer.metadata.last_fragment.ensemble:
        server, done = cluster.servers[bookie], asyncio.get_running_loop().create_future()
        lsn = server.storage.journal.last_lsn
        server.ledgers.drop(writer.metadata.ledger_id, KEPT + 1, OLD_LAC, lsn, done.set_result)
        assert await done is None
    return texts(OLD_LAC)[: KEPT + 1 - first]


async def overruled(stream: UnboundedLedger) -> LedgerWriter:
    """The writer that an operator makes, when no other can be made."""
    with pytest.raises(RecoveryInconclusiveError, match="--ignore-lac"):
        await stream.open_writer()
    return await stream.open_writer(ignored_lacs=(await stream.show()).last_fragment.ensemble)


async def put_on_one(stream: UnboundedLedger, writer: LedgerWriter, entry_id: int) -> None:
    """One bookie has an entry of this writer, which nobody acknowledged."""
    record, lac = writer.metadata, writer.last_add_confirmed
    access = LedgerAccess.of(record, writer.term)
    entry = Entry(record.ledger_id, EntryId(entry_id), lac, writer.length + 9, b"unacked")
    (added,) = copies([entry], access.digest, 1 << 20, origin_term=writer.term)
    told, request = Told(), AddRun(access, added.body, added.body_crc, lac, term=writer.term)
    stream._context.bookies.add_run(record.last_fragment.ensemble[0], request, told, None, 1000)
    assert await told.told is Answer.OK


@pytest.mark.parametrize("digest", ["crc32c", "mac"])
@BOTH
async def test_readers_go_by_what_the_new_writer_has_confirmed(mode, digest, cluster) -> None:
    mine, theirs = await streams(cluster, mode=mode, digest=digest)
    wanted = await lose_the_last(cluster, mine)
    before = await theirs.open_reader()
    assert before.last_add_confirmed == OLD_LAC
    writer = await overruled(mine)
    assert writer.last_add_confirmed == KEPT + taken(mode) < OLD_LAC
    assert await before.refresh() == writer.last_add_confirmed
    reader, seen = await theirs.open_reader(), []
    assert reader.last_add_confirmed == writer.last_add_confirmed
    assert [bytes(entry.payload) async for entry in theirs.read(0)] == wanted
    unacked = writer.last_add_confirmed + 1
    await put_on_one(mine, writer, unacked)
    with pytest.raises(PastEndError):
        [entry async for entry in theirs.read(0, unacked)]

    async def follow() -> None:
        async with contextlib.aclosing(theirs.tail(0)) as entries:
            async for entry in entries:
                seen.append(bytes(entry.payload))

    following = asyncio.create_task(follow())
    await until_async(lambda: seen == wanted or following.done(), "the tail")
    for number in range(OLD_LAC):
        payload = b"new %d" % number
        last = await writer.append(payload)
        wanted.append(payload)
        await until_async(lambda: seen == wanted or following.done(), "the tail")
        assert await payloads(theirs, last) == wanted
    assert not following.done()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    assert last > OLD_LAC


@BOTH
async def test_the_next_take_over_does_not_begin_at_the_lac_that_was_ignored(mode, cluster) -> None:
    """An entry of the new writer's at that id, and none before it, would be taken for decided, behind a hole."""
    mine, theirs = await streams(cluster, mode=mode)
    wanted = await lose_the_last(cluster, mine)
    writer = await overruled(mine)
    first = writer.last_add_confirmed + 1
    await put_on_one(mine, writer, OLD_LAC)
    await writer.abandon()
    other = await theirs.open_writer()
    assert ranges(other.metadata)[-2:] == [(writer.term, KEPT + 1), (other.term, first)]
    last = await other.append(b"later")
    assert last == first + taken(mode)
    assert await payloads(mine, last) == [*wanted, b"later"]
    report = await mine.verify()
    assert (report.complete, report.lost, report.below_ack_quorum) == (True, [], [])


@BOTH
async def test_after_a_start_bookies_do_not_tell_the_lac_that_was_ignored_as_the_new_writers(
    mode, cluster
) -> None:
    mine, theirs = await streams(cluster, mode=mode)
    wanted = await lose_the_last(cluster, mine)
    writer = await overruled(mine)
    last = await writer.append(b"new")
    assert await payloads(theirs, last) == [*wanted, b"new"]
    await writer.abandon()
    names = [await cluster.stop_bookie(bookie) for bookie in writer.metadata.last_fragment.ensemble]
    for name in names:
        await cluster.start_bookie(name)

    async def are_back() -> bool:
        reader = await theirs.open_reader()
        return not reader.silent

    await until_async(are_back, "the bookies")
    reader = await theirs.open_reader()
    assert last - 1 <= reader.last_add_confirmed <= last
    other = await theirs.open_writer()
    assert other.last_add_confirmed == last + taken(mode)
    again = await other.append(b"again")
    assert await payloads(mine, again) == [*wanted, b"new", b"again"]
    report = await mine.verify()
    assert report.complete


@BOTH
async def test_a_tail_asks_others_where_a_bookie_tells_the_lac_that_was_ignored(
    mode, monkeypatch, cluster
) -> None:
    """It hears nothing of the new writer, and is the first to answer every poll: its LAC is above what is polled for."""
    mine, theirs = await streams(cluster, mode=mode)
    await lose_the_last(cluster, mine)
    writer = await overruled(mine)
    behind, *others = writer.metadata.last_fragment.ensemble
    plain, told = BookieClient.long_poll, asyncio.Event()
    first: list[ReadReply] = []

    async def long_poll(self, bookie, *args, **options):
        if bookie in others:
            await asyncio.Event().wait()
        assert bookie == behind
        if not first:
            first.append(await plain(self, bookie, *args, **options))
        told.set()
        return first[0]

    monkeypatch.setattr(BookieClient, "long_poll", long_poll)
    async with contextlib.aclosing(theirs.tail(writer.last_add_confirmed + 1)) as entries:
        coming = asyncio.ensure_future(anext(entries))
        await told.wait()
        assert (first[0].lac, first[0].lac_term) == (OLD_LAC, 2)
        await writer.append(b"new")
        await until_async(coming.done, "the new entry")
        assert bytes(coming.result().payload) == b"new"
    await writer.abandon()
