"""Appends to a log: records become batch entries, futures get offsets, ledgers follow one another unnoticed.

A user holds a `LogWriter`; its `RecordSender` does the work. What one loop turn brings becomes one batch entry; while the
ledger is busy, what comes joins larger ones. An append is confirmed when its entry is, in order, across ledgers. No task
and no await per record.

Source: docs/protocol/log.md; docs/decisions/020-next-ledger-waits.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import warnings
import weakref
from asyncio import _get_running_loop
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from types import TracebackType
from typing import Any, Self

from quire.client.config import ClientConfig
from quire.client.leaving import OpenWriters, finished, read, warn
from quire.client.writing.creating import gives_guarantee_up
from quire.client.writing.writer import LedgerWriter
from quire.core.errors import (
    NotWritingError,
    OutcomeUnknownError,
    QuireError,
    WindowFullError,
)
from quire.core.ids import BookieId, LedgerId
from quire.core.ledger.guarantee import ACK_QUORUM, WRITE_QUORUM
from quire.core.log.list import LedgerSummary
from quire.env.home import check_home as check_loop
from quire.env.home import not_pickled
from quire.env.interfaces import Clock
from quire.log.batching import (
    RECORD_OVERHEAD,
    BytesLike,
    HeadersLike,
    LedgerTarget,
    Many,
    RecordBatch,
    RecordQueue,
    SentBatches,
    fail_waiters,
    own_column,
    own_headers,
    own_record,
)
from quire.log.config import LogConfig
from quire.log.leader import LogLeader
from quire.log.rolling import Rolling
from quire.wire.batch_format import Codec, Headers

log = logging.getLogger(__name__)


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
        value: BytesLike | None,
        key: BytesLike | None = None,
        headers: HeadersLike | None = None,
        timestamp_ms: int | None = None,
    ) -> int:
        """Append one record; returns its offset when it is durable and every earlier one is too.

        Args:
            value: the record; None is a tombstone. A buffer that can change is copied at the call, as a key is.
            key: kept with it.
            headers: a mapping of names to values, or pairs; kept with it.
            timestamp_ms: milliseconds since 1970; None takes the clock's time.

        Raises:
            NotLeaderError: another writer leads; this record was not sent.
            NotWritingError: the writer is closed, abandoned or has ended; it was not sent.
            MisuseError: it is larger than an entry, or a part of it is not bytes.
            OutcomeUnknownError: the writer ended meanwhile; the record may or may not be in the log.
        """
        if type(value) is not bytes or key is not None or headers is not None:
            value, key, headers = own_record(value, key, headers)
        if self._room or self._queue.bytes + self._sent.bytes >= self._window:
            await self._sender.wait_for_room()
        return await self._sender.put(value, key, headers, timestamp_ms)

    def append_nowait(
        self,
        value: BytesLike | None,
        key: BytesLike | None = None,
        headers: HeadersLike | None = None,
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
        return self._sender.put(*own_record(value, key, headers), timestamp_ms)

    async def append_many(
        self,
        values: Iterable[BytesLike | None],
        *,
        keys: Iterable[BytesLike | None] | None = None,
        headers: Iterable[HeadersLike | None] | None = None,
        timestamps_ms: Iterable[int] | None = None,
    ) -> range:
        """Append records with consecutive offsets; returns them when all are durable.

        They are not atomic: after a failure any prefix of them may be in the log.

        Raises:
            MisuseError: columns of unlike length, or a record larger than an entry.
            NotLeaderError, NotWritingError, OutcomeUnknownError: as `append`.
        """
        own_values = own_column(values, "value")
        own_keys = None if keys is None else own_column(keys, "key")
        own_pairs = None if headers is None else [own_headers(each) for each in headers]
        timestamps_ms = None if timestamps_ms is None else list(timestamps_ms)
        queue = self._queue
        sizes = queue.sizes(own_values, own_keys, own_pairs, timestamps_ms)
        if not own_values:
            return range(0)
        if self._room or self._queue.bytes + self._sent.bytes >= self._window:
            await self._sender.wait_for_room()
        self._sender.check_writing()
        self._sender.begin_turn()
        many = Many(self._loop.create_future(), len(own_values))
        queue.add_many(many, own_values, own_keys, own_pairs, timestamps_ms, sizes)
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


class RecordSender:
    """The working half of a `LogWriter`, which users hold: queue, ledgers, and the end.

    The leader calls it as its `LogSender`, the client as a `ComposedWriter`. It lives on when the user drops the writer, until
    what was begun has ended.

    Args:
        name: the log's name.
        leader: takes and keeps the lead.
        clock: times of records, rolling.
        config: settings.
        client_config: settings of the client.
        open_writers: the client's, which it joins.
        resign: gives the place in the election up.

    Attributes:
        name: see above.
        queue, sent: records that wait, and those in flight.
        window: how many bytes both may have.
        room: callers that wait for less.
        target: the ledger that takes records now; None while the next one is awaited.
        end_offset: the offset after the last record that is confirmed.
    """

    def __init__(
        self,
        name: str,
        leader: LogLeader,
        clock: Clock,
        config: LogConfig,
        *,
        client_config: ClientConfig,
        open_writers: OpenWriters,
        resign: Callable[[], Awaitable[None]],
    ) -> None:
        self.name = name
        self._leader = leader
        self._clock = clock
        self._config = config
        self._resign = resign
        self._loop = asyncio.get_running_loop()
        self.queue = RecordQueue(name, config, client_config.payload_bytes_max)
        self._rolling = Rolling(name, leader, clock, config, _target_of(weakref.ref(self)))
        self._client_config, self._open_writers = client_config, open_writers
        self.window = config.window_bytes_max
        self._codec = Codec.ARROW if config.codec == "arrow" else None
        self._compression = config.compression
        self.sent = SentBatches()
        self._send_due = False
        self._stalled = False
        self.room: deque[asyncio.Future[None]] = deque()
        self.target: LedgerTarget | None = None
        self._targets: dict[LedgerId, LedgerTarget] = {}
        self._draining: LedgerId | None = None
        self._ended = False
        self._lost = 0  # how many records were not confirmed when it ended
        self._closing_ledgers: dict[LedgerId, LedgerTarget] = {}
        self._close_at = WRITE_QUORUM
        self._abandoned = False
        self._sent_error: QuireError | None = None
        self._unsent_error: QuireError | None = None
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self.end_offset = 0
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._ending: asyncio.Task[None] | None = None
        self._closing = False
        open_writers.add(self)

    async def drain(self) -> None:
        """See `LogWriter.drain`."""
        self.check_home()
        failure = self._sent_error or self._unsent_error
        if failure is not None:
            raise failure
        if self.sent.settled < self.queue.accepted:
            await self.sent.settled_through(self.queue.accepted)

    async def roll(self) -> None:
        """See `LogWriter.roll`."""
        self.check_home()
        self.check_writing()
        await self._rolling.ask()

    @property
    def waits_for(self) -> tuple[BookieId, ...]:
        """See `LogWriter.waits_for`."""
        return tuple(sorted({each for target in self._targets.values() for each in target.ledger.waits_for}))

    async def close(self, *, at: str = WRITE_QUORUM) -> None:
        """See `LogWriter.close`."""
        self.check_home()
        if gives_guarantee_up(at, f"log {self.name!r} is closed"):
            self._give_guarantee_up()
        if not self._closing:
            self._closing = True
            self.queue.plain = None
            self._rolling.stop()
            try:
                await self._flushed()
                if not self._ended:
                    self._leader.close()
                await self._leader.finished.wait()
            finally:
                if not self._leader.finished.is_set():
                    self._leader.abandon()
                self._end_all()
        await self._leader.finished.wait()
        await asyncio.shield(self._end_all())
        failure = self._sent_error or self._leader.failure()
        if failure is not None and not self._abandoned:
            raise failure

    def _give_guarantee_up(self) -> None:
        """No bookie is waited for any more, neither by a close that is under way nor by one to come."""
        self._close_at = ACK_QUORUM
        if self._stalled:
            self._fail_unsent()
        for target in self._closing_ledgers.values():
            self._start(self._close_at_ack_quorum(target))

    async def _close_at_ack_quorum(self, target: LedgerTarget) -> None:
        with contextlib.suppress(QuireError):  # the close that is under way gets it too
            await target.ledger.close(at=ACK_QUORUM)

    def _fail_unsent(self) -> None:
        """Fail the records that the ledger has no room for, and those that wait for them."""
        msg = f"log {self.name!r}: this record was not sent: the window was full when the log was closed at its ack quorum"
        error = NotWritingError(msg, log=self.name)
        partly = OutcomeUnknownError(
            f"log {self.name!r}: the first of these records were sent, the others not; read it", log=self.name
        )
        self.sent.note_begun()
        self.queue.refuse(error, partly)
        self.sent.refuse(self.queue.accepted, error)
        fail_waiters(self.room, error)
        self.room.clear()

    async def abandon(self) -> None:
        """See `LogWriter.abandon`."""
        self.check_home()
        self._abandoned = True
        self._leader.abandon()
        await asyncio.shield(self._end_all())

    async def left(self, kind: type[BaseException] | None, error: BaseException | None) -> None:
        """The writer's block was left, with an error or without."""
        if kind is None:
            await self.close()
            return
        had_ended, futures, when = self._ended, self._pending_futures(), f"its writer was left with {error!r}"
        try:
            if kind is GeneratorExit:  # nothing can be awaited then
                self.end(when)
            elif issubclass(kind, Exception):
                await finished(self.close(), self._client_config.leave_ms)
            elif await self._confirmed(self._client_config.flush_ms):
                await finished(self.close(), self._client_config.flush_ms)
        except QuireError as closing:
            log.warning("log %r could not be closed after %r: %s", self.name, error, closing)
        finally:
            self.end(when)
            warn({self.label: 0 if had_ended else self._lost}, when)
            read(futures)
        if kind is not GeneratorExit:
            await self.abandon()

    async def _confirmed(self, timeout_ms: int) -> bool:
        """Whether everything is confirmed, while something is within each `timeout_ms`."""
        sent, before = self.sent, None
        while sent.settled < self.queue.accepted and before != (before := sent.settled):
            with contextlib.suppress(QuireError):
                await finished(self.drain(), timeout_ms)
        return sent.settled >= self.queue.accepted

    @property
    def epoch(self) -> int:
        """The leader epoch of this writer."""
        return self._leader.epoch

    # --- as its client sees it -----------------------------------------------------------------------------------

    @property
    def label(self) -> str:
        """What it writes, in words."""
        return f"log {self.name!r}"

    @property
    def ledgers(self) -> Collection[LedgerWriter]:
        """The writers of its ledgers."""
        return self._leader.ledgers

    async def leave(self) -> int:
        """The client is about to be closed: confirm everything and close; returns how many records are not confirmed."""
        had_ended, futures = self._ended, self._pending_futures()
        try:
            await (self.close() if self._opened.done() else self.abandon())
        except QuireError as error:
            log.warning("log %r could not be closed: %s", self.name, error)
        finally:
            read(futures)
        return 0 if had_ended else self._lost

    def end(self, why: str) -> int:
        """End at once: fail what is not confirmed, because of `why`; returns how many records that are."""
        if self._ended:
            return 0
        futures = self._pending_futures()
        self._leader.abandon(
            NotWritingError(f"this writer of log {self.name!r} was left open: {why}", log=self.name)
        )
        self._end_all()
        read(futures)
        return self._lost

    def _pending_futures(self) -> list[asyncio.Future[Any]]:
        batches = (*self.sent.batches, *self.queue.waiting)
        claims = (claim for batch in batches for claim in batch.claims)
        return [claim[0].future if isinstance(claim, tuple) else claim for claim in claims]

    def dropped(self) -> None:
        """The user has dropped the writer, closed or not."""
        if self._closing or self._abandoned or self._ended:
            return
        if self._loop.is_closed():
            warn({self.label: self.queue.accepted - self.sent.settled}, "its event loop was closed")
            return
        self._loop.call_soon_threadsafe(self._open_writers.let_leave, self)
        what = f"the writer of log {self.name!r} was dropped without `close`; it is closed now"
        warnings.warn(what, ResourceWarning, source=self, stacklevel=2)

    # --- records in --------------------------------------------------------------------------------------------

    @property
    def pending_bytes(self) -> int:
        """Bytes that wait or are in flight."""
        return self.queue.bytes + self.sent.bytes

    def put(
        self, value: bytes | None, key: bytes | None, headers: Headers | None, timestamp_ms: int | None
    ) -> asyncio.Future[int]:
        """Queue a record; the future gives its offset."""
        self.check_writing()
        self.begin_turn()
        queue = self.queue
        batch = queue.add(value, key, headers, timestamp_ms, queue.size(value, key, headers, timestamp_ms))
        future: asyncio.Future[int] = self._loop.create_future()
        batch.claims.append(future)
        return future

    def begin_turn(self) -> None:
        """Before the first record of a loop turn: its time serves for the whole turn."""
        if not self._send_due:
            if _get_running_loop() is not self._loop:
                self.check_home()
            self._send_due = True
            self._loop.call_soon(self._turn_ended)
            self.queue.now_ms = self._clock.wall_ms()

    def check_home(self) -> None:
        """Refuse a call from another event loop."""
        check_loop(f"this writer of log {self.name!r}", self._loop, log=self.name)

    def check_writing(self) -> None:
        """Refuse an append if the writer has ended."""
        if self._unsent_error is not None:
            raise type(self._unsent_error)(self._unsent_error.message, **self._unsent_error.ids)
        if self._closing or self._ended:
            msg = f"this writer of log {self.name!r} is closed"
            raise NotWritingError(msg, log=self.name)

    def full(self) -> WindowFullError:
        """The error for one who does not wait."""
        msg = (
            f"log {self.name!r}: {self.pending_bytes} of {self.window} bytes are pending; "
            "`await drain()`, then append again"
        )
        return WindowFullError(msg, log=self.name)

    async def wait_for_room(self) -> None:
        """Wait until the window takes another record."""
        self.check_writing()
        waiter: asyncio.Future[None] = self._loop.create_future()
        self.room.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self.room:
                self.room.remove(waiter)
            else:
                # The next one is woken when this one's record counts against the window.
                self._loop.call_soon(self._wake)
        self.check_writing()

    def _wake(self) -> None:
        """Let one in; it lets the next one in when there still is room."""
        room = self.room
        while room and self.pending_bytes < self.window:
            waiter = room.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    # --- entries out -------------------------------------------------------------------------------------------

    def _turn_ended(self) -> None:
        self._send_due = False
        self.queue.plain = None
        self._send()

    def _send(self) -> None:
        """Send batches as long as the ledger may have more in flight."""
        target = self.target
        waiting, sent = self.queue.waiting, self.sent
        limit, roll_bytes = self._config.in_flight_bytes_max, self._config.roll_bytes
        while waiting and target is not None and not self._stalled and not self._ended:
            if sent.bytes and sent.bytes + waiting[0].bytes > limit:
                return
            batch = waiting[0]
            if not self._send_batch(target, batch):
                return
            if target.sent_bytes >= roll_bytes:
                self._rolling.by_size()
                target = self.target

    def _send_batch(self, target: LedgerTarget, batch: RecordBatch) -> bool:
        entry = batch.encode(target, self._codec, self._compression)
        try:
            confirmed = target.ledger.append_nowait(entry)
        except WindowFullError:
            # A bookie is slow to take its bytes: the ledger's own window holds us back until half of it is free.
            self._stalled = True
            if self._close_at == ACK_QUORUM:
                self._fail_unsent()
            self._start(self._unstall(target))
            return False
        except QuireError as error:
            cause = error.__cause__ if isinstance(error.__cause__, QuireError) else error
            self._leader.ledger_failed(target.ledger.ledger_id, cause)
            return False
        self.queue.take()
        self.sent.add(batch, target, len(entry))
        confirmed.add_done_callback(self._entry_done)
        return True

    async def _unstall(self, target: LedgerTarget) -> None:
        try:
            await target.ledger.drain()
        except QuireError as error:
            if self._close_at == ACK_QUORUM:
                return  # closed with a full window
            self._leader.ledger_failed(target.ledger.ledger_id, error)
        self._stalled = False
        self._send()

    def _entry_done(self, confirmed: asyncio.Future[int]) -> None:
        """The oldest entry in flight was confirmed, or its ledger has ended."""
        if confirmed.cancelled():
            return
        error = confirmed.exception()
        sent = self.sent
        if not sent.batches:
            return  # failed with all the others already
        target = sent.batches[0].target
        assert target is not None
        if error is not None:
            if isinstance(error, QuireError):
                self._leader.ledger_failed(target.ledger.ledger_id, error)
            return
        self.end_offset = sent.take()
        if self.room:
            self._wake()
        if self._draining is not None and not target.in_flight:
            self._drained(target)
        elif self.queue.waiting:
            self._send()
        if sent.waiters:
            sent.wake()

    async def _flushed(self) -> None:
        """Wait until everything is confirmed, or the writer has ended."""
        while self.sent.settled < self.queue.accepted and not self._ended:
            with contextlib.suppress(QuireError):
                await self.drain()

    # --- ledgers: called by the leader -------------------------------------------------------------------------

    def serve(self, ledger: LedgerWriter, first_offset: int, epoch: int) -> None:
        """Send to this ledger from now on; see `LogSender`."""
        self.target = LedgerTarget(ledger, first_offset, epoch)
        self._targets[ledger.ledger_id] = self.target
        if not self._opened.done():
            self.end_offset = first_offset
            self._opened.set_result(None)
        self._rolling.served()
        self._send()

    def drain_ledger(self, ledger_id: LedgerId) -> None:
        """Send no more to it and report when all is confirmed; see `LogSender`."""
        self._draining = ledger_id
        target = self._targets[ledger_id]
        if target is self.target:
            self.target = None
        if not target.in_flight:
            self._loop.call_soon(self._drained, target)

    def _drained(self, target: LedgerTarget) -> None:
        if self._draining == target.ledger.ledger_id:
            self._draining = None
            self._leader.drained(target.ledger.ledger_id, target.confirmed)

    async def close_ledger(self, ledger_id: LedgerId) -> LedgerSummary:
        """Close a ledger that has nothing in flight; see `LogSender`."""
        target = self._targets[ledger_id]
        if target is self.target:
            self.target = None
        self._closing_ledgers[ledger_id] = target
        try:
            await target.ledger.close(at=self._close_at)
        finally:
            del self._closing_ledgers[ledger_id]
        self._targets.pop(ledger_id)
        return LedgerSummary(target.confirmed, target.ledger.length, target.min_ms, target.max_ms)

    def rolled(self, *, done: bool) -> None:
        """A roll is over; see `LogSender`."""
        self._rolling.over(done=done)

    def ended(self) -> None:
        """The leader has ended: fail what is pending, each with what is known of it; see `LogSender`."""
        if self._ended:
            return
        self._ended = True
        self._lost = self.queue.accepted - self.sent.settled
        self.target = None
        failure = self._leader.failure()
        sent = self._leader.sent_failure()
        self._unsent_error = failure or NotWritingError(
            f"this writer of log {self.name!r} is closed", log=self.name
        )
        if self.sent.batches:
            self._sent_error = sent
        error = self._sent_error or self._unsent_error
        self.sent.fail(sent, error)
        self.queue.fail(self._unsent_error, sent)
        fail_waiters(self.room, error)
        self.room.clear()
        self._rolling.fail(error)
        if not self._opened.done():
            self._opened.set_exception(self._unsent_error)
            self._opened.exception()  # nothing else reads it if the opening was cancelled
        # A caller that lost the log may never close this handle: its candidacy is withdrawn at once. What else
        # is under way, as the deletion of a ledger that is not needed any more, goes on.
        if self._ending is None:
            self._start(self._give_place_up())

    # --- the end -----------------------------------------------------------------------------------------------

    async def opened(self) -> None:
        """Wait until this writer leads.

        Raises:
            QuireError: why it does not.
        """
        await asyncio.shield(self._opened)

    def _end_all(self) -> asyncio.Task[None]:
        """Begin to end what is under way and to release the leadership, once; no cancelled caller stops it."""
        if self._ending is None:
            self._ending = self._loop.create_task(self._finish(), name=f"end the writer of log {self.name}")
        return self._ending

    async def _give_place_up(self) -> None:
        try:
            await self._resign()
        except QuireError as error:
            log.warning("log %s: the leadership ends with the session of this client: %s", self.name, error)

    async def _finish(self) -> None:
        self._rolling.stop()
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._leader.stop()
        await self._resign()

    def _start(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)


def _target_of(sender: weakref.ref[RecordSender]) -> Callable[[], LedgerTarget | None]:
    """The ledger that takes a sender's records now; does not keep the sender alive."""

    def target() -> LedgerTarget | None:
        there = sender()
        return None if there is None else there.target

    return target
