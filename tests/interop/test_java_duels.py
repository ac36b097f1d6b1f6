"""Java writers whose adds carry more than most: each is fenced by our recovery, and what it was promised is there.

An add with a request context, or one that asks for a deferred sync, comes to a bookie as protobuf has it and not in the
layout of the others. Source: `docs/formats/bookkeeper-protocol.md`, "V3".
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import quire
from support.java_peers import PATIENT, PATIENT_CLIENT, PATIENT_JAVA, JavaPeers, our_bookies
from support.ledgers import SIZE, payload
from support.rounds import keep_figures, rounds

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(3600)]

DUELS = rounds(3, 200)
FENCED_CODES = {-101, -11, -12, -6}
"""LedgerFenced, or LedgerClosed: the add that Java is at when the refusal closes its handle is told so first. Once in some
hundred duels it is WriteException or NotEnoughBookies, although no bookie answered anything but OK and FENCED and none hung
up: Java then looks for another bookie before it looks at why."""
FIRST = 200
UNFORCED = "deferred sync"
"""Its answers promise nothing before it forces: when the fence stops it, Java may close the ledger where it forced last."""
WRITERS: dict[str, list[object]] = {
    "request context": ["--context", "trace=7", "--conf", "preserveMdcForTaskExecution=true"],
    UNFORCED: ["--deferred-sync"],
}


async def duel(java: Any, uri: str, ours: Any, writer: str) -> int:
    """One writer and one recovery; returns how many entries the writer was told of."""
    told, ledger_id, recovery, last = -1, -1, None, {}
    async for event in java.events(uri, "CRC32C", "write", 1_000_000, SIZE, *WRITERS[writer], *PATIENT_JAVA):
        if event["event"] == "created":
            ledger_id = int(event["ledger"])
        elif event["event"] == "added":
            told = max(told, event["entry"])
            if told >= FIRST and recovery is None:
                recovery = asyncio.create_task(ours.open_ledger(ledger_id, password=b"secret"))
        last = event
    assert last["event"] == "error", last
    assert recovery is not None, f"the writer ended before there was a recovery: {last}"
    assert last["code"] in FENCED_CODES, last
    reader = await recovery
    if writer != UNFORCED:
        assert reader.last_add_confirmed >= told
    found = [bytes(entry.payload) async for entry in reader.read()]
    assert found == [payload(number) for number in range(reader.last_add_confirmed + 1)]
    return told + 1


@pytest.mark.parametrize("writer", WRITERS)
async def test_a_java_writer_loses_every_duel(peers: JavaPeers, tmp_path: Path, writer: str) -> None:
    uri = peers.another_root()
    told = 0
    async with (
        our_bookies(uri, tmp_path, 3),
        peers.client() as java,
        quire.connect(uri + PATIENT, config=PATIENT_CLIENT) as ours,
    ):
        for _ in range(DUELS):
            told += await duel(java, uri, ours, writer)
    figures = {"duels": DUELS, "lost_by_the_writer": DUELS, "entries_told": told}
    if writer != UNFORCED:
        figures["entries_missing"] = 0  # each duel has asserted it
    keep_figures(f"duels_{writer.replace(' ', '_')}", figures, seed=None)
