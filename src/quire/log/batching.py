"""Records on their way into entries: a batch in the making, the ledger it goes to, the callers it belongs to.

Nothing here knows the log; `log/writer.py` does.
"""

from __future__ import annotations

import asyncio
from typing import TypeAlias

from quire.client.writer import LedgerWriter
from quire.core.errors import QuireError
from quire.wire.batch import Codec, Headers, encode_batch


class Many:
    """The future of an `append_many`, which may be spread over batches."""

    __slots__ = ("first", "future", "left", "total")

    def __init__(self, future: asyncio.Future[range], total: int) -> None:
        self.future = future
        self.total = total
        self.left = total
        self.first = -1


Claim: TypeAlias = asyncio.Future[int] | tuple[Many, int]


class Batch:
    """Records that will be, or are, one entry."""

    __slots__ = ("base_ms", "bytes", "claims", "headers", "keys", "offset", "target", "times", "values")

    def __init__(self, base_ms: int) -> None:
        self.base_ms = base_ms
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] = []
        self.headers: list[Headers | None] | None = None
        self.times: list[int] | None = None
        self.claims: list[Claim] = []
        self.bytes = 0
        self.target: Target | None = None
        self.offset = -1

    def add(
        self, value: bytes | None, key: bytes | None, headers: Headers | None, time_ms: int, size: int
    ) -> None:
        """Put a record in. Columns that most batches do without are begun when a record needs them."""
        if self.times is not None:
            self.times.append(time_ms)
        elif time_ms != self.base_ms:
            self.times = [self.base_ms] * len(self.values)
            self.times.append(time_ms)
        if headers and self.headers is None:
            self.headers = [None] * len(self.values)
        if self.headers is not None:
            self.headers.append(headers)
        self.values.append(value)
        self.keys.append(key)
        self.bytes += size

    def encode(self, target: Target, epoch: int, codec: Codec | None, compression: str | None) -> bytes:
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


class Target:
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

    def sent_one(self, batch: Batch, entry_bytes: int) -> None:
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
        error: what they are told.
        begun: what a caller is told instead, some of whose records were sent before.
    """
    for claim in claims:
        if isinstance(claim, tuple):
            many = claim[0]
            partly = begun is not None and many.first >= 0
            if not many.future.done():
                many.future.set_exception(begun if partly and begun else error)
        elif not claim.done():
            claim.set_exception(error)
