"""Reading: one bookie is enough for an entry, enough bookies for the newest LAC.

Neither machine fences, and neither judges what is recoverable: that is the log-end search of a recovery
(`core/recovery/log_end_search.py`). They know ids and responses; payloads and digests stay with the driver, which reports
only entries whose digest it has checked.

Source: Vanlightly's guide, "Reading from ledgers", "Operations and the Different Quorums".
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final

from quire.core.answers import Answer
from quire.core.ids import NO_ENTRY, BookieId, EntryId, Slot
from quire.core.ledger.effects import (
    LacEffect,
    LacFound,
    LacUnavailable,
    ReadDone,
    ReadEffect,
    ReadFailed,
    SendLacRead,
    SendRead,
    SetTimer,
)
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.quorum import stripes_of_slot, told_through, write_set, write_set_mask
from quire.core.ledger.rules import RULES, LedgerRules
from quire.core.ledger.terms import confirmed_in
from quire.core.state_table import StateTable


class ReadStatus(Enum):
    """Where a read of entries, or of the LAC, stands."""

    IDLE = "idle"
    READING = "reading"
    ENDED = "ended"


READ_TABLE: Final = StateTable(
    ReadStatus,
    {
        "read": "idle > reading",
        "answered": "reading > = ended; ended > -",
        "timer_fired": "reading > =; ended > -",
    },
)
"""What the inputs of a read of entries do."""

LAC_TABLE: Final = StateTable(
    ReadStatus, {"read": "idle > reading", "answered": "reading > = ended; ended > -"}
)
"""What the inputs of a read of the LAC do."""


class ReadMachine:
    """Some consecutive entries of one fragment on their way to a reader.

    The fewest bookies that hold them all are asked first. What one cannot serve (it says no, fails, times out, or a
    digest is wrong) is asked of the next of the entry's write set; what one is slow with is asked of the next as
    well, and the first good response wins.

    Args:
        first: first entry wanted; with `last` within one fragment and at or below what is confirmed.
        last: last entry wanted.
        ensemble: the fragment's bookies.
        write_quorum: how many of them hold each entry.
        prefer: the slot to ask first, so that a reader can spread its load.
        avoid: mask of slots to ask last: they are not registered, or failed a moment ago.
        speculate_after_ms: how long a response may take before the next bookie is asked too; 0 = for ever.
    """

    __slots__ = (
        "_answers",
        "_asked",
        "_avoid",
        "_ensemble",
        "_first",
        "_last",
        "_masks",
        "_missing",
        "_no",
        "_prefer",
        "_rules",
        "_slow",
        "_speculate_after_ms",
        "_tried",
        "_write_quorum",
        "out",
        "status",
    )

    def __init__(
        self,
        first: int,
        last: int,
        ensemble: Sequence[BookieId],
        write_quorum: int,
        *,
        prefer: int = 0,
        avoid: int = 0,
        speculate_after_ms: int = 0,
        rules: LedgerRules = RULES,
    ) -> None:
        self._first, self._last = first, last
        self._ensemble = tuple(ensemble)
        self._write_quorum = write_quorum
        self._prefer = prefer % len(self._ensemble)
        self._avoid = avoid
        self._speculate_after_ms = speculate_after_ms
        self._rules = rules
        size = len(self._ensemble)
        self._masks = [write_set_mask(stripe, size, write_quorum) for stripe in range(size)]
        self._missing: dict[int, None] | None = None  # all of first..last: nothing has come yet
        self._asked: list[tuple[int, int, int] | None] = [None] * len(self._ensemble)
        # Only of entries that some response should have brought and did not, as masks of slots: which answered without
        # the entry, and which of them report conclusively that it is not there.
        self._tried: dict[int, int] = {}
        self._no: dict[int, int] = {}
        self._slow = 0  # slots whose response is overdue; it still counts when it comes
        self._answers: dict[int, Answer] = {}
        self.status = ReadStatus.IDLE
        self.out: list[ReadEffect] = []

    # --- inputs --------------------------------------------------------------------------------------------------

    def read(self, now_ms: int) -> None:
        """Begin.

        Effects:
            SendRead to the fewest slots that hold all the entries; SetTimer.

        Source: Vanlightly's guide: "a regular read can be served by a single bookie".
        """
        assert READ_TABLE.acts["read"][self.status]
        self.status = ReadStatus.READING
        size, covered = len(self._ensemble), 0
        turn = [(self._prefer + self._write_quorum * i) % size for i in range(size)]
        turn += [slot for slot in range(size) if slot not in turn]
        for slot in sorted(turn, key=lambda slot: self._avoid >> slot & 1):
            stripes = stripes_of_slot(slot, size, self._write_quorum)
            if stripes & ~covered:
                covered |= stripes
                self._ask(slot, self._first, self._last, now_ms)
        self._set_timer()

    def answered(
        self,
        slot: int,
        answer: Answer,
        entry_ids: Sequence[int],
        conclusive_through: int,
        unknown: Sequence[tuple[int, int]],
        now_ms: int,
    ) -> None:
        """One bookie answered, or did not.

        Args:
            entry_ids: the entries that came, were asked for and have a valid digest.
            conclusive_through: what was requested up to here and did not come is not there; beyond it, ask again.
            unknown: ranges for which the response is inconclusive, or whose entry came with a wrong digest.

        Effects:
            SendRead for the rest and to the next bookies; ReadDone; ReadFailed.

        Source: Vanlightly's guide: "If a read fails then the client can simply send the read to another bookie in the
        ensemble".
        """
        asked = self._asked[slot]
        if not READ_TABLE.acts["answered"][self.status] or asked is None:
            return
        first, last, _ = asked
        self._asked[slot] = None
        self._slow &= ~(1 << slot)
        self._answers[slot] = answer
        if self._missing is None and len(entry_ids) == self._last - self._first + 1:
            self._missing = {}  # the usual case: the first response brings everything
        missing = self._not_there_yet()
        for entry_id in entry_ids if missing else ():
            missing.pop(entry_id, None)
        through, absent_is_no = last, self._rules.counts_as_negative(answer)
        if answer is Answer.OK:
            if conclusive_through < last:
                size = len(self._ensemble)
                stripes = stripes_of_slot(slot, size, self._write_quorum)
                through = told_through(first, last, entry_ids, conclusive_through, unknown, stripes, size)
            absent_is_no = self._rules.counts_as_negative(Answer.NO_ENTRY)
            if through < first:
                # It covers nothing, not even the first id: asking it again would never end.
                through, absent_is_no = last, False
        if missing:
            if through < last:
                self._ask(slot, through + 1, last, now_ms)
            self._note_missing(slot, first, through, unknown, absent_is_no=absent_is_no)
            self._ask_others(now_ms)
            self._set_timer()
        self._conclude()

    def timer_fired(self, now_ms: int) -> None:
        """Ask the next bookies too for what is overdue; the slow answers still count when they come.

        Effects:
            SendRead, SetTimer.
        """
        if not (READ_TABLE.acts["timer_fired"][self.status] and self._speculate_after_ms):
            return
        for slot, asked in enumerate(self._asked):
            overdue = asked is not None and now_ms - asked[2] >= self._speculate_after_ms
            if asked is not None and overdue and not self._slow >> slot & 1:
                self._slow |= 1 << slot
                self._ask_beside(slot, asked[0], asked[1], now_ms)
        self._ask_others(now_ms)
        self._set_timer()

    # --- inside --------------------------------------------------------------------------------------------------

    def _not_there_yet(self) -> dict[int, None]:
        """The ids that are missing, ascending; listed only when not all of them came at once."""
        if self._missing is None:
            self._missing = dict.fromkeys(range(self._first, self._last + 1))
        return self._missing

    def _mask(self, entry_id: int) -> int:
        return self._masks[entry_id % len(self._masks)]

    def _ask(self, slot: int, first: int, last: int, now_ms: int) -> None:
        self._asked[slot] = (first, last, now_ms)
        self.out.append(SendRead(Slot(slot), self._ensemble[slot], EntryId(first), EntryId(last)))

    def _ask_beside(self, slow: int, first: int, last: int, now_ms: int) -> None:
        """Ask idle slots for what a slow one was asked for, as a range: nothing is known about single entries."""
        lowest = next(iter(self._not_there_yet()))
        size = len(self._ensemble)
        left = stripes_of_slot(slow, size, self._write_quorum)
        for slot in sorted(range(size), key=self._order):
            stripes = stripes_of_slot(slot, size, self._write_quorum)
            if stripes & left and self._asked[slot] is None and max(first, lowest) <= last:
                left &= ~stripes
                self._ask(slot, max(first, lowest), last, now_ms)

    def _order(self, slot: int) -> tuple[int, int]:
        """Who is asked first: the same for all entries, so that neighbours that did not come make one request."""
        return (self._avoid >> slot & 1, (slot - self._prefer) % len(self._ensemble))

    def _note_missing(
        self, slot: int, first: int, through: int, unknown: Sequence[tuple[int, int]], *, absent_is_no: bool
    ) -> None:
        """Note the ids that this bookie's response covers and did not bring."""
        bit = 1 << slot
        for entry_id in self._not_there_yet():
            if entry_id > through:
                break
            if entry_id < first or not self._mask(entry_id) & bit:
                continue
            self._tried[entry_id] = self._tried.get(entry_id, 0) | bit
            if absent_is_no and not any(lower <= entry_id <= upper for lower, upper in unknown):
                self._no[entry_id] = self._no.get(entry_id, 0) | bit

    def _ask_others(self, now_ms: int) -> None:
        """Ask the next slot for each entry that did not come, neighbours together."""
        asks: dict[int, list[int]] = {}
        missing = self._not_there_yet() if self._tried else {}
        for entry_id in sorted(self._tried):
            if entry_id not in missing:
                del self._tried[entry_id]
                continue
            slot = self._next_slot(entry_id)
            if slot is not None:
                asks.setdefault(slot, [entry_id, entry_id])[1] = entry_id
        for slot, (first, last) in asks.items():
            self._ask(slot, first, last, now_ms)

    def _next_slot(self, entry_id: int) -> int | None:
        """The slot to ask next for an entry; None while another is being asked, and when all were."""
        tried = self._tried[entry_id]
        candidates: list[int] = []
        for slot in write_set(entry_id, len(self._ensemble), self._write_quorum):
            asked = self._asked[slot]
            if tried >> slot & 1:
                continue
            if asked is None:
                candidates.append(slot)
            elif asked[0] <= entry_id <= asked[1] and not self._slow >> slot & 1:
                return None
        return min(candidates, key=self._order, default=None)

    def _set_timer(self) -> None:
        waiting = [a[2] for slot, a in enumerate(self._asked) if a is not None and not self._slow >> slot & 1]
        if waiting and self._speculate_after_ms:
            self.out.append(SetTimer(min(waiting) + self._speculate_after_ms))

    def _conclude(self) -> None:
        missing = self._not_there_yet()
        if not missing:
            self.status = READ_TABLE.moved[self.status, ReadStatus.ENDED]
            self.out.append(ReadDone())
            return
        lowest = next(iter(missing))
        mask = self._mask(lowest)
        if self._tried.get(lowest, 0) & mask == mask:
            self.status = READ_TABLE.moved[self.status, ReadStatus.ENDED]
            no = self._no.get(lowest, 0)
            answers = tuple(
                (self._ensemble[slot], self._said(slot, no))
                for slot in write_set(lowest, len(self._ensemble), self._write_quorum)
            )
            self.out.append(ReadFailed(EntryId(lowest), no & mask == mask, answers))

    def _said(self, slot: int, no: int) -> Answer:
        """What a slot's last response meant for an entry that it did not bring."""
        answer = self._answers[slot]
        if answer is not Answer.OK:
            return answer
        return Answer.NO_ENTRY if no >> slot & 1 else Answer.UNKNOWN

    def check(self) -> None:
        """Assert every invariant of the state. For tests and the explorer; drivers never call it."""
        for entry_id, no in self._no.items():
            assert not no & ~self._tried.get(entry_id, no), "a no is an answer"
        for entry_id, tried in self._tried.items():
            assert not tried & ~self._mask(entry_id), "only the write set is asked"
        missing = self._not_there_yet()
        if self.status is not ReadStatus.ENDED and missing:
            lowest = next(iter(missing))
            waiting = [a for a in self._asked if a is not None and a[0] <= lowest <= a[1]]
            busy = [
                a for slot, a in enumerate(self._asked) if a is not None and self._mask(lowest) >> slot & 1
            ]
            assert waiting or busy or not any(self._asked), "somebody is asked for the lowest entry"


