"""What the readers do with a query's filters, and threads with a client, without Spark."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, IsNotNull
from pyspark.sql.types import LongType, StructField, StructType

from quire.spark import cluster, readers, versions
from quire.spark.options import SparkOptions, Use
from quire.spark.read_options import READ_OPTIONS, parse
from quire.spark.readers import RecordReader

FILTERS = [IsNotNull(("offset",)), GreaterThanOrEqual(("offset",), 5), EqualTo(("log",), "orders")]


def new_reader():
    options = parse(SparkOptions({"cluster": "sqlite:/c.db", "path": "orders"}, READ_OPTIONS), Use.BATCH)
    return RecordReader(options, StructType([StructField("offset", LongType())]))


def test_filters_are_taken_only_from_a_spark_that_keeps_queries_apart(monkeypatch, caplog):
    readers._say_that_nothing_is_pruned.cache_clear()
    for _ in range(2):
        assert new_reader().pushFilters(FILTERS) == FILTERS
    [warning] = caplog.records
    assert f"{versions.FILTERS_SETTING}=true" in warning.getMessage()
    assert "set the setting to false" in warning.getMessage()
    monkeypatch.setattr(versions, "RIGHT_VERSIONS", frozenset({"4.2", "4.3"}))
    assert new_reader().pushFilters(FILTERS) == FILTERS[2:]


def test_a_version_is_compared_by_its_first_two_numbers(monkeypatch):
    monkeypatch.setattr(versions, "RIGHT_VERSIONS", frozenset({"4.4"}))
    assert [versions.keeps_filters_apart(version) for version in ("4.4.0", "4.4", "4.40.1", "4.3.0", "")] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_threads_that_begin_together_share_a_client(monkeypatch):
    both, made, waiting = threading.Event(), [], []

    class Lock:
        def __init__(self):
            self._lock = threading.Lock()

        def __enter__(self):
            waiting.append(threading.current_thread())
            if len(waiting) == 2:
                both.set()
            self._lock.acquire()

        def __exit__(self, *_):
            self._lock.release()

    async def connect(uri):
        made.append(uri)
        if len(made) == 2:
            both.set()
        await asyncio.get_running_loop().run_in_executor(None, both.wait)
        return SimpleNamespace(store=SimpleNamespace(is_current=True))

    monkeypatch.setattr(cluster, "_clients", {})
    monkeypatch.setattr(cluster, "_connect", connect)
    monkeypatch.setattr(cluster, "_connecting", Lock(), raising=False)
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(cluster.client_of, ["sqlite:x"] * 2)
    assert first is second
    assert made == ["sqlite:x"]
