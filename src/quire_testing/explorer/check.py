"""One check: a world, its invariants, the search; what the command line and the tests call.

Source: docs/counterexamples.md, "All of them", "What must hold".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from quire_testing.explorer.bundle_parts import BundleConfiguration
from quire_testing.explorer.bundle_world import BUNDLE_INVARIANTS, BundleForm, BundleWatch, BundleWorld
from quire_testing.explorer.collector_forms import CollectorForm
from quire_testing.explorer.collector_parts import CollectorConfiguration
from quire_testing.explorer.collector_watch import CollectorWatch
from quire_testing.explorer.collector_world import CollectorWorld
from quire_testing.explorer.directory_world import DirectoryConfiguration, DirectoryWatch, DirectoryWorld
from quire_testing.explorer.explorer import Result, explore
from quire_testing.explorer.invariants import (
    COLLECTOR_INVARIANTS,
    DIRECTORY_INVARIANTS,
    INVARIANTS,
    LOG_INVARIANTS,
    NAMES,
    InvariantWatch,
    Violation,
)
from quire_testing.explorer.log_parts import LogConfiguration
from quire_testing.explorer.log_watch import LogWatch
from quire_testing.explorer.log_world import LogWorld
from quire_testing.explorer.mutants import MUTANTS, AnyConfiguration
from quire_testing.explorer.story import exchanges, led, replayed, state_rows, transcript
from quire_testing.explorer.stream_parts import StreamConfiguration
from quire_testing.explorer.stream_tale import tale
from quire_testing.explorer.stream_watch import STREAM_INVARIANTS, StreamWatch
from quire_testing.explorer.stream_world import StreamWorld
from quire_testing.explorer.switches import SHIPPED, Switches
from quire_testing.explorer.symmetry import Symmetry
from quire_testing.explorer.world import LedgerWorld

AnyWorld: TypeAlias = LedgerWorld | LogWorld | CollectorWorld | DirectoryWorld | StreamWorld | BundleWorld


EVERY_INVARIANT: dict[str, str] = {
    **INVARIANTS,
    **LOG_INVARIANTS,
    **COLLECTOR_INVARIANTS,
    **DIRECTORY_INVARIANTS,
    **BUNDLE_INVARIANTS,
    **{name: text for name, text in STREAM_INVARIANTS.items() if name not in INVARIANTS},
}


@dataclass(slots=True)
class Check:
    """A search and its world, so that what it found can be shown."""

    world: AnyWorld
    result: Result
    header: tuple[str, ...]

    @property
    def text(self) -> str:
        """The counterexample as a transcript."""
        return transcript(self.header, self.result.path, self.result.violation, self.rows)

    @property
    def tale(self) -> list[str]:
        """A stream's counterexample in a few sentences, as the published documents tell theirs; nothing of others."""
        if self.result.violation is None or not isinstance(self.world, StreamWorld):
            return []
        return tale(self.world, self.result.path, self.result.violation)

    @property
    def rows(self) -> list[tuple[str, str]]:
        """The violating state as a table; nothing without a violation."""
        if self.result.violation is None:
            return []
        return state_rows(self.world, self.result.path[-1][1])


@dataclass(frozen=True, slots=True)
class Setting:
    """A world with the way its states are looked at."""

    world: AnyWorld
    violation_in: Callable[[Any], Violation | None]
    deadlock_in: Callable[[Any], Violation | None] | None


