"""An entry as BookKeeper stores it, with its digest; the ledger password.

| offset | size | field |
| --- | --- | --- |
| 0 | 8 | ledger id |
| 8 | 8 | entry id |
| 16 | 8 | last add confirmed when the entry was sent, -1 if none |
| 24 | 8 | length: payload bytes of the ledger up to and including this entry |
| 32 | M | digest (M = 8 CRC32, 20 HMAC, 4 CRC32C, 0 DUMMY) |
| 32+M | | payload |

The digest covers bytes 0..31 and the payload. Integers are big-endian and signed.

In a run of scheme 1, the origin term (8 bytes) and flags (4) follow the first 32 bytes, and the digest covers all 44.

Source: BookKeeper overview, "Table 2: Entry fields"; `docs/formats/entry.md`.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from crc32c import crc32c

from quire.core.errors import DigestMismatchError, MalformedFrameError, MisuseError
from quire.core.ids import EntryId, LedgerId
from quire.core.ledger.metadata import DigestType
from quire.wire.layout import Field, FieldUse, Layout, NamedValues

Buffer: TypeAlias = bytes | bytearray | memoryview

_SAID = FieldUse("client", "client, bookie")
_OF_STREAM = FieldUse("client of a stream", "client, bookie")
HEADER_FIELDS = Layout(
    "Entry, then its digest and its payload",
    [
        Field("ledger id", "q", _SAID),
        Field("entry id", "q", _SAID),
        Field("LAC", "q", _SAID),
        Field("length", "q", _SAID),
    ],
)
TERM_HEADER_FIELDS = Layout(
    "Entry of a run of scheme 1, then its digest and its payload",
    [*HEADER_FIELDS.fields, Field("origin term", "Q", _OF_STREAM), Field("flags", "I", _OF_STREAM)],
)
HEADER = HEADER_FIELDS.struct
HEADER_BYTES = HEADER.size
IDENTITY: Final = struct.Struct(">qq")
"""Ledger id and entry id, with which an entry of either scheme begins."""
TERM_HEADER = TERM_HEADER_FIELDS.struct
TERM_HEADER_BYTES = TERM_HEADER.size
TERM_IDENTITY: Final = struct.Struct(">qq16xQ4x")
"""Ledger id, entry id and origin term in the header of an entry of scheme 1."""
_FENCING = FieldUse("client of a stream whose terms only fence", "client")
_LATER = FieldUse("none yet", "none yet")
NO_OP: Final = 1
"""Flag of an entry of scheme 1: it has no payload of a user, and only fills its place."""
ENTRY_FLAGS = NamedValues(
    "Flags of an entry of scheme 1",
    {str(NO_OP): ("no-op", _FENCING), "others": ("every other bit", _LATER)},
)
_LAC_BODY = struct.Struct(">qq")
LAC_BODY_BYTES = _LAC_BODY.size
"""An explicit LAC's body without its digest."""
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")

MAC_BYTES = {DigestType.CRC32: 8, DigestType.HMAC: 20, DigestType.CRC32C: 4, DigestType.DUMMY: 0}
_NAMES = {
    "crc32": DigestType.CRC32,
    "crc32c": DigestType.CRC32C,
    "mac": DigestType.HMAC,
    "hmac": DigestType.HMAC,
    "dummy": DigestType.DUMMY,
}


def digest_type_of(name: str | DigestType) -> DigestType:
    """The digest type for a user's word: crc32, crc32c, mac (or hmac), dummy.

    Raises:
        MisuseError: for any other word, with the list.
    """
    if isinstance(name, DigestType):
        return name
    try:
        return _NAMES[name.lower()]
    except (KeyError, AttributeError):
        msg = f"unknown digest {name!r}: use one of crc32c, crc32, mac, dummy"
        raise MisuseError(msg) from None


def master_key(password: bytes) -> bytes:
    """The 20 bytes that bookies store and compare; they never see the password."""
    return hashlib.sha1(b"ledger" + password).digest()  # noqa: S324 - BookKeeper's format


class Entry(NamedTuple):
    """One entry as a reader gets it. `length` is the ledger's payload bytes up to and including it.

    A tuple, because tuples are made three times faster than frozen dataclasses; a scan hands over `Entries`.
    """

    ledger_id: LedgerId
    entry_id: EntryId
    last_add_confirmed: EntryId
    length: int
    payload: bytes | memoryview


class NoOp(Entry):
    """An id of a stream whose terms only fence that has no user's entry: a take-over ended there, with an empty payload."""

    __slots__ = ()


