"""Registrations that a client holds, whatever becomes of them in the store."""

from __future__ import annotations

import asyncio

from quire.metadata.held import HeldRegistrations
from quire.metadata.store import Registration
from support.waiting import until_async


async def test_one_that_is_deleted_again_while_it_is_looked_at_is_looked_at_again() -> None:
    looks: list[str] = []
    answer = asyncio.Event()

    async def restore(name: str) -> None:
        looks.append(name)
        await answer.wait()

    async def nothing(*_: object) -> None:
        pass

    held = HeldRegistrations(restore, ())
    held.hold("r", Registration("r", b"", again=True, update=nothing, close=nothing))
    held.look_after("r")
    await until_async(lambda: looks == ["r"])
    held.look_after("r")  # the store says so behind what the first look was told
    held.look_after("r")
    answer.set()
    await until_async(lambda: len(looks) == 2)
    await until_async(lambda: len(asyncio.all_tasks()) == 1)
    assert looks == ["r", "r"]
