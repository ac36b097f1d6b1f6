"""`quire check`: explore the machines that ship in a small world, every interleaving, every fault of the budget."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from quire.cli.console.options import JsonOption, option
from quire.cli.console.output import Output, attributes
from quire.core.errors import MisuseError
from quire.env.typed_options import options_of, take_options

if TYPE_CHECKING:
    from quire_testing.explorer.check import Check
    from quire_testing.explorer.configuration import Configuration
    from quire_testing.explorer.explorer import Progress
    from quire_testing.explorer.mutants import AnyConfiguration

C = TypeVar("C")

MutantOption = Annotated[str, option("--mutant NAME", "Take one fix out: D1, X5, ... (see --list-mutants).")]


ModeOption = Annotated[
    str,
    option("--mode MODE", "With --stream: identifiers (terms name entries), or fencing (terms only fence)."),
]
TurnsOption = Annotated[
    str,
    option(
        "--turns TURNS",
        "With --bundles: what each loop turn appends: XY-X is a run of each ledger, then one of X alone.",
    ),
]

BUDGETS: Final[dict[str, tuple[int, int, str]]] = {
    "bookies": (2, 1, "Bookies; those beyond the ensemble are spares."),
    "ensemble": (2, 1, "E."),
    "write_quorum": (2, 1, "Qw."),
    "ack_quorum": (2, 1, "Qa."),
    "entries": (1, 0, "Appends of the writer; with --collector, of each life's."),
    "in_flight": (2, 1, "Appends that may be unconfirmed at a time."),
    "clients": (1, 1, "Clients that recover; with --log, handles; with --stream, those that did not create it."),
    "reruns": (0, 0, "Recoveries that begin again."),
    "window": (1, 1, "Entries of one round of recovery reads."),
    "timeouts": (0, 0, "Requests that time out and still arrive."),
    "crashes": (0, 0, "Bookies that crash and start again."),
    "breaks": (0, 0, "Connections that break."),
    "lost_swaps": (0, 0, "Swaps whose answer is lost; with --collector, answers."),
    "damages": (0, 0, "Entries that rot."),
    "deletions": (0, 0, "Deletions by the owner."),
    "losses": (0, 0, "Bookies that are lost for ever."),
    "journal": (True, 0, "Bookies keep a journal."),
    "closes": (False, 0, "The writer, or a log's leader, may close."),
    "explicit_lac": (False, 0, "The writer sends its LAC."),
    "absent": (False, 0, "A spare may stay unfound."),
    "drops": (False, 0, "What a dropped bookie has not got was not sent."),
    "readers": (0, 0, "Clients that read while the writer writes."),
    "run": (1, 1, "Entries of one append."),
    "away": (0, 0, "Bookies away when the ledger is created: it begins with absent slots."),
    "min_present": (0, 0, "With --away: bookies that must be there then; 0: Qa."),
    "named": (False, 0, "With --no-journal: what is lost names its ledger."),
    "clears": (0, 0, "With --no-journal: limbo that a client fills and ends."),
    "waits": (False, 0, "A writer below its ack quorum waits before it ends."),
    "repairers": (0, 0, "Clients that repair the ledger."),
    "closed": (False, 0, "The ledger begins closed, with Qa copies of each entry or more."),
    "changed": (False, 0, "The ledger begins with a decided fragment and one that is not."),
    "gone": (False, 0, "With --changed: the bookie that was replaced is lost for ever."),
    "guarantee": (False, 0, "The ledger guarantees its write quorum."),
    "transit_damages": (0, 0, "Adds that arrive damaged."),
    "returns": (0, 0, "With --losses: bookies that come back with what they held."),
    "collects": (False, 0, "Each bookie drops the copies that the record does not give it."),
    "accepts_loss": (False, 0, "The repairer accepts the loss of what only lost bookies have."),
    "log": (False, 0, "Explore a log of ledgers instead of one ledger."),
    "ledgers": (3, 1, "With --log: ledgers that can be created."),
    "trims": (0, 0, "With --log: truncations next to the handles."),
    "stages": (0, 0, "With --log: ledgers that a sink commits."),
    "stream": (False, 0, "Explore a stream that clients take over from each other."),
    "take_overs": (1, 0, "With --stream: take-overs that begin, of any of its clients."),
    "bundles": (False, 0, "Explore two ledgers whose runs travel in bundles; recoverers and faults are those of one."),
    "failures": (0, 0, "With --bundles: bookies that both writers give up in one turn."),
    "leaves": (0, 0, "With --bundles: bookies that leave, of which one writer takes note."),
    "fences": (0, 0, "With --bundles: bookies at which one ledger is fenced, and no more."),
    "directories": (False, 0, "Explore a bookie's directory, copies of it and the processes on them."),
    "collector": (False, 0, "Explore a bookie's collector and a metadata store that goes back."),
    "ours": (False, 0, "With --collector: ledgers of ours; without it Java's, without tokens."),
    "mixed": (False, 0, "With --collector: both kinds of clients delete."),
    "lives": (1, 1, "With --collector: how often the id is created."),
    "passes": (3, 1, "With --collector: passes of the collector."),
    "backups": (1, 0, "With --collector: copies of the store."),
    "restores": (1, 0, "With --collector: how often one is put back."),
    "hands": (0, 0, "With --collector: orphans deleted by hand."),
    "accepts": (0, 0, "With --collector: stores that are accepted."),
    "full": (0, 0, "With --collector: passes on a full disk."),
    "expires": (False, 0, "With --collector: the bookie forgets what it deleted."),
    "reuses": (False, 0, "With --collector: an id comes again while a lost ledger has it."),
}  # fmt: skip
"""For each size, fault and choice of a world its usual value, the least one, and its help."""
NAMES: Final = {"recoverers": "clients", "handles": "clients", "writes": "entries", "lost": "lost_swaps"}
"""Fields of configurations whose options are called otherwise."""


def with_budgets(command: Callable[..., None]) -> Callable[..., None]:
    """A command with an option for each budget; it is handed all of them as `budgets`."""

    def run(**options: Any) -> None:
        command({name: options.pop(name) for name in BUDGETS}, **options)

    budgets = {
        name: (Annotated[type(usual), _option(name)], usual) for name, (usual, _, _) in BUDGETS.items()
    }
    take_options(run, budgets | options_of(command)[0], command)
    return run


def _option(name: str) -> Any:
    usual, least, text = BUDGETS[name]
    flag = f"--{name.replace('_', '-')}"
    if isinstance(usual, bool):
        return option(f"{flag}/--no-{name}" if usual else flag, text)
    return option(flag, text, min=least)


def _made(kind: type[C], budgets: Mapping[str, int | str]) -> C:
    names = {field.name: NAMES.get(field.name, field.name) for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**{field: budgets[name] for field, name in names.items() if name in budgets})


@with_budgets
def check(
    budgets: dict[str, int],
    mode: ModeOption = "identifiers",
    turns: TurnsOption = "XY",
    mutant: MutantOption = "",
    list_mutants: Annotated[bool, option("--list-mutants", "Say which fixes can be taken out.")] = False,
    invariant: Annotated[
        list[str] | None, option("--invariant NAME", "Look at this one only; may be repeated.")
    ] = None,
    continuous: Annotated[bool, option("--continuous", "Every configuration of the continuous set.")] = False,
    workers: Annotated[int, option("--workers", "With --continuous: processes at the same time.", min=1)] = 2,
    seconds: Annotated[
        float | None, option("--seconds", "Stop, incomplete, after this time.", min=0.1)
    ] = None,
    states: Annotated[
        int | None, option("--states", "Stop, incomplete, after this many states.", min=1)
    ] = None,
    save: Annotated[
        Path | None, option("--save DIR", "Write a counterexample's transcript and diagram here.")
    ] = None,
    diagram: Annotated[
        Path | None, option("--diagram FILE", "Draw a counterexample: FILE.svg, or FILE.html.")
    ] = None,
    again: Annotated[
        Path | None, option("--replay FILE", "Judge a saved failure again, also one of `simulate`.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Explore the shipped state machines breadth first and show the shortest way to a broken invariant, if there is one.

    Exit code 0: every state visited, nothing broken. 1: an invariant broke, or the search stopped early.
    """
    from quire.core.ledger.terms import StreamMode, mode_of
    from quire_testing.explorer import check as explorer
    from quire_testing.explorer.bundle_parts import BundleConfiguration, turns_of
    from quire_testing.explorer.collector_parts import CollectorConfiguration
    from quire_testing.explorer.configuration import Configuration
    from quire_testing.explorer.directory_world import DirectoryConfiguration
    from quire_testing.explorer.log_parts import LogConfiguration
    from quire_testing.explorer.stream_parts import StreamConfiguration

    out = Output(as_json=as_json)
    if list_mutants:
        out.rows(("name", "what", "violated", "configuration"), _mutants())
        return
    if again is not None:
        _judge_again(out, again)
        return
    if continuous:
        _continuous(out, workers)
        return
    configuration: AnyConfiguration
    if budgets["directories"]:
        configuration = DirectoryConfiguration()
    elif budgets["bundles"]:
        configuration = _made(BundleConfiguration, budgets | {"turns": turns_of(turns)})
    elif budgets["collector"]:
        configuration = _made(CollectorConfiguration, budgets)
    elif budgets["log"]:
        configuration = _made(LogConfiguration, budgets)
    elif budgets["stream"]:
        fencing = mode_of(mode) is StreamMode.FENCING
        configuration = _made(StreamConfiguration, budgets | {"fencing": fencing})
    else:
        configuration = _made(Configuration, budgets)
        _refuse_away(configuration)
    _refuse_other_pictures(diagram)
    limits: dict[str, Any] = {"progress": _reporter(), "seconds_max": seconds, "states_max": states}
    if mutant:
        done = _explored_mutant(explorer, mutant, limits)
    else:
        _refuse_unknown(explorer.EVERY_INVARIANT, invariant or [])
        done = explorer.check(configuration, invariants=invariant or None, count_kinds=True, **limits)
    _show(out, done, save, diagram)


