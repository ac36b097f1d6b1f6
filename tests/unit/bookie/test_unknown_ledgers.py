"""The first request for a ledger that a bookie does not know: it reads the record, and compares the key."""

from __future__ import annotations

import asyncio
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from quire.bookie.ledgers import record_reads, unknown_ledgers
from quire.bookie.ledgers.unknown_ledgers import RECORD_WAITS_MAX
from quire.bookie.server import BookieServer
from quire.client.access import LedgerAccess
from quire.core.answers import Answer
from quire.core.bookie.rules import RULES
from quire.core.ledger.metadata import DigestType
from quire.metadata.memory import MemoryStore
from quire.metadata.records import OF_LEDGERS, RecordStore
from quire.metadata.store import Put, StoreAwayError, Versioned
from quire.wire import native, native_bodies, native_hello
from quire.wire.entry import EntryDigest, master_key
from quire.wire.native import Flag, Kind
from quire.wire.native_bodies import ANY_TERM, LacItem
from quire.wire.run import checksum
from support.many_lacs import write_lacs
from support.records import put_record, record_of
from support.rounds import rounds
from support.small_cluster import small_cluster
from support.waiting import until_async
from support.wire_adds import PROTOCOLS, WireAdds
from unit.bookie.test_bookie_server import World, access
from unit.bookie.test_limbo_of_ledgers import SlowStore, reachable

NEW = 100
"""No test has a ledger of this id or of a higher one."""


class AwayStore(MemoryStore):
    """A store that answers nobody who asks for a record while `away`."""

    away = False

    async def get(self, key: str) -> Versioned | None:
        if self.away and key.startswith("ledgers/"):
            msg = "the store is away"
            raise StoreAwayError(msg)
        return await super().get(key)


async def over(at: World, store: MemoryStore) -> Any:
    """The bookie starts again, over another way to the same store."""
    await at.server.stop()
    at.server = BookieServer(at.config, store)
    await at.server.start()
    await reachable(at)
    return store


async def create(at: World, ledger_id: int = NEW, password: bytes = b"secret") -> LedgerAccess:
    await put_record(at.store, record_of(ledger_id, [at.bookie], password=password))
    return access(ledger_id, password=password, token=0)


async def fence(at: World, who: LedgerAccess) -> Answer:
    return (await at.client.read_lac(at.bookie, who, fence=True)).answer


def remembers(at: World, ledger_id: int = NEW) -> bool:
    ledgers = at.server.ledgers
    return ledger_id in ledgers._machines or at.server.storage.facts(ledger_id) is not None


# --- who may speak first --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["fence", "fencing read", "add", "recovery add", "lac", "lacs"])
async def test_an_id_that_was_never_given_is_refused_and_not_remembered(how: str, at: World) -> None:
    unknown = access(NEW, password=b"an unknown client's", token=1)
    assert await speak(at, unknown, how) is Answer.DELETED
    assert not remembers(at)
    # The id is given later: the ledger is its creator's.
    who = await create(at)
    assert await at.add(who, [0]) is Answer.OK
    assert await at.add(who, [1], lac=0) is Answer.OK


@pytest.mark.parametrize("how", ["fence", "fencing read", "add", "recovery add", "lac", "lacs"])
async def test_another_key_than_the_records_is_refused(how: str, at: World) -> None:
    who = await create(at)
    assert await speak(at, access(NEW, password=b"wrong", token=0), how) is Answer.UNAUTHORISED
    assert not remembers(at)
    assert await speak(at, who, how) is Answer.OK
    # One for each first request that was refused or taken; a hint is one of its own.
    assert at.server.record_reads.reads <= (4 if how == "lacs" else 2)


async def speak(at: World, who: LedgerAccess, how: str) -> Answer:
    if how == "fence":
        return await fence(at, who)
    if how == "fencing read":
        return (await at.read(who, 0, 0, fence=True, recovery=True)).answer
    if how == "lac":
        return (await at.client.write_lac(at.bookie, who, 0)).answer
    if how == "lacs":
        item = LacItem(who.ledger_id, who.token, 0, 0, int(who.digest.digest_type), who.key)
        assert await write_lacs(at.client, at.bookie, [item]) == (Answer.OK, []), "a hint needs no answer"
        return await fence(at, who)
    return await at.add(who, [0], recovery=how == "recovery add")


