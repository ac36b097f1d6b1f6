"""The world of one ledger: its state, and every step that can happen next.

A state is a tuple of small numbers, one for each part: bookies, store, clients, connections, open questions to the
store, budgets. A number names a part's state in a table; what a part does on an input is worked out once, by running
its machine, and remembered. So millions of states of the world cost thousands of runs of the machines.

Source: BookKeeper protocol; docs/protocol/README.md; docs/decisions/006-explorer.md.
"""

from __future__ import annotations

from typing import Any

from quire.core.ids import BookieId
from quire.core.ledger.metadata import LedgerState
from quire.core.recovery.machine import RecoveryStatus
from quire.core.transcript import record_text
from quire_testing.explorer.beginning import NOT_CREATED, Beginning, record_of
from quire_testing.explorer.bookies import BookieState
from quire_testing.explorer.clients import bookie_name, bookie_number, patience
from quire_testing.explorer.configuration import Configuration
from quire_testing.explorer.faults import Faults
from quire_testing.explorer.limbo_steps import LimboSteps
from quire_testing.explorer.messages import Link, Reply, Request, reply_text, request_text
from quire_testing.explorer.over_replication_steps import OverReplicationSteps
from quire_testing.explorer.parts import (
    Ask,
    Budget,
    Clearing,
    ClientMove,
    Label,
    Move,
    State,
    Store,
    WorldParts,
    legal,
    repaired_only,
)
from quire_testing.explorer.readers import ReaderState
from quire_testing.explorer.reading import Reading
from quire_testing.explorer.repairing import Repairs
from quire_testing.explorer.switches import SHIPPED, Switches


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
        if self.stores.parts[state[self.at_store]] == NOT_CREATED:
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
            self._silences(state, budget, moves)
        return moves

    def _silences(self, state: State, budget: Budget, moves: list[Move]) -> None:
        spent = self.budgets.number(budget._replace(timeouts=budget.timeouts - 1))
        for client in range(1 + self.configuration.recoverers, self.count):
            moves += [work() for work in self.repairs.silences((*state[:-1], spent), client)]

    def _over(self, state: State) -> bool:
        """Whether all clients have ended and no crash can come: what is still on its way decides nothing.

        A reader goes on, and what arrives late is what it reads.
        """
        c = self.configuration
        if self.reader_names or c.collects or (c.repairers and self.repairs.has_reason(state)):
            return False
        for index in range(self.at_client, self.at_link):
            number = state[index]
            quiet = self._quiet.get(number)
            if quiet is None:
                quiet = self._quiet[number] = self.clients.parts[number].idle
            if not quiet:
                return False
        budget = self.budgets.parts[state[self.at_budget]]
        return not budget.reruns and not budget.crashes

    def _messages(self, state: State, moves: list[Move]) -> None:
        n, no_link, index = self.n, self.no_link, self.at_link
        at_once = self._syncs_at_once(state)
        for client in range(self.count):
            for bookie in range(n):
                if state[index] != no_link:
                    self._deliveries(state, client, bookie, at_once, moves)
                    self._hearings(state, client, bookie, moves)
                index += 1

    def _deliveries(self, state: State, client: int, bookie: int, at_once: bool, moves: list[Move]) -> None:
        """What a connection carries to its bookie."""
        index = self.at_link + client * self.n + bookie
        asked = (client, bookie, state[bookie], state[index], at_once)
        delivered = self._delivers.get(asked)
        if delivered is None:
            delivered = self._delivers[asked] = self._deliver(*asked)
        for label, after, link_after, others in delivered:
            new = list(state)
            new[bookie] = after
            new[index] = link_after
            for other, reply in others:
                self._push_reply(new, other, bookie, reply)
            if link_after != self.no_link:
                self._tidy(new, client, index)
            moves.append((label, tuple(new)))

    def _hearings(self, state: State, client: int, bookie: int, moves: list[Move]) -> None:
        """What a connection carries to its client."""
        index = self.at_link + client * self.n + bookie
        key = (client, bookie, state[self.at_client + client], state[index])
        moved = self._hears.get(key)
        if moved is None:
            moved = self._hears[key] = self._hear(*key)
        for client_move, link_after in moved:
            new = list(state)
            new[index] = link_after
            moves.append((client_move[0], self._client_after(new, client, client_move)))

    def _deliver(self, client: int, bookie: int, bookie_at: int, link_at: int, at_once: bool) -> list[Any]:
        """The oldest request of a connection, or one of a broken one, reaches its bookie."""
        link, state = self.links.parts[link_at], self.bookies.parts[bookie_at]
        found = []
        if link.requests:
            (request, waits), rest = link.requests[0], link.requests[1:]
            found.append(
                self._take(client, bookie, state, link._replace(requests=rest), (request, waits), at_once)
            )
        if link.broken:
            late = link._replace(broken=link.broken[1:])
            found.append(self._take(client, bookie, state, late, (link.broken[0], False), at_once))
        return found

    def _take(
        self,
        client: int,
        bookie: int,
        state: BookieState,
        link: Link,
        asked: tuple[Request, bool],
        at_once: bool,
    ) -> Any:
        label, after, own, others = self._taken(client, bookie, state, asked, at_once)
        for reply in own:
            link = link.answered(reply)
        return label, after, self.links.number(link), others

    def _taken(
        self, client: int, bookie: int, state: BookieState, asked: tuple[Request, bool], at_once: bool
    ) -> tuple[Label, int, list[Reply], list[tuple[int, Reply]]]:
        """A request on a bookie: the bookie after it, its responses to who asked, and those to others."""
        request, waits = asked
        after, replies, what = self.bookie_driver.deliver(state, client, request, waits=waits)
        said = [what]
        if at_once:
            after, more = self._synced(after)
            replies = [*replies, *more]
        said += [f"-> {self.names[whom]} {reply_text(reply)}" for whom, reply in replies]
        label = Label(
            bookie_name(bookie),
            f"takes {request_text(request)} from {self.names[client]}",
            tuple(said),
            self.names[client],
            request[0],
        )
        own = [reply for whom, reply in replies if whom == client]
        return label, self.bookies.number(after), own, [each for each in replies if each[0] != client]

    def _hear(self, client: int, bookie: int, client_at: int, link_at: int) -> list[Any]:
        """The oldest reply of a connection reaches its client."""
        link = self.links.parts[link_at]
        if not link.replies:
            return []
        moved = self._on_response(client, bookie, client_at, link.replies[0])
        if not moved:
            return []
        link_after = self.links.number(link._replace(replies=link.replies[1:]))
        return [(move, link_after) for move in moved]

    def _on_response(self, client: int, bookie: int, client_at: int, reply: Reply) -> list[ClientMove]:
        """What a client does with a reply."""
        who = self.clients.parts[client_at]
        driver = self.driver_of(client)
        if not driver.heeds(who, reply):
            return []
        name = bookie_name(bookie)
        command = f"hears {reply_text(reply)} from {name}"
        return [
            self._client_move(client, outcome, command, name, f"hears {reply[0][0]}")
            for outcome in driver.answered(who, bookie, reply)
        ]

    def _own_moves(self, state: State, moves: list[Move]) -> None:
        self._writer_moves(state, moves)
        repairers = 1 + self.configuration.recoverers
        for client in range(1, repairers):
            self._recoverer_moves(state, client, moves)
        for client in range(repairers, self.count):
            self.repairs.moves_of(state, client, moves)

    def _writer_moves(self, state: State, moves: list[Move]) -> None:
        writer = state[self.at_client]
        found = self._client_moves.get((0, writer))
        if found is None:
            found = [
                self._client_move(0, outcome, command, outcome.returned)
                for command, outcomes in self.writer_driver.moves(self.clients.parts[writer])
                for outcome in outcomes
            ]
            self._client_moves[0, writer] = found
        moves.extend(
            (move[0], self._client_after(list(state), 0, move))
            for move in found
            if not move[0].other or not self.bookies.parts[state[bookie_number(BookieId(move[0].other))]].lost
        )

    def _recoverer_moves(self, state: State, client: int, moves: list[Move]) -> None:
        who = self.clients.parts[state[self.at_client + client]]
        if who.machine is None:
            self._start(state, client, moves)
        elif who.machine.status is RecoveryStatus.MEASURING:
            self._measure(state, client, moves)
        elif who.idle and who.result != "closed":
            budget = self.budgets.parts[state[self.at_budget]]
            if budget.reruns:
                spent = self.budgets.number(budget._replace(reruns=budget.reruns - 1))
                self._start((*state[:-1], spent), client, moves)

    def _start(self, state: State, client: int, moves: list[Move]) -> None:
        store_at, client_at = state[self.at_store], state[self.at_client + client]
        memo = self._memo("start")
        found = memo.get((client, client_at, store_at))
        if found is None:
            store = self.stores.parts[store_at]
            found = []
            if store.record is not None:
                outcomes = self.recovery_driver.start(
                    self.clients.parts[client_at], store.record, store.version
                )
                command = f"starts with {record_text(store.record)}"
                found = [self._client_move(client, outcome, command) for outcome in outcomes]
            memo[client, client_at, store_at] = found
        moves.extend((move[0], self._client_after(list(state), client, move)) for move in found)

    def _measure(self, state: State, client: int, moves: list[Move]) -> None:
        """The length of the last entry is read from a bookie that holds it (the record's ensemble of that entry)."""
        who = self.clients.parts[state[self.at_client + client]]
        entry, record = who.machine.lap, who.machine.record
        held = False
        for name in record.ensemble_of(entry):
            bookie = self.bookies.parts[state[bookie_number(name)]]
            held = held or bool(
                bookie.held >> entry & 1 and not bookie.damaged >> entry & 1 and not bookie.lost
            )
        for outcome in self.recovery_driver.length_answered(who, found=held):
            command = f"{'finds' if held else 'does not find'} the length of {entry}"
            move = self._client_move(client, outcome, command)
            moves.append((move[0], self._client_after(list(state), client, move)))

    def _store_moves(self, state: State, moves: list[Move]) -> None:
        for client in range(self.count):
            if state[self.at_ask + client] != self.no_ask:
                self._questions_of(state, client, moves)

    def _questions_of(self, state: State, client: int, moves: list[Move]) -> None:
        """What comes of a client's questions to the store."""
        questions = self.asks.parts[state[self.at_ask + client]]
        for index, ask in enumerate(questions):
            rest = (*questions[:index], *questions[index + 1 :])
            if ask.kind == "read":
                self._client_reads(state, client, rest, moves)
            elif not ask.answer:
                self._cas(state, client, questions, index, moves)
            elif ask.waits:
                self._cas_response(state, client, rest, ask, moves)

    def _cas(
        self, state: State, client: int, questions: tuple[Ask, ...], index: int, moves: list[Move]
    ) -> None:
        """A compare-and-swap reaches the store."""
        ask = questions[index]
        store = self.stores.parts[state[self.at_store]]
        after, answer = self.after_cas(store, ask, by_writer=client == 0)
        if answer == "written" and client > self.configuration.recoverers:
            after = self.repairs.judged_cas(state, store, after._replace(notes=ask.notes))
        done = (ask._replace(answer=answer, version=after.version),) if ask.waits else ()
        new = list(state)
        new[self.at_store] = self.stores.number(after)
        new[self.at_ask + client] = self.asks.number((*questions[:index], *done, *questions[index + 1 :]))
        assert ask.record is not None
        command = f"takes v{ask.version}: {record_text(ask.record)} from {self.names[client]}"
        moves.append((Label("store", command, (answer,), self.names[client], f"swap {answer}"), tuple(new)))

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

    def _cas_response(
        self, state: State, client: int, rest: tuple[Ask, ...], ask: Ask, moves: list[Move]
    ) -> None:
        memo = self._memo("swap response")
        key = (client, state[self.at_client + client], ask)
        found = memo.get(key)
        if found is None:
            driver = self.driver_of(client)
            who = self.clients.parts[state[self.at_client + client]]
            assert ask.record is not None
            outcomes = driver.cas_answered(who, ask.answer, ask.record, ask.version)
            found = [
                self._client_move(
                    client, outcome, f"hears {ask.answer} v{ask.version}", "store", f"hears {ask.answer}"
                )
                for outcome in outcomes
            ]
            memo[key] = found
        self._with_questions(state, client, rest, found, moves)

    def _client_reads(self, state: State, client: int, rest: tuple[Ask, ...], moves: list[Move]) -> None:
        memo = self._memo("reads")
        key = (client, state[self.at_client + client], state[self.at_store])
        found = memo.get(key)
        if found is None:
            driver = self.driver_of(client)
            who, store = self.clients.parts[key[1]], self.stores.parts[key[2]]
            notes = (store.notes,) if client > self.configuration.recoverers else ()
            outcomes = driver.read_answered(who, store.record, store.version, *notes)
            text = record_text(store.record) if store.record else "nothing"
            found = [self._client_move(client, outcome, f"reads {text}", "store") for outcome in outcomes]
            memo[key] = found
        self._with_questions(state, client, rest, found, moves)
