"""Runs of many ledgers in one request: what the writers of a client send to the same bookies in one loop turn.

The end of a turn is one callback for all writers of a client (`LoopTurn`): each hands over what it has collected. A
`Lane` is the way to some bookies. The runs that are sent over it in a turn are collected in its open `Bundle`, which
leaves at the end of the turn, or before: when it is full, or when one of its ledgers sends something that must not
overtake its run. So a bundle has at most one run of a ledger. It is encoded once for all its bookies; a bundle of one
run is a plain ADD, and so are all its runs where a bookie takes no bundles.

A writer does not see whether its run travelled alone: a bookie's response to a row arrives at the run's
`SlotConnection`, as the response to an ADD does. A frame of many ledgers is sent as a whole or given up as a whole;
the rows of writers that are done with a bookie are answered to nobody.

Source: `docs/formats/native-protocol.md`, "Bundles".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from typing import Any, Final, Protocol
from weakref import WeakValueDictionary

from quire.client.access import LedgerAccess
from quire.client.bookies import BookieClient
from quire.client.config import ClientConfig
from quire.core.answers import Answer
from quire.core.ids import BookieId
from quire.net.channel import Channel
from quire.wire.bundles import ROW, ROW_BYTES, ROWS_AT, ROWS_MAX, BundlePart
from quire.wire.native import FOLLOWED
from quire.wire.native_hello import BUNDLES
from quire.wire.native_requests import ADDED, JOINED_BYTES_MAX
from quire.wire.responses import AddReply

RUN_BYTES_MAX: Final = 8 * 1024
"""A longer run goes alone: its body is not copied, and what a request costs is little beside it."""
BUNDLE_BYTES_MAX: Final = 1024 * 1024
"""A bundle of so many bytes leaves before the turn ends: its bookies begin while the client goes on."""


class RowPlace(Protocol):
    """The bookie of one slot, as a run's row sees it."""

    retired: bool

    def answered(self, tag: Any, response: AddReply) -> None:
        """The bookie's response to the run with this number."""


class CollectedRun(Protocol):
    """A run that is held until it is settled."""

    number: int
    lac: int
    shares: Sequence[tuple[bytes, int] | None]


class RunSender(Protocol):
    """Whose runs they are."""

    @property
    def access(self) -> LedgerAccess:
        """Id, master key, token and digest, sent with every request for the ledger."""

    def send_alone(self, run: Any, places: Sequence[Any]) -> None:
        """Send a run as a plain ADD."""

    def copied(self, run: Any, size: int) -> None:
        """So many bytes of a run are in memory once more until its frame has left."""


class Bundle:
    """Runs that travel together; open until `leave`.

    Args:
        lane: their way.
        channels: the connections to its bookies, all of which take bundles.
    """

    __slots__ = ("_awaited", "_bytes_left", "_channels", "_lane", "_places", "_runs", "_senders", "_waits_at")

    def __init__(self, lane: Lane, channels: Sequence[Channel]) -> None:
        self._lane = lane
        self._channels = channels
        bytes_max = min([channel.codec.sent_bytes_max for channel in channels])
        self._bytes_left = min(bytes_max, BUNDLE_BYTES_MAX) - ROWS_AT
        self._senders: list[RunSender] = []
        self._runs: Sequence[Any] = []
        self._places: Sequence[Sequence[RowPlace]] = []
        self._awaited = 0
        self._waits_at: list[Channel] | None = (
            None  # the connections that have not taken its frame; None: open
        )

    def put(self, sender: RunSender, run: CollectedRun, size: int, places: Sequence[RowPlace]) -> bool:
        """Take a run with a body of so many bytes, if there is room; `places` in the order of the lane's bookies."""
        self._bytes_left -= ROW_BYTES + size
        if self._bytes_left < 0 or len(self._senders) == ROWS_MAX:
            return False
        self._senders.append(sender)
        self._runs.append(run)  # type: ignore[attr-defined] # a list until it leaves
        self._places.append(places)  # type: ignore[attr-defined]
        return True

    @property
    def is_taken(self) -> bool:
        """Whether every transport has taken its frame, or will get none."""
        waits_at = self._waits_at
        if waits_at is None:
            return False
        while waits_at and not waits_at[-1].unsent_bytes(self):
            waits_at.pop()
        return not waits_at

    def waits_for(self, bookie: BookieId) -> bool:
        """Whether a bookie's connection has not taken its frame."""
        if self._waits_at is None:
            return True
        return any(channel.meant == bookie and channel.unsent_bytes(self) > 0 for channel in self._waits_at)

    def leave(self) -> Sequence[Channel]:
        """Send it, if it is open; returns the connections that it was given to, where it may wait for the turn's end."""
        if self._waits_at is not None:
            return ()
        self._waits_at = []
        self._lane.left(self)
        channels, self._channels = self._channels, ()
        if any(channel.closed for channel in channels):
            channels = ()  # whoever takes their place may take no bundles, and is not connected yet
        if any(places[0].retired for places in self._places):
            self._leave_out_the_retired()
        senders, self._senders = self._senders, []
        if channels and len(senders) > 1:
            self._send(senders, channels)
        else:
            runs, places = self._runs, self._places
            self._runs = self._places = ()
            for sender, run, row in zip(senders, runs, places, strict=True):
                sender.send_alone(run, row)
        return channels

    def _leave_out_the_retired(self) -> None:
        """A writer that was abandoned in the turn in which its run was collected sends nothing."""
        kept = [not all(place.retired for place in places) for places in self._places]
        self._senders = list(compress(self._senders, kept))
        self._runs = list(compress(self._runs, kept))
        self._places = list(compress(self._places, kept))

    def _send(self, senders: Sequence[RunSender], channels: Sequence[Channel]) -> None:
        runs: Sequence[CollectedRun] = self._runs
        rows, bodies, pack = [], [], ROW.pack
        for sender, run in zip(senders, runs, strict=True):
            access, share = sender.access, run.shares[0]
            assert share is not None
            body, body_crc = share
            rows.append(pack(access.ledger_id, access.token, access.key, run.lac, len(body), body_crc))
            bodies.append(body)
            # Each body is in memory twice now: a run keeps its own, since it may wait for long after the frame is gone,
            # and must not keep a frame of many. What `RUN_BYTES` allows for is not counted, here and in a plain ADD.
            if len(body) > JOINED_BYTES_MAX:
                sender.copied(run, len(body))
        self._runs = [run.number for run in runs]
        self._awaited = len(rows) * len(channels)
        number, frame = channels[0].codec.encode_bundle(rows, bodies)
        deadline = asyncio.get_running_loop().time() + self._lane.timeout_ms / 1000
        assert self._waits_at is not None
        for tag, channel in enumerate(channels):
            if not channel.codec.send_bundle(number, frame, len(rows), self, tag, deadline):
                self._waits_at.append(channel)

    def answered(self, tag: Any, parts: Sequence[BundlePart]) -> None:
        """Responses of the lane's bookie number `tag` to some of its rows, none of which it has answered before."""
        for first, rows, answer, flags in parts:
            reply = AddReply(answer, bool(flags & FOLLOWED)) if answer is not Answer.OK or flags else ADDED
            # Of lists that stay as they are, whatever a writer does about its answer.
            end = first + rows
            for places, run in zip(self._places[first:end], self._runs[first:end], strict=True):
                places[tag].answered(run, reply)
            self._awaited -= rows
        if not self._awaited:
            self._places = self._runs = ()  # who still holds a run of it holds no more than that

    def give_up(self, bookie: BookieId) -> None:
        """A bookie does not take its bytes: nobody waits for that any more, and the frame never leaves for it."""
        self.leave()  # an open one would leave later, and wait for this bookie too
        for channel in self._waits_at or ():
            if channel.meant == bookie and channel.unsent_bytes(self):
                channel.drop(self)
                everything = BundlePart(0, len(self._runs), Answer.TIMED_OUT)
                self.answered(self._lane.bookies.index(bookie), [everything])


