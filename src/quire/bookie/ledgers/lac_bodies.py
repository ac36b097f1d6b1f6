"""Explicit LAC bodies as a bookie sees them: it may not know the password, and checks what it can without.

Source: `docs/formats/entry.md`, "The explicit LAC"; `docs/formats/native-protocol.md`, WRITE_LAC and WRITE_LACS.
"""

from __future__ import annotations

from quire.core.ids import NO_ENTRY
from quire.core.ledger.metadata import DigestType
from quire.wire.entry import LAC_BODY_BYTES, MAC_BYTES, EntryDigest, explicit_lac_of
from quire.wire.native_bodies import LacItem

_ZEROS = b"\0" * 20
_PLAIN_DIGESTS = {
    int(digest_type): EntryDigest(digest_type, b"")
    for digest_type in DigestType
    if digest_type is not DigestType.HMAC
}
"""Digests that need no password: any client can make what they cover."""


def lac_body_of(item: LacItem) -> bytes | None:
    """An item's explicit LAC body: as it came where the digest has a key, else made here; None if it cannot be."""
    digest = _PLAIN_DIGESTS.get(item.digest_type)
    if digest is not None:
        return None if item.body else digest.lac_body(item.ledger_id, item.lac)
    if item.digest_type != DigestType.HMAC or not is_lac_body(item.body, item.ledger_id):
        return None
    return item.body if explicit_lac_of(item.body) == item.lac else None


def plain_lac_body(ledger_id: int, lac: int, digest_type: int) -> bytes:
    """The explicit LAC body of a ledger whose digest needs no password; empty for any other."""
    digest = _PLAIN_DIGESTS.get(digest_type)
    return b"" if digest is None else digest.lac_body(ledger_id, lac)


def key_of(item: LacItem) -> bytes:
    """An item's key; empty when none was sent."""
    return b"" if item.key == _ZEROS else item.key


def is_lac_body(body: bytes, ledger_id: int) -> bool:
    """Whether this can be a ledger's explicit LAC: its id, a LAC, and a digest, which the bookie cannot check."""
    return (
        LAC_BODY_BYTES <= len(body) <= LAC_BODY_BYTES + max(MAC_BYTES.values())
        and int.from_bytes(body[:8], "big") == ledger_id
        and explicit_lac_of(body) >= NO_ENTRY
    )
