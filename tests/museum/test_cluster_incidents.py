"""Incidents that need a whole cluster: real bookies and clients over loopback, and those that wait for their room."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pytest

from quire.bookie.server import BookieServer
from quire.client.bookies.channels import Channels, Ended
from quire.client.client import Client
from quire.client.config import ClientConfig
from quire.core.answers import Answer
from quire.core.errors import QuireError, RecoveryInconclusiveError
from quire.core.ids import BookieId
from quire.core.ledger.effects import ReadDone, SendRead
from quire.core.ledger.metadata import DigestType, LedgerState, new_ledger
from quire.core.ledger.reader import ReadMachine
from quire.core.repair.effects import ListReplica, RepairEffect, WriteRepaired
from quire.core.repair.rereplication import RepairMachine
from quire.env.real import RealClock, RealFiles, ThreadWorker
from quire.metadata.bookies import BookieInfo
from quire.metadata.keys import boot_key
from quire.metadata.memory import MemoryStore
from quire.net.bookkeeper.v2_codec import V2Codec
from quire.net.channel import Channel
from quire.net.receive_memory import Scratch
from quire.net.security.settings import BookieSecurity, BookieTls, ClientSecurity, ClientTls
from quire.storage.config import StorageConfig
from quire.storage.directory.identity import COOKIE_FILE, open_identity
from quire.storage.ledger_storage import LedgerStorage
from quire.wire import native, native_hello
from quire.wire.entry import Buffer
from quire.wire.run import checksum, encode_run
from support.certificates import Authority
from support.museum import RedError, incident, require, waiting
from support.repaired_ledger import RepairedLedger
from support.small_cluster import SEGMENT_BYTES, SmallCluster, small_cluster
from support.storage_disk import DIGEST
from support.waiting import until_async


async def decommissioned(cluster: SmallCluster, name: str, *, forged: bool) -> None:
    """Stop a bookie, take its disk away, start one under the same name on an empty disk.

    Args:
        forged: the empty disk is made to look like the old one: its cookie, segments without anything in them, and nothing known
            of what it had.
    """
    bookie = next(one for one in cluster.servers if one.startswith(f"{name}."))
    await cluster.stop_bookie(bookie)
    directory = cluster.directory / name
    cookie = (directory / COOKIE_FILE).read_bytes()
    instance = cluster.servers[next(iter(cluster.servers))].cluster_instance
    shutil.rmtree(directory)
    if forged:
        directory.mkdir()
        (directory / COOKIE_FILE).write_bytes(cookie)
        identity = open_identity(directory, name, instance)
        worker = ThreadWorker()
        storage = LedgerStorage.open(
            directory,
            StorageConfig(segment_bytes=SEGMENT_BYTES),
            identity,
            files=RealFiles(),
            worker=worker,
            clock=RealClock(),
            chance=random.Random(1),
        )
        storage.close(clean=True)
        # The cluster knows what the lost directory had, and would take the empty one for older: that is forged, too.
        store = MemoryStore(cluster.space)
        await store.delete(boot_key(bookie))
        await store.close()
        worker.close()
        identity.release()
    await cluster.start_bookie(name)


@incident(
    ref="issues/4812",
    title="The writer goes on with fresh bookies at its old bookies' addresses",
    happened=(
        "E=Qw=Qa=2. A writer adds entry 0 and pauses. Both its bookies are decommissioned one after the other: the ledger is "
        "recovered and closed at 0, the copies move, and empty bookies start at the same addresses. The writer's next add "
        "goes to those, which know of no fence, and *succeeds*; only close() fails, with a metadata version error. The entry "
        "is lost and nobody was told."
    ),
    ours=(
        "The same with real bookies and clients. A bookie's id carries the incarnation of its disk, a connection names the "
        "bookie that it means, and an empty disk is another bookie: the add fails."
    ),
    switch="the empty disks are forged to be the old bookies'",
    violates="I12",
)
async def test_4812_fresh_bookies_at_old_addresses(fault: bool, tmp_path: Path) -> None:
    async with small_cluster(tmp_path, bookies=2) as cluster:
        writer = await (await cluster.client()).create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
        await writer.append(b"entry 0")
        await cluster.start_bookie("b3")
        closed = await (await cluster.client()).open_ledger(writer.ledger_id)
        assert closed.metadata.last_entry == 0
        for name in ("b1", "b2"):
            await decommissioned(cluster, name, forged=fault)
        told = -1
        try:
            told = await asyncio.wait_for(writer.append(b"entry 1"), 30)
        except (QuireError, TimeoutError):
            pass
        await writer.abandon()
        end = (await cluster.clients[-1].ledger_metadata(writer.ledger_id)).last_entry
        require(
            told <= end,
            "I12",
            f"the writer was told that entry {told} is safe, the ledger is closed at {end}",
        )


async def _a_cluster_with_an_emptied_bookie(tmp_path: Path) -> None:
    async with small_cluster(tmp_path) as cluster:
        writer = await (await cluster.client()).create_ledger(ack_quorum=3)
        for number in range(10):
            await writer.append(b"entry %d" % number)
        await writer.abandon()
        bookie = next(iter(cluster.servers))
        name = await cluster.stop_bookie(bookie)
        shutil.rmtree(tmp_path / name / "segments")
        server = await cluster.start_bookie(name)
        assert server.bookie_id == bookie
        assert "all segments are missing" in server.storage.damages.kept[0].what
        reader = await (await cluster.client()).open_ledger(writer.ledger_id)
        assert [bytes(entry.payload) async for entry in reader.read()] == [b"entry %d" % n for n in range(10)]
        # It learns which ledgers name it, puts those in limbo, and then takes entries again.
        await until_async(server._writable)
        assert server.ledgers.info(writer.ledger_id) is not None
        await cluster.stop_bookie(bookie)
        again = await cluster.start_bookie(name)
        assert again.storage.damages.kept == []


def test_a_cluster_with_an_emptied_bookie_loses_nothing(tmp_path: Path) -> None:
    """Issue 2612 once more, with real bookies: what `test_bookie_incidents` found."""
    asyncio.run(_a_cluster_with_an_emptied_bookie(tmp_path))


class DeletesAsItIs(Client):
    """Deletes a ledger's record and leaves its writer alone."""

    async def delete_ledger(self, ledger_id: int, *, fence: bool = True) -> None:
        await super().delete_ledger(ledger_id, fence=False)


