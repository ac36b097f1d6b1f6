"""Plays the steps of a log's schedule with the log's programs: each is one question answered, one add landed, one call.

Source: docs/testing-coverage.md, "Replay: the programs go where the explorer goes".
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from quire.core.ids import LedgerId
from quire.core.log.list import Adoption, ItemState, LogHead, LogItem
from quire.core.log.machine import LogStatus
from quire.log.heads import LogHeads
from quire.metadata.memory import MemorySpace, MemoryStore
from quire.metadata.store import Put, VersionConflictError
from quire.wire.log_records import encode_head, parse_head
from quire_testing.explorer.log_parts import Handle, LogConfiguration, LogState
from quire_testing.explorer.log_world import LogWorld
from quire_testing.explorer.switches import Switches
from quire_testing.explorer.tables import CAS_LOST, Label
from quire_testing.replay.log_handles import (
    BACK_OFF_MS,
    KEY,
    LOG_ID,
    NAME,
    GuessedLog,
    KeptLog,
    LogHandle,
    UncheckedLog,
)
from quire_testing.replay.log_ledgers import (
    SINK,
    HandleRequest,
    StepClient,
    StepLedger,
    StepWriter,
    records_of,
    step_ledger,
)
from quire_testing.replay.log_truncations import LogTruncation
from quire_testing.replay.passing import ImpossibleStepError
from quire_testing.replay.stage import ScriptedNetwork, Stage, perform
from quire_testing.replay.store import Question


class NoNetwork:
    """Nothing here has a connection."""

    async def connect(self, loop: Any, factory: Any, host: str, port: int) -> Any:
        """It is not called."""
        raise NotImplementedError


def log_kind(switches: Switches, configuration: LogConfiguration) -> type[KeptLog]:
    """The programs that can do what a mutant does: log-fences-last-two, X21 and log-sends-early need more out than that."""
    rules = switches.rules
    if switches.patches:
        return GuessedLog
    everything = [1, 2, 3, 4]
    if configuration.adopts and rules.ledgers_to_fence(everything, everything) != everything:
        return UncheckedLog
    return KeptLog


class LogPlay:
    """The programs of one log's world, and what a schedule may do to them.

    Args:
        configuration: the world.
        switches: what is replaced in the programs.
        stage: makes what everything runs on.
        kind: the log's class; by default `log_kind`'s.
    """

    def __init__(
        self,
        configuration: LogConfiguration,
        switches: Switches,
        stage: Callable[[ScriptedNetwork], Stage],
        kind: type[KeptLog] | None = None,
    ) -> None:
        self.configuration, self.switches = configuration, switches
        self.world = LogWorld(configuration, switches)
        self.stage = stage(NoNetwork())
        self._spaces = MemorySpace("heads"), MemorySpace("elections")
        self._kind = kind or log_kind(switches, configuration)
        self.ledgers: list[StepLedger] = []
        self.handles: list[LogHandle] = []
        self.truncations: list[LogTruncation] = []
        self.dropped: tuple[int, ...] = ()
        self.acked: list[tuple[int, int, int]] = []
        self.fault: tuple[str, str] | None = None
        self.owner = self.stage.loop_of("owner")
        making = LogHeads(MemoryStore(self._spaces[0])).create(LogHead(LOG_ID, NAME))
        perform(self.stage, self.owner, lambda: self.owner.create_task(making)).result()

    def close(self) -> None:
        """Let everything go."""
        self.stage.close()

    @property
    def head(self) -> LogHead:
        """The list as the store has it."""
        return parse_head(self._spaces[0].rows[KEY].value, LOG_ID)

    @property
    def version(self) -> int:
        """Its version."""
        return self._spaces[0].rows[KEY].version

    # --- steps -------------------------------------------------------------------------------------------------------

    def do(self, label: Label, *, heeded: bool | None = None) -> tuple[str, ...]:
        """Do one step.

        Args:
            label: which.
            heeded: of a compare-and-swap: whether its handle still waits for it; None when nothing is known.

        Returns:
            What ledgers and store said; what a handle's machine said is in its `new_inputs`.

        Raises:
            ImpossibleStepError: the programs cannot do it now.
        """
        kind, _, number = label.actor.partition(" ")
        if kind == "store":
            return self._lands(label.command, heeded=heeded)
        if kind == "ledger":
            return (self._takes(int(number), label.command),)
        if kind == "sink" and label.command.startswith("commits"):
            self.commit()
        elif kind == "sink":
            self.adopt()
        elif label.command == "open":
            self._opens(int(number))
        elif kind == "truncation" and label.command.startswith("truncate"):
            self._truncates(int(number), int(label.command.rsplit(maxsplit=1)[1]))
        else:
            self._program(self._of(kind, int(number)), label.command)
        self._notes()
        return ()

    def _notes(self) -> None:
        for handle in self.handles:
            self.acked += [(handle.number, each.number, each.seen) for each in handle.acknowledged()]

    def _of(self, kind: str, number: int) -> LogHandle | LogTruncation:
        programs: Sequence[Any] = self.truncations if kind == "truncation" else self.handles
        if number >= len(programs):
            msg = f"{kind} {number} has not begun"
            raise ImpossibleStepError(msg)
        return programs[number]  # type: ignore[no-any-return]

    @property
    def programs(self) -> list[LogHandle | LogTruncation]:
        """All of them."""
        return [*self.handles, *self.truncations]

    def _opens(self, number: int) -> None:
        assert number == len(self.handles)
        self.handles.append(
            LogHandle(number, self.stage, self._spaces, self.ledgers, self.switches, self._kind)
        )

    def _truncates(self, number: int, before: int) -> None:
        assert number == len(self.truncations)
        if before > self.head.closed_end:
            msg = f"the list knows of records before {self.head.closed_end} only"
            raise ImpossibleStepError(msg)
        self.truncations.append(
            LogTruncation(number, before, self.stage, self._spaces, self.ledgers, self.switches)
        )

    def _program(self, program: LogHandle | LogTruncation, command: str) -> None:
        for pattern, step in _STEPS.items():
            found = re.fullmatch(pattern, command)
            if found:
                step(self, program, *map(int, found.groups()))
                return
        raise ImpossibleStepError(command)

    def _appends(self, handle: LogHandle, number: int, ledger: int) -> None:
        if (handle.target, len(handle.appends)) != (ledger, number):
            msg = f"{handle.name} appends its record {len(handle.appends)} to ledger {handle.target}"
            raise ImpossibleStepError(msg)
        handle.append(len(self.acked))

    def _rolls(self, handle: LogHandle) -> None:
        if not handle._machine.may_roll:
            msg = f"{handle.name} may not roll"
            raise ImpossibleStepError(msg)
        handle.roll()

    def _closes_handle(self, handle: LogHandle) -> None:
        if handle.status is not LogStatus.SERVING or handle._machine.is_closing:
            msg = f"{handle.name} does not lead"
            raise ImpossibleStepError(msg)
        handle.close()

    def _on_response(self, handle: LogHandle, ledger: int, fate: str) -> None:
        adds = self.ledgers[ledger - 1].adds if ledger <= len(self.ledgers) else []
        if not adds or adds[0].fate != fate or self.ledgers[ledger - 1].owner != handle.number:
            msg = f"{handle.name}: no add to ledger {ledger} is {fate}"
            raise ImpossibleStepError(msg)
        handle.act(self.ledgers[ledger - 1].answers)

    def _refused(self, handle: LogHandle, ledger: int) -> None:
        self._on_response(handle, ledger, "refused")

    def _confirmed(self, handle: LogHandle, number: int) -> None:
        ledger = next((each.ledger for each in handle.appends if each.number == number), 0)
        self._on_response(handle, ledger, "stored")

    def _reads(self, handle: LogHandle | LogTruncation) -> None:
        question = _first(handle.store.questions, lambda each: each.op is None)
        handle.act(lambda: handle.store.answer(question))

    def _fences(self, handle: LogHandle, ledger: int) -> None:
        request = self._request(handle, "recover", ledger, done=False)
        if self.ledgers[ledger - 1].deleted:
            msg = f"ledger {ledger} is deleted"
            raise ImpossibleStepError(msg)
        self.ledgers[ledger - 1].closed = request.done = True

    def _recovered(self, handle: LogHandle, ledger: int) -> None:
        self._answer(handle, self._request(handle, "recover", ledger, done=True), what=True)

    def _finds_deleted(self, handle: LogHandle, ledger: int) -> None:
        if not self.ledgers[ledger - 1].deleted:
            msg = f"ledger {ledger} is there"
            raise ImpossibleStepError(msg)
        self._answer(handle, self._request(handle, "recover", ledger), what=False)

    def _creates(self, handle: LogHandle, number: int) -> None:
        request = self._request(handle, "create", 0, done=False)
        if number != len(self.ledgers) + 1:
            msg = f"the next ledger is {len(self.ledgers) + 1}"
            raise ImpossibleStepError(msg)
        self.ledgers.append(step_ledger(number, handle.number))
        self._answer(handle, request, StepWriter(handle.client, self.ledgers[-1]))

    def _closes(self, handle: LogHandle, ledger: int) -> None:
        request = self._request(handle, "close", ledger, done=False)
        self._answer(handle, request, self.ledgers[ledger - 1].closes())

    def _deletes(self, program: LogHandle | LogTruncation, number: int) -> None:
        request, ledger = self._request(program, "delete", number), self.ledgers[number - 1]
        was_there = not ledger.deleted
        ledger.deleted = ledger.closed = True
        self._answer(program, request, was_there)

    def _retries(self, handle: LogHandle) -> None:
        if any(step.name == "retry" for step in handle.ahead):
            return  # it waited as long as another one
        if handle.status is not LogStatus.BACKING_OFF:
            raise ImpossibleStepError(handle.name)
        self.stage.advance(BACK_OFF_MS)

    def _on_written(self, handle: LogHandle | LogTruncation) -> None:
        question = _first(handle.store.questions, lambda each: each.op and each.heeded and each.landed)
        handle.act(lambda: handle.store.answer(question))

    def _no_response(self, handle: LogHandle | LogTruncation) -> None:
        question = _first(handle.store.questions, lambda each: each.op and each.heeded and not each.landed)
        handle.act(lambda: handle.store.lose(question))

    def _request(
        self, program: LogHandle | LogTruncation, kind: str, ledger: int, *, done: bool | None = None
    ) -> HandleRequest:
        """What a program asked of its client; `done` None: carried out or not."""
        wanted = (kind, ledger)
        return _first(  # type: ignore[no-any-return]
            program.client.requests,
            lambda each: (each.kind, each.ledger_id) == wanted and done in (None, each.done),
        )

    def _answer(self, program: LogHandle | LogTruncation, request: HandleRequest, what: object) -> None:
        program.act(lambda: request.future.set_result(what))

    # --- store, ledgers, a sink --------------------------------------------------------------------------------------

    def _lands(self, command: str, *, heeded: bool | None) -> tuple[str, ...]:
        asked = re.fullmatch(r"takes v(\d+): (\[.*\]) from (handle|truncation) (\d+)", command)
        if asked is None:
            raise ImpossibleStepError(command)
        program = self._of(asked[3], int(asked[4]))

        def wanted(question: Question) -> bool:
            op = question.op
            if op is None or question.landed is not None or str(op.version) != asked[1]:
                return False
            return str(list(map(int, parse_head(op.value, LOG_ID).ledger_ids))) == asked[2]

        candidates = [question for question in program.store.questions if wanted(question)]
        question = _first(
            candidates,
            lambda each: heeded in (None, each.heeded and not program.ended) or len(candidates) == 1,
        )
        return (self.land(program, question),)

    def land(self, program: LogHandle | LogTruncation, question: Question) -> str:
        """A compare-and-swap reaches the store.

        Returns:
            What became of it.
        """
        before = self.state()
        program.act(lambda: program.store.land(question))
        after = self.world._listed(before, self.world.heads.number(self.head))
        self.fault, self.dropped = after.fault, after.dropped
        return "conflict" if isinstance(question.landed, VersionConflictError) else "written"

    def _takes(self, ledger: int, command: str) -> str:
        number, who = map(int, re.findall(r"\d+", command))
        adds = (
            [add for add in self.ledgers[ledger - 1].adds if not add.fate]
            if ledger <= len(self.ledgers)
            else []
        )
        if not adds or records_of(adds[0].entry) != [(who, number)]:
            msg = f"ledger {ledger} is not sent {number} by handle {who}"
            raise ImpossibleStepError(msg)
        return self.ledgers[ledger - 1].lands()

    def commit(self) -> None:
        """A sink commits a closed ledger to the log, which waits for its place."""
        head, number = self.head, len(self.ledgers) + 1
        adoption = Adoption((LogItem(LedgerId(number), state=ItemState.CLOSED),))
        record = encode_head(replace(head, adoptions=(*head.adoptions, adoption)))
        self._spaces[0].apply((Put(KEY, record, self.version),))
        self.ledgers.append(step_ledger(number, SINK))

    def adopt(self) -> None:
        """A sink puts a closed ledger at the list's end, whatever is open."""
        head, number = self.head, len(self.ledgers) + 1
        item = LogItem(LedgerId(number), state=ItemState.CLOSED, first_offset=0, next_offset=0)
        record = encode_head(replace(head, items=(*head.items, item)))
        self._spaces[0].apply((Put(KEY, record, self.version),))
        self.ledgers.append(step_ledger(number, SINK))

    # --- judging -------------------------------------------------------------------------------------------------------

    def state(self) -> LogState:
        """The programs' state as the explorer's; its handles show what is judged, their faults."""
        handles = [Handle(handle.machine, fault=handle.fault) for handle in self.handles]
        return LogState(
            self.world.heads.number(self.head),
            self.version,
            tuple(ledger.view for ledger in self.ledgers),
            tuple(self.world.handles.number(handle) for handle in handles),
            0,
            0,
            0,
            tuple(self.acked),
            dropped=self.dropped,
            fault=self.fault,
        )

    def read_back(self) -> list[tuple[int, int]]:
        """What a reader gets who reads the log from its start to its end now."""
        client: Any = StepClient(self.ledgers, MemoryStore(self._spaces[0]), random.Random(0))
        log = self._kind(client, NAME)

        async def everything() -> list[tuple[int, int]]:
            return [_record(record.value) async for record in log.read()]

        task = perform(self.stage, self.owner, lambda: self.owner.create_task(everything()))
        return task.result()  # type: ignore[no-any-return]

    def _work_text(self, work: tuple[Any, ...]) -> tuple[str, bool]:
        """The command that carries out what was asked for, and whether that also happens once its program has ended."""
        match work:
            case ("swap" | "late", head, version):
                return f"takes v{version}: {list(map(int, head.ledger_ids))}", True
            case ("delete", ledger):
                return f"deletes ledger {ledger}", True
            case ("answer", what, _):
                return (
                    "hears of a conflict" if what == "conflict" else "hears that the list is written",
                    False,
                )
            case ("recovered" | "recover", ledger) if self.ledgers[ledger - 1].deleted:
                return f"finds that ledger {ledger} is deleted", False
            case ("recovered", ledger):
                return f"hears that ledger {ledger} is recovered", False
            case ("recover", ledger):
                return f"fences and closes ledger {ledger}", False
            case ("close", ledger):
                return f"closes ledger {ledger}", False
            case ("create",):
                return "creates", False
        return "reads the list", False

    def rest(self) -> list[Label]:
        """Steps that programs, ledgers and store can take now without a call: what a schedule left undone."""
        labels: list[Label] = []
        for program in self.programs:
            asked = [self._work_text(work) for work in program.work]
            commands = [text for text, always in asked if always or not program.ended]
            labels += [
                Label(program.name, command) for command in commands if not command.startswith("takes")
            ]
            writes = [command for command in commands if command.startswith("takes")]
            labels += [Label("store", f"{command} from {program.name}") for command in writes]
        for handle in self.handles:
            if handle.status is LogStatus.BACKING_OFF and not handle.work:
                labels.append(Label(handle.name, "retries"))
        for ledger in self.ledgers:
            if ledger.adds and not self.handles[ledger.owner].ended:
                labels.append(_add_label(ledger))
        return [
            label._replace(command=f"creates ledger {len(self.ledgers) + 1}")
            if "creates" in label.command
            else label
            for label in labels
        ]


