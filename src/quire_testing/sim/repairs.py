"""What repairers and an owner of a simulated world do, and what is seen of it: the cluster repair that ships.

Two invariants of auto-recovery are judged here. AR1: no open ledger is recovered while no bookie could take a slot of it. AR2:
a hole that was marked is filled, or has a mark still, or is no longer asked of that bookie.

Source: docs/simulation.md, "The world"; docs/protocol/repair.md.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

from quire.autorecovery.daemon import AutoRecovery
from quire.autorecovery.marking import mark_findings
from quire.autorecovery.repair import ClusterRepair
from quire.client.client import RecoveryReport
from quire.client.repairing.scrubbing import ReplicaCheck
from quire.core.errors import QuireError
from quire.core.ids import BookieId, LedgerId
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.stripes import BookieStripes, HeldInterval, bookie_stripes, not_held
from quire.core.repair.audit_effects import AuditLimits
from quire.core.repair.open_last_fragments import GraceLimits
from quire.core.repair.under_replicated_marks import MarkReason
from quire.core.repair.work_queue import QueueLimits
from quire.log.client import QuireClient
from quire_testing.sim.responses import answer
from quire_testing.sim.world import World

LOST_DELAY_S: Final = 2
AUDITS: Final = AuditLimits(tick_s=1, again_s=4, pause_s_max=4)
ATTEMPTS: Final = QueueLimits(pause_ms=200, pause_ms_max=2000)
GRACE: Final = GraceLimits(grace_s=4, idle_wait_s=1, tick_s=1)
"""As production's, at a faster pace."""
DAEMON_SECONDS: Final = 12
"""How long the run waits for what daemons do, before everything heals."""
ANSWER_MS: Final = 500
"""How long an inspector waits for a bookie's list."""
REPAIRS: Final = 12
"""As often a repairer or an inspector looks at all ledgers, at most."""


