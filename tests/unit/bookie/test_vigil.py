"""A bookie compares its directory with what the cluster knows, and holds while its identity may be another's."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from bookie.test_bookie_server import SMALL, World, access, in_world
from quire.bookie.config import BookieConfig
from quire.bookie.server import BookieServer
from quire.core.answers import Answer
from quire.core.errors import IdentityReplacedError, WrongDirectoryError
from quire.metadata.keys import boot_key
from quire.metadata.memory import MemoryStore
from quire.storage.boot import MARKER_FILE
from quire.storage.identity import COOKIE_FILE
from quire.wire.store_records import Boot, decode_boot, encode_boot
from support.waiting import until


async def boot_of(at: World) -> Boot:
    found = await at.store.get(boot_key(at.bookie))
    assert found is not None
    return decode_boot(found.value, at.bookie)


async def put_boot(at: World, boot: Boot) -> None:
    found = await at.store.get(boot_key(at.bookie))
    assert found is not None
    await at.store.put(boot_key(at.bookie), encode_boot(boot), found.version)


def test_the_cluster_knows_how_far_a_directory_is(tmp_path: Path) -> None:
    async def work(at: World) -> None:
        first = await boot_of(at)
        assert (first.boot, first.clean) == (1, False)
        assert await at.add(access(), [0]) is Answer.OK
        await until(lambda: asyncio.ensure_future(boot_of(at)), lambda boot: boot.durable_lsn > first.durable_lsn)
        await at.restart(clean=True)
        assert (await boot_of(at)).boot == 2
        await at.server.stop()
        stopped = await boot_of(at)
        assert stopped.clean
        assert stopped.durable_lsn == at.server.storage.durable_lsn

    in_world(tmp_path, work)
