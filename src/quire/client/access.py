"""What a client needs to speak of one ledger to its bookies."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import lru_cache

from quire.core.errors import DigestMismatchError
from quire.core.ids import NO_ENTRY, LedgerId
from quire.core.ledger_metadata import DigestType, LedgerMetadata
from quire.wire.entry import EntryDigest, master_key
from quire.wire.responses import LacReply


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

    def trusted_lac(self, reply: LacReply) -> int:
        """The highest LAC of a response that can be relied on.

        With a MAC only what carries a valid one counts; otherwise the frame's LAC counts too.

        Source: Vanlightly's guide, "Reading from ledgers": "Quorum LAC read"; `docs/formats/native-protocol.md`,
        READ_LAC.
        """
        digest = self.digest
        lac = int(NO_ENTRY) if digest.digest_type is DigestType.HMAC else reply.lac
        with contextlib.suppress(DigestMismatchError):
            if reply.explicit_lac:
                lac = max(lac, digest.open_lac_body(reply.explicit_lac, self.ledger_id))
        with contextlib.suppress(DigestMismatchError):
            if reply.evidence:
                lac = max(lac, digest.open(reply.evidence, self.ledger_id, None).last_add_confirmed)
        return lac


@lru_cache(maxsize=256)
def _key_and_digest(digest_type: DigestType, password: bytes) -> tuple[bytes, EntryDigest]:
    """Shared by all ledgers with one digest and password: they take more memory than the rest of an idle handle."""
    return master_key(password), EntryDigest(digest_type, password)
