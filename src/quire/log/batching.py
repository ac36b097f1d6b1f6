"""Records on their way into entries: a batch in the making, the ledger it goes to, the callers it belongs to.

Nothing here knows the log; `log/writer.py` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, TypeAlias

from quire.client.writer import LedgerWriter
from quire.core.errors import MisuseError, QuireError
from quire.log.records import TIME_MS_MAX, TIME_MS_MIN
from quire.wire.batch import Codec, Headers, encode_batch

RECORD_OVERHEAD: Final = 32
"""What a record counts against the windows besides its bytes."""
_U16: Final = 2**16


class Many:
    """The future of an `append_many`, which may be spread over batches."""

    __slots__ = ("first", "future", "left", "total")

    def __init__(self, future: asyncio.Future[range], total: int) -> None:
        self.future = future
        self.total = total
        self.left = total
        self.first = -1


Claim: TypeAlias = asyncio.Future[int] | tuple[Many, int]


class RecordBatch:
    """Records that will be, or are, one entry."""

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
            self.headers.append(headers)
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

    def encode(self, target: LedgerTarget, epoch: int, codec: Codec | None, compression: str | None) -> bytes:
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
            epoch=epoch,
            codec=codec if many else None,
            compression=compression if many else None,
        )


class LedgerTarget:
    """One ledger that this writer sends to."""

    __slots__ = (
        "confirmed",
        "first_offset",
        "in_flight",
        "ledger",
        "max_ms",
        "min_ms",
        "sent",
        "sent_bytes",
        "since_ms",
    )

    def __init__(self, ledger: LedgerWriter, first_offset: int, since_ms: int) -> None:
        self.ledger = ledger
        self.first_offset = first_offset
        self.since_ms = since_ms
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
            partly = begun is not None and many.first >= 0
            if not many.future.done():
                many.future.set_exception(begun if partly and begun else error)
        elif not claim.done():
            claim.set_exception(error)


def record_size(value: object, key: object, headers: object, timestamp_ms: object) -> int:
    """What a record counts, once it is known that it can be written.

    Raises:
        MisuseError: a part of it is of a type or size that a batch cannot hold.
    """
    size = RECORD_OVERHEAD
    for name, part in (("value", value), ("key", key)):
        if isinstance(part, bytes):
            size += len(part)
        elif part is not None:
            raise _unfit(f"{name} is bytes or None, not {type(part).__name__}")
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


def _headers_size(headers: object) -> int:
    size = 2
    if not isinstance(headers, Sequence) or len(headers) >= _U16:
        raise _unfit(f"headers are a list of fewer than {_U16} pairs, not {type(headers).__name__}")
    for pair in headers:
        try:
            name, data = pair
            encoded = name.encode()
        except (AttributeError, TypeError, ValueError) as error:
            raise _unfit(f"each header is a pair (name, bytes or None), not {pair!r}") from error
        if len(encoded) >= _U16 or not (data is None or isinstance(data, bytes)):
            raise _unfit(
                f"a header's name is shorter than {_U16} bytes, its value bytes or None: {name[:40]!r}"
            )
        size += 6 + len(encoded) + len(data or b"")
    return size


def _unfit(what: str) -> MisuseError:
    return MisuseError(f"this record cannot be appended: {what}")
