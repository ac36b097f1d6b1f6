"""Where entries are, against a dict of entries: whatever overlaps whatever."""

from __future__ import annotations

import random
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.bookie.ledgers.ledgers import Ledgers
from quire.core.ledger.terms import ANY_ORIGIN
from quire.storage import index
from quire.storage.formats.footer_format import ROW, Row, sort_rows
from quire.storage.index import IntervalMap, RowTable, dense_pieces, resolve, table_of
from quire.storage.ledger_storage import LedgerStorage
from quire.storage.segments.findings import Scan
from quire.storage.starting.rebuild import rebuild
from quire.wire.native_bodies import WHOLE_LIST, decode_held, encode_held
from quire.wire.run import count_ids, ids_in
from support.storage_disk import (
    IDENTITY,
    SMALL,
    Answers,
    FaultyFiles,
    make_run,
    open_storage,
    put,
    read_all,
    settle,
)

IDS = 60


@st.composite
def run_shapes(draw: st.DrawFn) -> tuple[int, int, int, int]:
    """(first, last, period, stripes) of a legal run."""
    period = draw(st.sampled_from([1, 1, 1, 3, 4]))
    stripes = 1 if period == 1 else draw(st.integers(1, (1 << period) - 1))
    a, b = sorted([draw(st.integers(0, IDS)), draw(st.integers(0, IDS))])
    ids = ids_in(a, b, period, stripes)
    if not ids:
        a = b = draw(st.integers(0, IDS))
        return a, b, 1, 1
    return ids[0], ids[-1], period, stripes


def row_for(shape: tuple[int, int, int, int], lsn: int) -> Row:
    first, last, period, stripes = shape
    return Row(1, 0, first, last, lsn, lsn, 100, count_ids(*shape), period, 0, 3, 0x81, stripes)


@given(st.lists(st.tuples(st.integers(0, IDS), st.integers(0, 15)), max_size=40))
def test_intervals_are_disjoint_and_the_newest_wins(spans: list[tuple[int, int]]) -> None:
    intervals, model = IntervalMap(), {}
    for number, (first, length) in enumerate(spans):
        intervals.insert(first, first + length, number)
        model.update(dict.fromkeys(range(first, first + length + 1), number))
        intervals.check()
    found = {i: row for first, last, row in intervals.within(0, 2 * IDS) for i in range(first, last + 1)}
    assert found == model


@given(st.lists(run_shapes(), max_size=25), st.integers(0, 25), st.randoms())
def test_rows_taken_in_bulk_are_as_if_taken_one_by_one(
    runs: list[tuple[int, int, int, int]], middle: int, chance: random.Random
) -> None:
    rows = [row_for(shape, number + 1) for number, shape in enumerate(runs)]
    one_by_one, bulk = RowTable(), RowTable()
    for row in rows:
        one_by_one.add(row, max(-1, row.lsn - 5))
    for part in (rows[:middle], rows[middle:]):
        scan = Scan()
        for row in chance.sample(part, len(part)):  # damaged rows come late
            scan.rows += ROW.pack(*row)
            scan.raise_lac(row.ledger_id, max(-1, row.lsn - 5))
        bulk.extend(scan.rows_by_lsn(), scan.lacs)
    assert (bulk.rows, bulk.lacs) == (one_by_one.rows, one_by_one.lacs)
    for ledger_id in one_by_one.ledgers():
        assert bulk.newest_lsn(ledger_id) == one_by_one.newest_lsn(ledger_id)
        streams = [[list(one) for one in table.pieces(ledger_id, 0, IDS, 1)] for table in (one_by_one, bulk)]
        assert sorted(streams[0]) == sorted(streams[1])


ROWS = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 1), run_shapes()), min_size=1, max_size=8)
"""Ledger, origin term and ids of some rows."""
STEP = st.one_of(
    st.tuples(st.just("bundle"), ROWS),
    st.tuples(st.just("add"), ROWS),
    st.tuples(st.just("relocated"), ROWS),
    st.tuples(st.just("look"), st.integers(1, 5)),
)


def look(table: RowTable, ledger_id: int) -> object:
    """All that a table says of a ledger that is there."""
    if not table.holds_ledger(ledger_id):
        return None
    streams = [list(one) for one in table.pieces(ledger_id, 0, IDS, 1, ANY_ORIGIN)]
    of_term = [list(one) for one in table.pieces(ledger_id, 0, IDS, 1, 1)]
    terms = sorted(table.terms(ledger_id))
    return sorted(streams), sorted(of_term), terms, table.span(ledger_id), table.newest_lsn(ledger_id)


