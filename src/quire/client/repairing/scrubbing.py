"""Looks at one bookie's copies of a ledger: what it lacks, what is no longer what was written, what is too much.

One bookie and one stretch of entries at a time, so that the work can be spread over many machines. Copies of different
bookies are compared by fingerprints of windows whose borders follow from the ledger's record alone. Nothing is changed. Of an open ledger the last fragment is left out: what it
will hold is not decided. A bookie that does not respond is "unknown", never "missing". A stream's entry is looked for
under the term that the record's ranges name; what another term left there is over-replicated ("extra").

Source: BookKeeper protocol, "Guarantees"; `docs/formats/native-protocol.md`, "Answers", LIST_ENTRIES.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from crc32c import crc32c

from quire.client.access import LedgerAccess
from quire.client.bookies.bookies import BookieClient
from quire.client.reading.copy_check import CopyCheck
from quire.core.answers import NEGATIVES, Answer
from quire.core.ids import BookieId
from quire.core.ledger.metadata import LedgerMetadata, LedgerState
from quire.core.ledger.notes import EntryRange
from quire.core.ledger.stripes import BookieStripes, HeldInterval, not_held
from quire.core.ledger.terms import needs_of
from quire.core.repair.under_replicated_marks import MarkReason, UnderReplicatedMark
from quire.wire.entries import Entries

WINDOW_BYTES = 4 << 20
"""About so much of a ledger is one window: what is held in memory, and what a fingerprint stands for."""

OPEN_WINDOW_ENTRIES = 256
"""A window of a ledger whose record does not say how long it is."""


class CopyVerdict(StrEnum):
    """What is wrong with some entries of one bookie, or that nothing is."""

    OK = "ok"
    MISSING = "missing"
    """The bookie reports conclusively that it lacks what it should have."""
    CORRUPT = "corrupt"
    """It has the entry, and a digest or the stored record does not fit."""
    OVER_REPLICATED = "extra"
    """It holds what the ledger's record does not ask of it: harmless, left by a change of the ensemble."""
    UNLIKE = "unlike"
    """Its digest is right, and most of the other copies say something else."""
    UNKNOWN = "unknown"
    """The bookie did not respond, or its response is inconclusive."""


IN_LIMBO = "limbo"
NO_TERMS = "its program does not know streams"
_SAID = {
    Answer.NO_ENTRY: (CopyVerdict.MISSING, ""),
    Answer.NO_LEDGER: (CopyVerdict.MISSING, ""),
    Answer.BAD_DIGEST: (CopyVerdict.CORRUPT, "digest"),
    Answer.DAMAGED: (CopyVerdict.CORRUPT, Answer.DAMAGED.name),
}
_MARKED = {CopyVerdict.MISSING: MarkReason.HOLE, CopyVerdict.CORRUPT: MarkReason.DAMAGE}


@dataclass(frozen=True, slots=True)
class Finding:
    """Entries first..last of a bookie's stripes, which all have one verdict; `detail` says what the bookie said."""

    first: int
    last: int
    verdict: CopyVerdict
    detail: str = ""

    def mark(self, bookie: BookieId, record_version: int, now_ms: int) -> UnderReplicatedMark | None:
        """What a worker is to look at; None where nothing is to be copied, or the bookie did not say it.

        Args:
            bookie: whose copies these are.
            record_version: of the ledger's record that was looked at.
            now_ms: wall time.
        """
        if self.detail == IN_LIMBO:
            reason = MarkReason.LIMBO
        elif self.verdict in _MARKED:
            reason = _MARKED[self.verdict]
        else:
            return None
        return UnderReplicatedMark(
            reason, bookie, EntryRange(self.first, self.last), record_version, "", now_ms
        )


