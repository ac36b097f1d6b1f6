"""The write options of the `quire` format: their table, and what a user's choice of them means.

This module must not know Spark, Arrow or a cluster.

Source: docs/spark-sink.md, "Options".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from quire.core.errors import QuireError
from quire.core.log_commit import OnReset
from quire.core.quorum import check_quorums
from quire.log.refusing import NAMED, PART
from quire.spark.given import Given, Option, SparkUseError, Use, use_error
from quire.spark.options import read_password

INLINE_BYTES: Final = 1 << 20
INLINE_SHARES: Final = 8
"""A task sends its rows to the driver when they are at most this part of `inlineBytes`: it cannot know the others'."""

WRITE_OPTIONS: Final = (
    Option("ensemble", "of the log", Use.WRITE, "bookies of a staged ledger"),
    Option("writeQuorum", "of the log", Use.WRITE, "bookies that get each of its entries"),
    Option("ackQuorum", "of the log", Use.WRITE, "how many make an entry durable"),
    Option("digest", "of the log", Use.WRITE, "digest of its entries"),
    Option("codec", "arrow", Use.WRITE, "body of a batch entry"),
    Option("compression", "none", Use.WRITE, "of that body"),
    Option(
        "inlineBytes",
        "1m",
        Use.WRITE,
        "a task with at most an eighth of it sends its rows to the driver, which writes one ledger for all of them",
    ),
    Option(
        "txnAppId",
        "",
        Use.WRITE,
        "names the job of a batch write or `foreachBatch`, so that a repetition is noticed",
    ),
    Option(
        "txnVersion",
        "",
        Use.WRITE,
        "the number of this write, counted upwards; the last one with the same rows again is in the log already",
    ),
    Option(
        "txnPart",
        "",
        Use.WRITE,
        "names one of several writes of one `txnVersion` to one log; each part has a mark of its own",
    ),
    Option(
        "txnOnReset",
        "error",
        Use.WRITE,
        "when the number is not above the log's mark and this is no repetition: `error`, `continue` (append; rows may come "
        "twice) or `skip` (what is in the log stays)",
    ),
    Option(
        "onCheckpointReset",
        "error",
        Use.WRITE,
        "of a stream whose checkpoint was put back or copied: `error`, `append` (rows may come twice) or `skip` (batches up "
        "to the log's mark are dropped)",
    ),
    Option(
        "takeover", "false", Use.WRITE, "consent to end the log's leader, and to recover what one left open"
    ),
    Option(
        "allowTruncate",
        "false",
        Use.WRITE,
        "consent to mode overwrite and output mode complete: the batch replaces what the log holds",
    ),
    Option("create", "false", Use.WRITE, "consent to create a log that is not there"),
    Option(
        "orderBy",
        "partition",
        Use.WRITE,
        "order of the tasks' rows in a batch: `partition`, or `timestamp`, which is checked",
    ),
)
"""Every option that only writing has; the table of docs/spark-sink.md is made from it."""
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


class Reset(StrEnum):
    """What a named transaction does when its number is not above the log's mark and it is no repetition."""

    ERROR = "error"
    CONTINUE = "continue"
    SKIP = "skip"


class CheckpointReset(StrEnum):
    """What a stream does whose checkpoint is not the one that the log's mark was made with."""

    ERROR = "error"
    APPEND = "append"
    SKIP = "skip"


_RESETS: Final = {
    CheckpointReset.ERROR: OnReset.ERROR,
    CheckpointReset.APPEND: OnReset.CONTINUE,
    CheckpointReset.SKIP: OnReset.SKIP,
}


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What one write asked for. Sizes in bytes.

    Attributes:
        log: the target; None: each row's column `log` says.
        quorums: ensemble size, write quorum, ack quorum of staged ledgers; None: the log's own, as with `digest`.
        txn_app_id: names a transaction; `txn_version` is its number, `txn_part` which of several writes of it this is.
        on_checkpoint_reset: of a stream whose checkpoint was put back or copied.
        checkpoint: of a stream, where the user put it.
    """

    cluster: str
    log: str | None
    quorums: tuple[int, int, int] | None = None
    digest: Digest | None = None
    codec: BodyCodec = BodyCodec.ARROW
    compression: Compression = Compression.NONE
    inline_bytes: int = INLINE_BYTES
    txn_app_id: str | None = None
    txn_version: int | None = None
    txn_part: str | None = None
    txn_on_reset: OnReset = OnReset.ERROR
    on_checkpoint_reset: OnReset = OnReset.ERROR
    takeover: bool = False
    truncate: bool = False
    create: bool = False
    order_by: OrderBy = OrderBy.PARTITION
    password_env: str | None = None
    password_file: str | None = None
    checkpoint: str | None = None

    def password(self) -> bytes:
        """The password of the logs' ledgers, read where it is needed."""
        return read_password(self.password_env, self.password_file)

    @property
    def mark(self) -> str:
        """The mark of a named transaction, "" without one."""
        if self.txn_app_id is None:
            return ""
        return f"{NAMED}{self.txn_app_id}" + (f"{PART}{self.txn_part}" if self.txn_part else "")


