"""What is pinned of the explorer's mutants, and which of them `make test` explores."""

import json
from pathlib import Path

import pytest

from quire_testing.explorer.mutants import MUTANTS

COUNTS = Path(__file__).parents[1] / "check" / "pinned_counts.json"
PINNED = json.loads(COUNTS.read_text())["mutants"]
"""Of each (steps, states)."""
STATES_IN_TEST = 12_000
IN_THEIR_RINGS = [
    pytest.param(name, marks=pytest.mark.slow if PINNED[name][1] > STATES_IN_TEST else ()) for name in MUTANTS
]
"""The names of all, as parameters: those whose shortest way is behind more states are for `make full`."""
