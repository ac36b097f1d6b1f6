"""Transactions of one client, and what makes the response of a read decisive after one of them was lost.

Every transaction requires that a key is absent, the client's *fence*. When a response is lost, the fence is made before
anything else is asked: from then on the lost transaction cannot happen any more, and a read tells whether it did. The
next transactions require the absence of the next fence. A fence ends after `FENCE_S`, far beyond what a server keeps
a request for.

Source: etcd v3 API, "Transaction"; `metadata/store.py`, promise 3.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any, Final

from quire.core.errors import MetadataUnknownError
from quire.metadata.etcd.connection import GRANT, RANGE, TXN, EtcdConnection, Method, StoreFullError
from quire.metadata.etcd.keys import KeyLayout, absent, put, read
from quire.metadata.retries import ATTEMPTS_MAX, StoreRetries
from quire.wire.proto.etcd_pb2 import (
    Compare,
    LeaseGrantRequest,
    RangeRequest,
    RangeResponse,
    RequestOp,
    TxnRequest,
    TxnResponse,
)

FENCE_S: Final = 300


class Changes:
    """Reads and transactions of one client.

    Args:
        connection: where to send them.
        layout: where fences are.
    """

    def __init__(self, connection: EtcdConnection, layout: KeyLayout) -> None:
        self._connection = connection
        self._layout = layout
        self._client = uuid.uuid4().hex
        self._fences = 0
        self._unknown = 0
        self._settled = 0
        self._settling = asyncio.Lock()

    async def settle(self) -> None:
        """Have no earlier transaction of this client under way.

        Raises:
            StoreAwayError: the store did not respond.
        """
        if self._settled == self._unknown:
            return
        async with self._settling:
            unknown = self._unknown
            if self._settled == unknown:
                return
            lease = (await self._connection.read(GRANT, LeaseGrantRequest(TTL=FENCE_S))).ID
            fence = self._layout.fence(self._client, self._fences)
            await self._connection.read(TXN, TxnRequest(success=[put(fence, b"", lease=lease)]))
            self._fences += 1
            self._settled = unknown

    async def read(self, method: Method, request: Any) -> Any:
        """What may happen twice, after everything whose outcome is unknown."""
        await self.settle()
        return await self._connection.read(method, request)

    async def range(self, request: RangeRequest) -> RangeResponse:
        """Some keys."""
        return await self.read(RANGE, request)  # type: ignore[no-any-return]

    async def commit(
        self,
        conditions: Sequence[Compare],
        effects: Sequence[RequestOp],
        otherwise: Sequence[RequestOp],
        what: str,
    ) -> TxnResponse:
        """One transaction, sent once; again only if it met its own fence.

        Raises:
            MetadataUnknownError: the response is lost.
            StoreAwayError, RefusedError: nothing was changed.
            LeaseGoneError: it names a lease that has ended; nothing was changed.
        """
        while True:
            await self.settle()
            fence = self._layout.fence(self._client, self._fences)
            request = TxnRequest(
                compare=[*conditions, absent(fence)],
                success=effects,
                failure=[*otherwise, read(fence, keys_only=True)],
            )
            try:
                answer: TxnResponse = await self._connection.change(TXN, request, what)
            except StoreFullError:
                raise  # it was answered: a read shows what became of it, without a fence, for which there is no room
            except (MetadataUnknownError, asyncio.CancelledError):
                self._unknown += 1
                raise
            if answer.succeeded or not answer.responses[-1].response_range.kvs:
                return answer

    async def settled(
        self,
        conditions: Sequence[Compare],
        effects: Sequence[RequestOp],
        otherwise: Sequence[RequestOp],
        what: str,
    ) -> TxnResponse:
        """One that may happen twice: sent again until its response arrives.

        Raises:
            StoreAwayError: the store did not respond.
            MetadataUnknownError: it did, and the responses to the transaction were lost all the same.
        """

        async def once() -> TxnResponse:
            return await self.commit(conditions, effects, otherwise, what)

        return await StoreRetries(ATTEMPTS_MAX).until_in(once, (MetadataUnknownError,))
