"""What a writer knows, and the head rule: entries are confirmed to their callers in order, or not at all.

The verbs are in `closing.py`, `ensemble_change.py` and `writer.py`, each beside its section of the protocol. The
unit is the run: its acknowledgements are one mask of slots, because a slot answers for its whole share at once; the
LAC moves by whole runs.

Source: BookKeeper protocol, "Writing to the ledger".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple, Self

from quire.core.effects import Confirmed, Failed, Problem, SendExplicitLac, SetTimer, WriterEffect
from quire.core.ids import NO_ENTRY, BookieId
from quire.core.ledger_metadata import LedgerMetadata, LedgerState
from quire.core.quorum import write_set_masks
from quire.core.rules import RULES, Rules


class Status(Enum):
    """Where a writer is in its life."""

    WRITING = "writing"
    CHANGING = "changing"
    """An ensemble change is under way: responses are recorded, nothing is confirmed to callers."""
    CLOSING = "closing"
    CLOSED = "closed"
    ENDED = "ended"
    ABANDONED = "abandoned"


class StoreRequest(Enum):
    """The one question that is open."""

    NOTHING = "nothing"
    CHOICE = "choice"
    WRITE = "write"
    READ = "read"


class Legality(Enum):
    """What an input does in a status."""

    ACTS = "acts"
    IGNORED = "ignored"
    REFUSED = "refused"


def _row(acts: str, ignored: str = "") -> dict[Status, Legality]:
    row = dict.fromkeys(Status, Legality.REFUSED)
    row |= {Status(word): Legality.IGNORED for word in ignored.split()}
    return row | {Status(word): Legality.ACTS for word in acts.split()}


LEGAL: Final[dict[str, dict[Status, Legality]]] = {
    "began_without": _row("writing"),
    "append": _row("writing changing"),
    "adds_acked": _row("writing changing", "closing closed ended abandoned"),
    "add_failed": _row("writing changing", "closing closed ended abandoned"),
    "bookie_lost": _row("writing changing", "closing closed ended abandoned"),
    "replacements_chosen": _row("changing", "closing closed ended abandoned writing"),
    "bookies_found": _row("writing changing", "closing closed ended abandoned"),
    "timer_fired": _row("writing changing closing", "closed ended abandoned"),
    "metadata_written": _row("changing closing", "ended abandoned"),
    "metadata_conflicted": _row("changing closing", "ended abandoned"),
    "metadata_unknown": _row("changing closing", "ended abandoned"),
    "metadata_missing": _row("changing closing", "ended abandoned"),
    "metadata_read": _row("changing closing", "ended abandoned"),
    "close": _row("writing changing", "closing closed"),
    "abandon": _row("writing changing closing", "closed ended abandoned"),
}
"""Which input does what in which status. A metadata response acts only if it was asked for."""


@dataclass(frozen=True, slots=True)
class WriterLimits:
    """How patient a writer is.

    Attributes:
        retry_ms_min: first wait before an absent slot's bookie is looked for, or unanswered metadata are read again;
            doubles.
        retry_ms_max: where that doubling stops.
        metadata_attempts_max: unanswered metadata requests before the writer gives up.
        quorum_wait_ms: how long a writer that cannot reach its ack quorum waits for bookies before it ends; 0: not at
            all.
    """

    retry_ms_min: int = 200
    retry_ms_max: int = 5_000
    metadata_attempts_max: int = 8
    quorum_wait_ms: int = 10_000


class Run(NamedTuple):
    """Entries handed over together. `masks` are the write sets that occur in it, as masks of slots."""

    first: int
    last: int
    lac: int
    payload_bytes: int
    masks: tuple[int, ...]


class Hole(NamedTuple):
    """Entries that a bookie of the record may lack: its slot was absent, or it never acknowledged them."""

    slot: int
    bookie: BookieId
    first: int
    last: int


_NO_RESENT: Final[dict[int, int]] = {}
_NO_BOOKIES: Final[dict[int, BookieId]] = {}
_NO_SLOTS: Final[dict[int, int]] = {}
"""Shared by all writers to which nothing has happened, and most of many are like that. Never changed."""


@lru_cache(maxsize=256)
def _masks_and_slots(size: int, write_quorum: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(all write sets as masks, all slots), shared by all writers with such quorums."""
    return write_set_masks(size, write_quorum), tuple(range(size))


