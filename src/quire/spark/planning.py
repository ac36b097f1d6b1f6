"""What to read and in which tasks, decided once a plan from the logs' lists.

Only the list and the records of the ledgers in question are read, not the ledgers: which entry holds an offset is
asked of a ledger only where a wanted span begins or ends inside it. The end is fixed here, at what was confirmed, so
one read is a consistent prefix of each log however long its tasks take.

Source: spark.md 4.3; decisions F-29, F-31, F-32.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire.core.errors import (
    CorruptMetadataError,
    NoSuchLedgerError,
    NoSuchLogError,
    TrimmedError,
    WrongPasswordError,
)
from quire.core.ledger_metadata import DigestType, LedgerMetadata, LedgerState
from quire.log.ledgers import entry_holding, is_batched, read_one
from quire.spark import cluster
from quire.spark.decode import Origin
from quire.spark.options import EARLIEST, LATEST, Isolation, ReadOptions, Source, SparkUseError, Verify
from quire.spark.packing import Piece, Task, pack
from quire.spark.pushdown import Spans, Wanted, between, intersect

if TYPE_CHECKING:
    from quire.client.reader import LedgerReader
    from quire.log.client import QuireClient
    from quire.log.records import ItemDescription, LogDescription

_SPANS_MAX = 16
"""More wanted spans than this inside one ledger are read as one stretch: each would cost two searches."""


def plan(options: ReadOptions, wanted: Wanted) -> list[Task]:
    """The tasks of a read.

    Args:
        options: what the user asked for.
        wanted: what the query's filters leave of it.

    Raises:
        SparkUseError: a log that is not there, or offsets that it does not have.
    """
    pieces = cluster.call(options.cluster, _pieces, options, wanted)
    packed = pack(
        pieces,
        options.split_bytes,
        min_partitions=options.min_partitions,
        max_partitions=options.max_partitions,
    )
    return [Task(number, parts, wanted.from_ms, wanted.to_ms) for number, parts in enumerate(packed)]


async def _pieces(client: QuireClient, options: ReadOptions, wanted: Wanted) -> list[Piece]:
    pieces: list[Piece] = []
    for source in await resolve(client, options):
        if source.ledger_id is not None:
            pieces += await _pieces_of_ledger(client, options, wanted, source.ledger_id)
        else:
            pieces += await _pieces_of_log(client, options, wanted, source.name)
    return pieces


async def resolve(client: QuireClient, options: ReadOptions) -> list[Source]:
    """The sources with patterns replaced by the logs that match them, each log once, in the order given."""
    found: dict[Source, None] = {}
    names: list[str] | None = None
    for source in options.sources:
        if not source.pattern:
            found[source] = None
            continue
        if names is None:
            names = await client.logs()
        matching = [name for name in names if fnmatch.fnmatchcase(name, source.name)]
        if not matching and options.describe is None:
            raise SparkUseError(
                f"quire: no log matches '{source.name}' at {options.cluster}{_listed(names)}.",
                log=source.name,
            )
        found |= {Source(name): None for name in matching}
    return list(found)


def _listed(names: Sequence[str]) -> str:
    if not names:
        return "; the cluster has no log"
    return f" (logs: {', '.join(names[:5])}{', …' if len(names) > 5 else ''})"


async def describe(client: QuireClient, options: ReadOptions, name: str) -> LogDescription:
    """A log's list as it is now.

    Raises:
        SparkUseError: there is no such log; it names the nearest.
    """
    try:
        return await client.log(name, options.password()).describe()
    except NoSuchLogError as error:
        near = difflib.get_close_matches(name, await client.logs(), n=1, cutoff=0.5)
        hint = f" Nearest: '{near[0]}'." if near else ""
        raise SparkUseError(f"quire: no log '{name}' at {options.cluster}.{hint}", log=name) from error


# --- a log --------------------------------------------------------------------------------------------------------


async def _pieces_of_log(client: QuireClient, options: ReadOptions, wanted: Wanted, name: str) -> list[Piece]:
    log = await describe(client, options, name)
    start, end = offsets_of(options, log)
    spans = intersect(wanted.offsets, between(start, end))
    pieces: list[Piece] = []
    for item in log.items:
        if options.isolation is Isolation.SEALED and item.last_entry is not None:
            continue
        inside = intersect(spans, between(item.first_offset, item.next_offset))
        if not inside or not _touches(wanted, item):
            continue
        record = await _record(client, options, log, item)
        if record is None:
            continue
        last_entry = item.last_entry if item.last_entry is not None else record.last_entry
        ledger = _Ledger(log.name, item, record, last_entry)
        stretches = [inside] if len(inside) > _SPANS_MAX else [(span,) for span in inside]
        for stretch in stretches:
            pieces.append(await _stretch(client, ledger, stretch, wanted.from_ms))
    return pieces


@dataclass(frozen=True, slots=True)
class _Ledger:
    """A ledger of a log while its pieces are made."""

    log: str
    item: ItemDescription
    record: LedgerMetadata
    last_entry: int

    def piece(self, first: int, last: int, offsets: Spans) -> Piece:
        size = self.item.bytes * (last - first + 1) // max(self.last_entry + 1, 1)
        origin = Origin(self.log, self.item.ledger_id, self.item.first_offset)
        return Piece(origin, self.record, first, last, size, batches=True, offsets=offsets)


async def _stretch(client: QuireClient, ledger: _Ledger, spans: Spans, from_ms: int | None) -> Piece:
    """The entries from the first to the last of some spans, which all lie in one ledger.

    Where that is not the whole ledger, entries are looked up: by offset, and by time from where a record can be as
    late as `from_ms`.
    """
    item = ledger.item
    first, last = 0, ledger.last_entry
    reader = cluster.reader_of(client, ledger.record, last)
    if spans[0][0] > item.first_offset:
        first = await entry_holding(reader, spans[0][0] - item.first_offset)
    if spans[-1][1] < item.next_offset:
        last = await entry_holding(reader, spans[-1][1] - 1 - item.first_offset)
    if from_ms is not None and item.min_time_ms is not None and item.min_time_ms < from_ms:
        first = await _first_since(reader, first, last, from_ms)
    return ledger.piece(first, last, spans)


async def _first_since(reader: LedgerReader, first: int, last: int, from_ms: int) -> int:
    """The first entry that can hold a record as late as `from_ms`, by bisection.

    Headers carry the greatest time of the ledger so far, which never falls; whatever order records' own times have,
    nothing before the entry that raises it to `from_ms` is as late.

    Source: decision F-31.
    """
    if not is_batched(reader.metadata):
        return first
    while first < last:
        middle = (first + last) // 2
        if (await read_one(reader, middle)).header.ledger_max_ms < from_ms:
            first = middle + 1
        else:
            last = middle
    return first


def _touches(wanted: Wanted, item: ItemDescription) -> bool:
    if item.min_time_ms is None or item.max_time_ms is None:
        return True
    return wanted.touches(item.min_time_ms, item.max_time_ms)


async def _record(
    client: QuireClient, options: ReadOptions, log: LogDescription, item: ItemDescription
) -> LedgerMetadata | None:
    """The record of a listed ledger; None where it is gone and that is to be skipped."""
    try:
        record = await client.ledger_metadata(item.ledger_id)
        if item.token and record.token != item.token:
            raise CorruptMetadataError(
                f"quire: log '{log.name}': ledger {item.ledger_id} is not the one that the log lists "
                "(its token differs): the id was used again after a restore.",
                ledger_id=item.ledger_id,
            )
        if record.password != options.password():
            raise WrongPasswordError(
                f"quire: log '{log.name}': the password is not the one that its ledgers were created with.",
                log=log.name,
            )
        check_digest(options, record)
    except NoSuchLedgerError as error:
        text = (
            f"log '{log.name}': offsets {item.first_offset} to {item.next_offset} were in ledger {item.ledger_id}, "
            "which is gone."
        )
        if options.fail_on_data_loss:
            raise TrimmedError(f"quire: {text} failOnDataLoss=false skips them.", log=log.name) from error
        cluster.warn(text)
        return None
    return record


def check_digest(options: ReadOptions, record: LedgerMetadata) -> None:
    """Refuse a ledger without a digest where the user demands one."""
    if options.verify is Verify.DIGEST and record.digest_type is DigestType.DUMMY:
        raise SparkUseError(
            f"quire: ledger {record.ledger_id} was written without a digest; verify=checksum reads it.",
            ledger_id=record.ledger_id,
        )


def offsets_of(options: ReadOptions, log: LogDescription) -> tuple[int, int]:
    """From where to where one log is read.

    Returns:
        First offset and the one to stop before.

    Raises:
        TrimmedError: the start was asked for by number and is not there any more.
        SparkUseError: an offset lies behind the log's end.
    """
    name, earliest, latest = log.name, log.start_offset, log.end_offset
    ends = {EARLIEST: earliest, LATEST: latest}
    asked, stop = options.starting.of(name), options.ending.of(name)
    start, end = ends.get(asked, asked), ends.get(stop, stop)
    if start < earliest:
        text = f"log '{name}': asked from offset {start}, earliest is {earliest} (trimmed)."
        if options.fail_on_data_loss:
            skipped = f"failOnDataLoss=false skips {earliest - start:,} records."
            raise TrimmedError(f"quire: {text} {skipped}", log=name)
        cluster.warn(text)
        start = earliest
    for what, offset in (("startingOffsets", start), ("endingOffsets", end)):
        if offset > latest:
            raise SparkUseError(
                f"quire: log '{name}': {what} says {offset}, the log ends at {latest}. "
                "Read up to latest, or wait for its writer.",
                log=name,
            )
    if start > end:
        raise SparkUseError(
            f"quire: log '{name}': startingOffsets {start} lies behind endingOffsets {end}.", log=name
        )
    return start, end


# --- a raw ledger -------------------------------------------------------------------------------------------------


async def _pieces_of_ledger(
    client: QuireClient, options: ReadOptions, wanted: Wanted, ledger_id: int
) -> list[Piece]:
    """Every entry of a ledger is a record, its id the offset; an open one is read beside its writer."""
    name = f"ledger:{ledger_id}"
    try:
        reader = await client.open_ledger(ledger_id, options.password(), recover=False)
    except NoSuchLedgerError as error:
        raise SparkUseError(
            f"quire: no ledger {ledger_id} at {options.cluster}.", ledger_id=ledger_id
        ) from error
    record, last = reader.metadata, reader.last_add_confirmed
    check_digest(options, record)
    if options.isolation is Isolation.SEALED and record.state is not LedgerState.CLOSED:
        return []
    ends = {EARLIEST: 0, LATEST: last + 1}
    asked, stop = options.starting.of(name), options.ending.of(name)
    start, end = ends.get(asked, asked), ends.get(stop, stop)
    if max(start, end) > last + 1:
        raise SparkUseError(f"quire: ledger {ledger_id} ends at entry {last}; asked for {start} to {end}.")
    size = record.length if record.state is LedgerState.CLOSED else await cluster.length_at(reader, last)
    pieces = []
    for first, behind in intersect(wanted.offsets, between(start, end)):
        share = size * (behind - first) // (last + 1)
        origin = Origin(name, ledger_id, 0)
        pieces.append(Piece(origin, record, first, behind - 1, share, batches=False))
    return pieces
