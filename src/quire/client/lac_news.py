"""Sends a ledger's LAC to its bookies when no later entry's header will carry it.

Where a reader waits, at once; everywhere, when the writer has been idle for some seconds. A writer that goes on,
followed or not, sends nothing of this: its next header says it. Safety never rests on it.

Source: Vanlightly's guide, "Last Add Confirmed (LAC)".
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from quire.client.access import LedgerAccess
from quire.client.bookies import BookieClient
from quire.client.outgoing import Outgoing, SlotConnection
from quire.core.effects import SendExplicitLac


class LacSource(Protocol):
    """Whose news it is."""

    def idle(self) -> bool:
        """Whether no entry is on its way, or about to be."""


class LacNews:
    """The news of one ledger's writer.

    Args:
        access: id, master key, token and digest sent with every request for this ledger.
        bookies: the connections.
        outgoing: the bookie at a slot.
        writer: whether it is idle, so that no header is about to leave.
        timeout_ms: how long a bookie may take to respond.
    """

    __slots__ = (
        "_access",
        "_bookies",
        "_hop_due",
        "_loop",
        "_outgoing",
        "_since",
        "_timeout_ms",
        "_writer",
        "untold",
    )

    def __init__(
        self,
        access: LedgerAccess,
        bookies: BookieClient,
        outgoing: Outgoing,
        writer: LacSource,
        timeout_ms: int,
    ) -> None:
        self._access = access
        self._bookies = bookies
        self._outgoing = outgoing
        self._writer = writer
        self._timeout_ms = timeout_ms
        self._loop = asyncio.get_running_loop()
        self._hop_due = False
        self._since = 0.0
        self.untold: SendExplicitLac | None = None

    def due(self, effect: SendExplicitLac) -> None:
        """The last pending entry is confirmed."""
        self.untold, self._since = effect, self._loop.time()
        for slot in effect.slots:
            self.answered(self._outgoing.place_at(slot))

    def answered(self, place: SlotConnection) -> None:
        """A bookie acknowledged an add while a LAC is `untold`: a reader may be waiting there."""
        if not self._hop_due and self._bookies.is_followed(place):
            # One loop turn, in which the caller may append again: then the next header carries the LAC.
            self._hop_due = True
            self._loop.call_soon(self._tell_followed)

    def tell_all_after(self, idle_ms: int) -> None:
        """Send all bookies the LAC that has waited so long, also those that no entry was sent to yet.

        The writer is not quiet before that bookie takes its bytes or is given up, and readers wait elsewhere.
        """
        if self.untold is not None and self._loop.time() - self._since >= idle_ms / 1000:
            self.tell_all()

    def tell_all(self) -> None:
        """Send it to all bookies, unless a newer entry is on its way."""
        if self._nothing_to_tell():
            return
        assert self.untold is not None
        for slot in self.untold.slots:
            self._tell(self._outgoing.place_at(slot), self.untold.lac)
        self.untold = None

    def _nothing_to_tell(self) -> bool:
        if not self._writer.idle():
            self.untold = None  # a later header says it, and there will be news again after it
        return self.untold is None

    def _tell_followed(self) -> None:
        self._hop_due = False
        if self._nothing_to_tell():
            return
        assert self.untold is not None
        for slot in self.untold.slots:
            place = self._outgoing.place_at(slot)
            if self._bookies.is_followed(place):
                self._tell(place, self.untold.lac)

    def _tell(self, place: SlotConnection, lac: int) -> None:
        if not place.retired and place.told_lac != lac:
            place.told_lac = lac
            access, timeout_ms = self._access, self._timeout_ms
            self._bookies.write_lac(place.bookie, access, lac, term=access.term, timeout_ms=timeout_ms)
