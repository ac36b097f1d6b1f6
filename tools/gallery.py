"""Draws the counterexamples of docs/counterexamples.md from the transcripts of tests/golden, and lists all of them.

A picture is what the explorer draws when it takes the transcript's steps again; `tools/generate_docs.py` calls this.
"""

from __future__ import annotations

import json
from pathlib import Path

from quire_testing.explorer.check import EVERY_INVARIANT, replay_mutant
from quire_testing.explorer.diagram import svg
from quire_testing.explorer.mutants import MUTANTS

ROOT = Path(__file__).resolve().parent.parent
TRANSCRIPTS = ROOT / "tests" / "golden" / "counterexamples"
PICTURES = ROOT / "docs" / "counterexamples"
PINS = ROOT / "tests" / "check" / "pinned_counts.json"
DRAWN = (
    "D1",
    "D2",
    "D3",
    "D7",
    "X5",
    "X9",
    "X14",
    "reader-record",
    "X22",
    "log-sends-early",
    "collector-missing-twice",
    "collector-zxid",
)
"""Those worth a picture: published defects, and one of each kind of fault."""


def drawn() -> dict[Path, str]:
    """Every picture's file and content."""
    found = {}
    for name in DRAWN:
        done = replay_mutant(name, (TRANSCRIPTS / f"{name}.txt").read_text())
        found[PICTURES / f"{name}.svg"] = svg(done.result.path, done.result.violation)
    return found


def stale(pictures: dict[Path, str]) -> list[Path]:
    """The files that `write_all` would change."""
    wrong = [path for path, text in pictures.items() if not path.exists() or path.read_text() != text]
    return wrong + [path for path in PICTURES.glob("*.svg") if path not in pictures]


def write_all(pictures: dict[Path, str]) -> list[Path]:
    """Write what is stale, remove what is gone; returns the files that changed."""
    changed = stale(pictures)
    PICTURES.mkdir(parents=True, exist_ok=True)
    for path in changed:
        if path in pictures:
            path.write_text(pictures[path])
        else:
            path.unlink()
    return changed


def table() -> str:
    """Every fix that can be taken out, and what breaks without it."""
    pins = json.loads(PINS.read_text())["mutants"]
    rows = [
        "| without | what is wrong then | breaks | steps | states seen | world |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, mutant in MUTANTS.items():
        steps, states = pins[name]
        path = f"../tests/golden/counterexamples/{name}.txt"
        rows.append(
            f"| [{name}]({path}) | {mutant.what} | {mutant.violated} | {steps} | {states:,} "
            f"| {mutant.configuration.name} |"
        )
    return "\n".join(rows) + "\n"


def pictures() -> str:
    """The pictures, each with its sentence."""
    parts = []
    for name in DRAWN:
        mutant = MUTANTS[name]
        parts.append(
            f"### {name}: {mutant.what}\n\n{mutant.violated}, {EVERY_INVARIANT[mutant.violated]}.\n\n"
            f"![{name}](counterexamples/{name}.svg)"
        )
    return "\n\n".join(parts) + "\n"


def invariants() -> str:
    """Every invariant by name."""
    rows = ["| invariant | what must hold |", "| --- | --- |"]
    rows += [f"| {name} | {text} |" for name, text in EVERY_INVARIANT.items()]
    return "\n".join(rows) + "\n"


def explored() -> str:
    """The worlds that are explored completely, with their pinned counts."""
    counts = json.loads(PINS.read_text())["counts"]
    rows = ["| world | states | transitions | depth |", "| --- | --- | --- | --- |"]
    rows += [f"| {name} | {s:,} | {t:,} | {d} |" for name, (s, t, d) in counts.items()]
    return "\n".join(rows) + "\n"
