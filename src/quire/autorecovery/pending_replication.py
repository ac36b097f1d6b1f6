"""A duty of the auditor: marks closed ledgers whose entries may be below the write quorum that was guaranteed.

The client that closes such a ledger marks it as well, where it knows the guarantee; a Java client does not.

Source: docs/protocol/write-quorum.md, "Closed below the guarantee"; docs/protocol/audit.md.
"""

from __future__ import annotations

import logging

from quire.client.client import Client
from quire.client.recovering.pending_replication import mark_pending_replication
from quire.core.errors import CorruptMetadataError
from quire.core.ledger.guarantee import GUARANTEE_KEY
from quire.metadata.store import LIST_LIMIT
from quire.wire import ledger_metadata

log = logging.getLogger(__name__)

_KEY = GUARANTEE_KEY.encode()


class PendingReplication:
    """Looks at the records of all ledgers.

    Args:
        client: the cluster.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._marks = client.records.repairs("the auditor")

    async def mark(self) -> int:
        """Mark every ledger that waits for replication and is not marked.

        Returns:
            How many were marked.

        Raises:
            QuireError: the records cannot be listed, or a ledger may not be marked; the next look continues.
        """
        store, clock = self._client.records.ledgers, self._client.clock
        marked, after = 0, None
        while True:
            page = await store.page(after)
            for ledger_id, stored in page:
                try:
                    if _KEY not in stored.value:
                        continue
                    record = ledger_metadata.parse(stored.value, ledger_id)
                    made = await mark_pending_replication(
                        self._marks, record, stored.version, clock.wall_ms()
                    )
                except CorruptMetadataError as error:
                    log.warning("ledger %d is not marked for repair: %s", ledger_id, error)
                    continue
                if made:
                    marked += 1
                    log.info(
                        "ledger %d may be below its guaranteed write quorum: it will be repaired", ledger_id
                    )
            if len(page) < LIST_LIMIT:
                return marked
            after = int(page[-1][0])
