"""Readers over real bookies in this process: scans, tails, and what happens when a copy is missing or damaged."""

from __future__ import annotations

import asyncio

import pytest

from quire.client.access import LedgerAccess
from quire.client.bookies.bookies import AddRequester
from quire.client.config import ClientConfig
from quire.core.answers import Answer
from quire.core.errors import (
    InvalidQuorumError,
    MisuseError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    PastEndError,
    ReadUnavailableError,
    WrongPasswordError,
)
from quire.core.ledger.quorum import write_set
from quire.wire.requests import AddRun
from quire.wire.run import checksum, encode_run
from support.small_cluster import small_cluster
from support.waiting import until_async

TINY_READS = ClientConfig(read_bytes_max=2000, read_ahead_bytes_max=10_000)


class Told(AddRequester):
    def __init__(self) -> None:
        self.told = asyncio.get_running_loop().create_future()

    def add_answered(self, tag: object, answer: Answer) -> None:
        self.told.set_result(answer)


async def put(client, bookie, record, first, payloads, *, lac=-1, length_before=0, damage=False) -> None:
    """Entries on one bookie only, as a writer or a recoverer would send them."""
    access = LedgerAccess.of(record)
    sealed = access.digest.seal(record.ledger_id, first, lac, length_before, payloads)
    if damage:
        payloads = [payload[:-1] + b"?" for payload in payloads]
    buffers = [part for pair in zip(sealed, payloads, strict=True) for part in pair]
    sizes = [len(head) + len(payload) for head, payload in zip(sealed, payloads, strict=True)]
    last = first + len(payloads) - 1
    body = encode_run(record.ledger_id, first, last, buffers, sizes, digest_type=record.digest_type)
    told = Told()
    client.bookies.add_run(bookie, AddRun(access, body, checksum(body), lac, recovery=True), told, None)
    assert await told.told is Answer.OK


def texts(count: int, first: int = 0) -> list[bytes]:
    return [b"entry %d %s" % (i, b"." * (i % 50)) for i in range(first, first + count)]


@pytest.mark.parametrize("digest", ["crc32c", "crc32", "mac", "dummy"])
@pytest.mark.parametrize("quorums", [(3, 3, 2), (4, 3, 2), (4, 2, 2), (1, 1, 1)])
async def test_what_was_appended_is_read_in_order(tmp_path, digest, quorums) -> None:
    E, Qw, Qa = quorums
    async with small_cluster(tmp_path, 4) as cluster:
        client = await cluster.client(TINY_READS)
        payloads = texts(300)
        async with await client.create_ledger(
            ensemble_size=E, write_quorum=Qw, ack_quorum=Qa, password=b"secret", digest=digest
        ) as writer:
            await writer.append_many(payloads[:130])
            await writer.append_many(payloads[130:])
        other = await cluster.client(TINY_READS)
        async with await other.open_ledger(writer.ledger_id, b"secret") as reader:
            assert reader.closed
            assert reader.last_add_confirmed == 299
            assert reader.length == sum(map(len, payloads))
            got = [entry async for entry in reader.read()]
            assert [bytes(entry.payload) for entry in got] == payloads
            assert [entry.entry_id for entry in got] == list(range(300))
            part = [bytes(entry.payload) async for entry in reader.read(17, 203)]
            assert part == payloads[17:204]
            runs = [entries async for entries in reader.read_runs(5, 290)]
            assert all(runs)
            assert [entry.entry_id for entries in runs for entry in entries] == list(range(5, 291))


async def test_a_reader_beside_the_writer_stops_at_the_last_add_confirmed(client) -> None:
    writer = await client.create_ledger()
    await writer.append_many(texts(10))
    reader = await client.open_ledger(writer.ledger_id, recover=False)
    assert not reader.closed
    assert reader.last_add_confirmed <= 9
    await writer.append(b"more")
    assert await reader.refresh() >= 9
    assert [entry.entry_id async for entry in reader.read(0, 9)] == list(range(10))
    with pytest.raises(PastEndError, match="beyond the last add confirmed"):
        [entry async for entry in reader.read(0, 11)]
    assert await writer.append(b"the writer was not disturbed") == 11
    await writer.close()
    assert await reader.refresh() == 11
    with pytest.raises(PastEndError, match="beyond the last entry 11"):
        [entry async for entry in reader.read(0, 12)]
    with pytest.raises(MisuseError):
        [entry async for entry in reader.read(-1, 5)]


