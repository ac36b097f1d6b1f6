"""A writer that guarantees its write quorum gets every entry there, whatever has happened before: nothing is stranded.

Source: docs/decisions/037-who-may-be-replaced.md.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from quire_testing.explorer.clients import WRITER_DONE
from quire_testing.explorer.configuration import Configuration
from quire_testing.explorer.reach import stranded
from quire_testing.explorer.switches import RULES, SHIPPED
from quire_testing.explorer.symmetry import Symmetry
from quire_testing.explorer.world import LedgerWorld

LOST = Configuration(
    3, 2, 2, 1, entries=2, recoverers=0, losses=1, waits=True, guarantee=True, transit_damages=1
)


def is_replicated(world):
    """Whether the writer has appended all, and each entry is on its write quorum; or it has ended."""

    def replicated(state):
        client = next(world.clients_of(state))
        machine = client.machine
        return machine.status in WRITER_DONE or not (client.left or machine.pending)

    return replicated


@pytest.mark.parametrize(
    "configuration",
    [
        Configuration(
            4, 3, 3, 2, entries=2, recoverers=0, timeouts=1, drops=True, waits=True, guarantee=True
        ),
        Configuration(
            3, 3, 2, 1, entries=2, recoverers=0, timeouts=2, drops=True, waits=True, guarantee=True
        ),
        LOST,
    ],
    ids=lambda each: each.name,
)
def test_every_entry_can_always_still_come_to_its_write_quorum(configuration):
    world = LedgerWorld(configuration)
    assert stranded(world, is_replicated(world), Symmetry(world)) == []


def test_with_the_published_pin_some_cannot():
    rules = RULES.but(may_replace=lambda acked, replaced, mask, ack_quorum: not acked & replaced & mask)
    world = LedgerWorld(LOST, replace(SHIPPED, rules=rules))
    assert stranded(world, is_replicated(world), Symmetry(world))
