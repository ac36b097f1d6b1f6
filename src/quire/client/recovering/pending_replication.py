"""Marks closed ledgers for repair whose entries may be below the write quorum that was guaranteed.

Who closes such a ledger marks it, and the auditor marks what it finds: the guarantee was waived, or a client closed
the ledger that does not know it. A repair that finds every copy, or makes it, says in the record that the guarantee is
kept; then nothing marks it again.

Source: docs/protocol/write-quorum.md, "Closed below the guarantee".
"""

from __future__ import annotations

import logging
from typing import Final

from quire.core.errors import QuireError
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.notes import EntryRange
from quire.core.repair.under_replicated_marks import ANY_BOOKIE, MarkReason, UnderReplicatedMark
from quire.env.interfaces import Clock
from quire.metadata.records import AllRecords
from quire.metadata.repairs import RepairStore

log = logging.getLogger(__name__)

CLOSER: Final = "who closed the ledger"


async def mark_pending_replication(
    marks: RepairStore, record: LedgerMetadata, version: int, now_ms: int
) -> bool:
    """Mark a ledger, unless it has no pending replication or is marked already.

    Args:
        marks: the cluster's.
        record: of the ledger; `version`: its version in the store.
        now_ms: wall time, for people.

    Returns:
        Whether a mark was made.

    Raises:
        QuireError: as `RepairStore.mark`.
    """
    if not record.has_pending_replication:
        return False
    known = await marks.marks(record.ledger_id)
    wanted = EntryRange(0, int(record.last_entry))
    for mark in known.mark.marks if known is not None and known.mark is not None else ():
        if (mark.reason, mark.bookie, mark.entries) == (MarkReason.HOLE, ANY_BOOKIE, wanted):
            return False
    await marks.mark(
        record.ledger_id, [UnderReplicatedMark(MarkReason.HOLE, ANY_BOOKIE, wanted, version, "", now_ms)]
    )
    return True


async def mark_closed(records: AllRecords, clock: Clock, record: LedgerMetadata, version: int) -> None:
    """Mark a ledger that this client has closed, or found closed, if it has pending replication.

    A failure is only logged: the auditor marks it then.
    """
    if not record.has_pending_replication or record.terms is not None:
        return
    try:
        await mark_pending_replication(records.repairs(CLOSER), record, version, clock.wall_ms())
    except QuireError as error:
        log.warning("ledger %d is left to the auditor to mark for repair: %s", record.ledger_id, error)