def _judge_again(out: Output, path: Path) -> None:
    """Do a saved failure again; exit code 1 where it still breaks something, or its mutant does not any more."""
    from quire_testing.replay.saved import judge_again

    try:
        text = path.read_text()
    except OSError as error:
        msg = f"cannot read {path}: {error}"
        raise MisuseError(msg) from error
    again = judge_again(text)
    facts = {**asdict(again), "as_it_should": again.is_as_it_should}
    what = f"mutant {again.mutant}" if again.mutant else "what ships"
    lines = [f"{what}, {again.steps} steps", *(f"not possible any more: {step}" for step in again.skipped)]
    lines += [f"VIOLATED   {violation}" for violation in again.violations] or ["nothing violated"]
    out.result(facts, *lines)
    if not again.is_as_it_should:
        raise typer.Exit(1)


def _refuse_other_pictures(diagram: Path | None) -> None:
    if diagram is not None and diagram.suffix not in {".svg", ".html"}:
        msg = f"--diagram draws .svg and .html, not {diagram.name!r}"
        raise MisuseError(msg)


def _refuse_away(configuration: Configuration) -> None:
    """Refuse more absent slots than there are, a minimum that is not Qa to E, and what is never created."""
    from quire.core.ledger.quorum import check_min_present
    from quire_testing.explorer.world import LedgerWorld

    c = configuration
    if c.away > c.ensemble:
        msg = f"--away {c.away}: a ledger of {c.ensemble} bookies (--ensemble) has no more that could be away"
        raise MisuseError(msg)
    if c.min_present:
        check_min_present(c.min_present, c.ensemble, c.ack_quorum)
    world = LedgerWorld(c)
    if c.away and not world.successors(world.initial()):
        msg = f"{c.name}: no ledger is created with so few bookies there, nothing is to be explored; lower --away"
        raise MisuseError(msg)


