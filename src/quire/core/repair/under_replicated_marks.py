"""Under-replicated marks, as the metadata store keeps them: advice, which is checked before anything is copied.

BookKeeper's own mark says which bookies of a ledger are lost, and nothing else. Here is Quire's: which entries a bookie
that is there lacks, knows to be damaged, or cannot speak of, and which bookies of a stream are lost. Pure.

Source: `docs/formats/metadata.md`, "Under-replicated marks".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from quire.core.ids import BookieId
from quire.core.ledger.notes import EntryRange

MARKS_MAX: Final = 64
"""Of one ledger; more are joined to longer ranges."""
ANY_BOOKIE: Final = BookieId("")
"""In a mark: whichever bookie of the ledger it is."""


class MarkReason(Enum):
    """What was seen of entries on a bookie. The values are those of the record."""

    HOLE = 1
    """The bookie lacks them, and said so."""
    DAMAGE = 2
    """The bookie knows that they are damaged."""
    LIMBO = 3
    """The bookie may have lost them."""
    GONE = 4
    """The bookie is lost; of a stream, which BookKeeper's own mark would hand to Java's workers."""


@dataclass(frozen=True, slots=True)
class UnderReplicatedMark:
    """The mark of an under-replicated ledger: what one client saw.

    Attributes:
        reason: what it is.
        bookie: where; `ANY_BOOKIE`: the bookies of the ledger must be asked.
        entries: which.
        record_version: the version of the ledger's record that was looked at.
        seen_by: the client, for people.
        seen_ms: wall time of the last look: advice only.
        unknown: fields of later versions.
    """

    reason: MarkReason
    bookie: BookieId
    entries: EntryRange
    record_version: int
    seen_by: str
    seen_ms: int
    unknown: bytes = b""


class WaitsFor(Enum):
    """What a marked ledger waits for after an attempt to repair it. The values are those of the record."""

    ATTEMPT = 1
    """Another attempt, after a pause."""
    WRITER = 2
    """Its writer, or a bookie that could take the place of the lost one: it is open."""
    GONE_BOOKIE = 3
    """A lost bookie: only such have some of the entries."""
    NOTHING = 4
    """Entries are lost: no bookie has them."""
    BOOKIE = 5
    """A bookie that comes, or a change of the marks: no attempt succeeded."""


@dataclass(frozen=True, slots=True)
class RepairAttempts:
    """What the last attempt of a worker left; for people.

    Attributes:
        count: how many attempts ended so since the last bookie came.
        waits: what the ledger waits for now.
        why: what stood in the way.
        tried_by: the worker.
        tried_ms: wall time.
        unknown: fields of later versions.
    """

    count: int
    waits: WaitsFor
    why: str
    tried_by: str = ""
    tried_ms: int = 0
    unknown: bytes = b""


@dataclass(frozen=True, slots=True)
class LedgerRepairs:
    """Quire's marks of one ledger, and what the last attempt left. `unknown`: fields of later versions."""

    marks: tuple[UnderReplicatedMark, ...]
    unknown: bytes = b""
    attempts: RepairAttempts | None = None


@dataclass(frozen=True, slots=True)
class RepairWorkerState:
    """What a worker tells of itself while it lives.

    Attributes:
        name: how people know it.
        ledgers, bytes: what it has repaired and copied since it began.
        bytes_per_s: how fast it copied in its last minute of work; 0 while it has nothing to do.
        ledgers_per_hour: how many ledgers it repaired, likewise; 0 also of a version that does not tell.
    """

    name: str
    ledgers: int = 0
    bytes: int = 0
    bytes_per_s: int = 0
    ledgers_per_hour: int = 0


@dataclass(frozen=True, slots=True)
class AwayCount:
    """How long auditors have seen that a bookie is away, or that it is read-only.

    Attributes:
        bookie: which.
        seconds: added up, by no clock of the store.
        counted_by: the auditor that added last, for people.
        unknown: fields of later versions.
    """

    bookie: BookieId
    seconds: int
    counted_by: str = ""
    unknown: bytes = b""


def marked_through(marks: Iterable[UnderReplicatedMark]) -> int:
    """The last entry that bookies which are there may lack, as marks say; -1 where they say nothing of that."""
    missing = {MarkReason.HOLE, MarkReason.DAMAGE}  # the others name bookies, whose states outlive the marks
    return max((mark.entries.last for mark in marks if mark.reason in missing), default=-1)


def merged(
    known: Iterable[UnderReplicatedMark], more: Iterable[UnderReplicatedMark]
) -> tuple[UnderReplicatedMark, ...]:
    """Marks that say what both say, in a fixed order, at most `MARKS_MAX`; a longer range may say more.

    Ranges of one reason and bookie that meet are one, with what was seen last. When there are too many, those of one
    bookie become one range; then those of one reason become one without a bookie.
    """
    found = _joined([*known, *more])
    if len(found) > MARKS_MAX:
        found = _joined(_covering(found))
    if len(found) > MARKS_MAX:
        found = _joined(_covering(replace(mark, bookie=ANY_BOOKIE) for mark in found))
    return tuple(found)


def _order(mark: UnderReplicatedMark) -> tuple[str, int, int, int, EntryRange]:
    entries = mark.entries
    return mark.bookie, mark.reason.value, entries.period, entries.stripes, entries


def _joined(marks: Iterable[UnderReplicatedMark]) -> list[UnderReplicatedMark]:
    """Ranges of one kind that overlap or follow each other become one."""
    found: list[UnderReplicatedMark] = []
    for mark in sorted(marks, key=_order):
        last = found[-1] if found else None
        if (
            last is not None
            and _order(last)[:4] == _order(mark)[:4]
            and mark.entries.first <= last.entries.last + 1
        ):
            end = max(last.entries.last, mark.entries.last)
            found[-1] = _union((last, mark), last.entries._replace(last=end))
        else:
            found.append(mark)
    return found


def _covering(marks: Iterable[UnderReplicatedMark]) -> list[UnderReplicatedMark]:
    """One range over all of each reason and bookie."""
    groups: defaultdict[tuple[str, MarkReason], list[UnderReplicatedMark]] = defaultdict(list)
    for mark in marks:
        groups[mark.bookie, mark.reason].append(mark)
    return [
        _union(group, EntryRange(min(m.entries.first for m in group), max(m.entries.last for m in group)))
        for group in groups.values()
    ]


def _union(group: Iterable[UnderReplicatedMark], entries: EntryRange) -> UnderReplicatedMark:
    """These marks as one; what was seen last is kept, and the fields of later versions are that mark's."""
    newest = max(group, key=lambda mark: (mark.seen_ms, mark.record_version, mark.seen_by))
    return replace(newest, entries=entries)
