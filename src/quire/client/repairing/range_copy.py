"""Copies a range of a ledger's entries from bookies that have them to one that is to have them, with low priority.

Source: docs/protocol/repair.md, "What is missing".
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from quire.client.access import LedgerAccess
from quire.client.bookies.bookies import AddRequester, BookieClient
from quire.client.reading.copy_check import BookieCopies, CopyCheck
from quire.client.repairing.replica_lists import READ_BYTES
from quire.core.answers import NEGATIVES, Answer
from quire.core.errors import WrongPasswordError
from quire.core.ids import BookieId
from quire.core.ledger.notes import EntryRange
from quire.core.ledger.replica import Replica
from quire.core.ledger.stripes import BookieStripes, stretches_of
from quire.core.repair.effects import CopyRange
from quire.wire.entries import Copies, Entries, copies
from quire.wire.requests import AddRun
from quire.wire.run import ids_in

NEAR: Final = 64
"""Entries this close together are asked for in one read, with what is between them."""
BUSY_PAUSE_S: Final = 0.25
BUSY_TRIES: Final = 240
"""A bookie that has no room for low-priority requests is asked again, for a minute."""


@dataclass(slots=True)
class CopyOutcome:
    """The result of copying one range of entries.

    Attributes:
        answer: OK, or why the bookie did not take what it was sent.
        count: entries that it acknowledged.
        damaged: by source, entries that it listed and could not give.
    """

    answer: Answer = Answer.OK
    count: int = 0
    damaged: defaultdict[BookieId, list[EntryRange]] = field(default_factory=lambda: defaultdict(list))


class RangeCopier(AddRequester):
    """Copies entries of one ledger.

    Args:
        bookies: the connections.
        access: the ledger's.
        run_bytes_max: of one run that is sent.
        timeout_ms: how long a bookie may take for each request.
        may_send: awaited with (bookie, bytes) before they are sent; False: that bookie is to get no more.
        lists: what sources have listed, for those that have.
        password_is_known: False: no client has compared the password with the ledger's.
    """

    def __init__(
        self,
        bookies: BookieClient,
        access: LedgerAccess,
        *,
        run_bytes_max: int,
        timeout_ms: int,
        may_send: Callable[[BookieId, int], Awaitable[bool]],
        lists: Mapping[BookieId, Replica],
        password_is_known: bool = True,
    ) -> None:
        self._bookies, self._access = bookies, access
        self._run_bytes_max, self._timeout_ms, self._may_send = run_bytes_max, timeout_ms, may_send
        self._lists, self._password_is_known = lists, password_is_known
        self._answered: dict[object, asyncio.Future[Answer]] = {}
        self._check = CopyCheck(bookies, access, READ_BYTES, timeout_ms, low_priority=True)
        self._stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.bytes = 0

    def stop(self) -> None:
        """End the copies that are under way: what was sent is stored, and nothing more is read or sent for them."""
        self._stopping.set_result(None)
        self._stopping = asyncio.get_running_loop().create_future()

    async def copy(self, piece: CopyRange) -> CopyOutcome:
        """Copy what the sources give of a piece; one source after another is asked for what the others lack.

        Raises:
            WrongPasswordError: no entry fits the password, which the record does not have.
        """
        outcome, stopping = CopyOutcome(), self._stopping
        wants: Callable[[int], bool] = piece.entries.holds
        stretches = [(piece.entries.first, piece.entries.last)]
        sources = [source for source in self._rotated_sources(piece) if source not in self._check.silent]
        writing: asyncio.Task[None] | None = None
        try:
            for source in sources:
                left: list[int] = []
                for first, last in stretches:
                    at = first
                    while at <= last and outcome.answer is Answer.OK and not stopping.done():
                        found = await self._read(source, at, last, piece)
                        if found is None:
                            left += filter(wants, range(at, last + 1))
                            break
                        entries = found.entries
                        lacking = _lacking(entries, wants, at, found.through)
                        left += lacking
                        outcome.damaged[source] += self._listed(source, found, piece, lacking)
                        at = found.through + 1
                        if writing is not None:
                            await writing
                        writing = asyncio.create_task(self._write(piece, entries, wants, outcome, stopping))
                if not left or outcome.answer is not Answer.OK or stopping.done():
                    break
                wants, stretches = set(left).__contains__, stretches_of(left, NEAR)
            if writing is not None:
                await writing
        finally:
            if writing is not None:
                writing.cancel()
        return outcome

    def close(self) -> None:
        """Nothing more is wanted."""
        self._bookies.forget(self)

    def _rotated_sources(self, piece: CopyRange) -> Sequence[BookieId]:
        """The sources, beginning with another one for each piece and each ledger, so that all of them read."""
        turn = (self._access.ledger_id + piece.entries.first // 1024) % max(1, len(piece.sources))
        return [*piece.sources[turn:], *piece.sources[:turn]]

    async def _read(self, source: BookieId, first: int, last: int, piece: CopyRange) -> BookieCopies | None:
        """What a source has; None if it gives nothing, which says nothing of its copies.

        Raises:
            WrongPasswordError: as `copy`.
        """
        entries = piece.entries
        part = BookieStripes(source, first, last, entries.period, entries.stripes, piece.origin_term)
        for _ in range(BUSY_TRIES):
            found = await self._check.read(part)
            if found.answer is not Answer.TOO_BUSY:
                break
            await asyncio.sleep(BUSY_PAUSE_S)
        if found.bad and not found.entries and not self._password_is_known:
            msg = (
                f"ledger {self._access.ledger_id}: no entry from {first} on fits the password, and the ledger's record "
                "has none to compare it with: give the ledger's password"
            )
            raise WrongPasswordError(msg, ledger_id=self._access.ledger_id, bookie=source)
        return found if found.answer is Answer.OK or found.answer in NEGATIVES else None

    def _listed(
        self, source: BookieId, found: BookieCopies, piece: CopyRange, lacking: Iterable[int]
    ) -> list[EntryRange]:
        """Those of the entries that a source did not give which it has listed: they are damaged, or no longer there.

        What a bookie only cannot read now says nothing of that copy.
        """
        replica = self._lists.get(source)
        if replica is None:
            return []
        return [
            EntryRange(*stretch)
            for stretch in stretches_of(
                entry_id
                for entry_id in lacking
                if found.why_not(entry_id) is not Answer.UNKNOWN
                and not replica.lacks(entry_id % piece.entries.period, entry_id, entry_id)
            )
        ]

    async def _write(
        self,
        piece: CopyRange,
        entries: Entries,
        wants: Callable[[int], bool],
        outcome: CopyOutcome,
        stopping: asyncio.Future[None],
    ) -> None:
        part = piece.entries
        waiting: list[tuple[int, Copies, asyncio.Future[Answer]]] = []
        for run in copies(
            (entry for entry in entries if wants(entry.entry_id)),
            self._access.digest,
            self._run_bytes_max,
            period=part.period,
            stripes=part.stripes,
            origin_term=piece.origin_term,
        ):
            if not await self._allowed(piece.bookie, len(run.body), stopping):
                if not stopping.done():
                    outcome.answer = Answer.READ_ONLY
                break
            count = len(ids_in(run.first, run.last, part.period, part.stripes))
            waiting.append((count, run, self._add(piece, run)))
        for count, run, answered in waiting:
            answer = await self._unless_busy(piece, run, answered)
            if answer is Answer.OK:
                outcome.count += count
            elif outcome.answer is Answer.OK:
                outcome.answer = answer

    async def _allowed(self, bookie: BookieId, size: int, stopping: asyncio.Future[None]) -> bool:
        """Whether so much may be sent; waits for that, unless the copies are stopped."""
        allowed = asyncio.ensure_future(self._may_send(bookie, size))
        try:
            either: set[asyncio.Future[Any]] = {allowed, stopping}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            return allowed.done() and not stopping.done() and allowed.result()
        finally:
            allowed.cancel()

    async def _unless_busy(self, piece: CopyRange, run: Copies, answered: asyncio.Future[Answer]) -> Answer:
        """The bookie's response to a run, which is sent again as long as its low-priority queue is full."""
        answer = await answered
        for _ in range(BUSY_TRIES):
            if answer is not Answer.TOO_BUSY:
                break
            await asyncio.sleep(BUSY_PAUSE_S)
            answer = await self._add(piece, run)
        return answer

    def _add(self, piece: CopyRange, run: Copies) -> asyncio.Future[Answer]:
        tag = object()
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._answered[tag] = answered
        self.bytes += len(run.body)
        request = AddRun(
            self._access, run.body, run.body_crc, -1, recovery=True, low_priority=True, term=piece.term
        )
        self._bookies.add_run(piece.bookie, request, self, tag, self._timeout_ms)
        return answered

    def add_answered(self, tag: object, answer: Answer) -> None:
        """The bookie's response to a run that was copied to it."""
        answered = self._answered.pop(tag)
        if not answered.done():
            answered.set_result(answer)


def _lacking(entries: Entries, wants: Callable[[int], bool], first: int, last: int) -> list[int]:
    """The wanted ids of first..last that are not among some entries."""
    if len(entries) == last - first + 1:
        return []
    there = set(entries.entry_ids)
    return [entry_id for entry_id in range(first, last + 1) if entry_id not in there and wants(entry_id)]