def setting_of(
    configuration: AnyConfiguration, switches: Switches, invariants: Iterable[str] | None
) -> Setting:
    """The world of a configuration, with these invariants (None: all) to be looked at."""
    if isinstance(configuration, LogConfiguration):
        log = LogWorld(configuration, switches)
        return Setting(log, LogWatch(log, tuple(LOG_INVARIANTS if invariants is None else invariants)), None)
    if isinstance(configuration, CollectorConfiguration):
        names = tuple(COLLECTOR_INVARIANTS if invariants is None else invariants)
        return Setting(CollectorWorld(configuration, switches), CollectorWatch(names), None)
    if isinstance(configuration, DirectoryConfiguration):
        names = tuple(DIRECTORY_INVARIANTS if invariants is None else invariants)
        return Setting(DirectoryWorld(configuration, switches), DirectoryWatch(names), None)
    if isinstance(configuration, StreamConfiguration):
        stream = StreamWorld(configuration, switches)
        names = tuple(STREAM_INVARIANTS if invariants is None else invariants)
        found = StreamWatch(stream, names)
        return Setting(stream, found, found.deadlock)
    if isinstance(configuration, BundleConfiguration):
        names = tuple((*NAMES, *BUNDLE_INVARIANTS) if invariants is None else invariants)
        bundles = BundleWorld(configuration, switches, names)
        watched = BundleWatch(bundles, names)
        return Setting(bundles, watched, watched.deadlock)
    world = LedgerWorld(configuration, switches)
    watch = InvariantWatch(world, NAMES if invariants is None else invariants)
    return Setting(world, watch, watch.deadlock)


def form_of(world: AnyWorld) -> Callable[[Any], Any] | None:
    """What names the representative of a state of a world, where states that differ by names only are explored once."""
    if isinstance(world, LedgerWorld):
        return Symmetry(world)
    if isinstance(world, BundleWorld):
        return BundleForm(world)
    return CollectorForm(world) if isinstance(world, CollectorWorld) else None


def header_of(configuration: AnyConfiguration, mutant: str) -> tuple[str, ...]:
    """What stands above a transcript."""
    return (configuration.name, *((f"mutant {mutant}: {MUTANTS[mutant].what}",) if mutant else ()))


def check(
    configuration: AnyConfiguration,
    switches: Switches = SHIPPED,
    *,
    invariants: Iterable[str] | None = None,
    mutant: str = "",
    by_names: bool = False,
    begin: Sequence[str] = (),
    **limits: Any,
) -> Check:
    """Explore one world.

    Args:
        invariants: which are looked at, all by default.
        by_names: states that differ by bookies' names only are explored each (for rules that tell slots apart).
        mutant: its name, for the transcript's header.
        begin: the commands that lead to where the search begins.
        limits: as of `explore`: progress, states_max, seconds_max, count_kinds.
    """
    with switches.applied():
        setting = setting_of(configuration, switches, invariants)
        world = setting.world
        result = explore(
            world,
            setting.violation_in,
            setting.deadlock_in,
            canonical=None if by_names else form_of(world),
            begin=led(world, begin),
            **limits,
        )
    return Check(world, result, header_of(configuration, mutant))


def check_mutant(name: str, *, only_named: bool = True, **limits: Any) -> Check:
    """Explore a mutant where it shows.

    Args:
        only_named: look at the invariant of its row only, so that the shortest way to that one is found.
    """
    mutant = MUTANTS[name]
    names = (mutant.violated,) if only_named else None
    return check(
        mutant.configuration,
        mutant.switches,
        invariants=names,
        mutant=name,
        by_names=mutant.names_slots,
        begin=mutant.begin,
        **limits,
    )


def replay_mutant(name: str, text: str, configuration: AnyConfiguration | None = None) -> Check:
    """Take the steps of a transcript in a mutant's world; its last state breaks the invariant or it does not.

    Args:
        name: the mutant's.
        text: the transcript.
        configuration: where; by default where the mutant shows.

    Raises:
        CannotReplayError: a step is not possible there.
    """
    mutant = MUTANTS[name]
    configuration = configuration or mutant.configuration
    with mutant.switches.applied():
        setting = setting_of(configuration, mutant.switches, (mutant.violated,))
        path = replayed(setting.world, exchanges(text))
        last = path[-1][1]
        violation = setting.violation_in(last)
        if violation is None and setting.deadlock_in is not None and not setting.world.successors(last):
            violation = setting.deadlock_in(last)
    result = Result(states=len(path), transitions=len(path) - 1, depth=len(path) - 1)
    result.path, result.violation = path, violation
    return Check(setting.world, result, header_of(configuration, name))
