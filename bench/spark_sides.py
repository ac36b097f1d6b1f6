"""What the Spark benchmarks share: one session that reaches Kafka, Parquet and Quire, and the same records on all three.

Kafka is one real node, broker and controller in one process, as it ships: it answers once its page cache has a record.
The connector is spark-sql-kafka. Quire is three bookies, every record on three of them, confirmed by two after a sync.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark

from harness import CPUS
from peers import OUT, TOOLS, PeerMissingError, QuireCluster
from quire.spark import cluster
from quire.spark.local import session

KEY = 8
"""Every record has a key of so many bytes."""
BEGUN_MS = 1_795_000_000_000
ROW_GROUP_BYTES = 32 << 20
BATCH_ROWS = 50_000


class KafkaPeer:
    """One Kafka node, started through `tools/kafka-peer`.

    Args:
        name: the directory under out/bench; its resolved jars stay, its data does not.
    """

    def __init__(self, name: str = "kafka") -> None:
        for program in ("java", "javac", "mvn"):
            if shutil.which(program) is None:
                raise PeerMissingError(
                    f"the Kafka peer needs a JDK and Maven, and there is no '{program}' on the PATH"
                )
        self.directory = OUT / name
        self._env = {
            **os.environ,
            "KAFKA_HEAP": "1g",
            "KAFKA_WAIT": "300",
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
        }
        self.servers = ""

    def __enter__(self) -> Self:
        self._peer("stop")
        shutil.rmtree(self.directory / "data", ignore_errors=True)
        self.servers = self._peer("start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._peer("stop")
        shutil.rmtree(self.directory / "data", ignore_errors=True)

    def spark_jars(self) -> str:
        """The connector's jars, as `spark.jars` takes them."""
        return self._peer("spark-jars")

    def version(self) -> str:
        """What is measured, with the connector."""
        broker = next(self.directory.glob("kafka-*/kafka_*.jar"), None)
        connector = next(self.directory.glob("spark-kafka-*/spark-sql-kafka-*.jar"), None)
        names = [path.stem.rpartition("-")[2] for path in (broker, connector) if path is not None]
        return f"Apache Kafka {' with spark-sql-kafka '.join(names)}"

    def _peer(self, verb: str, *words: str) -> str:
        command = [str(TOOLS / "kafka-peer"), verb, str(self.directory), *words]
        done = subprocess.run(command, env=self._env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise PeerMissingError(f"kafka-peer {verb} failed: {done.stderr.strip().splitlines()[-1:]}")
        return done.stdout.strip()


@dataclass(frozen=True)
class Sides:
    """All sides, running."""

    spark: Any
    quire: QuireCluster
    kafka: KafkaPeer

    def log(self, name: str, **options: object) -> Any:
        """A log, or `ledger:N`, as a frame."""
        return self.spark.read.format("quire").options(cluster=self.quire.uri, **options).load(name)

    def topic(self, name: str, **options: object) -> Any:
        """A topic as a frame."""
        reader = self.spark.read.format("kafka").option("kafka.bootstrap.servers", self.kafka.servers)
        return reader.option("subscribe", name).options(**options).load()

    def to_log(self, frame: Any, name: str, **options: object) -> None:
        """Append a frame to a log, which is made if there is none."""
        writer = frame.write.format("quire").mode("append").options(cluster=self.quire.uri, **options)
        writer.option("create", "true").save(name)

    def to_topic(self, frame: Any, name: str) -> None:
        """Append a frame's keys and values to a topic."""
        writer = frame.select("key", "value").write.format("kafka")
        writer.option("kafka.bootstrap.servers", self.kafka.servers).option("topic", name).save()

    def create_topic(self, name: str) -> None:
        """Make a topic with a partition for each CPU."""
        topic = self._jvm.org.apache.kafka.clients.admin.NewTopic(name, CPUS, 1)
        self._administer(lambda client, java: client.createTopics(java.util.List.of(topic)))

    def forget(self, name: str) -> None:
        """Delete a log and a topic."""
        self._administer(lambda client, java: client.deleteTopics(java.util.List.of(name)))
        cluster.call(self.quire.uri, lambda client: client.delete_log(name))

    @property
    def _jvm(self) -> Any:
        return self.spark.sparkContext._jvm  # noqa: SLF001 - PySpark has no other way in

    def _administer(self, act: Callable[[Any, Any], Any]) -> None:
        """Ask the broker for something, in Spark's own JVM: another one takes seconds to start."""
        jvm = self._jvm
        settings = jvm.java.util.Properties()
        settings.put("bootstrap.servers", self.kafka.servers)
        client = jvm.org.apache.kafka.clients.admin.Admin.create(settings)
        try:
            act(client, jvm.java).all().get()
        finally:
            client.close()


@contextmanager
def spark_sides(name: str) -> Iterator[Sides]:
    """Start Kafka, our cluster and a session on as many CPUs as the benchmark has.

    Args:
        name: the directory of our cluster.
    """
    _show_benchmarks_to_workers()
    with ExitStack() as stack:
        kafka = KafkaPeer()
        jars = kafka.spark_jars()
        stack.enter_context(kafka)
        quire = stack.enter_context(QuireCluster(name))
        conf = {
            "spark.jars": jars,
            "spark.driver.memory": "3g",
            "spark.log.level": "ERROR",
            # A machine that stands still must not make Spark give its own executor up.
            "spark.network.timeout": "3600s",
            "spark.sql.warehouse.dir": str(OUT / "spark-warehouse"),
        }
        spark = session(master=f"local[{CPUS}]", app_name="bench", **conf)
        stack.callback(spark.stop)
        yield Sides(spark, quire, kafka)


def _show_benchmarks_to_workers() -> None:
    """Put this folder on PYTHONPATH: the JVM starts Spark's workers, and what they unpickle must be importable there."""
    here = str(Path(__file__).resolve().parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([here, *os.environ.get("PYTHONPATH", "").split(os.pathsep)])


def table(directory: Path, records: int, size: int) -> Path:
    """Records of random bytes as Parquet without compression, a file for each CPU, with the columns of our source.

    Args:
        directory: where to put the files.
        records: how many.
        size: bytes of a value.
    """
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    chance = np.random.default_rng(size)
    kind = pa.timestamp("us", "UTC")
    group = max(1, ROW_GROUP_BYTES // size)
    for part in range(CPUS):
        start, end = records * part // CPUS, records * (part + 1) // CPUS
        writer: pq.ParquetWriter | None = None
        for first in range(start, end, group):
            count = min(group, end - first)
            offsets = np.arange(first, first + count)
            columns = {
                "key": _binary(chance.bytes(count * KEY), KEY),
                "value": _binary(chance.bytes(count * size), size),
                "log": pa.repeat(pa.scalar("records"), count),
                "offset": pa.array(offsets),
                "timestamp": pa.array((BEGUN_MS + offsets) * 1000, kind),
            }
            rows = pa.table(columns)
            if writer is None:
                path = directory / f"part-{part}.parquet"
                writer = pq.ParquetWriter(path, rows.schema, compression="none", use_dictionary=["log"])
            writer.write_table(rows, row_group_size=group)
        if writer is not None:
            writer.close()
    return directory


def _binary(data: bytes, size: int) -> pa.Array:
    count = len(data) // size
    offsets = np.arange(0, len(data) + 1, size, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def noop(frame: Any) -> float:
    """The seconds that it takes to make every row of a frame, which then is thrown away.

    Args:
        frame: it, or a function that loads it, whose time counts.
    """
    begun = time.perf_counter()
    (frame() if callable(frame) else frame).write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begun


def content(frame: Any) -> tuple[Any, ...]:
    """How many records, and a checksum of their values in any order."""
    return tuple(frame.selectExpr("count(*)", "sum(crc32(value))").collect()[0])


def must_be_equal(found: dict[str, tuple[Any, ...]]) -> None:
    """Refuse to measure sides that read different records.

    Raises:
        RuntimeError: naming what each has.
    """
    if len(set(found.values())) != 1:
        raise RuntimeError(f"the sides hold different records, so the round is void: {found}")
