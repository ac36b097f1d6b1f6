"""What a repair asks of its driver, how it ends, and within what limits it works. Effects are data.

Source: docs/protocol/repair.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from quire.core.ids import BookieId
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.notes import EntryRange, LedgerNotes
from quire.core.ledger.terms import NO_TERM
from quire.core.state_table import StateTable


class RepairStatus(Enum):
    """Where a repair is. VERIFYING: it lists what it copied to; CLEARING: bookies that are whole end their limbo."""

    IDLE = "idle"
    READING = "reading"
    LISTING = "listing"
    COPYING = "copying"
    VERIFYING = "verifying"
    STORING = "storing"
    CLEARING = "clearing"
    ENDED = "ended"


class RepairOutcome(Enum):
    """How a repair ended."""

    WHOLE = "whole"
    """Every decided fragment is on bookies that are there, and each has its entries."""
    QUIET = "quiet"
    """Nothing more can be done: what is left is lost, or only lost bookies have it."""
    INCOMPLETE = "incomplete"
    """Something is left that another repair may do; the report says what."""
    DELETED = "deleted"


REPAIR_TABLE: Final = StateTable(
    RepairStatus,
    {
        "start": "idle > reading",
        "bookies_changed": "idle reading listing copying verifying storing clearing > =; ended > -",
        "record_read": "reading > listing storing clearing ended;"
        " idle listing copying verifying storing clearing ended > -",
        "listed": "listing > = reading copying storing clearing ended;"
        " verifying > = reading listing copying storing ended;"
        " idle reading copying storing clearing ended > -",
        "copied": "copying > = verifying; idle reading listing verifying storing clearing ended > -",
        "stored": "storing > reading listing copying clearing ended;"
        " idle reading listing copying verifying clearing ended > -",
        "conflicted": "storing > reading ended; idle reading listing copying verifying clearing ended > -",
        "unknown": "storing > reading ended; idle reading listing copying verifying clearing ended > -",
        "limbo_cleared": "clearing > ended; idle reading listing copying verifying storing ended > -",
    },
)
"""What the inputs of a repair do; answers that come when nothing asks for them are ignored."""


# --- effects ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """Read the ledger's record and its notes, linearizably; answer `record_read`."""


@dataclass(frozen=True, slots=True)
class ListReplica:
    """Ask a bookie what it holds of the ledger, and whether it is in limbo; answer `listed`.

    `term`: of a stream whose terms only fence, that of its record. The bookie takes it first, and what it holds of other
    origin terms in decided fragments (`dirty_parts`) is dropped, so that no client changes what it lists.
    """

    bookie: BookieId
    term: int = NO_TERM


@dataclass(frozen=True, slots=True)
class CopyRange:
    """Copy entries to a bookie, with the ledger's token and with low priority; answer `copied`.

    Attributes:
        bookie: where to.
        entries: which.
        sources: the bookies that list all of them, and after these others that list some.
        origin_term: of a stream: the term in which all of them were written, which stays theirs.
        term: of a stream: that of its record, which the sender names.
    """

    bookie: BookieId
    entries: EntryRange
    sources: tuple[BookieId, ...]
    origin_term: int = 0
    term: int = 0


@dataclass(frozen=True, slots=True)
class WriteRepaired:
    """Replace the record at `version` by compare-and-swap; answer `stored`, `conflicted` or `unknown`."""

    record: LedgerMetadata
    notes: LedgerNotes
    version: int


@dataclass(frozen=True, slots=True)
class EndLimbo:
    """Tell a bookie that what it had lost is there again; answer `limbo_cleared`."""

    bookie: BookieId
    limbo_lsn: int


@dataclass(slots=True)
class RepairReport:
    """What a repair did and what it left.

    Attributes:
        replaced: by the first entry of a fragment, the bookie that left it and the one that took its slot.
        copied: entries that were stored somewhere.
        cleared: bookies whose limbo ended.
        lost: entries that every bookie of their write set says not to have, or has damaged.
        gone_only: entries that only permanently lost bookies may have.
        unanswered: entries of which nothing can be said yet, since a bookie did not respond.
        accepted: of `lost` and `gone_only`, those whose loss stands in the record: a person accepted it.
        refused: bookies that did not list, did not take copies, or did not end their limbo, with why; another may have
            taken their part.
        read_only: of those, the ones that take no copies because they are read-only. True: another was to take their part of
            a fragment; False: they are waited for.
        left: what stands in the way of more, by bookie that the record names.
        undecided: permanently lost bookies that a fragment names whose end is not decided.
        stopped: why the repair gave up before its end, if it did.
    """

    replaced: list[tuple[int, BookieId, BookieId]] = field(default_factory=list)
    copied: int = 0
    cleared: list[BookieId] = field(default_factory=list)
    lost: tuple[EntryRange, ...] = ()
    gone_only: tuple[EntryRange, ...] = ()
    unanswered: tuple[EntryRange, ...] = ()
    accepted: tuple[EntryRange, ...] = ()
    refused: dict[BookieId, str] = field(default_factory=dict)
    read_only: dict[BookieId, bool] = field(default_factory=dict)
    left: dict[BookieId, str] = field(default_factory=dict)
    undecided: tuple[BookieId, ...] = ()
    stopped: str = ""

    @property
    def waits_for_gone(self) -> bool:
        """Whether entries that only lost bookies may have are waited for."""
        return not {*self.gone_only} <= {*self.accepted}

    @property
    def is_settled(self) -> bool:
        """Whether nothing is missing but what a person accepted to be lost."""
        return not self.unanswered and {*self.lost, *self.gone_only} <= {*self.accepted}


@dataclass(frozen=True, slots=True)
class RepairEnded:
    """The repair has ended."""

    outcome: RepairOutcome
    report: RepairReport


RepairEffect: TypeAlias = ReadRecord | ListReplica | CopyRange | WriteRepaired | EndLimbo | RepairEnded


@dataclass(frozen=True, slots=True)
class RepairLimits:
    """How much a repair does at once, and how often it begins again.

    Attributes:
        piece_entries: entries of one `CopyRange`; what is under way when a repair is interrupted is copied again.
        pieces_max: so many are under way at once.
        rounds_max: so often the record may have changed, or what was copied may be missing again.
    """

    piece_entries: int = 2048
    pieces_max: int = 4
    rounds_max: int = 8


class ReadOnlyBookies(NamedTuple):
    """The registered bookies that take no copies.

    Attributes:
        seconds: for how long each has been so, as auditors have counted; 0 where none has.
        delay_s: how long a bookie may be so before what it lacks is copied to another.
    """

    seconds: Mapping[BookieId, int]
    delay_s: int


NONE_READ_ONLY: Final = ReadOnlyBookies({}, 0)


@dataclass(frozen=True, slots=True)
class Loss:
    """A person's word that a ledger is to be kept without what only lost bookies have.

    Attributes:
        accepted_ms: wall time.
        accepted_by: who.
        ranges: the entries that this is about; None: whatever they are.
    """

    accepted_ms: int
    accepted_by: str
    ranges: tuple[EntryRange, ...] | None = None

    def covers(self, entries: EntryRange) -> bool:
        """Whether the loss of these entries is accepted."""
        return self.ranges is None or any(
            each.first <= entries.first and entries.last <= each.last for each in self.ranges
        )


LIMITS: Final = RepairLimits()
