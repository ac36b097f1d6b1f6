"""Spark Connect: the same reads, writes, streams and jobs from a client that has no JVM of its own.

A process has one session, and that of the other tests is no remote one: this one is in a process of its own.
"""

import json
import os
import subprocess
import sys

import pytest

from quire.spark.local import session
from quire.spark.options import SparkUseError

pytestmark = [pytest.mark.spark, pytest.mark.slow]

CLIENT = """
import json, sys, tempfile
import quire.spark
from quire.spark.jobs import command, compact, replay, rewrite

cluster, folder = sys.argv[1:]
spark = quire.spark.session(
    remote="local[2]", **{"spark.sql.shuffle.partitions": 2, "spark.ui.enabled": "false", "spark.log.level": "OFF"}
)
found = {"session": type(spark).__module__}
frame = spark.range(100).selectExpr("cast(id % 7 AS string) AS key", "cast(id AS string) AS value")
for _ in range(3):
    frame.write.format("quire").mode("append").option("create", True).save("orders")
orders = spark.read.format("quire").load("orders")
found["count"] = orders.count()
found["last"] = [row.offset for row in orders.where("offset >= 297").orderBy("offset").collect()]
query = (
    spark.readStream.format("quire").option("cursor", "copy").load("orders").select("key", "value")
    .writeStream.format("quire").option("create", True).option("checkpointLocation", folder + "/checkpoint")
    .trigger(availableNow=True).start("copy")
)
query.awaitTermination()
found["copied"] = spark.read.format("quire").load("copy").count()
found["marks"] = spark.read.format("quire").option("describe", "marks").load("copy").count()
found["rolled"] = rewrite.run(spark, rewrite.plan(cluster, "orders"), folder + "/rolled").replaced
work = compact.plan(spark, cluster, "orders", older_than_ms=-86_400_000)
found["kept"] = compact.run(spark, work, folder + "/compacted").kept
found["state"] = replay.run(spark, cluster=cluster, log="orders", table=folder + "/state").keys
try:
    spark.read.format("quire").load("ordres").count()
except Exception as error:
    found["error"] = command.last_line(error)
print(json.dumps(found))
spark.stop()
"""


def test_batch_stream_and_jobs_over_spark_connect(own_cluster, tmp_path):
    environment = {
        **os.environ,
        "QUIRE_CLUSTER": own_cluster.uri,
        "SPARK_TESTING": "1",  # a free port for the server
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, own_cluster.uri, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("session") == "pyspark.sql.connect.session"
    assert found.pop("error").startswith("quire: no log 'ordres' at ")
    assert found == {
        "count": 300,
        "last": [297, 298, 299],
        "copied": 300,
        "marks": 1,
        "rolled": 0,
        "kept": 7,
        "state": 7,
    }


def test_a_session_has_a_master_or_a_server():
    with pytest.raises(SparkUseError, match="not both"):
        session(master="local[1]", remote="sc://elsewhere")
