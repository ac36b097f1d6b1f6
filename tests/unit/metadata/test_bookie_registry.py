"""Registrations of bookies, the way to read-only and back, cookies."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.errors import AlreadyExistsError, MisuseError
from quire.metadata.bookies import AVAILABLE, READONLY, BookieInfo, BookieRegistry
from quire.metadata.memory import MemorySpace, MemoryStore
from quire.metadata.store import KeyMissingError, StoreAwayError, StoreBusyError, VersionConflictError
from quire.wire.bookie_service_info import FEATURES_PROPERTY, features_property, parse_features_property

B1 = BookieInfo("b1.k7f3q", "127.0.0.1", 3181, properties={"quire.native": "3181/1"})
B2 = BookieInfo("127.0.0.1:3182", "127.0.0.1", 3182)


async def test_bookies_are_seen_as_they_registered():
    registry = BookieRegistry(MemoryStore())
    await registry.register(B1)
    await registry.register(replace(B2, writable=False))
    assert await registry.available() == {B2.bookie_id: replace(B2, writable=False), B1.bookie_id: B1}
    assert B1.native == (3181, 1)
    assert B2.native is None


def test_features_are_told_and_those_of_later_programs_are_kept():
    told = replace(B2, properties={FEATURES_PROPERTY: features_property(["lacs", "background", "lacs"])})
    assert told.properties == {"quire.features": "background lacs"}
    found = BookieInfo.parse(told.bookie_id, told.serialize(), writable=True)
    assert found == told
    assert found.features == {"background", "lacs"}
    later = replace(B2, properties={FEATURES_PROPERTY: "background  x/99 \t lacs "})
    assert later.features == {"background", "lacs", "x/99"}
    assert B1.features == frozenset()


@given(st.sets(st.from_regex(r"[!-~]{1,64}", fullmatch=True)))
def test_features_come_back(names):
    assert parse_features_property(features_property(names)) == names


@pytest.mark.parametrize("name", ["", "a b", "a\n", "\xe4", "x" * 65])
def test_a_name_that_is_no_feature_is_refused(name):
    with pytest.raises(MisuseError, match="name of a feature"):
        features_property(["good", name])


async def test_a_bookie_that_turns_read_only_and_back_never_seems_gone():
    store = MemoryStore()
    registry = BookieRegistry(store)
    held = await registry.register(B1)
    present = []
    multi = store.multi

    async def observed(ops):
        given = await multi(ops)
        present.append(list(await registry.available()))
        return given

    store.multi = observed
    async with registry.watch() as changes:
        await anext(changes)
        for writable, prefix in [(False, READONLY), (True, AVAILABLE)]:
            await held.set_writable(writable)
            await held.set_writable(writable)
            assert (await registry.available())[B1.bookie_id].writable is writable
            assert [key for key, _ in await store.list("bookies/")] == [prefix + B1.bookie_id]
            assert await anext(changes) == {AVAILABLE + B1.bookie_id, READONLY + B1.bookie_id}
    assert all(there == [B1.bookie_id] for there in present)
    moved = replace(B1, port=4000, writable=False)
    await held.update(moved)
    assert await registry.available() == {B1.bookie_id: moved}
    with pytest.raises(MisuseError):
        await held.update(B2)
    await held.close()
    assert await registry.available() == {}


async def test_a_bookie_that_moves_while_the_others_are_listed_does_not_seem_gone():
    store = MemoryStore()
    registry = BookieRegistry(store)
    held = await registry.register(replace(B1, writable=False))
    list_keys, lists = store.list, []

    async def moves_afterwards(prefix, **options):
        found = await list_keys(prefix, **options)
        lists.append(prefix)
        await held.set_writable(len(lists) % 2 == 1)
        return found

    store.list = moves_afterwards
    for _ in range(2):
        assert list(await registry.available()) == [B1.bookie_id]


async def test_a_bookie_that_could_not_leave_its_old_place_leaves_it_later():
    store = MemoryStore()
    held = await BookieRegistry(store).register(replace(B1, writable=False))
    take_back = store._take_back

    async def busy(registration):
        raise StoreBusyError("another process keeps the store to itself")

    held._held._close = busy
    for writable in (True, True, False):
        with pytest.raises(StoreBusyError):
            await held.set_writable(writable)
        assert not held.shows(writable=True)
    held._left._close = take_back
    await held.set_writable(True)
    assert held.shows(writable=True)
    assert [key for key, _ in await store.list("bookies/")] == [AVAILABLE + B1.bookie_id]


@pytest.mark.parametrize("lost", [False, True])
async def test_a_bookie_that_moves_while_it_confirms_is_not_replaced(lost):
    """Each would find what the other registers, and take it for another process's."""
    store = MemoryStore()
    held = await BookieRegistry(store).register(B1)
    if lost:
        await held._held.close()
    opened, update, get = asyncio.Event(), held._held._update, store.get

    async def gated_update(registration, value):
        await opened.wait()
        await update(registration, value)

    async def gated_get(key):
        await opened.wait()
        return await get(key)

    held._held._update, store.get = gated_update, gated_get
    confirming = asyncio.ensure_future(held.confirm(wait_ms=0))
    await asyncio.sleep(0)
    moving = asyncio.ensure_future(held.set_writable(False))
    await asyncio.sleep(0)
    opened.set()
    await asyncio.gather(confirming, moving)
    assert [key for key, _ in await store.list("bookies/")] == [READONLY + B1.bookie_id]


