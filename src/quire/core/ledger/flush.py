"""The end of a ledger's writer: how long it waits for which bookie, and what each of them lacks then.

What is acknowledged is on Qa bookies; the others may not have been sent it yet. A writer that ends waits for them:

1. Each bookie with outstanding acknowledgements has `timeout_ms`, which begins anew with each one that comes, and where
   a bookie takes entries one by one with each entry that it answers.
2. One that acknowledges nothing for so long, that fails, or that is not through at the latest time is abandoned. What
   it has not acknowledged up to the LAC is a hole.
3. When nothing is outstanding any more the flush is done.

The time-out begins when its oldest outstanding entry became the oldest, so a bookie that was silent before the end is
abandoned at once. Entries above the LAC are not waited for: they were not confirmed to callers. Pure: time is an
argument.

Source: `docs/protocol/closing.md`, "What bookies have not been sent".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from quire.core.ids import BookieId
from quire.core.ledger.effects import SetTimer
from quire.core.ledger.holes import holes_of_runs
from quire.core.ledger.writer_state import Hole
from quire.core.state_table import StateTable


class FlushStatus(Enum):
    """Whether a bookie is still waited for."""

    WAITING = "waiting"
    DONE = "done"


FLUSH_TABLE: Final = StateTable(
    FlushStatus,
    {
        "acked": "waiting > = done; done > -",
        "failed": "waiting > = done; done > -",
        "moved": "waiting > =; done > -",
        "timer_fired": "waiting > = done; done > -",
        "give_up": "waiting > done; done > -",
    },
)
"""What the inputs of a flush do. One that has nothing to wait for is done from the beginning."""


@dataclass(frozen=True, slots=True)
class UnacknowledgedCopies:
    """What one bookie was sent and has not acknowledged.

    Attributes:
        slot: where in the ensemble it is.
        bookie: which it is.
        runs: (first, last) of each run, by its number.
        since_ms: when the oldest of them became the oldest, as far as that is known.
        timeout_ms: how long it may acknowledge nothing.
    """

    slot: int
    bookie: BookieId
    runs: Mapping[int, tuple[int, int]]
    since_ms: int
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class BookieGivenUp:
    """Send this bookie nothing more: it acknowledges nothing, and what it lacks is a hole."""

    slot: int
    bookie: BookieId


@dataclass(frozen=True, slots=True)
class Flushed:
    """No bookie is waited for any more; `holes` are what they lack."""


FlushEffect: TypeAlias = BookieGivenUp | SetTimer | Flushed


class FlushMachine:
    """Waits for the bookies of one ledger's writer that has ended. Inputs are methods; answers appear in `out`.

    Args:
        lac: the last entry that was confirmed to callers.
        copies: what bookies have not acknowledged; those that lack nothing may be left out.
        now_ms: the time.
        latest_ms: how long the whole of it may take from now on.
    """

    __slots__ = ("_due_ms", "_lac", "_latest_ms", "_timer_at_ms", "_unacknowledged", "holes", "out", "status")

    def __init__(
        self, lac: int, copies: Iterable[UnacknowledgedCopies], now_ms: int, *, latest_ms: int
    ) -> None:
        self._lac = lac
        self._latest_ms = now_ms + latest_ms
        self._unacknowledged: dict[int, tuple[UnacknowledgedCopies, dict[int, tuple[int, int]]]] = {}
        self._due_ms: dict[int, int] = {}
        self._timer_at_ms: int | None = None
        self.holes: tuple[Hole, ...] = ()
        self.out: list[FlushEffect] = []
        self.status = FlushStatus.WAITING
        for each in copies:
            runs = {number: run for number, run in each.runs.items() if run[0] <= lac}
            if runs:
                self._unacknowledged[each.slot] = each, runs
                self._due_ms[each.slot] = each.since_ms + each.timeout_ms
        self._look(now_ms)

    def acked(self, slot: int, run: int, now_ms: int) -> None:
        """A bookie acknowledged a run.

        Effects:
            Flushed, if it was the last one outstanding.
        """
        if not FLUSH_TABLE.acts["acked"][self.status] or slot not in self._unacknowledged:
            return
        each, runs = self._unacknowledged[slot]
        if runs.pop(run, None) is None:
            return
        self._due_ms[slot] = now_ms + each.timeout_ms
        if not runs:
            del self._unacknowledged[slot], self._due_ms[slot]
        self._look(now_ms)

    def failed(self, slot: int, now_ms: int) -> None:
        """A bookie refused a run, or it is unknown whether it has it.

        Effects:
            BookieGivenUp; Flushed, if nothing else is outstanding.
        """
        if FLUSH_TABLE.acts["failed"][self.status] and slot in self._unacknowledged:
            self._due_ms[slot] = now_ms
            self._look(now_ms)

    def moved(self, slot: int, now_ms: int) -> None:
        """A bookie has answered some entries, and no run wholly."""
        if FLUSH_TABLE.acts["moved"][self.status] and slot in self._unacknowledged:
            self._due_ms[slot] = now_ms + self._unacknowledged[slot][0].timeout_ms

    def timer_fired(self, now_ms: int) -> None:
        """The time of SetTimer has come.

        Effects:
            BookieGivenUp for each whose time-out is over; SetTimer for the others, or Flushed.
        """
        if FLUSH_TABLE.acts["timer_fired"][self.status]:
            self._timer_at_ms = None
            self._look(now_ms)

    def give_up(self, now_ms: int) -> None:
        """Stop waiting.

        Effects:
            BookieGivenUp for each with outstanding acknowledgements; Flushed.
        """
        if FLUSH_TABLE.acts["give_up"][self.status]:
            self._latest_ms = now_ms
            self._look(now_ms)

    def _look(self, now_ms: int) -> None:
        for slot, due_ms in list(self._due_ms.items()):
            if min(due_ms, self._latest_ms) <= now_ms:
                each, runs = self._unacknowledged.pop(slot)
                del self._due_ms[slot]
                self.holes += holes_of_runs(slot, each.bookie, runs.values(), self._lac)
                self.out.append(BookieGivenUp(slot, each.bookie))
        if not self._unacknowledged:
            self.status = FLUSH_TABLE.moved[self.status, FlushStatus.DONE]
            self._timer_at_ms = None
            self.out.append(Flushed())
            return
        at_ms = min(self._latest_ms, *self._due_ms.values())
        if self._timer_at_ms is None:  # one that comes too early looks again
            self._timer_at_ms = at_ms
            self.out.append(SetTimer(at_ms))

    def check(self) -> None:
        """Assert what must hold between any two inputs."""
        assert self._unacknowledged.keys() == self._due_ms.keys()
        done = self.status is FlushStatus.DONE
        assert done == (not self._unacknowledged), "done when no bookie is waited for"
        assert all(runs for _, runs in self._unacknowledged.values()), (
            "a bookie that acknowledged everything is not waited for"
        )
        assert done or self._timer_at_ms is not None, "a bookie's time-out ends at a time that is known"
        assert all(hole.first <= hole.last <= self._lac for hole in self.holes)
