"""The run body: entries of one ledger with ascending ids, handed over together. The same bytes on wire and disk.

Layout: `docs/formats/run.md`. The body holds nothing about a connection or a bookie.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Final, NamedTuple

from crc32c import crc32c

from quire.core.errors import MalformedFrameError
from quire.core.ids import ENSEMBLE_MAX, ID_MAX
from quire.core.ledger.metadata import DigestType
from quire.core.ledger.terms import ANY_ORIGIN
from quire.wire.entry import HEADER, HEADER_BYTES, MAC_BYTES, TERM_HEADER_BYTES, TERM_IDENTITY, Buffer
from quire.wire.layout import Field, FieldUse, Layout, NamedValues

RUN_VERSION = 1
SCHEME_PLAIN: Final = 0
"""Each entry has BookKeeper's header and digest."""
SCHEME_TERMS: Final = 1
"""Each entry's header also has its origin term and flags, under the digest."""
SCHEMES = NamedValues(
    "Digest schemes of a run",
    {
        str(SCHEME_PLAIN): ("entries as BookKeeper has them", FieldUse("client", "client, bookie")),
        str(SCHEME_TERMS): (
            "origin term and flags",
            FieldUse("client of a stream", "client, bookie"),
        ),
    },
)
_SAID = FieldUse("client", "client, bookie")
RUN_FIELDS = Layout(
    "Run body, then its table and its entries",
    [
        Field("version", "B", _SAID),
        Field("digest scheme", "B", _SAID),
        Field("digest type", "B", _SAID),
        Field("period", "B", _SAID),
        Field("count", "I", _SAID),
        Field("ledger id", "q", _SAID),
        Field("first entry id", "q", _SAID),
        Field("last entry id", "q", _SAID),
        Field("stripes", "Q", _SAID),
        Field("origin term", "Q", FieldUse("client of a stream: above 0", "client, bookie")),
        Field("checksum of the table", "I", _SAID),
        Field("checksum of the header", "I", _SAID),
    ],
)
RUN_HEADER = RUN_FIELDS.struct
RUN_HEADER_BYTES = RUN_HEADER.size
_HEAD = struct.Struct(">BBBBIqqqQQI")
_U32 = struct.Struct(">I")
_SWAP = sys.byteorder == "little"
_CRC32C = int(DigestType.CRC32C)
_CRC32C_OVERHEAD = HEADER_BYTES + MAC_BYTES[DigestType.CRC32C]


class RunLocation(NamedTuple):
    """Where a bookie keeps a run, for clients that can read its files too.

    Attributes:
        path: the segment's file, on the bookie's machine.
        offset: where in it the record with the run begins.
        size: bytes of the record, its header and the run's body.
        seed: the segment's: the record's header verifies with it, and only as long as the file is that segment.
        origin_term: the run's.
    """

    path: str
    offset: int
    size: int
    seed: int
    origin_term: int = 0


def checksum(body: Buffer) -> int:
    """The checksum of a whole body, as frames and records carry it."""
    return crc32c(body)


def ids_in(first: int, last: int, period: int, stripes: int) -> range | list[int]:
    """The ids of a run in ascending order."""
    if period == 1:
        return range(first, last + 1)
    return [entry_id for entry_id in range(first, last + 1) if stripes >> entry_id % period & 1]


def count_ids(first: int, last: int, period: int, stripes: int) -> int:
    """How many ids a run with these bounds has, without listing them."""
    if period == 1:
        return last - first + 1
    whole, rest = divmod(last - first + 1, period)
    return whole * stripes.bit_count() + sum(stripes >> (first + i) % period & 1 for i in range(rest))


def _ids_fit(first: int, last: int, count: int, period: int, stripes: int) -> bool:
    """Whether a run with these bounds and stripes has so many entries, the first and the last among them."""
    return bool(
        1 <= period <= ENSEMBLE_MAX
        and 0 < stripes < 1 << period
        and last - first < count * period + period
        and count == count_ids(first, last, period, stripes)
        and stripes >> first % period & 1
        and stripes >> last % period & 1
    )


