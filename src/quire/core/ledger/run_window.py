"""A writer's window: runs that may be sent again, who acknowledged them, and how far the ledger is confirmed.

The head rule: entries are confirmed to their callers in order, or not at all. The unit is the run: its acknowledgements
are one mask of slots, because a slot answers for its whole share at once; the LAC moves by whole runs.

Where the write quorum is guaranteed a confirmed run is kept until it, and every run before it, is on all slots of its
write sets: up to there is the LAFR, the last add that is fully replicated. Runs leave in order too.

It knows slots, and no bookies: who is at a slot is the ensemble change's business.

Source: BookKeeper protocol, "Writing to the ledger"; docs/protocol/write-quorum.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from quire.core.ids import NO_ENTRY
from quire.core.ledger.rules import LedgerRules
from quire.core.ledger.writer_state import NOTHING, Run


@dataclass(slots=True, eq=False)
class RunWindow:
    """What was handed out and may be sent again, and the head rule. Others read its fields, and only it changes them.

    Attributes:
        masks: every write set of the ensemble, as masks of slots; one where all are the same.
        ack_quorum: Qa; `final_quorum`: Qw where that is guaranteed, else Qa as well.
        rules: the judgements.
        lac: every entry up to here is confirmed.
        lap: the last entry that was handed out.
        length: payload bytes up to `lap`; `confirmed_length`: up to `lac`.
        next_run: the number that the next run will have.
        held: acknowledgements are recorded, and nothing is confirmed.
        runs: the unconfirmed runs by number, ascending.
        kept: the confirmed runs that are not on their final quorum, likewise; they come before `runs`.
        lafr: with a guaranteed write quorum, every entry up to here is on all of it; else `NO_ENTRY`.
    """

    masks: tuple[int, ...]
    ack_quorum: int
    final_quorum: int
    rules: LedgerRules
    lac: int = NO_ENTRY
    lap: int = NO_ENTRY
    length: int = 0
    confirmed_length: int = 0
    next_run: int = 0
    held: bool = False
    runs: dict[int, Run] = field(default_factory=dict)
    kept: dict[int, Run] = field(default=NOTHING, init=False)
    lafr: int = field(default=NO_ENTRY, init=False)
    _acked: dict[int, int] = field(default_factory=dict, init=False)
    _resent: dict[int, int] = field(default=NOTHING, init=False)
    _head: int = field(default=0, init=False)

    @property
    def decided(self) -> int:
        """The last entry whose fragment stands: those above it move with an ensemble change."""
        return self.lac if self.final_quorum == self.ack_quorum else self.lafr

    @property
    def pending(self) -> bool:
        """Whether a run may have to be sent again."""
        return bool(self.runs or self.kept)

    def add(self, count: int, payload_bytes: int) -> Run:
        """Hand out the next `count` entry ids as one run."""
        first = self.lap + 1
        self.lap = last = self.lap + count
        self.length += payload_bytes
        masks = self.masks
        if count < len(masks):
            masks = tuple(masks[(first + offset) % len(masks)] for offset in range(count))
        number = self.next_run
        self.next_run = number + 1
        # Half the time of a call of `Run`, which every run would pay.
        run = self.runs[number] = tuple.__new__(Run, (first, last, self.lac, payload_bytes, masks))
        self._acked[number] = 0
        return run

    def acked(self, slots: int, number: int) -> int:
        """Some slots (a mask) have their share of a run.

        Returns:
            How many entries became confirmed by it, those up to the LAC.
        """
        acked = self._acked.get(number)
        if acked is None:
            return 0
        self._acked[number] = acked | slots
        return self.advance() if number == self._head and not self.held else 0

    def advance(self) -> int:
        """Confirm every run at the head, in order.

        Returns:
            How many entries became confirmed, those up to the LAC.

        Source: BookKeeper protocol, "Writing to the ledger": "only if all entries with lower entry ids in the ledger
        have already been acknowledged to the client".
        """
        before, head, runs, all_acked = self.lac, self._head, self.runs, self._acked
        confirms, ack_quorum = self.rules.confirms, self.ack_quorum
        keeps = self.final_quorum > ack_quorum
        while head in runs:
            run, acked = runs[head], all_acked[head]
            for mask in run.masks:
                if not confirms(acked, mask, ack_quorum):
                    break
            else:
                del runs[head]
                if keeps:
                    self._keep(head, run)
                else:
                    del all_acked[head]
                self.lac = run.last
                self.confirmed_length += run.payload_bytes
                head += 1
                continue
            break
        self._head = head
        if not runs:
            runs.clear()  # an emptied dict keeps its table, and most of many writers are idle
            if not self.kept:
                all_acked.clear()
                self._resent = NOTHING
        return self.lac - before

    def _keep(self, number: int, run: Run) -> None:
        if not self.kept:
            self.kept = {}
        self.kept[number] = run

    def leave(self) -> bool:
        """Kept runs at the head that are on their final quorum are not sent again.

        Returns:
            Whether one left; none does while confirmations are held.

        Source: docs/protocol/write-quorum.md.
        """
        before, kept, all_acked = self.lafr, self.kept, self._acked
        if self.held or not kept:
            return False
        number = self._head - len(kept)
        while number in kept:
            run = kept[number]
            # The LAFR is the last entry "fully replicated" in order: what is only acknowledged does not count.
            if self._lacks(run, all_acked[number], self.final_quorum):
                break
            del kept[number], all_acked[number]
            self.lafr = run.last
            number += 1
        if not kept:
            self.kept = NOTHING
        return self.lafr > before

    def _lacks(self, run: Run, acked: int, quorum: int) -> bool:
        """Whether some entry of a run has fewer acknowledgements than a quorum."""
        confirms = self.rules.confirms
        for mask in run.masks:  # noqa: SIM110 - a generator takes three times as long
            if not confirms(acked, mask, quorum):
                return True
        return False

    def hold(self) -> None:
        """Confirm nothing from now on."""
        self.held = True

    def release(self) -> int:
        """No longer hold back; returns as `advance`."""
        self.held = False
        return self.advance()

    def drop(self) -> None:
        """Forget what is unconfirmed: the length counts confirmed entries only."""
        self.held, self.kept = False, NOTHING
        self.runs.clear()
        self._acked.clear()
        self._resent = NOTHING
        self._head = self.next_run
        self.length = self.confirmed_length

    def run(self, number: int) -> Run:
        """A run that is in the window."""
        return self.runs.get(number) or self.kept[number]

    def is_pending(self, number: int) -> bool:
        """Whether a run is in the window and lacks acknowledgements itself, whatever those before it lack."""
        acked = self._acked.get(number)
        return acked is not None and self._lacks(self.run(number), acked, self.final_quorum)

    def resend_once(self, number: int, slot: int) -> bool:
        """Whether a slot may be sent a run once more; the second time it may not."""
        before = self._resent.get(number, 0)
        self._resent = {**self._resent, number: before | 1 << slot}
        return not before >> slot & 1

    def unset(self, changed: int) -> None:
        """The bookies at these slots (a mask) are new: what their predecessors acknowledged does not count."""
        kept = ~changed
        for number in self._acked:
            self._acked[number] &= kept

    def stored_at(self, slots: Sequence[int]) -> Iterator[tuple[int, Run, tuple[int, ...], int]]:
        """Each run in the window, those of some slots that store something of it, and who has acknowledged it."""
        for number, run in chain(self.kept.items(), self.runs.items()):
            if storing := slots_of(run.masks, slots):
                yield number, run, storing, self._acked[number]

    def may_replace(self, replaced: int) -> bool:
        """Whether the bookies at these slots (a mask) may be replaced: what callers were told of keeps its ack quorum."""
        may, acked, ack_quorum = self.rules.may_replace, self._acked, self.ack_quorum
        return all(
            may(acked[number], replaced, mask, ack_quorum)
            for number, run in self.kept.items()
            for mask in run.masks
        )

    def lacking(self) -> int:
        """The slots that lack some of the oldest run in the window, as a mask."""
        number = self._head - len(self.kept)
        if number not in self._acked:
            return 0
        stored_at = 0
        for mask in self.run(number).masks:
            stored_at |= mask
        return stored_at & ~self._acked[number]

    def loses_quorum(self, absent: int) -> bool:
        """Whether some write set cannot reach its ack quorum while these slots (a mask) are absent."""
        can, ack_quorum = self.rules.can_still_confirm, self.ack_quorum
        return not all(can(absent, mask, ack_quorum) for mask in self.masks)

    def check(self, ensemble_size: int) -> None:
        """Assert what must hold between any two inputs: I5, I13."""
        assert NO_ENTRY <= self.lac <= self.lap, "I5: the LAC is within what was handed out"
        assert self._acked.keys() == self.kept.keys() | self.runs.keys()
        assert not self.kept or self.final_quorum > self.ack_quorum
        last = self.lafr
        for offset, (number, run) in enumerate(self.kept.items(), self._head - len(self.kept)):
            assert (number, run.first) == (offset, last + 1), "kept entries are LAFR + 1 .. LAC without a gap"
            assert not self._lacks(run, self._acked[number], self.ack_quorum), (
                "I2: what callers were told of is on its ack quorum"
            )
            last = run.last
        assert not self.kept or last == self.lac, "kept entries are LAFR + 1 .. LAC without a gap"
        expected, length = self.lac + 1, self.confirmed_length
        for offset, (number, run) in enumerate(self.runs.items()):
            assert number == self._head + offset
            assert run.first == expected, "I13: pending entries are LAC + 1 .. LAP without a gap"
            assert run.lac <= self.lac, "a header's LAC is never ahead"
            assert self._acked[number] < 1 << ensemble_size, (
                "I13: acknowledgements are for slots of the ensemble"
            )
            expected, length = run.last + 1, length + run.payload_bytes
        assert length == self.length
        assert not self.runs or expected == self.lap + 1, (
            "I13: pending entries are LAC + 1 .. LAP without a gap"
        )
        assert (
            self.held
            or not self.runs
            or self._lacks(self.runs[self._head], self._acked[self._head], self.ack_quorum)
        ), "a confirmed head is told"


def slots_of(masks: Iterable[int], slots: Sequence[int]) -> tuple[int, ...]:
    """Those of some slots that store something of a run with these write sets."""
    union = 0
    for mask in masks:
        union |= mask
    return tuple(slot for slot in slots if union >> slot & 1)
