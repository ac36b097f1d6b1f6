"""Why a writer ends: what a bookie's refusal, the record or the missing bookies mean to its callers, in words.

It decides which error callers get, and whether the writer still tries to close its ledger; it has no state.

Source: BookKeeper protocol, "Writing to the ledger", "Closing a ledger as a writer".
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from quire.core.answers import Answer
from quire.core.errors import (
    LedgerClosedError,
    LedgerFencedError,
    LedgerIdReusedError,
    MetadataUnknownError,
    MisuseError,
    QuorumLostError,
    WrongPasswordError,
)
from quire.core.ids import BookieId
from quire.core.ledger.closing import superseded
from quire.core.ledger.effects import Problem
from quire.core.ledger.metadata import LedgerMetadata, LedgerState
from quire.core.ledger.rules import AddOutcome


def refused(
    ledger_id: int, term: int, bookie: BookieId, answer: Answer, outcome: AddOutcome, *, confirmed: bool
) -> tuple[Problem, bool]:
    """What a bookie's refusal of an entry means, and whether the writer may try to close the ledger.

    Args:
        ledger_id, term: the ledger, and the writer's term; 0 of an ordinary ledger.
        bookie, answer: who answered what.
        outcome: what the rules say of that.
        confirmed: some entry is confirmed, so the ledger is not new.
    """
    where = f"ledger {ledger_id}: bookie {bookie} answered {answer.name}"
    # A ledger of which nothing is confirmed is new: what a bookie keeps as deleted is an earlier one of the same id.
    if outcome is AddOutcome.DELETED and not confirmed:
        outcome = AddOutcome.REUSED
    if outcome is AddOutcome.FENCED:
        msg = (
            f"{where}, another client recovers it; unacknowledged entries may or may not be in "
            "it, open it to see"
        )
        return Problem(LedgerFencedError, msg), False
    if outcome is AddOutcome.SUPERSEDED:
        return superseded(ledger_id, term, None), False
    if outcome is AddOutcome.REUSED:
        return Problem(LedgerIdReusedError, _reused(ledger_id, where, answer)), True
    if outcome is AddOutcome.DELETED:
        return Problem(LedgerClosedError, f"{where}, another client deleted the ledger"), False
    if answer is Answer.UNAUTHORISED:
        msg = f"{where}, the bookie has the ledger with another password"
        return Problem(WrongPasswordError, msg), True
    return Problem(MisuseError, f"{where}, the bookie does not accept such a request"), True


def _reused(ledger_id: int, where: str, answer: Answer) -> str:
    held = "the bookie still holds entries of that ledger"
    if answer is Answer.DELETED:
        held = "the bookie keeps a tombstone of that ledger (or another client has just deleted this one)"
    return (
        f"{where}: id {ledger_id} was used before by another ledger, and {held}; "
        "entries that were not acknowledged may or may not be in the new one; "
        "create the ledger again, which gives it another id; if the metadata store was restored "
        "from a backup, see docs/metadata.md, 'Restoring a backup'"
    )


def may_not_change(record: LedgerMetadata, term: int) -> Problem:
    """What a record means in which this writer may not change the ensemble."""
    if record.term != term and record.state is not LedgerState.CLOSED:
        return superseded(record.ledger_id, term, record.term)
    if record.state is LedgerState.IN_RECOVERY:
        msg = (
            f"ledger {record.ledger_id} is being recovered by another client; unacknowledged entries "
            "may or may not be in it"
        )
        return Problem(LedgerFencedError, msg)
    msg = f"ledger {record.ledger_id} was closed at entry {record.last_entry} by another client"
    return Problem(LedgerClosedError, msg)


def store_silent(ledger_id: int, attempts: int, last: str) -> Problem:
    """The metadata store refused that many requests, or did not respond; the last one is named."""
    last = last or "no response"
    msg = (
        f"ledger {ledger_id}: the metadata store did not do what the writer needs, in {attempts} attempts "
        f"({last}); open the ledger when the store is back, which recovers it"
    )
    return Problem(MetadataUnknownError, msg)


def quorum_lost(
    ledger_id: int,
    ack_quorum: int,
    missing: Sequence[BookieId],
    busy: Collection[BookieId],
    waited_ms: int | None,
) -> Problem:
    """The ack quorum cannot be reached without these bookies.

    Args:
        ledger_id: the ledger; `ack_quorum`: its Qa.
        missing: the bookies that failed and cannot be replaced.
        busy: those that refused everything as too busy.
        waited_ms: how long they were waited for; None: they were not.
    """
    bookies, refusing = ", ".join(missing), ", ".join(bookie for bookie in missing if bookie in busy)
    late = "" if waited_ms is None else f", did not come back within {waited_ms} ms,"
    why = f" ({refusing} refused all requests as too busy until the add timeout)" if refusing else ""
    msg = (
        f"ledger {ledger_id} cannot reach its ack quorum of {ack_quorum}: "
        f"{bookies} failed{why}{late} and no other bookie can replace them; start bookies and create a "
        "new ledger"
    )
    return Problem(QuorumLostError, msg)
