"""What a worker repairs next, and when it tries again: marked ledgers, those with the fewest copies left first.

    WAITING -> REPAIRING -> removed, when the marks no longer hold
                         -> PAUSED | OPEN | GIVEN_UP -> WAITING, after a pause
                         -> GONE_ONLY | LOST, until something happens

A pause doubles with each attempt that left something. After the fifth one attempt follows each hour, since not everything
that ends such a failure can be seen: a link that is mended, a disk that has room again. Events make the ledger wait for a
repair at once, and count attempts anew: a bookie that comes, and marks that say something else. A bookie that is writable
again is one where it may take copies. What only a lost bookie has waits for that bookie, and for no other. An open ledger
of which a bookie is lost is no failed attempt: it is looked at again until its writer has moved on, or has had its time
(`repair/open_last_fragments.py`).

What is repaired side by side is bounded by bytes; one that needs much is not passed by those that need little.

Source: docs/protocol/repair-queue.md.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from quire.core.ids import BookieId
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.quorum import fewest_copies
from quire.core.repair.effects import RepairOutcome, RepairReport
from quire.core.repair.rules import RULES, RepairRules
from quire.core.repair.under_replicated_marks import RepairAttempts, WaitsFor
from quire.core.settings import doubled
from quire.core.state_table import StateTable


class MarkStatus(Enum):
    """Where a marked ledger is."""

    WAITING = "waiting"
    """It is repaired as soon as there is room."""
    REPAIRING = "repairing"
    PAUSED = "paused"
    """Another attempt follows after a pause."""
    OPEN = "open"
    """Its writer may replace the lost bookie: it is looked at again after a pause."""
    GONE_ONLY = "gone-only"
    """Only lost bookies have some of the entries."""
    LOST = "lost"
    """No bookie has some of the entries."""
    GIVEN_UP = "given-up"
    """Each of the attempts left something: the next one follows after a long pause."""


MARK_TABLE: Final = StateTable(
    MarkStatus,
    {
        "begin": "waiting > repairing",
        "released": "repairing > waiting paused",
        "ended": "repairing > waiting paused open gone-only lost given-up",
        "time": "paused open given-up > = waiting; waiting repairing gone-only lost > -",
        "bookies_came": "waiting repairing > =; paused open lost given-up > waiting; gone-only > = waiting",
        "room_came": "waiting repairing > =; paused open given-up > waiting; gone-only lost > -",
        "marked": "waiting repairing > =; paused open gone-only lost given-up > = waiting",
    },
)
"""What the inputs of one marked ledger do."""
PAUSES: Final = frozenset({MarkStatus.PAUSED, MarkStatus.OPEN, MarkStatus.GIVEN_UP})
"""These end by time."""


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """How many ledgers a worker repairs at a time, and how often it tries one.

    Attributes:
        attempts_max: after so many attempts that left something only an event counts, or `given_up_ms`.
        pause_ms: after the first attempt; it doubles.
        pause_ms_max: where the doubling stops.
        given_up_ms: a ledger with too many failed attempts has one more attempt after so long.
        units_max: so many units of `unit_bytes` are repaired side by side; each ledger is one at least.
        ledger_units_max: no ledger counts as more.
    """

    attempts_max: int = 5
    pause_ms: int = 10_000
    pause_ms_max: int = 300_000
    given_up_ms: int = 3_600_000
    units_max: int = 64
    unit_bytes: int = 1 << 20
    ledger_units_max: int = 8


LIMITS: Final = QueueLimits()


class QueuedMark(NamedTuple):
    """A ledger's marks, as they were read.

    Attributes:
        said: a number that is another one when the marks say something else.
        made: a number that is another one when they were made again, perhaps saying the same.
        bookies: of the ledger's bookies those that were lost.
        copies: the fewest copies that a write set has without them.
        size: about how many bytes are to be copied.
    """

    said: int
    bookies: tuple[BookieId, ...]
    copies: int
    size: int
    made: int = 0


# --- effects ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BeginRepair:
    """Lock the ledger and repair it; answer `ended` or `released`."""

    ledger_id: int


@dataclass(frozen=True, slots=True)
class StopRepair:
    """Stop the repair; answer `released`."""

    ledger_id: int


@dataclass(frozen=True, slots=True)
class RemoveMarks:
    """Remove the marks as they were read, then unlock the ledger; if they were changed since, they are read again. No answer."""

    ledger_id: int


@dataclass(frozen=True, slots=True)
class NoteAttempts:
    """Store what the attempt left, then unlock the ledger. No answer."""

    ledger_id: int
    attempts: RepairAttempts


QueueEffect: TypeAlias = BeginRepair | StopRepair | RemoveMarks | NoteAttempts


class MarkedLedger:
    """One marked ledger. Its inputs come from the queue.

    Attributes:
        seen: its marks.
        status: where it is.
        attempts: how many attempts left something since the last event, up to `attempts_max`.
        looks: how often its writer was found to have time left.
        due_ms: when a pause ends.
        again: something happened during the repair: it is to be done again.
    """

    __slots__ = ("_limits", "again", "attempts", "due_ms", "looks", "seen", "status")

    def __init__(self, seen: QueuedMark, limits: QueueLimits = LIMITS) -> None:
        self.seen, self._limits = seen, limits
        self.status = MarkStatus.WAITING
        self.attempts = self.looks = self.due_ms = 0
        self.again = False

    @property
    def units(self) -> int:
        """How much of the room it takes."""
        return max(1, min(-(-self.seen.size // self._limits.unit_bytes), self._limits.ledger_units_max))

    def begin(self) -> None:
        """A repair begins."""
        assert MARK_TABLE.acts["begin"][self.status]
        self.status, self.again = MarkStatus.REPAIRING, False

    def released(self, now_ms: int) -> None:
        """It was not repaired, because another worker has the lock, or the repair was stopped: no attempt."""
        if MARK_TABLE.acts["released"][self.status]:
            self._pause(MarkStatus.PAUSED, now_ms, self._limits.pause_ms)

    def ended(
        self,
        report: RepairReport | None,
        wait_ms: int | None,
        now_ms: int,
        waits: WaitsFor | None = None,
    ) -> WaitsFor:
        """An attempt left something.

        Args:
            report: what; None: it ended with an error.
            wait_ms: how long its writer has time left, if that can be said.
            now_ms: the time.
            waits: WRITER where a mark reaches into a fragment that its writer may still change; BOOKIE where the bookies of
                what is left are away or take no copies, and no other may take them: that is no failed attempt.
        """
        assert MARK_TABLE.acts["ended"][self.status]
        limits = self._limits
        if waits is WaitsFor.BOOKIE:
            self._pause(MarkStatus.GIVEN_UP, now_ms, limits.given_up_ms)
            return WaitsFor.BOOKIE
        if waits is WaitsFor.WRITER or (report is not None and report.undecided):
            doubled_ms = doubled(limits.pause_ms, limits.pause_ms_max, self.looks)
            self._pause(MarkStatus.OPEN, now_ms, doubled_ms if wait_ms is None else wait_ms)
            self.looks += 1
            return WaitsFor.WRITER
        self.attempts = min(self.attempts + 1, limits.attempts_max)
        if report is not None and not (report.left or report.unanswered or report.stopped):
            self._settle(MarkStatus.GONE_ONLY if report.waits_for_gone else MarkStatus.LOST)
            return WaitsFor.GONE_BOOKIE if report.waits_for_gone else WaitsFor.NOTHING
        if self.attempts >= limits.attempts_max:
            self._pause(MarkStatus.GIVEN_UP, now_ms, limits.given_up_ms)
            return WaitsFor.BOOKIE
        self._pause(
            MarkStatus.PAUSED, now_ms, doubled(limits.pause_ms, limits.pause_ms_max, self.attempts - 1)
        )
        return WaitsFor.ATTEMPT

    def time(self, now_ms: int) -> None:
        """Time has passed."""
        if MARK_TABLE.acts["time"][self.status] and now_ms >= self.due_ms:
            self.status = MarkStatus.WAITING

    def bookies_came(self, bookies: Collection[BookieId]) -> None:
        """These bookies registered: they may take copies, or have entries."""
        assert MARK_TABLE.acts["bookies_came"][self.status]
        if self.status is not MarkStatus.GONE_ONLY or not set(bookies).isdisjoint(self.seen.bookies):
            self._event()

    def room_came(self) -> None:
        """A bookie that was there has become writable: it may take copies."""
        if MARK_TABLE.acts["room_came"][self.status]:
            self._event()

    def marked(self, seen: QueuedMark) -> None:
        """Its marks as they are now."""
        assert MARK_TABLE.acts["marked"][self.status]
        before, self.seen = self.seen, seen
        if before.said != seen.said or (before.made != seen.made and self.status is MarkStatus.OPEN):
            self._event()
        elif before.made != seen.made and self.status is MarkStatus.REPAIRING:
            self.again = True  # the repair may have looked before

    def _event(self) -> None:
        self.attempts = self.looks = 0
        if self.status is MarkStatus.REPAIRING:
            self.again = True
        else:
            self.status = MarkStatus.WAITING

    def _pause(self, status: MarkStatus, now_ms: int, pause_ms: int) -> None:
        self.due_ms = now_ms + pause_ms
        self._settle(status)

    def _settle(self, status: MarkStatus) -> None:
        self.status = MarkStatus.WAITING if self.again else status


@dataclass(slots=True)
class QueueCounts:
    """How many repairs a queue has begun, and how many ledgers it has finished.

    Attributes:
        repaired: ledgers whose marks were no longer so.
        attempts: repairs that were begun.
    """

    repaired: int = 0
    attempts: int = 0


@dataclass(slots=True)
class _Room:
    """What is repaired now: units by ledger."""

    units: dict[int, int] = field(default_factory=dict)

    @property
    def used(self) -> int:
        return sum(self.units.values())


class RepairQueue:
    """The marked ledgers of one worker.

    Args:
        spread: any number; workers with different ones begin with different ledgers of the same priority.
        limits: attempts, pauses and room.
        rules: the protocol's rules (`core/rules.py`); only tests pass changed ones.

    Attributes:
        ledgers: the marked ledgers, by id.
        counts: what was done.
        on: whether repairs may begin.
    """

    __slots__ = (
        "_due",
        "_limits",
        "_ready",
        "_room",
        "_rules",
        "_spread",
        "_units",
        "counts",
        "ledgers",
        "on",
        "out",
    )

    def __init__(self, spread: int = 0, limits: QueueLimits = LIMITS, rules: RepairRules = RULES) -> None:
        self._spread, self._limits, self._rules = spread, limits, rules
        self.out: list[QueueEffect] = []
        self.ledgers: dict[int, MarkedLedger] = {}
        self.counts = QueueCounts()
        self.on = False
        # Both may name ledgers that are elsewhere by now: the code that takes one checks.
        self._ready: list[tuple[tuple[int, int], int, int]] = []
        self._due: list[tuple[int, int]] = []
        self._room = _Room()
        self._units = limits.units_max

    @property
    def repairing(self) -> Collection[int]:
        """The ledgers that are repaired now."""
        return self._room.units.keys()

    @property
    def waiting(self) -> bool:
        """Whether some ledgers wait for room; a few of them may not need it any more."""
        return bool(self._ready)

    @property
    def due_ms(self) -> int | None:
        """When a pause ends; None: there is none. It may be too early."""
        return self._due[0][0] if self._due else None

    def switched(self, *, on: bool) -> None:
        """Repairs may begin, or not. Effects: BeginRepair; StopRepair for all that is repaired."""
        if self.on and not on:
            self.out += [StopRepair(ledger_id) for ledger_id in sorted(self._room.units)]
        self.on = on
        self._begin()

    def bounded(self, units: int) -> None:
        """So much may be repaired side by side from now on, and one ledger whatever it needs. Effects: BeginRepair."""
        self._units = min(units, self._limits.units_max)
        self._begin()

    def marked(self, ledger_id: int, seen: QueuedMark) -> None:
        """A ledger has marks. Effects: BeginRepair, at the next `tick`."""
        one = self.ledgers.get(ledger_id)
        if one is None:
            one = self.ledgers[ledger_id] = MarkedLedger(seen, self._limits)
            self._enqueue(ledger_id)
            return
        before = one.status
        one.marked(seen)
        if one.status is not before:
            self._enqueue(ledger_id)

    def unmarked(self, ledger_id: int) -> None:
        """A ledger has no marks any more. What is repaired of it goes on to its end."""
        self.ledgers.pop(ledger_id, None)

    def bookies_came(self, bookies: Collection[BookieId]) -> None:
        """These bookies registered. Effects: BeginRepair, at the next `tick`."""
        for ledger_id, one in self.ledgers.items():
            before = one.status
            one.bookies_came(bookies)
            if one.status is not before:
                self._enqueue(ledger_id)

    def room_came(self) -> None:
        """A bookie that was read-only is writable, or has been so for the delay: copies have a place. Effects: as `bookies_came`."""
        for ledger_id, one in self.ledgers.items():
            before = one.status
            one.room_came()
            if one.status is not before:
                self._enqueue(ledger_id)

    def tick(self, now_ms: int) -> None:
        """Time has passed. Effects: BeginRepair, as many as there is room for."""
        while self._due and self._due[0][0] <= now_ms:
            _, ledger_id = heapq.heappop(self._due)
            one = self.ledgers.get(ledger_id)
            if one is not None:
                before = one.status
                one.time(now_ms)
                if one.status is not before:
                    self._enqueue(ledger_id)
        self._begin()

    def whole(self, ledger_id: int) -> None:
        """The marks of a ledger no longer hold: it was repaired, or deleted. Effects: RemoveMarks; BeginRepair.

        If something happened meanwhile it is repaired once more before they are removed.
        """
        one = self._repaired(ledger_id)
        if one is not None and one.again:
            one.released(0)
            self._enqueue(ledger_id)
        elif one is not None:
            del self.ledgers[ledger_id]
            self.counts.repaired += 1
            self.out.append(RemoveMarks(ledger_id))
        self._begin()

    def ended(
        self,
        ledger_id: int,
        report: RepairReport | None,
        why: str,
        wait_ms: int | None,
        now_ms: int,
        waits: WaitsFor | None = None,
    ) -> None:
        """A repair left something, or its mark waits for the writer. Effects: NoteAttempts; BeginRepair.

        Args:
            ledger_id: of which ledger.
            report: what it says; None: it ended with an error.
            why: the same as a sentence.
            wait_ms: how long the writer has time left, if the ledger is open and that can be said.
            now_ms: the time.
            waits: as of `MarkedLedger.ended`.
        """
        one = self._repaired(ledger_id)
        if one is not None:
            waits = one.ended(report, wait_ms, now_ms, waits)
            count = one.looks if waits is WaitsFor.WRITER else one.attempts
            self.out.append(NoteAttempts(ledger_id, RepairAttempts(count, waits, why)))
            self._enqueue(ledger_id)
        self._begin()

    def released(self, ledger_id: int, now_ms: int) -> None:
        """A ledger was not repaired: its lock is another worker's or was lost, or repairs were switched off."""
        one = self._repaired(ledger_id)
        if one is not None:
            one.released(now_ms)
            self._enqueue(ledger_id)
        self._begin()

    def _repaired(self, ledger_id: int) -> MarkedLedger | None:
        """The ledger of a repair that is over; None if its marks went meanwhile, even where there are new ones."""
        self._room.units.pop(ledger_id, None)
        one = self.ledgers.get(ledger_id)
        return one if one is not None and one.status is MarkStatus.REPAIRING else None

    def _enqueue(self, ledger_id: int) -> None:
        """Put a ledger where its state is looked for."""
        one = self.ledgers[ledger_id]
        if one.status is MarkStatus.WAITING:
            seen = one.seen
            order = (ledger_id ^ self._spread) * 0x9E3779B1 & 0xFFFFFFFF
            heapq.heappush(self._ready, (self._rules.copy_priority(seen.copies, seen.size), order, ledger_id))
        elif one.status in PAUSES:
            heapq.heappush(self._due, (one.due_ms, ledger_id))

    def _begin(self) -> None:
        used = self._room.used
        while self.on and self._ready:
            ledger_id = self._ready[0][2]
            one = self.ledgers.get(ledger_id)
            if one is not None and one.status is MarkStatus.WAITING and ledger_id not in self._room.units:
                if used and used + one.units > self._units:
                    return
                one.begin()
                used += one.units
                self._room.units[ledger_id] = one.units
                self.counts.attempts += 1
                self.out.append(BeginRepair(ledger_id))
            elif one is not None and ledger_id in self._room.units and one.status is MarkStatus.WAITING:
                return  # marked anew while an earlier repair of it ends
            heapq.heappop(self._ready)

    def check(self) -> None:
        """Assert what must hold between any two inputs."""
        busy = {each for each, one in self.ledgers.items() if one.status is MarkStatus.REPAIRING}
        assert busy <= self._room.units.keys(), "what is repaired takes room"
        assert self._room.used <= self._limits.units_max, "no more is repaired than there is room for"
        waiting = {each for each, one in self.ledgers.items() if one.status is MarkStatus.WAITING}
        assert waiting <= {each for _, _, each in self._ready}, "who waits is found"
        paused = {each for each, one in self.ledgers.items() if one.status in PAUSES}
        assert paused <= {each for _, each in self._due}, "pauses end"
        assert all(one.attempts <= self._limits.attempts_max for one in self.ledgers.values()), (
            "attempts are bounded"
        )


