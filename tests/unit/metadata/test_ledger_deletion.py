"""Deletions of ledgers: lost answers, records that change or cannot be read, tombstones that stand."""

import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from quire.core.errors import CorruptMetadataError, MetadataUnknownError, NoSuchLedgerError
from quire.core.ledger.metadata import TOKEN_KEY, DigestType, new_ledger, new_stream
from quire.core.ledger.notes import EntryRange
from quire.core.repair.under_replicated_marks import MarkReason, UnderReplicatedMark
from quire.metadata.keys import TOMBSTONES, missing_key, tombstone_key
from quire.metadata.memory import MemoryStore
from quire.metadata.records import ATTEMPTS_MAX, OF_LEDGERS, OF_STREAMS, AllRecords, RecordStore
from quire.metadata.repairs import RepairStore
from quire.metadata.sqlite.store import SqliteStore
from quire.metadata.store import Delete, Put, StoreAwayError, StoreBusyError, VersionConflictError
from quire.metadata.tombstones import end_tombstones, tombstones_after
from quire.wire.store_records import TOMBSTONE_CODEC, Tombstone
from support.records import ForgetfulStore, tombstone_of


def record_of(ledger_id, token=77):
    return new_ledger(
        ledger_id,
        ["a", "b", "c"],
        write_quorum=3,
        ack_quorum=2,
        digest_type=DigestType.CRC32C,
        password=b"secret",
        custom={TOKEN_KEY: token.to_bytes(8, "big")},
    )


@pytest.mark.parametrize("lost", [["before"], ["after"], ["before", "before", "after"]])
@pytest.mark.parametrize("named", [True, False])
async def test_a_lost_answer_is_settled_by_the_tombstone(lost, named):
    store = ForgetfulStore()
    ledgers = RecordStore(store, OF_LEDGERS)
    version = await ledgers.create(record_of(1))
    store.lose = list(lost)
    await ledgers.delete(1, version if named else None)
    assert await ledgers.list() == []
    assert (await tombstone_of(ledgers, 1))[0].record_version == version
    with pytest.raises(NoSuchLedgerError):
        await ledgers.delete(1)


async def test_a_lost_answer_about_a_ledger_that_java_deleted_meanwhile_is_no_deletion_of_ours():
    store = ForgetfulStore()
    ledgers = RecordStore(store, OF_LEDGERS)
    await ledgers.create(record_of(1))
    store.lose = ["before"]
    real_get = store.get

    async def get(key):
        store.get = real_get
        found = await real_get(key)
        store.between = [as_java_does]
        return found

    async def as_java_does():
        await MemoryStore.multi(store, [Delete(OF_LEDGERS.key(1))])

    store.get = get
    with pytest.raises(NoSuchLedgerError):
        await ledgers.delete(1)
    assert await tombstone_of(ledgers, 1) is None


async def test_answers_that_stay_lost_are_unknown():
    store = ForgetfulStore()
    ledgers = RecordStore(store, OF_LEDGERS)
    await ledgers.create(record_of(1))
    store.lose = ["before"] * ATTEMPTS_MAX
    with pytest.raises(MetadataUnknownError, match="ledger 1"):
        await ledgers.delete(1)
    assert await tombstone_of(ledgers, 1) is None


async def test_a_record_that_changes_meanwhile_goes_all_the_same_unless_its_version_was_named():
    store = ForgetfulStore()
    ledgers = RecordStore(store, OF_LEDGERS)

    async def change():
        found = await store.get(OF_LEDGERS.key(1))
        await MemoryStore.multi(store, [Put(OF_LEDGERS.key(1), found.value, found.version)])

    version = await ledgers.create(record_of(1))
    store.between = [change]
    with pytest.raises(VersionConflictError) as caught:
        await ledgers.delete(1, version)
    assert caught.value.ids == {"ledger_id": 1}
    store.between = [change] * ATTEMPTS_MAX
    with pytest.raises(StoreBusyError, match="ledger 1 was changed 5 times"):
        await ledgers.delete(1)
    assert await tombstone_of(ledgers, 1) is None
    store.between = [change] * (ATTEMPTS_MAX - 1)
    await ledgers.delete(1)
    assert await ledgers.list() == []


async def test_a_record_that_cannot_be_read_can_be_deleted_and_proves_nothing_about_entries():
    store = MemoryStore()
    ledgers = RecordStore(store, OF_LEDGERS)
    for number, value in ((1, b"junk"), (2, b"")):
        version = await store.create(OF_LEDGERS.key(number), value)
        await ledgers.delete(number)
        made, _ = await tombstone_of(ledgers, number)
        assert (made.token, made.record_version) == (0, version)
    odd = replace(record_of(3), custom=((TOKEN_KEY, b"\xff" * 9),))
    await ledgers.create(odd)
    await ledgers.delete(3)
    assert (await tombstone_of(ledgers, 3))[0].token == 0


