"""A writer and recoverers of a replay: the client's own programs, seen as the explorer sees its clients.

The inputs of their machines are folded into the explorer's picture of a client by the explorer's own code: so each
step of a program can be compared with the step of the explorer that it stands for, word by word and state by state.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from quire.client.access import LedgerAccess
from quire.client.bookies.bookies import BookieClient
from quire.client.config import ClientConfig
from quire.client.context import ClientContext
from quire.client.recovering.recovery import RecoveryPerformer
from quire.client.sending.bundles import SlotConnection
from quire.client.writing.writer import LedgerWriter
from quire.core.answers import Answer
from quire.core.errors import QuireError
from quire.core.ids import NO_ENTRY, BookieId
from quire.core.ledger import effects as e
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.writer_state import Hole
from quire.core.recovery.machine import RecoveryMachine
from quire.core.transcript import effect_line
from quire.metadata.bookies import BookieInfo, BookieRegistry
from quire.metadata.memory import MemoryStore
from quire.metadata.records import OF_LEDGERS, AllRecords, RecordStore
from quire.net.channel import NativeCodec
from quire.wire import native_hello
from quire.wire.bookie_service_info import NATIVE_PROPERTY, native_property
from quire_testing.explorer.clients import (
    ENDING,
    NOW_MS,
    TOO_LATE_MS,
    ClientDriver,
    ClientState,
    Outcome,
    Running,
    fault_of,
    with_fault,
)
from quire_testing.explorer.snapshot import clone
from quire_testing.kit.stepped import StepClock
from quire_testing.replay.bookies import CLUSTER
from quire_testing.replay.frames import Said
from quire_testing.replay.network import Line, ReplayNetwork
from quire_testing.replay.recording import CHOICES, RecordedInput, Recorder
from quire_testing.replay.stage import Stage, perform
from quire_testing.replay.store import ScriptedStore

HOURS_MS = 3_600_000
LOOK_MS, WAIT_MS = HOURS_MS // 90, HOURS_MS
"""Between two looks for bookies, and for how long the ack quorum is waited for: no schedule looks so often."""
SILENT_MS = 10_000
BY_STEPS = ClientConfig(
    slow_after_ms=HOURS_MS,
    add_timeout_ms=HOURS_MS,
    quarantine_ms=0,
    silent_wait_ms=0,
    change_retry_ms_min=LOOK_MS,
    change_retry_ms_max=LOOK_MS,
    quorum_wait_ms=0,
    metadata_timeout_ms=SILENT_MS,
    lac_after_ms=HOURS_MS,
    explicit_lac_after_ms=HOURS_MS,
    read_timeout_ms=HOURS_MS,
    recovery_timeout_ms=HOURS_MS,
    recovery_attempts_max=1000,
)
"""Nothing happens because time passes; the schedule says when it has."""


class FirstOfAll:
    """Chance that draws the first of what it may draw from: the schedule says in which order that is."""

    def getrandbits(self, k: int, /) -> int:  # noqa: ARG002
        """Nothing but zeros."""
        return 0


class ThenFirst(FirstOfAll):
    """The same after one choice that the schedule says."""

    def __init__(self, choice: int) -> None:
        self._choices = [choice]

    def getrandbits(self, k: int, /) -> int:
        """The choice, then nothing but zeros."""
        return self._choices.pop() if self._choices else super().getrandbits(k)


class _Bookies(BookieClient):
    """Connections as they ship; which bookies can be chosen is part of the schedule."""

    spares: list[BookieId]

    def writable(self, needs: Collection[str] = ()) -> list[BookieId]:  # noqa: ARG002 - all of them know terms
        """The bookies that a choice may fall on now."""
        return self.spares

    def unable(self, needs: Collection[str]) -> list[BookieId]:  # noqa: ARG002 - as before
        """None: all of them know terms."""
        return []


class _Records(RecordStore):
    """Records without the holes that a writer notes in them: the explorer's records have no notes."""

    async def write_with_holes(
        self,
        record: LedgerMetadata,
        holes: Iterable[Hole],  # noqa: ARG002
        version: int,
        *,
        vouched: bool = True,
    ) -> int:
        """The record alone."""
        return await self.write(record, version, vouched=vouched)

    async def add_holes(self, ledger_id: int, holes: Sequence[Hole]) -> None:
        """Nothing."""


