"""Performs one repair, of a ledger or a stream: gives a `RepairMachine` its bookies and its metadata store, and moves bytes.

The machine decides; this driver asks, copies and writes. The caller that repairs many ledgers passes what they share.

Source: docs/protocol/repair.md.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias

from quire.client.access import LedgerAccess
from quire.client.context import ClientContext
from quire.client.repairing.range_copy import RangeCopier
from quire.client.repairing.replica_lists import replica_list
from quire.core.answers import Answer
from quire.core.errors import (
    MetadataUnknownError,
    NoSuchLedgerError,
    WrongPasswordError,
)
from quire.core.ids import BookieId
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.notes import EntryRange, LedgerNotes
from quire.core.ledger.replica import Replica, ReplicaList, dirty_parts
from quire.core.ledger.terms import needs_of
from quire.core.repair.effects import (
    NONE_READ_ONLY,
    CopyRange,
    EndLimbo,
    ListReplica,
    Loss,
    ReadOnlyBookies,
    ReadRecord,
    RepairEffect,
    RepairEnded,
    RepairOutcome,
    WriteRepaired,
)
from quire.core.repair.rereplication import RepairMachine
from quire.metadata.retries import pause_after
from quire.metadata.store import VersionConflictError

COPY_TIMEOUT_MS: Final = 30_000
"""How long a bookie may take for a read or an add of a copy: much may be on its way to its disk, and no caller waits."""
_RETRY_PAUSE_MS: Final = 50
_READS_MAX: Final = 20
"""So often the metadata store may not respond before a repair gives up."""


CopyAllowance: TypeAlias = Callable[[BookieId, int], Awaitable[bool]]
"""Waits until so many bytes may be sent to a bookie: a rate, and room on its disk; False: it is to get no more."""


async def unlimited(bookie: BookieId, size: int) -> bool:  # noqa: ARG001 - the shape of a `CopyAllowance`
    """Every bookie is sent whatever is to be copied, at once."""
    return True


class LedgerRepair:
    """One repair of one ledger, or of what is decided of a stream.

    Args:
        ledger_id: which.
        context: what it shares with the client's other handles.
        lost_bookies: bookies that are permanently lost.
        candidates: bookies that may take a slot, the best first; of a stream only those that know terms are used.
        read_only: bookies that take no copies, and for how long.
        accepted: who accepted the loss of what only lost bookies have.
        password: of a ledger whose record has none (format 1); other records have their own.
        may_send: when copies may be sent.

    Attributes:
        stored: how many entries each bookie has been sent.
        bytes_copied: what was sent, headers included.
    """

    def __init__(
        self,
        ledger_id: int,
        context: ClientContext,
        *,
        lost_bookies: Collection[BookieId] = (),
        candidates: Sequence[BookieId] = (),
        read_only: ReadOnlyBookies = NONE_READ_ONLY,
        accepted: Loss | None = None,
        password: bytes | None = None,
        may_send: CopyAllowance = unlimited,
    ) -> None:
        self.ledger_id = ledger_id
        self._context = context
        self._lost_bookies, self._candidates = lost_bookies, candidates
        self._make = partial(context.machines.repair, read_only=read_only, accepted=accepted)
        self._password, self._may_send = password, may_send
        self._loop = asyncio.get_running_loop()
        self._result: asyncio.Future[RepairEnded] = self._loop.create_future()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._machine: RepairMachine | None = None
        self._access: LedgerAccess | None = None
        self._record: LedgerMetadata | None = None
        self._unsettled = 0
        self._read_before: tuple[LedgerMetadata, LedgerNotes, int] | None = None
        self._copier: RangeCopier | None = None
        self._lists: dict[BookieId, Replica] = {}
        self._acknowledged: defaultdict[BookieId, list[EntryRange]] = defaultdict(list)
        self.stored: defaultdict[BookieId, int] = defaultdict(int)

    @property
    def bytes_copied(self) -> int:
        """What was sent to bookies so far."""
        return 0 if self._copier is None else self._copier.bytes

    def bookies_changed(self, lost_bookies: Collection[BookieId], candidates: Sequence[BookieId]) -> None:
        """Other bookies are lost, or may take slots: what was sent is stored, and nothing more for the old choice.

        Args:
            lost_bookies: bookies that are permanently lost.
            candidates: bookies that may take a slot, the best first.
        """
        if self._copier is not None and frozenset(lost_bookies) != frozenset(self._lost_bookies):
            self._copier.stop()
        self._lost_bookies, self._candidates = lost_bookies, candidates
        if self._machine is not None and self._access is not None:
            self._machine.bookies_changed(lost_bookies, self._able(candidates))
            self._perform(self._machine, self._access)

    async def run(self) -> RepairEnded:
        """Repair.

        Raises:
            NoSuchLedgerError: there is no such ledger.
            CorruptMetadataError: its record cannot be read.
            WrongPasswordError: its record has no password, and none was passed, or another one.
            MetadataUnknownError: the metadata store does not respond.
        """
        record, notes, version = await self._context.records.read_with_notes(self.ledger_id)
        self._record, self._read_before = record, (record, notes, version)
        access = self._access = access_of(record, self._password)
        self._copier = RangeCopier(
            self._context.bookies,
            access,
            run_bytes_max=self._context.config.run_bytes_max,
            timeout_ms=COPY_TIMEOUT_MS,
            may_send=self._may_send,
            lists=self._lists,
            password_is_known=record.has_password,
        )
        returned = {
            bookie
            for loss in notes.losses
            for bookie in loss.lost_bookies
            if bookie not in self._lost_bookies and self._context.bookies.is_registered(bookie)
        }
        self._machine = self._make(self._lost_bookies, self._able(self._candidates), sources=sorted(returned))
        try:
            self._machine.start()
            self._perform(self._machine, access)
            ended = await self._result
            if ended.outcome is RepairOutcome.INCOMPLETE and await self._was_deleted(access):
                return RepairEnded(RepairOutcome.DELETED, ended.report)
            return ended
        finally:
            for task in list(self._tasks):
                task.cancel()
            self._copier.close()

    def _able(self, candidates: Sequence[BookieId]) -> Sequence[BookieId]:
        """Those that can hold what is repaired: other bookies would keep a stream as a ledger without a record."""
        if self._record is None or self._record.terms is None:
            return candidates
        able = {*self._context.bookies.writable(needs_of(self._record.terms))}
        return [bookie for bookie in candidates if bookie in able]

    async def _was_deleted(self, access: LedgerAccess) -> bool:
        """Whether that is why the repair could not go on: bookies refuse the copies of a ledger that is deleted."""
        try:
            record, _ = await self._context.records.read(self.ledger_id)
        except NoSuchLedgerError:
            return True
        return record.token != access.token

    # --- effects -------------------------------------------------------------------------------------------------

    def _perform(self, machine: RepairMachine, access: LedgerAccess) -> None:
        while machine.out:
            out, machine.out = machine.out, []
            for effect in out:
                if isinstance(effect, RepairEnded):
                    if not self._result.done():
                        self._result.set_result(effect)
                else:
                    self._spawn(effect, machine, access)

    def _spawn(self, effect: RepairEffect, machine: RepairMachine, access: LedgerAccess) -> None:
        """Perform an effect in a task of its own; what that returns feeds the machine."""

        async def feed() -> None:
            try:
                (await self._do(effect, machine, access))()
                self._perform(machine, access)
            except Exception as error:  # noqa: BLE001 - the top of a task: the repair's caller gets it
                if not self._result.done():
                    self._result.set_exception(error)

        task = self._loop.create_task(feed())
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _do(
        self, effect: RepairEffect, machine: RepairMachine, access: LedgerAccess
    ) -> Callable[[], None]:
        if isinstance(effect, ReadRecord):
            return await self._read(machine, access)
        if isinstance(effect, ListReplica):
            return await self._list(effect, machine, access)
        if isinstance(effect, CopyRange):
            return await self._copy(effect, machine)
        if isinstance(effect, WriteRepaired):
            return await self._write(effect, machine)
        assert isinstance(effect, EndLimbo)
        answer = await self._context.bookies.clear_limbo(effect.bookie, access, effect.limbo_lsn)
        return lambda: machine.limbo_cleared(effect.bookie, answer)

    async def _read(self, machine: RepairMachine, access: LedgerAccess) -> Callable[[], None]:
        found, self._read_before = self._read_before, None
        for attempt in range(_READS_MAX):
            if found is not None:
                break
            try:
                found = await self._context.records.read_with_notes(self.ledger_id)
            except NoSuchLedgerError:
                return lambda: machine.record_read(None, 0)
            except MetadataUnknownError:
                if attempt == _READS_MAX - 1:
                    raise
                await asyncio.sleep(_RETRY_PAUSE_MS / 1000)
        assert found is not None
        record, notes, version = found
        if record.token != access.token:  # another ledger has its id now
            return lambda: machine.record_read(None, 0)
        self._record = record
        return lambda: machine.record_read(record, version, notes)

    async def _list(
        self, effect: ListReplica, machine: RepairMachine, access: LedgerAccess
    ) -> Callable[[], None]:
        assert self._record is not None
        if effect.term and (answer := await self._takes_term(effect, access)) is not Answer.OK:
            return lambda: machine.listed(effect.bookie, ReplicaList(answer))
        response = await self._list_of(effect.bookie, access)
        if effect.term and (dirty := dirty_parts(response.held, self._record, machine.rules)):
            response = await self._drop_others(effect, access, dirty)
        self._lists[effect.bookie] = Replica.of(response, self._record)
        return lambda: machine.listed(effect.bookie, response)

    async def _list_of(self, bookie: BookieId, access: LedgerAccess) -> ReplicaList:
        assert self._record is not None
        return await replica_list(
            self._context.bookies,
            bookie,
            self._record,
            access,
            stored=self._acknowledged[bookie],
            timeout_ms=self._context.config.read_timeout_ms,
        )

    async def _takes_term(self, effect: ListReplica, access: LedgerAccess) -> Answer:
        """Have a bookie take the record's term, durably: a client that writes in a lower one can change nothing there."""
        reply = await self._context.bookies.read_lac(
            effect.bookie,
            access,
            fence=True,
            term=effect.term,
            timeout_ms=self._context.config.read_timeout_ms,
        )
        return reply.answer

    async def _drop_others(
        self, effect: ListReplica, access: LedgerAccess, dirty: Sequence[tuple[int, int, int]]
    ) -> ReplicaList:
        """The list of a bookie once what other terms left there in decided fragments is deleted."""
        with_term = replace(access, term=effect.term)
        for first, last, origin in dirty:
            answer = await self._context.bookies.truncate(
                effect.bookie,
                with_term,
                first,
                last,
                origin,
                timeout_ms=self._context.config.read_timeout_ms,
            )
            if answer is not Answer.OK:
                return ReplicaList(answer)
        return await self._list_of(effect.bookie, access)

    async def _copy(self, effect: CopyRange, machine: RepairMachine) -> Callable[[], None]:
        assert self._copier is not None
        outcome = await self._copier.copy(effect)
        self.stored[effect.bookie] += outcome.count
        if outcome.answer is Answer.OK and outcome.count == effect.entries.size():
            self._acknowledged[effect.bookie].append(effect.entries)
        return lambda: machine.copied(effect, outcome.answer, outcome.damaged, outcome.count)

    async def _write(self, effect: WriteRepaired, machine: RepairMachine) -> Callable[[], None]:
        try:
            version = await self._context.records.write_with_notes(
                effect.record, effect.notes, effect.version
            )
        except (VersionConflictError, NoSuchLedgerError):
            return machine.conflicted
        except MetadataUnknownError:
            self._unsettled += 1
            await pause_after(self._unsettled)
            return machine.unknown
        return lambda: machine.stored(version)


def access_of(record: LedgerMetadata, password: bytes | None) -> LedgerAccess:
    """The access to a ledger, with the password that its record has or, where that has none, with the one passed.

    Raises:
        WrongPasswordError: the record has none, and none is passed.
    """
    if record.has_password:
        return LedgerAccess.of(record)
    if password is None:
        msg = (
            f"ledger {record.ledger_id}: its record has format {record.format_version}, which stores no password: "
            "give the ledger's password (`password`)"
        )
        raise WrongPasswordError(msg, ledger_id=record.ledger_id)
    return LedgerAccess.of(replace(record, password=password))
