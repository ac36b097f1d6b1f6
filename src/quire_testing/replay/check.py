"""Counterexamples of mutants, found where the programs can walk them, and random walks with what ships: all replayed.

Source: docs/testing-coverage.md, "Replay: the programs go where the explorer goes".
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, cast

from quire.storage.starting.start import Start
from quire_testing.explorer.check import check_mutant, replay_mutant
from quire_testing.explorer.configuration import Configuration
from quire_testing.explorer.explorer import Result, explore
from quire_testing.explorer.invariants import InvariantWatch
from quire_testing.explorer.ledger_mutants import SPARE
from quire_testing.explorer.log_world import LogWorld
from quire_testing.explorer.mutants import MUTANTS, OF_LOGS, REPLAYED, AnyMutant
from quire_testing.explorer.patches import Patch, applied
from quire_testing.explorer.story import led, transcript
from quire_testing.explorer.stream_world import StreamWorld
from quire_testing.explorer.switches import SHIPPED
from quire_testing.explorer.symmetry import Symmetry
from quire_testing.explorer.world import LedgerWorld
from quire_testing.replay.log_replay import replay_log
from quire_testing.replay.replay import Path, Played, replay
from quire_testing.replay.stage import AsyncioStage, ScriptedNetwork, Stage
from quire_testing.replay.streams import replay_stream
from quire_testing.replay.world import ProgramWorld

WHERE: Final[dict[str, Configuration]] = {
    "X11": replace(SPARE, entries=2),
}
"""Mutants whose usual world shows them only by what no program does: where they show too."""

WALKS: Final = (
    Configuration(2, 2, 2, 2, entries=2, timeouts=1),
    Configuration(3, 2, 2, 2, entries=2, timeouts=2, closes=True, lost_swaps=1),
    Configuration(3, 3, 3, 2, entries=3, recoverers=2, reruns=1),
    Configuration(3, 3, 2, 1, entries=3, timeouts=1),
    Configuration(3, 3, 2, 2, entries=3, breaks=1),
    Configuration(3, 2, 2, 1, entries=2, recoverers=2, timeouts=2, reruns=1),
    Configuration(3, 3, 3, 2, crashes=1, entries=2),
    Configuration(3, 3, 3, 2, crashes=1, journal=False, entries=2),
    Configuration(4, 3, 3, 2, entries=2, timeouts=2, lost_swaps=1, absent=True),
    Configuration(2, 2, 2, 2, deletions=1, entries=2),
    Configuration(3, 3, 3, 2, damages=1, entries=2),
    Configuration(2, 2, 2, 2, entries=2, window=2, timeouts=1, reruns=1),
    Configuration(3, 3, 2, 2, entries=3, window=3, timeouts=1, breaks=1),
    Configuration(2, 2, 2, 2, crashes=2, breaks=1),
    Configuration(4, 4, 3, 2, entries=3, timeouts=1, closes=True),
    Configuration(4, 3, 3, 2, entries=3, timeouts=1, away=1),
    Configuration(3, 3, 3, 2, entries=3, timeouts=4, waits=True),
    Configuration(3, 2, 2, 2, entries=2, timeouts=2, lost_swaps=1, absent=True, waits=True),
    Configuration(4, 3, 3, 2, entries=3, timeouts=2, closes=True, waits=True, guarantee=True),
    Configuration(3, 3, 2, 1, entries=3, recoverers=2, timeouts=2, guarantee=True, transit_damages=1),
    Configuration(4, 3, 3, 2, entries=2, timeouts=1, recoverers=0, losses=1, repairers=1, closed=True),
    Configuration(3, 2, 2, 2, recoverers=0, lost_swaps=1, losses=1, repairers=2, closed=True),
    Configuration(3, 2, 2, 2, recoverers=0, deletions=1, losses=1, repairers=2, closed=True),
    Configuration(4, 3, 3, 2, crashes=1, recoverers=0, losses=1, repairers=1, closed=True),
    Configuration(3, 3, 3, 2, crashes=1, journal=False, recoverers=0, repairers=1, closed=True),
    Configuration(3, 2, 2, 2, entries=2, losses=1, repairers=1, changed=True),
    Configuration(3, 2, 2, 2, entries=2, repairers=1, changed=True, gone=True),
    Configuration(3, 2, 2, 2, entries=2, crashes=1, journal=False, named=True, repairers=1, changed=True),
)
"""Worlds in which random walks are taken."""
WALK_STEPS_MAX: Final = 90

MakeStage = Callable[[ScriptedNetwork], Stage]

IN_PROGRAMS: Final = {"D3": (Patch(Start.run, "if served:", "if False:"),)}
"""Mutants of which the explorer's bookie has a part of its own: the same taken out of the program."""


