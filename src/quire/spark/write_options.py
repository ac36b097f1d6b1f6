"""The write options of the `quire` format: their table, and what a user's choice of them means.

This module must not know Spark, Arrow or a cluster.

Source: docs/spark-sink.md, "Options".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from quire.core.errors import QuireError
from quire.core.ledger.quorum import check_quorums
from quire.core.log.commit import OnReset
from quire.log.refusing import NAMED, PART
from quire.spark.options import (
    Option,
    SparkOptions,
    SparkUseError,
    Use,
    choice,
    number_of,
    option,
    options,
    rows_of,
    use_error,
)
from quire.spark.read_options import CLUSTER, PASSWORD_ENV, PASSWORD_FILE, READ_OPTIONS, read_password

ENSEMBLE: Final = Option("ensemble", Use.WRITE, otherwise="of the log")
"""bookies of a staged ledger"""
WRITE_QUORUM: Final = Option("writeQuorum", Use.WRITE, otherwise="of the log")
"""bookies that get each of its entries"""
ACK_QUORUM: Final = Option("ackQuorum", Use.WRITE, otherwise="of the log")
"""how many make an entry durable"""
INLINE_SHARES: Final = 8
"""A task sends its rows to the driver if they are at most an eighth of `inlineBytes`: it does not know the others'."""
_TRANSACTION: Final = ("txnAppId", "txnVersion", "txnPart", "txnOnReset")


class BodyCodec(StrEnum):
    """How rows are written."""

    ARROW = "arrow"
    ROWS = "rows"


class Compression(StrEnum):
    """How Arrow bodies are compressed."""

    NONE = "none"
    LZ4 = "lz4"
    ZSTD = "zstd"


class OrderBy(StrEnum):
    """The order of the tasks' rows inside a batch."""

    PARTITION = "partition"
    """As the partitions of the frame."""
    TIMESTAMP = "timestamp"
    """The same, and refused unless the times ascend so."""


class Digest(StrEnum):
    """Digests of ledgers that are made."""

    CRC32C = "crc32c"
    CRC32 = "crc32"
    MAC = "mac"
    DUMMY = "dummy"


_RESETS: Final = {"error": OnReset.ERROR, "append": OnReset.CONTINUE, "skip": OnReset.SKIP}
"""What a stream does whose checkpoint is not the one that the log's sink position was made with."""


def _quorums(raw: SparkOptions, *names: str) -> tuple[int, int, int] | None:
    ensemble, write, ack = (raw.count(name) for name in names)
    if ensemble is None and write is None and ack is None:
        return None
    if ensemble is None or write is None or ack is None:
        raise use_error("ensemble, writeQuorum and ackQuorum go together.")
    try:
        check_quorums(ensemble, write, ack)
    except QuireError as error:
        raise SparkUseError(f"quire: {error.message}.") from error
    return ensemble, write, ack


def _version(raw: SparkOptions, name: str) -> int | None:
    return raw.value(name, number_of, "an integer from 0")


