"""What the programs of a simulation know of each other's ledgers."""

from __future__ import annotations


class LedgerBox:
    """A ledger whose writer is at work, for those who wait for it."""

    def __init__(self) -> None:
        self.ledger_id = -1
        self.appended = 0
        self.over = False
