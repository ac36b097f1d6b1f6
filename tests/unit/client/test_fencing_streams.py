"""Streams whose terms only fence, over real bookies in this process: no-ops, truncations, who joins, who is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from quire.bookie.server import BookieServer
from quire.client.access import LedgerAccess
from quire.client.bookies.bookies import BookieClient
from quire.client.streams.unbounded import UnboundedLedger
from quire.client.writing.writer import LedgerWriter
from quire.core.answers import Answer
from quire.core.errors import MisuseError, NoSuchStreamError, OutcomeUnknownError, StorageError
from quire.core.ids import BookieId
from quire.storage.segments.segment import WriteCallback
from quire.wire.entry import NoOp
from quire.wire.native_bodies import BY_ID
from support.small_cluster import SmallCluster, small_cluster
from support.waiting import until_async
from unit.client.test_reading import texts
from unit.client.test_unbounded_ledgers import payloads, ranges, streams


async def holds(stream: UnboundedLedger, bookie: BookieId, entry_id: int) -> bool:
    """Whether a bookie has an entry of this id, of whatever origin term."""
    access = LedgerAccess.of(await stream.show())
    reply = await stream._context.bookies.read(bookie, access, entry_id, entry_id, 1000, origin_term=BY_ID)
    return bool(reply.runs)


async def leave_on_one(
    cluster: SmallCluster, stream: UnboundedLedger, writer: LedgerWriter, some: list[bytes]
) -> tuple[BookieId, list[BookieId], list[str]]:
    """The writer ends with entries on one bookie alone. Names it, the others, which are stopped, and with which names to start them."""
    left = writer.metadata.last_fragment.ensemble[0]
    last = writer.last_add_confirmed + len(some)
    # The spare as well: with it the old entries would have their ack quorum.
    others = [server.bookie_id for server in cluster.servers.values() if server.bookie_id != left]
    names = [await cluster.stop_bookie(bookie) for bookie in others]
    old = [writer.append_nowait(payload) for payload in some]
    await until_async(lambda: holds(stream, left, last), "the entries to be on one bookie")
    await writer.abandon()
    for future in old:
        with pytest.raises(OutcomeUnknownError):
            await future
    return left, others, names


class OnceElected:
    """Advises to write the first time; the second time for ever to wait."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()
        self._asked = False

    async def campaign(self) -> None:
        if self._asked:
            self.lost.set()
            await asyncio.Event().wait()
        self._asked = True


@pytest.mark.parametrize("digest", ["crc32c", "mac"])
async def test_each_take_over_takes_an_id_that_readers_skip(digest, cluster) -> None:
    mine, theirs = await streams(cluster, mode="fencing", digest=digest)
    async with await mine.open_writer() as writer:
        assert (writer.term, writer.last_add_confirmed) == (2, 0)
        assert await asyncio.gather(*map(writer.append, texts(300))) == list(range(1, 301))
    other = await theirs.open_writer()
    assert (other.term, other.last_add_confirmed, other.length) == (3, 301, writer.length)
    assert await asyncio.gather(*map(other.append, texts(50))) == list(range(302, 352))
    assert await payloads(mine, 351) == texts(300) + texts(50)
    record = await theirs.show()
    assert ranges(record) == [(1, 0), (2, 0), (3, 301)]
    found = [(entry.entry_id, type(entry) is NoOp) async for entry in theirs.read(299, 303, no_ops=True)]
    assert found == [(299, False), (300, False), (301, True), (302, False), (303, False)]
    report = await theirs.verify()
    assert (report.complete, report.entries) == (True, 352)


async def test_a_bookie_that_comes_back_into_a_fragment_truncates_first(tmp_path) -> None:
    """It has an entry of the writer before, of an id that its successor has written without it."""
    async with small_cluster(tmp_path, 4) as cluster:
        mine, theirs = await streams(cluster, mode="fencing")
        writer = await mine.open_writer()
        await writer.append(b"0")
        left, _, names = await leave_on_one(
            cluster, mine, writer, [b"old %d" % number for number in range(3)]
        )
        gone = await cluster.stop_bookie(left)
        for name in names:
            await cluster.start_bookie(name)
        other = await theirs.open_writer()
        assert other.last_add_confirmed == 2, "the no-op, behind what was acknowledged"
        assert left not in other.metadata.last_fragment.ensemble
        assert await other.append(b"new 3") == 3
        await cluster.start_bookie(gone)
        away = other.metadata.last_fragment.ensemble[1]
        await cluster.stop_bookie(away)
        assert await other.append(b"new 4") == 4
        assert left in other.metadata.last_fragment.ensemble, "there is no other spare"
        report = await theirs.verify()
        assert not report.different
        assert await payloads(mine, 4) == [b"0", b"new 3", b"new 4"]


