"""Each method and function of the log's machines, replaced by one that raises, turns an exploration red.

What no world of a log comes to stands here with the test that does.
"""

from __future__ import annotations

from types import FunctionType

import pytest

from quire.core import log_closing, log_opening, log_rolling
from quire.core.log import LogMachine
from quire.core.log_fencing import Fencing
from quire.core.log_handle import HandleState
from quire.core.log_roll import Roll
from quire.core.log_swap import HeadSwap
from quire.core.log_trimming import TrimMachine
from quire_testing.explorer.explorer import explore
from quire_testing.explorer.log_parts import LogConfiguration
from quire_testing.explorer.log_watch import LogWatch
from quire_testing.explorer.log_world import LogWorld

WORLDS = (
    LogConfiguration(1, 3, 1, lost_swaps=1, closes=True, stages=1),
    LogConfiguration(2, 2, 1, trims=1),
    LogConfiguration(1, 3, 2, lost_swaps=1, trims=1),
)
PLACES = (
    HandleState,
    LogMachine,
    HeadSwap,
    Fencing,
    Roll,
    TrimMachine,
    log_opening,
    log_rolling,
    log_closing,
)
NOT_CALLED = {
    "abandon": "a client that gives up is one whose steps are never taken (tests/unit/core/test_legality.py)",
    "create_failed": "a world whose ledgers have run out leaves its handle waiting (tests/golden/test_log_golden.py)",
    "head_seen": "nobody tells it (tests/unit/log/test_log_drivers.py)",
    "learned": "the same",
    "page_read": "a list of so few ledgers has no pages (tests/properties/test_log_list.py)",
    "page_deleted": "the same",
    "log_deleted": "nobody deletes the log (tests/unit/log)",
    "adoptions_wait": "the driver asks it (tests/unit/log/test_log_drivers.py)",
    "head": "the driver asks it",
    "rolling": "the driver asks it",
}


class RaisedError(Exception):
    """What is in the method's place."""


def raises(*_args, **_kwargs):
    raise RaisedError


def all_of(place):
    """Its own methods, properties and functions."""
    module = getattr(place, "__module__", place.__name__)
    for name, what in vars(place).items():
        own = isinstance(what, property) or (isinstance(what, FunctionType) and what.__module__ == module)
        if own and not name.startswith("__"):
            yield name, property(raises) if isinstance(what, property) else raises


CASES = [(place, name, instead) for place in PLACES for name, instead in all_of(place)]
CALLED = [
    pytest.param(*case, id=f"{case[0].__name__.rpartition('.')[2]}-{case[1]}")
    for case in CASES
    if case[1] not in NOT_CALLED
]


def explored():
    for configuration in WORLDS:
        world = LogWorld(configuration)
        result = explore(world, LogWatch(world))
        assert result.complete


@pytest.mark.parametrize(("place", "name", "instead"), CALLED)
def test_a_method_that_raises_turns_an_exploration_red(monkeypatch, place, name, instead):
    monkeypatch.setattr(place, name, instead)
    with pytest.raises(RaisedError):
        explored()


def test_what_is_not_called_is_what_stands_here(monkeypatch):
    assert NOT_CALLED.keys() <= {name for _, name, _ in CASES}
    for place, name, instead in CASES:
        if name in NOT_CALLED:
            monkeypatch.setattr(place, name, instead)
    explored()
