"""A real Spark streams real logs from real bookies: each record once, through failures of the query."""

import json

import pytest
from pyspark.errors import StreamingQueryException

from quire.log.config import LogConfig

pytestmark = pytest.mark.spark

T0 = 1_795_000_000_000
COUNT = 6_000


@pytest.fixture(scope="module")
def trades(cluster):
    """A log of several ledgers."""
    cluster.fill("trades", records(0, COUNT), roll_bytes=60_000, batch_bytes_max=9_000)
    return "trades"


def records(first, end):
    return [(b"k%d" % (i % 9), b"value %d" % i, None, T0 + i) for i in range(first, end)]


def stream(spark, cluster, path, **options):
    options = {"cluster": cluster.uri, **options}
    return spark.readStream.format("quire").options(**options).schema("log string, offset bigint").load(path)


class Sink:
    """Collects what each batch brought; fails where it is told to."""

    def __init__(self, fail_in=None):
        self.batches = {}
        self.fail_in = fail_in

    def __call__(self, frame, batch_id):
        rows = [(row.log, row.offset) for row in frame.collect()]
        if batch_id == self.fail_in:
            raise RuntimeError("the sink failed")
        self.batches[batch_id] = rows

    @property
    def rows(self):
        return [row for batch_id in sorted(self.batches) for row in self.batches[batch_id]]


def drain(frame, sink, checkpoint):
    query = (
        frame.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def test_each_record_once_within_the_limits_through_a_failure(spark, cluster, trades, tmp_path):
    sink = Sink(fail_in=1)
    frame = stream(spark, cluster, trades, maxRecordsPerTrigger=2000, cursor="copy", splitBytes="30k")
    with pytest.raises(StreamingQueryException, match="the sink failed"):
        drain(frame, sink, tmp_path)
    sink.fail_in = None
    query = drain(frame, sink, tmp_path)
    assert [len(sink.batches[batch]) for batch in sorted(sink.batches)] == [2000, 2000, 2000]
    assert sorted(sink.rows) == [(trades, offset) for offset in range(COUNT)]
    # The checkpoint's text, and the lag in the progress.
    log_id = (
        spark.read.format("quire").options(cluster=cluster.uri, describe="logs").load(trades).first().log_id
    )
    kept = (tmp_path / "offsets" / "2").read_text().splitlines()[-1]
    assert kept == json.dumps({"v": 1, "logs": {trades: {"id": log_id, "offset": COUNT}}})
    newest = json.loads(query.lastProgress["sources"][0]["latestOffset"])
    assert newest["logs"][trades]["offset"] == COUNT
    cursor = spark.read.format("quire").options(cluster=cluster.uri, describe="cursors").load(trades).first()
    # The last batch of a run is never reported as done.
    assert (cursor.cursor, cursor.first_offset, cursor.offset, cursor.lag) == ("copy", 0, 4000, 2000)


@pytest.mark.slow
def test_a_stream_beside_its_writer_and_new_logs(spark, cluster, tmp_path):
    async def begin(client):
        await client.log("beside/a").create()
        writer = await client.log("beside/a", config=LogConfig(batch_bytes_max=500)).open_writer()
        await writer.append_many([b"first %d" % i for i in range(100)])
        await writer.append(b"tells that the hundred are confirmed")
        return writer

    writer = cluster.run(begin)
    sink, frame = Sink(), stream(spark, cluster, "beside/*")
    drain(frame, sink, tmp_path)
    seen = len(sink.rows)
    assert 100 <= seen <= 101
    cluster.fill("beside/b", records(0, 30))
    cluster.run(lambda client: writer.append_many([b"second %d" % i for i in range(50)]))
    cluster.run(lambda client: writer.close())
    drain(frame, sink, tmp_path)
    expected = [("beside/a", offset) for offset in range(151)] + [
        ("beside/b", offset) for offset in range(30)
    ]
    assert sorted(sink.rows) == expected


def test_what_a_user_of_a_stream_reads(spark, cluster, trades, tmp_path):
    frame = stream(spark, cluster, trades, startingOffsets="latest")
    with pytest.raises(Exception, match="startingOffsets=latest on a stream needs"):
        drain(frame, Sink(), tmp_path / "a")
    cluster.fill("cut", records(0, 3000), roll_bytes=10_000)
    sink, frame = Sink(), stream(spark, cluster, "cut", maxRecordsPerTrigger=1000)
    cluster.run(lambda client: client.log("cut").truncate(before=10))
    drain(stream(spark, cluster, "cut", startingOffsets='{"cut": 2990}'), sink, tmp_path / "b")
    assert [offset for _, offset in sink.rows] == list(range(2990, 3000))
    cluster.run(lambda client: client.delete_log("cut"))
    cluster.fill("cut", records(0, 100))
    with pytest.raises(StreamingQueryException) as caught:
        drain(frame, Sink(), tmp_path / "b")
    assert "quire: log 'cut' was deleted and created again (ids " in str(caught.value)
