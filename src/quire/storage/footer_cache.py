"""Rows out of the footers of sealed segments, kept in memory."""

from __future__ import annotations

from collections import OrderedDict

from quire.storage.index import RowTable


class FooterCache:
    """Rows of sealed segments, least recently used out first, by bytes."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._items: OrderedDict[tuple[int, int], tuple[bytes | RowTable, int]] = OrderedDict()
        self.bytes = 0

    def get(self, sequence: int, ledger_id: int) -> bytes | RowTable | None:
        """The rows of a ledger in a segment, if they are here."""
        item = self._items.get((sequence, ledger_id))
        if item is None:
            return None
        self._items.move_to_end((sequence, ledger_id))
        return item[0]

    def put(self, sequence: int, ledger_id: int, rows: bytes | RowTable, size: int) -> None:
        """Keep rows, letting go of others; rows larger than the whole cache are not kept."""
        if size > self._bytes_max:
            return
        self._items[sequence, ledger_id] = (rows, size)
        self.bytes += size
        while self.bytes > self._bytes_max:
            _, (_, dropped) = self._items.popitem(last=False)
            self.bytes -= dropped

    def forget(self, sequence: int, ledger_id: int) -> None:
        """Drop the rows of a ledger in a segment."""
        item = self._items.pop((sequence, ledger_id), None)
        if item is not None:
            self.bytes -= item[1]