class RepairPrograms:
    """The repairs of a world's ledgers."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._marked: dict[tuple[int, BookieId], set[int]] = {}
        self.daemons: list[AutoRecovery] = []

    async def delete(self, name: str, client: QuireClient, ledger_id: int) -> None:
        """The owner deletes a ledger."""
        operation = self._world.history.invoke(name, "delete", ledger=ledger_id)
        self._world.say(name, f"deletes ledger {ledger_id}")
        try:
            await client.delete_ledger(ledger_id)
        except QuireError as error:
            self._world.saw(f"delete: {error.code}")
            answer(operation, error)
        else:
            operation.ok()

    async def again(self, name: str, client: QuireClient, over: Callable[[], bool]) -> None:
        """Repair all ledgers now and then, and some time after `over`; or have a daemon do it, and look for holes."""
        if name == "inspector":
            await self._inspect(name, client, over)
            return
        if self._world.settings.mix.workload in {"autorecovery", "marks"}:
            self.start(name, client)
            await asyncio.sleep(DAEMON_SECONDS)
            return
        chance = self._world.chance(name)
        for _ in range(REPAIRS):
            await asyncio.sleep(chance.random() ** 2)
            with contextlib.suppress(QuireError):
                await self.run(name, client)
            if over() and chance.random() < 0.3:
                return

    async def _inspect(self, name: str, client: QuireClient, over: Callable[[], bool]) -> None:
        """Ask the bookies of all ledgers for their lists now and then, and mark the holes that they tell of."""
        chance = self._world.chance(name)
        for _ in range(REPAIRS):
            await asyncio.sleep(2 * chance.random())
            with contextlib.suppress(QuireError):
                async for ledger_id in client.ledgers():
                    await self._mark_holes(name, client, ledger_id)
            if over() and chance.random() < 0.3:
                return

    async def _mark_holes(self, name: str, client: QuireClient, ledger_id: LedgerId) -> None:
        record = await client.ledger_metadata(ledger_id)
        check = ReplicaCheck(client.bookies, record, ANSWER_MS)
        for bookie, mine in _by_bookie(record).items():
            found = await check.audit(bookie, mine)
            marks = await mark_findings(client, ledger_id, bookie, found, name)
            holes = [mark.entries for mark in marks if mark.reason is MarkReason.HOLE]
            if holes:
                self._world.saw("a hole is marked")
            self._marked.setdefault((ledger_id, bookie), set()).update(
                entry_id
                for entries in holes
                for part in mine
                for entry_id in part.cut(entries.first, entries.last).ids()
            )

    async def check_marks(self, daemon: AutoRecovery, client: QuireClient) -> None:
        """AR2, of every hole that was marked."""
        stored = {
            one.server.bookie_id: one.server for one in self._world.bookies.values() if one.server and one.up
        }
        there = {int(ledger_id) async for ledger_id in client.ledgers()}
        for (ledger_id, bookie), holes in list(self._marked.items()):
            record = self._world.record(ledger_id)
            if record is None or ledger_id not in there or bookie not in stored:
                continue
            mine = _by_bookie(record).get(bookie, [])
            held = [HeldInterval(*each) for each in stored[bookie].storage.held(ledger_id)]
            left = holes & {entry_id for part in mine for entry_id in not_held(part, held)}
            mark = await daemon.marks.marks(LedgerId(ledger_id))
            if left and (mark is None or mark.mark is None or not mark.mark.marks):
                self._world.broken(
                    f"AR2: ledger {ledger_id} has no mark, and {bookie} lacks entries {sorted(left)[:5]} that were marked"
                )
            self._world.saw("a marked hole stays marked" if left else "a marked hole is filled")

    def start(self, name: str, client: QuireClient) -> AutoRecovery:
        """Begin to audit and to repair."""
        recover = client.recover_ledger

        async def watched(ledger_id: int, password: bytes = b"", **named: Any) -> RecoveryReport:
            record, there = self._world.record(ledger_id), client.bookies.writable()
            if record is not None and not set(there) - {*record.last_fragment.ensemble}:
                self._world.broken(
                    f"AR1: ledger {ledger_id} is recovered, and no bookie could take a slot of it"
                )
            self._world.saw("auto-recovery recovers an open ledger")
            return await recover(ledger_id, password, **named)

        client.recover_ledger = watched  # type: ignore[method-assign]
        rules = self._world.around.parts.rules
        daemon = AutoRecovery(client, name, audit=AUDITS, queue=ATTEMPTS, grace=GRACE, rules=rules)
        self.daemons.append(daemon)
        asyncio.get_running_loop().create_task(self._daemon(daemon), name=name)
        return daemon

    async def _daemon(self, daemon: AutoRecovery) -> None:
        while True:
            with contextlib.suppress(QuireError):
                await daemon.marks.set_lost_delay_s(LOST_DELAY_S)
                await daemon.run()
            self._world.saw("auto-recovery starts again")
            await asyncio.sleep(0.5)

    async def left(self, daemon: AutoRecovery, client: QuireClient) -> str:
        """The ledgers that daemons have not finished: decided fragments name a bookie that is lost, or there are marks."""
        daemon.worker.queue.check()
        lost = {
            one.server.bookie_id
            for one in self._world.bookies.values()
            if one.lost and one.server is not None
        }
        left = {int(ledger_id) for ledger_id, _ in await daemon.marks.missing_page()}
        async for ledger_id in client.ledgers():
            record = self._world.record(ledger_id)
            if record is not None and any(lost & {*fragment.ensemble} for fragment in record.fragments):
                left.add(int(ledger_id))
        if daemon.worker.queue.counts.repaired:
            self._world.saw("auto-recovery repairs a ledger")
        return " ".join(map(str, sorted(left)))

    async def run(self, name: str, client: QuireClient) -> str:
        """Repair all ledgers, without the bookies that are lost by now.

        Returns:
            What still lacks something; empty: nothing does.
        """
        servers = [bookie.server for bookie in self._world.bookies.values() if bookie.lost]
        lost = [server.bookie_id for server in servers if server is not None]
        cluster = ClusterRepair(client, lost=lost)
        found = await cluster.look()
        totals = await cluster.run(found.to_repair)
        for ledger_id, ended in totals.ended.items():
            report = ended.report
            self._world.saw(f"a repair ends: {ended.outcome.value}")
            if report.copied and not report.replaced:
                self._world.saw("a repair fills holes")
            if report.cleared:
                self._world.saw("a repair ends a limbo")
            self._world.say(
                name,
                f"repairs ledger {ledger_id}: {ended.outcome.value}, {report.copied} copies, left {report.left}",
            )
        for ledger_id, error in totals.failed.items():
            self._world.saw(f"repair: {error.code}")
            self._world.say(name, f"cannot repair ledger {ledger_id}: {error.code}")
        return " ".join(str(ledger_id) for ledger_id in sorted({*found.ledgers, *found.blocked}))


def _by_bookie(record: LedgerMetadata) -> dict[BookieId, list[BookieStripes]]:
    """What each bookie should hold of what is decided of a ledger."""
    found: dict[BookieId, list[BookieStripes]] = {}
    for part in bookie_stripes(record):
        found.setdefault(part.bookie, []).append(part)
    return found
