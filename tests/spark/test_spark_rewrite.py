"""Many small ledgers become few: every row is what it was, and what changed meanwhile is refused."""

import asyncio

import pytest

from quire.core.log.commit import CommitBatch, Part
from quire.core.log.list import LogSettings
from quire.log.committing import LogCommitter
from quire.log.staging import StagedBy, stage
from quire.spark.jobs import rewrite
from quire.wire.batch import encode_batch

pytestmark = pytest.mark.spark

EACH = 25


async def stream(client, name, batches):
    """What a streaming sink leaves: a small ledger for each batch, committed in order."""
    log = client.log(name)
    await log.create()
    log_id = bytes.fromhex((await log.describe()).log_id)
    for start in range(0, batches, 50):
        numbers = range(start, min(start + 50, batches))
        items = await asyncio.gather(*(staged(client, log_id, batch) for batch in numbers))
        parts = (Part(log_id, tuple(items)),)
        await LogCommitter(client, [name], CommitBatch(parts, query_id="q", batch_id=start)).commit()


async def staged(client, log_id, batch):
    ledger = await stage(client, log_id, LogSettings(), StagedBy("q", batch))
    values = [b"record %d" % n for n in range(batch * EACH, batch * EACH + EACH)]
    times = [1_795_000_000_000 + n for n in range(EACH)]
    keys = [b"%d" % (n % 7) for n in range(EACH)]
    await ledger.append(encode_batch(values, base_ms=times[0], times_ms=times, keys=keys))
    return await ledger.close(EACH, times[0], times[-1])


def rows(spark, cluster, name):
    frame = spark.read.format("quire").option("cluster", cluster.uri).load(name)
    return [(r["offset"], bytes(r["key"]), bytes(r["value"]), r["timestamp"]) for r in frame.collect()]


def test_a_stream_of_small_ledgers_becomes_a_few_large_ones(spark, own_cluster, tmp_path):
    own_cluster.run(stream, "orders", 200)
    before = rows(spark, own_cluster, "orders")
    assert [row[0] for row in before] == list(range(200 * EACH))
    target = sum(len(value) + 60 for _, _, value, _ in before) // 4
    work = rewrite.plan(own_cluster.uri, "orders", target_bytes=target)
    told = []
    report = rewrite.run(spark, work, str(tmp_path / "table"), progress=lambda *done: told.append(done))
    assert (report.ledgers_before, report.replaced, report.records) == (200, 198, 198 * EACH)
    assert report.ledgers_after == work.items_after == 2 + report.made
    assert report.made <= 6
    assert told[-1] == (report.made, report.made)
    assert rows(spark, own_cluster, "orders") == before
    assert spark.read.parquet(str(tmp_path / "table")).count() == report.made
    assert rewrite.plan(own_cluster.uri, "orders", target_bytes=target).units == ()


def test_a_copy_whose_ledgers_were_truncated_meanwhile_is_refused_and_the_others_are_listed(
    spark, own_cluster, tmp_path
):
    own_cluster.run(stream, "orders", 40)
    [item, *_] = own_cluster.run(lambda client: client.log("orders").describe()).items
    work = rewrite.plan(own_cluster.uri, "orders", target_bytes=item.bytes * 20)
    assert len(work.units) == 2
    own_cluster.run(lambda client: client.log("orders").truncate(3 * EACH + 1))
    report = rewrite.run(spark, work, str(tmp_path / "table"))
    assert (report.made, len(report.refused)) == (1, 1)
    assert "plan again" in report.refused[0]
    assert [row[0] for row in rows(spark, own_cluster, "orders")] == list(range(3 * EACH + 1, 40 * EACH))
