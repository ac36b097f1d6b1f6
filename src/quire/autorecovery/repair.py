"""Repairs the ledgers of a cluster: looks at what each lacks, then repairs those that lack something, many at a time.

One `LedgerRepair` for each ledger does the work; which is next and how many run decides the queue of auto-recovery's workers;
what a look at the ledgers has found stands in place of the marks that workers read from the store. One ledger that cannot be
read, or whose password is not known, does not hold up the others.

Source: docs/protocol/repair.md; docs/operations.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from quire.autorecovery.targets import RepairTargets
from quire.client.client import Client
from quire.client.repairing.inspection import look_at
from quire.client.repairing.ledger_repair import LedgerRepair
from quire.core.errors import NoSuchLedgerError, QuireError, RefusedError
from quire.core.ids import BookieId
from quire.core.repair.effects import NONE_READ_ONLY, Loss, RepairEnded, RepairOutcome
from quire.core.repair.rules import RULES
from quire.core.repair.under_replication import UnderReplicatedLedger, under_replication_of
from quire.core.repair.work_queue import BeginRepair, QueuedMark, QueueLimits, RepairQueue, is_whole
from quire.metadata.repairs import LedgerMarks

PASSES_MAX: Final = 3
"""Most repairs of a ledger of which something is left."""
LEDGERS_MAX: Final = 64
"""Most ledgers that are looked at at the same time."""
_LOG: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class UnderReplication:
    """What the ledgers of a cluster lack.

    Attributes:
        looked_at: how many ledgers were looked at.
        ledgers: those that lack something, or that name lost bookies.
        blocked: the ledgers that cannot be looked at, with why.
        streams: the names of the streams among those two; None: it has no name, or one that cannot be read.
    """

    looked_at: int = 0
    ledgers: dict[int, UnderReplicatedLedger] = field(default_factory=dict)
    blocked: dict[int, QuireError] = field(default_factory=dict)
    streams: dict[int, str | None] = field(default_factory=dict)

    @property
    def entries(self) -> int:
        """Entries that can be copied."""
        return sum(lacking.copyable for lacking in self.ledgers.values())

    @property
    def bytes(self) -> int:
        """About how many bytes of payload that is."""
        return sum(lacking.copyable * lacking.entry_bytes for lacking in self.ledgers.values())

    @property
    def to_repair(self) -> list[UnderReplicatedLedger]:
        """The ledgers in which a repair may find something to do, by id."""
        return [lacking for _, lacking in sorted(self.ledgers.items()) if lacking.needs_repair]


@dataclass(slots=True)
class RepairTotals:
    """The results of the repairs of a cluster.

    Attributes:
        ended: how each ended, by ledger.
        failed: those that ended with an error, by ledger.
        entries, bytes: what was copied.
        seconds: how long all that took.
    """

    ended: dict[int, RepairEnded] = field(default_factory=dict)
    failed: dict[int, QuireError] = field(default_factory=dict)
    entries: int = 0
    bytes: int = 0
    seconds: float = 0.0

    @property
    def left(self) -> list[int]:
        """The ledgers that still lack something that another repair may restore."""
        some = [ledger for ledger, end in self.ended.items() if end.outcome is RepairOutcome.INCOMPLETE]
        return sorted([*some, *self.failed])


class ClusterRepair:
    """The repair of a cluster's ledgers.

    Args:
        client: the cluster.
        lost: bookies that are permanently lost. So are those without a registration and a cookie.
        bytes_per_s: how fast copies are sent, all together; None: as fast as bookies accept them.
        password: of the ledgers whose records have none.
        accepted: who accepted that entries are lost which only lost bookies have.
    """

    def __init__(
        self,
        client: Client,
        *,
        lost: Collection[BookieId] = (),
        bytes_per_s: int | None = None,
        password: bytes | None = None,
        accepted: Loss | None = None,
    ) -> None:
        self._client, self._lost = client, frozenset(lost)
        self._password, self._accepted = password, accepted
        self._targets = RepairTargets(client, bytes_per_s)
        self._read_only = NONE_READ_ONLY
        self._under_way: dict[int, LedgerRepair] = {}
        self._queue = RepairQueue(limits=QueueLimits(PASSES_MAX, pause_ms=1, pause_ms_max=1))
        self._lacking: dict[int, UnderReplicatedLedger] = {}
        self.totals = RepairTotals()

    @property
    def bytes_copied(self) -> int:
        """What was sent to bookies so far."""
        return self.totals.bytes + sum(repair.bytes_copied for repair in self._under_way.values())

    # --- looking ---------------------------------------------------------------------------------------------------

    async def look(self, seen: Callable[[int], None] = lambda _: None) -> UnderReplication:
        """Ask the bookies of all ledgers what they hold; nothing is changed.

        Args:
            seen: called with each ledger when it has been looked at.
        """
        records = self._client.records
        found, known = UnderReplication(), await self._known()

        async def one(ledger_id: int) -> None:
            try:
                if (lacking := await self._look_at(ledger_id, known)) is not None:
                    found.ledgers[ledger_id] = lacking
            except NoSuchLedgerError:
                return  # deleted since it was listed
            except QuireError as error:
                found.blocked[ledger_id] = error
            found.looked_at += 1
            seen(ledger_id)

        tasks: set[asyncio.Task[None]] = set()
        streams: set[int] = set()
        try:
            async for listed in records.listed():
                if listed.is_stream:
                    streams.add(listed.ledger_id)
                tasks.add(asyncio.create_task(one(listed.ledger_id)))
                if len(tasks) == LEDGERS_MAX:
                    await _some_of(tasks)
            while tasks:
                await _some_of(tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        found.streams = await records.streams.names_of(streams & {*found.ledgers, *found.blocked})
        return found

    async def look_at(self, ledger_id: int) -> UnderReplicatedLedger | None:
        """Ask the bookies of one ledger; None: it lacks nothing."""
        return await self._look_at(ledger_id, await self._known())

    async def _known(self) -> Collection[BookieId]:
        """The cluster's bookies, the ones that are away too; which are read-only is noted."""
        self._read_only = await self._targets.read_only()
        return {*await self._client.bookies.bookies(), *await self._client.bookies.members()}

    async def _look_at(self, ledger_id: int, known: Collection[BookieId]) -> UnderReplicatedLedger | None:
        client = self._client

        def lost(bookie: BookieId) -> bool:
            return bookie in self._lost or bookie not in known

        look = await look_at(
            ledger_id,
            client.records,
            client.bookies,
            password=self._password,
            lost=lost,
            timeout_ms=client.config.read_timeout_ms,
        )
        record = look.record
        gone = {bookie for fragment in record.fragments for bookie in fragment.ensemble if lost(bookie)}
        lacking = under_replication_of(record, look.notes, look.lists, gone, look.lac, self._read_only)
        return lacking if not lacking.is_complete or lacking.needs_repair or lacking.undecided else None

    # --- repairing -------------------------------------------------------------------------------------------------

    async def run(self, ledgers: Iterable[UnderReplicatedLedger]) -> RepairTotals:
        """Repair ledgers in the order, and as many at a time, as a worker's queue decides.

        Instead of a pause the next pass over those that are left follows at once, if copies were made.
        """
        began_ns, totals = self._client.clock.now_ns(), self.totals
        self._read_only = await self._targets.read_only()
        for lacking in ledgers:
            self._lacking[lacking.ledger_id] = lacking
            copies = min((kind.copies_left for kind in lacking.entries), default=0)
            mark = QueuedMark(0, lacking.lost_bookies, copies, lacking.copyable * lacking.entry_bytes)
            self._queue.marked(lacking.ledger_id, mark)
        self._queue.switched(on=True)
        try:
            for passes in range(PASSES_MAX):
                before = totals.entries
                self._queue.tick(passes)
                async with asyncio.TaskGroup() as repairs:
                    self._begin(repairs, passes)
                if totals.entries == before:
                    break
        finally:
            await self._targets.close()
        totals.seconds += (self._client.clock.now_ns() - began_ns) / 1e9
        return totals

    def _begin(self, repairs: asyncio.TaskGroup, passes: int) -> None:
        self._queue.bounded(self._targets.units)
        out, self._queue.out = self._queue.out, []
        for effect in out:
            if isinstance(effect, BeginRepair):
                repairs.create_task(self._repair(self._lacking[effect.ledger_id], repairs, passes))

    async def _repair(self, lacking: UnderReplicatedLedger, repairs: asyncio.TaskGroup, passes: int) -> None:
        totals, ledger_id = self.totals, lacking.ledger_id
        repair = self._under_way[ledger_id] = LedgerRepair(
            ledger_id,
            self._client.context,
            lost_bookies={*self._lost, *lacking.lost_bookies, *lacking.undecided},
            candidates=await self._targets.candidates(ledger_id),
            read_only=self._read_only,
            accepted=self._accepted,
            password=self._password,
            may_send=self._targets.may_send,
        )
        try:
            marks, may_end = await self._marks_that_may_end(ledger_id)
            ended = await repair.run()
        except NoSuchLedgerError:
            self._queue.whole(ledger_id)  # deleted since it was looked at
        except QuireError as error:
            totals.failed[ledger_id] = error
            self._queue.ended(ledger_id, None, error.message, None, passes)
        else:
            totals.failed.pop(ledger_id, None)
            totals.ended[ledger_id] = ended
            if not is_whole(ended.outcome, ended.report):
                self._queue.ended(ledger_id, ended.report, "", PASSES_MAX, passes)
            else:
                self._queue.whole(ledger_id)
                if may_end and ended.outcome is not RepairOutcome.DELETED:
                    await self._end_marks(ledger_id, marks)
        finally:
            del self._under_way[ledger_id]
            totals.bytes += repair.bytes_copied
            totals.entries += sum(repair.stored.values())
        self._begin(repairs, passes)

    async def _marks_that_may_end(self, ledger_id: int) -> tuple[LedgerMarks, bool]:
        """A ledger's marks before its repair, and whether they reach into no fragment that its writer may still change."""
        marks = await self._client.records.repairs("").marks_of(ledger_id)
        if marks.through < 0:
            return marks, True
        record, _ = await self._client.records.read(ledger_id)
        return marks, RULES.mark_may_end(record, marks.through)

    async def _end_marks(self, ledger_id: int, marks: LedgerMarks) -> None:
        """Remove the marks that were read before a repair: a worker that waits for an event would not look again.

        They stay while the record names a lost bookie, as it may where a fragment has no entry.
        """
        client = self._client
        if marks.missing is None and marks.own is None:
            return
        try:
            record, _ = await client.records.read(ledger_id)
            if marks.lost.isdisjoint(bookie for each in record.fragments for bookie in each.ensemble):
                await client.records.repairs("").end_marks(ledger_id, marks)
        except QuireError as error:
            _LOG.warning("the repair marks of ledger %d cannot be removed: %s", ledger_id, error)


async def checked_lost(client: Client, named: Iterable[str]) -> frozenset[BookieId]:
    """The bookies that an operator says are permanently lost.

    Raises:
        RefusedError: one is registered, or the cluster never had it.
    """
    there, members = set(await client.bookies.bookies()), set(await client.bookies.members())
    for bookie in named:
        if bookie in there:
            msg = (
                f"bookie {bookie} is registered: it serves its entries. Stop it first if it is to leave "
                "the cluster for good"
            )
            raise RefusedError(msg, bookie=bookie)
        if bookie not in members:
            msg = f"there is no bookie of this name: {bookie}; `quire cluster bookies` lists them"
            raise RefusedError(msg, bookie=bookie)
    return frozenset(BookieId(bookie) for bookie in named)


async def _some_of(tasks: set[asyncio.Task[None]]) -> None:
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    tasks -= done
    for task in done:
        task.result()
