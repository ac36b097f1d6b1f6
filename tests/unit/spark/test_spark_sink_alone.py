"""The sink's classes without Spark: tasks and commits are called as Spark calls them, on a real cluster."""

from __future__ import annotations

import contextlib

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from quire.core.errors import StagedLedgerGoneError
from quire.log.collecting import LogCollector
from quire.spark import cluster as cluster_of_process
from quire.spark.options import SparkOptions, SparkUseError
from quire.spark.read_options import READ_OPTIONS
from quire.spark.sink import BatchSink
from quire.spark.write_options import WRITE_OPTIONS
from support.local_bookies import LocalBookies

SCHEMA = StructType(
    [
        StructField("value", StringType()),
        StructField("timestamp", TimestampType()),
        StructField("log", StringType()),
    ]
)


class Cluster(LocalBookies):
    """Three bookies and a metadata file; the sink's own client of this process asks."""

    def run(self, function, *args):
        return cluster_of_process.call(self.uri, function, *args)

    def values(self, log):
        async def read(client):
            return [record.value async for record in client.log(log).read()]

        return self.run(read)

    def stop(self):
        async def stop():
            await cluster_of_process._clients.pop((__import__("os").getpid(), self.uri)).close()
            for bookie in self.bookies:
                await bookie.stop()
            await self.store.close()

        self._background.run(stop)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    found = Cluster(tmp_path_factory.mktemp("sink"))
    with contextlib.ExitStack() as stack:
        stack.callback(found.stop)
        yield found


def sink(cluster, kind=BatchSink, schema=SCHEMA, *, overwrite=False, **options):
    given = SparkOptions(
        {"cluster": cluster.uri, "create": "true", **options}, (*READ_OPTIONS, *WRITE_OPTIONS)
    )
    return kind(given, schema, overwrite=overwrite)


def rows(*values, log="x"):
    columns = [list(values), [None] * len(values), [log] * len(values)]
    arrow = to_arrow_schema(SCHEMA, timezone="UTC")
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, arrow, strict=True)], schema=arrow
    )


@pytest.mark.parametrize("inline", ["0", "1m"])
def test_shares_stand_in_order_and_the_rest_is_gone(cluster, inline):
    name = f"orders-{inline}"
    writer = sink(cluster, log=name, inlineBytes=inline)
    assert isinstance(writer, BatchSink)
    messages = [writer.write(iter([rows(f"{n}a"), rows(f"{n}b")])) for n in range(3)]
    unused = writer.write(iter([rows("again")]))
    writer.commit([*messages, writer.write(iter([]))])
    assert cluster.values(name) == [f"{n}{part}".encode() for n in range(3) for part in "ab"]
    writer.abort([*messages, unused, None])
    assert cluster.values(name) == [f"{n}{part}".encode() for n in range(3) for part in "ab"]
    if inline == "0":
        with pytest.raises(StagedLedgerGoneError):
            writer.commit([unused])


def test_a_commit_that_cannot_write_its_rows_leaves_no_ledger(cluster):
    async def ledgers(client):
        return [ledger async for ledger in client.ledgers()]

    writer = sink(cluster, log="large", inlineBytes="1g")
    before = cluster.run(ledgers)
    told = [writer.write(iter([rows("fits")])), writer.write(iter([rows("x" * (9 << 20))]))]
    with pytest.raises(SparkUseError, match="is larger than an entry"):
        writer.commit(told)
    assert cluster.run(ledgers) == before


def test_tasks_that_found_unlike_logs_under_one_name_are_no_batch(cluster):
    async def recreate(client):
        await client.log("again").delete()
        await client.log("again").create()

    async def collect(client):
        return await LogCollector(client, grace_ms=0).collect()

    workers = [sink(cluster, inlineBytes="0") for _ in range(2)]
    told = [workers[0].write(iter([rows("late", log="again")]))]
    cluster.run(recreate)
    told.insert(0, workers[1].write(iter([rows("early", log="again")])))
    with pytest.raises(
        SparkUseError, match="log 'again' was deleted and created again while the tasks wrote"
    ):
        workers[1].commit(told)
    workers[1].abort(told)
    workers[1].commit([workers[1].write(iter([rows("once", log="again")]))])
    cluster.run(collect)
    assert cluster.values("again") == [b"once"]