@pytest.mark.parametrize("rule", ["judge_unknown", "without_record"])
async def test_without_the_rule_an_unknown_client_stops_a_ledger(rule: str, at: World) -> None:
    """The two mutants: the explorer's bookies know their ledger's key from the beginning."""
    swapped: dict[str, Any] = {"judge_unknown": lambda *_: Answer.OK, "without_record": lambda **_: Answer.OK}
    await at.server.stop()
    at.server = BookieServer(at.config, at.store, rules=RULES.but(**{rule: swapped[rule]}))
    await at.server.start()
    await reachable(at)
    if rule == "judge_unknown":
        await create(at)
    assert await fence(at, access(NEW, password=b"an unknown client's", token=0)) is Answer.OK
    who = access(NEW, password=b"secret", token=0) if rule == "judge_unknown" else await create(at)
    assert await at.add(who, [0]) is Answer.UNAUTHORISED


async def test_another_token_than_the_records_is_refused(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, bookies=1) as cluster:
        client = await cluster.client()
        [bookie] = cluster.servers
        writer = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        true = LedgerAccess.of(writer.metadata)
        old = LedgerAccess(true.ledger_id, true.key, true.token ^ 1, true.digest)
        assert (await client.bookies.read_lac(bookie, old, fence=True)).answer is Answer.WRONG_TOKEN
        await writer.append(b"the id's new ledger")
        await writer.close()


@pytest.mark.parametrize("how", ["format 1", "not readable"])
async def test_without_a_key_in_the_record_the_first_one_counts(how: str, at: World) -> None:
    await put_record(at.store, record_of(NEW, [at.bookie]))
    if how == "not readable":
        _, version = await RecordStore(at.store, OF_LEDGERS).read(NEW)
        await at.store.multi([Put(OF_LEDGERS.key(NEW), b"no record", version)])
    assert await at.add(access(NEW), [0]) is Answer.OK
    assert await at.add(access(NEW, password=b"another"), [1]) is Answer.UNAUTHORISED


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_every_protocol_asks(protocol: str, tmp_path: Path) -> None:
    """WireAdds has the key of `pw`."""
    async with small_cluster(tmp_path, bookies=1) as cluster:
        [server] = cluster.servers.values()
        store = MemoryStore(cluster.space)
        async with WireAdds(server.address[1], protocol) as client:
            answers = []
            for password in (None, b"another", b"pw"):
                if password is not None:
                    await put_record(store, record_of(7, [server.bookie_id], password=password))
                client.writer.write(client.frame(0, 1000))
                answers.append((await client.answer())[0])
        # V2 and V3 have no word for a deleted ledger: whoever adds to one hears that it is fenced.
        gone = Answer.DELETED if protocol == "native" else Answer.FENCED
        assert answers == [gone, Answer.UNAUTHORISED, Answer.OK]


# --- what waits ---------------------------------------------------------------------------------------------------------


async def test_what_comes_meanwhile_waits_in_order_for_one_read(at: World) -> None:
    store: SlowStore = await over(at, SlowStore(at.store._space))
    store.gate = asyncio.Event()
    who = await create(at)
    asked = [asyncio.ensure_future(at.add(who, [0])), asyncio.ensure_future(at.add(who, [1]))]
    await until_async(lambda: at.server.ledgers.unknown_ledgers._bytes > 0)
    asked.append(asyncio.ensure_future(fence(at, who)))
    await waiting(at, 3)
    asked.append(asyncio.ensure_future(at.add(who, [2])))
    await waiting(at, 4)
    assert not any(task.done() for task in asked)
    store.gate.set()
    assert await asyncio.gather(*asked) == [Answer.OK, Answer.OK, Answer.OK, Answer.FENCED]
    assert at.server.record_reads.reads == 1
    assert at.server.ledgers.unknown_ledgers._bytes == 0
    assert (await at.client.info(at.bookie))[1]["pending_bytes"] == 0


async def waiting(at: World, count: int) -> None:
    await until_async(lambda: sum(map(len, at.server.ledgers.unknown_ledgers._waiting.values())) == count)


class SeeingStore(SlowStore):
    """A store that tells at once what it had when a test said so."""

    older: ClassVar[dict[str, Any]] = {}

    def see(self, key: str) -> None:
        self.older = dict([(key, self._space.rows[key])])

    def cached(self, key: str) -> Versioned | None:
        row = self.older.get(key)
        return Versioned(row.value, row.version, row.version) if row else None


async def test_nothing_waits_for_a_record_that_can_be_seen_at_once(at: World) -> None:
    store: SeeingStore = await over(at, SeeingStore(at.store._space))
    store.gate = asyncio.Event()
    who = await create(at)
    store.see(OF_LEDGERS.key(NEW))
    assert await at.add(who, [0]) is Answer.OK
    assert at.server.record_reads.reads == 0


