"""The records of ledgers and of streams together, for those who ask by id alone: an id is a ledger's or a stream's.

A bookie does not know which of the two a request means before it has read a record, and it keeps what has either.

Source: docs/formats/stream.md; docs/protocol/collection.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import NamedTuple

from quire.core.errors import NoSuchLedgerError, NoSuchStreamError
from quire.core.ids import ID_MAX, LedgerId
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.notes import LedgerNotes
from quire.metadata.keys import stream_key
from quire.metadata.ledgers import LedgerStore, ledger_key
from quire.metadata.store import LIST_LIMIT, MetadataStore, Require, Versioned
from quire.metadata.streams import StreamStore
from quire.metadata.tombstones import get_unparsed
from quire.wire import ledger_metadata
from quire.wire.stream_metadata import decode_stream


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
        parse = decode_stream if self.is_stream else ledger_metadata.parse
        return parse(self.stored.value, self.ledger_id)


class AllRecords:
    """The records of ledgers and streams over a metadata store.

    Args:
        store: the cluster's.

    Attributes:
        ledgers, streams: the records of each kind.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.ledgers = LedgerStore(store)
        self.streams = StreamStore(store)

    async def read(self, ledger_id: int) -> tuple[LedgerMetadata, int]:
        """The record of a ledger or stream, and the version to name when changing it.

        Raises:
            NoSuchLedgerError: there is neither (any more).
            CorruptMetadataError: the stored value is no record.
        """
        record, _, version = await self.read_with_notes(ledger_id)
        return record, version

    async def read_with_notes(self, ledger_id: int) -> tuple[LedgerMetadata, LedgerNotes, int]:
        """The record of a ledger or stream, its holes and accepted losses of the same moment, and the version to name.

        Raises:
            NoSuchLedgerError: there is neither (any more).
            CorruptMetadataError: the record or the notes cannot be read.
            StoreBusyError: the record was changed again and again.
        """
        try:
            return await self.ledgers.read_with_notes(ledger_id)
        except NoSuchLedgerError as error:
            try:
                return await self.streams.read_with_notes(ledger_id)
            except NoSuchStreamError:
                raise error from None

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
        if record.terms is None:
            return await self.ledgers.write_with_notes(record, notes, version)
        try:
            return await self.streams.write_with_notes(record, notes, version)
        except NoSuchStreamError as error:
            raise NoSuchLedgerError(error.message, ledger_id=record.ledger_id) from error

    async def has(self, ledger_id: int) -> bool:
        """Whether there is a record of a ledger or stream; whether it can be read does not matter."""
        for key in (ledger_key(ledger_id), stream_key(ledger_id)):
            if await get_unparsed(self._store, key) is not None:
                return True
        return False

    @staticmethod
    def neither(ledger_id: int) -> tuple[Require, Require]:
        """What a transaction requires where there is to be no record of a ledger or stream."""
        return Require(ledger_key(ledger_id), None), Require(stream_key(ledger_id), None)

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
