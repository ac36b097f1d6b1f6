"""What jobs do with a log's list: find the log, and swap what they have copied into it.

Source: docs/spark-jobs.md; `log/rewriting.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quire.core.errors import ListChangedError, StagedLedgerGoneError
from quire.core.log_rewriting import Replacement
from quire.log.rewriting import SWAPPED_AT_ONCE, LogRewriter
from quire.spark import cluster
from quire.spark.jobs.units import Row, batched

if TYPE_CHECKING:
    from quire.core.log_list import LogHead
    from quire.log.client import QuireClient


def head_of(uri: str, log: str) -> LogHead:
    """A log's own record.

    Raises:
        NoSuchLogError: there is no such log.
    """
    return cluster.call(uri, _identify, log)


def swap(
    uri: str,
    log_id: bytes,
    password: bytes,
    made: Sequence[tuple[Row, Replacement]],
    *,
    archive: str = "",
) -> tuple[list[tuple[Row, Replacement]], list[str]]:
    """Swap all replacements of a round into the list, or, where one of them is refused, each by itself.

    Args:
        uri: the cluster.
        log_id: the log.
        password: of its ledgers.
        made: in the list's order, each with the row of the task that made it.
        archive: the directory with the files of items that move there.

    Returns:
        Those that are in the list now, and why the others are not.
    """
    try:
        swap_all(uri, log_id, password, [each for _, each in made], archive=archive)
    except (ListChangedError, StagedLedgerGoneError) as error:
        if len(made) == 1:
            return [], [str(error)]
    else:
        return list(made), []
    listed: list[tuple[Row, Replacement]] = []
    refused: list[str] = []
    for one in made:
        done, why = swap(uri, log_id, password, [one], archive=archive)
        listed += done
        refused += why
    return listed, refused


def swap_all(
    uri: str,
    log_id: bytes,
    password: bytes,
    made: Sequence[Replacement],
    *,
    archive: str = "",
    compacted_below: int = 0,
) -> None:
    """Swap replacements into the list; see `LogRewriter.swap`.

    Raises:
        ListChangedError, StagedLedgerGoneError: one of them cannot be; it and those after it are not swapped.
    """
    for some in batched(made, SWAPPED_AT_ONCE):
        cluster.call(uri, _swap, log_id, password, some, archive, compacted_below)


async def _identify(client: QuireClient, log: str) -> LogHead:
    return await client.log(log).identify()


async def _swap(
    client: QuireClient,
    log_id: bytes,
    password: bytes,
    made: Sequence[Replacement],
    archive: str,
    compacted_below: int,
) -> None:
    rewriter = LogRewriter(client, log_id, password)
    await rewriter.swap(made, archive=archive, compacted_below=compacted_below)
