"""Reads of the records of ledgers and streams by a bookie: one a ledger at a time, however many wait for it, and few at a time.

Each read is linearizable (`metadata/store.py`, promise 2) and begins in the life of this process, so after every loss
that the bookie knows of. Listeners get every record, whichever request asked for it.

Source: `docs/protocol/bookie.md`, "Limbo"; docs/decisions/030-digest-type.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from quire.core.errors import NoSuchLedgerError, NoSuchStreamError, QuireError
from quire.core.ledger.metadata import LedgerMetadata
from quire.metadata.records import AllRecords
from quire.metadata.store import StoreAwayError

log = logging.getLogger(__name__)

READING_MAX: Final = 16
"""So many records are read at one time; others wait for their turn."""
READ_TIMEOUT_SECONDS: Final = 5.0
"""So long after it was asked for, a record that did not come does not come."""

ReadOutcome: TypeAlias = LedgerMetadata | QuireError
OnRecord: TypeAlias = Callable[[int, ReadOutcome], None]
"""Called with a ledger's id, and its record or why there is none."""


class RecordReads:
    """One bookie's reads of the records of ledgers.

    Attributes:
        listeners: get every record that was read, before the request that asked for it.
        reads: how many there were.
    """

    def __init__(self, records: AllRecords) -> None:
        self._records = records
        self._asked: dict[int, list[OnRecord]] = {}
        self._waiting: deque[tuple[int, float]] = deque()
        self._readers: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self.listeners: list[OnRecord] = []
        self.reads = 0

    def read(self, ledger_id: int, on_record: OnRecord) -> None:
        """Read a ledger's record, or wait with others for a read that has begun, and call `on_record` in a later turn.

        That there is no record is reported only by a read that began after this call: it may have been made since.

        Args:
            ledger_id: whose.
            on_record: called with the record; NoSuchLedgerError, CorruptMetadataError or the store's error; StoreAwayError
                after `READ_TIMEOUT_SECONDS`.
        """
        if self._is_closed:
            return
        callbacks = self._asked.get(ledger_id)
        if callbacks is not None:
            callbacks.append(on_record)
            return
        self._enqueue(ledger_id, [on_record])
        if len(self._readers) < READING_MAX:
            work = asyncio.get_running_loop().create_task(self._work(), name="read ledgers' records")
            self._readers.add(work)

    def read_anew(self, ledger_id: int, on_record: OnRecord) -> None:
        """The same with a read that begins after this call: one that has begun says nothing of a record made since."""
        read_later = partial(self.read, on_record=on_record)
        self.read(
            ledger_id, (lambda ledger_id, _: read_later(ledger_id)) if ledger_id in self._asked else on_record
        )

    def _enqueue(self, ledger_id: int, asked: list[OnRecord]) -> None:
        self._asked[ledger_id] = asked
        self._waiting.append((ledger_id, asyncio.get_running_loop().time() + READ_TIMEOUT_SECONDS))

    def cached(self, ledger_id: int) -> LedgerMetadata | None:
        """A record from memory, possibly an older one. None: it must be read."""
        return self._records.ledgers.cached(ledger_id)

    def close(self) -> None:
        """The bookie stops: no caller is notified any more, nor is one who asks from now on."""
        self._is_closed = True
        self._waiting.clear()
        self._asked.clear()
        for reader in list(self._readers):
            reader.cancel()

    async def _work(self) -> None:
        try:
            while self._waiting:
                ledger_id, until = self._waiting.popleft()
                count = len(self._asked[ledger_id])
                outcome = await self._read(ledger_id, until)
                asked = self._asked.pop(ledger_id, [])
                if isinstance(outcome, NoSuchLedgerError) and asked[count:]:
                    self._enqueue(ledger_id, asked[count:])
                    del asked[count:]
                for on_record in (*self.listeners, *asked):
                    try:
                        on_record(ledger_id, outcome)
                    except Exception:  # the others must get it, and callers that wait for another record
                        log.exception("a callback for the record of ledger %d failed", ledger_id)
        finally:
            # In the turn that found nothing waiting: the next request must not count on this reader.
            reader = asyncio.current_task()
            assert reader is not None
            self._readers.discard(reader)

    async def _either(self, ledger_id: int) -> LedgerMetadata:
        """The record of a ledger, or else of a stream."""
        try:
            return (await self._records.ledgers.read(ledger_id))[0]
        except NoSuchLedgerError:
            try:
                return (await self._records.streams.read(ledger_id))[0]
            except NoSuchStreamError:
                pass
            raise

    async def _read(self, ledger_id: int, until: float) -> ReadOutcome:
        self.reads += 1
        try:
            async with asyncio.timeout_at(until):
                return await self._either(ledger_id)
        except QuireError as error:
            return error
        except Exception as error:
            if not isinstance(error, TimeoutError):  # every waiting caller must get a result
                log.exception("reading the record of ledger %d", ledger_id)
            msg = (
                f"the metadata store did not return the record of ledger {ledger_id} within "
                f"{READ_TIMEOUT_SECONDS:g} s"
            )
            return StoreAwayError(msg, ledger_id=ledger_id)
