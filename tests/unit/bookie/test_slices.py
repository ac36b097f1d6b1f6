"""Work in slices: how long it rests in between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator

import pytest

from quire.bookie.collecting import disk_work as slices
from quire.bookie.collecting.disk_work import REST_SECONDS_MAX, WAIT_SECONDS, take_slices


def some_work(milliseconds: float, count: int) -> Generator[None, None, int]:
    for _ in range(count):
        end = time.perf_counter() + milliseconds / 1000
        while time.perf_counter() < end:
            pass
        yield
    return count


class Rests:
    """Stands for asyncio in the module: notes for how long it would rest."""

    get_running_loop = staticmethod(asyncio.get_running_loop)

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def sleep(self, seconds: float) -> Awaitable[None]:
        self.seconds.append(seconds)
        return asyncio.sleep(0)


@pytest.fixture
def rests(monkeypatch: pytest.MonkeyPatch) -> Rests:
    rests = Rests()
    monkeypatch.setattr(slices, "asyncio", rests)
    return rests


async def taken(milliseconds: float, rest: Callable[[], float] | None) -> None:
    assert await take_slices(some_work(milliseconds, 3), rest=rest) == 3


async def test_work_rests_so_many_times_as_long_as_it_took(rests: Rests) -> None:
    await taken(1, lambda: 9.0)
    assert len(rests.seconds) == 3
    assert min(rests.seconds) >= 0.009


async def test_work_that_was_interrupted_does_not_rest_for_long(rests: Rests) -> None:
    await taken(20, lambda: 9.0)
    assert rests.seconds == [REST_SECONDS_MAX] * 3


@pytest.mark.parametrize("rest", [None, lambda: 0.0])
async def test_work_that_nobody_is_to_notice_less_only_lets_others_have_their_turn(
    rests: Rests, rest: Callable[[], float] | None
) -> None:
    await taken(1, rest)
    assert rests.seconds == [0, 0, 0]


async def test_work_that_waits_is_not_asked_again_at_once(rests: Rests) -> None:
    """It would take all of a core from those whom it waits for."""
    await taken(0, lambda: 0.0)
    assert rests.seconds == [WAIT_SECONDS] * 3
