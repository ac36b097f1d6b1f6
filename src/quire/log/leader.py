"""Drives one `LogMachine`: its effects against the metadata store and the client, its responses back.

It decides nothing about the protocol; it waits, retries reading, and keeps the error that explains an end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from quire.client.writing.writer import LedgerWriter
from quire.core.errors import (
    CorruptMetadataError,
    LedgerClosedError,
    LedgerFencedError,
    MetadataConflictError,
    MisuseError,
    NoSuchLedgerError,
    NoSuchLogError,
    NotLeaderError,
    NotWritingError,
    OutcomeUnknownError,
    QuireError,
)
from quire.core.ids import LedgerId
from quire.core.ledger.guarantee import ACK_QUORUM, WRITE_QUORUM
from quire.core.ledger.placement import RandomSource
from quire.core.log import effects as e
from quire.core.log.effects import EndReason
from quire.core.log.list import LedgerSummary, LogHead, PageLayout
from quire.core.log.machine import LogMachine, LogStatus
from quire.core.settings import doubled
from quire.log.config import LogConfig
from quire.log.filling import FILLS_MAX, fill_holes
from quire.log.guaranteeing import GuaranteeWait
from quire.log.heads import LogHeads
from quire.log.ledgers import LogLedgers
from quire.metadata.retries import StoreRetries, pause_by_chance
from quire.wire.log_records import page_name

log = logging.getLogger(__name__)

T = TypeVar("T")
ADOPT_RETRY_MS: Final = 10_000
_ADOPT, _FILL = "adopt later", "fill holes"
"""Kinds of tasks: there is one of the first, and `FILLS_MAX` of the second, at most."""

LOST_LEDGER = (LedgerFencedError, LedgerClosedError, MetadataConflictError, NoSuchLedgerError)
"""The errors of a ledger's writer when another client took its ledger."""

MakeLogMachine: TypeAlias = Callable[..., LogMachine]
"""Makes a handle's machine; called as `LogMachine` is."""


class LogSender(Protocol):
    """Who sends entries to the ledgers that the leader hands over: `RecordSender`, which stands above."""

    def serve(self, ledger: LedgerWriter, first_offset: int, epoch: int) -> None:
        """Send appends to this ledger from now on."""

    def drain_ledger(self, ledger_id: LedgerId) -> None:
        """Send no more to it; call `LogLeader.drained` when all it got is confirmed."""

    async def close_ledger(self, ledger_id: LedgerId) -> LedgerSummary:
        """Close it and say what it holds."""

    def rolled(self, *, done: bool) -> None:
        """A roll is over."""

    def ended(self) -> None:
        """No more; `LogLeader.failure` says why."""


