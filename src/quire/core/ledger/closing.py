"""How a writer closes its ledger: at the last acknowledged entry, by compare-and-swap.

It needs no response from any bookie: one compare-and-swap says CLOSED, the last acknowledged entry and the length. Only
where the write quorum is guaranteed does it wait before, until every entry is on all of it.

| reread after a lost compare-and-swap | outcome |
| --- | --- |
| OPEN | try again on the new record |
| IN_RECOVERY | fenced: the recoverer decides the end |
| CLOSED, same last entry | success |
| CLOSED, another last entry | metadata conflict |
| a stream in another term, not CLOSED | superseded: the writer of that term goes on with it |

Source: BookKeeper protocol, "Closing a ledger as a writer".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from quire.core.errors import LedgerFencedError, MetadataConflictError, TermSupersededError
from quire.core.ids import NO_ENTRY
from quire.core.ledger.effects import Problem
from quire.core.ledger.metadata import LedgerMetadata, LedgerState
from quire.core.ledger.rules import CloseOutcome, LedgerRules
from quire.core.state_table import StateTable


def superseded(stream_id: int, term: int, newer: int | None) -> Problem:
    """Why a writer of a stream ends when another client has taken it over (`newer`: its term, None if unknown)."""
    msg = (
        f"stream {stream_id}: another client took it over from term {term}"
        f"{'' if newer is None else f' in term {newer}'}; unacknowledged entries may or may not be in it:"
        " once that term is open, its first entry tells"
    )
    return Problem(TermSupersededError, msg)


class ClosingStatus(Enum):
    """Where the close of a ledger stands."""

    OPEN = "open"
    WAITING = "waiting"
    """The write quorum is guaranteed: the ledger is to be closed once every entry is on all of it."""
    CLOSING = "closing"
    CLOSED = "closed"
    FAILED = "failed"


CLOSING_TABLE: Final = StateTable(
    ClosingStatus,
    {
        "wait": "open waiting > waiting",
        "begin": "open waiting > closing",
        "judge": "closing > = closed failed",
        "fail": "closing > failed",
    },
)
"""What the inputs of a close do."""


@dataclass(slots=True, eq=False)
class Closing:
    """The close of one ledger by its writer.

    Attributes:
        ledger_id: for errors.
        rules: the protocol's rules (`core/rules.py`).
        term: the writer's; 0 of an ordinary ledger.
        status: where the close stands.
        lac: where the ledger is to end; `length`: payload bytes up to there.
        guaranteed: if the record guarantees the write quorum, the close keeps that.
    """

    ledger_id: int
    rules: LedgerRules
    term: int = 0
    status: ClosingStatus = field(default=ClosingStatus.OPEN, init=False)
    lac: int = field(default=NO_ENTRY, init=False)
    length: int = field(default=0, init=False)
    guaranteed: bool = field(default=True, init=False)

    def wait(self) -> None:
        """The ledger is to end where the last entry will be on its whole write quorum."""
        assert CLOSING_TABLE.acts["wait"][self.status]
        self.status = CLOSING_TABLE.moved[self.status, ClosingStatus.WAITING]

    def begin(self, lac: int, length: int, *, guaranteed: bool = True) -> None:
        """The ledger is to end here. Without `guaranteed` a guarantee of the write quorum is waived."""
        assert CLOSING_TABLE.acts["begin"][self.status]
        self.status = CLOSING_TABLE.moved[self.status, ClosingStatus.CLOSING]
        self.lac, self.length, self.guaranteed = lac, length, guaranteed

    def judge(self, record: LedgerMetadata) -> LedgerMetadata | Problem | None:
        """What follows from the record as it is stored now.

        Returns:
            The record to store in its place; why the ledger cannot be closed here; or None: it is closed here.
        """
        assert CLOSING_TABLE.acts["judge"][self.status]
        outcome = self.rules.close_outcome(record, self.lac, self.term)
        if outcome is CloseOutcome.RETRY:
            kept = record if self.guaranteed else record.without_guarantee()
            return kept.closed(self.lac, self.length)
        if outcome is CloseOutcome.SUCCESS:
            self.status = CLOSING_TABLE.moved[self.status, ClosingStatus.CLOSED]
            return None
        self.status = CLOSING_TABLE.moved[self.status, ClosingStatus.FAILED]
        if outcome is CloseOutcome.SUPERSEDED:
            return superseded(self.ledger_id, self.term, record.term)
        if outcome is CloseOutcome.FENCED:
            msg = f"ledger {self.ledger_id} is being recovered by another client, which determines its last entry"
            return Problem(LedgerFencedError, msg)
        msg = (
            f"ledger {self.ledger_id} was closed at entry {record.last_entry} by another client; "
            f"this writer's last acknowledged entry is {self.lac}"
        )
        return Problem(MetadataConflictError, msg)

    def fail(self) -> None:
        """It cannot be found out whether the ledger is closed here."""
        assert CLOSING_TABLE.acts["fail"][self.status]
        self.status = CLOSING_TABLE.moved[self.status, ClosingStatus.FAILED]

    def check(self, record: LedgerMetadata, lac: int) -> None:
        """Assert what must hold between any two inputs: I12 of docs/counterexamples.md."""
        assert self.status in {ClosingStatus.OPEN, ClosingStatus.WAITING} or self.lac == lac, (
            "nothing is acknowledged after the close began"
        )
        if self.status is ClosingStatus.CLOSED:
            assert record.state is LedgerState.CLOSED
            assert record.last_entry == self.lac, "I12: closed at the last acknowledged entry"
