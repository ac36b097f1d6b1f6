"""A writer of each language under load in one cluster, what they were told, and the reader of the other language."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import quire
from faults.harness import Loader
from quire.metadata.bookies import BookieRegistry
from quire_testing.history import History, entry_hashes
from quire_testing.recording import record_open, record_read, record_scan
from support.java_peers import PATIENT_JAVA, JavaClient, JavaPeers
from support.ledgers import payload
from support.waiting import until_async

SIZE = 200
MANY = 200_000
STRETCH = 1000
PACE = 10
BACK_WITHIN_S = 180.0
"""What it takes a Java process to start, and a session to be made anew, on a busy machine."""
JAVA = ["--conf", "addEntryTimeoutSec=60", "--window", "20", "--delay-ms", "2"]


async def seconds(count: float) -> None:
    """So long lasts a fault, or a pause of a load."""
    over = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(count, over.set_result, None)
    await over


async def read_by_java(history: History, java: JavaClient, uri: str, ledger: int, *, recover: bool) -> int:
    """Java opens a ledger and reads all of it; what it said is recorded. How many entries there were."""
    opening = history.invoke("java", "open", ledger=ledger, recover=recover)
    found: list[bytes] = []
    last = -1
    command = "recover-open" if recover else "read"
    async for event in java.events(uri, "CRC32C", command, ledger, "--full", *PATIENT_JAVA):
        assert event["event"] != "error", event
        if event["event"] == "opened":
            assert event["closed"]
            last = event["lac"]
            opening.ok(closed=True, last=last)
        elif event["event"] == "entry":
            found.append(bytes.fromhex(event["hex"]))
    assert len(found) == last + 1
    for first in range(0, last + 1, STRETCH):
        part = found[first : first + STRETCH]
        asked = history.invoke("java", "read", ledger=ledger, first=first, last=first + len(part) - 1)
        asked.ok(hashes=entry_hashes(part))
    return len(found)


class Paced:
    """A ledger's writer that takes at most five hundred entries a second: all of them are read again afterwards."""

    def __init__(self, writer: Any) -> None:
        self._writer, self._left = writer, PACE
        self.ledger_id = writer.ledger_id

    def append_nowait(self, payload: bytes) -> asyncio.Future[int]:
        """As the writer does it, or refused until the time has come."""
        if not self._left:
            raise quire.WindowFullError("not yet")
        self._left -= 1
        future: asyncio.Future[int] = self._writer.append_nowait(payload)
        return future

    async def drain(self) -> None:
        """Wait until more may be appended."""
        await self._writer.drain()
        await seconds(0.02)
        self._left = PACE


class JavaWriter:
    """A Java process that writes one ledger for as long as it is needed, and what it was told."""

    def __init__(self, java: JavaClient, uri: str, history: History, options: Sequence[str] = ()) -> None:
        self._java, self._uri, self._history, self._options = java, uri, history, options
        self.ledger = -1
        self.acknowledged = 0
        self.last: dict[str, Any] = {}

    async def run(self) -> None:
        """Write until its process is killed."""
        asked = None
        try:
            async for event in self._java.events(
                self._uri, "CRC32C", "write", MANY, SIZE, *JAVA, *self._options
            ):
                self.last = event
                if event["event"] == "created":
                    self.ledger = int(event["ledger"])
                    self._history.invoke("java", "create").ok(ledger=self.ledger)
                    hashes = entry_hashes(payload(number, SIZE) for number in range(MANY))
                    asked = self._history.invoke("java", "append", ledger=self.ledger, first=0, hashes=hashes)
                elif event["event"] == "added":
                    self.acknowledged += 1
        except RuntimeError:  # its process is gone, as a crash would take it
            assert asked is not None
            asked.ok(count=self.acknowledged)


class Load:
    """A writer of each language, and a way to the store that does not break."""

    def __init__(
        self, writer: Any, ours: Loader, java: JavaWriter, registry: BookieRegistry, bookies: set[str]
    ) -> None:
        self.writer, self.ours, self.java = writer, ours, java
        self._registry, self._bookies = registry, bookies

    async def goes_on(self, count: int = 100) -> None:
        """Both writers are told of more entries."""
        first, second = self.ours.acknowledged + count, self.java.acknowledged + count

        def more() -> bool:
            assert not self.ours.failures, self.ours.failures
            assert self.java.last.get("event") != "error", self.java.last
            return self.ours.acknowledged >= first and self.java.acknowledged >= second

        await until_async(more, "more entries of both writers", BACK_WITHIN_S)

    async def registered(self) -> set[str]:
        """The bookies that ZooKeeper knows of."""
        return {str(bookie) for bookie in await self._registry.available()}

    async def all_registered(self) -> bool:
        """All of them are there."""
        return await self.registered() == self._bookies


@contextlib.asynccontextmanager
async def load_of_both(
    history: History, peers: JavaPeers, uri: str, client: Any, registry: BookieRegistry, *options: str
) -> AsyncIterator[Load]:
    """Both write from here on; at the end ours closes its ledger, and Java's process is killed.

    Args:
        history: where what they were told is recorded.
        uri: the cluster, as Java is told of it.
        client: ours.
        registry: a way to the store that does not break.
        options: more for the Java client.
    """
    async with peers.client() as java:
        theirs = JavaWriter(java, uri, history, options)
        writer = await client.create_ledger(password=b"secret")
        ours = Loader(Paced(writer), size=SIZE, window=50, history=history)
        tasks = [asyncio.create_task(ours.run()), asyncio.create_task(theirs.run())]
        load = Load(writer, ours, theirs, registry, set(map(str, await registry.available())))
        await load.goes_on()
        yield load
    ours.stop()
    await asyncio.gather(*tasks)
    assert not ours.failures, ours.failures
    closing = history.invoke("writer", "close", ledger=int(writer.ledger_id))
    await writer.close()
    closing.ok(last=int(writer.last_add_confirmed))


async def each_reads_the_other(
    history: History, java: JavaClient, uri: str, client: Any, load: Load
) -> dict[str, int]:
    """Java reads what we wrote, we recover and read what Java wrote, every copy of both is looked at: for the judge."""
    ours, theirs = int(load.writer.ledger_id), load.java.ledger
    read = await read_by_java(history, java, uri, ours, recover=False)
    reader = await record_open(history, "python", client, theirs, password=b"secret")
    read += await record_read(history, "python", reader, int(reader.last_add_confirmed))
    holes = [await record_scan(history, client, ledger) for ledger in (ours, theirs)]
    return {
        "acknowledged_to_python": load.ours.acknowledged,
        "acknowledged_to_java": load.java.acknowledged,
        "read_by_the_other": read,
        "holes": sum(holes),
    }
