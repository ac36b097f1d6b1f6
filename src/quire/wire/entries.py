"""Some entries of one ledger, held column by column: what a scan hands over at a time.

A run of small entries costs a reader mostly objects. Columns need one per entry, the payload; an `Entry` is made
when one is used.

Source: Vanlightly's guide, "Reading from ledgers"; `docs/performance.md`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import Self, TypeAlias, overload

from quire.core.ids import EntryId, LedgerId
from quire.wire.entry import Entry, NoOp

Payloads: TypeAlias = Sequence[bytes | memoryview]


class Entries(Sequence[Entry]):
    """Entries with ascending ids, as a sequence of `Entry` and as columns of equal length.

    Args:
        ledger_id: the ledger of all of them.
        entry_ids: the id of each, a range where they follow one another.
        lacs: the last add confirmed that each was sent with.
        lengths: payload bytes of the ledger up to and including each.
        payloads: the payload of each. A long one may be a view of what it came in, which it keeps from being used again;
            an `Entry` has its own bytes.
        no_ops: the ids of those that are no-ops, ascending; each is a `NoOp` as a row.
    """

    __slots__ = ("entry_ids", "lacs", "ledger_id", "lengths", "no_ops", "payloads")

    def __init__(
        self,
        ledger_id: int,
        entry_ids: Sequence[int],
        lacs: Sequence[int],
        lengths: Sequence[int],
        payloads: Payloads,
        no_ops: tuple[int, ...] = (),
    ) -> None:
        self.ledger_id = LedgerId(ledger_id)
        self.no_ops = no_ops
        self.entry_ids, self.lacs, self.lengths, self.payloads = entry_ids, lacs, lengths, payloads

    @classmethod
    def of(cls, ledger_id: int, entries: Iterable[Entry]) -> Self:
        """Entries that were made one by one; their ids ascend."""
        rows = list(entries)
        return cls(
            ledger_id,
            _as_range([row[1] for row in rows]),
            array("q", [row[2] for row in rows]),
            array("q", [row[3] for row in rows]),
            tuple([row[4] for row in rows]),
            tuple([row[1] for row in rows if type(row) is NoOp]),
        )

    @classmethod
    def join(cls, ledger_id: int, parts: Sequence[Entries]) -> Entries:
        """All entries of some parts; the ids ascend from part to part."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            ledger_id,
            _joined([part.entry_ids for part in parts]),
            _numbers([part.lacs for part in parts]),
            _numbers([part.lengths for part in parts]),
            tuple(chain.from_iterable(part.payloads for part in parts)),
            tuple(chain.from_iterable(part.no_ops for part in parts)),
        )

    def of_users(self) -> Entries:
        """The same without no-ops."""
        gone = self.no_ops
        return Entries.of(self.ledger_id, [row for row in self if row[1] not in gone]) if gone else self

    def without_gap(self, first: int) -> Entries:
        """The entries from `first` on as far as each id follows the one before; none if this does not begin there."""
        ids = self.entry_ids
        together = 0
        if isinstance(ids, range):
            together = len(ids) if ids[:1] == range(first, first + 1) else 0
        else:
            while together < len(ids) and ids[together] == first + together:
                together += 1
        return self if together == len(ids) else self[:together]

    def __len__(self) -> int:
        return len(self.payloads)

    @overload
    def __getitem__(self, place: int) -> Entry: ...

    @overload
    def __getitem__(self, place: slice) -> Entries: ...

    def __getitem__(self, place: int | slice) -> Entry | Entries:
        """The entry at a position, or the entries at some positions."""
        ids, lacs, lengths, payloads = self.entry_ids, self.lacs, self.lengths, self.payloads
        if isinstance(place, slice):
            some = ids[place]
            no_ops = tuple(entry_id for entry_id in self.no_ops if entry_id in some)
            return Entries(self.ledger_id, some, lacs[place], lengths[place], payloads[place], no_ops)
        kind = NoOp if ids[place] in self.no_ops else Entry
        return kind(
            self.ledger_id, EntryId(ids[place]), EntryId(lacs[place]), lengths[place], bytes(payloads[place])
        )

    def __iter__(self) -> Iterator[Entry]:
        rows = zip(
            repeat(self.ledger_id, len(self)),
            self.entry_ids,
            self.lacs,
            self.lengths,
            map(bytes, self.payloads),  # those that are bytes stay what they are
            strict=True,
        )
        kinds: Iterable[type[Entry]] = repeat(Entry)
        if self.no_ops:
            kinds = [NoOp if entry_id in self.no_ops else Entry for entry_id in self.entry_ids]
        return map(tuple.__new__, kinds, rows)

    def __repr__(self) -> str:
        if not self:
            return f"<no entries of ledger {self.ledger_id}>"
        return f"<{len(self)} entries of ledger {self.ledger_id}, {self.entry_ids[0]}..{self.entry_ids[-1]}>"


def _as_range(ids: Sequence[int]) -> Sequence[int]:
    """Ascending ids, as a range where they can be one."""
    if ids and ids[-1] - ids[0] + 1 == len(ids):
        return range(ids[0], ids[-1] + 1)
    return ids


def _numbers(parts: Sequence[Sequence[int]]) -> array[int]:
    numbers = array("q")
    for part in parts:
        numbers.extend(part)
    return numbers


def _joined(parts: Sequence[Sequence[int]]) -> Sequence[int]:
    filled = [part for part in parts if part]
    if filled and sum(map(len, filled)) == filled[-1][-1] - filled[0][0] + 1:
        return range(filled[0][0], filled[-1][-1] + 1)
    return list(chain.from_iterable(filled))
