"""`quire simulate`: programs in a simulated world, or walks of their machines; one seed to read or many to be judged."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire.cli.console.options import JsonOption, option
from quire.cli.console.output import Output
from quire.core.errors import MisuseError

if TYPE_CHECKING:
    from quire_testing.sim.campaign import Failure, Tally


class Level(StrEnum):
    """What is run."""

    PROGRAMS = "programs"
    MACHINES = "machines"


def simulate(
    seed: Annotated[int, option("--seed", "The run, or the first of many.", min=0)] = 0,
    schedules: Annotated[int, option("--schedules", "How many seeds, from --seed on.", min=1)] = 1,
    mix: Annotated[
        list[str] | None, option("--mix NAME", "This mix of workload and faults only; may be repeated.")
    ] = None,
    jobs: Annotated[int, option("--jobs", "Processes at the same time.", min=1)] = 1,
    seconds: Annotated[
        float | None, option("--seconds", "Begin nothing new after this time.", min=0.1)
    ] = None,
    mutant: Annotated[
        str, option("--mutant NAME", "Take one fix out of the programs, and stop when it shows.")
    ] = "",
    level: Annotated[
        Level, option("--level", "Whole programs, or random walks of their machines: cheaper by far.")
    ] = Level.PROGRAMS,
    list_mixes: Annotated[bool, option("--list-mixes", "Say which mixes there are.")] = False,
    save: Annotated[
        Path | None, option("--save FILE", "Write a failing run's history here, for `verify-history`.")
    ] = None,
    keep: Annotated[
        Path | None,
        option(
            "--keep FILE", "Note each finished range of seeds here; a run that was cut continues behind them."
        ),
    ] = None,
    file: Annotated[
        Path | None,
        option(
            "--transcript FILE",
            "Write a failing run's transcript here; under tests/golden/saved it is a regression test.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run the real client, log, bookie, journal and metadata programs in a simulated world and judge their histories.

    One seed: a transcript of the run, which is the same in every replay. Several: how many runs, how fast, what was seen,
    and the first failing seed with as few of its faults as it takes.

    Exit code 0: nothing broken. 1: an invariant broke.
    """
    from quire_testing.sim.campaign import campaign, some
    from quire_testing.sim.mixes import MIXES
    from quire_testing.sim.mutants import parts_of
    from quire_testing.sim.walk_campaign import some_walks, switches_of
    from quire_testing.sim.walk_mixes import WALK_MIXES

    out = Output(as_json=as_json)
    machines = level is Level.MACHINES
    known = {one.name: one.what for one in (WALK_MIXES if machines else MIXES).values()}
    if list_mixes:
        out.rows(("name", "what"), [{"name": name, "what": what} for name, what in known.items()])
        return
    names = tuple(mix or known)
    for name in names:
        if name not in known:
            msg = f"there is no mix {name!r}; there are {', '.join(known)}"
            raise MisuseError(msg)
    (switches_of if machines else parts_of)(mutant)  # refuses what is none
    if machines and save is not None:
        msg = "a walk has no history to save; its transcript is what is printed"
        raise MisuseError(msg)
    if schedules == 1:
        one = names[seed % len(names)]
        if machines:
            _one_walk(out, seed, one, mutant, file)
        else:
            _one(out, seed, one, mutant, save, file)
        return
    tally = campaign(
        seed,
        schedules,
        mixes=names,
        jobs=jobs,
        mutant=mutant,
        seconds=seconds,
        stop=bool(mutant),
        runs=some_walks if machines else some,
        progress=_reporter(schedules),
        keep=keep,
    )
    _show(out, tally, mutant, save, file, level)


def _one_walk(out: Output, seed: int, mix: str, mutant: str, file: Path | None) -> None:
    from quire_testing.sim.walk_campaign import switches_of, walk_text
    from quire_testing.sim.walks import walks_of

    walk = walks_of(mix, switches_of(mutant)).walk(seed)
    found = walk.violation
    facts = {
        "seed": seed,
        "mix": mix,
        "mutant": mutant or None,
        "violations": [f"{found.invariant}: {found.text}"] if found else [],
        "steps": walk.steps,
        "seen": list(walk.seen),
    }
    text = walk_text(walk, mutant)
    out.result(facts, text)
    if found is not None:
        _write(out, text, file)
        raise typer.Exit(1)


