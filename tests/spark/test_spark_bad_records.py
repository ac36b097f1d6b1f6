"""Records that a writer should not have made: the rest of their log is read all the same."""

import pytest
from pyspark.errors import PythonException

from quire.core.errors import MisuseError
from quire.log import batching
from quire.log.times import TIME_MS_MAX, TIME_MS_MIN

pytestmark = pytest.mark.spark

T0 = 1_795_000_000_000


def reader(spark, cluster, **options):
    return spark.read.format("quire").option("cluster", cluster.uri).options(**options)


def test_a_record_with_an_impossible_time_is_refused_and_read_as_null(spark, cluster, monkeypatch):
    async def refuse(client):
        await client.log("times").create()
        async with await client.log("times").open_writer() as writer:
            for time in (2**60, TIME_MS_MIN - 1, TIME_MS_MAX + 1):
                with pytest.raises(MisuseError, match="in the years 1 to 9999"):
                    await writer.append(b"v", timestamp_ms=time)
            await writer.append_many([b"v"] * 2, timestamps_ms=[TIME_MS_MIN, TIME_MS_MAX])

    async def as_before(client):
        async with await client.log("times").open_writer() as writer:
            await writer.append_many([b"v"] * 4, timestamps_ms=[T0, 2**60, -(2**60), T0 + 1])

    cluster.run(refuse)
    monkeypatch.setattr(batching, "TIME_MS_MAX", 2**63 - 1)
    monkeypatch.setattr(batching, "TIME_MS_MIN", -(2**63))
    cluster.run(as_before)
    monkeypatch.undo()

    frame = reader(spark, cluster).load("times")
    rows = frame.selectExpr("offset", "unix_millis(timestamp) AS ms").orderBy("offset").collect()
    assert [row.ms for row in rows] == [TIME_MS_MIN, TIME_MS_MAX, T0, None, None, T0 + 1]
    late = reader(spark, cluster, startingTimestamp=T0).load("times")
    assert [row.offset for row in late.select("offset").collect()] == [1, 2, 5]
    assert frame.where(f"timestamp >= timestamp_millis({T0})").count() == 3
    # Tables about the log show no time in their place.
    segments = reader(spark, cluster, describe="segments").load("times")
    assert [row.ms for row in segments.selectExpr("unix_millis(max_time) AS ms").collect()] == [
        TIME_MS_MAX,
        None,
    ]
    assert reader(spark, cluster, describe="entries").load("times").count() > 1


def test_the_sink_refuses_an_impossible_time(spark, cluster):
    frame = spark.range(1).selectExpr("'v' AS value", f"timestamp_millis({TIME_MS_MAX + 1}) AS timestamp")
    with pytest.raises(PythonException, match="in the years 1 to 9999"):
        frame.write.format("quire").mode("append").option("cluster", cluster.uri).option("create", True).save(
            "late"
        )


@pytest.mark.parametrize("codec", ["arrow", "rows"])
def test_an_empty_array_of_headers_is_none(spark, cluster, codec):
    name = f"headers/{codec}"
    frame = spark.sql(
        "SELECT cast(id AS string) AS value, CASE WHEN id % 3 = 0 THEN array() WHEN id % 3 = 1 THEN NULL "
        "ELSE array(named_struct('key', 'a', 'value', cast('b' AS binary))) END AS headers FROM range(0, 60, 1, 1)"
    )
    writer = frame.write.format("quire").mode("append").option("cluster", cluster.uri).option("create", True)
    writer.option("codec", codec).save(name)
    rows = reader(spark, cluster, includeHeaders=True).load(name).orderBy("offset").collect()
    assert [row.headers and [tuple(pair) for pair in row.headers] for row in rows] == [
        [("a", b"b")] if i % 3 == 2 else None for i in range(60)
    ]
