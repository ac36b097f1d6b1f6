"""The writer of one ledger for asyncio: payloads in, futures out; `core/writer.py` decides, this file carries.

What one loop turn appends becomes one run: sealed once, one body shared by all bookies (or one share per slot when the
ledger is striped). A window of bytes bounds what is unconfirmed or unsent. One loop owns a writer; there is no task,
lock or timer per entry.

Source: protocol document (001), "Writing to the ledger", "Closing a ledger as a writer".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from itertools import compress, cycle
from types import TracebackType
from typing import Any, Self

from quire.client.access import LedgerAccess
from quire.client.bookies import BookieClient
from quire.client.config import ClientConfig
from quire.core import effects as e
from quire.core.answers import Answer
from quire.core.errors import (
    LedgerClosedError,
    MisuseError,
    NoSuchLedgerError,
    NotWritingError,
    QuireError,
    WindowFullError,
)
from quire.core.ids import BookieId, EntryId, LedgerId
from quire.core.ledger_metadata import LedgerMetadata
from quire.core.placement import Quarantine, choose_replacements
from quire.core.quorum import residues_of_slot
from quire.core.writer import WriterMachine
from quire.core.writer_state import Hole, Status, WriterLimits
from quire.env.interfaces import Chance, Clock
from quire.metadata.ledgers import LedgerStore
from quire.metadata.store import KeyMissingError, VersionConflictError
from quire.wire.run import checksum, encode_run

log = logging.getLogger(__name__)

Payload = bytes | bytearray | memoryview
_TABLE_BYTES = 4
"""What an entry costs in a run's table."""
_Share = tuple[bytes, int]


class _Slot:
    """One bookie at one place of the ensemble, from its first run until it fails or is replaced."""

    __slots__ = (
        "answers",
        "bookie",
        "moved_ms",
        "retired",
        "seen",
        "sent_bytes",
        "slot",
        "writer",
        "written_bytes",
    )

    def __init__(self, writer: LedgerWriter, slot: int, bookie: BookieId, now_ms: int) -> None:
        self.writer = writer
        self.slot = slot
        self.bookie = bookie
        self.retired = False
        self.sent_bytes = 0
        self.written_bytes = 0
        self.answers = 0
        self.seen = (0, 0)
        self.moved_ms = now_ms

    def add_answered(self, tag: Any, answer: Answer) -> None:
        """The bookie's answer to run `tag`."""
        self.answers += 1
        self.writer._answered(self, tag, answer)  # noqa: SLF001 - a part of the writer


class _Run:
    """What the driver keeps of one run until it is confirmed, and sent or dropped everywhere."""

    __slots__ = ("cost", "first", "futures", "last", "marks", "number", "positions", "settled", "shares")

    def __init__(self, number: int, first: int, last: int, shares: Sequence[_Share | None]) -> None:
        self.number = number
        self.first = first
        self.last = last
        self.shares = shares
        self.cost = sum(len(share[0]) for share in shares if share is not None)
        self.positions: list[int] = []
        self.futures: list[asyncio.Future[int]] = []
        self.marks: list[tuple[_Slot, int]] = []
        self.settled = False