async def test_an_empty_ledger_reads_as_nothing(client) -> None:
    async with await client.create_ledger() as writer:
        pass
    reader = await client.open_ledger(writer.ledger_id)
    assert (reader.last_add_confirmed, reader.length) == (-1, 0)
    assert [entry async for entry in reader.read()] == []
    assert [entry async for entry in reader.tail()] == []


async def test_what_is_refused_before_any_bookie_is_asked(tmp_path) -> None:
    async with small_cluster(tmp_path, 1) as cluster:
        client = await cluster.client()
        async with await client.create_ledger(
            ensemble_size=1, write_quorum=1, ack_quorum=1, password=b"right"
        ) as writer:
            await writer.append(b"x")
        with pytest.raises(WrongPasswordError, match="password"):
            await client.open_ledger(writer.ledger_id, b"wrong")
        with pytest.raises(MisuseError, match="must be bytes"):
            await client.open_ledger(writer.ledger_id, "right")
        with pytest.raises(NoSuchLedgerError):
            await client.open_ledger(4711)
        reader = await client.open_ledger(writer.ledger_id, b"right")
        for entries in (reader.read(-1), reader.tail(-1)):
            with pytest.raises(MisuseError, match="entry ids start at 0, got -1"):
                await anext(entries)
        with pytest.raises(InvalidQuorumError, match="ensemble size"):
            await client.create_ledger(ensemble_size=2, write_quorum=3)
        with pytest.raises(NotEnoughBookiesError, match="1 are writable"):
            await client.create_ledger()
        with pytest.raises(MisuseError, match="unknown digest"):
            await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1, digest="md5")


async def test_ledgers_are_listed_described_and_deleted(cluster, client) -> None:
    made = []
    for _ in range(3):
        async with await client.create_ledger(custom={"who": b"me"}) as writer:
            made.append(writer.ledger_id)
    assert [ledger_id async for ledger_id in client.ledgers()] == made
    assert (await client.ledger_metadata(made[1])).custom_value("who") == b"me"
    await client.delete_ledger(made[1])
    assert [ledger_id async for ledger_id in client.ledgers()] == [made[0], made[2]]
    with pytest.raises(NoSuchLedgerError):
        await client.delete_ledger(made[1])
    assert [info.bookie_id for info in await client.available_bookies()] == sorted(cluster.servers)


@pytest.mark.parametrize("quorums", [(3, 3, 2), (4, 2, 2)])
async def test_one_bookie_down_does_not_stop_a_scan(tmp_path, quorums) -> None:
    E, Qw, Qa = quorums
    async with small_cluster(tmp_path, 4) as cluster:
        client = await cluster.client(TINY_READS)
        async with await client.create_ledger(ensemble_size=E, write_quorum=Qw, ack_quorum=Qa) as writer:
            await writer.append_many(texts(200))
        await cluster.stop_bookie(writer.metadata.fragments[0].ensemble[0])
        reader = await client.open_ledger(writer.ledger_id)
        assert [bytes(entry.payload) async for entry in reader.read()] == texts(200)


async def test_a_damaged_copy_is_passed_over(client) -> None:
    async with await client.create_ledger() as writer:
        await writer.append_many(texts(50))
    record = await client.ledger_metadata(writer.ledger_id)
    before = sum(map(len, texts(7)))
    for slot in write_set(7, 3, 3)[:2]:
        bookie = record.fragments[0].ensemble[slot]
        await put(client, bookie, record, 7, texts(3, 7), length_before=before, damage=True)
    reader = await client.open_ledger(writer.ledger_id)
    for _ in range(3):  # whichever bookie is asked first
        assert [bytes(entry.payload) async for entry in reader.read()] == texts(50)
    report = await client.verify_ledger(writer.ledger_id)
    assert report.copies == report.copies_wanted - 6
    assert report.below_ack_quorum == [(7, 9)]
    assert {hole.answer for hole in report.holes} == {Answer.BAD_DIGEST}
    assert not report.good


