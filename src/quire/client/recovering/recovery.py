"""Performs one recovery: gives a `RecoveryMachine` its bookies and its metadata store, and keeps the payloads.

The machine decides; this driver moves bytes. Every response goes to the machine; none is judged here. A take-over of a stream
is a recovery with another end (`core/recovery/take_over.py`): every request of it names the term of its sender, and every
entry its origin term.

Source: BookKeeper protocol, "Closing a ledger as a reader"; Vanlightly's guide, "Ledger Recovery".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable
from dataclasses import replace
from typing import Any, Generic, TypeVar, cast

from quire.client.access import LedgerAccess, origin_to_ask
from quire.client.bookies.bookies import AddRequester
from quire.client.context import ClientContext
from quire.client.reading.range_read import RangeRead, ReadSettings, open_runs
from quire.client.recovering.pending_replication import mark_closed
from quire.client.recovering.recovery_failures import is_final, not_recovered
from quire.client.reused import reused_id
from quire.core.answers import Answer
from quire.core.errors import MetadataUnknownError, NoSuchLedgerError, NoSuchStreamError
from quire.core.ids import BookieId, Slot
from quire.core.ledger.effects import (
    FindLength,
    FindReplacements,
    RecoveryClosed,
    RecoveryInconclusive,
    RecoveryResult,
    RereadMetadata,
    SendLacRead,
    SendRecoveryAdds,
    SendRecoveryRead,
    TakenOver,
    TakeOverEffect,
    TakeOverResult,
    WaitForAnswers,
    WriteMetadata,
)
from quire.core.ledger.guarantee import GUARANTEE_KEY
from quire.core.ledger.holes import joined
from quire.core.ledger.metadata import LedgerMetadata, LedgerState
from quire.core.ledger.placement import choose_replacements
from quire.core.ledger.reader import ReadMachine
from quire.core.ledger.terms import by_origin, confirmed_in, needs_of
from quire.core.ledger.writer_state import Hole
from quire.core.recovery.machine import RecoveryMachine
from quire.metadata.retries import AT_ONCE
from quire.metadata.store import VersionConflictError
from quire.wire.entries import Copies, copies
from quire.wire.entry import Entry
from quire.wire.native_bodies import ANY_TERM
from quire.wire.requests import AddRun
from quire.wire.responses import ReadReply

log = logging.getLogger(__name__)

R_co = TypeVar("R_co", bound=TakeOverResult, covariant=True)

STRAGGLER_WAIT_MS = 200
"""After the close, how long to wait for bookies that have not acknowledged what was written back to them: they are
not needed, but a program that ends at once would leave its entries on fewer bookies."""
_RETRY_PAUSE_MS = 50
AGAIN_PAUSE_S = 0.2
"""After an inconclusive end: a bookie that restarts is back in a moment, and its connection is not tried at once."""


class RecoveryPerformer(AddRequester, Generic[R_co]):
    """One recovery or take-over, from the record as it was read to a result.

    Args:
        machine: decides.
        access: id, master key, token, digest and term sent with every request; the password was compared before.
        context: what it shares with the client's other handles.

    Attributes:
        recovered: entries found above the highest LAC that was reported.
        stragglers: what bookies had not acknowledged of what was written back when the ledger was closed.
        reused: bookies that hold another ledger under this id.
    """

    def __init__(self, machine: RecoveryMachine, access: LedgerAccess, context: ClientContext) -> None:
        self._access, self._bookies = access, context.bookies
        self._context, self._config = context, context.config
        self._machine = machine
        self._result: asyncio.Future[R_co] = asyncio.get_running_loop().create_future()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._entries: dict[int, Entry] = {}
        self._made: tuple[SendRecoveryAdds, list[Copies]] | None = None
        self._dropped_through = -1
        # What was written back, and whether a response is still waited for.
        self._unacknowledged: dict[object, bool] = {}
        self.stragglers: tuple[Hole, ...] = ()
        self._all_answered = asyncio.Event()
        self._lost_cas = 0
        self.recovered = 0
        self.reused: dict[BookieId, None] = {}

    @property
    def _record(self) -> LedgerMetadata:
        return self._machine.record

    async def run(self, ignored_lacs: Collection[BookieId] = (), *, at_ack_quorum: bool = False) -> R_co:
        """Recover; the arguments are those of `RecoveryMachine.recover`.

        Returns:
            `RecoveryClosed` with the record; of a take-over `TakenOver` with it, or `TakeOverSuperseded`;
            `RecoveryInconclusive` when too few responses are conclusive, with the bookies that are missing;
            `RecoveryFailed` with a definite obstacle.

        Raises:
            MetadataUnknownError: the metadata store does not respond, or another client wins every compare-and-swap.
            MisuseError: the record cannot be written.
        """
        try:
            self._machine.recover(ignored_lacs, at_ack_quorum=at_ack_quorum)
            self._perform()
            result = await self._result
            if self._unacknowledged and isinstance(result, RecoveryClosed | TakenOver):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._all_answered.wait(), STRAGGLER_WAIT_MS / 1000)
                last = result.last_entry if isinstance(result, TakenOver) else result.record.last_entry
                self.stragglers = self._left_behind(result.record, last)
            return result
        finally:
            for task in list(self._tasks):
                task.cancel()
            self._entries.clear()
            self._made = None
            self._bookies.forget(self)

    # --- effects -------------------------------------------------------------------------------------------------

    def _perform(self) -> None:
        machine = self._machine
        while machine.out:
            out, machine.out = machine.out, []
            for effect in out:
                self._perform_one(effect)
        if self._entries and (lac := self._machine.back.lac) > self._dropped_through:
            # What is confirmed will not be sent again.
            self._dropped_through = lac
            self._entries = {k: entry for k, entry in self._entries.items() if k > lac}
            self._made = None

    def _perform_one(self, effect: TakeOverEffect) -> None:
        if isinstance(effect, SendLacRead):
            self._spawn(self._fence(effect))
        elif isinstance(effect, SendRecoveryRead):
            self._spawn(self._read(effect))
        elif isinstance(effect, SendRecoveryAdds):
            self._write_back(effect)
        elif isinstance(effect, FindReplacements):
            self._machine.replacements_found(self._spares(effect))
        elif isinstance(effect, WaitForAnswers):
            # A bookie without a registration will not respond in so short a time.
            if self._config.silent_wait_ms and any(map(self._bookies.is_registered, effect.bookies)):
                self._spawn(self._wait())
            else:
                self._machine.waited()
        elif isinstance(effect, FindLength):
            self._spawn(self._find_length(effect))
        elif isinstance(effect, WriteMetadata):
            self._spawn(self._write_metadata(effect))
        elif isinstance(effect, RereadMetadata):
            self._spawn(self._reread_metadata())
        elif not self._result.done():
            self._result.set_result(cast("R_co", effect))

    def _spawn(self, work: Coroutine[Any, Any, Callable[[], None]]) -> None:
        """Do some work; what it returns feeds the machine."""

        async def feed() -> None:
            try:
                (await work)()
                self._perform()
            except Exception as error:  # noqa: BLE001 - the top of a task: the recovery's caller gets it
                if not self._result.done():
                    self._result.set_exception(error)

        def over(done: asyncio.Task[None]) -> None:
            del self._tasks[done]
            work.close()  # it was never awaited where the task is cancelled before its first step

        task = asyncio.create_task(feed())
        self._tasks[task] = None
        task.add_done_callback(over)

    def _left_behind(self, record: LedgerMetadata, last_entry: int) -> tuple[Hole, ...]:
        """What bookies of the record should have been sent up to its last entry and have not acknowledged."""
        runs = [tag for tag in self._unacknowledged if isinstance(tag, tuple)]
        runs += self._machine.back.change.holes_through(last_entry)
        return joined(
            Hole(slot, bookie, first, min(last, last_entry))
            for slot, bookie, first, last in runs
            if first <= last_entry and bookie in record.ensemble_of(first)
        )

    # --- phases 1 and 2: reading ----------------------------------------------------------------------------------

    async def _fence(self, effect: SendLacRead) -> Callable[[], None]:
        reply = await self._bookies.read_lac(
            effect.bookie,
            self._access,
            fence=effect.fence,
            term=self._access.term,
            timeout_ms=self._config.recovery_timeout_ms,
        )
        lac, record = self._access.trusted_lac(reply), self._record
        if record.terms is not None:  # it says nothing about the entries of later terms
            lac = confirmed_in(reply.lac_term, lac, record.ranges)
        self._note(effect.bookie, reply.answer)
        return lambda: self._machine.fence_answered(effect.slot, reply.answer, lac, reply.lafr)

    async def _read(self, effect: SendRecoveryRead) -> Callable[[], None]:
        origin_term = self._origin_of(effect.first)  # of all: a stream's window does not cross a range
        reply = await self._bookies.read(
            effect.bookie,
            self._access,
            effect.first,
            effect.last,
            self._config.recovery_read_bytes_max,
            fence=effect.fence,
            recovery=True,
            origin_term=origin_term or ANY_TERM,
            term=self._access.term if effect.fence else 0,
            timeout_ms=self._config.recovery_timeout_ms,
        )
        self._note(effect.bookie, reply.answer)
        return lambda: self._take(effect, reply, origin_term)

    def _origin_of(self, entry_id: int) -> int:
        """The origin term that a read names: 0 of a ledger."""
        return origin_to_ask(self._record, entry_id) if self._access.term else 0

    async def _wait(self) -> Callable[[], None]:
        await asyncio.sleep(self._config.silent_wait_ms / 1000)
        return self._machine.waited

    def _note(self, bookie: BookieId, answer: Answer) -> None:
        if answer is Answer.WRONG_TOKEN:
            self.reused[bookie] = None

    def _take(self, effect: SendRecoveryRead, reply: ReadReply, origin_term: int) -> None:
        machine = self._machine
        found, bad, _ = open_runs(reply.runs, self._access, effect.first, effect.last, origin_term)
        lengths: dict[int, int] = {}
        for entry in found:
            lengths[entry.entry_id] = entry.length
            if entry.entry_id > machine.back.lac:
                self._entries.setdefault(entry.entry_id, entry)
        self.recovered -= machine.end.lap
        machine.read_answered(
            effect.slot, reply.answer, lengths, reply.conclusive_through, reply.unknown + bad
        )
        self.recovered += machine.end.lap

    # --- phase 2: writing back -------------------------------------------------------------------------------------

    def _write_back(self, effect: SendRecoveryAdds) -> None:
        for run in self._runs_of(effect):
            tag = (effect.slot, effect.bookie, run.first, run.last)
            self._unacknowledged[tag] = True
            self._all_answered.clear()
            self._bookies.add_run(
                effect.bookie,
                AddRun(
                    self._access,
                    run.body,
                    run.body_crc,
                    effect.last_add_confirmed,
                    recovery=True,
                    term=self._access.term,
                ),
                self,
                tag,
                self._config.recovery_timeout_ms,
            )

    def _runs_of(self, effect: SendRecoveryAdds) -> list[Copies]:
        """What a bookie is to be sent: made once for all bookies that are sent the same."""
        wanted = replace(effect, slot=Slot(0), bookie=BookieId(""))
        if self._made is None or self._made[0] != wanted:
            runs: list[Copies] = []
            for first, last, origin_term in self._by_origin(effect.first, effect.last):
                runs += copies(
                    (self._entries[entry_id] for entry_id in range(first, last + 1)),
                    self._access.digest,
                    self._config.run_bytes_max,
                    period=effect.period,
                    stripes=effect.stripes,
                    lac=effect.last_add_confirmed,
                    origin_term=origin_term,
                )
            self._made = wanted, runs
        return self._made[1]

    def _by_origin(self, first: int, last: int) -> Iterable[tuple[int, int, int]]:
        """The ids first..last in parts of one origin term each."""
        if not self._access.term:
            return [(first, last, 0)]
        record = self._record
        return by_origin(first, last, self._machine.end.origins if record.only_fences else record.ranges)

    def add_answered(self, tag: object, answer: Answer) -> None:
        """A bookie's response to a run that was written back."""
        self._unacknowledged[tag] = False
        if answer is Answer.OK:
            del self._unacknowledged[tag]
        if not any(self._unacknowledged.values()):
            self._all_answered.set()
        assert isinstance(tag, tuple)
        slot, bookie, first, last = tag
        if not self._result.done():
            self._machine.adds_answered(slot, bookie, first, last, answer)
            self._perform()

    def _spares(self, effect: FindReplacements) -> dict[Slot, BookieId]:
        writable = self._bookies.writable(needs_of(self._record.terms))
        found = choose_replacements(
            effect.slots, effect.ensemble, writable, self._context.chance, failed=effect.excluded
        )
        return {Slot(slot): bookie for slot, bookie in found.items()}

    # --- phase 3 ---------------------------------------------------------------------------------------------------

    async def _find_length(self, effect: FindLength) -> Callable[[], None]:
        entry_id = effect.entry_id
        ensemble = self._record.ensemble_of(entry_id)
        silent: list[BookieId] = []
        read = RangeRead(
            self._bookies,
            self._access,
            ReadMachine(entry_id, entry_id, ensemble, self._record.write_quorum),
            entry_id,
            entry_id,
            ReadSettings(self._config.read_bytes_max, self._config.recovery_timeout_ms, 0),
            self._context.clock,
            trouble=lambda bookie, _: silent.append(bookie),
            on_response=_ignore,
            origin_term=self._origin_of(entry_id),
            ranges=self._record.ranges if self._access.term else (),
        )
        try:
            await read.done
        finally:
            read.cancel()
        if read.entries:
            return lambda: self._machine.length_found(read.entries[0].length)
        return lambda: self._machine.length_unavailable(silent)

    async def _write_metadata(self, effect: WriteMetadata) -> Callable[[], None]:
        try:
            # A killed writer tells no one what a slow or absent bookie did not receive.
            begins = effect.record.state is LedgerState.IN_RECOVERY
            version = await self._context.records.write(effect.record, effect.version, vouched=begins)
        except (
            VersionConflictError,
            NoSuchLedgerError,
            NoSuchStreamError,
            MetadataUnknownError,
        ) as error:
            # A response that was lost is settled like a conflict: reread, and see whose record it is.
            self._lost_cas += 1
            if self._lost_cas >= self._config.recovery_attempts_max:
                msg = (
                    f"ledger {effect.record.ledger_id}: the compare-and-swap of the record failed in "
                    f"{self._lost_cas} attempts ({error}); recover the ledger again"
                )
                raise MetadataUnknownError(msg, ledger_id=effect.record.ledger_id) from error
            if self._lost_cas > AT_ONCE:
                await asyncio.sleep(_RETRY_PAUSE_MS * self._lost_cas / 1000)
            return self._machine.metadata_conflicted
        self._lost_cas = 0
        return lambda: self._machine.metadata_written(effect.record, version)

    async def _reread_metadata(self) -> Callable[[], None]:
        record: LedgerMetadata | None
        try:
            record, version = await self._context.records.of(self._record).read(self._record.ledger_id)
        except (NoSuchLedgerError, NoSuchStreamError):
            record, version = None, 0
        except MetadataUnknownError:
            self._lost_cas += 1
            if self._lost_cas >= self._config.recovery_attempts_max:
                raise
            await asyncio.sleep(_RETRY_PAUSE_MS / 1000)
            return self._machine.metadata_conflicted
        return lambda: self._machine.metadata_read(record, version)


