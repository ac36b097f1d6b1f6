"""A real Spark over real bookies: what is proven lost is skipped entry by entry, an outage is an error, never fewer rows."""

import contextlib

import pytest
from pyspark.errors import PythonException, StreamingQueryException

pytestmark = pytest.mark.spark

T0 = 1_795_000_000_000
ENTRIES, RECORDS = 40, 25
DAMAGED = 17
COUNT = ENTRIES * RECORDS
LEFT = [offset for offset in range(COUNT) if offset // RECORDS != DAMAGED]


def value(offset):
    return b"<record %d>" % offset * 40


async def fill(client):
    log = client.log("orders")
    await log.create()
    async with await log.open_writer() as writer:
        for first in range(0, COUNT, RECORDS):  # one entry each, since each is waited for
            offsets = range(first, first + RECORDS)
            await writer.append_many([value(n) for n in offsets], timestamps_ms=[T0 + n for n in offsets])


@pytest.fixture
def orders(own_cluster):
    """A log of one ledger with forty entries, one of which is damaged on every bookie."""

    def spoil(directories):
        for directory in directories:
            for file in directory.rglob("*.seg"):
                data = bytearray(file.read_bytes())
                if (at := data.find(value(DAMAGED * RECORDS))) >= 0:
                    data[at] ^= 1
                    file.write_bytes(data)

    own_cluster.run(fill)
    own_cluster.with_bookies_stopped(spoil)
    return own_cluster


def options(cluster, **more):
    return {"cluster": cluster.uri, **more}


def test_one_damaged_entry_and_then_an_outage(spark, orders, tmp_path):
    def frame(**more):
        return spark.read.format("quire").options(**options(orders, **more)).load("orders")

    def stream(**more):
        """Read what is there in micro-batches whose borders lie inside entries."""
        found = []
        query = (
            spark.readStream.format("quire")
            .options(**options(orders, maxRecordsPerTrigger=430, **more))
            .schema("offset bigint")
            .load("orders")
            .writeStream.foreachBatch(lambda rows, _: found.extend(row.offset for row in rows.collect()))
            .option("checkpointLocation", str(tmp_path / str(more)))
            .trigger(availableNow=True)
            .start()
        )
        with contextlib.closing(_Stopping(query)):
            query.awaitTermination()
        return found

    with pytest.raises(PythonException) as caught:
        frame().count()
    assert "quire: log 'orders': entry 17 of ledger " in str(caught.value)
    assert "offsets 425 to 449, 25 records of this read. failOnDataLoss=false skips them." in str(
        caught.value
    )
    rows = frame(failOnDataLoss=False).select("offset", "value").collect()
    assert [(row.offset, bytes(row.value)) for row in rows] == [(offset, value(offset)) for offset in LEFT]
    assert sorted(stream(failOnDataLoss=False)) == LEFT
    # Then nobody answers. There is nothing to step over, and nothing to count.
    for index in (2, 1, 0):
        orders.stop_bookie(index)
    with pytest.raises(
        PythonException, match="It is not proven lost, so failOnDataLoss=false does not skip it"
    ):
        frame(failOnDataLoss=False).count()


@pytest.mark.slow
def test_a_stream_that_meets_an_outage_goes_on_where_it_was(spark, own_cluster, tmp_path):
    own_cluster.run(fill)
    found = {}

    def collect(rows, batch):
        found[batch] = [row.offset for row in rows.collect()]

    def drain():
        query = (
            spark.readStream.format("quire")
            .options(**options(own_cluster, maxRecordsPerTrigger=430, failOnDataLoss=False))
            .schema("offset bigint")
            .load("orders")
            .writeStream.foreachBatch(collect)
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        with contextlib.closing(_Stopping(query)):
            query.awaitTermination()

    kept = [bookie.config for bookie in own_cluster.bookies]
    for index in (2, 1, 0):
        own_cluster.stop_bookie(index)
    with pytest.raises(StreamingQueryException, match="can serve it now"):
        drain()
    assert found == {}
    own_cluster.start_bookies(kept)
    drain()
    assert [offset for batch in sorted(found) for offset in found[batch]] == list(range(COUNT))


class _Stopping:
    def __init__(self, query):
        self.query = query

    def close(self):
        self.query.stop()
