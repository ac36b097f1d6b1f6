"""A ledger as a reader has it: scans with read-ahead, and a tail that waits for what comes.

A scan cuts the wanted entries into ranges of about `read_bytes_max`, each within one fragment, and keeps several
under way; work is per response, and per entry only its digest is checked. A reader never goes beyond what is known to
be confirmed, and changes nothing: no fence, no metadata. Of a stream the tail goes on when another client has taken it
over: the record is watched, and a LAC of a term that the record's ranges do not reach is not used before it is read again.

Source: BookKeeper protocol, "Guarantees"; Vanlightly's guide, "Reading from ledgers"; docs/protocol/streams.md, "The LAC".
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from types import TracebackType
from typing import Final, Self

from quire.client.access import LedgerAccess, origin_to_ask
from quire.client.context import ClientContext
from quire.client.reading.held_polls import HeldPolls, RecordChanges
from quire.client.reading.lac_read import quorum_lac
from quire.client.reading.range_read import RangeRead, ReadSettings, open_runs
from quire.client.reused import reused_id
from quire.core.answers import Answer
from quire.core.errors import (
    MisuseError,
    NoSuchEntryError,
    PastEndError,
    QuireError,
    ReadUnavailableError,
)
from quire.core.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from quire.core.ledger.effects import LacUnavailable, ReadFailed
from quire.core.ledger.losses import proves_loss
from quire.core.ledger.metadata import DigestType, LedgerMetadata, LedgerState
from quire.core.ledger.quorum import write_set
from quire.core.ledger.reader import ReadMachine
from quire.core.ledger.rules import RULES
from quire.core.ledger.terms import confirmed_in, last_of_range, reach_of
from quire.core.settings import doubled
from quire.env.home import not_pickled
from quire.wire.entries import Entries
from quire.wire.entry import Entry
from quire.wire.responses import ReadReply

WINDOW_ENTRIES_MAX: Final = 65_536
"""Ids that one request names at most."""
_PAUSE_MS_MIN: Final = 10
_PAUSE_MS_MAX: Final = 500
_FIRST_WINDOW_ENTRIES = 64
_FILL = 0.9
"""Ranges are cut a little below `read_bytes_max`, so that entries of uneven size seldom need a second request."""
_SLOW_FACTOR = 4
_RETRY_PAUSE_MS = 100
_ENTRY_COST = 40
"""Header, digest and table bytes of an entry, about."""


class LedgerReader:
    """Reads one ledger. Made by `Client.open_ledger`; of a stream by `UnboundedLedger.open_reader`.

    An async context manager; leaving it ends what is under way. Several reads at one time are fine. Ranges take the
    bookies of an ensemble in turn; `turn` is where this reader begins, so that several spread their load. `lac` is an
    entry that the maker of the reader knows to be confirmed. `recovering` recovers and closes the ledger.
    """

    __reduce__ = not_pickled

    def __init__(
        self,
        record: LedgerMetadata,
        version: int,
        access: LedgerAccess,
        context: ClientContext,
        *,
        turn: int = 0,
        lac: int = NO_ENTRY,
        recovering: Callable[[LedgerReader], Awaitable[tuple[LedgerMetadata, int]]] | None = None,
    ) -> None:
        self._record, self._version = record, version
        self._access = access
        self._bookies, self._records = context.bookies, context.records.of(record)
        self._clock, self._config = context.clock, context.config
        config = self._config
        self._settings = ReadSettings(
            config.read_bytes_max, config.read_timeout_ms, config.speculative_read_ms
        )
        self._lac = int(lac)
        self._length = 0
        self._silent: tuple[BookieId, ...] = ()
        self._entry_bytes = 0.0
        self._avoid_until: dict[BookieId, int] = {}
        self._turn = turn
        self._usual_ms = 0.0
        self._recovering = recovering
        self._take_record(record, version)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<LedgerReader {self.ledger_id}, {state}, last {self.last_add_confirmed:,}>"

    # --- what is known -------------------------------------------------------------------------------------------

    @property
    def ledger_id(self) -> LedgerId:
        """The ledger's id."""
        return self._record.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The record as this reader last read it."""
        return self._record

    @property
    def closed(self) -> bool:
        """Whether the ledger is known to be closed: then its end never moves."""
        return self._record.state is LedgerState.CLOSED

    @property
    def last_add_confirmed(self) -> EntryId:
        """The highest entry known to be confirmed; the last entry of a closed ledger. -1: none."""
        return EntryId(self._lac)

    @property
    def silent(self) -> tuple[BookieId, ...]:
        """Bookies whose missing responses may hide a higher LAC; none when the ledger is closed."""
        return () if self.closed else self._silent

    @property
    def length(self) -> int:
        """Payload bytes: of the whole ledger when closed, else up to the last entry that was read."""
        return self._length

    async def refresh(self) -> EntryId:
        """Read the record, and unless it is closed ask enough bookies for the newest LAC.

        Returns:
            `last_add_confirmed`; an older one when too few bookies respond, which is still safe to read up to.

        Source: Vanlightly's guide, "Reading from ledgers": "Quorum LAC read".
        """
        await self._reread_record()
        if not self.closed:
            await self._quorum_lac()
        return self.last_add_confirmed

    def _take_record(self, record: LedgerMetadata, version: int) -> None:
        """A response of the store; one that was overtaken by a newer one changes nothing."""
        if version < self._version:
            return
        before, self._record, self._version = self._record, record, version
        if record.state is LedgerState.CLOSED:
            self._lac = record.last_entry
            self._length = record.length
        elif record.terms is not None:
            if reach_of(record.ranges) > reach_of(before.ranges):
                self._lac = NO_ENTRY  # it is of an earlier term, of whose entries only those are left that are decided
            self._lac = max(self._lac, record.terms.decided_through)

    async def _reread_record(self) -> None:
        if not self.closed:
            self._take_record(*await self._records.read(self.ledger_id))

    async def _quorum_lac(self) -> None:
        timeout_ms = self._settings.timeout_ms
        record = self._record
        found = await quorum_lac(record, self._access, self._bookies, timeout_ms=timeout_ms)
        if found.record_is_stale:  # the stream was taken over since the record was read
            await self._reread_record()
            record = self._record
            found = await quorum_lac(record, self._access, self._bookies, timeout_ms=timeout_ms)
        self._silent = found.silent if isinstance(found, LacUnavailable) else ()
        lac = found.highest if isinstance(found, LacUnavailable) else found.last_add_confirmed
        if record.terms is not None:  # of its last term at most, and it may have been read again meanwhile
            lac = EntryId(confirmed_in(reach_of(record.ranges), lac, self._record.ranges))
        self._raise_lac(lac)
        if self._bookies.are_in_trouble(self._record.last_fragment.ensemble):
            # That no bookie responded does not show that there is nothing.
            raise ReadUnavailableError(
                f"ledger {self.ledger_id}: none of its bookies accepts this client{self._bookies.troubles()}",
                ledger_id=self.ledger_id,
            )

    def _raise_lac(self, lac: int) -> None:
        """A LAC that can be relied on. A closed ledger's end is the record's, whatever bookies report."""
        if not self.closed and lac > self._lac:
            self._lac = lac

    def _take_lac(self, lac: int, lac_term: int) -> bool:
        """The same, with the term of the writer that sent it; False: the record is too old to use it."""
        if self._record.terms is not None:
            if not RULES.may_use_lac(lac_term, self._record):
                return False
            lac = confirmed_in(lac_term, lac, self._record.ranges)
        self._raise_lac(lac)
        return True

    def _on_response(self, reply: ReadReply, took_ms: int) -> None:
        # A response counts as slow by what is usual here and now, so that load does not double itself.
        self._usual_ms += (took_ms - self._usual_ms) / 8
        if self._access.digest.digest_type is not DigestType.HMAC:
            self._take_lac(reply.lac, reply.lac_term)

    # --- scans ---------------------------------------------------------------------------------------------------

    async def read(
        self, first: int = 0, last: int | None = None, *, recover: bool = False, no_ops: bool = False
    ) -> AsyncGenerator[Entry, None]:
        """The entries first..last, in order.

        Of a ledger that is still open these are the entries that are known to be confirmed: what a running writer has
        acknowledged is seen within about `ClientConfig.lac_after_ms`, twice that at most. A writer that was abandoned
        or killed may have acknowledged its last entries without sending its LAC; they are stored, and
        `read(recover=True)` finds them.

        Args:
            first: first entry id.
            last: last entry id; by default the last one confirmed.
            recover: unless the ledger is closed, first fence its writer, which ends it if it still runs, and close the
                ledger after everything that was acknowledged.
            no_ops: of a stream whose terms only fence, also yield the ids at which a take-over ended: a `NoOp` each.

        Yields:
            Each entry; its payload is bytes.

        Raises:
            RecoveryInconclusiveError: with `recover`, too few bookies responded to determine where the ledger ends.
            PastEndError: `last` is not confirmed (yet), or lies behind a closed ledger's end.
            NoSuchEntryError: every bookie of an entry's write set says that it does not hold it.
            ReadUnavailableError: an entry may exist, but no bookie of its write set can serve it now; or `last` may be
                confirmed, and too few bookies respond to say so.
        """
        async with contextlib.aclosing(self.read_runs(first, last, recover=recover, no_ops=no_ops)) as runs:
            async for entries in runs:
                for entry in entries:
                    yield entry

    async def read_runs(
        self, first: int = 0, last: int | None = None, *, recover: bool = False, no_ops: bool = False
    ) -> AsyncGenerator[Entries, None]:
        """Like `read`, many entries at a time: consecutive, as they came, never none.

        Yields:
            Entries by columns: who wants only `payloads` spares the rest.
        """
        if first < 0:
            msg = f"ledger {self.ledger_id}: entry ids start at 0, got {first}"
            raise MisuseError(msg, ledger_id=self.ledger_id, entry_id=first)
        if recover and not self.closed:
            if self._recovering is None:
                msg = f"ledger {self.ledger_id}: this reader cannot recover it; call `Client.recover_ledger`"
                raise MisuseError(msg, ledger_id=self.ledger_id)
            self._take_record(*await self._recovering(self))
        if last is None:
            if not self.closed:
                await self.refresh()
            last = self._lac
        elif last > self._lac:
            await self.refresh()
        if last > self._lac:
            where = f"ledger {self.ledger_id}: entry {last} is beyond the"
            ids = {"ledger_id": self.ledger_id, "entry_id": last}
            if silent := self.silent:
                msg = (
                    f"{where} last add confirmed {self._lac} that is known, and {', '.join(silent)}, which may know a "
                    f"higher one, cannot tell now; read it again when they are back{self._bookies.troubles()}"
                )
                raise ReadUnavailableError(msg, **ids)
            raise PastEndError(
                f"{where} {'last entry' if self.closed else 'last add confirmed'} {self._lac}", **ids
            )
        async with contextlib.aclosing(self._scan(first, last)) as runs:
            async for entries in runs:
                if no_ops or not entries.no_ops:
                    yield entries
                elif users := entries.of_users():
                    yield users

    async def _scan(self, first: int, last: int) -> AsyncGenerator[Entries, None]:
        ahead: deque[RangeRead] = deque()
        next_entry = first
        stuck_at, since_ms = -1, 0
        if not self._entry_bytes and (mean := self._record.entry_bytes):
            self._entry_bytes = mean + _ENTRY_COST
        try:
            while ahead or next_entry <= last:
                while next_entry <= last and (not ahead or self._may_read_ahead(ahead)):
                    ahead.append(self._start(next_entry, self._cut(next_entry, last)))
                    next_entry = ahead[-1].last + 1
                read = ahead[0]
                await read.done
                ahead.popleft()
                if count := len(read.entries):
                    self._learn(read, count)
                    yield read.entries
                if read.failure is not None:
                    if stuck_at != read.failure.entry_id:
                        stuck_at, since_ms = read.failure.entry_id, self._clock.now_ms()
                    await self._see_whether_again(read.failure, since_ms)
                if read.next_entry <= read.last:
                    # The rest of this range comes before those that were started after it.
                    ahead.appendleft(self._start(read.next_entry, read.last))
        finally:
            for read in ahead:
                read.cancel()

    def _may_read_ahead(self, ahead: deque[RangeRead]) -> bool:
        if not self._entry_bytes:
            return False
        expected = sum(read.last - read.first + 1 for read in ahead) * self._entry_bytes
        return expected + self._config.read_bytes_max <= self._config.read_ahead_bytes_max

    def _cut(self, first: int, last: int) -> int:
        """Where the range that begins at `first` ends: in its fragment and term, about as large as a response may be."""
        record = self._record
        index = record.fragment_index(first)
        if index + 1 < len(record.fragments):
            last = min(last, record.fragments[index + 1].first_entry - 1)
        named = record.terms is not None and not record.only_fences
        if named and (end := last_of_range(first, record.ranges)) is not None:
            last = min(last, end)
        count = _FIRST_WINDOW_ENTRIES
        if self._entry_bytes:
            # Each of the bookies of a striped range brings its stripes.
            parts = -(-record.ensemble_size // record.write_quorum)
            count = int(self._config.read_bytes_max * _FILL * parts / self._entry_bytes)
        return min(last, first + max(1, min(count, WINDOW_ENTRIES_MAX)) - 1)

    def _start(self, first: int, last: int) -> RangeRead:
        """Begin to read a range of one fragment."""
        record = self._record
        index = record.fragment_index(first)
        ensemble = record.fragments[index].ensemble
        now = self._clock.now_ms()
        avoid = sum(1 << s for s, bookie in enumerate(ensemble) if self._avoid_until.get(bookie, 0) > now)
        machine = ReadMachine(
            first,
            last,
            ensemble,
            record.write_quorum,
            prefer=self._turn,
            avoid=avoid,
            speculate_after_ms=max(self._settings.speculate_after_ms, int(_SLOW_FACTOR * self._usual_ms)),
        )
        self._turn += 1
        return RangeRead(
            self._bookies,
            self._access,
            machine,
            first,
            last,
            self._settings,
            self._clock,
            trouble=self._trouble,
            on_response=self._on_response,
            origin_term=0 if record.terms is None else origin_to_ask(record, first),
            ranges=() if record.terms is None else record.ranges,
        )

    def _learn(self, read: RangeRead, count: int) -> None:
        """How large entries are, for the ranges to come; an open ledger's length as far as it was read."""
        seen = max(read.bytes / count, 1.0)
        self._entry_bytes = seen if not self._entry_bytes else 0.75 * self._entry_bytes + 0.25 * seen
        if not self.closed:
            self._length = max(self._length, read.entries.lengths[-1])

    def _trouble(self, bookie: BookieId, answer: Answer) -> None:
        if answer not in {Answer.OK, Answer.NO_ENTRY, Answer.NO_LEDGER}:
            self._avoid_until[bookie] = self._clock.now_ms() + self._config.quarantine_ms

    async def _see_whether_again(self, failure: ReadFailed, since_ms: int) -> None:
        """Return when it is worth asking again for an entry that could not be had, else raise.

        Fragments of closed ledgers are repaired elsewhere; a bookie that restarts is back in a moment, and its
        connection is not tried at once.
        """
        self._take_record(*await self._records.read(self.ledger_id))
        asked = [bookie for bookie, _ in failure.answers]
        if not RULES.failed_read_stands(asked, self._record.ensemble_of(failure.entry_id)):
            return
        if not {answer for _, answer in failure.answers} - {Answer.WRONG_TOKEN}:
            raise reused_id(self.ledger_id, (bookie for bookie, _ in failure.answers))
        said = [answer for _, answer in failure.answers]
        is_final = failure.conclusive or proves_loss(said, self._record.write_quorum)
        if is_final or self._clock.now_ms() - since_ms >= self._config.read_timeout_ms:
            raise self._unreadable(failure)
        await asyncio.sleep(_RETRY_PAUSE_MS / 1000)

    def _unreadable(self, failure: ReadFailed) -> NoSuchEntryError | ReadUnavailableError:
        said = ", ".join(f"{bookie} {answer.name}" for bookie, answer in failure.answers)
        where = f"ledger {self.ledger_id}, entry {failure.entry_id}"
        ids = {"ledger_id": self.ledger_id, "entry_id": failure.entry_id}
        if failure.conclusive:
            return NoSuchEntryError(f"{where}: no bookie of its write set holds it ({said})", **ids)
        return ReadUnavailableError(
            f"{where}: no bookie of its write set can serve it now ({said}); read it again when they "
            f"are back{self._bookies.troubles()}",
            **ids,
        )

    # --- the tail ---------------------------------------------------------------------------------------------

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
                        pause_ms = doubled(pause_ms, _PAUSE_MS_MAX)
                        continue
                pause_ms = _PAUSE_MS_MIN
        finally:
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError, QuireError):
                await following

    async def _follow_record(self, record: RecordChanges) -> None:
        """Keep the record up to date until it says CLOSED; where the client is closed before, this fails."""
        reported = self._version
        try:
            while True:
                async with self._records.watch(self.ledger_id) as changes:
                    async for _ in changes:
                        await self._reread_record()
                        if self._version != reported:  # this task or another has read it
                            reported = self._version
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
        # A run of a striped ledger has gaps: only its first entry is sure to be the next one.
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
        if not self._take_lac(lac, lac_term):
            await self._reread_record()
            self._take_lac(lac, lac_term)
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

    # --- lifetime ------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Let go of the handle. The ledger is not touched."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
