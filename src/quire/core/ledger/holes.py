"""Which holes a ledger's record gets: what its writer knows that bookies lack, with what stands there already.

A hole says that a bookie *may* lack entries although the record names it for them. A hole too many costs a look at the
bookie; one too few costs a copy whose loss no check finds. So where there are too many ranges, neighbours become one.
Pure.

Source: `docs/formats/metadata.md`, "Holes and accepted losses"; `docs/protocol/closing.md`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Final

from quire.core.ids import ID_MAX, BookieId
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.notes import BookieHoles, EntryRange, LedgerNotes
from quire.core.ledger.quorum import stripes_of_slot
from quire.core.ledger.stripes import Stretch, joined_stretches
from quire.core.ledger.writer_state import Hole

RANGES_MAX: Final = 1_000
"""Ranges of all holes of one ledger: they are read with its record each time it is opened."""


def holes_of_runs(slot: int, bookie: BookieId, runs: Iterable[tuple[int, int]], lac: int) -> tuple[Hole, ...]:
    """The holes that runs leave which a bookie has not acknowledged.

    Args:
        slot: where in the ensemble it is.
        bookie: which it is.
        runs: (first, last) of each run.
        lac: entries above it are none of the ledger's, or another bookie gets them.

    Returns:
        Neighbours together, by first entry.
    """
    return joined(Hole(slot, bookie, first, min(last, lac)) for first, last in runs if first <= lac)


def joined(holes: Iterable[Hole]) -> tuple[Hole, ...]:
    """The same holes, those of one slot and bookie that touch as one, by first entry."""
    found: dict[tuple[int, BookieId], list[Hole]] = {}
    for hole in sorted(holes, key=lambda hole: hole.first):
        some = found.setdefault((hole.slot, hole.bookie), [])
        if some and hole.first <= some[-1].last + 1:
            some[-1] = some[-1]._replace(last=max(some[-1].last, hole.last))
        else:
            some.append(hole)
    return tuple(sorted((hole for some in found.values() for hole in some), key=lambda hole: hole.first))


def with_holes(notes: LedgerNotes, record: LedgerMetadata, holes: Iterable[Hole]) -> LedgerNotes:
    """The notes of a ledger with these holes among them.

    Args:
        notes: what stands with the record now; all of it is kept.
        record: which bookies it names for which entries: for others a bookie lacks nothing.
        holes: what bookies may lack, in the ids that the writer gave them.

    Returns:
        The same notes if they say all this already.
    """
    ranges: dict[BookieId, list[EntryRange]] = {}
    for hole in holes:
        for found in _named_ranges(record, hole):
            ranges.setdefault(hole.bookie, []).append(found)
    if not ranges:
        return notes
    before = {hole.bookie: hole for hole in notes.holes}
    merged = {bookie: _merged(hole.ranges) for bookie, hole in before.items()}
    for bookie, new in ranges.items():
        merged[bookie] = _merged([*(before[bookie].ranges if bookie in before else ()), *new])
    after = tuple(
        replace(before[bookie], ranges=some) if bookie in before else BookieHoles(bookie, some)
        for bookie, some in sorted(_few(merged).items())
    )
    return notes if after == notes.holes else replace(notes, holes=after)


def without_holes(notes: LedgerNotes, whole: Iterable[BookieId], record: LedgerMetadata) -> LedgerNotes:
    """The notes of a ledger after a repair: without holes of bookies that have everything, or that it names nowhere.

    Args:
        notes: what stands with the record now.
        whole: bookies that lack nothing of what decided fragments give them; other fragments' holes stay.
        record: the ledger's record after the repair.

    Returns:
        The same notes if there is nothing to take out.
    """
    named = {bookie for fragment in record.fragments for bookie in fragment.ensemble}
    undecided = record.last_entry_of_fragment(len(record.fragments) - 1) is None
    open_from = int(record.last_fragment.first_entry) if undecided else ID_MAX + 1
    complete = set(whole)
    kept = []
    for hole in notes.holes:
        if hole.bookie not in named:
            continue
        ranges = hole.ranges
        if hole.bookie in complete:
            ranges = tuple(each for each in ranges if each.last >= open_from)
        if ranges:
            kept.append(hole if ranges == hole.ranges else replace(hole, ranges=ranges))
    return notes if tuple(kept) == notes.holes else replace(notes, holes=tuple(kept))


def _named_ranges(record: LedgerMetadata, hole: Hole) -> Iterator[EntryRange]:
    """The part of a hole for which the record names its bookie: one range for each such fragment."""
    size, write_quorum = record.ensemble_size, record.write_quorum
    index, following = record.fragment_index(hole.first), hole.first
    while following <= hole.last:
        fragment, end = record.fragments[index], record.last_entry_of_fragment(index)
        last = hole.last if end is None else min(hole.last, end)
        if following <= last and hole.bookie in fragment.ensemble:
            stripes = stripes_of_slot(fragment.ensemble.index(hole.bookie), size, write_quorum)
            if write_quorum == size:
                yield EntryRange(following, last)
            elif any(stripes >> entry_id % size & 1 for entry_id in range(following, last + 1)[:size]):
                yield EntryRange(following, last, size, stripes)
        index += 1
        if index == len(record.fragments):
            return
        following = max(following, int(record.fragments[index].first_entry))


def _merged(ranges: Iterable[EntryRange]) -> tuple[EntryRange, ...]:
    """The same entries in as few ranges as there can be of each kind, by first entry."""
    kinds: dict[tuple[int, int], list[Stretch]] = {}
    for each in ranges:
        kinds.setdefault((each.period, each.stripes), []).append((each.first, each.last))
    return tuple(
        sorted(EntryRange(*one, *kind) for kind, some in kinds.items() for one in joined_stretches(some))
    )


def _few(holes: Mapping[BookieId, tuple[EntryRange, ...]]) -> dict[BookieId, tuple[EntryRange, ...]]:
    """All ranges, or where they are too many the same entries and those between them, the narrowest gaps first."""
    count = sum(map(len, holes.values()))
    if count <= RANGES_MAX:
        return dict(holes)
    kinds = {
        (bookie, each.period, each.stripes): [other for other in some if other[2:] == each[2:]]
        for bookie, some in holes.items()
        for each in some
    }
    gaps = sorted(
        (after.first - before.last, name, index)
        for name, some in kinds.items()
        for index, (before, after) in enumerate(pairwise(some))
    )
    closed = {(name, index) for _, name, index in gaps[: count - RANGES_MAX]}
    fewer: dict[BookieId, list[EntryRange]] = {bookie: [] for bookie in holes}
    for name, some in kinds.items():
        kept = fewer[name[0]]
        for index, each in enumerate(some):
            if (name, index - 1) in closed:
                kept[-1] = kept[-1]._replace(last=each.last)
            else:
                kept.append(each)
    return {bookie: tuple(sorted(kept)) for bookie, kept in fewer.items()}
