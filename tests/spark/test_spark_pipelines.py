"""A declarative pipeline with a log as its source and a log as its sink: run twice, nothing comes twice."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SPEC = """
name: edits
storage: file://{folder}/storage
libraries:
  - glob:
      include: transformations/**
"""
FLOWS = '''
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()


@dp.table(format="parquet")
def edits():
    """Every edit, as a table."""
    return spark.readStream.format("quire").load("edits").selectExpr("offset", "cast(key AS string) AS path", "value")


dp.create_sink("clean", "quire", {"log": "edits-clean", "create": "true"})


@dp.append_flow(target="clean")
def upper():
    """The edits of one folder, in a log of their own."""
    edits = spark.readStream.format("quire").load("edits")
    return edits.where("key < 'path 50'").selectExpr("key", "upper(cast(value AS string)) AS value")
'''


def run(folder, uri):
    environment = {
        **os.environ,
        "QUIRE_CLUSTER": uri,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "SPARK_TESTING": "1",
    }
    command = [str(Path(sys.executable).parent / "spark-pipelines"), "run"]
    command += ["--conf", "spark.sql.catalogImplementation=hive", "--conf", "spark.ui.enabled=false"]
    done = subprocess.run(
        [*command, "--spec", str(folder / "spark-pipeline.yml")],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


async def append(client, first, stop):
    log = client.log("edits")
    if not await log.exists():
        await log.create()
    async with await log.open_writer() as writer:
        numbers = range(first, stop)
        await writer.append_many(
            [b"v%d" % n for n in numbers], keys=[b"path %02d" % (n % 100) for n in numbers]
        )


async def values(client):
    return [record.value async for record in client.log("edits-clean").read()]


def test_a_pipeline_adds_what_is_new_and_nothing_twice(own_cluster, tmp_path):
    (tmp_path / "transformations").mkdir()
    (tmp_path / "transformations" / "flows.py").write_text(FLOWS)
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(folder=tmp_path))
    own_cluster.run(append, 0, 200)
    run(tmp_path, own_cluster.uri)
    expected = [b"V%d" % n for n in range(300) if n % 100 < 50]
    assert own_cluster.run(values) == expected[:100]
    own_cluster.run(append, 200, 300)
    run(tmp_path, own_cluster.uri)
    assert own_cluster.run(values) == expected
