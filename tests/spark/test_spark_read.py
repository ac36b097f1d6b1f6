"""A real Spark reads real logs from real bookies."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from pyspark.errors import AnalysisException, PythonException

from quire.log.config import LogConfig
from quire.spark import read_options

pytestmark = pytest.mark.spark

T0 = 1_795_000_000_000
COUNT = 20_000


def record(i):
    key = None if i % 7 == 0 else b"key-%d" % (i % 50)
    value = None if i % 11 == 0 else b"value %d " % i + b"x" * (i % 40)
    headers = [("source", b"%d" % i), ("empty", None)] if i % 13 == 0 else None
    return key, value, headers, T0 + i


RECORDS = [record(i) for i in range(COUNT)]


@pytest.fixture(scope="module")
def orders(cluster):
    """A log of twenty thousand records in several ledgers of several entries each."""
    cluster.fill("orders", RECORDS, rolls=True, batch_bytes_max=20_000)
    return "orders"


def reader(spark, cluster, **options):
    return spark.read.format("quire").option("cluster", cluster.uri).options(**options)


def offsets(frame):
    return [row.offset for row in frame.select("offset").collect()]


def test_every_record_with_every_default_column(spark, cluster, orders):
    frame = reader(spark, cluster, includeHeaders=True).load(orders)
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,log:string,offset:bigint,timestamp:timestamp,"
        "headers:array<struct<key:string,value:binary>>>"
    )
    rows = frame.selectExpr("*", "unix_millis(timestamp) AS ms").collect()
    assert [row.offset for row in rows] == list(range(COUNT))
    found = [
        (
            row.key and bytes(row.key),
            row.value and bytes(row.value),
            row.headers and [(header.key, header.value and bytes(header.value)) for header in row.headers],
            row.ms,
        )
        for row in rows
    ]
    assert found == RECORDS
    assert {row.log for row in rows} == {"orders"}


def test_columns_on_request_are_a_projection(spark, cluster, orders):
    schema = "offset bigint, entry bigint, index int, ledger bigint, partition int, topic string, timestampType int"
    rows = reader(spark, cluster).schema(schema).load(orders).orderBy("offset").collect()
    assert len(rows) == COUNT
    assert {(row.partition, row.topic, row.timestampType) for row in rows} == {(0, "orders", 0)}
    places = [(row.ledger, row.entry, row["index"]) for row in rows]
    assert places == sorted(places)
    assert len(set(places)) == COUNT
    assert len({row.ledger for row in rows}) == 4
    assert all(row["index"] in {0, before["index"] + 1} for before, row in pairwise(rows))


def test_tasks_are_planned_by_bytes(spark, cluster, orders):
    one = reader(spark, cluster).load(orders)
    assert one.rdd.getNumPartitions() == 1
    many = reader(spark, cluster, splitBytes="50k", rowsPerBatch=100).load(orders)
    tasks = many.rdd.getNumPartitions()
    assert 10 < tasks < 40
    by_task = many.selectExpr("spark_partition_id() AS task", "offset").collect()
    assert [row.offset for row in by_task] == list(range(COUNT))
    assert len({row.task for row in by_task}) == tasks
    assert reader(spark, cluster, minPartitions=6).load(orders).rdd.getNumPartitions() in range(6, 9)
    few = reader(spark, cluster, splitBytes="10k", maxPartitions=3).load(orders)
    assert few.rdd.getNumPartitions() <= 3
    assert few.count() == COUNT


@pytest.mark.parametrize("enabled", ["true", "false"])
@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("offset >= 19990", range(19990, COUNT)),
        ("offset > 100 AND offset <= 105", range(101, 106)),
        ("offset = 12345", [12345]),
        ("offset IN (3, 4, 9000, 19999, 50000)", [3, 4, 9000, 19999]),
        (f"offset IN ({', '.join(map(str, range(0, 80, 2)))})", range(0, 80, 2)),
        ("offset < 0", []),
        ("offset < 10 AND offset <> 4", [0, 1, 2, 3, 5, 6, 7, 8, 9]),
        (f"unix_millis(timestamp) >= {T0 + 19_995}", range(19_995, COUNT)),
        (f"timestamp >= timestamp_millis({T0 + 19_995})", range(19_995, COUNT)),
        (f"timestamp < timestamp_millis({T0 + 3})", range(3)),
        ("key IS NULL AND offset < 20", [0, 7, 14]),
    ],
)
def test_filters_give_the_same_with_push_down_and_without(
    spark, cluster, orders, setting, condition, expected, enabled
):
    setting("spark.sql.python.filterPushdown.enabled", enabled)
    assert offsets(reader(spark, cluster).load(orders).where(condition)) == list(expected)


def test_options_leave_little_to_read(spark, cluster, orders):
    def tasks(**options):
        frame = reader(spark, cluster, splitBytes="20k", **options).load(orders)
        return frame.rdd.getNumPartitions()

    assert tasks() > 30
    assert tasks(startingOffsets='{"orders": 19990}') == 1
    assert tasks(startingTimestamp=T0 + 19_999) == 1
    part = read_options(orders, cluster=cluster.uri, offsets=(19_000, 19_003), splitBytes="20k")
    frame = spark.read.format("quire").options(**part).load()
    assert (frame.rdd.getNumPartitions(), offsets(frame)) == (1, [19_000, 19_001, 19_002])


def test_times_that_go_back_are_found_as_well(spark, cluster):
    times = [i * 7919 % 3000 for i in range(3000)]
    records = [(None, b"x" * 20, None, T0 + time) for time in times]
    cluster.fill("jumbled", records, roll_bytes=30_000, batch_bytes_max=1_000)
    for condition, wanted in (
        (f"timestamp >= timestamp_millis({T0 + 2995})", {i for i in range(3000) if times[i] >= 2995}),
        (f"timestamp < timestamp_millis({T0 + 4})", {i for i in range(3000) if times[i] < 4}),
    ):
        assert set(offsets(reader(spark, cluster).load("jumbled").where(condition))) == wanted
    by_option = reader(spark, cluster, startingTimestamp=T0 + 2995).load("jumbled")
    assert offsets(by_option) == [i for i in range(3000) if times[i] >= 2995]


def test_starting_and_ending(spark, cluster, orders):
    def read(**options):
        return offsets(reader(spark, cluster, **options).load(orders))

    assert read(startingOffsets=json.dumps({"orders": 19_998})) == [19_998, 19_999]
    assert read(endingOffsets=json.dumps({"orders": 2})) == [0, 1]
    assert read(startingOffsets="latest") == []
    moment = datetime.fromtimestamp((T0 + 10) / 1000, tz=UTC).isoformat()
    assert read(startingTimestamp=str(T0 + 5), endingTimestamp=moment) == [5, 6, 7, 8, 9]


def test_several_logs_and_patterns(spark, cluster, orders):
    for name in ("shop/a", "shop/b"):
        cluster.fill(name, [(b"k", name.encode(), None, T0)] * 3)
    frame = reader(spark, cluster).load("shop/*")
    assert [(row.log, row.offset) for row in frame.collect()] == [
        (f"shop/{name}", offset) for name in "ab" for offset in range(3)
    ]
    both = reader(spark, cluster, startingOffsets='{"shop/b": 2, "shop/a": 1}').load("shop/b,shop/a")
    assert [(row.log, row.offset) for row in both.collect()] == [("shop/b", 2), ("shop/a", 1), ("shop/a", 2)]
    assert reader(spark, cluster).load(["shop/a", "shop/b"]).count() == 6


def test_an_open_log_is_read_up_to_what_is_confirmed_and_its_writer_goes_on(spark, cluster):
    async def begin(client):
        await client.log("live").create()
        writer = await client.log("live", config=LogConfig(batch_bytes_max=500)).open_writer()
        await writer.append_many([b"first %d" % i for i in range(100)])
        return writer

    async def go_on(client):
        await writer.append_many([b"second %d" % i for i in range(50)])

    async def end(client):
        await writer.close()

    def confirmed():
        found = offsets(reader(spark, cluster).load("live"))
        assert found == list(range(len(found)))
        return len(found)

    writer = cluster.run(begin)
    # The last add confirmed travels with the next add or by itself a little later: never more than was appended.
    while confirmed() < 100:
        pass
    assert reader(spark, cluster, isolation="sealed").load("live").count() == 0
    cluster.run(go_on)
    while confirmed() < 150:
        pass
    cluster.run(end)
    assert confirmed() == 150
    assert reader(spark, cluster, isolation="sealed").load("live").count() == 150


def test_a_raw_ledger_has_a_record_for_each_entry(spark, cluster, monkeypatch, tmp_path):
    async def write(client):
        async with await client.create_ledger(password=b"s3cret") as ledger:
            await ledger.append_many([b"entry %d" % i for i in range(5000)])
        return ledger.ledger_id

    (tmp_path / "password").write_text("s3cret\n")
    ledger_id = cluster.run(write)
    with pytest.raises(AnalysisException, match="the password is not the one"):
        reader(spark, cluster).load(f"ledger:{ledger_id}").count()
    frame = reader(spark, cluster, passwordFile=str(tmp_path / "password"), splitBytes="10k").load(
        f"ledger:{ledger_id}"
    )
    assert frame.rdd.getNumPartitions() > 3
    rows = frame.collect()
    assert [bytes(row.value) for row in rows] == [b"entry %d" % i for i in range(5000)]
    assert [row.offset for row in rows] == list(range(5000))
    assert (rows[7].key, rows[7].timestamp, rows[7].log) == (None, None, f"ledger:{ledger_id}")
    assert offsets(frame.where("offset >= 4998")) == [4998, 4999]


def test_a_trimmed_log(spark, cluster):
    cluster.fill("trimmed", [(None, b"v%d" % i, None, T0 + i) for i in range(3000)], roll_bytes=10_000)

    async def truncate(client):
        await client.log("trimmed").truncate(before=1234)

    cluster.run(truncate)
    assert offsets(reader(spark, cluster).load("trimmed")) == list(range(1234, 3000))
    asked = {"startingOffsets": '{"trimmed": 120}'}
    with pytest.raises(AnalysisException) as caught:
        reader(spark, cluster, **asked).load("trimmed").count()
    assert (
        "quire: log 'trimmed': requested offset 120, the earliest is 1234 (trimmed). failOnDataLoss=false skips 1,114 records."
    ) in str(caught.value)
    assert reader(spark, cluster, failOnDataLoss=False, **asked).load("trimmed").count() == 3000 - 1234


@pytest.mark.parametrize(
    ("path", "options", "text"),
    [
        ("ordres", {}, "quire: no log 'ordres' at sqlite:"),
        ("ordres", {}, "Nearest: 'orders'."),
        ("nothing/*", {}, "quire: no log matches 'nothing/*'"),
        ("ledger:424242", {}, "quire: no ledger 424242 at sqlite:"),
        (
            "orders",
            {"startingOffsets": '{"orders": 20001}'},
            "startingOffsets says 20001, the log ends at 20000.",
        ),
        ("orders", {"startingofset": "1"}, "Did you mean 'startingOffsets'?"),
        ("orders", {"maxBytesPerTrigger": "1m"}, "belongs to a streaming read, this is a batch read"),
    ],
)
def test_the_sentence_that_a_user_sees(spark, cluster, orders, path, options, text):
    with pytest.raises(AnalysisException) as caught:
        reader(spark, cluster, **options).load(path).count()
    said = str(caught.value)
    assert text in said.split("Error: ")[-1]
    assert "planning.py" not in said


def test_an_entry_that_no_bookie_holds_is_named_or_stepped_over(spark, cluster):
    async def write(client):
        async with await client.create_ledger() as ledger:
            await ledger.append_many([b"x"] * 10)
        record, version = await client.records.ledgers.read(ledger.ledger_id)
        await client.records.ledgers.write(replace(record, last_entry=12, length=13), version)
        return ledger.ledger_id

    ledger_id = cluster.run(write)
    with pytest.raises(
        PythonException,
        match=f"quire: log 'ledger:{ledger_id}': entries 10 to 12 of ledger {ledger_id}, missing or damaged on every bookie",
    ):
        reader(spark, cluster).load(f"ledger:{ledger_id}").collect()
    assert reader(spark, cluster, failOnDataLoss=False).load(f"ledger:{ledger_id}").count() == 10


def test_two_bookies_of_three_are_enough_to_read(spark, own_cluster):
    cluster = own_cluster
    cluster.fill("orders", RECORDS[:5000], batch_bytes_max=5000)
    cluster.stop_bookie(1)
    assert offsets(reader(spark, cluster, splitBytes="20k").load("orders")) == list(range(5000))


def test_describe(spark, cluster, orders):
    log = reader(spark, cluster, describe="logs").load("orders").first()
    assert (log.start_offset, log.end_offset) == (0, COUNT)
    items = reader(spark, cluster, describe="segments").load("orders").orderBy("position").collect()
    assert len(items) == log.ledgers
    assert [row.first_offset for row in items] == [0, *(row.next_offset for row in items[:-1])]
    assert sum(row.records for row in items) == COUNT
    ledgers = reader(spark, cluster, describe="ledgers").load("orders").collect()
    assert {(row.state, row.ensemble_size, row.write_quorum, row.digest) for row in ledgers} == {
        ("closed", 3, 3, "crc32c")
    }
    fragments = reader(spark, cluster, describe="fragments").load("orders").collect()
    assert {len(row.bookies) for row in fragments} == {3}
    names = {row.log for row in reader(spark, cluster, describe="logs").load().collect()}
    assert "orders" in names
    one = reader(spark, cluster, describe="ledgers").load(f"ledger:{items[0].ledger}").first()
    assert one.ledger == items[0].ledger


def test_a_temporary_view_keeps_its_options(spark, cluster, orders):
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW v USING quire OPTIONS (path 'orders', cluster '{cluster.uri}')"
    )
    assert spark.sql("SELECT count(*) FROM v WHERE offset >= 19000").first()[0] == 1000
