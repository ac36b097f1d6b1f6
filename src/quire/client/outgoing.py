"""What a writer has handed over and still holds: runs on their way, and the bookies that they are on their way to.

A run is held until it is settled (confirmed or failed) and, for every slot, sent or dropped: so a bookie that stops
reading counts against the window, and cannot make memory grow past it. It must not know futures' meaning, the
protocol or metadata.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Final

from quire.client.access import LedgerAccess
from quire.client.bookies import BookieClient
from quire.client.bundles import RUN_BYTES_MAX, Lane, LoopTurn
from quire.client.config import ClientConfig
from quire.client.held_runs import HeldRun, RunOwner, SlotConnection
from quire.client.window import ByteWindow
from quire.core.effects import SendRun
from quire.core.flush import UnacknowledgedCopies
from quire.core.ids import NO_ENTRY, BookieId
from quire.env.interfaces import Clock
from quire.wire.requests import AddRun

_NO_RUNS: Final[dict[int, HeldRun]] = {}
_NO_FUTURES: Final[list[asyncio.Future[int] | None]] = []
"""Shared by all writers that hold nothing, and by all runs that no caller waits for. Never changed."""


class Outgoing:
    """The runs and places of one writer.

    Args:
        access: id, master key, token and digest sent with every request for this ledger.
        bookies: the connections.
        window: what the held runs count against.
        config: sizes and times.
        ensemble: the bookies at the start.
        writer: receives each bookie's response to each run.
        clock: monotonic time.
        turn: its end, and the lanes of bundles.

    Attributes:
        access: see above.
    """

    __slots__ = (
        "_bookies",
        "_bundled_bytes",
        "_clock",
        "_config",
        "_ensemble",
        "_held",
        "_lane",
        "_looked_ms",
        "_oldest",
        "_places",
        "_row",
        "_row_slots",
        "_turn",
        "_unconfirmed",
        "_unsettled",
        "_window",
        "_writer",
        "access",
    )

    def __init__(
        self,
        access: LedgerAccess,
        bookies: BookieClient,
        window: ByteWindow,
        config: ClientConfig,
        ensemble: tuple[BookieId, ...],
        writer: RunOwner,
        clock: Clock,
        turn: LoopTurn,
    ) -> None:
        self.access = access
        self._bookies = bookies
        self._window = window
        self._config = config
        self._ensemble = ensemble
        self._writer = writer
        self._clock = clock
        self._turn = turn
        self._places: tuple[SlotConnection, ...] = ()
        self._row_slots: tuple[int, ...] = ()  # the slots that `_lane` and `_row` are about
        self._row: tuple[SlotConnection, ...] = ()  # in the order of the lane's bookies
        self._lane: Lane | None = None
        self._bundled_bytes = 0  # of all runs that ever were in bundles
        self._looked_ms = 0  # when it was last looked for slow places
        # Numbers follow one another: oldest <= unsettled (may be sent again) <= unconfirmed (callers wait for it).
        self._held = _NO_RUNS
        self._oldest = self._unsettled = self._unconfirmed = 0

    @property
    def holds(self) -> bool:
        """Whether a run is unsettled or unsent somewhere."""
        return bool(self._held)

    @property
    def owed(self) -> bool:
        """Whether a bookie has not acknowledged something that it was given."""
        return any(place.unacked and not place.retired for place in self._places)

    # --- runs --------------------------------------------------------------------------------------------------------

    def add(self, number: int, run: HeldRun) -> None:
        """Hold a run under its number; its cost is already in the window."""
        if self._held:
            self._leave_first()
        else:
            self._held = {}
            self._oldest = self._unsettled = self._unconfirmed = number
        run.number = number
        self._held[number] = run

    def send(self, effect: SendRun) -> None:
        """Give a run to the bookies at some slots, each its share."""
        held = self._held[effect.run]
        shares, is_first, held.is_sent = held.shares, not held.is_sent, True
        shared = len(shares) == 1
        access, add_run, timeout_ms = self.access, self._bookies.add_run, self._config.add_timeout_ms
        places = self._places or self._make_places()
        if is_first and shared and effect.lafr == NO_ENTRY and not access.term:
            if self._collect(effect, held):
                return
        else:
            self._leave_first()
        run, entries = effect.run, (effect.first, effect.last)
        request: AddRun | None = None
        for slot in effect.slots:
            if request is None or not shared:
                share = shares[0 if shared else slot]
                assert share is not None
                body, body_crc = share
                request = AddRun(access, body, body_crc, effect.lac, term=access.term, lafr=effect.lafr)
            place = places[slot]
            place.sent_bytes += len(body)
            place.sent_runs += 1
            place.unacked[run] = entries
            if not add_run(place.bookie, request, place, run, timeout_ms):
                held.marks = (*held.marks, (place, place.sent_bytes))

    def _collect(self, effect: SendRun, held: HeldRun) -> bool:
        """Have an ordinary run leave with those of other ledgers at the end of the turn, if it may."""
        share, slots, places = held.shares[0], effect.slots, self._places
        assert share is not None
        size = len(share[0])
        if size > RUN_BYTES_MAX or not slots:
            return False
        if slots != self._row_slots:
            self._row_slots = slots
            self._row = tuple(sorted((places[slot] for slot in slots), key=attrgetter("bookie")))
            self._lane = self._turn.lane(tuple(place.bookie for place in self._row))
        assert self._lane is not None
        held.lac = effect.lac
        held.bundle = self._lane.put(self, held, size, self._row)
        if held.bundle is None:
            return False
        self._bundled_bytes += size
        run, entries = effect.run, (effect.first, effect.last)
        for place in self._row:
            place.sent_runs += 1
            place.unacked[run] = entries
        return True

    def send_alone(self, run: HeldRun, places: Sequence[SlotConnection]) -> None:
        """Send a run that was collected as a plain ADD."""
        share, access, timeout_ms = run.shares[0], self.access, self._config.add_timeout_ms
        assert share is not None
        body, body_crc = share
        request = AddRun(access, body, body_crc, run.lac)
        self._bundled_bytes -= len(body)
        for place in places:
            place.sent_bytes += len(body)
            if not place.retired and not self._bookies.add_run(
                place.bookie, request, place, run.number, timeout_ms
            ):
                run.marks = (*run.marks, (place, place.sent_bytes))

    def copied(self, run: HeldRun, size: int) -> None:
        """So many bytes of a run are in memory once more until its frame has left: it is held so long."""
        run.cost += size
        self._window.used_bytes += size

    def _leave_first(self) -> None:
        """What is sent now does not overtake the ledger's last run: that leaves with its bundle, if it has not."""
        bundle = self._held[self._oldest + len(self._held) - 1].bundle
        if bundle is not None:
            bundle.leave()

    def give_up_bundles(self, bookie: BookieId) -> None:
        """A bookie does not keep up: frames with runs of this writer that it has not taken leave its queue, for all."""
        for run in list(self._held.values()):
            if run.bundle is not None:
                run.bundle.give_up(bookie)

    def _in_bundles(self, bookie: BookieId) -> int:
        """Bytes of this writer's runs in bundles that a bookie's connection has not taken."""
        return sum(
            len(share[0])
            for run in self._held.values()
            if run.bundle is not None and run.bundle.waits_for(bookie)
            for share in run.shares
            if share is not None
        )

    def confirm(self, last: int, *, keep: bool) -> None:
        """Complete the futures of all runs up to an entry; with `keep` they are held until `leave`."""
        held = self._held
        first = number = self._unconfirmed
        while (run := held.get(number)) is not None and run.last <= last:
            for entry_id, future in enumerate(run.futures, run.first):
                if future is not None and not future.done():
                    future.set_result(entry_id)
            run.futures = _NO_FUTURES
            run.settled = not keep
            number += 1
        self._unconfirmed = number
        if not keep and self._unsettled == first:
            self._unsettled = number
        self.release()

    def leave(self, last: int) -> None:
        """The confirmed runs up to an entry are not sent again."""
        while self._unsettled < self._unconfirmed and self._held[self._unsettled].last <= last:
            self._held[self._unsettled].settled = True
            self._unsettled += 1
        self.release()

    def futures(self) -> list[asyncio.Future[int]]:
        """Those of all unconfirmed runs."""
        return [future for run in self._held.values() for _, future in run.waiting()]

    def fail(self, error: Callable[[int], BaseException]) -> None:
        """Fail the futures of all unconfirmed runs; `error` makes the exception for an entry."""
        for run in self._held.values():
            for entry_id, future in run.waiting():
                future.set_exception(error(entry_id))
        self.settle_all()

    def settle_all(self) -> None:
        """Nothing is sent again."""
        for run in self._held.values():
            run.settled = True
        self._unsettled = self._unconfirmed = self._oldest + len(self._held)
        self.release()

    def release(self) -> None:
        """Take runs out of the window that are settled and, for every slot, sent or dropped."""
        held, freed = self._held, 0
        while (run := held.get(self._oldest)) is not None and run.settled and self._has_left(run):
            freed += run.cost
            del held[self._oldest]
            self._oldest += 1
        if not held:
            self._held = _NO_RUNS
        if freed or self._window.waiters:
            self._window.give_back(freed)

    def _has_left(self, run: HeldRun) -> bool:
        if run.bundle is not None and not run.bundle.is_taken:
            return False
        for place, mark in run.marks:
            if place.written_bytes < mark and not self._was_sent(place, mark):
                return False
        return True

    def _was_sent(self, place: SlotConnection, mark: int) -> bool:
        if place.retired:
            return True
        place.written_bytes = place.sent_bytes - self._bookies.unsent_bytes(place.bookie, place)
        return place.written_bytes >= mark

    # --- places ------------------------------------------------------------------------------------------------------

    @property
    def places(self) -> tuple[SlotConnection, ...]:
        """The bookies at all slots."""
        return self._places or self._make_places()

    def place_at(self, slot: int) -> SlotConnection:
        """The bookie at a slot."""
        return self.places[slot]

    @property
    def all_sent(self) -> bool:
        """Whether bookies were sent all that they have not acknowledged: it reaches them also if this process ends."""
        bookies = self._bookies
        return all(
            bookies.all_sent(place.bookie, place) and not self._in_bundles(place.bookie)
            for place in self._places
            if place.unacked and not place.retired
        )

    @property
    def lags(self) -> bool:
        """Whether the same acknowledgement of a bookie has been outstanding since the last check."""
        return any(place.oldest in place.unacked for place in self._places if not place.retired)

    def unacknowledged(
        self, now_ms: int, patience_ms: Callable[[BookieId], int]
    ) -> list[UnacknowledgedCopies]:
        """What bookies were given and have not acknowledged; `patience_ms` says how long one may be silent."""
        for place in self._places:
            self.moves(place, now_ms)
        return [
            UnacknowledgedCopies(
                place.slot,
                place.bookie,
                place.unacked,
                place.oldest_ms if next(iter(place.unacked)) == place.oldest else now_ms,
                patience_ms(place.bookie),
            )
            for place in self._places
            if place.unacked and not place.retired
        ]

    def moves(self, place: SlotConnection, now_ms: int) -> bool:
        """Whether a bookie that takes entries one by one has answered some since the last call."""
        before = place.entries_answered
        place.entries_answered = self._bookies.entries_answered(place.bookie)
        if place.entries_answered == before:
            return False
        place.oldest_ms = now_ms  # another entry is the oldest that is outstanding
        return True

    def rest(self) -> None:
        """Drop the places if they hold no state: no bookie failed, and every request has its response."""
        if not self._held and not any(
            place.retired or place.answers < place.sent_runs for place in self._places
        ):
            self._places = self._row = self._row_slots = ()
            self._lane = None

    def _make_places(self) -> tuple[SlotConnection, ...]:
        now_ms = self._clock.now_ms()
        self._places = tuple(
            SlotConnection(self._writer, slot, bookie, now_ms) for slot, bookie in enumerate(self._ensemble)
        )
        return self._places

    def retire(self, slot: int) -> None:
        """The bookie at a slot gets nothing more, and its responses are ignored."""
        place = self.place_at(slot)
        if not place.retired:
            place.retired = True
            self._bookies.drop(place.bookie, place)
            self._bookies.forget(place)

    def retire_all(self) -> None:
        """The writer is done."""
        for place in self._places:
            if place.answers < place.sent_runs:
                self.retire(place.slot)
            place.retired = True
        self.release()

    def renew(self, slot: int, bookie: BookieId) -> None:
        """A bookie takes a slot, or comes back to it."""
        self.retire(slot)
        fresh = SlotConnection(self._writer, slot, bookie, self._clock.now_ms())
        self._places = (*self._places[:slot], fresh, *self._places[slot + 1 :])
        self._row_slots = ()
        self._ensemble = tuple(place.bookie for place in self._places)

    def slow_places(self) -> list[SlotConnection]:
        """Places whose unsent bytes fill their part without a sign of life, while another moves.

        Without this a stopped bookie would fill the window and stall the writer until its add timeout. When no bookie
        makes progress, none is at fault: then it is this side.
        """
        config, window, now_ms = self._config, self._window, self._clock.now_ms()
        # Of what was while nobody looked nothing is known: all begin anew.
        anew = now_ms - self._looked_ms > config.slow_after_ms
        self._looked_ms = now_ms
        slow: list[SlotConnection] = []
        moving = False
        for place in self._places:
            if place.retired:
                continue
            oldest = next(iter(place.unacked), None)
            if oldest != place.oldest:
                place.oldest, place.oldest_ms = oldest, now_ms
            unsent = self._bookies.unsent_bytes(place.bookie, place) + self._in_bundles(place.bookie)
            given = place.sent_bytes + self._bundled_bytes
            seen = (
                given - unsent + place.answers
            )  # what was sent and what was answered only rise: the sum moves if one does
            if anew or not unsent or seen != place.seen or self.moves(place, now_ms):
                place.seen, place.moved_ms = seen, now_ms
                moving = True
            elif now_ms - place.moved_ms >= config.slow_after_ms and (
                unsent >= config.slot_unsent_bytes_max or 2 * window.used_bytes >= window.limit_bytes
            ):
                slow.append(place)
        return slow if moving else []
