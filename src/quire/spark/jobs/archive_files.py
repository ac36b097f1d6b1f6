"""What the archive job needs of files: to list, write, name and delete them, and a digest over what they hold."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs


class Files:
    """The files below an archive's root, as far as a writer is concerned.

    Args:
        root: a URI that pyarrow knows (`file:///…`, `s3://…`), or an absolute path.
    """

    def __init__(self, root: str) -> None:
        self._system, self._base = fs.FileSystem.from_uri(root)

    def list(self, log_id: str) -> dict[str, tuple[int, float]]:
        """All files of a log, unfinished ones included: size in bytes and time of the last change, by name."""
        selector = fs.FileSelector(f"{self._base}/{log_id}", allow_not_found=True)
        return {
            f"{log_id}/{info.base_name}": (info.size, info.mtime.timestamp() if info.mtime else 0.0)
            for info in self._system.get_file_info(selector)
            if info.is_file
        }

    def create(self, name: str) -> Any:
        """A stream into a new file."""
        self._system.create_dir(f"{self._base}/{name.rpartition('/')[0]}", recursive=True)
        return self._system.open_output_stream(f"{self._base}/{name}")

    def open(self, name: str) -> pa.NativeFile:
        """A file to read."""
        return self._system.open_input_file(f"{self._base}/{name}")

    def move(self, name: str, to: str) -> None:
        """Give a file its name; one that has it is replaced."""
        self._system.move(f"{self._base}/{name}", f"{self._base}/{to}")

    def remove(self, name: str) -> None:
        """Delete a file; a missing one is deleted."""
        try:
            self._system.delete_file(f"{self._base}/{name}")
        except FileNotFoundError:
            return


class RecordDigest:
    """A digest over records, the same however they are cut: lengths and bytes of each column have a hash of their own."""

    def __init__(self) -> None:
        self._hashes: dict[str, Any] = {}
        self.count = 0

    def update(self, table: pa.Table) -> None:
        """More records, in the columns of an archive's files."""
        for batch in table.to_batches():
            self.count += batch.num_rows
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                self._column(name, column)

    def _column(self, name: str, column: pa.Array) -> None:
        if pa.types.is_list(column.type):
            self._numbers(f"{name} length", pc.list_value_length(column))
            parts = column.flatten()
            for place, field in enumerate(parts.type):
                self._column(f"{name} {field.name}", pc.struct_field(parts, [place]))
        elif pa.types.is_binary(column.type) or pa.types.is_string(column.type):
            self._numbers(f"{name} length", pc.binary_length(column))
            there = column.cast(pa.binary()).drop_null()
            whole = pc.binary_join(pa.ListArray.from_arrays([0, len(there)], there), b"")
            self._hash(name).update(whole[0].as_buffer())
        else:
            self._numbers(name, column)

    def _numbers(self, name: str, column: pa.Array) -> None:
        plain = pc.fill_null(column.cast(pa.int64()), -(2**63))
        self._hash(name).update(np.ascontiguousarray(plain).tobytes())

    def _hash(self, name: str) -> Any:
        return self._hashes.setdefault(name, hashlib.blake2b(digest_size=16))

    def digest(self) -> bytes:
        """Of all records so far."""
        whole = hashlib.blake2b(digest_size=16)
        for name, each in sorted(self._hashes.items()):
            whole.update(name.encode() + b"\0" + each.digest())
        return whole.digest()
