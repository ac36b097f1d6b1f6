"""What must hold in every state of a stream's world, by name.

Source: docs/protocol/streams.md; docs/counterexamples.md, "What must hold".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from quire.core.ledger.metadata import LedgerMetadata, LedgerState
from quire.core.ledger.terms import origin_of, resolve
from quire.core.ledger.writer import WriterMachine
from quire.core.ledger.writer_state import Status
from quire.core.recovery.machine import RecoveryStatus
from quire.core.recovery.take_over import TakeOverMachine
from quire.core.transcript import record_text
from quire_testing.explorer.clients import bookie_name
from quire_testing.explorer.invariants import INVARIANTS, Violation
from quire_testing.explorer.stream_bookies import StreamBookie
from quire_testing.explorer.stream_clients import StreamClient
from quire_testing.explorer.stream_fencing import copies_of, fencing_faults, members_of
from quire_testing.explorer.stream_parts import StreamReader
from quire_testing.explorer.stream_world import StreamWorld
from quire_testing.explorer.tables import State

STREAM_INVARIANTS: Final = {
    "U1": "an id has at most one acknowledged entry, over all terms",
    "U2": "an acknowledged entry is what the ranges name at its id, and no later term's first entry takes it away; where terms "
    "only fence, no bookie of its write set holds another one at its id",
    "U3": "readable: the ranges name every acknowledged entry, and Qa bookies of its write set hold it (after a loss, one)",
    "U4": "the record's term never falls, no bookie's term is above it or falls, no writer closes the stream unasked",
    "U5": "at most one client is in a term: recovers, or writes, or changes the record",
    "U6": "where terms only fence, OPEN: on no bookie of the last fragment is an entry of an older term at or above the first id "
    "of the term and of the fragment, or its term lower",
    "U7": "a reader of any term sees, of each writer, a prefix of what it wrote",
    "U8": "OPEN: every id below the last range's first entry is on Qa bookies under its origin term (no lost disk)",
    "I5": "order: callers hear of their entries without a gap; no LAC falls",
    "I6": "fragments: the record, and every client's copy of it, is a possible one",
    "I11": "read once, read always: all readers get one entry for an id, and it is the acknowledged one",
    "I13": "local honesty: pending entries are LAC + 1 .. LAP, acknowledgements are of bookies at their slots now",
    "F1": "no deadlock: while a client takes over, or has something to write, a step is possible",
    "RR1": INVARIANTS["RR1"],
    "RR2": INVARIANTS["RR2"],
    "F5": "where a repair says that all that is decided is whole, it is",
    "U9": "what `resolve` says of an acknowledged entry is that it is kept",
}


class StreamWatch:
    """Looks at states of a stream's world.

    Args:
        world: whose states.
        names: the invariants that are looked at.
    """

    def __init__(self, world: StreamWorld, names: Iterable[str] = tuple(STREAM_INVARIANTS)) -> None:
        self._world = world
        self._names = frozenset(names)
        unknown = self._names - STREAM_INVARIANTS.keys()
        if unknown:
            msg = f"no such invariant: {', '.join(sorted(unknown))}"
            raise ValueError(msg)
        self._judged: dict[State, Violation | None] = {}

    def __call__(self, state: State) -> Violation | None:
        """The first violation in a state, if there is one that is looked for."""
        world = self._world
        key = (*state[: world.at.link], *state[world.at.reader : -1])
        if key not in self._judged:
            self._judged[key] = self._violation(state)
        return self._judged[key]

    def deadlock(self, state: State) -> Violation | None:
        """What is wrong about a state without a next step; None if every client has done what it had to."""
        if "F1" not in self._names:
            return None
        for client in self._world.clients_of(state):
            machine = client.machine
            if machine is None:
                continue
            waits = not isinstance(machine, WriterMachine) or machine.status is not Status.WRITING
            if waits or machine.window.runs or client.left:
                return Violation("F1", "a client waits, and nothing more can happen")
        if any(each.machine is not None for each in self._world.repairers_of(state)):
            return Violation("F1", "a repairer waits, and nothing more can happen")
        return None

    def _violation(self, state: State) -> Violation | None:
        world = self._world
        store = world.stores.parts[state[world.at.store]]
        bookies, clients = world.bookies_of(state), world.clients_of(state)
        readers = world.readers_of(state)
        faults = [store.fault, *(each.fault for each in bookies), *(each.fault for each in clients)]
        faults += [each.fault for each in world.repairers_of(state)]
        found = [fault for fault in faults if fault is not None]
        found += self._of_terms(store.record, bookies, clients)
        if store.record.only_fences:
            found += fencing_faults(store.record, bookies, clients, readers)
        else:
            found += self._of_entries(store.record, bookies, clients)
            found += self._of_readers(store.record, clients, readers)
        return next((Violation(*fault) for fault in found if fault[0] in self._names), None)

    def _of_terms(
        self, record: LedgerMetadata, bookies: list[StreamBookie], clients: list[StreamClient]
    ) -> list[tuple[str, str]]:
        found = [
            ("U4", f"a bookie is in term {each.known.term}, the record in {record.term}")
            for each in bookies
            if each.known.term > record.term
        ]
        terms = [term for client in clients for term in _terms_of(client)]
        found += [("U5", f"two clients are in term {term}") for term in set(terms) if terms.count(term) > 1]
        return found

    def _of_entries(
        self, record: LedgerMetadata, bookies: list[StreamBookie], clients: list[StreamClient]
    ) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        acked = [value for client in clients for value in client.acked]
        lost = any(bookie.losses for bookie in bookies)
        of_id: dict[int, int] = {}
        for entry, origin in acked:
            if of_id.setdefault(entry, origin) != origin:
                found.append(("U1", f"{entry} was acknowledged in term {of_id[entry]} and in term {origin}"))
            if (named := origin_of(entry, record.ranges)) != origin:
                text = f"{entry} was acknowledged in term {origin}, the ranges name term {named}"
                found += [("U2", text), ("U3", text)]
            if resolve(entry, origin, record.ranges) is False:
                found.append(("U9", f"{entry} of term {origin} was acknowledged, and is resolved as lost"))
            copies = copies_of(members_of(record, entry), bookies, (entry, origin))
            if copies < (1 if lost else record.ack_quorum):
                found.append(("U3", f"{entry} of term {origin} was acknowledged, and is on {copies} bookies"))
        if record.state is LedgerState.OPEN and not lost:
            for entry in range(record.ranges[-1].first_entry):
                value = (entry, origin_of(entry, record.ranges))
                copies = copies_of(members_of(record, entry), bookies, value)
                if copies < record.ack_quorum:
                    found.append(("U8", f"{entry} of term {value[1]} is on {copies} bookies"))
        return found

    def _of_readers(
        self, record: LedgerMetadata, clients: list[StreamClient], readers: list[StreamReader]
    ) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        acked = {entry: origin for client in clients for entry, origin in client.acked}
        wrote = {each.term: each for client in clients for each in client.written}
        values = sorted({value for reader in readers for value in reader.seen})
        seen: dict[int, int] = {}
        for entry, origin in values:
            if seen.setdefault(entry, origin) != origin:
                found.append(("I11", f"{entry} was read of term {seen[entry]} and of term {origin}"))
            if acked.get(entry, origin) != origin:
                found.append(
                    ("I11", f"{entry} of term {origin} was read, that of term {acked[entry]} acknowledged")
                )
            if record.state is LedgerState.OPEN and origin_of(entry, record.ranges) != origin:
                found.append(("I11", f"{entry} of term {origin} was read, and the ranges name another term"))
            if origin in wrote and not wrote[origin].first <= entry <= wrote[origin].lap:
                found.append(("U7", f"{entry} of term {origin} was read, and never written"))
        for first, following in zip(record.ranges, record.ranges[1:], strict=False):
            written = wrote.get(first.term)
            if written is not None and following.first_entry - 1 > max(written.lap, first.first_entry - 1):
                found.append(("U7", f"term {first.term} is named up to {following.first_entry - 1}"))
        return found


def _terms_of(client: StreamClient) -> list[int]:
    """The terms that a client writes or wrote in, and the one in which it recovers."""
    terms = [written.term for written in client.written]
    machine = client.machine
    idle = (RecoveryStatus.NEW, RecoveryStatus.ANNOUNCING, RecoveryStatus.ENDED)
    recovers = isinstance(machine, TakeOverMachine) and machine.status not in idle
    return [*terms, machine.term] if recovers else terms


def stream_rows(world: StreamWorld, state: State) -> list[tuple[str, str]]:
    """A state as (part, what it is), for the table under a counterexample."""
    store = world.stores.parts[state[world.at.store]]
    rows = [("record", record_text(store.record))]
    for number, bookie in enumerate(world.bookies_of(state)):
        entries = " ".join(f"{entry}^{origin}" for entry, origin in bookie.entries) or "none"
        limbo = ", in limbo" if bookie.known.in_limbo else ""
        rows.append(
            (
                bookie_name(number),
                f"entries {entries}, term {bookie.known.term}, LAC {bookie.known.lac}{limbo}",
            )
        )
    for name, client in zip(world.names, world.clients_of(state), strict=False):
        what = client.result or "not started"
        if client.machine is not None:
            term = getattr(client.machine, "term", None) or client.written[-1].term
            what = f"{client.machine.status.value} in term {term}"
        acked = " ".join(f"{entry}^{term}" for entry, term in client.acked) or "nothing"
        rows.append((name, f"{what}, acknowledged {acked}"))
    for name, repairer in zip(world.names[world.first_repairer :], world.repairers_of(state), strict=True):
        what = repairer.result or "not started"
        rows.append((name, what if repairer.machine is None else repairer.machine.status.value))
    for name, reader in zip(world.reader_names, world.readers_of(state), strict=True):
        seen = " ".join(f"{entry}^{term}" for entry, term in reader.seen) or "nothing"
        rows.append((name, f"LAC {reader.lac}, has read {seen}"))
    return rows
