"""Requests of tools to bookies: what a bookie holds, its state, and that a ledger's limbo has ended.

Source: `docs/formats/native-protocol.md`.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import Any

from quire.client import shapes
from quire.client.access import LedgerAccess
from quire.core.answers import Answer
from quire.core.errors import MalformedFrameError
from quire.core.ids import BookieId
from quire.core.shares import HeldInterval
from quire.net.client_channel import Shape
from quire.wire import native_info
from quire.wire.native import AnswerFrame, Kind

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_MS = 10_000
NO_BODY = shapes.fixed(b"")


class Inquiries(ABC):
    """Questions over connections that a subclass makes."""

    @abstractmethod
    async def _request(
        self,
        bookie: BookieId,
        kind: Kind,
        shape: Shape,
        timeout_ms: int,
        *,
        access: LedgerAccess | None = None,
        flags: int = 0,
    ) -> tuple[AnswerFrame, int]:
        """The response, and the version in which its body is laid out."""

    async def list_entries(
        self, bookie: BookieId, access: LedgerAccess, *, timeout_ms: int = REQUEST_TIMEOUT_MS
    ) -> tuple[Answer, list[HeldInterval]]:
        """The intervals that a bookie holds of a ledger; `timeout_ms` is for each page of them."""
        listed = shapes.HeldList(access.ledger_id)
        while not listed.is_whole:
            shape = shapes.page(listed.following)
            frame, version = await self._request(bookie, Kind.LIST_ENTRIES, shape, timeout_ms, access=access)
            if frame.answer is not Answer.OK:
                return frame.answer, []
            try:
                listed.take(frame, version)
            except MalformedFrameError as error:
                log.warning("ignoring the list of entries of bookie %s: %s", bookie, error)
                return Answer.ERROR, []
        return Answer.OK, listed.intervals

    async def info(
        self, bookie: BookieId, access: LedgerAccess | None = None, *, timeout_ms: int = REQUEST_TIMEOUT_MS
    ) -> tuple[Answer, dict[str, Any]]:
        """What a bookie says of itself, or of one ledger (`fenced`, `limbo`, `lac`, `last_entry`, …)."""
        frame, _ = await self._request(bookie, Kind.INFO, NO_BODY, timeout_ms, access=access)
        if frame.answer is not Answer.OK:
            return frame.answer, {}
        try:
            return Answer.OK, native_info.decode_info(frame.body)
        except MalformedFrameError:
            return Answer.ERROR, {}

    async def orphans(
        self, bookie: BookieId, after: int = -1, *, timeout_ms: int = REQUEST_TIMEOUT_MS
    ) -> tuple[Answer, shapes.Orphans | None]:
        """A page of the ledgers that it keeps without a record, above an id; None if its version has no such page."""
        frame, _ = await self._request(bookie, Kind.INFO, shapes.orphans(after), timeout_ms)
        return shapes.orphans_of(frame)

    async def clear_limbo(
        self, bookie: BookieId, access: LedgerAccess, lsn: int, *, timeout_ms: int = REQUEST_TIMEOUT_MS
    ) -> Answer:
        """End a ledger's limbo on a bookie: it holds again all entries that it should.

        Args:
            lsn: of the doubt that this ends, as INFO reported it before the entries were restored (`doubt_lsn`). If
                there was another loss since then, the response is BAD_REQUEST. A bookie of version 1 knows no LSNs.
        """
        shape = shapes.end_of_doubt(lsn)
        return (await self._request(bookie, Kind.CLEAR_LIMBO, shape, timeout_ms, access=access))[0].answer
