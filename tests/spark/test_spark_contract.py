"""What we rely on in Spark's Python data source API, one probe for each; when Spark changes, these go red first.

The probe classes are made inside functions so that they travel to the workers by value. Source: Spark documentation.
"""

import pickle

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from quire.spark.versions import keeps_filters_apart

pytestmark = pytest.mark.spark

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def probe(read, *, schema="x bigint", partitions=None, push=None, hide=False):
    """A data source class whose reader runs the functions given."""

    class Reader(DataSourceReader):
        def __init__(self, options, schema):
            self.options, self.schema = dict(options), schema
            if hide:
                self.pushFilters = Hidden(push)

        def partitions(self):
            return partitions() if partitions else [InputPartition(1)]

        def read(self, partition):
            return read(self, partition)

    class Hidden:
        def __init__(self, call):
            self.call = call

        @property
        def __func__(self):
            return DataSourceReader.pushFilters

        def __call__(self, filters):
            return self.call(filters)

    if push and not hide:
        Reader.pushFilters = lambda self, filters: push(filters)

    class Probe(DataSource):
        @classmethod
        def name(cls):
            return "quire_probe"

        def schema(self):
            return schema

        def reader(self, schema):
            return Reader(self.options, schema)

    return Probe


def load(spark, source, *, schema=None, path=None, **options):
    spark.dataSource.register(source)
    reader = spark.read.format("quire_probe").options(**options)
    if schema:
        reader = reader.schema(schema)
    return reader.load(path) if path else reader.load()


def test_option_names_arrive_in_lower_case_and_the_path_as_an_option(spark):
    def read(self, partition):
        yield (sorted(self.options.items()).__repr__(),)

    frame = load(spark, probe(read, schema="x string"), path="orders", startingOffsets="Earliest")
    assert frame.first().x == "[('path', 'orders'), ('startingoffsets', 'Earliest')]"


def test_several_paths_arrive_as_json(spark):
    def read(self, partition):
        yield (self.options["paths"],)

    frame = load(spark, probe(read, schema="x string"), path=["a", "b"])
    assert frame.first().x == '["a","b"]'


def test_an_empty_list_of_partitions_becomes_one_without_a_value(spark):
    def read(self, partition):
        assert partition.value is None
        return iter(())

    frame = load(spark, probe(read, partitions=list))
    assert frame.rdd.getNumPartitions() == 1
    assert frame.count() == 0


def test_the_users_schema_reaches_the_reader(spark):
    def read(self, partition):
        yield tuple(1 for _ in self.schema.fields)

    assert load(spark, probe(read, schema="a bigint, b bigint"), schema="b bigint").first().asDict() == {
        "b": 1
    }


def test_selecting_columns_does_not_prune(spark):
    def read(self, partition):
        yield (1, len(self.schema.fields))

    assert load(spark, probe(read, schema="a bigint, b int")).select("b").first().b == 2


def test_a_batch_of_another_type_is_refused_in_words(spark):
    def read(self, partition):
        yield pa.RecordBatch.from_pydict({"x": pa.array([b"v"], pa.large_binary())})

    with pytest.raises(Exception, match="DATA_SOURCE_RETURN_SCHEMA_MISMATCH"):
        load(spark, probe(read, schema="x binary")).collect()


def test_timestamps_are_microseconds_in_utc(spark):
    def read(self, partition):
        yield pa.RecordBatch.from_arrays(
            [pa.array([1_700_000_000_000_000]).cast(pa.timestamp("us", "UTC"))],
            schema=pa.schema([pa.field("x", pa.timestamp("us", "UTC"))]),
        )

    frame = load(spark, probe(read, schema="x timestamp"))
    assert frame.selectExpr("cast(x AS string) AS x").first().x == "2023-11-14 22:13:20"


def test_batches_keep_their_size(spark):
    def read(self, partition):
        for size in (3, 20_000, 1):
            yield pa.RecordBatch.from_pydict({"x": list(range(size))})

    assert load(spark, probe(read)).count() == 20_004


