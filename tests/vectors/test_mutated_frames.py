"""Recorded frames with bytes changed, cut, doubled and mixed: a bookie answers or hangs up, and goes on serving others."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import resource
from pathlib import Path

import pytest

from quire.core.ledger_metadata import DigestType
from quire.wire import v3
from quire.wire.entry import EntryDigest
from support.rounds import rounds
from support.small_cluster import small_cluster

FOLDER = Path(__file__).parent
SEED = 20261121
CONNECTIONS = rounds(400, 50_000)
FRAMES_MAX = 20
GROWTH_MIB_MAX = 64
LEDGER = 0x123456789ABCDE


def recorded() -> list[bytes]:
    probes = json.loads((FOLDER / "probes.json").read_text())["probes"]
    captures = json.loads((FOLDER / "captures.json").read_text())
    texts = [frame.get("hex", "") for each in (*probes, *captures) for frame in each["frames"]]
    frames = [bytes.fromhex(text) for text in texts if set(text) <= set("0123456789abcdef")]
    return [frame for frame in frames if 8 <= len(frame) <= 4096]


def mutated(frame: bytes, frames: list[bytes], chance: random.Random) -> bytes:
    data = bytearray(frame)
    match chance.randrange(6):
        case 0:
            for _ in range(chance.randrange(1, 6)):
                data[chance.randrange(4, len(data))] = chance.getrandbits(8)
        case 1:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        case 2:
            del data[chance.randrange(4, len(data)) :]
            data[:4] = (len(data) - 4).to_bytes(4, "big")
        case 3:
            other = chance.choice(frames)
            data[len(data) // 2 :] = other[len(other) // 2 :]
            data[:4] = (len(data) - 4).to_bytes(4, "big")
        case 4:
            data[:4] = chance.getrandbits(32).to_bytes(4, "big")
    return bytes(data)


def test_a_bookie_survives_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    asyncio.run(survive(tmp_path))
    lines = [record for record in caplog.records if "closing the connection" in record.getMessage()]
    assert len(lines) <= CONNECTIONS
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def survive(folder: Path) -> None:
    chance = random.Random(SEED)
    frames = recorded()
    async with small_cluster(folder, bookies=1) as cluster:
        port = next(iter(cluster.servers.values())).address[1]
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(CONNECTIONS):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            picked = [chance.choice(frames) for _ in range(chance.randrange(1, FRAMES_MAX))]
            writer.write(b"".join(mutated(frame, frames, chance) for frame in picked))
            writer.write_eof()
            try:
                async with asyncio.timeout(60):
                    while await reader.read(65536):
                        pass
            except ConnectionError:
                pass
            writer.close()
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        assert grown <= GROWTH_MIB_MAX, grown
        # The next good client; its ledger is none that the recorded frames name.
        entry = EntryDigest(DigestType.CRC32C, b"").seal_one(LEDGER, 0, -1, 0, b"")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.writelines(v3.encode_add(7, LEDGER, 0, b"k" * 20, entry))
        async with asyncio.timeout(60):
            size = int.from_bytes(await reader.readexactly(4), "big")
            answer = await reader.readexactly(size)
        writer.close()
        assert v3.take_add_answer(size.to_bytes(4, "big") + answer, 0) == (7, 0)
