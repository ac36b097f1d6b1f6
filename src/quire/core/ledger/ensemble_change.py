"""The ensemble change: a failed bookie's slot gets another bookie, or stays absent.

One change at a time, in rounds. Each round takes everything that has failed so far, so several failures known
together are one change. Who makes the change decides what stands between a round's choice and its end: a writer stores
the record with the new fragment by compare-and-swap, a recovery keeps its changes local until its close.

1. `lost`: a failure is noted, and nothing is sent to that slot any more.
2. `begin`: everything noted, and every absent slot that is still looked for, wants a bookie.
3. `missing` and `filled`: which slots get none, and the ensemble with those that do. `leave_out`: such a slot is
   *absent*.
4. `finish`: the new ensemble is in use, or `begin` again for what failed meanwhile.

A bookie that `left` is to be replaced too, but it has not failed: its slot stays in use until another bookie is in the
record, and wants none any more when there is none.

An absent bookie returns through a change, or in its old place when it answers again (`come_back`); what was confirmed
without it is a hole for re-replication.

It knows slots and bookies, and neither entries on their way nor acknowledgements.

Source: BookKeeper protocol, "Writing to the ledger", last paragraph; docs/decisions/004-absent-slots.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from quire.core.errors import MisuseError
from quire.core.ids import BookieId
from quire.core.ledger.writer_state import NOTHING, Hole
from quire.core.state_table import StateTable


class ChangeStatus(Enum):
    """Where an ensemble change stands."""

    IDLE = "idle"
    CHOOSING = "choosing"
    """Bookies are being chosen for the slots that want one."""
    STORING = "storing"
    """The choice is made, and the new ensemble is not in use yet."""


CHANGE_TABLE: Final = StateTable(
    ChangeStatus,
    {
        "left": "idle > =",
        "lost": "idle choosing storing > =",
        "leave_out": "idle choosing > =",
        "come_back": "idle > =",
        "begin": "idle storing > choosing storing",
        "missing": "choosing > =",
        "filled": "choosing > storing",
        "finish": "storing > idle",
    },
)
"""What the inputs of an ensemble change do. Without a slot that wants a bookie `begin` goes on as after a choice."""


@dataclass(slots=True, eq=False)
class EnsembleChange:
    """Who is at which slot. Others read its fields, and only it changes them.

    Attributes:
        ledger_id: for errors.
        ensemble: the bookies that entries are sent to.
        live: the slots that are sent to at the moment; at first all.
        seeks_absent: whether each round looks for bookies for the absent slots too.
        status: where the change stands.
        failing: the bookies that this change replaces, by slot; they are in no new ensemble.
        delayed: those that failed since the round began.
        leaving: the bookies that this change replaces if it can, by slot; they are sent to until then.
        absent: the slots without a bookie, each with the first entry that it may lack.
        holes: what bookies lack that were absent and are not any more.
        busy: the bookies that failed because they refused everything as too busy.
    """

    ledger_id: int
    ensemble: tuple[BookieId, ...]
    live: tuple[int, ...]
    seeks_absent: bool = True
    status: ChangeStatus = field(default=ChangeStatus.IDLE, init=False)
    failing: dict[int, BookieId] = field(default=NOTHING, init=False)
    delayed: dict[int, BookieId] = field(default=NOTHING, init=False)
    leaving: dict[int, BookieId] = field(default=NOTHING, init=False)
    absent: dict[int, int] = field(default=NOTHING, init=False)
    holes: tuple[Hole, ...] = field(default=(), init=False)
    busy: frozenset[BookieId] = field(default=frozenset(), init=False)

    def still_at(self, slots: int, ensemble: tuple[BookieId, ...]) -> int:
        """Of some slots (a mask), those whose bookie now is the one that an earlier ensemble has there."""
        if ensemble == self.ensemble:
            return slots
        stayed = mask_of(
            slot for slot, (was, now) in enumerate(zip(ensemble, self.ensemble, strict=True)) if was == now
        )
        return slots & stayed

    def lost(self, slot: int, bookie: BookieId, *, busy: bool = False) -> bool:
        """A bookie failed; False if that is known, or it is not at the slot any more."""
        out = slot in self.absent or slot in self.failing or slot in self.delayed
        if out or self.ensemble[slot] != bookie:
            return False
        if slot in self.leaving:  # a bookie for it is being chosen, or stored
            self.failing, self.leaving = {**self.failing, slot: bookie}, _without(self.leaving, slot)
        else:
            self.delayed = {**self.delayed, slot: bookie}
        if busy or self.busy:
            self.busy = self.busy | {bookie} if busy else self.busy - {bookie}
        self._refresh_live()
        return True

    def left(self, slot: int, bookie: BookieId) -> bool:
        """A bookie has left, and the next change is to replace it if it can; False if it is not in use at the slot."""
        assert CHANGE_TABLE.acts["left"][self.status]
        if slot not in self.live or self.ensemble[slot] != bookie:
            return False
        self.leaving = {**self.leaving, slot: bookie}
        return True

    # --- a round -----------------------------------------------------------------------------------------------------

    def begin(self, named: Sequence[BookieId]) -> tuple[int, ...]:
        """A round begins.

        Args:
            named: the ensemble of the last fragment, or the newest one that is not in use yet.

        Returns:
            The slots that want a bookie: failed, absent and leaving ones whose bookie is still named.
        """
        assert CHANGE_TABLE.acts["begin"][self.status]
        self.failing, self.delayed = self.failing | self.delayed, NOTHING
        wanted = self._wanted(named)
        after = ChangeStatus.CHOOSING if wanted else ChangeStatus.STORING
        self.status = CHANGE_TABLE.moved[self.status, after]
        return wanted

    def missing(self, named: Sequence[BookieId], chosen: Mapping[int, BookieId]) -> list[int]:
        """The slots that want a bookie, since theirs failed or is absent, and get none by this choice.

        Raises:
            MisuseError: a bookie was chosen that is named, has failed or was chosen twice, or for another slot.
        """
        assert CHANGE_TABLE.acts["missing"][self.status]
        wanted = self._wanted(named)
        taken = {*named, *self.failing.values(), *self.delayed.values()}
        if not chosen.keys() <= set(wanted) or len({*chosen.values()} - taken) != len(chosen):
            msg = f"ledger {self.ledger_id}: {dict(chosen)} cannot replace slots {list(wanted)} of {self.ensemble}"
            raise MisuseError(msg, ledger_id=self.ledger_id)
        return [slot for slot in wanted if slot not in chosen and slot not in self.leaving]

    def filled(self, named: Sequence[BookieId], chosen: Mapping[int, BookieId]) -> tuple[BookieId, ...]:
        """The named ensemble with the chosen bookies in their slots. The choice is made."""
        assert CHANGE_TABLE.acts["filled"][self.status]
        self.status = CHANGE_TABLE.moved[self.status, ChangeStatus.STORING]
        if self.leaving:
            self.leaving = {slot: bookie for slot, bookie in self.leaving.items() if slot in chosen}
        return tuple(chosen.get(slot, bookie) for slot, bookie in enumerate(named))

    def finish(self, ensemble: tuple[BookieId, ...], lac: int) -> tuple[int, ...]:
        """Entries are sent to this ensemble from now on.

        Args:
            lac: what is confirmed up to here may be missing on a bookie that was absent and is replaced.

        Returns:
            The slots whose bookie is new.
        """
        assert CHANGE_TABLE.acts["finish"][self.status]
        changed = tuple(slot for slot, bookie in enumerate(ensemble) if self.ensemble[slot] != bookie)
        for slot in changed:
            self._close_hole(slot, lac)
        self.status = CHANGE_TABLE.moved[self.status, ChangeStatus.IDLE]
        self.ensemble, self.failing, self.leaving = ensemble, NOTHING, NOTHING
        self._refresh_live()
        return changed

    # --- absent slots ------------------------------------------------------------------------------------------------

    def leave_out(self, slot: int, first: int) -> bool:
        """A slot has no bookie, from entry `first` on; False if it had none before."""
        assert CHANGE_TABLE.acts["leave_out"][self.status]
        self.failing = _without(self.failing, slot)
        is_new = slot not in self.absent
        if is_new:
            self.absent = {**self.absent, slot: first}
        self._refresh_live()
        return is_new

    def come_back(self, slot: int, lac: int) -> bool:
        """The own bookie of an absent slot is there again; False if the slot is not absent."""
        assert CHANGE_TABLE.acts["come_back"][self.status]
        if slot not in self.absent:
            return False
        self._close_hole(slot, lac)
        self._refresh_live()
        return True

    def holes_through(self, lac: int) -> tuple[Hole, ...]:
        """What bookies of the record may lack because their slot was absent."""
        still = [Hole(slot, self.ensemble[slot], first, lac) for slot, first in self.absent.items()]
        return tuple(hole for hole in (*self.holes, *still) if hole.first <= hole.last)

    @property
    def failed(self) -> tuple[BookieId, ...]:
        """The bookies that may not be chosen: those that this change replaces, and those that are absent."""
        absent = (self.ensemble[slot] for slot in self.absent)
        return tuple(dict.fromkeys((*self.failing.values(), *absent)))

    # --- inside ------------------------------------------------------------------------------------------------------

    def _wanted(self, named: Sequence[BookieId]) -> tuple[int, ...]:
        return tuple(
            slot
            for slot, bookie in enumerate(self.ensemble)
            if named[slot] == bookie
            and (slot in self.failing or slot in self.leaving or (self.seeks_absent and slot in self.absent))
        )

    def _close_hole(self, slot: int, lac: int) -> None:
        first = self.absent.get(slot)
        if first is None:
            return
        self.absent = {other: since for other, since in self.absent.items() if other != slot}
        if first <= lac:
            self.holes = (*self.holes, Hole(slot, self.ensemble[slot], first, lac))

    def _refresh_live(self) -> None:
        """A slot is live unless it failed or is absent: nothing is sent to the others."""
        out = self.failing.keys() | self.delayed.keys() | self.absent.keys()
        self.live = tuple(slot for slot in range(len(self.ensemble)) if slot not in out)

    def check(self) -> None:
        """Assert what must hold between any two inputs."""
        assert len(set(self.ensemble)) == len(self.ensemble), "a bookie has one slot"
        assert not self.failing.keys() & self.delayed.keys(), "a slot is in one list of failures"
        assert not self.absent.keys() & (self.failing.keys() | self.delayed.keys()), (
            "an absent slot has failed before"
        )
        failed = {**self.failing, **self.delayed}
        assert all(self.ensemble[slot] == bookie for slot, bookie in failed.items()), (
            "who failed is at its slot"
        )
        assert self.status is not ChangeStatus.IDLE or not self.failing, (
            "who is being replaced is of a change"
        )
        out = failed.keys() | self.absent.keys()
        assert self.leaving.items() <= dict(enumerate(self.ensemble)).items(), "who leaves is at its slot"
        assert not self.leaving.keys() & out, "who leaves is sent to"
        assert self.status is not ChangeStatus.IDLE or not self.leaving, "who leaves is being replaced"
        assert set(self.live) == set(range(len(self.ensemble))) - out, (
            "nothing is sent to who failed or is absent"
        )


def _without(slots: dict[int, BookieId], slot: int) -> dict[int, BookieId]:
    return {other: bookie for other, bookie in slots.items() if other != slot} if slot in slots else slots


def mask_of(slots: Iterable[int]) -> int:
    """Slots as a mask."""
    return sum(1 << slot for slot in slots)
