"""Many ledgers that Java wrote to Java bookies: listed, opened, and every copy verified, by our client.

The bookies have their default storage with far more ledgers than `openFileLimit`: over V3 such ones say "no such entry" at
times, with the entry as the body.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

import quire
from support.frames_counted import count_requests
from support.java_peers import PATIENT, PATIENT_CLIENT, PATIENT_JAVA, JavaPeers, own_peers
from support.rounds import keep_figures, rounds

pytestmark = [pytest.mark.interop, pytest.mark.timeout(3600)]

ENTRIES = 3
AT_ONCE = 32


async def by_some(ledgers: Iterable[int], work: Callable[[int], Awaitable[None]]) -> None:
    """Do the work for all ledgers, so many at one time."""
    left = iter(ledgers)

    async def one_after_another() -> None:
        for ledger_id in left:
            await work(ledger_id)

    await asyncio.gather(*(one_after_another() for _ in range(AT_ONCE)))


async def steps(
    peers: JavaPeers, protocol: str, wanted: int, counted: Counter[str], figures: dict[str, object]
) -> None:
    """List, open, verify; the seconds and requests of each."""

    async def measured(name: str, work: Awaitable[None]) -> None:
        counted.clear()
        began = time.monotonic()
        await work
        figures[f"{name}, seconds"] = round(time.monotonic() - began, 1)
        for where in ("to ZooKeeper", "to bookies"):
            figures[f"{name}, requests {where}"] = counted[where]

    found: list[int] = []

    async def listed() -> None:
        found.extend([ledger_id async for ledger_id in client.ledgers()])

    async def opened(ledger_id: int) -> None:
        reader = await client.open_ledger(ledger_id, password=b"secret")
        assert reader.closed
        assert reader.last_add_confirmed == ENTRIES - 1

    async def verified(ledger_id: int) -> None:
        report = await client.verify_ledger(ledger_id, password=b"secret")
        assert report.complete, report
        assert report.copies == 3 * ENTRIES

    async with quire.connect(peers.uri + PATIENT, replace(PATIENT_CLIENT, protocol=protocol)) as client:
        await measured(f"{protocol} listed", listed())
        assert len(found) == wanted
        await measured(f"{protocol} opened", by_some(found, opened))
        await measured(f"{protocol} verified", by_some(found, verified))


@pytest.mark.slow
async def test_many_ledgers_are_listed_opened_and_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = rounds(300, 20_000)
    counted = count_requests(monkeypatch)
    figures: dict[str, object] = {"ledgers": wanted, "entries each": ENTRIES, "at one time": AT_ONCE}
    with own_peers(tmp_path / "java", 3) as peers:
        async with peers.client() as java:
            began = time.monotonic()
            said = await java.run(peers.uri, "CRC32C", f"write-many {wanted} {ENTRIES} 100", *PATIENT_JAVA)
            assert said[-1]["event"] == "written", said
            figures["written by Java, seconds"] = round(time.monotonic() - began, 1)
        for protocol in ("v2", "v3"):
            await steps(peers, protocol, wanted, counted, figures)
    keep_figures("java_many_ledgers", figures, seed=None)
