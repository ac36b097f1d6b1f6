"""Under-replicated marks in a metadata store: what is to be put right, who does it, and how long bookies have been away.

Two kinds of marks. BookKeeper's says which bookies of a ledger are lost; Java's auditors and workers share it. Quire's
says what bookies lack that are there: Java's worker, which looks at the first and the last entry of a fragment only,
would remove it unrepaired. A mark is advice: the program that acts on one looks first. Every change is a compare-and-swap, and a
mark is removed by the version that was read, so that what was marked meanwhile stays.

Source: `docs/formats/metadata.md`, "Under-replicated marks"; BookKeeper source, `ZkLedgerUnderreplicationManager`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, NamedTuple, TypeVar

from quire.core.errors import (
    AlreadyExistsError,
    CorruptMetadataError,
    MisuseError,
    QuireError,
)
from quire.core.ids import ID_MAX, BookieId, LedgerId
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.notes import EntryRange
from quire.core.ledger.writer_state import Hole
from quire.core.repair.audit_effects import CountedState
from quire.core.repair.under_replicated_marks import (
    ANY_BOOKIE,
    AwayCount,
    LedgerRepairs,
    MarkReason,
    RepairAttempts,
    RepairWorkerState,
    UnderReplicatedMark,
    marked_through,
    merged,
)
from quire.env.interfaces import Clock
from quire.metadata.keys import (
    AUDIT_OF_COPIES,
    AWAY,
    DISABLE,
    LOCKS,
    LOST_DELAY,
    MISSING,
    READ_ONLY_FOR,
    REPAIRS,
    WORKERS,
    away_key,
    ledger_of,
    lock_key,
    missing_key,
    read_only_for_key,
    repairs_key,
    worker_key,
)
from quire.metadata.paging import every_key
from quire.metadata.retries import settled
from quire.metadata.store import (
    LIST_LIMIT,
    KeyMissingError,
    MetadataStore,
    Op,
    Registration,
    VersionConflictError,
    Versioned,
    Watch,
    putting,
)
from quire.metadata.tombstones import get_unparsed
from quire.wire.repair_records import AWAY_CODEC, WORKER_CODEC, decode_repairs, encode_repairs
from quire.wire.underreplication import (
    SECONDS_MAX,
    MissingBookies,
    decode_delay,
    decode_holder,
    decode_missing,
    encode_delay,
    encode_holder,
    encode_missing,
)

LOST_DELAY_S: Final = 300
"""How long a bookie may be away, where the cluster has no setting."""
_TIMES: Final = {
    CountedState.AWAY: (AWAY, away_key),
    CountedState.READ_ONLY: (READ_ONLY_FOR, read_only_for_key),
}
M = TypeVar("M")
_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Stored(Generic[M]):
    """A mark as it is stored.

    Attributes:
        mark: what it says; None if that cannot be read.
        version: of its key.
        revision: of the store, when it was written. ZooKeeper gives a mark that was removed and made again the version
            of the old one, and another revision.
        flaw: why it cannot be read. Such a mark stays as it is: another program may know it.
    """

    mark: M | None
    version: int
    revision: int
    flaw: CorruptMetadataError | None = None


class LedgerMarks(NamedTuple):
    """All marks of one ledger as they were read; None where there is none.

    Attributes:
        missing: BookKeeper's.
        own: Quire's.
    """

    missing: Stored[MissingBookies] | None
    own: Stored[LedgerRepairs] | None

    @property
    def through(self) -> int:
        """As `marked_through`, of Quire's marks."""
        return (
            marked_through(self.own.mark.marks) if self.own is not None and self.own.mark is not None else -1
        )

    @property
    def lost(self) -> set[BookieId]:
        """The bookies that they say are lost."""
        lost = set[BookieId]()
        if self.missing is not None and self.missing.mark is not None:
            lost.update(self.missing.mark.bookies)
        if self.own is not None and self.own.mark is not None:
            lost.update(mark.bookie for mark in self.own.mark.marks if mark.reason is MarkReason.GONE)
        return lost