def _one(out: Output, seed: int, mix: str, mutant: str, save: Path | None, file: Path | None) -> None:
    from quire_testing.sim.campaign import transcript
    from quire_testing.sim.mutants import parts_of
    from quire_testing.sim.run import simulate as run

    outcome = run(seed, mix, parts=parts_of(mutant))
    facts = {
        "seed": seed,
        "mix": mix,
        "mutant": mutant or None,
        "violations": outcome.violations,
        "events": outcome.events,
        "virtual_ms": outcome.virtual_ns // 1_000_000,
        "digest": outcome.digest,
        "faults": [str(fault) for fault in outcome.faults],
        "seen": dict(sorted(outcome.seen.items())),
    }
    text = f"{transcript(outcome, mutant)}\ndigest {outcome.digest}\n"
    out.result(facts, text.rstrip())
    if save is not None:
        _save(out, outcome.history, save)
    if outcome.violations:
        _write(out, text, file)
        raise typer.Exit(1)


def _show(out: Output, tally: Tally, mutant: str, save: Path | None, file: Path | None, level: Level) -> None:
    rate = tally.schedules / tally.cpu_seconds if tally.cpu_seconds else 0.0
    facts: dict[str, Any] = {
        "level": level.value,
        "schedules": tally.schedules,
        "mixes": dict(tally.runs),
        "events": tally.events,
        "virtual_seconds": tally.virtual_ns // 1_000_000_000,
        "seconds": round(tally.seconds, 2),
        "cpu_seconds": round(tally.cpu_seconds, 2),
        "rate": round(rate, 1),
        "seen": dict(sorted(tally.seen.items())),
        "failures": [asdict(failure) for failure in tally.failures],
    }
    virtual = f", {tally.virtual_ns // 1_000_000_000:,} s of virtual time" if tally.virtual_ns else ""
    summary = (
        f"{tally.schedules:,} schedules, {tally.events:,} events{virtual} "
        f"in {tally.seconds:.1f} s: {rate:.0f} schedules a second of a core, {len(tally.failures)} failed"
    )
    lines = [summary]
    lines += [f"{count:>9,}  {what}" for what, count in sorted(tally.seen.items())]
    if tally.failures:
        failed = tally.failures[0]
        facts["transcript"], history = _smallest(failed, mutant, level)
        _write(out, facts["transcript"], file)
        again = f"again: quire simulate --seed {failed.seed} --mix {failed.mix}"
        again += f" --level {level.value}" if level is not Level.PROGRAMS else ""
        again += f" --mutant {mutant}" if mutant else ""
        lines += ["", facts["transcript"], "", again]
        if save is not None:
            _save(out, history, save)
    out.result(facts, *lines)
    if tally.failures:
        raise typer.Exit(1)


def _smallest(failed: Failure, mutant: str, level: Level) -> tuple[str, list[Any]]:
    """The transcript of a failing run without what it does not need, and its history."""
    from quire_testing.sim.campaign import shrink, transcript
    from quire_testing.sim.walk_campaign import shortest, switches_of, walk_text
    from quire_testing.sim.walks import walks_of

    if level is Level.MACHINES:
        walk = walks_of(failed.mix, switches_of(mutant)).walk(failed.seed)
        return walk_text(shortest(walk, mutant), mutant), []
    outcome = shrink(failed, mutant)
    return transcript(outcome, mutant) + "\n", outcome.history


def _write(out: Output, text: str, path: Path | None) -> None:
    if path is not None:
        path.write_text(text)
        out.note(f"transcript written to {path}")


def _save(out: Output, events: list[Any], path: Path) -> None:
    from quire_testing.history.recorder import event_line, header_line

    path.write_text(header_line("simulated") + "".join(map(event_line, events)))
    out.note(f"history written to {path}")


def _reporter(schedules: int) -> Any:
    """Say on stderr how far it is; on a terminal on one line."""
    terminal = sys.stderr.isatty()
    last = time.monotonic()

    def report(tally: Tally) -> None:
        nonlocal last
        if time.monotonic() - last < (0.2 if terminal else 5.0):
            return
        last = time.monotonic()
        rate = tally.schedules / tally.cpu_seconds if tally.cpu_seconds else 0.0
        text = f"{tally.schedules:,} of {schedules:,} schedules, {rate:.0f}/s of a core, {len(tally.failures)} failed"
        sys.stderr.write(f"\r\033[K{text}" if terminal else f"{text}\n")
        sys.stderr.flush()

    return report
