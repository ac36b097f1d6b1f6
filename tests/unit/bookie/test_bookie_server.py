"""A real bookie in this process, spoken to by real connections: what it stores, refuses, denies and survives."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from quire.bookie.config import BookieConfig
from quire.bookie.connections import admission
from quire.bookie.server import BookieServer
from quire.client.access import LedgerAccess
from quire.client.bookies.bookies import AddRequester, BookieClient
from quire.core.answers import Answer
from quire.core.errors import MisuseError, WrongDirectoryError
from quire.core.ids import BookieId, LedgerId
from quire.core.ledger.metadata import DigestType, new_ledger
from quire.metadata.bookies import BookieInfo, BookieRegistration, BookieRegistry
from quire.metadata.memory import MemoryStore
from quire.metadata.records import OF_LEDGERS, RecordStore
from quire.storage.config import StorageConfig
from quire.wire import native, native_bodies, native_hello
from quire.wire.entry import EntryDigest, master_key
from quire.wire.requests import AddRun
from quire.wire.responses import ReadReply
from quire.wire.run import checksum, encode_run
from support.records import create_records, put_record, record_of
from support.wire_adds import WireAdds

SMALL = StorageConfig(segment_bytes=1024 * 1024)


@dataclass
class Told(AddRequester):
    """A writer that remembers what it was told."""

    answers: list[tuple[object, Answer]]
    moved: asyncio.Event

    def __hash__(self) -> int:
        return id(self)

    def add_answered(self, tag: object, answer: Answer) -> None:
        self.answers.append((tag, answer))
        self.moved.set()


@dataclass
class World:
    """One bookie, its cluster, and a client of it."""

    server: BookieServer
    store: MemoryStore
    client: BookieClient
    config: BookieConfig

    @property
    def bookie(self) -> BookieId:
        return self.server.bookie_id

    async def add(
        self,
        who: LedgerAccess,
        ids: list[int],
        *,
        lac: int = -1,
        recovery: bool = False,
        text: bytes = b"entry",
    ) -> Answer:
        """Add entries with consecutive ids as one run, and wait for the answer."""
        payloads = [b"%b %d" % (text, entry_id) for entry_id in ids]
        sealed = who.digest.seal(who.ledger_id, ids[0], lac, 0, payloads)
        entries = [head + payload for head, payload in zip(sealed, payloads, strict=True)]
        body = encode_run(who.ledger_id, ids[0], ids[-1], entries, list(map(len, entries)), digest_type=3)
        told = Told([], asyncio.Event())
        self.client.add_run(self.bookie, AddRun(who, body, checksum(body), lac, recovery), told, "t")
        await asyncio.wait_for(told.moved.wait(), 20)
        [(tag, answer)] = told.answers
        assert tag == "t"
        return answer

    async def read(self, who: LedgerAccess, first: int, last: int, **options: Any) -> ReadReply:
        return await self.client.read(self.bookie, who, first, last, 1 << 20, **options)

    async def restart(self, *, clean: bool) -> None:
        """Stop the bookie and start it again on its directory."""
        await self.server.stop(clean=clean)
        self.server = BookieServer(self.config, self.store)
        await self.server.start()
        async with asyncio.timeout(20):
            while (await self.client.info(self.bookie))[0] is not Answer.OK:
                await self.client.bookies()


def access(ledger_id: int = 1, *, password: bytes = b"secret", token: int = 77) -> LedgerAccess:
    return LedgerAccess(
        LedgerId(ledger_id), master_key(password), token, EntryDigest(DigestType.CRC32C, password)
    )


@contextlib.asynccontextmanager
async def world(directory: Path, **settings: Any) -> AsyncIterator[World]:
    store = MemoryStore()
    config = BookieConfig(directory=directory / "bookie", storage=SMALL, garbage_seconds=0, **settings)
    server = BookieServer(config, store)
    await server.start()
    client = BookieClient(BookieRegistry(store), store.instance_id)
    await client.start()
    made = World(server, store, client, config)
    await create_records(store, range(1, 20))
    try:
        yield made
    finally:
        await client.close()
        await made.server.stop()
        await store.close()


def payloads_of(reply: ReadReply, who: LedgerAccess) -> dict[int, bytes]:
    return {
        entry_id: bytes(who.digest.open(entry, who.ledger_id, entry_id).payload)
        for run in reply.runs
        for entry_id, entry in run.entries()
    }


async def test_what_is_added_is_read(at: World) -> None:
    who = access()
    assert await at.add(who, [0, 1, 2]) is Answer.OK
    assert await at.add(who, [3], lac=2) is Answer.OK
    reply = await at.read(who, 0, 9)
    assert reply.answer is Answer.OK
    assert payloads_of(reply, who) == {i: b"entry %d" % i for i in range(4)}
    assert reply.conclusive_through == 9, "what it does not hold of 4..9 it denies"
    assert reply.lac == 2
    lac = await at.client.read_lac(at.bookie, who)
    assert (lac.answer, lac.lac) == (Answer.OK, 2)
    assert who.digest.open(lac.evidence, 1, 3).last_add_confirmed == 2


async def test_a_read_of_an_unknown_ledger_is_conclusive(at: World) -> None:
    reply = await at.read(access(5), 0, 3)
    assert (reply.answer, reply.conclusive_through) == (Answer.NO_LEDGER, 3)
    assert (await at.client.read_lac(at.bookie, access(5))).answer is Answer.NO_LEDGER


@pytest.mark.parametrize("clean", [True, False])
async def test_a_fence_survives_a_restart(at: World, clean: bool) -> None:
    who = access()
    assert await at.add(who, [0]) is Answer.OK
    fenced = await at.client.read_lac(at.bookie, who, fence=True)
    assert fenced.answer is Answer.OK
    assert await at.add(who, [1], lac=0) is Answer.FENCED
    assert await at.add(who, [1], lac=0, recovery=True) is Answer.OK
    await at.restart(clean=clean)
    assert await at.add(who, [2], lac=0) is Answer.FENCED
    assert sorted(payloads_of(await at.read(who, 0, 5), who)) == [0, 1]


async def test_a_fencing_read_of_an_unknown_ledger_fences_it(at: World) -> None:
    who = access(9)
    reply = await at.read(who, 0, 0, fence=True, recovery=True)
    assert reply.answer is Answer.OK
    assert (reply.runs, reply.conclusive_through) == ([], 0)
    assert await at.add(who, [0]) is Answer.FENCED


@pytest.mark.parametrize("protocol", ["v2", "v3"])
async def test_what_a_fencing_read_did_not_find_is_found_once_it_is_stored(protocol: str, at: World) -> None:
    """A recovery found nothing, another one stored the entry over its own connection, and it was acknowledged."""
    await put_record(at.store, record_of(100, [at.bookie], password=b"pw"))
    port = at.server.address[1]
    async with WireAdds(port, protocol, 100) as one, WireAdds(port, protocol, 100) as other:
        assert await one.read(0, fencing=True) == b""
        other.writer.write(other.frame(0, 300, recovery=True))
        assert await other.answer() == (Answer.OK, 0)
        assert await one.read(0)


async def test_keys_and_tokens(at: World) -> None:
    who = access()
    assert await at.add(who, [0]) is Answer.OK
    assert await at.add(access(password=b"wrong"), [1]) is Answer.UNAUTHORISED
    assert await at.add(access(token=78), [1]) is Answer.WRONG_TOKEN
    wrong = await at.read(access(password=b"wrong"), 0, 0, fence=True)
    assert wrong.answer is Answer.UNAUTHORISED
    assert await at.add(who, [1]) is Answer.OK, "a refused fence fences nothing"


async def test_a_long_poll_wakes_when_the_lac_moves(at: World) -> None:
    who = access()
    assert await at.add(who, [0]) is Answer.OK
    poll = asyncio.create_task(at.client.long_poll(at.bookie, who, -1, 0, 10, 1 << 20, 30_000))
    assert await at.add(who, [1], lac=0) is Answer.OK
    reply = await poll
    assert reply.lac == 0
    assert payloads_of(reply, who)[0] == b"entry 0"
    poll = asyncio.create_task(at.client.long_poll(at.bookie, who, 0, 1, 10, 1 << 20, 30_000))
    assert (await at.client.write_lac(at.bookie, who, 1)).answer is Answer.OK
    reply = await poll
    assert reply.lac == 1
    assert 1 in payloads_of(reply, who)
    over = await at.client.long_poll(at.bookie, who, 1, 2, 10, 1 << 20, 1)
    assert (over.answer, over.lac, over.runs) == (Answer.OK, 1, [])


async def test_a_long_poll_waits_for_a_ledger_that_has_no_entry_yet(at: World) -> None:
    who = access()
    first = asyncio.create_task(at.client.long_poll(at.bookie, who, -1, 0, 10, 1 << 20, 30_000))
    later = await at.client.long_poll(at.bookie, who, 7, 8, 10, 1 << 20, 30_000)
    assert later.answer is Answer.NO_LEDGER, "who knows of entries is to ask others"
    assert await at.add(who, [0]) is Answer.OK
    assert (await at.client.write_lac(at.bookie, who, 0)).answer is Answer.OK
    assert payloads_of(await first, who) == {0: b"entry 0"}


async def test_a_refused_add_hides_no_entry_before_it(at: World) -> None:
    """The disk had no room for it: where all bookies are full, readers beside the writer saw an empty ledger."""
    who = access()
    assert await at.add(who, [0]) is Answer.OK
    assert await at.add(who, [1], lac=0) is Answer.OK
    too_long = bytes(2 * SMALL.segment_bytes)
    assert await at.add(who, [2], lac=1, text=too_long) is Answer.ERROR
    lac = await at.client.read_lac(at.bookie, who)
    assert who.digest.open(lac.evidence, 1, 1).last_add_confirmed == 0


async def test_an_explicit_lac_survives_a_clean_stop(at: World) -> None:
    who = access()
    assert await at.add(who, [0]) is Answer.OK
    assert (await at.client.write_lac(at.bookie, who, 0)).answer is Answer.OK
    await at.restart(clean=True)
    lac = await at.client.read_lac(at.bookie, who)
    assert lac.lac == 0
    assert who.digest.open_lac_body(lac.explicit_lac, 1) == 0


async def test_limbo_gives_no_negatives_until_it_is_cleared(at: World) -> None:
    who = access()
    assert await at.add(who, [0]) is Answer.OK
    facts = replace(at.server.storage.facts(1))  # type: ignore[type-var]
    stored = asyncio.get_running_loop().create_future()
    at.server.ledgers.put_in_limbo(facts, stored.set_result)
    assert await stored is None
    reply = await at.read(who, 0, 3)
    assert 0 in payloads_of(reply, who)
    assert reply.conclusive_through < 1, "entry 1 may have been here"
    assert await at.add(who, [1]) is Answer.READ_ONLY, "no record says that no fence was lost"
    assert await at.add(who, [1], recovery=True) is Answer.OK
    _, info = await at.client.info(at.bookie, who)
    lsn = info["doubt_lsn"]
    assert await at.client.clear_limbo(at.bookie, who, lsn + 1) is Answer.BAD_REQUEST, "another loss"
    assert (await at.read(who, 0, 3)).conclusive_through < 1
    assert await at.client.clear_limbo(at.bookie, who, lsn) is Answer.OK
    assert (await at.read(who, 0, 3)).conclusive_through == 3
    await at.restart(clean=False)
    _, info = await at.client.info(at.bookie, who)
    assert (info["limbo"], info["fenced"]) == (False, True)


class GatedStore(MemoryStore):
    """A metadata store whose listings wait for a gate, so that a test sees what happens before they come."""

    gate: asyncio.Event

    async def list(self, *arguments: Any, **options: Any) -> Any:
        await self.gate.wait()
        return await super().list(*arguments, **options)


async def test_who_may_have_lost_a_ledger_takes_nothing_for_it_until_that_is_settled(
    tmp_path: Path, at: World
) -> None:
    """A rotten last group hides what was in it: perhaps a fence, perhaps a ledger that is not known any more."""
    lost, other, new = access(1), access(2), access(3)
    for who in (lost, other):
        record = new_ledger(
            who.ledger_id,
            [at.bookie],
            write_quorum=1,
            ack_quorum=1,
            digest_type=DigestType.CRC32C,
            password=b"secret",
        )
        await put_record(at.store, record)
    assert await at.add(lost, [0]) is Answer.OK
    end = at.server.storage.journal.current.data_end  # type: ignore[union-attr]
    await at.server.stop(clean=False)
    [segment] = (tmp_path / "bookie" / "segments").glob("*.seg")
    with segment.open("r+b") as file:
        file.seek(end)
        file.write(b"\xaa" * 4096)

    store = GatedStore(at.store._space)
    store.gate = asyncio.Event()
    at.server = BookieServer(at.config, store)
    await at.server.start()
    async with asyncio.timeout(20):
        while (await at.client.info(at.bookie))[0] is not Answer.OK:
            await at.client.bookies()
    assert at.server.storage.report.unknown_in_limbo
    assert not (await at.client.bookies())[at.bookie].writable
    assert await at.add(lost, [1], lac=0) is Answer.OK, "in limbo, and its record is OPEN"
    assert (await at.read(lost, 2, 2)).conclusive_through < 2
    assert await at.add(other, [0]) is Answer.OK
    assert (await at.read(other, 1, 1)).conclusive_through < 1, "not heard of, and so in limbo"
    assert (await at.read(new, 0, 0)).answer is Answer.UNKNOWN

    store.gate.set()
    async with asyncio.timeout(20):
        while at.server.storage.states.in_limbo(3):
            await at.client.info(at.bookie)
    assert (await at.read(new, 0, 0)).answer is Answer.NO_LEDGER, "it was never here"
    assert await at.add(new, [0]) is Answer.READ_ONLY, "whoever writes it, no record names it"
    assert await at.add(other, [1], lac=0) is Answer.OK
    assert (await at.read(other, 2, 2)).conclusive_through < 2


async def talk(at: World, data: bytes) -> bytes:
    """What the bookie says to these bytes before it closes the connection."""
    reader, writer = await asyncio.open_connection(*at.server.address)
    writer.write(data)
    with contextlib.suppress(ConnectionError):
        said = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        return said
    return b""


def hello_for(at: World) -> bytes:
    return native_hello.encode_hello(native_hello.Hello(at.server.cluster_instance, at.bookie))


@pytest.mark.parametrize(
    "after",
    [
        b"\xff" * 200,
        struct.pack(">I", 2**31) + b"x" * 100,
        struct.pack(">I", 10) + b"0123456789",
        native.encode_request(native.Kind.READ, 1, 4, 0, ledger_id=3)[:-1] + b"?body",
    ],
)
async def test_garbage_after_the_hello_closes_the_connection_and_nothing_else(
    at: World, after: bytes
) -> None:
    said = await talk(at, hello_for(at) + after)
    assert len(said) < 300, "nothing but the answer to the hello"
    assert await at.add(access(), [0]) is Answer.OK


@pytest.mark.parametrize(
    "start", [b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x04\x02\x09\x00\x00", b"\xd1QUIRX\r\n"]
)
async def test_another_protocol_is_closed_at_once(at: World, start: bytes) -> None:
    assert await talk(at, start) == b""
    assert await at.add(access(), [0]) is Answer.OK


async def test_another_bookie_or_cluster_is_refused_by_name(at: World) -> None:
    for hello in (native_hello.Hello("", "other.abcde"), native_hello.Hello("another cluster", "")):
        split = native_hello.split_hello(await talk(at, native_hello.encode_hello(hello)))
        assert split is not None
        answer = native_hello.decode_hello_answer(split[0])
        assert (answer.version, answer.answer) == (0, Answer.WRONG_BOOKIE)
        assert at.bookie in answer.message


async def test_who_leaves_a_frame_unfinished_is_cut_off(tmp_path: Path) -> None:
    async with world(tmp_path, partial_frame_seconds=0.5) as at:
        assert len(await talk(at, hello_for(at) + struct.pack(">I", 4_000_000) + b"x" * 10)) < 300
        assert at.server.receive_budget.taken == 0


async def test_a_client_that_does_not_read_takes_no_memory_and_no_one_elses_turn(at: World) -> None:
    who = access()
    for number in range(0, 200, 20):
        assert await at.add(who, list(range(number, number + 20)), text=b"x" * 4000) is Answer.OK
    reader, writer = await asyncio.open_connection(*at.server.address)
    writer.write(hello_for(at))
    await reader.readexactly(8)
    body = native_bodies.encode_body(native_bodies.ReadBody(0, 199, 1 << 20))
    head = native.encode_request(native.Kind.READ, 1, len(body), checksum(body), ledger_id=1)
    for _ in range(3000):
        writer.write(head + body)
    [silent] = [each for each in at.server._connections if each.not_read_since is not None] or [None]
    for _ in range(1000):
        silents = [each for each in at.server._connections if each.not_read_since is not None]
        if silents:
            [silent] = silents
            break
        await at.read(who, 0, 1)
    assert silent is not None
    assert silent.transport is not None
    assert silent.transport.get_write_buffer_size() < 24 * 1024 * 1024
    assert await at.add(who, [200]) is Answer.OK
    writer.transport.abort()


async def test_a_bookie_stops_although_a_client_does_not_read(
    at: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From Python 3.12 on, a server is closed once its connections are."""
    monkeypatch.setattr(admission, "LAST_RESPONSES_SECONDS", 0.05)
    who = access()
    assert await at.add(who, [0], text=b"x" * 500_000) is Answer.OK
    reader, writer = await asyncio.open_connection(*at.server.address)
    writer.write(hello_for(at))
    await reader.readexactly(8)
    reader._transport.pause_reading()  # type: ignore[attr-defined]
    body = native_bodies.encode_body(native_bodies.ReadBody(0, 0, 1 << 20))
    head = native.encode_request(native.Kind.READ, 1, len(body), checksum(body), ledger_id=1)
    writer.write((head + body) * 100)
    connections = at.server._connections
    async with asyncio.timeout(20):
        while not any(each.not_read_since is not None for each in connections):
            await at.read(who, 0, 0)
    await at.server.stop()
    await asyncio.sleep(0)
    assert not connections
    writer.transport.abort()


