"""Many runs on several cores, what they have seen, and what is left of a failing one when faults are dropped.

Source: checking reference 4; faults reference 4, R1.
"""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from quire.sim.faults import Kind
from quire.sim.loop import MS
from quire.sim.mixes import MIXES
from quire.sim.mutants import parts_of
from quire.sim.run import Outcome, settings_of, simulate

CHUNK = 25
COLLECT_EVERY = 25
"""Worlds are full of cycles; the collector looks at them between runs only."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A run that broke something."""

    seed: int
    mix: str
    violations: tuple[str, ...]


@dataclass(slots=True)
class Tally:
    """What many runs came to.

    Attributes:
        runs: of each mix.
        events: of all timelines.
        virtual_ns: all their time.
        seen: in how many runs each situation occurred.
        failures: the runs that broke something, by their seeds.
        seconds: wall time.
    """

    runs: Counter[str] = field(default_factory=Counter)
    events: int = 0
    virtual_ns: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def schedules(self) -> int:
        """How many runs."""
        return self.runs.total()

    def take(self, other: Tally) -> None:
        """Add another's."""
        self.runs.update(other.runs)
        self.seen.update(other.seen)
        self.events += other.events
        self.virtual_ns += other.virtual_ns
        self.failures += other.failures

    def add(self, outcome: Outcome) -> None:
        """Add a run."""
        self.runs[outcome.mix] += 1
        self.events += outcome.events
        self.virtual_ns += outcome.virtual_ns
        self.seen.update(dict.fromkeys(outcome.seen, 1))
        if outcome.violations:
            self.failures.append(Failure(outcome.seed, outcome.mix, tuple(outcome.violations)))


def some(mixes: Sequence[str], seeds: Sequence[int], mutant: str = "") -> Tally:
    """Run some seeds, the mixes in turn. In a process of its own, or here."""
    tally = Tally()
    parts = parts_of(mutant)
    for number, seed in enumerate(seeds):
        tally.add(simulate(seed, mixes[seed % len(mixes)], parts=parts))
        if number % COLLECT_EVERY == COLLECT_EVERY - 1:
            gc.collect()
        if mutant and tally.failures:
            break
    return tally


def campaign(
    first_seed: int,
    schedules: int,
    *,
    mixes: Sequence[str] = tuple(MIXES),
    jobs: int = 1,
    mutant: str = "",
    seconds: float | None = None,
    stop: bool = False,
    runs: Callable[[Sequence[str], Sequence[int], str], Tally] = some,
    progress: Callable[[Tally], None] = lambda _: None,
) -> Tally:
    """Run `schedules` seeds from `first_seed` on.

    Args:
        first_seed: the first; mix number `seed % len(mixes)` is a seed's.
        schedules: how many at most.
        mixes: which, in turn.
        jobs: processes side by side.
        mutant: a fix that is taken out.
        seconds: begin nothing new after so long.
        stop: begin nothing new after a failure.
        runs: what runs some seeds of some mixes: whole programs, or walks of the machines.
        progress: told now and then.
    """
    began = time.monotonic()
    tally = Tally()
    seeds = iter(range(first_seed, first_seed + schedules))
    chunks = iter(lambda: list(islice(seeds, CHUNK)), [])

    def goes_on() -> bool:
        tally.seconds = time.monotonic() - began
        return not (stop and tally.failures) and (seconds is None or tally.seconds < seconds)

    if jobs == 1:
        for chunk in chunks:
            if not goes_on():
                break
            tally.take(runs(mixes, chunk, mutant))
            progress(tally)
    else:
        for part in _side_by_side(jobs, chunks, goes_on, partial(runs, mixes), mutant):
            tally.take(part)
            goes_on()
            progress(tally)
    tally.seconds = time.monotonic() - began
    tally.failures.sort(key=lambda failure: failure.seed)
    return tally


def _side_by_side(
    jobs: int,
    chunks: Iterator[list[int]],
    goes_on: Callable[[], bool],
    runs: Callable[[Sequence[int], str], Tally],
    mutant: str,
) -> Iterator[Tally]:
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("fork")) as pool:
        waiting: set[Future[Tally]] = set()
        while True:
            while len(waiting) < 2 * jobs and goes_on() and (chunk := next(chunks, None)):
                waiting.add(pool.submit(runs, chunk, mutant))
            if not waiting:
                return
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                yield future.result()


def shrink(failure: Failure, mutant: str = "") -> Outcome:
    """The failing run with as few faults as it takes: each is dropped if something still breaks without it."""
    parts = parts_of(mutant)
    count = len(settings_of(failure.seed, MIXES[failure.mix]).faults)
    dropped: frozenset[int] = frozenset()
    outcome = simulate(failure.seed, failure.mix, parts=parts)
    for number in reversed(range(count)):
        without = simulate(failure.seed, failure.mix, parts=parts, dropped=dropped | {number})
        if without.violations:
            dropped, outcome = dropped | {number}, without
    outcome.dropped = dropped
    return outcome


def transcript(outcome: Outcome) -> str:
    """A run for a reader: its world, its faults, what happened, what is wrong."""
    settings = outcome.settings
    bookies, size, write_quorum, ack_quorum = settings.shape
    shape = f"{bookies} bookies, E={size} Qw={write_quorum} Qa={ack_quorum}"
    lines = [
        f"# seed {outcome.seed}, mix {outcome.mix}: {MIXES[outcome.mix].what}",
        f"# {shape}, {settings.entries} entries, {settings.burst} in flight, digest {settings.digest}",
    ]
    swarm: dict[str, object] = {
        "slow disks": settings.slow_disks,
        "impatient": settings.impatience,
        "slow processes (ns a turn)": settings.turn_ns,
        "slow links": {f"{one} -> {other}": level for (one, other), level in settings.link_levels.items()},
    }
    lines += [f"# {what}: {value}" for what, value in swarm.items() if value]
    for number, fault in enumerate(outcome.faults):
        lines.append(f"# fault {number}{' (dropped)' if number in outcome.dropped else ''}: {fault}")
    lines.append("")
    lines += [f"{at / MS - 1000:12.3f} ms  {who:10} {what}" for at, who, what in outcome.lines]
    lines.append("")
    lines += [f"VIOLATED   {violation}" for violation in outcome.violations] or ["nothing violated"]
    return "\n".join(lines)


SOMETIMES = (
    "a bookie starts again",
    "a disk failed",
    "a leader rolls",
    "a leader serves",
    "a recoverer closes",
    "a truncation",
    "a writer closes",
    "an answer of the metadata store is lost after the change",
    "an ensemble change appends a fragment",
    "an ensemble change replaces a fragment",
    "close: ledger_fenced",
    "error: ledger_fenced",
    "error: quorum_lost",
    "leader: not_leader",
    "recovery finds it closed",
    "recovery writes entries back",
    "recovery: recovery_inconclusive",
    *(f"fault: {kind}" for kind in Kind),
)
"""What the fixed seeds must have seen at least once: otherwise they prove less than they seem to."""
