"""The recoverer as a client: the recovery machine of `core` with the least of a driver around it.

A stream's client that takes it over does the same (`stream_clients.py`); its requests name terms besides.

Source: `client/recovering/recovery.py`, whose handling of effects this repeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quire.core.answers import Answer
from quire.core.errors import QuireError
from quire.core.ids import NO_ENTRY, BookieId, Slot
from quire.core.ledger import effects as e
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.quorum import write_set
from quire.core.recovery.log_end_search import EndStatus
from quire.core.recovery.machine import RecoveryMachine, RecoveryStatus
from quire_testing.explorer.clients import (
    ClientDriver,
    ClientState,
    Fault,
    Outcome,
    Running,
    bookie_name,
    bookie_number,
    fault_of,
)
from quire_testing.explorer.configuration import Configuration
from quire_testing.explorer.messages import Reply, Request, lacs_of
from quire_testing.explorer.snapshot import state_of


class RecoveringDriver(ClientDriver):
    """What a client that recovers a ledger has in common with one that takes a stream over."""

    def ensemble_of(self, machine: Any) -> Sequence[BookieId]:
        """The write ensemble; effects name bookies themselves."""
        return machine.back.change.ensemble  # type: ignore[no-any-return]

    def choose(self, machine: Any, chosen: dict[Slot, BookieId]) -> None:
        """The driver's choice, made in the same turn."""
        machine.replacements_found(chosen)

    def carry_out(self, running: Any, effect: Any) -> None:
        """Do what one effect asks."""
        if isinstance(effect, e.SendLacRead):
            running.sends.append((bookie_number(effect.bookie), ("fence", int(effect.slot))))
        elif isinstance(effect, e.SendRecoveryRead):
            request = ("read", int(effect.slot), int(effect.first), int(effect.last), effect.fence)
            running.sends.append((bookie_number(effect.bookie), request))
        elif isinstance(effect, e.SendRecoveryAdds):
            number = bookie_number(effect.bookie)
            lac = int(effect.last_add_confirmed)
            span = (int(effect.first), int(effect.last), effect.period, effect.stripes)
            running.sends.append((number, ("put", int(effect.slot), number, *span, lac)))
        elif isinstance(effect, e.WaitForAnswers):
            # At once: a response that comes while a driver waits is one that comes before the last denial.
            try:
                running.machine.waited()
            except (QuireError, AssertionError) as error:
                running.fault = running.fault or fault_of(error)
        elif isinstance(effect, e.WriteMetadata):
            running.asks.append(("swap", effect.record, effect.version))
        elif isinstance(effect, e.RereadMetadata):
            running.asks.append(("read",))
        elif isinstance(effect, e.RecoveryClosed):
            running.result = "closed"
        elif isinstance(effect, e.RecoveryInconclusive):
            running.result = "inconclusive"
        elif isinstance(effect, e.RecoveryFailed):
            running.result = f"failed {effect.answer.name}"

    # --- responses -----------------------------------------------------------------------------------------------

    def answered(self, client: ClientState, bookie: int, reply: Reply) -> list[Outcome]:
        """A bookie's response."""
        request, answer, payload = reply
        slot, name = request[1], bookie_name(bookie)
        if request[0] == "fence":
            lac, lafr = lacs_of(payload)
            return self.step(client, lambda m: m.fence_answered(slot, answer, lac, lafr))
        if request[0] == "read":
            entries, through, unknown, *of_terms = payload or ((), NO_ENTRY, ())
            lengths = {entry: entry + 1 for entry in entries}
            origins = dict(zip(entries, *of_terms, strict=True)) if of_terms else {}
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

    def heeds(self, client: ClientState, reply: Reply) -> bool:
        """Whether a response can still change anything: of late fences, a LAC that may contradict the end."""
        request, _, payload = reply
        if request[0] == "fence" and client.machine.status is RecoveryStatus.READING:
            return (
                payload is not None
                and lacs_of(payload)[0] > client.machine.lap
                and client.machine.end.status is not EndStatus.FOUND
            )
        return self.waits_for(client, request)

    def waits_for(self, client: ClientState, request: Request) -> bool:
        """Whether the response to a request can still change anything."""
        machine = client.machine
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
        if answer == "written":
            return self.step(client, lambda m: m.metadata_written(record, version))
        return self.step(client, lambda m: m.metadata_conflicted())

    def length_answered(self, client: ClientState, *, found: bool) -> list[Outcome]:
        """The last entry was read for its length, or no bookie could serve it."""
        if found:
            return self.step(client, lambda m: m.length_found(m.lap + 1))
        return self.step(client, lambda m: m.length_unavailable(()))


