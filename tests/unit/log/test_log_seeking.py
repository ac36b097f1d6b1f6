"""The entry with a record is found by few looks where entries are alike, and found all the same where they are not."""

from __future__ import annotations

import random
from typing import Any

import pytest

from quire.core.log.list import LogSettings
from quire.log import ledgers
from quire.log.staging import StagedBy, stage
from quire.wire.batch import encode_batch
from support.log_cluster import World, numbers

CHANCE = random.Random(20261122)
SHAPES = {
    "alike": [10] * 64,
    "one large at the end": [1] * 63 + [500],
    "one large at the beginning": [500] + [1] * 63,
    "by chance": [CHANCE.choice([1, 2, 50, 300]) for _ in range(64)],
    "one": [7],
}


async def made(at: World, counts: list[int]) -> Any:
    """A reader of a ledger whose entries hold so many records."""
    ledger = await stage(at.client, bytes(16), LogSettings(), StagedBy("q", 0))
    before = 0
    for count in counts:
        await ledger.append(encode_batch(numbers(before, before + count), base_ms=5, records_before=before))
        before += count
    item = await ledger.close(before, 5, 5)
    return await at.client.open_ledger(item.ledger_id, recover=False)


@pytest.mark.parametrize("shape", SHAPES)
async def test_each_record_is_found_in_its_entry(
    at: World, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    counts = SHAPES[shape]
    total = sum(counts)
    looks: list[int] = []
    read_one = ledgers.read_one

    async def counted(reader: Any, entry_id: int) -> Any:
        looks[-1] += 1
        return await read_one(reader, entry_id)

    monkeypatch.setattr(ledgers, "read_one", counted)
    reader = await made(at, counts)
    holds = [entry for entry, count in enumerate(counts) for _ in range(count)]
    for records in (total, 0, total // 2, 3 * total):
        for record in {0, 1, total // 3, total // 2, total - 2, total - 1} & set(range(total)):
            looks.append(0)
            assert await ledgers.entry_holding(reader, record, records) == holds[record]
            assert looks[-1] <= 3 + len(counts).bit_length()
            if shape == "alike" and records == total:
                assert looks[-1] <= 1
    assert await ledgers.entry_holding(reader, total, total) == len(counts)
