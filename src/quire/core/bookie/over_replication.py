"""Over-replicated entries: a bookie holds them and the ledger's record does not assign them to it; when it may drop them.

A bookie was replaced, by a repair or an ensemble change, and what it had is still there; or it was sent entries above the
end at which the ledger was closed. No client asks it for them, but three things can still make them needed: the bookie is
chosen again, the last other copy was lost, or the record that was read is an old one.

1. *First look.* The bookie notes its last LSN, and then reads the record: what the record does not give it, and was put up to
   that LSN, is over-replicated.
2. *Pending deletion*, a grace period later: the bookie neither gives nor denies these entries. A repairer that lists it
   from now on does not find them, and a put cancels the deletion.
3. *Members.* Each bookie of the entries' write sets lists them, but for those above a closed end.
4. *Last look*, asked for after all that: only where the record has the same version they are dropped.

Never of a fragment that is not decided, nor after it, and never what was accepted as lost: it may be the only copy.

Source: docs/protocol/collection.md, "Over-replicated entries".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from quire.core.bookie.rules import RULES, BookieRules, DropProof
from quire.core.ids import ID_MAX, BookieId
from quire.core.ledger.metadata import LedgerMetadata, LedgerState
from quire.core.ledger.notes import EntryRange, LedgerNotes
from quire.core.ledger.quorum import stripes_of_slot
from quire.core.ledger.replica import Replica, period_of
from quire.core.ledger.stripes import HeldInterval


class OverReplicatedRange(NamedTuple):
    """Entries first..last of a ledger, of which a bookie has none to keep.

    Attributes:
        first: of the range.
        last: its last id; `ID_MAX` above a closed end.
        members: who has them by the record, by slot; none above a closed end.
    """

    first: int
    last: int
    members: tuple[BookieId, ...]


class RecordLook(NamedTuple):
    """What one look at the record shows.

    Attributes:
        version: of the record.
        through: the last LSN of the bookie before the record was asked for.
        ranges: what the record does not give the bookie, ascending.
    """

    version: int
    through: int
    ranges: tuple[OverReplicatedRange, ...]


def over_replicated_ranges(
    record: LedgerMetadata, notes: LedgerNotes, bookie: BookieId, rules: BookieRules = RULES
) -> tuple[OverReplicatedRange, ...]:
    """The ranges of a ledger of which its record gives a bookie nothing, and whose copies may be dropped.

    Of a fragment that names the bookie, all stays: what it holds there of other stripes goes with the ledger. So does
    all of a stream, where an id alone names no entry.
    """
    found: list[OverReplicatedRange] = []
    if record.term:
        return ()
    for index, fragment in enumerate(record.fragments):
        last = record.last_entry_of_fragment(index)
        if last is None or last < fragment.first_entry or bookie in fragment.ensemble:
            continue
        span = EntryRange(fragment.first_entry, last)
        accepted = any(lost.overlaps(span) for loss in notes.losses for lost in loss.ranges)
        proof = rules.drop_proof(above_end=False, accepted_loss=accepted)
        if proof is not DropProof.NONE:
            members = tuple(fragment.ensemble) if proof is DropProof.MEMBERS else ()
            found.append(OverReplicatedRange(span.first, span.last, members))
    above = rules.drop_proof(above_end=True, accepted_loss=False)
    if record.state is LedgerState.CLOSED and above is DropProof.RECORD:
        found.append(OverReplicatedRange(record.last_entry + 1, ID_MAX, ()))
    return tuple(found)


def is_listed(
    over: OverReplicatedRange,
    held: Iterable[HeldInterval],
    record: LedgerMetadata,
    lists: Mapping[BookieId, Replica],
) -> bool:
    """Whether each member of the write sets of what is held of a range has listed it.

    Args:
        over: the range.
        held: what the bookie holds.
        record: the ledger's record.
        lists: by member, what it lists; one that gave no list is missing.
    """
    size = record.ensemble_size
    for each in held:
        first, last = max(each.first, over.first), min(each.last, over.last)
        if first > last:
            continue
        for slot, member in enumerate(over.members):
            replica = lists.get(member)
            if replica is None or replica.period != period_of(record):
                return False
            stripes = 1 if replica.period == 1 else stripes_of_slot(slot, size, record.write_quorum)
            for stripe in range(replica.period):
                if stripes >> stripe & 1 and replica.lacks(stripe, first, last):
                    return False
    return True


def may_drop_over_replicated(
    first: RecordLook, last: RecordLook, over: OverReplicatedRange, *, written: bool, listed: bool
) -> bool:
    """Whether a range that a first look showed may be dropped after the last one.

    Args:
        first, last: the looks.
        over: the range.
        written: something was put of the ledger, anywhere, since the LSN of the first look.
        listed: each member has listed what is held of it, after its deletion was pending and before the last look was asked for.
    """
    same = last.version == first.version and over in last.ranges
    return same and not written and (listed or not over.members)
