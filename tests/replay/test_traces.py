"""Real clients over real sockets record the inputs of their machines; fresh machines, with the same inputs, have the same effects.

Writers are fenced by recoveries in the middle of their appends, bookies are killed and come back, ledgers are deleted,
closed, repaired and left alone. What a machine said that nobody carried out would show as an input that it does not expect.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from dataclasses import replace

import pytest

from quire.client.config import ClientConfig
from quire.client.repairing.ledger_repair import LedgerRepair
from quire.core.errors import QuireError
from quire.core.ledger.writer import WriterMachine
from quire.core.repair.effects import RepairOutcome
from quire_testing.replay.recording import DriverDiffersError, Recorder, check_log
from support.rounds import rounds
from support.small_cluster import small_cluster

IMPATIENT = ClientConfig(
    add_timeout_ms=300,
    recovery_timeout_ms=300,
    change_retry_ms_min=20,
    change_retry_ms_max=100,
    quarantine_ms=200,
    explicit_lac_after_ms=300,
    recovery_patience_ms=2000,
)
QUORUMS = ((3, 3, 2), (3, 2, 2), (2, 2, 1), (3, 2, 1), (4, 3, 2))


class Run:
    """Some ledgers, written and recovered at the same time, with a bookie that goes away and comes back."""

    def __init__(self, cluster, writing, recovering, chance):
        self.cluster, self.chance = cluster, chance
        self.writing, self.recovering = writing, recovering

    async def ledger(self):
        size, write, ack = self.chance.choice(QUORUMS)
        try:
            writer = await self.writing.create_ledger(ensemble_size=size, write_quorum=write, ack_quorum=ack)
        except QuireError:
            return
        appends = asyncio.create_task(self.appends(writer))
        fate = self.chance.choice(
            ["close", "recover", "recover while writing", "two recover", "delete", "abandon"]
        )
        if fate in ("close", "recover", "abandon"):
            await appends
        with contextlib.suppress(QuireError):
            if fate == "close":
                await writer.close()
            elif fate == "delete":
                await self.recovering.delete_ledger(writer.ledger_id)
            elif fate != "abandon":
                count = 2 if fate == "two recover" else 1
                opens = [self.recovering.open_ledger(writer.ledger_id) for _ in range(count)]
                await asyncio.gather(*opens, return_exceptions=True)
        await appends
        await writer.abandon()

    async def appends(self, writer):
        with contextlib.suppress(QuireError):
            for _ in range(self.chance.randrange(1, 12)):
                futures = [writer.append_nowait(b"x" * self.chance.randrange(1, 200)) for _ in range(3)]
                if self.chance.random() < 0.5:
                    await asyncio.gather(*futures, return_exceptions=True)
                for future in futures:
                    future.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def outage(self):
        bookie = self.chance.choice(sorted(self.cluster.servers))
        name = await self.cluster.stop_bookie(bookie, clean=self.chance.random() < 0.5)
        for _ in range(self.chance.randrange(1, 20)):
            await self.recovering.bookies.bookies()
        await self.cluster.start_bookie(name)

    async def hole(self):
        """A ledger is written and closed without one of its bookies, and repaired when that is back."""
        writer = await self.writing.create_ledger(ensemble_size=5, write_quorum=3, ack_quorum=2)
        name = await self.cluster.stop_bookie(next(iter(self.cluster.servers)), clean=False)
        await asyncio.gather(*(writer.append_nowait(b"x") for _ in range(10)))
        await writer.close()
        await self.cluster.start_bookie(name)
        ended = await LedgerRepair(writer.ledger_id, self.recovering.context).run()
        assert ended.outcome is RepairOutcome.WHOLE


async def test_fresh_machines_say_what_the_clients_machines_said(tmp_path):
    recorder = Recorder.shipped()
    chance = random.Random(5)
    async with small_cluster(tmp_path, bookies=5) as cluster:
        clients = [await cluster.client(IMPATIENT) for _ in range(2)]
        for client in clients:
            client.context = replace(client.context, machines=recorder.machines)
        run = Run(cluster, *clients, chance)
        for _ in range(rounds(8, 200)):
            await asyncio.gather(*(run.ledger() for _ in range(10)), run.outage())
        await run.hole()
    inputs = Counter(step.name for log in recorder.logs for step in log.inputs)
    assert sum(check_log(log) for log in recorder.logs) == sum(inputs.values())
    assert len(recorder.logs) >= rounds(100, 2500)
    assert not [step for log in recorder.logs for step in log.inputs if step.error is not None]
    assert {
        "append",
        "adds_acked",
        "add_failed",
        "metadata_written",
        "fence_answered",
        "read_answered",
    } <= inputs.keys()
    assert {"close", "recover", "adds_answered", "replacements_chosen"} <= inputs.keys()
    assert {"record_read", "listed", "copied", "stored"} <= inputs.keys()


def test_a_record_of_something_else_is_noticed():
    from quire.core.ids import BookieId, LedgerId
    from quire.core.ledger.metadata import DigestType, new_ledger
    from quire.core.ledger.writer_state import WriterLimits

    recorder = Recorder.shipped()
    record = new_ledger(
        LedgerId(1),
        [BookieId("b0"), BookieId("b1")],
        write_quorum=2,
        ack_quorum=2,
        digest_type=DigestType.CRC32C,
        password=b"",
    )
    machine = recorder.machines.writer(record, 0, WriterLimits())
    assert isinstance(machine, WriterMachine)
    machine.append(1, 10)
    machine.adds_acked(0, BookieId("b0"), 0)
    machine.adds_acked(1, BookieId("b1"), 0)
    [log] = recorder.logs
    assert check_log(log) == 3
    assert "=> confirmed 0..0" in log.text
    del log.inputs[1]  # an answer that the driver kept to itself
    with pytest.raises(DriverDiffersError, match="adds_acked"):
        check_log(log)
