"""The world of one ledger: its state, and every step that can happen next.

A state is a tuple of small numbers, one for each part: bookies, store, clients, connections, open questions to the
store, budgets. A number names a part's state in a table; what a part does on an input is worked out once, by running
its machine, and remembered. So millions of states of the world cost thousands of runs of the machines.

Source: BookKeeper protocol; docs/protocol/README.md; docs/decisions/006-explorer.md.
"""

from __future__ import annotations

from quire.core.ids import BookieId
from quire.core.ledger.metadata import LedgerState
from quire.core.recovery.machine import RecoveryStatus
from quire.core.transcript import record_text
from quire_testing.explorer.beginning import NOT_CREATED, Beginning, record_of
from quire_testing.explorer.bookies import BookieState
from quire_testing.explorer.clients import bookie_number, patience
from quire_testing.explorer.configuration import Configuration
from quire_testing.explorer.faults import Faults
from quire_testing.explorer.limbo_steps import LimboSteps
from quire_testing.explorer.messages import Request
from quire_testing.explorer.over_replication_steps import OverReplicationSteps
from quire_testing.explorer.parts import Budget, Clearing, Store, WorldParts, legal, repaired_only
from quire_testing.explorer.readers import ReaderState
from quire_testing.explorer.reading import Reading
from quire_testing.explorer.repairing import Repairs
from quire_testing.explorer.switches import SHIPPED, Switches
from quire_testing.explorer.tables import Ask, Move, State