class WriterState:
    """The fields of a writer, the head rule and the invariants.

    Args:
        record: the ledger's record as created: OPEN, and this client is its writer.
        version: its version in the metadata store.
        rules: the judgements; production uses the one true set.
        limits: waits and attempts.
    """

    __slots__ = (
        "_absent",
        "_acked",
        "_all_masks",
        "_attempts",
        "_delayed",
        "_failing",
        "_head",
        "_holes",
        "_in_doubt",
        "_live",
        "_look_at_ms",
        "_looking",
        "_next_run",
        "_proposed",
        "_quorum_until_ms",
        "_read_at_ms",
        "_resent",
        "_retry_ms",
        "_runs",
        "_timer_at_ms",
        "asked",
        "confirmed_length",
        "ensemble",
        "lac",
        "lap",
        "length",
        "limits",
        "out",
        "problem",
        "record",
        "rules",
        "status",
        "version",
    )

    def __init__(
        self,
        record: LedgerMetadata,
        version: int,
        *,
        rules: Rules = RULES,
        limits: WriterLimits | None = None,
    ) -> None:
        self.rules = rules
        self.limits = limits or WriterLimits()
        self.record = record
        self.version = version
        self.status = Status.WRITING
        self.asked = StoreRequest.NOTHING
        self.problem: Problem | None = None
        self.ensemble = record.last_fragment.ensemble
        self.lac: int = NO_ENTRY
        self.lap: int = NO_ENTRY
        self.length = 0
        self.confirmed_length = 0
        self.out: list[WriterEffect] = []
        self._all_masks, self._live = _masks_and_slots(record.ensemble_size, record.write_quorum)
        self._runs: dict[int, Run] = {}
        self._acked: dict[int, int] = {}
        # These four are replaced, not changed in place.
        self._resent = _NO_RESENT
        self._head = 0
        self._next_run = 0
        self._failing = _NO_BOOKIES
        self._delayed = _NO_BOOKIES
        self._absent = _NO_SLOTS
        self._holes: tuple[Hole, ...] = ()
        self._proposed: LedgerMetadata | None = None
        self._in_doubt: int | None = None
        self._attempts = 0
        self._retry_ms = self.limits.retry_ms_min
        self._looking = False
        self._look_at_ms: int | None = None
        self._read_at_ms: int | None = None
        # Set from the loss of the ack quorum on, until something is confirmed again.
        self._quorum_until_ms: int | None = None
        self._timer_at_ms: int | None = None

    def copy(self) -> Self:
        """An independent writer in the same state; everything immutable is shared."""
        other = type(self).__new__(type(self))
        for name in WriterState.__slots__:
            value = getattr(self, name)
            setattr(other, name, value.copy() if isinstance(value, dict | list) else value)
        return other

    # --- questions -------------------------------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """Whether an entry waits for its confirmation."""
        return bool(self._runs)

    @property
    def next_run(self) -> int:
        """The number that the next run will have."""
        return self._next_run

    @property
    def absent(self) -> tuple[int, ...]:
        """The slots that have no bookie at the moment."""
        return tuple(self._absent)

    @property
    def below_quorum(self) -> bool:
        """Whether some write set cannot reach its ack quorum at the moment: the writer waits for bookies."""
        return self._quorum_until_ms is not None and self._loses_quorum(self._absent_mask())

    @property
    def live_slots(self) -> tuple[int, ...]:
        """The slots that are sent to at the moment."""
        return self._live

    @property
    def holes(self) -> tuple[Hole, ...]:
        """What bookies of the record may lack because their slot was absent, as far as the writer knows."""
        still = [Hole(slot, self.ensemble[slot], first, self.lac) for slot, first in self._absent.items()]
        return tuple(hole for hole in (*self._holes, *still) if hole.first <= hole.last)

    # --- the head rule ---------------------------------------------------------------------------------------------

    def _is_confirmed(self, number: int) -> bool:
        acked = self._acked[number]
        confirms, ack_quorum = self.rules.confirms, self.record.ack_quorum
        return all(confirms(acked, mask, ack_quorum) for mask in self._runs[number].masks)

    def _advance(self) -> None:
        """Confirm every run at the head to its callers, in order; none while a change is in flight.

        Effects:
            Confirmed; SendExplicitLac when nothing is pending any more, because no later header carries the LAC.

        Source: BookKeeper protocol, "Writing to the ledger": "only if all entries with lower entry ids in the ledger
        have already been acknowledged to the client".
        """
        if self.status is Status.CHANGING and not self.rules.may_acknowledge_while_changing():
            return
        first, head, runs, acked = self.lac + 1, self._head, self._runs, self._acked
        confirms, ack_quorum = self.rules.confirms, self.record.ack_quorum
        while head in runs:
            run, mask_of_acks = runs[head], acked[head]
            for mask in run.masks:
                if not confirms(mask_of_acks, mask, ack_quorum):
                    break
            else:
                del runs[head], acked[head]
                self.lac = run.last
                self.confirmed_length += run.payload_bytes
                head += 1
                continue
            break
        if head != self._head:
            self._head = head
            self.out.append(Confirmed(first, self.lac))
            if not runs:
                runs.clear()  # an emptied dict keeps its table, and most of many writers are idle
                acked.clear()
                self.out.append(SendExplicitLac(self.lac, self._live))
                self._resent = _NO_RESENT
            if self._quorum_until_ms is not None and not self.below_quorum:
                self._forget_wait()

    def _fail_pending(self, problem: Problem) -> None:
        """Callers of unconfirmed entries learn that the outcome is unknown; the length counts confirmed ones only."""
        if self._runs:
            self.out.append(Failed(self.lac + 1, self.lap, problem))
        self._runs.clear()
        self._acked.clear()
        self._resent = _NO_RESENT
        self._head = self._next_run
        self.length = self.confirmed_length

    # --- small parts -----------------------------------------------------------------------------------------------

    def _slots_of(self, masks: tuple[int, ...]) -> Iterator[int]:
        """The live slots that store something of a run with these write sets."""
        if masks is self._all_masks:
            return iter(self._live)
        union = 0
        for mask in masks:
            union |= mask
        return (slot for slot in self._live if union >> slot & 1)

    def _refresh_live(self) -> None:
        """A slot is live unless it failed or is absent: nothing is sent to the others."""
        out = self._failing.keys() | self._delayed.keys() | self._absent.keys()
        self._live = tuple(slot for slot in range(len(self.ensemble)) if slot not in out)

    def _absent_mask(self) -> int:
        """The absent slots as a mask."""
        return sum(1 << slot for slot in self._absent)

    def _loses_quorum(self, absent: int) -> bool:
        """Whether some write set cannot reach its ack quorum while these slots (a mask) are absent."""
        can, ack_quorum = self.rules.can_still_confirm, self.record.ack_quorum
        return not all(can(absent, mask, ack_quorum) for mask in self._all_masks)

    def _forget_wait(self) -> None:
        """Something was confirmed since the ack quorum was lost; a timer for the end of the wait would find nothing due."""
        if self._timer_at_ms == self._quorum_until_ms:
            self._timer_at_ms = None
        self._quorum_until_ms = None

    def _arm(self) -> None:
        """One timer for the earliest of three waits."""
        waits = self.status is Status.WRITING and self.below_quorum
        until = self._quorum_until_ms if waits else None
        times = [at for at in (self._look_at_ms, self._read_at_ms, until) if at is not None]
        if times and min(times) != self._timer_at_ms:
            self._timer_at_ms = min(times)
            self.out.append(SetTimer(self._timer_at_ms))

    # --- invariants ------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Assert what must hold between any two inputs: I5, I6, I13, and I12 as far as one writer sees it."""
        self.record.checked()
        assert NO_ENTRY <= self.lac <= self.lap, "I5: the LAC is within what was handed out"
        assert self._acked.keys() == self._runs.keys()
        if self.status in (Status.WRITING, Status.CHANGING):
            self._check_open()
        else:
            assert not self._runs, "an ended writer owes nobody an answer"
        if self.record.state is LedgerState.CLOSED:
            assert self.lac <= self.record.last_entry, "I12: a closed end is not below what was acknowledged"
        if self.status is Status.CLOSED:
            assert self.record.state is LedgerState.CLOSED
            assert self.record.last_entry == self.lac, "I12: closed at the last acknowledged entry"

    def _check_open(self) -> None:
        expected, length = self.lac + 1, self.confirmed_length
        for offset, (number, run) in enumerate(self._runs.items()):
            assert number == self._head + offset
            assert run.first == expected, "I13: pending entries are LAC + 1 .. LAP without a gap"
            assert run.lac <= self.lac, "a header's LAC is never ahead"
            assert self._acked[number] < 1 << len(self.ensemble), (
                "I13: acknowledgements are for slots of the ensemble"
            )
            expected, length = run.last + 1, length + run.payload_bytes
        assert expected == self.lap + 1, "I13: pending entries are LAC + 1 .. LAP without a gap"
        assert length == self.length
        assert self.record.state is LedgerState.OPEN
        assert self.record.last_fragment.first_entry <= self.lac + 1, (
            "I6: the last fragment starts at LAC + 1 or before"
        )
        if self.status is Status.WRITING:
            assert self.ensemble == self.record.last_fragment.ensemble, "entries go where the record says"
            assert not self._failing
            assert self.below_quorum or not self._loses_quorum(self._absent_mask()), (
                "a writer that goes on can confirm, or waits for its quorum"
            )
            assert not self.below_quorum or self._timer_at_ms is not None, "a wait has an end"
            assert self.asked is StoreRequest.NOTHING
            assert not (self._runs and self._is_confirmed(self._head)), "a confirmed head is told"
        else:
            assert self.asked is not StoreRequest.NOTHING, "a change waits for an answer"
