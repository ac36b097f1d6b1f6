"""Between the sink and the cluster: logs that are written to, ledgers that are staged, the commit and the abort.

Source: docs/spark-sink.md, "Exactly once: how".
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from quire.core.errors import AlreadyExistsError, NoSuchLogError, QuireError
from quire.core.log import fingerprints
from quire.core.log.commit import COMMIT_RULES, CommitBatch, CommitRules, OnReset, Part
from quire.core.log.fingerprints import Fingerprint, RowSum
from quire.core.log.list import LogItem, LogSettings
from quire.log.committing import LogCommitter, discard
from quire.log.staging import StagedBy, StagedLedger, stage
from quire.spark import cluster
from quire.spark.checkpoints import Checkpoint
from quire.spark.options import SparkUseError
from quire.spark.outgoing import EntryPacker, Times, packed, unpacked
from quire.spark.write_options import INLINE_SHARES, WriteOptions
from quire.wire.entry import digest_type_of

if TYPE_CHECKING:
    from quire.log.client import QuireClient

PLACED_WITHIN_MS = 10_000
"""How long a commit waits for a leader to *place* what it adopts (assign offsets), before it warns and goes on."""


@dataclass(frozen=True, slots=True)
class TargetLog:
    """A log that is written to: its id, which is never used again, and how ledgers for it are made."""

    log_id: bytes
    settings: LogSettings


@dataclass(frozen=True, slots=True)
class TaskShare:
    """What one task has for one log: a ledger, or few rows.

    Attributes:
        item: the staged ledger, closed; None when the rows are in `rows`.
        rows: Arrow batches as bytes, see `outgoing.packed`.
        times: their range.
        total: for a write with `txnAppId`, a *named transaction*: the sum of its rows.
    """

    log: str
    target: TargetLog
    item: LogItem | None
    rows: bytes
    times: Times
    total: RowSum = field(default_factory=RowSum)


@dataclass(frozen=True, slots=True)
class StagedPosition:
    """Under which name and number a batch is committed; see `quire.core.log.commit.CommitBatch`.

    Attributes:
        incarnation: of a named transaction, the query that counts its batches; "" outside of `foreachBatch`.
        checkpoint: of a stream; None for a named transaction.
    """

    query_id: str = ""
    batch_id: int = 0
    incarnation: str = ""
    on_reset: OnReset = OnReset.ERROR
    checkpoint: Checkpoint | None = None

    @property
    def named(self) -> bool:
        """Whether this is a named transaction: a batch write with `txnAppId` and `txnVersion`."""
        return bool(self.query_id) and self.checkpoint is None

    def of_rows(self, shares: Sequence[TaskShare]) -> Fingerprint:
        """The fingerprint of a named transaction's rows for one log."""
        total = RowSum()
        for share in shares:
            total = total.plus(share.total)
        return fingerprints.of_rows(self.batch_id, total)

    async def own(self, batch_id: int) -> Fingerprint | None:
        """What a stream's checkpoint says of a batch. Its files may be far away: a thread reads them."""
        if self.checkpoint is None:
            return None
        return await asyncio.to_thread(self.checkpoint.fingerprint, batch_id)


_said: set[tuple[str, str]] = set()
"""Queries and logs of which this process has said that their sink positions are compared by number alone."""


def _nothing(step: str) -> None:
    del step


@dataclass(frozen=True, slots=True)
class Failpoints:
    """What a test replaces or observes; production has the defaults.

    Attributes:
        at: called at each step of staging, commit and abort.
        rules: the rules of a commit.
        looks: whether an abort looks at the list before it deletes.
    """

    at: Callable[[str], None] = field(default=_nothing)
    rules: CommitRules = COMMIT_RULES
    looks: bool = True


# --- logs ---------------------------------------------------------------------------------------------------------


def target(options: WriteOptions, log: str) -> TargetLog:
    """The log of a name, made if the user consents.

    Raises:
        SparkUseError: there is none; it names the nearest.
    """
    return cluster.call(options.cluster, _target, options, log)


