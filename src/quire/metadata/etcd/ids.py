"""Ledger ids in etcd: the count of writes of one key, plus the number above which ids were raised. One round trip, no conflict.

Ids are raised in one of two ways. Programs before 0.2 know only the count. They can join a store of format 1 alone, so
there a small leap is made by writing the key as often as is missing: those programs leap too. A large leap, and every
one in a store of format 2, is a number under `ledger-ids/above`. A program before 0.2 goes on with the count then, far
below, until it is replaced: what it gives out may be in use, and the bookies refuse a ledger that is made of it.

Source: etcd v3 API, "Key-value pair": `version`; `docs/formats/metadata.md`, "Ledger ids".
"""

from __future__ import annotations

import asyncio
from typing import Final

from quire.core.ids import LedgerId
from quire.metadata.etcd.connection import TXN, EtcdConnection
from quire.metadata.etcd.formats import StoredValues
from quire.metadata.etcd.keys import KeyLayout, fewer_writes, put, read
from quire.metadata.id_floor import floor_of
from quire.metadata.keys import LEDGER_IDS_ABOVE
from quire.wire.proto.etcd_pb2 import RequestOp, TxnRequest, TxnResponse

WRITES_MAX: Final = 10_000
"""Most ids that a leap is made over by writes, in a store that older programs can join."""
WRITES_AT_ONCE: Final = 64


class EtcdLedgerIds:
    """The id generator of one cluster.

    Args:
        connection: where it is.
        layout: where its keys are.
        values: how values are stored.
    """

    def __init__(self, connection: EtcdConnection, layout: KeyLayout, values: StoredValues) -> None:
        self._connection = connection
        self._count = layout.ledger_ids
        self._above = layout.key(LEDGER_IDS_ABOVE)
        self._values = values

    async def next(self) -> LedgerId:
        """An id that was never issued before.

        Raises:
            CorruptMetadataError: the number above which ids are is damaged.
            StoreAwayError: the store did not respond.
        """
        # If the response is lost, another id is drawn; the lost one stays unused.
        return LedgerId(sum(await self._read(put(self._count, b""))))

    async def newest(self) -> int:
        """The greatest id that was issued; the next one is greater.

        Raises:
            CorruptMetadataError, StoreAwayError: as `next`.
        """
        return sum(await self._read())

    async def _read(self, *before: RequestOp) -> tuple[int, int]:
        """The number above which ids are, and the count, of one moment; after some other operations."""
        request = TxnRequest(success=[*before, read(self._above), read(self._count)])
        answer: TxnResponse = await self._connection.read(TXN, request)
        above, count = (response.response_range.kvs for response in answer.responses[-2:])
        value = self._values.opened(LEDGER_IDS_ABOVE, above[0].value) if above else None
        return max(0, floor_of(value)), count[0].version if count else 0

    async def skip(self, above: int) -> None:
        """Leave out the ids up to a number, by writing the key of the count; by several at once it is done once.

        Raises:
            CorruptMetadataError, StoreAwayError: as `next`.
        """
        while True:
            floor, count = await self._read()
            wanted = above - floor
            if count >= wanted:
                return
            request = TxnRequest(compare=[fewer_writes(self._count, wanted)], success=[put(self._count, b"")])
            sent = min(wanted - count, WRITES_AT_ONCE)
            await asyncio.gather(*(self._connection.read(TXN, request) for _ in range(sent)))
