"""Ledger ids in etcd: the count of writes of one key, plus the number above which ids were raised, under `ledger-ids/above`.

One round trip, no conflict.

Source: etcd v3 API, "Key-value pair": `version`; `docs/formats/metadata.md`, "Ledger ids".
"""

from __future__ import annotations

from quire.core.ids import LedgerId
from quire.metadata.checked import open_sealed
from quire.metadata.etcd.connection import TXN, EtcdConnection
from quire.metadata.etcd.keys import KeyLayout, put, read
from quire.metadata.id_floor import floor_of
from quire.metadata.keys import LEDGER_IDS_ABOVE
from quire.wire.proto.etcd_pb2 import RequestOp, TxnRequest, TxnResponse


class EtcdLedgerIds:
    """The id generator of one cluster.

    Args:
        connection: where it is.
        layout: where its keys are.
    """

    def __init__(self, connection: EtcdConnection, layout: KeyLayout) -> None:
        self._connection = connection
        self._count = layout.ledger_ids
        self._above = layout.key(LEDGER_IDS_ABOVE)

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
        value = open_sealed(LEDGER_IDS_ABOVE, above[0].value) if above else None
        return max(0, floor_of(value)), count[0].version if count else 0