def parse_write(given: Given, *, stream: bool, overwrite: bool, log_column: bool) -> WriteOptions:
    """The options of a write.

    Args:
        given: as Spark handed them over.
        stream: whether a stream is written.
        overwrite: mode overwrite, or output mode complete.
        log_column: whether the rows have a column `log`.

    Raises:
        SparkUseError: for the first thing that is wrong, with its remedy.
    """
    given.check_use(Use.WRITE)
    options = WriteOptions(
        cluster=given.cluster(),
        log=_log(given, log_column=log_column),
        quorums=_quorums(given),
        digest=given.choice_or_none("digest", Digest),
        codec=given.choice("codec", BodyCodec.ARROW),
        compression=given.choice("compression", Compression.NONE),
        inline_bytes=0 if given.text("inlineBytes") == "0" else given.size("inlineBytes", INLINE_BYTES),
        txn_app_id=given.text("txnAppId"),
        txn_version=_version(given),
        txn_part=given.text("txnPart"),
        txn_on_reset=OnReset(given.choice("txnOnReset", Reset.ERROR).value),
        on_checkpoint_reset=_RESETS[given.choice("onCheckpointReset", CheckpointReset.ERROR)],
        takeover=given.flag("takeover", default=False),
        truncate=overwrite,
        create=given.flag("create", default=False),
        order_by=given.choice("orderBy", OrderBy.PARTITION),
        password_env=given.text("passwordEnv"),
        password_file=given.text("passwordFile"),
        checkpoint=given.text("checkpointLocation"),
    )
    if options.compression is not Compression.NONE and options.codec is not BodyCodec.ARROW:
        raise use_error("compression needs codec=arrow.")
    _check_transaction(options, given, stream=stream)
    if overwrite:
        _check_overwrite(options, consent=given.flag("allowTruncate", default=False))
    return options


def _log(given: Given, *, log_column: bool) -> str | None:
    named = given.text("log") or given.text("path")
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


def _quorums(given: Given) -> tuple[int, int, int] | None:
    ensemble, write, ack = (given.count(name) for name in ("ensemble", "writeQuorum", "ackQuorum"))
    if ensemble is None and write is None and ack is None:
        return None
    if ensemble is None or write is None or ack is None:
        raise use_error("ensemble, writeQuorum and ackQuorum go together.")
    try:
        check_quorums(ensemble, write, ack)
    except QuireError as error:
        raise SparkUseError(f"quire: {error.message}.") from error
    return ensemble, write, ack


def _version(given: Given) -> int | None:
    text = given.text("txnVersion")
    if text is None:
        return None
    if not text.strip().isdigit():
        raise use_error(f"txnVersion is a whole number from 0: got '{text}'.")
    return int(text)


def _check_transaction(options: WriteOptions, given: Given, *, stream: bool) -> None:
    if stream and any(given.text(name) is not None for name in _TRANSACTION):
        raise use_error(
            "txnAppId, txnVersion, txnPart and txnOnReset are for batch writes and foreachBatch; a stream is counted by its "
            "own query id. Leave them out."
        )
    if not stream and given.text("onCheckpointReset") is not None:
        raise use_error(
            "onCheckpointReset is for streams; a batch write has no checkpoint. In foreachBatch set txnOnReset."
        )
    if (options.txn_app_id is None) != (options.txn_version is None):
        raise use_error(
            "txnAppId and txnVersion go together: the name of the job and the number of this write (in foreachBatch "
            "the batch id)."
        )
    if options.txn_app_id is None and any(given.text(name) is not None for name in _TRANSACTION):
        raise use_error(
            "txnPart and txnOnReset belong to a named write: set txnAppId and txnVersion as well."
        )
    if PART in (options.txn_app_id or ""):
        raise use_error(
            f"txnAppId contains '{PART}', which separates a part: got '{options.txn_app_id}'. Set txnPart."
        )
    if options.txn_part is not None and not options.txn_part.strip():
        raise use_error(
            "txnPart is empty: name the part, or leave the option out where there is only one write."
        )


def _check_overwrite(options: WriteOptions, *, consent: bool) -> None:
    if options.log is None:
        raise use_error("overwrite and complete need one log: name it with .save or the option 'log'.")
    if not consent:
        raise use_error(
            f"overwrite, and output mode complete, take every record out of log '{options.log}'; set "
            "allowTruncate=true if that is meant, or write with mode append."
        )
