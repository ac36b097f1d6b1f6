"""Long runs read out of the files of bookies on this machine: when, and what happens when the files do not give them."""

from __future__ import annotations

import errno
import os
import threading
from types import SimpleNamespace

import pytest

from quire.client.access import LedgerAccess
from quire.client.bookies import short_circuit
from quire.client.bookies.short_circuit import FileReadOutcome
from quire.client.config import ClientConfig
from quire.core.answers import Answer
from quire.wire.responses import ReadReply
from quire.wire.run import RunLocation
from quire.wire.stored_record import RECORD_HEADER_BYTES
from support.small_cluster import small_cluster

LONG = 100_000
COUNT = 40


@pytest.fixture
def located(monkeypatch):
    """The locations that were read here."""
    locations = []
    fill = short_circuit.fill

    async def told(reply, memory):
        locations.extend(reply.locations)
        return await fill(reply, memory)

    monkeypatch.setattr(short_circuit, "fill", told)
    return locations


def payload(number: int) -> bytes:
    return bytes([number]) * (LONG + number)


async def forget(cluster) -> None:
    """Start every bookie anew: what was written is not in its memory any more."""
    for bookie in list(cluster.servers):
        await cluster.start_bookie(await cluster.stop_bookie(bookie))


async def written(cluster, **ledger) -> int:
    """A ledger of long entries on disk; its id."""
    client = await cluster.client()
    async with await client.create_ledger(**ledger) as writer:
        await writer.append_many([payload(number) for number in range(COUNT)])
    await forget(cluster)
    return int(writer.ledger_id)


async def greeted(cluster, config=None):
    """A client that every bookie has told what it offers."""
    client = await cluster.client(config)
    for bookie in cluster.servers:
        answer, _ = await client.bookies.info(bookie)
        assert answer is Answer.OK
    return client


async def read(client, ledger_id):
    async with await client.open_ledger(ledger_id, recover=False) as reader:
        return [entry async for entry in reader.read()]


@pytest.mark.parametrize("digest", ["crc32c", "crc32", "mac", "dummy"])
@pytest.mark.parametrize("quorums", [(3, 3, 2), (4, 2, 2)])
async def test_long_runs_are_read_where_they_lie(tmp_path, located, digest, quorums) -> None:
    E, Qw, Qa = quorums
    async with small_cluster(tmp_path, 4) as cluster:
        ledger_id = await written(cluster, ensemble_size=E, write_quorum=Qw, ack_quorum=Qa, digest=digest)
        entries = await read(await greeted(cluster), ledger_id)
        assert [entry.payload for entry in entries] == [payload(number) for number in range(COUNT)]
        assert all(type(entry.payload) is bytes for entry in entries)
        assert sum(location.size for location in located) > COUNT * LONG / 2


async def test_either_side_can_do_without(tmp_path, located) -> None:
    async with small_cluster(tmp_path, 3, short_circuit_reads=False) as cluster:
        ledger_id = await written(cluster)
        client = await greeted(cluster)
        assert len(await read(client, ledger_id)) == COUNT
        assert located == []
        # A bookie that has not offered it sends what it is asked for.
        for server in cluster.servers:
            client.bookies._channel(server).colocated = True
        assert len(await read(client, ledger_id)) == COUNT
        assert located == []
    async with small_cluster(tmp_path / "other", 3) as cluster:
        ledger_id = await written(cluster)
        client = await greeted(cluster, ClientConfig(short_circuit_reads=False))
        assert len(await read(client, ledger_id)) == COUNT
        assert located == []


async def test_short_runs_and_recent_ones_are_sent(located, cluster) -> None:
    client = await greeted(cluster)
    async with await client.create_ledger() as recent:
        await recent.append_many([payload(number) for number in range(COUNT)])
    assert len(await read(client, recent.ledger_id)) == COUNT
    async with await client.create_ledger() as short:
        for number in range(5):
            await short.append(b"short %d" % number)
    await forget(cluster)
    assert len(await read(await greeted(cluster), short.ledger_id)) == 5
    assert located == []


async def test_what_is_damaged_is_still_the_bookies_to_say(located, cluster) -> None:
    ledger_id = await written(cluster)
    [victim] = [bookie for bookie in cluster.servers if cluster.servers[bookie].config.name == "b1"]
    directory = cluster.servers[victim].config.directory
    pattern = payload(7)[:64]
    for file in directory.rglob("*.seg"):
        data = file.read_bytes()
        at = data.find(pattern)
        if at >= 0:
            with file.open("r+b") as target:
                target.seek(at)
                target.write(b"?")
    client = await greeted(cluster)
    access = LedgerAccess.of(await client.ledger_metadata(ledger_id))
    channel = client.bookies._channel(victim)
    assert channel.colocated
    reply = await client.bookies.read(victim, access, 0, COUNT - 1, 1 << 26)
    assert located
    assert reply.answer is Answer.OK
    assert any(low <= 7 <= high for low, high in reply.unknown)
    assert set(reply.damaged) <= set(reply.unknown)
    assert any(low <= 7 <= high for low, high in reply.damaged), "damaged, and not out of reach"
    assert channel.colocated, "it may have been one recycled segment"
    assert channel.location_misses == 1
    # Every entry is there: its other copies are good.
    entries = await read(client, ledger_id)
    assert [entry.payload for entry in entries] == [payload(number) for number in range(COUNT)]


