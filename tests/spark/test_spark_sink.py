"""A real Spark writes real logs: frames and streams, once, whatever fails in between.

`make test` takes one frame and one stream; the rest is `make full`'s, since each query of Spark takes seconds.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.errors.exceptions.base import PySparkException, StreamingQueryException

from quire.log.collecting import LogCollector
from quire.log.heads import LogHeads
from quire.spark.options import SparkOptions
from quire.spark.read_options import READ_OPTIONS
from quire.spark.sink import BatchSink, StreamSink
from quire.spark.source import QuireDataSource
from quire.spark.staged import Failpoints
from quire.spark.write_options import WRITE_OPTIONS

pytestmark = pytest.mark.spark


def records(cluster, log):
    async def read(client):
        return [record async for record in client.log(log).read()]

    return cluster.run(read)


def values(cluster, log):
    return [record.value for record in records(cluster, log)]


def head(cluster, log):
    async def read(client):
        return await client.log(log).identify()

    return cluster.run(read)


def ledgers(cluster, log):
    """The ledgers that were made for a log, and those that it lists."""

    async def read(client):
        about = await client.log(log).identify()
        made = []
        async for ledger_id in client.ledgers():
            record = await client.ledger_metadata(ledger_id)
            if record.custom_value("quire.log") == about.log_id.hex().encode():
                made.append(ledger_id)
        return made, sorted(item.ledger_id for item in await LogHeads(client.store).all_items(about))

    return cluster.run(read)


async def collect(client):
    """Delete what is garbage by fact: nothing here is old."""
    await LogCollector(client).collect()


def writer(frame, cluster, **options):
    return frame.write.format("quire").mode("append").option("cluster", cluster.uri).options(**options)


class Files:
    """A stream of text files, one a batch, into a log."""

    def __init__(self, spark, cluster, folder, log, source="quire", tasks=2, **options):
        self.spark, self.cluster, self.log, self.source, self.tasks = spark, cluster, log, source, tasks
        self.options = {"create": "true", "inlineBytes": "0", **options}
        self.input, self.checkpoint = folder / "input", folder / "checkpoint"
        self.input.mkdir()
        self.written = 0

    def add(self, *values):
        (self.input / f"{self.written:04}.txt").write_text("\n".join(values))
        self.written += 1

    def run(self):
        frame = (
            self.spark.readStream.option("maxFilesPerTrigger", 1)
            .text(str(self.input))
            .repartition(self.tasks)
        )
        query = (
            frame.writeStream.format(self.source)
            .option("cluster", self.cluster.uri)
            .options(**self.options)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start(self.log)
        )
        query.awaitTermination()

    def forget_last_commit(self):
        last = max(self.checkpoint.joinpath("commits").glob("[0-9]*"), key=lambda path: int(path.name))
        for path in (last, last.with_name(f".{last.name}.crc")):
            path.unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("options", "ledgers_"),
    [
        ({"inlineBytes": "0"}, 3),
        pytest.param({}, 1, marks=pytest.mark.slow),
        pytest.param({"inlineBytes": "0", "codec": "rows"}, 3, marks=pytest.mark.slow),
        pytest.param(
            {"inlineBytes": "0", "compression": "zstd", "orderBy": "timestamp"}, 3, marks=pytest.mark.slow
        ),
    ],
)
def test_a_frame_becomes_records_in_the_order_of_its_partitions(spark, cluster, options, ledgers_):
    frame = spark.range(0, 3000, 1, 3).selectExpr(
        "cast(id as string) AS key",
        "if(id = 7, null, concat('value ', id)) AS value",
        "timestamp_millis(1700000000000 + id) AS timestamp",
        "if(id = 5, array(named_struct('key', 'h', 'value', cast('x' as binary))), null) AS headers",
    )
    name = f"frame-{len(options)}"
    writer(frame, cluster, create=True, **options).save(name)
    found = records(cluster, name)
    assert [record.offset for record in found] == list(range(3000))
    assert [record.key for record in found] == [b"%d" % n for n in range(3000)]
    assert [record.timestamp_ms for record in found] == [1_700_000_000_000 + n for n in range(3000)]
    assert (found[7].value, found[8].value) == (None, b"value 8")
    assert (found[5].headers, found[6].headers) == ((("h", b"x"),), ())
    assert len(head(cluster, name).items) == ledgers_
    # What the source reads is what was written.
    back = spark.read.format("quire").option("cluster", cluster.uri).load(name)
    assert back.where("offset >= 2990").count() == 10


def test_a_stream_is_written_once_even_when_spark_forgets_its_last_commit(spark, cluster, tmp_path):
    stream = Files(spark, cluster, tmp_path, "streamed")
    for n in range(3):
        stream.add(f"a{n}", f"b{n}", f"c{n}")
    stream.run()
    expected = sorted(f"{letter}{n}".encode() for letter in "abc" for n in range(3))
    assert sorted(values(cluster, "streamed")) == expected
    before = values(cluster, "streamed")
    stream.forget_last_commit()
    stream.run()
    assert values(cluster, "streamed") == before
    [position] = head(cluster, "streamed").sink_positions
    query = json.loads((stream.checkpoint / "metadata").read_text())["id"]
    assert (position.query_id, position.batch_id) == (query, 2)
    made, listed = ledgers(cluster, "streamed")
    assert made == listed
    stream.add("later")
    stream.run()
    assert values(cluster, "streamed") == [*before, b"later"]


def faulty(step, flag):
    """The format with a sink that fails once at a step, wherever it runs."""

    def at(reached):
        if reached == step:
            with contextlib.suppress(FileExistsError):
                flag.touch(exist_ok=False)  # two tasks may be here at once; one fails
                raise RuntimeError(f"fails at {step}")

    class Faulty(QuireDataSource):
        def __init__(self, options):
            super().__init__(options)
            self._mine = SparkOptions(options, (*READ_OPTIONS, *WRITE_OPTIONS))

        @classmethod
        def name(cls):
            return "quire_faulty"

        def writer(self, schema, overwrite):
            return BatchSink(self._mine, schema, overwrite=overwrite, failpoints=Failpoints(at))

        def streamWriter(self, schema, overwrite):
            return StreamSink(self._mine, schema, overwrite=overwrite, failpoints=Failpoints(at))

    return Faulty


@pytest.mark.slow
@pytest.mark.parametrize("step", ["staged", "swap", "swapped"])
def test_a_batch_that_fails_at_any_step_is_there_once_after_the_next_run(spark, cluster, tmp_path, step):
    spark.dataSource.register(faulty(step, tmp_path / "failed"))
    log = f"fails-{step}"
    # Of a task that is done when another fails, Spark may drop the message: then its ledger is not the abort's to
    # delete either. One task where tasks fail, so that the count below is exact.
    tasks = 1 if step == "staged" else 2
    stream = Files(spark, cluster, tmp_path, log, source="quire_faulty", tasks=tasks)
    for n in range(2):
        stream.add(*(f"{n}-{m}" for m in range(20)))
    with pytest.raises(StreamingQueryException):
        stream.run()
    stream.run()
    assert sorted(values(cluster, log)) == sorted(f"{n}-{m}".encode() for n in range(2) for m in range(20))
    made, listed = ledgers(cluster, log)
    # A task that failed behind its ledger's close left it; every other one was an abort's to delete.
    assert len(made) - len(listed) == (step == "staged")
    cluster.run(collect)
    assert ledgers(cluster, log) == (listed, listed)


@pytest.mark.slow
def test_foreach_batch_needs_a_name_and_never_takes_the_streams(spark, cluster, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.txt").write_text("x")

    def once(frame, batch_id):
        for part in ("left", "right"):
            writer(frame, cluster, create=True, txnAppId=f"etl-{part}", txnVersion=batch_id).save("each")
        # Without a name both are written: the stream's own ids would have dropped the second.
        writer(frame, cluster, create=True).save("unnamed")
        writer(frame, cluster, create=True).save("unnamed")

    def run(checkpoint):
        frame = spark.readStream.text(str(tmp_path / "in"))
        query = frame.writeStream.foreachBatch(once).option("checkpointLocation", str(tmp_path / checkpoint))
        query.trigger(availableNow=True).start().awaitTermination()

    run("one")
    assert values(cluster, "each") == [b"x", b"x"]
    assert values(cluster, "unnamed") == [b"x", b"x"]
    (tmp_path / "one" / "commits" / "0").unlink()
    with contextlib.suppress(FileNotFoundError):
        (tmp_path / "one" / "commits" / ".0.crc").unlink()
    run("one")
    assert values(cluster, "each") == [b"x", b"x"]
    with pytest.raises(
        StreamingQueryException, match=r"txnAppId 'etl-left' last wrote batch 0 from another check"
    ):
        run("two")
    assert values(cluster, "each") == [b"x", b"x"]


@pytest.mark.slow
def test_complete_mode_and_overwrite_replace_by_consent(spark, cluster, tmp_path):
    frame = spark.createDataFrame([("a",), ("b",)], "value string")
    replacing = frame.write.format("quire").mode("overwrite").option("cluster", cluster.uri)
    with pytest.raises(
        AnalysisException, match="overwrite, and output mode complete, take every record out of log"
    ):
        replacing.save("whole")
    replacing = replacing.option("create", "true").option("allowTruncate", "true")
    replacing.save("whole")
    replacing.save("whole")
    assert [(record.offset, record.value) for record in records(cluster, "whole")] == [(2, b"a"), (3, b"b")]
    (tmp_path / "in").mkdir()
    for n in range(2):
        (tmp_path / "in" / f"{n}.txt").write_text("x\ny")
    counted = (
        spark.readStream.option("maxFilesPerTrigger", 1).text(str(tmp_path / "in")).groupBy("value").count()
    )
    query = (
        counted.selectExpr("value AS key", "cast(count AS string) AS value")
        .writeStream.format("quire")
        .outputMode("complete")
        .option("cluster", cluster.uri)
        .option("create", "true")
        .option("allowTruncate", "true")
        .option("checkpointLocation", str(tmp_path / "ck"))
        .trigger(availableNow=True)
        .start("counts")
    )
    query.awaitTermination()
    assert sorted((r.key, r.value) for r in records(cluster, "counts")) == [(b"x", b"2"), (b"y", b"2")]


@pytest.mark.slow
def test_rows_go_where_their_column_says_and_nowhere_if_one_log_is_missing(spark, cluster):
    frame = spark.createDataFrame(
        [("one", "1"), ("two", "2"), ("one", "3")], "log string, value string"
    ).coalesce(1)
    writer(frame, cluster, create=True).save()
    assert (values(cluster, "one"), values(cluster, "two")) == ([b"1", b"3"], [b"2"])
    with pytest.raises(
        PySparkException, match=r"quire: no log 'onw' at .* Nearest: 'one'. create=true makes it"
    ):
        writer(frame.selectExpr("if(value = '3', 'onw', log) AS log", "value"), cluster).save()
    assert (values(cluster, "one"), values(cluster, "two")) == ([b"1", b"3"], [b"2"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("columns", "options", "text"),
    [
        (
            "id, 'n' AS name",
            {},
            r"quire: the sink needs column 'value' \(binary or string\); got id, name. Try .selectExpr\(\"to_json",
        ),
        (
            "'v' AS value, id AS offset",
            {},
            r"the sink has no column 'offset': the commit assigns offsets",
        ),
        ("id AS value", {}, "column 'value' must be binary or string, not bigint. Cast it before the write"),
        (
            "'v' AS value",
            {"startingOffsets": "latest"},
            "option 'startingOffsets' belongs to a batch read and",
        ),
        ("'v' AS value", {"txnAppId": "etl"}, "txnAppId and txnVersion go together"),
        ("'v' AS value", {"allowTruncat": "true"}, "Did you mean 'allowTruncate'?"),
    ],
)
def test_what_cannot_be_written_is_refused_with_the_remedy(spark, cluster, columns, options, text):
    frame = spark.range(1).selectExpr(*columns.split(", "))
    with pytest.raises(AnalysisException, match=text):
        writer(frame, cluster, create=True, **options).save("refused")


@pytest.mark.slow
def test_a_leader_goes_on_beside_a_sink(spark, cluster):
    frame = spark.range(0, 10, 1, 2).selectExpr("concat('s', id) AS value")
    writer(frame, cluster, create=True).save("led")

    async def lead(client):
        leading = await client.log("led").open_writer()
        await leading.append(b"w0")
        return leading

    leading = cluster.run(lead)
    writer(frame, cluster, inlineBytes="0").save("led")

    async def go_on(client):
        await leading.append(b"w1")
        await leading.close()

    cluster.run(go_on)
    rows = [b"s%d" % n for n in range(10)]
    assert values(cluster, "led") == [*rows, b"w0", *rows, b"w1"]
    assert Path(cluster.uri.removeprefix("sqlite:")).exists()
