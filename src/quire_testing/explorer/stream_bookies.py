"""A bookie in a stream's world: the ledger's machine of `core`, and entries, each named by its id and its origin term.

Its journal is durable at once; what a loss of the disk does to it is a step of its own. It starts again in limbo: it does
not know its term, and asks the record before it accepts anything.

Source: Vanlightly's unbounded ledgers, "Protocol changes for unbounded ledgers"; docs/protocol/streams.md.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeAlias

from quire.core.answers import Answer
from quire.core.bookie_ledger import BookieLedgerMachine, BookieReady, Journaled, LedgerFacts
from quire.core.ids import NO_ENTRY
from quire.core.quorum import residues_of_slot
from quire.core.rules import Rules
from quire_testing.explorer.bookies import KEY, LEDGER, Waiting, reply_to
from quire_testing.explorer.messages import Reply, Request
from quire_testing.explorer.snapshot import frozen

Value: TypeAlias = tuple[int, int]
"""An entry of a stream: its id and its origin term."""


_LOOKS: Final = BookieReady(None, Journaled.NOTHING, Answer.OK, persisted=False)
"""A read that carries no term changes nothing."""


class StreamBookie(NamedTuple):
    """One bookie.

    Attributes:
        facts: what the machine knows, None before it has heard of the stream.
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
        rules: the judgements.
        kind: the machine.
    """

    def __init__(
        self, ensemble_size: int, write_quorum: int, rules: Rules, kind: type[BookieLedgerMachine]
    ) -> None:
        self._sizes = ensemble_size, write_quorum
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
        stored = self.values_of(request)
        after = after._replace(entries=tuple(sorted({*after.entries, *stored})))
        said = " ".join(f"{entry}^{origin}" for entry, origin in stored)
        return after, reply_to(waiting, Answer.OK), f"stores {said or 'nothing'}"

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
        if request[0] == "read" and not request[4]:
            return _LOOKS
        ready: BookieReady = machine.raise_term(term=term, **who)
        return ready

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
        readable = tuple(entry for entry in range(first, last + 1) if (entry, origin) in state.entries)
        return reply_to(waiting, Answer.OK, (readable, machine.conclusive_through(first, last), ()))

    def values_of(self, request: Request) -> list[Value]:
        """The entries of an add that a bookie stores: its share."""
        if request[0] == "copy":
            bits, origin = request[4], request[-2]
            return [(entry, origin) for entry in range(bits.bit_length()) if bits >> entry & 1]
        if request[0] == "add":
            _, slot, _, first, last, _, term = request
            period, residues = self._sizes[0], residues_of_slot(slot, *self._sizes)
            origins = (term,) * (last + 1 - first)
        else:
            _, _, _, first, last, period, residues, _, origins, _ = request
        return [
            (entry, origin)
            for entry, origin in zip(range(first, last + 1), origins, strict=True)
            if residues >> entry % period & 1
        ]

    def clear_limbo(self, state: StreamBookie, lsn: int) -> tuple[StreamBookie, Answer]:
        """A client ends the doubt that it saw before it filled the bookie."""
        machine = self.machine(state)
        ready = machine.clear_limbo(lsn, key=KEY)
        if ready.answer is not Answer.OK:
            return state, ready.answer
        return self._saved(state, machine, ready), Answer.OK

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