class Lane:
    """The way to some bookies, for the runs that go to all of them.

    Args:
        bookies: these.
        client: the connections.
        timeout_ms: how long a bookie may take to respond.
        opened: is called with each bundle that is opened, so that it leaves at the end of the turn.
    """

    __slots__ = ("__weakref__", "_client", "_open", "_opened", "bookies", "timeout_ms")

    def __init__(
        self,
        bookies: tuple[BookieId, ...],
        client: BookieClient,
        timeout_ms: int,
        opened: Callable[[Bundle], None],
    ) -> None:
        self.bookies = bookies
        self.timeout_ms = timeout_ms
        self._client = client
        self._opened = opened
        self._open: Bundle | None = None

    def put(
        self, sender: RunSender, run: CollectedRun, size: int, places: Sequence[RowPlace]
    ) -> Bundle | None:
        """Collect a run with a body of so many bytes for the end of the turn.

        Args:
            sender, run, size: whose, which, and how long its body is.
            places: who gets the responses, in the order of `bookies`.

        Returns:
            Its bundle; None if it has to go alone, now.
        """
        bundle = self._open
        if bundle is not None and bundle.put(sender, run, size, places):
            return bundle
        if bundle is not None:
            flush(bundle.leave())
        channels = self._client.channels_with(BUNDLES, self.bookies)
        if size > RUN_BYTES_MAX or not channels:
            return None
        bundle = self._open = Bundle(self, channels)
        bundle.put(sender, run, size, places)
        self._opened(bundle)
        return bundle

    def left(self, bundle: Bundle) -> None:
        """A bundle is not open any more."""
        if self._open is bundle:
            self._open = None


def flush(channels: Iterable[Channel]) -> None:
    """Have connections send at once what they were given in this turn."""
    for channel in channels:
        channel.flush()


class LoopTurn:
    """What the writers of a client have collected in this turn of its event loop, and the bundles that it opened.

    Args:
        bookies: the connections.
        config: times.
    """

    __slots__ = ("_bookies", "_due", "_ends", "_lanes", "_loop", "_opened", "_timeout_ms")

    def __init__(self, bookies: BookieClient, config: ClientConfig) -> None:
        self._bookies = bookies
        self._timeout_ms = config.add_timeout_ms
        self._loop = asyncio.get_running_loop()
        self._ends: list[Callable[[], None]] = []
        self._opened: list[Bundle] = []
        # A lane is needed as long as a writer sends over it; there may be as many as there are sets of bookies.
        self._lanes: WeakValueDictionary[tuple[BookieId, ...], Lane] = WeakValueDictionary()
        self._due = False

    def lane(self, bookies: tuple[BookieId, ...]) -> Lane:
        """The way to these bookies, for all writers that send to them."""
        lane = self._lanes.get(bookies)
        if lane is None:
            lane = self._lanes[bookies] = Lane(bookies, self._bookies, self._timeout_ms, self._open)
        return lane

    def at_its_end(self, call: Callable[[], None]) -> None:
        """A writer has begun to collect: call this at the end of the turn, so that it hands over what it has."""
        self._ends.append(call)
        if not self._due:
            self._end_later()

    def _open(self, bundle: Bundle) -> None:
        self._opened.append(bundle)
        if not self._due:
            self._end_later()

    def _end_later(self) -> None:
        self._due = True
        self._loop.call_soon(self._over)

    def _over(self) -> None:
        ends, self._ends = self._ends, []
        for call in ends:
            try:
                call()
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
