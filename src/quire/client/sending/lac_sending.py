"""Sends bookies the LACs that no add's header carries: `LacFrames` those of all ledgers, `LacNews` those of one.

`LacFrames` sends one frame a bookie for all ledgers of a client, from one timer; `core/ledger/pending_explicit_lacs.py` says which
ledgers' and when. Bookies that take no such frame get theirs from `LacNews`: at once where a reader waits, everywhere
when the writer has been idle for some seconds. A writer that goes on, followed or not, sends nothing of this: its next
header carries the LAC. Safety never rests on it.

Source: `docs/formats/native-protocol.md`, WRITE_LACS; Vanlightly's guide, "Last Add Confirmed (LAC)".
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final, Protocol

from quire.client.access import LedgerAccess
from quire.client.bookies.bookies import BookieClient
from quire.client.config import ClientConfig
from quire.client.sending.bundles import SlotConnection
from quire.client.sending.outgoing import Outgoing
from quire.core.ids import BookieId
from quire.core.ledger.effects import SendExplicitLac
from quire.core.ledger.metadata import DigestType
from quire.core.ledger.pending_explicit_lacs import PendingExplicitLacs
from quire.wire.native_bodies import encode_lac_item

FRAME_ITEMS: Final = 512
"""LACs in one frame: with bodies they fit the shortest frame that a client may be limited to."""
PAUSE_SHARE: Final = 0.5
"""At least this part of the time that a LAC waits lies between two sendings, so that ledgers share frames."""


class Teller(Protocol):
    """A writer whose LAC `LacFrames` sends; it stands above."""

    def pending_explicit_lac(self, takes: Callable[[BookieId], bool]) -> tuple[int, tuple[BookieId, ...]]:
        """The LAC, and the bookies that were not sent it: those that take it in a frame of many are sent it now."""

    @property
    def access(self) -> LedgerAccess:
        """Id, master key, token and digest, sent with every request for this ledger."""

    lac_waits: bool
    """Whether its LAC is to be sent: what `LacFrames` notes at the writer, so that most adds need not ask."""


class LacFrames:
    """The LACs of a client's writers that are not yet sent.

    Args:
        bookies: the connections.
        config: times.
    """

    __slots__ = ("_bookies", "_loop", "_pending", "_timeout_ms", "_timer")

    def __init__(self, bookies: BookieClient, config: ClientConfig) -> None:
        self._bookies = bookies
        self._loop = asyncio.get_running_loop()
        self._timeout_ms = config.explicit_lac_timeout_ms
        self._pending = PendingExplicitLacs[Teller](
            config.lac_after_ms, int(config.lac_after_ms * PAUSE_SHARE)
        )
        self._timer: asyncio.TimerHandle | None = None

    def confirmed(self, teller: Teller) -> None:
        """The LAC of a writer has risen that has none to be sent yet (`lac_waits`)."""
        teller.lac_waits = True
        self._pending.confirmed(teller, int(self._loop.time() * 1000) + 1)
        if self._timer is None:
            self._set_timer()

    def carried(self, teller: Teller) -> None:
        """An add carries the LAC of a writer that waits, or it has ended."""
        teller.lac_waits = False
        self._pending.carried(teller)

    def close(self) -> None:
        """Send nothing more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for teller in self._pending:
            self.carried(teller)

    def _set_timer(self) -> None:
        at_ms = self._pending.next_ms
        self._timer = None if at_ms is None else self._loop.call_at(at_ms / 1000, self._fired)

    def _fired(self) -> None:
        self._timer = None
        takes, items = cache(self._bookies.takes_lacs), defaultdict[tuple[BookieId, ...], list[bytes]](list)
        # Times are rounded up, so that nothing is sent early.
        for teller in self._pending.due(int(self._loop.time() * 1000) + 1):
            teller.lac_waits = False
            lac, bookies = teller.pending_explicit_lac(takes)
            if bookies:
                items[bookies].append(_item(teller.access, lac))
        frames = defaultdict[BookieId, list[bytes]](list)
        for bookies, some in items.items():
            for bookie in filter(takes, bookies):
                frames[bookie] += some
        for bookie, some in frames.items():
            for start in range(0, len(some), FRAME_ITEMS):
                part = some[start : start + FRAME_ITEMS]
                self._bookies.tell_lacs(bookie, part, timeout_ms=self._timeout_ms)
        self._set_timer()


