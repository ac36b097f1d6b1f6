"""Replays a schedule of the log's world: its steps done to the log's programs, compared and judged one by one.

What is compared after each step: what the handle's machine said, word for word; the machines' states; what each handle
waits for; its ledgers and appends; the list and its version; what landed and what was confirmed to callers.

Source: docs/testing-coverage.md, "Replay: the programs go where the explorer goes".
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Final, TypeAlias

from quire.core.errors import CorruptMetadataError
from quire.core.log.list import LedgerSummary, LogItem
from quire.core.log.machine import LogStatus
from quire_testing.explorer.invariants import LOG_INVARIANTS, Violation
from quire_testing.explorer.log_parts import Handle, LogConfiguration, LogState
from quire_testing.explorer.log_watch import LogWatch
from quire_testing.explorer.log_world import LogWorld
from quire_testing.explorer.snapshot import state_of
from quire_testing.explorer.switches import Switches
from quire_testing.explorer.tables import Label
from quire_testing.replay.log_handles import KeptLog, LogHandle, lines_of
from quire_testing.replay.log_play import LogPlay
from quire_testing.replay.log_truncations import LogTruncation
from quire_testing.replay.passing import ImpossibleStepError
from quire_testing.replay.recording import DriverDiffersError
from quire_testing.replay.replay import Played
from quire_testing.replay.stage import AsyncioStage, ScriptedNetwork, Stage

LogPath: TypeAlias = Sequence[tuple[Label | None, LogState]]
MakeStage: TypeAlias = Callable[[ScriptedNetwork], Stage]
REST_MAX: Final = 2_000
NOT_COMPARED: Final = frozenset({"_seen"})
"""What the machine's own check has seen, which the explorer calls and a driver does not."""


# --- the same, seen from both sides -----------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """A value without what the explorer's ledgers do not have: bytes and times of records."""
    if isinstance(value, LedgerSummary):
        return LedgerSummary(value.records)
    if isinstance(value, LogItem):
        return replace(value, payload_bytes=0, min_time_ms=None, max_time_ms=None)
    if isinstance(value, tuple):
        return tuple(plain(part) for part in value)
    if is_dataclass(value) and not isinstance(value, type):
        return (type(value).__name__, *(plain(getattr(value, part.name)) for part in fields(value)))
    return value


def _of_machine(machine: Any) -> Any:
    return plain(state_of(machine, without=NOT_COMPARED))


def model_of(world: LogWorld, number: int) -> tuple[Any, ...]:
    """A handle of the explorer."""
    handle = world.handles.parts[number]
    work = [each for each in (_model_work(world, work) for work in handle.work) if each is not None]
    if handle.ended:
        return _ended(work)
    closing = handle.machine.status is LogStatus.CLOSING
    target = handle.target if handle.target != handle.draining and not closing else 0
    flights = [(flight.ledger, flight.number, flight.seen) for flight in handle.flights]
    return (
        _of_machine(handle.machine),
        sorted(work, key=repr),
        target,
        handle.draining,
        handle.appended,
        list(handle.confirmed),
        flights,
    )


def _model_work(world: LogWorld, work: tuple[Any, ...]) -> tuple[Any, ...] | None:
    match work:
        case ("retry",):
            return None  # its machine says so
        case ("swap" | "late" as kind, head, version):
            return kind, plain(world.heads.parts[head]), version
        case ("answer", "conflict", _):
            return "answer", "conflict", 0
    return work


def program_of(handle: LogHandle) -> tuple[Any, ...]:
    """A handle of the replay."""
    work = [plain(each) for each in handle.work]
    machine = handle.raised or handle.machine
    if handle.ended:
        return _ended(work)
    known = [each.ledger for each in handle.appends if each.acknowledged]
    flights = [(each.ledger, each.number, each.seen) for each in handle.appends if not each.future.done()]
    return (
        _of_machine(machine),
        sorted(work, key=repr),
        handle.target,
        handle.draining,
        len(handle.appends),
        known,
        flights,
    )


