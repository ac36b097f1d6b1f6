"""Entries of 64 KB on Java bookies with direct I/O: what is sent is what is stored, and what is read back.

A copy with a bad digest was seen there once. Each copy's checksum is taken before and after the socket to the bookie, and
before and after the one back; so a copy that changes names the place.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import pytest

import quire
from interop.test_java_busy import LEDGER, MEMORY_MB, PROTOCOLS, SETTINGS
from support.checksums import ARRIVED, RECEIVED, RETURNED, SENT, with_checksums
from support.java_peers import PATIENT, PATIENT_CLIENT, own_peers
from support.rounds import keep_figures, rounds

pytestmark = [pytest.mark.interop, pytest.mark.timeout(3600)]

ENTRIES = 8
SIZE = 64 * 1024
AT_ONCE = 50
"""Ledgers: 400 entries are on their way at one time."""


def payloads(ledger_id: int) -> list[bytes]:
    """No two pages of them are alike."""
    return [random.Random(ENTRIES * ledger_id + number).randbytes(SIZE) for number in range(ENTRIES)]


async def write(client: quire.Client) -> int:
    ledger = await client.create_ledger(**LEDGER)
    await ledger.append_many(payloads(ledger.ledger_id))
    await ledger.close()
    assert not ledger.holes
    return ledger.ledger_id


async def verify(client: quire.Client, ledger_id: int) -> list[object]:
    """What is wrong with a ledger's copies."""
    report = await client.verify_ledger(ledger_id, password=b"secret")
    assert report.entries == ENTRIES
    return [*report.holes, *report.different]


@pytest.mark.slow
async def test_every_copy_is_read_back_as_it_was_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verified as soon as they are closed, out of the bookies' memory, and all once more, from their disks."""
    wanted = rounds(100, 2_000)
    wrong: list[object] = []
    with own_peers(tmp_path / "java", 3, SETTINGS["direct_io"], memory_mb=MEMORY_MB["direct_io"]) as peers:
        async with with_checksums(peers.bookies(), monkeypatch) as checksums:
            written: list[tuple[str, int]] = []
            clients = [
                await quire.connect(peers.uri + PATIENT, replace(PATIENT_CLIENT, protocol=protocol))
                for protocol in PROTOCOLS
            ]
            of = dict(zip(PROTOCOLS, clients, strict=True))
            other = dict(zip(PROTOCOLS, reversed(clients), strict=True))
            for number in range(0, wanted, AT_ONCE):
                protocol = PROTOCOLS[number // AT_ONCE % 2]
                ids = await asyncio.gather(*(write(of[protocol]) for _ in range(AT_ONCE)))
                written += [(protocol, ledger_id) for ledger_id in ids]
                for found in await asyncio.gather(*(verify(of[protocol], each) for each in ids)):
                    wrong.extend(found)
            for protocol, ledger_id in written:
                wrong.extend(await verify(other[protocol], ledger_id))
            for client in clients:
                await client.close()
            figures = {
                "ledgers": len(written),
                "entries of 64 KB": len(written) * ENTRIES,
                "checksums": dict(checksums.seen),
                "changed on the way to a bookie": checksums.changed.get((SENT, ARRIVED), []),
                "changed in a bookie": checksums.changed.get((ARRIVED, RETURNED), []),
                "changed on the way back": checksums.changed.get((RETURNED, RECEIVED), []),
                "copies missing or with a bad digest": [str(each) for each in wrong],
            }
    counted = {name: len(what) if isinstance(what, list) else what for name, what in figures.items()}
    keep_figures("java_direct_io", counted, seed=None)
    assert not any(isinstance(what, list) and what for what in figures.values()), figures
    copies = 3 * ENTRIES * wanted
    assert figures["checksums"] == {SENT: copies, ARRIVED: copies, RETURNED: 2 * copies, RECEIVED: 2 * copies}
