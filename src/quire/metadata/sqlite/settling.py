"""What follows a commit, a second later at most and not in its way: the -wal is emptied, the sequence written down."""

from __future__ import annotations

import time
from typing import Final

from quire.core.errors import NoClusterError
from quire.metadata.sqlite.file import SqliteFile
from quire.metadata.sqlite.options import SqliteOptions

LAST_TRIES: Final = 20
"""How often a store that is closed tries to write its sequence while another process does; 5 ms apart."""


class Settling:
    """When that is due for one open file, and the doing of it. The file's thread owns it.

    Args:
        file: the open file.
        options: how often, and the clock.

    Attributes:
        due_ms: when, by the options' clock; None while nothing was committed since.
    """

    def __init__(self, file: SqliteFile, options: SqliteOptions) -> None:
        self.due_ms: int | None = None
        self._file = file
        self._options = options

    def committed(self) -> None:
        """After a commit. Not at once: the next commit often follows it closely, and would wait."""
        if self.due_ms is None:
            self.due_ms = self._options.now_ms() + self._options.settle_ms

    def settle_if_due(self) -> None:
        """Do it when it is time; what another process was in the way of is tried again later.

        Raises:
            sqlite3.Error: the file is damaged.
            NoClusterError: it was replaced.
        """
        if self.due_ms is None or self._options.now_ms() < self.due_ms:
            return
        self.due_ms = None
        self._file.check_same_file()
        written = self._file.sequence.raise_to(self._file.progress)
        if not (self._file.log.empty() and written):
            self.committed()

    def finish(self) -> None:
        """Before a clean close: the sequence says how far the file has come. SQLite empties the -wal itself."""
        if self.due_ms is None:
            return
        try:
            self._file.check_same_file()
        except NoClusterError:  # the sequence beside the path is not that of the file that is open
            return
        for _ in range(LAST_TRIES):
            if self._file.sequence.raise_to(self._file.progress):
                return
            time.sleep(0.005)
