"""The two kinds of clients: a writer and a recoverer, each a machine of `core` with the least of a driver around it.

A step gives a machine one input on a copy of it, carries out its effects in order, and says what came of it: the client
afterwards, what is sent, what the store is asked. Where the driver has a choice (which spare takes a slot) there is one
outcome for each.

Source: `client/writer_driver.py`, `client/recovery.py`, whose handling of effects this repeats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

from quire.core import effects as e
from quire.core.answers import Answer
from quire.core.errors import QuireError
from quire.core.ids import NO_ENTRY, BookieId, Slot
from quire.core.ledger_metadata import LedgerMetadata, LedgerState
from quire.core.quorum import write_set
from quire.core.recovery import RecoveryMachine, RecoveryStatus
from quire.core.transcript import effect_line
from quire.core.writer import WriterMachine
from quire.core.writer_state import Status, WriterLimits
from quire.proof.configuration import Configuration
from quire.proof.messages import Reply, Request
from quire.proof.snapshot import clone, state_of

WRITER_DONE = (Status.CLOSED, Status.ENDED, Status.ABANDONED)
ENDING = (*WRITER_DONE, Status.CLOSING)
PATIENCE = WriterLimits(retry_ms_min=0, retry_ms_max=0)
"""The explorer has no clock: a timer may fire at any time."""
Fault = tuple[str, str]


def bookie_name(number: int) -> BookieId:
    """The name of a bookie."""
    return BookieId(f"b{number}")


def bookie_number(name: BookieId) -> int:
    """The number of a bookie."""
    return int(name[1:])


@dataclass(frozen=True, slots=True, eq=False)
class Client:
    """A client between two steps. `machine` is never changed: a step works on a copy.

    Attributes:
        key: equal keys mean equal behaviour.
        told: the writer's callers were told of every entry up to here.
        left: appends that the caller still makes.
        verdict: the lowest entry that a recovery of this client judged not recoverable.
        result: what the last recovery came to.
        fault: what this client did against an invariant.
    """

    key: tuple[Any, ...]
    machine: Any
    told: int = NO_ENTRY
    left: int = 0
    verdict: int | None = None
    result: str = ""
    fault: Fault | None = None

    @property
    def idle(self) -> bool:
        """Whether it has nothing to do any more."""
        if self.machine is None:
            return False
        if isinstance(self.machine, WriterMachine):
            return self.machine.status in WRITER_DONE
        return self.machine.status is RecoveryStatus.ENDED


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step came to: `sends` are (bookie, request), `asks` what the store is asked."""

    client: Client
    sends: tuple[tuple[int, Request], ...] = ()
    asks: tuple[tuple[Any, ...], ...] = ()
    said: tuple[str, ...] = ()
    chosen: str = ""


@dataclass(slots=True)
class _Running:
    """A step that is being carried out."""

    machine: Any
    sends: list[tuple[int, Request]]
    asks: list[tuple[Any, ...]]
    said: list[str]
    told: int
    ensemble: Sequence[BookieId]
    result: str = ""
    chosen: str = ""
    fault: Fault | None = None

    def fork(self) -> _Running:
        return replace(
            self, machine=clone(self.machine), sends=[*self.sends], asks=[*self.asks], said=[*self.said]
        )


