"""What a client needs to speak of one ledger to its bookies."""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.ids import LedgerId
from quire.core.ledger_metadata import LedgerMetadata
from quire.wire.entry import EntryDigest, master_key


@dataclass(frozen=True, slots=True)
class LedgerAccess:
    """A ledger's id, the key its bookies check, its token and its digest.

    The key comes from the metadata's password: a fence that arrives before any add fixes it.
    """

    ledger_id: LedgerId
    key: bytes
    token: int
    digest: EntryDigest

    @classmethod
    def of(cls, record: LedgerMetadata) -> LedgerAccess:
        """The access that a ledger's record gives."""
        return cls(
            record.ledger_id,
            master_key(record.password),
            record.token,
            EntryDigest(record.digest_type, record.password),
        )