class LogLeader:
    """Drives the machine of one handle that leads a log, or tries to.

    Args:
        head: the log, as it was found.
        heads: the metadata.
        ledgers: its ledgers.
        config: settings.
        chance: jitter.
        holder: names this handle and no other, ever.
        host: where it runs, for people.
        may_retry: asks the elector before each retry of a lost compare-and-swap, and waits for the lead if the caller
            wanted that; advice, the compare-and-swap of the list decides.
        machine: makes the machine, with the arguments of `LogMachine`; a check hands in one with a rule replaced.
    """

    def __init__(
        self,
        head: LogHead,
        heads: LogHeads,
        ledgers: LogLedgers,
        config: LogConfig,
        chance: RandomSource,
        *,
        holder: str,
        host: str,
        may_retry: Callable[[], Awaitable[bool]],
        machine: MakeLogMachine = LogMachine,
    ) -> None:
        self._log_id, self._name = head.log_id, head.name
        self._first_head = head
        self._heads, self._ledgers, self._config, self._chance = heads, ledgers, config, chance
        self._owner = f"{holder}@{host}"
        self._may_retry = may_retry
        self._machine = machine(
            holder,
            name_page=page_name,
            host=host,
            layout=PageLayout(config.page_items, config.fan_out),
            digest=head.settings.digest,
            adopts=config.adopts,
        )
        self._sender: LogSender | None = None
        self._writers: dict[LedgerId, LedgerWriter] = {}
        self._tasks: dict[asyncio.Task[None], str] = {}
        self._cause: QuireError | None = None
        # One read or write of the head at a time: no older response arrives after a newer one.
        self._turn = asyncio.Lock()
        self._guarantee: GuaranteeWait | None = None
        self._retries = StoreRetries(config.metadata_attempts_max, self._pause)
        self.finished = asyncio.Event()
        self._handlers: dict[type, Callable[[Any], None]] = {
            e.ReadHead: lambda _: self._start(self._read_head()),
            e.RecoverLedger: lambda effect: self._start(self._recover(effect)),
            e.CreateLedger: lambda _: self._start(self._create()),
            e.WriteHead: lambda effect: self._start(self._write_head(effect)),
            e.DeleteLedger: lambda effect: self._start(self._delete(effect.ledger_id)),
            e.BackOff: lambda effect: self._start(self._back_off(effect.attempt)),
            e.Serve: self._serve,
            e.DrainLedger: lambda effect: self._sender_of().drain_ledger(effect.ledger_id),
            e.SwitchLedger: self._switch,
            e.CloseLedger: lambda effect: self._start(self._close_ledger(effect.ledger_id)),
            e.Rolled: self._rolled,
            e.LeadershipEnded: lambda _: self._ended(),
        }

    # --- for the sender ----------------------------------------------------------------------------------------

    @property
    def _head(self) -> LogHead:
        return self._machine.head or self._first_head

    @property
    def epoch(self) -> int:
        """The leader epoch, 0 before it serves."""
        return self._machine.epoch

    @property
    def may_roll(self) -> bool:
        """Whether a roll may start now."""
        return self._machine.may_roll

    @property
    def rolling(self) -> bool:
        """Whether a roll is under way."""
        return self._machine.rolling

    @property
    def serving(self) -> bool:
        """Whether this handle leads, as far as it knows."""
        return self._machine.status is LogStatus.SERVING

    @property
    def closing(self) -> bool:
        """Whether `close` was taken, or the handle has ended anyway."""
        return self._machine.is_closing

    def start(self, sender: LogSender) -> None:
        """Open the log as docs/protocol/log.md says; `sender.serve` or `sender.ended` follows."""
        self._sender = sender
        self._guarantee = self._ledgers.guarantee_wait()
        self._machine.open()
        self._perform()

    def roll(self) -> None:
        """Start a roll; see `LogMachine.roll`."""
        self._cause = None
        self._machine.roll()
        self._perform()

    def drained(self, ledger_id: LedgerId, records: int) -> None:
        """Everything that the ledger was sent is confirmed."""
        self._machine.drained(ledger_id, records)
        self._perform()

    def ledger_failed(self, ledger_id: LedgerId, error: QuireError) -> None:
        """A ledger's writer ended otherwise than by this handle's close."""
        if self._machine.ended is None:
            self._cause = error
        self._machine.ledger_failed(ledger_id, error.message)
        self._perform()

    def close(self) -> None:
        """Close the ledger, release the leadership; `sender.ended` follows."""
        self._machine.close()
        self._perform()

    def abandon(self, cause: QuireError | None = None) -> None:
        """Stop at once; `cause` is why, for callers."""
        if self._machine.ended is None:
            self._cause = cause or self._cause
        self._machine.abandon()
        self._perform()

    async def stop(self) -> None:
        """End what is under way and leave the ledgers that are still open to a recovery."""
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in self._writers.values():
            await writer.abandon()
        self._writers.clear()
        self._sender = None

    def failure(self) -> QuireError | None:
        """Why it has ended, as the error for callers; None after a clean close or while it has not."""
        ended, cause, where = self._machine.ended, self._cause, f"log {self._name!r}"
        if ended is None or ended.reason is EndReason.CLOSED:
            return None
        if ended.reason is EndReason.NOT_LEADER:
            return NotLeaderError(f"{where}: {ended.detail}; open it again to take it back", log=self._name)
        if ended.reason is EndReason.NO_SUCH_LOG:
            return NoSuchLogError(f"there is no {where}: {ended.detail}", log=self._name)
        if ended.reason is EndReason.CORRUPT:
            return CorruptMetadataError(f"{where}: {ended.detail}", log=self._name)
        if ended.reason is EndReason.LEDGER_FAILED and isinstance(cause, LOST_LEDGER):
            msg = f"{where}: another writer took it over ({cause.message}); open it again to take it back"
            return NotLeaderError(msg, log=self._name)
        if ended.reason is EndReason.ABANDONED and cause is None:
            return NotWritingError(f"this writer of {where} was abandoned", log=self._name)
        if cause is not None and ended.reason is not EndReason.LEDGER_FAILED:
            return cause
        msg = f"this writer of {where} has ended: {ended.detail}; open it again"
        return NotWritingError(msg, log=self._name)

    def sent_failure(self) -> QuireError:
        """The error for appends that were sent and not confirmed: their outcome is unknown."""
        cause, failure = self._cause, self.failure()
        what = f"log {self._name!r}: this record may or may not be in the log"
        if isinstance(cause, LOST_LEDGER) or cause is None:
            why = cause.message if cause else failure.message if failure else "it was closed"
            kind = LedgerFencedError if isinstance(cause, LedgerFencedError) else LedgerClosedError
            return kind(f"{what} ({why}); read it to know", log=self._name)
        if isinstance(cause, OutcomeUnknownError):
            return cause
        return OutcomeUnknownError(f"{what} ({cause.message}); read it to know", log=self._name)

    @property
    def cause(self) -> QuireError | None:
        """The error of a ledger or of the store that ended it, None if there was none."""
        return self._cause

    # --- effects -----------------------------------------------------------------------------------------------

    def _perform(self) -> None:
        machine = self._machine
        while machine.out:
            out, machine.out = machine.out, []
            for effect in out:
                self._handlers[type(effect)](effect)

    def _start(self, work: Coroutine[Any, Any, None], kind: str = "") -> None:
        task = asyncio.get_running_loop().create_task(self._run(work))
        self._tasks[task] = kind
        task.add_done_callback(self._tasks.pop)
        task.add_done_callback(lambda _: work.close())  # cancelled in the turn that made it, it never began

    async def _run(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except QuireError as error:
            self._cause = self._cause or error
            self._machine.abandon(error.message)
        except Exception as error:
            log.exception("log %r: the writer failed", self._name)
            self._cause = MisuseError(f"log {self._name!r}: the writer failed: {error!r}", log=self._name)
            self._machine.abandon(str(error))
        self._perform()

    async def _read_head(self) -> None:
        async with self._turn:
            found = await self._retries.ask(self._heads.read, self._log_id)
            self._machine.head_read(*(found or (None, -1)))

    async def _write_head(self, effect: e.WriteHead) -> None:
        async with self._turn:
            await self._retries.compare_and_swap(
                self._heads.write(effect.head, effect.version, effect.pages),
                self._machine.head_written,
                self._machine.head_conflicted,
                self._machine.head_unknown,
            )

    async def _recover(self, effect: e.RecoverLedger) -> None:
        item, ledger_id = effect.item, effect.item.ledger_id

        async def recover(gives_up: bool) -> LedgerSummary:
            return await self._ledgers.recover(item, at=ACK_QUORUM if gives_up else WRITE_QUORUM)

        try:
            summary = await self._guaranteed(f"ledger {ledger_id}", recover)
        except QuireError as error:
            deleted = isinstance(error, NoSuchLedgerError)
            self._machine.recovery_failed(ledger_id, deleted=deleted, detail=error.message)
            if self._machine.ended is not None:
                self._cause = error
        else:
            self._machine.recovered(ledger_id, summary)

    async def _create(self) -> None:
        async def create(gives_up: bool) -> LedgerWriter:
            return await self._ledgers.create(self._head, self._owner, guaranteed=not gives_up)

        try:
            writer = await self._guaranteed("a new ledger", create)
        except QuireError as error:
            self._cause = error
            self._machine.create_failed(error.message)
            return
        self._writers[writer.ledger_id] = writer
        self._machine.created(writer.ledger_id, writer.metadata.token)

    async def _guaranteed(self, what: str, work: Callable[[bool], Awaitable[T]]) -> T:
        """Do some work with the guarantee of the log's ledgers; an opening gives it up when it has waited long enough.

        A roll that finds too few bookies is cancelled instead: the current ledger stays, with its guarantee.
        """
        if self._guarantee is None or self.serving:
            return await work(False)
        return await self._guarantee.over(f"log {self._name!r}, {what}", work)

    async def _delete(self, ledger_id: LedgerId) -> None:
        """An unlisted ledger is garbage: if it cannot be deleted now, the collector finds it by its metadata."""
        writer = self._writers.pop(ledger_id, None)
        if writer is not None:
            await writer.abandon()
        try:
            await self._ledgers.delete(ledger_id)
        except QuireError as error:
            log.warning(
                "log %r: the unlisted ledger %d could not be deleted: %s", self._name, ledger_id, error
            )

    async def _back_off(self, attempt: int) -> None:
        """Read the list again after a pause; the election is asked when that is over, so that its response is new.

        Source: BookKeeper ledgers to logs, "Opening a log": "they should check that they are in fact still the
        leader".
        """
        why = f"the compare-and-swap of the list was lost to other writers {attempt} times in a row"
        if attempt < self._config.open_attempts_max:
            await self._pause(attempt)
            if await self._may_retry():
                self._machine.retry()
                return
            why = "the election names another writer"
        who = self._head.leader.host or "another writer"
        msg = (
            f"log {self._name!r}: {who} is the leader, and {why}; open the log again to take it "
            "over, or wait for the election"
        )
        self._cause = NotLeaderError(msg, log=self._name)
        self._machine.abandon(msg)

    async def _pause(self, attempt: int) -> None:
        wait_ms = doubled(self._config.back_off_ms_min, self._config.back_off_ms_max, attempt)
        await pause_by_chance(wait_ms, self._chance)

    def _serve(self, effect: e.Serve) -> None:
        assert effect.first_offset is not None
        self._sender_of().serve(self._writers[effect.ledger_id], effect.first_offset, effect.epoch)
        if self._config.adopts:
            self._start(self._heed_adoptions())

    def _switch(self, effect: e.SwitchLedger) -> None:
        assert effect.first_offset is not None
        self._sender_of().serve(self._writers[effect.ledger_id], effect.first_offset, self._machine.epoch)

    # --- adoptions ---------------------------------------------------------------------------------------------

    async def _heed_adoptions(self) -> None:
        """Look at the head whenever it changes: a sink may have committed ledgers, which this leader then places."""
        attempt = 0
        while True:
            try:
                async with self._heads.watch(self._log_id) as changes:
                    async for _ in changes:
                        if not self.serving:
                            return
                        async with self._turn:
                            found = await self._heads.read(self._log_id)
                            if found is not None:
                                self._machine.head_seen(*found)
                        self._adopt()
                        attempt = 0
            except QuireError as error:
                if not error.retriable:
                    log.warning(
                        "log %r: adopted ledgers get their offsets at the next roll: %s", self._name, error
                    )
                    return
            else:
                return
            attempt += 1
            await self._pause(attempt)

    def _adopt(self) -> None:
        if self._machine.adoptions_wait and self._machine.may_roll:
            self._machine.roll()
            self._perform()

    def _rolled(self, effect: e.Rolled) -> None:
        self._sender_of().rolled(done=effect.done)
        self._cause = None
        if not self._machine.adoptions_wait:
            return
        if effect.done:
            self._adopt()
        elif _ADOPT not in self._tasks.values():
            self._start(self._adopt_later(), _ADOPT)

    async def _adopt_later(self) -> None:
        """No ledger could be made: what was adopted waits, as appends go on in the current one."""
        await asyncio.sleep(ADOPT_RETRY_MS / 1000)
        self._adopt()

    async def _close_ledger(self, ledger_id: LedgerId) -> None:
        try:
            summary = await self._sender_of().close_ledger(ledger_id)
        except QuireError as error:
            self.ledger_failed(ledger_id, error)
            return
        writer = self._writers.pop(ledger_id, None)
        self._machine.ledger_closed(ledger_id, summary)
        rate = self._config.fill_bytes_per_s
        fills = [*self._tasks.values()].count(_FILL)
        if writer is not None and self.serving and rate and fills < FILLS_MAX:
            self._start(fill_holes(self._ledgers, writer, rate, lambda: self.serving), _FILL)

    @property
    def ledgers(self) -> Collection[LedgerWriter]:
        """The writers of its ledgers that have not ended."""
        return self._writers.values()

    def _sender_of(self) -> LogSender:
        assert self._sender is not None
        return self._sender

    def _ended(self) -> None:
        self.finished.set()
        if self._sender is not None:
            self._sender.ended()