class ClientDriver:
    """What writers and recoverers have in common."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration

    def step(self, client: Client, put: Callable[[Any], object]) -> list[Outcome]:
        """Give the machine one input (`put` calls it) and carry out what it says."""
        running = _Running(clone(client.machine), [], [], [], client.told, self.ensemble_of(client.machine))
        running.machine.out = []
        finished: list[_Running] = []
        try:
            put(running.machine)
        except (QuireError, AssertionError) as error:
            running.fault = fault_of(error)
            running.said.append(f"!! {error}")
            return [self._outcome(client, running)]
        self._drain(running, finished)
        return [self._outcome(client, each) for each in finished]

    def _drain(self, running: _Running, finished: list[_Running]) -> None:
        """Carry out effects until none is left; a choice makes several outcomes."""
        machine = running.machine
        while machine.out:
            out, machine.out = machine.out, []
            for place, effect in enumerate(out):
                running.said.append(effect_line(effect, running.ensemble))
                if isinstance(effect, e.ChooseReplacements | e.FindReplacements):
                    for chosen in self.choices(effect):
                        other = running.fork()
                        other.machine.out = list(out[place + 1 :])
                        names = " ".join(f"{slot}={bookie}" for slot, bookie in chosen.items()) or "none"
                        other.said.append(f"   chosen {names}")
                        try:
                            self.choose(other.machine, chosen)
                        except (QuireError, AssertionError) as error:
                            other.fault = fault_of(error)
                            finished.append(other)
                            continue
                        self._drain(other, finished)
                    return
                self.carry_out(running, effect)
        try:
            machine.check()
        except (QuireError, AssertionError) as error:
            running.fault = running.fault or fault_of(error)
        finished.append(running)

    def choices(self, effect: e.ChooseReplacements | e.FindReplacements) -> Iterator[dict[Slot, BookieId]]:
        """Every way to fill the slots with spares, as many as there are; with `absent` also none."""
        failed = effect.failed if isinstance(effect, e.ChooseReplacements) else effect.excluded
        everyone = [bookie_name(number) for number in range(self.configuration.bookies)]
        spares = [bookie for bookie in everyone if bookie not in effect.ensemble and bookie not in failed]
        slots = [Slot(slot) for slot in effect.slots]
        if not spares:
            yield {}
        elif len(spares) >= len(slots):
            yield from (dict(zip(slots, some, strict=True)) for some in permutations(spares, len(slots)))
        else:
            yield from (dict(zip(some, spares, strict=True)) for some in permutations(slots, len(spares)))
        if spares and self.configuration.absent:
            yield {}

    def ensemble_of(self, machine: Any) -> Sequence[BookieId]:
        """The ensemble whose slots effects name."""
        raise NotImplementedError

    def choose(self, machine: Any, chosen: dict[Slot, BookieId]) -> None:
        """Hand the machine its replacements."""
        raise NotImplementedError

    def carry_out(self, running: Any, effect: Any) -> None:
        """Do what one effect asks."""
        raise NotImplementedError

    def _outcome(self, client: Client, running: _Running) -> Outcome:
        raise NotImplementedError


class WriterDriver(ClientDriver):
    """The writer's side."""

    def new(self, machine: WriterMachine) -> Client:
        """A writer that has not written."""
        return self.client(machine, NO_ENTRY, self.configuration.entries, None)

    def ensemble_of(self, machine: Any) -> Sequence[BookieId]:
        """The ensemble that the writer sends to."""
        return machine.ensemble  # type: ignore[no-any-return]

    def choose(self, machine: Any, chosen: dict[Slot, BookieId]) -> None:
        """The driver's choice, made in the same turn."""
        machine.replacements_chosen(chosen, 0)

    def carry_out(self, running: Any, effect: Any) -> None:
        """Do what one effect asks."""
        if isinstance(effect, e.SendRun):
            for slot in effect.slots:
                request = ("add", slot, effect.run, effect.first, effect.last, effect.lac)
                running.sends.append((bookie_number(running.ensemble[slot]), request))
        elif isinstance(effect, e.EnsembleChanged):
            running.ensemble = effect.ensemble
        elif isinstance(effect, e.WriteMetadata):
            running.asks.append(("swap", effect.record, effect.version))
        elif isinstance(effect, e.RereadMetadata):
            running.asks.append(("read",))
        elif isinstance(effect, e.Confirmed):
            if effect.first != running.told + 1:
                running.fault = ("I5", f"callers were told of {effect.first} after {running.told}")
            running.told = effect.last
        elif isinstance(effect, e.SendExplicitLac) and self.configuration.explicit_lac:
            for slot in effect.slots:
                running.sends.append((bookie_number(running.ensemble[slot]), ("lac", effect.lac)))

    def _outcome(self, client: Client, running: _Running) -> Outcome:
        machine = running.machine
        left = client.left if machine.lap == client.machine.lap else client.left - 1
        after = self.client(machine, running.told, left, running.fault or client.fault)
        return Outcome(after, tuple(running.sends), tuple(running.asks), tuple(running.said), running.chosen)

    def client(self, machine: WriterMachine, told: int, left: int, fault: Fault | None) -> Client:
        """The writer with this machine."""
        if machine.status in WRITER_DONE:
            left = 0
            key: tuple[Any, ...] = ("writer", machine.status.name, machine.lac, told, fault)
        else:
            key = ("writer", state_of(machine), told, left, fault)
        return Client(key, machine, told, left, fault=fault)

    # --- what the caller, the clock and the driver do ---------------------------------------------------------------

    def moves(self, client: Client) -> Iterator[tuple[str, list[Outcome]]]:
        """Everything that can happen to this writer without anybody else."""
        machine, configuration = client.machine, self.configuration
        status = machine.status
        going = status in (Status.WRITING, Status.CHANGING)
        if going and client.left and machine.lap - machine.lac < configuration.in_flight:
            yield "append 1", self.step(client, lambda m: m.append(1, 1))
        if going and configuration.closes:
            yield "close", self.step(client, lambda m: m.close())
        if machine._timer_at_ms is not None and not client.idle:  # noqa: SLF001 - the driver's armed timer
            yield "timer", self.step(client, lambda m: m.timer_fired(0))
        if machine._looking and going:  # noqa: SLF001 - the driver's open question
            yield from self._looks(client)

    def _looks(self, client: Client) -> Iterator[tuple[str, list[Outcome]]]:
        machine = client.machine
        outside = {bookie_name(number) for number in range(self.configuration.bookies)} - {*machine.ensemble}
        if outside:
            yield "found a spare", self.step(client, lambda m: m.bookies_found([], 0, spare=True))
        for slot in machine.absent:
            yield (
                f"found {machine.ensemble[slot]} back",
                self.step(client, lambda m, slot=slot: m.bookies_found([slot], 0, spare=False)),
            )
        if not machine.absent:
            yield "found nothing", self.step(client, lambda m: m.bookies_found([], 0, spare=False))

    def losable(self, client: Client) -> list[tuple[int, BookieId]]:
        """The slots whose bookie may be given up: it has not answered for something that is pending."""
        machine = client.machine
        if machine.status not in (Status.WRITING, Status.CHANGING):
            return []
        return [
            (slot, machine.ensemble[slot])
            for slot in machine._live  # noqa: SLF001 - whom the driver sends to
            if any(
                not acked >> slot & 1 and any(mask >> slot & 1 for mask in machine._runs[run].masks)  # noqa: SLF001
                for run, acked in machine._acked.items()  # noqa: SLF001
            )
        ]

    def lost(self, client: Client, slot: int, bookie: BookieId) -> list[Outcome]:
        """The writer gives a bookie up; what it was sent may still arrive."""
        return self.step(client, lambda m: m.bookie_lost(slot, bookie))

    def answered(self, client: Client, bookie: int, reply: Reply) -> list[Outcome]:
        """A bookie's answer to an add."""
        (_, slot, run, *_), answer, _ = reply
        name = bookie_name(bookie)
        if answer is Answer.OK:
            return self.step(client, lambda m: m.adds_acked(slot, name, run))
        outcomes = self.step(client, lambda m: m.add_failed(slot, name, run, answer))
        pending = run in client.machine._acked and not client.machine._is_confirmed(run)  # noqa: SLF001
        if answer is Answer.FENCED and pending and client.machine.ensemble[slot] == name:
            fault = ("F3", f"{name} is fenced, and the writer goes on")
            outcomes = [
                each if each.client.machine.status in ENDING else replace(each, client=with_fault(each.client, fault))
                for each in outcomes
            ]
        return outcomes

    def heeds(self, client: Client, reply: Reply) -> bool:
        """Whether an answer can still change anything."""
        (_, _, run, *_), answer, _ = reply
        return not client.idle and (answer is not Answer.OK or run in client.machine._acked)  # noqa: SLF001

    def waits_for(self, client: Client, request: Request) -> bool:  # noqa: ARG002
        """Whether the answer to a request can still change anything."""
        return not client.idle

    def swap_answered(self, client: Client, answer: str, record: LedgerMetadata, version: int) -> list[Outcome]:  # noqa: ARG002
        """The store's answer to a swap: written, conflict or unknown."""
        if answer == "written":
            return self.step(client, lambda m: m.metadata_written(version))
        if answer == "conflict":
            return self.step(client, lambda m: m.metadata_conflicted())
        if answer == "missing":
            return self.step(client, lambda m: m.metadata_missing())
        return self.step(client, lambda m: m.metadata_unknown(0))

    def read_answered(self, client: Client, record: LedgerMetadata | None, version: int) -> list[Outcome]:
        """The record as the store has it."""
        if record is None:
            return self.step(client, lambda m: m.metadata_missing())
        return self.step(client, lambda m: m.metadata_read(record, version))


