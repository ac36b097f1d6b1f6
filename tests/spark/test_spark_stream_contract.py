"""What we rely on in Spark's streaming data source API, one probe for each; when Spark changes, these go red first.

One stream of a probe source writes down everything that is asked of it. The class is made inside a function so that it
travels by value. Source: Spark documentation; docs/spark.md, "Streams".
"""

import json

import pytest
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow

pytestmark = pytest.mark.spark


def probe(notes, target):
    """A source of the numbers below `target`, three a batch, that notes what it is asked in a file."""

    def note(*what):
        with open(notes, "a") as file:
            file.write(json.dumps(what) + "\n")

    class Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
        def initialOffset(self):
            note("initial")
            return {"v": 1, "logs": {"b": 0, "a": 0}}

        def getDefaultReadLimit(self):
            return ReadMaxRows(3)

        def latestOffset(self, start, limit):
            if type(limit) is ReadAllAvailable:
                note("latest", start, "all")
                end = target
            else:
                note("latest", start, limit.max_rows)
                end = min(target, start["logs"]["b"] + limit.max_rows)
            return start if end == start["logs"]["b"] else {"v": 1, "logs": {"b": end, "a": 0}}

        def reportLatestOffset(self):
            return {"v": 1, "logs": {"b": target, "a": 0}}

        def prepareForTriggerAvailableNow(self):
            note("prepare")

        def partitions(self, start, end):
            note("partitions", start, end)
            return [InputPartition(number) for number in range(start["logs"]["b"], end["logs"]["b"])]

        def read(self, partition):
            yield (partition.value,)

        def commit(self, end):
            note("commit", end)

        def stop(self):
            note("stop")

    class Probe(DataSource):
        @classmethod
        def name(cls):
            return "quire_stream_probe"

        def schema(self):
            return "x bigint"

        def streamReader(self, schema):
            return Reader()

    return Probe


def at(offset):
    return {"v": 1, "logs": {"b": offset, "a": 0}}


@pytest.fixture
def run(spark, tmp_path):
    """Run the probe until it is done; returns what was noted and the progress of each batch."""
    notes = tmp_path / "notes"

    def run(target, *, fail_at=None, once=False):
        notes.write_text("")
        spark.dataSource.register(probe(str(notes), target))
        frame = spark.readStream.format("quire_stream_probe").load()
        if fail_at is not None:
            frame = frame.selectExpr(f"CASE WHEN x = {fail_at} THEN raise_error('stop here') ELSE x END AS x")
        trigger = {"once": True} if once else {"availableNow": True}
        query = (
            frame.writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(**trigger)
            .start()
        )
        failed = False
        try:
            query.awaitTermination()
        except Exception:
            failed = True
        assert failed == (fail_at is not None)
        return [json.loads(line) for line in notes.read_text().splitlines()], query.recentProgress

    return run


def test_what_spark_asks_a_stream(run, tmp_path):
    asked, progress = run(4, fail_at=1)
    # The start is asked for more than once for the first batch, and again after it failed: it must not vary.
    assert asked.count(["initial"]) == 2
    assert asked[0] == ["prepare"]
    assert ["latest", at(0), 3] in asked
    assert ["partitions", at(0), at(3)] in asked
    kept = (tmp_path / "checkpoint" / "offsets" / "0").read_text().splitlines()[-1]
    assert kept == json.dumps(at(3)), "the text is json.dumps of the dictionary, in its own order"
    asked, progress = run(4)
    assert ["initial"] in asked
    # The failed batch comes again with the same end, without asking how far it may go.
    planned = [what for what in asked if what[0] == "partitions"]
    assert planned == [["partitions", at(0), at(3)], ["partitions", at(3), at(4)]]
    # A batch is reported done with the next one, so the last of a run never is; `stop` is not called.
    assert [what for what in asked if what[0] == "commit"] == [["commit", at(3)]]
    assert ["stop"] not in asked
    read = [each["numInputRows"] for each in progress if each["numInputRows"]]
    assert read == [3, 1]
    assert json.loads(progress[-1]["sources"][0]["latestOffset"]) == at(4)
    # Trigger.Once reads everything: the source's own limit must be ignored.
    asked, progress = run(9, once=True)
    assert ["latest", at(4), "all"] in asked
    assert [what for what in asked if what[0] == "partitions"] == [["partitions", at(4), at(9)]]
    assert ["initial"] not in asked


def test_what_a_checkpoint_says_of_a_batch(spark, tmp_path):
    """The sink compares these files with a log's sink position: one line a source behind two, never changed by a replay."""
    checkpoint = tmp_path / "checkpoint"
    (tmp_path / "in").mkdir()

    def run():
        rows = spark.readStream.text(str(tmp_path / "in"))
        query = rows.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
        query.trigger(availableNow=True).start().awaitTermination()

    for number in range(2):
        (tmp_path / "in" / f"{number}.txt").write_text("x")
        run()
    noted = (checkpoint / "offsets" / "1").read_text()
    version, times, *sources = noted.splitlines()
    assert version.startswith("v")
    assert json.loads(times)["batchTimestampMs"] > 0
    assert sources == ['{"logOffset":1}']
    # Which files the count means stands beside; lines of several batches are in one file after a while.
    [entry] = (checkpoint / "sources" / "0" / "1").read_text().splitlines()[1:]
    assert json.loads(entry)["batchId"] == 1
    assert json.loads(entry)["path"].endswith("/in/1.txt")
    assert json.loads((checkpoint / "metadata").read_text())["id"]
    for name in ("1", ".1.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)
    run()
    assert (checkpoint / "offsets" / "1").read_text() == noted
