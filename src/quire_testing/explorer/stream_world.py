"""The world of one stream: clients that take it over from each other, its bookies, and a reader with an old record.

It runs the machines that ship: `TakeOverMachine`, `WriterMachine` and `BookieLedgerMachine`. An entry is an id and the term
that wrote it first, so that two entries of one id are two: the ledger's world keeps entries as bits and could not tell them
apart. A connection carries requests and responses in order; what was under way when it broke arrives late.

| indexes of a state | part |
| --- | --- |
| 0 .. n-1 | bookies |
| then one | the store: record, version |
| then C | clients: the first created the stream and writes in term 1; those who repair come last |
| then C x n | connections, client by client |
| then C | what each client asked the store |
| then R | readers |
| last | budgets |

Source: Vanlightly's unbounded ledgers; docs/protocol/streams.md; docs/protocol/repair.md, "Streams".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from quire.core.answers import Answer
from quire.core.errors import MisuseError
from quire.core.ids import NO_ENTRY, BookieId, LedgerId
from quire.core.ledger.effects import TakenOver
from quire.core.ledger.metadata import DigestType, LedgerMetadata, LedgerState, new_ledger, new_stream
from quire.core.ledger.replica import ReplicaList, dirty_parts
from quire.core.ledger.stripes import HeldInterval
from quire.core.ledger.writer import WriterMachine
from quire.core.recovery.machine import RecoveryStatus
from quire.core.repair.effects import CopyRange, RepairOutcome, RepairStatus
from quire.core.transcript import record_text
from quire_testing.explorer.bookies import LEDGER
from quire_testing.explorer.clients import ClientState, Outcome, bookie_name, bookie_number, with_fault
from quire_testing.explorer.messages import Link, Reply, Request, entries_text, reply_text, request_text
from quire_testing.explorer.parts import CAS_LOST, Ask, Label, Table, repaired_only
from quire_testing.explorer.repairers import LISTS, RepairDriver, entries_of_decided
from quire_testing.explorer.stream_bookies import StreamBookie, StreamBookies, Value, value_at
from quire_testing.explorer.stream_clients import StreamClient, StreamDriver, Written
from quire_testing.explorer.stream_fencing import members_of
from quire_testing.explorer.stream_parts import (
    StreamBudget,
    StreamConfiguration,
    StreamReader,
    StreamStoreState,
    in_mode,
    places_of,
)
from quire_testing.explorer.switches import SHIPPED, Switches

State: TypeAlias = tuple[int, ...]
Move: TypeAlias = tuple[Label, State]
Source: TypeAlias = tuple[tuple[str | int, ...], Callable[[], Iterable[Move]]]
"""Its name, and what works out the steps that it can make."""

Done: TypeAlias = tuple[Label, int, tuple[tuple[int, Request], ...], tuple[tuple[Any, ...], ...]]
"""A client's step: its label, the client's number after it, what it sends, what it asks the store."""


class StreamWorld:
    """Every state that one stream's world can come to.

    Args:
        configuration: the size.
        switches: the machines and rules.
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
        clients += [self.driver.no_client()] * c.clients
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
        """A state once a client has taken a step. Its own index, what it sends, what it asks; then replies that can change nothing are forgotten."""
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
            index = self.at.ask + client
            questions = self.asks.parts[new[index]]
            for kind, *rest in asks:
                questions = (*questions, Ask(kind, *(rest[:2] or (None, 0))))
            new[index] = self.asks.number(questions)
        if has_changed:
            for index in range(base, base + self.n):
                self.tidy(new, client, index)
            if self.clients.parts[after].machine is None:
                # A compare-and-swap on its way may still reach the store; nothing waits for its response.
                questions = self.asks.parts[new[self.at.ask + client]]
                kept = tuple(
                    ask._replace(waits=False) for ask in questions if ask.kind == "swap" and not ask.answer
                )
                new[self.at.ask + client] = self.asks.number(kept)
        return tuple(new)

    def tidy(self, new: list[int], client: int, index: int) -> None:
        if new[index] == self.no_link:
            return
        key = ("tidy", client < self.leaders, new[self.at.client + client], new[index])
        after = self._memo.get(key)
        if after is None:
            who, link = self.clients.parts[key[2]], self.links.parts[key[3]]
            driver = self.driver_of(client)
            requests = tuple((each, waits and driver.waits_for(who, each)) for each, waits in link.requests)
            replies = tuple(reply for reply in link.replies if driver.heeds(who, reply))
            after = self._memo[key] = self.links.number(Link(requests, replies, link.broken))
        new[index] = after

    def _push(self, new: list[int], client: int, bookie: int, reply: Reply) -> None:
        index = self.at.link + client * self.n + bookie
        new[index] = self.links.number(self.links.parts[new[index]].answered(reply))
        self.tidy(new, client, index)

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
        if who.joining:  # adds are dropped with their bookie
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
            index = self.at.link + client * self.n + bookie
            link = self.links.parts[state[index]]
            outstanding = [request for request, waits in link.requests if waits]
            outstanding += [reply[0] for reply in link.replies]
            for request in outstanding:
                if (kinds and request[0] not in kinds) or not self.driver.waits_for(who, request):
                    continue
                new = list(state)
                new[index] = self.links.number(link.given_up(request))
                command = f"gives up {request_text(request)} at {bookie_name(bookie)}"
                for outcome in self.driver.gave_up(who, bookie, request):
                    done = self.done(client, outcome, command, kind="timeout")
                    moves.append((done[0], self.after([*new], client, done)))

    # --- messages ------------------------------------------------------------------------------------------------------

    def _delivers(self, state: State, client: int, bookie: int, moves: list[Move]) -> None:
        """The oldest request of a connection, or one of a broken one, reaches its bookie."""
        index = self.at.link + client * self.n + bookie
        key = ("deliver", client, bookie, state[bookie], state[index])
        found = self._memo.get(key)
        if found is None:
            found = self._memo[key] = list(self._delivered(*key[1:]))
        for label, after, link_after, others in found:
            new = list(state)
            new[bookie], new[index] = after, link_after
            for other, reply in others:
                self._push(new, other, bookie, reply)
            self.tidy(new, client, index)
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
        index = self.at.link + client * self.n + bookie
        key = ("hear", client, bookie, state[self.at.client + client], state[index])
        found = self._memo.get(key)
        if found is None:
            found = self._memo[key] = self._on_response(*key[1:])
        for done, link_after in found:
            new = list(state)
            new[index] = link_after
            moves.append((done[0], self.after(new, client, done)))

    def _on_response(self, client: int, bookie: int, client_at: int, link_at: int) -> list[tuple[Done, int]]:
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
                self._cas(state, client, questions, index, moves)
            elif ask.waits:
                who = self.clients.parts[state[self.at.client + client]]
                assert ask.record is not None
                outcomes = self.driver_of(client).cas_answered(who, ask.answer, ask.record, ask.version)
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

    def _cas(
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
                after = self.repairs.judged_cas(self.bookies_of(state), store, after)
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


def changed(
    world: StreamWorld, created: LedgerMetadata
) -> tuple[LedgerMetadata, list[StreamBookie], list[ClientState]]:
    """The record, the bookies and the clients of a world that begins in term 2, with something of term 1 left over.

    The first client appended entry 0, which only the bookie that is the spare now has stored. The second took the stream
    over without that bookie, and had its own entry 0 acknowledged. Then it replaced the last bookie by the spare. Where terms
    only fence its entry 0 is the no-op, the acknowledged one is entry 1, and the spare has two of the first client.

    Args:
        world: with a spare, a client that did not create the stream, and bookies that store every entry.
        created: the record of the new stream.
    """
    c, driver = world.configuration, world.driver
    if not (c.bookies > c.ensemble == c.write_quorum and c.clients):
        msg = "a stream that begins with a changed ensemble has a spare, a second client, and Qw = E"
        raise MisuseError(msg)
    spare = c.ensemble
    opened = created.taken_over(2, 2).opened(NO_ENTRY, created.fragments)
    ensemble = [*opened.last_fragment.ensemble[:-1], bookie_name(spare)]
    last = int(c.fencing)
    record = opened.with_ensemble(last + 1, ensemble)
    bookies = [StreamBookie()] * c.bookies
    for number in range(c.ensemble + 1):
        term = 1 if number == spare else 2
        add = ("add", min(number, c.ensemble - 1), 1, 0, last, NO_ENTRY, term)
        bookies[number], _, _ = world.bookie_driver.deliver(bookies[number], 0, add, waits=False)
    if c.fencing:
        join = ("truncate", c.ensemble - 1, spare, last + 1, False, NO_ENTRY, 2)
        bookies[spare], _, _ = world.bookie_driver.deliver(bookies[spare], 0, join, waits=False)
    first = driver.with_past(driver.no_client(), (Written(1, 0, last),))
    second = driver.with_past(
        driver.writing(replace(driver.no_client(), begun=1), TakenOver(record, 0, last, last + 1, ())),
        (Written(2, last, last),),
        acked=((last, 2),),
    )
    return record, bookies, [first, second, *[driver.no_client()] * (c.clients - 1)]


def breaks(world: StreamWorld, state: State, moves: list[Move]) -> None:
    """A connection with requests on it breaks: what was under way may still arrive, late."""
    state = world.spent(state, "breaks")
    for client in range(world.count):
        for bookie in range(world.n):
            index = world.at.link + client * world.n + bookie
            link = world.links.parts[state[index]]
            if link.requests:
                new = list(state)
                new[index] = world.links.number(link.cut())
                world.tidy(new, client, index)
                command = f"its connection to {bookie_name(bookie)} breaks"
                moves.append((Label(world.names[client], command, (), kind="break"), tuple(new)))


def lost_swaps(world: StreamWorld, state: State, moves: list[Move]) -> None:
    """The response to a compare-and-swap is lost, and it may not have reached the store yet."""
    state = world.spent(state, "lost_swaps")
    for client in range(world.count):
        questions = world.asks.parts[state[world.at.ask + client]]
        for index, ask in enumerate(questions):
            who = world.clients.parts[state[world.at.client + client]]
            if ask.kind != "swap" or not ask.waits:
                continue
            kept = () if ask.answer else (ask._replace(waits=False),)
            rest = (*questions[:index], *kept, *questions[index + 1 :])
            assert ask.record is not None
            outcomes = world.driver_of(client).cas_answered(who, "unknown", ask.record, ask.version)
            world.answers(state, client, rest, outcomes, CAS_LOST, "lost swap", moves)


def losses(world: StreamWorld, state: State, moves: list[Move]) -> None:
    """A bookie loses its disk, and with that what waits there."""
    state = world.spent(state, "losses")
    for bookie in range(world.n):
        before = world.bookies.parts[state[bookie]]
        if before.facts is None:
            continue
        new = list(state)
        new[bookie] = world.bookies.number(world.bookie_driver.lost(before))
        for client in range(world.count):
            index = world.at.link + client * world.n + bookie
            link = world.links.parts[new[index]].died()
            for whom, request, waits in before.waiting:
                if whom == client and waits:
                    link = link.answered((request, Answer.UNREACHABLE, None))
            new[index] = world.links.number(link)
            world.tidy(new, client, index)
        moves.append((Label(bookie_name(bookie), "loses its disk", (), kind="loss"), tuple(new)))


def reads(world: StreamWorld, state: State, which: int) -> Iterator[Move]:
    """A reader opens the stream once; hears a LAC of a bookie; reads an entry from a bookie under its record's ranges."""
    reader = world.readers.parts[state[world.at.reader + which]]
    record = world.stores.parts[state[world.at.store]].record
    if reader.record is None:
        yield _reader_move(world, state, which, reader._replace(record=record), "opens", record_text(record))
        return
    # An id alone is not the entry's name where terms only fence: only those are asked that the record names.
    ids = range(reader.lac + 1)
    asked = [members_of(reader.record, entry) for entry in ids] if reader.record.only_fences else None
    for number in range(world.n):
        bookie, name = world.bookies.parts[state[number]], bookie_name(number)
        lac, lac_term = bookie.known.lac, bookie.known.lac_term
        if lac > reader.lac:
            if world.rules.may_use_lac(lac_term, reader.record):
                after = reader._replace(lac=lac)
                yield _reader_move(world, state, which, after, f"hears LAC {lac} of term {lac_term}", name)
            elif world.rules.may_use_lac(lac_term, record):
                after = reader._replace(lac=lac, record=record)
                command = f"hears LAC {lac} of term {lac_term}, reads the record"
                yield _reader_move(world, state, which, after, command, name)
        for entry in ids:
            if asked is not None and number not in asked[entry]:
                continue
            value = value_at(bookie, entry, reader.record)
            if value is not None and value not in reader.seen:
                after = reader._replace(seen=tuple(sorted({*reader.seen, value})))
                yield _reader_move(world, state, which, after, f"reads {entry} of term {value[1]}", name)


def _reader_move(
    world: StreamWorld, state: State, which: int, after: StreamReader, command: str, other: str
) -> Move:
    new = list(state)
    new[world.at.reader + which] = world.readers.number(after)
    kind = command.split(maxsplit=1)[0]
    return Label(world.reader_names[which], f"{command}: {other}", (), "", kind), tuple(new)


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
    """What repairers do in a stream's world, and what is said of their compare-and-swaps and of their ends.

    Each repairs once what is decided of the stream, and begins with what an operator says is lost. That may be wrong: a
    bookie that is called lost may live, and takes part as before.

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
        """An operator says which bookie of a decided fragment is lost, or that none is."""
        world = self._world
        record = world.stores.parts[state[world.at.store]].record
        if len(record.fragments) < 2:
            return
        named = sorted({bookie for fragment in record.fragments[:-1] for bookie in fragment.ensemble})
        for lost in [(), *((bookie,) for bookie in named)]:
            there = [bookie_name(number) for number in range(world.n) if bookie_name(number) not in lost]
            work = partial(self.driver.start, who, lost, there)
            yield from self._steps(state, client, f"repairs, gone {' '.join(lost) or 'none'}", "repair", work)

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
        if record.only_fences:
            bookie, answer = world.bookie_driver.raised(bookie, record.term)
            if answer is Answer.OK:
                dirty = dirty_parts(self.listed(bookie).held, record, world.rules)
                bookie = world.bookie_driver.without_others(bookie, dirty)
        listed = self.listed(bookie) if answer is Answer.OK else ReplicaList(answer)
        new = (*state[:number], world.bookies.number(bookie), *state[number + 1 :])
        return self._steps(
            new, client, f"lists {name}", "list", partial(self.driver.listed, who, name, listed)
        )

    def listed(self, bookie: StreamBookie) -> ReplicaList:
        """What a bookie says that it holds, entry by entry; one that knows nothing has no ledger."""
        if bookie.facts is None:
            return ReplicaList(Answer.NO_LEDGER)
        world, limbo = self._world, bookie.known.limbo
        size = world.configuration.ensemble
        period = 1 if world.configuration.write_quorum == size else size
        held = tuple(
            HeldInterval(entry, entry, period, 1 << entry % period, origin)
            for entry, origin in bookie.entries
        )
        return ReplicaList(Answer.OK, held, bookie.known.in_limbo, limbo.lsn if limbo else 0)

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
        lsn = who.machine.plan.lists[name].response.limbo_lsn
        after, answer = world.bookie_driver.clear_limbo(world.bookies.parts[state[number]], lsn)
        new = (*state[:number], world.bookies.number(after), *state[number + 1 :])
        work = partial(self.driver.limbo_cleared, who, name, answer)
        return self._steps(new, client, f"ends the limbo {lsn} of {name}: {answer.name}", "clear", work)

    # --- what is judged ------------------------------------------------------------------------------------------------

    def judged_cas(
        self, bookies: Sequence[StreamBookie], before: StreamStoreState, after: StreamStoreState
    ) -> StreamStoreState:
        """A repairer's compare-and-swap: it changes bookies of decided fragments only, and who comes in holds its entries."""
        if before.fault:
            return after
        if not repaired_only(before.record, after.record):
            return after._replace(fault=("RR1", "a repair changed more than bookies of decided fragments"))
        came = [each for each in _decided(after.record) if each not in _decided(before.record)]
        if not any(bookie.losses for bookie in bookies) and any(
            value not in bookies[bookie].entries for bookie, value in came
        ):
            return after._replace(
                fault=("RR2", "a repair put a bookie into the record that lacks some of its entries")
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
        for bookie, bits in entries_of_decided(record)
        for entry in range(bits.bit_length())
        if bits >> entry & 1
    ]
