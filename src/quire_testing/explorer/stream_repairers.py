"""Repairers in a stream's world: each repairs once what is decided of the stream, and begins with what an operator says is gone.

A bookie's list names origin terms, and a copy is of one. The operator's word may be wrong: a bookie that is called gone may
live, and takes part as before.

Source: docs/protocol/repair.md, "Streams"; `core/repair/rereplication.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from quire.core.answers import Answer
from quire.core.ids import BookieId
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.replica import ReplicaList, dirty_parts
from quire.core.ledger.shares import HeldInterval
from quire.core.repair.effects import CopyRange, RepairOutcome, RepairStatus
from quire_testing.explorer.clients import ClientState, Outcome, bookie_name, bookie_number, with_fault
from quire_testing.explorer.messages import entries_text
from quire_testing.explorer.parts import repaired_only
from quire_testing.explorer.repairers import LISTS, RepairDriver, shares_of_decided
from quire_testing.explorer.stream_bookies import StreamBookie, Value
from quire_testing.explorer.stream_parts import StreamStoreState

if TYPE_CHECKING:
    from quire_testing.explorer.stream_world import Move, State, StreamWorld

DONE = "has repaired"
"""The result of a repairer that repairs no more."""


class StreamRepairDriver(RepairDriver):
    """A repairer's side: its copies name their origin term and the term of the record that it read."""

    def read(self, client: ClientState, piece: CopyRange, readable: int, rotten: Any) -> list[Outcome]:
        """The sources of a piece gave what they could: that is sent."""
        return [
            Outcome(
                each.client,
                tuple(
                    (bookie, (*request[:-1], piece.origin_term, piece.term)) for bookie, request in each.sends
                ),
                each.asks,
                each.said,
            )
            for each in super().read(client, piece, readable, rotten)
        ]


