"""Tells bookies the LACs that no add carried soon: one frame a bookie for all ledgers of a client, from one timer.

`core/untold_lacs.py` says which ledgers' and when. Bookies that take no such frame are told by `lac_news.py` later.

Source: `docs/formats/native-protocol.md`, WRITE_LACS.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final, Protocol

from quire.client.access import LedgerAccess
from quire.client.bookies import BookieClient
from quire.client.config import ClientConfig
from quire.client.outgoing import Place
from quire.core.ids import BookieId
from quire.core.ledger_metadata import DigestType
from quire.core.untold_lacs import UntoldLacs
from quire.wire.native_bodies import LacItem, encode_lac_item

FRAME_ITEMS: Final = 512
"""LACs in one frame: with bodies they fit the shortest frame that a client may be limited to."""
PAUSE_SHARE: Final = 0.4
"""Frames leave at most every so large a part of what a LAC waits, so that ledgers share them."""


class Teller(Protocol):
    """A writer, as the frames see it."""

    def lac_places(self) -> tuple[int, Iterator[Place]]:
        """The LAC, and the places of the bookies to be told."""

    @property
    def access(self) -> LedgerAccess:
        """What the ledger's bookies want to be told."""


class LacFrames:
    """The LACs that all writers of a client have not told.

    Args:
        bookies: the connections.
        config: times.
    """

    __slots__ = ("_bookies", "_tellers", "_timeout_ms", "_timer", "_untold")

    def __init__(self, bookies: BookieClient, config: ClientConfig) -> None:
        self._bookies = bookies
        self._timeout_ms = config.explicit_lac_timeout_ms
        self._untold = UntoldLacs(config.lac_after_ms, int(config.lac_after_ms * PAUSE_SHARE))
        self._tellers: dict[int, Teller] = {}
        self._timer: asyncio.TimerHandle | None = None

    def confirmed(self, ledger_id: int, teller: Teller) -> None:
        """A ledger's LAC has risen."""
        if ledger_id in self._tellers:
            return
        loop = asyncio.get_running_loop()
        self._tellers[ledger_id] = teller
        self._untold.confirmed(ledger_id, _now_ms(loop))
        if self._timer is None:
            self._set_timer(loop)

    def carried(self, ledger_id: int) -> None:
        """An add carries a ledger's LAC, or its writer has ended."""
        if self._tellers.pop(ledger_id, None) is not None:
            self._untold.carried(ledger_id)

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        at_ms = self._untold.next_ms
        self._timer = None if at_ms is None else loop.call_at(at_ms / 1000, self._fired)

    def _fired(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        frames: dict[BookieId, list[bytes]] = {}
        takes: dict[BookieId, bool] = {}
        for ledger_id in self._untold.due(_now_ms(loop)):
            self._gather(self._tellers.pop(ledger_id), frames, takes)
        for bookie, items in frames.items():
            for start in range(0, len(items), FRAME_ITEMS):
                self._bookies.tell_lacs(
                    bookie, items[start : start + FRAME_ITEMS], timeout_ms=self._timeout_ms
                )
        self._set_timer(loop)

    def _gather(
        self, teller: Teller, frames: dict[BookieId, list[bytes]], takes: dict[BookieId, bool]
    ) -> None:
        """Put a ledger's LAC into the frames of its bookies that take them and were not told."""
        lac, places = teller.lac_places()
        encoded = b""
        for place in places:
            bookie = place.bookie
            if bookie not in takes:
                takes[bookie] = self._bookies.takes_lacs(bookie)
            if takes[bookie] and not place.retired and place.told_lac != lac:
                place.told_lac = lac
                encoded = encoded or _item(teller.access, lac)
                frames.setdefault(bookie, []).append(encoded)


def _now_ms(loop: asyncio.AbstractEventLoop) -> int:
    """Rounded up, so that nothing is told before its time."""
    return int(loop.time() * 1000) + 1


def _item(access: LedgerAccess, lac: int) -> bytes:
    digest, ledger_id = access.digest, access.ledger_id
    body = digest.lac_body(ledger_id, lac) if digest.digest_type is DigestType.HMAC else b""
    return encode_lac_item(LacItem(ledger_id, access.token, lac, 0, digest.digest_type, access.key, body))