class LedgerWorld(WorldParts):
    """Every state that one ledger's world can come to. `successors` and `initial` are what the search needs."""

    def __init__(self, configuration: Configuration, switches: Switches = SHIPPED) -> None:
        super().__init__(configuration, switches)
        self.beginning = Beginning(self)
        self.faults = Faults(self)
        self.reading = Reading(self)
        self.limbo_steps = LimboSteps(self)
        self.repairs = Repairs(self)
        self.over_replication_steps = OverReplicationSteps(self)

    def initial(self) -> State:
        """A new ledger, or none yet where bookies are away; no step is done yet."""
        c = self.configuration
        if c.away or c.closed or c.changed:
            store, writer = NOT_CREATED, self.writer_driver.no_client()
        else:
            record = record_of(c)
            store = Store(record, 0)
            machine = self.switches.writer(record, 0, rules=self.switches.rules, limits=patience(c))
            writer = self.writer_driver.new(machine)
        bookie = self.bookies.number(BookieState())
        writer_number = self.clients.number(writer)
        recoverer = self.clients.number(self.recovery_driver.new())
        budget = Budget(
            c.timeouts,
            c.crashes,
            c.breaks,
            c.lost_swaps,
            c.damages,
            c.deletions,
            c.losses,
            c.reruns,
            c.transit_damages,
            c.returns,
        )
        return (
            *[bookie] * self.n,
            self.stores.number(store),
            writer_number,
            *[recoverer] * c.recoverers,
            *[self.clients.number(self.repair_driver.new())] * c.repairers,
            *[self.no_link] * (self.count * self.n),
            *[self.no_ask] * self.count,
            *[self.readers.number(ReaderState())] * c.readers,
            *([self.clearings.number(Clearing(c.clears))] if c.clears else []),
            self.budgets.number(budget),
        )

    def successors(self, state: State) -> list[Move]:
        """Every next step: a label and the state after it."""
        moves: list[Move] = []
        if self.stores.parts[state[self.at.store]] == NOT_CREATED:
            return self.beginning.creations(state)
        if self._over(state):
            return moves
        self._messages(state, moves)
        self._own_moves(state, moves)
        self._store_moves(state, moves)
        budget = self.budgets.parts[state[self.at_budget]]
        if not self._syncs_at_once(state):
            self.faults.syncs(state, moves)
        if not self.configuration.journal:
            self.limbo_steps.moves_of(state, moves)
        if self.reader_names:
            self.reading.moves_of(state, budget, moves)
        if self.configuration.collects:
            self.over_replication_steps.moves_of(state, moves)
        if any(budget):
            self.faults.moves_of(state, budget, moves)
        if budget.timeouts and self.configuration.repairers:
            self._silences(self.spent(state, "timeouts"), moves)
        return moves

    def _silences(self, state: State, moves: list[Move]) -> None:
        for client in range(self.first_repairer, self.count):
            moves += [work() for work in self.repairs.silences(state, client)]

    def _over(self, state: State) -> bool:
        """Whether all clients have ended and no crash can come: what is still on its way decides nothing.

        A reader goes on, and what arrives late is what it reads.
        """
        c = self.configuration
        if self.reader_names or c.collects or (c.repairers and self.repairs.has_reason(state)):
            return False
        for index in range(self.at.client, self.at.link):
            number = state[index]
            quiet = self._quiet.get(number)
            if quiet is None:
                quiet = self._quiet[number] = self.clients.parts[number].idle
            if not quiet:
                return False
        budget = self.budgets.parts[state[self.at_budget]]
        return not budget.reruns and not budget.crashes

    def _messages(self, state: State, moves: list[Move]) -> None:
        no_link, at_once = self.no_link, self._syncs_at_once(state)
        for index, (client, bookie) in enumerate(self.pairs, self.at.link):
            if state[index] != no_link:
                self._deliveries(state, index, client, bookie, moves, at_once=at_once)
                self._hearings(state, index, client, bookie, moves)

    def outstanding(self, state: State, client: int, bookie: int) -> list[Request]:
        """The same, with those that wait for the disk."""
        journal = self.bookies.parts[state[bookie]].journal
        return super().outstanding(state, client, bookie) + [
            waiting[1] for _, _, waiting in journal if waiting and waiting[0] == client and waiting[2]
        ]

    def _not_awaited(self, bookie: int, client: int, request: Request) -> int:
        before = self.bookies.parts[bookie]
        given_up, over = (client, request, True), (client, request, False)
        journal = tuple(
            (kind, content, over if waiting == given_up else waiting)
            for kind, content, waiting in before.journal
        )
        return self.bookies.number(before._replace(journal=journal))

    def _own_moves(self, state: State, moves: list[Move]) -> None:
        self._writer_moves(state, moves)
        for client in range(1, self.first_repairer):
            self._recoverer_moves(state, client, moves)
        for client in range(self.first_repairer, self.count):
            self.repairs.moves_of(state, client, moves)

    def _writer_moves(self, state: State, moves: list[Move]) -> None:
        there = (
            move
            for move in self._moves_of_writer(state, 0)
            if not move[0].other or not self.bookies.parts[state[bookie_number(BookieId(move[0].other))]].lost
        )
        moves += self._after_each(state, 0, there)

    def _recoverer_moves(self, state: State, client: int, moves: list[Move]) -> None:
        who = self.clients.parts[state[self.at.client + client]]
        if who.machine is None:
            self._start(state, client, moves)
        elif who.machine.status is RecoveryStatus.MEASURING:
            self._measure(state, client, moves)
        elif who.idle and who.result != "closed" and self.budgets.parts[state[-1]].reruns:
            self._start(self.spent(state, "reruns"), client, moves)

    def _start(self, state: State, client: int, moves: list[Move]) -> None:
        store_at, client_at = state[self.at.store], state[self.at.client + client]
        key = ("start", client, client_at, store_at)
        found = self._memo.get(key)
        if found is None:
            store = self.stores.parts[store_at]
            found = []
            if store.record is not None:
                outcomes = self.recovery_driver.start(
                    self.clients.parts[client_at], store.record, store.version
                )
                found = self._client_moves(client, outcomes, f"starts with {record_text(store.record)}")
            self._memo[key] = found
        moves += self._after_each(state, client, found)

    def _store_moves(self, state: State, moves: list[Move]) -> None:
        for client in range(self.count):
            if state[self.at.ask + client] != self.no_ask:
                self._questions_of(state, client, moves)

    def after_cas_of(self, state: State, client: int, ask: Ask) -> tuple[Store, str]:
        """The store after a client's compare-and-swap, and its response; that of a repairer is judged by the disks."""
        store = self.stores.parts[state[self.at.store]]
        after, answer = self.after_cas(store, ask, by_writer=client == 0)
        if answer == "written" and client >= self.first_repairer:
            after = self.repairs.judged_cas(state, store, after._replace(notes=ask.notes))
        return after, answer

    def after_cas(self, store: Store, ask: Ask, *, by_writer: bool) -> tuple[Store, str]:
        """The store after a compare-and-swap, and its response."""
        if store.record is None:
            return store, "missing"
        assert ask.record is not None
        closing = ask.record.state is LedgerState.CLOSED
        if store.version != ask.version and not (self.switches.blind_closes and by_writer and closing):
            return store, "conflict"
        fault = store.fault  # its text names no bookie: names are exchanged freely
        old = store.record
        if old.state is LedgerState.CLOSED and (
            ask.record.state is not LedgerState.CLOSED or ask.record.last_entry != old.last_entry
        ):
            fault = fault or (
                "I4",
                f"a ledger that ended at {old.last_entry} became {ask.record.state.name} at {ask.record.last_entry}",
            )
        if not legal(old, ask.record):
            fault = fault or ("M", f"not a legal change: {old.state.name} became {ask.record.state.name}")
        moved = old.fragments != ask.record.fragments and repaired_only(old, ask.record)
        closes = min(2, store.closes + (closing and not moved))
        return Store(ask.record, store.version + 1, closes, fault, store.notes), "written"
