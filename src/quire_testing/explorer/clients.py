"""Clients, and the writer among them: a machine of `core` with the least of a driver around it.

A step gives a machine one input on a copy of it, carries out its effects in order, and says what came of it: the client
afterwards, what is sent, what the store is asked. Where the driver has a choice (which spare takes a slot) there is one
outcome for each.

Source: `client/writing/writer.py`, whose handling of effects this repeats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

from quire.core.answers import Answer
from quire.core.errors import QuireError
from quire.core.ids import NO_ENTRY, BookieId, Slot
from quire.core.ledger import effects as e
from quire.core.ledger.closing import ClosingStatus
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.writer import WriterMachine
from quire.core.ledger.writer_state import Status, WriterLimits
from quire.core.recovery.machine import RecoveryStatus
from quire.core.repair.effects import CopyRange
from quire.core.transcript import effect_line
from quire_testing.explorer.configuration import Configuration
from quire_testing.explorer.messages import DROP, Reply, Request
from quire_testing.explorer.snapshot import clone, state_of

WRITER_DONE = (Status.CLOSED, Status.ENDED, Status.ABANDONED)
ENDING = (*WRITER_DONE, Status.CLOSING)
CLOSING_READS_NOT = frozenset({"change"})
"""What no input of a closing writer looks at: who is at which slot."""
LOOK_WAITS = frozenset({"waits"})
"""What changes at least when a writer has looked for bookies."""
NOW_MS, TOO_LATE_MS = 0, 1
"""The explorer has no clock: a timer may fire at any time, and a wait for the ack quorum may be over at any time."""
Fault = tuple[str, str]


def patience(configuration: Configuration) -> WriterLimits:
    """The limits of a world's writer: it retries at once, and waits for its ack quorum only where the world says so."""
    wait_ms = TOO_LATE_MS if configuration.waits else 0
    return WriterLimits(retry_ms_min=0, retry_ms_max=0, quorum_wait_ms=wait_ms)


def bookie_name(number: int) -> BookieId:
    """The name of a bookie."""
    return BookieId(f"b{number}")


def bookie_number(name: BookieId) -> int:
    """The number of a bookie."""
    return int(name[1:])


@dataclass(frozen=True, slots=True, eq=False)
class ClientState:
    """A client between two steps. `machine` is never changed: a step works on a copy.

    Attributes:
        key: equal keys mean equal behaviour.
        confirmed: every entry up to here is confirmed to the writer's callers.
        left: appends that the caller still makes.
        verdict: the lowest entry that a recovery of this client judged not recoverable.
        result: the outcome of the last recovery.
        fault: what this client did against an invariant.
        sent: pieces of a repair that are on their way.
    """

    key: tuple[Any, ...]
    machine: Any
    confirmed: int = NO_ENTRY
    left: int = 0
    verdict: int | None = None
    result: str = ""
    fault: Fault | None = None
    sent: frozenset[CopyRange] = frozenset()

    @property
    def idle(self) -> bool:
        """Whether it has nothing to do any more."""
        if self.machine is None:
            return bool(self.key[0] == "repairer")
        if isinstance(self.machine, WriterMachine):
            return self.machine.status in WRITER_DONE
        return self.machine.status is RecoveryStatus.ENDED


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a step: `sends` are (bookie, request), `asks` the request to the store."""

    client: ClientState
    sends: tuple[tuple[int, Request], ...] = ()
    asks: tuple[tuple[Any, ...], ...] = ()
    said: tuple[str, ...] = ()
    chosen: str = ""
    returned: str = ""
    """The absent bookie that responded again: one that is lost for ever does not."""


@dataclass(slots=True)
class Running:
    """A step that is being carried out; `taken` and `joining` are of a stream's clients only (`stream_clients.py`)."""

    machine: Any
    sends: list[tuple[int, Request]]
    asks: list[tuple[Any, ...]]
    said: list[str]
    confirmed: int
    ensemble: Sequence[BookieId]
    result: str = ""
    chosen: str = ""
    taken: e.TakenOver | None = None
    joining: tuple[tuple[Slot, BookieId], ...] = ()
    fault: Fault | None = None

    def fork(self) -> Running:
        return replace(
            self, machine=clone(self.machine), sends=[*self.sends], asks=[*self.asks], said=[*self.said]
        )


