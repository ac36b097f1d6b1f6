"""The error for a batch that its log's sink position refuses: the compared numbers and fingerprints, and what to do.

Source: docs/spark-sink.md, "What is exactly once, and what a checkpoint from a backup does".
"""

from __future__ import annotations

from typing import Final

from quire.core.errors import (
    CheckpointWentBackError,
    DamagedMarkError,
    RefusedError,
    TransactionResetError,
    TransactionRowsError,
)
from quire.core.log.commit import CommitBatch, CommitEnded, CommitOutcome

NAMED: Final = "app:"
"""What the sink positions of named transactions begin with, so that no name can be a query's id."""
PART: Final = "/part="
"""Between the name of a transaction and that of its part."""

_STREAM_WAYS: Final = (
    "Nothing was written. Start with a new checkpoint, and starting offsets after what the log holds; or set "
    "onCheckpointReset=append (rows may come twice) or onCheckpointReset=skip (batches up to {} are dropped)."
)


def mark_error(ended: CommitEnded, batch: CommitBatch, name: str) -> RefusedError:
    """The error for a batch that was refused because of its log's sink position.

    Args:
        ended: how the commit ended: WAS_RESET, IS_BEHIND, OTHER_HISTORY or MARK_DAMAGED.
        batch: what was to be committed.
        name: the log.
    """
    position = ended.position
    assert position is not None
    if ended.outcome is CommitOutcome.MARK_DAMAGED:
        ways = "txnOnReset=continue or skip" if batch.named else "onCheckpointReset=append or skip"
        return DamagedMarkError(
            f"log '{name}': the sink position of query '{batch.query_id}' at batch {position.batch_id} is damaged: "
            f"its fingerprint is not valid, so it is unknown whether batch {batch.batch_id} is in the "
            f"log. Nothing was written. Compare the end of the log with the input, then set {ways} "
            "for one run.",
            log=name,
        )
    if batch.named:
        return _transaction(ended, batch, name)
    ways = _STREAM_WAYS.format(position.batch_id)
    if ended.outcome is CommitOutcome.IS_BEHIND:
        what = (
            f"the checkpoint is at batch {batch.batch_id}, and batch {position.batch_id} of its query is in the log. A whole "
            "checkpoint repeats only its last batch: this one has lost its newest files, comes from a backup, or is one "
            "of two copies that are both used."
        )
    else:
        known = position.fingerprint
        what = (
            f"batch {position.batch_id} of this query is in the log, made of another input ({known}) than the checkpoint's "
            f"file offsets/{position.batch_id} says ({ended.own}); the checkpoint is at batch {batch.batch_id}. It has lost "
            "its newest files, comes from a backup, or is one of two copies that are both used."
        )
    return CheckpointWentBackError(f"log '{name}': {what} {ways}", log=name, query=batch.query_id)


def _transaction(ended: CommitEnded, batch: CommitBatch, name: str) -> RefusedError:
    position = ended.position
    assert position is not None
    app, _, part = batch.query_id.removeprefix(NAMED).partition(PART)
    who = f"txnAppId '{app}'" + (f", txnPart '{part}'" if part else "")
    if ended.outcome is CommitOutcome.WAS_RESET:
        return TransactionResetError(
            f"{who} last wrote batch {position.batch_id} from another checkpoint; this run starts again at "
            f"{batch.batch_id}. Use a new txnAppId, or set txnOnReset=continue|skip.",
            log=name,
            app=app,
        )
    if ended.outcome is CommitOutcome.IS_BEHIND:
        return TransactionResetError(
            f"{who} has written version {position.batch_id} into log '{name}'; this is version {batch.batch_id}, which may be "
            "there or not. Nothing was written. Count versions upwards; give each of several writes of one version its "
            "own txnPart; or set txnOnReset=skip (it is dropped) or continue (it is appended, and rows may come twice).",
            log=name,
            app=app,
        )
    return TransactionRowsError(
        f"{who} has written version {batch.batch_id} into log '{name}' already, with other rows ({position.fingerprint}) than "
        f"these ({ended.own}). Nothing was written. Two writes of one version: give each its own txnPart. Rows that are "
        "made anew at each run: txnOnReset=skip keeps those that are in the log.",
        log=name,
        app=app,
    )