def is_whole(outcome: RepairOutcome, report: RepairReport) -> bool:
    """Whether a ledger's marks no longer hold.

    Each fragment is on bookies that are there, without entries at most whose loss was accepted; or the ledger was deleted.
    """
    if outcome is RepairOutcome.DELETED:
        return True
    done = outcome is RepairOutcome.WHOLE or (outcome is RepairOutcome.QUIET and report.is_settled)
    return done and not report.undecided


def queued_mark(
    said: int, record: LedgerMetadata | None, bookies: Collection[BookieId], made: int = 0
) -> QueuedMark:
    """How urgent the marks of a ledger are; without a record they are first, since that is found out at once.

    Args:
        said: a number for what the marks say; `made`: for when they were made.
        record: the ledger's record; None: it is deleted, or cannot be read.
        bookies: the ledger's bookies that were lost, or lack entries.
    """
    if record is None:
        return QueuedMark(said, tuple(bookies), 0, 0, made)
    copies = record.write_quorum
    for fragment in record.fragments:
        absent = sum(1 << slot for slot, bookie in enumerate(fragment.ensemble) if bookie in bookies)
        copies = min(copies, fewest_copies(len(fragment.ensemble), record.write_quorum, absent))
    bookie_bytes = record.length * record.write_quorum // len(record.last_fragment.ensemble)
    return QueuedMark(said, tuple(bookies), copies, bookie_bytes * max(1, len(bookies)), made)
