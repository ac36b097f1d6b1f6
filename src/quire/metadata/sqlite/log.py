"""SQLite's write-ahead log, the -wal: kept short, so that damage to it loses little.

SQLite by itself brings the log into the database when a commit finds 1,000 pages in it, and lets what is there stand
until a later commit writes over it. Until then a flipped bit in the log takes every commit behind it back, and with many
processes some writer or reader may be at work at each attempt, so that the log never begins anew. Here it is emptied
whenever the file is opened, and within a second of a commit, with the write lock held; in between SQLite's own way does
it, at half the size, because a log that is written over needs no change of the file's size in each commit.

Source: SQLite documentation, "Write-Ahead Logging", sections 2.3 and 6, "PRAGMA wal_checkpoint".
"""

from __future__ import annotations

import logging
import os
import sqlite3
from pathlib import Path
from typing import Final

from quire.env.real import RealFiles
from quire.metadata.sqlite.place import primary_code

LOG_PAGES_MAX: Final = 512
"""A commit that leaves so many pages in the log brings them into the database; the next one writes over them."""
_LOG: Final = logging.getLogger(__name__)


class WriteAheadLog:
    """The log of one open database.

    Args:
        connection: to the database, in WAL mode.
        path: of the database.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path
        self._said = False
        connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES_MAX}")

    def empty(self) -> bool:
        """Bring everything into the database and empty the log: from then on no damage to it loses anything.

        Others that read or write at the moment are not waited for; what can be done beside them is done.

        Returns:
            Whether it is empty now. If not, for example because the disk is full, nothing is lost, and it is logged.

        Raises:
            sqlite3.Error: the database is damaged.
        """
        try:
            busy, *_ = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.Error as error:
            code = primary_code(error)
            if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
                raise
            if code not in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED} and not self._said:
                self._said = True
                _LOG.warning("the write-ahead log of %s could not be checkpointed: %s", self._path, error)
            return False
        self._said = False
        return not busy

    def sync(self) -> bool:
        """Have the log and its name on the disk: what a killed process wrote there it may not have synced.

        SQLite has no locks on the log itself, so opening it here takes none away.

        Returns:
            Whether that was done.
        """
        try:
            descriptor = os.open(self._path.with_name(self._path.name + "-wal"), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        try:
            os.fdatasync(descriptor)
            RealFiles().sync_directory(self._path.parent)
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return True
