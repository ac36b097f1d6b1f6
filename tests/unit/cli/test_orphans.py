"""`quire cluster orphans` and `accept-store`: what they list, ask, refuse and do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

import quire
from quire.bookie.config import BookieConfig
from quire.bookie.server import BookieServer
from quire.cli.cluster.orphans import kept_without_record
from quire.cli.console.output import Output
from quire.cli.main import app
from quire.client.bookies.bookies import BookieClient
from quire.core.answers import Answer
from quire.core.errors import NoClusterError
from quire.metadata.records import OF_LEDGERS, AllRecords
from quire.metadata.sqlite.store import SqliteStore
from quire.storage.config import KIB, StorageConfig

SMALL = StorageConfig(segment_bytes=256 * KIB)


class At:
    """Two bookies whose collectors make passes when told to, and four ledgers."""

    def __init__(self, path: Path, servers: list[BookieServer]) -> None:
        self.path, self.servers = path, servers
        self.uri = f"sqlite:{path}"
        self.ids: list[int] = []

    async def quire(self, *arguments: str, code: int = 0) -> str:
        """A command of `quire cluster`: what it prints, or complains."""
        runner = CliRunner(env={"QUIRE_CLUSTER": self.uri, "NO_COLOR": "1", "TERM": "dumb"})
        done = await asyncio.to_thread(runner.invoke, app, ["cluster", *arguments])
        assert done.exit_code == code, done.output
        return done.output

    async def json(self, *arguments: str, code: int = 0) -> list[dict[str, object]]:
        """What it prints as JSON."""
        said = await self.quire(*arguments, "--json", code=code)
        return [json.loads(line) for line in said.splitlines() if line.startswith("{")]

    async def passes(self, count: int = 1) -> int:
        return sum([await server.collector.collect() for _ in range(count) for server in self.servers])

    async def forget(self, *ids: int) -> None:
        """Records vanish and leave nothing, as when a store went back."""
        for ledger_id in ids:
            await self.servers[0].store.delete(OF_LEDGERS.key(ledger_id))


@asynccontextmanager
async def bookies(folder: Path) -> AsyncIterator[At]:
    path = folder / "metadata.db"
    servers: list[BookieServer] = []
    at = At(path, servers)
    try:
        for name in ("b0", "b1"):
            config = BookieConfig(directory=folder / name, name=name, storage=SMALL, garbage_seconds=0)
            servers.append(BookieServer(config, await SqliteStore.open(path, create=True)))
            await servers[-1].start()
        async with quire.connect(at.uri) as client:
            for _ in range(4):
                async with await client.create_ledger(
                    ensemble_size=2, write_quorum=2, ack_quorum=2
                ) as ledger:
                    await ledger.append(b"entry")
                at.ids.append(int(ledger.ledger_id))
        yield at
    finally:
        for server in servers:
            await server.stop()
            await server.store.close()


async def test_orphans_are_listed_and_deleted_by_name(tmp_path: Path) -> None:
    async with bookies(tmp_path) as at:
        await at.passes()
        assert "No bookie keeps a ledger without a record" in await at.quire("orphans")
        assert await at.json("orphans") == []
        one, two, three, alive = at.ids
        await at.forget(one, two, three)
        await at.passes()
        names = sorted(server.bookie_id for server in at.servers)
        assert await at.json("orphans") == [
            {"ledger_id": ledger_id, "kept_as": "unknown", "bookies": names}
            for ledger_id in (one, two, three)
        ]
        assert f"{three}" in await at.quire("orphans")
        (status,) = await at.json("status", code=5)
        assert (status["orphans"], status["holding"]) == (3, {})
        assert "3 ledgers on bookies have no record" in await at.quire("status", code=5)

        assert "give --delete to delete them" in await at.quire("orphans", str(one), code=2)
        assert "name the ledgers" in await at.quire("orphans", "--delete", code=2)
        said = await at.quire("orphans", "--delete", "9-3", "--yes", code=2)
        assert "'9-3' is neither a ledger id nor a range" in said
        said = await at.quire("orphans", "--delete", str(alive), "--yes", code=2)
        assert f"{alive}: no bookie that responds keeps such a ledger" in said
        assert "cannot be undone: give --yes" in await at.quire("orphans", "--delete", str(one), code=2)
        assert await at.passes() == 0, "nothing was deleted by what was refused"

        assert await at.json("orphans", "--delete", f"{one}-{two}", "--yes") == [{"deleted": [one, two]}]
        assert await at.passes() == 4
        assert [row["ledger_id"] for row in await at.json("orphans")] == [three]


async def test_an_orphan_that_cannot_be_deleted_does_not_hide_which_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bookies(tmp_path) as at:
        one, two, _, _ = at.ids
        await at.passes()
        await at.forget(one, two)
        await at.passes()
        whole = AllRecords.delete_orphan

        async def refused(self: AllRecords, ledger_id: int) -> None:
            if ledger_id == two:
                raise NoClusterError("the store is away")
            await whole(self, ledger_id)

        monkeypatch.setattr(AllRecords, "delete_orphan", refused)
        said = await at.quire("orphans", "--delete", f"{one}-{two}", "--yes", code=1)
        assert f"Before that 1 of 2 ledgers were deleted, up to {one}." in said


async def test_a_store_is_accepted_once_after_it_was_told_what_would_go(tmp_path: Path) -> None:
    async with bookies(tmp_path) as at:
        await at.passes(2)
        one, two, _, _ = at.ids
        store = at.servers[0].store
        assert "needs no acceptance: no bookie has stopped deleting" in await at.quire("accept-store", code=1)
        async with quire.connect(at.uri) as client:
            await client.delete_ledger(one)
        await at.forget(two)
        for server in at.servers:  # as a backup has it that is older than the counters
            await store.delete(f"passes/{server.bookie_id}")
        assert await at.passes() == 0
        assert "deletes no ledgers: the store has no counter" in await at.quire("status", code=5)
        assert {row["kept_as"] for row in await at.json("orphans")} == {"due", "unknown"}

        assert "give --yes" in await at.quire("accept-store", code=2)
        said = await at.quire("accept-store", "--yes", "--no-wait")
        assert f"would be deleted, because this store has a tombstone of each: 1 ledger: {one}" in said
        assert "stays on the bookies without a record: 1 ledger " in said
        assert "is already accepted" in await at.quire("accept-store", "--yes", code=1)
        assert await at.passes() == 2, "what has a tombstone goes"
        assert [row["ledger_id"] for row in await at.json("orphans")] == [two]
        assert "needs no acceptance" in await at.quire("accept-store", "--yes", code=1)


class Stuck(BookieClient):
    """A bookie that gives its first page again and again."""

    def __init__(self) -> None:
        pass

    async def _request(self, *_: Any) -> Any:
        await asyncio.sleep(0)
        return Answer.OK, {"orphans": {"unknown": [7], "due": [], "through": 7}}


async def test_a_bookie_whose_pages_do_not_go_on_is_one_that_did_not_respond() -> None:
    async def known() -> list[str]:
        return ["b0"]

    stuck: Any = Stuck()
    stuck.registry = SimpleNamespace(list_cookies=known, available=known)
    client: Any = SimpleNamespace(bookies=stuck)
    async with asyncio.timeout(1):
        found, silent = await kept_without_record(client, Output(as_json=True))
    assert (found, silent) == ({7: {"unknown": ["b0"]}}, ["b0"])
