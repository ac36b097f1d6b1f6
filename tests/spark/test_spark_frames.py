"""One frame, used again and again: the filters of one query stay there, and the end of each log is one for all of them."""

import json
import threading

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.errors.exceptions.base import PySparkException

from quire.spark import read_options
from quire.spark.options import SparkUseError
from quire.spark.schema import AS_OF_KEY
from quire.spark.versions import FILTERS_SETTING
from support.rounds import rounds

pytestmark = pytest.mark.spark

T0 = 1_795_000_000_000
COUNT = 2_600


@pytest.fixture(scope="module")
def orders(cluster):
    records = [(None, b"v%d" % i, None, T0 + i) for i in range(COUNT)]
    cluster.fill("frames", records, roll_bytes=10_000, batch_bytes_max=2_000)
    return "frames"


def reader(spark, at, **options):
    return spark.read.format("quire").options(**{"cluster": at.uri, **options})


def remake(cluster, name, values):
    """Delete a log and make another one of the same name."""

    async def remade(client):
        await client.log(name).delete()
        await client.log(name).create()
        async with await client.log(name).open_writer() as writer:
            await writer.append_many(values)

    cluster.run(remade)


def append(cluster, name, values):
    async def appended(client):
        async with await client.log(name).open_writer() as writer:
            await writer.append_many(values)

    cluster.run(appended)


# --- filters ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("handed", ["true", "false"])
def test_the_filters_of_one_query_do_not_reach_another(spark, cluster, orders, setting, handed):
    setting(FILTERS_SETTING, handed)
    frame = reader(spark, cluster).load(orders)
    assert frame.where("offset < 10").count() == 10
    assert frame.count() == COUNT
    assert frame.where("offset < 100").union(frame.where("offset >= 2400")).count() == 300
    frame.createOrReplaceTempView("frames")
    counts = spark.sql(
        "SELECT (SELECT count(*) FROM frames WHERE offset < 7), (SELECT count(*) FROM frames WHERE offset >= 2000),"
        " (SELECT count(*) FROM frames)"
    ).first()
    assert tuple(counts) == (7, 600, COUNT)


def test_the_helpers_session_hands_no_filters_over(spark):
    assert spark.conf.get(FILTERS_SETTING) == "false"


# --- one end ----------------------------------------------------------------------------------------------------------

JOIN = "SELECT count(*) FROM live a FULL JOIN live b ON a.offset = b.offset WHERE a.offset IS NULL OR b.offset IS NULL"


@pytest.mark.parametrize("handed", ["true", "false"])
@pytest.mark.parametrize("schema", [None, "offset bigint"])
def test_a_self_join_beside_a_writer_sees_one_end(spark, cluster, setting, handed, schema):
    setting(FILTERS_SETTING, handed)
    name = f"live/{handed}/{schema is None}"

    async def begin(client):
        await client.log(name).create()
        writer = await client.log(name).open_writer()
        await writer.append_many([b"x"] * 1_000)
        return writer

    async def go_on(client):
        await writer.append_many([b"y"] * 20)

    async def end(client):
        await writer.close()

    def write():
        while not done.is_set():
            cluster.run(go_on)

    writer, done = cluster.run(begin), threading.Event()
    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(rounds(1, 40)):
            options = {} if schema is None else read_options(name, cluster=cluster.uri)
            asked = reader(spark, cluster, **options)
            loaded = asked.load(name) if schema is None else asked.schema(schema).load()
            loaded.select("offset").createOrReplaceTempView("live")
            assert spark.sql(JOIN).first()[0] == 0
    finally:
        done.set()
        thread.join()
        cluster.run(end)


def test_a_frame_tells_where_its_logs_end_and_keeps_that_end(spark, cluster):
    cluster.fill("kept", [(None, b"v", None, T0)] * 30)
    frame = reader(spark, cluster).load("kept")
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW kept USING quire OPTIONS (path 'kept', cluster '{cluster.uri}')"
    )
    append(cluster, "kept", [b"more"] * 12)
    assert (frame.count(), spark.table("kept").count()) == (30, 30)
    for schema in (frame.schema, spark.table("kept").schema):
        told = json.loads(schema["offset"].metadata[AS_OF_KEY])
        assert told["logs"]["kept"]["offset"] == 30
    described = {row.col_name: row.comment for row in spark.sql("DESCRIBE kept").collect()}
    assert described["offset"] == "ends at the load: kept 30"
    # What it tells can be read again, and a new frame sees what is new.
    again = reader(spark, cluster, asOf=frame.schema["offset"].metadata[AS_OF_KEY])
    assert again.schema("offset bigint").load("kept").count() == 30
    assert reader(spark, cluster).load("kept").count() == 42


