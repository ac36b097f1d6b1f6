"""Fixes taken out of the guaranteed write quorum, in worlds whose ledger has it.

Source: docs/protocol/write-quorum.md; docs/decisions/037-who-may-be-replaced.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from quire.core.ledger.writer import RunWindow
from quire_testing.explorer.configuration import Configuration
from quire_testing.explorer.ledger_mutants import TO_THE_ACK_QUORUM
from quire_testing.explorer.mutant import Mutant, with_rules
from quire_testing.explorer.patches import Patch
from quire_testing.explorer.switches import SHIPPED
from quire_testing.explorer.unfixed import RecoversFromTheLac, ReturnsWithoutTheUnconfirmed

CLOSES = Configuration(2, 2, 2, 1, recoverers=0, closes=True, guarantee=True)
RECOVERED = Configuration(2, 2, 2, 1, entries=2, guarantee=True)

GUARANTEE_MUTANTS: Final[tuple[Mutant[Configuration], ...]] = (
    with_rules(
        "D10",
        "the LAFR advances from the LAC, over entries that are not on their write quorum",
        CLOSES,
        "Q2",
        Patch(RunWindow.leave, "if self._lacks(run", "if run[1] > self.lac and self._lacks(run"),
    ),
    with_rules(
        "X43",
        "a new fragment begins at LAC + 1",
        Configuration(3, 2, 2, 1, timeouts=1, recoverers=0, guarantee=True),
        "Q1",
        new_fragment_start=lambda lac, lap, lafr: lac + 1,
    ),
    with_rules(
        "X44",
        "the ledger is closed once its entries are on their ack quorum",
        CLOSES,
        "Q2",
        final_quorum=lambda record: record.ack_quorum,
    ),
    with_rules(
        "X45",
        "a bookie that acknowledged anything after the LAFR is never replaced",
        Configuration(
            3, 2, 2, 1, entries=2, recoverers=0, losses=1, waits=True, guarantee=True, transit_damages=1
        ),
        "F1",
        may_replace=lambda acked, replaced, mask, ack_quorum: not acked & replaced & mask,
    ),
    with_rules(
        "X8-guarantee",
        "a recovery writes back to the ack quorum only, and closes then",
        Configuration(2, 2, 2, 1, guarantee=True),
        "Q2",
        TO_THE_ACK_QUORUM,
        names_slots=True,
        final_quorum=lambda record: record.ack_quorum,
    ),
    Mutant(
        "guarantee-from-lac",
        "a recovery begins after the LAC",
        replace(SHIPPED, recovery=RecoversFromTheLac),
        RECOVERED,
        "Q2",
    ),
    Mutant(
        "guarantee-unsent",
        "a bookie that a writer waits for is sent nothing of what it lacks when it returns",
        replace(SHIPPED, writer=ReturnsWithoutTheUnconfirmed),
        Configuration(2, 2, 2, 1, timeouts=1, recoverers=0, drops=True, waits=True, guarantee=True),
        "F2",
    ),
    with_rules(
        "may_replace",
        "a bookie is replaced though an acknowledged entry does not keep its ack quorum",
        Configuration(3, 2, 2, 1, entries=2, timeouts=1, recoverers=0, guarantee=True),
        "I2",
        may_replace=lambda acked, replaced, mask, ack_quorum: True,
    ),
)
"""In each of them the write quorum of the ledger is guaranteed."""
