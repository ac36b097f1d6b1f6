"""A reader follows its ledger while each of its bookies hangs in turn."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

import quire
from faults.harness import cluster
from quire.client.config import ClientConfig

pytestmark = pytest.mark.faults

LIMIT_S = 60.0
DELIVERY_S = 10.0
"""Far above what it takes; a poll at the bookie that hangs, waited for to its end, took twice as long."""
TOLD_SOON = ClientConfig(explicit_lac_after_ms=200)
"""What is waited for is a hung bookie, not a writer that says how far it is when it has been idle for five seconds."""


async def test_a_bookie_that_hangs_does_not_hold_up_a_tail(tmp_path: Path) -> None:
    async with cluster(tmp_path / "c", 3) as bookies, quire.connect(bookies.uri, TOLD_SOON) as client:
        ledger = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        reader = await client.open_ledger(ledger.ledger_id, recover=False)
        tail = reader.tail()
        expected = 0
        for bookie in bookies.bookies:
            assert bookie.process is not None
            os.kill(bookie.pid, signal.SIGSTOP)
            try:
                for _ in range(2):
                    assert await ledger.append(b"%d" % expected) == expected
                    entry = await asyncio.wait_for(anext(tail), DELIVERY_S)
                    assert bytes(entry.payload) == b"%d" % expected
                    expected += 1
            finally:
                os.kill(bookie.pid, signal.SIGCONT)
        await tail.aclose()
        await ledger.close()
