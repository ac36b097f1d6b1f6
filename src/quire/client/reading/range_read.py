"""One range of one fragment, read: performs a `ReadMachine` with real bookies and checks every digest.

Knows nothing of LACs, fragments or scans: `reader.py` cuts the ranges.

Source: Vanlightly's guide, "Reading from ledgers".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from quire.client.access import LedgerAccess
from quire.client.bookies.bookies import BookieClient
from quire.core.answers import Answer
from quire.core.ids import BookieId
from quire.core.ledger.effects import ReadFailed, SendRead, SetTimer
from quire.core.ledger.reader import ReadMachine
from quire.core.ledger.terms import Ranges, last_of_term
from quire.env.interfaces import Clock
from quire.wire.entries import Entries, open_entries
from quire.wire.native_bodies import ANY_TERM, BY_ID
from quire.wire.responses import ReadReply
from quire.wire.run import RunView


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """How a range is read.

    Args:
        bytes_max: asked for in one request; a range that turns out larger ends early.
        timeout_ms: how long a bookie may take.
        speculate_after_ms: how long until the next bookie is asked as well.
    """

    bytes_max: int
    timeout_ms: int
    speculate_after_ms: int


def open_runs(
    runs: Sequence[RunView],
    access: LedgerAccess,
    first: int,
    last: int,
    origin_term: int = 0,
    *,
    no_ops: bool = False,
    ranges: Ranges = (),
) -> tuple[Entries, list[tuple[int, int]], int]:
    """The entries first..last of some runs, each digest checked; of a stream those of one origin term.

    `BY_ID`: of whatever origin term, no-ops as well; with the `ranges` of a record none whose id a newer term has
    written again: a bookie whose directory is a restored copy still has what was truncated elsewhere. `no_ops`: of one
    origin term, no-ops as well.

    Returns:
        The good entries by ascending id, the ids (as ranges of one) of the bad ones, and the bytes of all.
    """
    parts: list[Entries] = []
    bad: list[tuple[int, int]] = []
    size = 0
    in_order, by_id = True, origin_term == BY_ID
    for run in runs:
        kept = last_of_term(run.origin_term, ranges) if by_id else None
        through = last if kept is None else min(last, kept)
        if run.ledger_id != access.ledger_id or run.last < first or run.first > through:
            continue
        ids: Sequence[int] = run.ids()
        offsets: Sequence[int] = run.offsets()
        if run.first < first or run.last > through:
            wanted = [position for position, entry_id in enumerate(ids) if first <= entry_id <= through]
            if not wanted:
                continue
            ids = ids[wanted[0] : wanted[-1] + 1]
            offsets = offsets[wanted[0] : wanted[-1] + 2]
        origin = run.origin_term if by_id else origin_term
        good, wrong = open_entries(
            access.digest, access.ledger_id, ids, run.body, offsets, origin, no_ops=no_ops or by_id
        )
        if good:
            in_order = in_order and not (parts and good.entry_ids[0] <= parts[-1].entry_ids[-1])
            parts.append(good)
        bad += [(entry_id, entry_id) for entry_id in wrong]
        size += offsets[-1] - offsets[0]
    return _together(access.ledger_id, parts, in_order=in_order), bad, size


def _together(ledger_id: int, parts: Sequence[Entries], *, in_order: bool) -> Entries:
    """The entries of all parts, each id once."""
    if in_order:
        return Entries.join(ledger_id, parts)
    # Stripes of several bookies, or entries that were written twice.
    by_id = {entry.entry_id: entry for part in parts for entry in part}
    return Entries.of(ledger_id, [by_id[entry_id] for entry_id in sorted(by_id)])


class RangeRead:
    """The read of first..last, under way from the moment it is made.

    Attributes:
        done: completes when there is nothing more to come.
        entries: after `done`: the entries from `first` on, without a gap.
        failure: after `done`: why the entry after the last one could not be had; None when it just ended early.
        bytes: what came, headers included.

    Args:
        trouble: called with each bookie that could not serve and its response.
        on_response: called with each response, and with the ms that it took.
        origin_term: of a stream: the term in which all of first..last were written; `BY_ID` where terms only fence.
        ranges: where terms only fence, those of the record.
    """

    def __init__(
        self,
        bookies: BookieClient,
        access: LedgerAccess,
        machine: ReadMachine,
        first: int,
        last: int,
        settings: ReadSettings,
        clock: Clock,
        *,
        trouble: Callable[[BookieId, Answer], None],
        on_response: Callable[[ReadReply, int], None],
        origin_term: int = 0,
        ranges: Ranges = (),
    ) -> None:
        self.first, self.last = first, last
        self.entries = Entries.join(access.ledger_id, ())
        self.failure: ReadFailed | None = None
        self.bytes = 0
        self._bookies, self._access, self._machine = bookies, access, machine
        self._settings, self._clock = settings, clock
        self._trouble, self._on_response = trouble, on_response
        self._origin_term, self._ranges = origin_term, ranges
        self._parts: list[Entries] = []
        self._damaged: dict[BookieId, list[tuple[int, int]]] = {}
        self._tasks: dict[asyncio.Task[ReadReply], None] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.done: asyncio.Future[None] = self._loop.create_future()
        now_ms = clock.now_ms()
        machine.read(now_ms)
        self._perform(now_ms)

    @property
    def next_entry(self) -> int:
        """After `done`: the first entry that did not come."""
        ids = self.entries.entry_ids
        return ids[-1] + 1 if ids else self.first

    def cancel(self) -> None:
        """Its result is no longer wanted."""
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        self._parts.clear()
        if not self.done.done():
            self.done.cancel()

    def _perform(self, now_ms: int) -> None:
        out, self._machine.out = self._machine.out, []
        for effect in out:
            if isinstance(effect, SendRead):
                # What was asked for is larger than expected: give the scan what there is, so that memory stays bounded.
                if self._parts and self.bytes >= self._settings.bytes_max and self._end_early():
                    return
                self._send(effect, now_ms)
            elif isinstance(effect, SetTimer):
                self._set_timer(effect.at_ms - now_ms)
            else:
                self._finish(effect if isinstance(effect, ReadFailed) else None)
                return

    def _send(self, effect: SendRead, now_ms: int) -> None:
        task = self._loop.create_task(
            self._bookies.read(
                effect.bookie,
                self._access,
                effect.first,
                effect.last,
                self._settings.bytes_max,
                origin_term=self._origin_term or ANY_TERM,
                timeout_ms=self._settings.timeout_ms,
            )
        )
        self._tasks[task] = None
        task.add_done_callback(lambda task: self._answered(effect, now_ms, task))

    def _answered(self, effect: SendRead, sent_ms: int, task: asyncio.Task[ReadReply]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled() or self.done.done():
            return
        error = task.exception()
        if error is not None:
            self.cancel_with(error)
            return
        reply = task.result()
        now_ms = self._clock.now_ms()
        self._on_response(reply, now_ms - sent_ms)
        entries, bad, size = open_runs(
            reply.runs, self._access, effect.first, effect.last, self._origin_term, ranges=self._ranges
        )
        self.bytes += size
        if reply.damaged:
            self._damaged.setdefault(effect.bookie, []).extend(reply.damaged)
        if bad or reply.answer is not Answer.OK:
            self._trouble(effect.bookie, Answer.BAD_DIGEST if bad else reply.answer)
        if entries:
            self._parts.append(entries)
        self._machine.answered(
            effect.slot,
            reply.answer,
            entries.entry_ids,
            reply.conclusive_through,
            reply.unknown + bad,
            now_ms,
        )
        self._perform(now_ms)

    def cancel_with(self, error: BaseException) -> None:
        """A defect of this program, not of a bookie: raise it at the caller."""
        if not self.done.done():
            self.done.set_exception(error)
        self.cancel()

    def _set_timer(self, after_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(max(after_ms, 0) / 1000, self._time_over)

    def _time_over(self) -> None:
        self._timer = None
        if not self.done.done():
            now_ms = self._clock.now_ms()
            self._machine.timer_fired(now_ms)
            self._perform(now_ms)

    def _end_early(self) -> bool:
        self._gather()
        if not self.entries:
            return False
        self._finish(None)
        return True

    def _finish(self, failure: ReadFailed | None) -> None:
        self._gather()
        self.failure = failure if failure is None else self._named(failure)
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        self._parts = []
        self.done.set_result(None)

    def _named(self, failure: ReadFailed) -> ReadFailed:
        """The same failure, with DAMAGED instead of UNKNOWN for each bookie that has a damaged copy."""
        at = failure.entry_id
        answers = tuple(
            (bookie, Answer.DAMAGED)
            if answer is Answer.UNKNOWN
            and any(low <= at <= high for low, high in self._damaged.get(bookie, ()))
            else (bookie, answer)
            for bookie, answer in failure.answers
        )
        return replace(failure, answers=answers)

    def _gather(self) -> None:
        """The entries from `first` on, without a gap, out of the parts of all responses."""
        parts = sorted(self._parts, key=lambda part: part.entry_ids[0])
        in_order = all(before.entry_ids[-1] < after.entry_ids[0] for before, after in pairwise(parts))
        self.entries = _together(self._access.ledger_id, parts, in_order=in_order).without_gap(self.first)
