"""Reads of a metadata file on the event loop, for what may be answered with an older value and must not wait.

A read through the store's thread costs two changes of thread; this one costs a look at pages that are in memory,
because most reads are of what was written a moment ago. It waits for no lock: readers of a write-ahead log never wait.

Source: SQLite documentation, "Write-Ahead Logging", "Concurrency".
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from urllib.parse import quote

from quire.core.errors import QuireError
from quire.metadata.sqlite.file import StoredRow
from quire.metadata.store import Versioned


class Glance:
    """One connection that only reads, opened at the first look. Used by one thread.

    Args:
        path: the metadata file, which the store of this process keeps open.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._ended = False

    def get(self, key: str) -> Versioned | None:
        """A key that exists and belongs to no session. None: it does not, or the file must be asked in earnest."""
        if self._ended:
            return None
        query = "SELECT key, value, version, session FROM entries WHERE key = ? AND value IS NOT NULL AND session IS NULL"
        try:
            rows = self._open().execute(query, (key,)).fetchall()
            return StoredRow(*rows[0]).versioned if rows else None
        except (sqlite3.Error, QuireError):
            return None

    def close(self) -> None:
        """End it. Do so before the file's last writer ends, which takes the -wal away."""
        self._ended = True
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            uri = f"file:{quote(str(self._path))}?mode=ro"
            self._connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=0)
        return self._connection
