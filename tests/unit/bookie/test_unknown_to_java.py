"""What a bookie that may have lost entries tells V3 clients of them: 507, or 501 to those too old to know it."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from quire.bookie.server import BookieServer
from quire.client.access import LedgerAccess
from quire.client.config import ClientConfig
from quire.core.answers import Answer
from quire.metadata.memory import MemoryStore
from support.small_cluster import small_cluster


@pytest.mark.parametrize(("as_error", "said"), [(False, Answer.UNKNOWN), (True, Answer.ERROR)])
async def test_what_v3_clients_are_told_of_lost_entries(tmp_path: Path, as_error: bool, said: Answer) -> None:
    async with small_cluster(tmp_path, bookies=1) as cluster:
        client = await cluster.client(ClientConfig(protocol="v3"))
        ledger = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        await ledger.append(b"lost")
        await ledger.abandon()
        [bookie] = cluster.servers
        config = replace(cluster.servers[bookie].config, unknown_is_error=as_error)
        await cluster.stop_bookie(bookie)
        shutil.rmtree(config.directory / "segments")
        server = BookieServer(config, MemoryStore(cluster.space))
        await server.start()
        cluster.servers[server.bookie_id] = server
        access = LedgerAccess.of(await client.ledger_metadata(ledger.ledger_id))
        async with asyncio.timeout(30):
            answer = Answer.UNREACHABLE
            while answer is Answer.UNREACHABLE:
                await client.bookies.bookies()
                answer = (await client.bookies.read(bookie, access, 0, 0, 1000, timeout_ms=5000)).answer
        assert answer is said
