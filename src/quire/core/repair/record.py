"""What a repair writes: other bookies in decided fragments, accepted losses, and that a write quorum is kept.

Source: docs/protocol/repair.md, "Publishing".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from quire.core.ids import BookieId
from quire.core.ledger.guarantee import kept
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.notes import AcceptedLoss, EntryRange, LedgerNotes
from quire.core.repair.effects import Loss


class SlotReplacement(NamedTuple):
    """A slot of a fragment that another bookie is ready to take."""

    fragment: int
    old: BookieId
    new: BookieId


def with_replacements(record: LedgerMetadata, ready: Iterable[SlotReplacement]) -> LedgerMetadata:
    """The record with all these at once."""
    by_fragment: defaultdict[int, dict[BookieId, BookieId]] = defaultdict(dict)
    for index, old, new in ready:
        by_fragment[index][old] = new
    for index, changes in by_fragment.items():
        record = record.with_replaced(index, int(record.fragments[index].first_entry), changes)
    return record


def with_guarantee_kept(record: LedgerMetadata, whole: Collection[BookieId]) -> LedgerMetadata:
    """The record, which says so if its replication was pending and all bookies that it gives entries to are whole now."""
    if not record.has_pending_replication:
        return record
    for index, fragment in enumerate(record.fragments):
        last = record.last_entry_of_fragment(index)
        if last is not None and last >= fragment.first_entry and not {*fragment.ensemble} <= {*whole}:
            return record
    return replace(record, custom=kept(record.custom), creation_token=0)


def with_accepted(
    notes: LedgerNotes,
    record: LedgerMetadata,
    ready: Sequence[SlotReplacement],
    gone_only: Iterable[EntryRange],
    word: Loss,
) -> LedgerNotes:
    """The notes with the loss that goes into the record together with these replacements, if there is one.

    Args:
        notes: as they stand.
        record: the ledger's record before the replacements.
        ready: lost bookies leave these fragments.
        gone_only: entries that only such bookies may have.
        word: who accepted that they are lost.
    """
    bounds = [
        (int(record.fragments[index].first_entry), record.last_entry_of_fragment(index))
        for index in {each.fragment for each in ready}
    ]
    ranges = tuple(
        sorted(
            each
            for each in gone_only
            if any(last is not None and first <= each.first and each.last <= last for first, last in bounds)
        )
    )
    if not ranges:
        return notes
    replaced = tuple(sorted({each.old for each in ready}))
    loss = AcceptedLoss(ranges, word.accepted_ms, word.accepted_by, replaced)
    return replace(notes, losses=(*notes.losses, loss))
