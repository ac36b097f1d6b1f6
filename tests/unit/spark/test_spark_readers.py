"""What the readers do with a query's filters, without Spark."""

from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, IsNotNull
from pyspark.sql.types import LongType, StructField, StructType

from quire.spark import readers, versions
from quire.spark.given import Given, Use
from quire.spark.options import READ_OPTIONS, parse
from quire.spark.readers import RecordReader

FILTERS = [IsNotNull(("offset",)), GreaterThanOrEqual(("offset",), 5), EqualTo(("log",), "orders")]


def new_reader():
    options = parse(Given({"cluster": "sqlite:/c.db", "path": "orders"}, READ_OPTIONS), Use.BATCH)
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
