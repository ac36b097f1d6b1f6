"""Which entries are where: disjoint intervals per ledger, and who is right when several records hold an id.

`RecentRuns` has bodies in memory: those not yet on disk, and the newest of the rest, so that tail readers never touch it.

Within one segment an `IntervalMap` per (ledger, origin term, period, stripes) keeps intervals disjoint: a newer run
takes over the part that it overlaps and nothing else. Runs of different stripes may overlap in ids without covering each
other, and so may segments; `resolve` settles that at a lookup, by LSN. "No such entry" is said only when no interval holds
the id. Entries of different origin terms are different entries, whatever their ids: only a stream has more than one.

Source: docs/decisions/025-overlapping-runs.md; `docs/formats/segment.md`, "LSN".
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from quire.core.ledger.terms import ANY_ORIGIN
from quire.storage.formats.footer_format import ROW, ROW_BYTES, Row, RowFlag, lsns_of, row_at
from quire.wire.entry import Buffer
from quire.wire.run import ids_in

SETTLE_IDS_MAX = 1 << 16
"""Where runs of different stripes overlap, it is settled for so many ids at a time which run has each."""

LATE_MIN = 64
"""A row is late while it is stored and not yet in its ledger's interval map. Rows of a smaller bundle are indexed at once.

A bundle has a ledger once, so at most one of each `LATE_MIN` late rows is of the same ledger.
"""
LATE_MAX = 1 << 18
"""So many rows are late at most: a ledger's own are found among them in about 1 ms."""
ROWS_A_LOOKUP = 2048
"""So many late rows of all ledgers are indexed with each lookup, in about 2 ms."""
ROWS_AN_ADD = 4
"""So many late rows are indexed with each row that comes alone, which is late itself as long as there are others."""

_ID = struct.Struct(">q")
_ID_BYTES = _ID.size
_ROW_IDS = struct.Struct(">qQqq16xIB3xQ")
Holder: TypeAlias = int | tuple[int, int]
"""What has the ids of a run: a ledger, or (a stream, an origin term)."""


class RunPiece(NamedTuple):
    """The ids of a run that lie in first..last; the run's record is `row` in the segment `sequence`."""

    first: int
    last: int
    sequence: int
    row: Row

    @property
    def whole(self) -> bool:
        """Nothing of the run was overwritten."""
        return self.first <= self.row.first and self.last >= self.row.last


