"""ZooKeeper away under load, by a partition and by a kill: writers of both languages go on, nothing is lost, bookies come back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import quire
from faults.harness import judged, new_history
from quire.metadata.bookies import BookieRegistry
from quire.metadata.connect import open_store
from support.both_writers import BACK_WITHIN_S, Load, each_reads_the_other, load_of_both, seconds
from support.java_peers import PATIENT_CLIENT, JavaPeers, our_bookies, own_peers
from support.rounds import keep_figures, rounds
from support.tcp_proxy import TcpProxy, tcp_proxy
from support.waiting import until_async

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(1800)]
BOOKIES = 4
SESSION_MS = 8_000
OPTIONS = f"?session_timeout_ms={SESSION_MS}"
JAVA_SESSION = ["--conf", f"zkTimeout={SESSION_MS}"]


async def partition(peers: JavaPeers, proxy: TcpProxy, load: Load) -> None:
    """Half a minute without a word from ZooKeeper: every session ends, all entries are acknowledged as before."""
    proxy.go_silent()
    over = asyncio.create_task(seconds(30))
    while not over.done():
        await load.goes_on()

    async def forgotten() -> bool:
        return not await load.registered()

    await until_async(forgotten, "the end of all sessions", BACK_WITHIN_S)
    proxy.pass_everything()
    await until_async(load.all_registered, "all bookies registered again", BACK_WITHIN_S)


async def restart(peers: JavaPeers, proxy: TcpProxy, load: Load) -> None:
    """ZooKeeper is killed and started again on its data."""
    await asyncio.to_thread(peers.run, "kill-zookeeper")
    await load.goes_on()
    await asyncio.to_thread(peers.run, "start-zookeeper")
    await until_async(load.all_registered, "all bookies registered", BACK_WITHIN_S)


Outage = Callable[[JavaPeers, TcpProxy, Load], Awaitable[None]]


async def outages(peers: JavaPeers, folder: Path, count: int = 1) -> dict[str, Any]:
    """Both writers under both outages, then their ledgers closed and read by the other language."""
    history = new_history()
    host, _, port = peers.host.partition(":")
    root = peers.another_root().rpartition("/")[2]
    async with tcp_proxy(host, int(port)) as proxy:
        uri = f"zk+hierarchical://127.0.0.1:{proxy.port}/{root}"
        async with (
            our_bookies(uri, folder, BOOKIES, OPTIONS),
            quire.connect(uri + OPTIONS, config=PATIENT_CLIENT) as client,
            peers.client() as java,
            await open_store(f"zk://{peers.host}/{root}") as store,
        ):
            registry = BookieRegistry(store)
            async with load_of_both(history, peers, uri, client, registry, *JAVA_SESSION) as load:
                for outage in [partition, restart] * count:
                    await outage(peers, proxy, load)
                    await load.goes_on()
                    made = await client.create_ledger()  # metadata is written again as well
                    await made.append(b"after the outage")
                    await made.close()
            whole = f"zk+hierarchical://{peers.host}/{root}"
            figures = await each_reads_the_other(history, java, whole, client, load)
    judged(history.events, 1, 2, 3, 4, 5, 8, 9)
    return {"outages": 2 * count, **figures}


async def test_writers_go_on_while_zookeeper_is_away(tmp_path: Path) -> None:
    with own_peers(tmp_path / "java", 0) as peers:
        figures = await outages(peers, tmp_path, rounds(1, 3))
    keep_figures("writers_go_on_while_zookeeper_is_away", figures, seed=None)