class TermEntry(NamedTuple):
    """An entry of a run of scheme 1: the term in which it was written, and whether it is a no-op."""

    entry: Entry
    origin_term: int
    flags: int


class EntryDigest:
    """Makes and checks the digests of one ledger's entries.

    Args:
        digest_type: the ledger's digest.
        password: the ledger's password; only HMAC digests depend on it.
    """

    __slots__ = ("_keyed", "_mac", "digest_type", "mac_size", "overhead")

    def __init__(self, digest_type: DigestType, password: bytes) -> None:
        self.digest_type = digest_type
        self.mac_size = MAC_BYTES[digest_type]
        self.overhead = HEADER_BYTES + self.mac_size
        self._keyed = hmac.new(hashlib.sha1(b"mac" + password).digest(), digestmod="sha1")  # noqa: S324
        self._mac: Callable[[Buffer, Buffer], bytes] = {
            DigestType.CRC32: _crc32,
            DigestType.CRC32C: _crc32c,
            DigestType.HMAC: self._hmac,
            DigestType.DUMMY: _nothing,
        }[digest_type]

    def _hmac(self, header: Buffer, payload: Buffer) -> bytes:
        keyed = self._keyed.copy()
        keyed.update(header)
        keyed.update(payload)
        return keyed.digest()

    def seal(
        self, ledger_id: int, first_entry: int, lac: int, length_before: int, payloads: Sequence[bytes]
    ) -> list[bytes]:
        """The header and digest of each of some entries with consecutive ids.

        Args:
            first_entry: id of the first payload's entry.
            lac: the last add confirmed, the same for all.
            length_before: payload bytes of the ledger before the first.

        Returns:
            One `overhead`-sized byte string per payload; the entry is that followed by the payload.
        """
        pack = HEADER.pack
        length = length_before
        sealed: list[bytes] = []
        add = sealed.append
        if self.digest_type is DigestType.CRC32C:
            pack_crc = _U32.pack
            for entry_id, payload in enumerate(payloads, first_entry):
                length += len(payload)
                header = pack(ledger_id, entry_id, lac, length)
                add(header + pack_crc(crc32c(payload, crc32c(header))))
            return sealed
        mac = self._mac
        for entry_id, payload in enumerate(payloads, first_entry):
            length += len(payload)
            header = pack(ledger_id, entry_id, lac, length)
            add(header + mac(header, payload))
        return sealed

    def seal_in_term(
        self,
        ledger_id: int,
        first_entry: int,
        lac: int,
        length_before: int,
        payloads: Sequence[bytes],
        origin_term: int,
    ) -> list[bytes]:
        """As `seal`, for a stream's entries: their headers, of scheme 1, name the term in which they are written."""
        pack, mac, length = TERM_HEADER.pack, self._mac, length_before
        sealed: list[bytes] = []
        add = sealed.append
        if self.digest_type is DigestType.CRC32C:
            pack_crc = _U32.pack
            for entry_id, payload in enumerate(payloads, first_entry):
                length += len(payload)
                header = pack(ledger_id, entry_id, lac, length, origin_term, 0)
                add(header + pack_crc(crc32c(payload, crc32c(header))))
            return sealed
        for entry_id, payload in enumerate(payloads, first_entry):
            length += len(payload)
            header = pack(ledger_id, entry_id, lac, length, origin_term, 0)
            add(header + mac(header, payload))
        return sealed

    def seal_one(self, ledger_id: int, entry_id: int, lac: int, length: int, payload: Buffer) -> bytes:
        """The header and digest of one entry whose cumulative `length` is known (recovery, re-replication)."""
        header = HEADER.pack(ledger_id, entry_id, lac, length)
        return header + self._mac(header, payload)

    def open(self, entry: Buffer, ledger_id: int, entry_id: int | None) -> Entry:
        """Check an entry that came from a bookie or a disk.

        Args:
            entry: header, digest and payload.
            ledger_id: the ledger that was asked for.
            entry_id: the entry that was asked for; None where it is not known (last-entry reads).

        Returns:
            The entry; its payload is a view into `entry`.

        Raises:
            DigestMismatchError: too short, wrong digest, or another ledger's or id's entry.
        """
        view = memoryview(entry)
        overhead = self.overhead
        if len(view) < overhead:
            msg = f"ledger {ledger_id}, entry {entry_id}: {len(view)} bytes are fewer than an entry's {overhead}"
            raise DigestMismatchError(msg, ledger_id=ledger_id, entry_id=entry_id)
        header = view[:HEADER_BYTES]
        payload = view[overhead:]
        if self._mac(header, payload) != view[HEADER_BYTES:overhead]:
            msg = f"ledger {ledger_id}, entry {entry_id}: the {self.digest_type.name} digest differs"
            raise DigestMismatchError(msg, ledger_id=ledger_id, entry_id=entry_id)
        found_ledger, found_entry, lac, length = HEADER.unpack(header)
        if found_ledger != ledger_id or (entry_id is not None and found_entry != entry_id):
            msg = f"ledger {ledger_id}, entry {entry_id}: the bookie sent entry {found_entry} of ledger {found_ledger}"
            raise DigestMismatchError(msg, ledger_id=ledger_id, entry_id=entry_id)
        return Entry(LedgerId(found_ledger), EntryId(found_entry), EntryId(lac), length, payload)

    def seal_with_term(
        self,
        ledger_id: int,
        entry_id: int,
        lac: int,
        length: int,
        payload: Buffer,
        *,
        origin_term: int,
        flags: int = 0,
    ) -> bytes:
        """The header and digest of one entry of a run of scheme 1; the rest as in `seal_one`."""
        header = TERM_HEADER.pack(ledger_id, entry_id, lac, length, origin_term, flags)
        return header + self._mac(header, payload)

    def open_with_term(self, entry: Buffer, ledger_id: int, entry_id: int | None) -> TermEntry:
        """Check an entry of a run of scheme 1; the rest as in `open`.

        Raises:
            DigestMismatchError: too short, wrong digest, or another ledger's or id's entry.
            MalformedFrameError: it has flags that this version does not know.
        """
        view = memoryview(entry)
        overhead = TERM_HEADER_BYTES + self.mac_size
        where = f"ledger {ledger_id}, entry {entry_id}"
        header, payload = view[:TERM_HEADER_BYTES], view[overhead:]
        if len(view) < overhead or self._mac(header, payload) != view[TERM_HEADER_BYTES:overhead]:
            msg = f"{where}: {len(view)} bytes with a header of scheme 1, the {self.digest_type.name} digest differs"
            raise DigestMismatchError(msg, ledger_id=ledger_id, entry_id=entry_id)
        found_ledger, found_entry, lac, length, term, flags = TERM_HEADER.unpack(header)
        if found_ledger != ledger_id or (entry_id is not None and found_entry != entry_id):
            msg = f"{where}: the bookie sent entry {found_entry} of ledger {found_ledger}"
            raise DigestMismatchError(msg, ledger_id=ledger_id, entry_id=entry_id)
        if flags & ~NO_OP:
            msg = f"{where} has flags {flags:#x}: a newer version of quire wrote it, and reads it"
            raise MalformedFrameError(msg, ledger_id=ledger_id, entry_id=entry_id)
        found = Entry(LedgerId(found_ledger), EntryId(found_entry), EntryId(lac), length, payload)
        return TermEntry(found, term, flags)

    def lac_body(self, ledger_id: int, lac: int) -> bytes:
        """The body of an explicit LAC: ledger id, LAC, digest over both."""
        head = _LAC_BODY.pack(ledger_id, lac)
        return head + self._mac(head, b"")

    def open_lac_body(self, body: Buffer, ledger_id: int) -> EntryId:
        """The LAC of an explicit LAC body.

        Raises:
            DigestMismatchError: wrong size, digest or ledger.
        """
        view = memoryview(body)
        size = _LAC_BODY.size
        if len(view) != size + self.mac_size or self._mac(view[:size], b"") != view[size:]:
            msg = f"ledger {ledger_id}: an explicit LAC of {len(view)} bytes has a wrong digest"
            raise DigestMismatchError(msg, ledger_id=ledger_id)
        found_ledger, lac = _LAC_BODY.unpack(view[:size])
        if found_ledger != ledger_id:
            msg = f"ledger {ledger_id}: the bookie sent the explicit LAC of ledger {found_ledger}"
            raise DigestMismatchError(msg, ledger_id=ledger_id)
        return EntryId(lac)


def explicit_lac_of(body: Buffer) -> int:
    """The LAC in an explicit LAC body, unchecked: what a bookie reads, as it may not know the password."""
    return int(_LAC_BODY.unpack_from(body)[1])


def _crc32(header: Buffer, payload: Buffer) -> bytes:
    return _U64.pack(zlib.crc32(payload, zlib.crc32(header)))


def _crc32c(header: Buffer, payload: Buffer) -> bytes:
    return _U32.pack(crc32c(payload, crc32c(header)))


def _nothing(header: Buffer, payload: Buffer) -> bytes:  # noqa: ARG001 - one signature for all digests
    return b""
