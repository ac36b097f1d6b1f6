"""Our client and our bookies with BookKeeper's protocols between them: what holds for ours must hold for those."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from quire.bookie.connections.bookkeeper_v3 import V3Requests
from quire.client.config import ClientConfig
from quire.core.answers import Answer
from quire.core.errors import LedgerFencedError, MisuseError, QuireError
from quire.wire.proto import bookkeeper_protocol_pb2 as pb
from support.small_cluster import SmallCluster, small_cluster
from support.waiting import until_async

PROTOCOLS = ["v2", "v3"]
WORLDS = [
    ("crc32", (3, 3, 2)),
    ("crc32c", (3, 3, 2)),
    ("mac", (3, 3, 2)),
    ("dummy", (3, 3, 2)),
    ("crc32c", (5, 3, 2)),
    ("mac", (4, 2, 2)),
]


def config_of(protocol: str, **others: Any) -> ClientConfig:
    return ClientConfig(protocol=protocol, explicit_lac_after_ms=100, **others)


def payload(number: int) -> bytes:
    return bytes((31 * number + position) % 256 for position in range(number * 37 % 2000))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(("digest", "shape"), WORLDS, ids=str)
async def test_written_read_recovered_and_tailed(
    tmp_path: Path, protocol: str, digest: str, shape: tuple[int, int, int]
) -> None:
    async with small_cluster(tmp_path, bookies=shape[0]) as cluster:
        writer_client = await cluster.client(config_of(protocol))
        reader_client = await cluster.client(config_of(protocol))
        ensemble, write, ack = shape
        ledger = await writer_client.create_ledger(
            ensemble_size=ensemble, write_quorum=write, ack_quorum=ack, password=b"pw", digest=digest
        )
        await ledger.append_many([payload(number) for number in range(300)])
        for number in range(300, 330):
            await ledger.append(payload(number))

        beside = await reader_client.open_ledger(ledger.ledger_id, password=b"pw", recover=False)
        tail = asyncio.create_task(collect(beside, 331))
        await ledger.append(payload(330))
        async with asyncio.timeout(60):
            assert await tail == [payload(number) for number in range(331)]

        reader = await reader_client.open_ledger(ledger.ledger_id, password=b"pw")
        assert reader.closed
        assert reader.last_add_confirmed == 330
        found = [bytes(entry.payload) async for entry in reader.read(0, 330)]
        assert found == [payload(number) for number in range(331)]
        with pytest.raises(LedgerFencedError):
            await ledger.append(b"too late")
        await ledger.abandon()


async def collect(reader: Any, count: int) -> list[bytes]:
    found: list[bytes] = []
    async for entry in reader.tail():
        found.append(bytes(entry.payload))
        if len(found) == count:
            break
    return found


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_bookie_that_goes_is_replaced(tmp_path: Path, protocol: str) -> None:
    async with small_cluster(tmp_path, bookies=4) as cluster:
        client = await cluster.client(config_of(protocol))
        ledger = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2, password=b"")
        await ledger.append_many([payload(number) for number in range(50)])
        gone = ledger.metadata.fragments[0].ensemble[1]
        await cluster.stop_bookie(gone, clean=False)
        async with asyncio.timeout(60):
            for number in range(50, 100):
                await ledger.append(payload(number))
        await ledger.close()
        assert gone not in ledger.metadata.fragments[-1].ensemble or len(ledger.metadata.fragments) > 1
        reader = await client.open_ledger(ledger.ledger_id, password=b"")
        found = [bytes(entry.payload) async for entry in reader.read()]
        assert found == [payload(number) for number in range(100)]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_one_bookie_is_spoken_to_otherwise(protocol: str, cluster: SmallCluster) -> None:
    host, port = next(iter(cluster.servers.values())).address
    config = ClientConfig(protocol_of=((f"{host}:{port}", protocol),))
    client = await cluster.client(config)
    ledger = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=3, password=b"")
    await ledger.append_many([payload(number) for number in range(200)])
    await ledger.close()
    report = await client.verify_ledger(ledger.ledger_id, password=b"")
    assert report.complete


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_bookie_tells_how_much_room_it_has(tmp_path: Path, protocol: str) -> None:
    async with small_cluster(tmp_path, bookies=1) as cluster:
        client = await cluster.client(config_of(protocol))
        answer, says = await client.bookies.info(next(iter(cluster.servers)))
        assert answer is Answer.OK
        assert says["disk"]["bytes"] >= says["disk"]["free_bytes"] > 0


def test_a_protocol_that_is_none() -> None:
    with pytest.raises(MisuseError, match="auto, auto-v2, v2, v3"):
        ClientConfig(protocol="v4")
    assert issubclass(LedgerFencedError, QuireError)


async def test_a_bookie_wakes_long_polls_only_at_the_end_of_their_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Java's do at times: so a tail that waits for a second asks in shorter slices."""
    asked: list[int] = []

    def lazy(self: V3Requests, request: pb.Request) -> None:
        asked.append(request.readRequest.timeOut)
        end = partial(self._end_poll, request, waited=True)
        asyncio.get_running_loop().call_later(asked[-1] / 1000, end)

    monkeypatch.setattr(V3Requests, "_long_poll", lazy)
    async with small_cluster(tmp_path, bookies=3) as cluster:
        client = await cluster.client(config_of("v3"))
        ledger = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2, password=b"")
        await ledger.append(payload(0))
        reader = await client.open_ledger(ledger.ledger_id, password=b"", recover=False)
        tail = asyncio.create_task(collect(reader, 2))
        await until_async(lambda: len(asked) > 6)
        assert not tail.done()
        await ledger.append(payload(1))
        async with asyncio.timeout(60):
            assert await tail == [payload(0), payload(1)]
        assert 0 < max(asked) <= 300
        await ledger.abandon()