@incident(
    ref="pull/4462",
    title="A write succeeds after the ledger was deleted (the client's half)",
    happened=(
        "The second half of the thread: fencing saves a ledger that was opened before it was deleted. One that is deleted "
        "as it is still takes its writer's adds; a reviewer asks whether that should be allowed."
    ),
    ours=(
        "A client deletes a ledger that another one writes, and the writer goes on before any bookie has noticed. This run "
        "found that we had the fault: deleting recovers an open ledger first now, so its writer is stopped."
    ),
    switch="a client that deletes the record and nothing else",
    violates="I12",
)
async def test_4462_deleting_stops_the_writer(fault: bool, tmp_path: Path) -> None:
    async with small_cluster(tmp_path) as cluster:
        writer = await (await cluster.client()).create_ledger()
        await writer.append(b"before")
        other = await cluster.client()
        if fault:
            other = DeletesAsItIs(other.store, other.bookies, other.clock, other.chance, other.config)
        await other.delete_ledger(writer.ledger_id)
        told = -1
        try:
            told = await writer.append(b"after")
        except QuireError:
            pass
        await writer.abandon()
        require(told == -1, "I12", f"the writer was told that entry {told} of a deleted ledger is safe")


async def _a_ledger_whose_writer_cannot_be_stopped(tmp_path: Path) -> None:
    async with small_cluster(tmp_path) as cluster:
        writer = await (await cluster.client()).create_ledger()
        await writer.append(b"before")
        await writer.abandon()
        for bookie in list(cluster.servers)[:2]:
            await cluster.stop_bookie(bookie)
        client = await cluster.client()
        with pytest.raises(RecoveryInconclusiveError, match="the ledger was not closed"):
            await client.delete_ledger(writer.ledger_id)
        assert (await client.ledger_metadata(writer.ledger_id)).state is LedgerState.IN_RECOVERY
        await client.delete_ledger(writer.ledger_id, fence=False)


def test_a_ledger_whose_writer_cannot_be_stopped_is_deleted_only_by_force(tmp_path: Path) -> None:
    asyncio.run(_a_ledger_whose_writer_cannot_be_stopped(tmp_path))