class LacMachine:
    """The highest LAC that enough of the last fragment's bookies know.

    Args:
        ensemble: the last fragment's bookies.
        write_quorum: Qw.
        ack_quorum: Qa.
        rules: the protocol's rules (`core/rules.py`).
        record: a stream's, to which its LACs are compared; None for a ledger.

    Source: Vanlightly's guide: EC "is required when we need a guarantee across an entire fragment".
    """

    __slots__ = (
        "_answered",
        "_behind",
        "_ensemble",
        "_highest",
        "_known",
        "_quorums",
        "_record",
        "_rules",
        "out",
        "status",
    )

    def __init__(
        self,
        ensemble: Sequence[BookieId],
        write_quorum: int,
        ack_quorum: int,
        rules: LedgerRules = RULES,
        record: LedgerMetadata | None = None,
    ) -> None:
        self._ensemble = tuple(ensemble)
        self._quorums = (len(self._ensemble), write_quorum, ack_quorum)
        self._rules = rules
        self._record = record
        self._answered = 0
        self._known = 0
        self._behind = False
        self._highest = int(NO_ENTRY)
        self.status = ReadStatus.IDLE
        self.out: list[LacEffect] = []

    def read(self) -> None:
        """Begin.

        Effects:
            SendLacRead to every slot, without fencing.
        """
        assert LAC_TABLE.acts["read"][self.status]
        self.status = ReadStatus.READING
        self.out += [SendLacRead(Slot(s), bookie, fence=False) for s, bookie in enumerate(self._ensemble)]

    def answered(self, slot: int, answer: Answer, last_add_confirmed: int, lac_term: int = 0) -> None:
        """One bookie answered, or did not.

        Args:
            slot: where it is.
            answer: what it answered.
            last_add_confirmed: the LAC that it knows, `NO_ENTRY` if none.
            lac_term: of a stream: the term of the writer that sent it. One that the record's ranges do not reach is not
                used, and the result says that the record is behind. Of a later term's entries it says nothing.

        Effects:
            LacFound at coverage; LacUnavailable when all have answered without it.

        Source: docs/protocol/streams.md, "The LAC".
        """
        if not LAC_TABLE.acts["answered"][self.status]:
            return
        self._answered |= 1 << slot
        if self._rules.counts_as_known(answer):
            self._known |= 1 << slot
            if self._record is not None and not self._rules.may_use_lac(lac_term, self._record):
                self._behind = True
            else:  # any bookie's LAC is safe to read up to; only the newest needs a quorum
                if self._record is not None and self._record.terms is not None:
                    last_add_confirmed = confirmed_in(lac_term, last_add_confirmed, self._record.ranges)
                self._highest = max(self._highest, last_add_confirmed)
        if self._rules.covers(self._known, *self._quorums):
            self.status = LAC_TABLE.moved[self.status, ReadStatus.ENDED]
            self.out.append(LacFound(EntryId(self._highest), self._behind))
        elif self._answered == (1 << len(self._ensemble)) - 1:
            self.status = LAC_TABLE.moved[self.status, ReadStatus.ENDED]
            silent = tuple(b for s, b in enumerate(self._ensemble) if not self._known >> s & 1)
            self.out.append(LacUnavailable(silent, EntryId(self._highest), self._behind))

    def check(self) -> None:
        """Assert every invariant of the state. For tests and the explorer; drivers never call it."""
        assert not self._known & ~self._answered, "known means answered"