@pytest.mark.parametrize("comes", ["the bookie", "a spare"])
async def test_a_take_over_waits_for_a_bookie_or_a_spare(comes, cluster) -> None:
    mine, theirs = await streams(cluster, mode="fencing")
    writer = await mine.open_writer()
    await writer.append(b"0")
    await writer.release()
    dead = writer.metadata.last_fragment.ensemble[1]
    name = await cluster.stop_bookie(dead, clean=False)
    assert await theirs.waits_for() == {}, "nobody takes it over"
    taking = asyncio.create_task(theirs.open_writer())

    async def waits() -> bool:
        return {*await theirs.waits_for()} == {dead}

    await until_async(waits, "the take-over to wait")
    assert not taking.done()
    (why,) = (await mine.waits_for()).values()
    assert why == "it is not registered, and no other bookie can take its place", "another client sees it too"
    await cluster.start_bookie(name if comes == "the bookie" else "b9")
    other = await taking
    ensemble = other.metadata.last_fragment.ensemble
    assert (dead in ensemble) is (comes == "the bookie")
    assert await theirs.waits_for() == {}
    assert await payloads(mine, await other.append(b"1")) == [b"0", b"1"]


async def test_a_bookie_is_taken_back_when_the_spare_in_its_place_has_died(tmp_path) -> None:
    """However long the take-over has waited: what failed at its beginning is excluded no longer."""
    async with small_cluster(tmp_path, 4) as cluster:
        (mine,) = await streams(cluster, 1, mode="fencing")
        writer = await mine.open_writer()
        last = await writer.append(b"0")
        await writer.release()
        ensemble = writer.metadata.last_fragment.ensemble
        (spare,) = {*cluster.servers} - {*ensemble}
        name = await cluster.stop_bookie(ensemble[1], clean=False)
        cluster.servers[spare].ledgers.truncate = lambda *_: None  # it hangs
        taking = asyncio.create_task(mine.open_writer())
        await until_async(
            lambda: mine._under_way is not None and mine._under_way._fencing.waiting, "the wait"
        )
        await cluster.stop_bookie(spare, clean=False)
        await cluster.start_bookie(name)
        other = await taking
        assert other.metadata.last_fragment.ensemble == ensemble
        assert await other.append(b"1") == last + 2
        assert await payloads(mine, last + 2) == [b"0", b"1"]
        assert (await mine.verify()).complete


async def with_an_entry_to_write_back(
    cluster: SmallCluster, mine: UnboundedLedger
) -> tuple[BookieId, list[str]]:
    """One bookie of three has an entry of id 2 alone. Names one that is not there then, and with which names to start both."""
    writer = await mine.open_writer()
    await writer.append(b"0")
    _, others, names = await leave_on_one(cluster, mine, writer, [b"1"])
    return others[1], names


async def test_a_take_over_that_has_to_write_back_waits_too(cluster) -> None:
    """An entry that was not acknowledged has to reach its whole write set as well."""
    mine, theirs = await streams(cluster, mode="fencing")
    away, names = await with_an_entry_to_write_back(cluster, mine)
    await cluster.start_bookie(names[0])
    taking = asyncio.create_task(theirs.open_writer())

    async def waits() -> bool:
        return {*await theirs.waits_for()} == {away}

    await until_async(waits, "the take-over to wait")
    await cluster.start_bookie(names[1])
    other = await taking
    assert await payloads(mine, other.last_add_confirmed) == [b"0", b"1"]
    report = await theirs.verify()
    assert (report.complete, report.different) == (True, [])


