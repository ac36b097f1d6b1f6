"""What an audit asks of its driver, what the driver reports, how it ends, and within what limits it works. Effects are data.

Source: docs/protocol/audit.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from quire.core.ids import BookieId, LedgerId


class AuditStatus(Enum):
    """Where an auditor is."""

    IDLE = "idle"
    LOOKING = "looking"
    """It asks which bookies are there."""
    LISTING = "listing"
    """It reads the records of all ledgers."""
    MARKING = "marking"
    """Marks are being written."""


@dataclass(frozen=True, slots=True)
class AuditLimits:
    """How often an auditor audits, and how much at a time.

    Attributes:
        tick_s: the most that one tick adds to the time that a bookie has been away, or read-only.
        again_s: while bookies are away, the ledgers are read again after so long: writers make ledgers that name them.
        pause_s_max: where the doubling pause after a failure stops.
        marks_at_once: how many marks one effect asks for.
    """

    tick_s: int = 10
    again_s: int = 3600
    pause_s_max: int = 300
    marks_at_once: int = 1000


LIMITS: Final = AuditLimits()


class CountedState(Enum):
    """In which state of a bookie auditors count how long it lasts."""

    AWAY = "away"
    """It is not registered."""
    READ_ONLY = "read-only"
    """It has registered as read-only: it has its entries, and takes no copies."""


class Counted(NamedTuple):
    """How long a bookie has been in a state, as it is stored, and the version of that."""

    seconds: int
    version: int


@dataclass(frozen=True, slots=True)
class ClusterBookies:
    """What the metadata store says of the cluster's bookies.

    Attributes:
        registered: the bookies that are there, the read-only ones too.
        cookies: the bookies that have a cookie.
        away: what auditors have counted of bookies that are away.
        delay_s: how long a bookie may be away.
        enabled: whether auto-recovery is switched on.
        read_only: of those that are there, the ones that take no copies.
        read_only_for: what auditors have counted of those.
    """

    registered: Collection[BookieId]
    cookies: Collection[BookieId]
    away: Mapping[BookieId, Counted]
    delay_s: int
    enabled: bool = True
    read_only: Collection[BookieId] = ()
    read_only_for: Mapping[BookieId, Counted] = field(default_factory=dict)


class MissingMark(NamedTuple):
    """A ledger to mark. Marks sort by what is to be repaired first.

    Attributes:
        copies: the fewest copies that a write set of it has left.
        ledger_id: which.
        bookies: of the ledger's bookies, those whose copies are due.
        is_stream: it is a stream, which has marks of its own.
    """

    copies: int
    ledger_id: LedgerId
    bookies: tuple[BookieId, ...]
    is_stream: bool = False


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The result of an audit.

    Attributes:
        concluded: whether every ledger was read and marked; else it is done again.
        why: why it was not concluded; empty if it was.
        ledgers: how many records were read.
        marked: how many ledgers were marked.
        unreadable: ledgers whose records cannot be read, the first of them.
        away: bookies that are away, each with the seconds since it left.
    """

    concluded: bool
    why: str
    ledgers: int
    marked: int
    unreadable: tuple[int, ...]
    away: Mapping[BookieId, int]


# --- effects ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadBookies:
    """Read registrations, cookies, counters and settings; answer `bookies_read` or `bookies_unread`."""


@dataclass(frozen=True, slots=True)
class CountTime:
    """Store how long a bookie has been in a state, in place of a version (None: it must be new); answer `counted` if it was."""

    state: CountedState
    bookie: BookieId
    seconds: int
    version: int | None


@dataclass(frozen=True, slots=True)
class EndCount:
    """Remove the counter of a bookie whose state is over, by its version. No answer."""

    state: CountedState
    bookie: BookieId
    version: int


@dataclass(frozen=True, slots=True)
class ListLedgers:
    """Read the next records, those of ledgers above an id (None: from the first); answer `ledgers_listed` or `listing_failed`."""

    after: int | None


@dataclass(frozen=True, slots=True)
class MarkLedgers:
    """Mark ledgers, in this order, some at a time; answer `marked` or `marking_failed`."""

    marks: tuple[MissingMark, ...]


@dataclass(frozen=True, slots=True)
class AuditEnded:
    """An audit is over. No answer."""

    report: AuditReport


AuditEffect: TypeAlias = ReadBookies | CountTime | EndCount | ListLedgers | MarkLedgers | AuditEnded