def _table(sizes: Sequence[int]) -> bytes:
    table = array("I", sizes)
    if _SWAP:
        table.byteswap()
    return table.tobytes()


@lru_cache(maxsize=1024)
def _table_of_one(size: int) -> tuple[bytes, int]:
    """The table of a run of one entry, and its checksum."""
    table = _table([size])
    return table, crc32c(table)


def encode_run(
    ledger_id: int,
    first: int,
    last: int,
    entries: Sequence[Buffer],
    sizes: Sequence[int],
    *,
    digest_type: int,
    period: int = 1,
    stripes: int = 1,
    origin_term: int = 0,
    scheme: int = SCHEME_PLAIN,
) -> bytes:
    """One body from entries that may come in several buffers each.

    Args:
        first: first entry id.
        last: last entry id.
        entries: the buffers of all entries in id order, joined as they stand (header, payload, header, …).
        sizes: the size of each entry, in bytes.
        digest_type: the ledger's digest number, 0 if not known.
        period: 1 for consecutive ids, else the ensemble size.
        stripes: mask of the stripes (id mod period) in the run; 1 when the period is 1.
        origin_term: the term in which the entries were written; 0 on ledgers without terms.
        scheme: how the entries' headers are laid out.
    """
    table = _table(sizes)
    head = _HEAD.pack(
        RUN_VERSION,
        scheme,
        digest_type,
        period,
        len(sizes),
        ledger_id,
        first,
        last,
        stripes,
        origin_term,
        crc32c(table),
    )
    return b"".join([head, _U32.pack(crc32c(head)), table, *entries])


def seal_plain_run(
    ledger_id: int, first: int, lac: int, length_before: int, payloads: Sequence[bytes]
) -> bytes:
    """The body of a run with consecutive ids, its entries sealed with CRC32C: `EntryDigest.seal` and `encode_run` in one.

    Nearly all that writers send is sealed here. A run of one entry takes half of the time of the two.

    Args:
        first: first entry id.
        lac: the LAC of all headers.
        length_before: payload bytes of the ledger before the first entry.
        payloads: the entries' payloads, in order.
    """
    count, pack, pack_crc, length = len(payloads), HEADER.pack, _U32.pack, length_before
    if count == 1:
        (payload,) = payloads
        table, table_crc = _table_of_one(_CRC32C_OVERHEAD + len(payload))
        head = _HEAD.pack(RUN_VERSION, SCHEME_PLAIN, _CRC32C, 1, 1, ledger_id, first, first, 1, 0, table_crc)
        header = pack(ledger_id, first, lac, length + len(payload))
        entry_crc = pack_crc(crc32c(payload, crc32c(header)))
        return b"".join((head, pack_crc(crc32c(head)), table, header, entry_crc, payload))
    table = _table([_CRC32C_OVERHEAD + size for size in map(len, payloads)])
    head = _HEAD.pack(
        RUN_VERSION, SCHEME_PLAIN, _CRC32C, 1, count, ledger_id, first, first + count - 1, 1, 0, crc32c(table)
    )
    parts = [head, pack_crc(crc32c(head)), table]
    for entry_id, payload in enumerate(payloads, first):
        length += len(payload)
        header = pack(ledger_id, entry_id, lac, length)
        parts += (header, pack_crc(crc32c(payload, crc32c(header))), payload)
    return b"".join(parts)