class RecoveryDriver(ClientDriver):
    """A recoverer's side."""

    def __init__(self, configuration: Configuration, rules: Any, kind: type[RecoveryMachine]) -> None:
        super().__init__(configuration)
        self._rules = rules
        self._kind = kind

    def new(self) -> Client:
        """A recoverer that has not begun."""
        return Client(("recoverer",), None)

    def start(self, client: Client, record: LedgerMetadata, version: int) -> list[Outcome]:
        """Begin with the record as it is now."""
        machine = self._kind(record, version, self._rules, self.configuration.window)
        fresh = Client((), machine, verdict=client.verdict, fault=client.fault)
        return self.step(fresh, lambda m: m.recover())

    def ensemble_of(self, machine: Any) -> Sequence[BookieId]:
        """The write ensemble; effects name bookies themselves."""
        return machine._write_ensemble  # type: ignore[no-any-return]  # noqa: SLF001

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
            span = (int(effect.first), int(effect.last), effect.period, effect.residues)
            running.sends.append((number, ("put", int(effect.slot), number, *span, lac)))
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

    def _outcome(self, client: Client, running: _Running) -> Outcome:
        machine = running.machine
        verdict = client.verdict
        if machine._ended_reading and (verdict is None or machine.lap + 1 < verdict):  # noqa: SLF001
            verdict = machine.lap + 1
        result = running.result or ("" if machine.status is not RecoveryStatus.ENDED else client.result)
        fault = running.fault or client.fault
        fault = fault or self._judged(client, running, result)
        if fault is None:
            settle(machine)
        after = self.client(machine, verdict, result, fault)
        return Outcome(after, tuple(running.sends), tuple(running.asks), tuple(running.said), running.chosen)

    def client(self, machine: RecoveryMachine, verdict: int | None, result: str, fault: Fault | None) -> Client:
        """The recoverer with this machine."""
        if machine.status is RecoveryStatus.ENDED:
            key: tuple[Any, ...] = ("recoverer", "ended", result, verdict, fault)
        else:
            key = ("recoverer", state_of(machine), verdict, fault)
        return Client(key, machine, verdict=verdict, result=result, fault=fault)

    def _judged(self, client: Client, running: _Running, result: str) -> Fault | None:
        """What only the step itself shows: was everything written back to the whole write set; why did it end."""
        machine = running.machine
        if result not in ("", "closed") and self.configuration.is_faultless:
            return "F1", f"nothing went wrong, and the recovery came to: {result}"
        failed = machine._delayed | machine._replacing | machine._absent  # noqa: SLF001
        for entry in range(client.machine.lap + 1, machine.lap + 1):
            if client.machine.status is not RecoveryStatus.READING or machine.status is RecoveryStatus.ENDED:
                continue
            slots = write_set(entry, self.configuration.ensemble, self.configuration.write_quorum)
            sent = {
                put[1]
                for _, put in running.sends
                if put[0] == "put" and put[3] <= entry <= put[4] and put[6] >> entry % put[5] & 1
            }
            missing = [slot for slot in slots if slot not in sent and not failed >> slot & 1]
            if missing:
                return "W", f"entry {entry} was not written back to slots {missing}"
        return None

    # --- answers -------------------------------------------------------------------------------------------------

    def answered(self, client: Client, bookie: int, reply: Reply) -> list[Outcome]:
        """A bookie's answer."""
        request, answer, payload = reply
        slot = request[1]
        if request[0] == "fence":
            lac = NO_ENTRY if payload is None else payload
            return self.step(client, lambda m: m.fence_answered(slot, answer, lac))
        if request[0] == "read":
            entries, through, unknown = payload or ((), NO_ENTRY, ())
            lengths = {entry: entry + 1 for entry in entries}
            return self.step(client, lambda m: m.read_answered(slot, answer, lengths, through, unknown))
        first, last = request[3], request[4]
        name = bookie_name(bookie)
        return self.step(client, lambda m: m.adds_answered(slot, name, first, last, answer))

    def gave_up(self, client: Client, bookie: int, request: Request) -> list[Outcome]:
        """The time of a request is over."""
        return self.answered(client, bookie, (request, Answer.TIMED_OUT, None))

    def heeds(self, client: Client, reply: Reply) -> bool:
        """Whether an answer can still change anything."""
        return self.waits_for(client, reply[0])

    def waits_for(self, client: Client, request: Request) -> bool:
        """Whether the answer to a request can still change anything."""
        machine = client.machine
        if request[0] == "fence":
            return machine.status is RecoveryStatus.FENCING
        if request[0] == "read":
            return machine.status is RecoveryStatus.READING and not machine._ended_reading  # noqa: SLF001
        return machine.status is RecoveryStatus.READING

    def swap_answered(self, client: Client, answer: str, record: LedgerMetadata, version: int) -> list[Outcome]:
        """The store's answer to a swap; one that was lost counts as a conflict."""
        if answer == "written":
            return self.step(client, lambda m: m.metadata_written(record, version))
        return self.step(client, lambda m: m.metadata_conflicted())

    def read_answered(self, client: Client, record: LedgerMetadata | None, version: int) -> list[Outcome]:
        """The record as the store has it."""
        return self.step(client, lambda m: m.metadata_read(record, version))

    def length_answered(self, client: Client, *, found: bool) -> list[Outcome]:
        """The last entry was read for its length, or nobody could serve it."""
        if found:
            return self.step(client, lambda m: m.length_found(m.lap + 1))
        return self.step(client, lambda m: m.length_unavailable(()))


