"""The tables that `describe` reads: logs and what they list, ledgers and what they hold, cursors and sink positions."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from quire.core.ledger.metadata import LedgerMetadata, LedgerState
from quire.core.log.list import ItemLocation
from quire.log.cursors import LogCursors
from quire.log.ledgers import is_batched, read_views
from quire.log.times import TIME_MS_MAX, TIME_MS_MIN
from quire.spark import cluster
from quire.spark.extents import describe, extent_of_ledger, resolve
from quire.spark.options import moment
from quire.spark.read_options import Describe, ReadOptions

if TYPE_CHECKING:
    from quire.log.client import QuireClient
    from quire.log.records import LogDescription

Row: TypeAlias = dict[str, Any]
LogTable: TypeAlias = "Callable[[QuireClient, LogDescription], AsyncGenerator[Row, None]]"
LedgerTable: TypeAlias = "Callable[[QuireClient, _Ledger], AsyncGenerator[Row, None]]"


def read(options: ReadOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of one table, in the columns of `schema`, in batches of `rowsPerBatch`."""
    source = cluster.iterate(options.cluster, lambda client: _rows(client, options))
    while rows := list(itertools.islice(source, options.rows_per_batch)):
        yield pa.RecordBatch.from_pylist(
            [{name: row.get(name) for name in schema.names} for row in rows], schema
        )


async def _rows(client: QuireClient, options: ReadOptions) -> AsyncGenerator[Row, None]:
    assert options.describe is not None
    for source in await resolve(client, options, may_be_none=True):
        if source.ledger_id is not None:
            extent = await extent_of_ledger(client, options, source)
            assert extent.record is not None
            of_ledger = _LEDGER_TABLES.get(options.describe)
            found = (
                of_ledger(client, _Ledger(extent.name, extent.record, extent.end - 1)) if of_ledger else None
            )
        else:
            log = client.log(source.name, options.password())
            found = _TABLES[options.describe](client, await describe(client, options, log))
        if found is not None:
            async with contextlib.aclosing(found) as rows:
                async for row in rows:
                    yield row


@dataclass(frozen=True, slots=True)
class _Ledger:
    """A ledger as a table shows it.

    Attributes:
        log: what it was loaded as.
        last_entry: the last one that is confirmed.
        first_offset: of its first record.
    """

    log: str
    record: LedgerMetadata
    last_entry: int
    first_offset: int = 0


# --- of logs --------------------------------------------------------------------------------------------------------


async def _logs(_client: QuireClient, log: LogDescription) -> AsyncGenerator[Row, None]:
    yield {
        "log": log.name,
        "log_id": log.log_id,
        "epoch": log.epoch,
        "start_offset": log.start_offset,
        "end_offset": log.end_offset,
        "ledgers": len(log.items),
        "bytes": sum(item.bytes for item in log.items),
    }


async def _segments(_client: QuireClient, log: LogDescription) -> AsyncGenerator[Row, None]:
    for position, item in enumerate(log.items):
        yield {
            "log": log.name,
            "position": position,
            "ledger": item.ledger_id,
            "first_offset": item.first_offset,
            "next_offset": item.next_offset,
            "records": item.count,
            "bytes": item.bytes,
            "min_time": _time(item.min_time_ms),
            "max_time": _time(item.max_time_ms),
            "state": item.state.name.lower(),
            "place": item.location.name.lower(),
        }


async def _cursors(client: QuireClient, log: LogDescription) -> AsyncGenerator[Row, None]:
    for cursor in await LogCursors(client.store, client.clock.wall_ms).of(log.log_id):
        yield {
            "log": log.name,
            "cursor": cursor.name,
            "first_offset": cursor.first_offset,
            "offset": cursor.offset,
            "lag": max(log.end_offset - cursor.offset, 0),
            "hold": cursor.hold,
            "created": _time(cursor.created_ms),
            "moved": _time(cursor.moved_ms),
        }


async def _sink_positions(_client: QuireClient, log: LogDescription) -> AsyncGenerator[Row, None]:
    for position in log.sink_positions:
        yield {
            "log": log.name,
            "query": position.query_id,
            "batch": position.batch_id,
            "written": _time(position.time_ms),
            "incarnation": position.incarnation,
        }


def _of_each_ledger(table: LedgerTable) -> LogTable:
    """A table about ledgers as one about a log."""

    async def rows(client: QuireClient, log: LogDescription) -> AsyncGenerator[Row, None]:
        for item in log.items:
            if item.location is ItemLocation.ARCHIVE:
                continue
            record = await client.ledger_metadata(item.ledger_id)
            last = record.last_entry if item.last_entry is None else item.last_entry
            async with contextlib.aclosing(
                table(client, _Ledger(log.name, record, last, item.first_offset))
            ) as found:
                async for row in found:
                    yield row

    return rows


# --- of ledgers -----------------------------------------------------------------------------------------------------


async def _ledgers(_client: QuireClient, ledger: _Ledger) -> AsyncGenerator[Row, None]:
    record = ledger.record
    closed = record.state is LedgerState.CLOSED
    yield {
        "log": ledger.log,
        "ledger": record.ledger_id,
        "state": record.state.name.lower(),
        "ensemble_size": record.ensemble_size,
        "write_quorum": record.write_quorum,
        "ack_quorum": record.ack_quorum,
        "digest": record.digest_type.name.lower(),
        "last_entry": record.last_entry if closed else None,
        "bytes": record.length if closed else None,
        "fragments": len(record.fragments),
        "created": _time(record.created_ms),
    }


async def _fragments(_client: QuireClient, ledger: _Ledger) -> AsyncGenerator[Row, None]:
    record = ledger.record
    for position, fragment in enumerate(record.fragments):
        yield {
            "log": ledger.log,
            "ledger": record.ledger_id,
            "position": position,
            "first_entry": fragment.first_entry,
            "last_entry": record.last_entry_of_fragment(position),
            "bookies": list(fragment.ensemble),
        }


async def _entries(client: QuireClient, ledger: _Ledger) -> AsyncGenerator[Row, None]:
    if ledger.last_entry < 0:
        return
    reader = cluster.reader_of(client, ledger.record, ledger.last_entry)
    batched = is_batched(ledger.record)
    async with contextlib.aclosing(read_views(reader, ledger.last_entry)) as views:
        async for entry_id, view in views:
            header = view.header
            yield {
                "log": ledger.log,
                "ledger": ledger.record.ledger_id,
                "entry": entry_id,
                "first_offset": ledger.first_offset + header.records_before,
                "records": header.count,
                "bytes": header.body_bytes,
                "codec": header.codec.name.lower() if batched else "opaque",
                "min_time": _time(header.min_ms) if batched else None,
                "max_time": _time(header.max_ms) if batched else None,
            }


def _time(ms: int | None) -> datetime | None:
    """A time for a table; null where there is none that a timestamp can show."""
    return None if ms is None or not TIME_MS_MIN <= ms <= TIME_MS_MAX else moment(ms)


_LEDGER_TABLES: Final[dict[Describe, LedgerTable]] = {
    Describe.LEDGERS: _ledgers,
    Describe.FRAGMENTS: _fragments,
    Describe.ENTRIES: _entries,
}
_TABLES: Final[dict[Describe, LogTable]] = {
    Describe.LOGS: _logs,
    Describe.SEGMENTS: _segments,
    Describe.CURSORS: _cursors,
    Describe.MARKS: _sink_positions,
    **{name: _of_each_ledger(table) for name, table in _LEDGER_TABLES.items()},
}
