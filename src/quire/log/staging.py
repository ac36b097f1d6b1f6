"""Staged ledgers: what a task of a sink writes before its batch is committed.

Each attempt of each task writes a ledger of its own and closes it. Its metadata says whose it is (`quire.staged`), so
that one that never gets into a list can be found, judged by its query's sink position, and deleted.

Source: docs/spark-sink.md, "Exactly once: how".
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Final

from quire.client.client import Client
from quire.client.writing.writer import LedgerWriter
from quire.core.errors import WindowFullError
from quire.core.ids import LedgerId
from quire.core.ledger.metadata import FORMAT_KEY, DigestType, LedgerMetadata
from quire.core.log.list import ItemState, LogItem, LogSettings
from quire.log.ledgers import LOG_KEY, OWNER_KEY
from quire.wire.batch_format import FORMAT_BATCH1

STAGED_KEY: Final = "quire.staged"
"""Custom metadata: whose batch a ledger was written for, as JSON; see `StagedBy`."""


@dataclass(frozen=True, slots=True)
class StagedBy:
    """Who staged a ledger.

    Attributes:
        query: the sink position under which its batch is committed; "" when the batch has none.
        batch: the batch's number, -1 when it has none.
        incarnation: where a user named the sink position, the Spark query that counts its batches now.
        partition: of the task; -1 for rows that the driver wrote for several.
        attempt: the task attempt, unique in its application.
        host: where it ran.
        consents: the user has agreed that the batch is appended whatever the sink position says (`OnReset.CONTINUE`), so a sink
            position does not make the ledger garbage.
    """

    query: str = ""
    batch: int = -1
    incarnation: str = ""
    partition: int = -1
    attempt: int = -1
    host: str = ""
    consents: bool = False

    def encode(self) -> bytes:
        """As it is stored."""
        facts = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def of(cls, record: LedgerMetadata) -> StagedBy | None:
        """What a ledger's metadata says; None for one that no sink staged, or that says it unreadably."""
        found = record.custom_value(STAGED_KEY)
        if found is None:
            return None
        try:
            facts = json.loads(found)
            return cls(**{name: kind(facts[name]) for name, kind in _KINDS.items() if name in facts})
        except (ValueError, TypeError, OverflowError, RecursionError):
            return cls()


_KINDS: Final = {
    "query": str,
    "batch": int,
    "incarnation": str,
    "partition": int,
    "attempt": int,
    "host": str,
    "consents": bool,
}


class StagedLedger:
    """One ledger that is being staged. Made by `stage`."""

    def __init__(self, writer: LedgerWriter) -> None:
        self._writer = writer

    @property
    def ledger_id(self) -> LedgerId:
        """Its id."""
        return self._writer.ledger_id

    async def append(self, entry: bytes) -> None:
        """Send a batch entry; waits only while the ledger's window is full.

        Raises:
            OutcomeUnknownError, NotWritingError: the ledger has ended; stage another.
        """
        while True:
            try:
                confirmed = self._writer.append_nowait(entry)
            except WindowFullError:
                await self._writer.drain()
            else:
                confirmed.add_done_callback(_settled)
                return

    async def close(self, records: int, min_ms: int | None, max_ms: int | None) -> LogItem:
        """Close the ledger; everything in it is on Qa bookies.

        Args:
            records: how many the entries hold; `min_ms` and `max_ms` are the range of their times.

        Returns:
            Its item for a list, without offsets.
        """
        await self._writer.drain()
        await self._writer.close()
        record = self._writer.metadata
        return LogItem(
            record.ledger_id,
            record.token,
            count=records,
            payload_bytes=self._writer.length,
            min_time_ms=min_ms,
            max_time_ms=max_ms,
            state=ItemState.CLOSED,
            digest=int(record.digest_type),
        )

    async def abandon(self) -> None:
        """Stop; the ledger is left to the collector."""
        await self._writer.abandon()


def _settled(confirmed: asyncio.Future[int]) -> None:
    """An entry that failed ends its ledger, and `close` raises the reason: its future need not be read."""
    if not confirmed.cancelled():
        confirmed.exception()


async def stage(
    client: Client, log_id: bytes, settings: LogSettings, by: StagedBy, password: bytes = b""
) -> StagedLedger:
    """Create a ledger for a log, in no log's list.

    Args:
        client: the cluster.
        log_id: the log that it is made for.
        settings: its quorums and digest.
        by: who stages it.
        password: of the log's ledgers.

    Raises:
        NotEnoughBookiesError: fewer bookies than a new ledger of these settings needs.
    """
    writer = await client.create_ledger(
        ensemble_size=settings.ensemble_size,
        write_quorum=settings.write_quorum,
        ack_quorum=settings.ack_quorum,
        min_present=settings.min_present or None,
        password=password,
        digest=DigestType(settings.digest),
        custom={
            FORMAT_KEY: FORMAT_BATCH1,
            LOG_KEY: log_id.hex().encode(),
            OWNER_KEY: f"{by.query or 'a write'}@{by.host}".encode(),
            STAGED_KEY: by.encode(),
        },
    )
    return StagedLedger(writer)
