"""The writer of one ledger for asyncio: payloads in, futures out; `core/ledger/writer.py` decides, `writer_driver.py` carries.

What one loop turn appends becomes one run. A window of bytes bounds what is unconfirmed or unsent. One loop owns a
writer; there is no task, lock or timer per entry.

Source: BookKeeper protocol, "Writing to the ledger", "Closing a ledger as a writer".
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import _get_running_loop
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, takewhile
from typing import Any, Final, TypeAlias

from quire.client.access import LedgerAccess
from quire.client.context import ClientContext
from quire.client.recovering.owed_copies import mark_closed
from quire.client.sending.held_runs import HeldRun
from quire.client.sending.run_sealer import sealer_of
from quire.client.writing.creating import gives_guarantee_up
from quire.client.writing.writer_end import WriterEnd
from quire.core.errors import (
    MisuseError,
    NotWritingError,
    QuireError,
    WindowFullError,
)
from quire.core.ids import NO_ENTRY, BookieId, EntryId
from quire.core.ledger import effects as e
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.writer_state import Hole, Status
from quire.env.home import check_home
from quire.wire.frame_limits import SETTING

log = logging.getLogger(__name__)

Payload: TypeAlias = bytes | bytearray | memoryview

_NOBODY: Final[deque[tuple[int, asyncio.Future[None]]]] = deque()
"""Shared by all writers without a waiting `drain`. Never changed."""
_NO_PAYLOADS: Final[list[bytes]] = []
_NO_FUTURES: Final[list[asyncio.Future[int] | None]] = []
"""Shared by all writers that have collected nothing. Never changed."""


class LedgerWriter(WriterEnd):
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

    __slots__ = (
        "_batch_bytes",
        "_batch_cost",
        "_copies",
        "_drains",
        "_entry_bytes_max",
        "_entry_overhead",
        "_futures",
        "_loop",
        "_new_future",
        "_partly",
        "_payloads",
        "_run_bytes_max",
        "_run_cost_max",
        "_sealer",
        "_turn",
        "_turn_due",
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
        super().__init__(record, version, access, context, absent, last, length)
        config = context.config
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
        self._turn, self._turn_due = context.turn, False
        self._drains = _NOBODY
        self._finished: asyncio.Future[None] | None = None

    # --- what a user sees --------------------------------------------------------------------------------------------

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
        return self._machine.swap.record

    @property
    def problem(self) -> QuireError | None:
        """Why the writer has ended, or None."""
        problem = self._machine.problem
        return problem.exception(**self._about()) if problem else None

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
        if not self._turn_due or not self._payloads or self._batch_bytes + size > self._run_bytes_max:
            return self._put(payload, cost)
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
        config, where = self._config, f"ledger {self.ledger_id}: an entry of {size} bytes"
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
            if not self._bookies.speaks_native(bookie)
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
        self.look_after()
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
            self._turn.at_its_end(self)

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

    # --- runs out ----------------------------------------------------------------------------------------

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
        if self._payloads:
            size, cost = self._batch_bytes, self._batch_cost
            self._batch_bytes = self._batch_cost = 0
            if len(self._payloads) == 1:  # the lists stay here for the next one
                self._send([self._payloads.pop()], (), size, cost, self._futures.pop())
                return
            payloads, futures = self._payloads, self._futures
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
        futures: Sequence[asyncio.Future[int] | None],
        size: int,
        cost: int,
        future: asyncio.Future[int] | None = None,
    ) -> None:
        machine = self._machine
        window = machine.window
        number, lac, length_before = window.next_run, window.lac, window.length
        first = machine.append(len(payloads), size)
        self._lacs.carried(self._access.ledger_id)
        shares = self._sealer.seal(self._access.ledger_id, first, lac, length_before, payloads)
        run = HeldRun(first, window.lap, shares, futures, future)
        self._window.used_bytes += run.cost - cost
        self._outgoing.add(number, run)
        self._perform()

    def _confirmed(self, effect: e.Confirmed) -> None:
        self._outgoing.confirm(effect.last, keep=bool(self._machine.window.kept))
        self._lacs.confirmed(self._access.ledger_id, self)
        drains = self._drains
        while drains and drains[0][0] <= effect.last:
            _, drained = drains.popleft()
            if not drained.done():
                drained.set_result(None)

    def _fully_replicated(self, effect: e.FullyReplicated) -> None:
        self._outgoing.leave(effect.last)
        if self._machine.status is Status.CLOSING:
            self._closing()

    def _collects(self) -> bool:
        return bool(self._payloads)

    # --- the end -----------------------------------------------------------------------------------------------------

    async def close(self, *, at: str = "write_quorum") -> tuple[Hole, ...]:
        """Close the ledger at its last acknowledged entry; entries that are not acknowledged yet fail.

        `await drain()` first to keep them; leaving `async with` does. Needs only the metadata store. Returns when every
        bookie was sent what was acknowledged, or was given up (`ClientConfig.flush_ms`) and the record says what it lacks.

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
        if self._finished is None:
            self._finished = self._loop.create_future()
        if machine.status in (Status.WRITING, Status.CHANGING):
            self._taking = False
            log.info("ledger %d: the close waits for %s", self.ledger_id, ", ".join(machine.waits_for))
        elif machine.status is not Status.CLOSED:
            self._closing()
        await asyncio.shield(self._finished)
        if gives_up:
            await mark_closed(self._records, self._clock, self.metadata, self._machine.swap.version)
        return self.holes

    def _stopped(self, problem: e.Problem) -> None:
        """No entry goes out any more: fail what was not handed over, wake who waits, drop what is unsent."""
        self._taking = False
        error = self._with_troubles(problem).exception(**self._about())
        # A stream's error of unknown outcome names an entry, of which the record tells what became of it.
        unsent = self._not_taking() if self._access.term else error
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
        self._lacs.stopped(self._access.ledger_id, self)
        if self._machine.status is Status.CLOSING:
            self._ticks.keep(self)
            if self._outgoing.lags:  # what is given up at once stands in the closing record
                self._begin_flush()
        elif self._flush is None:
            self._outgoing.retire_all()
        self._perform()
        self._outgoing.settle_all()
