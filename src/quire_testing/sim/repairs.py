"""What repairers and an owner of a simulated world do, and what is seen of it: the cluster repair that ships.

Source: docs/simulation.md, "The world"; docs/protocol/repair.md.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from quire.autorecovery.repair import ClusterRepair
from quire.core.errors import QuireError
from quire.log.client import QuireClient
from quire_testing.sim.responses import answer
from quire_testing.sim.world import World

REPAIRS: Final = 12
"""As often a repairer looks at all ledgers, at most."""


class RepairPrograms:
    """The repairs of a world's ledgers."""

    def __init__(self, world: World) -> None:
        self._world = world

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
        """Repair all ledgers now and then, and some time after `over`."""
        chance = self._world.chance(name)
        for _ in range(REPAIRS):
            await asyncio.sleep(chance.random() ** 2)
            with contextlib.suppress(QuireError):
                await self.run(name, client)
            if over() and chance.random() < 0.3:
                return

    async def run(self, name: str, client: QuireClient) -> str:
        """Repair all ledgers, without the bookies that are lost by now.

        Returns:
            What still lacks something; empty: nothing does.
        """
        lost = [bookie.server for bookie in self._world.bookies.values() if bookie.lost]
        gone = [server.bookie_id for server in lost if server is not None]
        cluster = ClusterRepair(client, gone=gone)
        debt = await cluster.look()
        totals = await cluster.run(debt.to_repair)
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
        return " ".join(str(ledger_id) for ledger_id in sorted({*debt.debts, *debt.blocked}))
