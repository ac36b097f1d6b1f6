"""A cluster of real bookies that collect every second, and a metadata store that is put back to an earlier moment."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import quire
from quire.cli.console.failures import EXIT_ATTENTION
from quire.client.access import LedgerAccess
from quire.core.answers import Answer
from quire.core.ids import BookieId
from support.programs import NEW, BookieProcess

COLLECT_EVERY = "0.3"
ENTRIES = 3
Scan = dict[tuple[str, int], list[tuple[int, int]]]


class Cluster:
    """Three bookies, and the ledgers that were written to them.

    Args:
        directory: for all of it.
        uri: of the metadata store.
    """

    def __init__(self, directory: Path, uri: str) -> None:
        self.directory, self.uri = directory, uri
        self.bookies = [BookieProcess(f"b{number}", directory / f"b{number}", uri) for number in range(3)]
        self.accesses: dict[int, LedgerAccess] = {}

    def start(self) -> None:
        """Start them one after the other: the first makes the store."""
        for bookie in self.bookies:
            bookie.start(NEW)

    def kill(self) -> None:
        """All at once, as when the power fails."""
        for bookie in self.bookies:
            if bookie.process is not None:
                bookie.process.kill()
        for bookie in self.bookies:
            bookie.kill()

    def stop(self) -> None:
        """Stop them cleanly."""
        for bookie in self.bookies:
            bookie.stop()

    @contextlib.asynccontextmanager
    async def serving(self, *, clean: bool = True) -> AsyncIterator[quire.Client]:
        """The bookies, and what looks at them; stopped at the end, or killed."""
        await asyncio.to_thread(self.start)
        try:
            async with quire.connect(self.uri) as tools:
                yield tools
                if (
                    not clean
                ):  # this process has the store open as well: what it has not written stays unwritten
                    await asyncio.to_thread(self.kill)
        finally:
            await asyncio.to_thread(self.stop if clean else self.kill)

    async def write(self, count: int) -> list[int]:
        """Write so many ledgers, and close them; each entry is on every bookie."""
        written: list[int] = []
        async with quire.connect(self.uri) as client:
            for _ in range(count):
                ledger = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=3)
                async with ledger:
                    for number in range(ENTRIES):
                        await ledger.append(entry_of(int(ledger.ledger_id), number))
                written.append(int(ledger.ledger_id))
                self.accesses[written[-1]] = LedgerAccess.of(ledger.metadata)
        return written

    async def scan(self, tools: quire.Client, only: Iterable[int] | None = None) -> Scan:
        """What each bookie holds of each ledger."""
        found: Scan = {}
        for bookie in self.bookies:
            for ledger_id in self.accesses if only is None else only:
                answer, held = await tools.bookies.list_entries(BookieId(bookie.id), self.accesses[ledger_id])
                assert answer in (Answer.OK, Answer.NO_LEDGER), (bookie.id, ledger_id, answer)
                found[bookie.id, ledger_id] = [(one.first, one.last) for one in held]
        return found

    async def collectors(self, tools: quire.Client) -> list[dict[str, Any]]:
        """What each bookie says of its collector."""
        said = []
        for bookie in self.bookies:
            answer, info = await tools.bookies.info(BookieId(bookie.id))
            assert answer is Answer.OK
            said.append(info["collector"])
        return said

    async def passes(self, tools: quire.Client, count: int = 3) -> list[dict[str, Any]]:
        """Wait until every bookie has made so many more passes from begin to end; what their collectors say then."""
        before = [one["passes"] for one in await self.collectors(tools)]
        return await self.until(
            tools,
            lambda said: all(one["passes"] > old + count for one, old in zip(said, before, strict=True)),
            f"{count} passes of every bookie",
        )

    async def until(
        self, tools: quire.Client, condition: Callable[[list[dict[str, Any]]], bool], what: str
    ) -> list[dict[str, Any]]:
        """Wait until the collectors say what is wanted."""
        said = await self.collectors(tools)
        async with asyncio.timeout(60):
            while not condition(said):
                await asyncio.sleep(0.05)
                said = await self.collectors(tools)
        assert condition(said), what
        return said

    async def command(self, *arguments: str, code: int = 0) -> str:
        """A command of the command line; what it prints."""
        done = await asyncio.to_thread(NEW.quire, *arguments, "--cluster", self.uri)
        assert done.returncode == code, f"{arguments}: {done.stdout}\n{done.stderr}"
        return done.stdout if code in {0, EXIT_ATTENTION} else done.stderr

    async def facts(self, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
        """The same with `--json`."""
        said = await self.command(*arguments, "--json", code=code)
        return [json.loads(line) for line in said.splitlines()]

    async def read(self, ledgers: Iterable[int]) -> None:
        """Every entry of these ledgers is read, as any reader does."""
        async with quire.connect(self.uri) as client:
            for ledger_id in ledgers:
                async with await client.open_ledger(ledger_id) as reader:
                    assert reader.last_add_confirmed == ENTRIES - 1, ledger_id
                    read = [entry.payload async for entry in reader.read(0, ENTRIES - 1)]
                assert [bytes(one) for one in read] == [entry_of(ledger_id, n) for n in range(ENTRIES)]


def entry_of(ledger_id: int, number: int) -> bytes:
    """An entry that says whose it is."""
    return b"%d of %d" % (number, ledger_id) * 8
