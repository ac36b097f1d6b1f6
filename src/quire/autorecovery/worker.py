"""Repairs the ledgers of a cluster that are marked, one lock at a time each; `core/repair/work_queue.py` decides which and when.

A mark is advice: the repair itself asks the bookies before anything is copied. A lock only keeps two workers from copying
the same; that a record stays right rests on its compare-and-swap.

Source: docs/protocol/repair-queue.md; docs/autorecovery.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Final

from quire.autorecovery.following import RETRY_S, following
from quire.autorecovery.marked_ledgers import ListedMarks, MarkedLedgers
from quire.autorecovery.targets import RepairTargets
from quire.client.client import Client
from quire.client.repairing.ledger_repair import LedgerRepair
from quire.core.errors import AlreadyExistsError, NoSuchLedgerError, QuireError
from quire.core.ids import BookieId
from quire.core.repair.effects import RepairEnded, RepairOutcome, RepairReport
from quire.core.repair.open_last_fragments import GRACE, GraceLimits, OpenLastFragments
from quire.core.repair.rate import RepairRate
from quire.core.repair.rules import RULES, RepairRules
from quire.core.repair.under_replicated_marks import RepairWorkerState, WaitsFor
from quire.core.repair.work_queue import (
    LIMITS,
    BeginRepair,
    NoteAttempts,
    QueueLimits,
    RemoveMarks,
    RepairQueue,
    StopRepair,
    is_whole,
)
from quire.metadata.repairs import RepairStore
from quire.metadata.store import Registration

LIST_PAUSE_MS: Final = 100
LIST_SHARE: Final = 10
"""Marks are listed again after this many times what the last listing took; where no repair waits, after one such time."""
_LOG: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class _Listing:
    """When a worker lists the marks of under-replicated ledgers.

    Attributes:
        wanted: marks have changed since they were listed.
        task: lists them now.
        ended_ms, took_ms: when the last listing ended, and how long it took.
    """

    wanted: bool = True
    task: asyncio.Task[None] | None = None
    ended_ms: int = 0
    took_ms: int = 0

    def due_ms(self, *, waiting: bool) -> int | None:
        """When marks are listed again: earlier where no ledger waits for a repair; None: they need not be."""
        if not self.wanted or self.task is not None:
            return None
        return self.ended_ms + max(LIST_PAUSE_MS, (LIST_SHARE if waiting else 1) * self.took_ms)


class RepairWorker:
    """One worker. There may be any number of them; each has its own connections and its own rate.

    Args:
        client: the cluster.
        marks: its marks.
        name: how people, locks and other workers know it.
        bytes_per_s: how fast copies are sent; None: as fast as bookies take them.
        limits: attempts, pauses, and how much is repaired at a time.
        grace: how long an open ledger is left to its writer.
        rules: the protocol's rules (`core/rules.py`); only tests pass changed ones.

    Attributes:
        queue: what is marked, and what becomes of it.
        state: what it reports about itself.
    """

    def __init__(
        self,
        client: Client,
        marks: RepairStore,
        name: str,
        *,
        bytes_per_s: int | None = None,
        limits: QueueLimits = LIMITS,
        grace: GraceLimits = GRACE,
        rules: RepairRules = RULES,
    ) -> None:
        self._client, self._marks = client, marks
        self._marked = MarkedLedgers(marks, client.records)
        self._targets = RepairTargets(client, bytes_per_s)
        self.queue, self._rules = RepairQueue(client.chance.getrandbits(30), limits, rules), rules
        self.state = RepairWorkerState(name)
        self._open_fragments, self._tick_ms = OpenLastFragments(grace, rules), 1000 * grace.tick_s
        self._wake = asyncio.Event()
        self._listing = _Listing()
        self._registered: dict[BookieId, bool] = {}
        self._there: frozenset[BookieId] | None = None
        self._asking = asyncio.Lock()
        self._known: dict[BookieId, None] = {}
        self._look_at_ms = 0
        self._rate = RepairRate()
        self._attempts: dict[int, asyncio.Task[None]] = {}
        self._repairs: dict[int, LedgerRepair] = {}
        self._copied = 0

    @property
    def bytes_copied(self) -> int:
        """What was sent to bookies so far."""
        return self._copied + sum(repair.bytes_copied for repair in self._repairs.values())

    async def run(self) -> None:
        """Repair what is marked, until cancelled.

        Raises:
            AlreadyExistsError: another worker has this name.
        """
        held = await self._marks.register_worker(self.state)
        self._client.bookies.follow(self)
        watches = (
            lambda: self._marks.watch()[0],
            lambda: self._marks.watch()[1],
            lambda: self._marks.watch_settings()[0],
        )
        try:
            with following(watches, self._marks_changed):
                while True:
                    await self._turn(held)
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._wake.wait(), self._pause_s())
        finally:
            self._client.bookies.unfollow(self)
            tasks = [*self._attempts.values(), *([] if self._listing.task is None else [self._listing.task])]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._targets.close()
            with contextlib.suppress(QuireError):
                await held.close()

    def bookies_changed(self) -> None:
        """Other bookies take entries."""
        self._wake.set()

    def _marks_changed(self) -> None:
        self._listing.wanted = True
        self._wake.set()

    # --- one turn -------------------------------------------------------------------------------------------------

    async def _turn(self, held: Registration) -> None:
        self._wake.clear()
        await self._look(held)
        listing = self._listing
        if listing.task is not None and listing.task.done():
            listing.task.result()
            listing.task = None
        due_ms = listing.due_ms(waiting=self.queue.waiting)
        if due_ms is not None and self._now_ms() >= due_ms:
            # In a task of its own: bookies that come and go are noticed while many marks are listed.
            listing.task = asyncio.create_task(self._list(), name="list under-replicated marks")
            listing.task.add_done_callback(lambda _: self._wake.set())
        await self._go_on()

    def _pause_s(self) -> float:
        """Until something is due."""
        due = [self._look_at_ms]
        more = self._listing.due_ms(waiting=self.queue.waiting), self.queue.due_ms
        due += [each for each in more if each is not None]
        return max(0, min(due) - self._now_ms()) / 1000

    async def _go_on(self) -> None:
        # With no bookie registered it is the metadata store that was away: no bookie is taken for lost.
        self.queue.switched(on=self._marked.enabled and bool(self._registered))
        self.queue.bounded(self._targets.units)
        self.queue.tick(self._now_ms())
        await self._perform()

    async def _look(self, held: Registration) -> None:
        """Which bookies are there."""
        bookies, now_ms = self._client.bookies, self._now_ms()
        registered = dict.fromkeys(bookies.writable(), True) | dict.fromkeys(bookies.read_only(), False)
        before, self._registered = self._registered, registered
        if registered == before and now_ms < self._look_at_ms:
            return
        self._there = None
        self._known |= dict.fromkeys(registered)
        self._known |= dict.fromkeys(bookie for one in self._marked.listed.values() for bookie in one.bookies)
        self._open_fragments.looked(registered, self._known, now_ms)
        if came := registered.keys() - before:
            self.queue.bookies_came(came)
        if any(writable and before.get(bookie) is False for bookie, writable in registered.items()):
            self.queue.room_came()
        if registered != before:
            await self._bookies_moved()
        if now_ms >= self._look_at_ms:
            await self._look_at_read_only()
            await self._report(held, now_ms)

    async def _look_at_read_only(self) -> None:
        """Where a bookie has been read-only for the delay, what it lacks may be copied to others from now on."""
        with contextlib.suppress(QuireError):
            if await self._targets.more_are_due():
                self.queue.room_came()

    async def _bookies_moved(self) -> None:
        """What is on its way is copied, and the rest of each repair is chosen anew."""
        for ledger_id, repair in list(self._repairs.items()):
            marks = self._marked.listed.get(ledger_id)
            try:
                candidates = await self._targets.candidates(ledger_id)
            except QuireError:
                candidates = self._client.bookies.writable()
            if marks is not None and self._repairs.get(ledger_id) is repair:
                repair.bookies_changed(self._lost(marks), candidates)

    async def _report(self, held: Registration, now_ms: int) -> None:
        """Publish what was done, where that is more than at the last look."""
        ledgers, size = self.queue.counts.repaired, self.bytes_copied
        self._rate.looked(
            self._tick_ms + now_ms - self._look_at_ms,
            ledgers - self.state.ledgers,
            size - self.state.bytes,
            busy=bool(self.queue.repairing),
        )
        state = replace(
            self.state,
            ledgers=ledgers,
            bytes=size,
            bytes_per_s=self._rate.bytes_per_s,
            ledgers_per_hour=self._rate.ledgers_per_hour,
        )
        self._look_at_ms = now_ms + self._tick_ms
        if state != self.state:
            self.state = state
            with contextlib.suppress(QuireError):
                await self._marks.update_worker(held, state)

    async def _list(self) -> None:
        """Read all marks."""
        listing, began_ms = self._listing, self._now_ms()
        listing.wanted, self._there = False, None
        try:
            removed = await self._marked.refresh(self.queue.marked, self._go_on)
        except QuireError as error:
            _LOG.warning("repair marks cannot be listed: %s", error)
            listing.wanted = True
            listing.ended_ms, listing.took_ms = self._now_ms() + int(1000 * RETRY_S), 0
            return
        for ledger_id in removed:
            self.queue.unmarked(ledger_id)
        listing.ended_ms, listing.took_ms = self._now_ms(), self._now_ms() - began_ms

    # --- effects --------------------------------------------------------------------------------------------------

    async def _perform(self) -> None:
        while out := self.queue.out:
            self.queue.out = []
            for effect in out:
                if isinstance(effect, BeginRepair):
                    self._begin(effect.ledger_id)
                elif isinstance(effect, StopRepair) and effect.ledger_id in self._attempts:
                    self._attempts[effect.ledger_id].cancel()
            for effect in out:
                if isinstance(effect, RemoveMarks):
                    await self._remove(effect.ledger_id)
                elif isinstance(effect, NoteAttempts):
                    await self._note(effect)

    def _begin(self, ledger_id: int) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            if self._attempts.get(ledger_id) is task:
                del self._attempts[ledger_id]
                if task.cancelled():
                    self.queue.released(ledger_id, self._now_ms())
                elif (error := task.exception()) is not None:
                    _LOG.error(
                        "the repair of ledger %d ended with a program error", ledger_id, exc_info=error
                    )
                    why = f"a program error, {type(error).__name__}: {error}"
                    self.queue.ended(ledger_id, None, why, None, self._now_ms())
            self._wake.set()

        before = self._attempts.get(ledger_id)
        task = asyncio.create_task(self._attempt(ledger_id, before), name=f"repair ledger {ledger_id}")
        self._attempts[ledger_id] = task
        task.add_done_callback(ended)

    async def _remove(self, ledger_id: int) -> None:
        if not await self._marked.remove(ledger_id):
            self._listing.wanted = True

    async def _note(self, effect: NoteAttempts) -> None:
        _LOG.info("ledger %d: %s", effect.ledger_id, effect.attempts.why)
        try:
            await self._marks.note_attempts(effect.ledger_id, effect.attempts)
        except QuireError as error:
            _LOG.warning("the state of the repair of ledger %d cannot be stored: %s", effect.ledger_id, error)

    # --- one attempt ----------------------------------------------------------------------------------------------

    async def _attempt(self, ledger_id: int, before: asyncio.Task[None] | None) -> None:
        """Lock a ledger and repair it; the lock is held until its marks are removed.

        Args:
            ledger_id: which.
            before: an attempt that is over, and may not have released its lock.
        """
        if before is not None:
            await asyncio.wait({before})
        taking = asyncio.ensure_future(self._marks.lock(ledger_id))
        try:
            lock = await asyncio.shield(taking)
        except asyncio.CancelledError:
            with contextlib.suppress(QuireError):
                await (await taking).close()  # nothing else would release it
            raise
        except QuireError as error:
            if not isinstance(error, AlreadyExistsError):
                _LOG.warning("ledger %d cannot be locked: %s", ledger_id, error)
            self.queue.released(ledger_id, self._now_ms())
            await self._perform()
            return
        work = asyncio.create_task(self._repair(ledger_id))
        lost = asyncio.create_task(lock.lost.wait())
        try:
            await asyncio.wait({work, lost}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
            else:
                _LOG.warning("the lock of ledger %d is lost: its repair stops", ledger_id)
                self.queue.released(ledger_id, self._now_ms())
            await self._perform()
        finally:
            for task in (work, lost):
                task.cancel()
            await asyncio.gather(work, lost, return_exceptions=True)
            with contextlib.suppress(QuireError):
                await lock.close()

    async def _repair(self, ledger_id: int) -> None:
        """Repair a ledger, and recover it first once its writer's grace is over; report the result to the queue."""
        report: RepairReport | None = None
        wait_s: int | None = None
        waits: WaitsFor | None = None
        marks = self._marked.looks_at(ledger_id)
        try:
            # Before the repair looks: what is decided meanwhile it has not looked at.
            may_end = await self._may_end(ledger_id, marks)
            ended = await self._run(ledger_id)
            if ended.report.undecided:
                record, _ = await self._client.records.read(ledger_id)
                wait_s = self._open_fragments.wait_s(record)
                if self._open_fragments.may_recover(record):
                    _LOG.info(
                        "ledger %d is recovered: one of its bookies is lost, and its writer did not replace it in time",
                        ledger_id,
                    )
                    await self._client.recover_ledger(ledger_id, record.password)
                    ended = await self._run(ledger_id)
        except NoSuchLedgerError:
            self.queue.whole(ledger_id)
            return
        except QuireError as error:
            why = error.message
        else:
            report, why = ended.report, "; ".join(_sentences(ended.report))
            if not is_whole(ended.outcome, ended.report):
                waits = WaitsFor.BOOKIE if self._waits_for_bookies(ledger_id, ended.report) else None
            elif may_end or ended.outcome is RepairOutcome.DELETED:
                self.queue.whole(ledger_id)
                return
            else:
                waits, why = WaitsFor.WRITER, "its writer may still change what the mark is about"
        wait_ms = None if wait_s is None else 1000 * (wait_s + 1)
        self.queue.ended(ledger_id, report, why, wait_ms, self._now_ms(), waits)

    def _waits_for_bookies(self, ledger_id: int, report: RepairReport) -> bool:
        """Whether nothing can be done until a bookie of the ledger that is away comes, or one that is read-only is writable.

        What a lost bookie had may find room elsewhere meanwhile, without an event. So may the part of a full one that is due.
        """
        lost = self._lost(self._marked.listed.get(ledger_id))

        def waits_for(bookie: BookieId) -> bool:
            # One that refused and is registered as writable has room again, or says so a second later: no event would come.
            is_writable = self._registered.get(bookie)
            return bookie not in lost and (
                is_writable is None or (not is_writable and report.read_only.get(bookie) is False)
            )

        theirs = all(map(waits_for, report.left))
        return bool(report.left) and theirs and not report.stopped and not report.undecided

    async def _may_end(self, ledger_id: int, marks: ListedMarks | None) -> bool:
        """Whether the marks of a ledger reach into no fragment that its writer may still change."""
        if marks is None or marks.through < 0:
            return True
        record, _ = await self._client.records.read(ledger_id)
        return self._rules.mark_may_end(record, marks.through)

    async def _run(self, ledger_id: int) -> RepairEnded:
        marks = self._marked.listed.get(ledger_id)
        await self._ask_who_is_there(marks)
        repair = LedgerRepair(
            ledger_id,
            self._client.context,
            lost_bookies=self._lost(marks),
            candidates=await self._targets.candidates(ledger_id),
            read_only=await self._targets.read_only(),
            may_send=self._targets.may_send,
        )
        self._repairs[ledger_id] = repair
        try:
            return await repair.run()
        finally:
            del self._repairs[ledger_id]
            self._copied += repair.bytes_copied

    async def _ask_who_is_there(self, marks: ListedMarks | None) -> None:
        """An auditor may know before this process that a bookie is lost: where a mark says so, the store is asked.

        Once after each listing. Without it a ledger without a decided fragment would count as whole, and its mark would be removed.
        """
        if marks is not None and any(bookie in self._registered for bookie in marks.lost):
            async with self._asking:
                if self._there is None:
                    self._there = frozenset(await self._client.bookies.bookies())

    def _lost(self, marks: ListedMarks | None) -> Collection[BookieId]:
        """The bookies that marks name as lost and that are not registered.

        One that a mark says lacks entries, and that is away, is no lost one: an auditor says so when its delay is over.
        """
        there = self._registered if self._there is None else self._registered.keys() & self._there
        return [bookie for bookie in (marks.lost if marks else ()) if bookie not in there]

    def _now_ms(self) -> int:
        return self._client.clock.now_ms()


def _sentences(report: RepairReport) -> Iterable[str]:
    """What a repair left."""
    yield from (f"{bookie}: {why}" for bookie, why in report.left.items())
    if report.stopped:
        yield f"the repair stopped early: {report.stopped}"
    if report.undecided:
        yield f"{', '.join(report.undecided)} is lost, and the ledger is open: its writer may replace it"
    for what, ranges in (
        ("only lost bookies may have them", report.gone_only),
        ("no bookie has them", report.lost),
        ("unknown where they are, since a bookie did not respond", report.unanswered),
    ):
        if ranges:
            named = ", ".join(f"{each.first}..{each.last}" for each in ranges[:3])
            more = f" and {len(ranges) - 3} more ranges" if len(ranges) > 3 else ""
            yield f"entries {named}{more}: {what}"
