"""The write options of the `quire` format: their table, and what a user's choice of them means.

This module must not know Spark, Arrow or a cluster.

Source: spark.md 5.3, 5.5.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from quire.core.errors import QuireError
from quire.core.log_commit import OnReset
from quire.core.quorum import check_quorums
from quire.log.committing import NAMED
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
        "the number of this write; one at or below the last is in the log already",
    ),
    Option(
        "txnOnReset",
        "error",
        Use.WRITE,
        "when the numbers begin again under another checkpoint: `error`, `continue` or `skip`",
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
"""Every option that only writing has; the table of docs/spark.md is made from it."""


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
    """What a named transaction does when its numbers begin again under another checkpoint."""

    ERROR = "error"
    CONTINUE = "continue"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What one write asked for. Sizes in bytes.

    Attributes:
        log: the target; None: each row's column `log` says.
        quorums: ensemble size, write quorum, ack quorum of staged ledgers; None: the log's own, as with `digest`.
        txn_app_id: names a transaction; `txn_version` is its number.
        checkpoint: of a stream, where the user put it; only to find its query id where Spark does not tell it.
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
    txn_on_reset: OnReset = OnReset.ERROR
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
        return "" if self.txn_app_id is None else f"{NAMED}{self.txn_app_id}"


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
        txn_on_reset=OnReset(given.choice("txnOnReset", Reset.ERROR).value),
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
    if stream and any(given.text(name) is not None for name in ("txnAppId", "txnVersion", "txnOnReset")):
        raise use_error(
            "txnAppId, txnVersion and txnOnReset are for batch writes and foreachBatch; a stream is counted by its own "
            "query id. Leave them out."
        )
    if (options.txn_app_id is None) != (options.txn_version is None):
        raise use_error(
            "txnAppId and txnVersion go together: the name of the job and the number of this write (in foreachBatch "
            "the batch id)."
        )


def _check_overwrite(options: WriteOptions, *, consent: bool) -> None:
    if options.log is None:
        raise use_error("overwrite and complete need one log: name it with .save or the option 'log'.")
    if not consent:
        raise use_error(
            f"overwrite, and output mode complete, take every record out of log '{options.log}'; set "
            "allowTruncate=true if that is meant, or write with mode append."
        )
