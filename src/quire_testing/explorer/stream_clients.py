"""A client in a stream's world: it takes the stream over, writes in its term, is superseded, and may begin again.

Its machines are the take-over and the writer of `core`, one after the other. A client remembers what it acknowledged in
each of its terms, and how far it had appended.

Source: docs/protocol/streams.md; `client/writing/writer.py` and `client/recovering/recovery.py`, whose handling of effects this repeats.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from quire.core.answers import Answer
from quire.core.ids import NO_ENTRY, BookieId, Slot
from quire.core.ledger import effects as e
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.terms import NO_TERM
from quire.core.ledger.writer import WriterMachine
from quire.core.recovery.machine import RecoveryStatus
from quire_testing.explorer.clients import (
    NOW_MS,
    WRITER_DONE,
    ClientState,
    Fault,
    LedgerWriterDriver,
    Outcome,
    Running,
    bookie_name,
    bookie_number,
    patience,
)
from quire_testing.explorer.configuration import Configuration
from quire_testing.explorer.messages import DROP, Reply, Request
from quire_testing.explorer.recoverers import RecoveringDriver, settle
from quire_testing.explorer.snapshot import state_of
from quire_testing.explorer.stream_bookies import Value
from quire_testing.explorer.switches import Switches


@dataclass(frozen=True, slots=True)
class Written:
    """What a client wrote in one of its terms: from `first` on it appended up to `lap`."""

    term: int
    first: int
    lap: int


@dataclass(frozen=True, slots=True, eq=False)
class StreamClient(ClientState):
    """A client between two steps; a machine that has ended is forgotten.

    Attributes:
        begun: how many take-overs it began.
        acked: what its callers know of, in all its terms.
        written: what it wrote, by term.
        joining: where terms only fence, the bookies that its writer has chosen for slots, and that are to truncate first.
        joined: those of them that have.
    """

    begun: int = 0
    acked: tuple[Value, ...] = ()
    written: tuple[Written, ...] = ()
    joining: tuple[tuple[Slot, BookieId], ...] = ()
    joined: tuple[tuple[Slot, BookieId], ...] = ()

    @property
    def idle(self) -> bool:
        """Whether it has nothing to do any more, unless it takes the stream over."""
        return self.machine is None


class StreamDriver(RecoveringDriver, LedgerWriterDriver):
    """A client's side: it takes over like a recoverer, and writes like a ledger's writer.

    Args:
        configuration: the sizes.
        switches: what runs.
    """

    def __init__(self, configuration: Configuration, switches: Switches) -> None:
        super().__init__(configuration)
        self._switches = switches

    def no_client(self) -> StreamClient:
        """A client that has done nothing."""
        return self._client(StreamClient((), None), None, None)

    def creator(self, record: LedgerMetadata, version: int) -> StreamClient:
        """The client that created the stream and writes in its first term."""
        return self.writing(self.no_client(), e.TakenOver(record, version, NO_ENTRY, 0, ()))

    def with_past(
        self, client: StreamClient, written: tuple[Written, ...], acked: tuple[Value, ...] = ()
    ) -> StreamClient:
        """The same client, which has written and acknowledged this before."""
        past = replace(client, written=written, acked=acked)
        return self._client(past, client.machine, None)

    def take_over(
        self, client: StreamClient, record: LedgerMetadata, version: int, owner: int
    ) -> list[Outcome]:
        """Begin a take-over with the record as it is now."""
        machine = self._switches.take_over(
            record, version, owner, self._switches.rules, self.configuration.window
        )
        fresh = replace(client, machine=machine, begun=client.begun + 1, result="")
        return self.step(fresh, lambda m: m.recover())

    # --- what machines say -------------------------------------------------------------------------------------------

    def ensemble_of(self, machine: Any) -> Sequence[BookieId]:
        """The ensemble that is sent to."""
        side = LedgerWriterDriver if isinstance(machine, WriterMachine) else RecoveringDriver
        return side.ensemble_of(self, machine)

    def choose(self, machine: Any, chosen: dict[Slot, BookieId]) -> None:
        """The driver's choice, made in the same turn."""
        side = LedgerWriterDriver if isinstance(machine, WriterMachine) else RecoveringDriver
        side.choose(self, machine, chosen)

    def take_choice(
        self,
        running: Running,
        effect: e.ChooseReplacements | e.FindReplacements,
        chosen: dict[Slot, BookieId],
    ) -> None:
        """A choice is made; where terms only fence, whom a writer has chosen truncates before it hears of it."""
        first = effect.truncated_from if isinstance(effect, e.ChooseReplacements) else NO_ENTRY
        if first == NO_ENTRY or not chosen:
            super().take_choice(running, effect, chosen)
            return
        term = running.machine.closing.term
        running.joining = tuple(chosen.items())
        for slot, bookie in running.joining:
            number = bookie_number(bookie)
            running.sends.append((number, ("truncate", int(slot), number, first, False, NO_ENTRY, term)))

    def _truncated(self, client: StreamClient, slot: int, bookie: BookieId, answer: Answer) -> list[Outcome]:
        """A chosen bookie has truncated, or is not to be had; when all have responded the writer's choice is made."""
        member = (Slot(slot), bookie)
        left = tuple(each for each in client.joining if each != member)
        joined = (*client.joined, member) if answer is Answer.OK else client.joined
        waiting = replace(client, joining=left, joined=() if not left else joined)
        if left:
            return [Outcome(self._client(waiting, client.machine, client.fault))]
        chosen = dict(sorted(joined))
        return self.step(waiting, lambda m: m.replacements_chosen(chosen, NOW_MS))

    def carry_out(self, running: Any, effect: Any) -> None:
        """Do what one effect asks."""
        machine, sends = running.machine, running.sends
        before = len(sends)
        if isinstance(effect, e.SendTruncation):
            number, lac = bookie_number(effect.bookie), int(effect.last_add_confirmed)
            truncate = ("truncate", int(effect.slot), number, int(effect.entry_id), effect.no_op, lac)
            sends.append((number, truncate))
        elif isinstance(effect, e.SlotReturned) and self._switches.returning_truncates:
            number, begin = bookie_number(effect.bookie), machine.cas.record.last_fragment.first_entry
            sends.append((number, ("truncate", int(effect.slot), number, int(begin), False, NO_ENTRY)))
        elif isinstance(effect, e.TakenOver):
            running.taken = effect
        elif isinstance(effect, e.TakeOverSuperseded):
            running.result = "superseded"
        elif isinstance(machine, WriterMachine):
            LedgerWriterDriver.carry_out(self, running, effect)
        else:
            super().carry_out(running, effect)
        sends[before:] = [
            (bookie, named) for bookie, request in sends[before:] for named in _in_terms(machine, request)
        ]

    def _outcome(self, client: ClientState, running: Running) -> Outcome:
        assert isinstance(client, StreamClient)
        machine, fault = running.machine, running.fault or client.fault
        sends, asks, said = tuple(running.sends), tuple(running.asks), tuple(running.said)
        if isinstance(machine, WriterMachine):
            return Outcome(self._wrote(client, running, fault), sends, asks, said)
        if running.taken is not None:
            return Outcome(self.writing(replace(client, fault=fault), running.taken), sends, asks, said)
        if machine.status is RecoveryStatus.ENDED:
            return Outcome(self._client(client, None, fault, running.result), sends, asks, said)
        if fault is None:
            settle(machine)
        return Outcome(self._client(client, machine, fault), sends, asks, said)

    def writing(self, client: StreamClient, taken: e.TakenOver) -> StreamClient:
        """A client that has taken the stream over, and writes now."""
        switches = self._switches
        machine = switches.writer(
            taken.record,
            taken.version,
            rules=switches.rules,
            limits=patience(self.configuration),
            last=taken.last_entry,
            length=taken.length,
        )
        if taken.absent:
            machine.began_without(taken.absent, NOW_MS)
            machine.out = []
        written = (*client.written, Written(taken.record.term, taken.last_entry + 1, taken.last_entry))
        begun = replace(client, confirmed=taken.last_entry, left=self.configuration.entries, written=written)
        return self._client(begun, machine, client.fault)

    def _wrote(self, client: StreamClient, running: Running, fault: Fault | None) -> StreamClient:
        machine = running.machine
        term = machine.closing.term
        acked = (
            *client.acked,
            *((entry, term) for entry in range(client.confirmed + 1, running.confirmed + 1)),
        )
        written = (
            *client.written[:-1],
            replace(client.written[-1], lap=max(client.written[-1].lap, machine.lap)),
        )
        left = client.left - (machine.lap > client.machine.lap)
        joining = running.joining or client.joining
        after = replace(
            client, confirmed=running.confirmed, left=left, acked=acked, written=written, joining=joining
        )
        done = machine.status in WRITER_DONE
        return self._client(after, None if done else machine, fault, "superseded" if done else "")

    def _client(
        self, client: StreamClient, machine: Any, fault: Fault | None, result: str = ""
    ) -> StreamClient:
        if machine is None:
            client = replace(client, confirmed=NO_ENTRY, left=0, joining=(), joined=())
        ghosts = (client.begun, client.acked, client.written, client.joining, client.joined, fault)
        state = result if machine is None else (type(machine).__name__, state_of(machine))
        key = ("client", state, client.confirmed, client.left, *ghosts)
        return replace(client, key=key, machine=machine, result=result, fault=fault)

    # --- responses ---------------------------------------------------------------------------------------------------

    def answered(self, client: ClientState, bookie: int, reply: Reply) -> list[Outcome]:
        """A bookie's response."""
        request, answer, _ = reply
        if not isinstance(client.machine, WriterMachine):
            return super().answered(client, bookie, reply)
        if request[0] == "truncate":
            assert isinstance(client, StreamClient)
            return self._truncated(client, request[1], bookie_name(bookie), answer)
        return LedgerWriterDriver.answered(self, client, bookie, reply)

    def waited(self, client: ClientState) -> list[Outcome]:
        """The pause of a take-over is over that waits for bookies; nothing where none waits."""
        return self.step(client, lambda m: m.waited_for_bookies()) if client.machine.awaited else []

    def heeds(self, client: ClientState, reply: Reply) -> bool:
        """Whether a response can still change anything."""
        (kind, *_, term), answer, _ = reply
        machine = client.machine
        if isinstance(machine, WriterMachine):
            changes = kind == "truncate" or answer is not Answer.OK or reply[0][2] in machine.window.runs
            return changes and self.waits_for(client, reply[0])
        return machine is not None and term == machine.term and super().heeds(client, reply)

    def waits_for(self, client: ClientState, request: Request) -> bool:
        """Whether the response to a request can still change anything."""
        machine = client.machine
        if isinstance(machine, WriterMachine):
            assert isinstance(client, StreamClient)
            joins = request[0] == "truncate" and (request[1], bookie_name(request[2])) in client.joining
            return bool((request[0] == "add" or joins) and request[-1] == machine.closing.term)
        recovers = machine is not None and request[-1] == machine.term and request[0] != "add"
        return recovers and super().waits_for(client, request)

    def cas_answered(
        self, client: ClientState, answer: str, record: LedgerMetadata, version: int
    ) -> list[Outcome]:
        """The store's response to a compare-and-swap."""
        side = LedgerWriterDriver if isinstance(client.machine, WriterMachine) else RecoveringDriver
        return side.cas_answered(self, client, answer, record, version)


def _in_terms(machine: Any, request: Request) -> Iterator[Request]:
    """A request of a client: it names the sender's term, and before that origin terms of what is read or written back."""
    if isinstance(machine, WriterMachine):
        yield request if request is DROP else (*request, machine.closing.term)
    elif request[0] == "read":
        record = machine.record
        yield (*request, NO_TERM if record.only_fences else record.origin_of(request[2]), machine.term)
    elif request[0] == "put":
        kind, slot, bookie, first, last, period, stripes, lac = request
        for origin, group in groupby(range(first, last + 1), machine.origin_of):  # a run has one origin term
            part = list(group)
            if any(stripes >> entry % period & 1 for entry in part):
                origins = (origin,) * len(part)
                yield kind, slot, bookie, part[0], part[-1], period, stripes, lac, origins, machine.term
    else:
        yield (*request, machine.term)
