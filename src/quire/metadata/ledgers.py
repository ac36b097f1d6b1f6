"""The records of ledgers in a metadata store: one key a ledger, changed by compare-and-swap only.

Source: BookKeeper protocol, "Ledgers": the metadata of a ledger is kept in a store with compare-and-swap.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from quire.core.errors import (
    AlreadyExistsError,
    CorruptMetadataError,
    MetadataUnknownError,
    MisuseError,
    NoSuchLedgerError,
    RefusedError,
)
from quire.core.ids import ID_MAX, LedgerId
from quire.core.ledger.holes import with_holes
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.notes import NO_NOTES, LedgerNotes
from quire.core.ledger.writer_state import Hole
from quire.env.interfaces import Clock
from quire.env.real import RealClock
from quire.metadata.keys import ledger_notes_key, stream_key, tombstone_key
from quire.metadata.patience import pause_after
from quire.metadata.records import ATTEMPTS_MAX, add_holes_to
from quire.metadata.repairs import RepairStore
from quire.metadata.store import (
    LIST_LIMIT,
    Create,
    Delete,
    KeyMissingError,
    MetadataStore,
    Op,
    Put,
    Require,
    StoreBusyError,
    VersionConflictError,
    Versioned,
    Watch,
)
from quire.metadata.tombstones import (
    end_tombstones,
    get_unparsed,
    token_of,
    tombstone_in,
    tombstone_op,
    tombstones_after,
)
from quire.wire import ledger_metadata
from quire.wire.ledger_notes import (
    PLAIN_RECORD,
    decode_notes,
    encode_notes,
    notes_of_record,
    record_with_notes,
)
from quire.wire.store_records import Tombstone

PREFIX: Final = "ledgers/"


def ledger_key(ledger_id: int) -> str:
    """The key of a ledger's record; keys sort like their ids."""
    if not 0 <= ledger_id <= ID_MAX:
        raise MisuseError(f"{ledger_id} is no ledger id: they go from 0 to {ID_MAX}", ledger_id=ledger_id)
    return f"{PREFIX}{ledger_id:019d}"


def _ledger_id(key: str) -> LedgerId:
    digits = key.removeprefix(PREFIX)
    if len(digits) != 19 or not (digits.isascii() and digits.isdecimal()):
        raise CorruptMetadataError(
            f"the key {key} names no ledger; remove it from the metadata store", key=key
        )
    return LedgerId(int(digits))


