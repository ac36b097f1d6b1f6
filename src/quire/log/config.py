"""The configuration of a log's handles: sizes in bytes, times in milliseconds, each with its limits.

Passed to `client.log(name, config=...)`, read once and passed down.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.errors import MisuseError
from quire.core.log.list import FAN_OUT_MAX
from quire.core.settings import check_settings, choice, number

KIB = 1024
MIB = 1024 * KIB

CODECS = ("rows", "arrow")
COMPRESSIONS = (None, "lz4", "zstd")


@dataclass(frozen=True, slots=True)
class LogGuarantee:
    """A guaranteed write quorum of the ledgers that a log's writer makes, as `Client.create_ledger` gives it.

    All their bookies must be there when they are made, whatever the log's `min_present`.

    Attributes:
        wait_ms: how long `open_writer` tries to close ledgers with the guarantee, and to make one, while a bookie is missing
            and no other is there; then it goes on without: what it closes gives the guarantee up, what it makes has
            none. None: it does not, and opening the log fails.
    """

    wait_ms: int | None = number(None, 0, 366 * 86_400_000)

    def __post_init__(self) -> None:
        check_settings(self)


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
        back_off_ms_min: first wait before a retry, as when another opener's compare-and-swap won; doubles, with jitter.
        back_off_ms_max: where that doubling stops.
        open_attempts_max: compare-and-swaps lost in a row before `open_writer` gives up.
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

    batch_bytes_max: int = number(128 * KIB, 1, 4 * MIB - 8 * KIB)
    batch_records_max: int = number(32_768, 1, 1_000_000)
    in_flight_bytes_max: int = number(8 * MIB, 1, 1024 * MIB)
    window_bytes_max: int = number(32 * MIB, 1, 16 * 1024 * MIB)
    roll_bytes: int = number(256 * MIB, 1, 1024 * 1024 * MIB)
    roll_ms: int = number(3_600_000, 1, 366 * 86_400_000)
    page_items: int = number(128, 2, FAN_OUT_MAX)
    fan_out: int = number(128, 2, FAN_OUT_MAX)
    back_off_ms_min: int = number(20, 1, 60_000)
    back_off_ms_max: int = number(2_000, 1, 600_000)
    open_attempts_max: int = number(20, 1, 10_000)
    metadata_attempts_max: int = number(30, 1, 10_000)
    cached_pages_max: int = number(256, 1, 100_000)
    deletes_at_once: int = number(16, 1, 1000)
    fill_bytes_per_s: int = number(16 * MIB, 0, 1024 * MIB)
    codec: str = choice(*CODECS)
    compression: str | None = choice(*COMPRESSIONS)
    adopts: bool = True
    guarantee: LogGuarantee | None = None
    host: str = ""

    def __post_init__(self) -> None:
        """Refuse values that cannot work.

        Raises:
            MisuseError: naming the field, its value and its limits.
        """
        check_settings(self)
        if self.compression is not None and self.codec != "arrow":
            msg = f"`LogConfig.compression` must be None without the codec arrow, got {self.compression!r}"
            raise MisuseError(msg)
        guarantee: object = self.guarantee
        if not isinstance(guarantee, LogGuarantee | None):
            msg = f"`LogConfig.guarantee` must be a LogGuarantee or None, got {guarantee!r}"
            raise MisuseError(msg)
