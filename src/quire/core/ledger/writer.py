"""One open ledger as its only writer sees it: entries out, acknowledgements in, confirmed to callers in order.

It must not know sockets, payloads, futures or the time. Inputs are methods; answers appear in `out`. Which input
does what in which status: `writer_state.WRITER_TABLE`.

The machine is made of parts, each with its own state: the window of runs, who is at which slot
(`ensemble_change.py`), the waits (`writer_waits.py`), the question to the store (`record_cas.py`) and the close
(`closing.py`). A part decides what is its own; here is what follows for the others, and every effect.

A change goes in rounds. From its start to its end responses are recorded and nothing is confirmed to callers, because
the new fragment starts at LAC + 1: an entry acknowledged meanwhile could end up in a fragment whose ensemble lacks it.

1. Ask for replacements of all failed and absent slots whose bookie is still in the record.
2. Those that get one: store the record with the new fragment by compare-and-swap. Those that get none: the slot is
   *absent*; the writer goes on while every write set can still reach its ack quorum.
3. A lost compare-and-swap: reread; not OPEN ends the writer, else redo where the failed bookie is still named. One with
   an unknown outcome may still take effect while the version stands, so another one settles it first.
4. What failed meanwhile starts the next round. Else drop the acknowledgements of replaced bookies, send every pending
   run to the new ones with its first headers, and confirm to the callers.

When the slots that stay absent leave some write set without its ack quorum, the writer waits: for at most
`quorum_wait_ms` from then on, or from the first such loss since anything was confirmed. It is a writer with absent slots
like any other meanwhile; what is appended is kept, and nothing is confirmed that is not on Qa bookies. A slot may be
absent from the ledger's first entry on: its bookie was away when the ledger was created.

The head rule of the window: entries are confirmed to their callers in order, or not at all. The unit is the run: its
acknowledgements are one mask of slots, because a slot answers for all its entries at once; the LAC moves by whole runs. Where
the write quorum is guaranteed a confirmed run is kept until it, and every run before it, is on all slots of its write sets: up
to there is the LAFR, the last add that is fully replicated. The window knows slots, and no bookies.

Source: BookKeeper protocol, "Writing to the ledger", "Closing a ledger as a writer"; docs/decisions/004-absent-slots.md;
docs/protocol/write-quorum.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain

from quire.core.answers import Answer
from quire.core.errors import LedgerClosedError, MisuseError, NotWritingError
from quire.core.ids import NO_ENTRY, BookieId, EntryId
from quire.core.ledger.closing import Closing, ClosingStatus
from quire.core.ledger.effects import (
    AskLeftBookies,
    ChooseReplacements,
    Closed,
    CloseFailed,
    Confirmed,
    DropUnsent,
    Ended,
    EnsembleChanged,
    Failed,
    FullyReplicated,
    LookForBookies,
    Problem,
    QuorumAwaited,
    RereadMetadata,
    SendExplicitLac,
    SendRun,
    SetTimer,
    SlotAbsent,
    SlotReturned,
    WriterEffect,
)
from quire.core.ledger.ensemble_change import ChangeStatus, EnsembleChange, mask_of
from quire.core.ledger.metadata import LedgerMetadata, LedgerState
from quire.core.ledger.quorum import write_set_masks
from quire.core.ledger.record_cas import RecordCas, StoreRequest
from quire.core.ledger.rules import RULES, AddOutcome, LedgerRules
from quire.core.ledger.writer_problems import may_not_change, quorum_lost, refused, store_silent
from quire.core.ledger.writer_state import NOTHING, WRITER_TABLE, Hole, Places, Run, Status, WriterLimits
from quire.core.ledger.writer_waits import REREADS_AT_ONCE, WriterWaits


@dataclass(slots=True, eq=False)
class RunWindow:
    """What was handed out and may be sent again, and the head rule. Others read its fields, and only it changes them.

    Attributes:
        masks: every write set of the ensemble, as masks of slots; one where all are the same.
        ack_quorum: Qa; `final_quorum`: Qw where that is guaranteed, else Qa as well.
        rules: the protocol's rules (`core/rules.py`).
        lac: every entry up to here is confirmed.
        lap: the last entry that was handed out.
        length: payload bytes up to `lap`; `confirmed_length`: up to `lac`.
        next_run: the number that the next run will have.
        paused: acknowledgements are recorded, and nothing is confirmed.
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
    paused: bool = False
    runs: dict[int, Run] = field(default_factory=dict)
    kept: dict[int, Run] = field(default=NOTHING, init=False)
    lafr: int = field(default=NO_ENTRY, init=False)
    _acked: dict[int, int] = field(default=NOTHING, init=False)  # of those runs that a slot has
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
        number = self.next_run
        self.next_run = number + 1
        run = self.runs[number] = (first, last, self.lac, payload_bytes)
        return run

    def masks_of(self, run: Run) -> tuple[int, ...]:
        """The write sets that occur in a run, as masks of slots."""
        masks, (first, last, _, _) = self.masks, run
        if last - first + 1 >= len(masks):
            return masks
        return tuple(masks[entry_id % len(masks)] for entry_id in range(first, last + 1))

    def confirm_head(self, slots: int, number: int) -> bool:
        """Confirm a run that is the oldest, has its quorum with these slots (a mask), and with which no other is confirmed.

        Returns:
            Whether it is confirmed now. If not, nothing has happened: `acked` says what does.
        """
        runs, confirms = self.runs, self.rules.confirms
        run = runs.get(number)
        if run is None or number != self._head or self._acked or self.paused:
            return False
        if self.final_quorum > self.ack_quorum:
            return False
        for mask in self.masks if len(self.masks) == 1 else self.masks_of(run):
            if not confirms(slots, mask, self.ack_quorum):
                return False
        del runs[number]
        self._head = number + 1
        _, self.lac, _, payload_bytes = run
        self.confirmed_length += payload_bytes
        if not runs:
            runs.clear()  # an emptied dict keeps its table, and most of many writers are idle
            self._resent = NOTHING
        return True

    def acked(self, slots: int, number: int) -> int:
        """Some slots (a mask) have their entries of a run.

        Returns:
            How many entries became confirmed by it, those up to the LAC.
        """
        if not slots or (number not in self.runs and number not in self.kept):
            return 0
        acked = self._acked
        if number in acked:
            acked[number] |= slots
        elif acked and number > next(reversed(acked)):
            acked[number] = slots
        else:  # in the order of the runs: a state is the same whatever came first
            self._acked = dict(sorted({**acked, number: slots}.items()))
        return self.advance() if number == self._head and not self.paused else 0

    def advance(self) -> int:
        """Confirm every run at the head, in order.

        Returns:
            How many entries became confirmed, those up to the LAC.

        Source: BookKeeper protocol, "Writing to the ledger": "only if all entries with lower entry ids in the ledger
        have already been acknowledged to the client".
        """
        before, head, runs, all_acked = self.lac, self._head, self.runs, self._acked
        confirms, ack_quorum = self.rules.confirms, self.ack_quorum
        keeps, masks = self.final_quorum > ack_quorum, self.masks
        while (acked := all_acked.get(head)) is not None and (run := runs.get(head)) is not None:
            for mask in masks if len(masks) == 1 else self.masks_of(run):
                if not confirms(acked, mask, ack_quorum):
                    break
            else:
                del runs[head]
                if keeps:
                    self._keep(head, run)
                else:
                    del all_acked[head]
                _, self.lac, _, payload_bytes = run
                self.confirmed_length += payload_bytes
                head += 1
                continue
            break
        self._head = head
        if not all_acked:
            self._acked = NOTHING
        if not runs:
            runs.clear()  # an emptied dict keeps its table, and most of many writers are idle
            if not self.kept:
                self._resent = NOTHING
        return self.lac - before

    def _keep(self, number: int, run: Run) -> None:
        if not self.kept:
            self.kept = {}
        self.kept[number] = run

    def leave(self) -> bool:
        """Kept runs at the head that are on their final quorum are not sent again.

        Returns:
            Whether one left; none does while confirmations are paused.

        Source: docs/protocol/write-quorum.md.
        """
        before, kept, all_acked = self.lafr, self.kept, self._acked
        if self.paused or not kept:
            return False
        number = self._head - len(kept)
        while number in kept:
            run = kept[number]
            # The LAFR is the last entry "fully replicated" in order: what is only acknowledged does not count.
            if self._lacks(run, all_acked.get(number, 0), self.final_quorum):
                break
            del kept[number]
            all_acked.pop(number, None)
            _, self.lafr, _, _ = run
            number += 1
        if not kept:
            self.kept = NOTHING
        if not all_acked:
            self._acked = NOTHING
        return self.lafr > before

    def _lacks(self, run: Run, acked: int, quorum: int) -> bool:
        """Whether some entry of a run has fewer acknowledgements than a quorum."""
        confirms = self.rules.confirms
        for mask in self.masks_of(run):  # noqa: SIM110 - a generator takes three times as long
            if not confirms(acked, mask, quorum):
                return True
        return False

    def pause(self) -> None:
        """Confirm nothing from now on."""
        self.paused = True

    def release(self) -> int:
        """Confirm again; returns as `advance`."""
        self.paused = False
        return self.advance()

    def drop(self) -> None:
        """Forget what is unconfirmed: the length counts confirmed entries only."""
        self.paused, self.kept = False, NOTHING
        self.runs.clear()
        self._acked = self._resent = NOTHING
        self._head = self.next_run
        self.length = self.confirmed_length

    def run(self, number: int) -> Run:
        """A run that is in the window."""
        return self.runs.get(number) or self.kept[number]

    def is_pending(self, number: int) -> bool:
        """Whether a run is in the window and lacks acknowledgements itself, whatever those before it lack."""
        run = self.runs.get(number) or self.kept.get(number)
        return run is not None and self._lacks(run, self._acked.get(number, 0), self.final_quorum)

    def resend_once(self, number: int, slot: int) -> bool:
        """Whether a slot may be sent a run once more; the second time it may not."""
        before = self._resent.get(number, 0)
        self._resent = {**self._resent, number: before | 1 << slot}
        return not before >> slot & 1

    def unset(self, changed: int) -> None:
        """The bookies at these slots (a mask) are new: what their predecessors acknowledged does not count."""
        kept = ~changed
        left = {number: acked & kept for number, acked in self._acked.items() if acked & kept}
        self._acked = left or NOTHING

    def stored_at(self, slots: Sequence[int]) -> Iterator[tuple[int, Run, tuple[int, ...], int]]:
        """Each run in the window, those of some slots that store something of it, and who has acknowledged it."""
        for number, run in chain(self.kept.items(), self.runs.items()):
            if storing := slots_of(self.masks_of(run), slots):
                yield number, run, storing, self._acked.get(number, 0)

    def may_replace(self, replaced: int) -> bool:
        """Whether the bookies at these slots (a mask) may be replaced: what is confirmed to callers keeps its ack quorum."""
        may, acked, ack_quorum = self.rules.may_replace, self._acked, self.ack_quorum
        return all(
            may(acked.get(number, 0), replaced, mask, ack_quorum)
            for number, run in self.kept.items()
            for mask in self.masks_of(run)
        )

    def lacking(self) -> int:
        """The slots that lack some of the oldest run in the window, as a mask."""
        number = self._head - len(self.kept)
        run = self.runs.get(number) or self.kept.get(number)
        if run is None:
            return 0
        stored_at = 0
        for mask in self.masks_of(run):
            stored_at |= mask
        return stored_at & ~self._acked.get(number, 0)

    def loses_quorum(self, absent: int) -> bool:
        """Whether some write set cannot reach its ack quorum while these slots (a mask) are absent."""
        can, ack_quorum = self.rules.can_still_confirm, self.ack_quorum
        return not all(can(absent, mask, ack_quorum) for mask in self.masks)

    def check(self, ensemble_size: int) -> None:
        """Assert what must hold between any two inputs: I2, I5, I13 of docs/counterexamples.md."""
        assert NO_ENTRY <= self.lac <= self.lap, "I5: the LAC is within what was handed out"
        assert self._acked.keys() <= self.kept.keys() | self.runs.keys()
        assert all(self._acked.values()), "who has acknowledged nothing is not noted"
        assert not self.kept or self.final_quorum > self.ack_quorum
        last = self.lafr
        for offset, (number, run) in enumerate(self.kept.items(), self._head - len(self.kept)):
            first, run_last, _, _ = run
            assert (number, first) == (offset, last + 1), "kept entries are LAFR + 1 .. LAC without a gap"
            assert not self._lacks(run, self._acked.get(number, 0), self.ack_quorum), (
                "I2: what is confirmed to callers is on its ack quorum"
            )
            last = run_last
        assert not self.kept or last == self.lac, "kept entries are LAFR + 1 .. LAC without a gap"
        expected, length = self.lac + 1, self.confirmed_length
        for offset, (number, (first, run_last, lac, payload_bytes)) in enumerate(self.runs.items()):
            assert number == self._head + offset
            assert first == expected, "I13: pending entries are LAC + 1 .. LAP without a gap"
            assert lac <= self.lac, "a header's LAC is never ahead"
            assert self._acked.get(number, 0) < 1 << ensemble_size, (
                "I13: acknowledgements are for slots of the ensemble"
            )
            expected, length = run_last + 1, length + payload_bytes
        assert length == self.length
        assert not self.runs or expected == self.lap + 1, (
            "I13: pending entries are LAC + 1 .. LAP without a gap"
        )
        assert (
            self.paused
            or not self.runs
            or self._lacks(self.runs[self._head], self._acked.get(self._head, 0), self.ack_quorum)
        ), "a confirmed head is reported"


