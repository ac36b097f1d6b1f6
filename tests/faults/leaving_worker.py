"""A program that leaves its client in one way, with a writer open and records on their way.

    python tests/faults/leaving_worker.py API KIND ENDING URI    asyncio or blocking; ledger, log or stream; see `Endings`

It prints what it writes, and at its end the descriptors and threads that it has more than before. With the ending `silent`
it appends when a line comes: the bookies do not respond from then on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import quire
import quire.blocking
from quire.client.config import ClientConfig

RECORDS = 1000
API, KIND, ENDING, URI = sys.argv[1:]
CONFIG = ClientConfig(add_timeout_ms=500, metadata_timeout_ms=500) if ENDING == "silent" else None


class LeftError(Exception):
    """What the block ends with."""


class Blocking:
    """The blocking names, to be awaited."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)
        if name in {"log", "unbounded_ledger"}:
            return lambda *given: Blocking(method(*given))

        async def call(*given: Any) -> Any:
            return method(*given)

        return call


async def opened(client: Any) -> Any:
    if KIND == "ledger":
        writer = await client.create_ledger()
        print(writer.ledger_id, flush=True)
        return writer
    name = f"{API}-{KIND}-{ENDING}"
    handle = client.log(name) if KIND == "log" else client.unbounded_ledger(name)
    await handle.create()
    print(name, flush=True)
    return await handle.open_writer()


def append(writer: Any) -> list[Any]:
    """Appends, and how the block ends."""
    if ENDING == "silent":
        sys.stdin.readline()
    futures = [writer.append_nowait(b"%d" % number) for number in range(RECORDS)]
    if ENDING == "exception":
        raise LeftError
    if ENDING == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)
    return futures


async def with_asyncio() -> None:
    connecting = quire.connect(URI, CONFIG)
    async with contextlib.nullcontext(await connecting) if ENDING == "unclosed" else connecting as client:
        writer = await opened(client)
        await writer.append(b"connected")
        print("connected", flush=True)
        futures = append(writer)
        await asyncio.sleep(60 if ENDING == "interrupt" else 0)
    assert ENDING == "unclosed" or all(future.done() for future in futures)


def with_blocking() -> None:
    client = quire.blocking.connect(URI, CONFIG)
    with contextlib.nullcontext() if ENDING == "unclosed" else client:
        writer = asyncio.run(opened(Blocking(client)))
        writer.append(b"connected")
        print("connected", flush=True)
        KEPT.append((writer, futures := append(writer)))
        if ENDING == "interrupt":
            threading.Event().wait(60)
    assert ENDING == "unclosed" or all(future.done() for future in futures)


KEPT: list[Any] = []


def held() -> tuple[int, list[str]]:
    return len(list(Path("/proc/self/fd").iterdir())), sorted(each.name for each in threading.enumerate())


def main() -> None:
    with quire.blocking.connect(URI) as client, client.create_ledger() as ledger:
        ledger.append(b"its thread, its loop and what this keeps stay as long as the process")
    asyncio.run(asyncio.sleep(0))
    before = held()
    try:
        asyncio.run(with_asyncio()) if API == "asyncio" else with_blocking()
    finally:
        for _ in range(1000):  # a loop closes its sockets in a turn of its own
            if held() != before and ENDING != "unclosed":
                threading.Event().wait(0.01)
        print("as before" if held() == before else f"{before} became {held()}", flush=True)


main()
