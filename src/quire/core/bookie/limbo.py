"""Limbo: what a bookie may have lost, and since when: the reason why it gives no negatives.

- A *ledger in limbo* has a `Limbo` in its state: which of its entries may be lost here. It ends when a client has
  restored them (CLEAR_LIMBO).
- *Unnamed limbo* is a record of the bookie: a loss whose ledgers are not named. Every ledger whose state is older is in
  limbo, and so is each that the bookie does not know, until it has searched all records for ledgers that name it.
- *Unrecorded limbo*: damage that was found while the bookie runs, and is not written down yet. Its ledgers get no
  negatives; the next start finds the damage again, and makes it one of the other two.

Limbo is apart from the fence: a fence refuses adds, limbo refuses "no such entry".

Source: Vanlightly's guide, "Recovery Phase 2"; `docs/formats/segment.md`, "Ledger state".
"""

from __future__ import annotations

from typing import Final, NamedTuple

from quire.core.ids import ID_MAX

RANGES_MAX: Final = 16
"""A loss with more ranges than these puts all entries in limbo."""
EVERY_ID: Final = ID_MAX + 1
"""The bound of a limbo of all entries."""


class Limbo(NamedTuple):
    """Which entries of a ledger may have been lost.

    Attributes:
        lsn: of the record of the loss; the request that ends the limbo names it.
        below: every id below this bound may be lost; `EVERY_ID` = all, 0 where `ranges` says which.
        ranges: first..last of what may be lost, ascending and apart.
    """

    lsn: int
    below: int = EVERY_ID
    ranges: tuple[tuple[int, int], ...] = ()

    @property
    def covers_all(self) -> bool:
        """Whether any entry at all may be lost."""
        return self.below == EVERY_ID

    def covers(self, first: int, last: int) -> bool:
        """Whether any of first..last may be lost."""
        return first < self.below or any(low <= last and first <= high for low, high in self.ranges)

    def check(self) -> None:
        """Assert that it is a possible one: about something, in one way only."""
        assert 0 <= self.below <= EVERY_ID
        assert bool(self.below) != bool(self.ranges)
        assert len(self.ranges) <= RANGES_MAX
        ends = [end for pair in self.ranges for end in pair]
        assert ends == sorted(ends)
        assert all(high < low for (_, high), (low, _) in zip(self.ranges, self.ranges[1:], strict=False))
