"""Ledger ids after a store went back in time: raised, on every driver, for every handle."""

import asyncio

import pytest

from conformance.metadata_drivers import DRIVERS, clients
from quire.core.errors import CorruptMetadataError, MisuseError, RefusedError
from quire.metadata.keys import LEDGER_IDS_ABOVE
from quire.metadata.store import RAISED_MAX
from quire.metadata.zookeeper import ids as zookeeper_ids
from quire.metadata.zookeeper.options import ZookeeperLayout


def of(name, tmp_path, **options):
    return DRIVERS[name](tmp_path, **options)


async def draw(stores, count):
    return await asyncio.gather(*(store.next_ledger_id() for store in stores for _ in range(count)))


async def test_after_a_raise_every_handle_gives_out_greater_ids_only(driver):
    async with clients(driver, 3) as (a, b, c):
        # a holds a block or has drawn ahead, b has drawn nothing, c has drawn one.
        before = await draw((a, c), 1) + await draw((a,), 9)
        above = max(before) + 500
        await b.raise_ledger_ids(above)
        for store in (a, b, c):
            assert await store.next_ledger_id() > above
        async with clients(driver, 1) as (late,):
            after = await draw((a, b, c, late), 5)
        assert min(after) > above
        assert len(set(after)) == 20


async def test_ids_that_lie_ready_below_it_are_dropped_although_the_counter_is_past_it(a, b):
    # Blocks double: after these draws some ids of a lie ready, and one was drawn ahead.
    mine = [await a.next_ledger_id() for _ in range(5)]
    other = await b.next_ledger_id()
    above = max(*mine, other) + 1
    await b.raise_ledger_ids(above)
    assert await a.next_ledger_id() > above


async def test_a_raise_to_something_lower_changes_nothing_and_twice_is_once(a, b):
    await a.raise_ledger_ids(300)
    first = await a.next_ledger_id()
    assert 300 < first <= 310
    for above in (300, 0, 17, first - 1):
        await b.raise_ledger_ids(above)
    ids = [await a.next_ledger_id(), await b.next_ledger_id()]
    assert all(first < number <= first + 30 for number in ids)
    for above in (-1, RAISED_MAX + 1):
        with pytest.raises(MisuseError, match=f"above {above}: only above 0 to {RAISED_MAX}"):
            await a.raise_ledger_ids(above)


async def test_raises_and_draws_at_the_same_time(driver):
    async with clients(driver, 4) as stores:

        async def raise_and_draw(store, above):
            await store.raise_ledger_ids(above)
            return [number - above for number in await draw((store,), 3)]

        raised = [raise_and_draw(store, 100 * i) for i, store in enumerate(stores, 1)]
        found = await asyncio.gather(draw(stores, 20), *raised)
        assert min(min(beyond) for beyond in found[1:]) > 0
        assert min(await draw(stores, 1)) > 400


async def test_several_that_raise_to_one_id_do_not_add_up(driver):
    async with clients(driver, 4) as stores:
        await asyncio.gather(*(store.raise_ledger_ids(5000) for store in stores))
        assert all(5000 < number < 5600 for number in await draw(stores, 1))


async def test_a_leap_over_more_ids_than_are_drawn_one_by_one(a, b):
    before = await draw((a, b), 2)
    for above in (10_000_000, 2**40, RAISED_MAX):
        await a.raise_ledger_ids(above)
        for store in (b, a):
            assert await store.next_ledger_id() > above
    ids = await draw((a, b), 10)
    assert len({*before, *ids}) == 24


@pytest.mark.parametrize("name", [pytest.param("sqlite"), pytest.param("etcd", marks=pytest.mark.interop)])
async def test_a_damaged_number_is_named(name, tmp_path):
    async with clients(of(name, tmp_path), 1) as (store,):
        await draw((store,), 2)
        await store.create(LEDGER_IDS_ABOVE, b"-7")
        for attempt in (store.next_ledger_id(), store.raise_ledger_ids(9)):
            with pytest.raises(CorruptMetadataError, match=r"ledger-ids/above .* damaged: b'-7'; write"):
                await attempt
        await store.put(LEDGER_IDS_ABOVE, b"70", (await store.list(LEDGER_IDS_ABOVE))[0][1].version)
        await draw((store,), 2)
        await store.raise_ledger_ids(90)
        assert await store.next_ledger_id() > 90


# --- ZooKeeper --------------------------------------------------------------------------------------------------


@pytest.mark.interop
async def test_a_layout_without_long_ids_refuses_what_is_too_far(tmp_path):
    for layout in (ZookeeperLayout.FLAT, ZookeeperLayout.LEGACY_HIERARCHICAL):
        async with clients(of("zookeeper", tmp_path, layout=layout), 2) as (a, b):
            first = await b.next_ledger_id()
            for above in (2**31 - 2, 2**40, first + 100 + zookeeper_ids.SHORT_LEAP_MAX):
                with pytest.raises(RefusedError, match=f"above {above}: the layout {layout.value} ends at"):
                    await a.raise_ledger_ids(above)
            assert await b.next_ledger_id() < first + 10
            await a.raise_ledger_ids(first + 2500)
            assert first + 2500 < await b.next_ledger_id() < first + 2600


@pytest.mark.interop
async def test_a_far_leap_is_told_and_goes_on_with_long_ids(tmp_path, caplog):
    async with clients(of("zookeeper", tmp_path), 3) as (a, b, c):
        await draw((a, b), 2)
        await a.raise_ledger_ids(3_000_000)
        assert "go on above 4294967296, as 64-bit ids" in caplog.text
        assert "start Java's clients again" in caplog.text
        caplog.clear()
        assert await b.next_ledger_id() == 1 << 32
        await b.raise_ledger_ids(5_000_000)
        await b.raise_ledger_ids((1 << 32) + 5)
        await c.raise_ledger_ids(7 << 32 | 3)
        assert caplog.text == ""
        assert await a.next_ledger_id() == 8 << 32