async def test_a_bookie_whose_segments_are_gone_denies_nothing(tmp_path: Path, at: World) -> None:
    """Its cookie is there, what it held is not: a disk that was not mounted, or emptied (defect D3)."""
    who = access(1)
    await put_record(
        at.store,
        new_ledger(
            LedgerId(1),
            [at.bookie],
            write_quorum=1,
            ack_quorum=1,
            digest_type=DigestType.CRC32C,
            password=b"secret",
        ),
    )
    assert await at.add(who, [0]) is Answer.OK
    record, version = await RecordStore(at.store, OF_LEDGERS).read(1)
    await RecordStore(at.store, OF_LEDGERS).write(record.in_recovery(), version)
    assert (await at.client.read_lac(at.bookie, who, fence=True)).answer is Answer.OK
    await at.server.stop()
    for segment in (tmp_path / "bookie" / "segments").iterdir():
        segment.unlink()

    at.server = BookieServer(at.config, at.store)
    await at.server.start()
    async with asyncio.timeout(20):
        while (await at.client.info(at.bookie))[0] is not Answer.OK:
            await at.client.bookies()
    reply = await at.read(who, 0, 0)
    assert reply.answer is Answer.UNKNOWN or reply.conclusive_through < 0
    assert await at.add(who, [1], lac=0) is Answer.READ_ONLY, "it was fenced here, as far as anybody can tell"
    async with asyncio.timeout(20):
        while at.server.storage.states.in_limbo(2):
            await at.client.info(at.bookie)
    assert await at.add(who, [1], lac=0) is Answer.READ_ONLY
    assert (await at.read(access(2), 0, 0)).answer is Answer.NO_LEDGER, "no record names this bookie"
    assert "all segments are missing" in str(at.server.storage.damages.kept[0])


