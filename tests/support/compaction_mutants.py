"""Compaction with one mistake each: what the storage model and the crash images must find."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from quire.core.ids import ID_MAX
from quire.storage import reading
from quire.storage.formats.footer_format import ROW_BYTES, Row, row_at
from quire.storage.index import IntervalMap, RowTable, RunPiece
from quire.storage.journal import Journal
from quire.storage.reclaiming import merging
from quire.storage.reclaiming.dropping import EntryDropper
from quire.storage.reclaiming.merging import may_merge
from quire.storage.reclaiming.reclaim import Reclaimer
from quire.storage.reclaiming.relocating import Relocator
from quire.storage.segments.findings import Scan
from quire.storage.segments.segment_files import Space
from quire.storage.states import States
from quire.wire.entry import Buffer
from quire.wire.run import RunView


def across_terms(one: Row, other: Row, _term_lsn: int) -> bool:
    return may_merge(one, other, 0)


def lowest_lsn(pieces: list[RunPiece]) -> int:
    return min(piece.row.lsn for piece in pieces)


def new_lsn(relocator: Relocator, run: RunView, piece: RunPiece, space: Space) -> None:
    PUT_RELOCATED(
        relocator, run, piece._replace(row=piece.row._replace(lsn=relocator._journal.last_lsn + 1)), space
    )


def over_newer(intervals: IntervalMap, first: int, last: int, row: int, _is_newer: object) -> None:
    intervals.insert(first, last, row)


def at_once(journal: Journal, callback: Any, tag: object) -> None:
    """A retirement is acted on before it is durable, and with it before the copies are."""
    if isinstance(callback, Reclaimer):
        callback.stored(tag, None)
    else:
        WAIT(journal, callback, tag)


def nothing(*_: object) -> Iterator[None]:
    return iter(())


def without_bound(
    dropper: EntryDropper, ledger_id: int, first: int, last: int, _through: int, *rest: Any
) -> None:
    DROP(dropper, ledger_id, first, last, ID_MAX, *rest)


def oldest_last(rows: Buffer) -> RowTable:
    """A footer keeps no order of arrival: here whatever is older wins."""
    table = RowTable()
    unpacked = [row_at(rows, index) for index in range(len(rows) // ROW_BYTES)]
    for row in sorted(unpacked, key=lambda row: -row.lsn):
        table.add(row, -1)
    return table


def as_they_come(scan: Scan) -> bytes | bytearray:
    return scan.rows


PUT_RELOCATED, WAIT, DROP = Relocator.put_run, Journal.wait, EntryDropper.drop
MUTANTS: dict[str, tuple[tuple[Any, str, Any], ...]] = {
    "relocated rows get new LSNs": ((Relocator, "put_run", new_lsn),),
    "a relocated row wins over a newer one": (
        (IntervalMap, "insert_older", over_newer),
        (Scan, "rows_by_lsn", as_they_come),
        (reading, "table_of", oldest_last),
    ),
    "the source retires before the copies are synced": ((Journal, "wait", at_once),),
    "a state only in a retired segment is not relocated": ((States, "relocate", nothing),),
    "damage is forgotten": ((Relocator, "put_damaged", nothing),),
    "the LSN bound of a drop is left out": ((EntryDropper, "drop", without_bound),),
    "a merge across terms": ((merging, "may_merge", across_terms),),
    "the lowest LSN of a merged run": ((merging, "merged_lsn", lowest_lsn),),
}


def with_mistake(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Make one of them, until the test is over."""
    for patch in MUTANTS[name]:
        monkeypatch.setattr(*patch)