async def recover_ledger(
    record: LedgerMetadata,
    version: int,
    access: LedgerAccess,
    context: ClientContext,
    ignored_lacs: Collection[BookieId] = (),
    *,
    at_ack_quorum: bool = False,
) -> tuple[RecoveryClosed, RecoveryPerformer[RecoveryResult]]:
    """Recover a ledger, again and again while too few bookies respond, up to `recovery_patience_ms`.

    Args:
        record: the ledger's record.
        version: its version in the store.
        access: how its bookies are asked.
        context: what it shares with the client's other handles.
        ignored_lacs: bookies whose LAC is ignored.
        at_ack_quorum: a guarantee of the write quorum is waived.

    Returns:
        The closed record, and the recovery that closed it.

    Raises:
        QuireError: as `Client.recover_ledger`.
    """
    deadline_ms = context.clock.now_ms() + context.config.recovery_patience_ms
    while True:
        machine = context.machines.recovery(record, version)
        recovery: RecoveryPerformer[RecoveryResult] = RecoveryPerformer(machine, access, context)
        result = await recovery.run(ignored_lacs, at_ack_quorum=at_ack_quorum)
        if isinstance(result, RecoveryClosed):
            for hole in recovery.stragglers:
                log.warning(
                    "ledger %d was closed before bookie %s acknowledged entries %d to %d, which it may lack: "
                    "`quire ledger repair` fills them",
                    record.ledger_id, hole.bookie, hole.first, hole.last,
                )  # fmt: skip
            if any(key == GUARANTEE_KEY for key, _ in result.record.custom):
                await mark_closed(context.records, context.clock, result.record, result.version)
            return result, recovery
        if (
            isinstance(result, RecoveryInconclusive)
            and result.silent
            and recovery.reused.keys() >= {*result.silent}
        ):
            raise reused_id(record.ledger_id, result.silent)
        if is_final(result) or context.clock.now_ms() >= deadline_ms:
            raise not_recovered(record, result, context.bookies.troubles())
        await asyncio.sleep(AGAIN_PAUSE_S)
        record, version = await context.records.of(record).read(record.ledger_id)


def _ignore(reply: ReadReply, took_ms: int) -> None:
    """A recovery reads one known entry here; LACs and times do not matter."""
