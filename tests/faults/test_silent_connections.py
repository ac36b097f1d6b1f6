"""Connections that swallow everything, while new ones are well: they are given up, and what waited for them is served."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quire.client.bookies.bookies import BookieClient
from quire.client.config import ClientConfig
from quire.core.errors import QuireError
from quire.core.ids import BookieId
from quire.metadata.bookies import BookieInfo
from support.rounds import FULL, keep_figures
from support.small_cluster import small_cluster
from support.tcp_proxy import TcpProxy, tcp_proxy

pytestmark = [pytest.mark.faults, pytest.mark.timeout(120)]
HASTY = {} if FULL else {"read_timeout_ms": 300, "add_timeout_ms": 300, "recovery_timeout_ms": 300}
"""With full rounds it is the time-outs that ship which must do."""
SERVED_AGAIN_SECONDS = 15
PROTOCOLS = ("auto", "v2", "v3")


def through(bookies: BookieClient, proxy: TcpProxy) -> None:
    """Have a client reach its one bookie through a proxy."""
    take = bookies._take

    def moved(known: dict[BookieId, BookieInfo]) -> None:
        take({bookie: replace(info, port=proxy.port) for bookie, info in known.items()})

    bookies._take = moved  # type: ignore[method-assign]
    bookies._known = {}


async def reads(client: Any, ledger_id: int) -> bool:
    """Whether a ledger can be read now."""
    try:
        async with await client.open_ledger(ledger_id) as reader:
            return [bytes(entry.payload) async for entry in reader.read(0, 0)] == [b"before"]
    except QuireError:
        return False


async def served_again(client: Any, ledger_id: int) -> float:
    """Seconds until a ledger can be read and another one written."""
    began = time.perf_counter()
    while not await reads(client, ledger_id):
        pass
    ledger = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
    await ledger.append(b"after")
    await ledger.close()
    return time.perf_counter() - began


async def test_a_firewall_forgets_the_flow(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(small_cluster(tmp_path, bookies=1))
        [server] = cluster.servers.values()
        proxy = await stack.enter_async_context(tcp_proxy(*server.address))
        clients, ledgers = {}, {}
        for protocol in PROTOCOLS:
            client = clients[protocol] = await cluster.client(ClientConfig(protocol=protocol, **HASTY))
            through(client.bookies, proxy)
            await client.bookies.bookies()
            ledger = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
            await ledger.append(b"before")
            await ledger.close()
            ledgers[protocol] = ledger.ledger_id
        proxy.forget_flows()
        async with asyncio.timeout(60):
            taken = await asyncio.gather(
                *(served_again(clients[protocol], ledgers[protocol]) for protocol in PROTOCOLS)
            )
    figures = dict(zip(PROTOCOLS, (round(each, 2) for each in taken), strict=True))
    keep_figures("silent_connections", {"seconds_until_served_again": figures}, seed=0)
    assert not FULL or max(figures.values()) <= SERVED_AGAIN_SECONDS


async def test_the_system_is_asked_to_find_a_dead_end_at_both_ends(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, bookies=1) as cluster:
        client = await cluster.client()
        [(bookie, server)] = cluster.servers.items()
        await client.bookies.info(bookie)
        [connection] = server._connections
        for end in (client.bookies._peers[bookie].channel, connection):
            there = end.transport.get_extra_info("socket")
            assert there.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            idle = there.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
            between = there.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL)
            probes = there.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT)
            assert 10 <= idle + between * probes <= 15
            assert 10_000 <= there.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 15_000
