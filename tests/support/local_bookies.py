"""Bookies of this process over a metadata file, on the loop that the blocking calls and Spark's source use as well."""

from __future__ import annotations

from pathlib import Path

from quire.blocking import loop
from quire.bookie.config import BookieConfig
from quire.bookie.server import BookieServer
from quire.metadata.connect import open_store


class LocalBookies:
    """They serve when it is made; whatever a subclass adds to `_start` is there as well.

    Attributes:
        uri: the cluster's.
        store: its metadata.
        bookies: b0, b1, …
    """

    def __init__(self, folder: Path, count: int = 3) -> None:
        self.uri = f"sqlite:{folder}/metadata.db"
        self._folder = folder
        self._background = loop.current()
        self._background.run(self._start, count)

    async def _start(self, count: int) -> None:
        self.store = await open_store(self.uri, create=True)
        self.bookies = [
            BookieServer(BookieConfig(self._folder / f"b{number}", name=f"b{number}"), self.store)
            for number in range(count)
        ]
        for bookie in self.bookies:
            await bookie.start()
