"""One log by name: create, lead, read, truncate, describe. Made by `QuireClient.log`.

Source: docs/protocol/log.md; docs/formats/log-list.md.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from quire.client.client import Client
from quire.client.opening import Opening
from quire.client.reading.reader import LedgerReader
from quire.core.errors import (
    AlreadyExistsError,
    NoSuchLedgerError,
    NoSuchLogError,
    PastEndError,
    TrimmedError,
)
from quire.core.ledger.quorum import check_min_present, check_quorums
from quire.core.log.commit import CommitBatch, Part
from quire.core.log.list import ItemState, LedgerSummary, LogHead, LogItem, LogSettings
from quire.core.log.machine import LogMachine
from quire.core.log.trimming import TrimMachine
from quire.distribution import Extra, require
from quire.env.home import not_pickled
from quire.log.committing import LogCommitter
from quire.log.config import LogConfig
from quire.log.cursors import LogCursors
from quire.log.electing import CandidateStanding, Elector, StoreElector
from quire.log.heads import LogHeads, lost_page, name_key
from quire.log.leader import LogLeader, MakeLogMachine
from quire.log.ledgers import LogLedgers, summary
from quire.log.plan import plan
from quire.log.reader import LogReader, confirmed_end
from quire.log.records import BatchAt, ItemDescription, LogDescription, LogRange, Record
from quire.log.seeking import End, Start, offset_before, offsets_between
from quire.log.trimming import LogTrimmer, MakeTrimMachine
from quire.log.writer import LogWriter, RecordSender
from quire.metadata.retries import StoreRetries
from quire.wire.entry import digest_type_of
from quire.wire.log_cursors import Cursor
from quire.wire.log_records import LOG_ID_BYTES

_DESCRIBE_TRIES = 5
_SETTINGS = ("ensemble_size", "write_quorum", "ack_quorum", "digest", "min_present")


class Log:
    """A log of one cluster. Nothing is asked of the cluster before a method is called.

    Args:
        client: the cluster.
        name: the log's name: printable characters, in parts between single slashes.
        password: of its ledgers.
        config: settings of its handles.
        machine: makes their machines; see `LogLeader`.
        trim: makes the machines of its truncations and of its deletion.
        elector: says who should lead; None: the election in the metadata store.
    """

    __reduce__ = not_pickled
    _leader_kind = LogLeader
    _heads_kind = LogHeads

    def __init__(
        self,
        client: Client,
        name: str,
        password: bytes = b"",
        config: LogConfig | None = None,
        *,
        machine: MakeLogMachine = LogMachine,
        trim: MakeTrimMachine = TrimMachine,
        elector: Elector | None = None,
    ) -> None:
        name_key(name)
        self.name = name
        self._machine = machine
        self._trim = trim
        self._elector = elector
        self._client = client
        self._config = config or LogConfig()
        self._heads = self._heads_kind(client.store, self._config.cached_pages_max)
        self._ledgers = LogLedgers(client, password, self._config.guarantee)
        self._cursors = LogCursors(client.store, client.clock.wall_ms)

    def __repr__(self) -> str:
        return f"<Log {self.name}>"

    # --- the log itself ----------------------------------------------------------------------------------------

    async def create(
        self,
        *,
        ensemble_size: int | None = None,
        write_quorum: int | None = None,
        ack_quorum: int | None = None,
        digest: str | None = None,
        min_present: int | None = None,
        exist_ok: bool = False,
    ) -> None:
        """Make the log, empty. Its ledgers are made with these quorums.

        Args:
            ensemble_size: E, by default 3, like `write_quorum` Qw, 3, and `ack_quorum` Qa, 2.
            digest: crc32c (the default), crc32, mac or dummy.
            min_present: how many bookies of each new ledger must be there, Qa to E; None: `Client.create_ledger` says.
            exist_ok: a log that is there stays as it is, unless a setting that is named here differs.

        Raises:
            AlreadyExistsError: there is one with this name, or with other settings. MetadataUnknownError: there may be
                one now.
            InvalidQuorumError: unless E >= Qw >= Qa >= 1 and E >= `min_present` >= Qa.
        """
        given = {
            "ensemble_size": ensemble_size,
            "write_quorum": write_quorum,
            "ack_quorum": ack_quorum,
            "digest": None if digest is None else int(digest_type_of(digest)),
            "min_present": min_present,
        }
        named: dict[str, Any] = {setting: value for setting, value in given.items() if value is not None}
        settings = replace(LogSettings(), **named)
        _check_quorums(settings, min_present)
        old = await self._find()
        if old is not None and old.is_being_deleted:
            await self._delete(old)  # its deletion was interrupted: carry it out
        await self._create(settings, named, exist_ok=exist_ok)

    async def _create(self, settings: LogSettings, named: Mapping[str, int], *, exist_ok: bool) -> None:
        log_id = self._client.chance.getrandbits(8 * LOG_ID_BYTES).to_bytes(LOG_ID_BYTES, "big")
        head = LogHead(log_id, self.name, settings, created_ms=self._client.clock.wall_ms())
        try:
            await self._heads.create(head)
        except AlreadyExistsError:
            if not exist_ok:
                raise
            self._check_settings((await self._head()).settings, named)

    def _check_settings(self, settings: LogSettings, named: Mapping[str, int]) -> None:
        """Refuse a log that is there and has another setting than one that was named."""
        for setting, value in named.items():
            if (found := getattr(settings, setting)) != value:
                msg = f"log {self.name!r} already exists, with {setting}={found}, not {value}; `quire log alter` changes it"
                raise AlreadyExistsError(msg, log=self.name)

    async def identify(self) -> LogHead:
        """The log's own record, nothing below it: id, settings, leader, sink positions.

        Raises:
            NoSuchLogError: there is no such log.
        """
        return await self._head()

    async def exists(self) -> bool:
        """Whether there is such a log."""
        head = await self._find()
        return head is not None and not head.is_being_deleted

    async def delete(self) -> None:
        """Delete the log with all its ledgers; a writer that is there is fenced. Cut off, it can be called again.

        Raises:
            NoSuchLogError: there is none.
        """
        head = await self._find()
        if head is None:
            raise self._missing()
        await self._delete(head)

    async def _delete(self, head: LogHead) -> None:
        machine = self._trim(None, now_ms=self._client.clock.wall_ms())
        await LogTrimmer(head, self._heads, self._ledgers, self._config, self._cursors).run(machine)

    async def _find(self) -> LogHead | None:
        log_id = await self._heads.find(self.name)
        found = None if log_id is None else await self._heads.read(log_id)
        return None if found is None else found[0]

    async def _head(self) -> LogHead:
        head = await self._find()
        if head is None or head.is_being_deleted:
            raise self._missing()
        return head

    def _missing(self) -> NoSuchLogError:
        msg = f"log {self.name!r} does not exist in this cluster; `await log.create()` creates it"
        return NoSuchLogError(msg, log=self.name)

    # --- writing -----------------------------------------------------------------------------------------------

    def open_writer(
        self, *, wait_for_leadership: bool = False, create: bool | LogSettings = False
    ) -> Opening[LogWriter]:
        """Become the log's only writer: fence what was there, recover it, begin a new ledger.

        `async with log.open_writer() as writer`, or `writer = await log.open_writer()` and `await writer.close()`.

        Args:
            wait_for_leadership: queue behind the present writers and wait until they have ended; otherwise
                take the log over at once. Either way only the compare-and-swap of the list decides. The loser asks the
                elector before each retry: a caller that waits for leadership waits again, others go on only if the
                elector names no other writer.
            create: make the log if there is none, with the usual settings or with these. One that is there stays as it is; it
                must have these.

        Raises (when entered or awaited):
            NoSuchLogError: there is no such log, or, with `create`, it is being deleted.
            AlreadyExistsError: the log has other settings than `create` says.
            InvalidQuorumError: those of `create` cannot be.
            NotLeaderError: another took it over meanwhile and the elector names that one, or others did so again
                and again.
            RecoveryInconclusiveError: too few bookies respond to recover what is open.
            NotEnoughBookiesError: no new ledger can be made, or one with a guaranteed write quorum not be closed
                (`LogGuarantee.wait_ms`).
            MissingExtraError: the configured codec is `arrow`, and pyarrow is not installed.

        Source: BookKeeper ledgers to logs, "Opening a log".
        """
        return Opening(partial(self._open_writer, wait=wait_for_leadership, create=create))

    async def _open_writer(self, *, wait: bool, create: bool | LogSettings) -> LogWriter:
        if self._config.codec == "arrow":
            require(Extra.ARROW, "LogConfig.codec='arrow'")
        head = await (self._made(create) if create else self._head())
        holder = f"{self._client.chance.getrandbits(64):016x}"
        host = self._config.host or f"{platform.node()}:{os.getpid()}"
        standing = self._standing(head.log_id, f"{holder}@{host}", wait=wait)
        leader = self._new_leader(head, holder, host, standing.may_retry)
        sender = self._new_sender(leader, standing.end)
        try:
            await standing.begin()
            leader.start(sender)
            await sender.opened()
        except BaseException:
            await sender.abandon()
            raise
        return self._new_writer(sender)

    async def _made(self, create: bool | LogSettings) -> LogHead:
        """The log, made if there is none."""
        settings = create if isinstance(create, LogSettings) else LogSettings()
        named = {} if create is True else {name: getattr(settings, name) for name in _SETTINGS}
        _check_quorums(settings, settings.min_present or None)
        found = await self._find()
        if found is None:
            await self._create(settings, named, exist_ok=True)
            return await self._head()
        if found.is_being_deleted:
            msg = f"log {self.name!r} is being deleted; `await log.create()` ends that and makes a new one"
            raise NoSuchLogError(msg, log=self.name)
        self._check_settings(found.settings, named)
        return found

    def _standing(self, log_id: bytes, candidate: str, *, wait: bool) -> CandidateStanding:
        in_store = StoreElector(self._client.store).candidacy(log_id, candidate)
        if self._elector is None:
            return CandidateStanding(in_store, candidate, wait=wait)
        elected = self._elector.candidacy(log_id, candidate)
        return CandidateStanding(elected, candidate, wait=wait, shown=in_store)

    def _new_leader(
        self, head: LogHead, holder: str, host: str, may_retry: Callable[[], Awaitable[bool]]
    ) -> LogLeader:
        return self._leader_kind(
            head,
            self._heads,
            self._ledgers,
            self._config,
            self._client.chance,
            holder=holder,
            host=host,
            may_retry=may_retry,
            machine=self._machine,
        )

    def _new_sender(self, leader: LogLeader, resign: Callable[[], Awaitable[None]]) -> RecordSender:
        return RecordSender(
            self.name,
            leader,
            self._client.clock,
            self._config,
            client_config=self._client.config,
            open_writers=self._client.open_writers,
            resign=resign,
        )

    def _new_writer(self, sender: RecordSender) -> LogWriter:
        return LogWriter(sender)

    # --- reading -----------------------------------------------------------------------------------------------

    async def read(
        self, start: Start | None = None, end: End | None = None, *, recover: bool = False
    ) -> AsyncGenerator[Record, None]:
        """The records from `start` to `end` (exclusive), or to what is confirmed now. No writer is disturbed.

        What a running writer has acknowledged is seen within about `ClientConfig.lac_after_ms`, twice that at most. A
        writer that was abandoned or killed may have acknowledged its last records without sending its LAC; they
        are stored, and `read(recover=True)` finds them.

        Args:
            start: first offset, an aware datetime (the first record as late as that), `quire.last(100)`, "start" (the
                default) or "end".
            end: offset after the last, or an aware datetime (before the first record as late as that); by default what is
                confirmed now. A time is looked up once, and is the end if it is later than every record.
            recover: first fence and close the ledgers that are open, as the next writer would. It ends a writer that
                lives.

        Raises:
            TrimmedError: the log begins after `start` (by now).
            PastEndError: the log ends before `start`.
            MisuseError: a position is none, a datetime has no zone, or the end lies before the start.
            RecoveryInconclusiveError: with `recover`, too few bookies responded to determine where a ledger ends.
        """
        reader = await self._reader(start, end, follow=False, recover=recover)
        async with contextlib.aclosing(reader.records()) as records:
            async for record in records:
                yield record

    async def tail(self, start: Start | None = None) -> AsyncGenerator[Record, None]:
        """The records from `start` on, as `read` takes it, and then each new one as it is confirmed, for ever.

        "end" gives only what comes; an offset behind the end is waited for.

        Raises:
            TrimmedError: the log begins after `start`, or the reader fell behind a truncation.
        """
        reader = await self._reader(start, None, follow=True)
        async with contextlib.aclosing(reader.records()) as records:
            async for record in records:
                yield record

    async def read_entries(
        self, start: Start | None = None, end: End | None = None, *, follow: bool = False
    ) -> AsyncGenerator[BatchAt, None]:
        """Like `read`, by whole batches: (first offset, view, ledger, entry); clip to offsets with the view's slices."""
        reader = await self._reader(start, end, follow=follow)
        async with contextlib.aclosing(reader.batches()) as batches:
            async for batch in batches:
                yield batch

    async def _reader(
        self, start: Start | None, end: End | None, *, follow: bool, recover: bool = False
    ) -> LogReader:
        head = await self._head()
        first, after = await offsets_between(self, start, end)
        return LogReader(
            self.name,
            head.log_id,
            self._heads,
            self._ledgers,
            start=first,
            end=after,
            follow=follow,
            recover=recover,
        )

    async def plan(
        self, start: int | None = None, end: int | None = None, split_bytes: int = 64 << 20
    ) -> list[LogRange]:
        """The ranges that together hold the records from `start` to `end`.

        Args:
            start: the first offset; None is the log's start.
            end: the offset after the last; None is what is confirmed now.
            split_bytes: about how many bytes a range has.

        Raises:
            TrimmedError, PastEndError: as a read from there.
        """
        about = await self.describe()
        first = about.start_offset if start is None else start
        self.check_start(about, first)
        last = about.end_offset if end is None else min(end, about.end_offset)
        return await plan(about.items, first, last, split_bytes, self.open_item)

    async def open_item(self, item: ItemDescription) -> LedgerReader:
        """A reader of one ledger of the log, which changes nothing."""
        return await self._ledgers.open(LogItem(item.ledger_id, item.token))

    def check_start(self, about: LogDescription, start: int) -> None:
        """Refuse an offset that the log does not hold (any more, or yet).

        Raises:
            TrimmedError, PastEndError: naming both.
        """
        if start < about.start_offset:
            msg = f"log {self.name!r}: requested offset {start}, the earliest is {about.start_offset}"
            raise TrimmedError(msg, log=self.name, offset=start, earliest=about.start_offset)
        if start > about.end_offset:
            msg = f"log {self.name!r}: requested offset {start}, the log ends at {about.end_offset}"
            raise PastEndError(msg, log=self.name, offset=start, end=about.end_offset)

    # --- the list ----------------------------------------------------------------------------------------------

    async def describe(self, since: int = 0) -> LogDescription:
        """The log as it is now: its ledgers, offsets, sizes, times, with what open ledgers have confirmed.

        Args:
            since: leaves out the ledgers that lie wholly below this offset.
        """
        former = -1
        for attempt in range(1, _DESCRIBE_TRIES + 1):
            head = await self._head()
            try:
                items = await self._heads.all_items(head, since)
                return await self._described(head, items)
            except (NoSuchLogError, NoSuchLedgerError) as error:
                if isinstance(error, NoSuchLogError) and former == head.generation:
                    raise lost_page(head, error) from error
                former = head.generation
                # A truncation came between the head and what it names; a newer head does not name it.
                if attempt == _DESCRIBE_TRIES:
                    raise
        raise AssertionError

    async def _described(self, head: LogHead, items: list[LogItem]) -> LogDescription:
        described: list[ItemDescription] = []
        end = head.start_offset
        ended = True
        silent: dict[str, None] = {}
        for item in items:
            last_entry: int | None = None
            if item.is_open:
                first = end if item.first_offset is None else item.first_offset
                found, last_entry = LedgerSummary(0), -1
                if ended:
                    reader = await self._ledgers.open(item)
                    # What is seen of an open ledger may be less than what is confirmed: the one after it, which may
                    # have records by now, begins at an offset that only the writer knows yet.
                    ended, last_entry = reader.closed, int(reader.last_add_confirmed)
                    silent |= dict.fromkeys(reader.silent)
                    found = await summary(reader)
                item = replace(item.completed(first, found), state=ItemState.OPEN)  # noqa: PLW2901 - as known now
            described.append(_item(item, last_entry))
            end = described[-1].next_offset
        return LogDescription(
            head.name,
            head.log_id.hex(),
            head.leader.epoch,
            head.start_offset,
            max(end, head.closed_end, head.start_offset),
            described,
            head.settings,
            head.leader.host,
            head.created_ms,
            head.generation,
            head.sink_positions,
            head.archive,
            head.compacted_below,
            tuple(silent),
        )

    async def truncate(self, before: End) -> None:
        """Truncate the records below an offset; ledgers that lie wholly below it are deleted, never an open one.

        With an aware datetime what goes is the longest beginning in which every record is older.

        Any client may do it, while a writer runs too. What a crashed truncation left is carried out as well.

        Args:
            before: the log's new first offset, at most its end.

        Raises:
            PastEndError: the log ends before it.
            MisuseError: it is no offset, or a datetime without a zone.
            NoSuchLogError: there is no such log.
            CursorHoldsError: a cursor holds records below it.
        """
        before = await offset_before(self, before)
        head = await self._head()
        await self._cursors.check_truncation(head, before)
        end = head.closed_end
        if before > end:
            end = await confirmed_end(head, self._ledgers)
        trimmer = LogTrimmer(head, self._heads, self._ledgers, self._config)
        await trimmer.make_room()
        await trimmer.run(self._trim(max(before, 0), end=end, now_ms=self._client.clock.wall_ms()))

    async def cursors(self) -> list[Cursor]:
        """The named positions of readers in this log, by name.

        Raises:
            NoSuchLogError: there is no such log.
        """
        return await self._cursors.of((await self._head()).log_id.hex())

    async def remove_cursor(self, name: str) -> bool:
        """Delete a reader's position; returns whether there was one.

        Raises:
            NoSuchLogError: there is no such log.
        """
        return await self._cursors.remove((await self._head()).log_id.hex(), name)

    async def place(self, *, takeover: bool = True) -> None:
        """Give offsets to ledgers that were committed to the log and that its leader did not place before it ended.

        Args:
            takeover: recover what that leader left open. A running leader is replaced; it would have placed them.

        Raises:
            NoSuchLogError: there is no such log.
            LogLedError: without `takeover`, something is open.
        """
        head = await self._head()
        if head.adoptions:
            batch = CommitBatch((Part(head.log_id, ()),), takeover=takeover, place=True)
            password = self._ledgers.password
            await LogCommitter(self._client, [self.name], batch, password, self._config).commit()

    async def complete_items(self) -> int:
        """Write into the list what ledgers hold that it calls open and that another client has closed.

        While a writer runs it changes nothing that the writer would not write itself.

        Returns:
            How many items were completed.
        """
        done = 0
        while await StoreRetries(self._config.metadata_attempts_max).until_in(self._complete_item):
            done += 1
        return done

    async def _complete_item(self) -> bool:
        log_id = await self._heads.find(self.name)
        found = None if log_id is None else await self._heads.read(log_id)
        if found is None or found[0].is_being_deleted:
            raise self._missing()
        head, version = found
        item = next(iter(head.open_items), None)
        reader = await self._ledgers.open(item) if item else None
        if item is None or reader is None or not reader.closed:
            return False
        completed = head.with_completed(item.ledger_id, await summary(reader))
        await self._heads.write(replace(completed, generation=head.generation + 1), version)
        return True


def _check_quorums(settings: LogSettings, min_present: int | None) -> None:
    """Refuse settings of which no ledger could be made; `min_present` is None where the creator of a ledger decides."""
    check_quorums(settings.ensemble_size, settings.write_quorum, settings.ack_quorum)
    if min_present is not None:
        check_min_present(min_present, settings.ensemble_size, settings.ack_quorum)


def _item(item: LogItem, last_entry: int | None) -> ItemDescription:
    return ItemDescription(
        item.ledger_id,
        item.token,
        item.first_offset or 0,
        item.next_offset or 0,
        item.count,
        item.payload_bytes,
        item.min_time_ms,
        item.max_time_ms,
        item.state,
        item.location,
        item.digest,
        item.format,
        item.flags,
        last_entry,
        item.archive,
    )
