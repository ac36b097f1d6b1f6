"""A bookie's collector: drops the entries of ledgers that were deleted, on a proof.

`core/bookie/garbage.py` says what a proof is. Here are the requests to the metadata store, the last look at a record before
each drop, and the pauses in which the event loop serves others: no stretch of work is longer than `SLICE` ledgers.

One pass: raise the bookie's pass counter in the store; compare the ledgers that it holds with the records, page by page;
fetch the tombstones; look once more at the ledgers that are to be dropped, and drop them; keep what was found on disk;
publish the *watermark* (the revision up to which this bookie has dropped all deleted ledgers), and delete the tombstones that
every bookie's watermark has passed.

Source: BookKeeper overview, "Bookkeeper metadata management": bookies "cleanup ledgers that get deleted";
`docs/protocol/collection.md`.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from quire.bookie.collecting.cleaning import LOOK_SECONDS, DiskCleaner
from quire.bookie.collecting.collector_store import CollectorStore, Doomed
from quire.bookie.collecting.disk_work import SLICE, settle, turn_for_others
from quire.bookie.collecting.over_replicated import OverReplicationCollector
from quire.bookie.collecting.pending_drops import PendingDrops
from quire.bookie.collecting.progress import TaskProgress
from quire.bookie.config import BookieConfig
from quire.bookie.ledgers.ledgers import Ledgers
from quire.core.bookie.garbage import (
    CollectorMachine,
    Count,
    Kept,
    Proof,
    StopCollection,
    StoreName,
    TombstoneMark,
    id_to_leap_over,
)
from quire.core.bookie.rules import RULES, BookieRules
from quire.core.errors import (
    CorruptMetadataError,
    DescriptorShortageError,
    DirectoryLostError,
    QuireError,
    StorageError,
)
from quire.core.ids import ID_MAX, LedgerId
from quire.core.ledger.placement import RandomSource
from quire.env.interfaces import Clock, Files, Worker
from quire.metadata.store import RAISED_MAX, StoreBusyError
from quire.storage.directory.collector_file import CollectorFile
from quire.storage.formats.segment_format import FormatError
from quire.storage.ledger_storage import LedgerStorage

log = logging.getLogger(__name__)

LOOKED_AT_ONCE: Final = 40
"""Ledgers in one look before the drop, three operations each: etcd takes 128 at a time."""
ATTEMPTS_MAX: Final = 5
LATE_ADD_MS: Final = 60_000
"""An add that comes later than this behind the deletion of its ledger leaves an orphan."""
DROPS_NAMED_MAX: Final = 20
"""So many of the ledgers that one pass drops have a line of the log each."""
ORPHANS_LISTED_MAX: Final = 10_000
"""So many ids go into one response."""


@dataclass(slots=True)
class CollectorReport:
    """What operators are shown of a collector.

    Attributes:
        passes: of this process that were finished; `last_pass_ms`: wall clock of the last one's end.
        dropped: ledgers, by this process.
        due: what would go if collection were not stopped.
        failures: passes that failed; `failure`: the last one's error, empty after a pass that did not fail.
    """

    passes: int = 0
    last_pass_ms: int = 0
    dropped: int = 0
    due: Sequence[int] = ()
    failures: int = 0
    failure: str = ""


class GarbageCollector:
    """One bookie's collector; `prepare` before the bookie serves, then `run`, which never ends.

    Attributes:
        report: what operators are shown.
        over_replicated: drops over-replicated entries.
        cleaner: gives bytes of the disk back, and says when a pass is due.
        progress: whether it moves.
    """

    def __init__(
        self,
        config: BookieConfig,
        storage: LedgerStorage,
        ledgers: Ledgers,
        store: CollectorStore,
        *,
        clock: Clock,
        files: Files,
        worker: Worker,
        chance: RandomSource,
        rules: BookieRules = RULES,
    ) -> None:
        self.report = CollectorReport()
        self._config = config
        self._bookie_id = store.bookie_id
        self._storage = storage
        self._ledgers = ledgers
        self._store = store
        self._clock = clock
        self._worker = worker
        self._chance = chance
        self._file = CollectorFile(Path(config.directory), files)
        self._machine = CollectorMachine(self._read_file(), rules)
        self._leapt = -1
        self._warned = 0
        self._passing = asyncio.Lock()
        self.progress = TaskProgress(int(config.garbage_seconds * 1000), clock.now_ms())
        self.cleaner = DiskCleaner(config, storage, ledgers, clock, self._moved)
        grace_ms = int(config.tombstone_seconds * 1000)
        self.over_replicated = OverReplicationCollector(
            store.bookie_id, storage, ledgers, store.records.ledgers, clock, grace_ms, rules
        )

    def _read_file(self) -> Kept:
        try:
            return self._file.read() or Kept()
        except FormatError as error:
            why = f"{self._file.path}: {error}"
        except DescriptorShortageError:
            raise
        except StorageError as error:
            why = str(error)
        log.warning("%s; the collector's evidence is discarded and gathered again", why)
        return Kept()

    async def prepare(self) -> None:
        """Before the bookie serves: see whether the store went back; ids that are here are not assigned again by it.

        Raises:
            QuireError: the metadata store cannot be asked.
        """
        try:
            shown, _ = await self._store.passes()
        except CorruptMetadataError as error:
            log.warning(
                "bookie %s cannot tell whether the metadata store went back: %s", self._bookie_id, error
            )
        else:
            self._machine.compare(shown, StoreName(*self._store.name))
        drawn = [ledger_id for ledger_id in self._storage.states.ledgers if ledger_id <= RAISED_MAX]
        highest = max(drawn, default=-1)
        if highest >= 0 and not await self._store.has_record(highest):
            await self._leap(highest)

    @property
    def trusts_store(self) -> bool:
        """Whether the store was not treated, at the start or in the last pass, as one that went back: its records prove nothing then."""
        return not self._machine.stopped

    @property
    def stopped(self) -> str:
        """Why nothing is deleted; empty if it may be."""
        return self._machine.stopped

    async def run(self) -> None:
        """Make a pass every `garbage_seconds`, sooner on a disk that fills; one that fails is logged, counted, and tried again."""
        every = self._config.garbage_seconds
        if not every:
            return
        while True:
            await asyncio.sleep(min(every, LOOK_SECONDS))
            if not self.cleaner.is_due:
                continue
            try:
                await self.collect()
            except Exception as error:
                self.report.failures += 1
                self.report.failure = str(error) or repr(error)
                if isinstance(error, QuireError):
                    log.warning(
                        "collecting deleted ledgers on %s: %s; the next pass tries again",
                        self._bookie_id,
                        error,
                    )
                else:
                    log.exception("collecting deleted ledgers on %s failed", self._bookie_id)

    # --- a pass --------------------------------------------------------------------------------------------------

    async def collect(self, *, compact: bool = False) -> int:
        """One pass, after one that is being made.

        Args:
            compact: compact what is worth it on a full disk, however much of the disk is free.

        Returns:
            How many ledgers were dropped.

        Raises:
            QuireError: the metadata store did not respond, or the disk failed; nothing was dropped on the strength of
                that.
        """
        async with self._passing:
            self.cleaner.pass_begins()
            try:
                return await self._collect(compact=compact)
            finally:
                self.cleaner.pass_ends()
                self._moved("")

    def _moved(self, doing: str) -> None:
        self.progress.moved(self._clock.now_ms(), doing)

    async def _collect(self, *, compact: bool) -> int:
        before = self.report.dropped
        self._moved("counting its pass")
        mine = await self._count()
        try:
            await self._compare(mine)
        except QuireError:
            if mine is not None:
                await self._keep()  # the counter is this bookie's own, whatever came after
            raise
        if mine is not None:
            self._moved("looking for over-replicated entries")
            await self.over_replicated.collect()
        await self.cleaner.clean(on_request=compact)
        self.report.passes += 1
        self.report.last_pass_ms = self._clock.wall_ms()
        self.report.failure = ""
        return self.report.dropped - before

    async def _compare(self, mine: int | None) -> None:
        """What a pass does after the counter.

        Args:
            mine: the version of the counter; None while nothing may be dropped.
        """
        machine, store = self._machine, self._store
        begun_ms = self._clock.now_ms()
        highest = await self._look()
        await turn_for_others(machine.missing)
        self._moved("looking for tombstones")
        stones = await store.tombstones(set(machine.missing))
        doomed, unknown = await self._judge(stones.marks)
        await turn_for_others(machine.missing)
        if mine is None:
            self.report.due = sorted(one.ledger_id for one in doomed)
        else:
            self.report.due = ()
            await self._drop(doomed, mine)
        await turn_for_others(unknown)
        machine.finish(unknown)
        await turn_for_others(unknown)
        self._warn(len(unknown))
        leap = id_to_leap_over(unknown, highest, RAISED_MAX)
        if leap is not None and leap > self._leapt:
            await self._leap(leap)
        if mine is not None:
            await self._keep()
            late_ms = min(LATE_ADD_MS, int(self._config.tombstone_seconds * 1000))
            watermark = machine.watermark(begun_ms, store.revision, late_ms)
            await store.tell_watermark(mine, watermark, stones.revisions)
            await store.end_tombstones(stones.revisions)

    async def _count(self) -> int | None:
        """Raise the counter. Its version; None while nothing may be dropped."""
        name = StoreName(*self._store.name)
        seen_twice = False
        for _ in range(ATTEMPTS_MAX):
            before = self._storage.journal.last_lsn
            shown, version = await self._store.passes()
            step = self._machine.begin(shown, name, self._chance.getrandbits(64) or 1, before)
            if isinstance(step, StopCollection) and not seen_twice:
                seen_twice = True  # a server of the store that is behind may have answered
                continue
            if isinstance(step, Count) and not await self._may_count(step):
                return version if self._machine.is_own(shown) else None
            counted = version if step.value is None else await self._store.cas_passes(step.value, version)
            if counted is None:
                self._machine.not_counted()
                continue
            if isinstance(step, StopCollection):
                return None
            self._machine.counted()
            return counted
        raise StoreBusyError(
            f"another process changed the pass counter of bookie {self._bookie_id} {ATTEMPTS_MAX} "
            "times; is another bookie running on a copy of this directory?",
            bookie=self._bookie_id,
        )

    async def _may_count(self, step: Count) -> bool:
        """Have the disk know of the write of the counter before it is asked for."""
        try:
            await self._write_file()
        except StorageError as error:
            self._machine.not_counted()
            log.warning(
                "%s; proven deletions continue, and pass %d gathers no new evidence", error, step.value.passes
            )
            return False
        return True

    async def _look(self) -> int:
        """Compare all ledgers here with the records. The highest id that has one, -1 if none has."""
        held = list(self._storage.states.ledgers)
        held.sort()
        at, after, highest = 0, None, -1
        while True:
            self._moved("comparing ledgers with their records")
            records, whole = await self._store.records.page(after)
            page = [one.ledger_id for one in records]
            found = set(page)
            end = len(held) if whole else bisect_right(held, page[-1])
            while at < end:
                self._machine.look(held[at : min(at + SLICE, end)], found)
                at = min(at + SLICE, end)
                await asyncio.sleep(0)
            if page:
                highest, after = page[-1], page[-1]
            if whole:
                return highest

    async def _judge(self, marks: dict[int, tuple[TombstoneMark, int]]) -> tuple[list[Doomed], list[int]]:
        """What is to go, and what there is no proof for."""
        doomed: list[Doomed] = []
        unknown: list[int] = []
        for number, ledger_id in enumerate(self._machine.missing, 1):
            if not number % SLICE:
                await asyncio.sleep(0)
            mark, version = marks.get(ledger_id, (None, 0))
            since = partial(self._storage.drops.written_since, ledger_id)
            proof = self._machine.judge(ledger_id, mark, self._storage.token(ledger_id), since)
            if proof is None:
                unknown.append(ledger_id)
            else:
                doomed.append(Doomed(ledger_id, proof, version))
        return doomed, unknown

    async def _drop(self, doomed: Sequence[Doomed], mine: int) -> None:
        """Look once more, and drop; returns when all of that is on the disk."""
        drops = PendingDrops()
        for at in range(0, len(doomed), LOOKED_AT_ONCE):
            batch = doomed[at : at + LOOKED_AT_ONCE]
            self._moved("dropping ledgers")
            before_look = self._storage.journal.last_lsn
            stays = await self._store.look(batch, mine)
            for one, record_there in zip(batch, stays, strict=True):
                through = before_look if one.proof.through is None else one.proof.through
                since = partial(self._storage.drops.written_since, one.ledger_id)
                # The look has failed as a whole where the counter was not this pass's own.
                if self._machine.may_drop(through, since, record_there=record_there, counter_is_own=True):
                    self._drop_one(one.ledger_id, one.proof, drops)
        if drops.begun > DROPS_NAMED_MAX:
            more = drops.begun - DROPS_NAMED_MAX
            log.info("bookie %s dropped %d more ledgers in this pass", self._bookie_id, more)
        await drops.durable()

    def _drop_one(self, ledger_id: int, proof: Proof, drops: PendingDrops) -> None:
        until = self._clock.wall_ms() + int(self._config.tombstone_seconds * 1000)
        drops.begun += 1
        self._ledgers.delete(ledger_id, until, drops.one_durable)
        self._machine.dropped(ledger_id)
        self.report.dropped += 1
        if drops.begun <= DROPS_NAMED_MAX:
            log.info("bookie %s dropped ledger %d, proof: %s", self._bookie_id, ledger_id, proof.by.value)

    async def _keep(self) -> None:
        """Counter and evidence go to the disk. Without that a restart begins a new chain, which is safe."""
        try:
            await self._write_file()
        except StorageError as error:
            log.warning(
                "%s; after a restart the collector would gather its evidence for all ledgers again", error
            )

    async def _write_file(self) -> None:
        """Write what the machine keeps.

        Raises:
            StorageError: it is not on the disk; the old file is still there.
        """
        if isinstance(self._storage.failure, DirectoryLostError):
            raise self._storage.failure
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # The machine replaces its parts and never changes them, so a shallow copy stays as it is.
        self._worker.submit(partial(self._file.write, replace(self._machine.kept)), partial(settle, done))
        try:
            await done
        except OSError as error:
            raise StorageError(
                f"{self._file.path} could not be written: {error.strerror or error}",
                path=str(self._file.path),
            ) from error

    async def _leap(self, above: int) -> None:
        await self._store.raise_ledger_ids(LedgerId(above))
        self._leapt = above
        log.warning(
            "bookie %s holds ledger %d, which the metadata store does not know; new ledgers get higher ids",
            self._bookie_id,
            above,
        )

    # --- for people ----------------------------------------------------------------------------------------------

    def _warn(self, unknown: int) -> None:
        """Log once that there are more; `BookieAlerts` reports that collection is stopped."""
        if unknown > self._warned:
            log.warning(
                "bookie %s keeps %d ledgers that have no record in the metadata store and no proof "
                "of deletion; `quire cluster orphans` lists them",
                self._bookie_id,
                unknown,
            )
        self._warned = unknown

    def info(self) -> dict[str, Any]:
        """What INFO says of it."""
        report, kept = self.report, self._machine.kept
        last = (
            datetime.fromtimestamp(report.last_pass_ms / 1000, UTC).isoformat()
            if report.last_pass_ms
            else None
        )
        return {
            "every_seconds": self._config.garbage_seconds,
            "passes": report.passes,
            "counter": kept.passes,
            "last_pass": last,
            "holding": self._machine.stopped or None,
            "dropped": report.dropped,
            "due": len(report.due),
            "unknown": len(self._machine.unknown),
            "extras_waiting": len(self.over_replicated.waiting),
            "extras_dropped": self.over_replicated.report.dropped,
            "retired": self.cleaner.retired,
            "compacted": self.cleaner.compacted,
            "doing": self.progress.doing or None,
            "stuck_ms": self.progress.stuck_ms(self._clock.now_ms()),
            "failures": report.failures,
            "failure": report.failure or None,
        }

    def without_record(self) -> tuple[Sequence[int], Sequence[int]]:
        """The ledgers here that have no record: those without a proof of deletion, and those that are kept while collection is stopped."""
        return self._machine.unknown, self.report.due

    def orphans(self, after: int) -> dict[str, Any]:
        """What INFO says of what is kept without a record: a page of the ids above `after`, ascending.

        `unknown` have no proof of their deletion; `due` would be deleted if collection were not stopped; the page
        covers all ids up to `through`.
        """
        pages = [
            ids[bisect_right(ids, after) :][:ORPHANS_LISTED_MAX]
            for ids in (self._machine.unknown, self.report.due)
        ]
        through = min((ids[-1] for ids in pages if len(ids) == ORPHANS_LISTED_MAX), default=ID_MAX)
        unknown, due = (ids[: bisect_right(ids, through)] for ids in pages)
        return {"unknown": unknown, "due": due, "through": through}