class RunView:
    """A run body, checked and opened without copying.

    Attributes:
        body: the bytes as they came.
        ledger_id, first, last, count, period, stripes, digest_type, origin_term, scheme: as in the header.
        sizes: the table: bytes of each entry.
    """

    __slots__ = (
        "_offsets",
        "body",
        "count",
        "digest_type",
        "first",
        "last",
        "ledger_id",
        "origin_term",
        "period",
        "scheme",
        "sizes",
        "stripes",
    )

    body: Buffer
    ledger_id: int
    first: int
    last: int
    count: int
    period: int
    stripes: int
    digest_type: int
    origin_term: int
    scheme: int
    sizes: array[int]

    @classmethod
    def of(
        cls,
        ledger_id: int,
        first: int,
        last: int,
        entries: Sequence[Buffer],
        sizes: Sequence[int],
        *,
        digest_type: int,
        period: int = 1,
        stripes: int = 1,
    ) -> RunView:
        """The run of these entries, as `encode_run` makes it: its bytes are not opened again."""
        run = cls.__new__(cls)
        run.body = encode_run(
            ledger_id, first, last, entries, sizes, digest_type=digest_type, period=period, stripes=stripes
        )
        run.ledger_id, run.first, run.last, run.count = ledger_id, first, last, len(sizes)
        run.period, run.stripes, run.digest_type = period, stripes, digest_type
        run.origin_term, run.scheme = 0, SCHEME_PLAIN
        run.sizes = array("I", sizes)
        run._offsets = None  # noqa: SLF001 - the same class
        return run

    @classmethod
    def parse(cls, body: Buffer) -> RunView:
        """Open a body.

        Raises:
            MalformedFrameError: naming what does not fit.
        """
        run = cls.parse_table(body)
        if RUN_HEADER_BYTES + 4 * run.count + sum(run.sizes) != len(body):
            msg = f"a run of ledger {run.ledger_id} says other entry sizes than its {len(body)} bytes hold"
            raise MalformedFrameError(msg, ledger_id=run.ledger_id)
        return run

    @classmethod
    def parse_table(cls, body: Buffer) -> RunView:
        """Open a body of which at least header and table are there (the rest may not have been read).

        Raises:
            MalformedFrameError: naming what does not fit.
        """
        if len(body) < RUN_HEADER_BYTES:
            msg = f"a run of {len(body)} bytes is shorter than its header of {RUN_HEADER_BYTES}"
            raise MalformedFrameError(msg)
        (
            version,
            scheme,
            digest_type,
            period,
            count,
            ledger_id,
            first,
            last,
            stripes,
            term,
            table_crc,
            head_crc,
        ) = RUN_HEADER.unpack_from(body)
        view = memoryview(body)
        if head_crc != crc32c(view[: _HEAD.size]):
            msg = "the checksum of a run's header differs"
            raise MalformedFrameError(msg)
        if version != RUN_VERSION or scheme > SCHEME_TERMS:
            msg = (
                f"a run of version {version}, digest scheme {scheme} is not known here: a newer version of quire wrote "
                f"it (this one knows version {RUN_VERSION}, schemes 0..{SCHEME_TERMS})"
            )
            raise MalformedFrameError(msg)
        if not (
            ledger_id >= 0
            and 0 <= first <= last <= ID_MAX
            and (
                (period == stripes == 1 and count == last - first + 1)
                or _ids_fit(first, last, count, period, stripes)
            )
        ):
            msg = (
                f"a run of ledger {ledger_id} with ids {first}..{last}, period {period}, stripes {stripes:#x} "
                f"does not have {count} entries"
            )
            raise MalformedFrameError(msg, ledger_id=ledger_id)
        end = RUN_HEADER_BYTES + 4 * count
        table = view[RUN_HEADER_BYTES:end]
        if len(table) != 4 * count or table_crc != crc32c(table):
            msg = f"the table of a run of ledger {ledger_id} is cut or its checksum differs"
            raise MalformedFrameError(msg, ledger_id=ledger_id)
        run = cls.__new__(cls)
        run.body = body
        run.ledger_id, run.first, run.last, run.count = ledger_id, first, last, count
        run.period, run.stripes, run.digest_type, run.origin_term = period, stripes, digest_type, term
        run.scheme = scheme
        sizes = array("I")
        sizes.frombytes(table)
        if _SWAP:
            sizes.byteswap()
        run.sizes = sizes
        run._offsets = None  # noqa: SLF001 - the same class
        return run

    def check_identity(self) -> None:
        """Check that the first and the last entry are what the header says they are.

        Raises:
            MalformedFrameError: an entry names another ledger, id or origin term, or is shorter than an entry's header.

        Source: docs/decisions/031-one-run-body.md; `docs/formats/run.md`.
        """
        start = RUN_HEADER_BYTES + 4 * self.count
        locations = [(start, self.sizes[0], self.first)]
        if self.count > 1:
            size = self.sizes[-1]
            locations.append((len(self.body) - size, size, self.last))
        for at, size, expected in locations:
            if self.scheme == SCHEME_PLAIN:
                found = size >= HEADER_BYTES and HEADER.unpack_from(self.body, at)[:2]
                known: tuple[int, ...] = self.ledger_id, expected
            else:
                found = size >= TERM_HEADER_BYTES and TERM_IDENTITY.unpack_from(self.body, at)
                known = self.ledger_id, expected, self.origin_term
            if found != known:
                msg = f"entry {expected} of ledger {self.ledger_id} carries another identity inside"
                raise MalformedFrameError(msg, ledger_id=self.ledger_id, entry_id=expected)

    @classmethod
    def parse_of_term(cls, body: Buffer, origin_term: int) -> RunView:
        """Open a body of an origin term: entries of a stream have one above 0, and headers that name it.

        `ANY_ORIGIN`: of a stream, whichever its origin term is.

        Raises:
            MalformedFrameError: as `parse`; it is of another term, or its entries' headers are of the other scheme.
        """
        run = cls.parse(body)
        scheme = SCHEME_TERMS if origin_term else SCHEME_PLAIN
        meant = run.origin_term > 0 if origin_term == ANY_ORIGIN else run.origin_term == origin_term
        if not meant or run.scheme != scheme:
            msg = (
                f"a run of ledger {run.ledger_id} is of origin term {run.origin_term} and has entry headers of scheme "
                f"{run.scheme}; requested are entries of origin term {origin_term}, scheme {scheme}"
            )
            raise MalformedFrameError(msg, ledger_id=run.ledger_id)
        return run

    @classmethod
    def parse_sent(cls, body: Buffer) -> RunView:
        """Open a body that a peer sent, and check its first and last entry: `parse`, then `check_identity`."""
        run = cls.parse(body)
        run.check_identity()
        return run

    def ids(self) -> range | list[int]:
        """The entry ids, ascending; position i of the run is the entry `ids()[i]`."""
        return ids_in(self.first, self.last, self.period, self.stripes)

    def offsets(self) -> list[int]:
        """Where each entry starts in the body, and where the last ends: count + 1 numbers."""
        if self._offsets is None:
            start = RUN_HEADER_BYTES + 4 * self.count
            self._offsets: list[int] | None = list(accumulate(self.sizes, initial=start))
        return self._offsets

    def entry(self, position: int) -> memoryview:
        """The bytes of the entry at a position, a view into the body."""
        offsets = self.offsets()
        return memoryview(self.body)[offsets[position] : offsets[position + 1]]

    def entries(self) -> Iterator[tuple[int, memoryview]]:
        """(entry id, bytes) of each entry in ascending order."""
        offsets = self.offsets()
        view = memoryview(self.body)
        for position, entry_id in enumerate(self.ids()):
            yield entry_id, view[offsets[position] : offsets[position + 1]]

    def holds(self, entry_id: int) -> bool:
        """Whether an entry is in this run."""
        return self.first <= entry_id <= self.last and bool(self.stripes >> entry_id % self.period & 1)

    def position(self, entry_id: int) -> int:
        """The position of an entry that the run holds."""
        if self.period == 1:
            return entry_id - self.first
        return count_ids(self.first, entry_id, self.period, self.stripes) - 1
