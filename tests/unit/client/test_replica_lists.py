"""What bookies say that they hold, over each protocol: listed where they list, read where they do not; and repaired so."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.bookie.connections.bookkeeper_v3 import V3Requests
from quire.client.access import LedgerAccess
from quire.client.config import ClientConfig
from quire.client.repairing.ledger_repair import LedgerRepair
from quire.client.repairing.replica_lists import replica_list
from quire.client.repairing.scrubbing import CopyVerdict, ReplicaCheck
from quire.core.answers import Answer
from quire.core.ids import BookieId
from quire.core.ledger.notes import EntryRange
from quire.core.ledger.replica import Replica
from quire.core.ledger.stripes import bookie_stripes
from quire.core.repair.effects import RepairOutcome
from support.small_cluster import SmallCluster, small_cluster

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
        for part in bookie_stripes(record):
            told = await replica_list(client.bookies, part.bookie, record, access, timeout_ms=5000)
            assert told.answer is Answer.OK
            replica = Replica(told, part.period)
            held = {stripe: not replica.lacks(stripe, 0, COUNT - 1) for stripe in range(part.period)}
            assert held == {stripe: bool(part.stripes >> stripe & 1) for stripe in range(part.period)}
        spare = next(bookie for bookie in cluster.servers if bookie not in record.fragments[0].ensemble)
        told = await replica_list(
            client.bookies,
            spare,
            record,
            access,
            stored=[EntryRange(0, 4)],
            timeout_ms=5000,
        )
        assert (told.held, told.limbo) == ((), False)
        assert told.answer in {Answer.OK, Answer.NO_LEDGER}
        gone = BookieId(record.fragments[0].ensemble[0])
        ended = await LedgerRepair(
            writer.ledger_id, client.context, lost_bookies=[gone], candidates=[spare]
        ).run()
        assert ended.outcome is RepairOutcome.WHOLE
        assert ended.report.replaced == [(0, gone, spare)]
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
async def test_a_bookie_is_asked_in_its_own_protocol(
    tmp_path: Path, protocol: str, shape: dict[str, int]
) -> None:
    await _listed(tmp_path, protocol, shape)


@pytest.fixture
def asked_for_lists(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ledgers of which bookies are asked what they hold; none answers, as Java's with DbLedgerStorage."""
    asked: list[int] = []
    monkeypatch.setattr(
        V3Requests,
        "_list",
        lambda _, request: asked.append(request.getListOfEntriesOfLedgerRequest.ledgerId),
    )
    return asked


async def test_a_bookie_that_answers_no_list_is_asked_for_one_once(
    asked_for_lists: list[int], cluster: SmallCluster
) -> None:
    """What it holds of every further ledger is read at once."""
    asked = asked_for_lists
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


async def test_an_audit_reads_where_a_bookie_answers_no_list(
    asked_for_lists: list[int], cluster: SmallCluster
) -> None:
    """It waits for a list once for each bookie, and finds what is missing by reading."""
    client = await cluster.client(ClientConfig(protocol="v3"))
    victim = next(iter(cluster.servers))
    for number in range(4):
        writer = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        await writer.append_many([b"entry %d" % number for number in range(COUNT)])
        await writer.close()
        record = await client.ledger_metadata(writer.ledger_id)
        if number == 3:
            cluster.servers[victim].ledgers.delete(writer.ledger_id, 10**15)
        check = ReplicaCheck(client.bookies, record, 500)
        for part in bookie_stripes(record):
            found = await check.audit(part.bookie, [part])
            is_gone = number == 3 and part.bookie == victim
            assert [(one.verdict, one.first, one.last) for one in found] == (
                [(CopyVerdict.MISSING, 0, COUNT - 1)] if is_gone else []
            )
    assert len(asked_for_lists) == 3


async def test_an_audit_of_a_bookie_that_answers_nothing_says_unknown(
    tmp_path: Path, asked_for_lists: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(V3Requests, "_read", lambda *_: None)
    async with small_cluster(tmp_path, 1) as cluster:
        client = await cluster.client(ClientConfig(protocol="v3"))
        writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        await writer.append(b"entry")
        await writer.close()
        check = ReplicaCheck(client.bookies, await client.ledger_metadata(writer.ledger_id), 300)
        [part] = bookie_stripes(check._record)
        found = await check.audit(part.bookie, [part])
        assert [one.verdict for one in found] == [CopyVerdict.UNKNOWN]
        assert not client.bookies.without_lists
