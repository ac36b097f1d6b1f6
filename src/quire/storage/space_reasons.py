"""What holds the bytes of a bookie's segment files: each byte has one reason, and each reason has what ends it.

And whether the bookie needs space. Pure: figures of the segments and the disk come in, bytes by reason, sentences for people,
and whether space is needed come out.

Source: docs/operations.md, "What holds space"; `docs/formats/segment.md`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

SCARCE_SHARE: Final = 0.3
"""With less of the disk free than this, space is brought back before the next pass is due."""


class FreeSpace(NamedTuple):
    """The file system of a bookie's directory.

    Attributes:
        free: bytes that are free.
        whole: its size.
    """

    free: int
    whole: int

    @property
    def share(self) -> float:
        """How much is free, 0 to 1; 1 where nothing is known."""
        return self.free / self.whole if self.whole else 1.0


UNKNOWN_SPACE: Final = FreeSpace(0, 0)

SOON_SECONDS: Final = 15.0
"""Before a disk is full space is looked for so early, and earlier where that takes long itself."""
PASSES: Final = 4


def is_wanted_soon(now: FreeSpace, left: FreeSpace, waited_s: float, pass_s: float) -> bool:
    """Whether space has to come back before the next pass is due: at this rate the disk would be full by then, or nearly.

    A disk that stays as full as it is asks for nothing.

    Args:
        now: the disk.
        left: the same at the end of the last pass.
        waited_s: seconds since then.
        pass_s: how long the last pass took.
    """
    used = left.free - now.free
    if now.share >= SCARCE_SHARE or used <= 0:
        return False
    return now.free * waited_s <= used * (SOON_SECONDS + PASSES * pass_s)


REST: Final = 48.0
"""Compaction leaves a bookie's loop, and removal its disk, to others for so many times as long as it works: of a hundred adds one finds it at work."""


WAITING: Final = 64
"""With so many files to remove it rests half as long: what is deleted all the time must not pile up."""


def rest_share(now: FreeSpace, waiting: int = 0) -> float:
    """How many times as long as it works housekeeping rests, so that others hardly notice it; the scarcer space is, the shorter.

    A full disk, which takes no entries, is not meant: no client needs the rest.

    Args:
        now: the disk.
        waiting: files that wait to be removed.
    """
    return REST * min(now.share / SCARCE_SHARE, 1.0) / (1 + waiting / WAITING)


class Reason(StrEnum):
    """Why bytes are not free."""

    LIVE = "live"
    GRACE = "grace"
    OVER_REPLICATED = "extras"
    ORPHANS = "orphans"
    STOPPED = "held"
    DELETED = "deleted"
    SPARSE = "sparse"
    DAMAGE = "damage"
    PINNED = "pinned"
    RETIRED = "retired"
    TOMBSTONES = "tombstones"
    FILLING = "filling"
    PADDING = "padding"
    RESERVE = "reserve"
    SPARES = "spares"


class SegmentUse(NamedTuple):
    """What is in one segment, in bytes.

    Attributes:
        whole: the size of its file.
        live: records of runs of which something lives.
        dead: the other records of runs.
        unused: where nothing was written yet, in a segment that is not sealed.
        sealed: nothing more comes into it.
        lives: something in it lives: it cannot be freed as it is.
        stays: it is not compacted, because of damage.
        retired: nothing is read of it any more, and its file is on the way back.
        pinned: a reader still uses it.
    """

    whole: int
    live: int
    dead: int
    unused: int = 0
    sealed: bool = True
    lives: bool = True
    stays: bool = False
    retired: bool = False
    pinned: bool = False


def bytes_by_reason(
    segments: Iterable[SegmentUse],
    *,
    spares: int,
    reserve: int,
    segment_bytes: int,
    tombstones: int,
    among_live: Mapping[Reason, int],
) -> dict[Reason, int]:
    """Give every byte of the segments' files one reason; the sum is the size of all files.

    Args:
        segments: those in use.
        spares: files that wait to become segments.
        reserve: so many of them only fences, deletes, recovery and compaction may use.
        segment_bytes: the size of a spare.
        tombstones: bytes of the records of deleted ledgers.
        among_live: bytes of what lives here and is to go, or may have to: over-replicated entries, ledgers without a record.
    """
    found = dict.fromkeys(Reason, 0)
    for one in segments:
        if one.retired or one.pinned:
            found[Reason.PINNED if one.pinned else Reason.RETIRED] += one.whole
            continue
        if one.sealed and not one.lives:
            found[Reason.DELETED] += one.whole
            continue
        found[Reason.LIVE] += one.live
        found[Reason.DAMAGE if one.stays else Reason.SPARSE] += one.dead
        found[Reason.FILLING] += one.unused
        found[Reason.PADDING] += one.whole - one.live - one.dead - one.unused
    for reason, size in among_live.items():
        taken = min(size, found[Reason.LIVE])
        found[Reason.LIVE] -= taken
        found[reason] += taken
    taken = min(tombstones, found[Reason.PADDING])
    found[Reason.PADDING] -= taken
    found[Reason.TOMBSTONES] = taken
    found[Reason.RESERVE] = min(spares, reserve) * segment_bytes
    found[Reason.SPARES] = max(spares - reserve, 0) * segment_bytes
    return found