@dataclass(slots=True)
class WindowCheck:
    """What one window of a bookie's stripes showed.

    Attributes:
        entries: good copies, of a stream's no-ops too.
        payload_bytes: their payload.
        fingerprints: for each stripe whose entries are all good, a checksum over payloads and lengths.
        findings: what is wrong, by ascending id.
    """

    first: int
    last: int
    entries: int = 0
    payload_bytes: int = 0
    fingerprints: dict[int, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


def windows(record: LedgerMetadata, part: BookieStripes) -> Iterator[BookieStripes]:
    """A bookie's stripes in parts of about `WINDOW_BYTES`, with the same borders for every bookie of its fragment."""
    step = max(1, min(1 << 16, WINDOW_BYTES // max(1, int(record.entry_bytes))))
    if record.state is not LedgerState.CLOSED:
        step = OPEN_WINDOW_ENTRIES
    for first in range(part.first // step * step, part.last + 1, step):
        yield part.cut(first, first + step - 1)


class ReplicaCheck:
    """Checks what bookies hold of what is decided of one ledger. A bookie that did not respond once is not waited for again."""

    def __init__(self, bookies: BookieClient, record: LedgerMetadata, timeout_ms: int) -> None:
        self._bookies, self._record, self._timeout_ms = bookies, record, timeout_ms
        self._access = LedgerAccess.of(record)
        self._copies = CopyCheck(bookies, self._access, WINDOW_BYTES, timeout_ms)

    async def audit(self, bookie: BookieId, mine: Sequence[BookieStripes]) -> list[Finding]:
        """Compare a bookie's own list of its entries with what it should hold.

        No entry is read, unless the bookie answers reads and no list, as Java's DbLedgerStorage: that is remembered.

        Args:
            bookie: who is asked.
            mine: all its stripes of the ledger.
        """
        if self._knows_no_terms(bookie):
            return [Finding(part.first, part.last, CopyVerdict.UNKNOWN, NO_TERMS) for part in mine]
        answer, held = Answer.TIMED_OUT, list[HeldInterval]()
        if bookie not in self._bookies.without_lists:
            answer, held = await self._bookies.list_entries(bookie, self._access, timeout_ms=self._timeout_ms)
        if answer is Answer.TIMED_OUT and not self._bookies.speaks_native(bookie):
            return await self._audit_by_reading(bookie, mine)
        if answer in NEGATIVES:
            return [Finding(part.first, part.last, CopyVerdict.MISSING, answer.name) for part in mine]
        # One whose negatives are inconclusive may hold more than it lists.
        if why := await self._why_inconclusive(bookie) if answer is Answer.OK else answer.name:
            return [Finding(part.first, part.last, CopyVerdict.UNKNOWN, why) for part in mine]
        found: list[Finding] = []
        for part in mine:
            for window in windows(self._record, part):
                found += _findings(window, not_held(window, held), CopyVerdict.MISSING)
        if self._record.state is not LedgerState.CLOSED:
            end = self._record.last_fragment.first_entry  # what follows its writer may have put there
            held = [each._replace(last=min(each.last, end - 1)) for each in held if each.first < end]
        return found + _too_much(mine, held)

    async def _audit_by_reading(self, bookie: BookieId, mine: Sequence[BookieStripes]) -> list[Finding]:
        """The audit of a bookie that has not answered a list."""
        found: list[Finding] = []
        for part in mine:
            for window in windows(self._record, part):
                found += (await self.scrub(window)).findings
        if bookie not in self._copies.silent:
            self._bookies.without_lists.add(bookie)
        return found

    async def scrub(self, window: BookieStripes) -> WindowCheck:
        """Read one window of a bookie's stripes and check every entry's digest."""
        entries, found = await self._look(window)
        size = sum(map(len, entries.payloads))
        prints = _fingerprints(window, entries)
        return WindowCheck(window.first, window.last, len(entries), size, prints, found)

    async def contents(self, window: BookieStripes) -> dict[int, int]:
        """A checksum over payload and length for each good entry of a window."""
        entries, _ = await self._look(window)
        return {
            entry_id: crc32c(payload, length & 0xFFFFFFFF)
            for entry_id, length, payload in zip(
                entries.entry_ids, entries.lengths, entries.payloads, strict=True
            )
        }

    async def _look(self, window: BookieStripes) -> tuple[Entries, list[Finding]]:
        """The good entries of a window, and what is wrong with the others."""
        good: list[Entries] = []
        found: list[Finding] = []
        bookie, at = window.bookie, window.first
        if self._knows_no_terms(bookie):
            at, found = window.last + 1, [Finding(at, window.last, CopyVerdict.UNKNOWN, NO_TERMS)]
        while at <= window.last:
            copies = await self._copies.read(window.cut(at, window.last))
            good.append(copies.entries)
            part = window.cut(at, copies.through)
            at = copies.through + 1
            if part.is_whole and len(copies.entries) == part.count:
                continue
            lacking: dict[Answer, list[int]] = {}
            for entry_id in sorted(set(part.ids()).difference(copies.entries.entry_ids)):
                lacking.setdefault(copies.why_not(entry_id), []).append(entry_id)
            for answer, ids in lacking.items():
                verdict, detail = _SAID.get(answer, (CopyVerdict.UNKNOWN, answer.name))
                if copies.answer is not Answer.OK:
                    detail = answer.name
                elif answer is Answer.UNKNOWN and not (detail := await self._why_inconclusive(bookie)):
                    verdict, detail = CopyVerdict.CORRUPT, "the bookie cannot read it"
                found += _findings(part, ids, verdict, detail)
        return Entries.join(self._record.ledger_id, good), found

    def _knows_no_terms(self, bookie: BookieId) -> bool:
        """Whether this is a stream, and the bookie's program is one that would answer as if it were a ledger."""
        return self._record.terms is not None and bookie in self._bookies.unable(needs_of(self._record.terms))

    async def _why_inconclusive(self, bookie: BookieId) -> str:
        """Why a bookie's negatives are inconclusive: it is in limbo, or does not say; empty if they are."""
        answer, facts = await self._bookies.info(bookie, self._access, timeout_ms=self._timeout_ms)
        if answer is Answer.OK:
            return IN_LIMBO if facts.get("limbo") else ""
        return "" if answer in NEGATIVES else answer.name


def majority(contents: dict[BookieId, int]) -> list[BookieId]:
    """The bookies whose copy of an entry is not what most copies are; all of them where no content has most."""
    counts = Counter(contents.values())
    if len(counts) == 1:
        return []
    (most, number), (_, next_number) = counts.most_common(2)
    return [bookie for bookie, content in contents.items() if number == next_number or content != most]


def _too_much(mine: Sequence[BookieStripes], held: Sequence[HeldInterval]) -> list[Finding]:
    """Stretches of held entries that lie in no stripes of the bookie, or have another origin term."""
    found: list[Finding] = []
    ordered = sorted(mine, key=lambda each: each.first)
    for low, high, _, _, term in held:
        at = low
        for part in ordered:
            if part.origin_term == term and part.first <= high and part.last >= at:
                if at < part.first:
                    found.append(Finding(at, part.first - 1, CopyVerdict.OVER_REPLICATED))
                at = part.last + 1
        if at <= high:
            found.append(Finding(at, high, CopyVerdict.OVER_REPLICATED))
    return found


def _findings(
    part: BookieStripes, ids: Iterable[int], verdict: CopyVerdict, detail: str = ""
) -> list[Finding]:
    """Ascending ids as stretches: two ids lie together when the bookie's stripes have none between them."""
    found: list[Finding] = []
    for entry_id in ids:
        if found and not any(map(part.has, range(found[-1].last + 1, entry_id))):
            found[-1] = Finding(found[-1].first, entry_id, verdict, detail)
        else:
            found.append(Finding(entry_id, entry_id, verdict, detail))
    return found


def _fingerprints(window: BookieStripes, entries: Entries) -> dict[int, int]:
    """A checksum for each stripe whose entries are all there; where all stripes are asked for one for all, as stripe 0.

    It covers what copies must have in common, payloads and lengths: headers and digests may differ (LAC).
    """
    if window.is_whole:
        return {0: _fingerprint(entries)} if len(entries) == window.count else {}
    prints: dict[int, int] = {}
    for stripe in range(window.period):
        if window.stripes >> stripe & 1:
            mine = BookieStripes(window.bookie, window.first, window.last, window.period, 1 << stripe)
            indexes = [index for index, e in enumerate(entries.entry_ids) if e % window.period == stripe]
            if indexes and len(indexes) == mine.count:
                step = indexes[1] - indexes[0] if len(indexes) > 1 else 1
                prints[stripe] = _fingerprint(entries[indexes[0] : indexes[-1] + 1 : step])
    return prints


def _fingerprint(entries: Entries) -> int:
    return crc32c(b"".join(entries.payloads), crc32c(array("q", entries.lengths).tobytes()))
