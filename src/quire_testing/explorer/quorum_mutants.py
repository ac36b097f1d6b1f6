"""Fixes taken out of the wait for the ack quorum, in worlds whose writer waits.

Source: docs/decisions/004-absent-slots.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from quire_testing.explorer.configuration import Configuration
from quire_testing.explorer.mutant import Mutant
from quire_testing.explorer.switches import RULES, SHIPPED
from quire_testing.explorer.unfixed import ConfirmsWithWhoeverIsThere, ReturnsWithoutTheUnconfirmed

QUORUM_MUTANTS: Final[tuple[Mutant[Configuration], ...]] = (
    Mutant(
        "quorum-present",
        "a writer below its ack quorum confirms with the bookies that are there",
        replace(SHIPPED, writer=ConfirmsWithWhoeverIsThere),
        Configuration(timeouts=1, waits=True),
        "I2",
    ),
    Mutant(
        "quorum-unsent",
        "a bookie for which a writer waited is not sent what is unconfirmed when it returns",
        replace(SHIPPED, writer=ReturnsWithoutTheUnconfirmed),
        Configuration(timeouts=1, recoverers=0, drops=True, waits=True),
        "F1",
    ),
    Mutant(
        "quorum-unsettled",
        "a writer that loses its quorum while the outcome of a compare-and-swap is unknown does not settle that before it confirms again",
        replace(SHIPPED, rules=RULES.but(may_go_on_after_unknown=lambda unknown_version, version: True)),
        Configuration(3, 2, 2, 2, timeouts=1, lost_swaps=1, absent=True, waits=True),
        "I2",
        ("may_go_on_after_unknown",),
    ),
)
"""In each of them some of a writer's bookies are lost, and may be found again."""
