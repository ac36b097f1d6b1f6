"""Who has acknowledged a bundle: runs of many ledgers that went to the same bookies in one request.

As long as nothing happens to one of its ledgers alone, the acknowledgements are counted once for all its runs, and reach
them together, with the last one that their ack quorum needs; where fewer bookies than that are there, with the last of all.
An acknowledgement that has not reached a run yet is as one that is still on its way: the run's ledger judges it when it
comes, as any other. So nothing here says what is confirmed.

It must not know ledgers, entries or slots: runs are rows 0 to n - 1, bookies are numbered.

Source: `docs/formats/native-protocol.md`, "Bundles".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple


class Delivery(NamedTuple):
    """Rows `first` to `first + rows - 1` get the acknowledgements of these bookies (a mask), now."""

    first: int
    rows: int
    bookies: int


class BundleAcks:
    """The acknowledgements of one bundle. Sets of rows are integers with a bit for each.

    Args:
        rows: its runs.
        bookies: how many it was sent to.
        ack_quorum: that of all its ledgers.

    Attributes:
        together: nothing has happened to one of its ledgers alone.
    """

    __slots__ = ("_delivered", "_due", "_every", "_quorum", "_rows", "_stored", "together")

    def __init__(self, rows: int, bookies: int, ack_quorum: int) -> None:
        self._rows = rows
        self._every = (1 << rows) - 1
        # While bookies are away a run goes to fewer than its quorum, and is sent to the others when they return. This bundle
        # is over before that: what its bookies acknowledged has to be delivered by then.
        self._quorum = min(ack_quorum, bookies)
        self._due = 0  # the rows that have that many, and were sent these acknowledgements
        self._stored = [0] * bookies  # by bookie: the rows that it has acknowledged
        self._delivered = [0] * bookies  # by bookie: the rows that its acknowledgement has reached
        self.together = True

    @property
    def is_complete(self) -> bool:
        """Whether every bookie has acknowledged every row while it was together: nothing follows."""
        return self.together and self._stored.count(self._every) == len(self._stored)

    @property
    def awaited(self) -> int:
        """The bookies (a mask) that have not acknowledged every row."""
        return sum(1 << bookie for bookie, has in enumerate(self._stored) if has != self._every)

    def stored(self, bookie: int, first: int, rows: int) -> Sequence[Delivery]:
        """A bookie stored some rows, none of which it has answered before.

        Returns:
            What reaches rows by it.
        """
        if not self.together:
            return (Delivery(first, rows, 1 << bookie),)
        self._stored[bookie] |= (1 << rows) - 1 << first
        due = self._with_quorum() & ~self._due
        if not due:
            return ()  # a row that has its quorum gets no more: whose ledger needs more has left the bundle
        self._due |= due
        if due == self._every and all(has in (0, due) for has in self._stored):  # as nearly always
            self._delivered = list(self._stored)
            return (Delivery(0, self._rows, sum(1 << each for each, has in enumerate(self._stored) if has)),)
        return self._deliver(due)

    def dissolve(self) -> Sequence[Delivery]:
        """Something happens to one of its ledgers alone: from now on every row gets each acknowledgement as it comes.

        Returns:
            What reaches rows by it: all that has not reached them.
        """
        if not self.together:
            return ()
        self.together = False
        return self._deliver(self._every)

    def lacks(self, bookie: int, row: int) -> bool:
        """Whether a bookie has not acknowledged a row, as far as is known here; asked while it is `together`."""
        return not self._stored[bookie] >> row & 1

    def _with_quorum(self) -> int:
        """The rows that have their ack quorum, or all that there will be."""
        found = 0
        for some in combinations(self._stored, self._quorum):
            both = self._every
            for has in some:
                both &= has
            found |= both
        return found

    def _deliver(self, rows: int) -> list[Delivery]:
        """To some rows: the acknowledgements that have not reached them."""
        due = []
        for bookie, has in enumerate(self._stored):
            new = has & rows & ~self._delivered[bookie]
            self._delivered[bookie] |= new
            due += [Delivery(first, count, 1 << bookie) for first, count in _spans(new)]
        return due

    def check(self) -> None:
        """Assert what must hold between any two inputs."""
        for has, delivered in zip(self._stored, self._delivered, strict=True):
            assert has & ~self._every == 0
            assert delivered & ~has == 0, "nothing is delivered that is not acknowledged"
        if self.together:
            assert self._due == self._with_quorum(), "a row waits for nothing else than its quorum"


def _spans(rows: int) -> Iterator[tuple[int, int]]:
    """(first, count) of each stretch of a set of rows."""
    first = 0
    while rows:
        skipped = (rows & -rows).bit_length() - 1
        rows >>= skipped
        count = (~rows & rows + 1).bit_length() - 1
        yield first + skipped, count
        rows >>= count
        first += skipped + count
