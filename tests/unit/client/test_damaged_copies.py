"""Copies that are damaged on the disk: named as that by whoever reads them, and never taken for a "no such entry"."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.client.repairing.scrubbing import CopyVerdict, ReplicaCheck
from quire.core.answers import Answer
from quire.core.errors import ReadUnavailableError
from quire.core.ledger.stripes import bookie_stripes
from support.small_cluster import small_cluster

COUNT = 40


def payload(number: int) -> bytes:
    return b"<entry %d>" % number * 200


def spoil(directory: Path, number: int) -> int:
    """Change a byte of an entry in a bookie's segments; how often it was there."""
    found = 0
    for file in directory.rglob("*.seg"):
        data = bytearray(file.read_bytes())
        at = data.find(payload(number))
        if at >= 0:
            data[at] ^= 1
            file.write_bytes(data)
            found += 1
    return found


async def _damaged(tmp_path: Path) -> None:
    async with small_cluster(tmp_path, 3) as cluster:
        client = await cluster.client()
        async with await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=3) as writer:
            for number in range(COUNT):
                await writer.append(payload(number))
        directories = []
        for bookie in list(cluster.servers):
            directories.append(cluster.servers[bookie].config.directory)
            await cluster.start_bookie(await cluster.stop_bookie(bookie))
        assert [spoil(directory, 7) for directory in directories] == [1, 1, 1]
        reader = await client.open_ledger(writer.ledger_id)
        with pytest.raises(ReadUnavailableError, match="entry 7") as caught:
            [entry async for entry in reader.read(7, 7)]
        assert caught.value.message.count(Answer.DAMAGED.name) == 3
        report = await client.verify_ledger(writer.ledger_id)
        assert report.lost == [(7, 7)]
        assert {(hole.first, hole.last, hole.answer) for hole in report.holes} == {(7, 7, Answer.DAMAGED)}
        record = await client.ledger_metadata(writer.ledger_id)
        check = ReplicaCheck(client.bookies, record, 5000)
        for part in bookie_stripes(record):
            found = (await check.scrub(part)).findings
            assert [(one.first, one.last, one.verdict, one.detail) for one in found] == [
                (7, 7, CopyVerdict.CORRUPT, Answer.DAMAGED.name)
            ]


async def test_a_damaged_entry_is_told_from_an_outage(tmp_path: Path) -> None:
    await _damaged(tmp_path)
