"""A thousand connections that announce 4 MiB and stall: the bookie stays within its memory, and serves whoever sends."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
from pathlib import Path
from typing import Any

import pytest

import quire
from quire.bookie.config import BookieConfig
from quire.bookie.connections import response_back_pressure
from quire.bookie.connections.client_connection import WRITE_BUFFER_BYTES, ClientConnection
from quire.bookie.server import BookieServer
from quire.cli.local.local_cluster import LocalCluster
from quire.metadata.connect import open_store
from quire.wire import native, native_bodies, native_hello, v2
from quire.wire.run import checksum
from support.process import highest, resident
from support.rounds import FULL, keep_figures, rounds
from support.wire_adds import PROTOCOLS, WireAdds

pytestmark = pytest.mark.timeout(900)
STALLED = 1000
ANNOUNCED = 4 * 1024 * 1024
ENTRY = bytes(64 * 1024)
"""Its frame is long enough to need memory of its own, so it meets the budget."""
TURNS = rounds(1, 8)
APPENDS_A_TURN = rounds(48, 1200)
MIB = 1024 * 1024
BUDGET_MIB = BookieConfig(Path()).receive_budget_bytes // MIB


async def stall(host: str, port: int, bookie: str, number: int) -> asyncio.StreamWriter:
    """One that never goes on: with a long frame of ours or of V2, a short cut one, half an opening, or not a byte."""
    _, writer = await asyncio.open_connection(host, port)
    hello = native_hello.encode_hello(native_hello.Hello("", bookie))
    header = v2.packet_header(v2.VERSION, v2.Op.ADD)
    kinds = (
        hello + struct.pack(">I", ANNOUNCED) + bytes([native.Kind.ADD]) + bytes(11),
        struct.pack(">II", ANNOUNCED, header) + bytes(20),
        struct.pack(">II", ANNOUNCED, header) + bytes(20),
        hello + struct.pack(">I", ANNOUNCED),
        struct.pack(">II", 30_000, header) + bytes(25_000),
        hello[: len(hello) // 2],
        b"",
    )
    # Nine in ten announce 4 MiB, over either protocol.
    writer.write(kinds[number % 4 if number % 10 else 4 + number // 10 % 3])
    await writer.drain()
    return writer


async def appends(ledger: Any, count: int) -> float:
    """Appends a second, sixteen on their way at a time."""
    began = time.perf_counter()
    for _ in range(count // 16 + 1):
        await asyncio.gather(*(ledger.append(ENTRY) for _ in range(16)))
    return 16 * (count // 16 + 1) / (time.perf_counter() - began)


async def survive(local: LocalCluster) -> dict[str, Any]:
    [bookie] = local.bookies
    host, port = bookie.address.split(":")
    async with quire.connect(local.uri) as client:
        ledger = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        await appends(ledger, APPENDS_A_TURN)
        alone, beside = [], []
        before = resident(bookie.pid)
        for _ in range(TURNS):
            # In turns, so that whatever else the machine does meets both alike.
            alone.append(await appends(ledger, APPENDS_A_TURN))
            stalled = await asyncio.gather(
                *(stall(host, int(port), bookie.id, number) for number in range(STALLED))
            )
            beside.append(await appends(ledger, APPENDS_A_TURN))
            for writer in stalled:
                writer.close()
            for writer in stalled:
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
        assert bookie.running
        await ledger.close()
    alone.sort()
    beside.sort()
    return {
        "stalled": STALLED,
        "announced_mib": STALLED * ANNOUNCED // MIB,
        "budget_mib": BUDGET_MIB,
        "grown_mib": round((highest(bookie.pid) - before) / MIB, 1),
        "appends_a_second_alone": round(alone[len(alone) // 2]),
        "appends_a_second_beside": round(beside[len(beside) // 2]),
        "ratio": round(beside[len(beside) // 2] / alone[len(alone) // 2], 2),
    }


def test_stalled_senders(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, bookies=1) as local:
        figures = asyncio.run(survive(local))
    keep_figures("stalled_senders", figures, seed=0)
    assert figures["grown_mib"] <= 2 * BUDGET_MIB
    # A rate of a loaded machine says nothing; that the appends came back at all is what the short form shows.
    assert not FULL or figures["ratio"] >= 0.5


@contextlib.asynccontextmanager
async def a_bookie(directory: Path, **settings: Any) -> Any:
    """A bookie in this process, with a client of its cluster."""
    uri = f"sqlite:{directory / 'metadata.db'}"
    store = await open_store(uri, create=True)
    server = BookieServer(BookieConfig(directory / "bookie", **settings), store)
    await server.start()
    try:
        async with quire.connect(uri) as client:
            yield server, client
    finally:
        await server.stop()
        await store.close()


@pytest.mark.parametrize("sent", ["nothing", "half an opening", "a byte now and then"])
async def test_who_opens_and_does_not_go_on_is_cut_off(tmp_path: Path, sent: str) -> None:
    async with a_bookie(tmp_path, partial_frame_seconds=0.3) as (server, client):
        reader, writer = await asyncio.open_connection(*server.address)
        hello = native_hello.encode_hello(native_hello.Hello("", server.bookie_id))
        if sent == "half an opening":
            writer.write(hello[:10])
        ended = asyncio.create_task(reader.read())
        at = 0
        async with asyncio.timeout(60):
            while not ended.done():
                if sent == "a byte now and then" and at < len(hello) - 1:
                    # However slowly it goes on: what counts is when it began.
                    writer.write(hello[at : at + 1])
                    at += 1
                await asyncio.wait([ended], timeout=0.05)
        with contextlib.suppress(ConnectionError):
            assert ended.result() == b""
        writer.close()
        ledger = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        assert await ledger.append(b"served") == 0
        await ledger.close()


async def test_readers_that_never_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hundred of them ask for everything: answers grow short, memory stays bounded, a good reader is served."""
    # On a slow machine the first ones would be cut off before the last ones ask.
    monkeypatch.setattr(response_back_pressure, "STALL_SECONDS", 900.0)
    budget = 16 * MIB
    async with a_bookie(tmp_path, answer_budget_bytes=budget) as (server, client):
        ledger = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        await ledger.append_many([ENTRY] * 128)
        await ledger.close()
        hello = native_hello.encode_hello(native_hello.Hello("", server.bookie_id))
        body = native_bodies.encode_body(native_bodies.ReadBody(0, 127, 4 * MIB))
        ask = native.encode_request(
            native.Kind.READ, 1, len(body), checksum(body), ledger_id=ledger.ledger_id
        )
        async with contextlib.AsyncExitStack() as silent:
            for _ in range(200):
                reader, writer = await asyncio.open_connection(*server.address, limit=1024)
                # With the writer: later Pythons close the connection of one that nobody holds.
                silent.callback(lambda kept: kept.transport.abort(), writer)
                reader._transport.pause_reading()
                writer.write(hello + (ask + body) * 20)
            async with asyncio.timeout(300):
                while server.back_pressure.answer_bytes_max > MIB:
                    await asyncio.sleep(0)
            waiting = [each for each in server._connections if each.not_read_since is not None]
            held = sum(each.transport.get_write_buffer_size() for each in waiting)
            # Beyond the budget each holds no more than what made it stop: the buffer's limit and a short answer.
            assert held <= budget + len(waiting) * (512 * 1024)
            async with await client.open_ledger(ledger.ledger_id) as reader:
                assert [entry.entry_id async for entry in reader.read(0, 127)] == list(range(128))


