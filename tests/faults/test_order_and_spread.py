"""Order and spread: a million appends complete in id order; striping gives every bookie its stripes; every triple works."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import quire
from faults.harness import cluster
from quire.client.access import LedgerAccess
from quire.core.answers import Answer
from quire.wire.run import count_ids

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1200)]
Record = Callable[[str, dict[str, Any]], None]
Rounds = Callable[[int, int], int]


async def in_order(directory: Path, count: int) -> dict[str, Any]:
    async with cluster(directory, 3) as local, quire.connect(local.uri) as client:
        async with await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2) as writer:
            done: list[int] = []
            out_of_order = 0

            def completed(future: Any) -> None:
                nonlocal out_of_order
                if future.result() != len(done):
                    out_of_order += 1
                done.append(future.result())

            for number in range(count):
                if number % 5000 == 0:
                    await writer.drain()
                writer.append_nowait(number.to_bytes(8, "big") * 12).add_done_callback(completed)
            last = await writer.append(b"last")
            assert last == count
        assert len(done) == count
        assert out_of_order == 0
        reader = await client.open_ledger(writer.ledger_id)
        number = 0
        async for entry in reader.read(0, count - 1):
            assert bytes(entry.payload[:8]) == number.to_bytes(8, "big")
            number += 1
        assert number == count
    return {"appends": count, "out_of_order": out_of_order}


async def test_a_million_appends_complete_in_order(tmp_path: Path, rounds: Rounds, record: Record) -> None:
    record("a_million_appends_complete_in_order", await in_order(tmp_path, rounds(1_000_000, 100_000)))


async def copies_by_bookie(client: Any, record: Any) -> dict[str, int]:
    """How many entries each bookie of a ledger's ensemble says it holds."""
    held = {}
    for bookie in record.last_fragment.ensemble:
        answer, intervals = await client.bookies.list_entries(bookie, LedgerAccess.of(record))
        assert answer is Answer.OK
        held[str(bookie)] = sum(count_ids(*interval[:4]) for interval in intervals)
    return held


async def spread(directory: Path, count: int) -> dict[str, Any]:
    async with cluster(directory, 7) as local, quire.connect(local.uri) as client:
        async with await client.create_ledger(ensemble_size=6, write_quorum=3, ack_quorum=2) as writer:
            for _ in range(count // 100):
                await writer.append_many([b"x" * 50] * 100)
        report = await client.verify_ledger(writer.ledger_id)
        assert report.entries == count
        held = await copies_by_bookie(client, writer.metadata)
        assert len(held) == 6
        assert all(abs(copies - count * 3 / 6) <= 1 for copies in held.values()), held

        triples = 0
        for ensemble_size in range(1, 8):
            for write_quorum in range(1, 9):
                for ack_quorum in range(9):
                    wanted = {
                        "ensemble_size": ensemble_size,
                        "write_quorum": write_quorum,
                        "ack_quorum": ack_quorum,
                    }
                    if ensemble_size >= write_quorum >= ack_quorum >= 1:
                        await one_triple(client, wanted)
                        triples += 1
                    else:
                        with pytest.raises(quire.InvalidQuorumError, match="must be at least"):
                            await client.create_ledger(**wanted)
    return {"entries": count, "copies": sorted(held.values()), "legal_triples": triples}


async def one_triple(client: Any, wanted: dict[str, int]) -> None:
    """Write, close, read back with these quorums."""
    async with await client.create_ledger(**wanted) as writer:
        await writer.append_many([b"%d" % number for number in range(30)])
        await writer.append(b"30")
    reader = await client.open_ledger(writer.ledger_id)
    found = [bytes(entry.payload) async for entry in reader.read(0, 30)]
    assert found == [b"%d" % number for number in range(31)], wanted
    report = await client.verify_ledger(writer.ledger_id)
    assert (report.holes, report.different) == ([], []), (wanted, report)
    await client.delete_ledger(writer.ledger_id)


async def test_every_bookie_holds_its_share_and_every_triple_works(
    tmp_path: Path, rounds: Rounds, record: Record
) -> None:
    record(
        "every_bookie_holds_its_share_and_every_triple_works", await spread(tmp_path, rounds(60_000, 6_000))
    )