class IntervalMap:
    """Disjoint id intervals in ascending order, each with the index of its row; columns of plain integers."""

    __slots__ = ("firsts", "lasts", "rows")

    def __init__(self) -> None:
        self.firsts = array("q")
        self.lasts = array("q")
        self.rows = array("q")

    def insert(self, first: int, last: int, row: int) -> None:
        """Let a row hold first..last; what held part of it before keeps the rest. At the end in constant time."""
        lasts = self.lasts
        if not lasts or first > lasts[-1]:
            self.firsts.append(first)
            lasts.append(last)
            self.rows.append(row)
            return
        firsts, rows = self.firsts, self.rows
        start = bisect_left(lasts, first)
        end = bisect_right(firsts, last)
        new = [(first, last, row)]
        if start < end:
            if firsts[start] < first:
                new.insert(0, (firsts[start], first - 1, rows[start]))
            if lasts[end - 1] > last:
                new.append((last + 1, lasts[end - 1], rows[end - 1]))
        firsts[start:end] = array("q", [item[0] for item in new])
        lasts[start:end] = array("q", [item[1] for item in new])
        rows[start:end] = array("q", [item[2] for item in new])

    def insert_older(self, first: int, last: int, row: int, is_newer: Callable[[int], bool]) -> None:
        """Let a row hold what no newer row holds of first..last."""
        for start, end, other in list(self.within(first, last)):
            if is_newer(other):
                if start > first:
                    self.insert(first, start - 1, row)
                first = end + 1
        if first <= last:
            self.insert(first, last, row)

    def within(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """(first, last, row) of each interval that touches first..last, ascending, not clipped."""
        firsts, lasts, rows = self.firsts, self.lasts, self.rows
        for index in range(bisect_left(lasts, first), len(firsts)):
            if firsts[index] > last:
                return
            yield firsts[index], lasts[index], rows[index]

    def check(self) -> None:
        """Assert that the intervals are disjoint and ascending."""
        assert all(first <= last for first, last in zip(self.firsts, self.lasts, strict=True))
        assert all(last < first for last, first in zip(self.lasts, self.firsts[1:], strict=False))


class RowTable:
    """The runs of one segment in the order they came: packed rows, and an interval map per ledger, term and stripes.

    Where a relocated run has come, that is not the order of their LSNs: it holds what no run with a higher one holds.

    Rows of bundles are indexed late: a segment that no reader looks into while it is filled is sealed without its maps. A lookup
    indexes all late rows of its own ledger, and some of the others. What is sealed, perhaps on another thread, is `rows`,
    `lacs` and `ledgers`, which need no index.

    Attributes:
        rows: all of them, packed.
        lacs: of each ledger that has rows here, the highest LAC that they carry.
    """

    __slots__ = ("_ahead", "_dense", "_is_in_order", "_late", "_striped", "_terms", "lacs", "rows")

    def __init__(self) -> None:
        self.rows = bytearray()
        self._is_in_order = True
        self.lacs: dict[int, int] = {}
        # The ledgers of the last rows, which are late, 8 bytes for each: big-endian ones are found fastest.
        self._late = bytearray()
        # Of a ledger that was looked up meanwhile: up to which index its rows are not late.
        self._ahead: dict[int, int] = {}
        # The one run of a ledger by its index: most of many ledgers have no more in a segment.
        self._dense: dict[Holder, IntervalMap | int] = {}
        self._striped: dict[Holder, dict[tuple[int, int], IntervalMap]] = {}
        self._terms: dict[int, dict[int, None]] = {}

    def __len__(self) -> int:
        return len(self.rows) // ROW_BYTES

    def extend(self, rows: Buffer, lacs: Mapping[int, int]) -> None:
        """Take packed rows by ascending LSN, all above those that are here, with the LACs that runs of their ledgers carried."""
        index, known = len(self), self.lacs
        self._index_late(index)
        self.rows += rows
        self._index_rows(rows, index)
        for ledger_id, *_ in _ROW_IDS.iter_unpack(rows):
            known.setdefault(ledger_id, -1)
        for ledger_id, lac in lacs.items():
            if lac > known.get(ledger_id, lac):
                known[ledger_id] = lac

    def extend_late(self, rows: Buffer, ledger_ids: Sequence[int], lacs: Mapping[int, int]) -> None:
        """As `extend`, of these ledgers' rows; a lookup indexes them, if there is one."""
        if len(ledger_ids) < LATE_MIN:
            self._index_late(ROWS_AN_ADD * len(ledger_ids))
            if not self._late:
                self.extend(rows, lacs)
                return
        elif len(self._late) >= LATE_MAX * _ID_BYTES:
            self._index_late(len(ledger_ids))
        self.rows += rows
        self._late += struct.pack(f">{len(ledger_ids)}q", *ledger_ids)
        known = self.lacs
        for ledger_id, lac in lacs.items():
            if lac > known.get(ledger_id, -2):
                known[ledger_id] = lac

    def add(self, row: Row, lac: int) -> int:
        """Take a row whose LSN is above those before it, but for relocated ones; returns its index. `lac` -1: says nothing."""
        index = len(self.rows) // ROW_BYTES
        if self._late:
            self._index_late(ROWS_AN_ADD)
        self.rows += ROW.pack(*row)
        ledger_id = row.ledger_id
        if lac > self.lacs.get(ledger_id, -2):
            self.lacs[ledger_id] = lac
        if self._late:
            self._late += _ID.pack(ledger_id)
        else:
            holder = self._holder(ledger_id, row.origin_term) if row.origin_term else ledger_id
            self._insert(holder, row.first, row.last, row.entries, row.period, row.stripes, index)
        return index

    def add_relocated(self, row: Row) -> None:
        """Take a row with the LSN that its run had before; it says nothing of the ledger's LAC."""
        self._is_in_order = False
        self._index(row.ledger_id)
        index = len(self.rows) // ROW_BYTES
        self.rows += ROW.pack(*row)
        self.lacs.setdefault(row.ledger_id, -1)
        holder = self._holder(row.ledger_id, row.origin_term) if row.origin_term else row.ledger_id
        intervals = self._map_for(holder, row.entries, row.period, row.stripes)
        intervals.insert_older(
            row.first, row.last, index, lambda other: row_at(self.rows, other).lsn > row.lsn
        )
        if self._late:
            self._late += _ID.pack(row.ledger_id)
            self._ahead[row.ledger_id] = index + 1

    def _index(self, ledger_id: int) -> None:
        """Put the late rows of a ledger into its maps, and the oldest late ones of the others."""
        if not self._late or self._ahead.get(ledger_id) == len(self):
            return
        self._index_late(ROWS_A_LOOKUP)
        late, begin = self._late, len(self) - len(self._late) // _ID_BYTES
        own = _ID.pack(ledger_id)
        at = _ID_BYTES * max(0, self._ahead.get(ledger_id, 0) - begin)
        while (at := late.find(own, at)) >= 0:
            if at % _ID_BYTES == 0:
                index = begin + at // _ID_BYTES
                self._index_rows(self.rows[index * ROW_BYTES : (index + 1) * ROW_BYTES], index)
            at += _ID_BYTES - at % _ID_BYTES
        if late:
            self._ahead[ledger_id] = len(self)

    def _index_late(self, count: int) -> None:
        """Put so many of the late rows into their maps, the oldest first."""
        start = len(self) - len(self._late) // _ID_BYTES
        self._index_rows(self.rows[start * ROW_BYTES : (start + count) * ROW_BYTES], start)
        del self._late[: count * _ID_BYTES]
        if not self._late:
            self._ahead.clear()

    def _index_rows(self, rows: Buffer, index: int) -> None:
        """Put rows into their maps but where they are already; the first has this index."""
        dense, ahead = self._dense, self._ahead
        for ledger_id, term, first, last, entries, period, stripes in _ROW_IDS.iter_unpack(rows):
            if not ahead or index >= ahead.get(ledger_id, 0):
                holder = self._holder(ledger_id, term) if term else ledger_id
                if (period == 1 or entries == 1) and isinstance(intervals := dense.get(holder), IntervalMap):
                    intervals.insert(first, last, index)
                else:
                    self._insert(holder, first, last, entries, period, stripes, index)
            index += 1

    def _map_for(self, holder: Holder, entries: int, period: int, stripes: int) -> IntervalMap:
        """The map that a run of this shape belongs to, made if need be."""
        if period == 1 or entries == 1:
            known = self._dense.get(holder)
            if not isinstance(known, IntervalMap):
                known = self._dense[holder] = IntervalMap() if known is None else self._map_of(known)
            return known
        maps = self._striped.setdefault(holder, {})
        found = maps.get((period, stripes))
        intervals = maps[period, stripes] = IntervalMap() if found is None else found
        return intervals

    def _holder(self, ledger_id: int, origin_term: int) -> Holder:
        """What has the ids of a stream's run, noted among the stream's."""
        self._terms.setdefault(ledger_id, {})[origin_term] = None
        return ledger_id, origin_term

    def _insert(
        self, holder: Holder, first: int, last: int, entries: int, period: int, stripes: int, index: int
    ) -> None:
        """Let a row hold its ids, in the map that it belongs to."""
        if (period == 1 or entries == 1) and holder not in self._dense:
            self._dense[holder] = index
        else:
            self._map_for(holder, entries, period, stripes).insert(first, last, index)

    def holds_ledger(self, ledger_id: int) -> bool:
        """Whether any run of a ledger is here."""
        return ledger_id in self.lacs

    def parts(self) -> list[dict[Any, Any]]:
        """What is kept of each ledger; for the caller that releases it."""
        return [self.lacs, self._dense, self._striped, self._terms]

    def ledgers(self) -> list[int]:
        """The ledgers with runs here."""
        return list(self.lacs)

    def terms(self, ledger_id: int) -> list[int]:
        """The origin terms of a ledger's runs here: 0 for those of no stream."""
        self._index(ledger_id)
        plain = ledger_id in self._dense or ledger_id in self._striped
        return [*([0] if plain else ()), *self._terms.get(ledger_id, ())]

    def maps(self, ledger_id: int, origin_term: int = 0) -> list[IntervalMap]:
        """The interval maps of a ledger's entries of an origin term; `ANY_ORIGIN`: those of all."""
        if origin_term == ANY_ORIGIN:
            return self._all_maps(ledger_id)
        self._index(ledger_id)
        holder = (ledger_id, origin_term) if origin_term else ledger_id
        maps = list(self._striped.get(holder, {}).values())
        dense = self._dense.get(holder)
        if dense is None:
            return maps
        return [dense if isinstance(dense, IntervalMap) else self._map_of(dense), *maps]

    def _all_maps(self, ledger_id: int) -> list[IntervalMap]:
        """Those of all origin terms."""
        self._index(ledger_id)
        if ledger_id not in self._terms:
            return self.maps(ledger_id)
        return [one for term in self.terms(ledger_id) for one in self.maps(ledger_id, term)]

    def _map_of(self, index: int) -> IntervalMap:
        """The map over a single row."""
        row = row_at(self.rows, index)
        intervals = IntervalMap()
        intervals.insert(row.first, row.last, index)
        return intervals

    def span(self, ledger_id: int) -> tuple[int, int]:
        """Lowest first and highest last id of a ledger that is here."""
        maps = self._all_maps(ledger_id)
        return min(one.firsts[0] for one in maps), max(one.lasts[-1] for one in maps)

    def newest_lsn(self, ledger_id: int) -> int:
        """The highest LSN of a ledger's runs here."""
        maps = self._all_maps(ledger_id)
        if self._is_in_order:
            return row_at(self.rows, max(max(one.rows) for one in maps)).lsn
        return max(row_at(self.rows, index).lsn for one in maps for index in one.rows)

    def pieces(
        self, ledger_id: int, first: int, last: int, sequence: int, origin_term: int = 0
    ) -> list[Iterator[RunPiece]]:
        """One ascending stream of pieces of a term that touch first..last for each set of stripes."""
        return [_pieces(one, self.rows, first, last, sequence) for one in self.maps(ledger_id, origin_term)]


def table_of(rows: bytes) -> RowTable:
    """The table over packed rows of any order."""
    lsns = lsns_of(rows)
    order = sorted(range(len(lsns)), key=lsns.__getitem__)
    table = RowTable()
    table.extend(b"".join([rows[at * ROW_BYTES : (at + 1) * ROW_BYTES] for at in order]), {})
    return table


def _pieces(intervals: IntervalMap, rows: Buffer, first: int, last: int, sequence: int) -> Iterator[RunPiece]:
    for start, end, index in intervals.within(first, last):
        yield RunPiece(start, end, sequence, row_at(rows, index))


def dense_pieces(rows: Buffer, first: int, last: int, sequence: int) -> Iterator[RunPiece]:
    """Pieces from sorted rows of one ledger and term that are known to be consecutive runs without overlap.

    No table is built: it bisects in the packed bytes.
    """
    low, high = 0, len(rows) // ROW_BYTES
    total = high
    while low < high:
        middle = (low + high) // 2
        if ROW.unpack_from(rows, middle * ROW_BYTES)[3] < first:
            low = middle + 1
        else:
            high = middle
    for index in range(low, total):
        row = row_at(rows, index)
        if row.first > last:
            return
        yield RunPiece(row.first, row.last, sequence, row)


# --- who is right -----------------------------------------------------------------------------------------------


def resolve(pieces: Iterable[RunPiece], first: int, last: int) -> Iterator[RunPiece]:
    """Disjoint pieces, ascending, of what holds first..last: where several hold an id, the highest LSN does.

    Args:
        pieces: ascending by first, possibly overlapping, not clipped.
        first: lowest id of interest.
        last: highest id of interest.

    Yields:
        Pieces that touch first..last. Their bounds may reach beyond it as long as the run holds all of that.
    """
    cluster: list[RunPiece] = []
    reach = -1
    for piece in pieces:
        if cluster and piece.first > reach:
            yield from _settle(cluster, first, last)
            cluster = []
        cluster.append(piece)
        reach = max(reach, piece.last)
    if cluster:
        yield from _settle(cluster, first, last)


def _settle(cluster: list[RunPiece], first: int, last: int) -> Iterator[RunPiece]:
    if len(cluster) == 1:
        yield cluster[0]
        return
    cluster.sort(
        key=lambda piece: (piece.row.lsn, piece.sequence)
    )  # of a run and its relocated copy, the copy
    if all(piece.row.period == 1 or piece.row.entries == 1 for piece in cluster):
        intervals = IntervalMap()
        for index, piece in enumerate(cluster):
            intervals.insert(piece.first, piece.last, index)
        for start, end, index in intervals.within(first, last):
            yield RunPiece(start, end, cluster[index].sequence, cluster[index].row)
        return
    yield from _settle_ids(cluster, first, last)


def _settle_ids(cluster: Sequence[RunPiece], first: int, last: int) -> Iterator[RunPiece]:
    """Settle runs of different stripes id by id, a window at a time so that memory stays bounded."""
    first = max(first, min(piece.first for piece in cluster))
    last = min(last, max(piece.last for piece in cluster))
    for start in range(first, last + 1, SETTLE_IDS_MAX):
        end = min(last, start + SETTLE_IDS_MAX - 1)
        owners: dict[int, int] = {}
        for index, piece in enumerate(cluster):
            row = piece.row
            low, high = max(piece.first, row.first, start), min(piece.last, row.last, end)
            for entry_id in ids_in(low, high, row.period, row.stripes):
                owners[entry_id] = index
        open_first = open_last = owner = -1
        for entry_id in sorted(owners):
            if owners[entry_id] != owner:
                if owner >= 0:
                    yield RunPiece(open_first, open_last, cluster[owner].sequence, cluster[owner].row)
                owner, open_first = owners[entry_id], entry_id
            open_last = entry_id
        if owner >= 0:
            yield RunPiece(open_first, open_last, cluster[owner].sequence, cluster[owner].row)


def is_damaged(row: Row) -> bool:
    """The run's body did not verify when it was last looked at."""
    return bool(row.flags & RowFlag.DAMAGED)


COPIED_BYTES_MAX = 1024
ITEM_BYTES = 256
"""What one small body costs besides its bytes."""
OFFSET_BITS = 40
"""A body's key is one number, its segment's above its offset: a tuple for each would be three objects to allocate."""


class RecentRuns:
    """First in, first out, by bytes. What is not durable stays whatever it takes: it is nowhere else.

    Attributes:
        bytes_max: how much to keep of what is durable.
        bytes: how much there is.
    """

    __slots__ = ("_bodies", "_order", "bytes", "bytes_max")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._bodies: dict[int, Buffer] = {}
        self._order: deque[tuple[int, int | list[int], int]] = deque()
        self.bytes = 0

    def add(self, sequence: int, offset: int, body: Buffer, lsn: int) -> None:
        """Keep the body of the record at an offset of a segment; its memory must not be written to from now on."""
        if isinstance(body, memoryview) and (
            len(body) <= COPIED_BYTES_MAX or memoryview(body.obj).nbytes > 2 * len(body) + 4096
        ):
            body = bytes(body)  # a view would be larger itself, or would pin a buffer many times its size
        key = sequence << OFFSET_BITS | offset
        size = len(body) + ITEM_BYTES
        self._bodies[key] = body
        self._order.append((lsn, key, size))
        self.bytes += size

    def add_all(self, sequence: int, offsets: Iterable[int], bodies: Sequence[bytes], last_lsn: int) -> None:
        """Keep bodies that were put together, and let go of them together."""
        base = sequence << OFFSET_BITS
        keys = [base | offset for offset in offsets]
        self._bodies.update(zip(keys, bodies, strict=True))
        size = sum(map(len, bodies)) + ITEM_BYTES * len(keys)
        self._order.append((last_lsn, keys, size))
        self.bytes += size

    def get(self, sequence: int, offset: int) -> Buffer | None:
        """The body, if it is still here."""
        return self._bodies.get(sequence << OFFSET_BITS | offset)

    def trim(self, durable_lsn: int) -> None:
        """Let go of the oldest down to the limit, but of nothing above the durable LSN."""
        order = self._order
        while self.bytes > self.bytes_max and order and order[0][0] <= durable_lsn:
            _, key, size = order.popleft()
            for one in key if isinstance(key, list) else (key,):
                self._bodies.pop(one, None)
            self.bytes -= size
