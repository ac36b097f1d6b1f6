"""Records on their way into entries: a batch in the making, the ledger it goes to, the callers it belongs to.

Nothing here knows the log; `log/writer.py` does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from quire.client.writing.writer import LedgerWriter
from quire.core.errors import MisuseError, QuireError
from quire.log.config import LogConfig
from quire.log.times import TIME_MS_MAX, TIME_MS_MIN
from quire.wire.batch import encode_batch
from quire.wire.batch_format import Codec, Headers

RECORD_OVERHEAD: Final = 32
"""What a record counts against the windows besides its bytes."""
_ENTRY_ROOM: Final = 4096
"""What an entry needs besides the values: header and tables of a batch of one."""
_HEADER_OVERHEAD: Final = 9
"""What a header counts besides its name and value, in the codec that needs most for it."""
_U16: Final = 2**16
BytesLike: TypeAlias = bytes | bytearray | memoryview
HeadersLike: TypeAlias = Mapping[str, BytesLike | None] | Iterable[tuple[str, BytesLike | None]]
"""What callers may give as a record's headers: a mapping, or pairs."""


class Many:
    """The future of an `append_many`, which may be spread over batches; `left` of its records are not confirmed."""

    __slots__ = ("begun", "first", "future", "left", "total")

    def __init__(self, future: asyncio.Future[range], total: int) -> None:
        self.future = future
        self.total = total
        self.left = total
        self.first = -1
        self.begun = False


Claim: TypeAlias = asyncio.Future[int] | tuple[Many, int]
"""Who waits for the next records of a batch: an `append` for one, or an `append_many` for so many."""


class RecordBatch:
    """Records that will be, or are, one entry. Without `times` all have `base_ms`; without `keys`, none has one."""

    __slots__ = ("base_ms", "bytes", "claims", "headers", "keys", "offset", "target", "times", "values")

    def __init__(self, base_ms: int) -> None:
        self.base_ms = base_ms
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] | None = None
        self.headers: list[Headers | None] | None = None
        self.times: list[int] | None = None
        self.claims: list[Claim] = []
        self.bytes = 0
        self.target: LedgerTarget | None = None
        self.offset = -1

    def add(
        self, value: bytes | None, key: bytes | None, headers: Headers | None, time_ms: int, size: int
    ) -> None:
        """Put a record in. Columns that most batches do without are begun when a record needs them."""
        count = len(self.values)
        if self.times is not None:
            self.times.append(time_ms)
        elif time_ms != self.base_ms:
            self.times = [self.base_ms] * count
            self.times.append(time_ms)
        if headers and self.headers is None:
            self.headers = [None] * count
        if self.headers is not None:
            self.headers.append(headers or None)
        if key is not None and self.keys is None:
            self.keys = [None] * count
        if self.keys is not None:
            self.keys.append(key)
        self.values.append(value)
        self.bytes += size

    def claim(self, many: Many, count: int) -> None:
        """The last `count` records belong to an `append_many`."""
        last = self.claims[-1] if self.claims else None
        if isinstance(last, tuple) and last[0] is many:
            self.claims[-1] = (many, last[1] + count)
        else:
            self.claims.append((many, count))

    @property
    def plain(self) -> bool:
        """Whether a bare value can be put in by appending it to `values` alone."""
        return self.times is None and self.headers is None and self.keys is None

    def encode(self, target: LedgerTarget, codec: Codec | None, compression: str | None) -> bytes:
        """The entry that follows what the target was sent so far."""
        many = len(self.values) > 1
        return encode_batch(
            self.values,
            base_ms=self.base_ms,
            times_ms=self.times,
            keys=self.keys,
            headers=self.headers,
            records_before=target.sent,
            ledger_min_ms=target.min_ms,
            ledger_max_ms=target.max_ms,
            epoch=target.epoch,
            codec=codec if many else None,
            compression=compression if many else None,
        )


