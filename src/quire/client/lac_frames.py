"""Sends bookies the LACs that no add carried in time: one frame a bookie for all ledgers, from one timer.

`core/untold_lacs.py` says which ledgers' and when. Bookies that take no such frame get theirs from `lac_news.py` later.

Source: `docs/formats/native-protocol.md`, WRITE_LACS.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from quire.client.access import LedgerAccess
from quire.client.bookies import BookieClient
from quire.client.config import ClientConfig
from quire.client.outgoing import SlotConnection
from quire.core.ids import BookieId
from quire.core.ledger_metadata import DigestType
from quire.core.untold_lacs import UntoldLacs
from quire.wire.native_bodies import encode_lac_item

FRAME_ITEMS: Final = 512
"""LACs in one frame: with bodies they fit the shortest frame that a client may be limited to."""
PAUSE_SHARE: Final = 0.5
"""Frames leave at most every so large a part of what a LAC waits, so that ledgers share them."""


class Teller(Protocol):
    """A writer, as the frames see it."""

    def lac_places(self) -> tuple[int, Sequence[int], Sequence[SlotConnection]]:
        """The LAC, the slots of the bookies to send it to, and the bookies at all slots."""

    @property
    def access(self) -> LedgerAccess:
        """Id, master key, token and digest, sent with every request for this ledger."""


class LacFrames:
    """The LACs of a client's writers that are not yet sent.

    Args:
        bookies: the connections.
        config: times.
    """

    __slots__ = ("_bookies", "_loop", "_tellers", "_timeout_ms", "_timer", "_untold")

    def __init__(self, bookies: BookieClient, config: ClientConfig) -> None:
        self._bookies = bookies
        self._loop = asyncio.get_running_loop()
        self._timeout_ms = config.explicit_lac_timeout_ms
        self._untold = UntoldLacs(config.lac_after_ms, int(config.lac_after_ms * PAUSE_SHARE))
        self._tellers: dict[int, Teller] = {}
        self._timer: asyncio.TimerHandle | None = None

    def confirmed(self, ledger_id: int, teller: Teller) -> None:
        """A ledger's LAC has risen."""
        if ledger_id in self._tellers:
            return
        self._tellers[ledger_id] = teller
        loop = self._loop
        self._untold.confirmed(ledger_id, int(loop.time() * 1000) + 1)
        if self._timer is None:
            self._set_timer()

    def carried(self, ledger_id: int) -> None:
        """An add carries a ledger's LAC."""
        if self._tellers.pop(ledger_id, None) is not None:
            self._untold.carried(ledger_id)

    def stopped(self, ledger_id: int, teller: Teller) -> None:
        """A ledger's writer has ended; a stream may have another one of this client, whose LAC is still to be sent."""
        if self._tellers.get(ledger_id) is teller:
            self.carried(ledger_id)

    def close(self) -> None:
        """Send nothing more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for ledger_id in list(self._tellers):
            self.carried(ledger_id)

    def _set_timer(self) -> None:
        at_ms = self._untold.next_ms
        self._timer = None if at_ms is None else self._loop.call_at(at_ms / 1000, self._fired)

    def _fired(self) -> None:
        self._timer = None
        frames = _Frames(self._bookies)
        # Times are rounded up, so that nothing is sent early.
        for ledger_id in self._untold.due(int(self._loop.time() * 1000) + 1):
            teller = self._tellers.pop(ledger_id)
            lac, slots, places = teller.lac_places()
            item = b""
            for slot in slots:
                place = places[slot]
                items = frames[place.bookie]
                if items is not None and place.told_lac != lac and not place.retired:
                    place.told_lac = lac
                    item = item or _item(teller.access, lac)
                    items.append(item)
        for bookie, items in frames.items():
            if items is None:
                continue
            for start in range(0, len(items), FRAME_ITEMS):
                part = items[start : start + FRAME_ITEMS]
                self._bookies.tell_lacs(bookie, part, timeout_ms=self._timeout_ms)
        self._set_timer()


class _Frames(dict[BookieId, "list[bytes] | None"]):
    """The items for each bookie; None for one that does not take them."""

    def __init__(self, bookies: BookieClient) -> None:
        super().__init__()
        self._bookies = bookies

    def __missing__(self, bookie: BookieId) -> list[bytes] | None:
        items: list[bytes] | None = [] if self._bookies.takes_lacs(bookie) else None
        self[bookie] = items
        return items


def _item(access: LedgerAccess, lac: int) -> bytes:
    digest, ledger_id = access.digest, access.ledger_id
    digest_type = digest.digest_type
    body = digest.lac_body(ledger_id, lac) if digest_type is DigestType.HMAC else b""
    return encode_lac_item(ledger_id, access.token, lac, access.term, digest_type, access.key, body)
