"""One check says of each bookie and entry whether the copy is there, absent, damaged or unknown; its readers agree."""

from __future__ import annotations

from dataclasses import replace

from quire.client.access import LedgerAccess
from quire.client.reading.copy_check import CopyCheck
from quire.client.repairing.scrubbing import CopyVerdict, ReplicaCheck
from quire.core.answers import Answer
from quire.core.ledger.stripes import bookie_stripes
from support.small_cluster import SmallCluster
from unit.client.test_damaged_copies import COUNT, payload, spoil


async def test_each_copy_has_its_own_answer(cluster: SmallCluster) -> None:
    client = await cluster.client()
    async with await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=3) as writer:
        for number in range(COUNT):
            await writer.append(payload(number))
    gone, damaged, good = cluster.servers
    directory = cluster.servers[damaged].config.directory
    await cluster.start_bookie(await cluster.stop_bookie(damaged))
    assert spoil(directory, 7) == 1
    await cluster.stop_bookie(gone)
    record, version = await client.records.ledgers.read(writer.ledger_id)
    longer = replace(record, last_entry=COUNT)
    check = CopyCheck(client.bookies, LedgerAccess.of(record), 1 << 20, 5000)
    copies = await check.window(list(bookie_stripes(longer)), 6, COUNT)
    found = {bookie: {e: each.answer_of(e) for e in (6, 7, COUNT)} for bookie, each in copies.items()}
    assert found == {
        gone: dict.fromkeys((6, 7, COUNT), Answer.UNREACHABLE),
        damaged: {6: Answer.OK, 7: Answer.DAMAGED, COUNT: Answer.NO_ENTRY},
        good: {6: Answer.OK, 7: Answer.OK, COUNT: Answer.NO_ENTRY},
    }
    await client.records.ledgers.write(longer, version)
    holes = (await client.verify_ledger(writer.ledger_id)).holes
    assert {(hole.bookie, hole.first, hole.last, hole.answer) for hole in holes} == {
        (gone, 0, COUNT, Answer.UNREACHABLE),
        (damaged, 7, 7, Answer.DAMAGED),
        (damaged, COUNT, COUNT, Answer.NO_ENTRY),
        (good, COUNT, COUNT, Answer.NO_ENTRY),
    }


async def test_over_replicated_copies_do_not_hide_what_is_missing(cluster: SmallCluster) -> None:
    client = await cluster.client()
    async with await client.create_ledger(ensemble_size=3, write_quorum=2, ack_quorum=2) as writer:
        for number in range(COUNT):
            await writer.append(payload(number))
    await writer.flushed()
    record = await client.ledger_metadata(writer.ledger_id)
    part = next(bookie_stripes(record))
    assert not (await ReplicaCheck(client.bookies, record, 5000).scrub(part)).findings
    others = replace(part, stripes=0b111 ^ part.stripes)
    (found,) = (await ReplicaCheck(client.bookies, record, 5000).scrub(others)).findings
    assert (found.verdict, next(iter(others.ids())), found.last) == (
        CopyVerdict.MISSING,
        found.first,
        list(others.ids())[-1],
    )