class HalfWayStore(MemoryStore):
    """After the first registration the next read goes as `then` says."""

    def __init__(self, then):
        super().__init__()
        self._then, self._due = then, None

    async def register(self, key, value, **options):
        made = await super().register(key, value, **options)
        self._then, self._due = None, self._then
        return made

    async def get(self, key):
        due, self._due = self._due, None
        if due is not None:
            await due()
        return await super().get(key)


async def is_away():
    raise StoreAwayError("the store has not responded; nothing was changed")


async def is_cancelled():
    asyncio.current_task().cancel()
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("then", "error"), [(is_away, StoreAwayError), (is_cancelled, asyncio.CancelledError)]
)
async def test_a_registration_that_ends_half_way_does_not_stand_in_its_own_way(then, error):
    registry = BookieRegistry(HalfWayStore(then))
    with pytest.raises(error):
        await asyncio.create_task(registry.register(B1))
    assert await registry.available() == {}
    await registry.register(B1)


async def test_a_second_process_with_the_same_identity_is_refused():
    space = MemorySpace()
    first, second = BookieRegistry(MemoryStore(space)), BookieRegistry(MemoryStore(space))
    held = await first.register(B1)
    with pytest.raises(AlreadyExistsError, match="another process"):
        await second.register(B1)
    with pytest.raises(AlreadyExistsError, match="another process"):
        await second.register(B1, wait_ms=5)
    waiting = asyncio.create_task(second.register(B1, wait_ms=60_000))
    await asyncio.sleep(0)
    await held.close()
    assert not (await waiting).lost.is_set()


async def test_names_that_java_would_refuse_are_refused():
    registry = BookieRegistry(MemoryStore())
    with pytest.raises(MisuseError):
        await registry.register(replace(B1, bookie_id="readonly"))
    with pytest.raises(MisuseError):
        await registry.write_cookie("a/b", b"")


async def test_registrations_of_others_are_read_as_java_reads_them(caplog):
    store = MemoryStore()
    registry = BookieRegistry(store)
    await store.register(AVAILABLE + "10.0.0.1:3181", b"")  # a legacy bookie: its id is its address
    assert await registry.available() == {"10.0.0.1:3181": BookieInfo("10.0.0.1:3181", "10.0.0.1", 3181)}
    await store.register(AVAILABLE + "b9", b"\xff")
    assert list(await registry.available()) == ["10.0.0.1:3181"]
    assert "bookie b9 cannot be read" in caplog.text


async def test_cookies_stay_and_change_by_compare_and_swap():
    registry = BookieRegistry(MemoryStore())
    assert await registry.read_cookie("b1") is None
    version = await registry.write_cookie("b1", b"one")
    with pytest.raises(AlreadyExistsError):
        await registry.write_cookie("b1", b"two")
    with pytest.raises(VersionConflictError):
        await registry.write_cookie("b1", b"two", version + 1)
    later = await registry.write_cookie("b1", b"two", version)
    assert (await registry.read_cookie("b1")).value == b"two"
    assert {k: v.version for k, v in (await registry.list_cookies()).items()} == {"b1": later}
    await registry.delete_cookie("b1", later)
    with pytest.raises(KeyMissingError):
        await registry.delete_cookie("b1")


async def test_more_bookies_than_a_page_are_all_seen():
    registry = BookieRegistry(MemoryStore())
    for i in range(1001):
        await registry.register(BookieInfo(f"b{i}", "h", 1))
    assert len(await registry.available()) == 1001