class LedgerWriter:
    """An open ledger that this client alone appends to.

    Args:
        record: the record as created.
        version: its version in the metadata store.
        access: what the ledger's bookies want to be told.
        bookies: connections and registrations.
        ledgers: the ledgers' records.
        clock: monotonic time.
        chance: draws replacements.
        config: sizes and times.
        quarantine: bookies that failed lately; shared by the writers of a client.
    """

    def __init__(
        self,
        record: LedgerMetadata,
        version: int,
        access: LedgerAccess,
        bookies: BookieClient,
        ledgers: LedgerStore,
        clock: Clock,
        chance: Chance,
        config: ClientConfig,
        quarantine: Quarantine | None = None,
    ) -> None:
        self._machine = WriterMachine(
            record,
            version,
            limits=WriterLimits(
                config.change_retry_ms_min, config.change_retry_ms_max, config.metadata_attempts_max
            ),
        )
        self._access = access
        self._bookies = bookies
        self._ledgers = ledgers
        self._clock = clock
        self._chance = chance
        self._config = config
        self._quarantine = quarantine or Quarantine(config.quarantine_ms)
        self._loop = asyncio.get_running_loop()
        self._striped = record.ensemble_size > record.write_quorum
        self._copies = record.write_quorum if self._striped else 1
        self._entry_overhead = access.digest.overhead + _TABLE_BYTES
        self._window_bytes = config.window_bytes_max
        self._entry_bytes_max = config.entry_bytes_max
        self._run_bytes_max = config.run_bytes_max
        now_ms = clock.now_ms()
        self._slots = [
            _Slot(self, slot, bookie, now_ms) for slot, bookie in enumerate(self._machine.ensemble)
        ]
        # What this loop turn has collected.
        self._payloads: list[bytes] = []
        self._positions: list[int] = []
        self._futures: list[asyncio.Future[int]] = []
        self._batch_bytes = 0
        self._batch_cost = 0
        self._turn_due = False
        # What was handed over: by number until settled, in order until nothing of it is held.
        self._runs: dict[int, _Run] = {}
        self._held: deque[_Run] = deque()
        self._used_bytes = 0
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._drains: list[tuple[int, asyncio.Future[None]]] = []
        self._finished: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tick_timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._explicit_due: e.SendExplicitLac | None = None
        self._explicit_hops = 0
        self._handlers: dict[type, Callable[[Any], None]] = {
            e.SendRun: self._send_run,
            e.Confirmed: self._confirmed,
            e.Failed: self._failed,
            e.DropUnsent: self._drop,
            e.ChooseReplacements: self._choose,
            e.LookForBookies: lambda effect: self._start(self._look(effect)),
            e.EnsembleChanged: self._ensemble_changed,
            e.SlotAbsent: self._slot_absent,
            e.SlotReturned: self._slot_returned,
            e.SendExplicitLac: self._explicit_lac_due,
            e.WriteMetadata: lambda effect: self._start(self._write_metadata(effect)),
            e.RereadMetadata: lambda _: self._start(self._read_metadata()),
            e.SetTimer: self._set_timer,
            e.Ended: self._ended,
            e.Closed: lambda _: self._finish(None),
            e.CloseFailed: lambda effect: self._finish(effect.problem),
        }

    # --- what a user asks --------------------------------------------------------------------------------------------

    @property
    def ledger_id(self) -> LedgerId:
        """The ledger's id."""
        return self._machine.record.ledger_id

    @property
    def last_add_confirmed(self) -> EntryId:
        """The highest id such that it and every lower one is confirmed; -1 if none."""
        return EntryId(self._machine.lac)

    @property
    def length(self) -> int:
        """Payload bytes of the confirmed entries."""
        return self._machine.confirmed_length

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's record as this writer knows it."""
        return self._machine.record

    @property
    def problem(self) -> QuireError | None:
        """Why the writer has ended, or None."""
        problem = self._machine.problem
        return problem.exception(ledger_id=self.ledger_id) if problem else None

    @property
    def held_bytes(self) -> int:
        """Bytes that count against the window: collected, unconfirmed, or not yet sent to some bookie."""
        return self._used_bytes

    @property
    def holes(self) -> tuple[Hole, ...]:
        """Entries that bookies of the record lack because they were away while it was written."""
        return self._machine.holes

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
        if self._waiters or not self._fits(cost):
            await self._room(cost)
        else:
            self._used_bytes += cost
        return EntryId(await self._put(payload, cost))

    def append_nowait(self, payload: Payload) -> asyncio.Future[int]:
        """Append one entry without waiting; the future gives its id, and futures complete in the order of the calls.

        Raises:
            WindowFullError: no room; `await drain()`, then append again. Nothing was sent.
            NotWritingError, MisuseError: as `append`.
        """
        payload = self._accepted(payload)
        cost = (len(payload) + self._entry_overhead) * self._copies
        if self._waiters or not self._fits(cost):
            msg = (
                f"ledger {self.ledger_id}: {self._used_bytes} of {self._window_bytes} bytes are in flight; "
                "`await drain()`, then append again"
            )
            raise WindowFullError(msg, ledger_id=self.ledger_id)
        self._used_bytes += cost
        return self._put(payload, cost)

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
        if cost > self._window_bytes:
            msg = f"{len(accepted)} entries cost {cost} bytes, the window is {self._window_bytes}; append them in parts"
            raise MisuseError(msg, ledger_id=self.ledger_id)
        if self._waiters or not self._fits(cost):
            await self._room(cost)
        else:
            self._used_bytes += cost
        self._check_writing()
        for payload, one in zip(accepted[:-1], costs[:-1], strict=True):
            self._collect(payload, one)
        last = await self._put(accepted[-1], costs[-1])
        return range(last - len(accepted) + 1, last + 1)

    async def drain(self) -> None:
        """Wait until everything appended so far is confirmed and half of the window is free.

        Raises:
            OutcomeUnknownError: the writer ended before.
        """
        if (problem := self.problem) is not None:
            raise problem
        last = self._machine.lap + len(self._payloads)
        if self._machine.lac < last:
            confirmed: asyncio.Future[None] = self._loop.create_future()
            self._drains.append((last, confirmed))
            await confirmed
        if self._used_bytes > self._window_bytes // 2:
            await self._room(self._window_bytes // 2)
            self._give_back(self._window_bytes // 2)

    def _accepted(self, payload: Payload) -> bytes:
        """The payload as bytes of our own, if it may be appended now."""
        self._check_writing()
        if type(payload) is not bytes:
            try:
                payload = bytes(memoryview(payload))
            except TypeError as error:
                msg = f"a payload is bytes, bytearray or memoryview, not {type(payload).__name__}"
                raise MisuseError(msg, ledger_id=self.ledger_id) from error
        if len(payload) > self._entry_bytes_max:
            msg = (
                f"ledger {self.ledger_id}: an entry of {len(payload)} bytes is above the limit of "
                f"{self._entry_bytes_max} (ClientConfig.entry_bytes_max); split it"
            )
            raise MisuseError(msg, ledger_id=self.ledger_id)
        return payload

    def _check_writing(self) -> None:
        status = self._machine.status
        if status is not Status.WRITING and status is not Status.CHANGING:
            problem = self.problem
            why = f": {problem.message}" if problem else ""
            msg = f"ledger {self.ledger_id} takes no entries from this handle, it is {status.value}{why}"
            raise NotWritingError(msg, ledger_id=self.ledger_id) from problem

    def _put(self, payload: bytes, cost: int) -> asyncio.Future[int]:
        """Collect an entry whose cost is already reserved, with a future for its id."""
        future: asyncio.Future[int] = self._loop.create_future()
        status = self._machine.status
        if status is not Status.WRITING and status is not Status.CHANGING:
            self._give_back(cost)
            self._check_writing()
        self._collect(payload, cost)
        self._positions.append(len(self._payloads) - 1)
        self._futures.append(future)
        return future

    def _collect(self, payload: bytes, cost: int) -> None:
        payloads = self._payloads
        if payloads and self._batch_bytes + len(payload) > self._run_bytes_max:
            self._hand_over()
            payloads = self._payloads
        if not self._turn_due:
            self._turn_due = True
            self._loop.call_soon(self._turn_ended)
        payloads.append(payload)
        self._batch_bytes += len(payload)
        self._batch_cost += cost

    # --- the window --------------------------------------------------------------------------------------------------

    def _fits(self, cost: int) -> bool:
        return self._used_bytes + cost <= self._window_bytes or not self._used_bytes

    async def _room(self, cost: int) -> None:
        """Wait until so many bytes fit, and reserve them."""
        if not self._waiters and self._fits(cost):
            self._used_bytes += cost
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        entry = (cost, waiter)
        self._waiters.append(entry)
        self._schedule_tick()
        try:
            await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._give_back(cost)
            elif entry in self._waiters:
                self._waiters.remove(entry)
                self._wake()
            raise

    def _give_back(self, cost: int) -> None:
        self._used_bytes -= cost
        self._wake()

    def _wake(self) -> None:
        """Let those in who fit now, in the order in which they came."""
        waiters = self._waiters
        while waiters and (waiters[0][1].done() or self._fits(waiters[0][0])):
            cost, waiter = waiters.popleft()
            if not waiter.done():
                self._used_bytes += cost
                waiter.set_result(None)

    def _release(self) -> None:
        """Take runs out of the window that are settled and, for every slot, sent or dropped."""
        held = self._held
        while held and held[0].settled and all(self._was_sent(slot, mark) for slot, mark in held[0].marks):
            self._used_bytes -= held.popleft().cost
        if self._waiters:
            self._wake()

    def _was_sent(self, slot: _Slot, mark: int) -> bool:
        if slot.written_bytes >= mark or slot.retired:
            return True
        slot.written_bytes = slot.sent_bytes - self._bookies.unsent_bytes(slot.bookie, slot)
        return slot.written_bytes >= mark

    # --- runs out ----------------------------------------------------------------------------------------------------

    def _turn_ended(self) -> None:
        """Hand over what this loop turn has collected."""
        self._turn_due = False
        if self._payloads:
            self._hand_over()

    def _hand_over(self) -> None:
        """Seal the collected entries as one run and send it."""
        machine = self._machine
        payloads, positions, futures = self._payloads, self._positions, self._futures
        payload_bytes, cost = self._batch_bytes, self._batch_cost
        self._payloads, self._positions, self._futures = [], [], []
        self._batch_bytes = self._batch_cost = 0
        number, lac, length_before = machine.next_run, machine.lac, machine.length
        try:
            first = machine.append(len(payloads), payload_bytes)
        except NotWritingError as refused:
            self._give_back(cost)
            self._fail_futures(futures, self.problem or refused)
            return
        headers = self._access.digest.seal(machine.record.ledger_id, first, lac, length_before, payloads)
        run = _Run(number, first, machine.lap, self._shares(first, headers, payloads))
        run.positions, run.futures = positions, futures
        self._runs[number] = run
        self._held.append(run)
        self._used_bytes += run.cost - cost
        self._perform()
        if self._tick_timer is None:
            self._schedule_tick()

    def _shares(self, first: int, headers: list[bytes], payloads: list[bytes]) -> list[_Share | None]:
        """One body for every slot, or a share for each when the ledger is striped."""
        if not self._striped:
            body = self._body(first, first + len(payloads) - 1, headers, payloads, 1, 1)
            return [(body, checksum(body))]
        record, count = self._machine.record, len(payloads)
        size = record.ensemble_size
        shares: list[_Share | None] = []
        for slot in range(size):
            residues = residues_of_slot(slot, size, record.write_quorum)
            pattern = [residues >> (first + offset) % size & 1 for offset in range(size)]
            ends = (*range(min(count, size)), *range(max(0, count - size), count))
            mine = [offset for offset in ends if pattern[offset % size]]
            if not mine:
                shares.append(None)
                continue
            body = self._body(
                first + mine[0],
                first + mine[-1],
                list(compress(headers, cycle(pattern))),
                list(compress(payloads, cycle(pattern))),
                size,
                residues,
            )
            shares.append((body, checksum(body)))
        return shares

    def _body(
        self, first: int, last: int, headers: list[bytes], payloads: list[bytes], period: int, residues: int
    ) -> bytes:
        entries = [b""] * (2 * len(payloads))
        entries[::2] = headers
        entries[1::2] = payloads
        overhead = self._access.digest.overhead
        return encode_run(
            self._machine.record.ledger_id,
            first,
            last,
            entries,
            [overhead + size for size in map(len, payloads)],
            digest_type=self._access.digest.digest_type,
            period=period,
            residues=residues,
        )

    def _send_run(self, effect: e.SendRun) -> None:
        run = self._runs[effect.run]
        add_run, access, timeout_ms = self._bookies.add_run, self._access, self._config.add_timeout_ms
        for number in effect.slots:
            share = run.shares[number if self._striped else 0]
            assert share is not None
            slot = self._slots[number]
            slot.sent_bytes += len(share[0])
            run.marks.append((slot, slot.sent_bytes))
            add_run(
                slot.bookie,
                access,
                share[0],
                share[1],
                lac=effect.lac,
                sink=slot,
                tag=effect.run,
                timeout_ms=timeout_ms,
            )

    # --- answers in --------------------------------------------------------------------------------------------------

    def _answered(self, slot: _Slot, run: int, answer: Answer) -> None:
        if slot.retired:
            return
        if answer is Answer.OK:
            self._machine.adds_acked(slot.slot, slot.bookie, run)
        else:
            log.info("ledger %d: bookie %s answered %s", self.ledger_id, slot.bookie, answer.name)
            self._machine.add_failed(slot.slot, slot.bookie, run, answer)
        if self._machine.out:
            self._perform()

    def _perform(self) -> None:
        """Do what the machine said, in order, until it says nothing more."""
        machine, handlers = self._machine, self._handlers
        while machine.out:
            out, machine.out = machine.out, []
            for effect in out:
                handlers[type(effect)](effect)

    def _confirmed(self, effect: e.Confirmed) -> None:
        runs, last = self._runs, effect.last
        settled = []
        for number, run in runs.items():
            if run.last > last:
                break
            settled.append(number)
        for number in settled:
            run = runs.pop(number)
            run.settled = True
            first = run.first
            for position, future in zip(run.positions, run.futures, strict=True):
                if not future.done():
                    future.set_result(first + position)
            run.positions, run.futures = [], []
        drains = self._drains
        while drains and drains[0][0] <= last:
            _, future_of_drain = drains.pop(0)
            if not future_of_drain.done():
                future_of_drain.set_result(None)
        self._release()

    def _failed(self, effect: e.Failed) -> None:
        ledger_id = self.ledger_id
        for run in self._runs.values():
            run.settled = True
            for position, future in zip(run.positions, run.futures, strict=True):
                if not future.done():
                    error = effect.problem.exception(ledger_id=ledger_id, entry_id=run.first + position)
                    future.set_exception(error)
        self._runs.clear()

    @staticmethod
    def _fail_futures(futures: Iterable[asyncio.Future[Any]], error: QuireError) -> None:
        for future in futures:
            if not future.done():
                future.set_exception(error)

    # --- bookies come and go -----------------------------------------------------------------------------------------

    def _drop(self, effect: e.DropUnsent) -> None:
        self._quarantine.failed(effect.bookie, self._clock.now_ms())
        self._retire(self._slots[effect.slot])
        self._release()

    def _retire(self, slot: _Slot) -> None:
        if not slot.retired:
            slot.retired = True
            self._bookies.drop(slot.bookie, slot)
            self._bookies.forget(slot)

    def _choose(self, effect: e.ChooseReplacements) -> None:
        now_ms = self._clock.now_ms()
        chosen = choose_replacements(
            effect.slots,
            effect.ensemble,
            self._bookies.writable(),
            self._chance,
            failed=effect.failed,
            quarantined=self._quarantine.bookies(now_ms),
            required=effect.required,
        )
        self._machine.replacements_chosen(chosen, now_ms)

    async def _look(self, effect: e.LookForBookies) -> None:
        """Is there a spare, or is an absent bookie back? A spare makes the probes unnecessary."""
        writable = self._bookies.writable()
        doubtful = self._quarantine.bookies(self._clock.now_ms())
        spare = any(bookie not in effect.ensemble and bookie not in doubtful for bookie in writable)
        returned: list[int] = []
        if not spare:
            slots = [slot for slot in effect.slots if effect.ensemble[slot] in writable]
            timeout_ms = self._config.probe_timeout_ms
            answers = await asyncio.gather(
                *(self._bookies.info(effect.ensemble[slot], timeout_ms=timeout_ms) for slot in slots)
            )
            returned = [slot for slot, (answer, _) in zip(slots, answers, strict=True) if answer is Answer.OK]
        self._machine.bookies_found(returned, self._clock.now_ms(), spare=spare)
        self._perform()

    def _ensemble_changed(self, effect: e.EnsembleChanged) -> None:
        now_ms = self._clock.now_ms()
        for slot in effect.slots:
            self._retire(self._slots[slot])
            self._slots[slot] = _Slot(self, slot, effect.ensemble[slot], now_ms)
        log.info("ledger %d: from entry %d on %s", self.ledger_id, effect.first, ", ".join(effect.ensemble))
        self._release()

    def _slot_absent(self, effect: e.SlotAbsent) -> None:
        log.warning(
            "ledger %d: no bookie can replace %s, going on without it from entry %d",
            self.ledger_id,
            effect.bookie,
            effect.first,
        )

    def _slot_returned(self, effect: e.SlotReturned) -> None:
        self._quarantine.forgive(effect.bookie)
        self._slots[effect.slot] = _Slot(self, effect.slot, effect.bookie, self._clock.now_ms())
        log.info("ledger %d: bookie %s is back from entry %d on", self.ledger_id, effect.bookie, effect.first)

    # --- time --------------------------------------------------------------------------------------------------------

    def _set_timer(self, effect: e.SetTimer) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_ms = max(0, effect.at_ms - self._clock.now_ms())
        self._timer = self._loop.call_later(delay_ms / 1000, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self._machine.timer_fired(self._clock.now_ms())
        self._perform()

    def _schedule_tick(self) -> None:
        if self._tick_timer is None:
            self._tick_timer = self._loop.call_later(self._config.slow_after_ms / 2000, self._tick)

    def _tick(self) -> None:
        """While anything is held: which bookie does not keep up? Not once per run, a few times a second."""
        self._tick_timer = None
        self._find_slow_slots()
        self._release()
        self._perform()
        if self._held or self._waiters:
            self._schedule_tick()

    def _find_slow_slots(self) -> None:
        """A slot whose unsent bytes fill its share without a sign of life, while another moves, has failed.

        Without this a stopped bookie would fill the window and stall the writer until its add timeout.
        """
        now_ms, config = self._clock.now_ms(), self._config
        slow: list[_Slot] = []
        moving = False
        for slot in self._slots:
            if slot.retired:
                continue
            unsent = self._bookies.unsent_bytes(slot.bookie, slot)
            seen = (slot.sent_bytes - unsent, slot.answers)
            if seen != slot.seen or not unsent:
                slot.seen, slot.moved_ms = seen, now_ms
                moving = True
            elif now_ms - slot.moved_ms >= config.slow_after_ms and (
                unsent >= config.slot_unsent_bytes_max or 2 * self._used_bytes >= self._window_bytes
            ):
                slow.append(slot)
        for slot in slow if moving else ():
            log.warning("ledger %d: bookie %s does not keep up, giving it up", self.ledger_id, slot.bookie)
            self._machine.bookie_lost(slot.slot, slot.bookie)

    # --- explicit LAC ------------------------------------------------------------------------------------------------

    def _explicit_lac_due(self, effect: e.SendExplicitLac) -> None:
        """Wait two loop turns: a caller who awaits its append and appends again carries the LAC in that header."""
        if self._explicit_due is None:
            self._explicit_hops = 2
            self._loop.call_soon(self._explicit_hop)
        self._explicit_due = effect

    def _explicit_hop(self) -> None:
        due = self._explicit_due
        if (
            due is None
            or self._payloads
            or self._machine.pending
            or self._machine.status is not Status.WRITING
        ):
            self._explicit_due = None
            return
        self._explicit_hops -= 1
        if self._explicit_hops:
            self._loop.call_soon(self._explicit_hop)
            return
        self._explicit_due = None
        self._start(self._send_explicit_lac(due))

    async def _send_explicit_lac(self, due: e.SendExplicitLac) -> None:
        ensemble, timeout_ms = self._machine.ensemble, self._config.explicit_lac_timeout_ms
        await asyncio.gather(
            *(
                self._bookies.write_lac(ensemble[slot], self._access, due.lac, timeout_ms=timeout_ms)
                for slot in due.slots
            )
        )

    # --- the metadata store ------------------------------------------------------------------------------------------

    async def _write_metadata(self, effect: e.WriteMetadata) -> None:
        machine = self._machine
        try:
            async with asyncio.timeout(self._config.metadata_timeout_ms / 1000):
                version = await self._ledgers.write(effect.record, effect.version)
        except (NoSuchLedgerError, KeyMissingError):
            machine.metadata_missing()
        except VersionConflictError:
            machine.metadata_conflicted()
        except Exception as error:  # noqa: BLE001 - whatever a driver raises, nobody knows what it did
            log.warning("ledger %d: the record may or may not be written: %r", self.ledger_id, error)
            machine.metadata_unknown(self._clock.now_ms())
        else:
            machine.metadata_written(version)
        self._perform()

    async def _read_metadata(self) -> None:
        machine = self._machine
        try:
            async with asyncio.timeout(self._config.metadata_timeout_ms / 1000):
                record, version = await self._ledgers.read(self.ledger_id)
        except (NoSuchLedgerError, KeyMissingError):
            machine.metadata_missing()
        except Exception as error:  # noqa: BLE001 - whatever a driver raises, the record was not read
            log.warning("ledger %d: the record cannot be read now: %r", self.ledger_id, error)
            machine.metadata_unknown(self._clock.now_ms())
        else:
            machine.metadata_read(record, version)
        self._perform()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("ledger %d: the writer failed", self.ledger_id, exc_info=error)
            self._machine.abandon()
            self._perform()
            self._stopped(
                e.Problem(LedgerClosedError, f"the writer of ledger {self.ledger_id} failed: {error!r}")
            )

    # --- the end -----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close the ledger at its last acknowledged entry; entries that are not acknowledged yet fail.

        `await drain()` first to keep them; leaving `async with` does. Needs no bookie, only the metadata store. Again
        is allowed.

        Raises:
            LedgerFencedError: another client recovers the ledger and decides where it ends.
            MetadataConflictError: it was closed at another entry.
            OutcomeUnknownError: why the writer had ended before, or a silent metadata store.
            NotWritingError: it was abandoned.
        """
        machine = self._machine
        if machine.status is Status.CLOSED:
            return
        if machine.status is Status.ENDED:
            raise self.problem or NotWritingError(
                f"ledger {self.ledger_id} has ended", ledger_id=self.ledger_id
            )
        if self._finished is None:
            self._finished = self._loop.create_future()
        machine.close()
        message = f"ledger {self.ledger_id} was closed by its own handle before this entry was sent"
        self._stopped(e.Problem(LedgerClosedError, message))
        self._perform()
        await asyncio.shield(self._finished)

    async def abandon(self) -> None:
        """Stop at once and leave the ledger to whoever recovers it; unacknowledged entries fail. Again is allowed."""
        self._machine.abandon()
        self._perform()
        self._stopped(e.Problem(LedgerClosedError, f"ledger {self.ledger_id} was abandoned"))
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Without an error: drain, then close. With one: close what is acknowledged; when cancelled: abandon."""
        if kind is None:
            try:
                await self.drain()
            except QuireError:
                with contextlib.suppress(QuireError):
                    await self.close()
                raise
            await self.close()
        elif issubclass(kind, Exception):
            try:
                await self.close()
            except QuireError as closing:
                log.warning("ledger %d could not be closed after %r: %s", self.ledger_id, error, closing)
        else:
            await self.abandon()

    def _ended(self, effect: e.Ended) -> None:
        log.warning("ledger %d: the writer has ended: %s", self.ledger_id, effect.problem.message)
        self._stopped(effect.problem)

    def _stopped(self, problem: e.Problem) -> None:
        """No entry goes out any more: fail what was not handed over, wake who waits, drop what is unsent."""
        error = problem.exception(ledger_id=self.ledger_id)
        futures, self._futures = self._futures, []
        self._payloads, self._positions = [], []
        self._used_bytes -= self._batch_cost
        self._batch_bytes = self._batch_cost = 0
        self._fail_futures(futures, error)
        self._fail_futures((future for _, future in self._drains), error)
        self._drains.clear()
        waiters, self._waiters = self._waiters, deque()
        self._fail_futures((waiter for _, waiter in waiters), error)
        for slot in self._slots:
            self._retire(slot)
        for run in self._runs.values():
            run.settled = True
        self._release()

    def _finish(self, problem: e.Problem | None) -> None:
        """The ledger is closed, or it cannot be by this writer."""
        problem = problem or self._machine.problem
        if self._timer is not None:
            self._timer.cancel()
        if self._finished is None:
            return
        if self._finished.done():
            return
        if problem is None:
            self._finished.set_result(None)
        else:
            self._finished.set_exception(problem.exception(ledger_id=self.ledger_id))
