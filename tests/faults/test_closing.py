"""What is closed is whole, or its record says what is missing: closes next to a stopped bookie, of real processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

import quire
from faults.harness import cluster, run
from quire.cli.local_cluster import LocalBookie, LocalCluster
from quire.client.access import LedgerAccess
from quire.client.client import Client
from quire.client.shares import gaps, shares
from quire.core.answers import Answer
from quire.core.ledger_notes import LedgerNotes

pytestmark = pytest.mark.faults

ENTRIES = 8_000
PAYLOAD = b"x" * 1_000
TRIPLE = {"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2}


@contextmanager
def stopped(bookie: LocalBookie) -> Iterator[None]:
    """The bookie's process is stopped meanwhile: its sockets live, and take bytes until their buffers are full."""
    os.kill(bookie.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(bookie.pid, signal.SIGCONT)


@asynccontextmanager
async def client_of(made: LocalCluster) -> AsyncIterator[Client]:
    """A client that is gone when the block is left: nothing that it holds reaches a bookie later."""
    async with quire.connect(made.uri) as client:
        yield client


async def append(writer: object, count: int) -> None:
    """Append so many entries and wait until all are acknowledged."""
    futures = []
    for _ in range(count):
        try:
            futures.append(writer.append_nowait(PAYLOAD))
        except quire.WindowFullError:
            await writer.drain()
            futures.append(writer.append_nowait(PAYLOAD))
        if len(futures) % 100 == 0:
            await asyncio.sleep(0)
    await asyncio.gather(*futures)


async def unrecorded(client: Client, ledger_id: int, last: int | None = None) -> tuple[int, int]:
    """How many copies are neither on their bookie nor a hole of the record, and how many are holes."""
    record, notes, _ = await client.ledger_store.read_with_notes(ledger_id)
    access, held = LedgerAccess.of(record), {}
    count = 0
    for share in shares(record, last):
        if share.bookie not in held:
            answer, held[share.bookie] = await client.bookies.list_entries(share.bookie, access)
            assert answer in (Answer.OK, Answer.NO_LEDGER), answer
        for gap in gaps(share, held[share.bookie]):
            count += sum(not notes.is_hole(share.bookie, entry_id) for entry_id in gap.ids())
    return count, holes_of(notes)


def holes_of(notes: LedgerNotes) -> int:
    """How many copies the notes call missing."""
    return sum(
        place.residues >> entry_id % place.period & 1
        for hole in notes.holes
        for place in hole.ranges
        for entry_id in range(place.first, place.last + 1)
    )


def test_a_close_records_what_a_stopped_bookie_lacks(tmp_path):
    async def scene():
        async with cluster(tmp_path / "data", 3) as made:
            with stopped(made.bookies[1]):
                async with client_of(made) as client:
                    writer = await client.create_ledger(**TRIPLE)
                    await append(writer, ENTRIES)
                    await writer.close()
                    ledger_id, holes = writer.ledger_id, writer.holes
            assert holes
            async with client_of(made) as client:
                missing, recorded = await unrecorded(client, ledger_id)
                assert (await client.ledger_metadata(ledger_id)).last_entry == ENTRIES - 1
            assert missing == 0
            assert recorded

    run(scene())
