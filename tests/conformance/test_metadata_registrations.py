"""What every metadata store promises of registrations (quire/metadata/store.py), one suite for all drivers."""

import asyncio
from contextlib import suppress

import pytest

from conformance.metadata_drivers import clients, collect, present, until
from quire.core.errors import AlreadyExistsError, MisuseError
from quire.metadata.store import Create, KeyMissingError, Put, Require


async def test_a_registration_is_a_key_until_it_is_taken_back(a, b):
    held = await a.register("bookies/available/b1", b"here")
    assert (await b.get("bookies/available/b1")).value == b"here"
    with pytest.raises(AlreadyExistsError):
        await b.register("bookies/available/b1", b"me")
    await held.update(b"there")
    assert (await b.get("bookies/available/b1")).value == b"there"
    await held.close()
    await held.close()
    assert await b.get("bookies/available/b1") is None
    with pytest.raises(KeyMissingError):
        await held.update(b"again")
    mine = await b.register("bookies/available/b1", b"me")
    await held.close()
    assert (await a.get("bookies/available/b1")).value == b"me"
    assert not mine.lost.is_set()


async def test_a_registration_that_was_closed_or_lost_does_nothing_to_its_successor_of_the_same_client(
    driver,
):
    async with clients(driver, 2, session_timeout_ms=driver.short_timeout_ms) as (a, b):
        closed = await a.register("r", b"closed")
        await closed.close()
        lost = await a.register("r", b"lost", again=False)
        await driver.lose_session(a, b)
        await lost.lost.wait()
        mine = await a.register("r", b"mine")
        for former in (closed, lost):
            await former.close()
            with pytest.raises(KeyMissingError):
                await former.update(b"former")
        assert (await b.get("r")).value == b"mine"
        await mine.update(b"still mine")
        assert (await b.get("r")).value == b"still mine"


async def test_a_registration_whose_maker_is_cancelled_is_not_left_to_nobody(a, b):
    making = asyncio.create_task(a.register("r", b"a"))
    await asyncio.sleep(0)
    making.cancel()
    with suppress(asyncio.CancelledError):
        await (await making).close()
    await a.get("r")  # after the registration, which was asked for

    async def taken():
        with suppress(AlreadyExistsError):
            return await b.register("r", b"b")

    await until(taken)
    assert (await a.get("r")).value == b"b"


async def test_closing_the_store_takes_everything_back(a, b):
    async with b.watch("r/") as changes:
        await anext(changes)
        for i in range(3):
            await a.register(f"r/{i}", b"")
        await b.register("r/mine", b"")
        await a.close()
        await a.close()
        assert [key for key, _ in await b.list("r/")] == ["r/mine"]
        await collect(changes, {"r/0", "r/1", "r/2"})
        with pytest.raises(MisuseError, match="closed"):
            await a.get("r/mine")


async def test_sequential_registrations_are_numbered_in_order(a, b):
    keys = []
    for i in range(6):
        held = await (a if i % 2 else b).register("e/x-", b"%d" % i, sequential=True)
        keys.append(held.key)
        if i == 2:
            await held.close()
    assert keys == sorted(set(keys))
    assert all(key.startswith("e/x-") and len(key) == len("e/x-") + 19 for key in keys)
    assert [v.value for _, v in await a.list("e/x-")] == [b"0", b"1", b"3", b"4", b"5"]


async def test_a_registration_ends_when_its_owner_dies(driver):
    async with clients(driver, 2, session_timeout_ms=driver.mortal_timeout_ms) as (a, b):
        await a.register("r", b"a")
        async with b.watch("r") as changes:
            await anext(changes)
            a.abandon()
            await anext(changes)
        assert await b.get("r") is None
        assert await b.list("r") == []
        held = await b.register("r", b"b")
        assert not held.lost.is_set()


async def test_a_registration_that_is_made_while_another_is_updated_stays(a, b):
    one = await a.register("one", b"1")
    made, _, more = await asyncio.gather(
        a.register("two", b"2", again=False), one.update(b"1a"), a.register("three", b"3")
    )
    assert [(await b.get(key)).value for key in ("one", "two", "three")] == [b"1a", b"2", b"3"]
    assert not (made.lost.is_set() or more.lost.is_set())


async def test_the_key_of_a_dead_owner_is_free_for_the_first_who_asks(driver):
    async with clients(driver, 3, session_timeout_ms=driver.mortal_timeout_ms) as (a, b, c):
        await a.register("r", b"a")
        await driver.kill(a)
        results = await asyncio.gather(b.register("r", b"b"), c.register("r", b"c"), return_exceptions=True)
        assert sorted(type(r).__name__ for r in results) == ["AlreadyExistsError", "Registration"]


async def test_versions_are_those_stored_although_a_dead_owner_is_met_in_the_same_transaction(driver):
    async with clients(driver, 2, session_timeout_ms=driver.mortal_timeout_ms) as (a, b):
        version = await b.create("k", b"0")
        await a.register("r", b"a")
        await driver.kill(a)
        version, _, made = await b.multi([Put("k", b"1", version), Require("r", None), Create("m", b"")])
        for key, given in [("k", version), ("m", made)]:
            assert (await b.get(key)).version == given
        await b.put("k", b"2", version)


async def test_an_owner_that_lost_its_session_and_lives_registers_again(driver):
    async with clients(driver, 3, session_timeout_ms=driver.short_timeout_ms) as (a, b, c):
        kept = await a.register("kept", b"1")
        once = await a.register("once", b"1", again=False)
        taken = await a.register("taken", b"1")
        await kept.update(b"2")

        async def other_takes():
            await driver.lose_session(a, b)
            with suppress(AlreadyExistsError):
                return await c.register("taken", b"c")

        await other_takes()
        await once.lost.wait()
        await until(lambda: present(b, "kept", b"2"))

        async def renewed():
            return kept.renewed >= 1  # others may see the key before its owner has the answer

        await until(renewed)
        assert not kept.lost.is_set()
        assert await b.get("once") is None

        async def one_has_it():
            # The old owner looks at one registration after the other.
            return taken.lost.is_set() == await present(b, "taken", b"c")

        await until(one_has_it)
        assert await b.get("taken") is not None
