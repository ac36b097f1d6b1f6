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

from quire.client.leaving import finished, read, warn
from quire.client.writing.flushing import LedgerFlush, record_holes
from quire.client.writing.writer_driver import WriterDriver
from quire.core.errors import LedgerClosedError, QuireError
from quire.core.ids import Term
from quire.core.ledger import effects as e
from quire.core.ledger.metadata import LedgerState
from quire.core.ledger.writer_state import Hole, Status
from quire.env.home import check_home

log = logging.getLogger(__name__)


class WriterEnd(WriterDriver):
    """What a writer does once no entry comes any more."""

    __slots__ = ("_finished", "_taking")

    _loop: asyncio.AbstractEventLoop
    _taking: bool
    _payloads: list[bytes]
    _futures: list[asyncio.Future[int] | None]
    _finished: asyncio.Future[None] | None

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
        """Without an error: drain, then close. With one: the same within a bound; when cancelled: confirm, then abandon.

        A stream is released, not closed. What was not confirmed beside an error is warned of: the error goes on.
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
        bound_ms = self._config.leave_ms
        is_error, lost, futures = issubclass(kind, Exception), 0, self._pending_futures()
        try:
            if kind is not GeneratorExit:  # nothing can be awaited then
                await self._confirm(bound_ms if is_error else self._config.flush_ms)
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

    async def _confirm(self, patience_ms: int) -> None:
        self._taking, before = False, None
        while before != (before := self._machine.window.lac):  # it moves
            with contextlib.suppress(TimeoutError, QuireError):
                async with asyncio.timeout(patience_ms / 1000):
                    return await self.drain()
        return None

    @property
    def _unconfirmed(self) -> int:
        is_open = self._machine.status in (Status.WRITING, Status.CHANGING)
        return self._machine.lap + len(self._payloads) - self._machine.window.lac if is_open else 0

    def _pending_futures(self) -> list[asyncio.Future[int] | None]:
        return [*self._outgoing.futures(), *self._futures]

    @property
    def term(self) -> Term:
        """The term in which it writes a stream; 0 of a ledger."""
        return Term(self._access.term)

    async def release(self) -> None:
        """Confirm what was appended, as far as bookies acknowledge it, and leave the ledger open.

        A stream is left to its next writer, a ledger to a recovery. Readers see all that was confirmed.
        """
        await self._leave(published=True)

    async def _publish_lac(self) -> None:
        """Send bookies the LAC: readers see what is confirmed."""
        lac, slots, places = self._machine.lac, self._machine.change.live, self._outgoing.places
        if self._machine.window.next_run and slots:
            access, timeout_ms = self._access, self._config.flush_ms
            told = [
                self._bookies.write_lac(
                    places[slot].bookie, access, lac, term=access.term, timeout_ms=timeout_ms
                )
                for slot in slots
            ]
            await asyncio.wait(told)

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
        check_home(self.label, self._loop, ledger_id=self.ledger_id)
        if self._machine.record.state is LedgerState.CLOSED:
            return
        self._machine.abandon()
        problem = e.Problem(LedgerClosedError, f"ledger {self.ledger_id} was abandoned")
        self._stopped(problem)
        self._finish(problem)
        for task in [task for task in self._tasks if task is not asyncio.current_task()]:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    @property
    def label(self) -> str:
        """What it writes, in words."""
        return f"ledger {self.ledger_id}" + (f" in term {self.term}" if self.term else "")

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
            await self._confirm(self._config.flush_ms)
            if published and self._machine.status in writing:
                await self._publish_lac()
        if self._machine.status in writing:
            self._begin_flush()
            lost = self._unconfirmed
            problem = self._stop("was left open by its writer")
            await self._flushed()
            await self._record_and_finish(problem)
        elif self._flush is not None:
            await self._flushed()
        while self._tasks:  # it is being closed
            await asyncio.wait(self._tasks)
        return lost

    def end(self, why: str) -> int:
        """End at once: fail what is not confirmed, because of `why`; returns how many entries that are."""
        lost = self._unconfirmed
        self._finish(None if self._machine.status is Status.CLOSED else self._stop(f"was left open: {why}"))
        return lost

    def _stop(self, why: str) -> e.Problem:
        """Entries that are not confirmed fail; the caller warns of them."""
        futures = self._pending_futures()
        self._machine.abandon(why)
        problem = e.Problem(LedgerClosedError, f"ledger {self.ledger_id} {why}")
        self._stopped(problem)
        read(futures)
        return problem

    async def _flushed(self) -> None:
        flush = self._flush
        if flush is not None and not flush.done:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            flush.when_done(lambda: None if done.done() else done.set_result(None))
            await done

    def _tell(self, problem: e.Problem | None) -> None:
        problem = self._machine.problem or problem
        if self._finished is None or self._finished.done():
            return
        if problem is None:
            self._finished.set_result(None)
        else:
            self._finished.set_exception(self._with_troubles(problem).exception(**self._about()))

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