class ClientDriver:
    """What writers and recoverers have in common."""

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration

    def step(self, client: ClientState, put: Callable[[Any], object]) -> list[Outcome]:
        """Give the machine one input (`put` calls it) and carry out what it says."""
        running = Running(
            clone(client.machine), [], [], [], client.confirmed, self.ensemble_of(client.machine)
        )
        running.machine.out = []
        finished: list[Running] = []
        try:
            put(running.machine)
        except (QuireError, AssertionError) as error:
            running.fault = fault_of(error)
            running.said.append(f"!! {error}")
            return [self._outcome(client, running)]
        self._drain(running, finished)
        return [self._outcome(client, each) for each in finished]

    def _drain(self, running: Running, finished: list[Running]) -> None:
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
                            self.take_choice(other, effect, chosen)
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

    def take_choice(
        self,
        running: Running,
        effect: e.ChooseReplacements | e.FindReplacements,
        chosen: dict[Slot, BookieId],
    ) -> None:
        """A choice is made; the machine gets it at once."""
        self.choose(running.machine, chosen)

    def ensemble_of(self, machine: Any) -> Sequence[BookieId]:
        """The ensemble whose slots effects name."""
        raise NotImplementedError

    def choose(self, machine: Any, chosen: dict[Slot, BookieId]) -> None:
        """Hand the machine its replacements."""
        raise NotImplementedError

    def carry_out(self, running: Any, effect: Any) -> None:
        """Do what one effect asks."""
        raise NotImplementedError

    def _outcome(self, client: ClientState, running: Running) -> Outcome:
        raise NotImplementedError


