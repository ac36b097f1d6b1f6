"""What every metadata store promises (quire/metadata/store.py), one suite for all drivers."""

import asyncio
import uuid

import pytest

from conformance.metadata_drivers import (
    clients,
    collect,
    until,
)
from quire.core.errors import AlreadyExistsError, MisuseError
from quire.metadata.store import (
    PENDING_KEYS_MAX,
    VALUE_BYTES_MAX,
    Create,
    Delete,
    KeyMissingError,
    Put,
    Require,
    VersionConflictError,
)

# --- keys, values, versions -------------------------------------------------------------------------------------


async def test_a_value_comes_back_with_its_version(a, b):
    version = await a.create("ledgers/1", b"one")
    found = await b.get("ledgers/1")
    assert (found.value, found.version) == (b"one", version)
    later = await b.put("ledgers/1", b"", version)
    assert later > version
    assert (await a.get("ledgers/1")).value == b""
    await a.delete("ledgers/1", later)
    assert await b.get("ledgers/1") is None


async def test_every_refusal_has_its_kind_and_changes_nothing(a):
    version = await a.create("k", b"1")
    for attempt, kind in [
        (a.create("k", b"2"), AlreadyExistsError),
        (a.put("k", b"2", version + 1), VersionConflictError),
        (a.put("none", b"2", version), KeyMissingError),
        (a.delete("k", version + 1), VersionConflictError),
        (a.delete("none"), KeyMissingError),
        (a.delete("none", version), KeyMissingError),
    ]:
        with pytest.raises(kind) as caught:
            await attempt
        assert caught.value.ids["key"] in {"k", "none"}
    found = await a.get("k")
    assert (found.value, found.version) == (b"1", version)
    assert [key for key, _ in await a.list("")] == ["k"]


async def test_a_version_does_not_come_back_after_delete_and_create(driver, a):
    seen = []
    for _ in range(5):
        seen.append(await a.create("k", b"v"))
        await a.delete("k")
    assert seen == ([seen[0]] * 5 if driver.versions_restart else sorted(set(seen)))


async def test_of_two_changes_the_later_one_has_the_greater_revision_whatever_their_keys(a, b):
    seen = []

    async def note(*keys):
        found = [(await b.get(key)).revision for key in keys]
        listed = dict(await a.list(""))
        assert found == [listed[key].revision for key in keys]
        assert len(set(found)) == 1
        seen.append(found[0])

    first = await a.create("ledgers/0000000000000000007", b"x")
    await note("ledgers/0000000000000000007")
    other = await b.create("passes/b:1", b"x")
    await note("passes/b:1")
    await a.delete("ledgers/0000000000000000007", first)
    await a.multi((Create("ledgers/0000000000000000007", b"y"), Create("t/7", b"z")))
    await note("ledgers/0000000000000000007", "t/7")
    await a.put("passes/b:1", b"x", other)  # the same value is a change too
    await note("passes/b:1")
    await a.register("bookies/available/b:1", b"x")
    await note("bookies/available/b:1")
    assert seen == sorted(set(seen))


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "a/../b", ".", "a\nb", "a\0b", "x" * 513])
async def test_a_key_that_some_driver_could_not_store_is_refused_by_all(key, a):
    for attempt in (a.create(key, b""), a.get(key), a.delete(key)):
        with pytest.raises(MisuseError, match="metadata key"):
            await attempt


async def test_values_are_bytes_of_any_kind_up_to_the_limit(a):
    for i, value in enumerate([b"", bytes(range(256)), b"x" * VALUE_BYTES_MAX]):
        await a.create(f"k{i}", value)
        assert (await a.get(f"k{i}")).value == value
    with pytest.raises(MisuseError, match="1000001 bytes"):
        await a.create("big", b"x" * (VALUE_BYTES_MAX + 1))


