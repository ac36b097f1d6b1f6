"""Power cuts and kills that leave a torn tail: a bookie that may have lost a fence ends no writer that lives.

Before docs/decisions/013-doubt-is-no-fence.md it answered FENCED to all of them.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import quire
from faults.harness import Loader, cluster, pause
from quire.cli.local.local_cluster import LocalCluster
from quire.core.answers import Answer
from quire.core.ids import BookieId
from quire.metadata.bookies import BookieRegistry
from support.rounds import FULL
from support.torn_tail import limbo_at_next_start, tear

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600)]
Record = Callable[[str, dict[str, Any]], None]
Rounds = Callable[[int, int], int]

WRITERS = 20
BACK_SECONDS = 5.0


@asynccontextmanager
async def writers(client: Any, count: int, window: int = 100) -> AsyncIterator[list[Loader]]:
    """So many ledgers of E=Qw=3, Qa=2 under load; at the end each is closed and read."""
    ledgers = [
        await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2) for _ in range(count)
    ]
    loaders = [Loader(ledger, writer=number, window=window) for number, ledger in enumerate(ledgers)]
    loading = [asyncio.create_task(loader.run()) for loader in loaders]
    yield loaders
    for loader in loaders:
        loader.stop()
    await asyncio.gather(*loading)
    assert [loader.failures for loader in loaders if loader.failures] == []
    for loader, ledger in zip(loaders, ledgers, strict=True):
        await ledger.close()
        reader = await client.open_ledger(ledger.ledger_id)
        assert reader.last_add_confirmed + 1 == loader.acknowledged == loader.sent
        read = 0
        async for _ in reader.read(0, reader.last_add_confirmed):
            read += 1
        assert read == loader.acknowledged


async def all_move(loaders: Sequence[Loader], by: int) -> None:
    """Wait until each writer has been acknowledged so much more."""
    await asyncio.gather(*[loader.reaches(loader.acknowledged + by) for loader in loaders])
    assert [loader.failures for loader in loaders if loader.failures] == []


async def power_cut(
    local: LocalCluster, client: Any, victims: Sequence[int], named: Sequence[int] | None
) -> float:
    """Kill bookies together, tear the end of each one's newest segment, start them; how long the last was away."""
    began = time.monotonic()
    bookies = [local.bookies[victim] for victim in victims]
    for bookie in bookies:
        assert bookie.process is not None
        bookie.process.kill()
    for victim, bookie in zip(victims, bookies, strict=True):
        await asyncio.to_thread(local.kill, victim)
        await asyncio.to_thread(tear, bookie.directory, named, (client.store.instance_id, bookie.id))
    for bookie in bookies:
        await asyncio.to_thread(local._launch, bookie)
    await asyncio.to_thread(local._await_ready, bookies)
    return time.monotonic() - began


@pytest.mark.parametrize(
    ("victims", "named"),
    [
        pytest.param(1, True, id="one-named", marks=pytest.mark.slow),
        pytest.param(1, False, id="one-unnamed"),
        pytest.param(3, True, id="one-after-another-named", marks=pytest.mark.slow),
        pytest.param(3, False, id="one-after-another-unnamed", marks=pytest.mark.slow),
    ],
)
async def test_a_power_cut_with_a_torn_tail_ends_no_writer(
    victims: int, named: bool, tmp_path: Path, chance: random.Random, rounds: Rounds, record: Record
) -> None:
    figures = {"writers": WRITERS, "victims": victims, "rounds": rounds(20, 1), "ended": 0}
    longest = 0.0
    async with cluster(tmp_path / "cluster", 3) as local, quire.connect(local.uri) as client:
        for _ in range(rounds(20, 1)):
            async with writers(client, WRITERS) as loaders:
                await all_move(loaders, 50)
                await pause(chance)
                torn = [int(loader._handle.ledger_id) for loader in loaders] if named else None
                for victim in chance.sample(range(3), victims):
                    longest = max(longest, await power_cut(local, client, [victim], torn))
                    bookie = local.bookies[victim].id
                    found = await info(client, bookie, loaders[0]._handle.access)
                    assert found["limbo"], "the torn tail was not noticed"
                    await takes_adds(client, bookie, loaders)
                    await all_move(loaders, 50)
    figures["longest_away_ms"] = round(longest * 1000)
    assert not FULL or longest < BACK_SECONDS, "the machine is too slow for what this test is about"
    kind = "named" if named else "unnamed"
    record(f"torn_tail_{kind}_on_{victims}", figures)


