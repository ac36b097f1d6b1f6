"""`quire verify-history FILE...`: judge the requests and responses of clients."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from quire.cli.console.options import JsonOption, argument
from quire.cli.console.output import Output
from quire.core.errors import MisuseError

if TYPE_CHECKING:
    from quire_testing.history import Verdict

PROGRESS_EVERY = 1000

FilesArgument = Annotated[list[str], argument("FILE...", "Histories of one machine's processes; - is stdin.")]


def verify_history(files: FilesArgument, as_json: JsonOption = False) -> None:
    """Judge recorded histories: do the responses that clients got fit together?

    Several files are taken as one history: those of processes that ran at the same time on one machine. The format is
    described in docs/formats/history.md. Exit code 0: something was compared and nothing contradicts anything. 1: there
    is a violation, nothing was compared, or something could not be decided.
    """
    from quire_testing.history import HistoryFile, Judge, merged

    if files.count("-") > 1:
        raise MisuseError("stdin can be read once: give - once.")
    out = Output(as_json=as_json)
    with contextlib.ExitStack() as opened:
        sources = [
            HistoryFile(opened.enter_context(_open(name)), "" if len(files) == 1 else name) for name in files
        ]
        judge = Judge(hash_digits=sources[0].hash_digits)
        with out.progress("judging", unit="events") as progress:
            for count, event in enumerate(merged(sources), 1):
                judge.see(event)
                if count % PROGRESS_EVERY == 0:
                    progress.advance(PROGRESS_EVERY)
        verdict = judge.finish()
    for source in sources:
        if source.torn:
            out.note(f"{source.name or files[0]}: the last line was cut off and left out")
    _show(out, verdict)
    if not verdict.holds:
        raise typer.Exit(1)


def _open(name: str) -> contextlib.AbstractContextManager[IO[bytes]]:
    if name == "-":
        return contextlib.nullcontext(sys.stdin.buffer)
    return Path(name).open("rb")


def _outcome(verdict: Verdict) -> tuple[str, str]:
    """The verdict in a word, and in a sentence."""
    total = verdict.counts.total()
    if total:
        return "violated", f"{total:,} violation{'s' if total > 1 else ''} in {verdict.events:,} events"
    if verdict.undecided:
        return "undecided", "could not be decided: " + "; ".join(verdict.undecided)
    if not verdict.holds:
        return (
            "empty",
            f"no two of these {verdict.events:,} events can be compared: the history proves nothing",
        )
    return "holds", f"no violation in {verdict.events:,} events"


def _show(out: Output, verdict: Verdict) -> None:
    from quire_testing.history import INVARIANTS

    word, sentence = _outcome(verdict)
    if out.as_json:
        for violation in verdict.violations:
            facts = {"invariant": violation.number, "name": violation.name, "text": violation.text}
            out.result({"violation": {**facts, "lines": violation.lines}}, "")
        out.result(
            {
                "verdict": word,
                "events": verdict.events,
                "violations": verdict.counts.total(),
                "kinds": {kind: +counts for kind, counts in sorted(verdict.kinds.items())},
                "checked": verdict.checked,
                "violated": dict(sorted(verdict.counts.items())),
                "undecided": verdict.undecided,
            },
            "",
        )
        return
    columns = ("kind", "ok", "fail", "unknown", "open", "note")
    rows = [
        {"kind": kind, **{what: f"{counts[what]:,}" if counts[what] else None for what in columns[1:]}}
        for kind, counts in sorted(verdict.kinds.items())
    ]
    out.rows(columns, rows, title="What was recorded (open: never answered)")
    out.result({}, "")
    table = [
        {
            "invariant": f"{number:>2} {name}",
            "compared": f"{verdict.checked[number]:,}" if verdict.checked[number] else "not looked at",
            "violations": verdict.counts[number] or None,
        }
        for number, name in INVARIANTS.items()
    ]
    out.rows(("invariant", "compared", "violations"), table, title="What was checked")
    out.result({}, "")
    for violation in verdict.violations:
        out.result({}, str(violation))
    hidden = verdict.counts.total() - len(verdict.violations)
    if hidden:
        out.result({}, f"... and {hidden:,} more")
    out.result({}, sentence)
