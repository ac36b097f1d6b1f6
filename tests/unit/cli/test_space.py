"""`quire bookie space`, `collect --now` and `compact --now`, with bookies that are well, away, failed, and other programs."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import quire
from quire.bookie.collecting.cleaning import COMPACTING
from quire.bookie.config import BookieConfig
from quire.bookie.server import BookieServer
from quire.cli.cluster.space import _lines, _row
from quire.cli.console.failures import EXIT_FAILED, EXIT_USAGE
from quire.cli.main import app
from quire.core.answers import Answer
from quire.core.ids import BookieId
from quire.env.real import RealClock
from quire.metadata.sqlite.store import SqliteStore
from quire.storage.config import KIB, StorageConfig
from quire.wire.native_info import SpaceTask
from support.waiting import until_async


class Clock(RealClock):
    """A clock that can go on at once."""

    more_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.more_ms


class At:
    """One bookie and a command line."""

    def __init__(self, folder: Path) -> None:
        self.uri = f"sqlite:{folder / 'metadata.db'}"
        self.folder = folder
        self.clock = Clock()
        self.server: BookieServer

    async def start(self) -> None:
        store = await SqliteStore.open(self.folder / "metadata.db", create=True)
        storage = StorageConfig(segment_bytes=256 * KIB, recent_bytes_max=0)
        config = BookieConfig(directory=self.folder / "b0", name="b0", storage=storage, garbage_seconds=3600)
        self.server = BookieServer(config, store, clock=self.clock)
        await self.server.start()

    async def stop(self) -> None:
        await self.server.stop()
        await self.server.store.close()

    async def write(self, count: int) -> int:
        async with (
            quire.connect(self.uri) as client,
            await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1) as ledger,
        ):
            for _ in range(count):
                await ledger.append(bytes(10_000))
            return int(ledger.ledger_id)

    async def quire(self, *arguments: str, code: int = 0) -> str:
        runner = CliRunner(env={"QUIRE_CLUSTER": self.uri, "NO_COLOR": "1", "TERM": "dumb"})
        done = await asyncio.to_thread(runner.invoke, app, ["bookie", *arguments])
        assert done.exit_code == code, done.output
        return done.output


@pytest.fixture
async def at(tmp_path: Path) -> AsyncIterator[At]:
    at = At(tmp_path)
    await at.start()
    try:
        yield at
    finally:
        await at.stop()


async def test_a_chart_and_the_same_as_json(at: At) -> None:
    ledger_id = await at.write(60)
    said = await at.quire("space")
    assert said.startswith(f"{at.server.bookie_id}  ")
    assert "█" * 24 in said
    assert "freed: when the ledger is deleted or the log is truncated; sooner: quire ledger delete" in said
    (row,) = map(json.loads, (await at.quire("space", "--json")).splitlines())
    assert row["bytes"] == sum(one["bytes"] for one in row["reasons"])
    async with quire.connect(at.uri) as client:
        await client.delete_ledger(ledger_id)
    (row,) = map(json.loads, (await at.quire("collect", "--now", "--json")).splitlines())
    assert row["came_back"]["dropped"] == 1
    assert row["came_back"]["retired"] >= 1
    said = await at.quire("compact", "--now", "--bookie", at.server.bookie_id)
    assert "0 ledgers dropped" in said


async def test_refusals(at: At) -> None:
    for command in ("collect", "compact"):
        assert "--now` does it at once" in await at.quire(command, code=EXIT_USAGE)
    assert "bookie b9.x is unknown" in await at.quire("space", "--bookie", "b9.x", code=EXIT_FAILED)
    await at.quire("space", "--timeout", "0", code=EXIT_USAGE)
    await at.stop()
    name = at.server.bookie_id
    away = await at.quire("compact", "--now", "--bookie", name, code=EXIT_FAILED)
    assert "is not registered: start it first" in away
    assert "no bookie is registered" in await at.quire("collect", "--now", code=EXIT_FAILED)
    await at.start()


async def test_a_bookie_on_a_failed_disk_says_that_it_has_failed(at: At) -> None:
    at.server.storage.journal.fail(OSError(errno.EIO, "injected"))
    said = await at.quire("compact", "--now", code=EXIT_FAILED)
    assert "Nothing more is acknowledged" in said
    assert "0 segments compacted" in said


async def test_a_collector_that_does_not_move_is_a_failed_task_until_it_does(at: At) -> None:
    responds, passes = asyncio.Event(), at.server.collector._store.passes

    async def slowly() -> Any:
        await responds.wait()
        return await passes()

    async def stuck() -> list[str]:
        _, says = await client.bookies.info(at.server.bookie_id)
        return [one["what"] for one in says["conditions"] if one["kind"] == "failed task"]

    at.server.collector._store.passes = slowly  # type: ignore[method-assign]
    async with quire.connect(at.uri) as client:
        asked = asyncio.create_task(at.quire("collect", "--now"))
        await until_async(lambda: at.server.collector.progress.doing)
        at.clock.more_ms += 3 * 3_600_000 - 60_000
        assert await stuck() == []
        at.clock.more_ms += 61_000
        (what,) = await stuck()
        assert what.startswith("the collector has not moved for 108")
        assert what.endswith("three of its intervals or more: counting its pass")
        responds.set()
        assert "0 segments freed" in await asked
        assert await stuck() == []
        at.server.collector.progress.moved(at.clock.now_ms(), COMPACTING)
        at.clock.more_ms += 3 * 3_600_000 + 1
        (what,) = await stuck()
        assert what.startswith("the compactor has not moved")


@pytest.mark.parametrize(
    ("answer", "says", "failure"),
    [
        (Answer.BAD_REQUEST, {}, "an older one"),
        (Answer.TIMED_OUT, {}, "no response in 1 s"),
        (Answer.UNREACHABLE, {}, "did not respond: unreachable"),
        (Answer.OK, {"came_back": 7, "space": {"reasons": "all"}}, None),
        (Answer.OK, {"came_back": {}, "failure": "no\x1b[2J"}, "x1b"),
        (Answer.OK, {"came_back": {"retired": -1}, "space": {"reasons": [7, {"bytes": "x"}]}}, None),
    ],
)
async def test_a_bookie_is_another_program(answer: Answer, says: dict[str, Any], failure: str | None) -> None:
    class Bookies:
        async def space(self, *_: Any, **__: Any) -> tuple[Answer, dict[str, Any]]:
            return answer, says

    class Client:
        bookies = Bookies()

    client: Any = Client()
    row = await _row(client, BookieId("b1"), SpaceTask.COLLECT, 1000)
    assert (failure is None) == (row["failure"] is None)
    assert failure is None or failure in row["failure"]
    text = "".join(_lines(row))
    assert text.isprintable()