class ReusesMemory(BookieServer):
    """A bookie that receives every long frame into the same memory, whoever still looks at it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.scratch = OneBuffer()


class OneBuffer(Scratch):
    """Receive memory that is used again at once."""

    __slots__ = ("buffers",)

    def __init__(self) -> None:
        super().__init__()
        self.buffers: dict[int, bytearray] = {}

    def frame(self, size: int) -> memoryview:
        return memoryview(self.buffers.setdefault(size, bytearray(size)))


@incident(
    ref="issues/2563",
    title="SST files corrupted by a buffer that was used again",
    happened=(
        "Checkpoints of the table service write SST files as ledger entries. The record was sent asynchronously with the "
        "caller's buffer, and the caller filled that buffer with the next block: later blocks overwrote earlier ones that "
        "were still on their way, and no checkpoint that shares the file can be restored."
    ),
    ours=(
        "Long entries with different bytes, all in flight together. A run stays in the memory that it was received into, "
        "on its way to the disk and for tail readers; memory is used again only when nobody has a view of it."
    ),
    switch="a bookie that receives long frames into one buffer",
    violates="bytes",
)
async def test_2563_memory_that_is_used_again(fault: bool, tmp_path: Path) -> None:
    async with small_cluster(tmp_path, bookies=0) as cluster:
        await cluster.start_bookie("b1", ReusesMemory if fault else BookieServer)
        client = await cluster.client()
        writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        payloads = [bytes([number]) * 300_000 for number in range(20)]
        await asyncio.gather(*[writer.append_nowait(payload) for payload in payloads])
        await writer.close()
        reader = await client.open_ledger(writer.ledger_id)
        try:
            found = [bytes(entry.payload) async for entry in reader.read()]
        except QuireError as error:
            raise RedError("bytes", str(error)) from error
        require(found == payloads, "bytes", "other bytes came back than went in")


class PastTls(Channel):
    """Writes the first piece of what it sends to the socket, and the rest to TLS."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert isinstance(transport, asyncio.Transport)
        self._socket = transport

    def _write(self, buffers: Sequence[Buffer], size: int) -> None:
        data = b"".join(buffers)
        if self.upgrading:
            self._socket.write(data[:4])
            data = data[4:]
        super()._write([data], size)


class PastTlsChannels(Channels):
    """Makes such connections."""

    def make(self, bookie: BookieId, info: BookieInfo | None, ended: Ended) -> Channel:
        made = super().make(bookie, info, ended)
        if isinstance(made.codec, V2Codec):
            made.__class__ = PastTls
        return made


@incident(
    ref="pull/4404",
    title="The V2 protocol over TLS corrupted data",
    happened=(
        "The TLS handler stood at the wrong place of the channel's pipeline, on the wrong side of the one that gathers "
        "flushes: with the V2 protocol, whose frames are written piece by piece, connections broke and data were corrupted."
    ),
    ours=(
        "Short and long entries over TLS in each of our three protocols, hundreds in flight, read again by each. Whoever "
        "writes has one transport, and it is the one on this side of TLS: the other is known to nobody after the handshake."
    ),
    switch="a connection that hands the first piece of each write to the socket instead of TLS",
    violates="bytes",
)
async def test_4404_v2_over_tls(fault: bool, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "keys")
    pair = authority.issue("bookie")
    asked = BookieSecurity(BookieTls(pair.certificate, pair.key))
    shown = ClientSecurity(ClientTls(authority.ca))
    payloads = [bytes([number]) * (number * number * 7 % 50_000) for number in range(256)]
    async with small_cluster(tmp_path, security=asked) as cluster:
        clients = [
            await cluster.client(ClientConfig(protocol=protocol, security=shown))
            for protocol in ("v2", "v3", "auto")
        ]
        if fault:
            clients[0].bookies._channels.__class__ = PastTlsChannels
        try:
            for client in clients:
                writer = await client.create_ledger()
                await asyncio.gather(*[writer.append_nowait(payload) for payload in payloads])
                await writer.close()
                for other in clients:
                    reader = await other.open_ledger(writer.ledger_id)
                    found = [bytes(entry.payload) async for entry in reader.read()]
                    require(found == payloads, "bytes", "other bytes came back than went in")
        except QuireError as error:
            raise RedError("bytes", str(error)) from error


class IgnoresTheRest(ReadMachine):
    """Takes an answer for the end of its request, and what was wrong in it for nobody's business."""

    __slots__ = ()

    def answered(
        self,
        slot: int,
        answer: Answer,
        entries: Collection[int],
        conclusive_through: int,
        unknown: Sequence[tuple[int, int]],
        now_ms: int,
    ) -> None:
        if not unknown:
            super().answered(slot, answer, entries, conclusive_through, unknown, now_ms)


@incident(
    ref="pull/4789",
    title="A batch read hangs after a digest mismatch",
    happened=(
        "A batch read whose first replica sends an entry with a wrong digest is to be retried with the next replica. The "
        "retry was ignored, because the read counted as answered, and the caller waits for ever."
    ),
    ours="A range read, one wrong digest in the middle: what was right is kept, the rest is asked of the next bookie.",
    switch="a reader that ignores what it should ask again",
    violates="F2",
)
def test_4789_a_wrong_digest_in_a_range(fault: bool) -> None:
    kind = IgnoresTheRest if fault else ReadMachine
    machine = kind(0, 9, [BookieId(name) for name in ("b1", "b2", "b3")], 3)
    machine.read(0)
    asked, done = [], False
    for _ in range(10):
        out, machine.out = machine.out, []
        for effect in out:
            done = done or isinstance(effect, ReadDone)
            if isinstance(effect, SendRead):
                asked.append((effect.bookie, effect.first, effect.last))
                bad = [(4, 4)] if effect.bookie == "b1" else []
                good = [i for i in range(effect.first, effect.last + 1) if not (bad and i == 4)]
                machine.answered(effect.slot, Answer.OK, good, effect.last, bad, 1)
    require(done, "F2", f"asked {asked}, and nothing is on its way")
    assert asked == [("b1", 0, 9), ("b2", 4, 4)]


