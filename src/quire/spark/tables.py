"""The tables that `describe` reads: logs, their items, ledgers and fragments, as the command line shows them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from quire.core.ledger_metadata import LedgerMetadata
from quire.spark import cluster
from quire.spark.extents import describe, resolve
from quire.spark.options import Describe, ReadOptions

if TYPE_CHECKING:
    from quire.log.client import QuireClient
    from quire.log.records import LogDescription

Row = dict[str, Any]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def read(options: ReadOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of one table, in the columns of `schema`."""
    rows = cluster.call(options.cluster, _collect, options)
    yield pa.RecordBatch.from_pylist([{name: row.get(name) for name in schema.names} for row in rows], schema)


async def _collect(client: QuireClient, options: ReadOptions) -> list[Row]:
    assert options.describe is not None
    table = _TABLES[options.describe]
    rows: list[Row] = []
    for source in await resolve(client, options, may_be_none=True):
        if source.ledger_id is None:
            log = await describe(client, options, client.log(source.name, options.password()))
            rows += [row async for row in table(client, log)]
        elif options.describe in {Describe.LEDGERS, Describe.FRAGMENTS}:
            record = await client.ledger_metadata(source.ledger_id)
            rows += _LEDGER_ROWS[options.describe](source.name, record)
    return rows


async def _logs(_client: QuireClient, log: LogDescription) -> AsyncIterator[Row]:
    yield {
        "log": log.name,
        "log_id": log.log_id,
        "epoch": log.epoch,
        "start_offset": log.start_offset,
        "end_offset": log.end_offset,
        "ledgers": len(log.items),
        "bytes": sum(item.bytes for item in log.items),
    }


async def _segments(_client: QuireClient, log: LogDescription) -> AsyncIterator[Row]:
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
            "place": item.place.name.lower(),
        }


async def _ledgers(client: QuireClient, log: LogDescription) -> AsyncIterator[Row]:
    for item in log.items:
        for row in _ledger_rows(log.name, await client.ledger_metadata(item.ledger_id)):
            yield row


async def _fragments(client: QuireClient, log: LogDescription) -> AsyncIterator[Row]:
    for item in log.items:
        for row in _fragment_rows(log.name, await client.ledger_metadata(item.ledger_id)):
            yield row


def _ledger_rows(log: str, record: LedgerMetadata) -> list[Row]:
    return [
        {
            "log": log,
            "ledger": record.ledger_id,
            "state": record.state.name.lower(),
            "ensemble_size": record.ensemble_size,
            "write_quorum": record.write_quorum,
            "ack_quorum": record.ack_quorum,
            "digest": record.digest_type.name.lower(),
            "last_entry": record.last_entry if record.state.name == "CLOSED" else None,
            "bytes": record.length if record.state.name == "CLOSED" else None,
            "fragments": len(record.fragments),
            "created": _time(record.created_ms),
        }
    ]


def _fragment_rows(log: str, record: LedgerMetadata) -> list[Row]:
    return [
        {
            "log": log,
            "ledger": record.ledger_id,
            "position": position,
            "first_entry": fragment.first_entry,
            "last_entry": record.last_entry_of_fragment(position),
            "bookies": list(fragment.ensemble),
        }
        for position, fragment in enumerate(record.fragments)
    ]


def _time(ms: int | None) -> datetime | None:
    return None if ms is None else _EPOCH + timedelta(milliseconds=ms)


_TABLES: Final[dict[Describe, Callable[[QuireClient, LogDescription], AsyncIterator[Row]]]] = {
    Describe.LOGS: _logs,
    Describe.SEGMENTS: _segments,
    Describe.LEDGERS: _ledgers,
    Describe.FRAGMENTS: _fragments,
}
_LEDGER_ROWS: Final = {Describe.LEDGERS: _ledger_rows, Describe.FRAGMENTS: _fragment_rows}
