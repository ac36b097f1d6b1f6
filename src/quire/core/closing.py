"""How a writer stops: it closes the ledger, leaves it to recovery, or is ended by a response.

Closing needs no response from any bookie: one compare-and-swap says CLOSED, the last acknowledged entry and the length.

| reread after a lost compare-and-swap | outcome |
| --- | --- |
| OPEN | try again on the new record |
| IN_RECOVERY | fenced: the recoverer decides the end |
| CLOSED, same last entry | success |
| CLOSED, another last entry | metadata conflict |

Source: BookKeeper protocol, "Closing a ledger as a writer".
"""

from __future__ import annotations

from quire.core.effects import Closed, CloseFailed, Ended, Problem, RereadMetadata, WriteMetadata
from quire.core.errors import (
    LedgerClosedError,
    LedgerFencedError,
    MetadataConflictError,
    MetadataUnknownError,
    NotWritingError,
)
from quire.core.ledger_metadata import LedgerMetadata, LedgerState
from quire.core.rules import CloseOutcome
from quire.core.writer_state import LEGAL, Legality, Status, StoreRequest, WriterState


class Closing(WriterState):
    """The verbs that stop a writer."""

    __slots__ = ()

    def close(self) -> None:
        """Close the ledger at its last acknowledged entry. Legal at any time, also while a change is in flight.

        Effects:
            Failed for what is pending; WriteMetadata, at once or when the response to the change's own compare-and-swap
            came. In the end Closed or CloseFailed.

        Raises:
            NotWritingError: the writer has ended or was abandoned.

        Source: BookKeeper protocol, "Closing a ledger as a writer".
        """
        legality = LEGAL["close"][self.status]
        if legality is Legality.REFUSED:
            raise self._not_writing("closed")
        if legality is Legality.ACTS:
            msg = (
                f"ledger {self.record.ledger_id} was closed by its own handle before this entry was "
                "acknowledged"
            )
            self._fail_pending(Problem(LedgerClosedError, msg))
            self._begin_close()

    def abandon(self) -> None:
        """Stop and leave the ledger to a recovery; the metadata are not touched.

        Effects:
            Failed for what is pending.
        """
        if LEGAL["abandon"][self.status] is Legality.ACTS:
            msg = (
                f"ledger {self.record.ledger_id} was abandoned before this entry was acknowledged; "
                "a recovery determines whether it is in the ledger"
            )
            self._fail_pending(Problem(LedgerClosedError, msg))
            self._stop(Status.ABANDONED)

    def _not_writing(self, what: str) -> NotWritingError:
        why = f": {self.problem.message}" if self.problem else ""
        msg = (
            f"ledger {self.record.ledger_id} cannot be {what} by this handle; it is {self.status.value}{why}"
        )
        return NotWritingError(msg, ledger_id=self.record.ledger_id)

    # --- the end, and the way there ----------------------------------------------------------------------------------

    def _end(self, problem: Problem, *, close: bool) -> None:
        """The writer takes no more entries, for ever. With `close` the ledger is closed at the LAC if the store lets.

        Effects:
            Failed for what is pending, Ended; WriteMetadata when closing.
        """
        self._fail_pending(problem)
        self.problem = problem
        self.out.append(Ended(problem))
        if close:
            self._begin_close()
        else:
            self._stop(Status.ENDED)

    def _stop(self, status: Status) -> None:
        """Nothing is asked any more; late responses change nothing."""
        self.status = status
        self.asked = StoreRequest.NOTHING
        self._proposed = None
        self._read_at_ms = self._look_at_ms = self._quorum_until_ms = None

    def _begin_close(self) -> None:
        self.status = Status.CLOSING
        self._look_at_ms = self._quorum_until_ms = None
        self._attempts = 0
        if self.asked in (StoreRequest.NOTHING, StoreRequest.CHOICE):
            self._write_close()

    def _write_close(self) -> None:
        self._propose(self.record.closed(self.lac, self.confirmed_length))

    # --- what the store says to a closing writer -----------------------------------------------------------------------

    def _close_written(self) -> None:
        """The compare-and-swap that was in flight succeeded: the closing one, or a change's that began before."""
        if self.record.state is LedgerState.CLOSED:
            self._close_done()
        else:
            self._write_close()

    def _close_read(self) -> None:
        outcome = self.rules.close_outcome(self.record, self.lac)
        ledger_id = self.record.ledger_id
        if outcome is CloseOutcome.RETRY:
            self._write_close()
        elif outcome is CloseOutcome.SUCCESS:
            self._close_done()
        elif outcome is CloseOutcome.FENCED:
            msg = f"ledger {ledger_id} is being recovered by another client, which determines its last entry"
            self._close_failed(Problem(LedgerFencedError, msg))
        else:
            msg = (
                f"ledger {ledger_id} was closed at entry {self.record.last_entry} by another client; "
                f"this writer's last acknowledged entry is {self.lac}"
            )
            self._close_failed(Problem(MetadataConflictError, msg))

    def _close_done(self) -> None:
        self._stop(Status.ENDED if self.problem else Status.CLOSED)
        self.out.append(Closed(self.record))

    def _close_failed(self, problem: Problem) -> None:
        self.problem = self.problem or problem
        self._stop(Status.ENDED)
        self.out.append(CloseFailed(problem))

    # --- one request to the store at a time ------------------------------------------------------------------------------

    def _propose(self, record: LedgerMetadata) -> None:
        self.asked = StoreRequest.WRITE
        self._proposed = record
        self.out.append(WriteMetadata(record, self.version))

    def _reread(self) -> None:
        self.asked = StoreRequest.READ
        self._proposed = None
        self.out.append(RereadMetadata())

    def _store_is_silent(self) -> None:
        """Too many requests to the store stayed unanswered: end without touching the record."""
        msg = (
            f"the metadata store did not respond to {self._attempts} requests for ledger "
            f"{self.record.ledger_id}; open the ledger when the store is back, which recovers it"
        )
        problem = Problem(MetadataUnknownError, msg)
        if self.status is Status.CLOSING:
            self._close_failed(problem)
        else:
            self._end(problem, close=False)

    def _record_is_gone(self) -> None:
        msg = f"ledger {self.record.ledger_id} was deleted by another client"
        problem = Problem(LedgerClosedError, msg)
        if self.status is Status.CLOSING:
            self._close_failed(problem)
        else:
            self._end(problem, close=False)
