"""The records of streams in a metadata store: one key a stream, one key a name, changed by compare-and-swap only.

Streams and ledgers share one id space, and an id is one or the other. Streams do not stand among BookKeeper's records:
Java's auditor ends its audit at a record that it cannot read, and a Java client's recovery would close a stream.

Source: docs/formats/stream.md; Vanlightly's unbounded ledgers, "Protocol changes for unbounded ledgers".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from quire.core.errors import (
    AlreadyExistsError,
    CorruptMetadataError,
    MetadataUnknownError,
    NoSuchStreamError,
)
from quire.core.ids import LedgerId
from quire.core.ledger.holes import with_holes
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.notes import LedgerNotes
from quire.core.ledger.writer_state import Hole
from quire.env.interfaces import Clock
from quire.env.real import RealClock
from quire.metadata.keys import STREAM_NAMES, STREAMS, ledger_of, stream_key, stream_name_key, tombstone_key
from quire.metadata.ledgers import ledger_key
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
    Require,
    VersionConflictError,
    Versioned,
    Watch,
)
from quire.metadata.tombstones import get_unparsed, token_of, tombstone_in, tombstone_op
from quire.wire.ledger_notes import notes_of_record, record_with_notes
from quire.wire.store_records import Tombstone
from quire.wire.stream_metadata import decode_stream, decode_stream_name, encode_stream, encode_stream_name


class StreamStore:
    """Stream records over a metadata store.

    Args:
        store: the cluster's.
        clock: for the wall time in tombstones, which people read.
    """

    def __init__(self, store: MetadataStore, clock: Clock | None = None) -> None:
        self._store = store
        self._clock = clock or RealClock()

    async def next_id(self) -> LedgerId:
        """An id that no stream and no ledger had or will have."""
        return await self._store.next_ledger_id()

    async def create(self, name: str, record: LedgerMetadata) -> int:
        """Store a new stream's record and its name, both or neither.

        A lost response is settled here: the record that is found is ours if its token is.

        Returns:
            The version to name at the next change, which conflicts where another client has changed the record already.

        Raises:
            AlreadyExistsError: another stream has the name, or a ledger or a stream has the id.
            MetadataUnknownError: the outcome is unknown, even after reading again.
            MisuseError: the name cannot be a key, or the record is no stream's.
        """
        stream_id = record.ledger_id
        key, named, of_ledger = stream_key(stream_id), stream_name_key(name), ledger_key(stream_id)
        value = encode_stream(record)
        ops: list[Op] = [
            Require(of_ledger, None),
            Create(key, value),
            Create(named, encode_stream_name(stream_id)),
        ]
        unknown: MetadataUnknownError | None = None
        for attempt in range(ATTEMPTS_MAX):
            if attempt:
                await pause_after(attempt)
            try:
                return (await self._store.multi(ops))[1]
            except MetadataUnknownError as error:
                unknown = error
            except (AlreadyExistsError, VersionConflictError) as error:
                found = await self._store.get(key) if unknown else None
                if found is not None and found.value == value:
                    return found.version
                if (
                    found is not None
                    and record.token
                    and token_of(found, stream_id, decode_stream) == record.token
                ):
                    return found.version - 1
                if error.ids.get("key") == named:
                    msg = (
                        f"the name {name!r} is taken by another stream; use another name, or open that stream"
                    )
                    raise AlreadyExistsError(msg, stream=name) from error
                what = "a ledger" if error.ids.get("key") == of_ledger else "a stream"
                msg = f"the id {stream_id} is {what} already; use another id"
                raise AlreadyExistsError(msg, ledger_id=stream_id) from error
        raise self._unknown(stream_id, unknown)

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

    async def read(self, stream_id: int) -> tuple[LedgerMetadata, int]:
        """A stream's record and the version to name when changing it.

        Raises:
            NoSuchStreamError: there is none (any more), or the id is a ledger's.
            CorruptMetadataError: the stored value is not a stream's record.
        """
        found = await self._store.get(stream_key(stream_id))
        if found is None:
            raise await self._missing(stream_id)
        return decode_stream(found.value, stream_id), found.version

    async def write(self, record: LedgerMetadata, version: int) -> int:
        """Replace the record that has a version.

        A lost response is settled here, by reading: a record equal to this one counts as written, because it names this
        take-over's owner.

        Returns:
            The new version.

        Raises:
            VersionConflictError: it was changed meanwhile; read it and decide again.
            NoSuchStreamError: it was deleted meanwhile.
            MetadataUnknownError: the outcome is unknown, even after reading again.
            MisuseError: the record is larger than it may be.
        """
        key, value = stream_key(record.ledger_id), encode_stream(replace(record, creation_token=0))
        unknown: MetadataUnknownError | None = None
        for attempt in range(ATTEMPTS_MAX):
            if attempt:
                await pause_after(attempt)
            try:
                return await self._store.put(key, value, version)
            except MetadataUnknownError as error:
                unknown = error
            except KeyMissingError as error:
                raise await self._missing(record.ledger_id) from error
            except VersionConflictError as error:
                found = await self._store.get(key) if unknown else None
                if found is not None and found.value == value:
                    return found.version
                msg = f"the record of stream {record.ledger_id} no longer has version {version}; read it and decide again"
                raise VersionConflictError(msg, ledger_id=record.ledger_id) from error
        raise self._unknown(record.ledger_id, unknown)

    async def read_with_notes(self, stream_id: int) -> tuple[LedgerMetadata, LedgerNotes, int]:
        """A stream's record, its holes, the losses that an operator accepted, and the version to name; errors as in `read`."""
        record, version = await self.read(stream_id)
        return record, notes_of_record(record), version

    async def write_with_notes(self, record: LedgerMetadata, notes: LedgerNotes, version: int) -> int:
        """Replace the record that has a version, with these notes instead of those it has; the rest is as in `write`."""
        return await self.write(record_with_notes(record, notes), version)

    async def write_with_holes(self, record: LedgerMetadata, holes: Iterable[Hole], version: int) -> int:
        """Replace the record that has a version, with these holes among its notes; the rest is as in `write`."""
        notes = with_holes(notes_of_record(record), record, holes)
        return await self.write_with_notes(record, notes, version)

    async def add_holes(self, stream_id: int, holes: Sequence[Hole]) -> None:
        """Put holes among the notes of a stream. One that is being taken over is left alone: its fragments may change.

        Raises:
            MisuseError: the record would be larger than it may be.
            NoSuchStreamError: there is none (any more).
            StoreBusyError: the record was changed again and again.
            MetadataUnknownError: the outcome is unknown.
        """
        await add_holes_to(self, "stream", stream_id, holes)

    async def delete(self, name: str) -> None:
        """Delete a stream: in one transaction its record and its name go, and a tombstone is made.

        Raises:
            NoSuchStreamError: there is none (any more); after a lost response that may have been this call.
            MetadataUnknownError: the outcome is unknown, even after reading again.
            VersionConflictError: the record was changed again and again.
        """
        stream_id = await self.find(name)
        unknown: MetadataUnknownError | None = None
        for attempt in range(ATTEMPTS_MAX):
            if attempt:
                await pause_after(attempt)
            record, version = await self.read(stream_id)
            named = await self._store.get(stream_name_key(name))
            stands = await get_unparsed(self._store, tombstone_key(stream_id))
            before = tombstone_in(stands, stream_id)
            made = Tombstone(
                stream_id,
                record.token,
                self._clock.wall_ms(),
                version,
                by_hand=before is not None and before.by_hand,
            )
            ops: list[Op] = [Delete(stream_key(stream_id), version), tombstone_op(made, stands)]
            if named is not None:
                ops.append(Delete(stream_name_key(name), named.version))
            try:
                await self._store.multi(ops)
            except MetadataUnknownError as error:
                unknown = error
            except (VersionConflictError, AlreadyExistsError):
                continue
            else:
                await RepairStore(self._store, self._clock, "").end_marks_of_deleted(stream_id)
                return
        if unknown:
            raise self._unknown(stream_id, unknown)
        msg = f"the record of stream {stream_id} was changed {ATTEMPTS_MAX} times while it was to be deleted; try again"
        raise VersionConflictError(msg, ledger_id=stream_id)

    # --- lists ---------------------------------------------------------------------------------------------------

    async def names(self, after: str | None = None, limit: int = LIST_LIMIT) -> list[str]:
        """Names of streams, ascending.

        Args:
            after: only names above this one: the last of the page before.
            limit: most of them in a page; fewer are the last page.
        """
        last = None if after is None else stream_name_key(after)
        page = await self._store.list(STREAM_NAMES, after=last, limit=limit)
        return [key.removeprefix(STREAM_NAMES) for key, _ in page]

    async def page(
        self, after: int | None = None, limit: int = LIST_LIMIT
    ) -> Sequence[tuple[LedgerId, Versioned]]:
        """Ids of streams, ascending, with the stored values, which are not parsed: a damaged one hides no other.

        Raises:
            CorruptMetadataError: a key names no stream.
        """
        page = await self._store.list(
            STREAMS, after=None if after is None else stream_key(after), limit=limit
        )
        return [(_stream_id(key), value) for key, value in page]

    def watch(self, stream_id: int) -> Watch:
        """Changes of one stream's record."""
        return self._store.watch(stream_key(stream_id))

    async def _missing(self, stream_id: int) -> NoSuchStreamError:
        if await get_unparsed(self._store, ledger_key(stream_id)) is not None:
            msg = f"{stream_id} is a ledger and no stream; open it as a ledger"
        else:
            msg = f"stream {stream_id} does not exist: it was deleted, or never created in this cluster"
        return NoSuchStreamError(msg, ledger_id=stream_id)

    @staticmethod
    def _unknown(stream_id: int, last: MetadataUnknownError | None) -> MetadataUnknownError:
        return MetadataUnknownError(
            f"the outcome of writing the record of stream {stream_id} was unknown {ATTEMPTS_MAX} times ({last or 'its notes changed'}); "
            "read the record before doing anything else",
            ledger_id=stream_id,
        )


def _stream_id(key: str) -> LedgerId:
    found = ledger_of(key)
    if found is None:
        raise CorruptMetadataError(
            f"the key {key} names no stream; remove it from the metadata store", key=key
        )
    return LedgerId(found)