async def test_no_such_entry_and_unavailable_are_told_apart(cluster) -> None:
    client = await cluster.client(ClientConfig(read_timeout_ms=300))
    writer = await client.create_ledger()
    record, version = await client.records.ledgers.read(writer.ledger_id)
    for bookie in record.fragments[0].ensemble:
        await put(client, bookie, record, 0, texts(5))
    # A record that claims one entry more than anybody was ever sent.
    await client.records.ledgers.write(record.closed(5, 100), version)
    await writer.abandon()
    reader = await client.open_ledger(writer.ledger_id)
    got = []
    with pytest.raises(NoSuchEntryError, match="entry 5") as caught:
        async for entry in reader.read():
            got.append(bytes(entry.payload))
    assert caught.value.ids["entry_id"] == 5
    assert got == texts(5)
    await cluster.stop_bookie(record.fragments[0].ensemble[1])
    with pytest.raises(ReadUnavailableError, match="entry 5") as caught:
        [entry async for entry in reader.read(5, 5)]
    assert caught.value.retriable


async def test_who_cannot_tell_how_far_a_ledger_is_confirmed_does_not_say_that_it_ends(
    cluster, client
) -> None:
    writer = await client.create_ledger()
    await writer.append(b"0")
    await writer.abandon()
    reader = await client.open_ledger(writer.ledger_id, recover=False)
    away = writer.metadata.last_fragment.ensemble[:2]
    names = [await cluster.stop_bookie(bookie) for bookie in away]
    with pytest.raises(ReadUnavailableError, match=f"{', '.join(away)}, which may know a higher one"):
        [entry async for entry in reader.read(0, 5)]
    for name in names:
        await cluster.start_bookie(name)
    await until_async(lambda: {*away} <= {*client.bookies.writable()}, "the bookies to be seen again")
    with pytest.raises(PastEndError, match="entry 5 is beyond the last add confirmed"):
        [entry async for entry in reader.read(0, 5)]


async def test_a_scan_waits_for_a_bookie_that_restarts(tmp_path) -> None:
    async with small_cluster(tmp_path, 1) as cluster:
        client = await cluster.client()
        async with await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1) as writer:
            await writer.append_many(texts(20))
        reader = await client.open_ledger(writer.ledger_id)
        (bookie,) = cluster.servers
        name = await cluster.stop_bookie(bookie)

        async def scan() -> list[bytes]:
            return [bytes(entry.payload) async for entry in reader.read()]

        scanning = asyncio.ensure_future(scan())
        while not reader._avoid_until:  # it was asked, and did not answer
            await asyncio.sleep(0)
        await cluster.start_bookie(name)
        assert await scanning == texts(20)


async def test_a_tail_follows_the_writer_and_ends_with_the_close(cluster, client) -> None:
    writer = await client.create_ledger()
    other = await cluster.client()
    reader = await other.open_ledger(writer.ledger_id, recover=False)
    seen: list[bytes] = []
    arrived = asyncio.Event()

    async def follow() -> None:
        async for entry in reader.tail():
            seen.append(bytes(entry.payload))
            arrived.set()

    async def until_seen(count: int) -> None:
        while len(seen) < count:
            arrived.clear()
            await arrived.wait()

    following = asyncio.ensure_future(follow())
    for number in range(5):
        # Each is the last entry of an idle ledger: only the explicit LAC makes it visible.
        await writer.append(b"%d" % number)
        await until_seen(number + 1)
    await writer.append_many(texts(500))
    await writer.close()
    await following
    assert seen == [b"0", b"1", b"2", b"3", b"4", *texts(500)]
    assert reader.closed


@pytest.mark.parametrize("quorums", [(3, 3, 2), (4, 2, 2)])
async def test_a_tail_of_a_mac_ledger_trusts_only_what_carries_a_mac(tmp_path, quorums) -> None:
    E, Qw, Qa = quorums
    async with small_cluster(tmp_path, 4) as cluster:
        client = await cluster.client()
        writer = await client.create_ledger(
            ensemble_size=E, write_quorum=Qw, ack_quorum=Qa, digest="mac", password=b"p"
        )
        reader = await client.open_ledger(writer.ledger_id, b"p", recover=False)
        tail = reader.tail()
        for number in range(6):
            await writer.append(b"%d" % number)
            assert bytes((await anext(tail)).payload) == b"%d" % number
        # A LAC without a MAC, as any program could send it, wakes the reader and is not believed.
        record = await client.ledger_metadata(writer.ledger_id)
        for bookie in record.fragments[0].ensemble:
            await put(client, bookie, record, 6, [b"unconfirmed"], lac=6)
        assert await reader.refresh() == 5
        await writer.abandon()
        await tail.aclose()


