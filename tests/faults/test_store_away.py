"""The metadata store away under load, and its answers lost one in three: bookies defer nothing, and none of them stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import quire
from faults.harness import Loader
from support.etcd_server import own_server
from support.programs import NEW, BookieProcess
from support.rounds import rounds
from support.shared_server import or_skip
from support.tcp_proxy import TcpProxy, tcp_proxy

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]
AWAY_S = rounds(6, 60)
SESSION_MS = 2000
"""Shorter than it is away: every session ends."""
Record = Callable[[str, dict[str, Any]], None]


async def goes_on(loader: Loader, seconds: float) -> int:
    """Appends are acknowledged all the time; how many."""
    loop, before = asyncio.get_running_loop(), loader.acknowledged
    end = loop.time() + seconds
    while loop.time() < end:
        await loader.reaches(loader.acknowledged + 100, 30)
        assert not loader.failures
    return loader.acknowledged - before


async def loses_answers(proxy: TcpProxy, loader: Loader, seconds: float) -> tuple[int, int]:
    """One answer in three is lost; how many entries were acknowledged meanwhile, and how many answers were lost."""
    proxy.lose_one_in(3)
    acknowledged = await goes_on(loader, seconds)
    lost = proxy.lost
    assert lost, "something was asked"
    proxy.pass_everything()
    return acknowledged, lost


async def test_appends_go_on_and_no_bookie_stops(tmp_path: Path, record: Record) -> None:
    server = or_skip(own_server(tmp_path / "etcd"))
    host, _, port = server.host.rpartition(":")
    try:
        async with tcp_proxy(host.rpartition("/")[2], int(port)) as proxy:
            through = f"etcd://127.0.0.1:{proxy.port}/quire?session_timeout_ms={SESSION_MS}"
            bookies = [BookieProcess(f"b{number}", tmp_path / f"b{number}", through) for number in range(3)]
            try:
                for bookie in bookies:
                    await asyncio.to_thread(bookie.start, NEW)
                async with quire.connect(f"etcd://{server.host}/quire") as client:
                    ledger = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
                    loader = Loader(ledger, window=200)
                    load = asyncio.ensure_future(loader.run())
                    await loader.reaches(500)
                    proxy.go_silent()
                    away = await goes_on(loader, AWAY_S)
                    proxy.pass_everything()
                    meanwhile, lost = await loses_answers(proxy, loader, AWAY_S)
                    await goes_on(loader, SESSION_MS / 1000)
                    loader.stop()
                    await load
                    await ledger.close()
                    reader = await client.open_ledger(int(ledger.ledger_id))
                    number = -1
                    async for entry in reader.read(0, reader.last_add_confirmed):
                        number += 1
                        assert bytes(entry.payload) == loader.value_of(number)
                    assert number + 1 == loader.acknowledged
                assert all(bookie.process is not None and bookie.process.poll() is None for bookie in bookies)
            finally:
                for bookie in bookies:
                    if bookie.process is not None:
                        await asyncio.to_thread(bookie.kill)
        figures = {"seconds": AWAY_S, "acknowledged_while_away": away, "answers_lost": lost}
        record("store-away", figures | {"acknowledged_while_losing": meanwhile, "bookies_stopped": 0})
    finally:
        server.stop()
