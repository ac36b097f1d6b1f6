"""A ledger's writer over whatever bookies a test has, of an ensemble that the test chooses."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from quire.client.access import LedgerAccess
from quire.client.config import ClientConfig
from quire.client.context import ClientContext
from quire.client.writing.writer import LedgerWriter
from quire.core.ids import BookieId
from quire.core.ledger.metadata import DigestType, new_ledger
from quire.env.real import RealClock
from quire.metadata.records import AllRecords


async def new_writer(
    bookies: Any,
    records: AllRecords,
    config: ClientConfig,
    ensemble: Sequence[BookieId],
    *,
    write_quorum: int | None = None,
    ack_quorum: int = 2,
    digest: DigestType = DigestType.CRC32C,
    format_version: int = 3,
    **of_context: Any,
) -> LedgerWriter:
    """Create a ledger and open it.

    Args:
        bookies: a `BookieClient`, or what stands for one.
        records: where its record goes.
        config: of its client.
        ensemble: its first; `write_quorum`: all of it unless said.
        of_context: parts of the client's context that the test brings.
    """
    ledgers = records.ledgers
    record = new_ledger(
        await ledgers.next_id(),
        ensemble,
        write_quorum=write_quorum or len(ensemble),
        ack_quorum=ack_quorum,
        digest_type=digest,
        password=b"secret",
        format_version=format_version,
    )
    context = ClientContext.of(bookies, records, RealClock(), random.Random(1), config)
    version = await ledgers.create(record)
    return LedgerWriter(record, version, LedgerAccess.of(record), replace(context, **of_context))
