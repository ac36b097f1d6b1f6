"""Many entries at once on Java bookies that take only so many: all are acknowledged, and every bookie has its copies.

A bookie in its default settings refuses what finds 10,000 adds waiting for one of its threads, of all clients together;
others are set to 1,000 and to 8, have another storage, or do not sync their journal.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

import quire
from support.java_peers import PATIENT, PATIENT_CLIENT, SMALL_MB, JavaPeers, own_peers
from support.rounds import COMMIT, RESULTS, keep_figures, rounds

pytestmark = [pytest.mark.interop, pytest.mark.timeout(3600)]

LEDGER = {"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2, "password": b"secret"}
SETTINGS = {
    "default": "",
    "dbledgerstorage": "ledgerStorageClass=org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage\n"
    "dbStorage_writeCacheMaxSizeMb=32\ndbStorage_readAheadCacheMaxSizeMb=32\n",
    "direct_io": "ledgerStorageClass=org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage\n"
    "dbStorage_writeCacheMaxSizeMb=32\ndbStorage_readAheadCacheMaxSizeMb=32\ndbStorage_directIOEntryLogger=true\n",
    "journal_unsynced": "journalSyncData=false\n",
    "limit_1000": "maxPendingAddRequestsPerThread=1000\nmaxPendingReadRequestsPerThread=1000\n",
    "limit_8": "maxPendingAddRequestsPerThread=8\nmaxPendingReadRequestsPerThread=8\n",
}
MEMORY_MB = {"direct_io": (384, 768), "dbledgerstorage": (128, 512)}
"""Outside its heap such a bookie has its caches and its answers, with direct I/O also a buffer for each reading thread."""
SIZES = {
    "60,000 of 100 B": (60_000, 100),
    "300,000 of 20 B": (300_000, 20),
    "400 of 64 KB": (400, 64 * 1024),
}
CLIENTS = (1, 3)
PROTOCOLS = ("v2", "v3")


def payloads(number: int, count: int, size: int) -> list[bytes]:
    return [b"%d:%d:" % (number, entry) + b"x" * (size - 16) for entry in range(count)]


async def one(uri: str, protocol: str, number: int, count: int, size: int) -> tuple[int, float]:
    """A ledger whose entries are all appended at once and acknowledged, without a hole; and the seconds."""
    config = replace(PATIENT_CLIENT, protocol=protocol, flush_ms=30_000)
    async with quire.connect(uri + PATIENT, config) as client:
        ledger = await client.create_ledger(**LEDGER)
        began = time.monotonic()
        await ledger.append_many(payloads(number, count, size))
        await ledger.close()
        seconds = time.monotonic() - began
        assert ledger.last_add_confirmed == count - 1
        assert not ledger.holes
        assert len(ledger.metadata.fragments) == 1
        return ledger.ledger_id, seconds


async def all_at_once(
    uri: str, protocol: str, clients: int, count: int, size: int, *, is_first: bool = True
) -> float:
    """The seconds of the slowest of these clients.

    Every copy is verified, over V2 in batches; of a first round all is read as well, over the writers' own protocol.
    """
    each = count // clients
    done = await asyncio.gather(*(one(uri, protocol, number, each, size) for number in range(clients)))
    async with (
        quire.connect(uri + PATIENT, replace(PATIENT_CLIENT, protocol="v2")) as verifier,
        quire.connect(uri + PATIENT, replace(PATIENT_CLIENT, protocol=protocol)) as client,
    ):
        for number, (ledger_id, _) in enumerate(done):
            report = await verifier.verify_ledger(ledger_id, password=b"secret")
            assert report.complete, report
            assert report.entries == each
            assert report.payload_bytes == sum(map(len, payloads(number, each, size)))
            if is_first:
                reader = await client.open_ledger(ledger_id, password=b"secret")
                found = [bytes(entry.payload) async for entry in reader.read()]
                assert found == payloads(number, each, size)
            await client.delete_ledger(ledger_id)
    return max(seconds for _, seconds in done)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_more_entries_at_once_than_a_java_bookie_takes(peers: JavaPeers, protocol: str) -> None:
    seconds = await all_at_once(peers.uri, protocol, 1, 15_000, 100)
    print(json.dumps({protocol: round(seconds, 2)}))


@pytest.fixture(scope="module", params=list(SETTINGS))
def set_up(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, JavaPeers]]:
    """A setting and bookies that have it, for all loads."""
    folder = tmp_path_factory.mktemp(request.param)
    with own_peers(
        folder, 3, SETTINGS[request.param], memory_mb=MEMORY_MB.get(request.param, SMALL_MB)
    ) as peers:
        yield request.param, peers
    shutil.rmtree(folder, ignore_errors=True)


def keep(settings: str, protocol: str, load: str, seconds: list[float]) -> None:
    """Keep the seconds of a load's rounds beside those of the other loads, and at which commit they were."""
    name = f"java_busy_{settings}_{protocol}"
    path = RESULTS / f"{name}.json"
    kept = json.loads(path.read_text()) if path.exists() else {"figures": {}}
    commits = kept.get("rows") or dict.fromkeys(kept["figures"], kept.get("commit"))
    test = f'tests/interop/test_java_busy.py -k "{settings} and {protocol}"'
    keep_figures(name, kept["figures"] | {load: seconds}, seed=None, rows=commits | {load: COMMIT}, test=test)


@pytest.mark.slow
@pytest.mark.parametrize("clients", CLIENTS)
@pytest.mark.parametrize("size", list(SIZES))
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_every_size_with_every_setting(
    set_up: tuple[str, JavaPeers], protocol: str, size: str, clients: int
) -> None:
    settings, peers = set_up
    row: list[float] = []
    for number in range(rounds(1, 5)):
        at_once = all_at_once(peers.uri, protocol, clients, *SIZES[size], is_first=not number)
        row.append(round(await at_once, 1))
    keep(settings, protocol, f"{size}, {clients} client{'s' * (clients > 1)}", row)
