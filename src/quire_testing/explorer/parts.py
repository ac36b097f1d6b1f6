"""The parts of a ledger's world, each with a number for every state that it comes to, and what all steps share.

| indexes of a state | part |
| --- | --- |
| 0 .. n-1 | bookies |
| n | the store: record, version |
| n+1 .. n+C | clients: the writer, then the recoverers, then the repairers |
| then C x n | connections, client by client |
| then C | what each client asked the store |
| then R | readers |
| then one, where limbo is cleared | who clears them |
| last | budgets |
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from quire.core.answers import Answer
from quire.core.ledger.metadata import LedgerMetadata, LedgerState
from quire.core.ledger.notes import NO_NOTES, LedgerNotes
from quire.core.repair.effects import RepairOutcome
from quire_testing.explorer.bookies import BookieDriver, BookieState
from quire_testing.explorer.clients import ClientState, LedgerWriterDriver, Outcome
from quire_testing.explorer.configuration import Configuration
from quire_testing.explorer.messages import Link, Request
from quire_testing.explorer.readers import ReaderDriver, ReaderState
from quire_testing.explorer.recoverers import RecoveryDriver
from quire_testing.explorer.repairers import RepairDriver, bits_of, entries_of_decided, judged
from quire_testing.explorer.switches import SHIPPED, Switches

State: TypeAlias = tuple[int, ...]
T = TypeVar("T")

CAS_LOST: Final = "hears nothing of its compare-and-swap"
"""The step of a client, or a bookie, whose response from the store is lost."""


class Label(NamedTuple):
    """One step, for people: who does what, and everything that was said then."""

    actor: str
    command: str
    said: tuple[str, ...] = ()
    other: str = ""
    """Who sent what is delivered, for the diagram."""
    kind: str = ""


class Store(NamedTuple):
    """The metadata store: the record (None once deleted), its version, closes so far, what went wrong, the notes.

    `whole`: where bookies collect, a repair has said of this very version that all is there.
    """

    record: LedgerMetadata | None
    version: int
    closes: int = 0
    fault: tuple[str, str] | None = None
    notes: LedgerNotes = NO_NOTES
    whole: bool = False

    @property
    def lost(self) -> int:
        """Entries, as bits, whose loss was accepted."""
        return bits_of(entries for loss in self.notes.losses for entries in loss.ranges)


class Ask(NamedTuple):
    """One question to the store: a compare-and-swap on its way or answered, or a read."""

    kind: str
    record: LedgerMetadata | None
    version: int
    answer: str = ""
    waits: bool = True
    notes: LedgerNotes = NO_NOTES


class Budget(NamedTuple):
    """What may still go wrong."""

    timeouts: int
    crashes: int
    breaks: int
    lost_swaps: int
    damages: int
    deletions: int
    losses: int
    reruns: int
    transit_damages: int
    returns: int = 0


class Clearing(NamedTuple):
    """A client that fills bookies in limbo and ends it, one after another.

    Attributes:
        left: how often it may still begin.
        step: "" between two, "filling", "filled", or "sent": the request to end the limbo is on its way.
        bookie: whose limbo.
        lsn: of that limbo.
        filled: the record that it was filled from.
    """

    left: int
    step: str = ""
    bookie: int = 0
    lsn: int = 0
    filled: LedgerMetadata | None = None


class Table(Generic[T]):
    """Numbers for the states of a kind of part."""

    def __init__(self, key: Callable[[T], Hashable] = lambda part: part) -> None:
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
"""A client's step: its label, the client's number after it, what it sends, what it asks the store."""


def legal(old: LedgerMetadata, new: LedgerMetadata) -> bool:
    """Whether a compare-and-swap is legal in the protocol: state by state, and fragments only where they may change.

    Source: BookKeeper protocol, "Ledgers"; docs/protocol/README.md, "The ledger's record".
    """
    if old.state is LedgerState.OPEN:
        return new.state is not LedgerState.IN_RECOVERY or new.fragments == old.fragments
    if old.state is LedgerState.IN_RECOVERY and new.state is LedgerState.CLOSED:
        return True
    return repaired_only(old, new)


def repaired_only(old: LedgerMetadata, new: LedgerMetadata) -> bool:
    """Whether a record differs from another by bookies of decided fragments only, however many they are.

    Source: docs/protocol/repair.md, "Publishing".
    """
    if replace(new, fragments=old.fragments, creation_token=old.creation_token) != old:
        return False
    if len(new.fragments) != len(old.fragments):
        return False
    return all(
        after == before
        or (
            after.first_entry == before.first_entry
            and len(after.ensemble) == len(before.ensemble) == len({*after.ensemble})
            and old.last_entry_of_fragment(index) is not None
        )
        for index, (before, after) in enumerate(zip(old.fragments, new.fragments, strict=True))
    )


class WorldParts:
    """The tables of a world, and how a client's step or a reply changes a state."""

    def __init__(self, configuration: Configuration, switches: Switches = SHIPPED) -> None:
        self.configuration = configuration
        self.switches = switches
        self.bookie_driver = BookieDriver(configuration, switches.rules, switches.bookie)
        self.writer_driver = LedgerWriterDriver(configuration)
        self.recovery_driver = RecoveryDriver(configuration, switches.rules, switches.recovery)
        self.repair_driver = RepairDriver(configuration, switches.rules, switches.repair)
        self.bookies: Table[BookieState] = Table()
        self.stores: Table[Store] = Table()
        self.clients: Table[ClientState] = Table(lambda client: client.key)
        self.links: Table[Link] = Table()
        self.asks: Table[tuple[Ask, ...]] = Table()
        self.budgets: Table[Budget] = Table()
        self.clearings: Table[Clearing] = Table()
        self.readers: Table[ReaderState] = Table(lambda reader: reader.key)
        self.reader_driver = ReaderDriver(self.bookie_driver, switches.rules)
        n = configuration.bookies
        self.n = n
        self.names = ["writer", *(f"recoverer {i + 1}" for i in range(configuration.recoverers))]
        if configuration.recoverers == 1:
            self.names[1] = "recoverer"
        repairers = [f"repairer {i + 1}" for i in range(configuration.repairers)]
        self.names += ["repairer"] if len(repairers) == 1 else repairers
        self.count = len(self.names)
        self.at_store = n
        self.at_client = n + 1
        self.at_link = n + 1 + self.count
        self.at_ask = self.at_link + self.count * n
        self.at_reader = self.at_ask + self.count
        self.at_clearing = self.at_reader + configuration.readers
        self.at_budget = self.at_clearing + bool(configuration.clears)
        self.reader_names = [f"reader {i + 1}" for i in range(configuration.readers)]
        if configuration.readers == 1:
            self.reader_names = ["reader"]
        self.no_link = self.links.number(Link())
        self.no_ask = self.asks.number(())
        self._memos: dict[str, dict[Any, Any]] = {}
        self._delivers: dict[tuple[int, int, int, int, bool], Any] = {}
        self._hears: dict[tuple[int, int, int, int], Any] = {}
        self._client_moves: dict[tuple[int, int], list[ClientMove]] = {}
        self._tidied: dict[tuple[int, int, int], int] = {}
        self._quiet: dict[int, bool] = {}
        self._at_once: dict[int, bool] = {}

    def driver_of(self, client: int) -> Any:
        """What drives a client."""
        if client == 0:
            return self.writer_driver
        return self.recovery_driver if client <= self.configuration.recoverers else self.repair_driver

    def _client_move(
        self, client: int, outcome: Outcome, command: str, other: str = "", kind: str = ""
    ) -> ClientMove:
        label = Label(self.names[client], command, outcome.said, other, kind or command.split(maxsplit=1)[0])
        return label, self.clients.number(outcome.client), outcome.sends, outcome.asks

    def _client_after(self, new: list[int], client: int, move: ClientMove) -> State:
        """A client's step on a state: its own index, what it sends, what it asks; then what has no effect goes."""
        _, after, sends, asks = move
        at_client = self.at_client + client
        if client > self.configuration.recoverers:
            after = self._judged(new, after)
        changed = new[at_client] != after
        new[at_client] = after
        base = self.at_link + client * self.n
        links = self.links
        for bookie, request in sends:
            new[base + bookie] = links.number(links.parts[new[base + bookie]].sent(request))
        if asks:
            index = self.at_ask + client
            questions = self.asks.parts[new[index]]
            for kind, *rest in asks:
                record, version, *notes = rest or (None, 0)
                questions = (*questions, Ask(kind, record, version, notes=notes[0] if notes else NO_NOTES))
            new[index] = self.asks.number(questions)
        if changed:
            no_link = self.no_link
            for index in range(base, base + self.n):
                if new[index] != no_link:
                    self._tidy(new, client, index)
        return tuple(new)

    def _judged(self, new: list[int], number: int) -> int:
        """A repairer after its step; if it has ended, it is judged by the disks as they are then."""
        ended = self.clients.parts[number]
        if not ended.result:
            return number
        bookies = [self.bookies.parts[each] for each in new[: self.n]]
        store = self.stores.parts[new[self.at_store]]
        if self.configuration.collects and ended.result == RepairOutcome.WHOLE.name:
            whole = store.whole or ended.machine.plan.version == store.version
            new[self.at_store] = self.stores.number(store._replace(whole=whole))
        return self.clients.number(self.judged(ended, bookies, self._asked_for(store)))

    def _asked_for(self, store: Store) -> list[int] | None:
        """Where bookies collect, what repairs ask each for: no copy that the record does not give it, or that is lost."""
        if not self.configuration.collects or store.record is None:
            return None
        own = [0] * self.n
        for number, wanted in entries_of_decided(store.record):
            own[number] |= wanted & ~store.lost
        return own

    def judged(
        self, ended: ClientState, bookies: Sequence[BookieState], asked_for: Sequence[int] | None = None
    ) -> ClientState:
        """A repairer that has just ended, judged by the disks."""
        c = self.configuration
        held = [bookie.held for bookie in bookies]
        readable = [bookie.held & ~bookie.damaged for bookie in bookies]
        if asked_for is not None:
            readable = [some & own for some, own in zip(readable, asked_for, strict=True)]
        return judged(ended, held, readable, sound=not (c.crashes or c.damages or c.deletions))

    def _tidy(self, new: list[int], client: int, index: int) -> None:
        """Forget replies that can change nothing any more, and who waits for them."""
        key = (client, new[self.at_client + client], new[index])
        after = self._tidied.get(key)
        if after is None:
            after = self._tidied[key] = self._tidy_link(*key)
        new[index] = after

    def _tidy_link(self, client: int, client_at: int, link_at: int) -> int:
        who, link = self.clients.parts[client_at], self.links.parts[link_at]
        if who.machine is None:
            return link_at
        driver = self.driver_of(client)
        requests = [(request, waits and driver.waits_for(who, request)) for request, waits in link.requests]
        replies = [reply for reply in link.replies if driver.heeds(who, reply)]
        if len(replies) == len(link.replies) and requests == [*link.requests]:
            return link_at
        return self.links.number(Link(tuple(requests), tuple(replies), link.broken))

    def _push_reply(self, new: list[int], client: int, bookie: int, reply: Any) -> None:
        index = self.at_link + client * self.n + bookie
        new[index] = self.links.number(self.links.parts[new[index]].answered(reply))
        self._tidy(new, client, index)

    def _with_questions(
        self, state: State, client: int, rest: tuple[Ask, ...], found: list[ClientMove], moves: list[Move]
    ) -> None:
        for move in found:
            new = list(state)
            new[self.at_ask + client] = self.asks.number(rest)
            moves.append((move[0], self._client_after(new, client, move)))

    def _memo(self, name: str) -> dict[Any, Any]:
        return self._memos.setdefault(name, {})

    def _syncs_at_once(self, state: State) -> bool:
        """Without a crash to come the moment of a sync makes no difference."""
        number = state[-1]
        at_once = self._at_once.get(number)
        if at_once is None:
            at_once = self._at_once[number] = not (
                self.budgets.parts[number].crashes or self.configuration.slow_disks
            )
        return at_once

    def _synced(self, state: BookieState) -> tuple[BookieState, list[Any]]:
        """Everything that waits for the disk is on it."""
        replies: list[Any] = []
        while state.journal:
            state, more = self.bookie_driver.sync(state)
            replies += more
        return state, replies

    def _stopped(self, state: State, bookie: int, before: BookieState, after: BookieState) -> list[int]:
        """A bookie stopped: what did not reach it never will, and who waits for it learns that."""
        new = list(state)
        new[bookie] = self.bookies.number(after)
        for client in range(self.count):
            index = self.at_link + client * self.n + bookie
            link = self.links.parts[new[index]].died()
            for waiting in (*(record[2] for record in before.journal), *before.waiting):
                if waiting and waiting[0] == client and waiting[2]:
                    link = link.answered((waiting[1], Answer.UNREACHABLE, None))
            new[index] = self.links.number(link)
            self._tidy(new, client, index)
        return new

    def clients_of(self, state: State) -> Iterator[ClientState]:
        """The clients of a state."""
        for index in range(self.at_client, self.at_link):
            yield self.clients.parts[state[index]]

    def sizes(self) -> dict[str, int]:
        """How many states each kind of part reached."""
        return {
            "bookie": len(self.bookies),
            "client": len(self.clients),
            "connection": len(self.links),
            "record": len(self.stores),
        }
