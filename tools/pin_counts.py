"""Explore the continuous set and the mutants, and pin their counts: `tools/pin_counts.py "why they changed"`.

A changed count is a changed protocol or a changed world; the reason is kept beside the counts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from quire_testing.explorer.check import check_mutant
from quire_testing.explorer.continuous import CONTINUOUS, LONG, lines
from quire_testing.explorer.mutants import MUTANTS

PINS = Path(__file__).resolve().parents[1] / "tests" / "check" / "pinned_counts.json"


def write(pins: dict[str, Any], why: str) -> None:
    """Put the pins into their file."""
    parts = {key: dict(sorted(pins[key].items())) for key in ("counts", "mutants")}
    PINS.write_text(json.dumps({"why": why, **parts}, indent=1) + "\n")


def main() -> int:
    """Pin everything; with `--missing` before the reason only what has no counts yet."""
    arguments = sys.argv[1:]
    missing = "--missing" in arguments
    reasons = [argument for argument in arguments if argument != "--missing"]
    if len(reasons) != 1 or not reasons[0].strip():
        sys.stderr.write('say why the counts changed: tools/pin_counts.py [--missing] "because ..."\n')
        return 2
    pins = json.loads(PINS.read_text()) if PINS.exists() else {"counts": {}, "mutants": {}}
    if not missing:
        pins = {"counts": {}, "mutants": {}}
    for line in lines(
        tuple(each for each in (*CONTINUOUS, *LONG) if each.name not in pins["counts"]), workers=1
    ):
        if line.violation or not line.complete:
            sys.stderr.write(f"{line.name}: {line.violation or 'incomplete'}\n{line.transcript}\n")
            return 1
        pins["counts"][line.name] = list(line.counts)
        write(pins, reasons[0])
        sys.stderr.write(f"{line.name}: {line.counts}\n")
    pins["mutants"] = {name: pin for name, pin in pins["mutants"].items() if name in MUTANTS}
    for name in MUTANTS.keys() - pins["mutants"].keys():
        result = check_mutant(name).result
        pins["mutants"][name] = [len(result.path) - 1, result.states]
        sys.stderr.write(f"{name}: {pins['mutants'][name]}\n")
    write(pins, reasons[0])
    return 0


if __name__ == "__main__":
    sys.exit(main())