@given(st.lists(STEP, max_size=12), st.sampled_from([1, 3]), st.sampled_from([1, 4, 1000]))
def test_what_is_indexed_late_is_found_as_if_it_had_been_at_once(
    steps: list[tuple[str, Any]], late_min: int, slice_rows: int
) -> None:
    late, at_once, lsn = RowTable(), RowTable(), 100
    with (
        patch.object(index, "LATE_MIN", late_min),
        patch.object(index, "LATE_MAX", 20),
        patch.object(index, "ROWS_A_LOOKUP", slice_rows),
    ):
        for what, some in steps:
            if what == "look":
                assert look(late, some) == look(at_once, some)
                continue
            rows = []
            for number, (ledger_id, term, shape) in enumerate(some):
                lsn += 1
                old = lsn - 90 if what == "relocated" else lsn
                row = row_for(shape, old)._replace(ledger_id=ledger_id, origin_term=term, offset8=lsn)
                rows.append(row)
                if what == "relocated":
                    late.add_relocated(row)
                    at_once.add_relocated(row)
                else:
                    at_once.add(row, number)
                    if what == "add":
                        late.add(row, number)
            if what == "bundle":
                lacs = {row.ledger_id: number for number, row in enumerate(rows)}
                ids = [row.ledger_id for row in rows]
                late.extend_late(b"".join(ROW.pack(*row) for row in rows), ids, lacs)
    assert (late.rows, late.lacs) == (at_once.rows, at_once.lacs)
    assert sorted(late.ledgers()) == sorted(at_once.ledgers())
    assert [look(late, one) for one in range(1, 6)] == [look(at_once, one) for one in range(1, 6)]


def test_a_lookup_indexes_the_rows_of_its_ledger_and_few_others() -> None:
    table, ledgers, bundles = RowTable(), range(1, 301), 40
    for at in range(bundles):
        rows = [row_for((at, at, 1, 1), 300 * at + one)._replace(ledger_id=one) for one in ledgers]
        table.extend_late(b"".join(ROW.pack(*row) for row in rows), ledgers, dict.fromkeys(ledgers, at))
    whole = bundles * len(ledgers)

    def indexed() -> int:
        maps = [one for one in table._dense.values() if isinstance(one, IntervalMap)]
        return sum(len(one.firsts) for one in maps) + len(table._dense) - len(maps)

    assert (indexed(), table.holds_ledger(300), table.holds_ledger(301)) == (0, True, False)
    for looks in range(1, whole // index.ROWS_A_LOOKUP + 1):
        assert table.span(300 - looks) == (0, bundles - 1)
        assert index.ROWS_A_LOOKUP * looks <= indexed() <= (index.ROWS_A_LOOKUP + bundles) * looks
    assert table.span(1) == (0, bundles - 1)
    assert indexed() == whole
    assert not table._late
    assert not table._ahead


@given(st.lists(run_shapes(), max_size=25), st.integers(0, IDS), st.integers(0, IDS), st.integers(1, 4))
@settings(max_examples=300)
def test_lookups_over_several_tables_agree_with_a_dict(
    runs: list[tuple[int, int, int, int]], low: int, length: int, tables: int
) -> None:
    held = [RowTable() for _ in range(tables)]
    model: dict[int, int] = {}
    for number, shape in enumerate(runs):
        held[number % tables].add(row_for(shape, number + 1), -1)
        model.update(dict.fromkeys(ids_in(*shape), number + 1))
    streams = [
        piece
        for index, table in enumerate(held)
        if table.holds_ledger(1)
        for stream in table.pieces(1, low, low + length, index)
        for piece in stream
    ]
    streams.sort(key=lambda piece: piece.first)
    found: dict[int, int] = {}
    last = -1
    for piece in resolve(streams, low, low + length):
        row = piece.row
        assert piece.first > last
        last = piece.last
        for entry_id in ids_in(
            max(piece.first, row.first), min(piece.last, row.last), row.period, row.stripes
        ):
            assert entry_id not in found
            found[entry_id] = row.lsn
    wanted = range(low, low + length + 1)
    assert {i: lsn for i, lsn in found.items() if i in wanted} == {
        i: lsn for i, lsn in model.items() if i in wanted
    }


@given(st.lists(run_shapes(), min_size=1, max_size=25))
def test_a_table_from_sorted_rows_is_the_table(runs: list[tuple[int, int, int, int]]) -> None:
    table = RowTable()
    for number, shape in enumerate(runs):
        table.add(row_for(shape, number + 1), -1)
    again = table_of(sort_rows(table.rows))
    for one, other in zip(
        sorted(resolve(sorted(p for s in table.pieces(1, 0, IDS, 0) for p in s), 0, IDS)),
        sorted(resolve(sorted(p for s in again.pieces(1, 0, IDS, 0) for p in s), 0, IDS)),
        strict=True,
    ):
        assert one == other


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), max_size=20),
    st.integers(0, 150),
    st.integers(0, 60),
)
def test_dense_rows_are_found_without_a_table(gaps: list[tuple[int, int]], low: int, length: int) -> None:
    rows, at = [], 0
    for gap, size in gaps:
        at += gap
        rows.append(row_for((at, at + size - 1, 1, 1), len(rows) + 1))
        at += size
    packed = b"".join(row_bytes(row) for row in rows)
    found = [piece.row for piece in dense_pieces(packed, low, low + length, 0)]
    assert found == [row for row in rows if row.last >= low and row.first <= low + length]


