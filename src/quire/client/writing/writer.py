"""The writer of one ledger for asyncio: payloads in, futures out; `core/ledger/writer.py` decides.

What one loop turn appends becomes one run. A window of bytes bounds what is unconfirmed or unsent. One loop owns a
writer; there is no task, lock or timer per entry. `LedgerWriter` is the side that callers see; `WriterEffects` carries out
the machine's effects: runs to bookies, compare-and-swaps, timers, choices of bookies, probes, and how a writer ends.

Source: BookKeeper protocol, "Writing to the ledger", "Closing a ledger as a writer".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from asyncio import _get_running_loop
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate, takewhile
from types import TracebackType
from typing import Any, ClassVar, Final, Self, TypeAlias

from quire.client.access import LedgerAccess
from quire.client.config import ClientConfig
from quire.client.context import ClientContext
from quire.client.leaving import finished, read, warn
from quire.client.recovering.pending_replication import mark_closed
from quire.client.sending.bundles import HELD_BYTES, Futures, SlotConnection
from quire.client.sending.lac_sending import LacNews
from quire.client.sending.outgoing import ByteWindow, Outgoing, sealer_of
from quire.client.writing.choosing import BookieChoices
from quire.client.writing.creating import gives_guarantee_up
from quire.client.writing.flushing import LedgerFlush, record_holes
from quire.core.answers import Answer
from quire.core.errors import (
    LedgerClosedError,
    MisuseError,
    NoSuchLedgerError,
    NoSuchStreamError,
    NotWritingError,
    QuireError,
    QuorumLostError,
    WindowFullError,
)
from quire.core.ids import NO_ENTRY, BookieId, EntryId, LedgerId, Term
from quire.core.ledger import effects as e
from quire.core.ledger.holes import holes_of_runs, joined
from quire.core.ledger.metadata import LedgerMetadata, LedgerState
from quire.core.ledger.writer import WriterMachine
from quire.core.ledger.writer_state import Hole, Status, WriterLimits
from quire.env.home import check_home, not_pickled
from quire.metadata.store import KeyMissingError, VersionConflictError
from quire.wire.frame_limits import SETTING

log = logging.getLogger(__name__)

Payload: TypeAlias = bytes | bytearray | memoryview

_NOBODY: Final[deque[tuple[int, asyncio.Future[None]]]] = deque()
"""Shared by all writers without a waiting `drain`. Never changed."""
_NO_PAYLOADS: Final[list[bytes]] = []
_NO_FUTURES: Final[list[asyncio.Future[int] | None]] = []
"""Shared by all writers that have collected nothing. Never changed."""


@lru_cache(maxsize=16)
def _limits_of(config: ClientConfig) -> WriterLimits:
    """Shared by all writers of a client."""
    return WriterLimits(
        config.change_retry_ms_min,
        config.change_retry_ms_max,
        config.metadata_attempts_max,
        config.quorum_wait_ms,
        config.left_wait_ms_max // 2,
    )


class LedgerWriter:
    """An open ledger that this client alone appends to; of a stream, until another client takes it over.

    Args:
        record: the record as created.
        version: its version in the metadata store.
        access: id, master key, token, digest and term sent with every request for this ledger.
        context: what it shares with the client's other handles.
        absent: slots whose bookies were away when the ledger was created, or taken over.
        last: of a stream that was taken over, the last entry that is there already.
        length: payload bytes up to it.
    """

    __reduce__ = not_pickled

    # Slots, and one table of handlers for all: a client may have tens of thousands of writers, most of them idle.
    __slots__ = (
        "_batch_bytes",
        "_batch_cost",
        "_context",
        "_copies",
        "_drains",
        "_effects",
        "_entry_bytes_max",
        "_entry_overhead",
        "_futures",
        "_loop",
        "_machine",
        "_new_future",
        "_outgoing",
        "_partly",
        "_payloads",
        "_run_bytes_max",
        "_run_cost_max",
        "_sealer",
        "_taking",
        "_turn_due",
        "_window",
        "access",
    )

    def __init__(
        self,
        record: LedgerMetadata,
        version: int,
        access: LedgerAccess,
        context: ClientContext,
        absent: Sequence[int] = (),
        last: int = NO_ENTRY,
        length: int = 0,
    ) -> None:
        config = context.config
        self.access, self._context = access, context
        self._machine = context.machines.writer(record, version, _limits_of(config), last, length)
        self._window = ByteWindow(config.window_bytes_max)
        self._sealer = sealer_of(access.digest, record.ensemble_size, record.write_quorum, access.term)
        self._loop = asyncio.get_running_loop()
        # Read for every entry.
        self._new_future: Callable[[], asyncio.Future[int]] = self._loop.create_future
        self._entry_overhead = self._sealer.entry_overhead
        self._copies = self._sealer.copies
        # More than every protocol carries goes to bookies of ours alone: see `_check_large`.
        self._entry_bytes_max = min(config.payload_bytes_max, config.portable_bytes_max)
        self._run_bytes_max = config.run_bytes_max
        self._run_cost_max = config.frame_limits.native_entry * self._copies
        self._taking = True
        # What this loop turn has collected; a future for each entry that a caller waits for.
        self._payloads, self._futures = _NO_PAYLOADS, _NO_FUTURES
        self._partly: asyncio.Future[int] | None = None  # of several entries, the first of which were sent
        self._batch_bytes = self._batch_cost = 0
        self._turn_due = False
        self._drains = _NOBODY
        self._effects = WriterEffects(self, self._machine, access, context, self._window)
        self._outgoing = self._effects.outgoing
        if absent:
            self._machine.began_without(absent, context.clock.now_ms())
            self._effects.perform()

    def __repr__(self) -> str:
        return f"<LedgerWriter {self.ledger_id}, last {self.last_add_confirmed:,}>"

    # --- what a user sees --------------------------------------------------------------------------------------------

    @property
    def ledger_id(self) -> LedgerId:
        """The ledger's id."""
        return self.access.ledger_id

    @property
    def term(self) -> Term:
        """The term in which it writes a stream; 0 of a ledger."""
        return Term(self.access.term)

    @property
    def last_add_confirmed(self) -> EntryId:
        """The highest id such that it and every lower one is confirmed; -1 if none."""
        return EntryId(self._machine.window.lac)

    @property
    def length(self) -> int:
        """Payload bytes of the confirmed entries."""
        return self._machine.window.confirmed_length

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's record as this writer knows it."""
        return self._machine.cas.record

    @property
    def problem(self) -> QuireError | None:
        """Why the writer has ended, or None."""
        problem = self._machine.problem
        return problem.exception(**self._effects.about()) if problem else None

    @property
    def waits_for(self) -> tuple[BookieId, ...]:
        """The bookies that have not acknowledged all of the oldest entries that are pending.

        Where the write quorum is guaranteed an entry is pending until it is on all of that; else until it is confirmed.
        """
        self._outgoing.leave_bundles()  # what is known of single bookies
        return self._machine.waits_for

    @property
    def held_bytes(self) -> int:
        """Bytes that count against the window: collected, unconfirmed, or not yet sent to some bookie."""
        return self._window.used_bytes

    @property
    def holes(self) -> tuple[Hole, ...]:
        """Entries up to the LAC that bookies of the record may lack: they were away, or never acknowledged them."""
        return self._effects.holes

    @property
    def label(self) -> str:
        """What it writes, in words."""
        return f"ledger {self.ledger_id}" + (f" in term {self.term}" if self.term else "")

    # --- appending ---------------------------------------------------------------------------------------------------

    async def append(self, payload: Payload) -> EntryId:
        """Append one entry; returns when it is durable on its ack quorum and every earlier entry is too.

        Waits for room in the window first, in the order of the calls.

        Raises:
            NotWritingError: the handle is closed, abandoned or has ended; nothing was sent.
            MisuseError: the payload is larger than `entry_bytes_max`.
            OutcomeUnknownError: the writer ended meanwhile; the entry may or may not be in the ledger.
        """
        payload = self._accepted(payload)
        cost = (len(payload) + self._entry_overhead) * self._copies
        if not self._window.reserve(cost):
            await self._room(cost)
        if self._payloads or self._machine.window.runs:
            return EntryId(await self._put(payload, cost))
        if _get_running_loop() is not self._loop:
            self._refuse_elsewhere(cost)
        # Nothing is on its way and no other caller has appended in this turn: there is nothing to wait for.
        future = self._new_future()
        self._take(payload, cost, future)
        self._hand_over()
        return EntryId(await future)

    def append_nowait(self, payload: Payload) -> asyncio.Future[int]:
        """Append one entry without waiting; the future gives its id, and futures complete in the order of the calls.

        Raises:
            WindowFullError: no room; `await drain()`, then append again. Nothing was sent.
            NotWritingError, MisuseError: as `append`.
        """
        if type(payload) is not bytes or not self._taking or len(payload) > self._entry_bytes_max:
            payload = self._accepted(payload)
        size = len(payload)
        cost = (size + self._entry_overhead) * self._copies
        window = self._window
        if window.used_bytes + cost > window.limit_bytes or window.waiters:
            if not window.reserve(cost):
                raise self._window_full()
        else:
            window.used_bytes += cost
        # What `_collect` does, in place: this is the one function that runs once per entry.
        if not self._turn_due:
            if _get_running_loop() is not self._loop:
                self._refuse_elsewhere(cost)
            self._turn_due = True
            self._context.turn.at_its_end(self)
        elif self._payloads and self._batch_bytes + size > self._run_bytes_max:
            self._hand_over()
            if not self._taking:
                self._window.give_back(cost)
                raise self._not_taking()
        if self._payloads is _NO_PAYLOADS:
            self._payloads, self._futures = [], []
        future = self._new_future()
        self._payloads.append(payload)
        self._futures.append(future)
        self._batch_bytes += size
        self._batch_cost += cost
        return future

    async def append_many(self, payloads: Iterable[Payload]) -> range:
        """Append entries with consecutive ids; returns their ids when all are durable.

        They travel together but are not atomic: after a failure any prefix of them may be in the ledger.

        Raises:
            MisuseError: together they are larger than the window, or one is larger than `entry_bytes_max`.
            NotWritingError, OutcomeUnknownError: as `append`.
        """
        accepted = [self._accepted(payload) for payload in payloads]
        if not accepted:
            return range(0)
        costs = [(len(payload) + self._entry_overhead) * self._copies for payload in accepted]
        cost = sum(costs)
        if cost > self._window.limit_bytes:
            msg = (
                f"{len(accepted)} entries take {cost} bytes, and the window has "
                f"{self._window.limit_bytes}; append them in parts"
            )
            raise MisuseError(msg, ledger_id=self.ledger_id)
        await self._room(cost)
        last = await self._put_many(accepted, costs)
        return range(last - len(accepted) + 1, last + 1)

    async def drain(self) -> None:
        """Wait until everything appended so far is confirmed and half of the window is free.

        Raises:
            OutcomeUnknownError: the writer ended before.
        """
        check_home(self.label, self._loop, ledger_id=self.ledger_id)
        if (problem := self.problem) is not None:
            raise problem
        window = self._machine.window
        last = window.lap + len(self._payloads)
        if window.lac < last:
            confirmed: asyncio.Future[None] = self._loop.create_future()
            if self._drains is _NOBODY:
                self._drains = deque()
            self._drains.append((last, confirmed))
            await confirmed
        half = self._window.limit_bytes // 2
        if self._window.used_bytes > half:
            await self._room(half)
            self._window.give_back(half)

    def _accepted(self, payload: Payload) -> bytes:
        """The payload as bytes of our own, if it may be appended now."""
        if not self._taking:
            raise self._not_taking()
        if type(payload) is not bytes:
            try:
                payload = bytes(memoryview(payload))
            except TypeError as error:
                msg = f"a payload is bytes, bytearray or memoryview, not {type(payload).__name__}"
                raise MisuseError(msg, ledger_id=self.ledger_id) from error
        if len(payload) > self._entry_bytes_max:
            self._check_large(len(payload))
        return payload

    def _check_large(self, size: int) -> None:
        """Refuse a payload that the settings do not allow, or that a bookie of the ledger is not sent in any frame."""
        config, where = self._context.config, f"ledger {self.ledger_id}: an entry of {size} bytes"
        limit = config.payload_bytes_max
        if size > limit:
            setting = SETTING if limit == config.portable_bytes_max else "`ClientConfig.window_bytes_max`"
            if config.entry_bytes_max is not None:
                setting = "ClientConfig.entry_bytes_max"
            msg = f"{where} exceeds the limit of {limit} ({setting}); split it, or raise the limit"
            raise MisuseError(msg, ledger_id=self.ledger_id)
        others = [
            bookie
            for bookie in self.metadata.last_fragment.ensemble
            if not self._context.bookies.speaks_native(bookie)
        ]
        if others:
            msg = (
                f"{where} does not fit a frame of V2 or V3, the protocol of {', '.join(others)}: the "
                f"limit is {self._entry_bytes_max} ({SETTING}); split it, or raise the limit at this "
                "client and these bookies"
            )
            raise MisuseError(msg, ledger_id=self.ledger_id)

    def _not_taking(self) -> NotWritingError:
        problem = self.problem
        why = f": {problem.message}" if problem else ""
        stage = self._machine.stage
        msg = f"ledger {self.ledger_id} accepts no entries from this handle; it is {stage}{why}"
        error = NotWritingError(msg, ledger_id=self.ledger_id)
        error.__cause__ = problem
        return error

    def _window_full(self) -> WindowFullError:
        msg = (
            f"ledger {self.ledger_id}: {self._window.used_bytes} of {self._window.limit_bytes} bytes are in "
            "flight; `await drain()`, then append again"
        )
        return WindowFullError(msg, ledger_id=self.ledger_id)

    async def _room(self, cost: int) -> None:
        """Room in the window, whose slow bookies are looked for meanwhile."""
        self._effects.look_after()
        await self._window.room(cost)

    def _put(self, payload: bytes, cost: int) -> asyncio.Future[int]:
        """Collect an entry whose cost is reserved, with a future for its id."""
        future = self._new_future()
        self._collect(payload, cost, future)
        return future

    def _put_many(self, payloads: Sequence[bytes], costs: Sequence[int]) -> asyncio.Future[int]:
        """The same of several, with a future for the id of the last; the writer may end when the first of them are sent."""
        before, taken = self._machine.lap + len(self._payloads), 0
        try:
            for payload, cost in zip(payloads[:-1], costs[:-1], strict=True):
                taken += 1
                self._collect(payload, cost, None)
            taken += 1
            last = self._put(payloads[-1], costs[-1])
        except NotWritingError:
            self._window.give_back(sum(costs[taken:]))
            problem = self._machine.problem
            if problem is None or self._machine.lap <= before:
                raise
            raise self._sent_in_part(problem) from None
        if self._machine.lap > before:
            self._partly = last
        return last

    def _collect(self, payload: bytes, cost: int, future: asyncio.Future[int] | None) -> None:
        if not self._turn_due and _get_running_loop() is not self._loop:
            self._refuse_elsewhere(cost)
        if self._batch_bytes + len(payload) > self._run_bytes_max and self._payloads:
            self._hand_over()
        self._take(payload, cost, future)
        if not self._turn_due:
            self._turn_due = True
            self._context.turn.at_its_end(self)

    def _refuse_elsewhere(self, cost: int) -> None:
        """Refuse an entry whose cost is reserved, from another event loop than the writer's."""
        self._window.give_back(cost)
        check_home(self.label, self._loop, ledger_id=self.ledger_id)

    def _take(self, payload: bytes, cost: int, future: asyncio.Future[int] | None) -> None:
        if not self._taking:
            self._window.give_back(cost)
            raise self._not_taking()
        if self._payloads is _NO_PAYLOADS:
            self._payloads, self._futures = [], []
        self._payloads.append(payload)
        self._futures.append(future)
        self._batch_bytes += len(payload)
        self._batch_cost += cost

    # --- runs out ----------------------------------------------------------------------------------------------------

    def bookies_changed(self) -> None:
        """Other bookies are registered: those of this ledger that are not, or as read-only, have left."""
        self._effects.choices.bookies_changed()

    def turn_ended(self) -> None:
        """Hand over what was collected in this turn of the loop."""
        self._turn_due = False
        if self._payloads:
            self._hand_over()

    def _hand_over(self) -> None:
        """Seal the collected entries as one run and send it; as several if they are too many for one frame."""
        while self._batch_cost > self._run_cost_max and len(self._payloads) > 1:
            costs = accumulate((len(one) + self._entry_overhead) * self._copies for one in self._payloads)
            self._hand_over_first(max(1, sum(1 for _ in takewhile(self._run_cost_max.__ge__, costs))))
        payloads, futures = self._payloads, self._futures
        if payloads:
            size, cost = self._batch_bytes, self._batch_cost
            self._batch_bytes = self._batch_cost = 0
            if len(payloads) == 1:  # the lists stay here for the next one
                self._send([payloads.pop()], futures.pop(), size, cost)
                return
            self._payloads, self._futures = _NO_PAYLOADS, _NO_FUTURES
            self._send(payloads, futures, size, cost)

    def _hand_over_first(self, count: int) -> None:
        """Send a part of what is collected; the rest stays, and fails with the writer if this ends it."""
        payloads, futures = self._payloads[:count], self._futures[:count]
        size = sum(map(len, payloads))
        cost = (size + count * self._entry_overhead) * self._copies
        self._payloads, self._futures = self._payloads[count:], self._futures[count:]
        if futures[-1] is None:
            self._partly = next(filter(None, self._futures))
        self._batch_bytes, self._batch_cost = self._batch_bytes - size, self._batch_cost - cost
        self._send(payloads, futures, size, cost)

    def _send(
        self,
        payloads: list[bytes],
        futures: Futures,
        size: int,
        cost: int,
    ) -> None:
        machine, outgoing, effects = self._machine, self._outgoing, self._effects
        window = machine.window
        number, lac, length_before = window.next_run, window.lac, window.length
        may_bundle = outgoing.bundled_quorum > 0
        if may_bundle:
            run = machine.assign_ids(len(payloads), size)
        else:
            machine.append(len(payloads), size)
            run = window.runs[number]
        if effects.lac_waits:
            self._context.lacs.carried(effects)
        bodies = self._sealer.seal(self.access.ledger_id, run[0], lac, length_before, payloads)
        if may_bundle:
            sealed = bodies[0]
            assert sealed is not None  # one, for all slots
            held = HELD_BYTES + len(sealed[0])
            self._window.used_bytes += held - cost
            outgoing.send_new(number, run, sealed, futures, held, machine.change.live)
        else:
            held = HELD_BYTES + sum([len(one[0]) for one in bodies if one is not None])
            self._window.used_bytes += held - cost
            outgoing.add(number, run, bodies, futures, held)
        if machine.out:
            effects.perform()

    def idle(self) -> bool:
        """Whether no entry is on its way, or about to be."""
        machine, writing = self._machine, (Status.WRITING, Status.CHANGING)
        return machine.status in writing and not machine.window.pending and not self._payloads

    def confirmed(self, last: int) -> None:
        """Entries up to this one are in the ledger: who drains goes on."""
        drains = self._drains
        while drains and drains[0][0] <= last:
            _, drained = drains.popleft()
            if not drained.done():
                drained.set_result(None)

    # --- the end -----------------------------------------------------------------------------------------------------

    async def close(self, *, at: str = "write_quorum") -> tuple[Hole, ...]:
        """Close the ledger at its last acknowledged entry; entries that are not acknowledged yet fail.

        `await drain()` first to keep them; leaving `async with` does. Needs only the metadata store. Returns when every
        bookie was sent what was acknowledged, or was abandoned (`ClientConfig.flush_ms`) and the record says what it lacks.

        Of a ledger that guarantees its write quorum it waits until every entry is on all of it (`waits_for`).

        Args:
            at: "ack_quorum" closes such a ledger at once and gives the guarantee up, which its record then says.

        Returns:
            What bookies may lack of it, as far as that is known now: `flushed` waits for the rest.

        Raises:
            LedgerFencedError: another client recovers the ledger and decides where it ends.
            MetadataConflictError: it was closed at another entry.
            OutcomeUnknownError: why the writer had ended before, or a silent metadata store.
            NotWritingError: it was abandoned.
            MisuseError: `at` is another word.
        """
        check_home(self.label, self._loop, ledger_id=self.ledger_id)
        machine = self._machine
        gives_up = gives_guarantee_up(at, f"ledger {self.ledger_id} is closed")
        if machine.status is Status.ENDED:
            raise self.problem or self._not_taking()
        if machine.guarantees and self._payloads:
            self._hand_over()
        machine.close(at_ack_quorum=gives_up)
        if self._effects.finished is None:
            self._effects.finished = self._loop.create_future()
        if machine.status in (Status.WRITING, Status.CHANGING):
            self._taking = False
            log.info("ledger %d: the close waits for %s", self.ledger_id, ", ".join(machine.waits_for))
        elif machine.status is not Status.CLOSED:
            self.closing()
        await asyncio.shield(self._effects.finished)
        if gives_up:
            await mark_closed(
                self._context.records, self._context.clock, self.metadata, self._machine.cas.version
            )
        return self.holes

    async def flushed(self) -> tuple[Hole, ...]:
        """Return when no bookie is waited for any more after a close, with what bookies may lack; the record says it."""
        await self._effects.flushed()
        while self._effects.tasks:
            await asyncio.wait(self._effects.tasks)
        return self.holes

    async def release(self) -> None:
        """Confirm what was appended, as far as bookies acknowledge it, and leave the ledger open.

        A stream is left to its next writer, a ledger to a recovery. Readers see all that was confirmed.
        """
        await self._leave(published=True)

    async def abandon(self) -> None:
        """Stop at once and leave the ledger to a recovery. Unacknowledged entries fail. May be called again."""
        check_home(self.label, self._loop, ledger_id=self.ledger_id)
        if self._machine.record.state is LedgerState.CLOSED:
            return
        self._machine.abandon()
        problem = e.Problem(LedgerClosedError, f"ledger {self.ledger_id} was abandoned")
        self.stopped(problem)
        self._effects.finish(problem)
        for task in [task for task in self._effects.tasks if task is not asyncio.current_task()]:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Without an error: drain, then close. With one: the same within a bound; when cancelled: confirm, then abandon.

        A stream is released, not closed. What was not confirmed when another error ends it is warned of: the error goes on.
        """
        if kind is None:
            try:
                await self.drain()
            except QuireError:
                with contextlib.suppress(QuireError):
                    await self._closed_or_released()
                raise
            await self._closed_or_released()
            return
        bound_ms = self._context.config.leave_ms
        is_error, lost, futures = issubclass(kind, Exception), 0, self._pending_futures()
        try:
            if kind is not GeneratorExit:  # nothing can be awaited then
                await self._confirm(bound_ms if is_error else self._context.config.flush_ms)
            lost = self._unconfirmed
            if is_error and not await finished(self._closed_or_released(), bound_ms):
                log.warning("ledger %d was not closed within %d ms after %r", self.ledger_id, bound_ms, error)
        except QuireError as closing:
            log.warning("ledger %d could not be closed after %r: %s", self.ledger_id, error, closing)
        finally:
            lost = lost or self._unconfirmed
            warn({self.label: lost}, f"its writer was left with {error!r}")
            await self.abandon()  # if it is not closed by now
            read(futures)

    async def _closed_or_released(self) -> None:
        await (self.release() if self.term else self.close())

    async def _confirm(self, timeout_ms: int) -> None:
        self._taking, before = False, None
        while before != (before := self._machine.window.lac):  # it moves
            with contextlib.suppress(TimeoutError, QuireError):
                async with asyncio.timeout(timeout_ms / 1000):
                    return await self.drain()
        return None

    @property
    def _unconfirmed(self) -> int:
        is_open = self._machine.status in (Status.WRITING, Status.CHANGING)
        return self._machine.lap + len(self._payloads) - self._machine.window.lac if is_open else 0

    def _pending_futures(self) -> list[asyncio.Future[int] | None]:
        return [*self._outgoing.futures(), *self._futures]

    async def leave(self) -> int:
        """The client is about to be closed: confirm and flush within the bound, record holes, leave the ledger open.

        Returns:
            How many entries are not confirmed.
        """
        return await self._leave(published=bool(self.term))

    async def _leave(self, *, published: bool) -> int:
        check_home(self.label, self._loop, ledger_id=self.ledger_id)
        lost, writing = 0, (Status.WRITING, Status.CHANGING)
        if self._machine.status in writing:
            await self._confirm(self._context.config.flush_ms)
            if published and self._machine.status in writing:
                await self._publish_lac()
        if self._machine.status in writing:
            self._effects.begin_flush()
            lost = self._unconfirmed
            problem = self._stop("was left open by its writer")
            await self._effects.flushed()
            await self._effects.record_and_finish(problem)
        elif self._effects.flush is not None:
            await self._effects.flushed()
        while self._effects.tasks:  # it is being closed
            await asyncio.wait(self._effects.tasks)
        return lost

    async def _publish_lac(self) -> None:
        """Send bookies the LAC: readers see what is confirmed."""
        lac, slots, connections = self._machine.lac, self._machine.change.live, self._outgoing.connections
        if self._machine.window.next_run and slots:
            access, timeout_ms = self.access, self._context.config.flush_ms
            sends = [
                self._context.bookies.write_lac(
                    connections[slot].bookie, access, lac, term=access.term, timeout_ms=timeout_ms
                )
                for slot in slots
            ]
            await asyncio.wait(sends)

    def end(self, why: str) -> int:
        """End at once: fail what is not confirmed, because of `why`; returns how many entries that are."""
        lost = self._unconfirmed
        self._effects.finish(
            None if self._machine.status is Status.CLOSED else self._stop(f"was left open: {why}")
        )
        return lost

    def _stop(self, why: str) -> e.Problem:
        """Entries that are not confirmed fail; the caller warns of them."""
        futures = self._pending_futures()
        self._machine.abandon(why)
        problem = e.Problem(LedgerClosedError, f"ledger {self.ledger_id} {why}")
        self.stopped(problem)
        read(futures)
        return problem

    def _sent_in_part(self, problem: e.Problem) -> QuireError:
        """The error about the last entry that was sent: if it is in the ledger, those before it are."""
        return problem.of_sent.exception(**self._effects.about(), entry_id=self._machine.lap)

    def closing(self) -> None:
        message = f"ledger {self.ledger_id} was closed by its own handle before this entry was sent"
        self.stopped(e.Problem(LedgerClosedError, message))

    def stopped(self, problem: e.Problem) -> None:
        """No entry goes out any more: fail what was not handed over, wake who waits, drop what is unsent."""
        self._taking = False
        error = self._effects.with_troubles(problem).exception(**self._effects.about())
        # A stream's error of unknown outcome names an entry, of which the record tells what became of it.
        unsent = self._not_taking() if self.access.term else error
        partly = self._sent_in_part(problem)
        waiting: list[tuple[asyncio.Future[Any], QuireError]] = [
            (future, partly if future is self._partly else unsent)
            for future in self._futures
            if future is not None
        ]
        waiting += [(drained, error) for _, drained in self._drains]
        for future, why in waiting:
            if not future.done():
                future.set_exception(why)
        self._payloads, self._futures = _NO_PAYLOADS, _NO_FUTURES
        self._drains = _NOBODY
        cost, self._batch_cost, self._batch_bytes = self._batch_cost, 0, 0
        self._window.end(unsent)
        self._window.give_back(cost)
        if self._effects.lac_waits:
            self._context.lacs.carried(self._effects)
        if self._machine.status is Status.CLOSING:
            self._context.ticks.keep(self._effects)
            if self._outgoing.lags:  # what is abandoned at once stands in the closing record
                self._effects.begin_flush()
        elif self._effects.flush is None:
            self._outgoing.retire_all()
        self._effects.perform()
        self._outgoing.settle_all()


class WriterEffects:
    """Performs the effects of one writer's machine, and hands the machine what bookies answer.

    One request to the store and one timer at a time, each in its own small task, none per entry.

    Args:
        writer: whose.
        machine, access, window: the same as of the writer.
        context: what it shares with the client's other handles.

    Attributes:
        writer, access: see above.
        outgoing: the runs that bookies were sent, or are to be; `choices`: which bookies it gets when some fail.
        lac_waits: whether `LacFrames` is to send its LAC.
        flush: from the end of the writer on, the wait for bookies that have not acknowledged all.
        finished: when everything is over, while somebody waits for it; `tasks`: its asyncio tasks under way.
    """

    __slots__ = (
        "_context",
        "_first",
        "_lost",
        "_machine",
        "_news",
        "_performs",
        "_recorded",
        "_ticking",
        "_timer",
        "_window",
        "access",
        "choices",
        "finished",
        "flush",
        "lac_waits",
        "outgoing",
        "tasks",
        "writer",
    )

    def __init__(
        self,
        writer: LedgerWriter,
        machine: WriterMachine,
        access: LedgerAccess,
        context: ClientContext,
        window: ByteWindow,
    ) -> None:
        self.writer, self._machine, self.access, self._context = writer, machine, access, context
        record, self._window = machine.cas.record, window
        self._first = int(machine.lac) + 1  # what was before it other writers of a stream have written
        is_striped = record.ensemble_size > record.write_quorum
        self.outgoing = Outgoing(
            access,
            context.bookies,
            window,
            context.config,
            machine.ensemble,
            self,
            context.clock,
            context.turn,
            0 if access.term or machine.guarantees or is_striped else record.ack_quorum,
        )
        self._timer: asyncio.TimerHandle | None = None
        self._ticking = self._performs = self.lac_waits = False
        self.tasks: tuple[asyncio.Task[None], ...] = ()
        self._news: LacNews | None = None  # while there is any
        self._lost: tuple[Hole, ...] = ()  # what bookies had not acknowledged when they failed
        self._recorded: tuple[Hole, ...] = ()  # what the ledger's record says of `holes`
        self.flush: LedgerFlush | None = None  # from the end on
        self.choices = BookieChoices(machine, access, context, self._start, self.perform)
        self.finished: asyncio.Future[None] | None = None
        context.bookies.follow(self.writer)

    @property
    def ledger_id(self) -> LedgerId:
        """The ledger's id."""
        return self.access.ledger_id

    @property
    def holes(self) -> tuple[Hole, ...]:
        """Entries up to the LAC that bookies of the record may lack: they were away, or never acknowledged them."""
        flushed = self.flush.holes if self.flush is not None else ()
        if not (self._lost or flushed):
            return self._machine.holes
        return joined((*self._machine.holes, *self._lost, *flushed))

    # --- what bookies say --------------------------------------------------------------------------------------------

    def acked_together(self, slots: int, ensemble: tuple[BookieId, ...], run: int) -> None:
        """The bookies at these slots (a mask) of the ensemble that a run was sent to have stored it."""
        self._machine.adds_acked_together(slots, ensemble, run)
        if self._machine.out and not self._performs:  # what is being performed comes first
            self.perform()

    def confirm_head(self, slots: int, ensemble: tuple[BookieId, ...], run: int) -> bool:
        """As `acked_together`, where that confirms this run and no other: its sender completes the futures."""
        return not self._performs and self._machine.confirm_head(slots, ensemble, run)

    def head_confirmed(self) -> None:
        """The futures of a run that `confirm_head` confirmed are complete."""
        if not self.lac_waits:
            self._context.lacs.confirmed(self)
        self.writer.confirmed(self._machine.window.lac)

    def followed(self, slot: int) -> None:
        """Readers wait for the LAC at the bookie of a slot."""
        self.outgoing.connection_at(slot).followed = True
        self.look_after()  # until it is quiet
        if self.writer.idle():
            self._send_explicit_lac(e.SendExplicitLac(self._machine.window.lac, self._machine.change.live))

    def answered(self, connection: SlotConnection, run: int, answer: Answer) -> None:
        """A bookie's response to a run."""
        if answer is Answer.OK:
            self._machine.adds_acked(connection.slot, connection.bookie, run)
        else:
            log.info("ledger %d: bookie %s answered %s", self.ledger_id, connection.bookie, answer.name)
            self._machine.add_failed(connection.slot, connection.bookie, run, answer)
        if self._machine.out:
            self.perform()
        elif self._window.waiters:
            self.outgoing.release()  # this bookie was the last that had not been sent what callers wait for
        if self.flush is not None:
            self.flush.answered(connection, run, answer)
        news = self._news
        if news is not None and news.pending is not None:
            news.answered(connection)

    def _send_explicit_lac(self, effect: e.SendExplicitLac) -> None:
        if not self.outgoing.has_places:
            return  # what takes bundles takes LACs in frames of many, and no reader is known to wait for this one
        if self._news is None:
            timeout_ms = self._context.config.explicit_lac_timeout_ms
            self._news = LacNews(
                self.access, self._context.bookies, self.outgoing, self.writer.idle, timeout_ms
            )
        self._news.due(effect, self.outgoing.connections)

    def pending_explicit_lac(self, takes: Callable[[BookieId], bool]) -> tuple[int, tuple[BookieId, ...]]:
        """The LAC, and the bookies that were not sent it: those that take it in a frame of many are sent it now."""
        lac = self._machine.window.lac
        return lac, self.outgoing.bookies_without_lac(lac, self._machine.change.live, takes)

    # --- effects -----------------------------------------------------------------------------------------------------

    def perform(self) -> None:
        """Do what the machine said, in order, until it says nothing more."""
        machine, handlers = self._machine, self._handlers
        before, self._performs = self._performs, True
        try:
            while machine.out:
                effects = machine.out.copy()  # another list at the machine would outlive the turn
                machine.out.clear()
                for effect in effects:
                    handlers[type(effect)](self, effect)
        finally:
            self._performs = before

    def _confirmed(self, effect: e.Confirmed) -> None:
        self.outgoing.confirm(effect.last, keep=bool(self._machine.window.kept))
        if not self.lac_waits:
            self._context.lacs.confirmed(self)
        self.writer.confirmed(effect.last)

    def _fully_replicated(self, effect: e.FullyReplicated) -> None:
        self.outgoing.leave(effect.last)
        if self._machine.status is Status.CLOSING:
            self.writer.closing()

    def _failed(self, effect: e.Failed) -> None:
        problem = self.with_troubles(effect.problem).of_sent
        about = self.about()
        self.outgoing.fail(lambda entry_id: problem.exception(**about, entry_id=entry_id))

    def about(self) -> dict[str, int]:
        """The ids of an error: the ledger, and a stream's term."""
        term = self.access.term
        return {"ledger_id": self.ledger_id} | ({"term": term} if term else {})

    def with_troubles(self, problem: e.Problem) -> e.Problem:
        """A problem with bookies also names those that accept no connection from this client."""
        if problem.kind is not QuorumLostError:
            return problem
        return replace(problem, message=problem.message + self._context.bookies.troubles())

    # --- bookies come and go -----------------------------------------------------------------------------------------

    def _drop(self, effect: e.DropUnsent) -> None:
        self._context.quarantine.failed(effect.bookie, self._context.clock.now_ms())
        self.outgoing.leave_bundles()
        connection = self.outgoing.connection_at(effect.slot)
        if not connection.retired and not self._machine.guarantees:
            runs, lac = connection.unacked.values(), self._machine.window.lac
            self._lost += holes_of_runs(effect.slot, effect.bookie, runs, lac)
            self._context.ticks.keep(self)
        self.outgoing.retire(effect.slot)
        self.outgoing.release()

    def _ensemble_changed(self, effect: e.EnsembleChanged) -> None:
        for slot in effect.slots:
            self.outgoing.renew(slot, effect.ensemble[slot])
        log.info("ledger %d: from entry %d on %s", self.ledger_id, effect.first, ", ".join(effect.ensemble))

    def _slot_absent(self, effect: e.SlotAbsent) -> None:
        self.outgoing.retire(effect.slot)
        self._context.ticks.keep(self)
        log.warning(
            "ledger %d: no bookie can replace %s now; the writer continues without it from entry %d",
            self.ledger_id,
            effect.bookie,
            effect.first,
        )

    def _quorum_awaited(self, effect: e.QuorumAwaited) -> None:
        log.warning(
            "ledger %d: no ack quorum without %s; the writer waits up to %d ms for these or other bookies",
            self.ledger_id,
            ", ".join(self._machine.ensemble[slot] for slot in effect.slots),
            self._context.config.quorum_wait_ms,
        )

    def _slot_returned(self, effect: e.SlotReturned) -> None:
        self._context.quarantine.clear(effect.bookie)
        self.outgoing.renew(effect.slot, effect.bookie)
        log.info(
            "ledger %d: bookie %s is back from entry %d on",
            self.ledger_id,
            effect.bookie,
            effect.first,
        )

    # --- time --------------------------------------------------------------------------------------------------------

    def _set_timer(self, effect: e.SetTimer) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_ms = max(0, effect.at_ms - self._context.clock.now_ms())
        self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self._machine.timer_fired(self._context.clock.now_ms())
        self.perform()

    def look_after(self) -> None:
        """Look now and then which bookie does not keep up."""
        if not self._ticking:
            self._ticking = True
            self._context.ticks.start(self)

    def tick(self) -> bool:
        """While anything is held, a few times a second: which bookie does not keep up?"""
        outgoing = self.outgoing
        if self.flush is not None:
            return False  # it has a timer of its own
        if outgoing.sends_alone or self._window.waiters:
            for connection in outgoing.slow_places():
                log.warning(
                    "ledger %d: bookie %s does not keep up; the writer stops waiting for it",
                    self.ledger_id,
                    connection.bookie,
                )
                self._machine.bookie_lost(connection.slot, connection.bookie)
                self.perform()
                outgoing.give_up_bundles(connection.bookie)
            outgoing.release()
            if self._news is not None:
                self._news.tell_all_after(self._context.config.explicit_lac_after_ms)
        self._ticking = outgoing.sends_alone or bool(self._window.waiters)
        return self._ticking

    def quiet(self) -> None:
        """Idle for some seconds: send all bookies the LAC, and keep only what an idle writer needs."""
        if self._news is not None:
            self._news.tell_all()
            self._news = None
        self.outgoing.rest()

    # --- the metadata store ------------------------------------------------------------------------------------------

    async def _write_metadata(self, effect: e.WriteMetadata) -> None:
        machine = self._machine
        try:
            async with asyncio.timeout(self._context.config.metadata_timeout_ms / 1000):
                version = await self._cas(effect)
        except (NoSuchLedgerError, NoSuchStreamError, KeyMissingError):
            machine.metadata_missing()
        except VersionConflictError:
            machine.metadata_conflicted()
        except Exception as error:  # noqa: BLE001 - whatever a driver raises, its effect is unknown
            log.warning(
                "ledger %d: the outcome of the compare-and-swap of the record is unknown: %r",
                self.ledger_id,
                error,
            )
            machine.metadata_unknown(self._context.clock.now_ms(), self._why(error))
        else:
            machine.metadata_written(version)
        self.perform()

    async def _cas(self, effect: e.WriteMetadata) -> int:
        """Replace the record; the closing one says at once which holes are known.

        Unless every bookie is known to have all of the fragment that it ends, the ledger is marked for repair with it.
        """
        is_closing = effect.record.state is LedgerState.CLOSED
        records, holes = self._context.records.of(effect.record), self.holes if is_closing else ()
        before = self._machine.cas.record.last_fragment
        knows = before.first_entry >= self._first
        if not is_closing:  # at the close the holes say the rest, and what is still awaited the second change
            knows = knows and not self.holes and not self.outgoing.is_unacknowledged
        if holes:
            try:
                version = await records.write_with_holes(effect.record, holes, effect.version, vouched=knows)
            except MisuseError as error:
                log.error("ledger %d: the record lacks the holes of this writer: %s", self.ledger_id, error)  # noqa: TRY400
                knows = False
            else:
                self._recorded = holes
                return version
        return await records.write(effect.record, effect.version, vouched=knows)

    async def _read_metadata(self) -> None:
        machine = self._machine
        try:
            async with asyncio.timeout(self._context.config.metadata_timeout_ms / 1000):
                record, version = await self._context.records.of(self._machine.cas.record).read(
                    self.ledger_id
                )
        except (NoSuchLedgerError, NoSuchStreamError, KeyMissingError):
            machine.metadata_missing()
        except Exception as error:  # noqa: BLE001 - whatever a driver raises, the record was not read
            log.warning("ledger %d: the record cannot be read now: %r", self.ledger_id, error)
            machine.metadata_unknown(self._context.clock.now_ms(), self._why(error))
        else:
            machine.metadata_read(record, version)
        self.perform()

    def _why(self, error: Exception) -> str:
        """What the store said, in words; a request that timed out has no words of its own."""
        if isinstance(error, TimeoutError):
            return f"no response within {self._context.config.metadata_timeout_ms} ms"
        return str(error) or repr(error)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self.tasks = (*self.tasks, task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self.tasks = tuple(other for other in self.tasks if other is not task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        log.error("ledger %d: the writer failed", self.ledger_id, exc_info=error)
        self._machine.abandon()
        self.perform()
        problem = e.Problem(LedgerClosedError, f"the writer of ledger {self.ledger_id} failed: {error!r}")
        self.writer.stopped(problem)
        self.finish(problem)

    # --- the end -----------------------------------------------------------------------------------------------------

    def _ended(self, effect: e.Ended) -> None:
        log.warning("ledger %d: the writer has ended: %s", self.ledger_id, effect.problem.message)
        self.writer.stopped(effect.problem)
        if self.access.term:
            self.finish(effect.problem)  # a stream is left as it is: nothing more is asked for it
        elif self._machine.status is Status.ENDED:
            self._tell(effect.problem)  # a close that waited for a write quorum does not come any more

    def begin_flush(self) -> None:
        """Wait from now on for the bookies that have not acknowledged all."""
        if self.flush is None:
            self.flush = LedgerFlush(
                self.access,
                self._machine.window.lac,
                self.outgoing,
                self._context.quarantine,
                self._context.clock,
                self._context.config,
            )

    def _closed(self) -> None:
        """The record is closed; bookies may still be waited for, and lack what it does not say yet.

        Who closes does not wait for what every bookie was sent: the client does, when it is closed.
        """
        if self.flush is None and self.outgoing.is_unacknowledged:
            self.begin_flush()
        flush = self.flush
        if flush is not None and not flush.done:
            flush.when_done(self._closed)
            if self.outgoing.all_sent:
                self._tell(None)
        elif self.holes != self._recorded:
            self._start(self.record_and_finish(None))
        else:
            self.finish(None)

    async def record_and_finish(self, problem: e.Problem | None) -> None:
        """Put into the record what it does not say yet of what bookies lack."""
        holes = self.holes
        if holes != self._recorded:
            await record_holes(
                self._context.records.of(self._machine.cas.record),
                self.ledger_id,
                holes,
                self._context.config.metadata_timeout_ms,
            )
            self._recorded = holes
        self.finish(problem)

    async def flushed(self) -> None:
        flush = self.flush
        if flush is not None and not flush.done:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            flush.when_done(lambda: None if done.done() else done.set_result(None))
            await done

    def _tell(self, problem: e.Problem | None) -> None:
        problem = self._machine.problem or problem
        if self.finished is None or self.finished.done():
            return
        if problem is None:
            self.finished.set_result(None)
        else:
            self.finished.set_exception(self.with_troubles(problem).exception(**self.about()))

    def finish(self, problem: e.Problem | None) -> None:
        if self.flush is not None:
            self.flush.stop()
        self.outgoing.retire_all()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._context.ticks.stop(self)
        self._context.bookies.unfollow(self.writer)
        for task in self.tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self._tell(problem)

    # --- what is done about each effect ------------------------------------------------------------------------------

    _handlers: ClassVar[dict[type, Callable[[Any, Any], None]]] = {
        e.SendRun: lambda self, effect: self.outgoing.send(effect),
        e.Confirmed: _confirmed,
        e.FullyReplicated: _fully_replicated,
        e.Failed: _failed,
        e.DropUnsent: _drop,
        e.ChooseReplacements: lambda self, effect: self.choices.choose(effect),
        e.AskLeftBookies: lambda self, effect: self._start(self.choices.ask_left(effect)),
        e.LookForBookies: lambda self, effect: self._start(self.choices.look(effect)),
        e.EnsembleChanged: _ensemble_changed,
        e.SlotAbsent: _slot_absent,
        e.SlotReturned: _slot_returned,
        e.QuorumAwaited: _quorum_awaited,
        e.SendExplicitLac: _send_explicit_lac,
        e.WriteMetadata: lambda self, effect: self._start(self._write_metadata(effect)),
        e.RereadMetadata: lambda self, _: self._start(self._read_metadata()),
        e.SetTimer: _set_timer,
        e.Ended: _ended,
        e.Closed: lambda self, _: self._closed(),
        e.CloseFailed: lambda self, effect: self.finish(effect.problem),
    }