async def test_an_older_record_refuses_nobody(at: World) -> None:
    """The id was given again meanwhile, with another password."""
    store: SeeingStore = await over(at, SeeingStore(at.store._space))
    store.gate = asyncio.Event()
    store.gate.set()
    await create(at, password=b"the first life's")
    store.see(OF_LEDGERS.key(NEW))
    who = await create(at)
    assert await at.add(who, [0]) is Answer.OK
    assert await fence(at, access(NEW, password=b"wrong", token=0)) is Answer.UNAUTHORISED
    assert at.server.record_reads.reads == 1


async def test_a_store_that_is_away_makes_no_negative_and_stops_no_ledger_that_is_known(
    at: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_reads, "READ_TIMEOUT_SECONDS", 0.1)
    store: AwayStore = await over(at, AwayStore(at.store._space))
    known = access(1)
    assert await at.add(known, [0]) is Answer.OK
    who = await create(at)
    store.away = True
    assert await fence(at, who) is Answer.UNKNOWN, "NO_LEDGER would count as fenced"
    assert (await at.read(who, 0, 0, fence=True, recovery=True)).answer is Answer.UNKNOWN
    assert await at.add(who, [0]) is Answer.READ_ONLY
    assert (await at.client.write_lac(at.bookie, who, 0)).answer is Answer.UNKNOWN
    assert not remembers(at)
    assert await at.add(known, [1], lac=0) is Answer.OK
    assert await fence(at, known) is Answer.OK
    store.away = False
    assert await at.add(who, [0]) is Answer.OK


async def test_a_store_that_went_back_proves_no_absence(at: World) -> None:
    at.server.collector._machine.stopped = "the counter of its passes went back"
    assert await fence(at, access(NEW)) is Answer.UNKNOWN
    assert await at.add(access(NEW), [0]) is Answer.READ_ONLY
    assert await at.add(await create(at, NEW + 1), [0]) is Answer.OK


async def test_no_more_fences_wait_than_there_is_room_for(at: World, monkeypatch: pytest.MonkeyPatch) -> None:
    store: SlowStore = await over(at, SlowStore(at.store._space))
    store.gate = asyncio.Event()
    whos = [await create(at, NEW + number) for number in range(3)]
    monkeypatch.setattr(unknown_ledgers, "LEDGERS_MAX", 2)
    fences = [asyncio.ensure_future(fence(at, who)) for who in whos[:2]]
    await waiting(at, 2)
    assert await fence(at, whos[2]) is Answer.UNKNOWN
    store.gate.set()
    assert await asyncio.gather(*fences) == [Answer.OK] * 2
    assert await fence(at, whos[2]) is Answer.OK


class LateStore(MemoryStore):
    """A store whose answers about records come once a gate is open; what they say is older."""

    gate: asyncio.Event

    async def get(self, key: str) -> Versioned | None:
        found = await super().get(key)
        if key.startswith("ledgers/"):
            await self.gate.wait()
        return found


@pytest.mark.parametrize("how", ["fence", "fencing read", "add", "recovery add", "lac"])
async def test_a_ledger_made_while_its_record_is_looked_for_is_not_a_deleted_one(how: str, at: World) -> None:
    """An unknown client's fence of an id that was about to be given stopped the ledger that got it."""
    store: LateStore = await over(at, LateStore(at.store._space))
    store.gate = asyncio.Event()
    unknown = asyncio.ensure_future(fence(at, access(NEW, password=b"an unknown client's")))
    await until_async(lambda: at.server.record_reads.reads == 1)
    who = await create(at)
    creator = asyncio.ensure_future(speak(at, who, how))
    await waiting(at, 2)
    store.gate.set()
    assert await unknown is Answer.DELETED, "what it asked about was not there when it asked"
    assert await creator is Answer.OK


@pytest.mark.parametrize("protocol", ["v2", "v3"])
async def test_an_id_that_comes_again_is_not_checked_by_the_digest_of_its_first_life(
    protocol: str, at: World
) -> None:
    """Without a digest type in their requests, such clients could not add to the ledger as long as the bookie ran."""
    async with WireAdds(at.server.address[1], protocol, NEW) as client:
        await create(at, password=b"not this client's")
        client.writer.write(client.frame(0, 400))
        assert await client.answer() == (Answer.UNAUTHORISED, 0)
        record = record_of(NEW, [at.bookie], password=b"pw")
        await put_record(at.store, replace(record, digest_type=DigestType.CRC32))
        client.digest = EntryDigest(DigestType.CRC32, b"pw")
        client.writer.write(client.frame(0, 400))
        assert await client.answer() == (Answer.OK, 0)
        client.writer.write(client.frame(1, 400))
        assert await client.answer() == (Answer.OK, 1)
        client.digest = EntryDigest(DigestType.CRC32C, b"pw")
        client.writer.write(client.frame(2, 400))
        assert await client.answer() == (Answer.ERROR, 2), "the digest is wrong"


