"""Quorum arithmetic: who stores an entry, and when enough have answered.

Sets of slots are bit masks (bit s = slot s). No state, no I/O; `rules.py` says where each formula is used.

Source: BookKeeper protocol, "Write Quorums", "Ack Quorums"; Vanlightly's guide, "Operations and the Different
Quorums".
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from quire.core.errors import InvalidQuorumError
from quire.core.ids import ENSEMBLE_MAX, Slot


def check_quorums(ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
    """Refuse a triple that is not E >= Qw >= Qa >= 1.

    Raises:
        InvalidQuorumError: naming the pair that is wrong.

    Source: BookKeeper protocol, "Ledgers": "E >= Qw >= Qa".
    """
    if ack_quorum < 1:
        msg = f"ack quorum must be at least 1, got {ack_quorum}"
        raise InvalidQuorumError(msg)
    if write_quorum < ack_quorum:
        msg = f"write quorum ({write_quorum}) must be at least the ack quorum ({ack_quorum})"
        raise InvalidQuorumError(msg)
    if ensemble_size < write_quorum:
        msg = f"ensemble size ({ensemble_size}) must be at least the write quorum ({write_quorum})"
        raise InvalidQuorumError(msg)
    if ensemble_size > ENSEMBLE_MAX:
        msg = f"ensemble size ({ensemble_size}) must be at most {ENSEMBLE_MAX}"
        raise InvalidQuorumError(msg)


@lru_cache(maxsize=4096)
def _write_set_of_stripe(stripe: int, ensemble_size: int, write_quorum: int) -> tuple[Slot, ...]:
    return tuple(Slot((stripe + i) % ensemble_size) for i in range(write_quorum))


def write_set(entry_id: int, ensemble_size: int, write_quorum: int) -> tuple[Slot, ...]:
    """The slots that store an entry, in the order in which readers ask them.

    Source: BookKeeper protocol, "Write Quorums": "starting at the bookie at index (entryid % E)".
    """
    return _write_set_of_stripe(entry_id % ensemble_size, ensemble_size, write_quorum)


def write_set_mask(entry_id: int, ensemble_size: int, write_quorum: int) -> int:
    """`write_set` as a bit mask of slots."""
    return sum(1 << slot for slot in write_set(entry_id, ensemble_size, write_quorum))


@lru_cache(maxsize=4096)
def fewest_copies(ensemble_size: int, write_quorum: int, absent: int) -> int:
    """How many copies the write set has that has the fewest, when these slots (a mask) have none."""
    return min((mask & ~absent).bit_count() for mask in write_set_masks(ensemble_size, write_quorum))


@lru_cache(maxsize=256)
def write_set_masks(ensemble_size: int, write_quorum: int) -> tuple[int, ...]:
    """Every write set that an ensemble has, as masks of slots: one where E = Qw, else E, by entry id mod E."""
    count = ensemble_size if ensemble_size > write_quorum else 1
    return tuple(write_set_mask(entry, ensemble_size, write_quorum) for entry in range(count))


def check_min_present(min_present: int, ensemble_size: int, ack_quorum: int) -> None:
    """Refuse a minimum of present bookies that is not Qa to E.

    Raises:
        InvalidQuorumError: naming the limit that is broken.
    """
    if not ack_quorum <= min_present <= ensemble_size:
        msg = (
            f"`min_present` ({min_present}), the bookies that must be writable when a ledger is "
            f"created, must be from the ack quorum ({ack_quorum}) to the ensemble size "
            f"({ensemble_size})"
        )
        raise InvalidQuorumError(msg)


@lru_cache(maxsize=4096)
def stripes_of_slot(slot: int, ensemble_size: int, write_quorum: int) -> int:
    """The stripes (entry id mod E) that a slot stores, as a bit mask.

    Entry e is stored on slot p when (p - e) mod E < Qw.
    """
    return sum(1 << ((slot - i) % ensemble_size) for i in range(write_quorum))


def entry_coverage(write_quorum: int, ack_quorum: int) -> int:
    """How many of a write set must lack an entry before it cannot have been confirmed.

    Source: Vanlightly's guide, "Operations and the Different Quorums": "Writeset Quorum Coverage (QC) where QC = (WQ
    - AQ) + 1".
    """
    return write_quorum - ack_quorum + 1


def covers_exactly(known: int, ensemble_size: int, write_quorum: int, ack_quorum: int) -> bool:
    """Whether the known slots leave fewer than Qa unknown ones in every write set: enough have answered for a recovery.

    Args:
        known: mask of the slots that gave a valid answer.

    Source: BookKeeper protocol, "Closing a ledger as a reader": "at least (Qw-Qa)+1 bookies from each write quorum in
    the ensemble".
    """
    for start in range(ensemble_size):
        unknown = 0
        for i in range(write_quorum):
            if not known >> ((start + i) % ensemble_size) & 1:
                unknown += 1
        if unknown >= ack_quorum:
            return False
    return True


def told_through(
    first: int,
    last: int,
    entry_ids: Sequence[int],
    conclusive_through: int,
    unknown: Sequence[tuple[int, int]],
    stripes: int,
    period: int,
) -> int:
    """The last id such that a response says something about it and about each lower id asked for; first - 1 if none.

    Args:
        stripes: mask of the stripes (id mod `period`) that the bookie stores; of others it need not speak.

    Source: `docs/formats/native-protocol.md`, "Answers".
    """
    through = max(conclusive_through, first - 1)
    for lower, upper in sorted(unknown):
        if lower <= through + 1:
            through = max(through, upper)
    if through >= last or not entry_ids or entry_ids[-1] <= through:
        return min(through, last)
    for entry_id in entry_ids:
        if entry_id > through:
            if any(stripes >> skipped % period & 1 for skipped in range(through + 1, entry_id)):
                break
            through = entry_id
    return min(through, last)