async def test_a_read_only_bookie_is_not_waited_for(cluster) -> None:
    """It takes what is written back, and truncates."""
    mine, theirs = await streams(cluster, mode="fencing")
    away, names = await with_an_entry_to_write_back(cluster, mine)
    full = await cluster.start_bookie(names[0])
    full.ledgers.read_only = True
    seen = theirs._context.bookies
    await until_async(lambda: seen.read_only() == [full.bookie_id], "the client to see it")
    taking = asyncio.create_task(theirs.open_writer())
    await until_async(lambda: {*theirs._lacks} == {away}, "the take-over to wait")
    await cluster.start_bookie(names[1])
    other = await taking
    assert full.bookie_id in other.metadata.last_fragment.ensemble
    assert await payloads(mine, other.last_add_confirmed) == [b"0", b"1"]


async def test_a_take_over_that_has_to_write_back_waits_without_new_terms(tmp_path, monkeypatch) -> None:
    """Each would fail as the one before, and supersede whoever else takes the stream over."""
    monkeypatch.setattr("quire.client.streams.take_over.RECORD_PAUSE_MS", 1)
    async with small_cluster(tmp_path) as cluster:
        mine, theirs = await streams(cluster, mode="fencing")
        _, names = await with_an_entry_to_write_back(cluster, mine)
        await cluster.start_bookie(names[0])
        looks = 0
        probe = BookieClient.probe

        async def counted(*args: Any, **options: Any) -> dict[BookieId, Answer]:
            nonlocal looks
            looks += 1
            return await probe(*args, **options)

        monkeypatch.setattr(BookieClient, "probe", counted)
        election = OnceElected()
        taking = asyncio.create_task(theirs.open_writer(election))
        await until_async(lambda: looks >= 4, "it to look for bookies now and then")
        assert (await mine.show()).term == 3
        again = asyncio.create_task(mine.open_writer())
        await until_async(election.lost.is_set, "it to notice the other client's")
        await until_async(lambda: looks >= 7, "the other one to look now and then")
        assert await theirs.waits_for() == await mine.waits_for() != {}
        assert (await mine.show()).term == 4
        await cluster.start_bookie(names[1])
        other = await again
        assert other.term == 5
        assert await payloads(theirs, other.last_add_confirmed) == [b"0", b"1"]
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking


class HeldAdds:
    """What a bookie has stored, and does not say yet."""

    def __init__(self, server: BookieServer) -> None:
        self._said: list[Callable[[], None]] | None = []
        self._add = server.ledgers.add
        server.ledgers.add = self._hold  # type: ignore[method-assign]

    def _hold(self, request: Any, run: Any, callback: WriteCallback, tag: object) -> Answer:
        said = self._said

        class Held:
            def stored(self, tag: Any, error: StorageError | None) -> None:
                say = partial(callback.stored, tag, error)
                say() if said is None else said.append(say)

        return self._add(request, run, Held(), tag)

    def let_go(self) -> None:
        """Say it, and what is stored from now on at once."""
        said, self._said = self._said, None
        for say in said or ():
            say()


@pytest.mark.parametrize("comes", ["its answer", "a spare"])
async def test_a_bookie_that_is_late_with_an_entry_is_given_up_only_for_another(
    tmp_path, monkeypatch, comes
) -> None:
    """Without one a take-over that gave it up would end, and the next one would find it as slow."""
    monkeypatch.setattr("quire.client.streams.take_over.SILENT_MS", 100)
    async with small_cluster(tmp_path) as cluster:
        mine, theirs = await streams(cluster, mode="fencing")
        slow, names = await with_an_entry_to_write_back(cluster, mine)
        for name in names:
            await cluster.start_bookie(name)
        held = HeldAdds(cluster.servers[slow])
        taking = asyncio.create_task(theirs.open_writer())

        async def waits() -> bool:
            return await theirs.waits_for() == {
                slow: "it does not respond, and no other bookie can take its place"
            }

        await until_async(waits, "the take-over to wait")
        if comes == "its answer":
            held.let_go()
        else:
            await cluster.start_bookie("b9")
        other = await taking
        assert (slow in other.metadata.last_fragment.ensemble) is (comes == "its answer")
        assert other.term == 3, "there was one take-over"
        assert await payloads(mine, other.last_add_confirmed) == [b"0", b"1"]
        held.let_go()