async def test_a_bookie_that_stops_reads_for_no_request_that_still_comes(
    at: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connections end last: a read would be under way when it has stopped, and would write to a disk that is closed."""
    store: LateStore = await over(at, LateStore(at.store._space))
    store.gate = asyncio.Event()
    server, who = at.server, await create(at)
    _, writer = await connected(at)
    drain = server.storage.drain

    async def drained() -> None:
        writer.write(
            native.encode_request(Kind.READ_LAC, 1, 0, 0, flags=Flag.FENCE, ledger_id=NEW, key=who.key)
        )
        await waiting(at, 1)
        await drain()

    monkeypatch.setattr(server.storage, "drain", drained)
    await server.stop()
    assert not server.record_reads._readers
    writer.close()


def hostile(first: int, count: int) -> bytes:
    """Fences of ids that do not exist yet, by whoever has no password."""
    key = master_key(b"an unknown client's")
    return b"".join(
        native.encode_request(
            Kind.READ_LAC, number, 0, 0, flags=Flag.FENCE, ledger_id=first + number, key=key
        )
        for number in range(count)
    )


async def connected(at: World) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(*at.server.address)
    writer.write(native_hello.encode_hello(native_hello.Hello("", "")))
    head = await reader.readexactly(len(native_hello.MAGIC) + 4)
    await reader.readexactly(int.from_bytes(head[-4:], "big") + 4)
    return reader, writer


async def test_who_asks_for_too_many_waits_and_nobody_else(at: World) -> None:
    store: SlowStore = await over(at, SlowStore(at.store._space))
    store.gate = asyncio.Event()
    _, writer = await connected(at)
    writer.write(hostile(NEW, 10 * RECORD_WAITS_MAX))
    await waiting(at, RECORD_WAITS_MAX)
    who = await create(at, NEW - 1)
    add = asyncio.ensure_future(at.add(who, [0]))
    await waiting(at, RECORD_WAITS_MAX + 1)
    store.gate.set()
    assert await add is Answer.OK
    await until_async(lambda: at.server.record_reads.reads == 10 * RECORD_WAITS_MAX + 1)
    writer.close()


async def test_hostile_fences_stop_no_later_ledger(at: World) -> None:
    """They once were kept, durably: whoever was given one of these ids could not write to it."""
    count = rounds(2_000, 200_000)
    size = native.ANSWER_BYTES
    before_disk = at.server.storage.statistics()
    reader, writer = await connected(at)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for first in range(0, count, 1000):
        writer.write(hostile(NEW + first, 1000))
        answers = await reader.readexactly(1000 * size)
        told = {
            native.decode_answer(memoryview(answers)[at : at + size]).answer
            for at in range(0, 1000 * size, size)
        }
        assert told == {Answer.DELETED}
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    writer.close()
    assert after - before < 16 << 20
    assert len(at.server.ledgers._machines) == 0
    assert at.server.storage.statistics()["ledgers"] == before_disk["ledgers"]
    for ledger_id in range(NEW, NEW + count, max(1, count // 500)):
        assert await at.add(await create(at, ledger_id), [0]) is Answer.OK


# --- a read that names a term --------------------------------------------------------------------------------------------


async def test_a_read_with_a_term_of_a_ledger_that_has_none_is_refused(at: World) -> None:
    who = access(1)
    assert await at.add(who, [0]) is Answer.OK
    reader, writer = await connected(at)

    async def ask(term: int, flags: Flag = Flag.NONE) -> Answer:
        body = native_bodies.encode_body(native_bodies.ReadBody(0, 0, 1000, term))
        crc = checksum(body)
        writer.write(
            native.encode_request(Kind.READ, 1, len(body), crc, ledger_id=1, key=who.key, flags=flags) + body
        )
        head = await reader.readexactly(4)
        rest = await reader.readexactly(int.from_bytes(head, "big"))
        return native.decode_answer(memoryview(head + rest)).answer

    assert await ask(5) is Answer.BAD_REQUEST
    assert await ask(5, Flag.FENCE) is Answer.BAD_REQUEST
    assert await ask(ANY_TERM) is Answer.OK
    assert await ask(0) is Answer.OK
    assert await at.add(who, [1], lac=0) is Answer.OK, "a refused read fences nothing"
    writer.close()
