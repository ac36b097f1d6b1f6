"""Few descriptors: a crowd that only says hello, and a process that may have 64 files open, stop neither adds nor reads."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import quire
from quire.client.config import ClientConfig
from quire.wire.native_hello import Hello, encode_hello
from support.rounds import FULL

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]
Record = Callable[[str, dict[str, Any]], None]
Rounds = Callable[[int, int], int]
PROGRAM = Path(__file__).with_name("short_bookie.py")
ONE = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}
OVER_THE_WIRE = ClientConfig(short_circuit_reads=False, run_bytes_max=256 * 1024)
"""A run must fit a segment, which is short here."""
ENTRY = bytes(range(256)) * 256
"""64 KiB: sixteen of them fill a segment."""
WINDOW = 16
FEW, SEGMENTS = 64, 55
SHARE_AT_LEAST = 0.8


@contextlib.contextmanager
def short_bookie(directory: Path, descriptors: int) -> Iterator[tuple[str, int]]:
    """A bookie in a process of its own: its cluster, and its port."""
    uri = f"sqlite:{directory / 'metadata.db'}"
    command = [sys.executable, str(PROGRAM), str(directory / "short"), uri, str(descriptors)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield uri, int(process.stdout.readline())
        finally:
            process.stdin.close()
            process.wait(60)
    assert process.returncode == 0


async def write(uri: str, entries: int) -> tuple[int, float]:
    """A ledger with so many entries, and how many seconds it took to write them."""
    async with quire.connect(uri, config=OVER_THE_WIRE) as client:
        ledger = await client.create_ledger(**ONE)
        began = time.perf_counter()
        for _ in range(entries // WINDOW):
            await [ledger.append_nowait(ENTRY) for _ in range(WINDOW)][-1]
        taken = time.perf_counter() - began
        await ledger.close()
        return ledger.ledger_id, taken


async def count(uri: str, ledger_id: int) -> int:
    """How many entries of a ledger are read, and are right."""
    async with (
        quire.connect(uri, config=OVER_THE_WIRE) as client,
        await client.open_ledger(ledger_id) as reader,
    ):
        return sum(
            [bytes(entry.payload) == ENTRY async for entry in reader.read(0, reader.last_add_confirmed)]
        )


async def say_hello(port: int) -> asyncio.StreamWriter:
    """One of the crowd: it says hello, hears the answer, and asks nothing."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(encode_hello(Hello("", "")))
    with contextlib.suppress(ConnectionError):
        await reader.read(1)
    return writer


async def test_a_crowd_that_only_says_hello(tmp_path: Path, record: Record, rounds: Rounds) -> None:
    descriptors, crowd, entries = rounds(1024, 128), rounds(1050, 160), rounds(1600, 48)

    async def work(uri: str, port: int) -> tuple[float, float]:
        _, alone = await write(uri, entries)
        connections = [await say_hello(port) for _ in range(crowd)]
        try:
            ledger_id, beside = await write(uri, entries)
            assert await count(uri, ledger_id) == entries
        finally:
            for connection in connections:
                connection.close()
        return alone, beside

    with short_bookie(tmp_path, descriptors) as (uri, port):
        alone, beside = await work(uri, port)
    share = round(alone / beside, 2)
    record("crowd_of_hellos", {"descriptors": descriptors, "crowd": crowd, "share_of_a_good_client": share})
    assert not FULL or share >= SHARE_AT_LEAST


async def test_every_entry_of_more_segments_than_files(tmp_path: Path, record: Record) -> None:
    entries = SEGMENTS * 16
    with short_bookie(tmp_path, FEW) as (uri, _):
        ledger_id, _ = await write(uri, entries)
    with short_bookie(tmp_path, FEW) as (uri, _):  # nothing is in memory now
        segments = len(list((tmp_path / "short").rglob("*.seg")))
        read = await count(uri, ledger_id)
    record("few_descriptors", {"descriptors": FEW, "segments": segments, "entries": entries, "read": read})
    assert segments >= SEGMENTS
    assert read == entries
