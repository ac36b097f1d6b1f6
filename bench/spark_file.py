"""The peer of claim S5: the entries of a log out of local files, cut into tasks and decoded as our source does.

What a read of the log costs more than this is what replication and the network cost. Spark's workers import this module,
so it must not import the harness.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from quire.spark.decode import ArrowBuilder, SourceLedger
from quire.spark.packing import usual_split
from quire.spark.read_options import ROWS_PER_BATCH
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


def cut(path: Path, split_bytes: int) -> Iterator[tuple[str, int, int]]:
    """A file in parts of about `split_bytes`, each of whole entries: (path, start, end)."""
    size = path.stat().st_size
    parts = ceil(size / split_bytes)
    at = start = number = 0
    with path.open("rb") as file:
        while at < size:
            file.seek(at)
            at += HEAD.size + HEAD.unpack(file.read(HEAD.size))[1]
            if at >= size * (number + 1) // parts:
                yield str(path), start, at
                start, number = at, number + 1


class FileReader(DataSourceReader):
    """Reads the files of a directory, in tasks of the size that our source's have."""

    def __init__(self, directory: str, schema: StructType) -> None:
        self._directory, self._projection = directory, project(schema)

    def partitions(self) -> Sequence[InputPartition]:
        """The parts of the files."""
        files = sorted(Path(self._directory).glob("*.entries"))
        split_bytes = usual_split(sum(path.stat().st_size for path in files), os.cpu_count() or 1)
        return [InputPartition(part) for path in files for part in cut(path, split_bytes)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One part's records."""
        builder = ArrowBuilder(self._projection, ROWS_PER_BATCH)
        path, at, end = partition.value
        with Path(path).open("rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        number = 0
        while at < end:
            first_offset, size = HEAD.unpack_from(data, at)
            at += HEAD.size
            view = BatchView.parse(data[at : at + size])
            builder.add_batch(SourceLedger("records", 0, first_offset), number, view, 0, view.count)
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
