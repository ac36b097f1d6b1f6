"""The world of one ledger: its state, and every step that can happen next.

A state is a tuple of small numbers, one for each part: bookies, store, clients, connections, open questions to the
store, budgets. A number names a part's state in a table; what a part does on an input is worked out once, by running
its machine, and remembered. So millions of states of the world cost thousands of runs of the machines.

| places | part |
| --- | --- |
| 0 .. n-1 | bookies |
| n | the store: record, version |
| n+1 .. n+C | clients: the writer, then the recoverers |
| then C x n | connections, client by client |
| then C | what each client asked the store |
| last | budgets |

Source: protocol document (001); protocol reference 2 to 5.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from quire.core.answers import Answer
from quire.core.ids import LedgerId
from quire.core.ledger_metadata import DigestType, LedgerMetadata, LedgerState, new_ledger
from quire.core.recovery import RecoveryStatus
from quire.core.transcript import record_text
from quire.proof.bookies import LEDGER, BookieDriver, BookieState
from quire.proof.clients import (
    PATIENCE,
    Client,
    Outcome,
    RecoveryDriver,
    WriterDriver,
    bookie_name,
    bookie_number,
)
from quire.proof.configuration import Configuration
from quire.proof.messages import Link, Request, reply_text, request_text
from quire.proof.switches import SHIPPED, Switches

State: TypeAlias = tuple[int, ...]
T = TypeVar("T")


class Label(NamedTuple):
    """One step, for people: who does what, and everything that was said then."""

    actor: str
    command: str
    said: tuple[str, ...] = ()
    other: str = ""
    """Who sent what is delivered, for the diagram."""
    kind: str = ""


class Store(NamedTuple):
    """The metadata store: the record (None once deleted), its version, closes so far, what went wrong."""

    record: LedgerMetadata | None
    version: int
    closes: int = 0
    fault: tuple[str, str] | None = None


class Ask(NamedTuple):
    """One question to the store: a swap on its way or answered, or a read."""

    kind: str
    record: LedgerMetadata | None
    version: int
    answer: str = ""
    waits: bool = True


class Budget(NamedTuple):
    """What may still go wrong."""

    timeouts: int
    crashes: int
    breaks: int
    lost_swaps: int
    damages: int
    deletions: int
    reruns: int


class Table(Generic[T]):
    """Numbers for the states of a kind of part."""

    def __init__(self, key: Callable[[T], Hashable] = lambda part: part) -> None:  # type: ignore[assignment,return-value]
        self._key = key
        self._numbers: dict[Hashable, int] = {}
        self.parts: list[T] = []

    def number(self, part: T) -> int:
        """The part's number, a new one if it is new."""
        key = self._key(part)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.parts)
            self.parts.append(part)
        return number

    def __len__(self) -> int:
        return len(self.parts)


Move: TypeAlias = tuple[Label, State]
ClientMove: TypeAlias = tuple[Label, int, tuple[tuple[int, Request], ...], tuple[tuple[Any, ...], ...]]


def legal(old: LedgerMetadata, new: LedgerMetadata) -> bool:
    """Whether a swap is one that the protocol knows: state by state, and fragments only where they may change.

    Source: protocol document (001), "Ledgers"; protocol reference 1.5.
    """
    if old.state is LedgerState.OPEN:
        return new.state is not LedgerState.IN_RECOVERY or new.fragments == old.fragments
    if old.state is LedgerState.IN_RECOVERY:
        return new.state is LedgerState.CLOSED
    return new == old


