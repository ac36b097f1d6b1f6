"""What the bookies of a ledger say that they hold of it, next to what its record says that they should.

Only lists of entries are asked for, no entry is read: a copy that is damaged counts as held (`LedgerVerifier` finds it).

Source: `docs/formats/native-protocol.md`, LIST_ENTRIES; `docs/formats/metadata.md`, "Holes and accepted losses".
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from quire.client.access import LedgerAccess
from quire.client.bookies.bookies import BookieClient
from quire.core.answers import Answer
from quire.core.ids import BookieId
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.notes import LedgerNotes
from quire.core.ledger.shares import BookieShare, HeldInterval, gaps, shares


@dataclass(frozen=True, slots=True)
class HeldShare:
    """What one bookie holds of its share of one fragment.

    Attributes:
        share: what it should hold.
        answer: the code of its response; other than OK (or NO_LEDGER: it holds nothing), what it holds is unknown.
        missing: the parts of the share that it does not hold.
        holes: parts of the share that the record calls holes, whether they are filled by now or not.
    """

    share: BookieShare
    answer: Answer
    missing: tuple[BookieShare, ...]
    holes: tuple[tuple[int, int], ...]

    @property
    def bookie(self) -> BookieId:
        """Whose share it is."""
        return self.share.bookie

    @property
    def is_known(self) -> bool:
        """Whether the response is conclusive."""
        return self.answer in (Answer.OK, Answer.NO_LEDGER)

    @property
    def missing_count(self) -> int:
        """How many entries of the share it does not hold."""
        return sum(part.count for part in self.missing)


async def held_shares(
    record: LedgerMetadata,
    notes: LedgerNotes,
    last_entry: int | None,
    bookies: BookieClient,
    *,
    timeout_ms: int,
) -> list[HeldShare]:
    """Ask each bookie of a ledger for the list of the entries that it holds.

    Args:
        record: the ledger's record.
        notes: what stands with it.
        last_entry: how far to look in a ledger that is not closed.
        bookies: the connections.
        timeout_ms: how long one may take for each page of its list.

    Returns:
        One for each fragment that is not empty and each slot, in their order.
    """
    access = LedgerAccess.of(record)
    wanted = list(shares(record, last_entry))
    everyone = list(dict.fromkeys(share.bookie for share in wanted))
    lists = await asyncio.gather(
        *(bookies.list_entries(bookie, access, timeout_ms=timeout_ms) for bookie in everyone)
    )
    responses = dict(zip(everyone, lists, strict=True))
    return [_held(share, notes, *responses[share.bookie]) for share in wanted]


def _held(
    share: BookieShare, notes: LedgerNotes, answer: Answer, intervals: Sequence[HeldInterval]
) -> HeldShare:
    known = answer in (Answer.OK, Answer.NO_LEDGER)
    missing = tuple(gaps(share, intervals)) if known else ()
    return HeldShare(share, answer, missing, tuple(_holes_in(share, notes)))


def _holes_in(share: BookieShare, notes: LedgerNotes) -> Iterator[tuple[int, int]]:
    for hole in notes.holes:
        if hole.bookie == share.bookie:
            for place in hole.ranges:
                first, last = max(place.first, share.first), min(place.last, share.last)
                if first <= last:
                    yield first, last