class SpaceContext(NamedTuple):
    """The figures that the sentences are made from.

    Attributes:
        free_percent: of the disk.
        compacts_below_percent: with less free, sparse segments are compacted.
        pass_seconds: how often the collector makes a pass by itself; 0: never.
        grace_seconds: until the first of the over-replicated entries may go.
        tombstone_seconds: until the first tombstone shrinks.
        stopped: why the collector deletes nothing; empty if it may.
        sparse_percent: of a segment so much may live for a pass to compact it now; 0: none is compacted.
        full: no entries are taken.
    """

    free_percent: int
    compacts_below_percent: int
    pass_seconds: int
    grace_seconds: int
    tombstone_seconds: int
    stopped: str = ""
    sparse_percent: int = 0
    full: bool = False


class Holding(NamedTuple):
    """Why bytes are not free, for people.

    Attributes:
        reason: one of `Reason`.
        size: bytes.
        what: what they are.
        returns: when they come back by themselves.
        sooner: what brings them back sooner; empty where nothing does.
    """

    reason: Reason
    size: int
    what: str
    returns: str
    sooner: str


_WHAT: Final[dict[Reason, str]] = {
    Reason.LIVE: "entries of ledgers",
    Reason.GRACE: "copies that the ledgers' records do not give this bookie, in their grace period",
    Reason.OVER_REPLICATED: "such copies that were kept, because other bookies have not listed theirs",
    Reason.ORPHANS: "ledgers without a record, and without a proof that they were deleted",
    Reason.STOPPED: "deleted ledgers that the collector may not drop",
    Reason.DELETED: "segments in which nothing lives",
    Reason.SPARSE: "dead entries in segments in which others live",
    Reason.DAMAGE: "dead entries in segments that are not compacted, because of damage",
    Reason.PINNED: "segments that were freed and are still being read",
    Reason.RETIRED: "segments on their way back",
    Reason.TOMBSTONES: "records of deleted ledgers",
    Reason.FILLING: "space in segments that are being filled",
    Reason.PADDING: "headers, footers, states of ledgers, and the unused ends of blocks",
    Reason.RESERVE: "files that only fences, deletes, recovery and compaction may use",
    Reason.SPARES: "files that wait to become segments",
}
_NOW: Final = "quire bookie collect --now"
_DELETE: Final = "quire ledger delete; quire log truncate"


def explain(found: Mapping[Reason, int], context: SpaceContext) -> list[Holding]:
    """The reasons that hold bytes, those with the most first, each with what ends it."""
    holdings = [
        Holding(reason, size, _WHAT[reason], *_ends(reason, context))
        for reason, size in found.items()
        if size
    ]
    return sorted(holdings, key=lambda one: (-one.size, one.reason))


def _ends(reason: Reason, context: SpaceContext) -> tuple[str, str]:
    """When bytes return by themselves, and what returns them sooner."""
    a_pass = f"with a pass of the collector, every {context.pass_seconds} s"
    if not context.pass_seconds:
        a_pass = "not by itself: the collector makes no passes (--collect-every 0)"  # noqa: S105 - no password
    compacted = f"when less than {context.compacts_below_percent} % of the disk is free ({context.free_percent} % is now)"
    if context.sparse_percent:
        compacted = f"{a_pass}, from segments of which at most {context.sparse_percent} % lives"
    ends: dict[Reason, tuple[str, str]] = {
        Reason.LIVE: ("when the ledger is deleted or the log is truncated", _DELETE),
        Reason.GRACE: (f"in {context.grace_seconds} s or more, {a_pass}", ""),
        Reason.OVER_REPLICATED: ("when the other bookies list their copies", "quire cluster repair"),
        Reason.ORPHANS: ("not by itself", "quire cluster orphans --delete"),
        Reason.STOPPED: (
            f"when collection is no longer stopped: {context.stopped}",
            "quire cluster accept-store",
        ),
        Reason.DELETED: (a_pass, _NOW),
        Reason.SPARSE: (compacted, _DELETE if context.full else "quire bookie compact --now"),
        Reason.DAMAGE: (
            "when the damaged entries were put back or their ledger is deleted",
            "quire cluster repair",
        ),
        Reason.PINNED: ("when the read has ended", ""),
        Reason.RETIRED: ("within seconds", ""),
        Reason.TOMBSTONES: (
            f"in {context.tombstone_seconds} s or more, {a_pass}",
            "a shorter --tombstones-for",
        ),
        Reason.FILLING: ("as new entries fill it", ""),
        Reason.PADDING: ("with the segments that it is in", ""),
        Reason.RESERVE: ("not at all: a full disk lives on it", "smaller segments (--segment-bytes)"),
        Reason.SPARES: ("when new segments use them", ""),
    }
    return ends[reason]
