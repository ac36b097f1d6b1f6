"""Auto-recovery as one process runs it: a candidate for the auditor, and a worker.

Source: docs/autorecovery.md.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Sequence

from quire.autorecovery.auditor import Auditor
from quire.autorecovery.pending_replication import PendingReplication
from quire.autorecovery.worker import RepairWorker
from quire.client.client import Client
from quire.core.repair.audit_effects import LIMITS as AUDIT_LIMITS
from quire.core.repair.audit_effects import AuditLimits
from quire.core.repair.open_last_fragments import GRACE, GraceLimits
from quire.core.repair.rules import RULES, RepairRules
from quire.core.repair.work_queue import LIMITS as QUEUE_LIMITS
from quire.core.repair.work_queue import QueueLimits
from quire.metadata.repairs import RepairStore


class AutoRecovery:
    """A candidate for the auditor and a worker over one client.

    Args:
        client: the cluster.
        name: how others know this process; None: its host and id, with some random digits.
        bytes_per_s: how fast it copies; None: as fast as bookies accept it.
        duties: what the auditor does hourly besides marking ledgers with pending replication (closed while a guaranteed
            write quorum was not reached).
        audit: ticks and pauses of audits.
        queue: attempts and pauses of the worker, and how much it repairs at a time.
        grace: how long an open ledger is left to its writer.
        rules: the protocol's rules (`core/rules.py`); only tests pass changed ones.

    Raises:
        AlreadyExistsError: another process has this name.
    """

    def __init__(
        self,
        client: Client,
        name: str | None = None,
        *,
        bytes_per_s: int | None = None,
        duties: Sequence[Callable[[], Awaitable[object]]] = (),
        audit: AuditLimits = AUDIT_LIMITS,
        queue: QueueLimits = QUEUE_LIMITS,
        grace: GraceLimits = GRACE,
        rules: RepairRules = RULES,
    ) -> None:
        self.name = name or f"{socket.gethostname()}-{os.getpid()}-{client.chance.getrandbits(32):08x}"
        self.marks = RepairStore(client.store, client.clock, self.name)
        duties = (PendingReplication(client).mark, *duties)
        self.auditor = Auditor(client, self.marks, self.name, limits=audit, duties=duties, rules=rules)
        self.worker = RepairWorker(
            client, self.marks, self.name, bytes_per_s=bytes_per_s, limits=queue, grace=grace, rules=rules
        )

    async def run(self) -> None:
        """Audit and repair until cancelled.

        Raises:
            AlreadyExistsError: another process has this name.
        """
        tasks = [
            asyncio.create_task(self.worker.run(), name="repair worker"),
            asyncio.create_task(self.auditor.run(), name="auditor"),
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
