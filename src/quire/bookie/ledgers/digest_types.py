"""Which digest a ledger has, for clients that do not say: read once from the metadata, in the background.

V2 and V3 adds carry no digest type, and a guess would refuse good entries: until it is known they are not checked.

Source: docs/decisions/030-digest-type.md; docs/formats/bookkeeper-protocol.md, "Entries become runs again".
"""

from __future__ import annotations

import logging
from typing import Final

from quire.bookie.ledgers.record_reads import ReadOutcome, RecordReads
from quire.core.errors import NoSuchLedgerError
from quire.core.ledger.metadata import DigestType, LedgerMetadata
from quire.wire.entry import EntryDigest

log = logging.getLogger(__name__)

KEPT_MAX: Final = 4096
ASKING_MAX: Final = 16
"""So many ledgers are looked up at one time; others are asked for with a later add of theirs."""


class DigestTypes:
    """The digest types of the ledgers that lately were added to over V2 or V3.

    Args:
        reads: reads records; a record read for another request shows its ledger's type as well.

    Attributes:
        mismatches: adds refused because their digest was wrong.
    """

    def __init__(self, reads: RecordReads) -> None:
        self._reads = reads
        self._known: dict[int, DigestType | None] = {}
        self._asking: set[int] = set()
        self._checkers = {kind: EntryDigest(kind, b"") for kind in (DigestType.CRC32, DigestType.CRC32C)}
        self.mismatches = 0
        reads.listeners.append(self._on_record)

    def get(self, ledger_id: int) -> DigestType | None:
        """The ledger's digest type; None while it is not known, and then it is looked up."""
        try:
            return self._known[ledger_id]
        except KeyError:
            pass
        self._look_up(ledger_id)
        return None

    def mismatched(self, ledger_id: int, count: int) -> None:
        """So many entries have another digest: they are damaged, or the id is another ledger's now, which is looked up."""
        self.mismatches += count
        self._look_up(ledger_id)

    def _look_up(self, ledger_id: int) -> None:
        if ledger_id not in self._asking and len(self._asking) < ASKING_MAX:
            self._asking.add(ledger_id)
            self._reads.read(ledger_id, self._answered)

    def checker(self, kind: DigestType | None) -> EntryDigest | None:
        """What checks entries of a type without the ledger's password; None where nothing can."""
        return None if kind is None else self._checkers.get(kind)

    def _on_record(self, ledger_id: int, outcome: ReadOutcome) -> None:
        if not isinstance(outcome, LedgerMetadata):
            return  # the id may be assigned later
        while len(self._known) >= KEPT_MAX:
            del self._known[next(iter(self._known))]
        # Format 1 stores no type: such ledgers are not checked.
        self._known[ledger_id] = outcome.digest_type if outcome.has_password else None

    def _answered(self, ledger_id: int, outcome: ReadOutcome) -> None:
        self._asking.discard(ledger_id)
        if ledger_id not in self._known and not isinstance(outcome, NoSuchLedgerError):
            log.info("the digest type of ledger %d could not be read yet: %s", ledger_id, outcome)
