"""V2 on bookies before 4.17: a BATCH_READ ends the connection, so they are asked first, and read entry by entry."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from quire.client.config import ClientConfig
from quire.wire import v2
from support.java_peers import free_port
from support.small_cluster import SmallCluster

V2_ONLY = ClientConfig(protocol="v2")


class OldBookie:
    """Stands before a bookie of ours and treats BATCH_READ as an older one does.

    Attributes:
        asked: requests by their operation.
        takes_batches: what a BATCH_READ meets: it is passed on, its connection ends (False), or nothing happens (None).
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.asked: Counter[int] = Counter()
        self.takes_batches: bool | None = False
        self.behind = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._writers: list[asyncio.StreamWriter] = []

    async def close(self) -> None:
        """End all connections."""
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*self._tasks)
        for writer in self._writers:
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self.behind)
        self._writers += writer, back
        self._tasks.append(asyncio.ensure_future(self._pass(there, writer)))
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                size = await reader.readexactly(4)
                frame = await reader.readexactly(struct.unpack(">I", size)[0])
                operation = frame[1] if frame[0] == v2.VERSION else -1
                self.asked[operation] += 1
                if operation == v2.Op.BATCH_READ and not self.takes_batches:
                    if self.takes_batches is None:
                        continue
                    break
                back.write(size + frame)
        back.close()
        writer.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()


@asynccontextmanager
async def behind_old_bookies(
    directory: Path, count: int
) -> AsyncIterator[tuple[SmallCluster, list[OldBookie]]]:
    cluster = SmallCluster(directory)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(cluster.close)
        old = [OldBookie(free_port()) for _ in range(count)]
        for number, one in enumerate(old):
            await stack.enter_async_context(await asyncio.start_server(one.serve, "127.0.0.1", one.port))
            server = await cluster.start_bookie(f"b{number}", advertise=("127.0.0.1", one.port))
            one.behind = server.address[1]
            stack.push_async_callback(one.close)
        yield cluster, old


@pytest.mark.parametrize("takes_batches", [False, None, True])
async def test_all_is_read_and_recovered_whatever_a_batch_read_meets(
    tmp_path: Path, takes_batches: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.net.bookkeeper.batch_reads.PROBE_SECONDS", 0.1)
    values = [b"%d" % number for number in range(600)]
    async with behind_old_bookies(tmp_path, 3) as (cluster, old):
        for one in old:
            one.takes_batches = takes_batches
        client = await cluster.client(V2_ONLY)
        writer = await client.create_ledger()
        await writer.append_many(values)
        await writer.abandon()
        for _ in range(2):
            reader = await client.open_ledger(writer.ledger_id)
            assert [bytes(entry.payload) async for entry in reader.read()] == values
        batches = [one.asked[v2.Op.BATCH_READ] for one in old]
        if takes_batches is False:
            assert max(batches) == 1, "each is asked once"
        elif takes_batches:
            assert max(batches) > 1, "after a yes ranges come in batches"


@pytest.mark.parametrize("fences", [False, True])
async def test_a_bookie_that_ends_batches_later_is_asked_anew(tmp_path: Path, fences: bool) -> None:
    """What was asked by the batch that ended the connection is asked entry by entry, a recovery's reads too."""
    values = [b"%d" % number for number in range(300)]
    async with behind_old_bookies(tmp_path, 1) as (cluster, [old]):
        old.takes_batches = True
        client = await cluster.client(V2_ONLY)
        writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        await writer.append_many(values)
        await writer.close()
        reader = await client.open_ledger(writer.ledger_id)
        while old.asked[v2.Op.BATCH_READ] < 2:
            assert [bytes(entry.payload) async for entry in reader.read()] == values
        left = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        await left.append_many(values)
        await left.abandon()
        old.takes_batches = False
        old.asked.clear()
        async with asyncio.timeout(60):
            if fences:
                reader = await client.open_ledger(left.ledger_id)
            assert [bytes(entry.payload) async for entry in reader.read()] == values
        assert old.asked[v2.Op.BATCH_READ] >= 1
        assert old.asked[v2.Op.READ] >= len(values)


async def test_a_striped_ledger_costs_few_reads_an_entry(tmp_path: Path) -> None:
    """A batch ends at the first gap: each brought one or two entries, and the one behind was asked for from there."""
    count = 600
    async with behind_old_bookies(tmp_path, 5) as (cluster, old):
        for one in old:
            one.takes_batches = True
        # Reads are counted: none is sent again because the machine stood still.
        client = await cluster.client(replace(V2_ONLY, read_timeout_ms=60_000))
        writer = await client.create_ledger(ensemble_size=5, write_quorum=3, ack_quorum=2)
        await writer.append_many([b"%d" % number for number in range(count)])
        await writer.close()
        report = await client.verify_ledger(writer.ledger_id)
        assert report.good
        for one in old:
            one.asked.clear()
        assert (await client.verify_ledger(writer.ledger_id)).good
        reads = sum(one.asked[v2.Op.READ] + one.asked[v2.Op.BATCH_READ] for one in old)
        assert reads <= 4 * 3 * count
