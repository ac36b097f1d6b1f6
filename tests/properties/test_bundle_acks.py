"""Whatever parts a bundle's responses come in, and whenever it is dissolved: a row gets what its bookies said, once.

Source: `core/ledger/bundle_acks.py`.
"""

from __future__ import annotations

from itertools import permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.ledger.bundle_acks import BundleAcks


class Rows:
    """What bookies have acknowledged of each row, and what has reached it."""

    def __init__(self, rows, bookies, ack_quorum):
        self.acks = BundleAcks(rows, bookies, ack_quorum)
        self.quorum = min(ack_quorum, bookies)
        self.given = [set() for _ in range(rows)]
        self.got = [set() for _ in range(rows)]
        self.open = {(bookie, row) for bookie in range(bookies) for row in range(rows)}

    def stored(self, bookie, first, last):
        self.open -= {(bookie, row) for row in range(first, last + 1)}
        for row in range(first, last + 1):
            self.given[row].add(bookie)
        self._deliver(self.acks.stored(bookie, first, last - first + 1))

    def dissolve(self):
        self._deliver(self.acks.dissolve())

    def _deliver(self, deliveries):
        for first, rows, bookies in deliveries:
            for row in range(first, first + rows):
                new = {bookie for bookie in range(bookies.bit_length()) if bookies >> bookie & 1}
                assert not new & self.got[row], "once"
                self.got[row] |= new
        self._check()

    def _check(self):
        self.acks.check()
        for row, (said, got) in enumerate(zip(self.given, self.got, strict=True)):
            assert got <= said
            if not self.acks.together:
                assert got == said
                continue
            assert bool(got) == (len(got) >= self.quorum) == (len(said) >= self.quorum)
            assert [self.acks.lacks(bookie, row) for bookie in sorted(said)] == [False] * len(said)
        assert self.acks.is_complete == (self.acks.together and not self.open)


@given(st.data())
def test_rows_get_their_quorum_as_soon_as_it_is_there_and_all_after_a_dissolution(data):
    """A ledger whose bookies are fewer than its quorum, since some are away, gets what all of them said."""
    rows, bookies = data.draw(st.integers(1, 6), "rows"), data.draw(st.integers(1, 4), "bookies")
    world = Rows(rows, bookies, data.draw(st.integers(1, bookies + 1), "ack quorum"))
    dissolved_after = data.draw(st.integers(0, rows * bookies) | st.none(), "dissolved after")
    parts = 0
    while world.open:
        if parts == dissolved_after:
            world.dissolve()
        bookie, first = data.draw(st.sampled_from(sorted(world.open)), "part")
        last = first
        while (bookie, last + 1) in world.open and data.draw(st.booleans(), "longer"):
            last += 1
        world.stored(bookie, first, last)
        parts += 1
    world.dissolve()
    assert world.got == [set(range(bookies))] * rows


@pytest.mark.parametrize("ack_quorum", [1, 2, 3])
def test_every_order_of_the_parts_of_two_rows_at_three_bookies(ack_quorum):
    whole, apart = ((0, 1),), ((0, 0), (1, 1))
    for ways in product((whole, apart), repeat=3):
        parts = [(bookie, *part) for bookie, way in enumerate(ways) for part in way]
        for order in permutations(parts):
            for dissolved_after in range(len(parts) + 1):
                world = Rows(2, 3, ack_quorum)
                for done, part in enumerate(order):
                    if done == dissolved_after:
                        world.dissolve()
                    world.stored(*part)
                world.dissolve()
                assert world.got == [{0, 1, 2}] * 2
