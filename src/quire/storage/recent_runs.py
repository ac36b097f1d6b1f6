"""Run bodies in memory: those not yet on disk, and the newest of the rest, so that tail readers never touch it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from quire.wire.entry import Buffer

COPIED_BYTES_MAX = 1024
ITEM_BYTES = 256
"""What one small body costs besides its bytes."""
OFFSET_BITS = 40
"""A body's key is one number, its segment's above its offset: a tuple for each would be three objects to allocate."""


class RecentRuns:
    """First in, first out, by bytes. What is not durable stays whatever it takes: it is nowhere else.

    Attributes:
        bytes_max: how much to keep of what is durable.
        bytes: how much there is.
    """

    __slots__ = ("_bodies", "_order", "bytes", "bytes_max")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._bodies: dict[int, Buffer] = {}
        self._order: deque[tuple[int, int | list[int], int]] = deque()
        self.bytes = 0

    def add(self, sequence: int, offset: int, body: Buffer, lsn: int) -> None:
        """Keep the body of the record at an offset of a segment; its memory must not be written to from now on."""
        if isinstance(body, memoryview) and (
            len(body) <= COPIED_BYTES_MAX or memoryview(body.obj).nbytes > 2 * len(body) + 4096
        ):
            body = bytes(body)  # a view would be larger itself, or would pin a buffer many times its size
        key = sequence << OFFSET_BITS | offset
        size = len(body) + ITEM_BYTES
        self._bodies[key] = body
        self._order.append((lsn, key, size))
        self.bytes += size

    def add_all(self, sequence: int, offsets: Iterable[int], bodies: Sequence[bytes], last_lsn: int) -> None:
        """Keep bodies that were put together, and let go of them together."""
        base = sequence << OFFSET_BITS
        keys = [base | offset for offset in offsets]
        self._bodies.update(zip(keys, bodies, strict=True))
        size = sum(map(len, bodies)) + ITEM_BYTES * len(keys)
        self._order.append((last_lsn, keys, size))
        self.bytes += size

    def get(self, sequence: int, offset: int) -> Buffer | None:
        """The body, if it is still here."""
        return self._bodies.get(sequence << OFFSET_BITS | offset)

    def trim(self, durable_lsn: int) -> None:
        """Let go of the oldest down to the limit, but of nothing above the durable LSN."""
        order = self._order
        while self.bytes > self.bytes_max and order and order[0][0] <= durable_lsn:
            _, key, size = order.popleft()
            for one in key if isinstance(key, list) else (key,):
                self._bodies.pop(one, None)
            self.bytes -= size
