"""A bookie, and a client, that are fed any bytes as if they came from a socket: no thread, no disk, no time of its own.

What is fed is an *input*: one byte that chooses the protocol and how the rest is treated, then what a peer sends. The
programs are the real ones; only loop, disk and transports are in memory. Whatever they raise is a finding.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from crc32c import crc32c

from quire.bookie.config import BookieConfig
from quire.bookie.connections.connection import Connection
from quire.bookie.server import BookieServer
from quire.client.access import LedgerAccess
from quire.client.bookies.bookies import AddRequester, BookieClient
from quire.client.reading.range_read import open_runs
from quire.core.answers import Answer
from quire.core.ids import BookieId, LedgerId
from quire.core.ledger.metadata import DigestType
from quire.metadata.bookies import BookieInfo, BookieRegistry
from quire.metadata.memory import MemorySpace, MemoryStore
from quire.storage.config import StorageConfig
from quire.wire import bundles, native, native_bodies, native_hello
from quire.wire.bookie_service_info import NATIVE_PROPERTY, native_property
from quire.wire.entry import EntryDigest, master_key
from quire.wire.requests import AddRun
from quire.wire.run import checksum, encode_run
from quire_testing.kit.stepped import StepWorker
from quire_testing.kit.transport import MemoryTransport
from quire_testing.sim.loop import SECOND, ProcessLoop, Timeline
from quire_testing.sim.network import Network, NetworkSettings
from quire_testing.sim.programs import SimClock
from support.many_lacs import write_lacs
from support.records import create_records, put_record, record_of
from support.storage_disk import FaultyFiles

NATIVE, V2, V3 = 0, 1, 2
SEALED = 4
"""In an input's first byte, beside the protocol: put the checksums of the native protocol right."""
CUT = 8
"""In an input's first byte: the second byte says where the stream is cut in two."""
PASSWORD = b"secret"
LEDGER = LedgerId(1)
ACCESS = LedgerAccess(LEDGER, master_key(PASSWORD), 0, EntryDigest(DigestType.CRC32C, PASSWORD))
GOOD = LedgerAccess(
    LedgerId(0x123456789A), master_key(b"not told"), 0, EntryDigest(DigestType.CRC32C, b"not told")
)
"""A ledger whose key no input has."""
ENTRIES = 10
LIVES = 2000
"""Inputs that one world takes before it is made anew."""
_AFTER_AN_INPUT_NS = SECOND // 10
_HEAD_CRC_AT = {native.REQUEST_BYTES: (76, 92), native.ANSWER_BYTES: (44, 52)}


def a_run(first: int, last: int, ledger: LedgerAccess = ACCESS) -> bytes:
    """Entries of a ledger, as a writer sends them."""
    payloads = [b"entry %d" % entry_id for entry_id in range(first, last + 1)]
    heads = ledger.digest.seal(ledger.ledger_id, first, first - 1, 0, payloads)
    entries = [head + payload for head, payload in zip(heads, payloads, strict=True)]
    sizes = list(map(len, entries))
    return encode_run(ledger.ledger_id, first, last, entries, sizes, digest_type=int(DigestType.CRC32C))


def seal(data: bytes, head_bytes: int) -> bytes:
    """A native stream whose frames have right checksums: of the body, of a run's header and table, of the header."""
    out, at = bytearray(data), 0
    body_crc_at, head_crc_at = _HEAD_CRC_AT[head_bytes]
    while at + head_bytes <= len(out):
        end = at + 4 + int.from_bytes(out[at : at + 4], "big")
        body = at + head_bytes
        if not body <= end <= len(out):
            break
        covered = end - body
        if head_bytes == native.REQUEST_BYTES and out[at + 4] == native.Kind.ADD:
            seal_run(out, body, end)
        elif head_bytes == native.REQUEST_BYTES and out[at + 4] == native.Kind.ADD_BUNDLE:
            covered = seal_bundle(out, body, end)
        if head_bytes == native.ANSWER_BYTES:
            covered = min(covered, int.from_bytes(out[at + 48 : at + 52], "big"))
        out[at + body_crc_at : at + body_crc_at + 4] = struct.pack(">I", crc32c(out[body : body + covered]))
        out[at + head_crc_at : at + head_crc_at + 4] = struct.pack(">I", crc32c(out[at : at + head_crc_at]))
        at = end
    return bytes(out)


