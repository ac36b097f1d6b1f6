"""The part of a collector's pass that gives bytes of the disk back, and when the next pass comes.

Segments in which nothing lives are freed; sparse ones are compacted, at a pace that depends on how full the disk is. When
that has taken as long as the interval between passes, the next one begins and goes on with it. On a full disk a pass compacts
one segment, into the reserve, and the next one goes on with what that has brought back.

Source: docs/protocol/collection.md, "A pass"; docs/operations.md, "How space comes back".
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from functools import partial
from typing import Final

from quire.bookie.about import free_space
from quire.bookie.collecting.disk_work import rest_after, take_slices
from quire.bookie.config import BookieConfig
from quire.bookie.ledgers.ledgers import Ledgers
from quire.env.interfaces import Clock
from quire.storage.ledger_storage import LedgerStorage
from quire.storage.space_reasons import is_wanted_soon, rest_share

LOOK_SECONDS: Final = 1.0
"""So often it is seen whether a pass is due, and how much of the disk is free."""
FULL_SECONDS: Final = 5.0
"""While its disk is full a bookie looks so often for what it may give back."""
COMPACTING: Final = "compacting segments"


class DiskCleaner:
    """Gives segments back to the file system when nothing in them is needed any more.

    Args:
        config: the bookie's.
        storage: its segments.
        ledgers: forget the ledgers whose tombstones shrink.
        clock: when passes begin and end.
        moved: called with what is being done, at each step.

    Attributes:
        retired, compacted: segments that were freed, and those whose live entries were all copied, by this process.
    """

    def __init__(
        self,
        config: BookieConfig,
        storage: LedgerStorage,
        ledgers: Ledgers,
        clock: Clock,
        moved: Callable[[str], None],
    ) -> None:
        self._directory = config.directory
        self._every = config.garbage_seconds
        self._storage = storage
        self._ledgers = ledgers
        self._clock = clock
        self._moved = moved
        self._begun_ms = self._ended_ms = clock.now_ms()
        self._left = free_space(self._directory)
        self._compaction_ends_ms = math.inf
        self._is_unfinished = False
        self.retired = 0
        self.compacted = 0
        storage.housekeeping.set_pace(self._rest_of_removal, _later)

    # --- when passes come ----------------------------------------------------------------------------------------

    def pass_begins(self) -> None:
        """Count the time of a pass from now on."""
        self._begun_ms = self._clock.now_ms()
        self._is_unfinished = False

    def pass_ends(self) -> None:
        """Note when it ended, and what it left free."""
        self._ended_ms = self._clock.now_ms()
        self._left = free_space(self._directory)

    @property
    def is_due(self) -> bool:
        """Whether it is time for a pass: each so often, and sooner on a disk that is full, or soon will be."""
        every = min(self._every, FULL_SECONDS) if self._storage.journal.full else self._every
        waited = (self._clock.now_ms() - self._ended_ms) / 1000
        took = (self._ended_ms - self._begun_ms) / 1000
        return (
            self._is_unfinished
            or waited >= every
            or is_wanted_soon(free_space(self._directory), self._left, waited, took)
        )

    # --- what they do --------------------------------------------------------------------------------------------

    async def clean(self, *, on_request: bool) -> None:
        """Let tombstones shrink, give back what is dead, and compact what is worth it.

        Args:
            on_request: compact what is worth it on a full disk, however much of the disk is free, and all of it.
        """
        for ledger_ids in self._storage.housekeeping.shrink_tombstones(self._clock.wall_ms()):
            self._ledgers.forget(ledger_ids)
            await asyncio.sleep(0)
        await self._give_back()
        may_take_ms = math.inf if on_request or not self._every else self._every * 1000
        self._compaction_ends_ms = self._clock.now_ms() + may_take_ms
        before = self.compacted
        while await self._compact(on_request=on_request) and not self._storage.journal.full:
            pass  # what came back has room for more
        if self._storage.journal.full and self.compacted > before:
            self._is_unfinished = True  # what has come back is not here yet

    async def _compact(self, *, on_request: bool) -> int:
        """Relocate what has room on the disk, and give back where it lay; of how many segments."""
        disk = free_space(self._directory)
        room = disk.free // 2 if disk.whole else None  # others use the disk meanwhile
        slices = self._storage.housekeeping.compact_slices(
            0.0 if on_request else disk.share, room, self._is_over
        )
        compacted = await take_slices(slices, partial(self._moved, COMPACTING), rest=self._rest)
        if compacted:
            self.compacted += compacted
            await self._give_back()
        return compacted

    def _is_over(self) -> bool:
        """Whether compaction has taken long enough for one pass; what is left is the next one's."""
        self._is_unfinished = self._clock.now_ms() >= self._compaction_ends_ms
        return self._is_unfinished

    def _rest(self) -> float:
        return 0.0 if self._storage.journal.full else rest_share(free_space(self._directory))

    def _rest_of_removal(self, took: float, waiting: int) -> float:
        return rest_after(took, rest_share(free_space(self._directory), waiting))

    async def _give_back(self) -> None:
        giving_back = partial(self._moved, "giving back segments")
        self.retired += await take_slices(self._storage.housekeeping.reclaim_slices(), giving_back)


def _later(seconds: float, call: Callable[[], None]) -> None:
    """Call something after a rest, on this loop; at once where there is none."""
    if seconds:
        asyncio.get_running_loop().call_later(seconds, call)
    else:
        call()
