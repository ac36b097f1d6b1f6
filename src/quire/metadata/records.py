"""The records of ledgers and of streams in a metadata store: one key a record, changed by compare-and-swap only.

Streams and ledgers share one id space, and an id is one or the other. Streams have a second key, their name, and do not stand
among BookKeeper's records: Java's auditor ends its audit at a record that it cannot read, and a Java client's recovery
would close a stream.

A bookie does not know which of the two a request means before it has read a record, and it keeps what has either.

Source: BookKeeper protocol, "Ledgers": the metadata of a ledger is kept in a store with compare-and-swap;
docs/formats/stream.md; docs/protocol/collection.md; Vanlightly's unbounded ledgers, "Protocol changes for unbounded ledgers".
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeAlias, TypeVar

from quire.core.errors import (
    AlreadyExistsError,
    CorruptMetadataError,
    MisuseError,
    NoSuchLedgerError,
    NoSuchStreamError,
    RefusedError,
)
from quire.core.ids import ID_MAX, LedgerId
from quire.core.ledger.holes import with_holes
from quire.core.ledger.metadata import LedgerMetadata, LedgerState
from quire.core.ledger.notes import NO_NOTES, LedgerNotes
from quire.core.ledger.writer_state import Hole
from quire.env.interfaces import Clock
from quire.env.real import RealClock
from quire.metadata.keys import (
    AUDIT_OF_COPIES,
    LEDGERS,
    STREAM_NAMES,
    STREAMS,
    ledger_notes_key,
    ledger_of,
    repairs_key,
    stream_name_key,
    tombstone_key,
)
from quire.metadata.paging import every_key
from quire.metadata.repairs import RepairStore
from quire.metadata.retries import settled
from quire.metadata.store import (
    LIST_LIMIT,
    Create,
    Delete,
    KeyMissingError,
    MetadataStore,
    Op,
    Put,
    Require,
    VersionConflictError,
    Versioned,
    Watch,
    id_key,
    putting,
)
from quire.metadata.tombstones import get_unparsed, token_of, tombstone_in, tombstone_op
from quire.wire import ledger_metadata
from quire.wire.ledger_notes import (
    PLAIN_RECORD,
    decode_notes,
    encode_notes,
    notes_of_record,
    record_with_notes,
)
from quire.wire.store_records import Tombstone
from quire.wire.stream_metadata import decode_stream, decode_stream_name, encode_stream, encode_stream_name

NotedRecord: TypeAlias = tuple[LedgerMetadata, LedgerNotes, int]
"""A record, its notes of the same moment, and the version to name."""
T = TypeVar("T")
MARKS_TRIED_MAX: Final = 3
"""After so many conflicts with the marks of a ledger its record is written without one; a later audit finds what is missing."""
DECIDER: Final = "who decided the fragment"
"""How marks name the client that made them with a record."""

ATTEMPTS_MAX: Final = 5
"""How often a record is read or written that others change meanwhile."""


@dataclass(frozen=True, slots=True)
class RecordKind:
    """What the records of ledgers and those of streams differ in.

    Attributes:
        word: what has such a record.
        prefix: of their keys.
        encode, decode: the bytes.
        missing: the error where there is no record.
        opened: how users open what has one.
    """

    word: str
    prefix: str
    encode: Callable[[LedgerMetadata], bytes]
    decode: Callable[[bytes, int], LedgerMetadata]
    missing: type[NoSuchLedgerError | NoSuchStreamError]
    opened: str

    @property
    def other(self) -> RecordKind:
        """The other kind, which has no record of the same id."""
        return OF_STREAMS if self is OF_LEDGERS else OF_LEDGERS

    def key(self, ledger_id: int) -> str:
        """Of a record; keys sort like their ids."""
        return id_key(self.prefix, ledger_id)

    def no_such(self, ledger_id: int) -> NoSuchLedgerError | NoSuchStreamError:
        """There is no record of an id."""
        msg = f"{self.word} {ledger_id} does not exist: it was deleted, or never created in this cluster"
        return self.missing(msg, ledger_id=ledger_id)


OF_LEDGERS: Final = RecordKind(
    "ledger",
    LEDGERS,
    ledger_metadata.serialize,
    ledger_metadata.parse,
    NoSuchLedgerError,
    "as a ledger",
)
OF_STREAMS: Final = RecordKind(
    "stream", STREAMS, encode_stream, decode_stream, NoSuchStreamError, "by its name as a stream"
)


class RecordStore:
    """The records of one kind over a metadata store.

    Args:
        store: the cluster's.
        kind: ledgers' or streams'.
        clock: for the wall time in tombstones, which people read.
    """

    def __init__(self, store: MetadataStore, kind: RecordKind, clock: Clock | None = None) -> None:
        self._store, self._kind = store, kind
        self._clock = clock or RealClock()
        self._audited = False  # an auditor was seen to have run; it stays so

    async def next_id(self) -> LedgerId:
        """An id that no ledger and no stream had or will have."""
        return await self._store.next_ledger_id()

    async def create(self, record: LedgerMetadata, name: str | None = None) -> int:
        """Store a new record, and a stream's name: both or neither.

        A lost response is settled here: the record found is ours if its tokens are. So give every record that is created
        random ones.

        Returns:
            The version to name at the next change, which conflicts where another client has changed the record already.

        Raises:
            AlreadyExistsError: a ledger or a stream has the id, or another stream the name (`ids["stream"]`).
            MetadataUnknownError: the outcome is unknown, even after reading again.
            MisuseError: the name cannot be a key, or the record is of the other kind.
        """
        ledger_id, kind, other = record.ledger_id, self._kind, self._kind.other
        key, value = kind.key(ledger_id), kind.encode(record)
        ops: list[Op] = [Create(key, value), Require(other.key(ledger_id), None)]
        if name is not None:
            ops.append(Create(stream_name_key(name), encode_stream_name(ledger_id)))
        # Notes of an earlier ledger of this id, that Java deleted, are not this one's.
        clean = NO_NOTES if record.format_version == PLAIN_RECORD else None

        async def once(lost: bool) -> int | None:
            noted = await self._change_of_notes(ledger_id, clean)
            try:
                return (await self._store.multi([*ops, *noted]))[0]
            except (VersionConflictError, AlreadyExistsError) as error:
                refused = error.ids.get("key")
                if refused == ledger_notes_key(ledger_id):
                    return None  # another client removes the notes
                found = await self._store.get(key) if lost and record.creation_token else None
                if found is not None and found.value == value:
                    return found.version
                if found is not None and record.token and self._token_of(found, ledger_id) == record.token:
                    return found.version - 1
                if name is not None and refused == stream_name_key(name):
                    msg = (
                        f"the name {name!r} is taken by another stream; use another name, or open that stream"
                    )
                    raise AlreadyExistsError(msg, stream=name) from error
                word = other.word if refused == other.key(ledger_id) else kind.word
                msg = f"the id {ledger_id} is a {word} already; use another id"
                raise AlreadyExistsError(msg, ledger_id=ledger_id) from error

        return await self._settled(once, ledger_id, "written")

    async def read(self, ledger_id: int) -> tuple[LedgerMetadata, int]:
        """A record and the version to name when changing it.

        Raises:
            NoSuchLedgerError, NoSuchStreamError: there is none (any more), or the id is of the other kind.
            CorruptMetadataError: the stored value is not a record.
        """
        found = await self._store.get(self._kind.key(ledger_id))
        if found is None:
            raise await self._missing(ledger_id)
        return self._kind.decode(found.value, ledger_id), found.version

    def cached(self, ledger_id: int) -> LedgerMetadata | None:
        """A record from this process's memory, possibly an older one. None: only `read` has it."""
        found = self._store.cached(self._kind.key(ledger_id))
        try:
            return self._kind.decode(found.value, ledger_id) if found else None
        except CorruptMetadataError:
            return None

    async def write(self, record: LedgerMetadata, version: int, *, vouched: bool = True) -> int:
        """Replace the record that has a version.

        A lost response is settled here, by reading: a record equal to this one counts as written, by this client or
        another.

        Args:
            record: the new one.
            version: which it replaces.
            vouched: its client knows that every bookie has all of the fragments that it decides. If not, the ledger is marked
                for repair in the same transaction, where an auditor of Quire has ever run.

        Returns:
            The new version.

        Raises:
            VersionConflictError: it was changed meanwhile; read it and decide again.
            NoSuchLedgerError, NoSuchStreamError: it was deleted meanwhile.
            MetadataUnknownError: the outcome is unknown, even after reading again: another client may have changed the
                record after this one did.
            MisuseError: the record is larger than it may be.
        """
        return await self._replace(record, version, None, vouched=vouched)

    async def _replace(
        self,
        record: LedgerMetadata,
        version: int,
        notes: LedgerNotes | None,
        *,
        holes: Sequence[Hole] = (),
        vouched: bool = True,
    ) -> int:
        """Replace a record, and with `notes` its notes, in the same transaction; mark what bookies may lack."""
        # As in Java: the token belongs to the creation alone.
        ledger_id, value = record.ledger_id, self._kind.encode(replace(record, creation_token=0))
        key = self._kind.key(ledger_id)

        marks_left = MARKS_TRIED_MAX

        async def once(lost: bool) -> int | None:
            nonlocal marks_left
            noted = await self._change_of_notes(ledger_id, notes)
            marked = await self._marking(record, version, holes, vouched=vouched) if marks_left else []
            try:
                return (await self._store.multi([Put(key, value, version), *noted, *marked]))[0]
            except MisuseError:
                if not marked:
                    raise
                marks_left = 0  # together they are too much for one transaction
                return None
            except (VersionConflictError, AlreadyExistsError) as error:
                if marked and error.ids.get("key") == repairs_key(ledger_id):
                    marks_left -= 1  # a decision does not wait for marks that keep changing
                    return None
                if error.ids.get("key") != key:
                    return None  # the notes were changed meanwhile, and with them the record
                if isinstance(error, KeyMissingError):
                    raise await self._missing(ledger_id) from error
                found = await self._store.get(key) if lost else None
                if (
                    found is not None
                    and found.value == value
                    and not await self._change_of_notes(ledger_id, notes)
                ):
                    return found.version
                raise self._conflict(ledger_id, version) from error

        return await self._settled(once, ledger_id, "written")

    # --- notes ---------------------------------------------------------------------------------------------------

    async def read_with_notes(self, ledger_id: int) -> NotedRecord:
        """A record, its holes and accepted losses of the same moment, and the version to name.

        Raises:
            NoSuchLedgerError, NoSuchStreamError: there is none (any more).
            CorruptMetadataError: the record or the notes cannot be read.
            StoreBusyError: the record was changed again and again.
        """
        if not (found := await self.if_any(ledger_id)):
            raise await self._missing(ledger_id)
        return found[0]

    async def if_any(self, ledger_id: int) -> list[NotedRecord]:
        """What `read_with_notes` returns; an empty list where there is no record."""
        key = self._kind.key(ledger_id)

        async def once(_: bool) -> list[NotedRecord] | None:
            found = await self._store.get(key)
            if found is None:
                return []
            record = self._kind.decode(found.value, ledger_id)
            notes = await self._notes_of(record)
            if record.format_version == PLAIN_RECORD and await self._store.get(key) != found:
                return None
            return [(record, notes, found.version)]

        return await self._settled(once, ledger_id, "read with its notes")

    async def _notes_of(self, record: LedgerMetadata) -> LedgerNotes:
        if record.format_version != PLAIN_RECORD:
            return notes_of_record(record)
        noted = await self._store.get(ledger_notes_key(record.ledger_id))
        return NO_NOTES if noted is None else decode_notes(noted.value, record.ledger_id)

    async def _marking(
        self, record: LedgerMetadata, version: int, holes: Sequence[Hole], *, vouched: bool
    ) -> list[Op]:
        """What marks the ledger for repair, as `RepairStore.marking`; nothing where no auditor has ever run."""
        if not holes and vouched:
            return []
        if not self._audited:
            with contextlib.suppress(RefusedError):
                self._audited = await self._store.get(AUDIT_OF_COPIES) is not None
            if not self._audited:
                return []
        marks = RepairStore(self._store, self._clock, DECIDER)
        return await marks.marking(record, version, holes, vouched=vouched)

    async def write_with_notes(
        self,
        record: LedgerMetadata,
        notes: LedgerNotes,
        version: int,
        *,
        holes: Sequence[Hole] = (),
        vouched: bool = True,
    ) -> int:
        """Replace the record that has a version, and its notes with it: both or neither.

        Notes change only together with the record, so the record's version is that of both. A lost response is settled
        as in `write`.

        Args:
            record: the new record; notes in its custom metadata are replaced.
            notes: all of them; `NO_NOTES` takes away those that are there.
            version: what `read_with_notes` gave.
            holes: those of the notes that are new; where there are some, the ledger is marked for repair.
            vouched: as of `write`, but for these.

        Returns:
            The new version.

        Raises:
            MisuseError: the notes are not possible, or longer than a record may hold.
            QuireError: as `write`.
        """
        if record.format_version == PLAIN_RECORD:
            return await self._replace(record, version, notes, holes=holes, vouched=vouched)
        noted = record_with_notes(record, notes)
        return await self._replace(noted, version, None, holes=holes, vouched=vouched)

    async def write_with_holes(
        self, record: LedgerMetadata, holes: Iterable[Hole], version: int, *, vouched: bool = True
    ) -> int:
        """Replace the record that has a version, with these holes among the notes that it has; mark the ledger for repair.

        Args:
            record: the new record, made from the one of this version: notes in its custom metadata stay.
            holes: what bookies that it names may lack.
            version: which it replaces.
            vouched: as of `write`, but for the holes.

        Returns:
            The new version.

        Raises:
            MisuseError: the notes would be longer than a record may hold.
            QuireError: as `write`.
        """
        some = list(holes)
        notes = with_holes(await self._notes_of(record), record, some)
        return await self.write_with_notes(record, notes, version, holes=some, vouched=vouched)

    async def add_holes(self, ledger_id: int, holes: Sequence[Hole]) -> None:
        """Put holes among the notes of a record, whatever else becomes of it meanwhile, and mark the ledger for repair.

        A record that another client is recovering or taking over is left alone: its fragments may change until the end
        of that.

        Raises:
            MisuseError: the notes would be longer than a record may hold.
            NoSuchLedgerError, NoSuchStreamError: there is none (any more).
            StoreBusyError: the record was changed again and again.
            MetadataUnknownError: the outcome is unknown.
        """

        async def once(_: bool) -> bool:
            record, notes, version = await self.read_with_notes(ledger_id)
            after = with_holes(notes, record, holes)
            if after == notes or record.state is LedgerState.IN_RECOVERY:
                return True
            try:
                await self.write_with_notes(record, after, version, holes=holes)
            except MisuseError:  # too many for the record: the mark alone says which they are
                await self._replace(record, version, None, holes=holes)
                raise
            return True

        await self._settled(once, ledger_id, "given its holes", again=True)

    async def _change_of_notes(self, ledger_id: int, notes: LedgerNotes | None) -> list[Op]:
        """What makes the record of notes say this; nothing if it does, or if `notes` is None: whatever it says."""
        if notes is None:
            return []
        key = ledger_notes_key(ledger_id)
        value = None if notes == NO_NOTES else encode_notes(notes, ledger_id)
        found = await self._store.get(key)
        if found is not None and value is None:
            return [Delete(key, found.version)]
        return [] if value is None or (found and found.value == value) else [putting(key, value, found)]

    # --- deletion ------------------------------------------------------------------------------------------------

    async def delete(
        self,
        ledger_id: int,
        version: int | None = None,
        *,
        guards: Sequence[Require] = (),
        name: str | None = None,
    ) -> None:
        """Delete a record: in one transaction it, its notes and a stream's name go, and a tombstone is made.

        Bookies drop the entries when they see the tombstone. A record that cannot be read can be deleted too; then the
        tombstone names no token, and what bookies hold is kept until an operator has it dropped. Its under-replicated marks go with
        it, if the store responds: a worker that waits for something that will not come would not look again.

        Args:
            ledger_id: of the ledger or stream.
            version: the version that its record must have; None: whatever it is.
            guards: what must hold of other keys at the moment of the deletion.
            name: the stream's.

        Raises:
            VersionConflictError: the record has another version, or a guard does not hold: its key is in `ids["key"]`.
            NoSuchLedgerError, NoSuchStreamError: there is none (any more).
            MetadataUnknownError: the outcome is unknown, even after reading again.
            StoreBusyError: the record was changed again and again.
        """
        guarded = {guard.key for guard in guards}
        tombstone: Versioned | None = None
        tried: int | None = None

        async def once(lost: bool) -> bool | None:
            nonlocal tombstone, tried
            found = await get_unparsed(self._store, self._kind.key(ledger_id))
            if found is None or (version is not None and found.version != version):
                if lost and tried is not None and await self._was_deleted(ledger_id, tried):
                    return True
                raise await self._missing(ledger_id) if found is None else self._conflict(ledger_id, version)
            ops, tried = await self._deletion(ledger_id, found, tombstone, name), found.version
            try:
                await self._store.multi([*guards, *ops])
            except (VersionConflictError, AlreadyExistsError) as error:
                if error.ids.get("key") in guarded:
                    raise
                tombstone = await get_unparsed(self._store, tombstone_key(ledger_id))
                return None
            return True

        await self._settled(once, ledger_id, "deleted")
        await RepairStore(self._store, self._clock, "").end_marks_of_deleted(ledger_id)

    async def _deletion(
        self, ledger_id: int, found: Versioned, tombstone: Versioned | None, name: str | None
    ) -> list[Op]:
        """What deletes a record that was found, where a tombstone of an earlier ledger of this id may stand."""
        token = self._token_of(found, ledger_id)
        before = tombstone_in(tombstone, ledger_id)
        made = Tombstone(
            LedgerId(ledger_id),
            token,
            self._clock.wall_ms(),
            found.version,
            # An operator's order is for all that there is under the id, and bookies may not have acted on it yet.
            by_hand=before is not None and before.by_hand,
        )
        ops: list[Op] = [Delete(self._kind.key(ledger_id), found.version), tombstone_op(made, tombstone)]
        # Records of format 1 have no token, and they alone have notes under a key of their own.
        others = [] if token else [ledger_notes_key(ledger_id)]
        for key in others if name is None else [*others, stream_name_key(name)]:
            if (there := await get_unparsed(self._store, key)) is not None:
                ops.append(Delete(key, there.version))
        return ops

    async def _was_deleted(self, ledger_id: int, version: int) -> bool:
        made = tombstone_in(await get_unparsed(self._store, tombstone_key(ledger_id)), ledger_id)
        return made is not None and made.record_version == version

    def _token_of(self, found: Versioned, ledger_id: int) -> int:
        return token_of(found, ledger_id, self._kind.decode)

    # --- names of streams ----------------------------------------------------------------------------------------

    async def find(self, name: str) -> LedgerId:
        """The id of the stream with a name.

        Raises:
            NoSuchStreamError: there is none.
            CorruptMetadataError: the stored value is not a stream's name.
        """
        found = await self._store.get(stream_name_key(name))
        if found is None:
            msg = f"there is no stream {name!r} in this cluster; create it first"
            raise NoSuchStreamError(msg, stream=name)
        return decode_stream_name(found.value, name)[0]

    async def names(self, after: str | None = None, limit: int = LIST_LIMIT) -> list[str]:
        """Names of streams, ascending.

        Args:
            after: only names above this one: the last of the page before.
            limit: most of them in a page; fewer are the last page.
        """
        last = None if after is None else stream_name_key(after)
        page = await self._store.list(STREAM_NAMES, after=last, limit=limit)
        return [key.removeprefix(STREAM_NAMES) for key, _ in page]

    async def names_of(self, ids: Iterable[int]) -> dict[int, str | None]:
        """The names of streams, by id: no records are read, and no more pages of names than are needed.

        Returns:
            None for an id that has no name, or one that cannot be read.
        """
        found: dict[int, str | None] = dict.fromkeys(ids)
        left = set(found)
        async with contextlib.aclosing(every_key(self._store, STREAM_NAMES)) as names:
            while left and (each := await anext(names, None)):
                name = each[0].removeprefix(STREAM_NAMES)
                with contextlib.suppress(CorruptMetadataError):  # `find` says it
                    ledger_id, _ = decode_stream_name(each[1].value, name)
                    if ledger_id in left:
                        found[ledger_id] = name
                        left.remove(ledger_id)
        return found

    # --- lists ---------------------------------------------------------------------------------------------------

    async def list(self, after: int | None = None, limit: int = LIST_LIMIT) -> list[LedgerId]:
        """Ids that have a record, ascending.

        Args:
            after: only ids above this one: the last of the page before.
            limit: most of them in a page; fewer are the last page.
        """
        return [ledger_id for ledger_id, _ in await self.page(after, limit)]

    async def page(
        self, after: int | None = None, limit: int = LIST_LIMIT
    ) -> Sequence[tuple[LedgerId, Versioned]]:
        """As `list`, with the stored values, which are not parsed: a damaged one must not hide the others.

        Raises:
            CorruptMetadataError: a key names none.
        """
        last = None if after is None else self._kind.key(after)
        page = await self._store.list(self._kind.prefix, after=last, limit=limit)
        return [(self._id_in(key), value) for key, value in page]

    async def parsed(
        self, after: int | None = None, limit: int = ID_MAX
    ) -> AsyncGenerator[tuple[LedgerId, LedgerMetadata | CorruptMetadataError]]:
        """The records with ids above one, ascending, at most so many; a damaged one does not hide the others."""
        while limit > 0:
            size = min(limit, LIST_LIMIT)
            page = await self.page(after, size)
            for ledger_id, stored in page:
                try:
                    yield ledger_id, self._kind.decode(stored.value, ledger_id)
                except CorruptMetadataError as error:
                    yield ledger_id, error
            if len(page) < size:
                return
            after, limit = page[-1][0], limit - size

    def _id_in(self, key: str) -> LedgerId:
        found = ledger_of(key)
        if found is None:
            msg = f"the key {key} names no {self._kind.word}; remove it from the metadata store"
            raise CorruptMetadataError(msg, key=key)
        return LedgerId(found)

    def watch(self, ledger_id: int) -> Watch:
        """Changes of one record."""
        return self._store.watch(self._kind.key(ledger_id))

    # --- outcomes ------------------------------------------------------------------------------------------------

    async def _settled(
        self, change: Callable[[bool], Awaitable[T | None]], ledger_id: int, done: str, *, again: bool = False
    ) -> T:
        what = f"the record of {self._kind.word} {ledger_id}"
        return await settled(change, what, done, again=again, attempts_max=ATTEMPTS_MAX, ledger_id=ledger_id)

    async def _missing(self, ledger_id: int) -> NoSuchLedgerError | NoSuchStreamError:
        word, other = self._kind.word, self._kind.other
        if await get_unparsed(self._store, other.key(ledger_id)) is not None:
            msg = f"{ledger_id} is a {other.word} and no {word}; open it {other.opened}"
            return self._kind.missing(msg, ledger_id=ledger_id)
        return self._kind.no_such(ledger_id)

    def _conflict(self, ledger_id: int, version: int | None) -> VersionConflictError:
        msg = f"the record of {self._kind.word} {ledger_id} no longer has version {version}; read it and decide again"
        return VersionConflictError(msg, ledger_id=ledger_id)


