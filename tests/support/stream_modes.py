"""Both modes of a stream, for tests that hold in either."""

from __future__ import annotations

import pytest

MODES = ("identifiers", "fencing")
BOTH = pytest.mark.parametrize("mode", MODES)
"""Where terms only fence, each take-over takes an id of its own; what users see is the same."""


def taken(mode: str, take_overs: int = 1) -> int:
    """How many ids the take-overs of a stream have for themselves."""
    return take_overs if mode == "fencing" else 0
