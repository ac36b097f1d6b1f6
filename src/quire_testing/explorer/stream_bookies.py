"""A bookie in a stream's world: the ledger's machine of `core`, and entries, each named by its id and its origin term.

Its journal is durable at once; what a loss of the disk does to it is a step of its own. It starts again in limbo: it does
not know its term, and asks the record before it accepts anything.

Where terms only fence, an id has one entry, the one that was put last, and a read of an id says its origin term.

Source: Vanlightly's unbounded ledgers, "Protocol changes for unbounded ledgers"; docs/protocol/streams.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from quire.core.answers import Answer
from quire.core.bookie.ledger import BookieLedgerMachine, BookieReady, Journaled, LedgerFacts
from quire.core.ids import NO_ENTRY
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.quorum import stripes_of_slot
from quire_testing.explorer.bookies import KEY, LEDGER, Waiting, reply_to
from quire_testing.explorer.messages import Reply, Request
from quire_testing.explorer.snapshot import frozen
from quire_testing.explorer.switches import Rules

Value: TypeAlias = tuple[int, int]
"""An entry of a stream: its id and its origin term."""


_LOOKS: Final = BookieReady(None, Journaled.NOTHING, Answer.OK, persisted=False)
"""A read that carries no term changes nothing."""


class StreamBookie(NamedTuple):
    """One bookie.

    Attributes:
        facts: what the machine knows, None before it knows the stream.
        entries: what a read finds, ascending.
        asked: the record was read since the last loss.
        losses: how often it lost its disk.
        waiting: requests that wait until it has read the record.
        fault: what this bookie did against an invariant.
    """

    facts: tuple[Any, ...] | None = None
    entries: tuple[Value, ...] = ()
    asked: bool = False
    losses: int = 0
    waiting: tuple[Waiting, ...] = ()
    fault: tuple[str, str] | None = None

    @property
    def known(self) -> LedgerFacts:
        """What it knows."""
        return LedgerFacts(*self.facts) if self.facts else LedgerFacts(LEDGER)


class StreamBookies:
    """Hands requests on a `StreamBookie` to the machine.

    Args:
        ensemble_size: E.
        write_quorum: Qw.
        rules: the protocol's rules (`core/rules.py`).
        kind: the machine.
        fencing: whether terms only fence.
    """

    def __init__(
        self,
        ensemble_size: int,
        write_quorum: int,
        rules: Rules,
        kind: type[BookieLedgerMachine],
        *,
        fencing: bool = False,
    ) -> None:
        self._sizes = ensemble_size, write_quorum
        self._fencing = fencing
        self._rules = rules
        self._kind = kind

    def machine(self, state: StreamBookie) -> BookieLedgerMachine:
        """The machine of `core` in this state."""
        known = state.facts is not None
        return self._kind(state.known, known=known, asked=state.asked, rules=self._rules)

    def deliver(
        self, state: StreamBookie, client: int, request: Request, *, waits: bool
    ) -> tuple[StreamBookie, list[tuple[int, Reply]], str]:
        """Take one request; as `BookieDriver.deliver`."""
        waiting = (client, request, waits)
        machine = self.machine(state)
        ready = self._asked(machine, request)
        if ready.answer is Answer.UNKNOWN and request[0] != "lac":
            return state._replace(waiting=(*state.waiting, waiting)), [], "asks for the record, keeps it"
        if ready.answer is not Answer.OK:
            return state, reply_to(waiting, ready.answer), f"refuses: {ready.answer.name}"
        after = self._saved(state, machine, ready)
        match request[0]:
            case "lac":
                return after, [], f"knows lac {after.known.lac}"
            case "fence":
                return after, reply_to(waiting, Answer.OK, after.known.lac), f"has term {after.known.term}"
            case "read":
                return after, self._look(after, machine, waiting), f"has term {after.known.term}, looks"
        stored, kept, what = self.values_of(request), {*after.entries}, []
        if request[0] == "truncate":
            _, _, _, first, _, _, term = request
            takes = self._rules.truncate_takes
            kept = {value for value in kept if value[0] < first or not takes(value[1], term)}
            what = [f"truncates at {first}"]
        if self._fencing:
            again = {entry for entry, _ in stored}
            kept = {value for value in kept if value[0] not in again}
        after = after._replace(entries=tuple(sorted(kept.union(stored))))
        if stored or not what:
            what.append(f"stores {' '.join(f'{entry}^{origin}' for entry, origin in stored) or 'nothing'}")
        return after, reply_to(waiting, Answer.OK), ", ".join(what)

    def _asked(self, machine: BookieLedgerMachine, request: Request) -> BookieReady:
        who: Any = {"key": KEY, "token": 0, "digest_type": 0}
        term = request[-1]
        match request[0]:
            case "lac":
                return machine.explicit_lac(b"", request[1], term=term, **who)
            case "add":
                return machine.add(lac=request[5], recovery=False, term=term, **who)
            case "put":
                return machine.add(lac=request[7], recovery=True, term=term, **who)
            case "copy":
                return machine.add(lac=NO_ENTRY, recovery=True, term=term, **who)
            case "truncate":
                ready = machine.truncate(term=term, **who)
                if ready.answer is Answer.OK and request[4]:
                    machine.add(lac=request[5], recovery=True, term=term, **who)
                return ready
        if request[0] == "read" and not request[4]:
            return _LOOKS
        return machine.raise_term(term=term, **who)

    def _saved(self, state: StreamBookie, machine: BookieLedgerMachine, ready: BookieReady) -> StreamBookie:
        """Its facts are durable; a term or a LAC that falls is a fault."""
        if ready.facts is not None:
            machine.saved(ready.facts)
        before, fault = state.known, state.fault
        if machine.facts.term < before.term:
            fault = fault or ("U4", "a bookie's term fell")
        if machine.facts.lac < before.lac:
            fault = fault or ("I5", "a bookie's LAC fell")
        return state._replace(facts=frozen(machine.facts), fault=fault)

    def _look(
        self, state: StreamBookie, machine: BookieLedgerMachine, waiting: Waiting
    ) -> list[tuple[int, Reply]]:
        _, _, first, last, _, origin, _ = waiting[1]
        through = machine.conclusive_through(first, last)
        if self._fencing:
            here = {entry: own for entry, own in state.entries if first <= entry <= last}
            return reply_to(waiting, Answer.OK, (tuple(here), through, (), tuple(here.values())))
        readable = tuple(entry for entry in range(first, last + 1) if (entry, origin) in state.entries)
        return reply_to(waiting, Answer.OK, (readable, through, ()))

    def values_of(self, request: Request) -> list[Value]:
        """The entries of an add that a bookie stores: its stripes."""
        if request[0] == "copy":
            bits, origin = request[4], request[-2]
            return [(entry, origin) for entry in range(bits.bit_length()) if bits >> entry & 1]
        if request[0] == "truncate":
            return [(request[3], request[-1])] if request[4] else []
        if request[0] == "add":
            _, slot, _, first, last, _, term = request
            period, stripes = self._sizes[0], stripes_of_slot(slot, *self._sizes)
            origins = (term,) * (last + 1 - first)
        else:
            _, _, _, first, last, period, stripes, _, origins, _ = request
        return [
            (entry, origin)
            for entry, origin in zip(range(first, last + 1), origins, strict=True)
            if stripes >> entry % period & 1
        ]

    def raised(self, state: StreamBookie, term: int) -> tuple[StreamBookie, Answer]:
        """It takes a term for a client that repairs, and refuses one that is lower than its own."""
        machine = self.machine(state)
        ready = machine.raise_term(key=KEY, token=0, digest_type=0, term=term)
        if ready.answer is not Answer.OK:
            return state, ready.answer
        return self._saved(state, machine, ready), Answer.OK

    def without_others(self, state: StreamBookie, dirty: Sequence[tuple[int, int, int]]) -> StreamBookie:
        """It drops what has another origin term under some ids: (first, last, the one that stays)."""
        drops = self._rules.copy_drops_others
        kept = tuple(
            (entry, origin)
            for entry, origin in state.entries
            if not any(first <= entry <= last and drops(origin, stays) for first, last, stays in dirty)
        )
        return state._replace(entries=kept)

    def clear_limbo(self, state: StreamBookie, lsn: int) -> tuple[StreamBookie, Answer]:
        """A client ends the limbo that it saw before it filled the bookie."""
        machine = self.machine(state)
        ready = machine.clear_limbo(lsn, key=KEY)
        if ready.answer is not Answer.OK:
            return state, ready.answer
        return self._saved(state, machine, ready), Answer.OK

    def gives(self, state: StreamBookie, entry: int, record: LedgerMetadata) -> bool:
        """Whether a read of an id finds its entry."""
        return value_at(state, entry, record) is not None

    def lost(self, state: StreamBookie) -> StreamBookie:
        """It lost its disk, and starts again: it knows that it may have had something of this stream, and no term."""
        losses = state.losses + 1
        machine = self._kind(LedgerFacts(LEDGER), known=True, rules=self._rules)
        machine.enter_limbo(losses)
        return StreamBookie(frozen(machine.facts), losses=losses, fault=state.fault)

    def reads_record(
        self, state: StreamBookie, term: int
    ) -> tuple[StreamBookie, list[tuple[int, Reply]], list[str]]:
        """It reads the record's term, takes it as its own, and then what waited for that."""
        machine = self.machine(state)
        machine.record_read(term)
        waited = state.waiting
        state = state._replace(facts=frozen(machine.facts), asked=True, waiting=())
        replies: list[tuple[int, Reply]] = []
        said: list[str] = []
        for client, request, waits in waited:
            state, more, what = self.deliver(state, client, request, waits=waits)
            replies += more
            said.append(what)
        return state, replies, said


def value_at(bookie: StreamBookie, entry: int, record: LedgerMetadata) -> Value | None:
    """What a read of an id finds on a bookie: the entry of the term that the ranges name, or where they do not, any."""
    if record.only_fences:
        return next((value for value in bookie.entries if value[0] == entry), None)
    value = (entry, record.origin_of(entry))
    return value if value in bookie.entries else None
