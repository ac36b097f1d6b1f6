"""What the protocol promises and what bookies do, on real bookies in this process. Each test cites its sentence.

Source: BookKeeper protocol, "Guarantees"; Vanlightly's guide.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from quire.core.answers import Answer
from quire.core.errors import LedgerFencedError
from quire.wire.native import Kind
from support.one_bookie import OneBookie, opened
from support.storage_disk import Answers, FaultyFiles, make_run

PAYLOADS = [b"entry %d" % number for number in range(40)]


async def everything(client, ledger_id: int) -> list[bytes]:
    async with await client.open_ledger(ledger_id) as reader:
        return [bytes(entry.payload) async for entry in reader.read()]


async def written(cluster) -> int:
    """A closed ledger of 3/3/2."""
    client = await cluster.client()
    async with await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2) as writer:
        await writer.append_many(PAYLOADS)
    return writer.ledger_id


async def test_qa_minus_1_failures_lose_nothing(cluster) -> None:
    """ "The system can tolerate Qa - 1 failures without data loss." """

    ledger_id = await written(cluster)
    for bookie in list(cluster.servers):
        name = await cluster.stop_bookie(bookie, clean=False)
        assert await everything(await cluster.client(), ledger_id) == PAYLOADS
        await cluster.start_bookie(name)


async def test_all_clients_read_the_same_sequence_in_the_order_of_writing(cluster) -> None:
    """ "all updates to a ledger will be read in the same order as they were written", "all clients will read the same
    sequence of updates from the ledger".
    """

    ledger_id = await written(cluster)
    for _ in range(2):
        assert await everything(await cluster.client(), ledger_id) == PAYLOADS


async def test_a_non_fencing_open_reads_to_the_lac_and_leaves_the_writer_alone(cluster) -> None:
    """ "Another client can also read entries in the ledger up as far as the last add confirmed … the ledger should be
    opened with a non-fencing open. Otherwise, it would kill the writer."
    """

    writer = await (await cluster.client()).create_ledger()
    await writer.append_many(PAYLOADS)
    other = await cluster.client()
    reader = await other.open_ledger(writer.ledger_id, recover=False)
    assert await writer.append(b"alive") == len(PAYLOADS)
    assert await reader.refresh() >= len(PAYLOADS) - 1, "what the newest entry says of those before"
    read = [bytes(entry.payload) async for entry in reader.read(0, len(PAYLOADS) - 1)]
    assert read == PAYLOADS
    closed = await other.open_ledger(writer.ledger_id, recover=True)
    assert closed.closed
    with pytest.raises(LedgerFencedError):
        await writer.append(b"killed")
    await writer.abandon()


# --- one bookie --------------------------------------------------------------------------------------------------------


def bookie() -> OneBookie:
    return OneBookie(opened(FaultyFiles()))


async def test_a_bookie_acknowledges_once_it_is_on_disk() -> None:
    """ "A bookie acknowledges a write once it has been persisted to disk and is therefore durable." """
    for works in (True, False):
        files = FaultyFiles()
        one, told = OneBookie(opened(files)), Answers()
        added = make_run(1, 0, 9)
        assert one.ledgers.add(one.request(Kind.ADD, 1, 0, added), added, told, "add") is Answer.OK
        assert not told.told, "handed over, and not on disk"
        if not works:
            files.fail_at = files.steps
        one.settle()
        assert [error is None for _, error in told.told] == [works]


async def test_a_fence_is_persisted_before_it_is_answered() -> None:
    """ "When a bookie receives a fence message for a ledger, the fenced state of the ledger is persisted to disk." """
    files = FaultyFiles()
    one = OneBookie(opened(files))
    assert one.add(1, 0, 9) is Answer.OK
    answers = one.fence(1)
    assert not answers
    one.settle()
    assert answers == [Answer.OK]
    assert one.add(1, 10, 19) is Answer.FENCED
    assert one.add(1, 10, 19, recovery=True) is Answer.OK


async def test_writes_are_idempotent() -> None:
    """The guide: "Writes are idempotent so if a bookie already has the entry, then the write does not add a duplicate." """
    one = bookie()
    for _ in range(2):
        assert one.add(1, 0, 9) is Answer.OK
    answer, entries, through, unknown = one.recovery_read(1, 0, 20)
    assert answer is Answer.OK
    assert sorted(entries) == list(range(10))
    assert (through, list(unknown)) == (20, [])


async def test_bookies_know_the_lac_with_some_lag() -> None:
    """The guide: "Each entry sent to a bookie also contains the current LAC and that way, each bookie also tracks what the
    LAC is, albeit with some lag."
    """
    one, told = bookie(), Answers()
    for first, lac in ((0, -1), (10, 9)):
        added = make_run(1, first, first + 9)
        request = replace(one.request(Kind.ADD, 1, 0, added), lac=lac)
        one.ledgers.add(request, added, told, first)
        one.settle()
        assert one.ledgers.last_confirmed(one.request(Kind.READ_LAC, 1))[1] == lac