async def test_a_tail_goes_to_another_bookie_and_survives_an_ensemble_change(tmp_path) -> None:
    async with small_cluster(tmp_path, 4) as cluster:
        client = await cluster.client(ClientConfig(long_poll_wait_ms=500, explicit_lac_after_ms=300))
        writer = await client.create_ledger()
        reader = await client.open_ledger(writer.ledger_id, recover=False)
        tail = reader.tail()
        await writer.append(b"0")
        assert (await anext(tail)).entry_id == 0
        for number in range(1, 3):
            await cluster.stop_bookie(writer.metadata.last_fragment.ensemble[number], clean=True)
            await cluster.start_bookie(f"new{number}")
            await writer.append(b"%d" % number)
            assert (await anext(tail)).entry_id == number
        await writer.close()
        assert [entry async for entry in tail] == []


async def test_two_tails_of_one_reader_both_follow_the_ledger_to_another_bookie(tmp_path) -> None:
    async with small_cluster(tmp_path, 2) as cluster:
        client = await cluster.client()
        writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        reader = await client.open_ledger(writer.ledger_id, recover=False)
        tails = [asyncio.ensure_future(anext(reader.tail())) for _ in range(2)]
        record, version = await client.records.ledgers.read(writer.ledger_id)
        (other,) = {*client.bookies.writable()} - {*record.last_fragment.ensemble}
        (named,) = record.last_fragment.ensemble
        held = cluster.servers[named].ledgers.followers.polls
        while len(held.get(writer.ledger_id, ())) < 2:
            await asyncio.sleep(0)
        await client.records.ledgers.write(record.with_ensemble(0, (other,)), version)
        await put(client, other, record, 0, [b"entry"])
        await client.bookies.write_lac(other, LedgerAccess.of(record), 0)
        assert [(await tail).entry_id for tail in tails] == [0, 0]
        await writer.abandon()


async def test_a_tail_ends_with_an_error_when_its_client_is_closed(cluster, client) -> None:
    writer = await client.create_ledger()
    left = await cluster.client()
    tail = (await left.open_ledger(writer.ledger_id, recover=False)).tail()
    await writer.append(b"entry")
    assert (await anext(tail)).entry_id == 0
    following = asyncio.ensure_future(anext(tail))
    held = [server.ledgers.followers.polls for server in cluster.servers.values()]
    while not all(writer.ledger_id in polls for polls in held):
        await asyncio.sleep(0)
    cluster.clients.remove(left)
    await left.close()
    with pytest.raises(MisuseError, match="closed"):
        await following
    await writer.abandon()


async def test_a_response_of_the_store_that_comes_late_takes_no_reader_back(monkeypatch, client) -> None:
    writer = await client.create_ledger()
    reader = await client.open_ledger(writer.ledger_id, recover=False)
    asked, may_come = asyncio.Event(), asyncio.Event()

    async def late(ledger_id: int, read=client.records.ledgers.read):
        found = await read(ledger_id)
        asked.set()
        await may_come.wait()
        return found

    with monkeypatch.context() as patched:
        patched.setattr(client.records.ledgers, "read", late)
        refreshing = asyncio.ensure_future(reader.refresh())
        await asked.wait()
    await writer.append(b"entry")
    await writer.close()
    await reader.refresh()
    assert reader.closed
    may_come.set()
    await refreshing
    assert (reader.closed, reader.last_add_confirmed) == (True, 0)


async def test_leaving_a_scan_early_lets_go_of_what_was_read_ahead(cluster) -> None:
    client = await cluster.client(TINY_READS)
    async with await client.create_ledger() as writer:
        await writer.append_many(texts(2000))
    reader = await client.open_ledger(writer.ledger_id)
    scan = reader.read()
    assert (await anext(scan)).entry_id == 0
    await scan.aclose()
    tasks = [task for task in asyncio.all_tasks() if "BookieClient.read" in repr(task.get_coro())]
    await asyncio.wait(tasks, timeout=5) if tasks else None
    assert not [task for task in tasks if not task.done()]


async def test_entries_of_very_uneven_size_are_read(cluster) -> None:
    client = await cluster.client(ClientConfig(read_bytes_max=20_000, read_ahead_bytes_max=100_000))
    payloads = [bytes([i % 251]) * (1 if i % 7 else 30_000) for i in range(400)]
    async with await client.create_ledger() as writer:
        for start in range(0, 400, 40):
            await writer.append_many(payloads[start : start + 40])
    reader = await client.open_ledger(writer.ledger_id)
    assert [bytes(entry.payload) async for entry in reader.read()] == payloads