def _inline_bytes(raw: SparkOptions, name: str) -> int | None:
    return 0 if raw.text(name) == "0" else raw.size(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """What one write asked for. Sizes in bytes.

    Attributes:
        log: the target; None: each row's column `log` says.
        truncate: mode overwrite, or output mode complete.
        quorums: ensemble size, write quorum, ack quorum of staged ledgers; None: the log's own, as with `digest`.
        txn_app_id: names a transaction; `txn_version` is its number, `txn_part` which of several writes of it this is.
        on_checkpoint_reset: of a stream whose checkpoint was put back or copied.
        checkpoint: of a stream, where the user put it.
    """

    cluster: str = options(SparkOptions.cluster, CLUSTER)
    log: str | None = field()
    truncate: bool = field()
    quorums: tuple[int, int, int] | None = options(_quorums, ENSEMBLE, WRITE_QUORUM, ACK_QUORUM)
    digest: Digest | None = option(choice(Digest), "digest", Use.WRITE, otherwise="of the log")
    """digest of its entries"""
    codec: BodyCodec = option(choice(BodyCodec), "codec", Use.WRITE, default="arrow")
    """body of a batch entry"""
    compression: Compression = option(choice(Compression), "compression", Use.WRITE, default="none")
    """of that body"""
    inline_bytes: int = option(_inline_bytes, "inlineBytes", Use.WRITE, default="1m")
    """a task with at most an eighth of it sends its rows to the driver, which writes one ledger for all of them"""
    txn_app_id: str | None = option(SparkOptions.text, "txnAppId", Use.WRITE)
    """names the job of a batch write or `foreachBatch`, so that a repetition is noticed"""
    txn_version: int | None = option(_version, "txnVersion", Use.WRITE)
    """the number of this write, counted upwards; the last one with the same rows again is in the log already"""
    txn_part: str | None = option(SparkOptions.text, "txnPart", Use.WRITE)
    """names one of several writes of one `txnVersion` to one log; each part has a sink position of its own"""
    txn_on_reset: OnReset = option(choice(OnReset), "txnOnReset", Use.WRITE, default="error")
    """when the number is not above the log's sink position and this is no repetition: `error`, `continue` (append; rows may
    come twice) or `skip` (what is in the log stays)"""
    on_checkpoint_reset: OnReset = option(choice(_RESETS), "onCheckpointReset", Use.WRITE, default="error")
    """of a stream whose checkpoint was put back or copied: `error`, `append` (rows may come twice) or `skip` (batches
    up to the log's sink position are dropped)"""
    takeover: bool = option(SparkOptions.flag, "takeover", Use.WRITE, default="false")
    """consent to end the log's leader, and to recover what one left open"""
    allow_truncate: bool = option(SparkOptions.flag, "allowTruncate", Use.WRITE, default="false")
    """consent to mode overwrite and output mode complete: the batch replaces what the log holds"""
    create: bool = option(SparkOptions.flag, "create", Use.WRITE, default="false")
    """consent to create a log that is not there"""
    order_by: OrderBy = option(choice(OrderBy), "orderBy", Use.WRITE, default="partition")
    """order of the tasks' rows in a batch: `partition`, or `timestamp`, which is checked"""
    password_env: str | None = options(SparkOptions.text, PASSWORD_ENV)
    password_file: str | None = options(SparkOptions.text, PASSWORD_FILE)
    checkpoint: str | None = field()

    def password(self) -> bytes:
        """The password of the logs' ledgers, read where it is needed."""
        return read_password(self.password_env, self.password_file)

    @property
    def position_name(self) -> str:
        """The sink position of a named transaction, "" without one."""
        if self.txn_app_id is None:
            return ""
        return f"{NAMED}{self.txn_app_id}" + (f"{PART}{self.txn_part}" if self.txn_part else "")


WRITE_OPTIONS: Final = tuple(row for row in rows_of(WriteOptions) if row not in READ_OPTIONS)
"""Every option that only writing has; the table of docs/spark-sink.md is made from it."""


def parse_write(raw: SparkOptions, *, stream: bool, overwrite: bool, log_column: bool) -> WriteOptions:
    """The options of a write.

    Args:
        raw: as Spark handed them over.
        stream: whether a stream is written.
        overwrite: mode overwrite, or output mode complete.
        log_column: whether the rows have a column `log`.

    Raises:
        SparkUseError: for the first thing that is wrong, with its remedy.
    """
    raw.check_use(Use.WRITE)
    asked = raw.read(
        WriteOptions,
        log=_log(raw, log_column=log_column),
        truncate=overwrite,
        checkpoint=raw.text("checkpointLocation"),
    )
    if asked.compression is not Compression.NONE and asked.codec is not BodyCodec.ARROW:
        raise use_error("compression needs codec=arrow.")
    _check_transaction(asked, raw, stream=stream)
    if overwrite:
        _check_overwrite(asked)
    return asked


def _log(raw: SparkOptions, *, log_column: bool) -> str | None:
    named = raw.text("log") or raw.text("path")
    if not named:
        if log_column:
            return None
        raise use_error(
            'name a log: .save("orders") or .start("orders"), or give the rows a column \'log\'. '
            "(Spark passes no options to catalog tables.)"
        )
    if named.startswith("ledger:") or any(sign in named for sign in ",*?["):
        raise use_error(f"a write goes to one log, got '{named}'. Give the rows a column 'log' for several.")
    return named


def _check_transaction(asked: WriteOptions, raw: SparkOptions, *, stream: bool) -> None:
    if stream and any(raw.text(name) is not None for name in _TRANSACTION):
        raise use_error(
            "txnAppId, txnVersion, txnPart and txnOnReset are for batch writes and foreachBatch; a stream is counted by its "
            "own query id. Leave them out."
        )
    if not stream and raw.text("onCheckpointReset") is not None:
        raise use_error(
            "onCheckpointReset is for streams; a batch write has no checkpoint. In foreachBatch set txnOnReset."
        )
    if (asked.txn_app_id is None) != (asked.txn_version is None):
        raise use_error(
            "txnAppId and txnVersion go together: the name of the job and the number of this write (in foreachBatch "
            "the batch id)."
        )
    if asked.txn_app_id is None and any(raw.text(name) is not None for name in _TRANSACTION):
        raise use_error(
            "txnPart and txnOnReset belong to a named write: set txnAppId and txnVersion as well."
        )
    if PART in (asked.txn_app_id or ""):
        raise use_error(
            f"txnAppId contains '{PART}', which separates a part: got '{asked.txn_app_id}'. Set txnPart."
        )
    if asked.txn_part is not None and not asked.txn_part.strip():
        raise use_error(
            "txnPart is empty: name the part, or leave the option out where there is only one write."
        )


def _check_overwrite(asked: WriteOptions) -> None:
    if asked.log is None:
        raise use_error("overwrite and complete need one log: name it with .save or the option 'log'.")
    if not asked.allow_truncate:
        raise use_error(
            f"overwrite, and output mode complete, take every record out of log '{asked.log}'; set "
            "allowTruncate=true if that is meant, or write with mode append."
        )
