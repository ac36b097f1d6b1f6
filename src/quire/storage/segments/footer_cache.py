"""Rows out of the footers of sealed segments, kept in memory."""

from __future__ import annotations

from typing import Final

from quire.storage.index import RowTable

ITEM_BYTES: Final = 256
"""What a ledger's rows in a segment cost in addition to their bytes: for a ledger with one entry there that is most of it."""
_SPARE: Final = 16
"""So small a part of the cache is emptied at a time: each look for the least recently used passes over what went before."""


class _Items(dict[tuple[int, int], tuple[bytes | RowTable, int]]):
    """Rows by segment and ledger.

    Python's collector leaves a plain dictionary of plain values out, and takes it in again as a young one at its next change:
    it would look through all of this one twice for each time that it looks at everything.
    """

    __slots__ = ()


class FooterCache:
    """Rows of sealed segments, least recently used out first, by bytes; what they cost in addition to their bytes counts too.

    Of the tables that are larger than all that may be kept, the last one is kept as well: to build it took a look at each
    of its rows, and the next read of the ledger, or the next step of compaction, would build it again.

    Attributes:
        bytes: of all that is kept.

    Args:
        bytes_max: how much may be.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        # The least recently used first. An OrderedDict takes five times as long to grow, and holds the loop meanwhile.
        self._items = _Items()
        self._large: tuple[tuple[int, int], RowTable, int] | None = None
        self.bytes = 0

    def get(self, sequence: int, ledger_id: int) -> bytes | RowTable | None:
        """The rows of a ledger in a segment, if they are here."""
        key, large = (sequence, ledger_id), self._large
        item = self._items.pop(key, None)
        if item is None:
            return large[1] if large is not None and large[0] == key else None
        self._items[key] = item
        return item[0]

    def put(self, sequence: int, ledger_id: int, rows: bytes | RowTable, size: int) -> None:
        """Keep rows, letting go of others; of those larger than the whole cache, only the last table is kept."""
        size += ITEM_BYTES
        if size > self._bytes_max:
            if isinstance(rows, RowTable):
                self._forget_large()
                self._large = (sequence, ledger_id), rows, size
                self.bytes += size
            return
        self._items[sequence, ledger_id] = (rows, size)
        self.bytes += size
        bytes_max = self._bytes_max + (self._large[2] if self._large is not None else 0)
        if self.bytes > bytes_max:
            self._drop(bytes_max - self._bytes_max // _SPARE)

    def _drop(self, bytes_max: int) -> None:
        dropped = []
        for key, (_, size) in self._items.items():
            if self.bytes <= bytes_max:
                break
            self.bytes -= size
            dropped.append(key)
        for key in dropped:
            del self._items[key]

    def forget(self, sequence: int, ledger_id: int) -> None:
        """Drop the rows of a ledger in a segment."""
        item = self._items.pop((sequence, ledger_id), None)
        if item is not None:
            self.bytes -= item[1]
        elif self._large is not None and self._large[0] == (sequence, ledger_id):
            self._forget_large()

    def segment_freed(self, sequence: int) -> None:
        """A segment was freed: the large table goes at once if it is of that one, the rest in its turn."""
        if self._large is not None and self._large[0][0] == sequence:
            self._forget_large()

    def _forget_large(self) -> None:
        if self._large is not None:
            self.bytes -= self._large[2]
            self._large = None