def seal_run(out: bytearray, start: int, end: int) -> None:
    """Put the checksums of a run's header and table right, if they are there."""
    if end - start < 56:
        return
    count = int.from_bytes(out[start + 4 : start + 8], "big")
    if start + 56 + 4 * count <= end:
        out[start + 48 : start + 52] = struct.pack(">I", crc32c(out[start + 56 : start + 56 + 4 * count]))
    out[start + 52 : start + 56] = struct.pack(">I", crc32c(out[start : start + 52]))


def seal_bundle(out: bytearray, start: int, end: int) -> int:
    """The same of each run of a bundle, and of each body in its row; how many bytes the header's checksum covers."""
    count = int.from_bytes(out[start : start + 4], "big")
    covered = min(4 + count * bundles.ROW_BYTES, end - start)
    at = start + covered
    for row in range(start + 4, start + covered - bundles.ROW_BYTES + 1, bundles.ROW_BYTES):
        until = min(at + int.from_bytes(out[row + 44 : row + 48], "big"), end)
        seal_run(out, at, until)
        out[row + 48 : row + 52] = struct.pack(">I", crc32c(out[at:until]))
        at = until
    return covered


def stream_of(data: bytes, head_bytes: int) -> tuple[int, list[bytes]]:
    """(protocol, the pieces that arrive) of an input."""
    if len(data) < 2:
        return NATIVE, []
    choice, body = data[0], data[2:]
    if choice & SEALED and choice & 3 == NATIVE:
        body = seal(body, head_bytes)
    cut = min(data[1], len(body)) if choice & CUT else len(body)
    return choice & 3, [piece for piece in (body[:cut], body[cut:]) if piece]