class World:
    """Every state that one ledger's world can come to. `successors` and `initial` are what the search needs."""

    def __init__(self, configuration: Configuration, switches: Switches = SHIPPED) -> None:
        self.configuration = configuration
        self.switches = switches
        self.bookie_driver: BookieDriver = switches.bookie(configuration, switches.rules)
        self.writer_driver = WriterDriver(configuration)
        self.recovery_driver = RecoveryDriver(configuration, switches.rules, switches.recovery)
        self.bookies: Table[BookieState] = Table()
        self.stores: Table[Store] = Table()
        self.clients: Table[Client] = Table(lambda client: client.key)
        self.links: Table[Link] = Table()
        self.asks: Table[tuple[Ask, ...]] = Table()
        self.budgets: Table[Budget] = Table()
        n = configuration.bookies
        self.n = n
        self.names = ["writer", *(f"recoverer {i + 1}" for i in range(configuration.recoverers))]
        if configuration.recoverers == 1:
            self.names[1] = "recoverer"
        self.count = len(self.names)
        self.at_store = n
        self.at_client = n + 1
        self.at_link = n + 1 + self.count
        self.at_ask = self.at_link + self.count * n
        self.at_budget = self.at_ask + self.count
        self.no_link = self.links.number(Link())
        self.no_ask = self.asks.number(())
        self._memos: dict[str, dict[Any, Any]] = {}
        self._delivers: dict[tuple[int, int, int, int, bool], Any] = {}
        self._hears: dict[tuple[int, int, int, int], Any] = {}
        self._client_moves: dict[tuple[int, int], list[ClientMove]] = {}
        self._tidied: dict[tuple[int, int, int], int] = {}
        self._quiet: dict[int, bool] = {}
        self._at_once: dict[int, bool] = {}

    # --- the beginning ---------------------------------------------------------------------------------------------

    def initial(self) -> State:
        """A new ledger; nobody has done anything."""
        c = self.configuration
        record = new_ledger(
            LedgerId(LEDGER),
            [bookie_name(i) for i in range(c.ensemble)],
            write_quorum=c.write_quorum,
            ack_quorum=c.ack_quorum,
            digest_type=DigestType.CRC32C,
            password=b"",
        )
        writer = self.switches.writer(record, 0, rules=self.switches.rules, limits=PATIENCE)
        bookie = self.bookies.number(BookieState())
        writer_number = self.clients.number(self.writer_driver.new(writer))
        recoverer = self.clients.number(self.recovery_driver.new())
        budget = Budget(
            c.timeouts, c.crashes, c.breaks, c.lost_swaps, c.damages, c.deletions, c.reruns
        )
        return (
            *[bookie] * self.n,
            self.stores.number(Store(record, 0)),
            writer_number,
            *[recoverer] * c.recoverers,
            *[self.no_link] * (self.count * self.n),
            *[self.no_ask] * self.count,
            self.budgets.number(budget),
        )

    # --- what can happen -------------------------------------------------------------------------------------------

    def successors(self, state: State) -> list[Move]:
        """Every next step: a label and the state after it."""
        moves: list[Move] = []
        if self._over(state):
            return moves
        self._messages(state, moves)
        self._own_moves(state, moves)
        self._store_moves(state, moves)
        budget = self.budgets.parts[state[self.at_budget]]
        if not self._syncs_at_once(state):
            self._syncs(state, moves)
        if any(budget):
            self._faults(state, budget, moves)
        return moves

    def _over(self, state: State) -> bool:
        """Whether all clients have ended and no crash can come: what is still on its way decides nothing."""
        for place in range(self.at_client, self.at_link):
            number = state[place]
            quiet = self._quiet.get(number)
            if quiet is None:
                quiet = self._quiet[number] = self.clients.parts[number].idle
            if not quiet:
                return False
        budget = self.budgets.parts[state[self.at_budget]]
        return not budget.reruns and not budget.crashes

    def _messages(self, state: State, moves: list[Move]) -> None:
        n, no_link, place = self.n, self.no_link, self.at_link
        at_once = self._syncs_at_once(state)
        for client in range(self.count):
            for bookie in range(n):
                link = state[place]
                if link != no_link:
                    asked = (client, bookie, state[bookie], link, at_once)
                    delivered = self._delivers.get(asked)
                    if delivered is None:
                        delivered = self._delivers[asked] = self._deliver(*asked)
                    for label, after, link_after, others in delivered:
                        new = list(state)
                        new[bookie] = after
                        new[place] = link_after
                        for other, reply in others:
                            self._push_reply(new, other, bookie, reply)
                        if link_after != no_link:
                            self._tidy(new, client, place)
                        moves.append((label, tuple(new)))
                    at_client = self.at_client + client
                    key = (client, bookie, state[at_client], link)
                    heard = self._hears.get(key)
                    if heard is None:
                        heard = self._hears[key] = self._hear(*key)
                    for client_move, link_after in heard:
                        new = list(state)
                        new[place] = link_after
                        moves.append((client_move[0], self._client_after(new, client, client_move)))
                place += 1

    def _syncs_at_once(self, state: State) -> bool:
        """Without a crash to come nobody can tell when a sync happens."""
        number = state[-1]
        at_once = self._at_once.get(number)
        if at_once is None:
            at_once = self._at_once[number] = not (
                self.budgets.parts[number].crashes or self.bookie_driver.steps_apart
            )
        return at_once

    def _deliver(self, client: int, bookie: int, bookie_at: int, link_at: int, at_once: bool) -> list[Any]:  # noqa: FBT001
        """The oldest request of a connection, or one of a broken one, reaches its bookie."""
        link, state = self.links.parts[link_at], self.bookies.parts[bookie_at]
        found = []
        if link.requests:
            (request, waits), rest = link.requests[0], link.requests[1:]
            found.append(self._take(client, bookie, state, link._replace(requests=rest), (request, waits), at_once))
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
        at_once: bool,  # noqa: FBT001
    ) -> Any:
        request, waits = asked
        after, replies, what = self.bookie_driver.deliver(state, client, request, waits=waits)
        said = [what]
        if at_once:
            after, more = self._synced(after)
            replies = [*replies, *more]
        others = []
        for whom, reply in replies:
            said.append(f"-> {self.names[whom]} {reply_text(reply)}")
            if whom == client:
                link = link.answered(reply)
            else:
                others.append((whom, reply))
        label = Label(
            bookie_name(bookie), f"takes {request_text(request)} from {self.names[client]}", tuple(said),
            self.names[client], request[0],
        )
        return label, self.bookies.number(after), self.links.number(link), others

    def _synced(self, state: BookieState) -> tuple[BookieState, list[Any]]:
        """Everything that waits for the disk is on it."""
        replies: list[Any] = []
        while state.journal:
            state, more = self.bookie_driver.sync(state)
            replies += more
        return state, replies

    def _hear(self, client: int, bookie: int, client_at: int, link_at: int) -> list[Any]:
        """The oldest reply of a connection reaches its client."""
        link = self.links.parts[link_at]
        if not link.replies:
            return []
        reply, rest = link.replies[0], link._replace(replies=link.replies[1:])
        who = self.clients.parts[client_at]
        driver = self.writer_driver if client == 0 else self.recovery_driver
        if not driver.heeds(who, reply):
            return []
        outcomes = driver.answered(who, bookie, reply)
        command = f"hears {reply_text(reply)} from {bookie_name(bookie)}"
        link_after = self.links.number(rest)
        return [
            (self._client_move(client, outcome, command, bookie_name(bookie), f"hears {reply[0][0]}"), link_after)
            for outcome in outcomes
        ]

    def _client_move(self, client: int, outcome: Outcome, command: str, other: str = "", kind: str = "") -> ClientMove:
        label = Label(self.names[client], command, outcome.said, other, kind or command.split()[0])
        return label, self.clients.number(outcome.client), outcome.sends, outcome.asks

    def _client_after(self, new: list[int], client: int, move: ClientMove) -> State:
        """A client's step on a state: its own place, what it sends, what it asks; then what nobody heeds any more goes."""
        _, after, sends, asks = move
        at_client = self.at_client + client
        changed = new[at_client] != after
        new[at_client] = after
        base = self.at_link + client * self.n
        links = self.links
        for bookie, request in sends:
            new[base + bookie] = links.number(links.parts[new[base + bookie]].sent(request))
        if asks:
            place = self.at_ask + client
            questions = self.asks.parts[new[place]]
            for kind, *rest in asks:
                questions = (*questions, Ask(kind, *(rest or (None, 0))))
            new[place] = self.asks.number(questions)
        if changed:
            no_link = self.no_link
            for place in range(base, base + self.n):
                if new[place] != no_link:
                    self._tidy(new, client, place)
        return tuple(new)

    def _tidy(self, new: list[int], client: int, place: int) -> None:
        """Forget replies that can change nothing any more, and who waits for them."""
        key = (client, new[self.at_client + client], new[place])
        after = self._tidied.get(key)
        if after is None:
            after = self._tidied[key] = self._tidy_link(*key)
        new[place] = after

    def _tidy_link(self, client: int, client_at: int, link_at: int) -> int:
        who, link = self.clients.parts[client_at], self.links.parts[link_at]
        if who.machine is None:
            return link_at
        driver = self.writer_driver if client == 0 else self.recovery_driver
        requests = tuple((request, waits and driver.waits_for(who, request)) for request, waits in link.requests)
        replies = tuple(reply for reply in link.replies if driver.heeds(who, reply))
        return self.links.number(Link(requests, replies, link.broken))

    def _push_reply(self, new: list[int], client: int, bookie: int, reply: Any) -> None:
        place = self.at_link + client * self.n + bookie
        new[place] = self.links.number(self.links.parts[new[place]].answered(reply))
        self._tidy(new, client, place)

    # --- clients by themselves -------------------------------------------------------------------------------------

    def _own_moves(self, state: State, moves: list[Move]) -> None:
        writer = state[self.at_client]
        found = self._client_moves.get((0, writer))
        if found is None:
            found = [
                self._client_move(0, outcome, command)
                for command, outcomes in self.writer_driver.moves(self.clients.parts[writer])
                for outcome in outcomes
            ]
            self._client_moves[0, writer] = found
        moves.extend((move[0], self._client_after(list(state), 0, move)) for move in found)
        for client in range(1, self.count):
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
                outcomes = self.recovery_driver.start(self.clients.parts[client_at], store.record, store.version)
                command = f"starts with {record_text(store.record)}"
                found = [self._client_move(client, outcome, command) for outcome in outcomes]
            memo[client, client_at, store_at] = found
        moves.extend((move[0], self._client_after(list(state), client, move)) for move in found)

    def _measure(self, state: State, client: int, moves: list[Move]) -> None:
        """The length of the last entry is read from whoever holds it (the record's ensemble of that entry)."""
        who = self.clients.parts[state[self.at_client + client]]
        entry, record = who.machine.lap, who.machine._record  # noqa: SLF001
        held = False
        for name in record.ensemble_of(entry):
            bookie = self.bookies.parts[state[bookie_number(name)]]
            held = held or bool(bookie.held >> entry & 1 and not bookie.damaged >> entry & 1)
        for outcome in self.recovery_driver.length_answered(who, found=held):
            command = f"{'finds' if held else 'does not find'} the length of {entry}"
            move = self._client_move(client, outcome, command)
            moves.append((move[0], self._client_after(list(state), client, move)))

    # --- the store -------------------------------------------------------------------------------------------------

    def _store_moves(self, state: State, moves: list[Move]) -> None:
        for client in range(self.count):
            place = self.at_ask + client
            if state[place] == self.no_ask:
                continue
            questions = self.asks.parts[state[place]]
            for index, ask in enumerate(questions):
                rest = (*questions[:index], *questions[index + 1 :])
                if ask.kind == "read":
                    self._client_reads(state, client, rest, moves)
                elif not ask.answer:
                    self._swap(state, client, questions, index, moves)
                elif ask.waits:
                    self._swap_heard(state, client, rest, ask, moves)

    def _swap(self, state: State, client: int, questions: tuple[Ask, ...], index: int, moves: list[Move]) -> None:
        """A swap reaches the store."""
        ask = questions[index]
        store = self.stores.parts[state[self.at_store]]
        after, answer = self.swapped(store, ask, by_writer=client == 0)
        done = (ask._replace(answer=answer, version=after.version),) if ask.waits else ()
        new = list(state)
        new[self.at_store] = self.stores.number(after)
        new[self.at_ask + client] = self.asks.number((*questions[:index], *done, *questions[index + 1 :]))
        assert ask.record is not None
        command = f"takes v{ask.version}: {record_text(ask.record)} from {self.names[client]}"
        moves.append((Label("store", command, (answer,), self.names[client], f"swap {answer}"), tuple(new)))

    def swapped(self, store: Store, ask: Ask, *, by_writer: bool) -> tuple[Store, str]:
        """The store after a swap, and its answer."""
        if store.record is None:
            return store, "missing"
        assert ask.record is not None
        closing = ask.record.state is LedgerState.CLOSED
        if store.version != ask.version and not (self.switches.blind_closes and by_writer and closing):
            return store, "conflict"
        fault = store.fault
        old = store.record
        if old.state is LedgerState.CLOSED and (
            ask.record.state is not LedgerState.CLOSED or ask.record.last_entry != old.last_entry
        ):
            fault = fault or ("I4", f"a closed ledger changed: {record_text(old)} became {record_text(ask.record)}")
        if not legal(old, ask.record):
            fault = fault or ("M", f"not a legal change: {record_text(old)} became {record_text(ask.record)}")
        closes = min(2, store.closes + closing)
        return Store(ask.record, store.version + 1, closes, fault), "written"

    def _swap_heard(self, state: State, client: int, rest: tuple[Ask, ...], ask: Ask, moves: list[Move]) -> None:
        memo = self._memo("heard")
        key = (client, state[self.at_client + client], ask)
        found = memo.get(key)
        if found is None:
            driver = self.writer_driver if client == 0 else self.recovery_driver
            who = self.clients.parts[state[self.at_client + client]]
            assert ask.record is not None
            outcomes = driver.swap_answered(who, ask.answer, ask.record, ask.version)
            found = [
                self._client_move(client, outcome, f"hears {ask.answer} v{ask.version}", "store", f"hears {ask.answer}")
                for outcome in outcomes
            ]
            memo[key] = found
        self._with_questions(state, client, rest, found, moves)

    def _client_reads(self, state: State, client: int, rest: tuple[Ask, ...], moves: list[Move]) -> None:
        memo = self._memo("reads")
        key = (client, state[self.at_client + client], state[self.at_store])
        found = memo.get(key)
        if found is None:
            driver = self.writer_driver if client == 0 else self.recovery_driver
            who, store = self.clients.parts[key[1]], self.stores.parts[key[2]]
            outcomes = driver.read_answered(who, store.record, store.version)
            text = record_text(store.record) if store.record else "nothing"
            found = [self._client_move(client, outcome, f"reads {text}", "store") for outcome in outcomes]
            memo[key] = found
        self._with_questions(state, client, rest, found, moves)

    def _with_questions(
        self, state: State, client: int, rest: tuple[Ask, ...], found: list[ClientMove], moves: list[Move]
    ) -> None:
        for move in found:
            new = list(state)
            new[self.at_ask + client] = self.asks.number(rest)
            moves.append((move[0], self._client_after(new, client, move)))

    # --- disks and faults ------------------------------------------------------------------------------------------

    def _syncs(self, state: State, moves: list[Move]) -> None:
        memo = self._memo("sync")
        for bookie in range(self.n):
            number = state[bookie]
            found = memo.get((bookie, number))
            if found is None:
                found = memo[bookie, number] = self._sync(bookie, number)
            if found:
                label, after, replies = found
                new = list(state)
                new[bookie] = after
                for client, reply in replies:
                    self._push_reply(new, client, bookie, reply)
                moves.append((label, tuple(new)))

    def _sync(self, bookie: int, number: int) -> Any:
        before = self.bookies.parts[number]
        if not before.journal:
            return ()
        after, replies = self.bookie_driver.sync(before)
        said = tuple(f"-> {self.names[client]} {reply_text(reply)}" for client, reply in replies)
        return Label(bookie_name(bookie), "syncs", said, kind="sync"), self.bookies.number(after), replies

    def _faults(self, state: State, budget: Budget, moves: list[Move]) -> None:
        if budget.timeouts:
            spent = self.budgets.number(budget._replace(timeouts=budget.timeouts - 1))
            self._timeouts((*state[:-1], spent), moves)
        if budget.crashes:
            spent = self.budgets.number(budget._replace(crashes=budget.crashes - 1))
            self._crashes((*state[:-1], spent), moves)
        if budget.breaks:
            spent = self.budgets.number(budget._replace(breaks=budget.breaks - 1))
            self._breaks((*state[:-1], spent), moves)
        if budget.lost_swaps:
            spent = self.budgets.number(budget._replace(lost_swaps=budget.lost_swaps - 1))
            self._lost_swaps((*state[:-1], spent), moves)
        if budget.damages:
            spent = self.budgets.number(budget._replace(damages=budget.damages - 1))
            self._damages((*state[:-1], spent), moves)
        if budget.deletions:
            spent = self.budgets.number(budget._replace(deletions=budget.deletions - 1))
            self._deletion((*state[:-1], spent), moves)

    def _timeouts(self, state: State, moves: list[Move]) -> None:
        writer = self.clients.parts[state[self.at_client]]
        memo = self._memo("lost")
        for slot, name in self.writer_driver.losable(writer):
            found = memo.get((state[self.at_client], slot))
            if found is None:
                outcomes = self.writer_driver.lost(writer, slot, name)
                found = [self._client_move(0, outcome, f"lost {name}", kind="timeout") for outcome in outcomes]
                memo[state[self.at_client], slot] = found
            moves.extend((move[0], self._client_after(list(state), 0, move)) for move in found)
        for client in range(1, self.count):
            who = self.clients.parts[state[self.at_client + client]]
            if who.machine is None or who.idle:
                continue
            for bookie in range(self.n):
                for request in self._outstanding(state, client, bookie):
                    self._give_up(state, client, bookie, request, moves)

    def _outstanding(self, state: State, client: int, bookie: int) -> list[Request]:
        link = self.links.parts[state[self.at_link + client * self.n + bookie]]
        waiting = [request for request, waits in link.requests if waits]
        waiting += [reply[0] for reply in link.replies]
        waiting += [
            record[2][1]
            for record in self.bookies.parts[state[bookie]].journal
            if record[2] and record[2][0] == client and record[2][2]
        ]
        return waiting

    def _give_up(self, state: State, client: int, bookie: int, request: Request, moves: list[Move]) -> None:
        who = self.clients.parts[state[self.at_client + client]]
        if not self.recovery_driver.waits_for(who, request):
            return
        new = list(state)
        place = self.at_link + client * self.n + bookie
        new[place] = self.links.number(self.links.parts[state[place]].given_up(request))
        before = self.bookies.parts[state[bookie]]
        journal = tuple(
            (kind, content, (*waiting[:2], False) if waiting and waiting[:2] == (client, request) else waiting)
            for kind, content, waiting in before.journal
        )
        new[bookie] = self.bookies.number(before._replace(journal=journal))
        command = f"gives up {request_text(request)} at {bookie_name(bookie)}"
        for outcome in self.recovery_driver.gave_up(who, bookie, request):
            move = self._client_move(client, outcome, command, kind="timeout")
            moves.append((move[0], self._client_after([*new], client, move)))

    def _crashes(self, state: State, moves: list[Move]) -> None:
        store = self.stores.parts[state[self.at_store]]
        closed = store.record is None or store.record.state is LedgerState.CLOSED
        for bookie in range(self.n):
            before = self.bookies.parts[state[bookie]]
            if before.facts is None and not before.journal:
                continue
            listed = store.record is not None and any(
                bookie_name(bookie) in fragment.ensemble for fragment in store.record.fragments
            )
            after = self.bookie_driver.crashed(before, listed=listed, closed=closed)
            new = list(state)
            new[bookie] = self.bookies.number(after)
            for client in range(self.count):
                place = self.at_link + client * self.n + bookie
                link = self.links.parts[new[place]].died()
                for record in before.journal:
                    if record[2] and record[2][0] == client and record[2][2]:
                        link = link.answered((record[2][1], Answer.UNREACHABLE, None))
                new[place] = self.links.number(link)
                self._tidy(new, client, place)
            if self._syncs_at_once(state):
                self._settle_disks(new)
            moves.append((Label(bookie_name(bookie), "crashes and starts again", (), kind="crash"), tuple(new)))

    def _settle_disks(self, new: list[int]) -> None:
        """The last crash has been: what waits for a disk is on it now."""
        for bookie in range(self.n):
            after, replies = self._synced(self.bookies.parts[new[bookie]])
            new[bookie] = self.bookies.number(after)
            for client, reply in replies:
                self._push_reply(new, client, bookie, reply)

    def _breaks(self, state: State, moves: list[Move]) -> None:
        for client in range(self.count):
            for bookie in range(self.n):
                place = self.at_link + client * self.n + bookie
                link = self.links.parts[state[place]]
                if not link.requests:
                    continue
                new = list(state)
                new[place] = self.links.number(link.cut())
                self._tidy(new, client, place)
                command = f"its connection to {bookie_name(bookie)} breaks"
                moves.append((Label(self.names[client], command, (), kind="break"), tuple(new)))

    def _lost_swaps(self, state: State, moves: list[Move]) -> None:
        for client in range(self.count):
            questions = self.asks.parts[state[self.at_ask + client]]
            for index, ask in enumerate(questions):
                if ask.kind != "swap" or not ask.waits:
                    continue
                kept = () if ask.answer else (ask._replace(waits=False),)
                rest = (*questions[:index], *kept, *questions[index + 1 :])
                driver = self.writer_driver if client == 0 else self.recovery_driver
                who = self.clients.parts[state[self.at_client + client]]
                assert ask.record is not None
                outcomes = driver.swap_answered(who, "unknown", ask.record, ask.version)
                found = [
                    self._client_move(client, outcome, "hears nothing of its swap", kind="lost swap")
                    for outcome in outcomes
                ]
                self._with_questions(state, client, rest, found, moves)

    def _damages(self, state: State, moves: list[Move]) -> None:
        for bookie in range(self.n):
            before = self.bookies.parts[state[bookie]]
            for entry in range(self.configuration.entries):
                if before.held >> entry & 1 and not before.damaged >> entry & 1:
                    new = list(state)
                    new[bookie] = self.bookies.number(before._replace(damaged=before.damaged | 1 << entry))
                    label = Label(bookie_name(bookie), f"entry {entry} rots", (), kind="damage")
                    moves.append((label, tuple(new)))

    def _deletion(self, state: State, moves: list[Move]) -> None:
        """The owner deletes the ledger: the record goes, and every bookie is told."""
        store = self.stores.parts[state[self.at_store]]
        if store.record is None:
            return
        new = list(state)
        new[self.at_store] = self.stores.number(Store(None, store.version + 1, store.closes, store.fault))
        for bookie in range(self.n):
            before = self.bookies.parts[state[bookie]]
            if before.facts is not None:
                after, _, _ = self.bookie_driver.deliver(before, 0, ("delete",), waits=False)
                new[bookie] = self.bookies.number(after)
        if self._syncs_at_once(state):
            self._settle_disks(new)
        moves.append((Label("owner", "deletes the ledger", (), kind="delete"), tuple(new)))

    # --- pieces ----------------------------------------------------------------------------------------------------

    def _memo(self, name: str) -> dict[Any, Any]:
        return self._memos.setdefault(name, {})

    def clients_of(self, state: State) -> Iterator[Client]:
        """The clients of a state."""
        for place in range(self.at_client, self.at_link):
            yield self.clients.parts[state[place]]

    def sizes(self) -> dict[str, int]:
        """How many states each kind of part came to."""
        return {
            "bookie": len(self.bookies),
            "client": len(self.clients),
            "connection": len(self.links),
            "record": len(self.stores),
        }

