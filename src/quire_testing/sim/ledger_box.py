"""What the programs of a simulation know of each other's ledgers."""

from __future__ import annotations

from quire_testing.sim.programs import SimClient


class LedgerBox:
    """A ledger whose writer is at work, for those who wait for it.

    Attributes:
        ledger_id: -1 before it is created.
        appended: how many entries were sent.
        over: its writer's program has ended.
        closing: the process that has begun to close it, until it knows how that ended.
    """

    def __init__(self) -> None:
        self.ledger_id = -1
        self.appended = 0
        self.over = False
        self.closing: SimClient | None = None
