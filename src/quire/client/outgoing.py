"""What a writer has handed over and still holds: runs on their way, and the bookies that they are on their way to.

A run is held until it is settled (confirmed or failed) and, for every slot, sent or dropped: so a bookie that stops
reading counts against the window, and cannot make memory grow past it. It must not know futures' meaning, the
protocol or metadata.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import Any, Final, Protocol

from quire.client.access import LedgerAccess
from quire.client.bookies import AddSink, BookieClient
from quire.client.config import ClientConfig
from quire.client.run_sealer import Share
from quire.client.window import ByteWindow
from quire.core.answers import Answer
from quire.core.effects import SendRun
from quire.core.flush import UnacknowledgedCopies
from quire.core.ids import NO_ENTRY, BookieId
from quire.env.interfaces import Clock
from quire.wire.requests import AddRun
from quire.wire.responses import AddReply

_NOTHING: Final[deque[HeldRun]] = deque()
_NO_RUNS: Final[dict[int, HeldRun]] = {}
"""Shared by all writers that hold nothing. Never changed."""
RUN_BYTES = 1024
"""What a run costs besides its bodies: the objects that wait with it, here and in the channels."""


class RunOwner(Protocol):
    """Whose runs they are."""

    def answered(self, place: SlotConnection, run: int, answer: Answer) -> None:
        """A bookie's response to a run."""


class SlotConnection(AddSink):
    """One bookie at one slot of the ensemble, until it fails, is replaced, or the writer rests."""

    __slots__ = (
        "_writer",
        "answers",
        "bookie",
        "entries_answered",
        "moved_ms",
        "oldest",
        "oldest_ms",
        "retired",
        "seen",
        "sent_bytes",
        "sent_runs",
        "slot",
        "told_lac",
        "unacked",
        "written_bytes",
    )

    def __init__(self, writer: RunOwner, slot: int, bookie: BookieId, now_ms: int) -> None:
        self._writer = writer
        self.slot = slot
        self.bookie = bookie
        self.retired = False
        self.followed = False
        self.told_lac: int = NO_ENTRY
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
    """A run with its bodies and callers: `futures[i]` completes with entry `first + i`, if a caller waits."""

    __slots__ = ("cost", "first", "futures", "last", "marks", "settled", "shares")

    def __init__(
        self, first: int, last: int, shares: Sequence[Share | None], futures: list[asyncio.Future[int] | None]
    ) -> None:
        self.first = first
        self.last = last
        self.shares = shares
        self.futures = futures
        self.cost = RUN_BYTES
        for share in shares:
            if share is not None:
                self.cost += len(share[0])
        self.marks: list[tuple[SlotConnection, int]] = []
        self.settled = False

    def waiting(self) -> Iterator[tuple[int, asyncio.Future[int]]]:
        """(entry id, future) of the callers that still wait."""
        for entry_id, future in enumerate(self.futures, self.first):
            if future is not None and not future.done():
                yield entry_id, future


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
    """

    __slots__ = (
        "_access",
        "_bookies",
        "_clock",
        "_config",
        "_ensemble",
        "_held",
        "_kept",
        "_looked_ms",
        "_places",
        "_unsettled",
        "_window",
        "_writer",
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
    ) -> None:
        self._access = access
        self._bookies = bookies
        self._window = window
        self._config = config
        self._ensemble = ensemble
        self._writer = writer
        self._clock = clock
        self._places: tuple[SlotConnection, ...] = ()
        self._looked_ms = 0  # when it was last looked for slow places
        self._unsettled = _NO_RUNS
        self._kept = _NO_RUNS  # confirmed, and may be sent again
        self._held = _NOTHING

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
        if not self._held:
            self._held = deque()
        if not self._unsettled:
            self._unsettled = {}
        self._unsettled[number] = run
        self._held.append(run)

    def send(self, effect: SendRun) -> None:
        """Give a run to the bookies at some slots, each its share."""
        held = self._unsettled.get(effect.run) or self._kept[effect.run]
        shares, marks = held.shares, held.marks
        shared = len(shares) == 1
        access, add_run, timeout_ms = self._access, self._bookies.add_run, self._config.add_timeout_ms
        places = self._places or self._make_places()
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
                marks.append((place, place.sent_bytes))

    def confirm(self, last: int, *, keep: bool) -> None:
        """Complete the futures of all runs up to an entry; with `keep` they are held until `leave`."""
        settled = []
        for number, run in self._unsettled.items():
            if run.last > last:
                break
            settled.append(number)
        for number in settled:
            run = self._unsettled.pop(number)
            run.settled = not keep
            if keep:
                self._keep(number, run)
            for entry_id, future in enumerate(run.futures, run.first):
                if future is not None and not future.done():
                    future.set_result(entry_id)
            run.futures = []
        if not self._unsettled:
            self._unsettled = _NO_RUNS
        self.release()

    def _keep(self, number: int, run: HeldRun) -> None:
        if not self._kept:
            self._kept = {}
        self._kept[number] = run

    def leave(self, last: int) -> None:
        """The confirmed runs up to an entry are not sent again."""
        for number, run in list(takewhile(lambda item: item[1].last <= last, self._kept.items())):
            run.settled = True
            del self._kept[number]
        self.release()

    def futures(self) -> list[asyncio.Future[int]]:
        """Those of all unsettled runs."""
        return [future for run in self._unsettled.values() for _, future in run.waiting()]

    def fail(self, error: Callable[[int], BaseException]) -> None:
        """Fail the futures of all unsettled runs; `error` makes the exception for an entry."""
        for run in self._unsettled.values():
            for entry_id, future in run.waiting():
                future.set_exception(error(entry_id))
        self.settle_all()

    def settle_all(self) -> None:
        """Nothing is sent again."""
        for run in (*self._kept.values(), *self._unsettled.values()):
            run.settled = True
        self._kept = self._unsettled = _NO_RUNS
        self.release()

    def release(self) -> None:
        """Take runs out of the window that are settled and, for every slot, sent or dropped."""
        held, freed = self._held, 0
        while held and held[0].settled:
            for place, mark in held[0].marks:
                if place.written_bytes < mark and not self._was_sent(place, mark):
                    break
            else:
                freed += held.popleft().cost
                continue
            break
        if not held:
            self._held = _NOTHING
        if freed or self._window.waiters:
            self._window.give_back(freed)

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
            bookies.all_sent(place.bookie, place)
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
            self._places = ()

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
            unsent = self._bookies.unsent_bytes(place.bookie, place)
            seen = place.sent_bytes - unsent + place.answers  # both only rise: the sum moves if one does
            if anew or not unsent or seen != place.seen or self.moves(place, now_ms):
                place.seen, place.moved_ms = seen, now_ms
                moving = True
            elif now_ms - place.moved_ms >= config.slow_after_ms and (
                unsent >= config.slot_unsent_bytes_max or 2 * window.used_bytes >= window.limit_bytes
            ):
                slow.append(place)
        return slow if moving else []
