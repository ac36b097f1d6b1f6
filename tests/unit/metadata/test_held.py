"""Registrations that a client holds, whatever becomes of them in the store."""

from __future__ import annotations

import asyncio

import pytest

from quire.metadata.held import HeldRegistrations, LookedAfter, Next, Owner
from quire.metadata.store import Registration
from support.waiting import until_async


async def nothing(*_: object) -> None:
    pass


def registration(*, again: bool = True) -> Registration:
    return Registration("r", b"", again=again, update=nothing, close=nothing)


@pytest.mark.parametrize(
    ("owner", "again", "follows", "deleted", "lost"),
    [
        (Owner.OWN, True, Next.NOTHING, 0, False),
        (Owner.NONE, True, Next.MAKE, 1, False),
        (Owner.NONE, False, Next.LOST, 1, True),
        (Owner.OTHER, True, Next.LOST, 1, True),  # another owner has taken its place
    ],
)
def test_what_follows_from_what_the_store_has(
    owner: Owner, again: bool, follows: Next, deleted: int, lost: bool
) -> None:
    held, one, calls = HeldRegistrations(), registration(again=again), []
    one.on_deleted = lambda: calls.append("deleted")
    held.hold("r", one)
    assert held.found("r", owner) is follows
    assert (len(calls), one.lost.is_set(), "r" in held) == (deleted, lost, not lost)


def test_one_that_comes_back_counts_and_one_withdrawn_meanwhile_does_not() -> None:
    held, one = HeldRegistrations(), registration()
    held.hold("r", one)
    held.made("r")
    assert one.renewed == 1
    held.withdraw("r")
    assert held.found("r", Owner.NONE) is Next.NOTHING
    held.made("r")
    assert (one.renewed, one.lost.is_set(), held.unwanted) == (1, False, {"r"})


def test_what_a_request_that_was_given_up_made_is_left_over_until_it_is_held() -> None:
    held = HeldRegistrations()
    assert held.given_up("r")
    assert held.is_left_over("r", Owner.OWN)
    assert not held.is_left_over("r", Owner.OTHER)
    held.hold("r", registration())
    assert not held.unwanted
    assert not held.is_left_over("r", Owner.OWN)
    assert not held.given_up("r")  # a second request for a name that is held removes nothing
    assert not held.unwanted


async def test_one_that_is_deleted_again_while_it_is_looked_at_is_looked_at_again() -> None:
    looks: list[str] = []
    answer = asyncio.Event()

    async def restore(name: str) -> None:
        looks.append(name)
        await answer.wait()

    held = LookedAfter(restore, ())
    held.hold("r", registration())
    held.look_after("r")
    await until_async(lambda: looks == ["r"])
    held.look_after("r")  # the store says so behind what the first look was told
    held.look_after("r")
    answer.set()
    await until_async(lambda: len(looks) == 2)
    await until_async(lambda: len(asyncio.all_tasks()) == 1)
    assert looks == ["r", "r"]
