"""The rounds of a fault test, and where its figures go.

`make test` runs few rounds with a fixed seed; `QUIRE_FULL=1` (`make full`) runs the full number with a seed of its
own and keeps the figures in docs/proof, with versions, so that they can be committed.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import uvloop

from support.rounds import FULL, keep_figures
from support.rounds import rounds as rounds_of_this_run


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], Any]]:
    """Tests run on uvloop here, as the programs do."""
    return {"uvloop": uvloop.new_event_loop}


SEED = int(os.environ.get("QUIRE_SEED", time.time_ns() & 0xFFFFFFFF if FULL else 20261121))


@pytest.fixture
def chance() -> random.Random:
    """The chance of this test; the seed is printed, and taken from QUIRE_SEED if set."""
    print(f"QUIRE_SEED={SEED}")
    return random.Random(SEED)


@pytest.fixture
def rounds() -> Callable[[int, int], int]:
    """`rounds(full, reduced)`: how many rounds this run makes."""
    return lambda full, reduced: rounds_of_this_run(reduced, full)


@pytest.fixture
def record() -> Callable[[str, dict[str, Any]], None]:
    """`record(name, figures)`: print the figures of a test, and keep them when this is `make full`."""

    return partial(keep_figures, seed=SEED)
