"""What was found that is not as it was written, until it is put right; and what of each ledger that concerns.

A damage ends when its entries were put back, its ledger is deleted, or its segment is freed; that of a footer,
when the records were read instead. One that names no ledger, and of which none of this comes, is reported until the next
start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from quire.core.ledger.stripes import HeldInterval
from quire.storage.segments.findings import Damage


class Damages:
    """What is known to be damaged on one bookie's disk.

    Args:
        kept: what a start found; the list is kept up to date.
        kept_max: so many are kept, others are counted only.

    Attributes:
        kept: those that are not over.
        more: how many more there were, of which nothing is kept.
        on_found: called with each new one; those that are not kept are not reported.
    """

    def __init__(self, kept: list[Damage], kept_max: int, more: int = 0) -> None:
        self.kept = kept
        self.more = more
        self.on_found: Callable[[Damage], None] = lambda _: None
        self._kept_max = kept_max
        self._known = dict.fromkeys(kept)
        self._of_ledgers: dict[int, list[Damage]] = {}
        for damage in kept:
            self._note(damage)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.kept) + self.more

    def _note(self, damage: Damage) -> None:
        if damage.ledger_id >= 0:
            self._of_ledgers.setdefault(damage.ledger_id, []).append(damage)

    def found(self, damage: Damage) -> None:
        """Note something that does not verify; once."""
        if damage in self._known:
            return
        if len(self.kept) >= self._kept_max:
            self.more += 1
            return
        self._known[damage] = None
        self.kept.append(damage)
        self._note(damage)
        self.on_found(damage)

    # --- what ends them ------------------------------------------------------------------------------------------

    def put_back(self, ledger_id: int, first: int, last: int, origin_term: int = 0) -> None:
        """Entries first..last of a ledger and term were put again: what is damaged of them is not read any more."""
        self._cut(ledger_id, first, last, (origin_term,) if origin_term else (0, -1))

    def dropped(self, ledger_id: int, first: int, last: int) -> None:
        """Entries first..last of a ledger, of whatever term, are dead."""
        self._cut(ledger_id, first, last, None)

    def _cut(self, ledger_id: int, first: int, last: int, terms: tuple[int, ...] | None) -> None:
        known = self._of_ledgers.get(ledger_id)
        if known is None:
            return
        for damage in [one for one in known if 0 <= one.first <= last and one.last >= first]:
            if terms is not None and damage.origin_term not in terms:
                continue
            self._over(damage)
            for low, high in ((damage.first, first - 1), (last + 1, damage.last)):
                left = replace(damage, first=low, last=high)
                if low <= high and left not in self._known:  # it may have been found as well
                    self._known[left] = None
                    self.kept.append(left)
                    self._note(left)

    def ledger_good(self, ledger_id: int) -> None:
        """A ledger was deleted, or all that should be here of it was put back."""
        for damage in list(self._of_ledgers.get(ledger_id, ())):
            self._over(damage)

    def file_freed(self, file: str) -> None:
        """A segment was freed: nothing of it is read any more."""
        for damage in [one for one in self.kept if one.file == file]:
            self._over(damage)
        if not self.kept:
            self.more = 0

    def footer_replaced(self, file: str, data_end: int) -> None:
        """A footer, after the records that end here, is not read any more: the records were read instead."""
        for damage in [one for one in self.kept if one.file == file and one.offset >= data_end]:
            self._over(damage)

    def _over(self, damage: Damage) -> None:
        del self._known[damage]
        self.kept.remove(damage)
        known = self._of_ledgers.get(damage.ledger_id)
        if known is not None and damage in known:
            known.remove(damage)
            if not known:
                del self._of_ledgers[damage.ledger_id]

    # --- what they concern ---------------------------------------------------------------------------------------

    def of_ledger(self, ledger_id: int) -> list[tuple[int, int, int]]:
        """(first, last, origin term or -1) of what is damaged of a ledger, ascending."""
        known = self._of_ledgers.get(ledger_id, ())
        return sorted((one.first, one.last, one.origin_term) for one in known if one.first >= 0)

    def ledgers(self) -> list[int]:
        """The ledgers of which something is damaged, ascending."""
        return sorted(self._of_ledgers)

    def without(self, ledger_id: int, held: Iterator[HeldInterval]) -> Iterator[HeldInterval]:
        """What is here of a ledger, without what is known to be damaged."""
        damaged = self.of_ledger(ledger_id)
        if not damaged:
            yield from held
            return
        for interval in held:
            first = interval.first
            for low, high, term in damaged:
                if high < first or low > interval.last or term not in (interval.origin_term, -1):
                    continue
                if low > first:
                    yield interval._replace(first=first, last=low - 1)
                first = high + 1
            if first <= interval.last:
                yield interval._replace(first=first)
