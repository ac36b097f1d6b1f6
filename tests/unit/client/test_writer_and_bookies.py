"""The writer with real bookies in this process: sockets, disks and all, some of which go away under load."""

from __future__ import annotations

import asyncio
import functools
from contextlib import asynccontextmanager

import pytest

from quire.client.access import LedgerAccess
from quire.client.config import ClientConfig
from quire.core.answers import Answer
from quire.core.errors import LedgerFencedError
from quire.core.ledger.metadata import DigestType, LedgerState
from quire.core.ledger.quorum import write_set
from support.small_cluster import SmallCluster, small_cluster
from support.waiting import until_async

CONFIG = ClientConfig(
    change_retry_ms_min=20, change_retry_ms_max=100, quarantine_ms=200, explicit_lac_after_ms=300
)


class Cluster(SmallCluster):
    async def connect(self):
        self.me = await self.client(CONFIG)
        self.bookies, self.records = self.me.bookies, self.me.records

    async def writer(self, size=3, write=3, ack=2, digest=DigestType.CRC32C):
        await until_async(lambda: len(self.bookies.writable()) >= size, "enough writable bookies")
        return await self.me.create_ledger(
            ensemble_size=size, write_quorum=write, ack_quorum=ack, digest=digest, password=b"secret"
        )

    async def copies(self, record, access, entry):
        """On how many bookies of its recorded write set an entry is, with a digest that fits."""
        ensemble = record.ensemble_of(entry)
        count = 0
        for slot in write_set(entry, record.ensemble_size, record.write_quorum):
            reply = await self.bookies.read(ensemble[slot], access, entry, entry, 1 << 20)
            if reply.answer is Answer.OK:
                for run_view in reply.runs:
                    if run_view.holds(entry):
                        raw = run_view.entry(run_view.position(entry))
                        found = access.digest.open(raw, record.ledger_id, entry)
                        count += bytes(found.payload) == b"%d" % entry
        return count


@asynccontextmanager
async def cluster(directory, count):
    async with small_cluster(directory, count, Cluster) as made:
        await made.connect()
        yield made


async def load(ledger, first, count):
    futures = []
    for n in range(first, first + count):
        futures.append(ledger.append_nowait(b"%d" % n))
        if n % 20 == 0:
            await asyncio.sleep(0)
    assert await asyncio.gather(*futures) == list(range(first, first + count))


@pytest.mark.parametrize(("size", "write", "ack"), [(3, 3, 2), (4, 3, 2), (4, 2, 1)])
async def test_entries_are_on_the_disks_of_their_write_sets(tmp_path, size, write, ack):
    async with cluster(tmp_path, 4) as c:
        async with await c.writer(size, write, ack, DigestType.HMAC) as ledger:
            await load(ledger, 0, 200)
        record, _ = await c.records.ledgers.read(ledger.ledger_id)
        assert (record.state, record.last_entry) == (LedgerState.CLOSED, 199)
        access = LedgerAccess.of(record)
        for entry in range(0, 200, 7):
            copies = functools.partial(c.copies, record, access, entry)
            await until_async(lambda copies=copies: enough(copies, write))


async def enough(copies, wanted):
    return await copies() >= wanted


async def test_a_bookie_stops_under_load_and_another_takes_its_place(tmp_path):
    async with cluster(tmp_path, 4) as c, await c.writer() as ledger:
        await load(ledger, 0, 100)
        victim = ledger.metadata.ensemble_of(0)[0]
        await asyncio.gather(load(ledger, 100, 2000), c.stop_bookie(victim))
        await load(ledger, 2100, 100)
        assert len(ledger.metadata.fragments) == 2
        for entry in (0, 99, 100, 1000, 2100, 2199):
            assert await c.copies(ledger.metadata, ledger.access, entry) >= 2


async def test_without_a_spare_the_writer_goes_on_and_the_bookie_comes_back(tmp_path):
    async with cluster(tmp_path, 3) as c, await c.writer() as ledger:
        await load(ledger, 0, 100)
        bookie_id = ledger.metadata.ensemble_of(0)[1]
        _, name = await asyncio.gather(load(ledger, 100, 1000), c.stop_bookie(bookie_id))
        await load(ledger, 1100, 10)
        assert [hole.bookie for hole in ledger.holes] == [bookie_id]
        await c.start_bookie(name)
        await until_async(lambda: not ledger._machine.absent)
        assert ledger.metadata.ensemble_of(1110)[1] == bookie_id
        await load(ledger, 1110, 100)
        await until_async(
            lambda: enough(functools.partial(c.copies, ledger.metadata, ledger.access, 1200), 3)
        )


async def test_a_fence_ends_the_writer(tmp_path):
    async with cluster(tmp_path, 3) as c:
        ledger = await c.writer()
        await load(ledger, 0, 10)
        for bookie in ledger.metadata.ensemble_of(0):
            assert (await c.bookies.read_lac(bookie, ledger.access, fence=True)).answer is Answer.OK
        with pytest.raises(LedgerFencedError):
            await ledger.append(b"10")
        assert (await c.records.ledgers.read(ledger.ledger_id))[0].state is LedgerState.OPEN


async def test_the_last_entry_of_an_idle_ledger_becomes_visible(tmp_path):
    async with cluster(tmp_path, 3) as c, await c.writer() as ledger:
        await load(ledger, 0, 10)

        async def seen():
            replies = [await c.bookies.read_lac(b, ledger.access) for b in ledger.metadata.ensemble_of(0)]
            return all(reply.lac == 9 for reply in replies)

        await until_async(seen)
