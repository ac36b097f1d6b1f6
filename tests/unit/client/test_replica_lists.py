"""What bookies say that they hold, over each protocol: listed where they list, read where they do not; and repaired so."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from quire.bookie.bookkeeper_v3 import V3Requests
from quire.client.access import LedgerAccess
from quire.client.config import ClientConfig
from quire.client.ledger_repair import LedgerRepair
from quire.client.replica_lists import replica_list
from quire.core.answers import Answer
from quire.core.ids import BookieId
from quire.core.ledger_notes import EntryRange
from quire.core.repair_effects import RepairOutcome
from quire.core.replica import Replica
from quire.core.shares import shares
from support.small_cluster import small_cluster

COUNT = 25


async def _listed(tmp_path: Path, protocol: str, shape: dict[str, int]) -> None:
    async with small_cluster(tmp_path, 5) as cluster:
        client = await cluster.client(ClientConfig(protocol=protocol))
        writer = await client.create_ledger(**shape)
        await writer.append_many([b"entry %d" % number for number in range(COUNT)])
        await writer.close()
        await writer.flushed()
        record = await client.ledger_metadata(writer.ledger_id)
        access = LedgerAccess.of(record)
        for share in shares(record):
            told = await replica_list(client.bookies, share.bookie, record, access, timeout_ms=5000)
            assert told.answer is Answer.OK
            replica = Replica(told, share.period)
            held = {residue: not replica.lacks(residue, 0, COUNT - 1) for residue in range(share.period)}
            assert held == {residue: bool(share.residues >> residue & 1) for residue in range(share.period)}
        stranger = next(bookie for bookie in cluster.servers if bookie not in record.fragments[0].ensemble)
        told = await replica_list(
            client.bookies,
            stranger,
            record,
            access,
            stored=[EntryRange(0, 4)],
            timeout_ms=5000,
        )
        assert (told.held, told.limbo) == ((), False)
        assert told.answer in {Answer.OK, Answer.NO_LEDGER}
        gone = BookieId(record.fragments[0].ensemble[0])
        ended = await LedgerRepair(writer.ledger_id, client.context, gone=[gone], candidates=[stranger]).run()
        assert ended.outcome is RepairOutcome.WHOLE
        assert ended.report.replaced == [(0, gone, stranger)]
        assert (await client.verify_ledger(writer.ledger_id)).complete


@pytest.mark.parametrize("protocol", ["v3", "v2"])
@pytest.mark.parametrize(
    "shape",
    [
        {"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2},
        {"ensemble_size": 4, "write_quorum": 2, "ack_quorum": 2},
    ],
    ids=["whole", "striped"],
)
def test_a_bookie_is_asked_in_its_own_protocol(tmp_path: Path, protocol: str, shape: dict[str, int]) -> None:
    asyncio.run(asyncio.wait_for(_listed(tmp_path, protocol, shape), 60))


def test_a_bookie_that_answers_no_list_is_asked_for_one_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Java's with DbLedgerStorage: what it holds of every further ledger is read at once."""
    asked: list[int] = []
    monkeypatch.setattr(
        V3Requests,
        "_list",
        lambda _, request: asked.append(request.getListOfEntriesOfLedgerRequest.ledgerId),
    )

    async def work() -> None:
        async with small_cluster(tmp_path, 3) as cluster:
            client = await cluster.client(ClientConfig(protocol="v3"))
            for _ in range(4):
                writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
                await writer.append_many([b"entry %d" % number for number in range(COUNT)])
                await writer.close()
                record = await client.ledger_metadata(writer.ledger_id)
                access = LedgerAccess.of(record)
                for bookie in cluster.servers:
                    told = await replica_list(client.bookies, bookie, record, access, timeout_ms=500)
                    assert told.answer is Answer.OK
                    assert not Replica(told, 1).lacks(0, 0, COUNT - 1)
            assert len(asked) == 3
            # One that answers nothing at all is not taken for one that has no lists.
            gone = next(iter(cluster.servers))
            client.bookies.without_lists.clear()
            await cluster.stop_bookie(gone, clean=False)
            told = await replica_list(client.bookies, gone, record, access, timeout_ms=500)
            assert told.answer is Answer.UNREACHABLE
            assert not client.bookies.without_lists

    asyncio.run(work())