def with_fault(client: Client, fault: Fault) -> Client:
    """A client that did something against an invariant; what it did first counts."""
    return client if client.fault else replace(client, key=(*client.key, fault), fault=fault)


def settle(machine: RecoveryMachine) -> None:
    """Write one value into what no later input reads: two recoveries that differ there only are one state."""
    status = machine.status
    if status in (RecoveryStatus.READING, RecoveryStatus.MEASURING, RecoveryStatus.CLOSING):
        everybody = (1 << len(machine._read_ensemble)) - 1  # noqa: SLF001
        machine._answered, machine._known = 0, everybody  # noqa: SLF001
        machine._highest_lac = machine._start  # noqa: SLF001
    if status in (RecoveryStatus.MEASURING, RecoveryStatus.CLOSING) or machine._ended_reading:  # noqa: SLF001
        machine._window_first, machine._window_last = 0, -1  # noqa: SLF001
        machine._positive, machine._negative, machine._unknown = [], [], []  # noqa: SLF001
        machine._told = [-1] * len(machine._read_ensemble)  # noqa: SLF001
        machine._asked = [None] * len(machine._read_ensemble)  # noqa: SLF001
        machine._lengths = []  # noqa: SLF001
        machine._silent = 0  # noqa: SLF001


def fault_of(error: Exception) -> Fault:
    """The invariant that a machine's own refusal or assertion is about."""
    text = str(error)
    head = text.split(":", 1)[0]
    if head.startswith("I") and head[1:].isdigit():
        return head, text
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = trace.tb_frame.f_code.co_filename if trace is not None else ""
    if where.endswith("ledger_metadata.py"):
        return "I6", text
    return "I13", text or type(error).__name__


def closed_end(record: LedgerMetadata | None) -> int | None:
    """Where a ledger ends for ever, None while it does not."""
    return record.last_entry if record is not None and record.state is LedgerState.CLOSED else None
