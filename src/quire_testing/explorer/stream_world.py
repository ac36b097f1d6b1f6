"""The world of one stream: clients that take it over from each other, its bookies, and a reader with an old record.

It runs the machines that ship: `TakeOverMachine`, `WriterMachine` and `BookieLedgerMachine`. An entry is an id and the term
that wrote it first, so that two entries of one id are two: the ledger's world keeps entries as bits and could not tell them
apart. A connection carries requests and responses in order; what was under way when it broke arrives late.

After what all worlds of actors have (`ActorWorld`) its states have readers, then budgets. The first client created the stream
and writes in term 1.

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
from quire_testing.explorer.actors import ActorWorld
from quire_testing.explorer.bookies import LEDGER
from quire_testing.explorer.clients import ClientState, Outcome, bookie_name, bookie_number, with_fault
from quire_testing.explorer.messages import entries_text
from quire_testing.explorer.parts import repaired_only
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
)
from quire_testing.explorer.switches import SHIPPED, Switches
from quire_testing.explorer.tables import Ask, Label, Move, State, Table

Source: TypeAlias = tuple[tuple[str | int, ...], Callable[[], Iterable[Move]]]
"""Its name, and what works out the steps that it can make."""


class StreamWorld(ActorWorld):
    """Every state that one stream's world can come to.

    Args:
        configuration: the size.
        switches: the machines and rules.
    """

    forgets_idle = True

    def __init__(self, configuration: StreamConfiguration, switches: Switches = SHIPPED) -> None:
        c = self.configuration = configuration
        leaders = [f"client {number}" for number in range(1 + c.clients)]
        repairers = [f"repairer {number + 1}" for number in range(c.repairers)]
        super().__init__(c.bookies, [*leaders, *repairers], c.repairers)
        self.rules, sizes = switches.rules, (c.ensemble, c.write_quorum)
        self.bookie_driver = StreamBookies(*sizes, self.rules, switches.bookie, fencing=c.fencing)
        self.driver = StreamDriver(c.sizes, switches)
        self.bookies: Table[StreamBookie] = Table()
        self.stores: Table[StreamStoreState] = Table()
        self.clients: Table[Any] = Table(lambda client: client.key)
        self.readers: Table[StreamReader] = Table()
        self.budgets: Table[StreamBudget] = Table()
        self.repairs = StreamRepairs(self, StreamRepairDriver(c.sizes, switches.rules, switches.repair))
        self.reader_names = [f"reader {number + 1}" for number in range(c.readers)]

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
            if client < self.first_repairer:
                yield (name, ""), self._asked(self._own_moves, state, client, budget)
                if budget.timeouts:
                    yield (name, "timeout"), self._asked(self._timeouts, state, client)
            else:
                yield (name, ""), self._asked(self.repairs.moves_of, state, client)
            for bookie, index in enumerate(range(first := self.at.link + client * self.n, first + self.n)):
                if state[index] != self.no_link:
                    yield (name, "sends", bookie), self._asked(self._deliveries, state, index, client, bookie)
                    yield (name, "hears", bookie), self._asked(self._hearings, state, index, client, bookie)
            if state[self.at.ask + client] != self.no_ask:
                yield (name, "store"), self._asked(self._questions_of, state, client)
        for bookie in range(self.n):
            if self.bookies.parts[state[bookie]].waiting:
                yield (bookie_name(bookie), "store"), self._asked(self._reads_record, state, bookie)
        for reader, name in enumerate(self.reader_names):
            yield (name, ""), partial(reads, self, state, reader)
        for left, kind, what, happens in (
            (budget.breaks, "break", "breaks", partial(self.breaks, self.pairs)),
            (budget.lost_swaps, "lost swap", "lost_swaps", self.lost_swaps),
            (budget.losses, "loss", "losses", partial(losses, self)),
        ):
            if left:
                yield (kind, ""), self._asked(happens, self.spent(state, what))

    @staticmethod
    def _asked(work_out: Callable[..., None], *arguments: Any) -> Callable[[], list[Move]]:
        def steps() -> list[Move]:
            moves: list[Move] = []
            work_out(*arguments, moves)
            return moves

        return steps

    # --- a client's step on a state ------------------------------------------------------------------------------------

    def driver_of(self, client: int) -> StreamDriver | StreamRepairDriver:
        """What drives a client."""
        return self.driver if client < self.first_repairer else self.repairs.driver

    def _judged(self, new: list[int], number: int) -> int:
        bookies = [self.bookies.parts[each] for each in new[: self.n]]
        return self.clients.number(self.repairs.ended(bookies, self.clients.parts[number]))

    def _own_moves(self, state: State, client: int, budget: StreamBudget, moves: list[Move]) -> None:
        number = state[self.at.client + client]
        who = self.clients.parts[number]
        if who.machine is None:
            if budget.take_overs:
                self._takes_over(self.spent(state, "take_overs"), client, moves)
            return
        if isinstance(who.machine, WriterMachine):
            moves += self._after_each(state, client, self._moves_of_writer(state, client))
            return
        if who.machine.status is RecoveryStatus.MEASURING:
            self._measure(state, client, moves)
        found = self._client_moves(client, self.driver.waited(who), "waited for bookies")
        moves += self._after_each(state, client, found)

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
            outcomes = self.driver.lost(who, slot, name)
            found = self._client_moves(client, outcomes, f"lost {name}", kind="timeout")
            moves += self._after_each(spent, client, found)
        if who.joining:  # adds are dropped with their bookie
            self._gives_up(spent, client, moves, ("truncate",))

    def _takes_over(self, state: State, client: int, moves: list[Move]) -> None:
        store_at, client_at = state[self.at.store], state[self.at.client + client]
        key = ("take over", client, client_at, store_at)
        found = self._memo.get(key)
        if found is None:
            store, who = self.stores.parts[store_at], self.clients.parts[client_at]
            owner = 1 + client + self.count * who.begun
            outcomes = self.driver.take_over(who, store.record, store.version, owner)
            command = f"takes over with {record_text(store.record)}"
            found = self._memo[key] = self._client_moves(client, outcomes, command)
        moves += self._after_each(state, client, found)

    def _gives_up(self, state: State, client: int, moves: list[Move], kinds: tuple[str, ...] = ()) -> None:
        for bookie in range(self.n):
            for request in self.outstanding(state, client, bookie):
                if not kinds or request[0] in kinds:
                    self.give_up(state, client, bookie, request, moves)

    def after_cas_of(self, state: State, client: int, ask: Ask) -> tuple[StreamStoreState, str]:
        """The store after a client's compare-and-swap, and its response; that of a repairer is judged by the bookies."""
        store, record = self.stores.parts[state[self.at.store]], ask.record
        assert record is not None
        if store.version != ask.version:
            return store, "conflict"
        fault = store.fault
        if client >= self.first_repairer:
            after = StreamStoreState(record, store.version + 1, fault)
            return self.repairs.judged_cas(self.bookies_of(state), store, after), "written"
        if record.term < store.record.term:
            fault = fault or ("U4", f"the record's term fell to {record.term}")
        elif record.state is LedgerState.CLOSED:
            fault = fault or ("U4", "a writer that was not asked to closed the stream")
        machine = self.clients.parts[state[self.at.client + client]].machine
        if isinstance(machine, WriterMachine) and record.term != machine.closing.term:
            own = machine.closing.term
            fault = fault or ("U5", f"a writer of term {own} changed the record in term {record.term}")
        return StreamStoreState(record, store.version + 1, fault), "written"

    # --- a bookie that lost its disk -----------------------------------------------------------------------------------

    def _reads_record(self, state: State, bookie: int, moves: list[Move]) -> None:
        """A bookie that has lost its disk reads the record, and takes its term before anything that waits."""
        term = self.stores.parts[state[self.at.store]].record.term
        after, replies, said = self.bookie_driver.reads_record(self.bookies.parts[state[bookie]], term)
        new = [*self._with_bookie(state, bookie, after)]
        self._push_replies(new, bookie, replies)
        said += self._said(replies)
        label = Label(bookie_name(bookie), f"reads term {term}", tuple(said), "store", "reads")
        moves.append((label, tuple(new)))

    # --- what is looked at ---------------------------------------------------------------------------------------------

    def clients_of(self, state: State) -> list[StreamClient]:
        """The clients of a state that write, or may."""
        return [
            self.clients.parts[number]
            for number in state[self.at.client : self.at.client + self.first_repairer]
        ]

    def repairers_of(self, state: State) -> list[ClientState]:
        """The clients of a state that repair."""
        return [
            self.clients.parts[number]
            for number in state[self.at.client + self.first_repairer : self.at.link]
        ]

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


def losses(world: StreamWorld, state: State, moves: list[Move]) -> None:
    """A bookie loses its disk, and with that what waits there."""
    for bookie in range(world.n):
        before = world.bookies.parts[state[bookie]]
        if before.facts is None:
            continue
        new = world._stopped(state, bookie, world.bookie_driver.lost(before), before.waiting)
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
        return world._after_each(state, client, world._client_moves(client, work(), command, kind=kind))

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
        new = world._with_bookie(state, number, bookie)
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
        new = world._with_bookie(state, number, after)
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
