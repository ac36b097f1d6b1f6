"""The end of a ledger's writer: missing acknowledgements are waited for within a bound, then holes are recorded.

Source: `docs/protocol/closing.md`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import abstractmethod
from types import TracebackType
from typing import Self

from quire.client.flushing import LedgerFlush, record_holes
from quire.client.writer_driver import WriterDriver
from quire.core import effects as e
from quire.core.errors import LedgerClosedError, QuireError
from quire.core.ids import Term
from quire.core.ledger_metadata import LedgerState
from quire.core.writer_state import Hole, Status

log = logging.getLogger(__name__)


class WriterEnd(WriterDriver):
    """What a writer does once no entry comes any more."""

    __slots__ = ()

    @abstractmethod
    async def drain(self) -> None:
        """Wait until all entries so far are acknowledged."""

    @abstractmethod
    async def close(self) -> tuple[Hole, ...]:
        """Close the ledger at its last acknowledged entry."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Without an error: drain, then close. With one: close what is acknowledged; when cancelled: abandon.

        A stream is released, not closed.
        """
        end = self.release if self.term else self.close
        if kind is None:
            try:
                await self.drain()
            except QuireError:
                with contextlib.suppress(QuireError):
                    await end()
                raise
            await end()
        elif issubclass(kind, Exception):
            try:
                await end()
            except QuireError as closing:
                log.warning("ledger %d could not be closed after %r: %s", self.ledger_id, error, closing)
        else:
            await self.abandon()

    @property
    def term(self) -> Term:
        """The term in which it writes a stream; 0 of a ledger."""
        return Term(self._access.term)

    async def release(self) -> None:
        """Confirm what was appended, as far as bookies acknowledge it, and leave the ledger open.

        A stream is left to its next writer, a ledger to a recovery. Readers see all that was confirmed.
        """
        machine = self._machine
        if machine.status in (Status.WRITING, Status.CHANGING):
            await self._confirm()
            lac, slots, places = self.lac_places()
            if machine.window.next_run and slots:
                access, timeout_ms = self._access, self._config.flush_ms
                told = [
                    self._bookies.write_lac(
                        places[slot].bookie, access, lac, term=access.term, timeout_ms=timeout_ms
                    )
                    for slot in slots
                ]
                await asyncio.wait(told)
        await self.leave()

    def _sent_in_part(self, problem: e.Problem) -> QuireError:
        """The error about the last entry that was sent: if it is in the ledger, those before it are."""
        return problem.of_sent.exception(**self._about(), entry_id=self._machine.lap)

    def _ended(self, effect: e.Ended) -> None:
        log.warning("ledger %d: the writer has ended: %s", self.ledger_id, effect.problem.message)
        self._stopped(effect.problem)
        if self._access.term:
            self._finish(effect.problem)  # a stream is left as it is: nothing more is asked for it
        elif self._machine.status is Status.ENDED:
            self._tell(effect.problem)  # a close that waited for a write quorum does not come any more

    def _closing(self) -> None:
        message = f"ledger {self.ledger_id} was closed by its own handle before this entry was sent"
        self._stopped(e.Problem(LedgerClosedError, message))

    def _begin_flush(self) -> None:
        """Wait from now on for the bookies that have not acknowledged all."""
        if self._flush is None:
            self._flush = LedgerFlush(
                self._access,
                self._machine.window.lac,
                self._outgoing,
                self._quarantine,
                self._clock,
                self._config,
            )

    def _closed(self) -> None:
        """The record is closed; bookies may still be waited for, and lack what it does not say yet.

        Who closes does not wait for what every bookie was sent: the client does, when it is closed.
        """
        if self._flush is None and self._outgoing.owed:
            self._begin_flush()
        flush = self._flush
        if flush is not None and not flush.done:
            flush.when_done(self._closed)
            if self._outgoing.all_sent:
                self._tell(None)
        elif self.holes != self._recorded:
            self._start(self._record_and_finish(None))
        else:
            self._finish(None)

    async def _record_and_finish(self, problem: e.Problem | None) -> None:
        """Put into the record what it does not say yet of what bookies lack."""
        holes = self.holes
        if holes != self._recorded:
            await record_holes(self._records, self.ledger_id, holes, self._config.metadata_timeout_ms)
            self._recorded = holes
        self._finish(problem)

    async def flushed(self) -> tuple[Hole, ...]:
        """Return when no bookie is waited for any more after a close, with what bookies may lack; the record says it."""
        await self._flushed()
        while self._tasks:
            await asyncio.wait(self._tasks)
        return self.holes

    async def abandon(self) -> None:
        """Stop at once and leave the ledger to a recovery. Unacknowledged entries fail. May be called again."""
        if self._machine.record.state is LedgerState.CLOSED:
            return
        self._machine.abandon()
        problem = e.Problem(LedgerClosedError, f"ledger {self.ledger_id} was abandoned")
        self._stopped(problem)
        self._finish(problem)
        for task in [task for task in self._tasks if task is not asyncio.current_task()]:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def leave(self) -> None:
        """The client is about to be closed: confirm and flush within the bound, record holes, leave the ledger open."""
        machine = self._machine
        if machine.status in (Status.WRITING, Status.CHANGING):
            await self._confirm()
        if machine.status in (Status.WRITING, Status.CHANGING):
            self._begin_flush()
            machine.abandon()
            msg = f"ledger {self.ledger_id} was left open by its writer"
            problem = e.Problem(LedgerClosedError, msg)
            self._stopped(problem)
            await self._flushed()
            await self._record_and_finish(problem)
        elif self._flush is not None:
            await self._flushed()
        while self._tasks:  # it is being closed
            await asyncio.wait(self._tasks)

    async def _flushed(self) -> None:
        flush = self._flush
        if flush is not None and not flush.done:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            flush.when_done(lambda: None if done.done() else done.set_result(None))
            await done

    def _finish(self, problem: e.Problem | None) -> None:
        if self._flush is not None:
            self._flush.stop()
        self._outgoing.retire_all()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._ticks.stop(self)
        self._bookies.unfollow(self)
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        self._tell(problem)
