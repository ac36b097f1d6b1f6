"""Spoilt records in the metadata store: each is read as something possible, or refused by name; nothing else happens."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path

import pytest

from quire.core.errors import CorruptMetadataError
from quire.metadata.bookies import AVAILABLE, COOKIES, BookieInfo, BookieRegistry
from quire.metadata.ledgers import LedgerStore, ledger_key
from quire.metadata.memory import MemorySpace, MemoryStore
from quire.wire import ledger_metadata
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
def test_ledgers() -> None:
    chance, good = random.Random(SEED), records()

    async def work() -> int:
        refused = 0
        space = MemorySpace()
        store = MemoryStore(space)
        ledgers = LedgerStore(store)
        version = await store.create(ledger_key(LEDGER), good[0])
        for _ in range(SPOILT):
            value = spoilt(chance.choice(good), chance)
            version = await store.put(ledger_key(LEDGER), value, version)
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

    assert asyncio.run(work()) > SPOILT // 4


def test_registrations_and_cookies() -> None:
    cases = json.loads((VECTORS / "bookie_service_info.json").read_text())["cases"]
    good = [bytes.fromhex(case["serialized_hex"]) for case in cases if case["serialized_hex"]]
    chance = random.Random(SEED)

    async def work() -> None:
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

    asyncio.run(work())
