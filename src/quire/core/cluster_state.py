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


def standing(*, writable: bool, responds: bool) -> BookieStanding:
    """What a registered bookie can be counted on for.

    Args:
        writable: whether it is registered as taking entries.
        responds: whether it responded when it was asked.
    """
    if not writable:
        return BookieStanding.READ_ONLY
    return BookieStanding.WRITABLE if responds else BookieStanding.SILENT


class ClusterBookie(NamedTuple):
    """A bookie of the cluster.

    Attributes:
        bookie: its id.
        standing: what it can be counted on for.
        needy: it reports something that needs a person or time, or cannot report.
        zone: where it stands; nothing is placed by it yet.
    """

    bookie: BookieId
    standing: BookieStanding
    needy: bool = False
    zone: str = ""


class ClusterHealth(Enum):
    """How a cluster is; its value is what reports call it."""

    HEALTHY = "healthy"
    ATTENTION = "attention"
    """Logs can be written, and something needs a person or time."""
    UNHEALTHY = "unhealthy"
    """No ledger of the first shape can be created, or the metadata store takes no change."""


class ShapeJudgement(NamedTuple):
    """Whether a ledger of a shape can be created now.

    Attributes:
        shape: which.
        absent: the bookies without which it begins; which of them is drawn for each ledger.
        absent_slots: how many slots of it are absent.
        refusal: why none can be created; empty if one can.
    """

    shape: Shape
    absent: tuple[BookieId, ...]
    absent_slots: int
    refusal: str


class ClusterJudgement(NamedTuple):
    """The result.

    Attributes:
        health: how the cluster is.
        writable: the bookies that take entries.
        needy: the bookies that need a person or time.
        shapes: what can be created of each shape, in the order in which they were asked for.
    """

    health: ClusterHealth
    writable: tuple[BookieId, ...]
    needy: tuple[BookieId, ...]
    shapes: tuple[ShapeJudgement, ...]


class _Zero:
    """Chance without effect: whether a ledger can be placed does not depend on where its absent slots are."""

    def getrandbits(self, k: int, /) -> int:  # noqa: ARG002 - the shape of a random source
        return 0


def judge(
    shapes: Sequence[Shape],
    bookies: Sequence[ClusterBookie],
    *,
    takes_changes: bool = True,
    has_old_marks: bool = False,
) -> ClusterJudgement:
    """How a cluster is, for ledgers of some shapes.

    Args:
        shapes: what ledgers ask for: E, Qw, Qa, and how many bookies must be there. The first is what a cluster must be able to
            create; with another that cannot be created a log cannot go on, and needs attention.
        bookies: all that are registered or have a cookie.
        takes_changes: whether the metadata store took a change.
        has_old_marks: whether a ledger has been marked as under-replicated for longer than a worker needs to begin.
    """

    def of(*standings: BookieStanding) -> list[BookieId]:
        return [one.bookie for one in bookies if one.standing in standings]

    writable, read_only = of(BookieStanding.WRITABLE), of(BookieStanding.READ_ONLY)
    others = of(BookieStanding.DOWN, BookieStanding.SILENT)
    found: list[ShapeJudgement] = []
    for shape in shapes:
        refusal, absent_slots = "", 0
        try:
            absent_slots = len(place_ledger(shape, writable, others, _Zero(), read_only=read_only).absent)
        except NotEnoughBookiesError as error:
            refusal = error.message
        absent = (*read_only, *others) if absent_slots else ()
        found.append(ShapeJudgement(shape, absent, absent_slots, refusal))
    needy = tuple(one.bookie for one in bookies if one.needy or one.standing is not BookieStanding.WRITABLE)
    health = ClusterHealth.HEALTHY
    if needy or has_old_marks or any(one.refusal for one in found):
        health = ClusterHealth.ATTENTION
    if found[0].refusal or not takes_changes:
        health = ClusterHealth.UNHEALTHY
    return ClusterJudgement(health, tuple(writable), needy, tuple(found))