class RecoveryDriver(RecoveringDriver):
    """A recoverer's side."""

    def __init__(self, configuration: Configuration, rules: Any, kind: type[RecoveryMachine]) -> None:
        super().__init__(configuration)
        self._rules = rules
        self._kind = kind

    def new(self) -> ClientState:
        """A recoverer that has not begun."""
        return ClientState(("recoverer",), None)

    def start(self, client: ClientState, record: LedgerMetadata, version: int) -> list[Outcome]:
        """Begin with the record as it is now."""
        machine = self._kind(record, version, self._rules, self.configuration.window)
        fresh = ClientState((), machine, verdict=client.verdict, fault=client.fault)
        return self.step(fresh, lambda m: m.recover())

    def _outcome(self, client: ClientState, running: Running) -> Outcome:
        machine = running.machine
        verdict = client.verdict
        if machine.end.status is EndStatus.FOUND and (verdict is None or machine.lap + 1 < verdict):
            verdict = machine.lap + 1
        result = running.result or ("" if machine.status is not RecoveryStatus.ENDED else client.result)
        fault = running.fault or client.fault
        fault = fault or self._judged(client, running, result)
        if fault is None:
            settle(machine)
        after = self.client(machine, verdict, result, fault)
        return Outcome(after, tuple(running.sends), tuple(running.asks), tuple(running.said), running.chosen)

    def client(
        self, machine: RecoveryMachine, verdict: int | None, result: str, fault: Fault | None
    ) -> ClientState:
        """The recoverer with this machine."""
        if machine.status is RecoveryStatus.ENDED:
            key: tuple[Any, ...] = ("recoverer", "ended", result, verdict, fault)
        else:
            key = ("recoverer", state_of(machine), verdict, fault)
        return ClientState(key, machine, verdict=verdict, result=result, fault=fault)

    def _judged(self, client: ClientState, running: Running, result: str) -> Fault | None:
        """What only the step itself shows: was everything written back to the whole write set; why did it end."""
        machine = running.machine
        if result not in ("", "closed") and self.configuration.is_faultless:
            return "F1", f"nothing went wrong, and the recovery came to: {result}"
        for entry in range(client.machine.lap + 1, machine.lap + 1):
            if client.machine.status is not RecoveryStatus.READING or machine.status is RecoveryStatus.ENDED:
                continue
            slots = write_set(entry, self.configuration.ensemble, self.configuration.write_quorum)
            sent = {
                put[1]
                for _, put in running.sends
                if put[0] == "put" and put[3] <= entry <= put[4] and put[6] >> entry % put[5] & 1
            }
            missing = [slot for slot in slots if slot not in sent and slot in machine.back.change.live]
            if missing:
                return "W", f"entry {entry} was not written back to slots {missing}"
        return None

    def read_answered(
        self, client: ClientState, record: LedgerMetadata | None, version: int
    ) -> list[Outcome]:
        """The record as the store has it."""
        return self.step(client, lambda m: m.metadata_read(record, version))


def settle(machine: RecoveryMachine) -> None:
    """Write one value into what no later input reads: two recoveries that differ there only are one state."""
    end, change = machine.end, machine.back.change
    # Of its record each part reads only what no change of it can change.
    end.record = machine.back.record = machine.record
    change.delayed = dict(sorted(change.delayed.items()))
    change.absent = dict.fromkeys(sorted(change.absent), NO_ENTRY)
    if end.status is EndStatus.FENCING:
        return
    size = machine.record.ensemble_size
    fence, votes = end.fence, end.votes
    fence.failed, fence.known, fence.lafr = 0, (1 << size) - 1, NO_ENTRY
    fence.lacs = {slot: lac for slot, lac in fence.lacs.items() if lac > end.lap}
    if end.status is EndStatus.FOUND:
        votes.first, votes.last = 0, -1
        votes.positive, votes.negative, votes.unknown, votes.lengths = [], [], [], []
        votes.origins, votes.lowest = [], []
        votes.conclusive, votes.asked, fence.lacs = [-1] * size, [None] * size, {}