def _refuse_unknown(known: dict[str, str], names: list[str]) -> None:
    for name in names:
        if name not in known:
            msg = f"there is no invariant {name!r}; there are {', '.join(known)}"
            raise MisuseError(msg)


def _explored_mutant(explorer: Any, name: str, limits: dict[str, Any]) -> Check:
    from quire_testing.explorer.mutants import MUTANTS

    if name not in MUTANTS:
        msg = f"there is no mutant {name!r}; see --list-mutants"
        raise MisuseError(msg)
    return explorer.check_mutant(name, **limits)  # type: ignore[no-any-return]


def _mutants() -> list[dict[str, object]]:
    from quire_testing.explorer.mutants import MUTANTS

    return [
        attributes(each, "name what violated") | {"configuration": each.configuration.name}
        for each in MUTANTS.values()
    ]


def _reporter() -> Any:
    """Say on stderr how far the search is; on a terminal on one line."""
    started = time.monotonic()
    terminal = sys.stderr.isatty()
    last = started

    def report(progress: Progress) -> None:
        nonlocal last
        if not terminal and time.monotonic() - last < 2.0:
            return
        last = time.monotonic()
        text = (
            f"{progress.states:,} states, {progress.rate:,.0f} transitions/s, depth {progress.depth}, "
            f"frontier {progress.frontier:,}"
        )
        sys.stderr.write(f"\r\033[K{text}" if terminal else f"{text}\n")
        sys.stderr.flush()

    return report


