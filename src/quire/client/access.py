"""What a client needs to speak of one ledger to its bookies."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from quire.core.ids import LedgerId
from quire.core.ledger_metadata import DigestType, LedgerMetadata
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
        key, digest = _key_and_digest(record.digest_type, record.password)
        return cls(record.ledger_id, key, record.token, digest)


@lru_cache(maxsize=256)
def _key_and_digest(digest_type: DigestType, password: bytes) -> tuple[bytes, EntryDigest]:
    """Shared by all ledgers with one digest and password: they take more memory than the rest of an idle handle."""
    return master_key(password), EntryDigest(digest_type, password)
