"""`quire simulate`: whole programs in a simulated world, one seed to read or many to be judged."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quire.cli.options import JsonOption
from quire.cli.output import Output
from quire.core.errors import MisuseError

if TYPE_CHECKING:
    from quire.sim.campaign import Tally


def simulate(
    seed: Annotated[int, typer.Option("--seed", min=0, help="The run, or the first of many.")] = 0,
    schedules: Annotated[int, typer.Option("--schedules", min=1, help="How many seeds, from --seed on.")] = 1,
    mix: Annotated[
        list[str] | None,
        typer.Option("--mix", metavar="NAME", help="This mix of workload and faults only; may be repeated."),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Processes side by side.")] = 1,
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=0.1, help="Begin nothing new after so long.")
    ] = None,
    mutant: Annotated[
        str,
        typer.Option(
            "--mutant", metavar="NAME", help="Take one fix out of the programs, and stop when it shows."
        ),
    ] = "",
    list_mixes: Annotated[bool, typer.Option("--list-mixes", help="Say which mixes there are.")] = False,
    save: Annotated[
        Path | None,
        typer.Option(
            "--save", metavar="FILE", help="Write a failing run's history here, for `verify-history`."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run the real client, log, bookie, journal and metadata programs in a simulated world and judge what clients were told.

    One seed: a transcript of the run, which is the same in every replay. Several: how many runs, how fast, what was seen,
    and the first failing seed with as few of its faults as it takes.

    Exit code 0: nothing broken. 1: an invariant broke.
    """
    from quire.sim.campaign import campaign
    from quire.sim.mixes import MIXES
    from quire.sim.mutants import parts_of

    out = Output(as_json=as_json)
    if list_mixes:
        out.rows("", ("name", "what"), [{"name": one.name, "what": one.what} for one in MIXES.values()])
        return
    names = tuple(mix or MIXES)
    for name in names:
        if name not in MIXES:
            msg = f"there is no mix {name!r}; there are {', '.join(MIXES)}"
            raise MisuseError(msg)
    parts_of(mutant)  # refuses what is none
    if schedules == 1:
        _one(out, seed, names[seed % len(names)], mutant, save)
        return
    tally = campaign(
        seed,
        schedules,
        mixes=names,
        jobs=jobs,
        mutant=mutant,
        seconds=seconds,
        stop=bool(mutant),
        progress=_reporter(schedules),
    )
    _show(out, tally, mutant, save)


def _one(out: Output, seed: int, mix: str, mutant: str, save: Path | None) -> None:
    from quire.sim.campaign import transcript
    from quire.sim.mutants import parts_of
    from quire.sim.run import simulate as run

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
    out.result(facts, f"{transcript(outcome)}\ndigest {outcome.digest}")
    if save is not None:
        _save(out, outcome.history, save)
    if outcome.violations:
        raise typer.Exit(1)


def _show(out: Output, tally: Tally, mutant: str, save: Path | None) -> None:
    from quire.sim.campaign import shrink, transcript

    rate = tally.schedules / tally.seconds if tally.seconds else 0.0
    facts: dict[str, Any] = {
        "schedules": tally.schedules,
        "mixes": dict(tally.runs),
        "events": tally.events,
        "virtual_seconds": tally.virtual_ns // 1_000_000_000,
        "seconds": round(tally.seconds, 2),
        "rate": round(rate, 1),
        "seen": dict(sorted(tally.seen.items())),
        "failures": [asdict(failure) for failure in tally.failures],
    }
    summary = (
        f"{tally.schedules:,} schedules, {tally.events:,} events, {tally.virtual_ns // 1_000_000_000:,} s of virtual time "
        f"in {tally.seconds:.1f} s: {rate:.0f} schedules/s, {len(tally.failures)} failed"
    )
    lines = [summary]
    lines += [f"{count:>9,}  {what}" for what, count in sorted(tally.seen.items())]
    if tally.failures:
        smallest = shrink(tally.failures[0], mutant)
        facts["transcript"] = transcript(smallest)
        failed = tally.failures[0]
        lines += [
            "",
            facts["transcript"],
            "",
            f"again: quire simulate --seed {failed.seed} --mix {failed.mix}",
        ]
        if save is not None:
            _save(out, smallest.history, save)
    out.result(facts, "\n".join(lines))
    if tally.failures:
        raise typer.Exit(1)


def _save(out: Output, events: list[Any], path: Path) -> None:
    from quire.history.recorder import event_line, header_line

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
        rate = tally.schedules / tally.seconds if tally.seconds else 0.0
        text = f"{tally.schedules:,} of {schedules:,} schedules, {rate:.0f}/s, {len(tally.failures)} failed"
        sys.stderr.write(f"\r\033[K{text}" if terminal else f"{text}\n")
        sys.stderr.flush()

    return report
