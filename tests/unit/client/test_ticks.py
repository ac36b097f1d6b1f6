"""The timer that all writers of a client share."""

from __future__ import annotations

from quire.client.sending.ticks import PERIODS, Ticks
from support.waiting import until_async


class Writer:
    """Holds something for as many looks as it is told."""

    def __init__(self, looks: int) -> None:
        self.looks = looks
        self.ticks = 0
        self.quiets = 0
        self.writer = self

    def tick(self) -> bool:
        self.ticks += 1
        return self.ticks < self.looks

    def quiet(self) -> None:
        self.quiets += 1


class Broken(Writer):
    """Cannot be looked at."""

    def tick(self) -> bool:
        super().tick()
        raise ZeroDivisionError


async def test_a_writer_is_looked_at_while_it_holds_something_and_is_quiet_once() -> None:
    ticks = Ticks(1, 1, lambda: True)
    short, long, broken = Writer(1), Writer(5), Broken(3)
    for writer in (broken, short, long):
        ticks.start(writer)
    await until_async(lambda: short.quiets and long.quiets)
    assert (short.ticks, long.ticks, broken.ticks) == (1, 5, 1)
    assert ticks._timer is None, "nobody is left to look at"
    ticks.start(short)
    await until_async(lambda: short.quiets == 2)
    assert long.quiets == 1


async def test_a_writer_that_goes_on_is_not_quiet_and_one_that_ends_is_forgotten() -> None:
    ticks = Ticks(1, 3_600_000, lambda: True)
    resting, ended = Writer(1), Writer(1_000_000)
    ticks.start(resting)
    ticks.start(ended)
    await until_async(lambda: resting in ticks._resting)
    ticks.start(resting)
    assert resting not in ticks._resting
    assert resting in ticks._busy
    await until_async(lambda: resting in ticks._resting)
    for writer in (resting, ended):
        ticks.stop(writer)
    assert not ticks._busy
    assert not ticks._resting


async def test_while_nothing_waits_to_be_sent_looks_are_rarer() -> None:
    asked = []
    waits = False
    ticks = Ticks(1, 1, lambda: asked.append(None) or waits)
    writer = Writer(1_000_000)
    ticks.start(writer)
    await until_async(lambda: writer.ticks >= 5)
    left_out = PERIODS - 1
    assert left_out * writer.ticks <= len(asked) <= left_out * (writer.ticks + 1), "no look at most turns"
    waits = True
    before = len(asked), writer.ticks
    await until_async(lambda: writer.ticks >= before[1] + 5)
    assert len(asked) - before[0] in (writer.ticks - before[1], writer.ticks - before[1] - 1)
    ticks.stop(writer)
