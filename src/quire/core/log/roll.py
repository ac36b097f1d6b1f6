"""Where a roll is: the part of a leader's machine (`log/machine.py`) that goes on in the next ledger.

The next ledger is created and listed, the former one drained and then sealed after it; while adopted ledgers wait, the former
one is drained and sealed before the next one is listed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from quire.core.ids import LedgerId
from quire.core.state_table import StateTable


class RollStep(Enum):
    """Where a roll is."""

    NONE = "none"
    CREATING = "creating"
    LISTING = "listing"
    DRAINING = "draining"
    SEALING = "sealing"


ROLL: Final = StateTable(
    RollStep,
    {
        "roll": "none > creating",
        "created": "creating > listing draining",
        "create_failed": "creating > none",
        "head_written": "listing > draining none",
        "head_read": "listing > draining none",
        "drained": "draining > none sealing",
        "ledger_closed": "sealing > listing",
    },
    refused=(),
)
"""Inputs of the handle that move its roll on; one that is not listed leaves it where it is."""


@dataclass(slots=True)
class Roll:
    """A leader's rolls, one after another.

    Attributes:
        adopting: adopted ledgers wait, so the former ledger ends before the next one is listed.
        former: the ledger that is drained.
        sealing: former ledgers that are not closed in the list yet.
    """

    step: RollStep = RollStep.NONE
    adopting: bool = False
    former: LedgerId | None = None
    sealing: tuple[LedgerId, ...] = ()

    def to(self, step: RollStep) -> None:
        """Go to another step; a roll that is over has no former ledger."""
        self.step = ROLL.moved[self.step, step]
        if step is RollStep.NONE:
            self.adopting, self.former = False, None

    @property
    def under_way(self) -> bool:
        """Whether a roll is not over: its former ledger may still be open in the list."""
        return self.step is not RollStep.NONE or bool(self.sealing)
