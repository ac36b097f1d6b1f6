"""Archived records of a log: one Parquet file per stretch of offsets, checked wherever it is read.

The file is plain Parquet, for every engine. Its footer carries a manifest with the offsets, locations and checksums of its
row groups; the footer's digest is in the file's name and in the log's list. So a reader that knows the list checks the
few bytes that it reads, and an object that was changed, truncated or replaced is detected. Prose:
`docs/formats/archive.md`.

Source: docs/spark-jobs.md, "Archive"; docs/formats/archive.md.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from crc32c import crc32c

from quire.core.errors import StorageError
from quire.distribution import Extra, require

require(Extra.ARROW, "quire.log.archive")

import pyarrow as pa  # noqa: E402 - what is absent is named above
import pyarrow.compute as pc  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
from pyarrow import fs  # noqa: E402

VERSION: Final = 1
DIGEST_BYTES: Final = 16
MANIFEST_KEY: Final = b"quire"
_MAGIC: Final = b"PAR1"
_END_BYTES: Final = 8
_OFFSET_DIGITS: Final = 19

SCHEMA: Final = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field(
            "headers",
            pa.list_(
                pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
            ),
        ),
        pa.field("ledger", pa.int64(), nullable=False),
        pa.field("entry", pa.int64(), nullable=False),
        pa.field("index", pa.int32(), nullable=False),
    ]
)
"""The columns of an archive file, in this order."""


class ArchiveError(StorageError):
    """An archive file is missing, cut, or not what the log's list says."""


class ArchiveLostError(ArchiveError):
    """What was archived is lost: its directory is there and the file is not, or has other bytes."""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One row group of an archive's Parquet file.

    Attributes:
        first: offset of its first record; `next` is one after its last.
        rows: its records; after compaction fewer than offsets.
        start: its bytes in the file, from here up to, not including, `end`.
        crc32c: of these bytes.
        min_ms: smallest time of a record; `max_ms` the greatest.
    """

    first: int
    next: int
    rows: int
    start: int
    end: int
    crc32c: int
    min_ms: int
    max_ms: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """What an archive's file says of itself in its footer."""

    log: str
    log_id: str
    groups: tuple[RowGroup, ...]


@dataclass(frozen=True, slots=True)
class ArchiveLocation:
    """Where a stretch of a log is archived, and what must be there.

    Attributes:
        directory: the log's archive, as a path or a URI that pyarrow knows.
        log_id: 32 hex digits.
        first: the first offset.
        next: the one after the last.
        digest: of the file's footer.
    """

    directory: str
    log_id: str
    first: int
    next: int
    digest: bytes

    @property
    def name(self) -> str:
        """The file's name below the directory."""
        first, stop = (f"{offset:0{_OFFSET_DIGITS}d}" for offset in (self.first, self.next))
        return f"{self.log_id}/{first}-{stop}-{self.digest.hex()}.parquet"

    @property
    def path(self) -> str:
        """The file's path or URI."""
        return f"{self.directory.rstrip('/')}/{self.name}"


# --- writing ---------------------------------------------------------------------------------------------------------


class _Counted(io.RawIOBase):
    """Passes bytes on and keeps the position and the checksum of what came since `begin`."""

    def __init__(self, sink: Any) -> None:
        self._sink = sink
        self.position = 0
        self.checksum = 0

    def begin(self) -> int:
        self.checksum = 0
        return self.position

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.position

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._sink.write(view)
        self.checksum = crc32c(view, self.checksum)
        self.position += len(view)
        return len(view)


def write_archive(sink: Any, tables: Iterable[pa.Table], *, log: str, log_id: str) -> Manifest:
    """Write a file.

    Args:
        sink: takes bytes with `write`; closing it is the caller's.
        tables: `SCHEMA`, records in the order of their offsets, none empty; each becomes one row group.
        log: the log's name, for people.
        log_id: its id, 32 hex digits.

    Returns:
        The manifest. The digest is `read_footer`'s: read the file back before the list names it.
    """
    counted = _Counted(sink)
    groups: list[RowGroup] = []
    with pq.ParquetWriter(
        pa.PythonFile(counted, "w"),
        SCHEMA,
        compression="zstd",
        use_dictionary=["key"],
        write_page_checksum=True,
    ) as writer:
        for table in tables:
            start = counted.begin() or len(_MAGIC)
            offsets, times = table.column("offset"), table.column("timestamp").cast(pa.int64())
            writer.write_table(table.cast(SCHEMA), row_group_size=table.num_rows)
            low, high = (pc.min_max(times)[name].as_py() for name in ("min", "max"))
            groups.append(
                RowGroup(
                    offsets[0].as_py(),
                    offsets[-1].as_py() + 1,
                    table.num_rows,
                    start,
                    counted.position,
                    counted.checksum,
                    low,
                    high,
                )
            )
        manifest = Manifest(log, log_id, tuple(groups))
        text = json.dumps({"v": VERSION, **asdict(manifest)})
        writer.add_key_value_metadata({MANIFEST_KEY.decode(): text})
    return manifest


