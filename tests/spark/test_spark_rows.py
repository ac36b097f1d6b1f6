"""Rows that a real Spark writes and reads: compressed a thousandfold, and from the hour that comes twice a year."""

import pytest

from support.rounds import rounds

pytestmark = pytest.mark.spark

SECOND_HALF_PAST_TWO = 1_792_888_200_000
"""2026-10-25, 02:30 in Berlin for the second time that night, in milliseconds."""


def test_values_that_compress_well_come_back(spark, cluster):
    count, size = rounds(100, 9_000), 256 << 10
    values = spark.range(count).selectExpr(f"cast(repeat(chr(65 + id % 26), {size}) AS binary) AS value")
    to_log = values.write.format("quire").mode("append")
    to_log.options(cluster=cluster.uri, create="true", compression="zstd").save("zeros")
    frame = spark.read.format("quire").option("cluster", cluster.uri).load("zeros")
    found = frame.selectExpr("count(*)", "sum(length(value))", "count(DISTINCT left(value, 1))").first()
    assert tuple(found) == (count, count * size, 26)
    # Stored it is little, so it is one task: what ends a batch is what it decodes to.
    assert frame.rdd.getNumPartitions() == 1


@pytest.mark.parametrize("zone", ["Europe/Berlin", "UTC"])
def test_rows_of_the_hour_that_comes_twice(spark, cluster, setting, zone):
    setting("spark.sql.session.timeZone", zone)
    name = f"autumn-{zone.partition('/')[0]}"
    times = [SECOND_HALF_PAST_TWO + minutes * 60_000 for minutes in (-120, -60, 0, 29, 31)]
    rows = spark.createDataFrame([(str(time), time) for time in times], "value string, ms long")
    frame = rows.selectExpr("value", "timestamp_millis(ms) AS timestamp")
    frame.write.format("quire").mode("append").options(cluster=cluster.uri, create="true").save(name)
    read = spark.read.format("quire").option("cluster", cluster.uri).load(name)
    found = read.selectExpr("cast(value AS string) AS value", "unix_millis(timestamp) AS ms").collect()
    assert sorted((row.value, row.ms) for row in found) == [(str(time), time) for time in times]
