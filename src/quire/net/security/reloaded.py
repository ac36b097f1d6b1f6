"""What was read from files, and read again when they have changed: certificates and passwords are renewed while a server runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from quire.core.errors import MisuseError

log = logging.getLogger(__name__)

T = TypeVar("T")
_Stamp = tuple[tuple[int, int, int] | None, ...]


class Reloaded(Generic[T]):
    """A value made of files, made again when they change.

    Asked for once a connection, never once a request: it looks at each file's modification time, size and inode. What
    could not be read is tried again each time: its mode may have changed since, or there are descriptors again.

    Args:
        files: what it is made of.
        read: makes it.

    Raises:
        MisuseError: it cannot be made at all. Later, what was there before stays, and the log says why.
    """

    __slots__ = ("_files", "_read", "_stamp", "_value", "_why_not")

    def __init__(self, files: Sequence[Path | None], read: Callable[[], T]) -> None:
        self._files = [path for path in files if path is not None]
        self._read = read
        self._stamp = self._look()
        self._value = read()
        self._why_not = ""

    def get(self) -> T:
        """The value of the files as they are now, or as they last were whole."""
        stamp = self._look()
        if stamp != self._stamp or self._why_not:
            self._stamp = stamp
            self._read_again()
        return self._value

    def reload(self) -> bool:
        """Read the files whether they have changed or not; False if that failed and nothing was changed."""
        self._why_not = ""
        return self._read_again()

    def _read_again(self) -> bool:
        try:
            self._value = self._read()
        except MisuseError as error:
            if error.message != self._why_not:
                log.warning("the settings that were read before stay in use: %s", error.message)
            self._why_not = error.message
            return False
        self._why_not = ""
        log.info("read again: %s", ", ".join(map(str, self._files)))
        return True

    def _look(self) -> _Stamp:
        stamp: list[tuple[int, int, int] | None] = []
        for path in self._files:
            try:
                found = path.stat()
            except OSError:
                stamp.append(None)
            else:
                stamp.append((found.st_mtime_ns, found.st_size, found.st_ino))
        return tuple(stamp)