# --- reading ---------------------------------------------------------------------------------------------------------


class _Window(io.RawIOBase):
    """A file of which only some bytes are here: what was checked, and nothing else."""

    def __init__(self, size: int, start: int, data: bytes) -> None:
        self._size, self._start, self._data, self._at = size, start, data, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        end = self._size if size < 0 else min(self._at + size, self._size)
        if self._at < self._start or end > self._start + len(self._data):
            raise ArchiveError(f"bytes {self._at} to {end} of an archive file were requested and not checked")
        found = self._data[self._at - self._start : end - self._start]
        self._at = end
        return found


class ArchiveFile:
    """A file whose footer is what the log's list says. Made by `open_archive`."""

    def __init__(self, location: ArchiveLocation, source: pa.NativeFile, size: int, footer: bytes) -> None:
        self.location = location
        self._source, self._size = source, size
        self._metadata = pq.read_metadata(pa.BufferReader(_MAGIC + footer))
        self.manifest = _manifest(location, self._metadata)

    def read(self, number: int, columns: Sequence[str]) -> pa.Table:
        """Some columns of one row group.

        Raises:
            ArchiveLostError: its bytes are not the ones that were written.
            ArchiveError: they cannot be read now.
        """
        group = self.manifest.groups[number]
        try:
            self._source.seek(group.start)
            data = self._source.read(group.end - group.start)
        except OSError as error:
            raise _unread(self.location, error) from error
        if len(data) != group.end - group.start or crc32c(data) != group.crc32c:
            raise ArchiveLostError(
                f"archive file {self.location.path}: row group {number} (offsets {group.first} to {group.next - 1}) differs "
                "from its checksum",
                path=self.location.path,
            )
        window = pa.PythonFile(_Window(self._size, group.start, data), "r")
        file = pq.ParquetFile(window, metadata=self._metadata)
        return file.read_row_group(number, columns=list(columns), use_threads=False)


def open_archive(location: ArchiveLocation) -> ArchiveFile:
    """Open a file and check its footer.

    Raises:
        ArchiveLostError: it is missing, or differs from the log's list.
        ArchiveError: it cannot be read now, or it is unknown whether it is missing.
    """
    try:
        system, path = (
            fs.FileSystem.from_uri(location.path)
            if "://" in location.path
            else (fs.LocalFileSystem(), location.path)
        )
        source = _opened(system, path, location)
        size, footer = read_footer(source)
    except OSError as error:
        raise _unread(location, error) from error
    if footer_digest(footer) != location.digest:
        raise ArchiveLostError(
            f"archive file {location.path}: its footer differs from the one recorded in the log's list",
            path=location.path,
        )
    return ArchiveFile(location, source, size, footer)


def _opened(system: fs.FileSystem, path: str, location: ArchiveLocation) -> pa.NativeFile:
    """The file; one that is missing is lost only if the directory of the log's files is there: else a disk may be away."""
    try:
        return system.open_input_file(path)
    except FileNotFoundError as error:
        system.get_file_info(fs.FileSelector(path.rpartition("/")[0]))
        raise ArchiveLostError(
            f"archive file {location.path} is missing from its directory", path=location.path
        ) from error


def _unread(location: ArchiveLocation, error: OSError) -> ArchiveError:
    return ArchiveError(f"archive file {location.path} cannot be read: {error}", path=location.path)


def read_footer(source: pa.NativeFile) -> tuple[int, bytes]:
    """A Parquet file's size and its last bytes: the metadata, their length, the magic. Empty for what is none."""
    size = source.size()
    source.seek(max(size - _END_BYTES, 0))
    end = source.read(_END_BYTES)
    length = int.from_bytes(end[:4], "little") + _END_BYTES
    if len(end) != _END_BYTES or not end.endswith(_MAGIC) or length > size:
        return size, b""
    source.seek(size - length)
    return size, source.read(length)


def footer_digest(footer: bytes) -> bytes:
    """What the list and the file's name hold."""
    return hashlib.blake2b(footer, digest_size=DIGEST_BYTES).digest()


def _manifest(location: ArchiveLocation, metadata: pq.FileMetaData) -> Manifest:
    """The manifest of a footer whose digest is right: it is what some Quire wrote."""
    parsed = json.loads((metadata.metadata or {}).get(MANIFEST_KEY, b"{}"))
    if parsed.get("v") != VERSION or parsed["log_id"] != location.log_id:
        raise ArchiveError(
            f"archive file {location.path}: its manifest has version {parsed.get('v')} and is of log {parsed.get('log_id')}",
            path=location.path,
        )
    return Manifest(parsed["log"], parsed["log_id"], tuple(RowGroup(**group) for group in parsed["groups"]))