def row_bytes(row: Row) -> bytes:
    from quire.storage.formats.footer_format import ROW

    return ROW.pack(*row)


LEDGERS = range(4)
STREAMS = {4: range(1, 4), 5: range(1, 3)}
"""Streams, and the origin terms of their entries."""
HOLDERS = [(one, 0) for one in LEDGERS] + [(one, term) for one, terms in STREAMS.items() for term in terms]


class Model:
    """A dict of entries beside a whole disk. Entries of two origin terms have nothing to do with each other."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.files = FaultyFiles(direct=bool(seed & 1), seed=seed)
        self.storage: LedgerStorage = open_storage(self.files)
        self.entries: dict[tuple[int, int], dict[int, bytes]] = {}
        self.serial = 0

    def step(self) -> None:
        do = self.chance.choices(
            [self.put, self.settle, self.delete, self.reclaim, self.restart, self.rebuild],
            weights=[30, 8, 2, 2, 2, 1],
        )[0]
        do()

    def put(self) -> None:
        chance = self.chance
        ledger_id, term = chance.choice(HOLDERS)
        self.serial += 1
        payload = b"%d:" % self.serial + bytes(chance.choice([10, 100, 2000]))
        period = chance.choice([1, 1, 1, 3])
        stripes = 1 if period == 1 else chance.randrange(1, 8)
        first = chance.randrange(200)
        ids = ids_in(first, first + chance.choice([0, 0, 5, 20]), period, stripes)
        if not ids:
            return
        put(
            self.storage,
            make_run(
                ledger_id,
                ids[0],
                ids[-1],
                period=period,
                stripes=stripes,
                payload=payload,
                origin_term=term,
            ),
            Answers(),
        )
        held = self.entries.setdefault((ledger_id, term), {})
        held.update({entry_id: payload + b"/%d" % entry_id for entry_id in ids})

    def settle(self) -> None:
        settle(self.storage)

    def delete(self) -> None:
        ledger_id = self.chance.choice([*LEDGERS, *STREAMS])
        self.storage.delete(ledger_id, 1, Answers(), None)
        for holder in HOLDERS:
            if holder[0] == ledger_id:
                self.entries.pop(holder, None)

    def reclaim(self) -> None:
        self.settle()
        self.storage.housekeeping.reclaim()
        self.settle()

    def restart(self) -> None:
        self.settle()
        clean = bool(self.chance.getrandbits(1))
        self.storage.close(clean=clean)
        if not clean:
            self.files = self.files.crash()
        self.storage = open_storage(self.files)
        report = self.storage.report
        assert (report.clean, report.damages, report.torn, report.limbo) == (clean, [], [], [])

    def rebuild(self) -> None:
        self.settle()
        self.storage.close(clean=True)
        from pathlib import Path

        assert rebuild(Path("/bookie"), SMALL, IDENTITY, files=self.files) == []
        self.storage = open_storage(self.files)

    def check(self) -> None:
        low = 0
        for ledger_id, term in HOLDERS:
            low = self.chance.randrange(230)
            high = low + self.chance.randrange(230)
            expected = {i: p for i, p in self.entries.get((ledger_id, term), {}).items() if low <= i <= high}
            bytes_max = self.chance.choice([1, 500, 5000, 1 << 20])
            assert read_all(self.storage, ledger_id, low, high, bytes_max, origin_term=term) == expected
            assert read_all(self.storage, ledger_id, low, high, bytes_max, origin_term=9) == {}
        for ledger_id in [*LEDGERS, *STREAMS]:
            shapes = self.storage.held_from(ledger_id, 0)
            held = {(i, shape.origin_term) for shape in shapes for i in ids_in(*shape[:4])}
            assert held == {
                (i, term)
                for one, term in HOLDERS
                if one == ledger_id
                for i in self.entries.get((one, term), ())
            }
            self.check_pages(ledger_id, low, held)

    def check_pages(self, ledger_id: int, first: int, held: set[tuple[int, int]]) -> None:
        """A list in pages of any size is the list, from whichever id on; and the client takes each page."""
        ledgers = Ledgers(self.storage, lambda: None)
        intervals_max = self.chance.choice([1, 2, 7, 1000])
        found: set[tuple[int, int]] = set()
        at = first
        while at != WHOLE_LIST:
            page, following = ledgers.held_page(ledger_id, at, intervals_max)
            body = memoryview(encode_held(page, following))
            assert decode_held(body, at) == (page, following)
            assert len(page) >= intervals_max or following == WHOLE_LIST
            found.update((i, shape.origin_term) for shape in page for i in ids_in(*shape[:4]))
            at = following
        assert found == {one for one in held if one[0] >= first}


@pytest.mark.parametrize("seed", range(12))
def test_a_whole_disk_agrees_with_a_dict(seed: int) -> None:
    model = Model(seed)
    for number in range(250):
        model.step()
        if number % 10 == 9:
            model.check()
    model.restart()
    model.check()