async def test_an_answer_to_the_truncation_counts_when_it_comes_late(tmp_path, monkeypatch) -> None:
    """A bookie whose answers always take longer than it is given would be asked for ever."""
    monkeypatch.setattr("quire.client.streams.take_over.SILENT_MS", 100)
    async with small_cluster(tmp_path) as cluster:
        mine, theirs = await streams(cluster, mode="fencing")
        writer = await mine.open_writer()
        await writer.append(b"0")
        await writer.release()
        slow = writer.metadata.last_fragment.ensemble[1]
        ledgers = cluster.servers[slow].ledgers
        truncate, said = ledgers.truncate, []

        def late(what: Any, request: Any, callback: Any, client: Any) -> None:
            if not said:  # others it never answers
                truncate(what, request, lambda *answer: said.append(partial(callback, *answer)), client)

        monkeypatch.setattr(ledgers, "truncate", late)
        taking = asyncio.create_task(theirs.open_writer())

        def is_asked_again() -> Any:
            under_way = theirs._under_way
            waits = under_way is not None and under_way._fencing.waiting
            return waits and said and not under_way._machine.awaited

        await until_async(is_asked_again, "it to be asked again")
        assert {*await theirs.waits_for()} == {slow}, "it has not answered yet"
        said.pop()()
        other = await taking
        assert (other.term, other.metadata.last_fragment.ensemble[1]) == (3, slow)
        assert await payloads(mine, await other.append(b"1")) == [b"0", b"1"]


@pytest.mark.parametrize("ends", ["the stream", "the client"])
async def test_a_take_over_waits_no_longer_than_there_is_something_to_take_over(
    tmp_path, monkeypatch, ends
) -> None:
    monkeypatch.setattr("quire.client.streams.take_over.RECORD_PAUSE_MS", 1)
    async with small_cluster(tmp_path) as cluster:
        mine, theirs = await streams(cluster, mode="fencing")
        writer = await mine.open_writer()
        await writer.append(b"0")
        await writer.release()
        await cluster.stop_bookie(writer.metadata.last_fragment.ensemble[1], clean=False)
        taking = asyncio.create_task(theirs.open_writer())
        await until_async(
            lambda: theirs._under_way is not None and theirs._under_way._fencing.waiting, "the wait"
        )
        if ends == "the stream":
            await mine.delete(fence=False)
            with pytest.raises(NoSuchStreamError, match="deleted"):
                await taking
            return
        (client,) = (each for each in cluster.clients if each.bookies is theirs._context.bookies)
        cluster.clients.remove(client)
        await client.close()
        with pytest.raises(MisuseError, match="closed"):
            await taking


async def test_a_take_over_that_waits_notices_that_another_client_has_taken_over(
    tmp_path, monkeypatch
) -> None:
    """It sees the spare later than the other client, say: no bookie that it asks tells it."""
    monkeypatch.setattr("quire.client.streams.take_over.RECORD_PAUSE_MS", 1)
    async with small_cluster(tmp_path) as cluster:
        mine, theirs = await streams(cluster, mode="fencing")
        writer = await mine.open_writer()
        await writer.append(b"0")
        await writer.release()
        await cluster.stop_bookie(writer.metadata.last_fragment.ensemble[1], clean=False)
        election = OnceElected()
        taking = asyncio.create_task(mine.open_writer(election))
        await until_async(
            lambda: mine._under_way is not None and mine._under_way._fencing.waiting, "the wait"
        )
        monkeypatch.setattr(mine._under_way, "_spares", lambda _: {})
        await cluster.start_bookie("b9")
        other = await theirs.open_writer()
        await until_async(election.lost.is_set, "the election to be asked again")
        assert await mine.waits_for() == {}
        last = await other.append(b"1")
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        assert await payloads(theirs, last) == [b"0", b"1"]


async def test_a_take_over_that_is_cancelled_waits_for_nobody(cluster) -> None:
    mine, theirs = await streams(cluster, mode="fencing")
    writer = await mine.open_writer()
    _, others, names = await leave_on_one(cluster, mine, writer, [b"1"])
    await cluster.start_bookie(names[0])
    taking = asyncio.create_task(theirs.open_writer())
    await until_async(lambda: theirs._lacks and theirs._under_way is None, "a pause of the take-over")
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    await cluster.start_bookie(names[1])
    await until_async(lambda: others[1] in theirs._context.bookies.writable(), "the bookie to be seen again")
    assert await theirs.waits_for() == {}
    other = await mine.open_writer()
    assert await payloads(mine, other.last_add_confirmed) == [b"1"]
