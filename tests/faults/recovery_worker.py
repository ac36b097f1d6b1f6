"""Auto-recovery as a process of its own, at a pace that a test chooses: each line that it is sent is answered with its figures.

python recovery_worker.py URI '{"grace_s": 10, "audits": true, "repairs": true}'
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import quire
from quire.autorecovery.daemon import AutoRecovery
from quire.core.repair.audit_effects import AuditLimits
from quire.core.repair.open_last_fragments import GraceLimits
from quire.log.client import QuireClient
from quire.metadata.store import MetadataStore


class Counted:
    """Counts a store's requests, all and those that wait for their response, and the longest that one took."""

    def __init__(self, store: MetadataStore) -> None:
        self.requests = self.outstanding = self.outstanding_max = 0
        self.longest_s = 0.0
        for name in ("get", "list", "multi", "register"):
            setattr(store, name, self._counted(getattr(store, name)))

    def _counted(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def asked(*what: Any, **how: Any) -> Any:
            self.requests += 1
            self.outstanding += 1
            self.outstanding_max = max(self.outstanding_max, self.outstanding)
            began = time.monotonic()
            try:
                return await call(*what, **how)
            finally:
                self.outstanding -= 1
                self.longest_s = max(self.longest_s, time.monotonic() - began)

        return asked


def memory_kib(field: str) -> int:
    """A figure of this process's memory, as Linux tells it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


async def standard_input() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    return reader


async def main(uri: str, pace: dict[str, Any]) -> None:
    asked = await standard_input()
    async with quire.connect(uri) as client:
        recovered = count_recoveries(client)
        daemon = AutoRecovery(
            client,
            bytes_per_s=pace.get("bytes_per_s"),
            audit=AuditLimits(tick_s=pace.get("tick_s", 1)),
            grace=GraceLimits(pace.get("grace_s", 60), pace.get("idle_wait_s", 30), pace.get("tick_s", 1)),
        )
        counted = Counted(client.store)
        began_kib = memory_kib("VmRSS")
        parts = [daemon.auditor.run()] if not pace.get("repairs", True) else [daemon.run()]
        running = asyncio.gather(*parts)
        while True:
            report, counts = daemon.auditor.report, daemon.worker.queue.counts
            figures = {
                "name": daemon.name,
                "requests": counted.requests,
                "outstanding_max": counted.outstanding_max,
                "longest_s": round(counted.longest_s, 2),
                "began_kib": began_kib,
                "rss_kib": memory_kib("VmRSS"),
                "peak_kib": memory_kib("VmHWM"),
                "descriptors": len(os.listdir("/proc/self/fd")),
                "tasks": len(asyncio.all_tasks()),
                "copied": daemon.worker.bytes_copied,
                "attempts": counts.attempts,
                "repaired": counts.repaired,
                "recovered": len(recovered),
                "leads": daemon.auditor.is_leader,
                "audited": report.ledgers if report is not None and report.concluded else None,
                "marked": report.marked if report is not None else None,
            }
            print(json.dumps(figures), flush=True)
            line = asyncio.ensure_future(asked.readline())
            await asyncio.wait({line, running}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
            if not line.done() or not line.result():
                break
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def count_recoveries(client: QuireClient) -> list[int]:
    """The ledgers that this client recovers from now on."""
    recovered: list[int] = []
    recover = client.recover_ledger

    async def counted(ledger_id: int, *how: Any, **named: Any) -> Any:
        recovered.append(ledger_id)
        return await recover(ledger_id, *how, **named)

    client.recover_ledger = counted  # type: ignore[method-assign]
    return recovered


if __name__ == "__main__":
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(sys.argv[1], json.loads(sys.argv[2])))
