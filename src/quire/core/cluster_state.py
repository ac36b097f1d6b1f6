"""How a cluster is: whether a ledger of some shape can be created, without which bookies, and what needs a person or time.

The one judgement of what reports on a cluster. Whether a ledger can be created it asks the function that places ledgers
(`core/ledger/placement.py`), so that no report contradicts a writer.

Source: docs/operations.md, "What a cluster reports"; docs/decisions/004-absent-slots.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from quire.core.errors import NotEnoughBookiesError
from quire.core.ids import BookieId
from quire.core.ledger.placement import Shape, place_ledger


class BookieStanding(Enum):
    """What a bookie can be counted on for; its value is what reports call it."""

    WRITABLE = "up"
    READ_ONLY = "read-only"
    SILENT = "silent"
    """It is registered as writable, and did not respond: in no report it is writable."""
    DOWN = "down"


class ClusterBookie(NamedTuple):
    """A bookie of the cluster.

    Attributes:
        bookie: its id.
        standing: what it can be counted on for.
        needy: it reports something that needs a person or time, or cannot report.
    """

    bookie: BookieId
    standing: BookieStanding
    needy: bool = False


class ClusterHealth(Enum):
    """How a cluster is; its value is what reports call it."""

    HEALTHY = "healthy"
    ATTENTION = "attention"
    """Logs can be written, and something needs a person or time."""
    UNHEALTHY = "unhealthy"
    """No ledger of the shape can be created, or the metadata store takes no change."""


class ClusterJudgement(NamedTuple):
    """The result.

    Attributes:
        health: how the cluster is.
        writable: the bookies that take entries.
        absent: the bookies without which a ledger of the shape begins; which of them is drawn for each ledger.
        absent_slots: how many slots of it are absent.
        needy: the bookies that need a person or time.
        refusal: why no ledger of the shape can be created; empty if one can.
    """

    health: ClusterHealth
    writable: tuple[BookieId, ...]
    absent: tuple[BookieId, ...]
    absent_slots: int
    needy: tuple[BookieId, ...]
    refusal: str


class _Zero:
    """Chance without effect: whether a ledger can be placed does not depend on where its absent slots are."""

    def getrandbits(self, k: int, /) -> int:  # noqa: ARG002 - the shape of a random source
        return 0


def judge(
    shape: Shape, bookies: Sequence[ClusterBookie], *, takes_changes: bool = True, has_old_marks: bool = False
) -> ClusterJudgement:
    """How a cluster is, for ledgers of a shape.

    Args:
        shape: what a ledger asks for: E, Qw, Qa, and how many bookies must be there.
        bookies: all that are registered or have a cookie.
        takes_changes: whether the metadata store took a change.
        has_old_marks: whether a ledger has been marked as under-replicated for longer than a worker needs to begin.
    """

    def of(*standings: BookieStanding) -> list[BookieId]:
        return [one.bookie for one in bookies if one.standing in standings]

    writable, read_only = of(BookieStanding.WRITABLE), of(BookieStanding.READ_ONLY)
    others = of(BookieStanding.DOWN, BookieStanding.SILENT)
    refusal, absent_slots = "", 0
    try:
        absent_slots = len(place_ledger(shape, writable, others, _Zero(), read_only=read_only).absent)
    except NotEnoughBookiesError as error:
        refusal = error.message
    needy = tuple(one.bookie for one in bookies if one.needy or one.standing is not BookieStanding.WRITABLE)
    health = ClusterHealth.ATTENTION if needy or has_old_marks else ClusterHealth.HEALTHY
    if refusal or not takes_changes:
        health = ClusterHealth.UNHEALTHY
    absent = (*read_only, *others) if absent_slots else ()
    return ClusterJudgement(health, tuple(writable), absent, absent_slots, needy, refusal)
