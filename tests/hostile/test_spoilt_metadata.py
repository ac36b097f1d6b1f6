"""Spoilt records in the metadata store: each is read as something possible, or refused by name; nothing else happens."""

from __future__ import annotations

import json
import random
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from quire.core.errors import CorruptMetadataError
from quire.core.ids import BookieId, EntryId, LedgerId, Term
from quire.core.ledger.metadata import DigestType, Fragment, LedgerMetadata, LedgerState
from quire.core.ledger.notes import AcceptedLoss, BookieHoles, EntryRange, LedgerNotes
from quire.core.ledger.terms import StreamMode, TermRange, Terms
from quire.metadata.bookies import AVAILABLE, COOKIES, BookieInfo, BookieRegistry
from quire.metadata.checked import seal
from quire.metadata.memory import MemorySpace, MemoryStore
from quire.metadata.records import OF_LEDGERS, RecordStore
from quire.metadata.sqlite.file import SqliteFile
from quire.metadata.sqlite.store import SqliteStore
from quire.wire import ledger_metadata, ledger_notes, store_records, stream_metadata
from quire.wire.ledger_notes import LOST_KEY, notes_of_record, record_with_notes
from support.rounds import rounds

VECTORS = Path(__file__).resolve().parents[1] / "vectors"
SEED = 20261121
SPOILT = rounds(1000, 200_000)
LEDGER = 4711


def spoilt(data: bytes, chance: random.Random) -> bytes:
    out = bytearray(data)
    match chance.randrange(6):
        case 0:
            del out[chance.randrange(len(out) + 1) :]
        case 1:
            for _ in range(chance.randrange(1, 5)):
                out[chance.randrange(len(out))] = chance.getrandbits(8)
        case 2:
            out[chance.randrange(len(out))] ^= 1 << chance.randrange(8)
        case 3:
            at = chance.randrange(len(out))
            out[at:at] = chance.randbytes(chance.randrange(1, 12))
        case 4:
            at = chance.randrange(len(out))
            del out[at : at + chance.randrange(1, 8)]
        case _:
            at = chance.randrange(len(out))
            out[at : at + 10] = b"\xff" * 9 + b"\x01"
    return bytes(out)


def records() -> list[bytes]:
    cases = json.loads((VECTORS / "ledger_metadata.json").read_text())["cases"]
    return [bytes.fromhex(case["serialized_hex"]) for case in cases]


# A backslash before a character that needs none: protobuf's parser of texts warns and takes it.
@pytest.mark.filterwarnings("ignore:invalid .*escape sequence:DeprecationWarning")
async def test_ledgers() -> None:
    chance, good = random.Random(SEED), records()

    async def work() -> int:
        refused = 0
        space = MemorySpace()
        store = MemoryStore(space)
        ledgers = RecordStore(store, OF_LEDGERS)
        version = await store.create(OF_LEDGERS.key(LEDGER), good[0])
        for _ in range(SPOILT):
            value = spoilt(chance.choice(good), chance)
            version = await store.put(OF_LEDGERS.key(LEDGER), value, version)
            told = ""
            try:
                record, _ = await ledgers.read(LEDGER)
                # The fragments of a long closed ledger are looked at when they are asked for.
                for fragment in record.fragments:
                    assert len(fragment.ensemble) == record.ensemble_size
                assert ledger_metadata.serialize(record)
            except CorruptMetadataError as error:
                refused, told = refused + 1, error.message
            assert not told or f"ledger {LEDGER}" in told
        await store.close()
        return refused

    assert await work() > SPOILT // 4