class Program:
    """A client. Subclasses are the writer, the recoverer and the repairer.

    Args:
        number: 0 is the writer.
        name: as transcripts write it.
        stage: what it runs on.
        network: its connections.
        store: its metadata store.
        driver: the explorer's picture of such a client.
        recorder: makes its machines.
        count: how many bookies there are.

    Attributes:
        client: the explorer's picture of it now.
        ahead: steps that it has taken already (a broken connection fails all its requests at once).
        without_input: steps since the last time of which its machine knows nothing.
    """

    def __init__(
        self,
        number: int,
        name: str,
        stage: Stage,
        network: ReplayNetwork,
        store: ScriptedStore,
        driver: ClientDriver,
        recorder: Recorder,
        count: int,
    ) -> None:
        self.number, self.name = number, name
        self.stage, self.network, self.store = stage, network, store
        self.loop = stage.loop_of(name)
        self.driver, self.recorder = driver, recorder
        self.records = AllRecords(store, make=_Records)
        self.client: ClientState
        self.ahead: list[Outcome] = []
        self.without_input: list[Outcome] = []
        self._seen = 0
        self.bookies = _Bookies(BookieRegistry(store), CLUSTER)
        self.bookies.spares = []
        infos = {
            BookieId(f"b{each}"): BookieInfo(
                BookieId(f"b{each}"),
                f"b{each}",
                number + 1,
                properties={NATIVE_PROPERTY: native_property(number + 1, native_hello.VERSION)},
            )
            for each in range(count)
        }
        perform(stage, self.loop, lambda: self.bookies._take(infos))

    def act(self, what: Callable[[], Any]) -> Any:
        """Do something in the program."""
        return perform(self.stage, self.loop, what)

    @property
    def is_asking(self) -> bool:
        """Whether something that it asked for, apart from requests on their way, waits for the schedule."""
        return bool(self.store.questions)

    # --- the connections -----------------------------------------------------------------------------------------------

    def line(self, bookie: str) -> Line | None:
        """Its connection to a bookie."""
        return self.network.line(self.number + 1, bookie)

    def awaits(self, bookie: str, number: int) -> bool:
        """Whether the response to a request would be delivered."""
        peer = self.bookies._peers.get(BookieId(bookie))
        codec = peer.channel.codec if peer is not None and peer.channel is not None else None
        return isinstance(codec, NativeCodec) and number in codec._outstanding

    def on_response(self, line: Line, said: Said) -> None:
        """A response arrives."""
        self.act(lambda: line.client.feed(said.frame))

    def lose(self, line: Line, bookie: str) -> None:
        """It learns that a connection to a bookie is over, and does not wait before it tries another."""
        self.act(line.client.lose)
        self.bookies._peers[BookieId(bookie)].retry_at = 0

    def give_up(self, bookie: str, wanted: Callable[[int, Any], bool]) -> None:
        """The time of a request is over: its deadline is put into the past, and the connection's sweep finds it.

        Raises:
            LookupError: there is no such request.
        """
        channel = self.bookies._peers[BookieId(bookie)].channel
        if channel is None or not isinstance(channel.codec, NativeCodec):
            raise LookupError(bookie)
        waiting = channel.codec._outstanding
        number = next(
            (number for number, (requester, *_) in waiting.items() if wanted(number, requester)), None
        )
        if number is None:
            raise LookupError(bookie)
        requester, tag, _, request = waiting[number]
        waiting[number] = (requester, tag, float("-inf"), request)
        channel.codec._soonest = float("-inf")
        self.act(lambda: channel.expire(self.loop.time()))

    # --- the explorer's picture ----------------------------------------------------------------------------------------

    def steps(self) -> list[Outcome]:
        """The machine's inputs since the last time, as steps of the explorer's client."""
        found, self.without_input = self.without_input, []
        inputs = self._new_inputs()
        self._seen += len(inputs)
        while inputs:
            group = [inputs.pop(0)]
            while inputs and inputs[0].name in CHOICES:
                group.append(inputs.pop(0))
            outcome = self._outcome(group)
            self.client = outcome.client
            found.append(outcome)
        return found

    def _new_inputs(self) -> list[RecordedInput]:
        logs = self.recorder.logs
        return logs[-1].inputs[self._seen :] if logs else []

    def _outcome(self, group: list[RecordedInput]) -> Outcome:
        before = self.client.machine
        after = self._plain(group[-1].after)
        running = Running(after, [], [], [], self.client.confirmed, self.driver.ensemble_of(before))
        choices = [dict(step.args[0]) for step in group[1:] if step.args]
        for step in group:
            for effect in step.said:
                shown = self._shown(effect, group[-1].after)
                running.said.append(effect_line(shown, running.ensemble))
                if isinstance(effect, e.ChooseReplacements | e.FindReplacements):
                    chosen = choices.pop(0) if choices else {}
                    names = " ".join(f"{slot}={bookie}" for slot, bookie in chosen.items()) or "none"
                    running.said.append(f"   chosen {names}")
                else:
                    self.driver.carry_out(running, effect)
        error = next((step.error for step in group if step.error is not None), None)
        try:
            if error is not None:
                raise error
            running.machine.check()
        except (QuireError, AssertionError, KeyError) as failed:
            running.fault = running.fault or fault_of(failed)
        return self._judged(group[0], self.driver._outcome(self.client, running))

    def _shown(self, effect: Any, after: Any) -> Any:  # noqa: ARG002 - the writer looks at it
        """An effect as the explorer's client has it, with the machine after it."""
        return effect

    def _plain(self, machine: Any) -> Any:
        """A copy of a machine as the explorer's client has it."""
        return clone(machine)

    def _judged(self, step: RecordedInput, outcome: Outcome) -> Outcome:  # noqa: ARG002 - the writer looks at it
        return outcome


