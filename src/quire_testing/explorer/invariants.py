"""What must hold in every state of a ledger's world, by name.

Source: BookKeeper protocol, "Guarantees"; docs/counterexamples.md, "What must hold".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from quire.core.errors import CorruptMetadataError
from quire.core.ids import NO_ENTRY
from quire.core.ledger.metadata import LedgerMetadata, LedgerState
from quire.core.ledger.quorum import covers_exactly, write_set
from quire.core.ledger.record_cas import StoreRequest
from quire.core.ledger.writer import WriterMachine
from quire.core.recovery.machine import RecoveryMachine, RecoveryStatus
from quire_testing.explorer.bookies import BookieState
from quire_testing.explorer.clients import ClientState, bookie_number
from quire_testing.explorer.parts import Store
from quire_testing.explorer.tables import State
from quire_testing.explorer.world import LedgerWorld

INVARIANTS: Final = {
    "I1": "no acknowledged loss: a ledger that is closed at L holds every acknowledged entry, so none is above L",
    "I2": "readable: an acknowledged entry is on enough bookies of its write set in the record's fragment",
    "I3": "closed is complete: every entry up to a closed end is on at least Qa bookies of its write set",
    "I4": "one end: once CLOSED, state and last entry never change",
    "I5": "order: callers hear of 0, 1, 2, ... without a gap; no LAC falls; LAC <= LAP",
    "I6": "fragments: the record, and every client's copy of it, is a possible one",
    "I7": "fence effective: the client that reads forward has durably fenced enough of the original ensemble",
    "I8": "negative is stable: an entry that was judged not recoverable never becomes acknowledged",
    "I9": "fenced stays: a fence that was answered never falls, crashes included; no normal add is stored after it",
    "I10": "LAC is true: a bookie's LAC is not above what was acknowledged or, after the close, not above the end",
    "I11": "read once, read always: what a concurrent reader has read, or may read, is never above a closed end",
    "I12": "writer and record agree: a closed end is not below what the writer acknowledged; the record is closed once",
    "I13": "local honesty: pending entries are LAC + 1 .. LAP, acknowledgements are of bookies at their slots now",
    "M": "legal transitions: every compare-and-swap of the record is one of the protocol's, and no fragment changes unless it is OPEN",
    "C": "created with enough: a ledger begins with its stated minimum of bookies there, and Qa of every write set",
    "P": "no phantom: nothing is recovered that was never written",
    "R": "read what is there: a reader never gets the answer that a confirmed entry does not exist",
    "F3": "a writer that a fenced bookie refuses an unconfirmed entry takes no more entries",
    "V": "valid negatives: what a bookie once held and the record says is its, it holds, or it is in limbo (where limbo ends)",
    "W": "write set full: what a recovery that met no failure wrote back is on the whole write set at its close",
    "RR1": "a repair changes only bookies of decided fragments",
    "RR2": "who a repair puts into the record holds its entries of that fragment",
    "RR3": "no entry is called lost that a disk holds",
    "RR4": "no copy is dropped as over-replicated that is the last readable one of an entry",
    "F5": "where a repair says that all is whole it is; what lacks copies can always still be repaired",
    "Q1": "full fragments: with a guaranteed write quorum, every entry before the last fragment is on all of it",
    "Q2": "full close: with a guaranteed write quorum, every entry up to a closed end is on all of it",
    "Q3": "LAFR is true: no entry above the LAC is counted, and every entry up to the LAFR is on its whole write quorum",
    "F2": "no writer waits for ever: each of its entries comes to its quorum, or it ends",
    "F1": "no deadlock: while a client has something to do a step is possible, and without faults a recovery closes",
}
"""Names and texts. `W` is what the mutant X8 breaks: no reader needs it, re-replication does."""

LOG_INVARIANTS: Final = {
    "L1": "every acknowledged write is in a ledger of the list, and no listed ledger is deleted",
    "L2": "the list's ledgers in order give the writes in the order of acknowledgement, no gap, no duplicate",
    "L3": "after a newer leader's compare-and-swap no other client has an open ledger in the list: one leader can be acknowledged",
    "L4": "the list only grows at its end and shrinks at its front",
    "L5": "two readers see lists of which one is a prefix of the other",
    "L6": "only ledgers that the list calls open, at most two, may be not closed",
    "L7": "what the log keeps of each writer is a prefix of that writer's appends",
}

COLLECTOR_INVARIANTS: Final = {
    "G1": "nothing is dropped of a ledger that no client deleted, in whatever time line of the metadata store",
    "G2": "what is unknown is reported: a ledger that is missing without a proof is listed when the pass ends",
    "G3": "a store that went back allows no drop: none is allowed where it shows fewer passes than the bookie has made",
    "G4": "a ledger with a record stays: no look allows the drop of one whose record is there",
}

DIRECTORY_INVARIANTS: Final = {
    "W1": "nothing that was acknowledged is denied by a process that serves for the bookie",
    "W2": "one process at a time speaks for a bookie",
}

NAMES: Final = tuple(INVARIANTS)


class BookieView(NamedTuple):
    """What invariants look at in one bookie."""

    held: int
    lac: int
    fence_is_durable: bool
    """Or, without a journal, set or unknown: after a crash the record is asked before a normal add is taken."""
    fault: tuple[str, str] | None
    denied: int = 0
    """Entries that it once held, lost, and would say that it never had."""


class ClientView(NamedTuple):
    """What invariants look at in one client."""

    confirmed: int
    fenced: tuple[int, ...]
    """The ensemble that a recoverer fenced, while it reads forward from it, else nothing."""
    verdict: int | None
    lap: int
    fault: tuple[str, str] | None
    lafr: int = NO_ENTRY


class ReaderView(NamedTuple):
    """What invariants look at in one reader."""

    read_through: int
    fault: tuple[str, str] | None


class StoreView(NamedTuple):
    """What invariants look at in the store, worked out once for each of its states."""

    end: int | None
    """The last entry, once it is closed."""
    wanted: tuple[int, ...]
    """For each bookie the entries, as bits, of whose write set the record makes it."""
    fault: str
    """What is wrong with the record's form."""


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that does not hold, and how."""

    invariant: str
    text: str


class InvariantWatch:
    """Looks at states. Equal views are judged once.

    Args:
        world: whose states.
        names: the invariants that are looked at.
    """

    def __init__(self, world: LedgerWorld, names: Iterable[str] = NAMES) -> None:
        self._world = world
        self._names = frozenset(names)
        unknown = self._names - INVARIANTS.keys()
        if unknown:
            msg = f"no such invariant: {', '.join(sorted(unknown))}"
            raise ValueError(msg)
        self._bookies: dict[int, BookieView] = {}
        self._clients: dict[int, ClientView] = {}
        self._judged: dict[Any, Violation | None] = {}
        self._latest: tuple[Any, Violation | None] = (None, None)
        self._views: dict[Any, int] = {}
        self._bookie_views: dict[int, int] = {}
        self._client_views: dict[int, int] = {}
        self._stores: dict[int, StoreView] = {}
        self._readers: dict[int, ReaderView] = {}
        self._reader_views: dict[int, int] = {}

    def __call__(self, state: State) -> Violation | None:
        """The violation in a state, if there is one."""
        world = self._world
        bookie_views, client_views, reader_views = self._bookie_views, self._client_views, self._reader_views
        try:
            key = (
                *[bookie_views[number] for number in state[: world.n]],
                state[world.at.store],
                *[client_views[number] for number in state[world.at.client : world.at.link]],
                *[reader_views[number] for number in state[world.at.reader : world.at_clearing]],
            )
        except KeyError:
            for number in state[world.at.reader : world.at_clearing]:
                self._see_reader(number)
            for number in state[: world.n]:
                self._see_bookie(number)
            for number in state[world.at.client : world.at.link]:
                self._see_client(number)
            return self(state)
        if key != self._latest[0]:  # in a walk few steps change what is looked at
            try:
                violation = self._judged[key]
            except KeyError:
                violation = self._judged[key] = self._judge(state)
            self._latest = key, violation
        return self._latest[1]

    def deadlock(self, state: State) -> Violation | None:
        """The cheap half of F1, or of F2, asked of a state without a next step; `reach.py` has F1's other half."""
        which = next((name for name in ("F1", "F2") if name in self._names), None)
        if which is None:
            return None
        waiting = [
            name
            for name, client in zip(self._world.names, self._world.clients_of(state), strict=True)
            if client.machine is not None and _waits(client)
        ]
        return Violation(which, f"{' and '.join(waiting)} wait for ever") if waiting else None

    # --- views -----------------------------------------------------------------------------------------------------

    def _number(self, view: Any) -> int:
        return self._views.setdefault(view, len(self._views))

    def _see_bookie(self, number: int) -> None:
        if number not in self._bookies:
            bookie: BookieState = self._world.bookies.parts[number]
            fault = bookie.fault if bookie.fault and bookie.fault[0] in self._names else None
            stays = bookie.fence_is_durable if self._world.configuration.journal else bookie.takes_no_adds
            denied = 0 if bookie.in_limbo else bookie.held_before & ~bookie.held
            view = BookieView(bookie.held, bookie.lac, stays, fault, denied)
            self._bookies[number] = view
            self._bookie_views[number] = self._number(view)

    def _see_client(self, number: int) -> None:
        if number not in self._clients:
            client = self._world.clients.parts[number]
            fault = client.fault if client.fault and client.fault[0] in self._names else None
            fenced: tuple[int, ...] = ()
            machine = client.machine
            if isinstance(machine, RecoveryMachine) and machine.status in (
                RecoveryStatus.READING,
                RecoveryStatus.MEASURING,
                RecoveryStatus.CLOSING,
            ):
                fenced = tuple(bookie_number(name) for name in machine.end.ensemble)
            lap = machine.lap if isinstance(machine, WriterMachine | RecoveryMachine) else NO_ENTRY
            lafr: int = NO_ENTRY
            if isinstance(machine, WriterMachine) and not client.idle:
                lafr = machine.window.lafr
            view = ClientView(client.confirmed, fenced, client.verdict, lap, fault, lafr)
            self._clients[number] = view
            self._client_views[number] = self._number(view)

    def _see_reader(self, number: int) -> None:
        if number not in self._readers:
            reader = self._world.readers.parts[number]
            fault = reader.fault if reader.fault and reader.fault[0] in self._names else None
            view = self._readers[number] = ReaderView(reader.next_entry - 1, fault)
            self._reader_views[number] = self._number(view)

    def _see_store(self, number: int) -> StoreView:
        view = self._stores.get(number)
        if view is None:
            view = self._stores[number] = self._looked_at(self._world.stores.parts[number].record)
        return view

    def _looked_at(self, record: LedgerMetadata | None) -> StoreView:
        wanted = [0] * self._world.n
        if record is None:
            return StoreView(None, tuple(wanted), "")
        fault, end = "", _end(record)
        try:
            record.checked()
        except CorruptMetadataError as error:
            fault = str(error)
        for entry in range(max(self._world.configuration.entries_written, 0 if end is None else end + 1)):
            ensemble = record.ensemble_of(entry)
            for slot in write_set(entry, record.ensemble_size, record.write_quorum):
                wanted[bookie_number(ensemble[slot])] |= 1 << entry
        return StoreView(end, tuple(wanted), fault)

    # --- judging ---------------------------------------------------------------------------------------------------

    def _judge(self, state: State) -> Violation | None:
        world, names = self._world, self._names
        bookies = [self._bookies[number] for number in state[: world.n]]
        clients = [self._clients[number] for number in state[world.at.client : world.at.link]]
        store = world.stores.parts[state[world.at.store]]
        seen = self._see_store(state[world.at.store])
        readers = [self._readers[number] for number in state[world.at.reader : world.at_clearing]]
        parts: list[BookieView | ClientView | ReaderView | Store] = [*bookies, *clients, *readers, store]
        faults = [each.fault for each in parts]
        for fault in faults:
            if fault is not None and fault[0] in names:
                return Violation(*fault)
        acked = clients[0].confirmed
        found = (
            self._loss(seen.end, acked)
            or self._record(store, seen, clients)
            or self._copies(store, seen, acked, bookies)
            or self._guaranteed(store.record, seen, clients[0], bookies)
            or self._fences(store, clients, bookies)
            or self._lacs(seen.end, acked, bookies)
            or self._read(seen.end, readers)
        )
        return found if found is None or found.invariant in names else None

    def _loss(self, end: int | None, acked: int) -> Violation | None:
        if end is not None and acked > end:
            which = "I1" if "I1" in self._names else "I12"
            return Violation(which, f"entry {acked} was acknowledged, the ledger ends at {end}")
        return None

    def _record(self, store: Store, seen: StoreView, clients: list[ClientView]) -> Violation | None:
        if "I12" in self._names and store.closes > 1:
            return Violation("I12", "the record was closed twice")
        if "I6" in self._names and seen.fault:
            return Violation("I6", seen.fault)
        if "P" in self._names:
            for client in clients[1:]:
                if client.lap >= self._world.configuration.entries_written:
                    return Violation("P", f"entry {client.lap} was recovered and never written")
        if "I8" in self._names and store.record is not None:
            for client in clients[1:]:
                if client.verdict is not None and clients[0].confirmed >= client.verdict:
                    return Violation(
                        "I8", f"entry {client.verdict} was judged not recoverable and acknowledged"
                    )
        return None

    def _copies(
        self, store: Store, seen: StoreView, acked: int, bookies: list[BookieView]
    ) -> Violation | None:
        record, end = store.record, seen.end
        if record is None:
            return None
        configuration = self._world.configuration
        needed, lost = record.ack_quorum, store.lost
        if not configuration.journal:
            needed = max(0, needed - configuration.crashes)
        if configuration.collects:
            needed = (
                1  # a collector may take what a repair is about to publish: it lists again, and copies anew
            )
        if (
            "I2" in self._names
            and (entry := _thinnest(seen.wanted, bookies, needed, acked, lost)) is not None
        ):
            copies = _copies_of(seen.wanted, bookies, entry)
            return Violation("I2", f"entry {entry} is acknowledged and on {copies} bookies, not {needed}")
        if "V" in self._names:
            for own, bookie in zip(seen.wanted, bookies, strict=True):
                if own & bookie.denied and (end is None or own & bookie.denied & (1 << end + 1) - 1):
                    return Violation("V", "a bookie denies what it held, and the record says is its")
        if "I3" not in self._names or end is None:
            return None
        if (entry := _thinnest(seen.wanted, bookies, needed, end, lost)) is not None:
            copies = _copies_of(seen.wanted, bookies, entry)
            return Violation("I3", f"the ledger ends at {end} and entry {entry} is on {copies} bookies")
        return None

    def _guaranteed(
        self, record: LedgerMetadata | None, seen: StoreView, writer: ClientView, bookies: list[BookieView]
    ) -> Violation | None:
        if record is None or not record.guaranteed:
            return None
        if "Q3" in self._names and writer.lafr > writer.confirmed:
            return Violation(
                "Q3", f"the LAFR is {writer.lafr}, and {writer.confirmed} is confirmed to callers"
            )
        throughs = {
            "Q1": record.last_fragment.first_entry - 1,
            "Q2": NO_ENTRY if seen.end is None else seen.end,
            "Q3": writer.lafr,
        }
        for name, through in throughs.items():
            if name not in self._names:
                continue
            if (entry := _thinnest(seen.wanted, bookies, record.write_quorum, through, 0)) is not None:
                copies = _copies_of(seen.wanted, bookies, entry)
                return Violation(name, f"entry {entry} is on {copies} bookies of its write quorum")
        return None

    def _fences(self, store: Store, clients: list[ClientView], bookies: list[BookieView]) -> Violation | None:
        record = store.record
        if "I7" not in self._names or record is None:
            return None
        for client in clients[1:]:
            if client.fenced:
                if not self._world.configuration.journal and _end(record) is not None:
                    continue  # who starts anew need not fence what is closed
                known = sum(1 << slot for slot, b in enumerate(client.fenced) if bookies[b].fence_is_durable)
                if not covers_exactly(known, record.ensemble_size, record.write_quorum, record.ack_quorum):
                    return Violation("I7", "a recoverer reads forward and the durable fences do not cover")
        return None

    def _lacs(self, end: int | None, acked: int, bookies: list[BookieView]) -> Violation | None:
        for bookie in bookies:  # their names are exchanged freely: no text says one
            if "I10" in self._names and bookie.lac > acked and (end is None or bookie.lac > end):
                return Violation("I10", f"a bookie says that {bookie.lac} is confirmed, and it is not")
            if "I11" in self._names and end is not None and bookie.lac > end:
                text = f"a concurrent reader may have read entry {bookie.lac}, the ledger ends at {end}"
                return Violation("I11", text)
        return None

    def _read(self, end: int | None, readers: list[ReaderView]) -> Violation | None:
        for reader in readers:
            if "I11" in self._names and end is not None and reader.read_through > end:
                return Violation("I11", f"entry {reader.read_through} was read, the ledger ends at {end}")
        return None


def _thinnest(
    wanted: Sequence[int], bookies: Sequence[BookieView], needed: int, last: int, lost: int
) -> int | None:
    """The first entry up to `last`, not accepted as lost, with fewer than `needed` copies where the record says."""
    at_least = [(1 << last + 1) - 1 & ~lost, *(0,) * needed]
    for own, bookie in zip(wanted, bookies, strict=True):
        held = own & bookie.held
        for copies in range(needed, 0, -1):
            at_least[copies] |= at_least[copies - 1] & held
    missing = at_least[0] & ~at_least[needed]
    return (missing & -missing).bit_length() - 1 if missing else None


def _copies_of(wanted: Sequence[int], bookies: Sequence[BookieView], entry: int) -> int:
    return sum(own & bookie.held & 1 << entry != 0 for own, bookie in zip(wanted, bookies, strict=True))


def _end(record: LedgerMetadata | None) -> int | None:
    return record.last_entry if record is not None and record.state is LedgerState.CLOSED else None


def _waits(client: ClientState) -> bool:
    machine = client.machine
    if isinstance(machine, WriterMachine):
        return not client.idle and (bool(machine.pending) or machine.cas.asked is not StoreRequest.NOTHING)
    return not client.idle
