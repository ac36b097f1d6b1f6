"""A bookie killed for good and `quire cluster repair`, as processes: all closed ledgers are complete, also when it is killed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import quire
from faults.harness import cluster, facts, pause, payload, quire_command
from quire.cli.local.local_cluster import LocalCluster
from quire.client.client import Client
from quire.core.answers import Answer
from quire.core.ledger.metadata import LedgerMetadata, LedgerState
from quire.core.ledger.stripes import bookie_stripes

Rounds = Callable[[int, int], int]
Record = Callable[[str, dict[str, Any]], None]
SHAPES = ((3, 3, 2), (5, 3, 2))
AT_ONCE = 16
WINDOW_ENTRIES = 4 * 2048
"""What one repair of a ledger has under way at most."""


async def killed(local: LocalCluster, chance: random.Random, *arguments: str) -> None:
    """A repair that is killed when its plan stands and it copies."""
    process = await quire_command(local, *arguments)
    assert process.stdout is not None
    await process.stdout.readline()
    await pause(chance, 1, 1500)
    if process.returncode is None:
        process.kill()
    await process.communicate()


async def write(client: Client, count: int, shape: tuple[int, int, int], *, close: bool = True) -> int:
    ensemble, write_quorum, ack_quorum = shape
    writer = await client.create_ledger(
        ensemble_size=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum
    )
    for first in range(0, count, 500):
        values = [payload(0, number) for number in range(first, min(first + 500, count))]
        await asyncio.gather(*(writer.append_nowait(value) for value in values))
    await (writer.close() if close else writer.abandon())
    return int(writer.ledger_id)


async def many(client: Client, sizes: list[int], *, close: bool = True) -> list[int]:
    made: list[int] = []
    for start in range(0, len(sizes), AT_ONCE):
        some = enumerate(sizes[start : start + AT_ONCE])
        made += await asyncio.gather(
            *(write(client, size, SHAPES[number % 2], close=close) for number, size in some)
        )
    return made


def naming(record: LedgerMetadata, bookie: str) -> list[int]:
    """The fragments that name a bookie."""
    return [index for index, fragment in enumerate(record.fragments) if bookie in fragment.ensemble]


async def stored(client: Client) -> int:
    """How many entries the bookies that are there have taken since they started."""
    found = await client.bookies.bookies()
    told = await asyncio.gather(*(client.bookies.info(bookie) for bookie in found))
    return sum(info["entries_added"] for answer, info in told if answer is Answer.OK)


async def gone_for_good(
    folder: Path, chance: random.Random, *, ledgers: int, entries: int, few: int, kills: int, rate: str
) -> dict[str, Any]:
    """Write, lose one of six bookies, repair.

    Args:
        folder: of the cluster.
        chance: sizes, and when the repairer is killed.
        ledgers: how many, of 1 to `entries` entries.
        entries: see there.
        few: so many of them are empty, and so many more are left open.
        kills: so often the repairer is killed.
        rate: of the repairs that are killed, in MB/s.
    """
    async with cluster(folder, 6) as local:
        async with quire.connect(local.uri) as client:
            sizes = [0] * few + [chance.randint(1, entries) for _ in range(ledgers - few)]
            closed = await many(client, sizes)
            still_open = await many(client, [entries] * few, close=False)
            gone = chance.choice(local.bookies)
            await asyncio.to_thread(local.kill, local.bookies.index(gone))
            before = {ledger: await client.ledger_metadata(ledger) for ledger in closed}
            wanted = sum(
                part.count
                for record in before.values()
                for part in bookie_stripes(record)
                if part.bookie == gone.id
            )
            taken = await stored(client)
            for _ in range(kills):
                await killed(local, chance, "cluster", "repair", "--bookie", gone.id, "--rate", rate)
            # 5 where an open ledger names the bookie: its writer may still change that fragment.
            _, done = await facts(local, "cluster", "repair", "--bookie", gone.id, code=None)
            again = await stored(client) - taken - wanted
            for ledger, old in before.items():
                new = await client.ledger_metadata(ledger)
                assert naming(new, gone.id) == []
                assert (new.state, new.last_entry, new.length) == (old.state, old.last_entry, old.length)
                assert [each.first_entry for each in new.fragments] == [
                    each.first_entry for each in old.fragments
                ]
            for ledger in still_open:
                record = await client.ledger_metadata(ledger)
                assert record.state is LedgerState.OPEN
                assert set(naming(record, gone.id)) <= {len(record.fragments) - 1}
        counts = (await facts(local, "ledger", "verify", "--all", code=None))[-1]
        assert (counts["incomplete"], counts["failed"]) == (0, 0), counts
        assert counts["complete"] >= len(closed)
        _, second = await facts(local, "cluster", "repair", "--bookie", gone.id, code=None)
        assert (second["entries"], second["bytes"], second["left"]) == (0, 0, {})
    # What was on its way when a repairer was killed is copied again, and nothing else.
    assert 0 <= again <= kills * WINDOW_ENTRIES * min(ledgers, 64), again
    return {
        "ledgers": ledgers,
        "entries": sum(sizes),
        "entries_missing": wanted,
        "kills": kills,
        "entries_copied_twice": again,
        "entries_of_the_last_repair": done["entries"],
        "seconds_of_the_last_repair": done["seconds"],
    }


async def test_a_bookie_gone_for_good_and_a_repairer_that_is_killed(
    tmp_path: Path, chance: random.Random
) -> None:
    figures = await gone_for_good(tmp_path / "c", chance, ledgers=16, entries=2000, few=2, kills=1, rate="1")
    assert figures["entries_missing"] > 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_one_of_six_bookies_gone_for_good(
    tmp_path: Path, chance: random.Random, rounds: Rounds, record: Record
) -> None:
    count = rounds(1000, 100)
    figures = await gone_for_good(
        tmp_path / "c", chance, ledgers=count, entries=10_000, few=10, kills=0, rate="1"
    )
    record("repair_of_a_bookie_gone_for_good", figures)


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_the_repairer_is_killed_again_and_again(
    tmp_path: Path, chance: random.Random, rounds: Rounds, record: Record
) -> None:
    kills = rounds(200, 10)
    figures = await gone_for_good(
        tmp_path / "c", chance, ledgers=60, entries=20_000, few=5, kills=kills, rate="2"
    )
    record("repair_killed_again_and_again", figures)