class StreamRepairs:
    """What repairers do in a stream's world, and what is said of their swaps and of their ends.

    Args:
        world: the stream's.
        driver: their side.
    """

    def __init__(self, world: StreamWorld, driver: StreamRepairDriver) -> None:
        self._world, self.driver = world, driver

    def moves_of(self, state: State, client: int, moves: list[Move]) -> None:
        """Every step that a repairer can take by itself."""
        world, driver = self._world, self.driver
        who = world.clients.parts[state[world.at.client + client]]
        machine = who.machine
        if machine is None:
            if who.result != DONE:
                moves += self._begins(state, client, who)
            return
        if machine.status in LISTS:
            for name in sorted(machine.plan.awaited):
                moves += self._lists(state, client, who, name)
        elif machine.status is RepairStatus.CLEARING:
            for name in sorted(machine.plan.awaited):
                moves += self._ends_limbo(state, client, who, name)
        for piece in driver.unread(who):
            moves += self._reads_piece(state, client, who, piece)

    def _bookie(self, state: State, name: BookieId) -> StreamBookie:
        return self._world.bookies.parts[state[bookie_number(name)]]

    def _begins(self, state: State, client: int, who: ClientState) -> Iterator[Move]:
        """An operator says which bookie of a decided fragment is gone, or that none is."""
        world = self._world
        record = world.stores.parts[state[world.at.store]].record
        if len(record.fragments) < 2:
            return
        named = sorted({bookie for fragment in record.fragments[:-1] for bookie in fragment.ensemble})
        for gone in [(), *((bookie,) for bookie in named)]:
            there = [bookie_name(number) for number in range(world.n) if bookie_name(number) not in gone]
            work = partial(self.driver.start, who, gone, there)
            yield from self._steps(state, client, f"repairs, gone {' '.join(gone) or 'none'}", "repair", work)

    def _steps(
        self, state: State, client: int, command: str, kind: str, work: Callable[[], list[Outcome]]
    ) -> list[Move]:
        world = self._world
        done = [world.done(client, outcome, command, kind=kind) for outcome in work()]
        return [(each[0], world.after(list(state), client, each)) for each in done]

    def _lists(self, state: State, client: int, who: ClientState, name: BookieId) -> list[Move]:
        """A bookie lists its entries; where terms only fence it takes the record's term first, and drops what others left."""
        world, number = self._world, bookie_number(name)
        record, bookie = who.machine.plan.record, self._bookie(state, name)
        answer = Answer.OK
        if record.only_fences and world.rules.list_takes_term():
            bookie, answer = world.bookie_driver.raised(bookie, record.term)
            if answer is Answer.OK:
                dirty = dirty_parts(self.listed(bookie).held, record, world.rules)
                bookie = world.bookie_driver.without_others(bookie, dirty)
        told = self.listed(bookie) if answer is Answer.OK else ReplicaList(answer)
        new = (*state[:number], world.bookies.number(bookie), *state[number + 1 :])
        return self._steps(new, client, f"lists {name}", "list", partial(self.driver.listed, who, name, told))

    def listed(self, bookie: StreamBookie) -> ReplicaList:
        """What a bookie says that it holds, entry by entry; one that has heard of nothing has no ledger."""
        if bookie.facts is None:
            return ReplicaList(Answer.NO_LEDGER)
        world, doubt = self._world, bookie.known.doubt
        size = world.configuration.ensemble
        period = 1 if world.configuration.write_quorum == size else size
        held = tuple(
            HeldInterval(entry, entry, period, 1 << entry % period, origin)
            for entry, origin in bookie.entries
        )
        return ReplicaList(Answer.OK, held, bookie.known.limbo, doubt.lsn if doubt else 0)

    def _reads_piece(self, state: State, client: int, who: ClientState, piece: CopyRange) -> list[Move]:
        """The sources give what they have of a piece under its origin term."""
        entry = piece.entries.first
        value: Value = (entry, piece.origin_term)
        readable, rotten = 0, {}
        for source in piece.sources:
            if value in self._bookie(state, source).entries:
                readable = 1 << entry
            elif not who.machine.plan.lists[source].lacks(entry % piece.entries.period, entry, entry):
                rotten[bookie_number(source)] = 1 << entry
        command = f"reads {entry} of term {piece.origin_term} for {piece.bookie}: {entries_text(readable)}"
        work = partial(self.driver.read, who, piece, readable, rotten)
        return self._steps(state, client, command, "copy", work)

    def _ends_limbo(self, state: State, client: int, who: ClientState, name: BookieId) -> list[Move]:
        """A bookie ends its limbo, or refuses to."""
        world, number = self._world, bookie_number(name)
        lsn = who.machine.plan.lists[name].told.doubt_lsn
        after, answer = world.bookie_driver.clear_limbo(world.bookies.parts[state[number]], lsn)
        new = (*state[:number], world.bookies.number(after), *state[number + 1 :])
        work = partial(self.driver.limbo_cleared, who, name, answer)
        return self._steps(new, client, f"ends the limbo {lsn} of {name}: {answer.name}", "clear", work)

    # --- what is judged ------------------------------------------------------------------------------------------------

    def judged_swap(
        self, bookies: Sequence[StreamBookie], before: StreamStoreState, after: StreamStoreState
    ) -> StreamStoreState:
        """A repairer's swap: it changes bookies of decided fragments only, and who comes in holds its share."""
        if before.fault:
            return after
        if not repaired_only(before.record, after.record):
            return after._replace(fault=("RR1", "a repair changed more than bookies of decided fragments"))
        came = [each for each in _decided(after.record) if each not in _decided(before.record)]
        if not any(bookie.losses for bookie in bookies) and any(
            value not in bookies[bookie].entries for bookie, value in came
        ):
            return after._replace(
                fault=("RR2", "a repair put a bookie into the record that lacks some of its share")
            )
        return after

    def ended(self, bookies: Sequence[StreamBookie], client: ClientState) -> ClientState:
        """A repairer that has just ended: where it says that all is whole, it is."""
        machine, fault = client.machine, client.fault
        after = ClientState(("repairer", DONE, fault), None, result=DONE, fault=fault)
        if client.result != RepairOutcome.WHOLE.name or any(bookie.losses for bookie in bookies):
            return after
        if any(value not in bookies[bookie].entries for bookie, value in _decided(machine.plan.record)):
            return with_fault(after, ("F5", "a repair says that everything is whole, and it is not"))
        return after


def _decided(record: LedgerMetadata) -> list[tuple[int, Value]]:
    """(bookie, entry) for all that the record's decided fragments promise."""
    return [
        (bookie, (entry, int(record.origin_of(entry))))
        for bookie, bits in shares_of_decided(record)
        for entry in range(bits.bit_length())
        if bits >> entry & 1
    ]
