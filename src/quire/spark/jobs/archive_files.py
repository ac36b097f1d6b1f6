"""What the archive job needs of files: to list, write, name and delete them."""

from __future__ import annotations

import os
from typing import Any

import pyarrow as pa
from pyarrow import fs

from quire.spark.options import use_error


def file_system(location: str) -> tuple[Any, str]:
    """The file system of an absolute path or a URI, and the path in it.

    Raises:
        SparkUseError: it is neither, or of a store that pyarrow does not know.
    """
    try:
        found: tuple[Any, str] = fs.FileSystem.from_uri(location)
    except (ValueError, NotImplementedError) as error:
        raise use_error(
            f"'{location}' is no place for files: {error}. Write an absolute path, or a URI like file:///backup."
        ) from error
    return found


class ArchiveFiles:
    """The files below an archive's root, as far as a writer is concerned.

    Args:
        root: a URI that pyarrow knows (`file:///…`, `s3://…`), or an absolute path.

    Raises:
        SparkUseError: it is none.
    """

    def __init__(self, root: str) -> None:
        self._system, self._base = file_system(root)

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
        """Give a file its name; one that has it is replaced. It outlives a loss of power, for its ledger will not be there."""
        old, new = f"{self._base}/{name}", f"{self._base}/{to}"
        local = isinstance(self._system, fs.LocalFileSystem)
        if local:
            _sync(old)
        self._system.move(old, new)
        if local:
            _sync(new.rpartition("/")[0])
            _sync(self._base)

    def remove(self, name: str) -> None:
        """Delete a file; a missing one is deleted."""
        try:
            self._system.delete_file(f"{self._base}/{name}")
        except FileNotFoundError:
            return


def _sync(path: str) -> None:
    """Put a file's bytes, or a directory's names, onto the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
