"""What is known of all ledgers besides their entries, and how it gets into the journal.

State is live until superseded: the newest record of a ledger is the whole of its state, wherever it lies.
Source: `docs/formats/segment.md`, "Ledger state"; decision on segments that hold the only fence.
"""

from __future__ import annotations

from collections.abc import Collection

from crc32c import crc32c

from quire.core.bookie_ledger import LedgerFacts
from quire.storage.journal import Journal
from quire.storage.record_bodies import Suspicion, encode_suspicion
from quire.storage.segment_files import Space
from quire.storage.segment_format import ALL_LEDGERS, Kind
from quire.storage.state_format import LedgerState, encode_state
from quire.storage.stored_ledger import StoredLedger


class States:
    """All ledgers of a bookie.

    Attributes:
        ledgers: whatever was heard of.
        suspicion: what may have been lost without a name.
        doubts, doubts_all: ledgers that lost something while the process runs; no negatives for them until a start
            has looked again and written it down.
    """

    def __init__(
        self,
        ledgers: dict[int, StoredLedger],
        suspicion: Suspicion,
        suspicion_sequence: int,
        journal: Journal,
    ) -> None:
        self.ledgers = ledgers
        self.suspicion = suspicion
        self._suspicion_sequence = suspicion_sequence
        self._journal = journal
        self.doubts: set[int] = set()
        self.doubts_all = False

    def put(self, kind: Kind, ledger_id: int, ledger: StoredLedger, space: Space = Space.STATE) -> None:
        """Journal a ledger's state as it is now. Raises StorageError when it cannot be taken."""
        body = encode_state(LedgerState(ledger.facts, ledger.dead_through))
        segment, _, lsn = self._journal.put(kind, ledger_id, body, crc32c(body), space)
        segment.keep_state(ledger_id, lsn, body)
        ledger.state_lsn, ledger.state_sequence = lsn, segment.sequence

    def put_suspicion(self, suspicion: Suspicion, space: Space = Space.STATE) -> None:
        """Journal what is suspected from now on. Raises StorageError when it cannot be taken."""
        body = encode_suspicion(suspicion)
        segment, _, lsn = self._journal.put(Kind.SUSPICION, ALL_LEDGERS, body, crc32c(body), space)
        segment.keep_state(ALL_LEDGERS, lsn, body)
        self.suspicion, self._suspicion_sequence = suspicion, segment.sequence

    def carry_over(self, sequences: Collection[int]) -> None:
        """Journal anew whatever only these segments hold. Raises StorageError when it cannot be taken."""
        for ledger_id, ledger in self.ledgers.items():
            if ledger.state_sequence in sequences:
                self.put(Kind.LEDGER_STATE, ledger_id, ledger)
        if self._suspicion_sequence in sequences:
            self.put_suspicion(self.suspicion)

    def in_doubt(self, ledger_id: int) -> bool:
        """Something of it may have been lost since the start."""
        return self.doubts_all or ledger_id in self.doubts

    def suspects(self, ledger_id: int) -> bool:
        """Whether "not here" must become "unknown" for this ledger."""
        if self._journal.failure is not None or self.in_doubt(ledger_id):
            return True
        ledger = self.ledgers.get(ledger_id)
        if ledger is None or ledger.facts is None:
            return self.suspicion.unknown
        return ledger.facts.limbo


def facts_of(ledger: StoredLedger) -> LedgerFacts:
    """The facts of a ledger that has some."""
    assert ledger.facts is not None
    return ledger.facts