async def test_a_file_that_is_gone_meanwhile_costs_nothing(tmp_path, monkeypatch) -> None:
    gone = []
    read_record = short_circuit._read

    def missing(location, record, **options):
        gone.append(location)
        return read_record(
            location._replace(path=location.path.replace(".seg", "-gone.seg")), record, **options
        )

    monkeypatch.setattr(short_circuit, "_read", missing)
    async with small_cluster(tmp_path, 3) as cluster:
        ledger_id = await written(cluster)
        entries = await read(await greeted(cluster), ledger_id)
        assert [entry.payload for entry in entries] == [payload(number) for number in range(COUNT)]
        # A segment may have been given back meanwhile; where the files are of another machine that is noticed soon.
        assert 1 <= len(gone) <= 3 * short_circuit.MISSES_MAX


async def test_a_disk_that_has_to_be_waited_for_is_waited_for(tmp_path, monkeypatch, located) -> None:
    monkeypatch.setattr(short_circuit, "_AT_ONCE", None)
    async with small_cluster(tmp_path, 3) as cluster:
        ledger_id = await written(cluster)
        assert len(await read(await greeted(cluster), ledger_id)) == COUNT
        assert located


async def test_a_file_system_that_cannot_say_what_is_in_memory_is_waited_for(
    located, monkeypatch, cluster
) -> None:
    """On tmpfs each read was taken for that of a recycled segment, and after three there were no more."""
    preadv = os.preadv

    def without_nowait(file, buffers, offset, flags=0):
        if flags:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return preadv(file, buffers, offset)

    ledger_id = await written(cluster)
    client = await greeted(cluster)
    monkeypatch.setattr(os, "preadv", without_nowait)
    for _ in range(4):
        assert len(await read(client, ledger_id)) == COUNT
    assert all(client.bookies._channel(server).colocated for server in cluster.servers)
    assert sum(location.size for location in located) > 4 * COUNT * LONG / 2


async def test_a_disk_that_does_not_respond_is_left_to_the_bookie(monkeypatch) -> None:
    released = threading.Event()

    monkeypatch.setattr(short_circuit, "_read_cached", lambda locations, records: 0)
    monkeypatch.setattr(short_circuit, "_read_from_disk", lambda locations, records: released.wait())
    location = RunLocation("/d/segments/0123456789abcdef.seg", 0, 200, 1)
    reply, channel = (
        ReadReply(Answer.OK, locations=[location]),
        SimpleNamespace(meant="b0", colocated=True, location_misses=0),
    )
    try:
        memory = lambda size: memoryview(bytearray(size))  # noqa: E731
        assert not await short_circuit.read_locations(channel, reply, "/d", 1000, memory, timeout_ms=1)
    finally:
        released.set()
    assert not channel.colocated
    assert (reply.runs, reply.locations) == ([], [location])


@pytest.mark.parametrize("at_once", [short_circuit._AT_ONCE, None])
async def test_places_that_are_no_records_are_refused(tmp_path, monkeypatch, at_once) -> None:
    monkeypatch.setattr(short_circuit, "_AT_ONCE", at_once)
    os.mkfifo(tmp_path / "pipe.seg")
    (tmp_path / "folder.seg").mkdir()
    (tmp_path / "short.seg").write_bytes(b"x" * 50)
    (tmp_path / "other.seg").write_bytes(b"x" * 4096)
    os.symlink(tmp_path / "other.seg", tmp_path / "link.seg")
    cannot = ("pipe.seg", "folder.seg", "link.seg", "NUL\0.seg", "long" * 100)
    for name in ("short.seg", "other.seg", "none.seg", *cannot):
        for size in (RECORD_HEADER_BYTES, 200):
            location = RunLocation(f"{tmp_path}/{name}", 0, size, 1)
            reply = ReadReply(Answer.OK, locations=[location])
            outcome = await short_circuit.fill(reply, lambda size: memoryview(bytearray(size)))
            assert outcome is (FileReadOutcome.CANNOT_OPEN if name in cannot else FileReadOutcome.MISSED), (
                name
            )
            assert (reply.runs, reply.locations) == ([], [location])