@pytest.mark.parametrize("fencing", [False, True], ids=["plain", "fencing"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_one_that_never_reads_holds_no_more_than_its_own_budget(
    tmp_path: Path, protocol: str, fencing: bool
) -> None:
    """However many reads it sends, of whichever kind, and however much memory is left for others."""
    async with a_bookie(tmp_path) as (server, client):
        ledger = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1, password=b"pw")
        await ledger.append_many([ENTRY] * 64)
        await ledger.close()
        async with WireAdds(server.address[1], protocol, ledger.ledger_id) as silent:
            silent.reader._transport.pause_reading()
            most = 0
            for number in range(4000):
                silent.writer.write(silent.read_request(number % 64, last=63, fencing=fencing))
                if number % 100 == 0:
                    await asyncio.sleep(0)
                    most = max(most, max(map(answers_held, server._connections)))
            async with asyncio.timeout(60):
                while not any(each.not_read_since is not None for each in server._connections):
                    await asyncio.sleep(0)
            most = max(most, max(map(answers_held, server._connections)))
            config = server.config
            assert most > WRITE_BUFFER_BYTES
            assert most <= config.answer_bytes_max + config.read_bytes_max + WRITE_BUFFER_BYTES
            assert server.back_pressure.answer_bytes_max == config.read_bytes_max, (
                "there is plenty for others"
            )
            silent.writer.transport.abort()


def answers_held(connection: ClientConnection) -> int:
    transport = connection.transport
    unsent = transport.get_write_buffer_size() if transport is not None else 0
    return unsent + connection._out_bytes + sum(map(len, connection._kept))