class RepairStore:
    """Under-replicated marks over a metadata store.

    Args:
        store: the cluster's.
        clock: for wall times in marks, which people read.
        name: how people know this client.
    """

    def __init__(self, store: MetadataStore, clock: Clock, name: str) -> None:
        self._store, self._clock, self._name = store, clock, name

    # --- bookies that are lost: BookKeeper's marks -------------------------------------------------------------------

    async def mark_missing(self, ledger_id: int, bookies: Sequence[BookieId]) -> int:
        """Mark a ledger because these of its bookies are lost, besides those that its mark names.

        Returns:
            The mark's version.

        Raises:
            CorruptMetadataError: there is a mark that cannot be read; it stays.
            StoreBusyError, StoreAwayError, MetadataUnknownError: it may not be marked.
        """
        now_ms = self._clock.wall_ms()

        def change(found: MissingBookies | None) -> MissingBookies:
            return (found or MissingBookies(())).merged(tuple(bookies), now_ms)

        return await self._merge(missing_key(ledger_id), ledger_id, decode_missing, encode_missing, change)

    async def missing(self, ledger_id: int) -> Stored[MissingBookies] | None:
        """BookKeeper's under-replicated mark of a ledger; None if there is none."""
        found = await self._store.get(missing_key(ledger_id))
        return None if found is None else _stored(found, ledger_id, decode_missing)

    async def missing_page(
        self, after: int | None = None, limit: int = LIST_LIMIT
    ) -> list[tuple[LedgerId, Stored[MissingBookies]]]:
        """BookKeeper's marks, ascending by ledger; fewer than `limit` are the last page."""
        return await self._page(MISSING, None if after is None else missing_key(after), limit, decode_missing)

    async def remove_missing(self, ledger_id: int, found: Stored[MissingBookies]) -> bool:
        """Remove a mark that was read; False if it was changed since: look at it again."""
        return await self._remove(missing_key(ledger_id), found)

    # --- what bookies lack that are there: Quire's marks -------------------------------------------------------------

    async def mark(self, ledger_id: int, marks: Iterable[UnderReplicatedMark]) -> int:
        """Add marks to those of a ledger.

        Returns:
            The version of the ledger's marks.

        Raises:
            CorruptMetadataError, StoreBusyError, StoreAwayError, MetadataUnknownError: as `mark_missing`.
            MisuseError: a range is not possible.
        """
        more = tuple(replace(mark, seen_by=mark.seen_by or self._name) for mark in marks)
        return await self._change_marks(
            ledger_id, lambda known: replace(known, marks=merged(known.marks, more))
        )

    async def mark_lost(self, stream_id: int, bookies: Sequence[BookieId]) -> int:
        """Mark a stream because these of its bookies are lost.

        Java's workers know no streams, and remove BookKeeper's mark of an id of which they find no ledger.

        Args:
            stream_id: the stream.
            bookies: which are lost.

        Returns:
            The version of the stream's marks.

        Raises:
            CorruptMetadataError, StoreBusyError, StoreAwayError, MetadataUnknownError: as `mark_missing`.
        """
        now_ms, everything = self._clock.wall_ms(), EntryRange(0, ID_MAX)

        more = [
            UnderReplicatedMark(MarkReason.GONE, bookie, everything, 0, self._name, now_ms)
            for bookie in bookies
        ]
        return await self._change_marks(
            stream_id, lambda known: replace(known, marks=merged(known.marks, more))
        )

    async def note_attempts(self, ledger_id: int, attempts: RepairAttempts) -> int:
        """Store what an attempt to repair a ledger left, with its marks, for operators.

        Returns:
            The version of the ledger's marks.

        Raises:
            CorruptMetadataError, StoreBusyError, StoreAwayError, MetadataUnknownError: as `mark_missing`.
        """
        noted = replace(attempts, tried_by=self._name, tried_ms=self._clock.wall_ms())
        return await self._change_marks(ledger_id, lambda known: replace(known, attempts=noted))

    async def marks(self, ledger_id: int) -> Stored[LedgerRepairs] | None:
        """Quire's marks of a ledger; None if there are none."""
        found = await self._store.get(repairs_key(ledger_id))
        return None if found is None else _stored(found, ledger_id, decode_repairs)

    async def marks_page(
        self, after: int | None = None, limit: int = LIST_LIMIT
    ) -> list[tuple[LedgerId, Stored[LedgerRepairs]]]:
        """Quire's marks, ascending by ledger; fewer than `limit` are the last page."""
        return await self._page(REPAIRS, None if after is None else repairs_key(after), limit, decode_repairs)

    async def remove_marks(self, ledger_id: int, found: Stored[LedgerRepairs]) -> bool:
        """Remove marks that were read; False if they were changed since: look at them again."""
        return await self._remove(repairs_key(ledger_id), found)

    async def marks_of(self, ledger_id: int) -> LedgerMarks:
        """All marks of a ledger."""
        return LedgerMarks(*await asyncio.gather(self.missing(ledger_id), self.marks(ledger_id)))

    async def end_marks(self, ledger_id: int, found: LedgerMarks) -> None:
        """Remove marks that were read before their ledger was found whole, or deleted: no worker would look again.

        What was changed since stays, as does what cannot be read.
        """
        if found.missing is not None and found.missing.flaw is None:
            await self.remove_missing(ledger_id, found.missing)
        if found.own is not None and found.own.flaw is None:
            await self.remove_marks(ledger_id, found.own)

    async def end_marks_of_deleted(self, ledger_id: int) -> None:
        """Remove the marks of a ledger or stream that was deleted; the deletion does not depend on it."""
        try:
            await self.end_marks(ledger_id, await self.marks_of(ledger_id))
        except QuireError as error:
            _LOG.warning("the repair marks of the deleted ledger %d cannot be removed: %s", ledger_id, error)

    def watch(self) -> tuple[Watch, Watch]:
        """Changes of marks: BookKeeper's, and Quire's."""
        return self._store.watch(MISSING), self._store.watch(REPAIRS)

    def watch_settings(self) -> tuple[Watch, Watch]:
        """Changes of the settings: whether auto-recovery is on, and the delay."""
        return self._store.watch(DISABLE), self._store.watch(LOST_DELAY)

    def watch_times(self) -> tuple[Watch, Watch]:
        """Changes of the time that bookies have been away, and read-only."""
        return self._store.watch(AWAY), self._store.watch(READ_ONLY_FOR)

    # --- what a decision marks ------------------------------------------------------------------------------------

    async def announce_audits(self) -> None:
        """Say that an auditor runs here: from then on who decides a fragment marks what bookies may lack of it."""
        with suppress(AlreadyExistsError):
            await self._store.create(AUDIT_OF_COPIES, b"")

    async def marking(
        self, record: LedgerMetadata, version: int, holes: Iterable[Hole], *, vouched: bool
    ) -> list[Op]:
        """What marks a ledger, to be stored in one transaction with the record that decides a fragment of it.

        A mark that says the same gets a new version: a worker that looked at the ledger before does not remove it.

        Args:
            record: the new record; `version`: which it replaces.
            holes: what bookies are known to lack.
            vouched: nothing else is missing, as its client knows; otherwise all decided entries may be, on any bookie.

        Returns:
            Nothing where the marks that are there cannot be read, or take no more: a decision does not fail because of them.
        """
        ledger_id, now_ms, decided = record.ledger_id, self._clock.wall_ms(), int(record.decided_through)
        lacking = [(hole.bookie, EntryRange(hole.first, hole.last)) for hole in holes]
        lacking += [] if vouched or decided < 0 else [(ANY_BOOKIE, EntryRange(0, decided))]
        more = [
            UnderReplicatedMark(MarkReason.HOLE, bookie, entries, version, self._name, now_ms)
            for bookie, entries in lacking
        ]
        if not more:
            return []
        try:
            found = await get_unparsed(self._store, repairs_key(ledger_id))
            known = LedgerRepairs(()) if found is None else decode_repairs(found.value, ledger_id)
            value = encode_repairs(replace(known, marks=merged(known.marks, more)), ledger_id)
        except QuireError as error:
            _LOG.warning("ledger %d is not marked for repair: %s", ledger_id, error)
            return []
        return [putting(repairs_key(ledger_id), value, found)]

    # --- who repairs -------------------------------------------------------------------------------------------------

    async def lock(self, ledger_id: int) -> Registration:
        """Lock a ledger, so that two workers do not copy the same. Advice: the lock may be lost while its owner lives.

        Raises:
            AlreadyExistsError: another worker, of Quire or of Java, has it.
        """
        return await self._store.register(lock_key(ledger_id), encode_holder(self._name), again=False)

    async def locks(self) -> dict[LedgerId, str]:
        """Which ledgers are locked, and by whom; an owner that cannot be read is ""."""
        found: dict[LedgerId, str] = {}
        async for key, value in every_key(self._store, LOCKS):
            ledger_id = ledger_of(key)
            if ledger_id is not None:
                found[LedgerId(ledger_id)] = ""
                with suppress(CorruptMetadataError):
                    found[LedgerId(ledger_id)] = decode_holder(value.value, key)
        return found

    async def register_worker(self, state: RepairWorkerState) -> Registration:
        """Say that a worker is there.

        Raises:
            AlreadyExistsError: another one of this name is.
        """
        return await self._store.register(worker_key(state.name), WORKER_CODEC.encode(state))

    async def update_worker(self, held: Registration, state: RepairWorkerState) -> None:
        """Say what a worker has done.

        Raises:
            KeyMissingError: its registration is lost or closed.
            MetadataUnknownError: the outcome is unknown.
        """
        await held.update(WORKER_CODEC.encode(state))

    async def workers(self) -> list[RepairWorkerState]:
        """The workers that are there, by name; of one that cannot be read the name is known."""
        found: list[RepairWorkerState] = []
        async for key, value in every_key(self._store, WORKERS):
            name = key.removeprefix(WORKERS)
            try:
                found.append(WORKER_CODEC.decode(value.value, name))
            except CorruptMetadataError:
                found.append(RepairWorkerState(name))
        return found

    # --- how long bookies have been away, or read-only -----------------------------------------------------------------

    async def times(self, state: CountedState) -> dict[BookieId, Stored[AwayCount]]:
        """What auditors have counted, by bookie."""
        found: dict[BookieId, Stored[AwayCount]] = {}
        folder, _ = _TIMES[state]
        async for key, value in every_key(self._store, folder):
            bookie = BookieId(key.removeprefix(folder))
            found[bookie] = _stored(value, bookie, AWAY_CODEC.decode)
        return found

    async def count_time(
        self, state: CountedState, bookie: BookieId, seconds: int, version: int | None
    ) -> int:
        """Store how long a bookie has been in a state.

        Args:
            state: which.
            bookie: of which bookie.
            seconds: all together.
            version: what is replaced; None: nothing was counted yet. What cannot be read may be replaced too.

        Returns:
            The new version.

        Raises:
            VersionConflictError, AlreadyExistsError: another auditor has counted.
            MetadataUnknownError: it may be stored.
        """
        value = AWAY_CODEC.encode(AwayCount(bookie, seconds, self._name))
        key = _TIMES[state][1](bookie)
        if version is None:
            return await self._store.create(key, value)
        return await self._store.put(key, value, version)

    async def end_count(self, state: CountedState, bookie: BookieId, found: Stored[AwayCount]) -> bool:
        """The state is over; False if another auditor has counted since."""
        return await self._remove(_TIMES[state][1](bookie), found)

    # --- settings of the cluster, which Java's programs share --------------------------------------------------------

    async def is_enabled(self) -> bool:
        """Whether auditors mark and workers repair."""
        return await self._store.get(DISABLE) is None

    async def set_enabled(self, enabled: bool) -> None:
        """Switch auto-recovery on or off, in the whole cluster."""
        with suppress(AlreadyExistsError, KeyMissingError):
            if enabled:
                await self._store.delete(DISABLE)
            else:
                await self._store.create(DISABLE, b"")

    async def lost_delay_s(self) -> int:
        """How long a bookie may be away before its copies are made anew, in seconds.

        Raises:
            CorruptMetadataError: the setting cannot be read.
        """
        found = await self._store.get(LOST_DELAY)
        return LOST_DELAY_S if found is None else decode_delay(found.value)

    async def lost_delay_in_use_s(self) -> int:
        """That delay for programs that cannot stop: where it cannot be read, the default."""
        try:
            return await self.lost_delay_s()
        except CorruptMetadataError as error:
            _LOG.warning("the delay of lost bookies is taken as %d s: %s", LOST_DELAY_S, error)
            return LOST_DELAY_S

    async def set_lost_delay_s(self, seconds: int) -> None:
        """Set that delay.

        Raises:
            MisuseError: it is below 0, or too long.
            StoreBusyError: it was changed again and again.
        """
        if not 0 <= seconds <= SECONDS_MAX:
            raise MisuseError(f"a bookie may be away for 0 to {SECONDS_MAX} seconds, not {seconds}")

        async def once(_: bool) -> Sequence[int]:
            found = await self._store.get(LOST_DELAY)
            return await self._store.multi([putting(LOST_DELAY, encode_delay(seconds), found)])

        await settled(once, LOST_DELAY, "set", again=True)

    # --- inside ------------------------------------------------------------------------------------------------------

    async def _change_marks(self, ledger_id: int, change: Callable[[LedgerRepairs], LedgerRepairs]) -> int:
        return await self._merge(
            repairs_key(ledger_id),
            ledger_id,
            decode_repairs,
            lambda repairs: encode_repairs(repairs, ledger_id),
            lambda found: change(found or LedgerRepairs(())),
        )

    async def _merge(
        self,
        key: str,
        ledger_id: int,
        decode: Callable[[bytes, int], M],
        encode: Callable[[M], bytes],
        change: Callable[[M | None], M],
    ) -> int:
        """Make a mark, or change the one that is there. A lost response is settled by doing it again: it adds nothing.

        One that says the same is stored as well: it gets a new version, so that a worker that looked at the ledger before
        does not remove it.

        Most ledgers that are marked have no mark: it is made first, and looked for where there is one.
        """
        looks = False

        async def once(_: bool) -> int:
            nonlocal looks
            found, looks = await self._store.get(key) if looks else None, True
            wanted = change(None if found is None else decode(found.value, ledger_id))
            return (await self._store.multi([putting(key, encode(wanted), found)]))[0]

        return await settled(once, f"the mark {key}", "made", again=True, key=key)

    async def _page(
        self, prefix: str, after: str | None, limit: int, decode: Callable[[bytes, int], M]
    ) -> list[tuple[LedgerId, Stored[M]]]:
        """A page of marks; keys that name no ledger are left out, and the page goes on behind them."""
        found: list[tuple[LedgerId, Stored[M]]] = []
        while (wanted := limit - len(found)) > 0:
            page = await self._store.list(prefix, after=after, limit=wanted)
            for key, value in page:
                ledger_id = ledger_of(key)
                if ledger_id is not None:
                    found.append((LedgerId(ledger_id), _stored(value, ledger_id, decode)))
            if len(page) < wanted:
                break
            after = page[-1][0]
        return found

    async def _remove(self, key: str, found: Stored[Any]) -> bool:
        now = await get_unparsed(self._store, key)
        if now is None:
            return True
        if now.revision != found.revision:
            return False
        try:
            await self._store.delete(key, found.version)
        except KeyMissingError:
            return True
        except VersionConflictError:
            return False
        return True


K = TypeVar("K", int, BookieId)


def _stored(found: Versioned, owner: K, decode: Callable[[bytes, K], M]) -> Stored[M]:
    try:
        return Stored(decode(found.value, owner), found.version, found.revision)
    except CorruptMetadataError as error:
        return Stored(None, found.version, found.revision, error)