async def _target(client: QuireClient, options: WriteOptions, name: str) -> TargetLog:
    log = client.log(name, options.password())
    try:
        about = await log.identify()
    except NoSuchLogError as error:
        if not options.create:
            hint = await cluster.nearest(client, name)
            raise SparkUseError(
                f"quire: no log '{name}' at {options.cluster}.{hint} create=true makes it.", log=name
            ) from error
        ensemble, write, ack = options.quorums or (3, 3, 2)
        digest = options.digest.value if options.digest else "crc32c"
        with contextlib.suppress(AlreadyExistsError):  # another planner was first
            await log.create(ensemble_size=ensemble, write_quorum=write, ack_quorum=ack, digest=digest)
        about = await log.identify()
    settings = about.settings
    if options.quorums is not None:
        ensemble, write, ack = options.quorums
        settings = replace(
            settings, ensemble_size=ensemble, write_quorum=write, ack_quorum=ack, min_present=0
        )
    if options.digest is not None:
        settings = replace(settings, digest=int(digest_type_of(options.digest.value)))
    return TargetLog(about.log_id, settings)


# --- tasks --------------------------------------------------------------------------------------------------------


class Staging:
    """One task's rows for one log. They stay here while they are few; then a ledger is made.

    Args:
        options: of the write.
        log: its name, and `target` what it is.
        by: who stages.
        at: called at each step.
        inline_bytes: rows of more bytes get a ledger; None is what the options say.
    """

    def __init__(
        self,
        options: WriteOptions,
        log: str,
        target: TargetLog,
        by: StagedBy,
        at: Callable[[str], None] = _nothing,
        inline_bytes: int | None = None,
    ) -> None:
        self._options = options
        self._log, self._target, self._by, self._at = log, target, by, at
        self._inline_bytes = options.inline_bytes // INLINE_SHARES if inline_bytes is None else inline_bytes
        self._few: list[pa.RecordBatch] = []
        self._few_bytes = 0
        self._times = Times()
        self._entries: EntryPacker | None = None
        self._ledger: StagedLedger | None = None

    def add(self, rows: pa.RecordBatch) -> None:
        """Take rows of the log's schema.

        Raises:
            QuireError: the ledger has ended, or none can be made; the task fails and another attempt begins anew.
        """
        self._times.add(rows.column("timestamp_ms"))
        if self._entries is not None:
            self._send(rows)
            return
        self._few.append(rows)
        self._few_bytes += rows.nbytes
        if self._few_bytes > self._inline_bytes:
            self._open()

    def _open(self) -> None:
        options, settings = self._options, self._target.settings
        self._at("open")
        self._entries = EntryPacker(
            options.codec, options.compression, cluster.entry_bytes_max(options.cluster)
        )
        self._ledger = cluster.call(
            options.cluster, stage, self._target.log_id, settings, self._by, options.password()
        )
        self._at("opened")
        few, self._few = self._few, []
        for rows in few:
            self._send(rows)

    def _send(self, rows: pa.RecordBatch) -> None:
        assert self._entries is not None
        for entry in self._entries.add(rows):
            self._append(entry)

    def _append(self, entry: bytes) -> None:
        ledger = self._ledger
        assert ledger is not None
        self._at("append")
        cluster.call(self._options.cluster, lambda _: ledger.append(entry))

    def close(self) -> TaskShare:
        """Close the ledger, if there is one, and say what there is."""
        if self._entries is None:
            return TaskShare(self._log, self._target, None, packed(self._few), self._times)
        return TaskShare(self._log, self._target, self.close_ledger(), b"", self._times)

    def close_ledger(self) -> LogItem:
        """Close the ledger: everything in it is on disks of its ack quorum."""
        if self._entries is None:
            self._open()
        assert self._entries is not None
        for entry in self._entries.flush():
            self._append(entry)
        entries, ledger = self._entries, self._ledger
        assert ledger is not None
        self._at("close")
        item = cluster.call(
            self._options.cluster,
            lambda _: ledger.close(entries.records, entries.times.low, entries.times.high),
        )
        self._at("closed")
        return item

    def discard(self) -> None:
        """The task has failed: no commit names the ledger. If it cannot be deleted now, the collector finds it."""
        ledger = self._ledger
        if ledger is None:
            return
        with contextlib.suppress(QuireError):
            cluster.call(self._options.cluster, lambda _: ledger.abandon())
            cluster.call(self._options.cluster, discard, self._target.log_id, [ledger.ledger_id])


# --- the driver ---------------------------------------------------------------------------------------------------