def slots_of(masks: Iterable[int], slots: Sequence[int]) -> tuple[int, ...]:
    """Those of some slots that store something of a run with these write sets."""
    union = 0
    for mask in masks:
        union |= mask
    return tuple(slot for slot in slots if union >> slot & 1)


@lru_cache(maxsize=32)
def _all_slots(size: int) -> tuple[int, ...]:
    """Shared by all writers with such an ensemble."""
    return tuple(range(size))


class WriterMachine:
    """The writer of one ledger.

    Args:
        record: the ledger's record as created, or a stream's as this client's take-over opened it: OPEN, and this
            client is its writer.
        version: its version in the metadata store.
        rules: the protocol's rules (`core/rules.py`); only tests pass changed ones.
        limits: waits and attempts.
        last: the last entry that is there already, `NO_ENTRY` in a new ledger.
        length: payload bytes up to it.

    Attributes:
        window: what was handed out and may be sent again; LAC, LAP and lengths.
        change: who is at which slot.
        waits: when to look for bookies, and when to give up.
        cas: the record, and the question to the store.
        closing: the close.
        problem: why it has ended.
    """

    __slots__ = (
        "cas",
        "change",
        "closing",
        "limits",
        "out",
        "problem",
        "rules",
        "status",
        "waits",
        "window",
    )

    def __init__(
        self,
        record: LedgerMetadata,
        version: int,
        *,
        rules: LedgerRules = RULES,
        limits: WriterLimits | None = None,
        last: int = NO_ENTRY,
        length: int = 0,
    ) -> None:
        size, ensemble = record.ensemble_size, record.last_fragment.ensemble
        self.rules = rules
        self.limits = limits or WriterLimits()
        self.status = Status.WRITING
        self.problem: Problem | None = None
        self.out: list[WriterEffect] = []
        masks = write_set_masks(size, record.write_quorum)
        if size == record.write_quorum:
            masks = masks[:1]
        quorums = record.ack_quorum, rules.final_quorum(record)
        self.window = RunWindow(masks, *quorums, rules, last, last, length, length)
        self.change = EnsembleChange(record.ledger_id, ensemble, _all_slots(size))
        self.waits = WriterWaits(self.limits, self.limits.retry_ms_min)
        self.cas = RecordCas(record, version)
        self.closing = Closing(record.ledger_id, rules, record.term)

    # --- questions -------------------------------------------------------------------------------------------------

    @property
    def record(self) -> LedgerMetadata:
        """The newest record that is known to have been stored."""
        return self.cas.record

    @property
    def ensemble(self) -> tuple[BookieId, ...]:
        """The bookies that entries are sent to."""
        return self.change.ensemble

    @property
    def lac(self) -> int:
        """Every entry up to here is confirmed."""
        return self.window.lac

    @property
    def lap(self) -> int:
        """The last entry that was handed out."""
        return self.window.lap

    @property
    def pending(self) -> bool:
        """Whether an entry waits for its confirmation or, where that is guaranteed, for its write quorum."""
        return self.window.pending

    @property
    def waits_for(self) -> tuple[BookieId, ...]:
        """The bookies that have not acknowledged all of the oldest entries that are pending."""
        lacking = self.window.lacking()
        return tuple(bookie for slot, bookie in enumerate(self.change.ensemble) if lacking >> slot & 1)

    @property
    def absent(self) -> tuple[int, ...]:
        """The slots that have no bookie at the moment."""
        return tuple(self.change.absent)

    @property
    def below_quorum(self) -> bool:
        """Whether some write set cannot reach its ack quorum at the moment: the writer waits for bookies."""
        return self.waits.quorum_until_ms is not None and self.window.loses_quorum(
            mask_of(self.change.absent)
        )

    @property
    def holes(self) -> tuple[Hole, ...]:
        """What bookies of the record may lack because their slot was absent, as far as the writer knows.

        Nothing while the write quorum is guaranteed: no entry is final on fewer.
        """
        return () if self.guarantees else self.change.holes_through(self.window.lac)

    @property
    def stage(self) -> str:
        """Where it is in its life, in a word."""
        waits = self.closing.status is ClosingStatus.WAITING
        return (Status.CLOSING if waits else self.status).value

    @property
    def guarantees(self) -> bool:
        """Whether the write quorum is guaranteed, and that was not waived by the close."""
        return self.window.final_quorum > self.window.ack_quorum and self.closing.guaranteed

    # --- adding ----------------------------------------------------------------------------------------------------

    def append(self, count: int, payload_bytes: int) -> EntryId:
        """Give a run of new entries their ids and send it.

        Args:
            count: entries in the run, at least 1.
            payload_bytes: their payloads together.

        Returns:
            The id of the first; the others follow without a gap.

        Effects:
            As `assign_ids`, then SendRun to every live slot that stores something of it.

        Raises:
            NotWritingError, MisuseError: as `assign_ids`.
        """
        run = self.assign_ids(count, payload_bytes)
        self._send_new(run)
        return EntryId(run[0])

    def _send_new(self, run: Run) -> None:
        window = self.window
        self._send(window.next_run - 1, run, slots_of(window.masks_of(run), self.change.live))

    def assign_ids(self, count: int, payload_bytes: int) -> Run:
        """Give a run of new entries their ids; the caller sends it to every live slot that stores something of it.

        Its number is `window.next_run` before. Arguments as of `append`.

        Effects:
            ChooseReplacements, if a failure was only noted until now.

        Raises:
            NotWritingError: after close, fence or failure.
            MisuseError: an empty run.

        Source: BookKeeper protocol, "Writing to the ledger": "it is assigned an entry id the write quorum is
        calculated".
        """
        status, change, window = self.status, self.change, self.window
        if (
            status is not Status.WRITING and status is not Status.CHANGING
        ) or self.closing.status is not ClosingStatus.OPEN:
            raise self._not_writing("appended to")
        if count < 1:
            msg = "a run holds at least one entry"
            raise MisuseError(msg)
        if change.delayed and status is Status.WRITING:
            self._start_change()
        return window.add(count, payload_bytes)

    def adds_acked(self, slot: int, bookie: BookieId, run: int) -> None:
        """A bookie stored its entries of a run. Late answers, and those of replaced bookies, change nothing.

        Effects:
            Confirmed when the head of the pending runs has its quorum and no change is in flight; FullyReplicated when
            it is on its write quorum, where that is guaranteed, and then the close that waits for it.
        """
        if self.change.ensemble[slot] == bookie:
            self._acked(1 << slot, run)

    def adds_acked_together(self, slots: int, ensemble: tuple[BookieId, ...], run: int) -> None:
        """The bookies that stood at these slots (a mask) of an ensemble stored a run: `adds_acked` of each, in one."""
        lac = self.window.lac
        if self.confirm_head(slots, ensemble, run):
            self._confirmed(self.window.lac - lac)
        else:
            self._acked(self.change.still_at(slots, ensemble), run)

    def confirm_head(self, slots: int, ensemble: tuple[BookieId, ...], run: int) -> bool:
        """What `adds_acked_together` does where that confirms this run, and no other: without its effects.

        So Confirmed, and SendExplicitLac if nothing is pending any more, are left to the caller.

        Returns:
            Whether it is confirmed. If not, nothing has happened.
        """
        return (
            ensemble == self.change.ensemble
            and self.waits.quorum_until_ms is None
            and self.window.confirm_head(slots, run)
        )

    def _acked(self, slots: int, run: int) -> None:
        if confirmed := self.window.acked(slots, run):
            self._confirmed(confirmed)
        if self.window.kept:
            self._leave()

    def _confirmed(self, count: int) -> None:
        """Entries up to the LAC became confirmed. When nothing is pending no later header carries the LAC."""
        window = self.window
        lac = window.lac
        # Half the time of a call of `Confirmed`.
        self.out.append(tuple.__new__(Confirmed, (lac + 1 - count, lac)))
        if not window.runs:
            self.out.append(tuple.__new__(SendExplicitLac, (lac, self.change.live)))
        if self.waits.quorum_until_ms is not None and not self.below_quorum:
            self.waits.quorum_is_back()

    def _leave(self) -> None:
        """Runs at the head that are on their final quorum leave the window; a close waits until none is pending."""
        if self.window.leave():
            self.out.append(FullyReplicated(self.window.lafr))
        if self.closing.status is ClosingStatus.WAITING and not self.window.pending:
            self._begin_close()

    def add_failed(self, slot: int, bookie: BookieId, run: int, answer: Answer) -> None:
        """A bookie did not store its entries of a run, or that is unknown.

        Effects:
            Ended for responses that end the writer; SendRun once more for a run that was damaged on its way; else as
            `bookie_lost`.

        Source: BookKeeper protocol: "The client will get a LedgerFenced error instead … LedgerFenced should be
        treated like a timeout".
        """
        if not WRITER_TABLE.acts["add_failed"][self.status] or self.change.ensemble[slot] != bookie:
            return
        outcome, window = self.rules.add_outcome(answer), self.window
        pending = window.is_pending(run)
        if pending and outcome not in (AddOutcome.RESEND, AddOutcome.BOOKIE_FAILED):
            ledger_id, term, confirmed = self.closing.ledger_id, self.closing.term, window.lac != NO_ENTRY
            problem, close = refused(ledger_id, term, bookie, answer, outcome, confirmed=confirmed)
            self._end(problem, close=close)
        elif pending and outcome is AddOutcome.RESEND and window.resend_once(run, slot):
            if slot in self.change.live:
                self._send(run, window.run(run), (slot,))
        else:
            self.bookie_lost(slot, bookie, busy=answer is Answer.TOO_BUSY)

    def bookie_lost(self, slot: int, bookie: BookieId, *, busy: bool = False) -> None:
        """A bookie failed: it refused, timed out, broke its connection or does not keep up; `busy`: it took nothing more.

        Effects:
            DropUnsent. While entries are pending a change begins at once (ChooseReplacements); else the failure is
            noted until the next append. During a change it waits for the change's next round.
        """
        if WRITER_TABLE.acts["bookie_lost"][self.status] and self.change.lost(slot, bookie, busy=busy):
            self.out.append(DropUnsent(slot, bookie))
            if self.status is Status.WRITING and self.window.pending:
                self._start_change()

    def bookie_left(self, slot: int, bookie: BookieId, now_ms: int, wait_ms: int) -> None:
        """A bookie is not registered any more, or as read-only: advice, which alone changes nothing.

        Args:
            slot: where the bookie is.
            bookie: which.
            now_ms: the time.
            wait_ms: how long an idle writer waits before it asks the bookie; one that has entries pending asks at once.

        Effects:
            SetTimer, for AskLeftBookies.
        """
        change, waits = self.change, self.waits
        if (
            not WRITER_TABLE.acts["bookie_left"][self.status]
            or change.ensemble[slot] != bookie
            or slot not in change.live
        ):
            return
        # That a registration is deleted is advice: such a bookie may answer, and all are deleted after an outage of the store.
        at_ms = now_ms if self.window.pending else now_ms + wait_ms
        if waits.left_at_ms is None or at_ms < waits.left_at_ms:
            waits.left_at_ms = at_ms
            self._arm()

    def left_bookies_asked(self, leaving: Places, now_ms: int, *, spare: bool, answered: Places = ()) -> None:
        """The response to AskLeftBookies.

        Args:
            leaving: those that are read-only, or are not registered and did not answer.
            now_ms: the time.
            spare: whether a bookie that is not in the ensemble could take a slot.
            answered: those that are not registered, and answered: they leave if that stays so.

        Effects:
            With a spare a change begins for the slots of the bookies that leave, which stay in use until it is done. A slot
            for which there is no bookie in the end, or that may not have another one yet, keeps its own. SetTimer for
            those that answered.

        Source: docs/decisions/034-who-may-recover-an-open-ledger.md.
        """
        if not WRITER_TABLE.acts["left_bookies_asked"][self.status] or not spare:
            self.waits.answering = NOTHING
            return
        leaving = (*leaving, *self.waits.still_answer(answered, now_ms))
        self._arm()
        if not leaving:
            return
        if self.status is Status.CHANGING:
            self.waits.left_at_ms = now_ms  # again after this change
        elif sum(self.change.left(slot, bookie) for slot, bookie in leaving):
            self._start_change()

    # --- the ensemble change -----------------------------------------------------------------------------------------

    def began_without(self, slots: Sequence[int], now_ms: int) -> None:
        """The ledger was created, or taken over, without the bookies of these slots: they are absent from the beginning.

        Args:
            slots: at least one; `rules.may_create` allowed it.
            now_ms: the time, for the first look at them.

        Effects:
            SlotAbsent for each, SetTimer.

        Raises:
            MisuseError: something was appended, a slot is absent or has failed already, or the writer has ended.

        Source: docs/decisions/004-absent-slots.md.
        """
        change, lap = self.change, self.window.lap
        if (
            self.status not in WRITER_TABLE.rows["began_without"]
            or self.window.next_run
            or any(slot not in change.live for slot in slots)
        ):
            ledger_id = change.ledger_id
            msg = f"ledger {ledger_id} cannot begin without slots {list(slots)}: it is {self.status.value}, LAP {lap}"
            raise MisuseError(msg, ledger_id=ledger_id)
        self._leave_out(slots, now_ms)

    def replacements_chosen(
        self, chosen: Mapping[int, BookieId], now_ms: int, *, refused: Sequence[int] = ()
    ) -> None:
        """The response to ChooseReplacements: a bookie for each slot that can have one.

        Args:
            chosen: slot to bookie; slots that were asked for and are not in it become absent.
            now_ms: the time, for the next look at absent slots.
            refused: slots whose bookie accepts no connection from this client: they are not waited for.

        Effects:
            SlotAbsent for slots without a bookie; WriteMetadata, or the end of the change if none was found. When a
            write set cannot reach its ack quorum, QuorumAwaited, or Ended if the wait is over.

        Raises:
            MisuseError: a bookie was chosen that is in the ensemble, has failed or was chosen twice.
        """
        change, window, cas = self.change, self.window, self.cas
        if self.status is not Status.CHANGING or change.status is not ChangeStatus.CHOOSING:
            return
        named = cas.record.last_fragment.ensemble
        missing = change.missing(named, chosen)  # those as well that may not be replaced yet
        if not window.loses_quorum(mask_of(missing)):
            self._leave_out(missing, now_ms)
        else:
            hopeless = window.loses_quorum(mask_of(slot for slot in missing if slot in refused))
            if hopeless or not self.waits.may_wait(now_ms):
                waited = self.waits.quorum_until_ms is not None and not hopeless
                self._end(self._quorum_lost(missing, waited=waited), close=True)
                return
            begins = self.waits.await_quorum(now_ms)
            self._leave_out(missing, now_ms)
            if begins:
                self.out.append(QuorumAwaited(tuple(missing)))
        ensemble = change.filled(named, chosen)
        if chosen:
            self.out.append(cas.propose(cas.record.with_ensemble(self._first_of_fragment, ensemble)))
        elif cas.is_unsettled(self.rules):
            self.out.append(cas.propose(cas.record))
        else:
            self._round_done()

    def bookies_found(self, returned: Sequence[int], now_ms: int, *, spare: bool) -> None:
        """The response to LookForBookies.

        Args:
            returned: absent slots whose own bookie answers again.
            now_ms: the time.
            spare: whether a bookie that is not in the ensemble could take a slot.

        Effects:
            With a spare that may take a slot a change begins. Else SlotReturned, and SendRun of what is pending, for
            each that is back. SetTimer while slots stay absent.
        """
        self.waits.looked()
        if self.status is Status.WRITING and self.change.absent:
            if spare and self._replaceable(self.absent, self.change.ensemble):
                self._start_change()
            else:
                for slot in returned:
                    self._return_slot(slot)
        if self.change.absent and WRITER_TABLE.acts["bookies_found"][self.status]:
            self._look_later(now_ms)
        self._quorum_is_back()

    def _start_change(self) -> None:
        """Nothing is confirmed to callers while a change is in flight: the new fragment starts at LAC + 1."""
        self.status = WRITER_TABLE.moved[self.status, Status.CHANGING]
        self.window.pause()
        self._next_round()

    def _next_round(self) -> None:
        change, named = self.change, self.cas.record.last_fragment.ensemble
        wanted = change.begin(named)
        if wanted:
            required = self.window.loses_quorum(mask_of(set(wanted) - change.leaving.keys()))
            slots = self._replaceable(wanted, named)
            # Where terms only fence, a bookie is named in a fragment once it has truncated there in this term: it may be back.
            first = self._first_of_fragment if self.cas.record.only_fences else NO_ENTRY
            self.out.append(ChooseReplacements(slots, named, change.failed, required, first))
        else:
            self._round_done()

    @property
    def _first_of_fragment(self) -> int:
        """The first entry of the fragment that this change begins; nothing is confirmed until its end."""
        window = self.window
        return self.rules.new_fragment_start(window.lac, window.lap, window.decided)

    def _replaceable(self, wanted: tuple[int, ...], named: Sequence[BookieId]) -> tuple[int, ...]:
        """Those of some slots that may get another bookie together, and with those that have one in the record already.

        The others keep their bookie, absent for now: it is sent what is pending when it answers again.

        Source: docs/decisions/037-who-may-be-replaced.md.
        """
        window, ensemble = self.window, self.change.ensemble
        if not window.kept:
            return wanted
        replaced = mask_of(slot for slot, bookie in enumerate(named) if ensemble[slot] != bookie)
        slots = []
        for slot in wanted:
            if window.may_replace(replaced | 1 << slot):
                replaced |= 1 << slot
                slots.append(slot)
        return tuple(slots)

    def _round_done(self) -> None:
        """The record is as this round wanted it: the next round, or the end of the change."""
        if self.change.delayed:
            self._next_round()
        else:
            self._finish_change()

    def _finish_change(self) -> None:
        fragment, waits = self.cas.record.last_fragment, self.waits
        left = [item for item in self.change.leaving.items() if fragment.ensemble[item[0]] != item[1]]
        changed = self.change.finish(fragment.ensemble, self.window.decided)
        self.cas.settled()
        self.status = WRITER_TABLE.moved[self.status, Status.WRITING]
        if changed:
            waits.be_quick()
            self.out += [DropUnsent(slot, bookie) for slot, bookie in left]
            self.out.append(EnsembleChanged(fragment.first_entry, fragment.ensemble, changed))
            self._resend(changed)
        self._release()
        if waits.quorum_until_ms is not None or waits.left_at_ms is not None:
            self._quorum_is_back()
            self._arm()

    def _release(self) -> None:
        """Confirm to callers what was acknowledged meanwhile."""
        if confirmed := self.window.release():
            self._confirmed(confirmed)
        if self.window.kept:
            self._leave()

    def _send(self, number: int, run: Run, slots: tuple[int, ...]) -> None:
        first, last, lac, _ = run
        self.out.append(SendRun(number, first, last, lac, slots, self.window.lafr))

    def _resend(self, changed: tuple[int, ...]) -> None:
        """Unset success, and every pending run to the new bookies, with the headers of its first sending."""
        self.window.unset(mask_of(changed))
        for number, run, slots, _ in self.window.stored_at(changed):
            self._send(number, run, slots)

    def _leave_out(self, slots: Sequence[int], now_ms: int) -> None:
        """These slots are absent, and are looked at after a while."""
        first = self.window.decided + 1
        for slot in slots:
            if self.change.leave_out(slot, first):
                self.out.append(SlotAbsent(slot, self.change.ensemble[slot], first))
            self._look_later(now_ms)

    def _return_slot(self, slot: int) -> None:
        """The slot's own bookie is back: it gets what it lacks, so that every pending run is on its way there."""
        decided = self.window.decided
        if not self.change.come_back(slot, decided):
            return
        self.waits.be_quick()
        self.out.append(SlotReturned(slot, self.change.ensemble[slot], decided + 1))
        for number, run, slots, acked in self.window.stored_at((slot,)):
            if not acked >> slot & 1:
                self._send(number, run, slots)

    def _look_later(self, now_ms: int) -> None:
        if self.waits.look_later(now_ms, guaranteed=bool(self.window.kept)):
            self._arm()

    def _quorum_is_back(self) -> None:
        """With nothing pending no confirmation will end the wait."""
        if self.waits.quorum_until_ms is not None and not self.window.runs and not self.below_quorum:
            self.waits.quorum_is_back()

    def _quorum_lost(self, missing: Sequence[int], *, waited: bool) -> Problem:
        change, waited_ms = self.change, self.limits.quorum_wait_ms if waited else None
        named = [change.ensemble[slot] for slot in missing]
        return quorum_lost(change.ledger_id, self.window.ack_quorum, named, change.busy, waited_ms)

    def _change_read(self) -> None:
        """After a conflict or an unknown outcome: may this writer still change, and is there still something to change?

        Source: BookKeeper protocol, "Writing to the ledger": "If the state of the ledger is no longer OPEN, we send
        an error to the client for any outstanding writes. Otherwise, we try to replace the failed node again."
        """
        record, term = self.cas.record, self.closing.term
        if self.rules.writer_may_change(record, term):
            self._next_round()
        else:
            self._end(may_not_change(record, term), close=False)

    # --- answers of the metadata store, one at a time ----------------------------------------------------------------

    def metadata_written(self, version: int) -> None:
        """The compare-and-swap succeeded; the record has this version now.

        Effects:
            The end of the change (EnsembleChanged, SendRun, Confirmed), its next round, or of the close (Closed).
        """
        if WRITER_TABLE.acts["metadata_written"][self.status]:
            self.cas.written(version)
            if self.status is Status.CLOSING:
                self._go_on_closing()
            else:
                self._round_done()

    def metadata_conflicted(self) -> None:
        """The compare-and-swap was lost: the stored record is another one by now.

        Effects:
            RereadMetadata.
        """
        if WRITER_TABLE.acts["metadata_conflicted"][self.status]:
            self.out.append(self.cas.reread())

    def metadata_unknown(self, now_ms: int, why: str = "") -> None:
        """The store refused, or did not say what happened: read the record again, after growing pauses.

        Args:
            now_ms: the time.
            why: what the store said, or that it said nothing; the last one goes into the error.

        Effects:
            RereadMetadata or SetTimer; Ended or CloseFailed after too many.
        """
        if not WRITER_TABLE.acts["metadata_unknown"][self.status]:
            return
        effect, attempts = self.cas.unanswered(), self.cas.attempts
        if attempts >= self.limits.metadata_attempts_max:
            self._give_up(store_silent(self.closing.ledger_id, attempts, why))
        elif effect is not None and attempts <= REREADS_AT_ONCE:
            self.out.append(effect)
        else:
            self.waits.read_later(attempts, now_ms)
            self._arm()

    def metadata_read(self, record: LedgerMetadata, version: int) -> None:
        """The record as it is stored now.

        Effects:
            The change or the close goes on with it, or the writer ends.
        """
        if WRITER_TABLE.acts["metadata_read"][self.status]:
            self.cas.read(record, version)
            if self.status is Status.CLOSING:
                self._go_on_closing()
            else:
                self._change_read()

    def metadata_missing(self) -> None:
        """The record is missing: the ledger was deleted.

        Effects:
            Ended or CloseFailed.
        """
        if WRITER_TABLE.acts["metadata_missing"][self.status]:
            self.cas.missing()
            msg = f"ledger {self.closing.ledger_id} was deleted by another client"
            self._give_up(Problem(LedgerClosedError, msg))

    # --- time --------------------------------------------------------------------------------------------------------

    def timer_fired(self, now_ms: int) -> None:
        """The time of SetTimer has come.

        Effects:
            RereadMetadata, LookForBookies or AskLeftBookies, whichever was due; SetTimer for the others. Ended when the
            wait for the ack quorum is over.
        """
        waits, absent = self.waits, self.absent
        waits.fired()
        if self.status is Status.WRITING and self.below_quorum and not waits.may_wait(now_ms):
            self._end(self._quorum_lost(absent, waited=True), close=True)
            return
        if waits.read_is_due(now_ms):
            self.out.append(RereadMetadata())
        if waits.look_is_due(now_ms, absent=bool(absent)):
            self.out.append(LookForBookies(absent, self.change.ensemble))
        if self.status is Status.WRITING and waits.left_is_due(now_ms):
            self.out.append(AskLeftBookies(self.change.ensemble))
        self._arm()

    def _arm(self) -> None:
        writing = self.status is Status.WRITING
        at_ms = self.waits.arm(writing=writing, below_quorum=writing and self.below_quorum)
        if at_ms is not None:
            self.out.append(SetTimer(at_ms))

    # --- the end -----------------------------------------------------------------------------------------------------

    def close(self, *, at_ack_quorum: bool = False) -> None:
        """Close the ledger at its last acknowledged entry. Legal at any time, also while a change is in flight.

        Where the write quorum is guaranteed the close waits until every entry is on all of it.

        Args:
            at_ack_quorum: wait for nothing; a guarantee of the write quorum is waived, and the record says so.

        Effects:
            Failed for what is pending; WriteMetadata, at once or when the response to the change's own compare-and-swap
            came. In the end Closed or CloseFailed.

        Raises:
            NotWritingError: the writer has ended or was abandoned.

        Source: BookKeeper protocol, "Closing a ledger as a writer".
        """
        if self.status not in WRITER_TABLE.acts["close"]:
            raise self._not_writing("closed")
        window = self.window
        if not WRITER_TABLE.acts["close"][self.status]:
            return
        if window.pending and self.guarantees and not at_ack_quorum:
            self.closing.wait()
        else:
            msg = (
                f"ledger {self.closing.ledger_id} was closed by its own handle before this entry was "
                "acknowledged"
            )
            guaranteed = not window.kept
            self._fail_pending(Problem(LedgerClosedError, msg))
            self._begin_close(guaranteed=guaranteed)

    def abandon(self, why: str = "was abandoned") -> None:
        """Stop and leave the ledger to a recovery; the metadata are not touched.

        Args:
            why: what happened to the ledger, for who waits for an entry.

        Effects:
            Failed for what is pending.
        """
        if WRITER_TABLE.acts["abandon"][self.status]:
            msg = (
                f"ledger {self.closing.ledger_id} {why} before this entry was acknowledged; "
                "a recovery determines whether it is in the ledger"
            )
            self._fail_pending(Problem(LedgerClosedError, msg))
            self._stop(Status.ABANDONED)

    def _not_writing(self, what: str) -> NotWritingError:
        why = f": {self.problem.message}" if self.problem else ""
        ledger_id = self.closing.ledger_id
        msg = f"ledger {ledger_id} cannot be {what} by this handle; it is {self.stage}{why}"
        return NotWritingError(msg, ledger_id=ledger_id)

    def _end(self, problem: Problem, *, close: bool) -> None:
        """The writer takes no more entries, for ever. With `close` the ledger is closed at the LAC if the store lets.

        A stream is not closed: it stays for the next take-over. Nor is a ledger whose entries are not all on a
        guaranteed write quorum: a recovery puts them there.

        Effects:
            Failed for what is pending, Ended; WriteMetadata when closing.
        """
        close = close and not self.closing.term and not self.window.kept
        self._fail_pending(problem)
        self.problem = problem
        self.out.append(Ended(problem))
        if close:
            self._begin_close()
        else:
            self._stop(Status.ENDED)

    def _give_up(self, problem: Problem) -> None:
        """The record can no longer be looked at: end without touching it."""
        if self.status is Status.CLOSING:
            self.closing.fail()
            self._close_failed(problem)
        else:
            self._end(problem, close=False)

    def _fail_pending(self, problem: Problem) -> None:
        """Callers of unconfirmed entries learn that the outcome is unknown."""
        if self.window.runs:
            self.out.append(Failed(self.window.lac + 1, self.window.lap, problem))
        self.window.drop()

    def _stop(self, status: Status) -> None:
        """Nothing is asked any more; late responses change nothing."""
        self.status = WRITER_TABLE.moved[self.status, status]
        self.cas.forget()
        self.waits.stop(reads=False)

    def _begin_close(self, *, guaranteed: bool = True) -> None:
        self.status = WRITER_TABLE.moved[self.status, Status.CLOSING]
        self.closing.begin(self.window.lac, self.window.confirmed_length, guaranteed=guaranteed)
        self.waits.stop(reads=True)
        self.cas.be_patient()
        if self.cas.asked is StoreRequest.NOTHING:
            self._go_on_closing()

    def _go_on_closing(self) -> None:
        """With the record as it is now: after the close began, a change's compare-and-swap, or the closing one."""
        found = self.closing.judge(self.cas.record)
        if isinstance(found, LedgerMetadata):
            self.out.append(self.cas.propose(found))
        elif isinstance(found, Problem):
            self._close_failed(found)
        else:
            self._stop(Status.ENDED if self.problem else Status.CLOSED)
            self.out.append(Closed(self.cas.record))

    def _close_failed(self, problem: Problem) -> None:
        self.problem = self.problem or problem
        self._stop(Status.ENDED)
        self.out.append(CloseFailed(problem))

    # --- invariants --------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Assert what must hold between any two inputs: I5, I6, I13 of docs/counterexamples.md, and part of I12."""
        window, change, record = self.window, self.change, self.cas.record
        self.cas.check()
        window.check(record.ensemble_size)
        change.check()
        self.closing.check(record, window.lac)
        if self.status in (Status.WRITING, Status.CHANGING):
            assert window.runs or window.lac == window.lap, (
                "I13: pending entries are LAC + 1 .. LAP without a gap"
            )
            assert record.state is LedgerState.OPEN
            assert record.last_fragment.first_entry <= window.lac + 1, (
                "I6: the last fragment starts at LAC + 1 or before"
            )
            self.waits.check()
        else:
            assert not window.pending, "an ended writer has no entry that waits"
        if self.status is Status.WRITING:
            assert change.ensemble == record.last_fragment.ensemble, "entries go where the record says"
            assert change.status is ChangeStatus.IDLE
            assert not window.paused
            assert self.below_quorum or not window.loses_quorum(mask_of(change.absent)), (
                "a writer that goes on can confirm, or waits for its quorum"
            )
            assert not self.below_quorum or self.waits.timer_at_ms is not None, "a wait has an end"
            assert self.cas.asked is StoreRequest.NOTHING
        elif self.status is Status.CHANGING:
            choosing = change.status is ChangeStatus.CHOOSING
            assert change.status is not ChangeStatus.IDLE
            assert choosing == (self.cas.asked is StoreRequest.NOTHING), "a change waits for one answer"
        if record.state is LedgerState.CLOSED:
            assert window.lac <= record.last_entry, "I12: a closed end is not below what was acknowledged"
        assert (self.status is Status.CLOSING) <= (self.closing.status is ClosingStatus.CLOSING)
        assert (self.status is Status.CLOSED) <= (self.closing.status is ClosingStatus.CLOSED)
