"""The `quire` format of Spark: where Spark's Python data source API meets the rest.

Spark makes a `QuireDataSource` in a process of its own on the driver and asks it for a reader or a writer. Names of
options are checked in the constructor, their values in `schema`, `reader` and their like: an error that is raised there
reaches the user as one sentence, without frames of Spark's planner.

Source: docs/spark.md; Spark documentation: `DataSource`.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import replace

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from quire.spark.as_of import fix
from quire.spark.options import SparkOptions, Use
from quire.spark.positions import AsOf
from quire.spark.read_options import READ_OPTIONS, parse
from quire.spark.readers import DescribeReader, LogStreamReader, OneSentence, RecordReader
from quire.spark.schema import DESCRIPTIONS, default_schema
from quire.spark.sink import BatchSink, StreamSink
from quire.spark.write_options import WRITE_OPTIONS


class QuireDataSource(DataSource):
    """Logs and ledgers as tables: `spark.read.format("quire").load("orders")`. Which part does what is decided here.

    Args:
        options: Spark's options; the tables are `quire.spark.read_options.READ_OPTIONS` and `WRITE_OPTIONS`.

    Raises:
        SparkUseError: an option that is unknown, or a catalog table, for which Spark keeps no options.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._raw = SparkOptions(options, (*READ_OPTIONS, *WRITE_OPTIONS))
        self._fixed: AsOf | None = None

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "quire"

    def schema(self) -> StructType | str:
        """The columns without `.schema(...)`; where the logs end is fixed here for every plan of the frame.

        Spark asks for it when the frame is loaded, and keeps this object as it is then.
        """
        with OneSentence():
            options = parse(self._raw, Use.READ)
            if options.describe is not None:
                return DESCRIPTIONS[options.describe]
            self._fixed = fix(options)
            return default_schema(include_headers=options.include_headers, as_of=self._fixed)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of one plan; the schema is the default one or the user's, a projection."""
        with OneSentence():
            options = parse(self._raw, Use.BATCH)
            if options.describe is not None:
                return DescribeReader(options, schema)
            if options.as_of is None:
                options = replace(options, as_of=self._fixed)
            return RecordReader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """The reader of one stream."""
        with OneSentence():
            return LogStreamReader(parse(self._raw, Use.STREAM), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The writer of one frame."""
        return BatchSink(self._raw, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802 - Spark's name
        """The writer of a stream."""
        return StreamSink(self._raw, schema, overwrite=overwrite)
