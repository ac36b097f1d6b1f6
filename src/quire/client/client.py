"""A client of one cluster: creates, opens, lists, deletes, recovers and verifies ledgers.

Source: BookKeeper protocol, "Ledgers", "Closing a ledger as a reader"; `docs/formats/native-protocol.md`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import warnings
from collections.abc import AsyncGenerator, Collection, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from weakref import WeakValueDictionary

from quire.client.access import LedgerAccess
from quire.client.bookies.bookies import BookieClient
from quire.client.config import ClientConfig
from quire.client.context import ClientContext
from quire.client.leaving import LeavingWriter, OpenWriters
from quire.client.machines import SHIPPED, Machines
from quire.client.reading.reader import LedgerReader
from quire.client.recovering.recovery import recover_ledger
from quire.client.recovering.recovery_failures import check_ignored_lacs
from quire.client.repairing.copies import LedgerReport, LimboClearing, LimboReport, verify_copies
from quire.client.streams.unbounded import UnboundedLedger
from quire.client.writing.creating import check_custom, gives_guarantee_up, guarantee_of, place, shape_of
from quire.client.writing.writer import LedgerWriter
from quire.core.errors import (
    AlreadyExistsError,
    MisuseError,
    QuireError,
    WrongPasswordError,
)
from quire.core.ids import BookieId, LedgerId
from quire.core.ledger.guarantee import GUARANTEE_KEY
from quire.core.ledger.metadata import TOKEN_KEY, DigestType, LedgerMetadata, LedgerState, new_ledger
from quire.core.ledger.placement import RandomSource
from quire.core.ledger.terms import StreamMode, mode_of
from quire.core.ledger.writer_state import Hole
from quire.env.home import not_pickled
from quire.env.interfaces import Clock
from quire.metadata.bookies import BookieInfo
from quire.metadata.keys import stream_name_key
from quire.metadata.records import AllRecords
from quire.metadata.store import MetadataStore
from quire.wire.entry import digest_type_of

log = logging.getLogger(__name__)

_IDS_TRIED_MAX = 10


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """The result of a recovery.

    Attributes:
        record: the closed record.
        already_closed: it was closed before; nothing had to be recovered.
        recovered: entries found above the highest LAC that a bookie reported, and written back.
        limbo: what was done about bookies whose copy of the ledger is in limbo.
        stragglers: what bookies had not acknowledged of what was written back: they may lack it.
    """

    record: LedgerMetadata
    already_closed: bool
    recovered: int
    limbo: LimboReport
    stragglers: tuple[Hole, ...] = ()


class Client:
    """One cluster, as seen from here. Made by `quire.connect`.

    Args:
        store: the cluster's metadata; closed with the client.
        bookies: connections to its bookies; closed with the client.
        clock: time.
        chance: random numbers, for choices among bookies and for tokens.
        config: settings.
        machines: makes the state machines of its writers and recoveries.

    Attributes:
        open_writers: writers that write through other writers, as those of logs do; they are closed with the client.
    """

    __reduce__ = not_pickled

    def __init__(
        self,
        store: MetadataStore,
        bookies: BookieClient,
        clock: Clock,
        chance: RandomSource,
        config: ClientConfig | None = None,
        machines: Machines = SHIPPED,
    ) -> None:
        self.store = store
        self.bookies = bookies
        self.records = AllRecords(store, clock)
        self.clock = clock
        self.chance = chance
        self.config = config or ClientConfig()
        self.context = ClientContext.of(bookies, self.records, clock, chance, self.config, machines)
        # A bookie that was away and has registered anew is no longer the one that failed.
        bookies.on_return = self.context.quarantine.clear
        self.open_writers = OpenWriters()
        self._background: dict[asyncio.Task[None], None] = {}
        self._watch: asyncio.Task[None] | None = None
        self._closed: asyncio.Future[None] | None = None
        # By a stream's name: held while this client takes it over.
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    # --- ledgers -------------------------------------------------------------------------------------------------

    async def create_ledger(
        self,
        *,
        ensemble_size: int = 3,
        write_quorum: int = 3,
        ack_quorum: int = 2,
        password: bytes = b"",
        digest: str | DigestType = "crc32c",
        custom: Mapping[str, bytes] | None = None,
        min_present: int | None = None,
        guarantee: str | None = None,
    ) -> LedgerWriter:
        """Create a ledger and open it for writing; its creator is the only one who writes it.

        With fewer than E bookies that take entries it begins with absent slots, of bookies that are read-only or away: it
        lacks copies there (`writer.holes`), until these take entries again or others are there to take their place.

        Args:
            ensemble_size: E, bookies that share the ledger.
            write_quorum: Qw, bookies that each entry is sent to.
            ack_quorum: Qa, bookies that must have it on disk before it counts.
            password: bookies and readers must know it; kept in the metadata, so it guards against mistakes only.
            digest: crc32c, crc32, mac or dummy.
            custom: the caller's own metadata.
            min_present: how many of the E bookies must take entries now, Qa to E; E: none may be away. None: what
                `ClientConfig.min_present` says, else Qa.
            guarantee: "write_quorum": every entry of the closed ledger, and of every fragment but the last, is on all Qw
                bookies (docs/protocol/write-quorum.md). Appends and the close wait where one is lost and no other is
                there. None: Qa is enough.

        Raises:
            MisuseError: another guarantee, or one with `min_present` below E.
            InvalidQuorumError: unless E >= Qw >= Qa >= 1 and E >= `min_present` >= Qa.
            NotEnoughBookiesError: fewer than `min_present` take entries, or than Qa of a write set, or the cluster
                has no E bookies in all.

        Source: BookKeeper protocol, "Ledgers": "When creating the ledger, the following invariant must hold".
        """
        usual = self.config.min_present if guarantee is None else ensemble_size
        shape = shape_of(ensemble_size, write_quorum, ack_quorum, min_present, usual)
        kept = guarantee_of(guarantee, shape, custom or (), self.store.ledger_format)
        promised = {GUARANTEE_KEY: kept.encode()} if kept else {}
        digest_type = digest_type_of(digest)
        _check_bytes("password", password)
        check_custom(custom or {})
        for _ in range(_IDS_TRIED_MAX):
            quarantined = self.context.quarantine.bookies(self.clock.now_ms())
            placed = await place(shape, self.bookies, self.chance, quarantined)
            token = self.chance.getrandbits(64) | 1
            record = new_ledger(
                await self.records.ledgers.next_id(),
                placed.ensemble,
                write_quorum=write_quorum,
                ack_quorum=ack_quorum,
                digest_type=digest_type,
                password=password,
                custom={**(custom or {}), **promised, TOKEN_KEY: token.to_bytes(8, "big")},
                created_ms=self.clock.wall_ms(),
                creation_token=self.chance.getrandbits(62) | 1,
                format_version=self.store.ledger_format,
            )
            try:
                version = await self.records.ledgers.create(record)
            except AlreadyExistsError:
                continue
            return LedgerWriter(record, version, LedgerAccess.of(record), self.context, placed.absent)
        msg = (
            f"{_IDS_TRIED_MAX} ledger ids in a row were in use; was the metadata store restored "
            "from a backup?"
        )
        raise AlreadyExistsError(msg)

    async def open_ledger(
        self, ledger_id: int, password: bytes = b"", *, recover: bool = True
    ) -> LedgerReader:
        """Open a ledger for reading.

        Args:
            ledger_id: which.
            password: the one it was created with.
            recover: fence its writer, recover and close it, unless it is closed already. False reads while the
                writer writes, up to the last add confirmed; what an abandoned writer acknowledged last may be missing then,
                and `read(recover=True)` finds it.

        Raises:
            NoSuchLedgerError: there is none.
            WrongPasswordError: the password is another; no bookie was asked.
            RecoveryInconclusiveError: too few bookies responded to determine where the ledger ends.
            LedgerIdReusedError: too few responses are conclusive, and the other bookies hold another ledger's entries.

        Source: BookKeeper protocol: "to read like this, the ledger should be opened with a non-fencing open".
        """
        record, version = await self._record(ledger_id, password)
        access = LedgerAccess.of(record)
        if recover and record.state is not LedgerState.CLOSED:
            result, _ = await recover_ledger(record, version, access, self.context)
            reader = self._reader(result.record, result.version, access)
            self._clear_limbo_in_background(reader, access)
            return reader
        reader = self._reader(record, version, access)
        if not reader.closed:
            await reader.refresh()
        return reader

    async def recover_ledger(
        self,
        ledger_id: int,
        password: bytes = b"",
        *,
        ignored_lacs: Collection[str] = (),
        at: str = "write_quorum",
    ) -> RecoveryReport:
        """Close a ledger whose writer has stopped, and restore its copies on bookies where it is in limbo.

        Args:
            ledger_id: which.
            password: the one it was created with.
            ignored_lacs: bookies whose last add confirmed is ignored, where the error says that it contradicts the
                entries: entries up to it that no bookie holds are dropped.
            at: "ack_quorum" closes a ledger that guarantees its write quorum with what Qa bookies have, and gives the
                guarantee up, which its record then says: a way out where a bookie is lost and no other is there.

        Raises:
            RecoveryInconclusiveError: too few bookies responded, or a bookie's last add confirmed says that an entry
                is acknowledged that the others deny; it names them.
            MisuseError: `ignored_lacs` names a bookie that is not in the ledger's last fragment, or `at` is another word.
        """
        gives_up = gives_guarantee_up(at, f"ledger {ledger_id} is recovered")
        record, version = await self._record(ledger_id, password)
        access = LedgerAccess.of(record)
        already_closed = record.state is LedgerState.CLOSED
        recovered, stragglers = 0, tuple[Hole, ...]()
        if not already_closed:
            ignored = [BookieId(bookie) for bookie in ignored_lacs]
            check_ignored_lacs(f"ledger {ledger_id}", "recovery", record, ignored)
            result, done = await recover_ledger(
                record, version, access, self.context, ignored, at_ack_quorum=gives_up
            )
            record, version = result.record, result.version
            recovered, stragglers = done.recovered, done.stragglers
        reader = self._reader(record, version, access)
        limbo = await LimboClearing(reader, access, self.context).clear()
        return RecoveryReport(record, already_closed, recovered, limbo, stragglers)

    async def delete_ledger(self, ledger_id: int, *, fence: bool = True) -> None:
        """Delete a ledger's record and leave a tombstone; bookies drop its entries when they see that.

        A ledger that is not closed is recovered first: until the bookies notice, a writer that is not fenced would
        still get acknowledgements.

        Args:
            ledger_id: which.
            fence: False deletes it as it is, for a ledger whose bookies are permanently lost or that has no writer.

        Raises:
            NoSuchLedgerError: there is none.
            RecoveryInconclusiveError: its writer could not be stopped; nothing was deleted.
        """
        if fence:
            record, version = await self.records.ledgers.read(ledger_id)
            if record.state is not LedgerState.CLOSED:
                await recover_ledger(record, version, LedgerAccess.of(record), self.context)
        await self.records.ledgers.delete(ledger_id)

    async def ledgers(self) -> AsyncGenerator[LedgerId, None]:
        """The ids of all ledgers, ascending."""
        after: int | None = None
        while True:
            page = await self.records.ledgers.list(after)
            if not page:
                return
            for ledger_id in page:
                yield ledger_id
            after = page[-1]

    async def ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        """A ledger's record as it is now.

        Raises:
            NoSuchLedgerError: there is none.
        """
        return (await self.records.ledgers.read(ledger_id))[0]

    async def verify_ledger(self, ledger_id: int, password: bytes = b"") -> LedgerReport:
        """Read every copy of every entry up to the last confirmed one and compare them. Changes nothing."""
        return await verify_copies(lambda: self.open_ledger(ledger_id, password, recover=False), self.context)

    # --- unbounded ledgers -------------------------------------------------------------------------------------------

    def unbounded_ledger(
        self, name: str, password: bytes = b"", *, mode: str | StreamMode | None = None
    ) -> UnboundedLedger:
        """An unbounded ledger, or stream, by name; nothing is asked of the cluster yet.

        Args:
            name: its name.
            password: the one that it was or is created with.
            mode: what keeps an earlier writer's entries apart, chosen when it is created and never changed: `identifiers`
                (the default) or `fencing`. Where it is passed and the stream has the other one, every method says so.

        Raises:
            MisuseError: the name cannot be one, or there is no such mode.
        """
        _check_bytes("password", password)
        stream_name_key(name)
        wanted = None if mode is None else mode_of(mode)
        turn = self._turns.setdefault(name, asyncio.Lock())
        return UnboundedLedger(name, password, self.context, turn, wanted)

    async def unbounded_ledgers(self) -> AsyncGenerator[str, None]:
        """The names of all unbounded ledgers, ascending."""
        after: str | None = None
        while page := await self.records.streams.names(after):
            for name in page:
                yield name
            after = page[-1]

    # --- bookies -----------------------------------------------------------------------------------------------------

    async def available_bookies(self) -> list[BookieInfo]:
        """Every registered bookie, writable or read-only, by id."""
        return [info for _, info in sorted((await self.bookies.bookies()).items())]

    # --- inside --------------------------------------------------------------------------------------------------

    async def _record(self, ledger_id: int, password: bytes) -> tuple[LedgerMetadata, int]:
        _check_bytes("password", password)
        record, version = await self.records.ledgers.read(ledger_id)
        if not hmac.compare_digest(record.password, password):
            msg = f"ledger {ledger_id}: the password is not the one that it was created with"
            raise WrongPasswordError(msg, ledger_id=ledger_id)
        return record, version

    def _reader(self, record: LedgerMetadata, version: int, access: LedgerAccess) -> LedgerReader:
        return LedgerReader(
            record,
            version,
            access,
            self.context,
            recovering=lambda reader: self._recover_for(reader, access),
        )

    async def _recover_for(self, reader: LedgerReader, access: LedgerAccess) -> tuple[LedgerMetadata, int]:
        """The closed record of a reader's ledger, which is recovered unless it is closed already."""
        record, version = await self.records.ledgers.read(reader.ledger_id)
        if record.state is not LedgerState.CLOSED:
            result, _ = await recover_ledger(record, version, access, self.context)
            record, version = result.record, result.version
            self._clear_limbo_in_background(self._reader(record, version, access), access)
        return record, version

    def _clear_limbo_in_background(self, reader: LedgerReader, access: LedgerAccess) -> None:
        task = asyncio.get_running_loop().create_task(self._clear_limbo(reader, access))
        self._background[task] = None
        task.add_done_callback(self._background.pop)

    async def _clear_limbo(self, reader: LedgerReader, access: LedgerAccess) -> None:
        try:
            report = await LimboClearing(reader, access, self.context).clear()
        except QuireError as error:
            log.warning("ending limbo failed; `quire ledger recover` tries again: %s", error)
            return
        for bookie, why in report.left.items():
            log.warning("ledger %d: bookie %s stays as it is: %s", reader.ledger_id, bookie, why)

    # --- lifetime ------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed is not None

    def close_with_loop(self) -> None:
        """Have the client closed where its event loop ends, and cancels all tasks, before it is closed."""
        self._watch = asyncio.get_running_loop().create_task(self._until_the_loop_ends(), name="quire client")

    async def _until_the_loop_ends(self) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            if not self.closed:
                await self.close()
                what = "a client was not closed before its event loop ended; it is closed now"
                warnings.warn(what, ResourceWarning, source=self, stacklevel=2)
            raise

    async def close(self) -> None:
        """End all connections and let go of the metadata store. Again is allowed.

        Writers that are open end: what they took is confirmed first, a log is closed and its lead released, a stream
        released, a ledger left open. It takes `ClientConfig.add_timeout_ms` and `metadata_timeout_ms` together at most;
        then what is not confirmed fails, and one warning says how much that is. Ledgers' entries are sent to every bookie;
        one that acknowledges nothing for `ClientConfig.flush_ms` is abandoned, and what it lacks of acknowledged entries
        stands in the ledger's record.
        """
        self.bookies.check_home()
        if self._closed is not None:
            await asyncio.shield(self._closed)
            return
        self._closed = asyncio.get_running_loop().create_future()
        try:
            await self.open_writers.close(
                lambda: self.context.unfinished,
                lambda: [each for each in self.bookies.followers if isinstance(each, LeavingWriter)],
                self.config.leave_ms,
            )
        finally:
            await self._let_go()
            self._closed.set_result(None)

    async def _let_go(self) -> None:
        tasks = list(self._background)
        if self._watch is not None and self._watch is not asyncio.current_task():
            tasks.append(self._watch)
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self.context.lacs.close()
        await self.bookies.close()
        await self.store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _check_bytes(what: str, value: object) -> None:
    if not isinstance(value, bytes):
        msg = f"the {what} must be bytes, not {type(value).__name__}"
        raise MisuseError(msg)