async def test_registrations_and_cookies() -> None:
    cases = json.loads((VECTORS / "bookie_service_info.json").read_text())["cases"]
    good = [bytes.fromhex(case["serialized_hex"]) for case in cases if case["serialized_hex"]]
    chance = random.Random(SEED)
    store = MemoryStore(MemorySpace())
    registry = BookieRegistry(store)
    await registry.register(BookieInfo("good:3181", "127.0.0.1", 3181))  # type: ignore[arg-type]
    version = await store.create(f"{AVAILABLE}spoilt:3181", b"")
    await registry.write_cookie("spoilt:3181", b"4\nspoilt")
    for _ in range(SPOILT // 10):
        value = spoilt(chance.choice(good), chance)
        version = await store.put(f"{AVAILABLE}spoilt:3181", value, version)
        # Whatever it says, it hides nobody else, and what can be connected to has a port.
        found = await registry.available()
        assert "good:3181" in found
        for info in found.values():
            assert 0 < info.port <= 65535
            assert info.host
        told = ""
        try:
            BookieInfo.parse("spoilt:3181", value, writable=True)
        except CorruptMetadataError as error:
            told = error.message
        assert not told or "spoilt:3181" in told
    assert (await store.get(COOKIES + "spoilt:3181")) is not None
    await store.close()


# --- what Quire alone writes ------------------------------------------------------------------------------------

BOOKIE = BookieId("b.k7f3q:3181")
PLACES = (EntryRange(0, 4095), EntryRange(5000, 2**40, 7, 0b1010101))
NOTES = LedgerNotes(
    (BookieHoles(BOOKIE, PLACES),), (AcceptedLoss(PLACES, 1_700_000_000_000, "operator", (BOOKIE,)),)
)
STREAM = LedgerMetadata(
    ledger_id=LedgerId(LEDGER),
    ensemble_size=2,
    write_quorum=2,
    ack_quorum=2,
    digest_type=DigestType.CRC32C,
    password=b"secret",
    state=LedgerState.OPEN,
    fragments=tuple(Fragment(EntryId(first), (BOOKIE, BookieId(f"c{first}"))) for first in (0, 10, 2**35)),
    custom=(("quire.token", bytes(8)),),
    terms=Terms(
        Term(9),
        (TermRange(Term(3), EntryId(0)), TermRange(Term(9), EntryId(2**35 + 1))),
        owner=2**64 - 3,
        mode=StreamMode.FENCING,
        start=EntryId(12),
        first_length=1200,
    ),
)
RECORDS = {
    "tombstone": (
        store_records.TOMBSTONE_CODEC.encode(
            store_records.Tombstone(LedgerId(LEDGER), 2**63, 1_700_000_000_000, 17)
        ),
        lambda value: store_records.TOMBSTONE_CODEC.encode(
            store_records.TOMBSTONE_CODEC.decode(value, LEDGER)
        ),
    ),
    "watermark": (
        store_records.WATERMARK_CODEC.encode(store_records.Watermark(BOOKIE, 2**40, "54d02935-bc30-42f5", 3)),
        lambda value: store_records.WATERMARK_CODEC.encode(
            store_records.WATERMARK_CODEC.decode(value, BOOKIE)
        ),
    ),
    "boot": (
        store_records.BOOT_CODEC.encode(
            store_records.StoredBoot(BOOKIE, 7, 2**40, 12345, 1_700_000_000_000_000_000, clean=True)
        ),
        lambda value: store_records.BOOT_CODEC.encode(store_records.BOOT_CODEC.decode(value, BOOKIE)),
    ),
    "passes": (
        store_records.PASSES_CODEC.encode(store_records.Passes(BOOKIE, 300)),
        lambda value: store_records.PASSES_CODEC.encode(store_records.PASSES_CODEC.decode(value, BOOKIE)),
    ),
    "notes": (
        ledger_notes.encode_notes(NOTES, LEDGER),
        lambda value: ledger_notes.encode_notes(ledger_notes.decode_notes(value, LEDGER), LEDGER),
    ),
    "stream": (
        stream_metadata.encode_stream(STREAM),
        lambda value: stream_metadata.encode_stream(stream_metadata.decode_stream(value, LEDGER)),
    ),
    "stream name": (
        stream_metadata.encode_stream_name(LEDGER),
        lambda value: stream_metadata.encode_stream_name(
            *stream_metadata.decode_stream_name(value, str(LEDGER))
        ),
    ),
}


@pytest.mark.parametrize("name", RECORDS)
def test_own_records(name: str) -> None:
    """Each is one that can be written back, or refused with the name of what it belongs to."""
    good, again = RECORDS[name]
    assert again(good) == good
    chance, refused = random.Random(SEED), 0
    for _ in range(SPOILT):
        told = ""
        try:
            again(spoilt(good, chance))
        except CorruptMetadataError as error:
            refused, told = refused + 1, error.message
        assert not told or str(LEDGER) in told or BOOKIE in told
    assert refused > SPOILT // 20


def test_notes_in_a_record() -> None:
    chance, refused = random.Random(SEED), 0
    parsed = (ledger_metadata.parse(value, LEDGER) for value in records())
    record = next(record for record in parsed if record.format_version == 3)
    noted = record_with_notes(record, NOTES)
    for _ in range(SPOILT):
        custom = tuple(
            (key, spoilt(value, chance) if key == LOST_KEY else value) for key, value in noted.custom
        )
        told = ""
        try:
            again = record_with_notes(record, notes_of_record(replace(noted, custom=custom)))
            assert len(dict(again.custom)[LOST_KEY]) < 1000
        except CorruptMetadataError as error:
            refused, told = refused + 1, error.message
        assert not told or f"notes of ledger {LEDGER}" in told
    assert refused > SPOILT // 4


async def test_every_flipped_bit_in_a_metadata_file(tmp_path: Path) -> None:
    """A value of a file, with any bit flipped, is an error that names its key: never another value."""
    path = tmp_path / "metadata.db"

    async def work(connection: sqlite3.Connection) -> None:
        async with await SqliteStore.open(path, create=True) as store:
            ledgers = RecordStore(store, OF_LEDGERS)
            for ledger_id, value in enumerate(records()[:4]):
                key = OF_LEDGERS.key(ledger_id)
                await store.create(key, value)
                stored = seal(key, value)
                for bit in range(8 * len(stored)):
                    flipped = bytearray(stored)
                    flipped[bit // 8] ^= 1 << bit % 8
                    connection.execute("UPDATE entries SET value = ? WHERE key = ?", (bytes(flipped), key))
                    with pytest.raises(CorruptMetadataError, match=f"{key} "):
                        await ledgers.read(ledger_id)
                # Under another key it is damage too, though nothing in it is.
                connection.execute("UPDATE entries SET value = ? WHERE key = ?", (seal("other", value), key))
                with pytest.raises(CorruptMetadataError, match=f"{key} "):
                    await ledgers.read(ledger_id)
                connection.execute("UPDATE entries SET value = ? WHERE key = ?", (stored, key))
                assert (await ledgers.page())[-1][1].value == value

    SqliteFile(path, create=True).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        await work(connection)
