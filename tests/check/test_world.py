"""What the explorer's world lets happen: questions and answers are two steps each, and connections break.

Source: docs/decisions/006-explorer.md.
"""

from __future__ import annotations

from quire_testing.explorer.configuration import Configuration
from quire_testing.explorer.log_parts import LogConfiguration
from quire_testing.explorer.log_world import LogWorld
from quire_testing.explorer.world import LedgerWorld


class Way:
    """A way through a world: each step by the beginning of its text."""

    def __init__(self, world):
        self.world = world
        self.state = world.initial()

    def can(self, text):
        return any(found.startswith(text) for found in self.steps)

    @property
    def steps(self):
        return [f"{label.actor}: {label.command}" for label, _ in self.world.successors(self.state)]

    def goes(self, *texts):
        for text in texts:
            for label, after in self.world.successors(self.state):
                if f"{label.actor}: {label.command}".startswith(text):
                    self.state, self.said = after, label.said
                    break
            else:
                raise AssertionError([text, *self.steps])
        return self.said


def test_a_cas_lands_in_one_step_and_is_heard_of_in_another():
    """Between the two everybody else goes on, and another compare-and-swap finds the new version."""
    way = Way(LedgerWorld(Configuration(recoverers=2)))
    way.goes("recoverer 1: starts", "recoverer 2: starts")
    assert way.goes("store: takes v0: IN_RECOVERY 0:[b0 b1] from recoverer 1") == ("written",)
    assert way.can("writer: append")
    assert way.can("recoverer 1: hears written")
    assert way.goes("store: takes v0: IN_RECOVERY 0:[b0 b1] from recoverer 2") == ("conflict",)
    assert way.goes("recoverer 2: hears conflict") == ("-> store read",)
    way.goes("recoverer 1: hears written")


def test_a_cas_of_which_nobody_heard_may_still_land():
    way = Way(LedgerWorld(Configuration(lost_swaps=1)))
    way.goes("recoverer: starts", "recoverer: hears nothing")
    assert way.goes("store: takes v0: IN_RECOVERY") == ("written",)
    assert not way.can("recoverer: hears written")


def test_an_entry_is_answered_for_after_its_sync_and_a_crash_between_takes_it():
    way = Way(LedgerWorld(Configuration(crashes=1)))
    assert way.goes("writer: append", "b0: takes add") == ("stores 0",)
    held = way.state
    assert "-> writer OK to add 0..0 lac=-1" in way.goes("b0: syncs", "b0: syncs")
    way.state = held
    way.goes("b0: crashes")
    assert way.goes("writer: hears UNREACHABLE to add")
    assert not way.world.bookies.parts[way.state[0]].held


def test_a_later_request_overtakes_one_of_a_broken_connection():
    """The fence was sent before the read, on a connection that broke; the read arrives first, then the fence."""
    way = Way(LedgerWorld(Configuration(breaks=1)))
    way.goes("recoverer: starts", "store: takes v0", "recoverer: hears written")
    way.goes(
        "recoverer: its connection to b1 breaks", "b0: takes fence", "recoverer: hears OK to fence, read lac"
    )
    way.goes("b1: takes fence, read 0..0")
    assert way.goes("b1: takes fence, read lac") == ("is fenced, looks",), "nobody waits for its answer"


def test_a_request_that_was_given_up_still_arrives():
    """Erratum S7: a time-out is a client's impatience, whatever becomes of the message."""
    way = Way(LedgerWorld(Configuration(3, 2, 2, 2, timeouts=1)))
    way.goes("writer: append", "writer: lost b0")
    assert "stores 0" in way.goes("b0: takes add 0..0")


def test_a_logs_cas_is_two_steps_too_and_may_land_unanswered():
    way = Way(LogWorld(LogConfiguration(handles=2, ledgers=3, writes=1, lost_swaps=1)))
    way.goes("handle 0: open", "handle 0: reads", "handle 0: creates ledger 1")
    way.goes("handle 1: open", "handle 1: reads", "handle 1: creates ledger 2", "handle 0: hears nothing")
    assert way.goes("store: takes v1: [2] from handle 1") == ("written",)
    assert way.can("handle 1: hears that the list is written")
    assert way.goes("store: takes v1: [1] from handle 0") == ("conflict",)
    way.goes("handle 0: reads the list")