def commit(
    options: WriteOptions,
    shares: Mapping[str, Sequence[TaskShare]],
    targets: Mapping[str, TargetLog],
    position: StagedPosition,
    failpoints: Failpoints,
) -> None:
    """Make the shares part of their logs, each log's in this order.

    Raises:
        QuireError: see `LogCommitter.commit`. What the driver itself has staged is deleted, if no list holds it.
    """
    made: list[tuple[TargetLog, LogItem]] = []
    parts: list[Part] = []
    consents = position.on_reset is OnReset.CONTINUE
    found = None if position.checkpoint is None else position.checkpoint.fingerprint(position.batch_id)
    try:
        for log in sorted(shares):
            by = StagedBy(
                position.query_id,
                position.batch_id if position.query_id else -1,
                position.incarnation,
                consents=consents,
            )
            items = _items(options, shares[log], by, targets[log], made, failpoints)
            if position.named:
                found = position.of_rows(shares[log])
            parts.append(Part(targets[log].log_id, tuple(items), found))
        cluster.call(options.cluster, _commit, options, sorted(shares), parts, position, failpoints)
    except BaseException:
        for where, item in made:
            with contextlib.suppress(QuireError):
                discard_items(options, where, [item], failpoints)
        raise


def _items(
    options: WriteOptions,
    shares: Sequence[TaskShare],
    by: StagedBy,
    where: TargetLog,
    made: list[tuple[TargetLog, LogItem]],
    failpoints: Failpoints,
) -> list[LogItem]:
    """One log's ledgers in order; neighbouring shares that came as rows get one together."""
    items: list[LogItem] = []
    staging: Staging | None = None

    def close() -> None:
        if staging is not None:
            item = staging.close_ledger()
            made.append((where, item))
            items.append(item)

    try:
        for share in shares:
            if share.item is not None:
                close()
                staging = None
                items.append(share.item)
                continue
            if staging is None:
                staging = Staging(options, share.log, where, by, failpoints.at, inline_bytes=0)
            for rows in unpacked(share.rows):
                staging.add(rows)
        close()
    except BaseException:
        if staging is not None:
            staging.discard()
        raise
    return items


async def _commit(
    client: QuireClient,
    options: WriteOptions,
    logs: Sequence[str],
    parts: Sequence[Part],
    position: StagedPosition,
    failpoints: Failpoints,
) -> None:
    batch = CommitBatch(
        tuple(parts),
        position.query_id,
        position.batch_id,
        position.incarnation,
        position.on_reset,
        truncate=options.truncate,
        takeover=options.takeover,
        now_ms=client.clock.wall_ms(),
        named=position.named,
    )
    committer = LogCommitter(
        client, logs, batch, options.password(), own=position.own, rules=failpoints.rules, at=failpoints.at
    )
    done = await committer.commit(placed_within_ms=PLACED_WITHIN_MS)
    for log in done.by_number:
        _say_by_number(options, log, position)
    for log in done.unplaced:
        cluster.warn(
            f"log '{log}': the batch is committed, and readers will see it when the log's leader has placed it; if it "
            f"no longer runs, `quire log place {log}` does so."
        )


def _say_by_number(options: WriteOptions, log: str, position: StagedPosition) -> None:
    """Log once that a batch's number alone was compared: what a copied checkpoint wrote would not be noticed."""
    if (position.query_id, log) in _said:
        return
    _said.add((position.query_id, log))
    if position.named:
        why = "the sink position was written by an earlier version of Quire; the next one can be compared"
    elif options.checkpoint is None:
        why = "set the option checkpointLocation on the writer, so that the checkpoint can be read"
    else:
        why = (
            "the sink position was written by an earlier version of Quire, or the file of its batch is missing from "
            f"{options.checkpoint}/offsets or cannot be read from the driver"
        )
    cluster.warn(
        f"log '{log}': batch {position.batch_id} was compared with the log's sink position by its number alone: {why}."
    )


def discard_items(
    options: WriteOptions, where: TargetLog, items: Sequence[LogItem], failpoints: Failpoints
) -> None:
    """Delete staged ledgers that the log does not hold, proven in the deletion."""
    ledger_ids = [item.ledger_id for item in items]
    cluster.call(options.cluster, discard, where.log_id, ledger_ids, looks=failpoints.looks, at=failpoints.at)


def wall_ms(options: WriteOptions) -> int:
    """The time that rows without one get."""
    return cluster.client_of(options.cluster).clock.wall_ms()
