"""A client in a stream's world: it takes the stream over, writes in its term, is superseded, and may begin again.

Its machines are the take-over and the writer of `core`, one after the other. A client remembers what it acknowledged in
each of its terms, and how far it had appended.

Source: docs/protocol/streams.md; `client/writing/writer.py` and `client/recovering/recovery.py`, whose handling of effects this repeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from quire.core.answers import Answer
from quire.core.errors import QuireError
from quire.core.ids import NO_ENTRY, BookieId, Slot
from quire.core.ledger import effects as e
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.terms import NO_TERM
from quire.core.ledger.writer import WriterMachine
from quire.core.recovery.log_end_search import EndStatus
from quire.core.recovery.machine import RecoveryStatus
from quire.core.recovery.take_over import TakeOverMachine
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
    fault_of,
    patience,
)
from quire_testing.explorer.configuration import Configuration
from quire_testing.explorer.messages import Reply, Request
from quire_testing.explorer.recoverers import settle
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


class StreamDriver(LedgerWriterDriver):
    """A client's side.

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
        if isinstance(machine, WriterMachine):
            return machine.ensemble
        return machine.back.change.ensemble  # type: ignore[no-any-return]

    def choose(self, machine: Any, chosen: dict[Slot, BookieId]) -> None:
        """The driver's choice, made in the same turn."""
        if isinstance(machine, TakeOverMachine):
            machine.replacements_found(chosen)
        else:
            super().choose(machine, chosen)

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
        """Do what one effect asks; every request names the client's term, and reads the origin term of their entries."""
        machine = running.machine
        if isinstance(machine, WriterMachine):
            before = len(running.sends)
            super().carry_out(running, effect)
            term = machine.closing.term
            running.sends[before:] = [
                (bookie, request if request == ("drop",) else (*request, term))
                for bookie, request in running.sends[before:]
            ]
            if isinstance(effect, e.SlotReturned) and self._switches.returning_truncates:
                number, begin = bookie_number(effect.bookie), machine.cas.record.last_fragment.first_entry
                truncate = ("truncate", int(effect.slot), number, int(begin), False, NO_ENTRY, term)
                running.sends.append((number, truncate))
            return
        record, term = machine.record, machine.term
        if isinstance(effect, e.SendLacRead):
            running.sends.append((bookie_number(effect.bookie), ("fence", int(effect.slot), term)))
        elif isinstance(effect, e.SendRecoveryRead):
            span = (int(effect.first), int(effect.last))
            origin = NO_TERM if record.only_fences else record.origin_of(span[0])
            read = ("read", int(effect.slot), *span, effect.fence, origin, term)
            running.sends.append((bookie_number(effect.bookie), read))
        elif isinstance(effect, e.SendRecoveryAdds):
            number, ids = bookie_number(effect.bookie), range(effect.first, effect.last + 1)
            rest = (effect.period, effect.stripes, int(effect.last_add_confirmed))
            for origin, group in groupby(ids, machine.origin_of):  # a run has one origin term
                part = list(group)
                if not any(effect.stripes >> entry % effect.period & 1 for entry in part):
                    continue
                origins = (origin,) * len(part)
                put = ("put", int(effect.slot), number, part[0], part[-1], *rest, origins, term)
                running.sends.append((number, put))
        elif isinstance(effect, e.SendTruncation):
            number, lac = bookie_number(effect.bookie), int(effect.last_add_confirmed)
            what = ("truncate", int(effect.slot), number, int(effect.entry_id), effect.no_op, lac, term)
            running.sends.append((number, what))
        elif isinstance(effect, e.WaitForAnswers):
            try:
                machine.waited()
            except (QuireError, AssertionError) as error:
                running.fault = running.fault or fault_of(error)
        elif isinstance(effect, e.WriteMetadata):
            running.asks.append(("swap", effect.record, effect.version))
        elif isinstance(effect, e.RereadMetadata):
            running.asks.append(("read",))
        elif isinstance(effect, e.TakenOver):
            running.taken = effect
        elif isinstance(effect, e.TakeOverSuperseded):
            running.result = "superseded"
        elif isinstance(effect, e.RecoveryInconclusive):
            running.result = "inconclusive"
        elif isinstance(effect, e.RecoveryClosed):
            running.result = "closed"
        elif isinstance(effect, e.RecoveryFailed):
            running.result = f"failed {effect.answer.name}"

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
        request, answer, payload = reply
        slot, name = request[1], bookie_name(bookie)
        if isinstance(client.machine, WriterMachine):
            if request[0] == "truncate":
                assert isinstance(client, StreamClient)
                return self._truncated(client, slot, name, answer)
            return super().answered(client, bookie, reply)
        if request[0] == "fence":
            lac = NO_ENTRY if payload is None else payload
            return self.step(client, lambda m: m.fence_answered(slot, answer, lac))
        if request[0] == "read":
            entries, through, unknown, *of_terms = payload or ((), NO_ENTRY, ())
            lengths = {entry: entry + 1 for entry in entries}
            origins = dict(zip(entries, of_terms[0] if of_terms else entries, strict=True))
            return self.step(
                client, lambda m: m.read_answered(slot, answer, lengths, through, unknown, origins)
            )
        if request[0] == "truncate":
            return self.step(client, lambda m: m.truncation_answered(slot, name, answer))
        first, last = request[3], request[4]
        return self.step(client, lambda m: m.adds_answered(slot, name, first, last, answer))

    def gave_up(self, client: ClientState, bookie: int, request: Request) -> list[Outcome]:
        """The time of a request is over."""
        return self.answered(client, bookie, (request, Answer.TIMED_OUT, None))

    def waited(self, client: ClientState) -> list[Outcome]:
        """The pause of a take-over is over that waits for bookies; nothing where none waits."""
        return self.step(client, lambda m: m.waited_for_bookies()) if client.machine.awaited else []

    def heeds(self, client: ClientState, reply: Reply) -> bool:
        """Whether a response can still change anything."""
        request, answer, lac = reply
        if not self.waits_for(client, request):
            late = request[0] == "fence" and isinstance(client.machine, TakeOverMachine)
            return bool(late and request[-1] == client.machine.term and self._contradicts(client, lac))
        if isinstance(client.machine, WriterMachine):
            chosen = request[0] == "truncate"
            return bool(chosen or answer is not Answer.OK or request[2] in client.machine.window.runs)
        return True

    @staticmethod
    def _contradicts(client: ClientState, lac: int | None) -> bool:
        """A LAC of a late response to the fence may contradict the end."""
        machine = client.machine
        return (
            lac is not None
            and machine.status is RecoveryStatus.READING
            and lac > machine.lap
            and machine.end.status is not EndStatus.FOUND
        )

    def waits_for(self, client: ClientState, request: Request) -> bool:
        """Whether the response to a request can still change anything."""
        machine = client.machine
        if machine is None:
            return False
        if isinstance(machine, WriterMachine):
            assert isinstance(client, StreamClient)
            joins = request[0] == "truncate" and (request[1], bookie_name(request[2])) in client.joining
            return bool((request[0] == "add" or joins) and request[-1] == machine.closing.term)
        if request[-1] != machine.term or request[0] == "add":
            return False
        if request[0] == "truncate":
            return bool(machine.truncates)
        if request[0] == "fence":
            return machine.status is RecoveryStatus.FENCING
        if request[0] == "read":
            return machine.status is RecoveryStatus.READING and machine.end.status is not EndStatus.FOUND
        return machine.status is RecoveryStatus.READING

    def cas_answered(
        self, client: ClientState, answer: str, record: LedgerMetadata, version: int
    ) -> list[Outcome]:
        """The store's response to a compare-and-swap; one that was lost counts as a conflict."""
        if isinstance(client.machine, WriterMachine):
            return super().cas_answered(client, answer, record, version)
        if answer == "written":
            return self.step(client, lambda m: m.metadata_written(record, version))
        return self.step(client, lambda m: m.metadata_conflicted())

    def length_answered(self, client: ClientState, *, found: bool) -> list[Outcome]:
        """The last entry was read for its length, or no bookie could serve it."""
        if found:
            return self.step(client, lambda m: m.length_found(m.lap + 1))
        return self.step(client, lambda m: m.length_unavailable(()))