def _show(out: Output, done: Check, save: Path | None, diagram: Path | None) -> None:
    result = done.result
    violation = result.violation
    facts: dict[str, object] = {
        "configuration": done.header[0],
        "mutant": done.header[1] if len(done.header) > 1 else None,
        **attributes(result, "states transitions depth"),
        "seconds": round(result.seconds, 2),
        "rate": round(result.rate),
        "complete": result.complete,
        "violated": violation.invariant if violation else None,
        "why": violation.text if violation else None,
        "steps": len(result.path) - 1 if violation else None,
        "transcript": done.text if violation else None,
        "tale": done.tale or None,
    }
    lines = ["", *done.header]
    lines.append(
        f"{result.states:,} states, {result.transitions:,} transitions, depth {result.depth}, "
        f"{result.seconds:.1f} s, {result.rate:,.0f} transitions/s"
    )
    if violation:
        from quire_testing.explorer.check import EVERY_INVARIANT

        lines += ["", done.text]
        if done.tale:
            lines += ["In short:", *(f"{number}. {step}" for number, step in enumerate(done.tale, 1)), ""]
        lines.append(f"{violation.invariant} is: {EVERY_INVARIANT[violation.invariant]}")
    else:
        lines.append(
            "complete: nothing broken" if result.complete else "stopped before the end: nothing broken so far"
        )
    out.result(facts, *lines)
    if violation and save is not None:
        _save(out, done, save)
    if violation and diagram is not None:
        diagram.write_text(_drawn(done, diagram.suffix))
        out.note(f"drawn: {diagram}")
    if violation or not result.complete:
        raise typer.Exit(1)


def _save(out: Output, done: Check, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "counterexample.txt").write_text(done.text)
    for suffix in (".svg", ".html"):
        (folder / f"counterexample{suffix}").write_text(_drawn(done, suffix))
    out.note(f"written to {folder}: counterexample.txt, .svg, .html")


def _drawn(done: Check, suffix: str) -> str:
    from quire_testing.explorer.diagram import page, svg

    result = done.result
    assert result.violation is not None
    if suffix == ".svg":
        return svg(result.path, result.violation)
    title = f"{result.violation.invariant} broken: {'; '.join(done.header)}"
    return page(title, result.path, result.violation, done.rows, done.text)


def _continuous(out: Output, workers: int) -> None:
    from quire_testing.explorer.continuous import CONTINUOUS, lines

    bad = 0
    for line in lines((*CONTINUOUS, None), workers):
        facts = asdict(line)
        facts["kinds"] = dict(line.kinds)
        text = (
            f"{line.name:60} {line.states:>10,} states {line.transitions:>11,} transitions  depth {line.depth:>2}  "
            f"{line.seconds:6.1f} s  {line.violation or ('complete' if line.complete else 'incomplete')}"
        )
        out.result(facts, text + (f"\n\n{line.transcript}" if line.transcript else ""))
        bad += bool(line.violation) or not line.complete
    if bad:
        raise typer.Exit(1)
