"""Three bookies, one killed: logs are created, opened, rolled and read as ever, and nothing is lost when it is back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import quire
from faults.harness import cluster, payload
from quire.cli.local.local_cluster import LocalCluster
from support.waiting import until_async

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600)]
Record = Callable[[str, dict[str, Any]], None]
Rounds = Callable[[int, int], int]

RECORDS = 50
"""So many before each roll."""
ANEW = 10
"""So many rolls, and the log's writer is left as if it had died, and the log opened anew."""


async def rolled(client: Any, log: Any, rolls: int) -> tuple[list[bytes], int]:
    """Append and roll, now and then as a new writer: every acknowledged record in order, and how often it was opened."""
    values: list[bytes] = []
    writer, opened = await log.open_writer(), 1
    for number in range(rolls):
        new = [payload(0, len(values) + ahead) for ahead in range(RECORDS)]
        offsets = await asyncio.gather(*(writer.append(value) for value in new))
        assert offsets == list(range(len(values), len(values) + RECORDS))
        values += new
        if number % ANEW == ANEW - 1 or number == 0:
            await writer.abandon()
            writer, opened = await log.open_writer(), opened + 1
        else:
            await writer.roll()
    await writer.close()
    return values, opened


async def read_anew(local: LocalCluster) -> list[bytes | None]:
    """All records, by a client that knows nothing yet."""
    async with quire.connect(local.uri) as client:
        return [record.value async for record in client.log("orders").read()]


async def without_one(directory: Path, rolls: int, chance: random.Random) -> dict[str, Any]:
    async with cluster(directory, 3) as local, quire.connect(local.uri) as client:
        victim = chance.randrange(3)
        gone = local.bookies[victim].id
        await asyncio.to_thread(local.kill, victim)
        log = client.log("orders")
        await log.create()
        # At first the killed bookie is registered still; then it is one with a cookie only.
        values, opened = await rolled(client, log, 2)
        await until_async(lambda: gone not in client.bookies.writable(), "the bookie's session to end")
        assert await read_anew(local) == values
        await log.delete()
        await log.create()
        values, opened = await rolled(client, log, rolls)
        assert await read_anew(local) == values, "while the bookie is away"
        ledgers = [int(item.ledger_id) for item in (await log.describe()).items]
        assert len(ledgers) > rolls
        everyone = sorted(bookie.id for bookie in local.bookies)
        for ledger in ledgers:
            record = await client.ledger_metadata(ledger)
            assert [sorted(fragment.ensemble) for fragment in record.fragments] == [everyone]
        await asyncio.to_thread(local.restart, victim)
        await until_async(lambda: gone in client.bookies.writable(), "the bookie to be back")
        assert await read_anew(local) == values, "after it is back"
        entries = 0
        for ledger in ledgers:
            report = await client.verify_ledger(ledger)
            assert (report.lost, report.below_ack_quorum, report.different) == ([], [], [])
            assert {hole.bookie for hole in report.holes} <= {gone}
            entries += report.entries
        # A ledger that is created now has no absent slot: what is written goes to all three.
        async with await log.open_writer() as writer:
            assert await writer.append(b"all are back") == len(values)
        assert (await read_anew(local))[-1] == b"all are back"
        return {
            "bookies": 3,
            "away": 1,
            "rolls": rolls,
            "opened": opened,
            "ledgers": len(ledgers),
            "records": len(values),
            "entries": entries,
            "lost": 0,
        }


async def test_a_log_is_written_and_rolled_with_one_of_three_bookies_away(
    tmp_path: Path, chance: random.Random, rounds: Rounds, record: Record
) -> None:
    figures = await without_one(tmp_path / "cluster", rounds(100, 3), chance)
    record("a_log_rolled_with_one_of_three_bookies_away", figures)