class LedgerStore:
    """Ledger records over a metadata store.

    Args:
        store: the cluster's.
        clock: for the wall time in tombstones, which people read.
    """

    def __init__(self, store: MetadataStore, clock: Clock | None = None) -> None:
        self._store = store
        self._clock = clock or RealClock()

    def repairs(self, name: str) -> RepairStore:
        """Under-replicated marks in the same store; `name` is how people know who marks."""
        return RepairStore(self._store, self._clock, name)

    async def next_id(self) -> LedgerId:
        """An id that no ledger had or will have."""
        return await self._store.next_ledger_id()

    async def create(self, record: LedgerMetadata) -> int:
        """Store a new ledger's record.

        A lost response is settled here: the record found is ours if its tokens are. So give every record that is created
        random ones.

        Returns:
            The version to name at the next change, which conflicts where another client has changed the record already.

        Raises:
            AlreadyExistsError: another ledger has the id, or a stream.
            MetadataUnknownError: the outcome is unknown, even after reading again.
        """
        of_stream = stream_key(record.ledger_id)
        key, value = ledger_key(record.ledger_id), ledger_metadata.serialize(record)
        # Notes of an earlier ledger of this id, that Java deleted, are not this one's.
        clean = NO_NOTES if record.format_version == PLAIN_RECORD else None
        unknown: MetadataUnknownError | None = None
        for attempt in range(ATTEMPTS_MAX):
            if attempt:
                await pause_after(attempt)
            noted = await self._change_of_notes(record.ledger_id, clean)
            try:
                return (await self._store.multi([Create(key, value), Require(of_stream, None), *noted]))[0]
            except MetadataUnknownError as error:
                unknown = error
            except (VersionConflictError, AlreadyExistsError) as error:
                if error.ids.get("key") == of_stream:
                    msg = f"the id {record.ledger_id} is a stream already; use another id"
                    raise AlreadyExistsError(msg, ledger_id=record.ledger_id) from error
                if isinstance(error, VersionConflictError):
                    continue  # another client removes the notes
                found = await self._store.get(key) if unknown and record.creation_token else None
                if found is not None and found.value == value:
                    return found.version
                if found is not None and record.token and token_of(found, record.ledger_id) == record.token:
                    return found.version - 1
                raise AlreadyExistsError(
                    f"ledger {record.ledger_id} already exists; use another id", ledger_id=record.ledger_id
                ) from error
        raise self._unknown(record.ledger_id, unknown)

    async def read(self, ledger_id: int) -> tuple[LedgerMetadata, int]:
        """A ledger's record and the version to name when changing it.

        Raises:
            NoSuchLedgerError: there is none (any more), or the id is a stream's.
            CorruptMetadataError: the stored value is not a record.
        """
        found = await self._store.get(ledger_key(ledger_id))
        if found is None:
            if await get_unparsed(self._store, stream_key(ledger_id)) is not None:
                msg = f"{ledger_id} is a stream and no ledger; open it by its name as a stream"
                raise NoSuchLedgerError(msg, ledger_id=ledger_id)
            raise self._missing(ledger_id)
        return ledger_metadata.parse(found.value, ledger_id), found.version

    def cached(self, ledger_id: int) -> LedgerMetadata | None:
        """A ledger's record from this process's memory, possibly an older one. None: only `read` has it."""
        found = self._store.cached(ledger_key(ledger_id))
        try:
            return ledger_metadata.parse(found.value, ledger_id) if found else None
        except CorruptMetadataError:
            return None

    async def write(self, record: LedgerMetadata, version: int) -> int:
        """Replace the record that has a version.

        A lost response is settled here, by reading: a record equal to this one counts as written, by this client or
        another.

        Returns:
            The new version.

        Raises:
            VersionConflictError: it was changed meanwhile; read it and decide again.
            NoSuchLedgerError: it was deleted meanwhile.
            MetadataUnknownError: the outcome is unknown, even after reading again.
        """
        return await self._cas(record, version, None)

    async def _cas(self, record: LedgerMetadata, version: int, notes: LedgerNotes | None) -> int:
        """Replace a record, and with `notes` its notes in the same transaction."""
        # As in Java: the token belongs to the creation alone.
        value = ledger_metadata.serialize(replace(record, creation_token=0))
        key = ledger_key(record.ledger_id)
        unknown: MetadataUnknownError | None = None
        for attempt in range(ATTEMPTS_MAX):
            if attempt:
                await pause_after(attempt)
            noted = await self._change_of_notes(record.ledger_id, notes)
            try:
                return (await self._store.multi([Put(key, value, version), *noted]))[0]
            except MetadataUnknownError as error:
                unknown = error
            except (VersionConflictError, AlreadyExistsError) as error:
                if error.ids.get("key") != key:
                    continue  # the notes were changed meanwhile, and with them the record
                if isinstance(error, KeyMissingError):
                    raise self._missing(record.ledger_id) from error
                found = await self._store.get(key) if unknown else None
                if (
                    found is not None
                    and found.value == value
                    and not await self._change_of_notes(record.ledger_id, notes)
                ):
                    return found.version
                raise self._conflict(record.ledger_id, version) from error
        raise self._unknown(record.ledger_id, unknown)

    # --- notes ---------------------------------------------------------------------------------------------------

    async def read_with_notes(self, ledger_id: int) -> tuple[LedgerMetadata, LedgerNotes, int]:
        """A ledger's record, its holes and accepted losses of the same moment, and the version to name.

        Raises:
            NoSuchLedgerError: there is none (any more).
            CorruptMetadataError: the record or the notes cannot be read.
            StoreBusyError: the record was changed again and again.
        """
        for _ in range(ATTEMPTS_MAX):
            record, version = await self.read(ledger_id)
            if record.format_version != PLAIN_RECORD:
                return record, notes_of_record(record), version
            noted = await self._store.get(ledger_notes_key(ledger_id))
            if await self.read(ledger_id) == (record, version):
                return record, NO_NOTES if noted is None else decode_notes(noted.value, ledger_id), version
        raise StoreBusyError(
            f"the record of ledger {ledger_id} was changed {ATTEMPTS_MAX} times while its notes were read; try again",
            ledger_id=ledger_id,
        )

    async def write_with_notes(self, record: LedgerMetadata, notes: LedgerNotes, version: int) -> int:
        """Replace the record that has a version, and its notes with it: both or neither.

        Notes change only together with the record, so the record's version is that of both. A lost response is settled
        as in `write`.

        Args:
            record: the new record; notes in its custom metadata are replaced.
            notes: all of them; `NO_NOTES` takes away those that are there.
            version: what `read_with_notes` gave.

        Returns:
            The new version.

        Raises:
            MisuseError: the notes are not possible, or longer than a record may hold.
            VersionConflictError, NoSuchLedgerError, MetadataUnknownError: as `write`.
        """
        if record.format_version == PLAIN_RECORD:
            return await self._cas(record, version, notes)
        return await self._cas(record_with_notes(record, notes), version, None)

    async def write_with_holes(self, record: LedgerMetadata, holes: Iterable[Hole], version: int) -> int:
        """Replace the record that has a version, with these holes among the notes that its ledger has.

        Args:
            record: the new record, made from the one of this version: notes in its custom metadata stay.
            holes: what bookies that it names may lack.
            version: which it replaces.

        Returns:
            The new version.

        Raises:
            MisuseError: the notes would be longer than a record may hold.
            VersionConflictError, NoSuchLedgerError, MetadataUnknownError: as `write`.
        """
        if record.format_version != PLAIN_RECORD:
            notes = notes_of_record(record)
        else:
            noted = await self._store.get(ledger_notes_key(record.ledger_id))
            notes = NO_NOTES if noted is None else decode_notes(noted.value, record.ledger_id)
        return await self.write_with_notes(record, with_holes(notes, record, holes), version)

    async def add_holes(self, ledger_id: int, holes: Sequence[Hole]) -> None:
        """Put holes among the notes of a ledger, whatever else becomes of its record meanwhile.

        A record that another client is recovering is left alone: its fragments may change until it is closed.

        Raises:
            MisuseError: the notes would be longer than a record may hold.
            NoSuchLedgerError: there is none (any more).
            StoreBusyError: the record was changed again and again.
            MetadataUnknownError: the outcome is unknown.
        """
        await add_holes_to(self, "ledger", ledger_id, holes)

    async def _change_of_notes(self, ledger_id: int, notes: LedgerNotes | None) -> list[Op]:
        """What makes the record of notes say this; nothing if it does, or if `notes` is None: whatever it says."""
        if notes is None:
            return []
        key = ledger_notes_key(ledger_id)
        value = None if notes == NO_NOTES else encode_notes(notes, ledger_id)
        found = await self._store.get(key)
        if found is None:
            return [] if value is None else [Create(key, value)]
        if found.value == value:
            return []
        return [Delete(key, found.version) if value is None else Put(key, value, found.version)]

    # --- deletion ------------------------------------------------------------------------------------------------

    async def delete(
        self, ledger_id: int, version: int | None = None, *, guards: Sequence[Require] = ()
    ) -> None:
        """Delete a ledger: in one transaction its record and its notes go, and a tombstone is made.

        Bookies drop the entries when they see the tombstone. A record that cannot be read can be deleted too; then the
        tombstone names no token, and what bookies hold is kept until an operator has it dropped. Its under-replicated marks go with
        it, if the store responds: a worker that waits for something that will not come would not look again.

        Args:
            ledger_id: the ledger.
            version: the version that its record must have; None: whatever it is.
            guards: what must hold of other keys at the moment of the deletion.

        Raises:
            VersionConflictError: the record has another version, or a guard does not hold: its key is in `ids["key"]`.
            NoSuchLedgerError: there is none (any more); after a lost response that may have been this call.
            MetadataUnknownError: the outcome is unknown, even after reading again.
            StoreBusyError: the record was changed again and again.
        """
        await self._delete_record(ledger_id, version, guards)
        await self.repairs("").end_marks_of_deleted(ledger_id)

    async def _delete_record(self, ledger_id: int, version: int | None, guards: Sequence[Require]) -> None:
        guarded = {guard.key for guard in guards}
        tombstone: Versioned | None = None
        lost: int | None = None
        unknown: MetadataUnknownError | None = None
        for attempt in range(ATTEMPTS_MAX):
            if attempt:
                await pause_after(attempt)
            found = await get_unparsed(self._store, ledger_key(ledger_id))
            if found is None or (version is not None and found.version != version):
                if lost is not None and await self._was_deleted(ledger_id, lost):
                    return
                raise self._missing(ledger_id) if found is None else self._conflict(ledger_id, version)
            ops = await self._deletion(ledger_id, found, tombstone)
            try:
                await self._store.multi([*guards, *ops])
            except MetadataUnknownError as error:
                lost, unknown = found.version, error
            except (VersionConflictError, AlreadyExistsError) as error:
                if error.ids.get("key") in guarded:
                    raise
                tombstone = await get_unparsed(self._store, tombstone_key(ledger_id))
            else:
                return
        if lost is not None:
            raise self._unknown(ledger_id, unknown)
        raise StoreBusyError(
            f"the record of ledger {ledger_id} was changed {ATTEMPTS_MAX} times while it was to be deleted; try again",
            ledger_id=ledger_id,
        )

    async def _deletion(self, ledger_id: int, found: Versioned, tombstone: Versioned | None) -> list[Op]:
        """What deletes a record that was found, where a tombstone of an earlier ledger of this id may stand."""
        token = token_of(found, ledger_id)
        before = tombstone_in(tombstone, ledger_id)
        made = Tombstone(
            LedgerId(ledger_id),
            token,
            self._clock.wall_ms(),
            found.version,
            # An operator's order is for all that there is under the id, and bookies may not have acted on it yet.
            by_hand=before is not None and before.by_hand,
        )
        ops: list[Op] = [Delete(ledger_key(ledger_id), found.version), tombstone_op(made, tombstone)]
        if (
            token == 0
        ):  # records of format 1 have no token, and they alone have notes under a key of their own
            notes = await get_unparsed(self._store, ledger_notes_key(ledger_id))
            ops += [] if notes is None else [Delete(ledger_notes_key(ledger_id), notes.version)]
        return ops

    async def _was_deleted(self, ledger_id: int, version: int) -> bool:
        made = tombstone_in(await get_unparsed(self._store, tombstone_key(ledger_id)), ledger_id)
        return made is not None and made.record_version == version

    async def delete_orphan(self, ledger_id: int) -> None:
        """Have bookies drop what they hold of a ledger that has no record, whatever token it has: an operator's order.

        Raises:
            RefusedError: the ledger has a record, or the id is a stream's; nothing was changed.
            MetadataUnknownError: the outcome is unknown; call again.
            StoreBusyError: its tombstone was changed again and again.
        """
        key, of_stream = ledger_key(ledger_id), stream_key(ledger_id)
        for _ in range(ATTEMPTS_MAX):
            stands = await get_unparsed(self._store, tombstone_key(ledger_id))
            before = tombstone_in(stands, ledger_id)
            token, version = (before.token, before.record_version) if before else (0, 0)
            made = Tombstone(LedgerId(ledger_id), token, self._clock.wall_ms(), version, by_hand=True)
            try:
                orphaned = Require(key, None), Require(of_stream, None)
                await self._store.multi([*orphaned, tombstone_op(made, stands)])
            except (VersionConflictError, AlreadyExistsError) as error:
                if error.ids.get("key") == key:
                    raise RefusedError(
                        f"ledger {ledger_id} has a record and is not an orphan; delete it with `quire "
                        f"ledger delete {ledger_id}`",
                        ledger_id=ledger_id,
                    ) from error
                if error.ids.get("key") == of_stream:
                    raise RefusedError(
                        f"{ledger_id} is a stream, which has a record, and is not an orphan; find its name with `quire "
                        "stream list` and delete it with `quire stream delete NAME`",
                        ledger_id=ledger_id,
                    ) from error
            else:
                return
        raise StoreBusyError(
            f"the tombstone of ledger {ledger_id} was changed {ATTEMPTS_MAX} times while it was to be written; try again",
            ledger_id=ledger_id,
        )

    async def tombstones(
        self, after: int | None = None, limit: int = LIST_LIMIT
    ) -> Sequence[tuple[LedgerId, Versioned]]:
        """Tombstones, ascending, with the stored values, which are not parsed: a damaged one must not hide the others.

        Args:
            after: only of ids above this one: the last of the page before.
            limit: most of them in a page; fewer are the last page.
        """
        return await tombstones_after(self._store, after, limit)

    async def end_tombstones(self, ended: Iterable[tuple[int, int]]) -> int:
        """Delete tombstones, each if it has its version; one that has not, or is deleted, does not stop the others.

        Args:
            ended: ledger ids and the versions of their tombstones.

        Returns:
            How many were deleted; one whose response was lost may have been, too.

        Raises:
            StoreAwayError: the store did not respond; some may have been deleted.
        """
        return await end_tombstones(self._store, ended)

    # --- lists ---------------------------------------------------------------------------------------------------

    async def list(self, after: int | None = None, limit: int = LIST_LIMIT) -> list[LedgerId]:
        """Ids of ledgers, ascending.

        Args:
            after: only ids above this one: the last of the page before.
            limit: most of them in a page; fewer are the last page.
        """
        page = await self._store.list(PREFIX, after=None if after is None else ledger_key(after), limit=limit)
        return [_ledger_id(key) for key, _ in page]

    async def page(
        self, after: int | None = None, limit: int = LIST_LIMIT
    ) -> Sequence[tuple[LedgerId, Versioned]]:
        """As `list`, with the stored values, which are not parsed: a damaged one must not hide the others."""
        page = await self._store.list(PREFIX, after=None if after is None else ledger_key(after), limit=limit)
        return [(_ledger_id(key), value) for key, value in page]

    def watch(self, ledger_id: int) -> Watch:
        """Changes of one ledger's record."""
        return self._store.watch(ledger_key(ledger_id))

    @staticmethod
    def _missing(ledger_id: int) -> NoSuchLedgerError:
        return NoSuchLedgerError(
            f"ledger {ledger_id} does not exist: it was deleted, or never created in this cluster",
            ledger_id=ledger_id,
        )

    @staticmethod
    def _conflict(ledger_id: int, version: int | None) -> VersionConflictError:
        return VersionConflictError(
            f"the record of ledger {ledger_id} no longer has version {version}; read it and decide again",
            ledger_id=ledger_id,
        )

    @staticmethod
    def _unknown(ledger_id: int, last: MetadataUnknownError | None) -> MetadataUnknownError:
        return MetadataUnknownError(
            f"the outcome of writing the record of ledger {ledger_id} was unknown {ATTEMPTS_MAX} times ({last or 'its notes changed'}); read the "
            "record before doing anything else",
            ledger_id=ledger_id,
        )
