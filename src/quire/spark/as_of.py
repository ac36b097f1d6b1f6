"""One end for one data frame: where each log ends for a read, fixed once however often Spark plans it.

Spark may plan the scans of one frame more than once: both sides of a self-join on two threads, each query over Spark
Connect anew. A log grows meanwhile, so two plans would see two ends. So the ends are an option, `asOf`: names, ids and
offsets in the form of a stream's positions. A user makes it with `quire.spark.read_options`; a frame without it, and
without a schema of the user's, gets it when it is loaded, since Spark keeps the data source that its `schema()` was asked of.

Spark also keeps a frame's plan for ever. So each task of a batch checks that its logs still have the ids of the plan: a log
that was deleted and made again is an error and never the old log's records.

Source: docs/spark.md, "Frames and views".
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Final, TypeAlias

from quire.core.errors import NoSuchLogError, ReadUnavailableError, TrimmedError
from quire.spark import cluster
from quire.spark.extents import AbsentError, Extent, check_end_is_known, extent_of, resolve, source_of
from quire.spark.losses import LOG_DELETED, LOG_RECREATED
from quire.spark.options import SparkOptions, SparkUseError, Use, use_error
from quire.spark.packing import Task
from quire.spark.positions import AsOf, Position, as_text
from quire.spark.read_options import LATEST, READ_OPTIONS, ReadOptions, parse

if TYPE_CHECKING:
    from quire.log.client import QuireClient

Range: TypeAlias = tuple[int | None, int | None]
"""Offsets from the first up to, not including, the second; None leaves that side open."""
Moment: TypeAlias = datetime | str | int | None

_ATTEMPTS: Final = 50
_PAUSE_SECONDS: Final = 0.1


class RecreatedError(AbsentError):
    """The log of that name is another one than the one that is read."""


# --- the ends -------------------------------------------------------------------------------------------------------


def fix(options: ReadOptions) -> AsOf | None:
    """Where each log ends for a frame that is loaded now: what `asOf` says, or where it ends now.

    Returns:
        None where a log is not there, or too few bookies respond to determine its end: the plan of a batch will say so,
        and a stream may wait for it.

    Raises:
        QuireError: the cluster cannot be asked.
    """
    if options.as_of is not None:
        return options.as_of
    try:
        return _now_of(options)
    except (SparkUseError, ReadUnavailableError):
        return None


def _now_of(options: ReadOptions) -> AsOf:
    """Where each log ends now.

    Raises:
        SparkUseError: a log is not there, or a pattern matches none.
        ReadUnavailableError: too few bookies respond to determine where an open ledger ends.
    """
    return cluster.call(options.cluster, _now, options)


async def _now(client: QuireClient, options: ReadOptions) -> AsOf:
    found = []
    for source in await resolve(client, options):
        extent = await extent_of(client, options, source)
        if options.ending.of(extent.name) == LATEST:
            check_end_is_known(extent)
        found.append((extent.name, Position(extent.identity, extent.end)))
    return tuple(found)


async def extents(client: QuireClient, options: ReadOptions) -> list[Extent]:
    """What a batch reads, each log up to where it ends for this read.

    Raises:
        AbsentError: a log is not there, or is another one than `asOf` names.
        TrimmedError: the records that were there then are not there any more.
        SparkUseError: `asOf` lies in the future.
    """
    if options.as_of is None:
        return [await extent_of(client, options, source) for source in await resolve(client, options)]
    return [await _extent_as_of(client, options, name, position) for name, position in options.as_of]


async def _extent_as_of(client: QuireClient, options: ReadOptions, name: str, position: Position) -> Extent:
    for attempt in range(_ATTEMPTS):
        if attempt:
            # The end was confirmed once. Too few bookies may answer just now to say so again.
            await asyncio.sleep(_PAUSE_SECONDS)
        extent = await extent_of(client, options, source_of(name))
        if extent.identity != position.identity:
            raise _recreated(name, position.identity, extent.identity)
        if extent.end >= position.offset or not extent.may_grow:
            break
    if extent.end < position.offset:
        why = (
            ": too few bookies answer, or it lies in the future. Try again, or ask quire.spark.read_options for a new one."
            if extent.may_grow
            else ", so asOf lies in the future, or an older state of the cluster was restored. Ask "
            "quire.spark.read_options for a new one."
        )
        raise SparkUseError(
            f"quire: log '{name}': asOf says offset {position.offset}, the log is known to end at {extent.end}{why}",
            log=name,
        )
    if extent.start > position.offset:
        text = f"log '{name}': asOf ends it at {position.offset}, its earliest record is now {extent.start} (trimmed)."
        if options.fail_on_data_loss:
            raise TrimmedError(f"quire: {text} Load it again to read what is there now.", log=name)
        cluster.warn(text)
        return extent.up_to(extent.start)
    return extent.up_to(position.offset)


def _recreated(name: str, old: str, new: str) -> RecreatedError:
    return RecreatedError(
        f"quire: log '{name}' was deleted and created again (ids {old[:8]}, {new[:8]}); this read is of the old one. "
        "Load it again to read the new one.",
        log=name,
    )


# --- a plan that is kept ----------------------------------------------------------------------------------------------


def check_logs(options: ReadOptions, task: Task) -> dict[str, str]:
    """Look whether a task's logs are still those that its plan was made of.

    Returns:
        The logs that are not, with the reason: their records are lost, whatever bookies still hold of them. Empty unless
        losses are to be stepped over.

    Raises:
        AbsentError: a log was deleted, or deleted and created again, and `failOnDataLoss` is true.
    """
    lost: dict[str, str] = {}
    for name, identity in task.logs:
        try:
            cluster.call(options.cluster, _check_log, name, identity)
        except AbsentError as error:
            if options.fail_on_data_loss:
                raise
            again = isinstance(error, RecreatedError)
            lost[name] = LOG_RECREATED if again else LOG_DELETED
    return lost


async def _check_log(client: QuireClient, name: str, identity: str) -> None:
    try:
        head = await client.log(name).identify()
    except NoSuchLogError as error:
        raise AbsentError(
            f"quire: log '{name}' was deleted after this read was planned. A frame or a view keeps its plan: load "
            "another log, or create it and load it again.",
            log=name,
        ) from error
    if head.log_id.hex() != identity:
        raise _recreated(name, identity, head.log_id.hex())


# --- for users --------------------------------------------------------------------------------------------------------


def read_options(
    *logs: str,
    cluster: str | None = None,
    offsets: Range | Mapping[str, Range] | None = None,
    times: tuple[Moment, Moment] | None = None,
    **more: object,
) -> dict[str, str]:
    """The options of a batch that reads a part of some logs and sees one end of each, however often Spark plans it.

        spark.read.format("quire").options(**quire.spark.read_options("orders", offsets=(100, None))).load()

    The cluster is asked where the logs end now; the option `asOf` says so to every plan of the frame, also over Spark
    Connect and with a schema of one's own.

    Args:
        logs: what `load` takes: names, patterns, `ledger:17`.
        cluster: the cluster's URI; None is the environment's `QUIRE_CLUSTER`.
        offsets: from the first up to, not including, the second, of every log or of each that is named; None leaves a
            side open. A record is read or not: Spark has nothing left to filter.
        times: records from the first time on and before the second: `datetime` (UTC without a zone), ISO text or
            milliseconds since 1970; None leaves a side open.
        more: other read options by their names.

    Raises:
        SparkUseError: an option that cannot be meant, an end before its begin or beyond the log's end, or no such log.

    Source: docs/spark.md, "A part of a log"; Structured Streaming and Kafka: `startingOffsets`, `endingOffsets`.
    """
    texts = {name: _text(value) for name, value in more.items() if value is not None}
    texts["log"] = ",".join(logs)
    if cluster is not None:
        texts["cluster"] = cluster
    for name, moment in zip(("startingTimestamp", "endingTimestamp"), times or (), strict=False):
        if moment is not None:
            texts[name] = _text(moment)
    options = _parsed(texts)
    texts["cluster"] = options.cluster
    as_of = _now_of(options) if options.as_of is None else options.as_of
    texts["asOf"] = as_text(as_of)
    if offsets is not None:
        texts |= _offsets(offsets, as_of)
    _parsed(texts)
    return texts


def _parsed(texts: Mapping[str, str]) -> ReadOptions:
    return parse(SparkOptions(texts, READ_OPTIONS), Use.BATCH)


def _offsets(offsets: Range | Mapping[str, Range], as_of: AsOf) -> dict[str, str]:
    """`startingOffsets` and `endingOffsets` of every log that has a range."""
    ranges = offsets if isinstance(offsets, Mapping) else {name: offsets for name, _ in as_of}
    found: dict[str, dict[str, int]] = {"startingOffsets": {}, "endingOffsets": {}}
    ends = dict(as_of)
    for name, (first, end) in ranges.items():
        for option, offset in (("startingOffsets", first), ("endingOffsets", end)):
            if offset is None:
                continue
            if offset < 0 or (name in ends and offset > ends[name].offset):
                raise use_error(
                    f"log '{name}': {option} says {offset}, the log ends at {ends[name].offset}. Offsets are numbers "
                    "from 0 up to its end."
                )
            found[option][name] = offset
    return {option: json.dumps(of_log) for option, of_log in found.items() if of_log}


def _text(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value).lower() if isinstance(value, bool) else str(value)
