"""A log's leader fills what bookies lack of a ledger that it has closed, once they are there, and only while it leads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from quire.bookie.server import BookieServer
from quire.core.ledger.notes import NO_NOTES
from quire.log import filling, leader
from support.log_cluster import FAST, World, world
from support.waiting import until_async

COUNT = 20


async def _filled(tmp_path: Path) -> None:
    async with world(tmp_path) as at:
        log = await at.made(config=replace(FAST, fill_bytes_per_s=1 << 20))
        away = at.bookies[0]
        async with await log.open_writer() as writer:
            (first,) = await at.ledgers()
            await away.stop(clean=False)
            for number in range(COUNT):
                await writer.append(b"value %d" % number)
            await writer.roll()
            notes = (await at.client.records.ledgers.read_with_notes(first))[1]
            assert [hole.bookie for hole in notes.holes] == [away.bookie_id]
            at.bookies[0] = BookieServer(away.config, at.store)
            await at.bookies[0].start()

            async def is_filled() -> bool:
                return (await at.client.records.ledgers.read_with_notes(first))[1] == NO_NOTES

            await until_async(is_filled, "a record without holes")
            assert (await at.client.verify_ledger(first)).complete


async def test_a_leader_fills_the_holes_of_a_ledger_that_it_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filling, "LOOK_MS", 10)
    await _filled(tmp_path)


async def test_not_every_ledger_of_a_leader_waits_for_a_bookie_that_is_gone_for_good(
    at: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader, "FILLS_MAX", 2)
    log = await at.made()
    await at.bookies[0].stop()
    async with await log.open_writer() as writer:
        for number in range(4):
            await writer.append(b"%d" % number)
            await writer.roll()
        tasks = writer._sender._leader._tasks
        await until_async(lambda: len(tasks) == 1 + 2, "two to wait, and who watches the list", seconds=10)