def model_of_truncation(world: LogWorld, number: int) -> tuple[Any, ...]:
    """A truncation of the explorer."""
    trimmer = world.trimmers.parts[number]
    work = [each for each in (_model_work(world, work) for work in trimmer.work) if each is not None]
    return _ended(work) if trimmer.ended else (_of_machine(trimmer.machine), sorted(work, key=repr))


def program_of_truncation(truncation: LogTruncation) -> tuple[Any, ...]:
    """A truncation of the replay."""
    work = [plain(each) for each in truncation.work]
    machine = truncation.machine
    return _ended(work) if truncation.ended else (_of_machine(machine), sorted(work, key=repr))


def _ended(work: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Only what still changes something is looked at: the explorer tells ended handles apart by nothing else."""
    going_on = [each for each in work if each[0] in ("late", "delete")]
    return "ended", sorted(going_on, key=repr)


class LogComparison:
    """Says where the programs and the explorer differ."""

    def __init__(self, play: LogPlay, script: LogWorld) -> None:
        self._play, self._script = play, script

    def step(self, label: Label, said: tuple[str, ...], after: LogState) -> None:
        """Compare one step.

        Raises:
            DriverDiffersError: naming the step and both sides.
        """
        where = f"{label.actor}: {label.command}"
        for handle in self._play.handles:
            self._said(where, handle, label)
        for truncation in self._play.truncations:
            wanted = label.said if truncation.name == label.actor else ()
            self._same(where, f"{truncation.name} says", truncation.said(), wanted)
        if not label.actor.startswith(("handle", "truncation")):
            self._same(where, "it answers", said, label.said)
        heads = self._script.heads.parts
        self._same(where, "the list is", plain(self._play.head), plain(heads[after.head]))
        self._same(where, "its version is", self._play.version, after.version)
        ledgers = tuple(ledger.view for ledger in self._play.ledgers)
        self._same(where, "ledgers are", ledgers, after.ledgers)
        self._same(where, "callers know of", tuple(self._play.acked), after.acked)
        for handle, number in zip(self._play.handles, after.handles, strict=True):
            self._handle(where, handle, number)
        for truncation, number in zip(self._play.truncations, after.trimmers, strict=True):
            model = model_of_truncation(self._script, number)
            self._same(where, f"{truncation.name} is", program_of_truncation(truncation), model)

    def _said(self, where: str, handle: LogHandle, label: Label) -> None:
        """What a machine said in this step; one that backed off may have continued when another one's time was over."""
        inputs = handle.new_inputs()
        if handle.name == label.actor:
            if label.kind == "retries":
                inputs, handle.ahead = handle.ahead + inputs, []
            failed = next((number for number, each in enumerate(inputs, 1) if each.error), len(inputs))
            self._same(where, "it says", lines_of(inputs[:failed]), label.said)
            return
        handle.ahead += [each for each in inputs if each.name == "retry"]
        others = [each for each in inputs if each.name != "retry"]
        self._same(where, f"{handle.name} says", lines_of(others), ())

    def _handle(self, where: str, handle: LogHandle, number: int) -> None:
        model: Handle = self._script.handles.parts[number]
        if handle.ahead:
            return
        self._same(where, f"{handle.name} does", handle.fault, model.fault)
        if handle.raised is not None:
            self._same(
                where, f"{handle.name} failed as", _of_machine(handle.raised), _of_machine(model.machine)
            )
        else:
            self._same(where, f"{handle.name} is", program_of(handle), model_of(self._script, number))

    def _same(self, where: str, what: str, found: object, wanted: object) -> None:
        if found != wanted:
            msg = f"{where}: {what} {found}, not {wanted}"
            raise DriverDiffersError(msg)


# --- replays ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class LogPlayed(Played):
    """What came of a replay of a log.

    Attributes:
        rested: steps that were taken after the schedule, until nothing was left to do.
        read: what a reader of the log got at the end; None: it refused the list.
    """

    rested: int = 0
    read: list[tuple[int, int]] | None = None


def replay_log(
    script: LogWorld,
    path: LogPath,
    switches: Switches,
    invariants: Iterable[str] = tuple(LOG_INVARIANTS),
    *,
    stage: MakeStage = AsyncioStage,
    strict: bool = True,
    to_the_end: bool = False,
    kind: type[KeptLog] | None = None,
) -> LogPlayed:
    """Play a path of the explorer with the log's programs.

    Args:
        script: the world that the path goes through.
        path: (label, state after it), the first with label None.
        switches: what is replaced in the programs.
        invariants: which are asked.
        stage: an asyncio loop, or the simulator's.
        strict: every step must be possible and be the explorer's; else what is not possible is left out.
        to_the_end: go on, by chance, until nothing is left to do, and read the log.
        kind: the log's class; by default one that can do what the rules say.

    Raises:
        DriverDiffersError: a program did something else than the explorer's handle.
        ImpossibleStepError: a step cannot be done.
    """
    play = LogPlay(script.configuration, switches, stage, kind)
    compare = LogComparison(play, script)
    watch = LogWatch(play.world, tuple(invariants))
    played = LogPlayed()
    before = path[0][1]
    try:
        for number, (label, after) in enumerate(path[1:], 1):
            assert label is not None
            said: tuple[str, ...] = ()
            try:
                said = play.do(label, heeded=_heeded(script, label, before, after) if strict else None)
            except (ImpossibleStepError, LookupError) as error:
                if strict:
                    raise
                played.skipped.append(f"{label.actor}: {label.command}: {error}")
            before = after
            played.steps = number
            if strict:
                compare.step(label, said, after)
                played.compared += 1
            _judge(play, watch, played, number)
        if to_the_end:
            _finish(play, watch, played)
    finally:
        play.close()
    return played


def _judge(play: LogPlay, watch: LogWatch, played: LogPlayed, number: int) -> None:
    for handle in play.handles:
        handle.new_inputs()
    if played.violation is None:
        played.violation, played.at = watch(play.state()), number


def _finish(play: LogPlay, watch: LogWatch, played: LogPlayed) -> None:
    """Let everything go on until nothing is left, and read the log: all that was confirmed is there, in order."""
    chance = random.Random(played.steps)
    while played.rested < REST_MAX:
        labels = play.rest()
        if not labels:
            break
        played.rested += 1
        play.do(chance.choice(labels))
        _judge(play, watch, played, played.steps + played.rested)
    try:
        played.read = play.read_back()
    except CorruptMetadataError:
        return
    ever = [*play.dropped, *play.head.ledger_ids]
    all_kept = [record for ledger_id in ever for record in play.ledgers[ledger_id - 1].view.records]
    trimmed, kept = all_kept[: play.head.start_offset], all_kept[play.head.start_offset :]
    if played.violation is None and kept[: len(played.read)] != played.read:
        played.violation = Violation("L2", f"a reader gets {played.read} of {kept}")
    lost = [record[:2] for record in play.acked if record[:2] not in (*trimmed, *played.read)]
    if played.violation is None and lost:
        played.violation = Violation("L1", f"a reader does not get {lost}")


def _heeded(world: LogWorld, label: Label, before: LogState, after: LogState) -> bool | None:
    """Whether the handle whose compare-and-swap lands still waits for the response."""
    if label.actor != "store":
        return None
    kind, number = label.command.split()[-2:]
    who = int(number)

    def answers(state: LogState) -> int:
        trims = kind == "truncation"
        program = (
            world.trimmers.parts[state.trimmers[who]] if trims else world.handles.parts[state.handles[who]]
        )
        return sum(work[0] == "answer" for work in program.work)

    return answers(after) > answers(before)


# --- walks ------------------------------------------------------------------------------------------------------------


LOG_WALKS: Final = (
    LogConfiguration(1, 4, 3, lost_swaps=2),
    LogConfiguration(2, 5, 4),
    LogConfiguration(2, 6, 4, lost_swaps=2),
    LogConfiguration(3, 8, 6, lost_swaps=2),
    LogConfiguration(4, 12, 8, lost_swaps=3),
    LogConfiguration(2, 8, 6, lost_swaps=2, trims=2),
    LogConfiguration(3, 8, 6, lost_swaps=2, trims=3),
    LogConfiguration(3, 9, 5, lost_swaps=2, trims=1, closes=True, stages=2),
)
"""Worlds in which random walks are taken."""
