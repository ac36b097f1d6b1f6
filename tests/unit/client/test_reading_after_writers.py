"""What a writer acknowledged last and nobody was told: a reader that recovers finds it, one that does not says less."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quire.client.access import LedgerAccess
from quire.client.client import Client
from quire.client.config import ClientConfig
from quire.client.reading.reader import LedgerReader
from quire.core.errors import LedgerFencedError, MisuseError
from support.log_cluster import World
from support.small_cluster import SmallCluster

UNTOLD = ClientConfig(lac_after_ms=3_600_000, explicit_lac_after_ms=3_600_000)


@pytest.mark.parametrize("digest", ["crc32c", "mac"])
async def test_a_read_that_recovers_finds_what_an_abandoned_writer_acknowledged(
    digest: str, cluster: SmallCluster
) -> None:
    writer = await (await cluster.client(UNTOLD)).create_ledger(digest=digest)
    for number in range(3):
        assert await writer.append(b"%d" % number) == number
    await writer.abandon()
    reader = await (await cluster.client()).open_ledger(writer.ledger_id, recover=False)
    assert [bytes(entry.payload) async for entry in reader.read()] == [b"0", b"1"]
    assert not reader.closed
    assert [bytes(entry.payload) async for entry in reader.read(recover=True)] == [b"0", b"1", b"2"]
    assert reader.closed
    assert [entry.entry_id async for entry in reader.read(1, 2, recover=True)] == [1, 2]


async def test_a_read_that_recovers_ends_a_writer_that_lives(cluster: SmallCluster) -> None:
    writer = await (await cluster.client()).create_ledger()
    await writer.append(b"0")
    reader = await (await cluster.client()).open_ledger(writer.ledger_id, recover=False)
    assert [bytes(entry.payload) async for entry in reader.read(recover=True)] == [b"0"]
    with pytest.raises(LedgerFencedError):
        await writer.append(b"1")


async def test_a_reader_that_changes_nothing_refuses_to_recover(client: Client) -> None:
    writer = await client.create_ledger()
    record, version = await client.records.ledgers.read(writer.ledger_id)
    reader = LedgerReader(record, version, LedgerAccess.of(record), client.context)
    with pytest.raises(MisuseError, match="recover_ledger"):
        _ = [entry async for entry in reader.read(recover=True)]
    await writer.close()


async def test_a_read_of_a_log_that_recovers_finds_it_too(at: World) -> None:
    log = await at.made()
    at.client.context = replace(at.client.context, config=UNTOLD)
    writer = await log.open_writer()
    for number in range(3):
        assert await writer.append(b"%d" % number) == number
    await writer.abandon()
    assert len([record async for record in log.read()]) < 3
    assert [record.value async for record in log.read(recover=True)] == [b"0", b"1", b"2"]
    async with await log.open_writer() as again:
        assert await again.append(b"3") == 3
    assert [record.offset async for record in log.read()] == [0, 1, 2, 3]