class Line(MemoryTransport):
    """One end of a connection whose other end is the test."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default if name == "socket" else "the test"

    def send(self, data: bytes) -> None:
        self.sent += data


class StillWorld:
    """A loop whose time passes only when told."""

    def __init__(self) -> None:
        self.timeline = Timeline()
        self.loop = ProcessLoop(self.timeline, "program")  # type: ignore[abstract]
        self.space = MemorySpace("cluster")
        self.inputs = 0

    def inside(self, work: Callable[[], Any]) -> Any:
        """Call something as the loop would."""
        asyncio._set_running_loop(self.loop)
        try:
            return work()
        finally:
            asyncio._set_running_loop(None)

    def pass_time(self, span_ns: int) -> None:
        until = self.timeline.now_ns + span_ns
        self.timeline.run(lambda: False, until_ns=until, events_max=20_000)
        self.timeline.now_ns = max(until, self.timeline.now_ns)
        self.loop._tasks = [task for task in self.loop._tasks if not task.done()]
        problems, self.timeline.problems = self.timeline.problems, []
        assert not problems, problems

    def until_done(self, work: Any) -> Any:
        task = self.loop.spawn(work)
        for _ in range(100):
            self.pass_time(SECOND // 100)
            if task.done():
                return task.result()
        raise AssertionError("it does not end")


def feed(protocol: Any, pieces: list[bytes], line: Line) -> None:
    """Hand pieces over as a socket would: never more than the buffer takes, nothing after the end."""
    for piece in pieces:
        at = 0
        while at < len(piece) and not line.closed:
            # The transport outlives the protocol that it began with.
            owner = getattr(line, "owner", protocol)
            buffer = owner.get_buffer(-1)
            size = min(len(buffer), len(piece) - at)
            assert size > 0
            buffer[:size] = piece[at : at + size]
            at += size
            owner.buffer_updated(size)


class _Handed(Line):
    """A line that follows `set_protocol`."""

    owner: Any

    def set_protocol(self, protocol: Any) -> None:
        self.owner = protocol


class StillBookie(StillWorld):
    """One bookie with two ledgers of ten entries: one that everybody knows, and one whose key nobody has."""

    def __init__(self) -> None:
        super().__init__()
        self.loop.network = Network(self.timeline, random.Random(1), NetworkSettings())
        self.worker = StepWorker()
        config = BookieConfig(
            Path("/tmp"),
            "b",
            storage=StorageConfig(segment_bytes=1 << 22),
            garbage_seconds=1,
        )
        store = self.store = self.inside(lambda: MemoryStore(self.space))
        self.server = BookieServer(
            config,
            store,
            clock=SimClock(self.timeline),
            files=FaultyFiles(),
            worker=self.worker,
            chance=random.Random(1),
        )
        self.until_done(self.server.start())
        self.hello = self.hello_of()
        self.greeting = len(self.serve_pieces([self.hello]))
        for ledger in (ACCESS, GOOD):
            # Both are in the metadata; what inputs make up beside them is garbage, and goes.
            self._create(store, ledger)

    def create(self, *ledger_ids: int) -> None:
        """Records of ledgers, so that the bookie may hear of them."""
        self.until_done(create_records(self.store, ledger_ids))

    def hello_of(self, features: int = 0) -> bytes:
        """The hello of a client with these features."""
        return native_hello.encode_hello(
            native_hello.Hello("cluster", self.server.bookie_id, features=features)
        )

    def _create(self, store: MemoryStore, ledger: LedgerAccess) -> None:
        self.until_done(put_record(store, record_of(ledger.ledger_id, [self.server.bookie_id])))
        body = a_run(0, ENTRIES - 1, ledger)
        add = native.encode_request(
            native.Kind.ADD,
            1,
            len(body),
            checksum(body),
            ledger_id=ledger.ledger_id,
            digest_type=3,
            key=ledger.key,
        )
        said = self.serve_pieces([self.hello, add + body])
        assert native.decode_answer(memoryview(said)[self.greeting :]).answer is Answer.OK

    def serve(self, data: bytes) -> bytes:
        """What the bookie answers to an input; it must still be there afterwards."""
        protocol, pieces = stream_of(data, native.REQUEST_BYTES)
        return self.serve_pieces([self.hello, *pieces] if protocol == NATIVE else pieces)

    def serve_pieces(self, pieces: list[bytes]) -> bytes:
        line = _Handed()
        line.owner = Connection(self.server)
        self.inside(lambda: line.owner.connection_made(line))
        self.inside(lambda: feed(line.owner, pieces, line))
        for _ in range(4):
            self.pass_time(_AFTER_AN_INPUT_NS // 4)
            if self.worker.jobs:
                self.inside(self.worker.finish)
        self.inside(lambda: line.owner.connection_lost(None))
        assert self.server.receive_budget.taken == 0
        assert not self.server._connections
        assert self.server.storage.failure is None
        return bytes(line.sent)

    def intact(self) -> bool:
        """Whether the ledger whose key nobody has is as it was."""
        body = native_bodies.encode_body(native_bodies.ReadBody(0, ENTRIES - 1, 1 << 20))
        head = native.encode_request(native.Kind.READ, 9, len(body), checksum(body), ledger_id=GOOD.ledger_id)
        said = memoryview(self.serve_pieces([self.hello, head + body]))[self.greeting :]
        found = native_bodies.decode_entries(native.decode_answer(said).body)
        entries, bad, _ = open_runs(found.runs, GOOD, 0, ENTRIES - 1)
        return not bad and list(entries.entry_ids) == list(range(ENTRIES))


class AddedSink(AddRequester):
    """Remembers what it is told."""

    __slots__ = ("told",)

    def __init__(self) -> None:
        self.told: list[Answer] = []

    def add_answered(self, tag: object, answer: Answer) -> None:
        self.told.append(answer)


class StillClient(StillWorld):
    """A client that asks one bookie for everything it can be asked for, and hears whatever the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.loop.network = self
        self.lines: list[tuple[Any, Line]] = []
        self.bookie = BookieId("b")
        registry = BookieRegistry(self.inside(lambda: MemoryStore(self.space)))
        info = BookieInfo(
            self.bookie, "b", 3181, properties={NATIVE_PROPERTY: native_property(3181, native_hello.VERSION)}
        )
        self.until_done(registry.register(info))
        self.clients: dict[int, BookieClient] = {}
        for protocol, name in ((NATIVE, "auto"), (V2, "v2"), (V3, "v3")):
            client = self.clients[protocol] = BookieClient(registry, "cluster", protocol=name)
            self.until_done(client.start())
        answer = native_hello.HelloAnswer(
            native_hello.VERSION, Answer.OK, "b", "cluster", features=native_hello.OFFERED, boot=3
        )
        self.hello = native_hello.encode_hello_answer(answer)
        self.hello_sent = native_hello.encode_hello(native_hello.Hello("cluster", self.bookie))

    async def connect(self, loop: Any, factory: Callable[[], Any], host: str, port: int) -> Any:
        """The network: every connection goes to the test."""
        line, protocol = Line(), factory()
        self.lines.append((protocol, line))
        protocol.connection_made(line)
        return line, protocol

    def hear(self, data: bytes) -> list[Any]:
        """What the client makes of an input as a bookie's answers; each request must get exactly one."""
        protocol, pieces = stream_of(data, native.ANSWER_BYTES)
        client = self.clients.get(protocol)
        if client is None:
            return []
        self.lines.clear()
        client._peers.clear()
        asked = [self.loop.spawn(work) for work in everything(client, self.bookie, 2000)]
        requester = self.inside(lambda: add_something(client, self.bookie, 2000))
        self.pass_time(SECOND // 100)
        for receiver, line in list(self.lines):
            heard = [self.hello, *pieces] if protocol == NATIVE else pieces
            self.inside(lambda receiver=receiver, line=line, heard=heard: feed(receiver, heard, line))
        self.pass_time(SECOND // 100)
        for receiver, _ in list(self.lines):
            self.inside(lambda receiver=receiver: receiver.connection_lost(None))
        self.pass_time(SECOND // 100)
        for _ in range(8):
            if all(task.done() for task in asked) and requester.told:
                break
            self.pass_time(SECOND)
        assert all(task.done() for task in asked)
        assert len(requester.told) == 1
        told = [task.result() for task in asked]
        entries, _, _ = open_runs(told[0].runs, ACCESS, 0, ENTRIES - 1)
        assert all(0 <= entry_id < ENTRIES for entry_id in entries.entry_ids)
        assert told[0].answer is Answer.OK or not told[0].runs
        self.loop._tasks = [task for task in self.loop._tasks if not task.done()]
        return told


def everything(client: BookieClient, bookie: BookieId, timeout_ms: int) -> list[Any]:
    """One request of each kind to a bookie, not begun yet."""
    return [
        client.read(bookie, ACCESS, 0, ENTRIES - 1, 1 << 20, timeout_ms=timeout_ms),
        client.read(bookie, ACCESS, 5, 5, 1 << 20, fence=True, recovery=True, timeout_ms=timeout_ms),
        client.read_lac(bookie, ACCESS, timeout_ms=timeout_ms),
        client.read_lac(bookie, ACCESS, fence=True, timeout_ms=timeout_ms),
        client.long_poll(bookie, ACCESS, 3, 4, 9, 1 << 20, 1000),
        client.list_entries(bookie, ACCESS, timeout_ms=timeout_ms),
        client.info(bookie, ACCESS, timeout_ms=timeout_ms),
        client.clear_limbo(bookie, ACCESS, 7, timeout_ms=timeout_ms),
        write_lacs(client, bookie, [item_of(ACCESS, 3), item_of(GOOD, 4)], timeout_ms=timeout_ms),
    ]


def item_of(access: LedgerAccess, lac: int) -> native_bodies.LacItem:
    """How far a ledger is confirmed, as one of many."""
    return native_bodies.LacItem(access.ledger_id, 0, lac, 0, int(DigestType.CRC32C), access.key)


def add_something(client: BookieClient, bookie: BookieId, timeout_ms: int) -> AddedSink:
    """Send a run; the sink is told what became of it."""
    requester, body = AddedSink(), a_run(20, 22)
    client.add_run(
        bookie, AddRun(ACCESS, body, checksum(body), 19, recovery=False), requester, None, timeout_ms
    )
    return requester
