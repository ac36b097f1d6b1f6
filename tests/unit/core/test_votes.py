"""What bookies said of a window of ids: counted in blocks, as it would be one by one."""

from __future__ import annotations

import random

import pytest

from quire.core.recovery.log_end_search import Votes


def one_by_one(votes: Votes, slot: int, first: int, through: int, *, negative: bool) -> list[int]:
    counted = list(votes.negative if negative else votes.unknown)
    for entry_id in range(max(first, votes.first), min(through, votes.last) + 1):
        i = entry_id - votes.first
        if not (votes.positive[i] | votes.unknown[i]) >> slot & 1:
            counted[i] |= 1 << slot
    return counted


@pytest.mark.parametrize("seed", range(50))
def test_the_rest_of_a_window_is_counted_as_one_by_one(seed: int) -> None:
    chance = random.Random(seed)
    base, count = chance.randrange(100), chance.choice((1, 63, 511, 512, 513, 1200))
    votes = Votes(asked=[None] * 3)
    votes.open(base, count)
    for _ in range(6):
        slot = chance.randrange(3)
        first, through = (chance.randrange(base - 5, base + count + 5) for _ in range(2))
        votes.asked[slot] = (first, votes.last)
        there = {first + chance.randrange(count): 9 for _ in range(chance.randrange(4))}
        lower = chance.randrange(base - 2, base + count)
        unclear = [(lower, lower + chance.randrange(5))] if chance.random() < 0.3 else []
        votes.count(slot, (first, votes.last), there, unclear)
        negative = chance.random() < 0.7
        expected = one_by_one(votes, slot, first, through, negative=negative)
        votes.count_rest(slot, first, through, negative=negative)
        assert (votes.negative if negative else votes.unknown) == expected
