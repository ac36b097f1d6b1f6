"""Room in a writer's window goes to those who ask for it in the order in which they ask."""

from __future__ import annotations

import asyncio

import pytest

from quire.client.sending.outgoing import ByteWindow
from quire.core.errors import LedgerClosedError

LIMIT = 10


async def ask(window: ByteWindow, cost: int, name: str, order: list[str]) -> None:
    await window.room(cost)
    order.append(name)


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_nobody_overtakes_whoever_has_been_granted_room_and_has_not_run_yet() -> None:
    window, order = ByteWindow(LIMIT), []
    assert window.reserve(LIMIT)
    first = asyncio.create_task(ask(window, 2, "first", order))
    await turns()
    window.give_back(LIMIT)  # the first has room now, but runs only in the next turn
    assert not window.reserve(2), "somebody came before"
    second = asyncio.create_task(ask(window, 2, "second", order))
    await asyncio.gather(first, second)
    assert order == ["first", "second"]
    assert window.used_bytes == 4
    assert not window.waiters
    assert window.reserve(2)


async def test_those_behind_the_granted_ones_get_what_is_left() -> None:
    window, order = ByteWindow(LIMIT), []
    assert window.reserve(LIMIT)
    first = asyncio.create_task(ask(window, 3, "first", order))
    await turns()
    window.give_back(LIMIT)
    rest = [asyncio.create_task(ask(window, 3, name, order)) for name in ("second", "third", "fourth")]
    await turns()
    assert order == ["first", "second", "third"]
    window.give_back(3)
    await asyncio.gather(first, *rest)
    assert order == ["first", "second", "third", "fourth"]
    assert window.used_bytes == 9


@pytest.mark.parametrize("granted", [False, True])
async def test_whoever_is_cancelled_leaves_its_room_to_the_next(granted: bool) -> None:
    window, order = ByteWindow(LIMIT), []
    assert window.reserve(LIMIT)
    first = asyncio.create_task(ask(window, LIMIT, "first", order))
    second = asyncio.create_task(ask(window, 4, "second", order))
    await turns()
    if granted:
        window.give_back(LIMIT)
    first.cancel()
    await turns()
    if not granted:
        window.give_back(LIMIT)
    await second
    assert order == ["second"]
    assert window.used_bytes == 4


async def test_at_the_end_who_waits_is_told_why_and_who_was_granted_room_goes_on() -> None:
    window, order = ByteWindow(LIMIT), []
    assert window.reserve(LIMIT)
    granted = asyncio.create_task(ask(window, 6, "granted", order))
    waiting = asyncio.create_task(ask(window, 6, "waiting", order))
    await turns()
    window.give_back(LIMIT)
    window.end(LedgerClosedError("closed"))
    await granted
    with pytest.raises(LedgerClosedError):
        await waiting
    assert order == ["granted"]
    assert window.used_bytes == 6
