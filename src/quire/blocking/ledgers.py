"""Ledgers without `await`."""

from __future__ import annotations

import concurrent.futures

from quire.blocking.handles import Appending, ClosingHandle, appended, asked, awaited, iterated, shown
from quire.client.reading.reader import LedgerReader as AsyncLedgerReader
from quire.client.writing.writer import LedgerWriter as AsyncLedgerWriter


class BlockingLedgerWriter(Appending[AsyncLedgerWriter]):
    """Writes the ledger that it created, or a stream; leaving its `with` block closes the ledger, or releases the stream."""

    append = appended(AsyncLedgerWriter.append)
    append_many = appended(AsyncLedgerWriter.append_many)
    flushed = awaited(AsyncLedgerWriter.flushed)
    ledger_id = shown(AsyncLedgerWriter.ledger_id)
    last_add_confirmed = shown(AsyncLedgerWriter.last_add_confirmed)
    length = shown(AsyncLedgerWriter.length)
    metadata = shown(AsyncLedgerWriter.metadata)
    term = shown(AsyncLedgerWriter.term)
    waits_for = asked(AsyncLedgerWriter.waits_for)

    def release(self) -> None:
        """Confirm what was appended and leave the ledger open; a stream is left to its next writer."""
        self._background.run(self._after_submissions, "release")

    def append_nowait(self, payload: bytes | bytearray | memoryview) -> concurrent.futures.Future[int]:
        """Append one entry without waiting for it; the future gives its id.

        Waits only while the window is full. Futures complete in the order of the calls.
        """
        # The loop takes it later, and by then the caller may have put something else into its buffer.
        own = bytes(payload) if isinstance(payload, bytearray | memoryview) else payload
        return self._submissions.submit(len(own), (own,), {})


class BlockingLedgerReader(ClosingHandle[AsyncLedgerReader]):
    """Reads one ledger, from any thread."""

    read = iterated(AsyncLedgerReader.read)
    tail = iterated(AsyncLedgerReader.tail)
    refresh = awaited(AsyncLedgerReader.refresh)
    close = awaited(AsyncLedgerReader.close)
    ledger_id = shown(AsyncLedgerReader.ledger_id)
    closed = shown(AsyncLedgerReader.closed)
    last_add_confirmed = shown(AsyncLedgerReader.last_add_confirmed)
    silent = shown(AsyncLedgerReader.silent)
    length = shown(AsyncLedgerReader.length)
    metadata = shown(AsyncLedgerReader.metadata)
