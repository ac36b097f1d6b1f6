"""`quire cluster upgrade`: old bookies and missing ones are named, and stop it; then it is done once."""

import asyncio
import gzip
import json
import sqlite3
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quire.cli.main import app
from quire.core.errors import CorruptMetadataError
from quire.metadata.bookies import BookieInfo, BookieRegistry
from quire.metadata.memory import MemoryStore
from quire.metadata.sqlite.store import SqliteStore
from quire.metadata.store import Upgraded
from quire.metadata.upgrading import bookies_of, upgrade_cluster

GOLDEN = Path(__file__).parents[2] / "vectors" / "golden_9e5fe3a" / "metadata.db.gz"
OLD = {"quire.native": "4181/1"}
NEW = {"quire.native": "4181/2", "quire.features": "background lacs x-later"}


@pytest.fixture
def path(tmp_path):
    """A metadata file of the old program, with the cookies of three bookies."""
    path = tmp_path / "metadata.db"
    path.write_bytes(gzip.decompress(GOLDEN.read_bytes()))
    return path


async def quire(path, *arguments, code=0):
    runner = CliRunner(env={"QUIRE_CLUSTER": f"sqlite:{path}", "NO_COLOR": "1", "TERM": "dumb"})
    result = await asyncio.to_thread(runner.invoke, app, ["cluster", "upgrade", *arguments])
    assert result.exit_code == code, result.output
    return result.output


@asynccontextmanager
async def registered(path, **programs):
    async with await SqliteStore.open(path) as store:
        registry = BookieRegistry(store)
        for number, (name, properties) in enumerate(programs.items()):
            info = BookieInfo(f"{name}:3181", "127.0.0.1", 3181, number != 1, properties)
            await registry.register(info)
        yield store


def test_old_bookies_are_named_and_nothing_is_changed(path):
    async def scenario():
        async with registered(path, a=NEW, b=OLD, c=OLD) as store:
            assert await bookies_of(store) == (("a:3181",), ("b:3181", "c:3181"), ())
            for more in ((), ("--force",)):
                said = await quire(path, *more, code=1)
                assert (
                    "2 bookies are with a program that is too old: b:3181, c:3181; start each of them" in said
                )
            error = json.loads(await quire(path, "--json", code=1))["error"]
            assert (error["code"], error["ids"]["bookies"]) == ("refused", ["b:3181", "c:3181"])
            assert store.format == 1

    asyncio.run(scenario())


def test_bookies_that_are_away_are_named_and_need_force(path):
    async def scenario():
        async with registered(path, a=NEW, b=NEW):
            said = await quire(path, code=1)
            assert "1 bookie is not registered, so their versions are unknown: c:3181" in said
            assert "--force" in said
            assert json.loads(await quire(path, "--json", "--force")) == {
                "cluster": f"sqlite:{path}",
                "format": 2,
                "before": 1,
                "checked": 9,
                "damaged": [],
            }
        async with await SqliteStore.open(path) as store:
            assert (await upgrade_cluster(store)) == Upgraded(2, 0)

    asyncio.run(scenario())


def test_a_cluster_is_upgraded_once(path):
    async def scenario():
        async with registered(path, a=NEW, b=NEW, c={"quire.features": ""}) as store:
            said = await quire(path)
            assert (
                "The metadata has format 2 now: 10 values got a checksum. Programs older than 0.2 refuse it"
                in said
            )
            assert list(await BookieRegistry(store).available()) == ["a:3181", "b:3181", "c:3181"]
            assert "nothing to do: the metadata has format 2 already" in await quire(path)
            again = json.loads(await quire(path, "--json"))
            assert (again["before"], again["format"], again["checked"]) == (2, 2, 0)

    asyncio.run(scenario())


def test_a_registration_that_cannot_be_read_counts_as_away(path):
    async def scenario():
        async with registered(path, a=NEW, b=NEW) as store:
            await store.register("bookies/available/c:3181", b"\xff")
            assert await bookies_of(store) == (("a:3181", "b:3181"), (), ("c:3181",))
            assert "c:3181" in await quire(path, code=1)

    asyncio.run(scenario())


def test_a_store_without_a_format_has_nothing_to_do():
    async def scenario():
        async with MemoryStore() as store:
            assert store.format is None
            assert await upgrade_cluster(store) is None

    asyncio.run(scenario())
    runner = CliRunner(env={"QUIRE_CLUSTER": "memory:upgrade"})
    result = runner.invoke(app, ["cluster", "upgrade"])
    assert result.exit_code == 0, result.output
    assert "nothing to do" in result.output


def test_a_damaged_value_in_the_upgraded_file_is_an_error_for_whoever_needs_it(path):
    async def scenario():
        async with registered(path, a=NEW, b=NEW, c=NEW) as store:
            await quire(path)
            with closing(sqlite3.connect(path, isolation_level=None)) as connection:
                connection.execute(
                    "UPDATE entries SET value = substr(value, 2) WHERE key = 'bookies/available/a:3181'"
                )
            assert list(await BookieRegistry(store).available()) == ["b:3181", "c:3181"]
            with pytest.raises(CorruptMetadataError, match="bookies/available/a:3181"):
                await store.get("bookies/available/a:3181")

    asyncio.run(scenario())