class LedgerWriterDriver(ClientDriver):
    """The writer's side."""

    looks_in_vain = False
    """Where the write quorum is guaranteed: a look that finds nothing of use is a step too."""

    def new(self, machine: WriterMachine) -> ClientState:
        """A writer that has not written."""
        return self.client(machine, NO_ENTRY, self.configuration.entries, None)

    def no_client(self) -> ClientState:
        """A writer whose ledger is not created yet."""
        return ClientState(("writer", "has no ledger"), None, left=self.configuration.entries)

    def ensemble_of(self, machine: Any) -> Sequence[BookieId]:
        """The ensemble that the writer sends to."""
        return machine.ensemble  # type: ignore[no-any-return]

    def choose(self, machine: Any, chosen: dict[Slot, BookieId]) -> None:
        """The driver's choice, made in the same turn."""
        machine.replacements_chosen(chosen, NOW_MS)

    def carry_out(self, running: Any, effect: Any) -> None:
        """Do what one effect asks."""
        if isinstance(effect, e.SendRun):
            lacs = (effect.lac, effect.lafr) if self.configuration.guarantee else effect.lac
            for slot in effect.slots:
                request = ("add", slot, effect.run, effect.first, effect.last, lacs)
                running.sends.append((bookie_number(running.ensemble[slot]), request))
        elif isinstance(effect, e.DropUnsent) and self.configuration.drops:
            running.sends.append((bookie_number(effect.bookie), DROP))
        elif isinstance(effect, e.EnsembleChanged):
            running.ensemble = effect.ensemble
        elif isinstance(effect, e.WriteMetadata):
            running.asks.append(("swap", effect.record, effect.version))
        elif isinstance(effect, e.RereadMetadata):
            running.asks.append(("read",))
        elif isinstance(effect, e.Confirmed):
            if effect.first != running.confirmed + 1:
                running.fault = (
                    "I5",
                    f"entry {effect.first} was confirmed to callers after {running.confirmed}",
                )
            running.confirmed = effect.last
        elif isinstance(effect, e.SendExplicitLac) and self.configuration.explicit_lac:
            for slot in effect.slots:
                running.sends.append((bookie_number(running.ensemble[slot]), ("lac", effect.lac)))

    def _outcome(self, client: ClientState, running: Running) -> Outcome:
        machine = running.machine
        left = client.left if machine.lap == client.machine.lap else client.left - 1
        after = self.client(machine, running.confirmed, left, running.fault or client.fault)
        return Outcome(after, tuple(running.sends), tuple(running.asks), tuple(running.said), running.chosen)

    def client(self, machine: WriterMachine, confirmed: int, left: int, fault: Fault | None) -> ClientState:
        """The writer with this machine."""
        if machine.status in WRITER_DONE:
            left = 0
            key: tuple[Any, ...] = ("writer", machine.status.name, machine.lac, confirmed, fault)
        else:
            unread = CLOSING_READS_NOT if machine.status is Status.CLOSING else frozenset()
            key = ("writer", state_of(machine, without=unread), confirmed, left, fault)
        return ClientState(key, machine, confirmed, left, fault=fault)

    # --- what the caller, the clock and the driver do ---------------------------------------------------------------

    def moves(self, client: ClientState) -> Iterator[tuple[str, list[Outcome]]]:
        """Everything that can happen to this writer by itself."""
        machine, configuration = client.machine, self.configuration
        status = machine.status
        going = status in (Status.WRITING, Status.CHANGING)
        if (
            going
            and client.left
            and machine.closing.status is ClosingStatus.OPEN
            and self._may_append(machine)
        ):
            run = configuration.run
            yield f"append {run}", self.step(client, lambda m: m.append(run, run))
        if going and configuration.closes and machine.closing.status is ClosingStatus.OPEN:
            yield "close", self.step(client, lambda m: m.close())
        if machine.waits.timer_at_ms == NOW_MS and not client.idle:
            yield "timer", self.step(client, lambda m: m.timer_fired(NOW_MS))
        if status is Status.WRITING and machine.below_quorum:
            yield "waits no longer", self.step(client, lambda m: m.timer_fired(TOO_LATE_MS))
        if machine.waits.looking and going:
            looks = self._looks(client)
            yield from (
                looks if not configuration.guarantee or self.looks_in_vain else self._helpful(client, looks)
            )

    def _may_append(self, machine: WriterMachine) -> bool:
        """Whether fewer appends than that are unconfirmed."""
        return machine.lap - machine.lac < self.configuration.in_flight * self.configuration.run

    def _helpful(
        self, client: ClientState, looks: Iterator[tuple[str, list[Outcome]]]
    ) -> Iterator[tuple[str, list[Outcome]]]:
        """Those looks that change more than when the next one is due: who only looks for ever waits for ever."""
        before = state_of(client.machine, without=LOOK_WAITS)
        for command, outcomes in looks:
            if any(state_of(each.client.machine, without=LOOK_WAITS) != before for each in outcomes):
                yield command, outcomes

    def _looks(self, client: ClientState) -> Iterator[tuple[str, list[Outcome]]]:
        machine = client.machine
        outside = {bookie_name(number) for number in range(self.configuration.bookies)} - {*machine.ensemble}
        if outside:
            yield "found a spare", self.step(client, lambda m: m.bookies_found([], NOW_MS, spare=True))
        for slot in machine.absent:
            bookie = machine.ensemble[slot]
            found = self._found(client, [slot])
            if self.configuration.guarantee:
                found = [replace(each, returned=bookie) for each in found]
            yield f"found {bookie} back", found
        if not machine.absent:
            yield "found nothing", self._found(client, [])

    def _found(self, client: ClientState, returned: list[int]) -> list[Outcome]:
        return self.step(client, lambda m: m.bookies_found(returned, NOW_MS, spare=False))

    def losable(self, client: ClientState) -> list[tuple[int, BookieId]]:
        """The slots whose bookie may be dropped: it has not responded to something that is pending."""
        machine = client.machine
        if machine.status not in (Status.WRITING, Status.CHANGING):
            return []
        return [
            (slot, machine.ensemble[slot])
            for slot in machine.change.live
            if any(not acked >> slot & 1 for _, _, _, acked in machine.window.stored_at((slot,)))
        ]

    def lost(self, client: ClientState, slot: int, bookie: BookieId) -> list[Outcome]:
        """The writer gives a bookie up; what it was sent may still arrive."""
        return self.step(client, lambda m: m.bookie_lost(slot, bookie))

    def answered(self, client: ClientState, bookie: int, reply: Reply) -> list[Outcome]:
        """A bookie's response to an add."""
        (_, slot, run, *_), answer, _ = reply
        name = bookie_name(bookie)
        if answer is Answer.OK:
            return self.step(client, lambda m: m.adds_acked(slot, name, run))
        outcomes = self.step(client, lambda m: m.add_failed(slot, name, run, answer))
        pending = client.machine.window.is_pending(run)
        if answer is Answer.FENCED and pending and client.machine.ensemble[slot] == name:
            fault = ("F3", "a bookie is fenced, and the writer that it refused goes on")
            outcomes = [
                each
                if each.client.machine.status in ENDING
                else replace(each, client=with_fault(each.client, fault))
                for each in outcomes
            ]
        return outcomes

    def heeds(self, client: ClientState, reply: Reply) -> bool:
        """Whether a response can still change anything."""
        (_, _, run, *_), answer, _ = reply
        window = client.machine.window
        return not client.idle and (answer is not Answer.OK or run in window.runs or run in window.kept)

    def waits_for(self, client: ClientState, request: Request) -> bool:
        """Whether the response to a request can still change anything."""
        return not client.idle

    def cas_answered(
        self, client: ClientState, answer: str, record: LedgerMetadata, version: int
    ) -> list[Outcome]:
        """The store's response to a compare-and-swap: written, conflict or unknown."""
        if answer == "written":
            return self.step(client, lambda m: m.metadata_written(version))
        if answer == "conflict":
            return self.step(client, lambda m: m.metadata_conflicted())
        if answer == "missing":
            return self.step(client, lambda m: m.metadata_missing())
        return self.step(client, lambda m: m.metadata_unknown(NOW_MS))

    def read_answered(
        self, client: ClientState, record: LedgerMetadata | None, version: int
    ) -> list[Outcome]:
        """The record as the store has it."""
        if record is None:
            return self.step(client, lambda m: m.metadata_missing())
        return self.step(client, lambda m: m.metadata_read(record, version))


def with_fault(client: ClientState, fault: Fault) -> ClientState:
    """A client that did something against an invariant; what it did first counts."""
    return client if client.fault else replace(client, key=(*client.key[:-1], fault), fault=fault)


def fault_of(error: Exception) -> Fault:
    """The invariant that a machine's own refusal or assertion is about."""
    text = str(error)
    head, _, rest = text.partition(": ")
    if head.startswith("I") and head[1:].isdigit():
        return head, rest
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = trace.tb_frame.f_code.co_filename if trace is not None else ""
    if where.endswith("core/ledger/metadata.py"):
        return "I6", text
    return "I13", text or type(error).__name__
