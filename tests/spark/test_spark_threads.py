"""A second Python thread has a JVM thread of its own, which Spark has told of no session: it writes all the same."""

import threading

import pytest

pytestmark = pytest.mark.spark


def in_a_thread(work):
    """What a function returns or raises in a thread of its own."""
    found = []

    def run():
        try:
            found.append(work())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


def test_any_thread_writes(spark, cluster):
    frame = spark.range(10, numPartitions=1).selectExpr("cast(id AS string) AS value")

    def write():
        options = {"cluster": cluster.uri, "create": "true"}
        frame.write.format("quire").mode("append").options(**options).save("by-thread")
        return spark.read.format("quire").option("cluster", cluster.uri).load("by-thread").count()

    assert in_a_thread(write) == 10


@pytest.mark.slow
def test_any_thread_starts_a_stream(spark, cluster, tmp_path):
    cluster.fill("numbers", [(None, b"%d" % number, None, 1) for number in range(10)])

    def stream():
        query = (
            spark.readStream.format("quire")
            .option("cluster", cluster.uri)
            .load("numbers")
            .select("value")
            .writeStream.format("quire")
            .options(checkpointLocation=str(tmp_path), cluster=cluster.uri, create="true")
            .trigger(availableNow=True)
            .start("numbers-again")
        )
        query.awaitTermination()
        return spark.read.format("quire").option("cluster", cluster.uri).load("numbers-again").count()

    assert in_a_thread(stream) == 10


def test_a_session_that_a_thread_has_stays_its_own(spark):
    other = spark.newSession()

    def ask():
        other.createDataFrame([(1,)], "x int")  # which makes the session this thread's
        spark.range(1).write  # noqa: B018 - asking for the writer is what is tested
        sessions = spark._get_j_spark_session_class(spark._jvm)
        return sessions.getActiveSession().get().equals(other._jsparkSession)

    assert in_a_thread(ask) is True
