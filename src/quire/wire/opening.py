"""Checking the entries of a run that came from a bookie, all at once.

Column by column: what the interpreter would do for each entry is one call for all of them. Where anything does not
fit, each entry is looked at by itself.

Source: BookKeeper overview, "Table 2: Entry fields"; `docs/formats/entry.md`.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from crc32c import crc32c

from quire.core.errors import DigestMismatchError, MalformedFrameError
from quire.core.ledger.metadata import DigestType
from quire.wire.entries import Entries
from quire.wire.entry import HEADER_BYTES, TERM_HEADER_BYTES, Buffer, Entry, EntryDigest, NoOp, TermEntry

_MAC = struct.Struct(">I")
_FIELDS = 4
_TERM_WORDS = TERM_HEADER_BYTES // 4
_TAIL = struct.Struct(">QI")
"""Origin term and flags, the end of a header of scheme 1."""
_VIEWED_BYTES = 16 * 1024
"""A payload from this size on is not copied out of what it came in."""
_SWAP = sys.byteorder == "little"


def open_entries(
    digest: EntryDigest,
    ledger_id: int,
    entry_ids: Sequence[int],
    body: Buffer,
    offsets: Sequence[int],
    origin_term: int = 0,
    *,
    no_ops: bool = False,
) -> tuple[Entries, list[int]]:
    """Check the entries of a run; what `EntryDigest.open` does, with the work per entry kept small.

    Args:
        digest: the ledger's.
        entry_ids: the ids that are expected, in the order of the entries.
        body: the buffer that holds the entries.
        offsets: where each entry starts in it, and where the last ends.
        origin_term: of a stream: the term in which they were written.
        no_ops: some may be no-ops, which become a `NoOp` each.

    Returns:
        The entries that are what was asked for, short payloads copied; and the ids of those that are not.
    """
    if digest.digest_type is DigestType.CRC32C:
        entries = _open_columns(ledger_id, entry_ids, body, offsets, origin_term)
        if entries is not None:
            return entries, []
    good: list[Entry] = []
    bad: list[int] = []
    data = memoryview(body)
    for entry_id, (start, end) in zip(entry_ids, pairwise(offsets), strict=True):
        try:
            if origin_term:
                found = digest.open_with_term(data[start:end], ledger_id, entry_id)
                entry = _of_term(found, origin_term, no_ops=no_ops)
            else:
                entry = digest.open(data[start:end], ledger_id, entry_id)
        except (DigestMismatchError, MalformedFrameError):
            bad.append(entry_id)
        else:
            good.append(entry._replace(payload=bytes(entry.payload)))
    return Entries.of(ledger_id, good), bad


def _of_term(found: TermEntry, origin_term: int, *, no_ops: bool) -> Entry:
    if found.origin_term != origin_term or (found.flags and not (no_ops and not found.entry.payload)):
        entry = found.entry
        msg = (
            f"ledger {entry.ledger_id}, entry {entry.entry_id} is of term {found.origin_term} with flags {found.flags}; "
            f"the bookie was asked for one of term {origin_term}"
        )
        raise DigestMismatchError(msg, ledger_id=entry.ledger_id, entry_id=entry.entry_id)
    return NoOp(*found.entry) if found.flags else found.entry


def _open_columns(
    ledger_id: int, entry_ids: Sequence[int], body: Buffer, offsets: Sequence[int], origin_term: int
) -> Entries | None:
    """The CRC32C entries of a run if all are good, else None."""
    header_bytes = TERM_HEADER_BYTES if origin_term else HEADER_BYTES
    overhead = header_bytes + _MAC.size
    count = len(offsets) - 1
    size = offsets[1] - offsets[0]
    headers: Sequence[bytes | memoryview]
    macs: Sequence[int]
    payloads: Sequence[bytes | memoryview]
    alike = size > 0 and offsets == list(range(offsets[0], offsets[-1] + 1, size))
    shortest = size if alike else min([end - start for start, end in pairwise(offsets)])
    if shortest < overhead:
        return None
    if shortest >= _VIEWED_BYTES:
        headers, macs, payloads = _pick(memoryview(body), offsets, header_bytes)
    elif alike:
        # One tuple for all fields, not one for each entry: those the garbage collector would look through.
        fields = _layout(count, size - overhead, header_bytes).unpack_from(body, offsets[0])
        headers, macs, payloads = fields[0::3], fields[1::3], fields[2::3]
    else:
        headers, macs, payloads = _pick(bytes(body), offsets, header_bytes)
    if tuple(map(crc32c, payloads, map(crc32c, headers))) != macs:
        return None
    joined = b"".join(headers)
    if origin_term:
        joined = _without_terms(joined, origin_term)
    numbers = array("q", joined)
    if _SWAP:
        numbers.byteswap()
    if numbers[0::_FIELDS].count(ledger_id) != count or numbers[1::_FIELDS] != array("q", entry_ids):
        return None
    return Entries(ledger_id, entry_ids, numbers[2::_FIELDS], numbers[3::_FIELDS], payloads)


def _without_terms(headers: bytes, origin_term: int) -> bytes:
    """Headers of scheme 1, one after another, as those of scheme 0; nothing if one has another term, or flags.

    A header has 11 words of 4 bytes: four numbers of two words each, then origin term and flags. Taken out word by word, from
    behind, they cost less than any way through numbers.
    """
    words, tail = array("I", headers), _TAIL.pack(origin_term, 0)
    for word in range(_TERM_WORDS - 1, 2 * _FIELDS - 1, -1):
        wanted = tail[4 * (word - 2 * _FIELDS) :][:4]
        if words[word :: word + 1].tobytes() != wanted * (len(words) // (word + 1)):
            return b""
        del words[word :: word + 1]
    return words.tobytes()


def _pick(
    data: bytes | memoryview, offsets: Sequence[int], header_bytes: int
) -> tuple[list[bytes | memoryview], tuple[int, ...], tuple[bytes | memoryview, ...]]:
    """Header, digest and payload of each entry, as parts of `data`."""
    overhead = header_bytes + _MAC.size
    headers = [data[start : start + header_bytes] for start in offsets[:-1]]
    macs = tuple([_MAC.unpack_from(data, start + header_bytes)[0] for start in offsets[:-1]])
    return headers, macs, tuple([data[start + overhead : end] for start, end in pairwise(offsets)])


@lru_cache(maxsize=32)
def _layout(count: int, payload_bytes: int, header_bytes: int) -> struct.Struct:
    """A run of entries of one size: header, digest and payload of each."""
    return struct.Struct(">" + f"{header_bytes}sI{payload_bytes}s" * count)
