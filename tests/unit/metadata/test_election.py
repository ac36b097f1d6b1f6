"""Elections: who came first and lives leads; it is advice."""

import asyncio
import gc
from contextlib import aclosing

import pytest

from quire.core.errors import MisuseError
from quire.metadata.election import Election
from quire.metadata.memory import MemorySpace, MemoryStore


def candidates(count, name="orders"):
    space = MemorySpace()
    stores = [MemoryStore(space) for _ in range(count)]
    return stores, [Election(store, name, f"c{i}") for i, store in enumerate(stores)]


async def test_the_first_leads_and_the_next_follows_when_it_resigns():
    _, (a, b, c) = candidates(3)
    assert await a.leader() is None
    assert not a.is_leader
    await a.campaign()
    await a.campaign()
    following = [asyncio.create_task(e.campaign()) for e in (b, c)]
    assert await c.leader() == "c0"
    await asyncio.sleep(0)
    assert [e.is_leader for e in (a, b, c)] == [True, False, False]
    await a.resign()
    await following[0]
    assert [e.is_leader for e in (a, b, c)] == [False, True, False]
    assert await a.leader() == "c1"
    assert not following[1].done()
    await b.resign()
    await following[1]
    await c.resign()
    await c.resign()
    assert await a.leader() is None


async def test_the_next_follows_when_the_leader_dies():
    stores, (a, b) = candidates(2)
    await a.campaign()
    following = asyncio.create_task(b.campaign())
    await asyncio.sleep(0)
    stores[0].abandon()
    await following
    assert await b.leader() == "c1"


async def test_a_leader_whose_session_was_lost_hears_it_and_stands_again_behind_the_others():
    stores, (a, b) = candidates(2)
    await a.campaign()
    following = asyncio.create_task(b.campaign())
    await asyncio.sleep(0)
    stores[0].lose_session()
    await a._place.lost.wait()
    assert not a.is_leader
    await following
    again = asyncio.create_task(a.campaign())
    await asyncio.sleep(0)
    assert await a.leader() == "c1"
    await b.resign()
    await again
    assert a.is_leader


async def test_a_candidate_that_loses_its_session_while_waiting_stands_again():
    stores, (a, b) = candidates(2)
    await a.campaign()
    following = asyncio.create_task(b.campaign())
    while len(await stores[0].list("elections/")) < 2:
        await asyncio.sleep(0)
    stores[1].lose_session()
    while len(await stores[0].list("elections/")) < 2:
        await asyncio.sleep(0)
    await a.resign()
    await following
    assert b.is_leader


async def test_a_cancelled_campaign_keeps_its_place_until_it_resigns():
    stores, (a, b) = candidates(2)
    await a.campaign()
    waiting = asyncio.create_task(b.campaign())
    while len(await stores[0].list("elections/")) < 2:
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert len(await stores[0].list("elections/")) == 2
    await b.resign()
    assert len(await stores[0].list("elections/")) == 1


@pytest.mark.parametrize("turns", range(12))
async def test_who_resigns_while_it_waits_is_told_so_whenever_that_is(turns):
    """A client is closed while one of its threads waits for the lead."""
    stores, (a, b) = candidates(2)
    await a.campaign()
    waiting = asyncio.create_task(b.campaign())
    for _ in range(turns):
        await asyncio.sleep(0)
    stood = b._place is not None
    await b.resign()
    if stood:
        with pytest.raises(MisuseError, match="resigned from the election"):
            await waiting
        assert [key for key, _ in await stores[0].list("elections/")] == [a._place.key]
    else:
        waiting.cancel()


async def test_a_store_that_is_closed_while_a_cancelled_candidate_registers_is_no_complaint(monkeypatch):
    (store,), (a,) = candidates(1)
    complaints = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    closed = asyncio.Event()

    async def register(*_args, **_options):
        await closed.wait()
        raise MisuseError("this metadata store is closed")

    monkeypatch.setattr(store, "register", register)
    campaign = asyncio.create_task(a.campaign())
    await asyncio.sleep(0)
    campaign.cancel()
    with pytest.raises(asyncio.CancelledError):
        await campaign
    closed.set()
    await a.resign()
    del campaign
    gc.collect()
    assert complaints == []


async def test_onlookers_see_every_leader_once():
    _, (a, b, c) = candidates(3)
    async with aclosing(c.watch()) as leaders:
        assert await anext(leaders) is None
        await a.campaign()
        assert await anext(leaders) == "c0"
        following = asyncio.create_task(b.campaign())
        await asyncio.sleep(0)
        await a.resign()
        await following
        assert await anext(leaders) == "c1"


async def test_elections_do_not_touch_each_other():
    stores, (a, _) = candidates(2, "a")
    other = Election(stores[1], "a/b", "x")
    await a.campaign()
    await asyncio.wait_for(other.campaign(), 5)
    assert await a.leader() == "c0"
    with pytest.raises(MisuseError):
        Election(stores[0], "a//b", "x")


class SlowStore(MemoryStore):
    """Registers, and takes its time to say so."""

    def __init__(self, space):
        super().__init__(space)
        self.registered, self.answer = asyncio.Event(), asyncio.Event()

    async def register(self, *args, **kwargs):
        made = await super().register(*args, **kwargs)
        self.registered.set()
        await self.answer.wait()
        return made


@pytest.mark.parametrize("twice", [False, True])
async def test_a_campaign_that_is_cancelled_while_it_registers_leaves_no_place_behind_a_resignation(twice):
    store = SlowStore(MemorySpace())
    election = Election(store, "orders", "a")
    campaign = asyncio.create_task(election.campaign())
    await store.registered.wait()
    campaign.cancel()
    with pytest.raises(asyncio.CancelledError):
        await campaign
    resigning = asyncio.create_task(election.resign())
    await asyncio.sleep(0)
    if twice:
        resigning.cancel()
    store.answer.set()
    await asyncio.wait({resigning})
    while await store.list("elections/"):
        await asyncio.sleep(0)
    assert resigning.cancelled() is twice


async def test_a_campaign_after_a_cancelled_one_stands_once():
    store = SlowStore(MemorySpace())
    election = Election(store, "orders", "a")
    for _ in range(2):
        campaign = asyncio.create_task(election.campaign())
        await store.registered.wait()
        await asyncio.sleep(0)
        campaign.cancel()
        await asyncio.wait({campaign})
    store.answer.set()
    await election.campaign()
    assert len(await store.list("elections/")) == 1
    assert election.is_leader