async def test_what_a_recoverer_wrote_is_no_evidence_of_a_lac(at: World) -> None:
    """Headers of recovery adds may carry an advancing LAC (a Java recoverer's do); no reader may go by it.

    Source: docs/decisions/032-recovery-adds-and-the-lac.md.
    """
    who = access(1)

    async def lac() -> int:
        return who.trusted_lac(await at.client.read_lac(at.bookie, who))

    assert await at.add(who, [0, 1, 2], lac=0) is Answer.OK
    assert await lac() == 0
    assert await at.add(who, [2], lac=1, recovery=True) is Answer.OK
    assert await lac() == 0, "a copy that replaced the writer's own"
    assert await at.add(who, [3], lac=2, recovery=True) is Answer.OK
    assert await lac() == 0
    await at.restart(clean=False)
    assert await lac() == 0, "the last entry that is here was written by a recoverer"


async def test_an_add_that_a_full_disk_refused_is_no_evidence_of_a_lac(
    at: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    who = access(1)
    assert await at.add(who, [0, 1], lac=0) is Answer.OK
    journal = at.server.storage.journal

    def full(*_: object, **__: object) -> NoReturn:
        raise journal._disk_full()

    with monkeypatch.context() as patch:
        patch.setattr(journal, "put", full)
        assert await at.add(who, [2], lac=1) is Answer.READ_ONLY
    reply = await at.client.read_lac(at.bookie, who)
    assert reply.lac == 1, "it came with the refused add"
    assert who.trusted_lac(replace(reply, lac=-1)) == 0, "what carries a digest"
    assert at.server.ledgers.entries_added == 2


async def test_a_port_in_use_is_named(tmp_path: Path, at: World) -> None:
    other = BookieServer(
        BookieConfig(directory=tmp_path / "other", port=at.server.address[1], storage=SMALL), at.store
    )
    with pytest.raises(MisuseError, match=f"port {at.server.address[1]} .* in use"):
        await other.start()


async def test_a_directory_of_another_cluster_is_refused(at: World) -> None:
    await at.server.stop()
    other_store = MemoryStore()
    with pytest.raises(WrongDirectoryError):
        await BookieServer(at.config, other_store).start()
    await other_store.close()
    at.server = BookieServer(at.config, at.store)
    await at.server.start()


class SlowStore(MemoryStore):
    """A metadata store that keeps a dead client's registrations for a minute."""

    @property
    def session_timeout_ms(self) -> int:
        return 60_000


class AskedRegistry(BookieRegistry):
    """Remembers how long it was told to wait."""

    waited_ms = 0

    async def register(self, info: BookieInfo, *, wait_ms: int = 0) -> BookieRegistration:
        self.waited_ms = wait_ms
        return await super().register(info)


async def test_a_bookie_that_was_killed_waits_at_its_next_start_until_its_session_is_over(
    tmp_path: Path,
) -> None:
    """With sessions of a minute it gave up after twenty seconds: rounds over etcd found that."""
    store = SlowStore()
    server = BookieServer(BookieConfig(tmp_path / "b", name="b"), store)
    registry = server._registry = AskedRegistry(store)
    await server.start()
    await server.stop()
    assert registry.waited_ms > store.session_timeout_ms
