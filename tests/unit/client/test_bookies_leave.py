"""Registrations come and go while bookies serve or stop: what open ledgers make of it, with real bookies.

Source: docs/protocol/ensemble-change.md, "Bookies that left".
"""

from contextlib import asynccontextmanager

import pytest

from quire.client.bookies.bookies import BookieClient
from quire.client.config import ClientConfig
from quire.core.errors import MisuseError
from quire.metadata.bookies import BookieRegistry
from quire.metadata.memory import MemoryStore
from quire.metadata.records import AllRecords
from support.small_cluster import SmallCluster, small_cluster
from support.waiting import until_async
from support.writers import new_writer

CONFIG = ClientConfig(left_wait_ms_min=20, left_wait_ms_max=60, quarantine_ms=200, probe_timeout_ms=5_000)


class Cluster(SmallCluster):
    """Its client looks at registrations in another store, which the test makes and ends."""

    async def look_elsewhere(self):
        self.seen = BookieRegistry(MemoryStore())
        self.names = list(self.servers)
        self.infos = await BookieRegistry(MemoryStore(self.space)).available()
        self.registered = {name: await self.register(name) for name in self.names}
        self.bookies = BookieClient(self.seen, MemoryStore(self.space).instance_id)
        await self.bookies.start()

    async def register(self, name):
        return await self.seen.register(self.infos[name])

    async def ends(self, *names):
        """Registrations end, and the client has seen it."""
        for name in names:
            await self.registered.pop(name).close()
        await until_async(lambda: not {*names} & {*self.bookies.writable()}, "the client to see it")

    async def writer(self):
        return await new_writer(self.bookies, AllRecords(MemoryStore(self.space)), CONFIG, self.names[:3])

    async def close(self):
        await self.bookies.close()
        await super().close()


@asynccontextmanager
async def cluster(directory, count):
    async with small_cluster(directory, count, Cluster) as made:
        await made.look_elsewhere()
        yield made


async def has_asked(ledger):
    """The writer has waited and asked, and has done what follows."""
    await until_async(
        lambda: ledger._machine.waits.left_at_ms is None and not ledger._effects.tasks, "the writer to ask"
    )


def ensembles(ledger):
    return [fragment.ensemble for fragment in ledger.metadata.fragments]


async def test_an_idle_ledger_gets_another_bookie_for_one_that_is_gone_without_an_append(tmp_path):
    async with cluster(tmp_path, 4) as c:
        a, b, gone, spare = c.names
        async with await c.writer() as ledger:
            await ledger.append(b"0")
            await c.stop_bookie(gone)
            await c.ends(gone)
            await until_async(lambda: ensembles(ledger)[-1] == (a, b, spare), "the change")
            assert [len(names) for names in ensembles(ledger)] == [3, 3]
            assert await ledger.append(b"1") == 1
            assert ledger._machine.absent == ()


async def test_a_bookie_that_answers_is_replaced_when_it_stays_without_a_registration(tmp_path):
    """Who repairs the cluster takes it for gone, and would recover the ledger of a writer that lives."""
    async with cluster(tmp_path, 4) as c:
        a, b, cut_off, spare = c.names
        async with await c.writer() as ledger:
            await ledger.append(b"0")
            await c.ends(cut_off)
            await until_async(lambda: cut_off in ledger._machine.waits.answering, "the first answer")
            assert ensembles(ledger) == [(a, b, cut_off)]
            await until_async(lambda: ensembles(ledger)[-1] == (a, b, spare), "the change")
            assert await ledger.append(b"1") == 1


async def test_without_a_spare_bookies_that_answer_keep_their_slots_as_after_an_outage_of_the_store(tmp_path):
    async with cluster(tmp_path, 4) as c:
        names, spare = c.names[:3], c.names[3]
        async with await c.writer() as ledger:
            await ledger.append(b"0")
            await c.ends(spare, names[2])
            await has_asked(ledger)
            assert ensembles(ledger) == [(*names,)]
            await c.ends(*names[:2])  # the store is away: nobody is registered
            await has_asked(ledger)
            assert await ledger.append(b"1") == 1
            assert (ensembles(ledger), ledger._machine.absent) == ([(*names,)], ())


@pytest.mark.parametrize("spare_comes", [False, True])
async def test_a_read_only_bookie_is_replaced_when_a_spare_is_there(tmp_path, spare_comes):
    async with cluster(tmp_path, 4) as c:
        a, b, full, spare = c.names
        async with await c.writer() as ledger:
            await ledger.append(b"0")
            if spare_comes:
                await c.ends(spare)
            await c.registered[full].set_writable(False)
            await until_async(lambda: full not in c.bookies.writable(), "the client to see it")
            if spare_comes:
                await has_asked(ledger)
                assert ensembles(ledger) == [(a, b, full)]
                c.registered[spare] = await c.register(spare)
            await until_async(lambda: ensembles(ledger)[-1] == (a, b, spare), "the change")
            assert await ledger.append(b"1") == 1


async def test_an_ended_writer_hears_nothing_more(tmp_path):
    async with cluster(tmp_path, 3) as c:
        ledger = await c.writer()
        assert len(c.bookies.followers) == 1
        await ledger.close()
        assert c.bookies.followers == {}
        await c.ends(c.names[0])


def test_a_wait_that_begins_after_its_end_is_refused():
    with pytest.raises(MisuseError, match="left_wait_ms_max` must be an integer from 2 to"):
        ClientConfig(left_wait_ms_min=2, left_wait_ms_max=1)
