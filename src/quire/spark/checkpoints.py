"""What a stream's checkpoint says of its batches, read for the comparison with a log's sink position.

Spark writes the end of a batch's input into `offsets/<number>` before it runs the batch, one line a source after two
lines of its own, and never changes the file; by default it keeps the last hundred. A source of files says no more there
than a count, `{"logOffset":7}`; which files it means stands in `sources/<index of the source>/7`. A checkpoint that is
not there, or is another query's, says nothing.

Source: docs/spark-sink.md, "What is exactly once, and what a checkpoint from a backup does".
"""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from time import monotonic
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from pyarrow import fs

from quire.core.log import fingerprints
from quire.core.log.fingerprints import Fingerprint
from quire.spark.options import use_error

HEAD_LINES: Final = 2
"""Version, and what Spark notes besides: times, settings."""
_ASK_AGAIN_SECONDS: Final = 600
_unreachable: dict[str, float] = {}
"""Locations on other machines that could not be read from this process, and when: another try would delay each batch."""
_FILE_COUNT: Final = re.compile(r'\{"logOffset":(\d+)\}')


class Checkpoint:
    """One query's checkpoint, as far as it can be read from where this runs.

    Args:
        location: as the user gave it to Spark; None where only the session's settings say.
        query: the id of the query that it must be of.
    """

    def __init__(self, location: str | None, query: str) -> None:
        self._query = query
        self._location = location
        self._files: fs.FileSystem | None = None
        self._path = ""
        if location is not None and _may_be_asked(location):
            try:
                self._files, self._path = _opened(location)
            except (OSError, ValueError):
                _unreachable[location] = monotonic()

    def fingerprint(self, batch_id: int) -> Fingerprint | None:
        """The fingerprint of a batch of the query; None when its file is missing, cannot be read, or is another query's."""
        if self._files is None:
            return None
        try:
            if _query_in(self._read("metadata")) != self._query:
                return None
            lines = self._read(f"offsets/{batch_id}").splitlines()[HEAD_LINES:]
        except (OSError, ValueError) as error:
            far = not isinstance(self._files, fs.LocalFileSystem) and isinstance(error, OSError)
            if far and not isinstance(error, FileNotFoundError):
                _unreachable[str(self._location)] = monotonic()
            return None
        return fingerprints.of_input(batch_id, lines, self._files_of(lines)) if lines else None

    def _files_of(self, lines: list[str]) -> list[str]:
        """What the lines that are only counts stand for; nothing where one of them is unknown."""
        found: list[str] = []
        for index, line in enumerate(lines):
            count = _FILE_COUNT.fullmatch(line.strip())
            if count is None:
                continue
            entries = self._entries(index, int(count[1]))
            if not entries:
                return []
            found += [f"{index} {entry}" for entry in entries]
        return found

    def _entries(self, index: int, number: int) -> list[str]:
        """The lines about one batch of files; every tenth batch is in a file together with those before."""
        for name in (f"{number}", f"{number}.compact"):
            with contextlib.suppress(OSError, ValueError):
                lines = self._read(f"sources/{index}/{name}").splitlines()[1:]
                return [line for line in lines if json.loads(line).get("batchId", number) == number]
        return []

    def _read(self, name: str) -> str:
        assert self._files is not None
        with self._files.open_input_stream(f"{self._path}/{name}") as file:
            return bytes(file.read()).decode()


def _may_be_asked(location: str) -> bool:
    """Whether a location is worth a try: the last one did not fail, or so long ago that it may be there again."""
    return monotonic() - _unreachable.get(location, -_ASK_AGAIN_SECONDS) >= _ASK_AGAIN_SECONDS


def query_of(checkpoint: str | None) -> str:
    """A stream's id from its checkpoint, where Spark does not give it to the tasks.

    Raises:
        SparkUseError: there is no checkpoint to look into.
    """
    if checkpoint is None:
        raise use_error(
            "Spark does not pass the query's id; set the option checkpointLocation on the writer, "
            "where it can be read."
        )
    try:
        files, path = _opened(checkpoint)
        with files.open_input_stream(f"{path}/metadata") as file:
            return _query_in(bytes(file.read()).decode())
    except (OSError, ValueError) as error:
        raise use_error(f"the query's id is not in {checkpoint}/metadata ({error}).") from error


def _opened(location: str) -> tuple[Any, str]:
    """The file system of a checkpoint and its path there; a path without a scheme is one of this machine.

    Raises:
        OSError, ValueError: there is no such file system here.
    """
    if "://" not in location and not location.startswith("file:"):
        return fs.LocalFileSystem(), str(Path(location).absolute())
    parts = urlsplit(location)
    if parts.scheme == "file":
        return fs.LocalFileSystem(), unquote(parts.path)
    found: tuple[Any, str] = fs.FileSystem.from_uri(
        re.sub("^s3[an]:", "s3:", location)  # Hadoop's names of the same store
    )
    return found


def _query_in(metadata: str) -> str:
    found = json.loads(metadata)
    if not isinstance(found, dict) or "id" not in found:
        msg = "it has no id"
        raise ValueError(msg)
    return str(found["id"])
