"""The world of one stream: clients that take it over from each other, its bookies, and a reader with an old record.

It runs the machines that ship: `TakeOverMachine`, `WriterMachine` and `BookieLedgerMachine`. An entry is an id and the term
that wrote it first, so that two entries of one id are two: the ledger's world keeps entries as bits and could not tell them
apart. A connection carries requests and responses in order; what was under way when it broke arrives late.

| places of a state | part |
| --- | --- |
| 0 .. n-1 | bookies |
| then one | the store: record, version |
| then C | clients: the first created the stream and writes in term 1; those who repair come last |
| then C x n | connections, client by client |
| then C | what each client asked the store |
| then R | readers |
| last | budgets |

Source: Vanlightly's unbounded ledgers; docs/protocol/streams.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeAlias

from quire.core.ids import LedgerId
from quire.core.ledger.metadata import DigestType, LedgerState, new_ledger, new_stream
from quire.core.ledger.writer import WriterMachine
from quire.core.recovery.machine import RecoveryStatus
from quire.core.transcript import record_text
from quire_testing.explorer.bookies import LEDGER
from quire_testing.explorer.clients import ClientState, Outcome, bookie_name, bookie_number
from quire_testing.explorer.messages import Link, Reply, Request, reply_text, request_text
from quire_testing.explorer.parts import Ask, Label, Table
from quire_testing.explorer.stream_beginning import changed
from quire_testing.explorer.stream_bookies import StreamBookie, StreamBookies, value_at
from quire_testing.explorer.stream_clients import StreamClient, StreamDriver
from quire_testing.explorer.stream_faults import breaks, losses, lost_swaps
from quire_testing.explorer.stream_parts import (
    StreamBudget,
    StreamConfiguration,
    StreamReader,
    StreamStoreState,
    in_mode,
    places_of,
)
from quire_testing.explorer.stream_readers import reads
from quire_testing.explorer.stream_repairers import StreamRepairDriver, StreamRepairs
from quire_testing.explorer.switches import SHIPPED, Switches

State: TypeAlias = tuple[int, ...]
Move: TypeAlias = tuple[Label, State]
Source: TypeAlias = tuple[tuple[str | int, ...], Callable[[], Iterable[Move]]]
"""Its name, and what works out the steps that it can make."""

Done: TypeAlias = tuple[Label, int, tuple[tuple[int, Request], ...], tuple[tuple[Any, ...], ...]]


class StreamWorld:
    """Every state that one stream's world can come to.

    Args:
        configuration: the size.
        switches: the machines and judgements.
    """

    def __init__(self, configuration: StreamConfiguration, switches: Switches = SHIPPED) -> None:
        c = self.configuration = configuration
        self.rules, sizes = switches.rules, (c.ensemble, c.write_quorum)
        self.bookie_driver = StreamBookies(*sizes, self.rules, switches.bookie, fencing=c.fencing)
        self.driver = StreamDriver(c.sizes, switches)
        self.bookies: Table[StreamBookie] = Table()
        self.stores: Table[StreamStoreState] = Table()
        self.clients: Table[Any] = Table(lambda client: client.key)
        self.links: Table[Link] = Table()
        self.asks: Table[tuple[Ask, ...]] = Table()
        self.readers: Table[StreamReader] = Table()
        self.budgets: Table[StreamBudget] = Table()
        self.repairs = StreamRepairs(self, StreamRepairDriver(c.sizes, switches.rules, switches.repair))
        self.n = c.bookies
        self.count = self.leaders + c.repairers
        self.at = places_of(self.n, self.count)
        self.names = [f"client {number}" for number in range(self.leaders)]
        self.names += [f"repairer {number + 1}" for number in range(c.repairers)]
        self.reader_names = [f"reader {number + 1}" for number in range(c.readers)]
        self.no_link = self.links.number(Link())
        self.no_ask = self.asks.number(())
        self._memo: dict[Any, Any] = {}

    @property
    def leaders(self) -> int:
        """How many clients write, or may; those who repair come after them."""
        return 1 + self.configuration.clients

    def initial(self) -> State:
        """A new stream in term 1, whose creator has written nothing."""
        c = self.configuration
        ensemble = [bookie_name(number) for number in range(c.ensemble)]
        ledger = new_ledger(
            LedgerId(LEDGER),
            ensemble,
            write_quorum=c.write_quorum,
            ack_quorum=c.ack_quorum,
            digest_type=DigestType.CRC32C,
            password=b"",
        )
        record = in_mode(new_stream(ledger, 0), fencing=c.fencing)
        bookies = [StreamBookie()] * self.n
        clients: list[ClientState] = [self.driver.creator(record, 0)]
        clients += [self.driver.nobody()] * c.clients
        if c.changed:
            record, bookies, clients = changed(self, record)
        clients += [self.repairs.driver.new()] * c.repairers
        budget = StreamBudget(c.take_overs, c.timeouts, c.breaks, c.lost_swaps, c.losses)
        return (
            *[self.bookies.number(bookie) for bookie in bookies],
            self.stores.number(StreamStoreState(record, 0)),
            *[self.clients.number(client) for client in clients],
            *[self.no_link] * (self.count * self.n),
            *[self.no_ask] * self.count,
            *[self.readers.number(StreamReader())] * c.readers,
            self.budgets.number(budget),
        )

    def successors(self, state: State) -> list[Move]:
        """Every next step: a label and the state after it."""
        return [move for _, steps in self.sources(state) for move in steps()]

    def sources(self, state: State) -> Iterator[Source]:
        """What may make a step, each with the function that works its steps out: walks ask few of them."""
        budget = self.budgets.parts[state[-1]]
        for client, name in enumerate(self.names):
            if client < self.leaders:
                yield (name, ""), self._asked(self._own_moves, state, client, budget)
                if budget.timeouts:
                    yield (name, "timeout"), self._asked(self._timeouts, state, client)
            else:
                yield (name, ""), self._asked(self.repairs.moves_of, state, client)
            for bookie in range(self.n):
                if state[self.at.link + client * self.n + bookie] != self.no_link:
                    yield (name, "sends", bookie), self._asked(self._delivers, state, client, bookie)
                    yield (name, "hears", bookie), self._asked(self._hears, state, client, bookie)
            if state[self.at.ask + client] != self.no_ask:
                yield (name, "store"), self._asked(self._store_moves, state, client)
        for bookie in range(self.n):
            if self.bookies.parts[state[bookie]].waiting:
                yield (bookie_name(bookie), "store"), self._asked(self._reads_record, state, bookie)
        for reader, name in enumerate(self.reader_names):
            yield (name, ""), partial(reads, self, state, reader)
        for left, kind, happens in (
            (budget.breaks, "break", breaks),
            (budget.lost_swaps, "lost swap", lost_swaps),
            (budget.losses, "loss", losses),
        ):
            if left:
                yield (kind, ""), self._asked(happens, self, state)

    @staticmethod
    def _asked(work_out: Callable[..., None], *arguments: Any) -> Callable[[], list[Move]]:
        def steps() -> list[Move]:
            moves: list[Move] = []
            work_out(*arguments, moves)
            return moves

        return steps

    def spent(self, state: State, what: str) -> State:
        """A state with one fault of a kind less to come."""
        budget = self.budgets.parts[state[-1]]
        left = {what: getattr(budget, what) - 1}
        return (*state[:-1], self.budgets.number(budget._replace(**left)))

    # --- a client's step on a state ------------------------------------------------------------------------------------

    def done(self, client: int, outcome: Outcome, command: str, other: str = "", kind: str = "") -> Done:
        label = Label(self.names[client], command, outcome.said, other, kind or command.split(maxsplit=1)[0])
        return label, self.clients.number(outcome.client), outcome.sends, outcome.asks

    def driver_of(self, client: int) -> StreamDriver | StreamRepairDriver:
        """The driver of a client."""
        return self.driver if client < self.leaders else self.repairs.driver

    def after(self, new: list[int], client: int, done: Done) -> State:
        """A state once a client has taken a step. Its own place, what it sends, what it asks; then replies that can change nothing are forgotten."""
        _, after, sends, asks = done
        if client >= self.leaders and self.clients.parts[after].result:
            bookies = [self.bookies.parts[number] for number in new[: self.n]]
            after = self.clients.number(self.repairs.ended(bookies, self.clients.parts[after]))
        has_changed = new[self.at.client + client] != after
        new[self.at.client + client] = after
        base = self.at.link + client * self.n
        for bookie, request in sends:
            new[base + bookie] = self.links.number(self.links.parts[new[base + bookie]].sent(request))
        if asks:
            place = self.at.ask + client
            questions = self.asks.parts[new[place]]
            for kind, *rest in asks:
                questions = (*questions, Ask(kind, *(rest[:2] or (None, 0))))
            new[place] = self.asks.number(questions)
        if has_changed:
            for place in range(base, base + self.n):
                self.tidy(new, client, place)
            if self.clients.parts[after].machine is None:
                # A compare-and-swap on its way may still reach the store; nobody waits for what is said of it.
                questions = self.asks.parts[new[self.at.ask + client]]
                kept = tuple(
                    ask._replace(waits=False) for ask in questions if ask.kind == "swap" and not ask.answer
                )
                new[self.at.ask + client] = self.asks.number(kept)
        return tuple(new)

    def tidy(self, new: list[int], client: int, place: int) -> None:
        if new[place] == self.no_link:
            return
        key = ("tidy", client < self.leaders, new[self.at.client + client], new[place])
        after = self._memo.get(key)
        if after is None:
            who, link = self.clients.parts[key[2]], self.links.parts[key[3]]
            driver = self.driver_of(client)
            requests = tuple((each, waits and driver.waits_for(who, each)) for each, waits in link.requests)
            replies = tuple(reply for reply in link.replies if driver.heeds(who, reply))
            after = self._memo[key] = self.links.number(Link(requests, replies, link.broken))
        new[place] = after

    def _push(self, new: list[int], client: int, bookie: int, reply: Reply) -> None:
        place = self.at.link + client * self.n + bookie
        new[place] = self.links.number(self.links.parts[new[place]].answered(reply))
        self.tidy(new, client, place)

    def _own_moves(self, state: State, client: int, budget: StreamBudget, moves: list[Move]) -> None:
        number = state[self.at.client + client]
        who = self.clients.parts[number]
        if who.machine is None:
            if budget.take_overs:
                self._takes_over(self.spent(state, "take_overs"), client, moves)
            return
        if isinstance(who.machine, WriterMachine):
            key = ("own", client, number)
            found = self._memo.get(key)
            if found is None:
                found = self._memo[key] = [
                    self.done(client, outcome, command)
                    for command, outcomes in self.driver.moves(who)
                    for outcome in outcomes
                ]
            moves.extend((done[0], self.after(list(state), client, done)) for done in found)
            return
        if who.machine.recovery is not None and who.machine.recovery.status is RecoveryStatus.MEASURING:
            self._measures(state, client, moves)
        for outcome in self.driver.waited(who):
            done = self.done(client, outcome, "waited for bookies")
            moves.append((done[0], self.after(list(state), client, done)))

    def _timeouts(self, state: State, client: int, moves: list[Move]) -> None:
        """A client gives up a request, or takes a bookie for lost."""
        who = self.clients.parts[state[self.at.client + client]]
        if who.machine is None:
            return
        spent = self.spent(state, "timeouts")
        if not isinstance(who.machine, WriterMachine):
            self._gives_up(spent, client, moves)
            return
        for slot, name in self.driver.losable(who):
            for outcome in self.driver.lost(who, slot, name):
                done = self.done(client, outcome, f"lost {name}", kind="timeout")
                moves.append((done[0], self.after(list(spent), client, done)))
        if who.joining:  # adds are given up with their bookie
            self._gives_up(spent, client, moves, ("truncate",))

    def _takes_over(self, state: State, client: int, moves: list[Move]) -> None:
        store_at, client_at = state[self.at.store], state[self.at.client + client]
        key = ("begin", client, client_at, store_at)
        found = self._memo.get(key)
        if found is None:
            store, who = self.stores.parts[store_at], self.clients.parts[client_at]
            owner = 1 + client + self.count * who.begun
            outcomes = self.driver.take_over(who, store.record, store.version, owner)
            command = f"takes over with {record_text(store.record)}"
            found = self._memo[key] = [self.done(client, outcome, command) for outcome in outcomes]
        moves.extend((done[0], self.after(list(state), client, done)) for done in found)

    def _measures(self, state: State, client: int, moves: list[Move]) -> None:
        """The last entry is read for its length."""
        who = self.clients.parts[state[self.at.client + client]]
        machine = who.machine
        entry, record = machine.recovery.lap, machine.record
        held = any(
            value_at(self.bookies.parts[state[bookie_number(name)]], entry, record) is not None
            for name in record.ensemble_of(entry)
        )
        for outcome in self.driver.length_answered(who, found=held):
            done = self.done(client, outcome, f"{'finds' if held else 'does not find'} the length of {entry}")
            moves.append((done[0], self.after(list(state), client, done)))

    def _gives_up(self, state: State, client: int, moves: list[Move], kinds: tuple[str, ...] = ()) -> None:
        who = self.clients.parts[state[self.at.client + client]]
        for bookie in range(self.n):
            place = self.at.link + client * self.n + bookie
            link = self.links.parts[state[place]]
            outstanding = [request for request, waits in link.requests if waits]
            outstanding += [reply[0] for reply in link.replies]
            for request in outstanding:
                if (kinds and request[0] not in kinds) or not self.driver.waits_for(who, request):
                    continue
                new = list(state)
                new[place] = self.links.number(link.given_up(request))
                command = f"gives up {request_text(request)} at {bookie_name(bookie)}"
                for outcome in self.driver.gave_up(who, bookie, request):
                    done = self.done(client, outcome, command, kind="timeout")
                    moves.append((done[0], self.after([*new], client, done)))

    # --- messages ------------------------------------------------------------------------------------------------------

    def _delivers(self, state: State, client: int, bookie: int, moves: list[Move]) -> None:
        """The oldest request of a connection, or one of a broken one, reaches its bookie."""
        place = self.at.link + client * self.n + bookie
        key = ("deliver", client, bookie, state[bookie], state[place])
        found = self._memo.get(key)
        if found is None:
            found = self._memo[key] = list(self._delivered(*key[1:]))
        for label, after, link_after, others in found:
            new = list(state)
            new[bookie], new[place] = after, link_after
            for other, reply in others:
                self._push(new, other, bookie, reply)
            self.tidy(new, client, place)
            moves.append((label, tuple(new)))

    def _delivered(
        self, client: int, bookie: int, bookie_at: int, link_at: int
    ) -> Iterator[tuple[Label, int, int, list[tuple[int, Reply]]]]:
        link, before = self.links.parts[link_at], self.bookies.parts[bookie_at]
        arrivals = []
        if link.requests:
            (request, waits), rest = link.requests[0], link.requests[1:]
            arrivals.append((request, waits, link._replace(requests=rest)))
        if link.broken:
            arrivals.append((link.broken[0], False, link._replace(broken=link.broken[1:])))
        for request, waits, rest_of in arrivals:
            after, replies, what = self.bookie_driver.deliver(before, client, request, waits=waits)
            said = [what, *(f"-> {self.names[whom]} {reply_text(reply)}" for whom, reply in replies)]
            label = Label(
                bookie_name(bookie),
                f"takes {request_text(request)} from {self.names[client]}",
                tuple(said),
                self.names[client],
                request[0],
            )
            link_after = rest_of
            for whom, reply in replies:
                link_after = link_after.answered(reply) if whom == client else link_after
            others = [each for each in replies if each[0] != client]
            yield label, self.bookies.number(after), self.links.number(link_after), others

    def _hears(self, state: State, client: int, bookie: int, moves: list[Move]) -> None:
        """The oldest reply of a connection reaches its client."""
        place = self.at.link + client * self.n + bookie
        key = ("hear", client, bookie, state[self.at.client + client], state[place])
        found = self._memo.get(key)
        if found is None:
            found = self._memo[key] = self._heard(*key[1:])
        for done, link_after in found:
            new = list(state)
            new[place] = link_after
            moves.append((done[0], self.after(new, client, done)))

    def _heard(self, client: int, bookie: int, client_at: int, link_at: int) -> list[tuple[Done, int]]:
        link, who = self.links.parts[link_at], self.clients.parts[client_at]
        driver = self.driver_of(client)
        if not link.replies or not driver.heeds(who, link.replies[0]):
            return []
        reply, name = link.replies[0], bookie_name(bookie)
        after = self.links.number(link._replace(replies=link.replies[1:]))
        command, kind = f"hears {reply_text(reply)} from {name}", f"hears {reply[0][0]}"
        return [
            (self.done(client, outcome, command, name, kind), after)
            for outcome in driver.answered(who, bookie, reply)
        ]

    # --- the store -----------------------------------------------------------------------------------------------------

    def _store_moves(self, state: State, client: int, moves: list[Move]) -> None:
        questions = self.asks.parts[state[self.at.ask + client]]
        for index, ask in enumerate(questions):
            rest = (*questions[:index], *questions[index + 1 :])
            if ask.kind == "read":
                store = self.stores.parts[state[self.at.store]]
                who = self.clients.parts[state[self.at.client + client]]
                outcomes = self.driver_of(client).read_answered(who, store.record, store.version)
                command = f"reads {record_text(store.record)}"
                self.answers(state, client, rest, outcomes, command, "reads", moves)
            elif not ask.answer:
                self._swaps(state, client, questions, index, moves)
            elif ask.waits:
                who = self.clients.parts[state[self.at.client + client]]
                assert ask.record is not None
                outcomes = self.driver_of(client).swap_answered(who, ask.answer, ask.record, ask.version)
                command = f"hears {ask.answer} v{ask.version}"
                self.answers(state, client, rest, outcomes, command, f"hears {ask.answer}", moves)

    def answers(
        self,
        state: State,
        client: int,
        rest: tuple[Ask, ...],
        outcomes: list[Outcome],
        command: str,
        kind: str,
        moves: list[Move],
    ) -> None:
        for outcome in outcomes:
            new = list(state)
            new[self.at.ask + client] = self.asks.number(rest)
            done = self.done(client, outcome, command, "store", kind)
            moves.append((done[0], self.after(new, client, done)))

    def _swaps(
        self, state: State, client: int, questions: tuple[Ask, ...], index: int, moves: list[Move]
    ) -> None:
        """A compare-and-swap reaches the store."""
        ask, store = questions[index], self.stores.parts[state[self.at.store]]
        assert ask.record is not None
        answer = "conflict"
        if store.version == ask.version:
            fault = store.fault
            if ask.record.term < store.record.term and client < self.leaders:
                fault = fault or ("U4", f"the record's term fell to {ask.record.term}")
            elif ask.record.state is LedgerState.CLOSED and client < self.leaders:
                fault = fault or ("U4", "a writer that was not asked to closed the stream")
            machine = self.clients.parts[state[self.at.client + client]].machine
            if isinstance(machine, WriterMachine) and ask.record.term != machine.closing.term:
                own = machine.closing.term
                fault = fault or (
                    "U5",
                    f"a writer of term {own} changed the record in term {ask.record.term}",
                )
            after = StreamStoreState(ask.record, store.version + 1, fault)
            if client >= self.leaders:
                after = self.repairs.judged_swap(self.bookies_of(state), store, after)
            store, answer = after, "written"
        kept = (ask._replace(answer=answer, version=store.version),) if ask.waits else ()
        new = list(state)
        new[self.at.store] = self.stores.number(store)
        new[self.at.ask + client] = self.asks.number((*questions[:index], *kept, *questions[index + 1 :]))
        command = f"takes v{ask.version}: {record_text(ask.record)} from {self.names[client]}"
        moves.append((Label("store", command, (answer,), self.names[client], f"swap {answer}"), tuple(new)))

    # --- a bookie that lost its disk -----------------------------------------------------------------------------------

    def _reads_record(self, state: State, bookie: int, moves: list[Move]) -> None:
        """A bookie that has lost its disk reads the record, and takes its term before anything that waits."""
        term = self.stores.parts[state[self.at.store]].record.term
        after, replies, said = self.bookie_driver.reads_record(self.bookies.parts[state[bookie]], term)
        new = list(state)
        new[bookie] = self.bookies.number(after)
        for client, reply in replies:
            self._push(new, client, bookie, reply)
        said += [f"-> {self.names[client]} {reply_text(reply)}" for client, reply in replies]
        label = Label(bookie_name(bookie), f"reads term {term}", tuple(said), "store", "reads")
        moves.append((label, tuple(new)))

    # --- what is looked at ---------------------------------------------------------------------------------------------

    def clients_of(self, state: State) -> list[StreamClient]:
        """The clients of a state that write, or may."""
        return [
            self.clients.parts[number] for number in state[self.at.client : self.at.client + self.leaders]
        ]

    def repairers_of(self, state: State) -> list[ClientState]:
        """The clients of a state that repair."""
        return [self.clients.parts[number] for number in state[self.at.client + self.leaders : self.at.link]]

    def bookies_of(self, state: State) -> list[StreamBookie]:
        """The bookies of a state."""
        return [self.bookies.parts[number] for number in state[: self.n]]

    def readers_of(self, state: State) -> list[StreamReader]:
        """The readers of a state."""
        return [self.readers.parts[number] for number in state[self.at.reader : -1]]
