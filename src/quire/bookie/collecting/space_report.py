"""What holds a bookie's space, for people, and a pass that gives some back at once.

`storage/space_reasons.py` says which reasons there are; the disk measures itself, and here is added what only the collector knows:
which of the entries that live are to go.

Source: docs/operations.md, "What holds space"; `docs/formats/native-protocol.md`, INFO.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from quire.bookie.about import free_space
from quire.bookie.collecting.disk_work import take_slices
from quire.core.errors import QuireError
from quire.core.ids import ID_MAX
from quire.storage.space_reasons import SCARCE_SHARE, FreeSpace, Reason, SpaceContext, explain
from quire.wire.native_info import SpaceTask

if TYPE_CHECKING:
    from quire.bookie.collecting.collector import GarbageCollector
    from quire.bookie.config import BookieConfig
    from quire.env.interfaces import Clock
    from quire.storage.ledger_storage import LedgerStorage
    from quire.storage.reclaiming.measuring import LedgerRange

log = logging.getLogger(__name__)

SaySpace: TypeAlias = Callable[[dict[str, Any]], None]
ASKED_MAX: Final = 64
"""So many requests wait for one task; it is done once for all of them."""
_NEVER: Final = 1 << 64
"""Above each LSN: whatever is there counts."""


class SpaceReport:
    """What holds the space of one bookie's disk.

    Args:
        config: its intervals and its directory.
        storage: its disk.
        collector: knows what is to go, and makes passes.
        clock: for the times that are left.

    Attributes:
        last: what was measured last, and when; None before.
    """

    def __init__(
        self, config: BookieConfig, storage: LedgerStorage, collector: GarbageCollector, clock: Clock
    ) -> None:
        self._config = config
        self._storage = storage
        self._collector = collector
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()
        self._asked: dict[SpaceTask, list[SaySpace]] = {}
        self._one_by_one = asyncio.Lock()
        self.last: dict[str, Any] | None = None

    def ask(self, task: SpaceTask, callback: SaySpace) -> None:
        """Do a task, and hand over what there is to report of it; an error is reported as `failure`.

        Requests for a task that waits for its turn share it; where very many do, the next ones fail at once.
        """
        asked = self._asked.setdefault(task, [])
        if len(asked) >= ASKED_MAX:
            failure = f"{ASKED_MAX} requests wait for this already; try again when they are answered"
            callback({"space": self.last, "came_back": {}, "failure": failure})
            return
        asked.append(callback)
        if len(asked) == 1:
            work = asyncio.get_running_loop().create_task(self._serve(task))
            self._tasks.add(work)
            work.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """The bookie stops: what was asked is not answered."""
        for work in self._tasks:
            work.cancel()

    async def _serve(self, task: SpaceTask) -> None:
        async with self._one_by_one:
            asked = self._asked.pop(task)
            try:
                info = await self._work(task)
            except Exception as error:
                log.exception("measuring the space of %s failed", self._config.directory)
                info = {"space": self.last, "came_back": {}, "failure": str(error) or repr(error)}
        for callback in asked:
            callback(info)

    async def _work(self, task: SpaceTask) -> dict[str, Any]:
        report, cleaner = self._collector.report, self._collector.cleaner
        before = report.dropped, cleaner.retired, cleaner.compacted
        failure = ""
        try:
            if task is not SpaceTask.MEASURE:
                await self._collector.collect(compact=task is SpaceTask.COMPACT)
            await self.measure()
        except QuireError as error:
            failure = error.message
        if self._storage.failure is not None:
            failure = self._storage.failure.message
        after = report.dropped, cleaner.retired, cleaner.compacted
        dropped, retired, compacted = (now - last for now, last in zip(after, before, strict=True))
        came_back = {"dropped": dropped, "retired": retired, "compacted": compacted}
        if task is SpaceTask.MEASURE:
            came_back = {}
        return {"space": self.last, "came_back": came_back, "failure": failure or None}

    async def measure(self) -> None:
        """Measure anew, with turns of the loop in between."""
        found = await take_slices(self._storage.housekeeping.space_slices(self._among_live()))
        held = explain(found, self._context(free_space(self._config.directory)))
        at = datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC).isoformat(timespec="seconds")
        self.last = {
            "at": at,
            "bytes": sum(found.values()),
            "reasons": [
                {
                    "reason": str(one.reason),
                    "bytes": one.size,
                    "what": one.what,
                    "returns": one.returns,
                    "sooner": one.sooner or None,
                }
                for one in held
            ],
        }

    def _among_live(self) -> dict[Reason, Iterable[LedgerRange]]:
        """What the collector knows of entries that live, each ledger in one reason."""
        unknown, due = self._collector.without_record()
        over_replicated = self._collector.over_replicated
        grace: list[LedgerRange] = []
        kept: list[LedgerRange] = []
        for ledger_id, looked in over_replicated.waiting.items():
            ranges = kept if ledger_id in over_replicated.kept else grace
            ranges += [(ledger_id, one.first, one.last, looked.look.through) for one in looked.look.ranges]
        return {
            Reason.ORPHANS: _whole(unknown),
            Reason.STOPPED: _whole(due),
            Reason.OVER_REPLICATED: kept,
            Reason.GRACE: grace,
        }

    def _context(self, disk: FreeSpace) -> SpaceContext:
        waiting = self._collector.over_replicated.waiting.values()
        grace_ms = int(self._config.tombstone_seconds * 1000)
        first_ms = min((one.at_ms for one in waiting), default=self._clock.now_ms()) + grace_ms
        stone_ms = self._storage.housekeeping.first_tombstone_ms
        return SpaceContext(
            disk.free * 100 // disk.whole if disk.whole else 100,
            int(SCARCE_SHARE * 100),
            int(self._config.garbage_seconds),
            max(0, first_ms - self._clock.now_ms()) // 1000,
            max(0, stone_ms - self._clock.wall_ms()) // 1000,
            self._collector.stopped,
            int(100 * self._storage.housekeeping.sparse_share(disk.share)),
            self._storage.journal.full,
        )


def _whole(ledger_ids: Iterable[int]) -> Iterable[LedgerRange]:
    return ((ledger_id, 0, ID_MAX, _NEVER) for ledger_id in ledger_ids)
