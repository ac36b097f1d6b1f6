"""Adds to many ledgers while others are connected: some that only keep their connection, one that reads slowly."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from accounting import resident_mib
from jobs.scaling import kept_ledgers
from jobs.world import PAYLOADS, Job, World, payloads_of, percentiles
from quire.core.ids import BookieId
from quire.wire import native, native_bodies, native_hello
from quire.wire.native import Kind
from quire.wire.run import checksum

READ_BYTES = 1 << 20
READS_AHEAD = 64
SIPS_PER_SECOND = 20
SIP_BYTES = 4096
SMALL_BUFFER_BYTES = 16 * 1024


async def crowded(world: World, job: Job) -> dict[str, Any]:
    """Time adds in turn to the kept ledgers, at a rate: `crowded LEDGERS SECONDS RATE SIZE IDLE`.

    With IDLE above 0, so many connections to each bookie do nothing, and one asks each for much and reads it slowly.
    """
    ledgers, seconds, rate, size, idle = int(job.words[0]), float(job.words[1]), *map(int, job.words[2:5])
    payloads, kept = payloads_of(size), (await kept_ledgers(world, job))[:ledgers]
    count = int(seconds * rate)
    sent, done = [0] * count, [0] * count
    futures: list[asyncio.Future[int]] = []
    async with AsyncExitStack() as stack:
        if idle:
            for info in await world.client.available_bookies():
                for _ in range(idle):
                    await stack.enter_async_context(_connected(info.host, info.port, info.bookie_id))
                slow = _slow_reader(info.host, info.port, info.bookie_id, int(kept[0].ledger.ledger_id))
                await stack.enter_async_context(slow)
        with world.accounted() as used:
            start = time.perf_counter_ns()
            for number in range(count):
                wait = start + number * 1_000_000_000 // rate - time.perf_counter_ns()
                if wait > 0:
                    await asyncio.sleep(wait / 1e9)
                one = kept[number % len(kept)]
                sent[number] = time.perf_counter_ns()
                future = one.ledger.append_nowait(payloads[one.count % PAYLOADS])
                one.count += 1
                future.add_done_callback(lambda _, at=number: done.__setitem__(at, time.perf_counter_ns()))
                futures.append(future)
            await asyncio.gather(*futures)
            await asyncio.sleep(0)
        memory = [round(resident_mib(pid), 1) for pid in world.pids]
    return {
        "entries": count,
        **percentiles([end - begin for begin, end in zip(sent, done, strict=True)]),
        **used.per(count),
        "bookies_mib": memory,
        "failed": 0,
    }


@asynccontextmanager
async def _connected(
    host: str, port: int, bookie: BookieId
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection that has said hello, with a small buffer of its own."""
    end = socket.socket()
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
    end.setblocking(False)
    await asyncio.get_running_loop().sock_connect(end, (host, port))
    reader, writer = await asyncio.open_connection(sock=end, limit=SIP_BYTES)
    try:
        writer.write(native_hello.encode_hello(native_hello.Hello("", bookie)))
        await reader.readexactly(1)
        yield reader, writer
    finally:
        writer.transport.abort()


@asynccontextmanager
async def _slow_reader(host: str, port: int, bookie: BookieId, ledger_id: int) -> AsyncIterator[None]:
    """Somebody who asks for a ledger again and again, and reads the answers a few kilobytes at a time."""
    body = native_bodies.encode_body(native_bodies.ReadBody(0, 1 << 40, READ_BYTES, native_bodies.ANY_TERM))
    head = native.encode_request(Kind.READ, 1, len(body), checksum(body), ledger_id=ledger_id)

    async def sip(reader: asyncio.StreamReader) -> None:
        while await reader.read(SIP_BYTES):
            await asyncio.sleep(1 / SIPS_PER_SECOND)

    async with _connected(host, port, bookie) as (reader, writer):
        writer.write((head + body) * READS_AHEAD)
        sipping = asyncio.create_task(sip(reader))
        try:
            yield
        finally:
            sipping.cancel()