class RecordQueue:
    """Records that wait to be sent, as batches in the making; the last one grows.

    Args:
        name: the log's name.
        config: how large a batch may become; a larger record has one of its own.
        entry_bytes_max: the largest entry that the client takes.

    Attributes:
        waiting: the batches, the oldest first.
        plain: the last one, if a bare value of this turn can be put in by appending it; else None.
        bytes: what the records that wait count.
        accepted: records that were ever put in.
        now_ms: the time of a record that has none of its own.
    """

    __slots__ = (
        "_name",
        "_record_bytes_max",
        "accepted",
        "batch_bytes_max",
        "batch_records_max",
        "bytes",
        "now_ms",
        "plain",
        "waiting",
    )

    def __init__(self, name: str, config: LogConfig, entry_bytes_max: int) -> None:
        self._name = name
        self._record_bytes_max = entry_bytes_max - _ENTRY_ROOM
        self.batch_bytes_max = min(config.batch_bytes_max, self._record_bytes_max)
        self.batch_records_max = config.batch_records_max
        self.waiting: deque[RecordBatch] = deque()
        self.plain: RecordBatch | None = None
        self.bytes = 0
        self.accepted = 0
        self.now_ms = 0

    def size(
        self, value: bytes | None, key: bytes | None, headers: Headers | None, timestamp_ms: int | None
    ) -> int:
        """What a record counts, once it is known that it can be written.

        Raises:
            MisuseError: it is larger than an entry, or no record.
        """
        size = record_size(value, key, headers, timestamp_ms)
        if size > self._record_bytes_max:
            msg = (
                f"log {self._name!r}: a record of {size} bytes exceeds the limit of "
                f"{self._record_bytes_max} (`ClientConfig.entry_bytes_max`, less a header); split it"
            )
            raise MisuseError(msg, log=self._name)
        return size

    def sizes(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        headers: Sequence[Headers | None] | None,
        timestamps_ms: Sequence[int] | None,
    ) -> list[int]:
        """What each of many records counts, once it is known that all can be written.

        Raises:
            MisuseError: columns of unlike length, or a record that cannot be written.
        """
        total = len(values)
        if any(len(column) != total for column in (keys, headers, timestamps_ms) if column is not None):
            msg = f"log {self._name!r}: {total} values need as many keys, headers and timestamps"
            raise MisuseError(msg, log=self._name)
        if not (keys or headers or timestamps_ms) and set(map(type, values)) == {bytes}:
            sizes = [len(value) + RECORD_OVERHEAD for value in values if value is not None]
            if max(sizes) <= self._record_bytes_max:
                return sizes
        return [
            self.size(
                values[i],
                keys[i] if keys else None,
                headers[i] if headers else None,
                timestamps_ms[i] if timestamps_ms else None,
            )
            for i in range(total)
        ]

    def add(
        self,
        value: bytes | None,
        key: bytes | None,
        headers: Headers | None,
        timestamp_ms: int | None,
        size: int,
    ) -> RecordBatch:
        """Put a record into the batch in the making, or into a new one when it is full."""
        if timestamp_ms is None:
            timestamp_ms = self.now_ms
        waiting = self.waiting
        batch = waiting[-1] if waiting else None
        if (
            batch is None
            or batch.bytes + size > self.batch_bytes_max
            or len(batch.values) >= self.batch_records_max
        ):
            batch = RecordBatch(timestamp_ms)
            waiting.append(batch)
        batch.add(value, key, headers, timestamp_ms, size)
        self.plain = batch if batch.plain and batch.base_ms == self.now_ms else None
        self.bytes += size
        self.accepted += 1
        return batch

    def fill(self, values: Sequence[bytes | None], sizes: Sequence[int], start: int) -> int:
        """Put bare values from `start` on into the plain batch, as many as fit; the position after them."""
        batch = self.plain
        assert batch is not None
        room = self.batch_bytes_max - batch.bytes
        last = min(len(values), start + self.batch_records_max - len(batch.values))
        end = start
        while end < last and sizes[end] <= room:
            room -= sizes[end]
            end += 1
        taken = self.batch_bytes_max - batch.bytes - room
        batch.values += values[start:end]
        batch.bytes += taken
        self.bytes += taken
        self.accepted += end - start
        return end

    def add_many(
        self,
        many: Many,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        headers: Sequence[Headers | None] | None,
        timestamps_ms: Sequence[int] | None,
        sizes: Sequence[int],
    ) -> None:
        """Put all records of an `append_many` in, whose sizes are known; batches are claimed for it."""
        index, bare = 0, not (keys or headers or timestamps_ms)
        while index < len(values):
            batch = self.add(
                values[index],
                keys[index] if keys else None,
                headers[index] if headers else None,
                timestamps_ms[index] if timestamps_ms else None,
                sizes[index],
            )
            end = index + 1
            if batch is self.plain and bare:
                end = self.fill(values, sizes, end)
            batch.claim(many, end - index)
            index = end

    def take(self) -> None:
        """The oldest batch was sent."""
        batch = self.waiting.popleft()
        if batch is self.plain:
            self.plain = None
        self.bytes -= batch.bytes

    def refuse(self, error: QuireError, begun: QuireError) -> None:
        """What waits will not be sent, and counts as never put in: fail all callers, as `fail` does."""
        self.accepted -= sum(len(batch.values) for batch in self.waiting)
        self.fail(error, begun)

    def fail(self, error: QuireError, begun: QuireError) -> None:
        """Nothing waits any more: fail all callers, with `begun` those of whom some records were sent."""
        for batch in self.waiting:
            fail(batch.claims, error, begun=begun)
        self.waiting.clear()
        self.plain = None
        self.bytes = 0


