"""For random filters, unions, self-joins, views, options and codecs, Spark's answer is what the client's records say."""

import random

import pytest

from quire.log import batching
from quire.log.config import LogConfig
from quire.log.times import TIME_MS_MAX, TIME_MS_MIN
from quire.spark.versions import FILTERS_SETTING
from support.rounds import rounds
from support.spark_questions import QUESTIONS, Row, make_part

pytestmark = pytest.mark.spark

T0 = 1_795_000_000_000
QUESTIONS_OF_A_PART = 5


def record(i):
    key = None if i % 7 == 0 else b"key-%d" % (i % 5)
    value = None if i % 11 == 0 else b"value %d" % i
    headers = [("source", b"%d" % i), ("empty", None)] if i % 13 == 0 else None
    return key, value, headers, T0 + i * 7919 % 400


def sink(spark, cluster, name, count, **options):
    """More records of a log, by Spark's own sink."""
    frame = spark.sql(
        "SELECT IF(id % 5 = 0, NULL, cast(concat('k', id) AS binary)) AS key, cast(concat('s', id) AS binary) AS value, "
        "IF(id % 3 = 0, array(), array(named_struct('key', 'h', 'value', cast('x' AS binary)))) AS headers, "
        f"timestamp_millis({T0} + id * 31 % 400) AS timestamp FROM range(0, {count}, 1, 2)"
    )
    writer = frame.write.format("quire").mode("append").option("cluster", cluster.uri).options(**options)
    writer.option("create", True).save(name)


@pytest.fixture(scope="module")
def logs(spark, cluster):
    """Three logs with entries of every codec, a record with an impossible time, an open end; and the client's records."""
    cluster.fill("answers/client", [record(i) for i in range(300)], roll_bytes=4_000, batch_bytes_max=700)
    cluster.fill("answers/mixed", [record(i) for i in range(80)], batch_bytes_max=900)
    for number, (codec, compression) in enumerate([("arrow", "zstd"), ("rows", "none"), ("arrow", "none")]):
        sink(spark, cluster, "answers/mixed", 60 + number, codec=codec, compression=compression)
    sink(spark, cluster, "answers/sink", 90, compression="lz4")

    async def as_before(client):
        """Records of one entry each, as a writer of before made them: any number was a time."""
        config = LogConfig(batch_records_max=1)
        async with await client.log("answers/mixed", config=config).open_writer() as writer:
            for time in (2**60, T0 + 5, -(2**60)):
                await writer.append(b"one", timestamp_ms=time)

    async def read(client, name):
        return [found async for found in client.log(name).read()]

    patch = pytest.MonkeyPatch()
    with patch.context() as patched:
        patched.setattr(batching, "TIME_MS_MAX", 2**63 - 1)
        patched.setattr(batching, "TIME_MS_MIN", -(2**63))
        cluster.run(as_before)
    return {
        name: [
            Row(
                name,
                each.offset,
                each.key,
                each.value,
                each.timestamp_ms if TIME_MS_MIN <= each.timestamp_ms <= TIME_MS_MAX else None,
                each.headers or None,
            )
            for each in cluster.run(read, name)
        ]
        for name in ("answers/client", "answers/mixed", "answers/sink")
    }


@pytest.mark.parametrize("handed", [pytest.param("false", marks=pytest.mark.slow), "true"])
def test_sparks_answer_is_the_clients(spark, cluster, logs, setting, handed):
    setting(FILTERS_SETTING, handed)
    for seed in range(rounds(1, 300)):
        chance = random.Random(f"{handed} {seed}")
        parts = [make_part(chance, spark, cluster.uri, logs, f"part_{number}") for number in range(2)]
        for _ in range(QUESTIONS_OF_A_PART):
            asked, found, wanted = chance.choice(QUESTIONS)(chance, spark, parts)
            assert found == wanted, (seed, asked, [part.options for part in parts])
