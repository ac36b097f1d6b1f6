"""Who waits for a LAC, and how long a ledger counts as followed."""

import asyncio

from quire.bookie.ledgers.followers import SWEEPS, Followers

LONG_S = 3600.0


async def in_loop(work):
    work()


async def test_only_those_below_the_lac_are_woken_and_once():
    def work():
        followers, woken = Followers(), []
        for previous in (3, 5, 4):
            followers.wait(1, previous, LONG_S, lambda previous=previous: woken.append(previous))
        followers.wait(2, 3, LONG_S, lambda: woken.append("another ledger"))
        followers.tell(1, 3)
        assert woken == []
        followers.tell(1, 5)
        assert woken == [3, 4]
        assert followers.waits(1)
        followers.tell(1, 6)
        followers.tell(1, 7)
        assert woken == [3, 4, 5]
        assert not followers.waits(1)

    await in_loop(work)


async def test_a_wait_that_ends_by_time_leaves_nothing_behind():
    followers, over = Followers(), asyncio.Event()
    followers.wait(1, 3, 0, over.set)
    await over.wait()
    assert not followers.waits(1)


async def test_a_ledger_stays_followed_while_somebody_waits_and_a_moment_longer():
    def work():
        followers = Followers()
        followers.polled(1)
        followers.wait(1, 3, LONG_S, lambda: None)
        for _ in range(3 * SWEEPS):
            followers.sweep()
        assert 1 in followers.followed
        followers.tell(1, 4)
        for _ in range(SWEEPS - 1):
            followers.sweep()
        assert 1 in followers.followed
        followers.sweep()
        assert followers.followed == {}

    await in_loop(work)
