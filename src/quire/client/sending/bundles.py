"""Runs that writers hand over, and many of them in one request: what goes to the same bookies in one loop turn.

At the end of a turn (`LoopTurn`) each writer hands over what it has collected. A `Lane` is the way to some bookies. The
runs that are sent over it in a turn are collected in its open `Bundle`, which leaves at the end of the turn, or before:
when it is full, or when one of its ledgers sends something that must not overtake its run. So a bundle has at most one
run of a ledger. It is encoded once for all its bookies; a bundle of one run is a plain ADD, and so are all its runs
where a bookie takes no bundles.

What bookies acknowledge is counted for all runs of a bundle together (`core/ledger/bundle_acks.py`), and reaches their
writers with the last acknowledgement that they need. As soon as anything happens to one ledger alone, or a bookie does
not answer for long, the bundle is dissolved: from then on a response to a row (the place of one run in the bundle)
arrives at the run's `SlotConnection`, as the response to an ADD does. A frame of many ledgers is sent as a whole or
dropped as a whole.

Until it is confirmed a run lies in its bundle, as a row of plain lists: Python's collector has no object of its own to look
at for it. Nearly always it is confirmed there. Where more is to be known of one, its writer *holds* all its runs, each as a
`HeldRun`: when its bundle is dissolved, when a frame has not left by the time its runs are confirmed, when it has its quorum
and is not confirmed (an ensemble change is under way, or an earlier run lacks its own), and when it is sent by a writer that
has `SlotConnection`s.

Source: `docs/formats/native-protocol.md`, "Bundles".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, compress
from typing import Any, Final, Protocol, TypeAlias
from weakref import WeakValueDictionary

from quire.client.access import LedgerAccess
from quire.client.bookies.bookies import AddRequester, BookieClient
from quire.client.config import ClientConfig
from quire.client.leaving import LeavingWriter
from quire.core.answers import Answer
from quire.core.ids import NO_ENTRY, BookieId
from quire.core.ledger.bundle_acks import BundleAcks, Delivery
from quire.core.ledger.writer_state import Run
from quire.net.channel import Channel
from quire.wire.bundles import ROW, ROW_BYTES, ROWS_AT, ROWS_MAX, BundlePart
from quire.wire.native import FOLLOWED
from quire.wire.native_hello import BUNDLES
from quire.wire.native_requests import ADDED, JOINED_BYTES_MAX
from quire.wire.responses import AddReply

RUN_BYTES_MAX: Final = 8 * 1024
"""A longer run goes alone: its body is not copied, and what a request costs is little next to it."""
BUNDLE_BYTES_MAX: Final = 1024 * 1024
"""A bundle of so many bytes leaves before the turn ends: its bookies begin while the client goes on."""
LOOKS_FOR_LONG: Final = 8
"""A bundle that is under way for so many of the periodic checks is dissolved, whatever its bookies answer meanwhile."""
HELD_BYTES: Final = 1024
"""What a run costs besides its bodies: the objects that wait with it, here and in the channels, and a short body's copy in
a frame."""

SealedRun: TypeAlias = tuple[bytes, int]
"""A run body and its checksum."""
Futures: TypeAlias = asyncio.Future[int] | list[asyncio.Future[int] | None] | None
"""Of a run: each completes with the id of its entry, if a caller waits for it. Of a run of one entry there is no list."""


class RunWriter(Protocol):
    """What carries out the effects of a run's writer: it stands above this package."""

    @property
    def writer(self) -> LeavingWriter:
        """The writer."""

    def answered(self, connection: SlotConnection, run: int, answer: Answer) -> None:
        """A bookie's response to a run."""

    def acked_together(self, slots: int, ensemble: tuple[BookieId, ...], run: int) -> None:
        """The bookies at these slots (a mask) of the ensemble that a run was sent to have stored it."""

    def confirm_head(self, slots: int, ensemble: tuple[BookieId, ...], run: int) -> bool:
        """As `acked_together`, where that confirms this run and no other: its sender completes the futures.

        Returns:
            Whether it does. If not, nothing has happened.
        """

    def head_confirmed(self) -> None:
        """The futures of a run that `confirm_head` confirmed are complete."""

    def followed(self, slot: int) -> None:
        """Readers wait for the LAC at the bookie of a slot."""

    def look_after(self) -> None:
        """Look now and then which bookie does not keep up."""