@pytest.mark.parametrize(
    "named", [pytest.param(True, id="named"), pytest.param(False, id="unnamed", marks=pytest.mark.slow)]
)
async def test_a_power_cut_of_all_bookies_at_once_ends_no_writer(
    named: bool, tmp_path: Path, chance: random.Random, rounds: Rounds, record: Record
) -> None:
    """Their writers wait below the ack quorum (`ClientConfig.quorum_wait_ms`), and nothing is acknowledged meanwhile."""
    figures = {"writers": WRITERS, "victims": 3, "rounds": rounds(20, 1), "ended": 0}
    longest = 0.0
    async with cluster(tmp_path / "cluster", 3) as local, quire.connect(local.uri) as client:
        for _ in range(rounds(20, 1)):
            async with writers(client, WRITERS) as loaders:
                await all_move(loaders, 50)
                await pause(chance)
                torn = [int(loader._handle.ledger_id) for loader in loaders] if named else None
                longest = max(longest, await power_cut(local, client, range(3), torn))
                for bookie in local.bookies:
                    found = await info(client, bookie.id, loaders[0]._handle.access)
                    assert found["limbo"], "the torn tail was not noticed"
                await all_move(loaders, 50)
                for bookie in local.bookies:
                    await takes_adds(client, bookie.id, loaders)
    figures["longest_away_ms"] = round(longest * 1000)
    assert not FULL or longest < BACK_SECONDS, "the machine is too slow for what this test is about"
    kind = "named" if named else "unnamed"
    record(f"torn_tail_{kind}_on_all_at_once", figures)


async def test_a_kill_leaves_in_limbo_what_a_torn_group_names_and_nothing_else(
    tmp_path: Path, chance: random.Random, rounds: Rounds, record: Record
) -> None:
    """SIGKILL and start on the own directory: open ledgers take adds of this bookie again at once."""
    figures: dict[str, Any] = {"rounds": rounds(100, 2), "torn": 0, "in_limbo": 0}
    took: list[float] = []
    async with cluster(tmp_path / "cluster", 3) as local, quire.connect(local.uri) as client:
        for _ in range(rounds(100, 2)):
            async with writers(client, 5) as loaders:
                await all_move(loaders, 50)
                await pause(chance)
                victim = chance.randrange(3)
                bookie = local.bookies[victim]
                await asyncio.to_thread(local.kill, victim)
                named, every = await asyncio.to_thread(
                    limbo_at_next_start, bookie.directory, (client.store.instance_id, bookie.id)
                )
                await asyncio.to_thread(local.restart, victim)
                back = time.monotonic()
                accesses = [loader._handle.access for loader in loaders]
                infos = [await info(client, bookie.id, access) for access in accesses]
                in_limbo = {each["ledger_id"] for each in infos if each and each["limbo"]}
                figures["torn"] += bool(named or every)
                figures["in_limbo"] += len(in_limbo)
                assert every or in_limbo <= named
                await takes_adds(client, bookie.id, loaders)
                took.append(time.monotonic() - back)
    figures["median_back_ms"] = round(statistics.median(took) * 1000)
    figures["slowest_back_ms"] = round(max(took) * 1000)
    figures["over_1_s"] = sum(each > 1 for each in took)
    record("kill_and_limbo", figures)


async def info(client: Any, bookie: str, access: Any) -> dict[str, Any]:
    """What a bookie says of a ledger, as soon as the client is connected to it again."""
    async with asyncio.timeout(60):
        while True:
            answer, found = await client.bookies.info(BookieId(bookie), access)
            if answer is Answer.OK:
                return found
            await asyncio.sleep(0.01)


async def takes_adds(client: Any, bookie: str, loaders: Sequence[Loader]) -> None:
    """Wait until a bookie has newer entries of each ledger than it had."""
    for loader in loaders:
        access = loader._handle.access
        before = (await info(client, bookie, access))["last_entry"]
        async with asyncio.timeout(60):
            while (await info(client, bookie, access))["last_entry"] <= before:
                assert not loader.failures, loader.failures


async def test_new_ledgers_are_taken_after_a_loss_without_a_name(
    tmp_path: Path, rounds: Rounds, record: Record
) -> None:
    count = rounds(1000, 30)
    async with cluster(tmp_path / "cluster", 3) as local, quire.connect(local.uri) as client:
        async with await client.create_ledger() as ledger:
            await ledger.append(b"something to be lost")
        for victim in range(3):
            await power_cut(local, client, [victim], None)
        seen = [await reads_of(client, bookie.id) for bookie in local.bookies]
        async with asyncio.timeout(60):
            registry = BookieRegistry(client.store)
            while sum(each.writable for each in (await registry.available()).values()) < 3:
                await asyncio.sleep(0)
        for _ in range(count):
            async with await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=3) as ledger:
                for number in range(3):
                    await ledger.append(b"%d" % number)
            assert len(ledger.metadata.fragments) == 1, "a bookie refused it"
        now = [await reads_of(client, bookie.id) for bookie in local.bookies]
        record(
            "new_ledgers_after_a_loss",
            {"ledgers": count, "reads_a_bookie": [b - a for a, b in zip(seen, now, strict=True)]},
        )
        assert [b - a for a, b in zip(seen, now, strict=True)] == [count] * 3


async def reads_of(client: Any, bookie: str) -> int:
    """How many records a bookie has read."""
    answer, found = await client.bookies.info(BookieId(bookie))
    assert answer is Answer.OK
    return int(found["record_reads"])
