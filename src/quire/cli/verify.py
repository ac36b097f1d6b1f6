"""Every copy of every entry of a ledger, read from every bookie that should hold it, and compared.

A reader is content with one good copy; this is not.

Source: protocol document (001), "Write Quorums", "Ack Quorums".
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from quire.client.access import LedgerAccess
from quire.core.answers import NEGATIVES, Answer
from quire.core.quorum import residues_of_slot

if TYPE_CHECKING:
    from collections.abc import Callable

    from quire.client.bookies import BookieClient
    from quire.core.ids import BookieId
    from quire.core.ledger_metadata import LedgerMetadata

WINDOW: Final = 8192
"""Entries compared at a time: bounds the memory."""
READ_BYTES: Final = 1024 * 1024
FINDINGS_MAX: Final = 100


@dataclass(slots=True)
class Verification:
    """What was found.

    Attributes:
        entries: how many were looked at.
        copies: good copies found; `expected` is entries times Qw.
        short: entries with fewer good copies than the ack quorum.
        lost: entries without any good copy.
        differing: entries whose copies differ in payload or length.
        findings: sentences about what is missing, damaged or silent, at most `FINDINGS_MAX`.
    """

    entries: int = 0
    copies: int = 0
    expected: int = 0
    short: int = 0
    lost: int = 0
    differing: int = 0
    findings: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether every entry is on at least Qa bookies of its write set, all copies equal."""
        return not (self.short or self.lost or self.differing)

    def found(self, text: str) -> None:
        """Keep a sentence."""
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(text)


async def verify_ledger(
    bookies: BookieClient,
    record: LedgerMetadata,
    last: int,
    advance: Callable[[int], None],
    seen: Verification | None = None,
) -> Verification:
    """Compare all copies of entries 0..last.

    Args:
        bookies: the connections.
        record: the ledger's record.
        last: the last entry to look at: the ledger's end, or the LAC of an open one.
        advance: is told how many entries more have been compared.
        seen: a former result to add to.
    """
    result = seen or Verification()
    access = LedgerAccess.of(record)
    for index, fragment in enumerate(record.fragments):
        end = record.last_entry_of_fragment(index)
        end = last if end is None else min(end, last)
        for first in range(fragment.first_entry, end + 1, WINDOW):
            until = min(first + WINDOW - 1, end)
            await _compare(bookies, access, record, fragment.ensemble, first, until, result)
            advance(until - first + 1)
    return result


async def _compare(
    bookies: BookieClient,
    access: LedgerAccess,
    record: LedgerMetadata,
    ensemble: tuple[BookieId, ...],
    first: int,
    last: int,
    result: Verification,
) -> None:
    """Compare the copies of entries first..last, which lie in one fragment."""
    count = last - first + 1
    copies = [0] * count
    prints: list[int | None] = [None] * count
    differing: set[int] = set()
    for slot, bookie in enumerate(ensemble):
        held, why = await _copies_of(bookies, access, bookie, first, last)
        residues = residues_of_slot(slot, record.ensemble_size, record.write_quorum)
        missing = []
        for entry_id in range(first, last + 1):
            if not residues >> entry_id % record.ensemble_size & 1:
                continue
            mark = held.get(entry_id)
            place = entry_id - first
            if mark is None:
                missing.append(entry_id)
                continue
            copies[place] += 1
            if prints[place] is None:
                prints[place] = mark
            elif prints[place] != mark:
                differing.add(entry_id)
        for begin, finish in _stretches(missing, record.ensemble_size):
            result.found(f"{bookie} has no good copy of entries {begin}..{finish} of ledger {record.ledger_id}{why}")
    for entry_id in sorted(differing):
        result.found(f"the copies of entry {entry_id} of ledger {record.ledger_id} differ")
    result.entries += count
    result.expected += count * record.write_quorum
    result.copies += sum(copies)
    result.differing += len(differing)
    result.lost += sum(1 for found in copies if found == 0)
    result.short += sum(1 for found in copies if found < record.ack_quorum)


async def _copies_of(
    bookies: BookieClient, access: LedgerAccess, bookie: BookieId, first: int, last: int
) -> tuple[dict[int, int], str]:
    """A fingerprint of each good copy one bookie has of first..last, and why it may have fewer."""
    held: dict[int, int] = {}
    damaged = 0
    at = first
    while at <= last:
        reply = await bookies.read(bookie, access, at, last, READ_BYTES)
        if reply.answer is not Answer.OK:
            why = "" if reply.answer in NEGATIVES else f" (it answered {reply.answer.name})"
            return held, why
        furthest = at - 1
        for run in reply.runs:
            good, bad = access.digest.open_all(access.ledger_id, run.ids(), run.body, run.offsets())
            damaged += len(bad)
            furthest = max(furthest, run.last)
            for entry in good:
                held[entry.entry_id] = zlib.crc32(entry.payload, entry.length & 0xFFFFFFFF)
        furthest = max([furthest, reply.vouched_through, *(end for _, end in reply.unknown)])
        if furthest < at:
            break
        at = furthest + 1
    return held, f" ({damaged} are damaged)" if damaged else ""


def _stretches(ids: list[int], most_gap: int) -> list[tuple[int, int]]:
    """Ascending ids as few ranges; gaps of at most `most_gap` (ids the bookie need not hold) do not split."""
    stretches: list[tuple[int, int]] = []
    for entry_id in ids:
        if stretches and entry_id - stretches[-1][1] <= most_gap:
            stretches[-1] = (stretches[-1][0], entry_id)
        else:
            stretches.append((entry_id, entry_id))
    return stretches
