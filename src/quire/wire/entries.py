"""Some entries of one ledger, held column by column: what a scan hands over at a time.

A run of small entries costs a reader mostly objects. Columns need one per entry, the payload; an `Entry` is made
when one is used. `open_entries` checks those of a run that came from a bookie, all at once: what the interpreter would do for
each entry is one call for all of them. Where anything does not fit, each entry is looked at by itself. `copies` makes them into
runs again, for recovery (entries to write back) and for the repair of a replica.

Source: Vanlightly's guide, "Reading from ledgers"; BookKeeper overview, "Table 2: Entry fields"; `docs/formats/entry.md`.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import chain, pairwise, repeat
from typing import NamedTuple, Self, TypeAlias, overload

from crc32c import crc32c

from quire.core.errors import DigestMismatchError, MalformedFrameError
from quire.core.ids import EntryId, LedgerId
from quire.core.ledger.metadata import DigestType
from quire.wire.entry import (
    HEADER_BYTES,
    NO_OP,
    TERM_HEADER_BYTES,
    Buffer,
    Entry,
    EntryDigest,
    NoOp,
    TermEntry,
)
from quire.wire.run import SCHEME_PLAIN, SCHEME_TERMS, checksum, encode_run

Payloads: TypeAlias = Sequence[bytes | memoryview]


class Entries(Sequence[Entry]):
    """Entries with ascending ids, as a sequence of `Entry` and as columns of equal length.

    Args:
        ledger_id: the ledger of all of them.
        entry_ids: the id of each, a range where they follow one another.
        lacs: the last add confirmed that each was sent with.
        lengths: payload bytes of the ledger up to and including each.
        payloads: the payload of each. A long one may be a view of what it came in, which it keeps from being used again;
            an `Entry` has its own bytes.
        no_ops: the ids of those that are no-ops, ascending; each is a `NoOp` as a row.
    """

    __slots__ = ("entry_ids", "lacs", "ledger_id", "lengths", "no_ops", "payloads")

    def __init__(
        self,
        ledger_id: int,
        entry_ids: Sequence[int],
        lacs: Sequence[int],
        lengths: Sequence[int],
        payloads: Payloads,
        no_ops: tuple[int, ...] = (),
    ) -> None:
        self.ledger_id = LedgerId(ledger_id)
        self.no_ops = no_ops
        self.entry_ids, self.lacs, self.lengths, self.payloads = entry_ids, lacs, lengths, payloads

    @classmethod
    def of(cls, ledger_id: int, entries: Iterable[Entry]) -> Self:
        """Entries that were made one by one; their ids ascend."""
        rows = list(entries)
        return cls(
            ledger_id,
            _as_range([row[1] for row in rows]),
            array("q", [row[2] for row in rows]),
            array("q", [row[3] for row in rows]),
            tuple([row[4] for row in rows]),
            tuple([row[1] for row in rows if type(row) is NoOp]),
        )

    @classmethod
    def join(cls, ledger_id: int, parts: Sequence[Entries]) -> Entries:
        """All entries of some parts; the ids ascend from part to part."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            ledger_id,
            _joined([part.entry_ids for part in parts]),
            _numbers([part.lacs for part in parts]),
            _numbers([part.lengths for part in parts]),
            tuple(chain.from_iterable(part.payloads for part in parts)),
            tuple(chain.from_iterable(part.no_ops for part in parts)),
        )

    def of_users(self) -> Entries:
        """The same without no-ops."""
        no_ops = self.no_ops
        return Entries.of(self.ledger_id, [row for row in self if row[1] not in no_ops]) if no_ops else self

    def without_gap(self, first: int) -> Entries:
        """The entries from `first` on as far as each id follows the one before; none if this does not begin there."""
        ids = self.entry_ids
        together = 0
        if isinstance(ids, range):
            together = len(ids) if ids[:1] == range(first, first + 1) else 0
        else:
            while together < len(ids) and ids[together] == first + together:
                together += 1
        return self if together == len(ids) else self[:together]

    def __len__(self) -> int:
        return len(self.payloads)

    @overload
    def __getitem__(self, index: int) -> Entry: ...

    @overload
    def __getitem__(self, index: slice) -> Entries: ...

    def __getitem__(self, index: int | slice) -> Entry | Entries:
        """The entry at a position, or the entries at some positions."""
        ids, lacs, lengths, payloads = self.entry_ids, self.lacs, self.lengths, self.payloads
        if isinstance(index, slice):
            some = ids[index]
            no_ops = tuple(entry_id for entry_id in self.no_ops if entry_id in some)
            return Entries(self.ledger_id, some, lacs[index], lengths[index], payloads[index], no_ops)
        kind = NoOp if ids[index] in self.no_ops else Entry
        return kind(
            self.ledger_id, EntryId(ids[index]), EntryId(lacs[index]), lengths[index], bytes(payloads[index])
        )

    def __iter__(self) -> Iterator[Entry]:
        rows = zip(
            repeat(self.ledger_id, len(self)),
            self.entry_ids,
            self.lacs,
            self.lengths,
            map(bytes, self.payloads),  # those that are bytes stay what they are
            strict=True,
        )
        kinds: Iterable[type[Entry]] = repeat(Entry)
        if self.no_ops:
            kinds = [NoOp if entry_id in self.no_ops else Entry for entry_id in self.entry_ids]
        return map(tuple.__new__, kinds, rows)

    def __repr__(self) -> str:
        if not self:
            return f"<no entries of ledger {self.ledger_id}>"
        return f"<{len(self)} entries of ledger {self.ledger_id}, {self.entry_ids[0]}..{self.entry_ids[-1]}>"