def _item(access: LedgerAccess, lac: int) -> bytes:
    digest, ledger_id = access.digest, access.ledger_id
    digest_type = digest.digest_type
    body = digest.lac_body(ledger_id, lac) if digest_type is DigestType.HMAC else b""
    return encode_lac_item(ledger_id, access.token, lac, access.term, digest_type, access.key, body)


class LacNews:
    """The LAC that one ledger's writer has for its bookies.

    Args:
        access: id, master key, token and digest sent with every request for this ledger.
        bookies: the connections.
        outgoing: the bookie at a slot.
        idle: whether no entry of the writer is on its way, or about to be: no header is about to leave.
        timeout_ms: how long a bookie may take to respond.

    Attributes:
        pending: the LAC that no header has carried, and the slots of bookies to be sent it; None if there is none.
    """

    __slots__ = (
        "_access",
        "_bookies",
        "_hop_due",
        "_idle",
        "_loop",
        "_outgoing",
        "_since",
        "_timeout_ms",
        "pending",
    )

    def __init__(
        self,
        access: LedgerAccess,
        bookies: BookieClient,
        outgoing: Outgoing,
        idle: Callable[[], bool],
        timeout_ms: int,
    ) -> None:
        self._access = access
        self._bookies = bookies
        self._outgoing = outgoing
        self._idle = idle
        self._timeout_ms = timeout_ms
        self._loop = asyncio.get_running_loop()
        self._hop_due = False
        self._since = 0.0
        self.pending: SendExplicitLac | None = None

    def due(self, effect: SendExplicitLac, connections: Sequence[SlotConnection]) -> None:
        """The last pending entry is confirmed; `connections` are the bookies at all slots."""
        self.pending, self._since = effect, self._loop.time()
        for slot in effect.slots:
            self.answered(connections[slot])

    def answered(self, connection: SlotConnection) -> None:
        """A bookie acknowledged an add while a LAC is `pending`: a reader may be waiting there."""
        if not self._hop_due and connection.followed:
            # One loop turn, in which the caller may append again: then the next header carries the LAC.
            self._hop_due = True
            self._loop.call_soon(self._tell_followed)

    def tell_all_after(self, idle_ms: int) -> None:
        """Send all bookies the LAC that has waited so long, also those that no entry was sent to yet.

        While one bookie does not acknowledge what it was sent, the writer is not `quiet`, and readers wait at others.
        """
        if self.pending is not None and self._loop.time() - self._since >= idle_ms / 1000:
            self.tell_all()

    def tell_all(self) -> None:
        """Send it to all bookies, unless a newer entry is on its way."""
        if self._nothing_to_tell():
            return
        assert self.pending is not None
        for slot in self.pending.slots:
            self._tell(self._outgoing.connection_at(slot), self.pending.lac)
        self.pending = None

    def _nothing_to_tell(self) -> bool:
        if not self._idle():
            self.pending = None  # a later header says it, and there will be news again after it
        return self.pending is None

    def _tell_followed(self) -> None:
        self._hop_due = False
        if self._nothing_to_tell():
            return
        assert self.pending is not None
        for slot in self.pending.slots:
            connection = self._outgoing.connection_at(slot)
            if connection.followed:
                self._tell(connection, self.pending.lac)

    def _tell(self, connection: SlotConnection, lac: int) -> None:
        if not connection.retired and connection.explicit_lac != lac:
            connection.explicit_lac = lac
            access, timeout_ms = self._access, self._timeout_ms
            self._bookies.write_lac(connection.bookie, access, lac, term=access.term, timeout_ms=timeout_ms)
