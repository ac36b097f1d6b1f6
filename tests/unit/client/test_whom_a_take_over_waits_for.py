"""Why a take-over that cannot end waits for a bookie, as it is told: the bookie is silent, failed, or refuses the truncation.

Source: docs/protocol/streams.md, "Terms that only fence".
"""

from __future__ import annotations

import asyncio
import errno

import pytest

from quire.client.streams.unbounded import UnboundedLedger
from quire.core.errors import StorageError
from quire.core.ids import BookieId
from quire.metadata.bookies import BookieRegistry
from quire.metadata.memory import MemoryStore
from quire.storage.reclaiming.dropping import EntryDropper
from support.small_cluster import SmallCluster
from support.waiting import until_async
from unit.client.test_unbounded_ledgers import payloads, streams

ALONE = ", and no other bookie can take its place"


async def written(stream: UnboundedLedger) -> BookieId:
    """Somebody has written the stream and left; returns a bookie of its ensemble."""
    async with await stream.open_writer() as writer:
        await writer.append(b"0")
    return writer.metadata.last_fragment.ensemble[1]


async def says(stream: UnboundedLedger, bookie: BookieId, why: str) -> None:
    """Wait until the stream's take-over is said to wait for this bookie alone, for this reason."""

    async def is_said() -> bool:
        return await stream.waits_for() == {bookie: why + ALONE}

    await until_async(is_said, f"a take-over that waits because {why}")


async def test_a_bookie_that_is_registered_and_silent_and_then_not_registered(cluster: SmallCluster) -> None:
    mine, theirs = await streams(cluster, mode="fencing")
    dead = await written(mine)
    registry = BookieRegistry(MemoryStore(cluster.space))
    info = (await registry.available())[dead]
    name = await cluster.stop_bookie(dead, clean=False)
    left = await registry.register(info)  # as of one that was killed, until its session ends
    taking = asyncio.create_task(theirs.open_writer())
    await says(theirs, dead, "it does not respond")
    await says(mine, dead, "it does not respond")
    await left.close()
    await says(theirs, dead, "it is not registered")
    await says(mine, dead, "it is not registered")
    assert not taking.done()
    await cluster.start_bookie(name)
    other = await taking
    assert dead in other.metadata.last_fragment.ensemble
    assert await theirs.waits_for() == {}
    assert await payloads(mine, await other.append(b"1")) == [b"0", b"1"]


async def test_a_bookie_whose_disk_has_failed_is_read_only_and_a_spare_takes_its_place(
    cluster: SmallCluster,
) -> None:
    mine, theirs = await streams(cluster, mode="fencing")
    failed = await written(mine)
    cluster.servers[failed].storage.journal.fail(OSError(errno.EIO, "injected"))
    taking = asyncio.create_task(theirs.open_writer())
    await says(theirs, failed, "it is read-only")
    await says(mine, failed, "it is read-only")
    assert not taking.done()
    await cluster.start_bookie("b9")
    other = await taking
    assert failed not in other.metadata.last_fragment.ensemble
    assert await mine.waits_for() == {}
    assert await payloads(mine, await other.append(b"1")) == [b"0", b"1"]


async def test_a_bookie_that_refuses_the_truncation_until_it_can_read_what_is_there(
    cluster: SmallCluster,
) -> None:
    mine, theirs = await streams(cluster, mode="fencing")
    refuses = await written(mine)

    def unreadable(_self: EntryDropper, _ledger_id: int, *asked: object, **_options: object) -> None:
        *_, callback, tag = asked
        callback.stored(tag, StorageError("a footer cannot be read"))  # type: ignore[attr-defined]

    with pytest.MonkeyPatch.context() as patch:
        storage = cluster.servers[refuses].storage
        patch.setattr(storage.drops, "truncate", unreadable.__get__(storage.drops))
        taking = asyncio.create_task(theirs.open_writer())
        await says(theirs, refuses, "it answered ERROR")
        assert not taking.done()
    other = await taking
    assert refuses in other.metadata.last_fragment.ensemble, "it was asked again"
    assert await theirs.waits_for() == {}
    assert await payloads(mine, await other.append(b"1")) == [b"0", b"1"]
