"""Files of a log's records: JSON lines, length-delimited records, lines, Parquet.

A file is written under another name next to its own and renamed when it is whole. Parquet has the columns of `quire.log.archive.SCHEMA`.
"""

from __future__ import annotations

import contextlib
import os
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from quire.cli.console.record_streams import BadInputError, InputRecord, look_for
from quire.cli.log.record_lines import Form, json_line, marked, read_log_records
from quire.core.errors import MisuseError
from quire.distribution import Extra, require

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from quire.cli.console.output import ProgressLine
    from quire.log.records import Record

_ROWS_MAX: Final = 65_536
_ROWS_BYTES_MAX: Final = 32 * 1024 * 1024
_COLUMNS: Final = ("value", "key", "timestamp", "headers")


class FileForm(StrEnum):
    """How a file holds records."""

    LINES = "lines"
    DELIMITED = "delimited"
    JSON = "json"
    PARQUET = "parquet"


_BY_NAME: Final = {
    ".json": FileForm.JSON,
    ".jsonl": FileForm.JSON,
    ".ndjson": FileForm.JSON,
    ".delimited": FileForm.DELIMITED,
    ".parquet": FileForm.PARQUET,
}


def file_form_of(text: str | None, file: Path, *, lines: bool) -> FileForm:
    """The form of a file, from `--format` or its name.

    Args:
        text: the option.
        file: the file.
        lines: whether lines of values are allowed.

    Raises:
        MisuseError: neither says one that there is.
        MissingExtraError: it is Parquet, and pyarrow is not installed.
    """
    allowed = [str(form) for form in FileForm if lines or form is not FileForm.LINES]
    if text is not None and text not in allowed:
        raise MisuseError(f"--format takes {', '.join(allowed)}; not {text!r}.")
    found = _BY_NAME.get(file.suffix.lower()) if text is None else FileForm(text)
    if found is None:
        raise MisuseError(f"the name of {file} does not say its form: give --format {'|'.join(allowed)}.")
    if found is FileForm.PARQUET:
        require(Extra.ARROW, "A Parquet file")
    return found


# --- out ----------------------------------------------------------------------------------------------------------


async def export_records(
    records: AsyncIterator[Record], file: Path, form: FileForm, progress: ProgressLine
) -> None:
    """Write records to a file; it is at its place when all of them are on the disk.

    Args:
        records: what to write.
        file: the place; what was there is replaced.
        form: how.
        progress: counts records.

    Raises:
        OSError: the file cannot be written; what was at its place is still there.
    """
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        with part.open("xb") as stream:
            writer: Any = _Rows(stream) if form is FileForm.PARQUET else _Lines(stream, form)
            async for record in records:
                writer.write(record)
                progress.advance(1, len(record.value or b""))
            writer.close()
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(file)
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


class _Lines:
    """JSON lines or length-delimited records."""

    def __init__(self, stream: Any, form: FileForm) -> None:
        self._stream, self._json = stream, form is FileForm.JSON

    def write(self, record: Record) -> None:
        self._stream.write(json_line(record) if self._json else marked(record, times=True))

    def close(self) -> None:
        pass


class _Rows:
    """A Parquet file, a row group at a time."""

    def __init__(self, stream: Any) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        from quire.log.archive import SCHEMA

        self._pa, self._schema = pa, SCHEMA
        self._writer = pq.ParquetWriter(
            stream, SCHEMA, compression="zstd", use_dictionary=["key"], write_page_checksum=True
        )
        self._rows: list[tuple[Any, ...]] = []
        self._bytes = 0

    def write(self, record: Record) -> None:
        headers = [{"key": name, "value": value} for name, value in record.headers]
        self._rows.append(
            (
                record.offset,
                record.timestamp_ms,
                record.key,
                record.value,
                headers,
                record.ledger_id,
                record.entry_id,
                record.index,
            )
        )
        self._bytes += len(record.key or b"") + len(record.value or b"")
        if len(self._rows) >= _ROWS_MAX or self._bytes >= _ROWS_BYTES_MAX:
            self._flush()

    def _flush(self) -> None:
        columns = zip(*self._rows, strict=True)
        arrays = [
            self._pa.array(column, field.type) for column, field in zip(columns, self._schema, strict=True)
        ]
        self._writer.write_table(self._pa.Table.from_arrays(arrays, schema=self._schema))
        self._rows, self._bytes = [], 0

    def close(self) -> None:
        if self._rows:
            self._flush()
        self._writer.close()


# --- in -----------------------------------------------------------------------------------------------------------


def read_files(forms: Mapping[Path, FileForm]) -> Iterator[bytes | InputRecord]:
    """Every record of the files in order.

    Args:
        forms: the files and how they hold records; looked for at once.

    Raises:
        FileNotFoundError: one of them is not there.
        BadInputError: while it is read: something is no record.
    """
    look_for(list(forms))
    return chain(
        *(
            _parquet(file) if form is FileForm.PARQUET else read_log_records([file], Form(form))
            for file, form in forms.items()
        )
    )


def _parquet(file: Path) -> Iterator[InputRecord]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file) as source:
            names = set(source.schema_arrow.names)
            if "value" not in names:
                text = f"{file} has no column value; its columns are {', '.join(source.schema_arrow.names)}."
                raise BadInputError(text, path=str(file))
            columns = [name for name in _COLUMNS if name in names]
            for batch in source.iter_batches(_rows_at_once(source.metadata), columns=columns):
                yield from _rows(batch)
    except (pa.ArrowException, TypeError, KeyError, ValueError) as error:
        raise BadInputError(
            f"{file} holds no records that can be appended: {error}", path=str(file)
        ) from error


def _rows_at_once(metadata: Any) -> int:
    """Rows of one batch: they fit into memory."""
    size = sum(metadata.row_group(index).total_byte_size for index in range(metadata.num_row_groups))
    each = max(size // max(metadata.num_rows, 1), 1)
    return int(min(max(_ROWS_BYTES_MAX // each, 1), _ROWS_MAX))


def _rows(batch: Any) -> Iterator[InputRecord]:
    import pyarrow as pa

    names = batch.schema.names

    def column(name: str, kind: Any) -> list[Any]:
        if name not in names:
            return [None] * batch.num_rows
        found = batch.column(names.index(name))
        return list((found if kind is None else found.cast(kind, safe=False)).to_pylist())

    if "timestamp" in names and pa.types.is_timestamp(kind := batch.schema.field("timestamp").type):
        index = names.index("timestamp")
        moments = batch.column(index).cast(pa.timestamp("ms", kind.tz), safe=False)
        times = moments.cast(pa.int64()).to_pylist()
    else:
        times = column("timestamp", pa.int64())
    rows = zip(
        column("value", pa.binary()),
        column("key", pa.binary()),
        times,
        column("headers", None),
        strict=True,
    )
    for value, key, time_ms, headers in rows:
        named = tuple((_text(header["key"]), _bytes(header["value"])) for header in headers or ())
        yield InputRecord(value, key, named, time_ms)


def _text(name: Any) -> str:
    if not isinstance(name, str):
        raise TypeError(f"the name of a header is text, not {name!r}")
    return name


def _bytes(value: Any) -> bytes | None:
    if not isinstance(value, str | bytes | None):
        raise TypeError(f"the value of a header is binary or text, not {value!r}")
    return value.encode() if isinstance(value, str) else value