def test_filters_are_handed_over_and_what_is_returned_stays_with_spark(spark, setting):
    setting(PUSHDOWN, "true")

    def push(filters):
        names = sorted(type(item).__name__ for item in filters)
        assert names == ["EqualTo", "GreaterThanOrEqual", "IsNotNull", "IsNotNull"], names
        return [item for item in filters if type(item).__name__ == "EqualTo"]

    def read(self, partition):
        yield (1, 7)
        yield (1, 8)

    frame = load(spark, probe(read, schema="a bigint, b bigint", push=push)).where("a >= 5 AND b = 7")
    assert [row.asDict() for row in frame.collect()] == [{"a": 1, "b": 7}]


def test_a_reader_with_push_filters_fails_when_the_setting_is_off(spark, setting):
    setting(PUSHDOWN, "false")
    with pytest.raises(AnalysisException, match="DATA_SOURCE_PUSHDOWN_DISABLED"):
        load(spark, probe(lambda self, partition: iter([(1,)]), push=list)).collect()


@pytest.mark.parametrize(("enabled", "rows"), [("true", 2), ("false", 0)])
def test_a_hidden_push_filters_works_both_ways(spark, setting, enabled, rows):
    setting(PUSHDOWN, enabled)

    def read(self, partition):
        yield (1,)
        yield (1,)

    # With the setting on, the filter is swallowed and rows pass; with it off, Spark applies the filter itself.
    frame = load(spark, probe(read, push=lambda filters: [], hide=True)).where("x = 5")
    assert frame.count() == rows


def test_spark_keeps_the_filters_of_one_query_for_the_next(spark, setting):
    """Spark's defect: red once Spark mends it. Then its version belongs in `quire.spark.versions.RIGHT_VERSIONS`."""
    setting(PUSHDOWN, "true")

    class Reader(DataSourceReader):
        below = 10

        def pushFilters(self, filters):
            self.below = 3
            return []

        def read(self, partition):
            yield from ((x,) for x in range(self.below))

    class Ten(DataSource):
        @classmethod
        def name(cls):
            return "quire_probe"

        def schema(self):
            return "x bigint"

        def reader(self, schema):
            return Reader()

    frame = load(spark, Ten)
    assert frame.where("x < 3").count() == 3
    assert (frame.count() == 10) == keeps_filters_apart(spark.version)


def test_the_last_line_of_a_driver_error_is_ours(spark):
    def partitions():
        raise ValueError("quire: this is the text.")

    with pytest.raises(AnalysisException, match="PYTHON_DATA_SOURCE_ERROR") as caught:
        load(spark, probe(lambda self, partition: iter(()), partitions=partitions)).collect()
    assert "ValueError: quire: this is the text." in str(caught.value)


def test_what_schema_sets_on_the_source_is_kept_for_every_plan(spark):
    """`quire.spark.as_of` rests on it: one end of each log for a frame, however often it is planned."""

    class Source(DataSource):
        loads = 0

        @classmethod
        def name(cls):
            return "quire_probe"

        def schema(self):
            self.loads = id(self)
            return "x bigint"

        def reader(self, schema):
            return Kept(self.loads)

    class Kept(DataSourceReader):
        def __init__(self, loads):
            self.loads = loads

        def read(self, partition):
            yield (self.loads,)

    frame = load(spark, Source)
    first = frame.first().x
    assert first > 0
    assert frame.union(frame.where("x > 0")).distinct().collect() == [(first,)]


def test_partition_values_are_pickled(spark):
    def read(self, partition):
        yield (sum(partition.value),)

    frame = load(spark, probe(read, partitions=lambda: [InputPartition((1, 2)), InputPartition((3,))]))
    assert sorted(row.x for row in frame.collect()) == [3, 3]
    assert pickle.loads(pickle.dumps(InputPartition((1, 2)))).value == (1, 2)


def test_discovery_finds_the_format_without_registration(spark):
    frame = spark.newSession().read.format("quire")
    with pytest.raises(AnalysisException, match="quire: name a log"):
        frame.option("cluster", "sqlite:/nowhere.db").load()


def test_save_modes_arrive_as_overwrite_or_not(spark):
    frame = spark.range(1).selectExpr("cast('x' AS binary) AS value")
    writer = frame.write.format("quire").option("cluster", "sqlite:/nowhere.db")
    with pytest.raises(AnalysisException, match="set allowTruncate=true if that is meant"):
        writer.mode("overwrite").save("orders")
    with pytest.raises(AnalysisException, match=r"nowhere\.db"):
        writer.mode("append").save("orders")
