"""One check: a world, its invariants, the search; what the command line and the tests call.

Source: protocol reference 9 and 10.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from quire.proof.configuration import Configuration
from quire.proof.explorer import Result, explore
from quire.proof.invariants import INVARIANTS, LOG_INVARIANTS, NAMES, Watch
from quire.proof.log_mutants import LOG_MUTANTS, LogMutant
from quire.proof.log_watch import LogWatch
from quire.proof.log_world import LogConfiguration, LogWorld
from quire.proof.mutants import MUTANTS, Mutant
from quire.proof.story import state_rows, transcript
from quire.proof.switches import SHIPPED, Switches
from quire.proof.symmetry import Symmetry
from quire.proof.world import World

AnyConfiguration: TypeAlias = Configuration | LogConfiguration
AnyMutant: TypeAlias = Mutant | LogMutant


def _every() -> tuple[AnyMutant, ...]:
    return (*MUTANTS, *LOG_MUTANTS)


EVERY_MUTANT: dict[str, AnyMutant] = {mutant.name: mutant for mutant in _every()}
EVERY_INVARIANT: dict[str, str] = {**INVARIANTS, **LOG_INVARIANTS}


@dataclass(slots=True)
class Check:
    """A search and its world, so that what it found can be shown."""

    world: World | LogWorld
    result: Result
    header: tuple[str, ...]

    @property
    def text(self) -> str:
        """The counterexample as a transcript."""
        return transcript(self.header, self.result.path, self.result.violation)

    @property
    def rows(self) -> list[tuple[str, str]]:
        """The violating state as a table."""
        return state_rows(self.world, self.result.path[-1][1])


def check(
    configuration: AnyConfiguration,
    switches: Switches = SHIPPED,
    *,
    invariants: Iterable[str] | None = None,
    mutant: str = "",
    by_names: bool = False,
    **limits: Any,
) -> Check:
    """Explore one world.

    Args:
        invariants: which are looked at, all by default.
        by_names: states that differ by bookies' names only are explored each (for rules that tell slots apart).
        mutant: its name, for the transcript's header.
        limits: as of `explore`: progress, states_max, seconds_max, count_kinds.
    """
    header = (configuration.name, *((f"mutant {mutant}: {EVERY_MUTANT[mutant].what}",) if mutant else ()))
    world: World | LogWorld
    if isinstance(configuration, LogConfiguration):
        world = LogWorld(configuration, switches)
        names = tuple(LOG_INVARIANTS if invariants is None else invariants)
        return Check(world, explore(world, LogWatch(world, names), **limits), header)
    world = World(configuration, switches)
    watch = Watch(world, NAMES if invariants is None else invariants)
    canonical = None if by_names else Symmetry(world)
    result = explore(world, watch, watch.deadlock, canonical=canonical, **limits)
    return Check(world, result, header)


def check_mutant(name: str, *, only_named: bool = True, **limits: Any) -> Check:
    """Explore a mutant where it shows.

    Args:
        only_named: look at the invariant of its row only, so that the shortest way to that one is found.
    """
    mutant = EVERY_MUTANT[name]
    names = (mutant.violated,) if only_named else None
    by_names = isinstance(mutant, Mutant) and mutant.names_slots
    return check(
        mutant.configuration, mutant.switches, invariants=names, mutant=name, by_names=by_names, **limits
    )
