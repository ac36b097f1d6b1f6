"""A bookie with very many small ledgers takes adds, seals, reads footers again and collects; no callback holds its loop.

What is measured is CPU time of the bookie's own thread, so that it does not matter what else the machine does. It is judged
in `make full` only.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from quire.client.access import LedgerAccess
from quire.client.bookies.bookies import AddRequester, BookieClient
from quire.core.answers import Answer
from quire.core.ids import BookieId, LedgerId
from quire.core.ledger.metadata import DigestType, new_ledger
from quire.metadata.bookies import BookieRegistry
from quire.metadata.connect import open_store
from quire.metadata.records import OF_LEDGERS
from quire.metadata.store import Create, Delete, MetadataStore, Op
from quire.wire import ledger_metadata
from quire.wire.entry import EntryDigest, master_key
from quire.wire.requests import AddRun
from quire.wire.run import encode_run
from support.rounds import FULL, keep_figures, rounds

ROOT = Path(__file__).resolve().parents[2]
LEDGERS = rounds(3_000, 300_000)
SEGMENT_BYTES = rounds(1 << 20, 128 << 20)
KEPT = LEDGERS // 10
CALLBACK_MS = 50
AT_ONCE = 2000
DIGEST = EntryDigest(DigestType.CRC32C, b"")
KEY = master_key(b"")

pytestmark = pytest.mark.faults


class Adds(AddRequester):
    """The answers to adds."""

    def __init__(self) -> None:
        self.answers: Counter[Answer] = Counter()
        self.under_way = 0
        self.fewer = asyncio.Event()

    def add_answered(self, tag: object, answer: Answer) -> None:
        self.under_way -= 1
        self.answers[answer] += 1
        self.fewer.set()

    async def until(self, under_way: int) -> None:
        while self.under_way > under_way:
            self.fewer.clear()
            await self.fewer.wait()


class Bookie:
    """A bookie's process, a client, and the store that both use."""

    def __init__(self, store: MetadataStore, client: BookieClient, name: BookieId) -> None:
        self.store, self.client, self.name = store, client, name
        self.phases: list[tuple[float, str]] = []

    def begin(self, phase: str) -> None:
        self.phases.append((time.time(), phase))

    async def info(self) -> dict[str, Any]:
        answer, info = await self.client.info(self.name, timeout_ms=60_000)
        assert answer is Answer.OK
        return info

    async def passes(self, count: int) -> dict[str, Any]:
        """Wait until the collector has made more passes."""
        info = await self.info()
        wanted = info["collector"]["passes"] + count
        async with asyncio.timeout(600):
            while info["collector"]["passes"] < wanted:
                await asyncio.sleep(0.1)
                info = await self.info()
        return info

    async def write(self, ids: range, entry_id: int) -> None:
        """One entry into each of these ledgers."""
        adds = Adds()
        for ledger_id in ids:
            head = DIGEST.seal_one(ledger_id, entry_id, entry_id - 1, 1, b"x" * 20)
            body = bytes(
                encode_run(
                    ledger_id, entry_id, entry_id, [head, b"x" * 20], [len(head) + 20],
                    digest_type=int(DigestType.CRC32C), period=1, stripes=1,
                )
            )  # fmt: skip
            access = LedgerAccess(LedgerId(ledger_id), KEY, 0, DIGEST)
            adds.under_way += 1
            self.client.add_run(
                self.name,
                AddRun(access, body, crc32c(body), entry_id - 1, recovery=False),
                adds,
                None,
                timeout_ms=60_000,
            )
            if adds.under_way >= 2 * AT_ONCE:
                await asyncio.sleep(0)
                await adds.until(AT_ONCE)
        await adds.until(0)
        assert adds.answers == {Answer.OK: len(ids)}

    async def change(self, ops: list[Op]) -> None:
        for at in range(0, len(ops), 100):
            await self.store.multi(ops[at : at + 100])

    def record(self, ledger_id: int) -> Create:
        made = new_ledger(
            LedgerId(ledger_id), [self.name], write_quorum=1, ack_quorum=1, digest_type=DigestType.CRC32C,
            password=b"",
        )  # fmt: skip
        return Create(OF_LEDGERS.key(ledger_id), ledger_metadata.serialize(made))


async def life(bookie: Bookie) -> dict[str, Any]:
    """All that a bookie does with its ledgers."""
    everything = range(LEDGERS)
    await bookie.change([bookie.record(ledger_id) for ledger_id in everything])
    bookie.begin("adds")
    await bookie.write(everything, 0)
    bookie.begin("passes")
    await bookie.passes(2)
    bookie.begin("more adds")
    await bookie.write(everything, 1)
    await bookie.passes(2)
    await bookie.change([Delete(OF_LEDGERS.key(ledger_id)) for ledger_id in everything[:-KEPT]])
    bookie.begin("deletions")
    said = await bookie.passes(3)
    assert said["collector"]["dropped"] == LEDGERS - KEPT
    bookie.begin("adds to the rest")
    await bookie.write(everything[-KEPT:], 2)
    said = await bookie.passes(2)
    assert said["storage"]["ledgers"] == KEPT
    assert said["conditions"] == []
    return said


@pytest.mark.timeout(3600)
async def test_many_small_ledgers_hold_nobody_up(tmp_path: Path) -> None:
    figures_file = tmp_path / "figures.json"
    uri = f"sqlite:{tmp_path / 'metadata.db'}"
    store = await open_store(uri, create=True)
    words = [str(figures_file), str(SEGMENT_BYTES), "--dir", str(tmp_path / "b1"), "--cluster", uri]
    words += ["--name", "b1", "--collect-every", "0.2", "--tombstones-for", "0"]
    with (tmp_path / "errors").open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "support.timed_bookie", *words,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=errors,
            env=os.environ | {"PYTHONPATH": f"{ROOT / 'tests'}:{ROOT / 'src'}"},
        )  # fmt: skip
    assert process.stdout is not None
    assert process.stdin is not None
    ready = json.loads(await process.stdout.readline())
    client = BookieClient(BookieRegistry(store), store.instance_id)
    try:
        await client.start()
        bookie = Bookie(store, client, BookieId(ready["id"]))
        said = await life(bookie)
    finally:
        await client.close()
        await store.close()
        process.stdin.close()
        await process.wait()
    assert process.returncode == 0, (tmp_path / "errors").read_text()
    found = json.loads(figures_file.read_text())
    phases: dict[str, float] = {}
    for ms, at, _ in found["longest"]:
        phase = [name for began, name in bookie.phases if began <= at][-1:] or ["start"]
        phases[phase[0]] = max(ms, phases.get(phase[0], 0))
    phases.pop("start", None)  # nobody is served yet
    told = (tmp_path / "errors").read_text()
    dropped = [line for line in told.splitlines() if "dropped ledger" in line]
    assert 0 < len(dropped) <= 20 * said["collector"]["passes"]
    keep_figures(
        "many_small_ledgers",
        {
            "ledgers": LEDGERS,
            "segment_bytes": SEGMENT_BYTES,
            "bytes_written": said["storage"]["bytes_written"],
            "callbacks": found["callbacks"],
            "longest_callback_ms": max(phases.values()),
            "longest_in_each_phase_ms": phases,
            "longest_collection_of_garbage_ms": found["longest_collection"],
        },
        seed=None,
    )
    if FULL:
        assert max(phases.values()) <= CALLBACK_MS, found["longest"][:10]
