"""Bookies that answer "too many requests": what they refuse is sent again, and nothing is lost, fenced or replaced for it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from quire.client.config import ClientConfig
from quire.core.errors import (
    NotEnoughBookiesError,
    QuireError,
    QuorumLostError,
    ReadUnavailableError,
    RecoveryInconclusiveError,
)
from quire.net.pacing import IN_FLIGHT_MAX
from support.busy_bookie import ADDS, READS, URGENT, BusyBookie, busy_cluster
from support.waiting import until_async

PROTOCOLS = ["v2", "v3"]
SHAPE = {"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2}
PATIENT = ClientConfig(add_timeout_ms=60_000, read_timeout_ms=60_000, slow_after_ms=60_000)
HASTY = ClientConfig(add_timeout_ms=600, quorum_wait_ms=400, flush_ms=100)
NO_LIMIT = 1 << 30


def limit(busy: list[BusyBookie], count: int, *kinds: str) -> None:
    for one in busy:
        one.limits.update(dict.fromkeys(kinds or (ADDS, READS, URGENT), count))


def values_of(number: int, count: int) -> list[bytes]:
    return [b"%d:%d" % (number, entry) for entry in range(count)]


@pytest.mark.parametrize(
    ("protocol", "at_once", "count", "clients"),
    [
        ("v2", 8, 200, 1),
        pytest.param("v3", 8, 200, 1, marks=pytest.mark.slow),
        pytest.param("v2", 8, 200, 3, marks=pytest.mark.slow),
        ("v3", 8, 60, 3),
        pytest.param("v2", 1_000, 2_000, 1, marks=pytest.mark.slow),
        pytest.param("v3", 1_000, 3_000, 1, marks=pytest.mark.slow),
        pytest.param("v2", 1_000, 1_500, 3, marks=pytest.mark.slow),
        pytest.param("v3", 1_000, 1_500, 3, marks=pytest.mark.slow),
    ],
)
async def test_everything_is_acknowledged_read_and_recovered_below_a_limit(
    tmp_path: Path, protocol: str, at_once: int, count: int, clients: int
) -> None:
    async def one(cluster, number: int) -> int:
        client = await cluster.client(replace(PATIENT, protocol=protocol))
        ledger = await client.create_ledger(**SHAPE)
        ids = await ledger.append_many(values_of(number, count))
        assert ledger.last_add_confirmed == count - 1
        assert len(ids) == count
        await ledger.close()
        assert not ledger.holes
        assert len(ledger.metadata.fragments) == 1
        reader = await client.open_ledger(ledger.ledger_id)
        assert [bytes(entry.payload) async for entry in reader.read()] == values_of(number, count)
        left = await client.create_ledger(**SHAPE)
        await left.append_many(values_of(number, count))
        await left.abandon()
        reader = await client.open_ledger(left.ledger_id)
        assert [bytes(entry.payload) async for entry in reader.read()] == values_of(number, count)
        return ledger.ledger_id

    async with busy_cluster(tmp_path) as (cluster, busy):
        limit(busy, at_once)
        for each in busy:
            each.sync_seconds = 0.005 if at_once > 8 else 0.0
        ids = await asyncio.gather(*(one(cluster, number) for number in range(clients)))
        assert sum(each.refused[ADDS] for each in busy), "the limit was met"
        assert all(each.most[ADDS] <= at_once for each in busy)
        for ledger_id in ids:
            assert (await cluster.clients[0].verify_ledger(ledger_id)).complete


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_so_many_are_in_flight_and_no_more(tmp_path: Path, protocol: str) -> None:
    """Without any limit at the bookie."""
    async with busy_cluster(tmp_path) as (cluster, busy):
        client = await cluster.client(replace(PATIENT, protocol=protocol))
        ledger = await client.create_ledger(**SHAPE)
        await ledger.append_many([b"%d" % entry for entry in range(3 * IN_FLIGHT_MAX)])
        await ledger.close()
        assert not ledger.holes
        assert max(one.most[ADDS] for one in busy) <= IN_FLIGHT_MAX
        assert not any(one.refused for one in busy)


@pytest.mark.parametrize("protocol", [pytest.param("v2", marks=pytest.mark.slow), "v3"])
async def test_a_recovery_does_not_wait_behind_ordinary_adds(tmp_path: Path, protocol: str) -> None:
    """As many adds as are allowed are in flight and stay so: the same client fences, reads, and writes back."""
    values = values_of(1, 50)
    async with busy_cluster(tmp_path) as (cluster, busy):
        client = await cluster.client(replace(PATIENT, protocol=protocol))
        left = await client.create_ledger(**SHAPE)
        await left.append_many(values)
        await left.abandon()
        writer = await client.create_ledger(**SHAPE)
        for one in busy:
            one.sync_seconds = 3_600.0
        going = asyncio.ensure_future(writer.append_many([b"%d" % n for n in range(IN_FLIGHT_MAX + 100)]))
        await until_async(lambda: all(one.most[ADDS] >= IN_FLIGHT_MAX for one in busy))
        async with asyncio.timeout(60):
            reader = await client.open_ledger(left.ledger_id)
            assert [bytes(entry.payload) async for entry in reader.read()] == values
        assert all(one.most[ADDS] == IN_FLIGHT_MAX and one.most[URGENT] for one in busy)
        assert not going.done()
        going.cancel()
        await writer.abandon()


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_bookies_that_were_busy_for_a_while_are_not_replaced(tmp_path: Path, protocol: str) -> None:
    async with busy_cluster(tmp_path, 4) as (cluster, busy):
        client = await cluster.client(replace(PATIENT, protocol=protocol))
        ledger = await client.create_ledger(**SHAPE)
        await ledger.append(b"before")
        limit(busy, 0)
        going = asyncio.ensure_future(ledger.append_many([b"%d" % number for number in range(200)]))
        await until_async(lambda: sum(one.refused[ADDS] > 200 for one in busy) == 3)
        assert not going.done()
        limit(busy, NO_LIMIT)
        await going
        await ledger.close()
        assert not ledger.holes
        assert len(ledger.metadata.fragments) == 1
        assert (await client.verify_ledger(ledger.ledger_id)).complete


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_bookie_that_is_busy_for_ever_is_replaced_after_the_add_timeout(
    tmp_path: Path, protocol: str
) -> None:
    async with busy_cluster(tmp_path, 4) as (cluster, busy):
        client = await cluster.client(replace(PATIENT, protocol=protocol, add_timeout_ms=2_000))
        ledger = await client.create_ledger(**SHAPE)
        await ledger.append(b"before")
        gone = ledger.metadata.fragments[0].ensemble[1]
        [its] = [one for one in busy if cluster.servers[gone].address[1] == one.behind]
        its.limits[ADDS] = 0
        await ledger.append_many([b"%d" % number for number in range(200)])
        await until_async(lambda: its.refused[ADDS] > 200)
        async with asyncio.timeout(60):
            while gone in ledger.metadata.last_fragment.ensemble:
                await ledger.append(b"after")
        peer = client.bookies._peers[gone]
        assert peer.channel is not None
        assert not peer.channel.codec.waiting_bytes, "what waited for it is dropped"
        last = ledger.last_add_confirmed
        await ledger.close()
        reader = await client.open_ledger(ledger.ledger_id)
        assert [entry.entry_id async for entry in reader.read()] == list(range(last + 1))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("count", [1, 200])
async def test_when_all_are_busy_for_ever_an_error_says_so_and_nobody_is_replaced(
    tmp_path: Path, protocol: str, count: int
) -> None:
    async with busy_cluster(tmp_path) as (cluster, busy):
        client = await cluster.client(replace(HASTY, protocol=protocol))
        ledger = await client.create_ledger(**SHAPE)
        await ledger.append(b"before")
        limit(busy, 0, ADDS)
        async with asyncio.timeout(60):
            with pytest.raises(QuorumLostError, match="refused all requests as too busy") as caught:
                await ledger.append_many([b"%d" % number for number in range(count)])
        assert any(bookie in str(caught.value) for bookie in cluster.servers)
        assert len(ledger.metadata.fragments) == 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_client_that_did_not_run_for_a_while_blames_no_bookie(tmp_path: Path, protocol: str) -> None:
    """Its clock goes on by more than the add timeout at once; a bookie that stays silent is replaced all the same."""
    async with busy_cluster(tmp_path, 4) as (cluster, busy):
        client = await cluster.client(replace(PATIENT, protocol=protocol, add_timeout_ms=30_000))
        ledger = await client.create_ledger(**SHAPE)
        ensemble = ledger.metadata.fragments[0].ensemble
        served = [one for one in busy if one.behind in {cluster.servers[b].address[1] for b in ensemble}]
        silent = served[0]
        loop = asyncio.get_running_loop()
        real, ahead = loop.time, 0

        def jump(seconds: int) -> None:
            nonlocal ahead
            ahead += seconds

        loop.time = lambda: real() + ahead  # type: ignore[method-assign]
        for one in served:
            one.sync_seconds = 40
        going = asyncio.ensure_future(ledger.append(b"its responses come while nothing runs"))
        await until_async(lambda: all(one.held == 1 for one in served))
        jump(50)
        await going
        assert ledger.metadata.fragments[0].ensemble == ensemble
        await until_async(lambda: not client.bookies._sweep.was_late)
        for one in served:
            one.sync_seconds = 40 if one is not silent else 1_000
        going = asyncio.ensure_future(ledger.append(b"one of them says nothing"))
        await until_async(lambda: all(one.held == 2 for one in served))
        jump(50)
        await going
        for one in served:
            one.sync_seconds = 0
        async with asyncio.timeout(60):
            while ledger.metadata.last_fragment.ensemble == ensemble:
                await ledger.append(b"after")
        assert not silent.refused
        await ledger.abandon()


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_busy_is_no_negative_and_no_fence(tmp_path: Path, protocol: str) -> None:
    """A recovery that all bookies refuse ends nothing; when they serve again it has every acknowledged entry."""
    async with busy_cluster(tmp_path) as (cluster, busy):
        config = replace(HASTY, protocol=protocol, recovery_timeout_ms=300, recovery_patience_ms=300)
        client = await cluster.client(config)
        ledger = await client.create_ledger(**SHAPE)
        await ledger.append_many([b"%d" % number for number in range(50)])
        limit(busy, 0, URGENT)
        other = await cluster.client(config)
        async with asyncio.timeout(60):
            with pytest.raises(QuireError):
                await other.open_ledger(ledger.ledger_id)
        assert sum(one.refused[URGENT] for one in busy)
        assert all(not one.most[URGENT] for one in busy)
        limit(busy, NO_LIMIT)
        third = await cluster.client(replace(PATIENT, protocol=protocol))
        reader = await third.open_ledger(ledger.ledger_id)
        assert [entry.entry_id async for entry in reader.read()] == list(range(50))
        await ledger.abandon()


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("how", ["too busy for ever", "closes every connection"])
async def test_a_read_ends_after_a_bounded_time_with_an_error_that_names_the_bookies(
    tmp_path: Path, protocol: str, how: str
) -> None:
    async with busy_cluster(tmp_path) as (cluster, busy):
        config = replace(HASTY, protocol=protocol, read_timeout_ms=400, recovery_timeout_ms=400)
        client = await cluster.client(replace(config, recovery_patience_ms=400))
        closed, left = await client.create_ledger(**SHAPE), await client.create_ledger(**SHAPE)
        await closed.append_many([b"%d" % number for number in range(50)])
        await closed.close()
        await left.append(b"entry")
        await left.abandon()
        limit(busy, 0, READS, URGENT)
        for one in busy:
            one.closes = how == "closes every connection"
        reader = await client.open_ledger(closed.ledger_id)
        async with asyncio.timeout(60):
            with pytest.raises(ReadUnavailableError) as caught:
                [entry async for entry in reader.read(0, 0)]
            assert any(bookie in str(caught.value) for bookie in cluster.servers), caught.value
            said = "TOO_BUSY" if how == "too busy for ever" else "UNREACHABLE"
            assert said in str(caught.value)
            with pytest.raises(RecoveryInconclusiveError) as inconclusive:
                await client.open_ledger(left.ledger_id)
            assert any(bookie in str(inconclusive.value) for bookie in cluster.servers), inconclusive.value


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_bookies_that_close_the_connection_at_every_request(tmp_path: Path, protocol: str) -> None:
    async with busy_cluster(tmp_path) as (cluster, busy):
        client = await cluster.client(replace(HASTY, protocol=protocol))
        ledger = await client.create_ledger(**SHAPE)
        await ledger.append(b"before")
        for one in busy:
            one.closes = True
        async with asyncio.timeout(60):
            with pytest.raises((QuorumLostError, NotEnoughBookiesError)) as caught:
                await ledger.append_many([b"%d" % number for number in range(200)])
        assert any(bookie in str(caught.value) for bookie in cluster.servers)
