"""The steps of each bookie's collector in a ledger's world: it drops copies that the record does not give the bookie.

The first look, the pending deletion, the lists of the members, the last look, and the drop that its answer allows are steps
of their own, between which anything may happen. A list of all members is one step: a change of the record between two
of them is seen by the last look. Entries are bits.

Source: `core/bookie/over_replication.py`; docs/protocol/collection.md, "Over-replicated entries".
"""

from __future__ import annotations

from typing import Final

from quire.core.bookie.over_replication import (
    OverReplicatedRange,
    RecordLook,
    is_listed,
    may_drop_over_replicated,
    over_replicated_ranges,
)
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.replica import Replica, period_of
from quire_testing.explorer.bookies import BookieState, Collecting
from quire_testing.explorer.clients import bookie_name
from quire_testing.explorer.messages import entries_text
from quire_testing.explorer.parts import Store, WorldParts
from quire_testing.explorer.repairers import entries_of_decided
from quire_testing.explorer.tables import Label, Move, State

BOUND: Final = 0
NOW: Final = 1
"""The LSN of the first look, and that of whatever is put later: an entry's own LSN is whether it was put since."""


class OverReplicationSteps:
    """What collectors do in a world."""

    def __init__(self, world: WorldParts) -> None:
        self._world = world

    def moves_of(self, state: State, moves: list[Move]) -> None:
        """Every step that a collector can take."""
        store = self._world.stores.parts[state[self._world.at.store]]
        for number in range(self._world.n):
            bookie = self._world.bookies.parts[state[number]]
            if not bookie.lost and bookie.facts is not None and store.record is not None:
                self._collects(state, number, bookie, store, moves)

    def _collects(
        self, state: State, number: int, bookie: BookieState, store: Store, moves: list[Move]
    ) -> None:
        at, rules = bookie.collecting, self._world.switches.rules
        assert store.record is not None
        if at is None:
            ranges = over_replicated_ranges(store.record, store.notes, bookie_name(number), rules)
            over_replicated, unlisted = (
                sum(map(self._bits, some)) for some in (ranges, [one for one in ranges if one.members])
            )
            if bookie.held & over_replicated:
                looked = Collecting("looked", store.version, over_replicated, unlisted)
                after = bookie._replace(collecting=looked, put=0)
                self._stepped(state, number, after, f"looks: v{store.version}", moves)
            return
        written = bool(bookie.put)
        if at.step == "looked":
            after, what = bookie._replace(collecting=None), "deletes nothing"
            if not written:
                after = bookie._replace(collecting=at._replace(step="pending"), pending_deletion=at.entries)
                what = f"has a pending deletion of {entries_text(at.entries)}"
            self._stepped(state, number, after, what, moves)
        elif at.step == "pending":
            after = bookie._replace(collecting=at._replace(step="listed", unlisted=0))
            what = "asks for no list"
            if at.unlisted & bookie.held:
                listed = self._listed_by_members(state, number, bookie, store)
                what = f"hears lists: {'they have all' if listed else 'some is missing'}"
                if not listed:
                    after = _over(bookie)
            self._stepped(state, number, after, what, moves)
        elif at.step == "listed":
            after = bookie._replace(collecting=at._replace(step="asked", again=store.version))
            self._stepped(state, number, after, f"asks for the record once more: v{store.version}", moves)
        else:
            self._drops(state, number, bookie, written, moves)

    def _listed_by_members(self, state: State, number: int, bookie: BookieState, store: Store) -> bool:
        """Whether each member lists what is held of the entries that need it; the record is that of the first look."""
        record = store.record
        assert record is not None
        assert bookie.collecting is not None
        if store.version != bookie.collecting.version:
            return False
        lists = {
            bookie_name(member): Replica(
                self._world.bookie_driver.listed(self._world.bookies.parts[state[member]]), period_of(record)
            )
            for member in range(self._world.n)
        }
        held = self._world.bookie_driver.listed(bookie._replace(pending_deletion=0)).held
        ranges = over_replicated_ranges(record, store.notes, bookie_name(number), self._world.switches.rules)
        return all(is_listed(one, held, record, lists) for one in ranges if one.members)

    def _drops(
        self, state: State, number: int, bookie: BookieState, written: bool, moves: list[Move]
    ) -> None:
        """The answer to the last look arrives, and allows the drop or does not."""
        at = bookie.collecting
        assert at is not None
        over = OverReplicatedRange(0, 0, ())
        first = RecordLook(at.version, BOUND, (over,))
        after = _over(bookie)
        dropped = bookie.held & at.entries
        if not may_drop_over_replicated(
            first, RecordLook(at.again, NOW, (over,)), over, written=written, listed=not at.unlisted
        ):
            self._stepped(state, number, after, "keeps them", moves)
            return
        after = after._replace(
            held=bookie.held & ~dropped,
            damaged=bookie.damaged & ~dropped,
            journal=(*after.journal, ("drop", dropped, None)),
        )
        after = after._replace(fault=after.fault or self._fault_of_drop(state, number, dropped))
        after, _ = self._world._settled(state, after)
        self._stepped(state, number, after, f"drops {entries_text(dropped)}", moves)

    def _fault_of_drop(self, state: State, number: int, dropped: int) -> tuple[str, str] | None:
        store = self._world.stores.parts[state[self._world.at.store]]
        record = store.record
        if record is None:
            return None
        own = 0
        for bookie, wanted in entries_of_decided(record):
            own |= wanted if bookie == number else 0
        if own & dropped and store.whole:
            return "RR2", "a bookie dropped what the record gives it, after a repair had found it whole"
        others = [
            self._world.bookies.parts[state[other]] for other in range(self._world.n) if other != number
        ]
        left = 0
        for other in others:
            left |= 0 if other.lost else other.held & ~other.damaged
        if dropped & ~left & self._decided(record):
            return "RR4", "a bookie dropped the last readable copy of an entry"
        return None

    def _decided(self, record: LedgerMetadata) -> int:
        found = 0
        for _, wanted in entries_of_decided(record):
            found |= wanted
        return found

    def _stepped(self, state: State, number: int, after: BookieState, what: str, moves: list[Move]) -> None:
        label = Label(bookie_name(number), f"collects: {what}", (), kind="collect")
        moves.append((label, self._world._with_bookie(state, number, after)))

    def _bits(self, over: OverReplicatedRange) -> int:
        last = min(over.last, self._world.configuration.entries_written - 1)
        return sum(1 << entry for entry in range(over.first, last + 1))


def _over(bookie: BookieState) -> BookieState:
    """Its collector has ended, whatever came of it."""
    return bookie._replace(collecting=None, pending_deletion=0, put=0)