class LedgerTarget:
    """One ledger that this writer sends to, in one leader epoch; `sent` and `confirmed` count records."""

    __slots__ = (
        "confirmed",
        "epoch",
        "first_offset",
        "in_flight",
        "ledger",
        "max_ms",
        "min_ms",
        "sent",
        "sent_bytes",
    )

    def __init__(self, ledger: LedgerWriter, first_offset: int, epoch: int) -> None:
        self.ledger = ledger
        self.first_offset = first_offset
        self.epoch = epoch
        self.sent = 0
        self.sent_bytes = 0
        self.confirmed = 0
        self.in_flight = 0
        self.min_ms: int | None = None
        self.max_ms: int | None = None

    def sent_one(self, batch: RecordBatch, entry_bytes: int) -> None:
        """A batch is on its way: it has its offset now."""
        times = batch.times
        low, high = (batch.base_ms, batch.base_ms) if times is None else (min(times), max(times))
        self.min_ms = low if self.min_ms is None else min(low, self.min_ms)
        self.max_ms = high if self.max_ms is None else max(high, self.max_ms)
        batch.target = self
        batch.offset = self.first_offset + self.sent
        self.sent += len(batch.values)
        self.sent_bytes += entry_bytes
        self.in_flight += 1


class SentBatches:
    """Batches that were sent and are not confirmed, over all ledgers, and the callers that wait for them.

    Attributes:
        batches: the oldest first: they are confirmed in this order.
        bytes: what their records count.
        settled: records that were ever confirmed.
        waiters: (how many must be settled, the caller that waits for that), in this order.
    """

    __slots__ = ("batches", "bytes", "settled", "waiters")

    def __init__(self) -> None:
        self.batches: deque[RecordBatch] = deque()
        self.bytes = 0
        self.settled = 0
        self.waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    def add(self, batch: RecordBatch, target: LedgerTarget, entry_bytes: int) -> None:
        """A batch was sent to a ledger: it has its offset now."""
        target.sent_one(batch, entry_bytes)
        self.bytes += batch.bytes
        self.batches.append(batch)

    def take(self) -> int:
        """The oldest batch is confirmed: its callers get their offsets; returns the offset after its last record."""
        batch = self.batches.popleft()
        target, count = batch.target, len(batch.values)
        assert target is not None
        self.bytes -= batch.bytes
        target.in_flight -= 1
        target.confirmed += count
        self.settled += count
        settle(batch.claims, batch.offset)
        return batch.offset + count

    async def settled_through(self, count: int) -> None:
        """Wait until this many records are settled."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiters.append((count, done))
        await done

    def wake(self) -> None:
        """Wake the callers that wait for what is settled by now."""
        waiters = self.waiters
        while waiters and waiters[0][0] <= self.settled:
            done = waiters.popleft()[1]
            if not done.done():
                done.set_result(None)

    def note_begun(self) -> None:
        """Some records of these callers are on their way, whatever becomes of the rest."""
        for claim in (claim for batch in self.batches for claim in batch.claims):
            if isinstance(claim, tuple):
                claim[0].begun = True

    def refuse(self, count: int, error: QuireError) -> None:
        """No more than `count` records will be settled: fail the callers that wait for more."""
        waiters = self.waiters
        while waiters and waiters[-1][0] > count:
            fail_waiters([waiters.pop()[1]], error)

    def fail(self, error: QuireError, waiting: QuireError) -> None:
        """None of them will be confirmed: fail their callers, and with `waiting` the callers that wait for them."""
        for batch in self.batches:
            fail(batch.claims, error)
        self.batches.clear()
        self.bytes = 0
        fail_waiters((done for _, done in self.waiters), waiting)
        self.waiters.clear()


def fail_waiters(waiters: Iterable[asyncio.Future[None]], error: QuireError) -> None:
    """What callers wait for does not come."""
    for waiter in waiters:
        if not waiter.done():
            waiter.set_exception(error)


def settle(claims: list[Claim], offset: int) -> None:
    """Give the callers of a batch their offsets."""
    for claim in claims:
        if isinstance(claim, tuple):
            many, count = claim
            if many.first < 0:
                many.first = offset
            offset += count
            many.left -= count
            if many.left <= 0 and not many.future.done():
                many.future.set_result(range(many.first, many.first + many.total))
        else:
            if not claim.done():
                claim.set_result(offset)
            offset += 1


def fail(claims: list[Claim], error: QuireError, *, begun: QuireError | None = None) -> None:
    """Fail the callers of a batch.

    Args:
        claims: theirs.
        error: the error that their callers get.
        begun: the error instead, for a caller some of whose records were sent before.
    """
    for claim in claims:
        if isinstance(claim, tuple):
            many = claim[0]
            partly = begun is not None and (many.begun or many.first >= 0)
            if not many.future.done():
                many.future.set_exception(begun if partly and begun else error)
        elif not claim.done():
            claim.set_exception(error)


def own_record(
    value: BytesLike | None, key: BytesLike | None, headers: HeadersLike | None
) -> tuple[bytes | None, bytes | None, Headers | None]:
    """The parts of a record as no caller can change them any more.

    Raises:
        MisuseError: one is of a type that a record cannot hold.
    """
    return own_bytes(value, "value"), own_bytes(key, "key"), own_headers(headers)


def own_bytes(part: object, name: str) -> bytes | None:
    """A copy of what may change; see `own_record`."""
    if part is None or type(part) is bytes:
        return part
    if isinstance(part, bytes | bytearray | memoryview):
        return bytes(part)
    hint = ": encode it" if isinstance(part, str) else ""
    raise _unfit(f"{name} is bytes, bytearray, memoryview or None, not {type(part).__name__}{hint}")


def own_column(parts: Iterable[BytesLike | None], name: str) -> list[bytes | None]:
    """Many values, or keys; see `own_record`."""
    found: list[Any] = list(parts)
    return found if set(map(type, found)) == {bytes} else [own_bytes(part, name) for part in found]


def own_headers(headers: HeadersLike | None) -> Headers | None:
    """The headers of a record as pairs; see `own_record`."""
    if headers is None:
        return None
    if isinstance(headers, str | bytes | bytearray | memoryview) or not isinstance(headers, Iterable):
        raise _unfit(f"headers are a mapping, or pairs of a name and bytes, not {type(headers).__name__}")
    pairs = []
    for pair in headers.items() if isinstance(headers, Mapping) else headers:
        try:
            name, data = pair
        except (TypeError, ValueError) as error:
            raise _unfit(f"each header is a pair (name, bytes or None), not {pair!r}") from error
        if not isinstance(name, str):
            raise _unfit(f"each header is a pair (name, bytes or None), not {pair!r}")
        pairs.append((name, own_bytes(data, f"header {name[:40]!r}")))
    return tuple(pairs)


def record_size(value: bytes | None, key: bytes | None, headers: Headers | None, timestamp_ms: object) -> int:
    """What a record counts, once it is known that it can be written.

    Raises:
        MisuseError: its time is none, or its headers are too many or too long.
    """
    size = RECORD_OVERHEAD + len(value or b"") + len(key or b"")
    if timestamp_ms is not None:
        if not isinstance(timestamp_ms, int) or isinstance(timestamp_ms, bool):
            raise _unfit(f"timestamp_ms is a whole number of milliseconds, not {timestamp_ms!r}")
        if not TIME_MS_MIN <= timestamp_ms <= TIME_MS_MAX:
            raise _unfit(
                f"timestamp_ms is milliseconds since 1970 in the years 1 to 9999 ({TIME_MS_MIN} to {TIME_MS_MAX}), "
                f"not {timestamp_ms}"
            )
    if headers:
        size += _headers_size(headers)
    return size


def _headers_size(headers: Headers) -> int:
    size = 2
    if len(headers) >= _U16:
        raise _unfit(f"headers are fewer than {_U16} pairs, not {len(headers)}")
    for name, data in headers:
        encoded = len(name.encode())
        if encoded >= _U16:
            raise _unfit(f"a header's name is shorter than {_U16} bytes: {name[:40]!r}")
        size += _HEADER_OVERHEAD + encoded + len(data or b"")
    return size


def _unfit(what: str) -> MisuseError:
    return MisuseError(f"this record cannot be appended: {what}")