class ListedRecord(NamedTuple):
    """The stored record of a ledger or a stream. Its value is not looked at: a damaged one must not hide the others."""

    ledger_id: LedgerId
    stored: Versioned
    is_stream: bool

    def parsed(self) -> LedgerMetadata:
        """The record.

        Raises:
            CorruptMetadataError: the value is damaged, or none.
        """
        kind = OF_STREAMS if self.is_stream else OF_LEDGERS
        return kind.decode(self.stored.value, self.ledger_id)


class AllRecords:
    """The records of ledgers and streams over a metadata store.

    Args:
        store: the cluster's.
        clock: for wall times in tombstones and marks, which people read.
        make: makes the records of one kind.

    Attributes:
        ledgers, streams: the records of each kind.
    """

    def __init__(
        self, store: MetadataStore, clock: Clock | None = None, make: type[RecordStore] = RecordStore
    ) -> None:
        self._store, self._clock = store, clock or RealClock()
        self.ledgers = make(store, OF_LEDGERS, self._clock)
        self.streams = make(store, OF_STREAMS, self._clock)

    def of(self, record: LedgerMetadata) -> RecordStore:
        """The records of the kind that one is of."""
        return self.ledgers if record.terms is None else self.streams

    async def write(self, record: LedgerMetadata, version: int, *, vouched: bool = True) -> int:
        """Replace the record that has a version, as `RecordStore.write`."""
        return await self.of(record).write(record, version, vouched=vouched)

    def repairs(self, name: str) -> RepairStore:
        """Under-replicated marks in the same store; `name` is how people know who marks."""
        return RepairStore(self._store, self._clock, name)

    async def read(self, ledger_id: int) -> tuple[LedgerMetadata, int]:
        """The record of a ledger or stream, and the version to name when changing it.

        Raises:
            NoSuchLedgerError: there is neither (any more).
            CorruptMetadataError: the stored value is no record.
        """
        record, _, version = await self.read_with_notes(ledger_id)
        return record, version

    async def read_with_notes(self, ledger_id: int) -> NotedRecord:
        """The record of a ledger or stream, its holes and accepted losses of the same moment, and the version to name.

        Raises:
            NoSuchLedgerError: there is neither (any more).
            CorruptMetadataError: the record or the notes cannot be read.
            StoreBusyError: the record was changed again and again.
        """
        found = await self.ledgers.if_any(ledger_id) or await self.streams.if_any(ledger_id)
        if not found:
            raise OF_LEDGERS.no_such(ledger_id)
        return found[0]

    async def write_with_notes(self, record: LedgerMetadata, notes: LedgerNotes, version: int) -> int:
        """Replace the record that has a version, and its notes with it: both or neither.

        Returns:
            The new version.

        Raises:
            MisuseError: the notes are not possible, or the record would be larger than it may be.
            NoSuchLedgerError: the ledger or stream was deleted meanwhile.
            VersionConflictError: the record was changed meanwhile; read it and decide again.
            MetadataUnknownError: the outcome is unknown, even after reading again.
        """
        try:
            return await self.of(record).write_with_notes(record, notes, version)
        except NoSuchStreamError as error:
            raise NoSuchLedgerError(error.message, ledger_id=record.ledger_id) from error

    async def has(self, ledger_id: int) -> bool:
        """Whether there is a record of a ledger or stream; whether it can be read does not matter."""
        for require in self.neither(ledger_id):
            if await get_unparsed(self._store, require.key) is not None:
                return True
        return False

    @staticmethod
    def neither(ledger_id: int) -> tuple[Require, Require]:
        """What a transaction requires where there is to be no record of a ledger or stream."""
        return Require(OF_LEDGERS.key(ledger_id), None), Require(OF_STREAMS.key(ledger_id), None)

    async def delete_orphan(self, ledger_id: int) -> None:
        """Have bookies drop what they hold of a ledger that has no record, whatever token it has: an operator's order.

        Raises:
            RefusedError: the ledger has a record, or the id is a stream's; nothing was changed.
            MetadataUnknownError: the outcome is unknown; call again.
            StoreBusyError: its tombstone was changed again and again.
        """
        orphaned = self.neither(ledger_id)

        async def once(_: bool) -> bool | None:
            stands = await get_unparsed(self._store, tombstone_key(ledger_id))
            before = tombstone_in(stands, ledger_id)
            token, version = (before.token, before.record_version) if before else (0, 0)
            made = Tombstone(LedgerId(ledger_id), token, self._clock.wall_ms(), version, by_hand=True)
            try:
                await self._store.multi([*orphaned, tombstone_op(made, stands)])
            except (VersionConflictError, AlreadyExistsError) as error:
                if error.ids.get("key") == OF_LEDGERS.key(ledger_id):
                    msg = (
                        f"ledger {ledger_id} has a record and is not an orphan; delete it with `quire "
                        f"ledger delete {ledger_id}`"
                    )
                    raise RefusedError(msg, ledger_id=ledger_id) from error
                if error.ids.get("key") == OF_STREAMS.key(ledger_id):
                    msg = (
                        f"{ledger_id} is a stream, which has a record, and is not an orphan; find its name with `quire "
                        "stream list` and delete it with `quire stream delete NAME`"
                    )
                    raise RefusedError(msg, ledger_id=ledger_id) from error
                raise
            return True

        tombstone = f"the tombstone of ledger {ledger_id}"
        await settled(once, tombstone, "written", again=True, ledger_id=ledger_id)

    async def page(self, after: int | None = None) -> tuple[list[ListedRecord], bool]:
        """Records of ledgers and streams with ids above one, ascending: a page of them, and whether it is the last."""
        above = None if after is None else LedgerId(after)
        ledgers, streams = await asyncio.gather(self.ledgers.page(above), self.streams.page(above))
        through = min((page[-1][0] for page in (ledgers, streams) if len(page) >= LIST_LIMIT), default=ID_MAX)
        found = [ListedRecord(one, stored, is_stream=False) for one, stored in ledgers]
        found += [ListedRecord(one, stored, is_stream=True) for one, stored in streams]
        listed = sorted((one for one in found if one.ledger_id <= through), key=lambda one: one.ledger_id)
        return listed, through == ID_MAX

    async def ids(self) -> AsyncGenerator[LedgerId, None]:
        """The ids of all ledgers and streams, ascending."""
        async for one in self.listed():
            yield one.ledger_id

    async def listed(self) -> AsyncGenerator[ListedRecord, None]:
        """The records of all ledgers and streams, by ascending id."""
        after, last = None, False
        while not last:
            page, last = await self.page(after)
            for one in page:
                yield one
            after = page[-1].ledger_id if page else after
