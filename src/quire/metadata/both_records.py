"""The records of ledgers and of streams together, for those who ask by id alone: an id is a ledger's or a stream's.

A bookie does not know which of the two a request means before it has read a record, and it keeps what has either.

Source: docs/formats/stream.md; docs/protocol/collection.md.
"""

from __future__ import annotations

from typing import NamedTuple

from quire.core.ids import ID_MAX, LedgerId
from quire.core.ledger_metadata import LedgerMetadata
from quire.metadata.keys import stream_key
from quire.metadata.ledgers import LedgerStore, ledger_key
from quire.metadata.store import LIST_LIMIT, MetadataStore, Require
from quire.metadata.streams import StreamStore
from quire.wire import ledger_metadata
from quire.wire.stream_metadata import decode_stream


class ListedRecord(NamedTuple):
    """The stored record of a ledger or a stream. It is not parsed: a damaged one must not hide the others."""

    ledger_id: LedgerId
    value: bytes
    is_stream: bool

    def parsed(self) -> LedgerMetadata:
        """The record.

        Raises:
            CorruptMetadataError: the value is none.
        """
        parse = decode_stream if self.is_stream else ledger_metadata.parse
        return parse(self.value, self.ledger_id)


class BothRecords:
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

    async def has(self, ledger_id: int) -> bool:
        """Whether there is a record of a ledger or stream; whether it can be read does not matter."""
        for key in (ledger_key(ledger_id), stream_key(ledger_id)):
            if await self._store.get(key) is not None:
                return True
        return False

    @staticmethod
    def neither(ledger_id: int) -> tuple[Require, Require]:
        """What a transaction requires where there is to be no record of a ledger or stream."""
        return Require(ledger_key(ledger_id), None), Require(stream_key(ledger_id), None)

    async def page(self, after: int | None = None) -> tuple[list[ListedRecord], bool]:
        """Records of ledgers and streams with ids above one, ascending: a page of them, and whether it is the last."""
        above = None if after is None else LedgerId(after)
        ledgers, streams = await self.ledgers.page(above), await self.streams.page(above)
        through = min((page[-1][0] for page in (ledgers, streams) if len(page) >= LIST_LIMIT), default=ID_MAX)
        found = [ListedRecord(one, value.value, is_stream=False) for one, value in ledgers]
        found += [ListedRecord(one, value.value, is_stream=True) for one, value in streams]
        return sorted(one for one in found if one.ledger_id <= through), through == ID_MAX
