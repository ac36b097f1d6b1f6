"""The end of a turn of a client's event loop: one callback for all its writers, and for the bundles that they opened.

Source: `docs/formats/native-protocol.md`, "Bundles".
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import chain
from typing import Final
from weakref import WeakValueDictionary

from quire.client.bookies.bookies import BookieClient
from quire.client.config import ClientConfig
from quire.client.sending.bundles import Bundle, Lane, RunWriter, Way, flush
from quire.core.ids import BookieId
from quire.net.channel import Channel

LOOKS_FOR_LONG: Final = 8
"""A bundle that has been under way for so many looks is dissolved, whatever its bookies answer meanwhile."""


class LoopTurn:
    """What the writers of a client have collected in this turn of its event loop, and the bundles that it opened.

    Args:
        bookies: the connections.
        config: times.
    """

    __slots__ = (
        "_bookies",
        "_due",
        "_lanes",
        "_look_after",
        "_loop",
        "_opened",
        "_timeout_ms",
        "_timer",
        "_ways",
        "_writers",
    )

    def __init__(self, bookies: BookieClient, config: ClientConfig) -> None:
        self._bookies = bookies
        self._timeout_ms = config.add_timeout_ms
        self._look_after = config.slow_after_ms / 2000
        self._loop = asyncio.get_running_loop()
        self._writers: list[RunWriter] = []
        self._opened: list[Bundle] = []
        # A lane is needed as long as a writer sends over it; there may be as many as there are sets of bookies.
        self._lanes: WeakValueDictionary[tuple[tuple[BookieId, ...], int], Lane] = WeakValueDictionary()
        self._ways: WeakValueDictionary[tuple[tuple[BookieId, ...], tuple[int, ...], int], Way] = (
            WeakValueDictionary()
        )
        self._due = False
        self._timer: asyncio.TimerHandle | None = None

    def way(self, ensemble: tuple[BookieId, ...], slots: tuple[int, ...], ack_quorum: int) -> Way:
        """How the runs of a ledger get to the bookies at some slots, with those of all other ledgers."""
        way = self._ways.get((ensemble, slots, ack_quorum))
        if way is None:
            lane = self._lane(tuple(sorted(ensemble[slot] for slot in slots)), ack_quorum)
            way = self._ways[ensemble, slots, ack_quorum] = Way(lane, ensemble, slots)
        return way

    def _lane(self, bookies: tuple[BookieId, ...], ack_quorum: int) -> Lane:
        lane = self._lanes.get((bookies, ack_quorum))
        if lane is None:
            lane = Lane(bookies, ack_quorum, self._bookies, self._timeout_ms, self._open, self._look_later)
            self._lanes[bookies, ack_quorum] = lane
        return lane

    def at_its_end(self, writer: RunWriter) -> None:
        """A writer has begun to collect: at the end of the turn it hands over what it has."""
        self._writers.append(writer)
        if not self._due:
            self._end_later()

    @property
    def unfinished(self) -> Iterable[RunWriter]:
        """The writers that have collected something, or have runs under way in bundles."""
        return (*self._writers, *chain.from_iterable(lane.unfinished for lane in self._lanes.values()))

    def _open(self, bundle: Bundle) -> None:
        """A bundle is open: it leaves at the end of the turn."""
        self._opened.append(bundle)
        if not self._due:
            self._end_later()

    def _end_later(self) -> None:
        self._due = True
        self._loop.call_soon(self._over)

    def _over(self) -> None:
        writers, self._writers = self._writers, []
        for writer in writers:
            try:
                writer.turn_ended()
            except Exception as error:  # noqa: BLE001 - it was the last call of its writer, and the others go on
                self._loop.call_exception_handler(
                    {"message": "a writer failed at the end of a loop turn", "exception": error}
                )
        self._due = False
        opened, self._opened = self._opened, []
        channels: dict[Channel, None] = {}
        for bundle in opened:
            channels.update(dict.fromkeys(bundle.leave()))
        # Now, not one turn later as what is sent at any time is: this is the end of the turn.
        flush(channels)

    def _look_later(self) -> None:
        """Bundles are under way: look now and then whether one of them is for long."""
        if self._timer is None:
            self._timer = self._loop.call_later(self._look_after, self._look)

    def _look(self) -> None:
        self._timer = None
        now = self._loop.time()
        before, long_before = now - self._look_after, now - LOOKS_FOR_LONG * self._look_after
        under_way = [lane.look(before, long_before) for lane in list(self._lanes.values())]
        if any(under_way):
            self._look_later()