def _as_range(ids: Sequence[int]) -> Sequence[int]:
    """Ascending ids, as a range where they can be one."""
    if ids and ids[-1] - ids[0] + 1 == len(ids):
        return range(ids[0], ids[-1] + 1)
    return ids


def _numbers(parts: Sequence[Sequence[int]]) -> array[int]:
    numbers = array("q")
    for part in parts:
        numbers.extend(part)
    return numbers


def _joined(parts: Sequence[Sequence[int]]) -> Sequence[int]:
    filled = [part for part in parts if part]
    if filled and sum(map(len, filled)) == filled[-1][-1] - filled[0][0] + 1:
        return range(filled[0][0], filled[-1][-1] + 1)
    return list(chain.from_iterable(filled))


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


# --- and back -------------------------------------------------------------------------------------------------------


class Copies(NamedTuple):
    """One run of entries that were found, ready to be sent as a recovery add."""

    first: int
    last: int
    body: bytes
    body_crc: int


def copies(
    entries: Iterable[Entry],
    digest: EntryDigest,
    bytes_max: int,
    *,
    period: int = 1,
    stripes: int = 1,
    lac: int | None = None,
    origin_term: int = 0,
) -> Iterator[Copies]:
    """Entries on their way to another bookie: made into runs again, of at most about `bytes_max`.

    Args:
        entries: of one ledger, by ascending id; a gap begins another run.
        digest: the ledger's.
        bytes_max: a run is cut before it would grow larger; one entry at least.
        period: 1, or the ensemble size of a striped ledger.
        stripes: with a period above 1, the stripes that the bookie stores; other entries are left out.
        lac: the LAC for all headers; None keeps the one that each entry was found with.
        origin_term: of a stream: the term in which all of them were written, which stays theirs.

    Yields:
        Runs with the entries' ids, lengths and payloads as they were found.

    Source: BookKeeper protocol, "Closing a ledger as a reader": "replicating all entries it sees".
    """
    group: list[Entry] = []
    size, expected = 0, -1
    for entry in entries:
        entry_id = entry.entry_id
        if period > 1 and not stripes >> entry_id % period & 1:
            continue
        if group and (_has_gap(expected, entry_id, period, stripes) or size + len(entry.payload) > bytes_max):
            yield _run_of(group, digest, period, stripes, lac, origin_term)
            group, size = [], 0
        group.append(entry)
        size += len(entry.payload) + digest.overhead
        expected = entry_id + 1
    if group:
        yield _run_of(group, digest, period, stripes, lac, origin_term)


def _has_gap(expected: int, entry_id: int, period: int, stripes: int) -> bool:
    """Whether an id of these stripes lies between two entries, so that they cannot be one run."""
    if period == 1:
        return entry_id != expected
    return entry_id - expected >= period or any(
        stripes >> skipped % period & 1 for skipped in range(expected, entry_id)
    )


def _run_of(
    group: Sequence[Entry],
    digest: EntryDigest,
    period: int,
    stripes: int,
    lac: int | None,
    origin_term: int,
) -> Copies:
    buffers: list[Buffer] = []
    sizes: list[int] = []
    seal_one = partial(digest.seal_with_term, origin_term=origin_term) if origin_term else digest.seal_one
    seal_no_op = partial(digest.seal_with_term, origin_term=origin_term, flags=NO_OP)
    for entry in group:
        ledger_id, entry_id, found_lac, length, payload = entry
        seal = seal_no_op if type(entry) is NoOp else seal_one
        header = seal(ledger_id, entry_id, found_lac if lac is None else lac, length, payload)
        buffers += (header, payload)
        sizes.append(len(header) + len(payload))
    first, last = group[0].entry_id, group[-1].entry_id
    if period > 1:
        # A run names only stripes that it has entries of.
        stripes = sum({1 << entry.entry_id % period for entry in group})
    body = encode_run(
        ledger_id,
        first,
        last,
        buffers,
        sizes,
        digest_type=digest.digest_type,
        period=period,
        stripes=stripes,
        origin_term=origin_term,
        scheme=SCHEME_TERMS if origin_term else SCHEME_PLAIN,
    )
    return Copies(first, last, body, checksum(body))