async def test_one_of_many_wins_each_race(driver):
    async with clients(driver, 4) as stores:
        made = await asyncio.gather(
            *(s.create("k", b"%d" % i) for i, s in enumerate(stores)), return_exceptions=True
        )
        assert sorted(type(r).__name__ for r in made) == ["AlreadyExistsError"] * 3 + ["int"]
        version = (await stores[0].get("k")).version
        for _ in range(20):
            writes = [s.put("k", b"%d" % i, version) for i, s in enumerate(stores) for _ in range(3)]
            results = await asyncio.gather(*writes, return_exceptions=True)
            [(winner, version)] = [(i, r) for i, r in enumerate(results) if isinstance(r, int)]
            assert all(isinstance(r, VersionConflictError) for i, r in enumerate(results) if i != winner)
            found = await stores[1].get("k")
            assert (found.value, found.version) == (b"%d" % (winner // 3), version)


async def test_what_returned_is_seen_by_everyone(a, b):
    version = await a.create("k", b"0")
    for i in range(1, 50):
        version = await (a if i % 2 else b).put("k", b"%d" % i, version)
        assert (await (b if i % 2 else a).get("k")).value == b"%d" % i


# --- lists ------------------------------------------------------------------------------------------------------


async def test_lists_are_ranges_in_order_page_by_page(a):
    keys = sorted(["a", "a/1", "a/10", "a/2", "a0", "b/1", "b/1/x", "b/ü", "b/\U0001f4a7", "c"])
    for key in reversed(keys):
        await a.create(key, key.encode())
    for prefix in ["", "a", "a/", "a/1", "b/", "b/1", "z"]:
        wanted = [key for key in keys if key.startswith(prefix)]
        assert [(k, v.value) for k, v in await a.list(prefix)] == [(k, k.encode()) for k in wanted]
        for limit in (1, 2, 3):
            found, after = [], None
            while page := await a.list(prefix, after=after, limit=limit):
                assert len(page) <= limit
                found += [key for key, _ in page]
                after = page[-1][0]
            assert found == wanted
    assert [k for k, _ in await a.list("b", after="a/2", limit=2)] == ["b/1", "b/1/x"]
    assert [k for k, _ in await a.list("a", after="b")] == []
    with pytest.raises(MisuseError):
        await a.list("", limit=0)


# --- several at once --------------------------------------------------------------------------------------------


async def test_several_operations_happen_all_or_none(a, b):
    one, two = await a.multi([Create("one", b"1"), Create("two", b"2")])
    versions = await a.multi(
        [Put("one", b"1b", one), Delete("two", two), Create("three", b"3"), Require("none", None)]
    )
    assert versions[0] > one
    assert versions[1] == versions[3] == 0
    assert {k: v.value for k, v in await b.list("")} == {"one": b"1b", "three": b"3"}
    before, wrong = await b.list(""), versions[2] + 1
    for last, kind in [
        (Create("three", b""), AlreadyExistsError),
        (Put("three", b"", wrong), VersionConflictError),
        (Delete("none"), KeyMissingError),
        (Require("three", None), VersionConflictError),
        (Require("three", wrong), VersionConflictError),
        (Require("none", 1), KeyMissingError),
    ]:
        with pytest.raises(kind) as caught:
            await a.multi([Create("four", b"4"), Delete("one"), last])
        assert caught.value.ids["key"] == last.key
        assert await b.list("") == before
    assert await a.multi([]) == []


async def test_later_operations_see_earlier_ones(a):
    await a.multi([Create("k", b"1"), Delete("k"), Create("k", b"2")])
    assert (await a.get("k")).value == b"2"
    with pytest.raises(AlreadyExistsError):
        await a.multi([Create("n", b"1"), Create("n", b"2")])
    assert await a.get("n") is None


# --- watches ----------------------------------------------------------------------------------------------------


async def test_a_watch_says_ready_and_then_reports_changes_of_others(a, b):
    async with a.watch("x/") as changes:
        first = await anext(changes)
        assert first.reread_all
        version = await b.create("x/1", b"")
        await b.create("y/1", b"")
        assert await collect(changes, {"x/1"}) == {"x/1"}
        await b.put("x/1", b"2", version)
        assert await collect(changes, {"x/1"}) == {"x/1"}
        await b.multi([Delete("x/1"), Create("x/2", b"")])
        assert await collect(changes, {"x/1", "x/2"}) == {"x/1", "x/2"}
        await a.delete("x/2")
        assert await collect(changes, {"x/2"}) == {"x/2"}


async def test_no_change_is_missed_however_fast_they_come(driver):
    async with clients(driver, 3) as (a, b, c), a.watch("k/") as changes:
        await anext(changes)
        seen = {}

        async def follow():
            async for keys in changes:
                assert not keys.reread_all
                for key in keys:
                    found = await a.get(key)
                    seen[key] = found.value if found else None
                if seen.get("k/end") == b"end":
                    return

        async def write(store, name):
            version = await store.create(f"k/{name}", b"")
            for i in range(100):
                version = await store.put(f"k/{name}", b"%d" % i, version)
            await store.create(f"k/{name}-gone", b"")
            await store.delete(f"k/{name}-gone")

        follower = asyncio.create_task(follow())
        await asyncio.gather(write(b, "b"), write(c, "c"), write(a, "a"))
        await b.create("k/end", b"end")
        await follower
        assert seen["k/a"] == seen["k/b"] == seen["k/c"] == b"99"
        assert seen["k/b-gone"] is None


async def test_a_watcher_that_does_not_read_is_told_to_read_everything(driver, a, b):
    async with a.watch("k/") as changes:
        await anext(changes)
        for start in range(0, PENDING_KEYS_MAX + 1000, driver.ops_max):
            await b.multi([Create(f"k/{start + i}", b"") for i in range(driver.ops_max)])

        async def told():
            changes.offer(())
            return changes._reread_all

        await until(told)
        assert (await anext(changes)).reread_all


async def test_watches_end_with_the_store_and_are_let_go_on_exit(a, b):
    async with a.watch("k") as changes:
        await anext(changes)
    await b.create("k", b"")
    with pytest.raises(StopAsyncIteration):
        await anext(changes)
    async with b.watch("k") as changes:
        await anext(changes)
        await b.close()
        with pytest.raises(StopAsyncIteration):
            await anext(changes)


# --- ids --------------------------------------------------------------------------------------------------------


async def test_ledger_ids_are_unique_over_clients(driver):
    async with clients(driver, 4) as stores:
        given = await asyncio.gather(*(store.next_ledger_id() for store in stores for _ in range(200)))
        assert len(set(given)) == len(given) == 800
        assert min(given) >= 0


async def test_the_instance_is_one_for_all_clients_and_another_for_another_store(driver, tmp_path, a, b):
    other = type(driver)(tmp_path / "other")
    async with clients(other, 1) as (c,):
        assert a.instance_id == b.instance_id != c.instance_id
        uuid.UUID(a.instance_id)
