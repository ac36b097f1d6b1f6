"""Repair in the explorer: from every state what lacks copies can still be repaired, and what was found there stays mended.

Source: docs/protocol/repair.md; docs/counterexamples.md, "What must hold": F5.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from quire_testing.explorer.configuration import Configuration
from quire_testing.explorer.reach import is_repaired, stranded
from quire_testing.explorer.switches import RULES, SHIPPED
from quire_testing.explorer.symmetry import Symmetry
from quire_testing.explorer.world import LedgerWorld


@pytest.mark.parametrize(
    "configuration",
    [
        Configuration(4, 3, 3, 2, entries=2, recoverers=0, losses=1, repairers=1, closed=True),
        Configuration(3, 2, 2, 2, recoverers=0, losses=1, repairers=2, closed=True),
        Configuration(3, 2, 2, 2, entries=2, recoverers=0, losses=1, repairers=1, changed=True),
    ],
    ids=lambda each: each.name,
)
def test_what_lacks_copies_can_always_still_be_repaired(configuration):
    """F5, as far as "possible" goes."""
    world = LedgerWorld(configuration)
    assert stranded(world, is_repaired(world), Symmetry(world)) == []


def test_what_nobody_may_publish_is_stranded():
    rules = RULES.but(may_publish=lambda *, missing: False)
    configuration = Configuration(3, 2, 2, 2, recoverers=0, losses=1, repairers=1, closed=True)
    world = LedgerWorld(configuration, replace(SHIPPED, rules=rules))
    assert stranded(world, is_repaired(world), Symmetry(world))