class Writer(Program):
    """The ledger's writer."""

    _futures: Sequence[asyncio.Future[int]] = ()

    def _shown(self, effect: Any, after: Any) -> Any:
        if not isinstance(effect, e.SetTimer):
            return effect
        return e.SetTimer(TOO_LATE_MS if effect.at_ms == after.waits.quorum_until_ms else NOW_MS)

    def _plain(self, machine: Any) -> Any:
        """Without the times that the explorer has no clock for."""
        machine = super()._plain(machine)
        waits = machine.waits
        waits.retry_ms = 0
        if waits.timer_at_ms is not None:
            waits.timer_at_ms = TOO_LATE_MS if waits.timer_at_ms == waits.quorum_until_ms else NOW_MS
        if waits.look_at_ms is not None:
            waits.look_at_ms = NOW_MS
        if waits.read_at_ms is not None:
            waits.read_at_ms = NOW_MS
        if waits.quorum_until_ms is not None:
            waits.quorum_until_ms = TOO_LATE_MS
        return machine

    def open(
        self, record: LedgerMetadata, version: int, clock: StepClock, absent: Sequence[int] = ()
    ) -> None:
        """Begin with the record as created, and without the bookies of some slots."""
        self.clock = clock
        self.writer: LedgerWriter = self.act(
            lambda: LedgerWriter(
                record,
                version,
                LedgerAccess.of(record),
                ClientContext.of(
                    self.bookies,
                    self.records,
                    clock,
                    FirstOfAll(),
                    replace(BY_STEPS, quorum_wait_ms=WAIT_MS if self.driver.configuration.waits else 0),
                    self.recorder.machines,
                ),
                list(absent),
            )
        )
        log = self.recorder.logs[-1]
        self.client = self.driver.new(self._plain(log.made()))  # type: ignore[attr-defined]

    def append(self) -> None:
        """Its caller appends one entry."""
        self._futures = [*self._futures, self.act(lambda: self.writer.append_nowait(b"x"))]

    def close(self) -> None:
        """Its caller closes."""
        task = self.act(lambda: self.loop.create_task(self.writer.close()))
        task.add_done_callback(read_error)

    def strike(self, after_ms: int) -> None:
        """The time of its timer has come: so much has passed."""
        writer = self.writer._effects
        if writer._timer is None:
            raise LookupError("timer")
        writer._timer.cancel()
        self.clock.ms += after_ms
        self.act(writer._timer_fired)

    def lost(self, bookie: str) -> None:
        """It gives a bookie up: the time of what it sent there is over."""
        self.give_up(
            bookie, lambda _, requester: isinstance(requester, SlotConnection) and not requester.retired
        )

    def known(self) -> int:
        """The last entry of which its callers know, as their futures say."""
        last: int = NO_ENTRY
        for entry_id, future in enumerate(self._futures):
            if future.done() and not future.cancelled() and future.exception() is None:
                last = max(last, future.result())
                assert future.result() == entry_id, "an id of another append"
        return last

    def _judged(self, step: RecordedInput, outcome: Outcome) -> Outcome:
        """F3 is seen in the step itself, as in the explorer."""
        before = self.client.machine
        if step.name != "add_failed" or step.args[3] is not Answer.FENCED:
            return outcome
        slot, bookie, run, _ = step.args
        pending = before.window.is_pending(run)
        if not pending or before.ensemble[slot] != bookie or outcome.client.machine.status in ENDING:
            return outcome
        fault = ("F3", "a bookie is fenced, and the writer that it refused goes on")
        return Outcome(with_fault(outcome.client, fault), outcome.sends, outcome.asks, outcome.said)


class Recoverer(Program):
    """A client that recovers the ledger, perhaps again."""

    def begin(self, ledger_id: int) -> None:
        """Start with the record as it is now."""
        plain = MemoryStore(self.store._space)
        read = self.act(lambda: self.loop.create_task(RecordStore(plain, OF_LEDGERS).read(ledger_id)))
        record, version = read.result()

        def start() -> asyncio.Task[Any]:
            machines = self.recorder.machines
            context = ClientContext.of(
                self.bookies, self.records, StepClock(), FirstOfAll(), BY_STEPS, machines
            )
            access = LedgerAccess.of(record)
            recovery = RecoveryPerformer[Any](machines.recovery(record, version), access, context)
            self._seen = 0
            machine: RecoveryMachine = self.recorder.logs[-1].made()
            self.client = ClientState((), machine, verdict=self.client.verdict, fault=self.client.fault)
            return self.loop.create_task(recovery.run())

        self.act(start).add_done_callback(read_error)


def read_error(task: asyncio.Task[Any]) -> None:
    """What a program's caller does with an error is no part of a replay."""
    with contextlib.suppress(asyncio.CancelledError):
        task.exception()
