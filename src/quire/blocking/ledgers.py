"""Ledgers without `await`."""

from __future__ import annotations

import concurrent.futures

from quire.blocking.handles import Appending, ClosingHandle, awaited, iterated
from quire.client.reader import LedgerReader as AsyncLedgerReader
from quire.client.writer import LedgerWriter as AsyncLedgerWriter
from quire.core.ids import BookieId, EntryId, LedgerId
from quire.core.ledger_metadata import LedgerMetadata


class BlockingLedgerWriter(Appending[AsyncLedgerWriter]):
    """Writes the ledger that it created; leaving its `with` block closes the ledger."""

    append = awaited(AsyncLedgerWriter.append)
    append_many = awaited(AsyncLedgerWriter.append_many)

    def append_nowait(self, payload: bytes | bytearray | memoryview) -> concurrent.futures.Future[int]:
        """Append one entry without waiting for it; the future gives its id.

        Waits only while the window is full. Futures complete in the order of the calls.
        """
        return self._submissions.submit(len(payload), (payload,), {})

    @property
    def ledger_id(self) -> LedgerId:
        """The ledger's id."""
        return self._inner.ledger_id

    @property
    def last_add_confirmed(self) -> EntryId:
        """The last entry that is durable together with all before it."""
        return self._inner.last_add_confirmed

    @property
    def length(self) -> int:
        """Payload bytes up to there."""
        return self._inner.length

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's record as this writer knows it."""
        return self._inner.metadata


class BlockingLedgerReader(ClosingHandle[AsyncLedgerReader]):
    """Reads one ledger."""

    read = iterated(AsyncLedgerReader.read)
    tail = iterated(AsyncLedgerReader.tail)
    refresh = awaited(AsyncLedgerReader.refresh)
    close = awaited(AsyncLedgerReader.close)

    @property
    def ledger_id(self) -> LedgerId:
        """The ledger's id."""
        return self._inner.ledger_id

    @property
    def closed(self) -> bool:
        """Whether the ledger is known to be closed: then its end never moves."""
        return self._inner.closed

    @property
    def last_add_confirmed(self) -> EntryId:
        """How far entries can be read now; the last entry of a closed ledger."""
        return self._inner.last_add_confirmed

    @property
    def silent(self) -> tuple[BookieId, ...]:
        """Bookies for want of whose answer the ledger may be confirmed further than is known; none when it is closed."""
        return self._inner.silent

    @property
    def length(self) -> int:
        """Payload bytes of a closed ledger."""
        return self._inner.length

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's record as last read."""
        return self._inner.metadata
