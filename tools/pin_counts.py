"""Explore the continuous set and the mutants, and pin their counts: `tools/pin_counts.py "why they changed"`.

A changed count is a changed protocol or a changed world; the reason is kept beside the counts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from quire.proof.check import EVERY_MUTANT, check_mutant
from quire.proof.continuous import CONTINUOUS, SMALL, lines

PINS = Path(__file__).resolve().parents[1] / "tests" / "check" / "pinned_counts.json"


def main() -> int:
    """Pin everything; with `--small` before the reason the large configurations keep their counts."""
    arguments = sys.argv[1:]
    small = "--small" in arguments
    reasons = [argument for argument in arguments if argument != "--small"]
    if len(reasons) != 1 or not reasons[0].strip():
        sys.stderr.write('say why the counts changed: tools/pin_counts.py [--small] "because ..."\n')
        return 2
    pins = json.loads(PINS.read_text()) if PINS.exists() else {"counts": {}, "mutants": {}}
    if not small:
        pins["counts"] = {}
    for line in lines(SMALL if small else CONTINUOUS):
        if line.violation or not line.complete:
            sys.stderr.write(f"{line.name}: {line.violation or 'incomplete'}\n{line.transcript}\n")
            return 1
        pins["counts"][line.name] = list(line.counts)
        sys.stderr.write(f"{line.name}: {line.counts}\n")
    pins["mutants"] = {}
    for name in EVERY_MUTANT:
        result = check_mutant(name).result
        pins["mutants"][name] = [len(result.path) - 1, result.states]
        sys.stderr.write(f"{name}: {pins['mutants'][name]}\n")
    PINS.write_text(
        json.dumps(
            {"why": reasons[0], **{key: dict(sorted(pins[key].items())) for key in ("counts", "mutants")}},
            indent=1,
        )
        + "\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
