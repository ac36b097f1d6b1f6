"""Many runs on several cores, what they have seen, and what is left of a failing one when faults are dropped.

Source: docs/simulation.md; docs/testing-figures.md, "The full rounds".
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path

from quire.core.errors import MisuseError
from quire_testing.explorer.mutants import OF_MACHINES
from quire_testing.sim.faults import FaultKind
from quire_testing.sim.loop import MS
from quire_testing.sim.mixes import MIXES
from quire_testing.sim.mutants import parts_of
from quire_testing.sim.run import RunOutcome, settings_of, simulate
from quire_testing.sim.watching import GOES_ON, WAITS

CHUNK = 25
KEPT_CHUNK = 500
"""Seeds of a range whose figures are kept: what a campaign that is cut loses, for each process."""
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
    """The result of many runs.

    Attributes:
        runs: of each mix.
        events: of all timelines.
        virtual_ns: all their time.
        seen: in how many runs each situation occurred.
        failures: the runs that broke something, by their seeds.
        seconds: wall time, of this process's campaign.
        cpu_seconds: of all runs, also of those that an earlier campaign kept.
    """

    runs: Counter[str] = field(default_factory=Counter)
    events: int = 0
    virtual_ns: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    seconds: float = 0.0
    cpu_seconds: float = 0.0

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
        self.cpu_seconds += other.cpu_seconds
        self.failures += other.failures

    def add(self, outcome: RunOutcome) -> None:
        """Add a run."""
        self.runs[outcome.mix] += 1
        self.events += outcome.events
        self.virtual_ns += outcome.virtual_ns
        self.seen.update(dict.fromkeys(outcome.seen, 1))
        if outcome.violations:
            self.failures.append(Failure(outcome.seed, outcome.mix, tuple(outcome.violations)))


class Notes:
    """The ranges of seeds that are finished, one JSON line each, below a line that says of which campaign.

    Raises:
        MisuseError: the file is of another campaign.
    """

    def __init__(self, path: Path, campaign: dict[str, object]) -> None:
        self._path = path
        self._parts: dict[range, Tally] = {}
        text = path.read_text() if path.exists() else ""
        whole = text.rpartition("\n")[0]  # a line that was cut is run again
        lines = whole.splitlines()
        if len(whole) + 1 < len(text):
            path.write_text(whole + "\n" if whole else "")
        if not lines:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(campaign) + "\n")
            return
        if json.loads(lines[0]) != campaign:
            msg = f"{path} is of another campaign: {lines[0]}"
            raise MisuseError(msg)
        for line in lines[1:]:
            first, after, part = json.loads(line)
            part["failures"] = [Failure(seed, mix, tuple(found)) for seed, mix, found in part["failures"]]
            self._parts[range(first, after)] = Tally(
                Counter(part.pop("runs")), seen=Counter(part.pop("seen")), **part
            )

    def __contains__(self, seeds: range) -> bool:
        return seeds in self._parts

    def finished(self, chunks: Iterable[range]) -> Tally:
        """The result of the finished ones among these ranges."""
        tally = Tally()
        for chunk in chunks:
            if chunk in self._parts:
                tally.take(self._parts[chunk])
        return tally

    def note(self, seeds: range, part: Tally) -> None:
        """A range is finished."""
        failures = [(each.seed, each.mix, each.violations) for each in part.failures]
        facts = {each.name: getattr(part, each.name) for each in fields(part)} | {"failures": failures}
        with self._path.open("a") as file:
            file.write(json.dumps([seeds.start, seeds.stop, facts]) + "\n")


def some(mixes: Sequence[str], seeds: Sequence[int], mutant: str = "") -> Tally:
    """Run some seeds, the mixes in turn. In a process of its own, or here."""
    tally = Tally()
    began = time.process_time()
    parts = parts_of(mutant)
    for number, seed in enumerate(seeds):
        tally.add(simulate(seed, mixes[seed % len(mixes)], parts=parts))
        if number % COLLECT_EVERY == COLLECT_EVERY - 1:
            gc.collect()
        if mutant and tally.failures:
            break
    tally.cpu_seconds = time.process_time() - began
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
    keep: Path | None = None,
) -> Tally:
    """Run `schedules` seeds from `first_seed` on.

    Args:
        first_seed: the first; mix number `seed % len(mixes)` is a seed's.
        schedules: how many at most.
        mixes: which, in turn.
        jobs: processes at the same time.
        mutant: a fix that is taken out.
        seconds: begin nothing new after this time.
        stop: begin nothing new after a failure.
        runs: what runs some seeds of some mixes: whole programs, or walks of the machines.
        progress: called now and then.
        keep: a file in which each finished range of seeds is noted; what it has of an earlier campaign is not run
            again.

    Raises:
        MisuseError: that file is of another campaign.
    """
    began = time.monotonic()
    size = CHUNK if keep is None else KEPT_CHUNK
    starts = range(first_seed, first_seed + schedules, size)

    def chunks() -> Iterator[range]:  # of a campaign that only time ends there are millions
        return (range(first, min(first + size, starts.stop)) for first in starts)

    notes = Notes(keep, {"mixes": [*mixes], "mutant": mutant, "runs": runs.__name__}) if keep else None
    tally = notes.finished(chunks()) if notes else Tally()
    left = (chunk for chunk in chunks() if notes is None or chunk not in notes)

    def goes_on() -> bool:
        tally.seconds = time.monotonic() - began
        return not (stop and tally.failures) and (seconds is None or tally.seconds < seconds)

    done = (
        _one_by_one(left, goes_on, partial(runs, mixes), mutant)
        if jobs == 1
        else _side_by_side(jobs, left, goes_on, partial(runs, mixes), mutant)
    )
    for chunk, part in done:
        if notes is not None:
            notes.note(chunk, part)
        tally.take(part)
        goes_on()
        progress(tally)
    tally.seconds = time.monotonic() - began
    tally.failures.sort(key=lambda failure: failure.seed)
    return tally


def _one_by_one(
    chunks: Iterator[range],
    goes_on: Callable[[], bool],
    runs: Callable[[Sequence[int], str], Tally],
    mutant: str,
) -> Iterator[tuple[range, Tally]]:
    while goes_on() and (chunk := next(chunks, None)):
        yield chunk, runs(chunk, mutant)


def _side_by_side(
    jobs: int,
    chunks: Iterator[range],
    goes_on: Callable[[], bool],
    runs: Callable[[Sequence[int], str], Tally],
    mutant: str,
) -> Iterator[tuple[range, Tally]]:
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("fork")) as pool:
        waiting: dict[Future[Tally], range] = {}
        while True:
            while len(waiting) < 2 * jobs and goes_on() and (chunk := next(chunks, None)):
                waiting[pool.submit(runs, chunk, mutant)] = chunk
            if not waiting:
                return
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                yield waiting.pop(future), future.result()


def shrink(failure: Failure, mutant: str = "") -> RunOutcome:
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


def transcript(outcome: RunOutcome, mutant: str = "") -> str:
    """A run for a reader: its world, its faults, what happened, what is wrong. Saved, it can be judged again."""
    settings = outcome.settings
    bookies, size, write_quorum, ack_quorum = settings.shape
    shape = f"{bookies} bookies, E={size} Qw={write_quorum} Qa={ack_quorum}"
    lines = [
        f"# seed {outcome.seed}, mix {outcome.mix}: {MIXES[outcome.mix].what}",
        f"# {shape}, {settings.entries} entries, {settings.burst} in flight, digest {settings.digest}",
    ]
    if mutant:
        lines.append(f"# mutant {mutant}: {OF_MACHINES[mutant].what}")
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
    "a repair fills holes",
    "a repair replaces a bookie",
    "a truncation",
    "a writer closes",
    GOES_ON,
    WAITS,
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
    *(f"fault: {kind}" for kind in FaultKind),
)
"""What the fixed seeds must have seen at least once: otherwise they prove less than they seem to."""
