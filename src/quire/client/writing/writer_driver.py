"""Carries out the writer machine's effects: runs to bookies, compare-and-swaps, timers, choices of bookies, probes.

`client/writing/writer.py` is the side that users see. One request to the store and one timer at a time, each in its own small
task, none per entry.

Source: BookKeeper protocol, "Writing to the ledger".
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar

from quire.client.access import LedgerAccess
from quire.client.config import ClientConfig
from quire.client.context import ClientContext
from quire.client.sending.held_runs import SlotConnection
from quire.client.sending.lac_sending import LacNews
from quire.client.sending.outgoing import Outgoing
from quire.client.sending.window import ByteWindow
from quire.client.writing.choosing import BookieChoices
from quire.client.writing.flushing import LedgerFlush
from quire.core.answers import Answer
from quire.core.errors import (
    LedgerClosedError,
    MisuseError,
    NoSuchLedgerError,
    NoSuchStreamError,
    QuorumLostError,
)
from quire.core.ids import NO_ENTRY, BookieId, LedgerId
from quire.core.ledger import effects as e
from quire.core.ledger.holes import holes_of_runs, joined
from quire.core.ledger.metadata import LedgerMetadata, LedgerState
from quire.core.ledger.writer_state import Hole, Status, WriterLimits
from quire.env.home import not_pickled
from quire.metadata.store import KeyMissingError, VersionConflictError

log = logging.getLogger(__name__)


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


class WriterDriver(ABC):
    """Performs the effects of one writer machine.

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
        "_access",
        "_bookies",
        "_choices",
        "_clock",
        "_config",
        "_flush",
        "_lacs",
        "_lost",
        "_machine",
        "_news",
        "_outgoing",
        "_performs",
        "_quarantine",
        "_recorded",
        "_records",
        "_tasks",
        "_ticking",
        "_ticks",
        "_timer",
        "_window",
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
        config = self._config = context.config
        self._machine = context.machines.writer(record, version, _limits_of(config), last, length)
        self._access = access
        self._bookies, self._records = context.bookies, context.records
        self._clock = context.clock
        self._quarantine, self._ticks, self._lacs = context.quarantine, context.ticks, context.lacs
        self._window = ByteWindow(config.window_bytes_max)
        is_striped = record.ensemble_size > record.write_quorum
        self._outgoing = Outgoing(
            access,
            self._bookies,
            self._window,
            config,
            self._machine.ensemble,
            self,
            self._clock,
            context.turn,
            0 if access.term or self._machine.guarantees or is_striped else record.ack_quorum,
        )
        self._timer: asyncio.TimerHandle | None = None
        self._ticking = self._performs = False
        self._tasks: tuple[asyncio.Task[None], ...] = ()
        self._news: LacNews | None = None  # while there is any
        self._lost: tuple[Hole, ...] = ()  # what bookies had not acknowledged when they failed
        self._recorded: tuple[Hole, ...] = ()  # what the ledger's record says of `holes`
        self._flush: LedgerFlush | None = None  # from the end on
        self._choices = BookieChoices(self._machine, access, context, self._start, self._perform)
        self._bookies.follow(self)
        if absent:
            self._machine.began_without(absent, self._clock.now_ms())
            self._perform()

    @property
    def holes(self) -> tuple[Hole, ...]:
        """Entries up to the LAC that bookies of the record may lack: they were away, or never acknowledged them."""
        flushed = self._flush.holes if self._flush is not None else ()
        if not (self._lost or flushed):
            return self._machine.holes
        return joined((*self._machine.holes, *self._lost, *flushed))

    @property
    def ledger_id(self) -> LedgerId:
        """The ledger's id."""
        return self._access.ledger_id

    # --- what the user's side does about it --------------------------------------------------------------------------

    @abstractmethod
    def turn_ended(self) -> None:
        """Hand over what was collected in this turn of the loop."""

    @abstractmethod
    def _confirmed(self, effect: e.Confirmed) -> None:
        """Entries are in the ledger."""

    @abstractmethod
    def _fully_replicated(self, effect: e.FullyReplicated) -> None:
        """Entries are on a write quorum that is guaranteed."""

    @abstractmethod
    def _collects(self) -> bool:
        """Whether entries wait for the end of this loop turn."""

    @abstractmethod
    async def _confirm(self, patience_ms: int) -> None:
        """Take no more entries; confirm those that were taken, while some are acknowledged within each `patience_ms`."""

    @abstractmethod
    def _stopped(self, problem: e.Problem) -> None:
        """No entry goes out any more."""

    @abstractmethod
    def _tell(self, problem: e.Problem | None) -> None:
        """The callers of close: the ledger is closed, or this writer cannot close it."""

    @abstractmethod
    def _closed(self) -> None:
        """The record is closed."""

    @property
    @abstractmethod
    def label(self) -> str:
        """What it writes, in words."""

    @abstractmethod
    async def leave(self) -> int:
        """The client is about to be closed."""

    @abstractmethod
    def end(self, why: str) -> int:
        """The client is closed."""

    @abstractmethod
    def _begin_flush(self) -> None:
        """Wait from now on for the bookies that have not acknowledged all."""

    @abstractmethod
    def _finish(self, problem: e.Problem | None) -> None:
        """Everything is over: nothing is sent, awaited or looked after any more."""

    # --- effects -----------------------------------------------------------------------------------------------------

    def acked_together(self, slots: int, ensemble: tuple[BookieId, ...], run: int) -> None:
        """The bookies at these slots (a mask) of the ensemble that a run was sent to have stored it."""
        self._machine.adds_acked_together(slots, ensemble, run)
        if self._machine.out and not self._performs:  # what is being performed comes first
            self._perform()

    def followed(self, slot: int) -> None:
        """Readers wait for the LAC at the bookie of a slot."""
        self._outgoing.place_at(slot).followed = True
        self.look_after()  # until it is quiet
        if self.idle():
            self._lac_untold(e.SendExplicitLac(self._machine.window.lac, self._machine.change.live))

    def answered(self, place: SlotConnection, run: int, answer: Answer) -> None:
        """A bookie's response to a run."""
        if answer is Answer.OK:
            self._machine.adds_acked(place.slot, place.bookie, run)
        else:
            log.info("ledger %d: bookie %s answered %s", self.ledger_id, place.bookie, answer.name)
            self._machine.add_failed(place.slot, place.bookie, run, answer)
        if self._machine.out:
            self._perform()
        elif self._window.waiters:
            self._outgoing.release()  # this bookie was the last that had not been sent what callers wait for
        if self._flush is not None:
            self._flush.answered(place, run, answer)
        news = self._news
        if news is not None and news.untold is not None:
            news.answered(place)

    def _lac_untold(self, effect: e.SendExplicitLac) -> None:
        if not self._outgoing.has_places:
            return  # what takes bundles takes LACs in frames of many, and nobody is known to wait for this one
        if self._news is None:
            timeout_ms = self._config.explicit_lac_timeout_ms
            self._news = LacNews(self._access, self._bookies, self._outgoing, self, timeout_ms)
        self._news.due(effect, self._outgoing.places)

    @property
    def access(self) -> LedgerAccess:
        """Id, master key, token and digest, sent with every request for this ledger."""
        return self._access

    def untold_lac(self, takes: Callable[[BookieId], bool]) -> tuple[int, Sequence[BookieId]]:
        """The LAC, and the bookies that were not told it and take it in a frame of many: they are told now."""
        lac = self._machine.window.lac
        return lac, self._outgoing.untold(lac, self._machine.change.live, takes)

    def _perform(self) -> None:
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

    def _failed(self, effect: e.Failed) -> None:
        problem = self._with_troubles(effect.problem).of_sent
        about = self._about()
        self._outgoing.fail(lambda entry_id: problem.exception(**about, entry_id=entry_id))

    def _about(self) -> dict[str, int]:
        """The ids of an error: the ledger, and a stream's term."""
        term = self._access.term
        return {"ledger_id": self.ledger_id} | ({"term": term} if term else {})

    def _with_troubles(self, problem: e.Problem) -> e.Problem:
        """A problem with bookies also names those that accept no connection from this client."""
        if problem.kind is not QuorumLostError:
            return problem
        return replace(problem, message=problem.message + self._bookies.troubles())

    # --- bookies come and go -----------------------------------------------------------------------------------------

    def _drop(self, effect: e.DropUnsent) -> None:
        self._quarantine.failed(effect.bookie, self._clock.now_ms())
        self._outgoing.leave_bundles()
        place = self._outgoing.place_at(effect.slot)
        if not place.retired and not self._machine.guarantees:
            runs, lac = place.unacked.values(), self._machine.window.lac
            self._lost += holes_of_runs(effect.slot, effect.bookie, runs, lac)
            self._ticks.keep(self)
        self._outgoing.retire(effect.slot)
        self._outgoing.release()

    def bookies_changed(self) -> None:
        """Other bookies are registered: those of this ledger that are not, or as read-only, have left."""
        self._choices.bookies_changed()

    def _ensemble_changed(self, effect: e.EnsembleChanged) -> None:
        for slot in effect.slots:
            self._outgoing.renew(slot, effect.ensemble[slot])
        log.info("ledger %d: from entry %d on %s", self.ledger_id, effect.first, ", ".join(effect.ensemble))

    def _slot_absent(self, effect: e.SlotAbsent) -> None:
        self._outgoing.retire(effect.slot)
        self._ticks.keep(self)
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
            self._config.quorum_wait_ms,
        )

    def _slot_returned(self, effect: e.SlotReturned) -> None:
        self._quarantine.forgive(effect.bookie)
        self._outgoing.renew(effect.slot, effect.bookie)
        log.info("ledger %d: bookie %s is back from entry %d on", self.ledger_id, effect.bookie, effect.first)

    # --- time --------------------------------------------------------------------------------------------------------

    def _set_timer(self, effect: e.SetTimer) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_ms = max(0, effect.at_ms - self._clock.now_ms())
        self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self._machine.timer_fired(self._clock.now_ms())
        self._perform()

    def look_after(self) -> None:
        """Look now and then which bookie does not keep up."""
        if not self._ticking:
            self._ticking = True
            self._ticks.start(self)

    def tick(self) -> bool:
        """While anything is held, a few times a second: which bookie does not keep up?"""
        outgoing = self._outgoing
        if self._flush is not None:
            return False  # it has a timer of its own
        if outgoing.sends_alone or self._window.waiters:
            for place in outgoing.slow_places():
                log.warning(
                    "ledger %d: bookie %s does not keep up; the writer stops waiting for it",
                    self.ledger_id,
                    place.bookie,
                )
                self._machine.bookie_lost(place.slot, place.bookie)
                self._perform()
                outgoing.give_up_bundles(place.bookie)
            outgoing.release()
            if self._news is not None:
                self._news.tell_all_after(self._config.explicit_lac_after_ms)
        self._ticking = outgoing.sends_alone or bool(self._window.waiters)
        return self._ticking

    def quiet(self) -> None:
        """Idle for some seconds: send all bookies the LAC, and keep only what an idle writer needs."""
        if self._news is not None:
            self._news.tell_all()
            self._news = None
        self._outgoing.rest()

    def idle(self) -> bool:
        """Whether no entry is on its way, or about to be."""
        machine, writing = self._machine, (Status.WRITING, Status.CHANGING)
        return machine.status in writing and not machine.window.pending and not self._collects()

    # --- the metadata store ------------------------------------------------------------------------------------------

    async def _write_metadata(self, effect: e.WriteMetadata) -> None:
        machine = self._machine
        try:
            async with asyncio.timeout(self._config.metadata_timeout_ms / 1000):
                version = await self._swap(effect)
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
            machine.metadata_unknown(self._clock.now_ms(), self._why(error))
        else:
            machine.metadata_written(version)
        self._perform()

    async def _swap(self, effect: e.WriteMetadata) -> int:
        """Replace the record; the closing one says at once which holes are known."""
        holes = self.holes if effect.record.state is LedgerState.CLOSED else ()
        if holes:
            try:
                version = await self._records.write_with_holes(effect.record, holes, effect.version)
            except MisuseError as error:
                log.error("ledger %d: the record lacks the holes of this writer: %s", self.ledger_id, error)  # noqa: TRY400
            else:
                self._recorded = holes
                return version
        return await self._records.write(effect.record, effect.version)

    async def _read_metadata(self) -> None:
        machine = self._machine
        try:
            async with asyncio.timeout(self._config.metadata_timeout_ms / 1000):
                record, version = await self._records.read(self.ledger_id)
        except (NoSuchLedgerError, NoSuchStreamError, KeyMissingError):
            machine.metadata_missing()
        except Exception as error:  # noqa: BLE001 - whatever a driver raises, the record was not read
            log.warning("ledger %d: the record cannot be read now: %r", self.ledger_id, error)
            machine.metadata_unknown(self._clock.now_ms(), self._why(error))
        else:
            machine.metadata_read(record, version)
        self._perform()

    def _why(self, error: Exception) -> str:
        """What the store said, in words; a request that timed out has no words of its own."""
        if isinstance(error, TimeoutError):
            return f"no response within {self._config.metadata_timeout_ms} ms"
        return str(error) or repr(error)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks = (*self._tasks, task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks = tuple(other for other in self._tasks if other is not task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        log.error("ledger %d: the writer failed", self.ledger_id, exc_info=error)
        self._machine.abandon()
        self._perform()
        problem = e.Problem(LedgerClosedError, f"the writer of ledger {self.ledger_id} failed: {error!r}")
        self._stopped(problem)
        self._finish(problem)

    # --- what is done about each effect ------------------------------------------------------------------------------

    _handlers: ClassVar[dict[type, Callable[[Any, Any], None]]] = {
        e.SendRun: lambda self, effect: self._outgoing.send(effect),
        e.Confirmed: lambda self, effect: self._confirmed(effect),
        e.FullyReplicated: lambda self, effect: self._fully_replicated(effect),
        e.Failed: _failed,
        e.DropUnsent: _drop,
        e.ChooseReplacements: lambda self, effect: self._choices.choose(effect),
        e.AskLeftBookies: lambda self, effect: self._start(self._choices.ask_left(effect)),
        e.LookForBookies: lambda self, effect: self._start(self._choices.look(effect)),
        e.EnsembleChanged: _ensemble_changed,
        e.SlotAbsent: _slot_absent,
        e.SlotReturned: _slot_returned,
        e.QuorumAwaited: _quorum_awaited,
        e.SendExplicitLac: _lac_untold,
        e.WriteMetadata: lambda self, effect: self._start(self._write_metadata(effect)),
        e.RereadMetadata: lambda self, _: self._start(self._read_metadata()),
        e.SetTimer: _set_timer,
        e.Ended: lambda self, effect: self._ended(effect),
        e.Closed: lambda self, _: self._closed(),
        e.CloseFailed: lambda self, effect: self._finish(effect.problem),
    }