class TurnWriter(LeavingWriter, Protocol):
    """A writer that collects entries until the end of a turn of the loop: it stands above this package."""

    def turn_ended(self) -> None:
        """Hand over what was collected in this turn of the loop."""


class RunSender(Protocol):
    """The sending side of a writer: `Outgoing`, which stands above."""

    retired: bool

    @property
    def writer(self) -> RunWriter:
        """Whose it is."""

    @property
    def access(self) -> LedgerAccess:
        """Id, master key, token and digest, sent with every request for this ledger."""

    def hold(self, run: HeldRun) -> None:
        """Hold a run that lay in its bundle. All that lie in bundles are held at once, in the order of their numbers."""

    def send_alone(self, number: int, slots: Sequence[int]) -> None:
        """Send a run that is held as a plain ADD."""

    def confirm_bundled(
        self, slots: int, ensemble: tuple[BookieId, ...], number: int, run: Run, futures: Futures, cost: int
    ) -> bool:
        """Confirm a run in its bundle, if that is all that its acknowledgements mean; else it is held."""

    def copied(self, number: int, size: int) -> None:
        """So many bytes of a run are in memory once more until its frame has left: it costs them too."""

    def on_its_own(
        self, number: int, run: Run, way: Way, lacking: Sequence[bool]
    ) -> Sequence[SlotConnection]:
        """A run's bundle is dissolved: note which bookies of the lane have not stored it, and look after them.

        Returns:
            Its bookies, in the lane's order.
        """

    def release(self) -> None:
        """A frame has left: what waited for that need not be held any more."""


class SlotConnection(AddRequester):
    """One bookie at one slot of the ensemble, until it fails, is replaced, or the writer rests (`Outgoing.rest`).

    Attributes:
        retired: nothing more is sent, and responses are ignored.
        explicit_lac: the last LAC that it was sent by itself.
        sent_bytes, sent_runs, answers: of all its runs so far; `written_bytes`: bytes that had left at the last check.
        entries_answered: as `BookieClient.entries_answered` said last.
        seen, moved_ms: bytes sent and responses, in sum, at the last sign of life; and when that was.
        unacked: runs that it has not acknowledged; `oldest`, `oldest_ms`: the first at the last check, and since when.
    """

    __slots__ = (
        "_writer",
        "answers",
        "bookie",
        "entries_answered",
        "explicit_lac",
        "moved_ms",
        "oldest",
        "oldest_ms",
        "retired",
        "seen",
        "sent_bytes",
        "sent_runs",
        "slot",
        "unacked",
        "written_bytes",
    )

    def __init__(self, writer: RunWriter, slot: int, bookie: BookieId, now_ms: int) -> None:
        self._writer = writer
        self.slot = slot
        self.bookie = bookie
        self.retired = False
        self.followed = False
        self.explicit_lac: int = NO_ENTRY
        self.sent_bytes = 0
        self.sent_runs = 0
        self.written_bytes = 0
        self.answers = 0
        self.entries_answered = 0
        self.seen = 0
        self.moved_ms = now_ms
        self.unacked: dict[int, tuple[int, int]] = {}  # (first, last) of each run, the oldest first
        self.oldest: int | None = None  # of them, when it was last looked at
        self.oldest_ms = now_ms

    def add_answered(self, tag: Any, answer: Answer) -> None:
        """The bookie's response to run `tag`, from a bookie that is not there."""
        self.answered(tag, AddReply(answer))

    def answered(self, tag: Any, response: AddReply) -> None:
        """The bookie's response to run `tag`."""
        answer, self.followed = response
        if not self.retired:
            self.answers += 1
            if answer is Answer.OK:
                self.unacked.pop(tag, None)
            self._writer.answered(self, tag, answer)


