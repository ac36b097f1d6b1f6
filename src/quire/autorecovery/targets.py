"""Which bookies may receive copies, how much, and how fast: free space above a floor, and one rate for all.

Source: docs/protocol/repair.md, "Targets", "Giving way"; docs/operations.md.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from typing import Any, Final

from crc32c import crc32c

from quire.client.client import Client
from quire.client.repairing.copy_rate import CopyRate
from quire.core.answers import Answer
from quire.core.errors import QuireError
from quire.core.ids import BookieId
from quire.core.repair.audit_effects import CountedState
from quire.core.repair.effects import NONE_READ_ONLY, ReadOnlyBookies
from quire.env.yielding import CopyPace

FLOOR_PART: Final = 20
"""One part in this many of a disk stays free of copies."""
FLOOR_SEGMENTS: Final = 2
"""This many segments stay free, if that is more."""
SEGMENT_BYTES: Final = 64 << 20
"""A segment's size where a bookie does not report it."""
LOOK_AGAIN_MS: Final = 5_000
"""How long a bookie's report about its disk is used."""
_ASKED_MS: Final = 3_000
_LOG: Final = logging.getLogger(__name__)


class RepairTargets:
    """The bookies of a cluster as receivers of copies.

    Args:
        client: the cluster.
        bytes_per_s: how fast they are sent copies; None: as fast as they accept them. Where that makes adds of others slow
            it is less.
    """

    def __init__(self, client: Client, bytes_per_s: int | None) -> None:
        self._client, self._rate = client, CopyRate(client.clock, bytes_per_s)
        self._pace = CopyPace(bytes_per_s)
        self._marks = client.records.repairs("")
        self._due: frozenset[BookieId] = frozenset()
        self._room_bytes: dict[BookieId, float] = {}
        self._looked_ms = -LOOK_AGAIN_MS
        self._sent_bytes = 0
        self._looking: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Nothing is asked any more."""
        if (looking := self._looking) is not None:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)

    @property
    def units(self) -> int:
        """How much is repaired at the same time, as `CopyPace` says."""
        return self._pace.units

    async def candidates(self, ledger_id: int) -> list[BookieId]:
        """The bookies that take new entries and have room, in an order that follows from the ledger's id.

        A repair that was interrupted is followed by one that chooses the same bookies, which list what they have already.
        """
        await self._look()
        having = [
            bookie
            for bookie in self._client.bookies.writable()
            if bookie in self._room_bytes and self._room_bytes[bookie] > 0
        ]
        return sorted(having, key=lambda bookie: (crc32c(f"{ledger_id} {bookie}".encode()), bookie))

    async def read_only(self) -> ReadOnlyBookies:
        """The bookies that take no copies: for how long, as the auditor has counted, and how long that is waited for.

        Raises:
            QuireError: the metadata store does not respond.
        """
        bookies = self._client.bookies.read_only()
        if not bookies:
            return NONE_READ_ONLY
        counted = await self._marks.times(CountedState.READ_ONLY)
        seconds = {}
        for bookie in bookies:
            mark = counted[bookie].mark if bookie in counted else None
            seconds[bookie] = 0 if mark is None else mark.seconds
        return ReadOnlyBookies(seconds, await self._marks.lost_delay_in_use_s())

    async def more_are_due(self) -> bool:
        """Whether another bookie than at the last call has been read-only for as long as that is waited for."""
        seconds, delay_s = await self.read_only()
        due = frozenset(bookie for bookie, counted_s in seconds.items() if counted_s >= delay_s)
        before, self._due = self._due, due
        return not due <= before

    async def may_send(self, bookie: BookieId, size: int) -> bool:
        """Wait for the rate; False: the bookie's disk is down to the floor."""
        await self._rate.wait(size)
        await self._look()
        if bookie not in self._room_bytes:
            return True  # it was not there at the last look: its own response counts
        if self._room_bytes[bookie] < size:
            return False
        self._room_bytes[bookie] -= size
        return True

    async def _look(self) -> None:
        """Ask every bookie for its disk, now and then.

        The responses are waited for only where one has not been asked before: a bookie that is slow to respond does not hold
        up copies to the others.
        """
        if self._client.clock.now_ms() - self._looked_ms >= LOOK_AGAIN_MS:
            self._asked()
        for _ in range(2):  # requests under way may have begun before a bookie came that is missing here
            if all(bookie in self._room_bytes for bookie in self._client.bookies.writable()):
                return
            await asyncio.shield(self._asked())

    def _asked(self) -> asyncio.Task[None]:
        """Bookies are being asked."""
        if self._looking is None:
            self._looking = asyncio.create_task(self._ask(), name="ask bookies for their disks")
        return self._looking

    async def _ask(self) -> None:
        try:
            bookies = sorted(await self._client.bookies.bookies())
            infos = await asyncio.gather(
                *(self._client.bookies.info(bookie, timeout_ms=_ASKED_MS) for bookie in bookies)
            )
        except QuireError as error:
            _LOG.warning("the bookies cannot be read from the metadata store: %s", error)
            return
        finally:
            self._looking = None
        self._room_bytes = {
            bookie: room_above_floor(info) if answer is Answer.OK else 0
            for bookie, (answer, info) in zip(bookies, infos, strict=True)
        }
        self._keep_pace({bookie: info for bookie, (_, info) in zip(bookies, infos, strict=True)})

    def _keep_pace(self, infos: Mapping[BookieId, Mapping[str, Any]]) -> None:
        """Copy slower or faster, by what bookies report about others' adds."""
        add_us = {
            bookie: us for bookie, info in infos.items() if isinstance(us := info.get("add_p99_us"), int)
        }
        now_ms, sent_bytes = self._client.clock.now_ms(), self._rate.sent_bytes
        before = self._pace.bytes_per_s, self._pace.units
        elapsed_ms = max(1, now_ms - self._looked_ms)
        # After a long pause bookies report a time in which nothing was copied.
        copied = sent_bytes - self._sent_bytes if elapsed_ms < 2 * LOOK_AGAIN_MS else 0
        self._pace.looked(add_us, copied, elapsed_ms)
        self._rate.bytes_per_s = self._pace.bytes_per_s
        self._looked_ms, self._sent_bytes = now_ms, sent_bytes
        if before != (self._pace.bytes_per_s, self._pace.units):
            _LOG.info(
                "copies are sent at %s bytes/s at most from now on, and repairs use %d units of 1 MiB at a time",
                self._pace.bytes_per_s or "any number of",
                self._pace.units,
            )


def room_above_floor(info: dict[str, Any]) -> float:
    """How many bytes of copies a bookie may receive, by what it reports; without limit where it reports nothing."""
    disk, storage = info.get("disk"), info.get("storage")
    if not isinstance(disk, dict):
        return math.inf
    size, free = disk.get("bytes"), disk.get("free_bytes")
    if not isinstance(size, int) or not isinstance(free, int):
        return math.inf
    segment = SEGMENT_BYTES
    if isinstance(storage, dict):
        count, total = storage.get("segments"), storage.get("segment_bytes")
        if isinstance(count, int) and isinstance(total, int) and count > 0:
            segment = total // count
    return free - max(size // FLOOR_PART, FLOOR_SEGMENTS * segment)