def test_a_log_that_was_made_again_is_an_error_and_never_the_old_records(spark, cluster):
    cluster.fill("remade", [(None, b"old", None, T0)] * 30)
    used, unused = reader(spark, cluster).load("remade"), reader(spark, cluster).load("remade")
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW remade USING quire OPTIONS (path 'remade', cluster '{cluster.uri}')"
    )
    assert (used.count(), spark.table("remade").count()) == (30, 30)
    remake(cluster, "remade", [b"new"] * 45)
    for frame in (used, unused, spark.table("remade")):
        with pytest.raises(
            PySparkException, match=r"log 'remade' was deleted and created again .* Load it again"
        ):
            frame.count()
    spark.sql("REFRESH TABLE remade")
    with pytest.raises(PySparkException, match="was deleted and created again"):
        spark.table("remade").count()
    assert reader(spark, cluster).load("remade").count() == 45


def test_a_log_that_was_deleted_is_an_error_for_a_frame_that_was_used(spark, cluster):
    cluster.fill("gone", [(None, b"old", None, T0)] * 30)
    frame = reader(spark, cluster).load("gone")
    assert frame.count() == 30

    async def delete(client):
        await client.log("gone").delete()

    cluster.run(delete)
    with pytest.raises(PythonException, match="log 'gone' was deleted after this read was planned"):
        frame.count()


# --- bad input --------------------------------------------------------------------------------------------------------


def position(cluster, name, **changes):
    """The helper's `asOf` of one log, with another offset or id."""
    told = json.loads(read_options(name, cluster=cluster.uri)["asOf"])
    told["logs"][name] |= changes
    return json.dumps(told)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"offset": COUNT + 1},
            "asOf says offset 2601, the log is known to end at 2600, so asOf lies in the future",
        ),
        ({"id": "0" * 32}, "was deleted and created again (ids 00000000, "),
    ],
)
def test_an_as_of_that_cannot_be(spark, cluster, orders, changes, text):
    with pytest.raises(AnalysisException) as caught:
        reader(spark, cluster, asOf=position(cluster, orders, **changes)).load(orders).count()
    assert text in str(caught.value).split("Error: ")[-1]


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"offsets": (20, 10)}, "startingOffsets 20 is after endingOffsets 10"),
        ({"offsets": (0, COUNT + 1)}, "endingOffsets says 2601, the log ends at 2600"),
        ({"offsets": (-1, None)}, "startingOffsets says -1"),
        ({"offsets": {"orders": (0, 1)}}, "startingOffsets names 'orders', which is not loaded"),
        ({"times": (T0 + 5, T0)}, "is after endingTimestamp"),
        ({"times": ("noon", None)}, "startingTimestamp is ISO text"),
        ({"offsets": (0, None), "times": (T0, None)}, "both say where to begin"),
        ({"startingoffset": 3}, "unknown option 'startingoffset'"),
        ({"cursor": "copy"}, "belongs to a streaming read"),
    ],
)
def test_a_part_that_cannot_be_asked_for(cluster, orders, asked, text):
    with pytest.raises(SparkUseError) as caught:
        read_options(orders, cluster=cluster.uri, **asked)
    assert text in str(caught.value)


def test_a_part_of_a_log_that_is_not_there(cluster):
    with pytest.raises(SparkUseError, match=r"no log 'frmes' at sqlite:.* Nearest: 'frames'"):
        read_options("frmes", cluster=cluster.uri)
    with pytest.raises(SparkUseError, match=r"no log matches 'nothing/\*'"):
        read_options("nothing/*", cluster=cluster.uri)


def test_what_was_there_then_and_is_trimmed_now(spark, cluster):
    cluster.fill("cut-early", [(None, b"v%d" % i, None, T0 + i) for i in range(3_000)], roll_bytes=10_000)
    options = read_options("cut-early", cluster=cluster.uri)
    early = position(cluster, "cut-early", offset=100)

    async def truncate(client):
        await client.log("cut-early").truncate(before=1_234)

    cluster.run(truncate)
    assert reader(spark, cluster, **options).load().count() == 3_000 - 1_234
    with pytest.raises(AnalysisException, match="asOf ends it at 100, its earliest record is now 1234"):
        reader(spark, cluster, asOf=early).load("cut-early").count()
    assert reader(spark, cluster, asOf=early, failOnDataLoss=False).load("cut-early").count() == 0