async def _negative_ids(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, bookies=1) as cluster:
        (server,) = cluster.servers.values()
        hello = native_hello.encode_hello(native_hello.Hello(server.cluster_instance, server.bookie_id))
        for ledger_id in (-1, -2, -(1 << 63)):
            entry = DIGEST.seal_one(ledger_id, 0, -1, 1, b"x") + b"x"
            run = encode_run(ledger_id, 0, 0, [entry], [len(entry)], digest_type=int(DigestType.CRC32C))
            for kind in native.Kind:
                if kind is native.Kind.INFO:
                    continue
                for flags in (0, int(native.Flag.FENCE), int(native.Flag.RECOVERY)):
                    head = native.encode_request(
                        kind, 1, len(run), checksum(run), ledger_id=ledger_id, flags=flags, key=b"k" * 20
                    )
                    reader, writer = await asyncio.open_connection(*server.address)
                    writer.write(hello + head + run)
                    writer.write_eof()
                    await asyncio.wait_for(reader.read(), 20)
                    writer.close()
        assert all(ledger_id >= 0 for ledger_id in server.storage._ledgers)
        client = await cluster.client()
        ledger = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        assert await ledger.append(b"still here") == 0
        await ledger.close()
        name = await cluster.stop_bookie(server.bookie_id)
        again = await cluster.start_bookie(name)
        assert again.storage.report.clean


def test_a_negative_ledger_id_is_refused_at_the_door(tmp_path: Path) -> None:
    """Measured on BookKeeper, no thread: a random V2 frame with a negative ledger id is taken, and breaks the flush later."""
    asyncio.run(_negative_ids(tmp_path))


class TrustingRepair(RepairMachine):
    """Does not look again at the bookies that came into the record: what they listed before counts."""

    __slots__ = ()

    def stored(self, version: int) -> None:
        lists = dict(self.plan.lists)
        super().stored(version)
        for effect in [effect for effect in self.out if isinstance(effect, ListReplica)]:
            self.out.remove(effect)
            self.listed(effect.bookie, lists[effect.bookie].response)


@incident(
    ref="issues/4668",
    title="Recovery of a bookie races with the collector of over-replicated ledgers",
    happened=(
        "While an administrator's recovery writes copies to a bookie, that bookie's collector finds that the metadata do "
        "not name it for the ledger yet, drops it and leaves it fenced: the copies are refused or deleted."
    ),
    ours=(
        "A repair copies a ledger to a bookie, which drops it when the record already names it. A collector of ours leaves "
        "over-replicated entries out of its lists before it looks at the record for the last time, and a put ends that; "
        "and a repair has the bookies that came into the record list once more after the compare-and-swap. What is gone "
        "is a hole, and is filled."
    ),
    switch="the lists of before the compare-and-swap are believed",
    violates="I2",
)
def test_4668_admin_recovery_and_collector(fault: bool) -> None:
    a, b, gone, new = map(BookieId, ("b1", "b2", "gone", "new"))
    record = new_ledger(
        7, [a, gone], write_quorum=2, ack_quorum=2, digest_type=DigestType.CRC32C, password=b""
    ).closed(9, 100)
    ledger = RepairedLedger(record, {a: set(range(10)), b: set(), new: set()})
    written: list[RepairEffect] = []

    def collected(effect: RepairEffect) -> None:
        if written and ledger.version > 1:
            ledger.disks[new].clear()
            written.clear()
        if isinstance(effect, WriteRepaired):
            written.append(effect)

    ledger.before = collected
    ended = ledger.run((TrustingRepair if fault else RepairMachine)([gone], [new]))
    require(ended.report.replaced == [(0, gone, new)], "F1", f"the repair ended with {ended}")
    require(ledger.whole(), "I2", "the record names a bookie that has nothing of the ledger")


# --- rooms that are not built yet -----------------------------------------------------------------------------------

test_1046_text = waiting(
    ref="issues/1046",
    title="(its text is not at hand)",
    happened="The copy of the tracker that this was written from does not have the thread; nothing is claimed about it.",
    room="the thread's text",
    path="",
)
test_4659_text = waiting(
    ref="issues/4659",
    title="(its text is not at hand)",
    happened="The copy of the tracker that this was written from does not have the thread; nothing is claimed about it.",
    room="the thread's text",
    path="",
)
