"""The configuration of a log's handles: sizes in bytes, times in milliseconds, each with its limits.

Passed to `client.log(name, config=...)`, read once and passed down.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from quire.core.errors import MisuseError
from quire.core.log.list import FAN_OUT_MAX

KIB = 1024
MIB = 1024 * KIB

_LIMITS: dict[str, tuple[int, int]] = {
    "batch_bytes_max": (1, 4 * MIB - 8 * KIB),
    "batch_records_max": (1, 1_000_000),
    "in_flight_bytes_max": (1, 1024 * MIB),
    "window_bytes_max": (1, 16 * 1024 * MIB),
    "roll_bytes": (1, 1024 * 1024 * MIB),
    "roll_ms": (1, 366 * 86_400_000),
    "page_items": (2, FAN_OUT_MAX),
    "fan_out": (2, FAN_OUT_MAX),
    "back_off_ms_min": (1, 60_000),
    "back_off_ms_max": (1, 600_000),
    "open_attempts_max": (1, 10_000),
    "metadata_attempts_max": (1, 10_000),
    "cached_pages_max": (1, 100_000),
    "deletes_at_once": (1, 1000),
    "fill_bytes_per_s": (0, 1024 * MIB),
}
CODECS = ("rows", "arrow")
COMPRESSIONS = (None, "lz4", "zstd")
_WAIT_MS_MAX = 366 * 86_400_000


@dataclass(frozen=True, slots=True)
class LogGuarantee:
    """A guaranteed write quorum of the ledgers that a log's writer makes, as `Client.create_ledger` gives it.

    All their bookies must be there when they are made, whatever the log's `min_present`.

    Attributes:
        wait_ms: how long `open_writer` tries to close ledgers with the guarantee, and to make one, while a bookie is missing
            and no other is there; then it goes on without: what it closes gives the guarantee up, what it makes has
            none. None: it does not, and opening the log fails.
    """

    wait_ms: int | None = None

    def __post_init__(self) -> None:
        """Refuse a time that cannot be.

        Raises:
            MisuseError: naming it.
        """
        wait_ms: object = self.wait_ms
        if wait_ms is not None and (not isinstance(wait_ms, int) or not 0 <= wait_ms <= _WAIT_MS_MAX):
            msg = f"LogGuarantee.wait_ms must be an integer from 0 to {_WAIT_MS_MAX} or None, got {self.wait_ms!r}"
            raise MisuseError(msg)


@dataclass(frozen=True, slots=True)
class LogConfig:
    """How one log handle behaves.

    Attributes:
        batch_bytes_max: records that one batch entry collects, unless a single one is larger.
        batch_records_max: the same in records.
        in_flight_bytes_max: what may be sent and unconfirmed; what comes meanwhile joins larger batches.
        window_bytes_max: what may be unconfirmed or unsent before `append` waits.
        roll_bytes: a ledger of this size is followed by a new one.
        roll_ms: a ledger with records is followed by a new one after this time.
        page_items: closed items that move from the head into one page.
        fan_out: pages that move under one higher page.
        back_off_ms_min: first wait when two openers duel; doubles, with jitter.
        back_off_ms_max: where that doubling stops.
        open_attempts_max: lost duels before `open_writer` gives up.
        metadata_attempts_max: metadata responses missing in a row before a handle gives up.
        cached_pages_max: pages that a handle caches; they never change.
        deletes_at_once: ledgers that a truncation deletes at the same time.
        fill_bytes_per_s: how fast a writer copies what bookies lack of a ledger that it has closed; 0: not at all.
        codec: `rows`, which every reader can read, whatever is installed where it is written; or `arrow` for batches of
            more than one record: writing and reading them takes pyarrow.
        compression: None, `lz4` or `zstd`, with the arrow codec.
        adopts: whether a writer gives offsets to ledgers that others commit to the log while it leads (a Spark sink).
        guarantee: what the ledgers that a writer makes guarantee; None: nothing beyond their ack quorum.
        host: what the list calls the place where a writer runs; empty: the machine's name and the process's number.
    """

    batch_bytes_max: int = 128 * KIB
    batch_records_max: int = 32_768
    in_flight_bytes_max: int = 8 * MIB
    window_bytes_max: int = 32 * MIB
    roll_bytes: int = 256 * MIB
    roll_ms: int = 3_600_000
    page_items: int = 128
    fan_out: int = 128
    back_off_ms_min: int = 20
    back_off_ms_max: int = 2_000
    open_attempts_max: int = 20
    metadata_attempts_max: int = 30
    cached_pages_max: int = 256
    deletes_at_once: int = 16
    fill_bytes_per_s: int = 16 * MIB
    codec: str = "rows"
    compression: str | None = None
    adopts: bool = True
    guarantee: LogGuarantee | None = None
    host: str = ""

    def __post_init__(self) -> None:
        """Refuse values that cannot work.

        Raises:
            MisuseError: naming the field, its value and its limits.
        """
        for field in fields(self):
            if field.name not in _LIMITS:
                continue
            low, high = _LIMITS[field.name]
            value = getattr(self, field.name)
            if not isinstance(value, int) or not low <= value <= high:
                msg = f"LogConfig.{field.name} must be an integer from {low} to {high}, got {value!r}"
                raise MisuseError(msg)
        if self.codec not in CODECS:
            msg = f"LogConfig.codec is one of {', '.join(CODECS)}, got {self.codec!r}"
            raise MisuseError(msg)
        if self.compression not in COMPRESSIONS or (self.compression and self.codec != "arrow"):
            msg = f"LogConfig.compression is lz4 or zstd with codec 'arrow', got {self.compression!r}"
            raise MisuseError(msg)
        guarantee: object = self.guarantee
        if not isinstance(guarantee, LogGuarantee | None):
            msg = f"LogConfig.guarantee is a LogGuarantee or None, got {self.guarantee!r}"
            raise MisuseError(msg)
        if self.back_off_ms_min > self.back_off_ms_max:
            msg = f"back_off_ms_min ({self.back_off_ms_min}) is above its maximum"
            raise MisuseError(msg)
