"""What a task may leave out: records that are proven lost, entry by entry, and never what is out of reach.

With `failOnDataLoss=false` a task steps over them, counts them and names their offsets in its log; otherwise it fails
with the same facts. An outage fails the task in both cases, and Spark runs it again.

Source: `core/ledger/losses.py`; docs/spark.md, "What is lost, and what is reported".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire.core.errors import (
    NoSuchEntryError,
    NoSuchLedgerError,
    NoSuchLogError,
    QuireError,
    ReadUnavailableError,
)
from quire.core.log.list import ItemLocation
from quire.log.archive import ArchiveError, ArchiveLostError
from quire.spark import cluster
from quire.spark.options import SparkUseError
from quire.spark.pushdown import intersect
from quire.spark.seeking import Headers

if TYPE_CHECKING:
    from quire.client.reading.lost_entries import LostEntries
    from quire.log.client import QuireClient
    from quire.spark.packing import EntrySpan
    from quire.spark.read_options import ReadOptions

_OUTAGE = "It is not proven lost, so failOnDataLoss=false does not skip it"
MOVED = "The log has its records elsewhere now (it was rewritten or archived): start the query again"

LOG_DELETED = "whose log was deleted"
LOG_RECREATED = "whose log was deleted and created again"


class TaskLosses:
    """The lost records that one task leaves out.

    Args:
        options: of the read.
        number: the task's; a planner that says what it leaves out has none.
    """

    def __init__(self, options: ReadOptions, number: int = 0) -> None:
        self._options, self._number = options, number
        self._entries = self._records = 0

    def step_over(self, piece: EntrySpan, error: QuireError) -> int:
        """Say what is lost of a piece, whose entry could not be read.

        Returns:
            The last entry that is lost: reading goes on after it.

        Raises:
            SparkUseError: it is not proven lost, or a loss is not to be stepped over.
        """
        try:
            if isinstance(error, NoSuchLedgerError):
                return self._whole_ledger(piece, error)
            return self._some_entries(piece, error)
        except NoSuchLedgerError as deleted:
            return self._whole_ledger(piece, deleted)

    def step_over_archived(self, piece: EntrySpan, error: ArchiveError, first: int, stop: int) -> None:
        """Say that archived records from `first` up to, not including, `stop` could not be read.

        Raises:
            SparkUseError: they are not proven lost, or a loss is not to be stepped over.
        """
        if not isinstance(error, ArchiveLostError):
            raise named(piece, error, _OUTAGE) from error
        records = sum(end - start for start, end in intersect(((first, stop),), piece.offsets))
        text = f"{error}: offsets {first} to {stop - 1}, up to {records:,} records of this read"
        self._lose(piece, text, 1, records)

    def step_over_ledger(self, piece: EntrySpan, why: str) -> int:
        """Say that a piece is lost with its ledger, or file, whatever of it could still be read.

        Args:
            piece: what is lost.
            why: what became of the ledger, as the end of a sentence about it.

        Returns:
            The piece's last entry.

        Raises:
            SparkUseError: a loss is not to be stepped over.
        """
        entries = piece.last_entry - piece.first_entry + 1
        origin = piece.origin
        if piece.archive is not None:
            records = sum(stop - first for first, stop in piece.offsets)
            what = f"{entries} archived row groups of offsets {piece.offsets[0][0]} to {piece.offsets[-1][1] - 1}"
        elif origin.end_offset is None:
            records, what = entries, f"offsets {piece.first_entry} to {piece.last_entry}"
        else:
            spans = intersect(((origin.first_offset, origin.end_offset),), piece.offsets)
            whole = (origin.last_entry or 0) + 1
            records = sum(stop - first for first, stop in spans) * entries // whole
            what = f"{entries} of the {whole} entries of offsets {origin.first_offset} to {origin.end_offset - 1}"
        text = f"ledger {origin.ledger_id}, {why}: {what}, about {records:,} records of this read"
        self._lose(piece, text, entries, records)
        return piece.last_entry

    def end(self) -> None:
        """Say how much the task left out, if it did."""
        if self._entries:
            cluster.warn(
                f"task {self._number} skipped {self._records:,} records that are proven lost, in {self._entries:,} entries "
                "or archived row groups."
            )

    def _some_entries(self, piece: EntrySpan, error: QuireError) -> int:
        entry_id = error.ids.get("entry_id")
        if not isinstance(entry_id, int):
            raise named(piece, error) from error
        try:
            lost, span = cluster.call(self._options.cluster, _what_is_lost, piece, entry_id)
        except NoSuchLedgerError:
            raise
        except QuireError as unknown:
            raise named(piece, unknown, _OUTAGE) from error
        if not lost.are_proven:
            raise named(piece, error, _OUTAGE) from error
        kept = [] if span is None else intersect((span,), piece.offsets)
        records = sum(stop - first for first, stop in kept)
        where = f"entry {lost.first}" if lost.first == lost.last else f"entries {lost.first} to {lost.last}"
        what = "their offsets are counted with those of the entries before them"
        if span is not None:
            what = f"offsets {span[0]} to {span[1] - 1}, {records:,} records of this read"
        text = (
            f"{where} of ledger {piece.origin.ledger_id}, missing or damaged on every bookie of "
            f"the write set ({lost.said}): {what}"
        )
        self._lose(piece, text, lost.last - lost.first + 1, records)
        return lost.last

    def _whole_ledger(self, piece: EntrySpan, error: QuireError) -> int:
        origin = piece.origin
        why: str | None = "which was deleted"
        if origin.end_offset is not None:
            where = origin.log, origin.log_id, origin.ledger_id, origin.first_offset, origin.end_offset
            why = cluster.call(self._options.cluster, why_lost, *where)
        if why is None:
            raise named(piece, error, MOVED) from error
        return self.step_over_ledger(piece, why)

    def _lose(self, piece: EntrySpan, text: str, entries: int, records: int) -> None:
        if self._options.fail_on_data_loss:
            raise SparkUseError(
                f"quire: log '{piece.origin.log}': {text}. failOnDataLoss=false skips them.",
                log=piece.origin.log,
                ledger_id=piece.origin.ledger_id,
            )
        self._entries += entries
        self._records += records
        cluster.warn(f"log '{piece.origin.log}': skipped: {text}.")


def named(piece: EntrySpan, error: QuireError, remedy: str = "") -> SparkUseError:
    """The error with the log it happened in, as the last line that a user sees."""
    end = f" {remedy}." if remedy else ""
    return SparkUseError(f"quire: log '{piece.origin.log}': {error}.{end}", **error.ids)


async def _what_is_lost(
    client: QuireClient, piece: EntrySpan, entry_id: int
) -> tuple[LostEntries, tuple[int, int] | None]:
    """Which entries from one on are lost, and from which offset up to, not including, which their records were.

    None instead of offsets: the entry before the first one is lost too and belongs to another task, which reports it.
    """
    record = piece.record
    assert record is not None
    lost = await cluster.lost_of(client, record, entry_id, piece.last_entry)
    if not lost.are_proven or not piece.batches:
        return lost, (lost.first, lost.last + 1)
    origin = piece.origin
    last_entry = piece.last_entry if origin.last_entry is None else origin.last_entry
    headers = Headers(client, cluster.reader_of(client, record, last_entry), last_entry)
    start = 0
    if lost.first:
        before = await headers.of(lost.first - 1)
        if before is None:
            return lost, None
        start = before.records_through
    after = await headers.near(lost.last + 1, lost.last + 1, last_entry)
    end = origin.end_offset
    if after is not None:
        end = origin.first_offset + after[1].records_before
    return lost, (origin.first_offset + start, origin.first_offset + start if end is None else end)


async def why_lost(
    client: QuireClient, log: str, log_id: str, ledger_id: int, first_offset: int, end_offset: int
) -> str | None:
    """Why a ledger that a log listed is not there; None when its records are, elsewhere.

    Args:
        client: the cluster.
        log: the log's name; `log_id` its id.
        ledger_id: the ledger, which has no record in the metadata store.
        first_offset: the first of its offsets; `end_offset` lies after the last one.
    """
    try:
        about = await client.log(log).describe(first_offset)
    except NoSuchLogError:
        return LOG_DELETED
    if about.log_id != log_id:
        return LOG_RECREATED
    if any(item.ledger_id == ledger_id and item.location is ItemLocation.BOOKIES for item in about.items):
        return "which was deleted though the log lists it"
    if end_offset <= about.start_offset:
        return f"which was trimmed (the log begins at {about.start_offset})"
    return None


UNREADABLE = (NoSuchEntryError, NoSuchLedgerError, ReadUnavailableError)
"""The errors that `TaskLosses.step_over` judges."""
