"""What a user holds who appends to a log.

Source: docs/protocol/log.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from quire.core.ids import BookieId, LedgerId
from quire.core.ledger.guarantee import WRITE_QUORUM
from quire.env.home import not_pickled
from quire.log.batching import (
    RECORD_OVERHEAD,
    Many,
    own_headers,
)
from quire.log.sending import RecordSender
from quire.wire.batch_format import Headers


class LogWriter:
    """The leader of a log. Made by `Log.open_writer`.

    An async context manager: leaving it drains and closes; with an error within a bound, and when it is cancelled while
    records are confirmed. One that is dropped does so by itself, with a ResourceWarning.

    Args:
        sender: does the work.
    """

    __reduce__ = not_pickled
    __slots__ = ("__weakref__", "_loop", "_queue", "_room", "_sender", "_sent", "_window", "name")

    def __init__(self, sender: RecordSender) -> None:
        self._sender, self.name = sender, sender.name
        self._queue, self._sent = sender.queue, sender.sent
        self._room, self._window = sender.room, sender.window
        self._loop = asyncio.get_running_loop()

    def __repr__(self) -> str:
        pending = self._queue.accepted - self._sent.settled
        return f"<LogWriter {self.name}, epoch {self.epoch}, end {self.end_offset:,}, {pending:,} pending>"

    @property
    def epoch(self) -> int:
        """The leader epoch of this writer."""
        return self._sender.epoch

    @property
    def end_offset(self) -> int:
        """The offset after the last record of this writer that is confirmed."""
        return self._sender.end_offset

    @property
    def ledger_id(self) -> LedgerId | None:
        """The ledger that takes records now; None while the next one is awaited."""
        target = self._sender.target
        return None if target is None else target.ledger.ledger_id

    @property
    def pending_bytes(self) -> int:
        """Bytes that wait or are in flight."""
        return self._sender.pending_bytes

    async def append(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
    ) -> int:
        """Append one record; returns its offset when it is durable and every earlier one is too.

        Args:
            value: the record; None is a tombstone.
            key: kept with it.
            headers: (name, value) pairs, kept with it.
            timestamp_ms: milliseconds since 1970; None takes the clock's time.

        Raises:
            NotLeaderError: another writer leads; this record was not sent.
            NotWritingError: the writer is closed, abandoned or has ended; it was not sent.
            MisuseError: it is larger than an entry.
            OutcomeUnknownError: the writer ended meanwhile; the record may or may not be in the log.
        """
        if self._room or self._queue.bytes + self._sent.bytes >= self._window:
            await self._sender.wait_for_room()
        return await self._sender.put(value, key, headers, timestamp_ms)

    def append_nowait(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
    ) -> asyncio.Future[int]:
        """Append one record without waiting; the future gives its offset; futures complete in order.

        Raises:
            WindowFullError: no room; `await drain()`, then append again. Nothing was taken.
            NotLeaderError, NotWritingError, MisuseError: as `append`.
        """
        queue = self._queue
        if queue.bytes + self._sent.bytes >= self._window:
            raise self._sender.full()
        batch = queue.plain
        if (
            batch is not None
            and type(value) is bytes
            and key is None
            and headers is None
            and timestamp_ms is None
        ):
            # A bare value in a turn that has begun: most records take this way, so it is short.
            size = len(value) + RECORD_OVERHEAD
            if batch.bytes + size <= queue.batch_bytes_max and len(batch.values) < queue.batch_records_max:
                future: asyncio.Future[int] = self._loop.create_future()
                batch.values.append(value)
                batch.claims.append(future)
                batch.bytes += size
                queue.bytes += size
                queue.accepted += 1
                return future
        return self._sender.put(value, key, headers, timestamp_ms)

    async def append_many(
        self,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers | None] | None = None,
        timestamps_ms: Sequence[int] | None = None,
    ) -> range:
        """Append records with consecutive offsets; returns them when all are durable.

        They are not atomic: after a failure any prefix of them may be in the log.

        Raises:
            MisuseError: columns of unlike length, or a record larger than an entry.
            NotLeaderError, NotWritingError, OutcomeUnknownError: as `append`.
        """
        # The caller's own may change while this waits for room.
        values, keys = list(values), None if keys is None else list(keys)
        timestamps_ms = None if timestamps_ms is None else list(timestamps_ms)
        queue = self._queue
        sizes = queue.sizes(values, keys, headers, timestamps_ms)
        headers = None if headers is None else [own_headers(each) for each in headers]
        if not values:
            return range(0)
        if self._room or self._queue.bytes + self._sent.bytes >= self._window:
            await self._sender.wait_for_room()
        self._sender.check_writing()
        self._sender.begin_turn()
        many = Many(self._loop.create_future(), len(values))
        queue.add_many(many, values, keys, headers, timestamps_ms, sizes)
        return await many.future

    async def drain(self) -> None:
        """Wait until everything appended so far is confirmed.

        Raises:
            OutcomeUnknownError: the writer ended before; RefusedError if nothing of it had been sent.
        """
        await self._sender.drain()

    async def roll(self) -> None:
        """Go on in a new ledger; returns when the former one is closed and its item in the list complete.

        Raises:
            NotLeaderError, NotWritingError: this writer does not lead any more.
            NotEnoughBookiesError: no ledger can be made now; the current one stays.
        """
        await self._sender.roll()

    @property
    def waits_for(self) -> tuple[BookieId, ...]:
        """The bookies without which ledgers that guarantee their write quorum cannot be closed now."""
        return self._sender.waits_for

    async def close(self, *, at: str = WRITE_QUORUM) -> None:
        """Confirm everything, close the ledger, release the leadership. It may be called twice.

        A ledger that guarantees its write quorum is closed when every entry is on all of it: while a bookie is missing and
        no other is there, this waits (`waits_for`).

        Cancelled on the way it abandons: the leadership is released too, and the next writer recovers the ledger.

        Args:
            at: "ack_quorum" gives that guarantee up, which the record then says, and waits no longer; also for another
                call that waits already. Records that found no room in the ledger fail: they were not sent.

        Raises:
            OutcomeUnknownError, NotLeaderError: the writer ended before; what was pending failed.
            MisuseError: `at` is another word.
        """
        await self._sender.close(at=at)

    async def abandon(self) -> None:
        """Stop at once; the next writer recovers the ledger. Pending appends fail, unknown. It may be called twice."""
        await self._sender.abandon()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._sender.left(kind, error)

    def __del__(self) -> None:
        if hasattr(self, "_sender"):
            self._sender.dropped()