async def test_values_damaged_on_the_disk_do_not_stop_a_deletion(tmp_path):
    path = tmp_path / "metadata.db"

    def spoil():
        with closing(sqlite3.connect(path)) as connection, connection:
            for key, value in connection.execute(
                "SELECT key, value FROM entries WHERE value NOT NULL"
            ).fetchall():
                spoilt = value[:-5] + bytes([value[-5] ^ 1]) + value[-4:]
                connection.execute("UPDATE entries SET value = ? WHERE key = ?", (spoilt, key))

    async with await SqliteStore.open(path, create=True) as store:
        ledgers = RecordStore(store, OF_LEDGERS)
        await ledgers.create(record_of(1))
        spoil()
        with pytest.raises(CorruptMetadataError, match=OF_LEDGERS.key(1)):
            await ledgers.read(1)
        await ledgers.delete(1)
        assert (await tombstone_of(ledgers, 1))[0].token == 0
        await ledgers.create(record_of(1))
        spoil()
        with pytest.raises(CorruptMetadataError, match=tombstone_key(1)):
            await tombstone_of(ledgers, 1)
        await ledgers.delete(1)
        await end_tombstones(store, [(1, (await tombstone_of(ledgers, 1))[1])])
        assert await store.list("") == []


async def test_pages_of_tombstones_leave_out_what_names_no_ledger():
    store = MemoryStore()
    ledgers = RecordStore(store, OF_LEDGERS)
    for name in ("!", "0000000000000000005x", "9" * 19, "x"):
        await store.create(TOMBSTONES + name, b"")
    for number in range(7):
        await store.create(tombstone_key(number), TOMBSTONE_CODEC.encode(Tombstone(number, 1, 2, 3)))
    await store.create(tombstone_key(8), b"junk")
    pages, after = [], None
    while page := await tombstones_after(store, after, limit=3):
        pages.append([number for number, _ in page])
        after = page[-1][0]
    assert pages == [[0, 1, 2], [3, 4, 5], [6, 8]]
    with pytest.raises(CorruptMetadataError, match="ledger 8"):
        await tombstone_of(ledgers, 8)
    assert await tombstone_of(ledgers, 7) is None


# --- under-replicated marks ----------------------------------------------------------------------------------------------


async def marked(store, ledger_id):
    """Marks of both kinds, and a look at what is there of them."""
    marks = AllRecords(store).repairs("a test")
    await marks.mark_missing(ledger_id, ["a"])
    await marks.mark(ledger_id, [UnderReplicatedMark(MarkReason.HOLE, "b", EntryRange(0, 9), 1, "", 0)])
    return marks


async def test_a_stream_goes_as_a_ledger_does_after_a_lost_answer_and_with_a_damaged_record():
    store = ForgetfulStore()
    streams = RecordStore(store, OF_STREAMS)
    for lost in ("before", "after"):
        version = await streams.create(new_stream(record_of(1), owner=1), "s")
        store.lose = [lost]
        await streams.delete(1, name="s")
        assert (await tombstone_of(streams, 1))[0].record_version == version
    await streams.create(new_stream(record_of(1), owner=1), "s")
    found = await store.get(OF_STREAMS.key(1))
    await store.put(OF_STREAMS.key(1), b"\xff", found.version)
    await streams.delete(1, name="s")
    assert await streams.names() == []
    assert (await tombstone_of(streams, 1))[0].token == 0


@pytest.mark.parametrize("kind", ["ledger", "stream"])
async def test_the_marks_of_what_is_deleted_go_with_it(kind):
    store = MemoryStore()
    marks = await marked(store, 1)
    if kind == "ledger":
        await RecordStore(store, OF_LEDGERS).create(record_of(1))
        await RecordStore(store, OF_LEDGERS).delete(1)
    else:
        await RecordStore(store, OF_STREAMS).create(new_stream(record_of(1), owner=1), "s")
        await RecordStore(store, OF_STREAMS).delete(1, name="s")
    assert await marks.marks_of(1) == (None, None)


async def test_a_mark_that_was_changed_meanwhile_or_cannot_be_read_stays():
    store = MemoryStore()
    marks = await marked(store, 1)
    before = await marks.marks_of(1)
    await marks.mark_missing(1, ["c"])
    await marks.end_marks(1, before)
    missing, own = await marks.marks_of(1)
    assert missing.mark.bookies == ("a", "c")
    assert own is None
    await store.create(missing_key(2), b"of a later version")
    await marks.end_marks_of_deleted(2)
    assert (await marks.marks_of(2)).missing is not None


async def test_a_deletion_does_not_depend_on_the_marks(monkeypatch):
    store = MemoryStore()
    await marked(store, 1)
    await RecordStore(store, OF_LEDGERS).create(record_of(1))

    async def away(*_):
        raise StoreAwayError("the store does not respond")

    monkeypatch.setattr(RepairStore, "marks_of", away)
    await RecordStore(store, OF_LEDGERS).delete(1)
    assert await store.get(OF_LEDGERS.key(1)) is None
