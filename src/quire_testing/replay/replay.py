"""Replays a counterexample: the explorer's steps done to the programs, compared and judged one by one.

Source: docs/testing-coverage.md, "Replay: the programs go where the explorer goes".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from quire.core.recovery.machine import RecoveryMachine
from quire_testing.explorer.bookies import BookieState
from quire_testing.explorer.clients import ClientState
from quire_testing.explorer.invariants import NAMES, InvariantWatch, Violation
from quire_testing.explorer.recoverers import settle
from quire_testing.explorer.snapshot import clone, state_of
from quire_testing.explorer.switches import Switches
from quire_testing.explorer.tables import Label, State
from quire_testing.explorer.world import LedgerWorld
from quire_testing.replay.clients import Program, Writer
from quire_testing.replay.frames import plain
from quire_testing.replay.passing import ImpossibleStepError
from quire_testing.replay.play import Play
from quire_testing.replay.recording import DriverDiffersError
from quire_testing.replay.stage import AsyncioStage, ScriptedNetwork, Stage

Path: TypeAlias = Sequence[tuple[Label | None, State]]


@dataclass(slots=True)
class Played:
    """What came of a replay.

    Attributes:
        violation: the first that the programs' state showed.
        at: the step that showed it, counted from 1.
        steps: how many were done.
        skipped: steps that were not possible, with why (only where that is allowed).
        compared: how many steps were compared with the explorer's, word by word.
    """

    violation: Violation | None = None
    at: int = 0
    steps: int = 0
    skipped: list[str] = field(default_factory=list)
    compared: int = 0


class Comparison:
    """Says where the programs and the explorer differ."""

    def __init__(self, play: Play) -> None:
        self._play = play
        self._script = play.script

    def step(self, label: Label, said: Sequence[str], after: State) -> None:
        """Compare one step.

        Raises:
            DriverDiffersError: naming the step and both sides.
        """
        for program in self._play.programs:
            found = program.steps()
            program.ahead += found
            if program.name == label.actor and label.kind != "break":
                self._client(program, label)
            elif found and label.kind not in ("break", "crash", "loss") and not self._is_lost(label):
                msg = f"{label.actor}: {label.command}: {program.name} went on too: {[each.said for each in found]}"
                raise DriverDiffersError(msg)
        if label.actor not in self._play.world.names and label.actor != "owner":
            wanted = [plain(line) for line in label.said if line.startswith("-> ")]
            missing = [line for line in wanted if line not in said]
            if missing:
                msg = f"{label.actor}: {label.command}: expected {missing}, said {list(said)}"
                raise DriverDiffersError(msg)
        self._states(label, after)

    def _is_lost(self, label: Label) -> bool:
        """Whether this is a step of a lost bookie: clients learn that then."""
        return any(bookie.lost and bookie.name == label.actor for bookie in self._play.bookies)

    def _client(self, program: Program, label: Label) -> None:
        for index, outcome in enumerate(program.ahead):
            if outcome.said == label.said:
                del program.ahead[index]
                return
        msg = f"{label.actor}: {label.command}: expected {label.said}, said {[each.said for each in program.ahead]}"
        raise DriverDiffersError(msg)

    def _states(self, label: Label, after: State) -> None:
        script, play = self._script, self._play
        for number, bookie in enumerate(play.bookies):
            model, real = script.bookies.parts[after[number]], bookie.view()
            if _seen(model) != _seen(real):
                msg = f"{label.actor}: {label.command}: {bookie.name} is {_seen(real)}, the explorer's {_seen(model)}"
                raise DriverDiffersError(msg)
        store = script.stores.parts[after[script.at.store]]
        if (store.record, store.version) != (play.store.record, play.store.version):
            msg = f"{label.actor}: {label.command}: the record is {play.store}, the explorer's {store}"
            raise DriverDiffersError(msg)
        writer = play.programs[0]
        assert isinstance(writer, Writer)
        if writer.known() != writer.client.confirmed:
            msg = f"{label.actor}: {label.command}: callers know of {writer.known()}, not of {writer.client.confirmed}"
            raise DriverDiffersError(msg)
        for number, program in enumerate(play.programs):
            client = script.clients.parts[after[script.at.client + number]]
            if not program.ahead and _key(program.client) != _key(client):
                msg = (
                    f"{label.actor}: {label.command}: {program.name} is {_key(program.client)}, "
                    f"the explorer's {_key(client)}"
                )
                raise DriverDiffersError(msg)


def _seen(bookie: BookieState) -> tuple[object, ...]:
    """What is compared: not the key, which a bookie in limbo has from the record and the explorer's has not."""
    facts = bookie.facts and (bookie.facts[0], *bookie.facts[2:])
    return facts, bookie.fence, bookie.held


def _key(client: ClientState) -> tuple[object, ...]:
    """A client's state; with a fault, without what no later input reads, which the explorer has not cleared then."""
    machine = client.machine
    if client.fault is None or not isinstance(machine, RecoveryMachine) or client.idle:
        return client.key
    machine = clone(machine)
    settle(machine)
    return state_of(machine), client.verdict, client.fault


def replay(
    script: LedgerWorld,
    path: Path,
    switches: Switches,
    invariants: Iterable[str] = NAMES,
    *,
    stage: Callable[[ScriptedNetwork], Stage] = AsyncioStage,
    strict: bool = True,
) -> Played:
    """Play a path of the explorer with the programs.

    Args:
        script: the world that the path goes through.
        path: (label, state after it), the first with label None.
        switches: what is replaced in the programs.
        invariants: which are asked.
        stage: an asyncio loop, or the simulator's.
        strict: every step must be possible and be the explorer's; else what is not possible is left out.

    Raises:
        DriverDiffersError: a program did something else than the explorer's client or bookie.
        ImpossibleStepError: a step cannot be done.
    """
    play = Play(script, switches, stage)
    compare = Comparison(play)
    watch = InvariantWatch(play.world, invariants)
    played = Played()
    before = path[0][1]
    try:
        for number, (label, after) in enumerate(path[1:], 1):
            assert label is not None
            play.coming = [each for each, _ in path[number + 1 :] if each is not None]
            try:
                said = play.do(label, before, after)
            except (ImpossibleStepError, LookupError) as error:
                if strict:
                    raise
                played.skipped.append(f"{label.actor}: {label.command}: {error}")
                said = []
            before = after
            played.steps = number
            if strict:
                compare.step(label, said, after)
                played.compared += 1
            else:
                for program in play.programs:
                    program.steps()
            if played.violation is None:
                played.violation, played.at = watch(play.state(after)), number
        # What ships may have sent what the mutant has not, so that the way ends for the mutant only.
        waits = play.network.carries or any(program.is_asking for program in play.programs)
        goes_on = bool(LedgerWorld.successors(script, before)) or (not strict and waits)
        if played.violation is None and not goes_on:
            played.violation = watch.deadlock(play.state(before))
    finally:
        play.close()
    return played