class HeldRun:
    """A run with its bodies and callers: `futures[i]` completes with entry `first + i`, if a caller waits.

    Attributes:
        number, first, last, lac: as the machine has numbered it, and the LAC of its headers.
        marks: how far a bookie's connection must be for the run to have left, where it did not leave at once.
        bundle: what it travels with; None if it travels alone.
        settled: nothing is sent again.
    """

    __slots__ = ("bodies", "bundle", "cost", "first", "futures", "lac", "last", "marks", "number", "settled")

    def __init__(
        self,
        number: int,
        run: Run,
        bodies: Sequence[SealedRun | None],
        futures: Futures,
        cost: int,
        bundle: Bundle | None = None,
    ) -> None:
        self.number = number
        self.first, self.last, self.lac, _ = run
        self.bodies = bodies
        self.futures: Sequence[asyncio.Future[int] | None] = (
            futures if isinstance(futures, list) else (futures,)
        )
        self.cost = cost
        self.bundle = bundle
        self.marks: Sequence[tuple[SlotConnection, int]] = ()
        self.settled = False

    def waiting(self) -> Iterator[tuple[int, asyncio.Future[int]]]:
        """(entry id, future) of the callers that still wait."""
        for entry_id, future in enumerate(self.futures, self.first):
            if future is not None and not future.done():
                yield entry_id, future


class Way:
    """How the runs of some ledgers go over a lane: which slot each of its bookies has in their ensembles.

    Attributes:
        lane: the bookies.
        ensemble: of all these ledgers.
        sent_to: the slots.
        slots: the same in the order of the lane's bookies.

    Args:
        lane, ensemble, sent_to: see above.
    """

    __slots__ = ("__weakref__", "_masks", "ensemble", "lane", "sent_to", "slots")

    def __init__(self, lane: Lane, ensemble: tuple[BookieId, ...], sent_to: tuple[int, ...]) -> None:
        self.lane = lane
        self.ensemble = ensemble
        self.sent_to = sent_to
        self.slots = tuple(ensemble.index(bookie) for bookie in lane.bookies)
        self._masks: dict[int, int] = {}

    def slots_of(self, bookies: int) -> int:
        """The slots of some of the lane's bookies; both are masks."""
        mask = self._masks.get(bookies)
        if mask is None:
            mask = sum(1 << slot for tag, slot in enumerate(self.slots) if bookies >> tag & 1)
            self._masks[bookies] = mask
        return mask


_ROWS: Final = (
    "_senders", "_ways", "_numbers", "_runs", "_futures", "_costs", "_sealed", "_packed", "_bodies",
)  # fmt: skip
"""The lists of a bundle that have a place for each of its runs."""


