"""The peer of claim S5: the entries of a log out of local files, a task for each, with the decoding of our source.

What a read of the log costs more than this is what replication and the network cost. Spark's workers import this module,
so it must not import the harness.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from quire.spark.decode import ArrowBuilder, Origin
from quire.spark.options import ROWS_PER_BATCH
from quire.spark.schema import default_schema, project
from quire.wire.batch import BatchView

if TYPE_CHECKING:
    import pyarrow as pa

    from quire.log.client import QuireClient

FORMAT = "quire-file"
HEAD = struct.Struct(">QI")
"""Before each entry: the offset of its ledger's first record, and its bytes."""


async def export(client: QuireClient, name: str, directory: Path) -> None:
    """Copy every entry of a log into files, one for each of its ledgers.

    Args:
        client: the cluster.
        name: the log; it is closed.
        directory: where to put the files.
    """
    directory.mkdir(parents=True)
    for number, item in enumerate((await client.log(name).describe()).items):
        with (directory / f"{number:04}.entries").open("wb") as file:
            async with await client.open_ledger(item.ledger_id, recover=False) as reader:
                async for entry in reader.read():
                    file.write(HEAD.pack(item.first_offset, len(entry.payload)))
                    file.write(entry.payload)


class FileReader(DataSourceReader):
    """Reads the files of a directory, each in a task."""

    def __init__(self, directory: str, schema: StructType) -> None:
        self._directory, self._projection = directory, project(schema)

    def partitions(self) -> Sequence[InputPartition]:
        """The files."""
        return [InputPartition(str(path)) for path in sorted(Path(self._directory).glob("*.entries"))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One file's records."""
        builder = ArrowBuilder(self._projection, ROWS_PER_BATCH)
        with Path(partition.value).open("rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        at = number = 0
        while at < len(data):
            first_offset, size = HEAD.unpack_from(data, at)
            at += HEAD.size
            view = BatchView.parse(data[at : at + size])
            builder.add_batch(Origin("records", 0, first_offset), number, view, 0, view.count)
            at, number = at + size, number + 1
            if builder.full:
                yield from builder.take()
        yield from builder.take()


class QuireFileSource(DataSource):
    """The format of such a directory."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """The columns of our source."""
        return default_schema(include_headers=False)

    def reader(self, schema: StructType) -> FileReader:
        """The reader of one plan."""
        return FileReader(self.options["path"], schema)
