"""A stream over logs: where it begins, how far the next micro-batch goes, what its tasks read, what is done.

One object lives in the one process that Spark keeps on the driver for a stream; nothing of it is needed after a
restart, since every position is in Spark's checkpoint and, with a cursor, in the metadata store. So every response is
derived from positions and from the logs, and the same question gets the same response:

- the start is asked for twice, and again after each failure until the first batch is done: `earliest` is not a number
  but "where the log begins", a number is the user's, and `latest` is only what a cursor holds;
- a batch that is planned again reads the same offsets, because its end was confirmed when it was planned first.

Source: docs/spark.md, "Streams", "What is lost, and what is reported"; Spark documentation: `DataSourceStreamReader`.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from quire.core.errors import QuireError, TrimmedError
from quire.log.cursors import CursorUse, LogCursors
from quire.spark import cluster, planning
from quire.spark.admission import Backlog, admit
from quire.spark.counting import stretches
from quire.spark.extents import (
    AbsentError,
    Extent,
    begin_at,
    check_end,
    check_end_is_known,
    extent_of_ledger,
    extent_of_log,
    resolve,
    source_of,
)
from quire.spark.options import SparkUseError
from quire.spark.packing import Task
from quire.spark.positions import Position, from_json, to_json
from quire.spark.pushdown import Wanted
from quire.spark.read_options import EARLIEST, LATEST, ReadOptions, Source, Strategy

if TYPE_CHECKING:
    from quire.log.client import QuireClient
    from quire.log.log import Log

_ATTEMPTS: int = 50
_PAUSE_SECONDS = 0.1


class Limits(NamedTuple):
    """How much one micro-batch takes at most; None is no limit."""

    records: int | None = None
    bytes: int | None = None


class Stream:
    """The reader of one structured stream.

    Args:
        options: what the user asked for.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._logs: dict[str, Log] = {}
        self._seen: dict[str, Extent] = {}
        self._target: dict[str, Position] | None = None
        self._left_out: dict[str, None] = {}
        self._use = CursorUse(options.cursor or "", uuid.uuid4().hex, options.hold_retention)
        self._moved: dict[str, None] = {}
        self._ahead: tuple[Any, Any, asyncio.Task[list[Task]]] | None = None

    # --- what Spark asks -------------------------------------------------------------------------------------------

    async def initial(self, client: QuireClient) -> dict[str, Any]:
        """Where a stream begins that has no checkpoint yet.

        Raises:
            SparkUseError: a log that is not there, or a position that it does not have.
            ReadUnavailableError: too few bookies respond to determine whether it has it.
            TrimmedError: a position that it no longer has.
        """
        positions: dict[str, Position] = {}
        for extent in (await self._extents(client, {})).values():
            offset = await self._begins(client, extent)
            if self._options.cursor is not None:
                offset = extent.offset(EARLIEST if offset is None else offset)
                held = await _cursors(client).begin(extent.identity, self._use, offset)
                offset = held.offset
                self._moved[extent.identity] = None
            if offset is not None:
                begin_at(self._options, extent, offset)
                check_end(extent, "startingOffsets", offset)
                positions[extent.name] = Position(extent.identity, offset)
        return to_json(positions)

    async def _begins(self, client: QuireClient, extent: Extent) -> int | None:
        """Where a stream is to begin in one log; None is its earliest record, whichever that is by then."""
        options = self._options
        if options.starting_ms is None:
            asked = options.starting.of(extent.name)
            return None if asked == EARLIEST else asked
        found = await planning.offset_since(client, options, extent, options.starting_ms)
        if found is None and options.strategy is Strategy.ERROR:
            raise SparkUseError(
                f"quire: log '{extent.name}': no record is as late as startingTimestamp. Begin earlier, or set "
                "startingTimestampStrategy=latest and a cursor.",
                log=extent.name,
            )
        return LATEST if found is None else found

    async def latest(self, client: QuireClient, start: Any, limits: Limits) -> dict[str, Any]:
        """Where the next micro-batch ends.

        Args:
            client: the cluster.
            start: where it begins, as Spark keeps it.
            limits: how much it takes at most.

        Returns:
            `start` when nothing waits.

        Raises:
            SparkUseError: a log is deleted, or is not the one that the checkpoint means.
            TrimmedError: what was to come next is not there any more.
        """
        begun = from_json(start)
        self._seen = await self._extents(client, begun)
        backlogs: list[Backlog] = []
        for extent in self._seen.values():
            offset = self._continue(extent, begun.get(extent.name))
            end = extent.end
            if self._target is not None:
                if extent.name in self._left_out and extent.name not in self._target:
                    # When the target was fixed this log was not known: only the checkpoint names it.
                    check_end_is_known(extent)
                    self._target[extent.name] = Position(extent.identity, end)
                target = self._target.get(extent.name)
                end = target.offset if target is not None and target.identity == extent.identity else offset
            # Fewer bookies may answer than before, so what is known to be confirmed may shrink for a while.
            waiting = await stretches(client, self._options, extent, offset, limits.records)
            backlogs.append(Backlog(extent.name, offset, max(offset, end), waiting))
        ends = admit(backlogs, limits.records, limits.bytes)
        positions = dict(begun)
        for backlog in backlogs:
            if ends[backlog.name] > backlog.start:
                identity = self._seen[backlog.name].identity
                positions[backlog.name] = Position(identity, ends[backlog.name])
        batch_end = to_json(positions)
        if positions != begun:
            self._plan_ahead(client, start, batch_end)
        return batch_end

    def _plan_ahead(self, client: QuireClient, start: Any, end: Any) -> None:
        """Plan the batch while Spark writes down that it is to be: it will ask for the plan next."""
        if self._ahead is not None:
            self._ahead[2].cancel()
        planned = asyncio.ensure_future(self._plan(client, start, end, self._seen))
        planned.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._ahead = start, end, planned

    def newest(self) -> dict[str, Any]:
        """How far the logs reach, as the last `latest` saw them; what a stream's progress shows as lag.

        Spark asks for it right after `latest`; the progress of a batch that was planned before a restart has none.
        """
        return to_json({name: Position(each.identity, each.end) for name, each in self._seen.items()})

    async def stop_at_now(self, client: QuireClient) -> None:
        """Treat what is there now as all that there will ever be (`Trigger.AvailableNow`).

        Spark does not say yet where the stream is: the end of a log that only the checkpoint names is fixed by the
        first `latest`, which gets it.

        Raises:
            ReadUnavailableError: too few bookies respond to determine how much is there.
        """
        extents = await self._extents(client, {})
        for extent in extents.values():
            check_end_is_known(extent)
        self._target = {name: Position(each.identity, each.end) for name, each in extents.items()}

    async def plan(self, client: QuireClient, start: Any, end: Any) -> list[Task]:
        """The tasks of one micro-batch.

        Raises:
            SparkUseError, TrimmedError: as `latest`.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[:2] == (start, end):
            with contextlib.suppress(QuireError):  # what was wrong then may be right now, or is said now
                return await ahead[2]
        return await self._plan(client, start, end, {})

    async def _plan(
        self, client: QuireClient, start: Any, end: Any, seen: Mapping[str, Extent]
    ) -> list[Task]:
        """The tasks of one micro-batch.

        Args:
            client: the cluster.
            start: where it begins, and `end` where it ends, as Spark keeps them.
            seen: logs that need not be looked at again, as they are now.
        """
        begun, ends = from_json(start), from_json(end)
        changed = {name: position for name, position in ends.items() if begun.get(name) != position}
        pieces = []
        for name, position in changed.items():
            extent = await self._extent_up_to(client, name, begun.get(name), position, seen.get(name))
            if extent is None:
                continue
            offset = self._continue(extent, begun.get(name))
            if offset < position.offset:
                pieces += await planning.pieces_between(
                    client, self._options, Wanted(), extent, offset, position.offset
                )
        return planning.tasks_of(self._options, Wanted(), pieces)

    async def commit(self, client: QuireClient, end: Any) -> None:
        """Spark has done with everything below: move the cursor.

        Raises:
            CursorTakenError: another stream uses it now.
        """
        if self._options.cursor is None:
            return
        for position in from_json(end).values():
            take = position.identity not in self._moved
            await _cursors(client).move(position.identity, self._use, position.offset, take=take)
            self._moved[position.identity] = None

    # --- logs as they are --------------------------------------------------------------------------------------

    async def _extents(self, client: QuireClient, begun: Mapping[str, Position]) -> dict[str, Extent]:
        """Every log of the stream by name; logs of `begun` that are deleted are an error, or left out with a warning."""
        sources = {source.name: source for source in await resolve(client, self._options, may_be_none=True)}
        found: dict[str, Extent] = {}
        for name in sorted({*sources, *begun}):
            extent = await self._extent(client, sources.get(name) or source_of(name), begun.get(name))
            if extent is None:
                continue
            found[name] = extent
            if name not in sources and name not in self._left_out:
                self._left_out[name] = None
                cluster.warn(
                    f"log '{name}' is not loaded any more, but the checkpoint names it (at offset {begun[name].offset}): "
                    "it is read on. A new checkpoint leaves it out."
                )
        return found

    async def _extent(
        self, client: QuireClient, source: Source, begun: Position | None = None
    ) -> Extent | None:
        """One log; None when it is deleted and that is to be skipped.

        Args:
            client: the cluster.
            source: the log.
            begun: where the stream is in it: what lies below is left out of the description.
        """
        try:
            if source.ledger_id is not None:
                return await extent_of_ledger(client, self._options, source)
            if source.name not in self._logs:
                self._logs[source.name] = client.log(source.name, self._options.password())
            log, since = self._logs[source.name], 0 if begun is None else begun.offset
            extent = await extent_of_log(client, self._options, log, since)
            if begun is not None and extent.identity != begun.identity:
                # Offsets of another log say nothing about this one.
                extent = await extent_of_log(client, self._options, log)
            return extent
        except AbsentError as error:
            if begun is None:
                raise
            text = f"'{source.name}' was deleted; the stream was at offset {begun.offset} of it."
            if self._options.fail_on_data_loss:
                raise AbsentError(
                    f"quire: {text} failOnDataLoss=false goes on without it.", log=source.name
                ) from error
            cluster.warn(text)
            return None

    async def _extent_up_to(
        self,
        client: QuireClient,
        name: str,
        begun: Position | None,
        end: Position,
        extent: Extent | None = None,
    ) -> Extent | None:
        """A log with at least what was confirmed when a batch was planned; None when its records are lost."""
        for attempt in range(_ATTEMPTS):
            if extent is not None and extent.identity == end.identity and extent.end >= end.offset:
                return extent
            if attempt:
                # The end was confirmed once. Too few bookies may answer just now to say so again.
                await asyncio.sleep(_PAUSE_SECONDS)
            extent = await self._extent(client, source_of(name), begun or Position(end.identity, 0))
            if extent is None:
                return None
            if extent.identity != end.identity:
                self._recreated(extent, end)
                return None
        assert extent is not None
        raise SparkUseError(
            f"quire: log '{name}': the batch ends at offset {end.offset}, but only {extent.end} is "
            "known to be acknowledged: too few bookies respond, or an older state of the cluster was "
            "restored. Start the query again when they are back.",
            log=name,
        )

    def _continue(self, extent: Extent, begun: Position | None) -> int:
        """The offset at which reading goes on in one log."""
        if begun is None:
            # A log that matches a pattern since lately, or one that is read from its earliest record.
            asked = dict(self._options.starting.of_log).get(extent.name, EARLIEST)
            return begin_at(self._options, extent, asked) if asked >= 0 else extent.start
        if begun.identity != extent.identity:
            self._recreated(extent, begun)
            return extent.start
        return begin_at(self._options, extent, begun.offset)

    def _recreated(self, extent: Extent, old: Position) -> None:
        """A position in another log of the same name.

        Raises:
            TrimmedError: unless that is to be stepped over.
        """
        text = (
            f"log '{extent.name}' was deleted and created again (ids {old.identity[:8]}, {extent.identity[:8]}); the "
            "checkpoint belongs to the old one."
        )
        if self._options.fail_on_data_loss:
            raise TrimmedError(
                f"quire: {text} Use a new checkpoint; failOnDataLoss=false begins the new one.",
                log=extent.name,
            )
        cluster.warn(text)


def _cursors(client: QuireClient) -> LogCursors:
    return LogCursors(client.store, client.clock.wall_ms)
