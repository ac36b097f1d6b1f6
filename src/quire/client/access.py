"""What a client sends to bookies with each request for a ledger: its id, key, token and digest, and the sender's term."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import lru_cache

from quire.core.errors import DigestMismatchError, MalformedFrameError
from quire.core.ids import NO_ENTRY, LedgerId
from quire.core.ledger.metadata import DigestType, LedgerMetadata
from quire.wire.entry import EntryDigest, master_key
from quire.wire.native_bodies import BY_ID
from quire.wire.responses import LacReply


@dataclass(frozen=True, slots=True)
class LedgerAccess:
    """What a client sends with each request for a ledger, and checks its entries with: id, key, token, digest, sender's term.

    `term` is 0 of a ledger, and of a client that only reads. The key comes from the metadata's password; a bookie that
    gets a fence before any add keeps the fence's key as the ledger's.
    """

    ledger_id: LedgerId
    key: bytes
    token: int
    digest: EntryDigest
    term: int = 0

    @classmethod
    def of(cls, record: LedgerMetadata, term: int = 0) -> LedgerAccess:
        """The access that a ledger's record gives; `term`: of who takes a stream over, or writes it."""
        key, digest = _key_and_digest(record.digest_type, record.password)
        return cls(record.ledger_id, key, record.token, digest, term)

    def trusted_lac(self, reply: LacReply) -> int:
        """The highest LAC of a response that can be relied on.

        With a MAC only what carries a valid one counts; otherwise the frame's LAC counts too. Of a stream it is a LAC of
        `reply.lac_term`.

        Source: Vanlightly's guide, "Reading from ledgers": "Quorum LAC read"; `docs/formats/native-protocol.md`,
        READ_LAC.
        """
        digest = self.digest
        lac = int(NO_ENTRY) if digest.digest_type is DigestType.HMAC else reply.lac
        with contextlib.suppress(DigestMismatchError):
            if reply.explicit_lac:
                lac = max(lac, digest.open_lac_body(reply.explicit_lac, self.ledger_id))
        with contextlib.suppress(DigestMismatchError, MalformedFrameError):
            if reply.evidence:
                lac = max(lac, self._evident_lac(reply))
        return lac

    def _evident_lac(self, reply: LacReply) -> int:
        """The LAC in the header of the bookie's last entry."""
        if not reply.lac_term:
            return self.digest.open(reply.evidence, self.ledger_id, None).last_add_confirmed
        found = self.digest.open_with_term(reply.evidence, self.ledger_id, None)
        return found.entry.last_add_confirmed if found.origin_term <= reply.lac_term else NO_ENTRY


def origin_to_ask(record: LedgerMetadata, entry_id: int) -> int:
    """The origin term that a read of an entry names: 0 of a ledger, `BY_ID` of a stream whose terms only fence."""
    return BY_ID if record.only_fences else record.origin_of(entry_id)


@lru_cache(maxsize=256)
def _key_and_digest(digest_type: DigestType, password: bytes) -> tuple[bytes, EntryDigest]:
    """Shared by all ledgers with one digest and password: they take more memory than the rest of an idle handle."""
    return master_key(password), EntryDigest(digest_type, password)