@dataclass(slots=True)
class Counterexample:
    """A mutant's shortest way to its violation among those that the programs can walk."""

    mutant: AnyMutant
    world: LedgerWorld | LogWorld | StreamWorld
    result: Result

    @property
    def text(self) -> str:
        """The way as a transcript."""
        header = (self.world.configuration.name, f"mutant {self.mutant.name}: {self.mutant.what}")
        return transcript(header, self.result.path, self.result.violation)

    def replay(self, stage: MakeStage = AsyncioStage) -> Played:
        """Play it with the mutant's programs: every step must be the explorer's."""
        path, switches, named = self.result.path, self.mutant.switches, [self.mutant.violated]
        with switches.applied(), applied(IN_PROGRAMS.get(self.mutant.name, ())):
            if isinstance(self.world, LogWorld):
                return replay_log(self.world, path, switches, named, stage=stage)
            if isinstance(self.world, StreamWorld):
                return replay_stream(self.world, path, switches, named, stage=stage)
            return replay(self.world, path, switches, named, stage=stage)

    def replay_shipped(self, stage: MakeStage = AsyncioStage) -> Played:
        """Play it with the programs that ship, and ask all invariants; what they do not do is left out.

        A log goes on to the end and is read.
        """
        path = self.result.path
        if isinstance(self.world, LogWorld):
            return replay_log(self.world, path, SHIPPED, stage=stage, strict=False, to_the_end=True)
        if isinstance(self.world, StreamWorld):
            return replay_stream(self.world, path, SHIPPED, stage=stage, strict=False)
        return replay(self.world, path, SHIPPED, stage=stage, strict=False)


def counterexample(name: str) -> Counterexample:
    """Find a mutant's counterexample."""
    if name in OF_LOGS:
        done = check_mutant(name)
        return Counterexample(OF_LOGS[name], cast("LogWorld", done.world), done.result)
    mutant = REPLAYED[name]
    world = ProgramWorld(WHERE.get(name, mutant.configuration), mutant.switches)
    watch = InvariantWatch(world, [mutant.violated])
    canonical = None if mutant.names_slots else Symmetry(world)
    with mutant.switches.applied():
        begin = led(world, mutant.begin)
        result = explore(world, watch, watch.deadlock, canonical=canonical, begin=begin)
    return Counterexample(mutant, world, result)


def from_transcript(name: str, text: str) -> Counterexample:
    """A counterexample from its transcript, in the explorer's whole world.

    Raises:
        CannotReplayError: it is not a way through that world.
    """
    done = replay_mutant(name, text, WHERE.get(name))
    return Counterexample(
        MUTANTS[name], cast("LedgerWorld | LogWorld | StreamWorld", done.world), done.result
    )


def random_walk(
    world: LedgerWorld | StreamWorld,
    chance: random.Random,
    steps_max: int = WALK_STEPS_MAX,
    begin: Sequence[str] = (),
) -> Path:
    """A way through a world, each step drawn from those that are possible; `begin`: the commands of its first steps."""
    path = led(world, begin)
    state = path[-1][1]
    while len(path) <= steps_max:
        moves = world.successors(state)
        if not moves:
            break
        label, state = chance.choice(moves)
        path.append((label, state))
    return path
