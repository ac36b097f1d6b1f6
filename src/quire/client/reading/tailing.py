"""The tail of a ledger: what a reader does while it waits for the next entry to be confirmed.

`reader.py` is the side that users see, with the scans. Of a stream the tail goes on when another client has taken it
over: the record is watched, and a LAC of a term that the record's ranges do not reach is not used before it is read again.

Source: Vanlightly's guide, "Reading from ledgers"; docs/protocol/streams.md, "The LAC".
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from typing import Final

from quire.client.access import LedgerAccess, origin_to_ask
from quire.client.bookies.bookies import BookieClient
from quire.client.config import ClientConfig
from quire.client.reading.held_polls import HeldPolls, RecordChanges
from quire.client.reading.range_read import open_runs
from quire.core.answers import Answer
from quire.core.errors import MisuseError, QuireError
from quire.core.ids import BookieId, EntryId, LedgerId
from quire.core.ledger.metadata import DigestType, LedgerMetadata
from quire.core.ledger.quorum import write_set
from quire.core.ledger.terms import last_of_range
from quire.env.interfaces import Clock
from quire.metadata.records import RecordStore
from quire.wire.entries import Entries
from quire.wire.entry import Entry
from quire.wire.responses import ReadReply

WINDOW_ENTRIES_MAX: Final = 65_536
"""Ids that one request names at most."""
_PAUSE_MS_MIN: Final = 10
_PAUSE_MS_MAX: Final = 500


class TailingReader(ABC):
    """The part of a `LedgerReader` that follows a ledger; the attributes are set there."""

    _record: LedgerMetadata
    _version: int
    _access: LedgerAccess
    _bookies: BookieClient
    _records: RecordStore
    _clock: Clock
    _config: ClientConfig
    _lac: int
    _length: int
    _turn: int
    _avoid_until: dict[BookieId, int]

    @property
    @abstractmethod
    def ledger_id(self) -> LedgerId:
        """The ledger's id."""

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether the ledger is known to be closed: then its end never moves."""

    @abstractmethod
    async def refresh(self) -> EntryId:
        """Read the record, and unless it is closed ask enough bookies for the newest LAC."""

    @abstractmethod
    async def _reread_record(self) -> None:
        """The record as it is now."""

    @abstractmethod
    async def _quorum_lac(self) -> None:
        """The newest LAC that enough bookies know."""

    @abstractmethod
    def _heard(self, lac: int, lac_term: int) -> bool:
        """Take a LAC that can be relied on; whether it is of use with the record."""

    @abstractmethod
    def _scan(self, first: int, last: int) -> AsyncGenerator[Entries, None]:
        """The entries first..last, which are confirmed."""

    @abstractmethod
    def _trouble(self, bookie: BookieId, answer: Answer) -> None:
        """A bookie could not serve."""

    async def tail(self, first: int = 0) -> AsyncGenerator[Entry, None]:
        """Every entry from `first` on, as it is confirmed; ends when the ledger is closed and all were seen."""
        async with contextlib.aclosing(self.tail_runs(first)) as runs:
            async for entries in runs:
                for entry in entries:
                    yield entry

    async def tail_runs(self, first: int = 0) -> AsyncGenerator[Entries, None]:
        """Like `tail`, many entries at a time, never none.

        Begins with the newest LAC that enough bookies know, as `read` does. Then it waits by long poll; the entries
        come with the response. The record is watched meanwhile, so that a close ends the wait at once. While nothing
        comes, a bookie of ours gets a request in `idle_poll_wait_ms`.

        Source: Vanlightly's guide: "it can send a long-poll LAC read to a bookie which will respond when a new
        committed entry is ready to be read".
        """
        if first < 0:
            msg = f"ledger {self.ledger_id}: entry ids start at 0, got {first}"
            raise MisuseError(msg, ledger_id=self.ledger_id, entry_id=first)
        next_entry = first
        record = RecordChanges()
        following = asyncio.ensure_future(self._follow_record(record))
        try:
            if not self.closed:
                await self.refresh()
            pause_ms, idle = _PAUSE_MS_MIN, True
            while True:
                if next_entry <= self._lac:
                    async with contextlib.aclosing(self._scan(next_entry, self._lac)) as runs:
                        async for entries in runs:
                            next_entry = entries.entry_ids[-1] + 1
                            if users := entries.of_users():
                                yield users
                elif self.closed:
                    return
                else:
                    before = self._clock.now_ms()
                    came = await record.unless_it_changes(self._poll(next_entry, idle=idle))
                    if following.done():
                        following.result()
                    idle = not came and next_entry > self._lac
                    if came:
                        next_entry = came.entry_ids[-1] + 1
                        if users := came.of_users():
                            yield users
                    elif next_entry <= self._lac or record.changed:
                        continue
                    elif self._clock.now_ms() - before < pause_ms:
                        # No bookie holds a long poll (none responds, or not correctly): poll seldom.
                        await record.unless_it_changes(asyncio.sleep(pause_ms / 1000))
                        pause_ms = min(2 * pause_ms, _PAUSE_MS_MAX)
                        continue
                pause_ms = _PAUSE_MS_MIN
        finally:
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError, QuireError):
                await following

    async def _follow_record(self, record: RecordChanges) -> None:
        """Keep the record up to date until it says CLOSED; where the client is closed before, this fails."""
        told = self._version
        try:
            while True:
                async with self._records.watch(self.ledger_id) as changes:
                    async for _ in changes:
                        await self._reread_record()
                        if self._version != told:  # whoever has read it
                            told = self._version
                            record.tell()
                        if self.closed:
                            return
        finally:
            record.tell()

    async def _poll(self, next_entry: int, *, idle: bool) -> Entries:
        """Wait for `next_entry` to be confirmed; what came with the response, which may be nothing.

        While entries come, one bookie is polled, and not for long. When none came, all of the write set are, if they are
        ours: then the newest LAC need not be asked for.
        """
        record = self._record
        origin_term = origin_to_ask(record, next_entry)
        ensemble = record.ensemble_of(next_entry)
        slots = write_set(next_entry, record.ensemble_size, record.write_quorum)
        bookies = [ensemble[slot] for slot in slots]
        ours = all(map(self._bookies.speaks_native, bookies))
        if idle and ours:
            wait_ms = self._config.idle_poll_wait_ms
            polls = HeldPolls(
                lambda bookie: self._ask_poll(bookie, next_entry, next_entry, wait_ms, origin_term), wait_ms
            )
            news = await polls.first_news(bookies, next_entry)
            if news is None:
                await self._quorum_lac()
                return Entries.join(self.ledger_id, ())
            return await self._news(*news, next_entry, origin_term)
        now = self._clock.now_ms()
        usable = [bookie for bookie in bookies if self._avoid_until.get(bookie, 0) <= now] or bookies
        bookie = usable[self._turn % len(usable)]
        # A striped share has gaps: only its first entry is sure to be the next one.
        striped = record.ensemble_size > record.write_quorum
        last = next_entry if striped else next_entry + WINDOW_ENTRIES_MAX
        reply = await self._ask_poll(bookie, next_entry, last, self._config.long_poll_wait_ms, origin_term)
        if reply.answer is not Answer.OK or reply.lac < next_entry:
            self._trouble(bookie, reply.answer)
            if reply.answer is not Answer.OK or not ours:
                await self._quorum_lac()
            if reply.answer is not Answer.OK or self._lac >= next_entry:
                self._turn += 1  # this one cannot say, or others know more
            return Entries.join(self.ledger_id, ())
        return await self._news(bookie, reply, next_entry, origin_term)

    async def _ask_poll(
        self, bookie: BookieId, first: int, last: int, wait_ms: int, origin_term: int
    ) -> ReadReply:
        return await self._bookies.long_poll(
            bookie,
            self._access,
            first - 1,
            first,
            last,
            self._config.read_bytes_max,
            wait_ms,
            origin_term=origin_term,
        )

    async def _news(self, bookie: BookieId, reply: ReadReply, next_entry: int, origin_term: int) -> Entries:
        """A bookie says that `next_entry` is confirmed: the part of its response that can be relied on."""
        lac, lac_term = reply.lac, reply.lac_term
        if self._access.digest.digest_type is DigestType.HMAC:
            # The frame's LAC only wakes; the one to rely on carries a MAC.
            known = await self._bookies.read_lac(
                bookie, self._access, timeout_ms=self._config.read_timeout_ms
            )
            lac, lac_term = self._access.trusted_lac(known), known.lac_term
            if lac < next_entry:
                self._turn += 1
        if not self._heard(lac, lac_term):
            await self._reread_record()
            self._heard(lac, lac_term)
        if self._record.terms is not None and self._lac < next_entry:
            await self._quorum_lac()  # its LAC is of an earlier term: others may have that of the newest one
        record, last = self._record, self._lac
        if record.terms is not None and not record.only_fences:
            # What came is of the term that was asked for; meanwhile the record may name another one.
            if record.origin_of(next_entry) != origin_term:
                return Entries.join(self.ledger_id, ())
            end = last_of_range(next_entry, record.ranges)
            last = last if end is None else min(last, end)
        entries, _, _ = open_runs(
            reply.runs, self._access, next_entry, last, origin_term, ranges=record.ranges
        )
        entries = entries.without_gap(next_entry)
        if entries and not self.closed:
            self._length = max(self._length, entries.lengths[-1])
        return entries
