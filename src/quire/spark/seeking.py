"""Which entries of a ledger hold the wanted records, also where some of its entries are proven lost.

The search looks at the headers of a few entries. A lost one is skipped while the search goes on with its neighbours: it
may hold wanted records, so it belongs to what is found, and the task that reads it says what is lost. An entry that is
only out of reach ends the search.

Source: docs/decisions/021-batch-header.md; `core/ledger/losses.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quire.core.errors import NoSuchEntryError, ReadUnavailableError
from quire.log import ledgers
from quire.log.ledgers import is_batched, read_one
from quire.spark import cluster

if TYPE_CHECKING:
    from quire.client.reading.reader import LedgerReader
    from quire.log.client import QuireClient
    from quire.wire.batch import BatchHeader


class Headers:
    """Headers of one ledger's entries, with those that are lost.

    Args:
        client: the cluster.
        reader: of the ledger.
        last_entry: its last confirmed entry, as far as it is read.
    """

    def __init__(self, client: QuireClient, reader: LedgerReader, last_entry: int) -> None:
        self._client, self._reader, self._last = client, reader, last_entry
        self._lost: dict[int, None] = {}

    async def of(self, entry_id: int) -> BatchHeader | None:
        """The header of one entry; None for one that is proven lost.

        Raises:
            ReadUnavailableError: that is unknown now.
        """
        if entry_id in self._lost:
            return None
        try:
            return (await read_one(self._reader, entry_id)).header
        except (NoSuchEntryError, ReadUnavailableError):
            lost = await cluster.lost_of(self._client, self._reader.metadata, entry_id, self._last)
            if not lost.are_proven:
                raise
            self._lost |= dict.fromkeys(range(lost.first, lost.last + 1))
            return None

    async def near(self, middle: int, low: int, high: int) -> tuple[int, BatchHeader] | None:
        """The readable entry of low..high that is next to `middle`, those below first; None when all are lost."""
        for entry_id in (*range(min(middle, high), low - 1, -1), *range(middle + 1, high + 1)):
            if (header := await self.of(entry_id)) is not None:
                return entry_id, header
        return None

    async def holding(self, record: int, high: int) -> tuple[int, int]:
        """The entries of 0..high that hold offset `record` of the ledger: one, or some that are lost, of which one may.

        Where no record has the offset it is the entry with the next one.
        """
        low = 0
        while low <= high:
            middle = (low + high) // 2
            found = await self.near(middle, low, high)
            if found is None:
                return low, high
            at, header = found
            if record < header.records_before:
                high = at - 1
            elif record >= header.records_through:
                low = at + 1
            else:
                return at, at
        return low, low


async def entries_between(
    client: QuireClient, reader: LedgerReader, start: int, end: int, records: int, last_entry: int
) -> tuple[int, int]:
    """The first and the last entry with offsets of a ledger; see `quire.log.ledgers.entries_between`.

    Raises:
        ReadUnavailableError: an entry that must be looked at is out of reach.
    """
    try:
        return await ledgers.entries_between(reader, start, end, records, last_entry)
    except (NoSuchEntryError, ReadUnavailableError):
        headers = Headers(client, reader, last_entry)
        first = 0 if start <= 0 else (await headers.holding(start, last_entry))[0]
        if end < records:
            last_entry = min(last_entry, (await headers.holding(end - 1, last_entry))[1])
        return first, last_entry


async def first_since(client: QuireClient, reader: LedgerReader, first: int, last: int, from_ms: int) -> int:
    """The first entry that can hold a record as late as `from_ms`, by bisection.

    Headers carry the greatest time of the ledger so far, which never falls; whatever order records' own times have,
    nothing before the entry that raises it to `from_ms` is as late.

    Source: docs/decisions/021-batch-header.md.
    """
    if not is_batched(reader.metadata):
        return first
    headers = Headers(client, reader, last)
    while first < last:
        middle = (first + last) // 2
        found = await headers.near(middle, first, middle)
        if found is None:
            return first  # those that are lost may have been as late
        at, header = found
        if header.ledger_max_ms < from_ms:
            first = at + 1
        else:
            last = at
    return first


async def first_if_lost(client: QuireClient, reader: LedgerReader, entry_id: int, last: int) -> int | None:
    """The number, counted in the ledger, of the first offset of an entry that is proven lost; None for one that is there.

    Args:
        client: the cluster.
        reader: of the ledger.
        entry_id: the entry; the one before it is there.
        last: the ledger's last confirmed entry.
    """
    headers = Headers(client, reader, last)
    if await headers.of(entry_id) is not None:
        return None
    before = None if entry_id == 0 else await headers.of(entry_id - 1)
    return 0 if before is None else before.records_through
