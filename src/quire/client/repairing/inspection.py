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
from quire.core.ledger.replica import gaps
from quire.core.ledger.stripes import BookieStripes, HeldInterval, bookie_stripes


@dataclass(frozen=True, slots=True)
class HeldStripes:
    """What one bookie holds of its stripes of one fragment.

    Attributes:
        part: what it should hold.
        answer: the code of its response; other than OK (or NO_LEDGER: it holds nothing), what it holds is unknown.
        missing: what of that it does not hold.
        holes: what of that the record calls holes, whether they are filled by now or not.
    """

    part: BookieStripes
    answer: Answer
    missing: tuple[BookieStripes, ...]
    holes: tuple[tuple[int, int], ...]

    @property
    def bookie(self) -> BookieId:
        """Which bookie it is."""
        return self.part.bookie

    @property
    def is_known(self) -> bool:
        """Whether the response is conclusive."""
        return self.answer in (Answer.OK, Answer.NO_LEDGER)

    @property
    def missing_count(self) -> int:
        """How many of these entries it does not hold."""
        return sum(part.count for part in self.missing)


async def held_stripes(
    record: LedgerMetadata,
    notes: LedgerNotes,
    last_entry: int | None,
    bookies: BookieClient,
    *,
    timeout_ms: int,
) -> list[HeldStripes]:
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
    wanted = list(bookie_stripes(record, last_entry))
    everyone = list(dict.fromkeys(part.bookie for part in wanted))
    lists = await asyncio.gather(
        *(bookies.list_entries(bookie, access, timeout_ms=timeout_ms) for bookie in everyone)
    )
    responses = dict(zip(everyone, lists, strict=True))
    return [_held(part, notes, *responses[part.bookie]) for part in wanted]


def _held(
    part: BookieStripes, notes: LedgerNotes, answer: Answer, intervals: Sequence[HeldInterval]
) -> HeldStripes:
    missing = tuple(gaps(part, intervals)) if answer in (Answer.OK, Answer.NO_LEDGER) else ()
    return HeldStripes(part, answer, missing, tuple(_holes_in(part, notes)))


def _holes_in(part: BookieStripes, notes: LedgerNotes) -> Iterator[tuple[int, int]]:
    for hole in notes.holes:
        if hole.bookie == part.bookie:
            for each in hole.ranges:
                first, last = max(each.first, part.first), min(each.last, part.last)
                if first <= last:
                    yield first, last