class Bundle:
    """Runs that travel together; open until `leave`.

    Args:
        lane: their way.
        channels: the connections to its bookies, all of which take bundles.
        number: bundles of a lane are numbered in the order in which they were opened.

    Attributes:
        lane, number: see above.
        is_open: whether it has not left.
        since: when it left.
    """

    __slots__ = (
        "_acks",
        "_awaited",
        "_bodies",
        "_bytes_left",
        "_channels",
        "_connections",
        "_costs",
        "_futures",
        "_is_held",
        "_numbers",
        "_packed",
        "_runs",
        "_sealed",
        "_senders",
        "_waits_at",
        "_ways",
        "is_open",
        "lane",
        "number",
        "since",
    )

    def __init__(self, lane: Lane, channels: Sequence[Channel], number: int) -> None:
        self.lane = lane
        self._channels = channels
        self.number = number
        self.since = 0.0
        self.is_open = True
        bytes_max = min([channel.codec.sent_bytes_max for channel in channels])
        self._bytes_left = min(bytes_max, BUNDLE_BYTES_MAX) - ROWS_AT
        # A place in each for every run:
        self._senders: list[RunSender] = []
        self._ways: list[Way] = []
        self._numbers: list[int] = []
        self._runs: list[Run] = []
        self._futures: list[Futures] = []
        self._costs: list[int] = []
        self._sealed: list[SealedRun | None] = []  # None: its writer holds it, or it is confirmed
        # The rows and bodies of its frame, until it leaves.
        self._packed: list[bytes] = []
        self._bodies: list[bytes] = []
        self._connections: Sequence[Sequence[SlotConnection]] = ()  # of each row, once it is dissolved
        self._acks: BundleAcks | None = None  # once it has left as a bundle
        self._awaited = 0
        self._is_held = False  # whether a writer holds a run of it
        self._waits_at: list[Channel] = []  # the connections that have not taken its frame

    def put(
        self,
        sender: RunSender,
        number: int,
        run: Run,
        sealed: SealedRun,
        futures: Futures,
        cost: int,
        way: Way,
    ) -> bool:
        """Take a run, if there is room."""
        body, body_crc = sealed
        self._bytes_left -= ROW_BYTES + len(body)
        if self._bytes_left < 0 or len(self._numbers) == ROWS_MAX:
            return False
        access = sender.access
        self._packed.append(ROW.pack(access.ledger_id, access.token, access.key, run[2], len(body), body_crc))
        self._bodies.append(body)
        self._senders.append(sender)
        self._ways.append(way)
        self._numbers.append(number)
        self._runs.append(run)
        self._futures.append(futures)
        self._costs.append(cost)
        self._sealed.append(sealed)
        return True

    @property
    def writers(self) -> Iterable[LeavingWriter]:
        """Whose runs are in it."""
        return (sender.writer.writer for sender in self._senders)

    @property
    def together(self) -> bool:
        """Whether acknowledgements reach its runs together, or it is open."""
        return self.is_open or (self._acks is not None and self._acks.together)

    @property
    def is_complete(self) -> bool:
        """Whether every bookie has acknowledged every run, and it was never dissolved."""
        return self._acks is not None and self._acks.is_complete

    @property
    def is_taken(self) -> bool:
        """Whether every transport has taken its frame, or will get none."""
        waits_at = self._waits_at
        while waits_at and not waits_at[-1].unsent_bytes(self):
            waits_at.pop()
        return not waits_at and not self.is_open

    def waits_for(self, bookie: BookieId) -> bool:
        """Whether a bookie's connection has not taken its frame."""
        return self.is_open or bool(self._unsent_to(bookie))

    def _unsent_to(self, bookie: BookieId) -> list[Channel]:
        """The connection to a bookie, if it has not taken the frame."""
        return [
            channel for channel in self._waits_at if channel.meant == bookie and channel.unsent_bytes(self)
        ]

    def leave(self) -> Sequence[Channel]:
        """Send it, if it is open; returns the connections that it was passed to, where it may wait for the turn's end."""
        if not self.is_open:
            return ()
        channels, self._channels = self._channels, ()
        if any(channel.closed for channel in channels):
            channels = ()  # the bookies that take their place may take no bundles, and are not connected yet
        kept = [not sender.retired for sender in self._senders]
        if not all(kept):  # who is abandoned in the turn in which its run was collected sends nothing
            self._keep(kept)
        count = len(self._senders)
        is_bundle = channels and count > 1
        # What is sent alone is held, and so is all before it.
        if count == 1 and self._sealed[0] is not None:
            self.lane.hold_of(self._senders[0])
        elif not is_bundle and count > 1:
            self.lane.hold_all()
        self.is_open = False
        self.lane.left(self)
        if is_bundle:
            self._send(channels)
        else:
            senders, numbers, ways = self._senders, self._numbers, self._ways
            self._forget()
            for sender, number, way in zip(senders, numbers, ways, strict=True):
                sender.send_alone(number, way.slots)
        return channels

    def _keep(self, kept: Sequence[bool]) -> None:
        """Only some of the rows stay."""
        for name in _ROWS:
            setattr(self, name, list(compress(getattr(self, name), kept)))

    def _send(self, channels: Sequence[Channel]) -> None:
        rows, bodies = self._packed, self._bodies
        self._packed, self._bodies = [], []
        # Each body is in memory twice now: a run keeps its own, since it may wait for long after the frame is freed, and
        # must not keep a frame of many. What `HELD_BYTES` allows for is not counted, here and in a plain ADD.
        for row, size in enumerate(map(len, bodies)):
            if size > JOINED_BYTES_MAX:
                self._costs[row] += size
                self._senders[row].copied(self._numbers[row], size)
        self._acks = BundleAcks(len(bodies), len(channels), self.lane.ack_quorum)
        self._awaited = len(bodies) * len(channels)
        number, frame = channels[0].codec.encode_bundle(rows, bodies)
        self.since = asyncio.get_running_loop().time()
        self.lane.sent(self)
        deadline = self.since + self.lane.timeout_ms / 1000
        for tag, channel in enumerate(channels):
            if not channel.codec.send_bundle(number, frame, len(bodies), self, tag, deadline):
                self._waits_at.append(channel)

    # --- runs that their writers hold --------------------------------------------------------------------------------

    def hold_of(self, sender: RunSender) -> None:
        """A writer holds its run from now on."""
        if sender in self._senders:
            self.hold(self._senders.index(sender))

    def hold_all(self) -> None:
        """All writers hold their runs."""
        for row in range(len(self._senders)):
            self.hold(row)

    def hold(self, row: int = -1) -> None:
        """The writer of a row holds its run from now on; without a row, of the last one."""
        sealed = self._sealed[row]
        if sealed is not None:
            self._sealed[row], self._is_held = None, True
            run = HeldRun(
                self._numbers[row], self._runs[row], (sealed,), self._futures[row], self._costs[row], self
            )
            self._senders[row].hold(run)

    # --- responses ---------------------------------------------------------------------------------------------------

    def answered(self, tag: Any, parts: Sequence[BundlePart]) -> None:
        """Responses of the lane's bookie number `tag` to some of its rows, none of which it has answered before."""
        acks = self._acks
        assert acks is not None
        self.lane.moved |= 1 << tag
        for first, rows, answer, flags in parts:
            self._awaited -= rows
            if answer is not Answer.OK:
                self.dissolve()
            if not acks.together:
                self._answered_alone(tag, first, first + rows, answer, flags)
                continue
            if flags & FOLLOWED:
                for row in range(first, first + rows):
                    self._senders[row].writer.followed(self._ways[row].slots[tag])
            self._deliver(acks.stored(tag, first, rows))
        if not self._awaited:
            self.lane.done(self)
            assert not any(self._sealed), "each run is confirmed, or held by its writer"
            held = self._senders if self._is_held else ()
            self._forget()
            for sender in held:
                sender.release()

    def _answered_alone(self, tag: int, first: int, end: int, answer: Answer, flags: int) -> None:
        reply = AddReply(answer, bool(flags & FOLLOWED)) if answer is not Answer.OK or flags else ADDED
        # Of lists that stay as they are, whatever a writer does about its answer.
        for connections, number in zip(self._connections[first:end], self._numbers[first:end], strict=True):
            connections[tag].answered(number, reply)

    def _deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Acknowledgements reach some of its runs."""
        if deliveries and not self.is_taken:
            self.lane.hold_all()  # what is confirmed counts against its window until every transport has it
        senders, numbers, ways, sealed = self._senders, self._numbers, self._ways, self._sealed
        for first, rows, bookies in deliveries:
            known, slots = None, 0
            for row in range(first, first + rows):
                sender, number, way = senders[row], numbers[row], ways[row]
                if way is not known:
                    known, slots = way, way.slots_of(bookies)
                if sealed[row] is not None and sender.confirm_bundled(
                    slots, way.ensemble, number, self._runs[row], self._futures[row], self._costs[row]
                ):
                    sealed[row] = None
                else:
                    sender.writer.acked_together(slots, way.ensemble, number)

    @property
    def awaited(self) -> int:
        """The bookies of the lane (a mask) that have not acknowledged all runs of a bundle that is under way."""
        assert self._acks is not None
        return self._acks.awaited

    def dissolve(self) -> None:
        """Each run gets every response by itself from now on, and what has not reached it yet, now. An open one leaves."""
        self.leave()
        acks = self._acks
        if acks is None or not acks.together or not self._senders:
            return
        self.lane.hold_all()
        self.lane.done(self)
        bookies = range(len(self.lane.bookies))
        rows = enumerate(zip(self._senders, self._numbers, self._runs, self._ways, strict=True))
        self._connections = [
            sender.on_its_own(number, run, way, [acks.lacks(tag, row) for tag in bookies])
            for row, (sender, number, run, way) in rows
        ]
        self._deliver(acks.dissolve())

    def give_up(self, bookie: BookieId) -> None:
        """A bookie does not take its bytes: no caller waits for that any more, and the frame never leaves for it."""
        self.leave()  # an open one would leave later, and wait for this bookie too
        for channel in self._unsent_to(bookie):
            channel.drop(self)
            everything = BundlePart(0, len(self._numbers), Answer.TIMED_OUT)
            self.answered(self.lane.bookies.index(bookie), [everything])

    def _forget(self) -> None:
        """Nothing more is to be done about its runs: who still holds one holds no more than that."""
        for name in _ROWS:
            setattr(self, name, [])
        self._connections = ()


class Lane:
    """The way to some bookies, for the runs that go to all of them.

    Args:
        bookies: these.
        ack_quorum: of the ledgers whose runs go there.
        client: the connections.
        timeout_ms: how long a bookie may take to respond.
        opened, sent: are called with each bundle that is opened, so that it leaves at the end of the turn; and when one
            is under way.

    Attributes:
        bookies, ack_quorum, timeout_ms: see above.
        open: the bundle that runs are put into in this turn.
        moved: the bookies (a mask) that have answered something since the last periodic check (`look`).
    """

    __slots__ = (
        "__weakref__",
        "_client",
        "_newest",
        "_opened",
        "_sent",
        "_under_way",
        "ack_quorum",
        "bookies",
        "moved",
        "open",
        "timeout_ms",
    )

    def __init__(
        self,
        bookies: tuple[BookieId, ...],
        ack_quorum: int,
        client: BookieClient,
        timeout_ms: int,
        opened: Callable[[Bundle], None],
        sent: Callable[[], None],
    ) -> None:
        self.bookies = bookies
        self.ack_quorum = ack_quorum
        self.timeout_ms = timeout_ms
        self.moved = 0
        self._client = client
        self._opened, self._sent = opened, sent
        self.open: Bundle | None = None
        self._newest = 0
        self._under_way: dict[Bundle, None] = {}  # those that are together and not complete, the oldest first

    def next_bundle(self) -> Bundle | None:
        """Open a bundle for the end of the turn; the one that is open leaves. None: a run has to go alone, now."""
        if self.open is not None:
            flush(self.open.leave())
        channels = self._client.channels_with(BUNDLES, self.bookies)
        if not channels:
            return None
        self._newest += 1
        bundle = self.open = Bundle(self, channels, self._newest)
        self._opened(bundle)
        return bundle

    def hold_of(self, sender: RunSender) -> None:
        """A writer holds all its runs from now on: something is to be done about one of them."""
        for bundle in self._bundles:
            bundle.hold_of(sender)

    def hold_all(self) -> None:
        """All writers hold their runs that lie here, the oldest first."""
        for bundle in self._bundles:
            bundle.hold_all()

    @property
    def _bundles(self) -> Iterable[Bundle]:
        """Those with runs that are not held: under way together, and the open one."""
        return (*self._under_way, *((self.open,) if self.open is not None else ()))

    def left(self, bundle: Bundle) -> None:
        """A bundle is not open any more."""
        if self.open is bundle:
            self.open = None

    def sent(self, bundle: Bundle) -> None:
        """A bundle is under way, together."""
        self._under_way[bundle] = None
        self._sent()

    def done(self, bundle: Bundle) -> None:
        """A bundle is complete, or dissolved."""
        self._under_way.pop(bundle, None)

    def dissolve(self, newest: Bundle) -> None:
        """Something happens to a ledger whose last run is in this bundle."""
        for bundle in [each for each in self._under_way if each.number <= newest.number]:
            bundle.dissolve()
        newest.dissolve()

    def look(self, before: float, long_before: float) -> bool:
        """Dissolve what no longer gets on: its writers look which bookie does not keep up.

        That is a bundle that left before some moment and waits for a bookie that has answered nothing since the last
        look; and, for one run that a bookie leaves unanswered while it answers others, a bundle that left long before.
        Where all bookies answer, but all late, none is at fault: five thousand entries under way, of as many ledgers,
        take longer than a bookie may be silent.

        Returns:
            Whether more is under way.
        """
        old = [each for each in self._under_way if each.since <= before]
        for bundle in [each for each in old if each.since <= long_before or each.awaited & ~self.moved]:
            bundle.dissolve()
        self.moved = 0
        return bool(self._under_way)

    @property
    def unfinished(self) -> Iterator[LeavingWriter]:
        """The writers with runs under way here, or about to be."""
        for bundle in self._bundles:
            yield from bundle.writers


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
        self._writers: list[TurnWriter] = []
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

    def at_its_end(self, writer: TurnWriter) -> None:
        """A writer has begun to collect: at the end of the turn it hands over what it has."""
        self._writers.append(writer)
        if not self._due:
            self._end_later()

    @property
    def unfinished(self) -> Iterable[LeavingWriter]:
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


def flush(channels: Iterable[Channel]) -> None:
    """Have connections send at once what they were passed in this turn."""
    for channel in channels:
        channel.flush()
