"""`quire stream show` while a take-over waits for a dead bookie: text and JSON name it and say why.

Source: docs/protocol/streams.md, "Terms that only fence".
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from typer.testing import CliRunner

import quire
from quire.bookie.config import BookieConfig
from quire.bookie.server import BookieServer
from quire.cli.console.failures import EXIT_ATTENTION
from quire.cli.main import app
from quire.metadata.sqlite.store import SqliteStore
from quire.storage.config import KIB, StorageConfig
from support.waiting import until_async

WHY = "it is not registered, and no other bookie can take its place"


class At:
    """Three bookies in this process, and a command line beside them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.uri = f"sqlite:{folder / 'metadata.db'}"
        self.servers: dict[str, BookieServer] = {}

    async def start(self, name: str) -> None:
        store = await SqliteStore.open(self.folder / "metadata.db", create=not self.servers)
        storage = StorageConfig(segment_bytes=256 * KIB)
        server = BookieServer(BookieConfig(directory=self.folder / name, name=name, storage=storage), store)
        await server.start()
        self.servers[server.bookie_id] = server

    async def stop(self, bookie: str, *, clean: bool = True) -> str:
        """Stop a bookie; returns its name."""
        server = self.servers.pop(bookie)
        await server.stop(clean=clean)
        await server.store.close()
        return server.config.name

    async def show(self, *options: str) -> str:
        runner = CliRunner(env={"QUIRE_CLUSTER": self.uri, "NO_COLOR": "1", "TERM": "dumb"})
        done = await asyncio.to_thread(runner.invoke, app, ["stream", "show", "s", *options])
        code = (
            0 if len(self.servers) == 3 else EXIT_ATTENTION
        )  # what a bookie has that is down is not looked at
        assert done.exit_code == code, done.output
        return done.stdout


async def scenario(at: At) -> None:
    async with quire.connect(at.uri) as client:
        stream = client.unbounded_ledger("s", mode="fencing")
        await stream.create()
        async with await stream.open_writer() as writer:
            await writer.append(b"one")
        dead = writer.metadata.last_fragment.ensemble[1]
        name = await at.stop(dead, clean=False)
        shown = json.loads(await at.show("--json"))
        assert (shown["mode"], shown["state"], shown["waits_for"]) == ("fencing", "open", {})
        assert "waits for" not in await at.show()
        taking = asyncio.create_task(stream.open_writer())

        async def waits() -> bool:
            return bool(await stream.waits_for())

        await until_async(waits, "the take-over to wait")
        (line,) = (await at.show("--json")).splitlines()
        shown = json.loads(line)
        assert (shown["state"], shown["waits_for"]) == ("in_recovery", {dead: WHY})
        text = await at.show()
        assert f"Its take-over waits for {dead}: {WHY}." in text.splitlines()
        assert "IN_RECOVERY in term 3" in text
        assert not taking.done(), "who looks ends nothing"
        await at.start(name)
        await (await taking).release()
        shown = json.loads(await at.show("--json"))
        assert (shown["state"], shown["term"], shown["waits_for"]) == ("open", 3, {})
        assert "waits for" not in await at.show()


async def test_it_names_the_bookie_for_which_a_take_over_waits(tmp_path: Path) -> None:
    at = At(tmp_path)
    try:
        for number in range(1, 4):
            await at.start(f"b{number}")
        await scenario(at)
    finally:
        for bookie in [*at.servers]:
            await at.stop(bookie)
