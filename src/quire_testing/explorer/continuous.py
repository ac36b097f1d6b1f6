"""The configurations that every change is explored in, completely, on as many cores as there are.

Source: docs/testing-figures.md, "What the explorer has seen".
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Final

from quire_testing.explorer.bundle_parts import BundleConfiguration
from quire_testing.explorer.calibration import ClassicWorld
from quire_testing.explorer.check import check
from quire_testing.explorer.collector_parts import CollectorConfiguration
from quire_testing.explorer.configuration import Configuration
from quire_testing.explorer.directory_world import DirectoryConfiguration
from quire_testing.explorer.explorer import explore
from quire_testing.explorer.ledger_mutants import LATE_WRITER
from quire_testing.explorer.log_parts import LogConfiguration
from quire_testing.explorer.mutants import AnyConfiguration
from quire_testing.explorer.stream_parts import StreamConfiguration

CONTINUOUS: Final[tuple[AnyConfiguration, ...]] = (
    CollectorConfiguration(ours=True, lives=2, passes=4, backups=2, restores=2, crashes=1),
    CollectorConfiguration(lives=2, passes=4, backups=2, restores=2, crashes=1),
    CollectorConfiguration(passes=4, backups=2, restores=2, lost=1),
    Configuration(3, 3, 3, 2, crashes=1, journal=False),
    LATE_WRITER,
    Configuration(3, 2, 2, 1, recoverers=2, reruns=1, timeouts=1),
    Configuration(3, 2, 2, 1, entries=2, timeouts=1),
    Configuration(4, 3, 3, 2, timeouts=1),
    Configuration(3, 3, 3, 2, timeouts=1, away=1),
    Configuration(4, 4, 3, 2),
    Configuration(3, 2, 2, 2, timeouts=1, lost_swaps=1, closes=True),
    Configuration(2, 2, 2, 2, recoverers=2, closes=True),
    Configuration(3, 3, 3, 2, timeouts=1, absent=True),
    Configuration(3, 3, 3, 2, crashes=1),
    Configuration(4, 3, 3, 2, away=1),
    Configuration(3, 3, 2, 1, entries=2),
    Configuration(3, 2, 2, 2, timeouts=1, lost_swaps=1, absent=True),
    Configuration(3, 3, 3, 3, timeouts=1, waits=True),
    Configuration(3, 2, 2, 2, timeouts=1, lost_swaps=1, absent=True, waits=True),
    DirectoryConfiguration(),
    Configuration(3, 3, 2, 2, entries=2),
    LogConfiguration(2, 3, 1, lost_swaps=1),
    Configuration(2, 2, 2, 2, crashes=1, breaks=1),
    LogConfiguration(2, 4, 1),
    LogConfiguration(2, 3, 2),
    Configuration(3, 3, 3, 2, damages=1),
    Configuration(2, 2, 2, 1, entries=2, timeouts=1, absent=True, drops=True),
    Configuration(3, 2, 2, 2, breaks=1, timeouts=1),
    Configuration(3, 2, 2, 2, entries=2, timeouts=1),
    LogConfiguration(2, 4, 2),
    Configuration(2, 2, 2, 1, recoverers=2, readers=1),
    Configuration(2, 2, 2, 2, entries=2, run=2, explicit_lac=True, readers=1),
    Configuration(2, 2, 2, 2, entries=2, closes=True, readers=1),
    LogConfiguration(2, 3, 1, trims=1),
    LogConfiguration(2, 3, 0, closes=True, stages=1),
    LogConfiguration(2, 3, 1, closes=True),
    Configuration(3, 2, 2, 2, timeouts=1, readers=1),
    Configuration(2, 2, 2, 2, explicit_lac=True, readers=2),
    Configuration(2, 2, 2, 2, crashes=1, journal=False, readers=1),
    Configuration(2, 2, 2, 2, crashes=1, journal=False, readers=1, named=True, clears=1),
    Configuration(2, 2, 2, 2, crashes=2, journal=False),
    Configuration(3, 3, 3, 2, run=2),
    Configuration(3, 3, 2, 2, run=2),
    CollectorConfiguration(lives=2, hands=1, backups=2, restores=2),
    CollectorConfiguration(passes=4, backups=2, restores=2, hands=1, accepts=1),
    CollectorConfiguration(ours=True, lives=2, passes=4, hands=1, expires=True),
    CollectorConfiguration(mixed=True, lives=2, passes=4, hands=1, expires=True),
    CollectorConfiguration(ours=True, mixed=True, lives=2, passes=4, restores=2, crashes=1),
    CollectorConfiguration(lives=2, passes=4, restores=2, crashes=1, full=1),
    Configuration(2, 2, 2, 2, entries=2, window=2, timeouts=1, reruns=1),
    Configuration(2, 2, 2, 2, timeouts=1, crashes=1, waits=True),
    Configuration(2, 2, 2, 2, timeouts=1, lost_swaps=1, closes=True, waits=True),
    Configuration(3, 3, 2, 2, timeouts=1, waits=True),
    Configuration(2, 2, 2, 2, timeouts=2, waits=True),
    Configuration(3, 3, 3, 2, entries=2, timeouts=3, recoverers=0, closes=True, drops=True, waits=True),
    Configuration(3, 2, 2, 1, timeouts=1, away=1),
    Configuration(2, 2, 2, 1, entries=2, timeouts=1, away=1),
    Configuration(2, 2, 2, 2, lost_swaps=2, closes=True, reruns=1),
    Configuration(3, 2, 2, 2, entries=2, repairers=1, changed=True, gone=True),
    Configuration(4, 3, 3, 2, timeouts=1, recoverers=0, losses=1, repairers=2, closed=True),
    Configuration(4, 3, 3, 2, entries=2, timeouts=1, recoverers=0, losses=1, repairers=1, closed=True),
    Configuration(3, 2, 2, 1, entries=2, timeouts=1, guarantee=True),
    Configuration(3, 3, 3, 2, timeouts=1, absent=True, guarantee=True),
    Configuration(3, 3, 2, 1, entries=2, guarantee=True),
    Configuration(3, 3, 3, 2, guarantee=True, transit_damages=1),
    Configuration(2, 2, 2, 1, timeouts=1, lost_swaps=1, closes=True, waits=True, guarantee=True),
    Configuration(2, 2, 2, 1, entries=2, lost_swaps=1, closes=True, guarantee=True),
    Configuration(2, 2, 2, 1, recoverers=2, guarantee=True),
    Configuration(2, 2, 2, 1, timeouts=1, reruns=1, guarantee=True),
    StreamConfiguration(2, 2, 2, 1, entries=3),
    StreamConfiguration(clients=2, take_overs=2),
    StreamConfiguration(readers=2, explicit_lac=True),
    StreamConfiguration(3, 3, 3, 2),
    StreamConfiguration(2, 2, 2, 1, entries=3, fencing=True),
    StreamConfiguration(clients=2, take_overs=2, fencing=True),
    Configuration(2, 2, 2, 2, timeouts=1, waits=True),
    Configuration(3, 3, 3, 2, timeouts=3, recoverers=0, waits=True),
    Configuration(2, 2, 2, 2, timeouts=2, recoverers=0, explicit_lac=True, readers=1, waits=True),
    Configuration(2, 2, 2, 2, deletions=1, crashes=1),
    Configuration(3, 3, 3, 2, away=1),
    Configuration(3, 3, 3, 2),
    Configuration(2, 2, 2, 2, crashes=2),
    Configuration(2, 2, 2, 2, crashes=1, closes=True),
    Configuration(2, 2, 2, 2, timeouts=1, closes=True, explicit_lac=True),
    Configuration(2, 2, 2, 2, crashes=1, journal=False, reruns=1),
    Configuration(2, 2, 2, 2, crashes=1, journal=False, clears=1),
    Configuration(2, 2, 2, 2, crashes=1, journal=False, named=True, clears=1),
    Configuration(2, 2, 2, 2, recoverers=0, crashes=2, journal=False, closes=True, named=True, clears=1),
    Configuration(2, 2, 2, 2, breaks=1),
    Configuration(2, 2, 2, 1, timeouts=1, reruns=1),
    Configuration(3, 3, 2, 1, away=1),
    Configuration(3, 2, 2, 1, away=1),
    Configuration(2, 2, 2, 2, crashes=1),
    LogConfiguration(1, 4, 2, lost_swaps=1),
    LogConfiguration(1, 3, 2, lost_swaps=1, trims=1),
    LogConfiguration(1, 3, 1, lost_swaps=1, closes=True, stages=1),
    CollectorConfiguration(lives=2, passes=4, crashes=1),
    CollectorConfiguration(ours=True, lives=2, passes=4, reuses=True),
    CollectorConfiguration(lives=2, passes=4, full=1),
    CollectorConfiguration(hands=1, accepts=1, lost=1, backups=2, restores=2),
    Configuration(3, 2, 2, 1, timeouts=1, breaks=1, explicit_lac=True, recoverers=0, readers=1),
    Configuration(4, 3, 3, 2, entries=2, recoverers=0, losses=1, repairers=1, closed=True),
    Configuration(4, 3, 3, 2, recoverers=0, losses=1, repairers=2, closed=True),
    Configuration(3, 2, 2, 2, entries=2, recoverers=0, losses=1, repairers=1, changed=True),
    Configuration(3, 2, 2, 2, damages=1, recoverers=0, losses=1, repairers=2, closed=True),
    Configuration(4, 3, 3, 2, crashes=1, recoverers=0, losses=1, repairers=1, closed=True),
    Configuration(3, 2, 2, 2, lost_swaps=1, recoverers=0, losses=1, repairers=2, closed=True),
    Configuration(3, 2, 2, 2, deletions=1, recoverers=0, losses=1, repairers=2, closed=True),
    Configuration(3, 3, 3, 2, crashes=1, journal=False, recoverers=0, repairers=1, closed=True),
    Configuration(2, 2, 2, 1, entries=2, guarantee=True),
    Configuration(
        4, 3, 3, 2, entries=2, recoverers=0, timeouts=1, closes=True, drops=True, waits=True, guarantee=True
    ),
    Configuration(
        3, 2, 2, 1, entries=2, recoverers=0, losses=1, waits=True, guarantee=True, transit_damages=1
    ),
    Configuration(3, 2, 2, 2, recoverers=0, losses=1, returns=1, repairers=1, closed=True, collects=True),
    StreamConfiguration(3, timeouts=1, fencing=True),
    StreamConfiguration(3, 2, 2, 1, timeouts=1, fencing=True),
    StreamConfiguration(losses=1, fencing=True),
    StreamConfiguration(2, 2, 2, 1, entries=2, window=2, fencing=True),
    StreamConfiguration(2, 2, 2, 1, breaks=1, fencing=True),
    StreamConfiguration(readers=1, explicit_lac=True, fencing=True),
    StreamConfiguration(timeouts=1, fencing=True),
    StreamConfiguration(lost_swaps=1, fencing=True),
    StreamConfiguration(lost_swaps=1),
    StreamConfiguration(2, 2, 2, 1),
    StreamConfiguration(),
    StreamConfiguration(3, entries=0, repairers=1, changed=True),
    StreamConfiguration(3, entries=0, take_overs=0, lost_swaps=1, repairers=1, changed=True, fencing=True),
    BundleConfiguration(2, 2, 2, 2, "XY-XY", failures=1, waits=True),
    BundleConfiguration(4, 3, 3, 2, "XY-XY", timeouts=1),
    BundleConfiguration(3, 3, 3, 2, recoverers=1),
    BundleConfiguration(3, 2, 2, 2, recoverers=1, timeouts=1),
    BundleConfiguration(4, 3, 3, 2, timeouts=1, failures=1),
    BundleConfiguration(2, 2, 2, 1, "XY-X", recoverers=1),
    BundleConfiguration(3, 2, 2, 2, "XY-XY", timeouts=1, drops=True),
    BundleConfiguration(2, 2, 2, 2, recoverers=1, crashes=1),
    BundleConfiguration(3, 3, 3, 2, "XY-XY", transit_damages=1),
    BundleConfiguration(3, 3, 3, 2, "XY-XY", fences=1),
    BundleConfiguration(3, 2, 2, 2, "XY-XY", timeouts=1),
    BundleConfiguration(4, 3, 3, 2, timeouts=1, lost_swaps=1, fences=1),
    BundleConfiguration(3, 2, 2, 1, "XY-XY", timeouts=1),
    BundleConfiguration(2, 2, 2, 2, recoverers=1),
    BundleConfiguration(2, 2, 2, 2, "XY-XY", crashes=1),
    BundleConfiguration(2, 2, 2, 1, recoverers=1),
    BundleConfiguration(4, 3, 3, 2, leaves=1),
    BundleConfiguration(4, 3, 3, 2, timeouts=1, drops=True),
    BundleConfiguration(2, 2, 2, 2, "XYX", transit_damages=1, closes=True),
    BundleConfiguration(2, 2, 2, 1, "XYX", fences=1),
    Configuration(2, 2, 2, 2, readers=1),
    Configuration(2, 2, 2, 2),
)
"""Larger ones first, so that no core waits long for the other at the end. `make test` takes what is small."""

LONG: Final[tuple[AnyConfiguration, ...]] = (
    CollectorConfiguration(lives=2, passes=4, backups=2, restores=2, lost=1),
    LogConfiguration(2, 4, 3),
    BundleConfiguration(2, 2, 2, 1, "XY-XY", recoverers=1),
    BundleConfiguration(2, 2, 2, 2, "XY-XY", recoverers=1),
    BundleConfiguration(3, 2, 2, 2, "XY-XY", timeouts=1, leaves=1),
    Configuration(2, 2, 2, 2, entries=2, recoverers=2),
    Configuration(3, 3, 3, 2, entries=2),
    Configuration(2, 2, 2, 2, recoverers=2, explicit_lac=True, readers=1),
    Configuration(3, 3, 3, 2, entries=2, guarantee=True),
    Configuration(4, 3, 3, 2, timeouts=1, guarantee=True),
    StreamConfiguration(3, 3, 3, 2, breaks=1),
    StreamConfiguration(3, 3, 3, 2, losses=1),
    StreamConfiguration(3, 3, 3, 2, lost_swaps=1),
    StreamConfiguration(3, 3, 2, 2, entries=2),
    StreamConfiguration(3, 2, 2, 2, timeouts=1),
    StreamConfiguration(3, entries=0, losses=1, repairers=1, changed=True),
    StreamConfiguration(3, entries=0, take_overs=0, lost_swaps=1, repairers=2, changed=True),
    StreamConfiguration(3, 3, 3, 2, entries=2, window=2, fencing=True),
    StreamConfiguration(3, 3, 3, 2, entries=2, fencing=True),
    StreamConfiguration(3, 3, 3, 2, breaks=1, fencing=True),
    StreamConfiguration(3, 3, 3, 2, losses=1, fencing=True),
    StreamConfiguration(3, 3, 2, 2, entries=2, fencing=True),
    StreamConfiguration(3, 3, 3, 2, lost_swaps=1, fencing=True),
    StreamConfiguration(2, 2, 2, 1, entries=3, in_flight=3, window=3, fencing=True),
    StreamConfiguration(3, 3, 3, 2, fencing=True),
    StreamConfiguration(3, entries=0, repairers=1, changed=True, fencing=True),
)
"""Complete as well, a minute or two each: part of `make full`."""

BOUNDED: Final = (
    (Configuration(3, 3, 3, 2, entries=2, crashes=1, journal=False), 5_000_000),
    (Configuration(3, 2, 2, 2, entries=2, losses=1, repairers=1, changed=True), 5_000_000),
    (Configuration(4, 3, 3, 2, entries=2, recoverers=0, losses=1, repairers=2, closed=True), 5_000_000),
    (Configuration(4, 3, 3, 2, entries=2, timeouts=1, guarantee=True), 5_000_000),
    (Configuration(3, 3, 3, 2, entries=2, recoverers=2, timeouts=1, guarantee=True), 5_000_000),
    (StreamConfiguration(3, 3, 3, 2, clients=2, take_overs=2), 5_000_000),
    (StreamConfiguration(4, 3, 3, 2, timeouts=2), 5_000_000),
    (StreamConfiguration(4, 3, 3, 2, entries=2, timeouts=2, fencing=True), 5_000_000),
    (StreamConfiguration(entries=2, clients=2, take_overs=2, fencing=True), 5_000_000),
    (StreamConfiguration(3, 3, 3, 2, clients=2, take_overs=2, fencing=True), 5_000_000),
    (StreamConfiguration(4, 3, 3, 2, entries=3, in_flight=3, timeouts=2, fencing=True), 5_000_000),
    (StreamConfiguration(4, 4, 3, 2, entries=2, fencing=True), 5_000_000),
    (StreamConfiguration(2, 2, 2, 1, entries=2, window=2, clients=2, take_overs=2, fencing=True), 5_000_000),
    (StreamConfiguration(4, repairers=2, changed=True, fencing=True), 5_000_000),
    (BundleConfiguration(4, 3, 3, 2, recoverers=1, timeouts=1), 800_000),
)
"""(configuration, states): looked at so far, by fingerprints, not complete; part of `make full`."""

CALIBRATION: Final = "calibration: classic specification 2 bookies Qw 2 Qa 1"
CALIBRATION_COUNTS: Final = (285_773, 982_018, 27)
"""TLC: 285,773 distinct, 982,019 generated with the initial state, depth 28 with the initial state."""


@dataclass(frozen=True, slots=True)
class ConfigurationResult:
    """The result of one configuration."""

    name: str
    states: int
    transitions: int
    depth: int
    seconds: float
    cpu_seconds: float
    complete: bool
    violation: str
    transcript: str
    kinds: tuple[tuple[str, int], ...]

    @property
    def counts(self) -> tuple[int, int, int]:
        """What is pinned: distinct states, transitions, depth."""
        return self.states, self.transitions, self.depth


def line_of(configuration: AnyConfiguration | None) -> ConfigurationResult:
    """Explore one configuration; None is the calibration."""
    begun = time.process_time()
    if configuration is None:
        world = ClassicWorld()
        result, name, text = explore(world, world.violation), CALIBRATION, ""
    else:
        done = check(configuration, count_kinds=True)
        result, name = done.result, configuration.name
        text = done.text if result.violation else ""
    violation = f"{result.violation.invariant}: {result.violation.text}" if result.violation else ""
    return ConfigurationResult(
        name,
        result.states,
        result.transitions,
        result.depth,
        result.seconds,
        time.process_time() - begun,
        result.complete,
        violation,
        text,
        tuple(sorted(result.kinds.items())),
    )


def lines(
    configurations: tuple[AnyConfiguration | None, ...], workers: int = 2
) -> Iterator[ConfigurationResult]:
    """Explore configurations side by side, in processes of their own; each as soon as it is done."""
    with ProcessPoolExecutor(workers, max_tasks_per_child=1) as pool:
        for done in as_completed([pool.submit(line_of, each) for each in configurations]):
            yield done.result()
