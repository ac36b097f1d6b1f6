"""What the users of a log meet: records, batches with their offsets, a log's description."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from quire.core.ids import LedgerId
from quire.core.log.list import ItemLocation, ItemState, LogSettings, SinkPosition
from quire.wire.batch import BatchView

Bytes: TypeAlias = bytes
"""For classes that have a field of that name."""


class Record(NamedTuple):
    """One record of a log.

    Attributes:
        offset: its 64-bit number in the log, for ever; dense until records are compacted away.
        timestamp_ms: milliseconds since 1970, as the writer gave it.
        key: None when it was written without.
        value: None for a tombstone.
        headers: (name, value) pairs in the order of writing.
        ledger_id: where it lies: entry `entry_id` of this ledger, `index`-th of the batch.
    """

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    ledger_id: LedgerId
    entry_id: int
    index: int  # type: ignore[assignment] # the name that callers use; tuple.index is not missed


class BatchAt(NamedTuple):
    """A batch entry with its offsets in the log; the batch is whole, clipping to offsets is the caller's."""

    first_offset: int
    view: BatchView
    ledger_id: LedgerId
    entry_id: int

    @property
    def end_offset(self) -> int:
        """The offset after its last record."""
        header = self.view.header
        return self.first_offset + (header.span or header.count)


@dataclass(frozen=True, slots=True)
class ItemDescription:
    """One ledger of a log, as far as it is known.

    Of an open one the figures are those of its confirmed records at the time of the description.

    Attributes:
        token: a random number of the ledger's creation: another ledger under the same id has another.
        count: its records; after compaction fewer than offsets.
        bytes: payload bytes of its entries.
        location: whether bookies hold it, the archive, or both.
        digest: the number of the ledger's digest type.
        format: how its entries hold records; `batch1`, docs/formats/batch-entry.md, is the only one so far.
        flags: `ItemFlags` of its item in the list.
        last_entry: of an open ledger its last confirmed entry; None for a closed one (its metadata has it).
        archive: of an archived one the digest in its file's name.
    """

    ledger_id: LedgerId
    token: int
    first_offset: int
    next_offset: int
    count: int
    bytes: int
    min_time_ms: int | None
    max_time_ms: int | None
    state: ItemState
    location: ItemLocation
    digest: int
    format: str
    flags: int
    last_entry: int | None = None
    archive: Bytes = b""


@dataclass(frozen=True, slots=True)
class LogDescription:
    """A log at one moment.

    Attributes:
        log_id: 32 hex digits; a log that was deleted and created again has another.
        epoch: of the newest leader; `leader_host` says where it runs, "" when the last one closed cleanly.
        start_offset: the earliest record that can be read.
        end_offset: after the last record that was confirmed when this was asked.
        items: its ledgers, oldest first.
        generation: counts the changes of the log's list.
        sink_positions: per query the last batch that is in the log.
        archive: the directory of the files of archived items.
        compacted_below: compaction by key has reached this offset (exclusive): records below it whose key has a later one may be
            removed; 0: none are.
        silent: bookies whose missing responses may hide confirmed records at and after `end_offset`.
    """

    name: str
    log_id: str
    epoch: int
    start_offset: int
    end_offset: int
    items: list[ItemDescription]
    settings: LogSettings
    leader_host: str = ""
    created_ms: int = 0
    generation: int = 0
    sink_positions: tuple[SinkPosition, ...] = ()
    archive: str = ""
    compacted_below: int = 0
    silent: tuple[str, ...] = ()


class LogRange(NamedTuple):
    """A stretch of one ledger, in whole entries.

    Attributes:
        token: the ledger's, as in `ItemDescription`.
        first_offset: of the first record wanted, which may lie inside the first entry.
        end_offset: after the last record wanted, which may lie inside the last entry.
        bytes: payload bytes, about.
    """

    ledger_id: LedgerId
    token: int
    first_entry: int
    last_entry: int
    first_offset: int
    end_offset: int
    bytes: int