def _record(value: bytes | None) -> tuple[int, int]:
    who, number = (value or b"").split()
    return int(who), int(number)


def _add_label(ledger: StepLedger) -> Label:
    number, (who, record) = ledger.record.ledger_id, records_of(ledger.adds[0].entry)[0]
    match ledger.adds[0].fate:
        case "":
            return Label(f"ledger {number}", f"takes {record} from handle {who}")
        case "refused":
            return Label(f"handle {who}", f"hears that ledger {number} is fenced")
    return Label(f"handle {who}", f"acknowledges {record}")


def _first(found: Sequence[Any], wanted: Callable[[Any], object]) -> Any:
    for each in found:
        if wanted(each):
            return each
    msg = f"none of {len(found)} is what the step is about"
    raise ImpossibleStepError(msg)


_STEPS: Final[dict[str, Callable[..., None]]] = {
    r"append (\d+) to ledger (\d+)": LogPlay._appends,
    r"roll": LogPlay._rolls,
    r"close": LogPlay._closes_handle,
    r"hears that ledger (\d+) is fenced": LogPlay._refused,
    r"acknowledges (\d+)": LogPlay._confirmed,
    r"reads the list": LogPlay._reads,
    r"fences and closes ledger (\d+)": LogPlay._fences,
    r"hears that ledger (\d+) is recovered": LogPlay._recovered,
    r"finds that ledger (\d+) is deleted": LogPlay._finds_deleted,
    r"creates ledger (\d+)": LogPlay._creates,
    r"(?:closes|cannot close) ledger (\d+)": LogPlay._closes,
    r"deletes ledger (\d+)": LogPlay._deletes,
    r"retries": LogPlay._retries,
    r"hears that the list is written|hears of a conflict": LogPlay._on_written,
    CAS_LOST: LogPlay._no_response,
}
