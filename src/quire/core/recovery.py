"""Recovery: any client closes a ledger whose writer is gone, without losing an acknowledged entry.

Three phases, after announcing them in the record:

1. Fence the bookies of the last fragment and learn the highest LAC, until no ack quorum is left unfenced.
2. Read forward from there with fencing reads, judge entry by entry in order, and write every recoverable entry
   back to its whole write set.
3. Set the record to CLOSED at the last entry recovered, by compare-and-swap.

Entries are read by window (many ids, one request per bookie) but judged one by one, strictly in order. Reads go to
the ensemble that the record named (R); writes go to W, which starts as R and changes when bookies fail. W's
changes stay local until the close: published earlier, a second recoverer would count bookies that never were asked
to store the entries.

The machine sees ids and lengths; payloads stay with the driver.

Source: BookKeeper protocol, "Closing a ledger as a reader"; Vanlightly's guide, "Ledger Recovery".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import Final

from quire.core.answers import Answer
from quire.core.effects import (
    FindLength,
    FindReplacements,
    RecoveryClosed,
    RecoveryEffect,
    RecoveryFailed,
    RecoveryInconclusive,
    RereadMetadata,
    SendLacRead,
    SendRecoveryAdds,
    SendRecoveryRead,
    WaitForAnswers,
    WriteMetadata,
)
from quire.core.errors import MisuseError
from quire.core.ids import NO_ENTRY, BookieId, EntryId, Slot
from quire.core.ledger_metadata import LedgerMetadata, LedgerState
from quire.core.quorum import residues_of_slot, write_set
from quire.core.reader import told_through
from quire.core.rules import RULES, Rules

WINDOW_ENTRIES: Final = 4096
"""Entries asked for at once; also the bound on entries written back and not yet confirmed."""
WINDOW_BYTES: Final = 16 * 1024 * 1024
"""Payload bytes written back and not yet confirmed beyond which no more is read."""


class RecoveryStatus(Enum):
    """Where a recovery stands."""

    NEW = "new"
    ANNOUNCING = "announcing"
    FENCING = "fencing"
    READING = "reading"
    MEASURING = "measuring"
    CLOSING = "closing"
    ENDED = "ended"


class RecoveryMachine:
    """One recovery of one ledger. Inputs are methods; what it wants done appears in `out`.

    Args:
        record: the ledger's record as it was read.
        version: the record's version in the store.
        rules: the judgements; production uses the one true set.
        window_entries: how many ids one round of reads asks for.
        window_bytes: payload bytes on their way back beyond which reading waits.

    Attributes:
        lac: every entry at or below is confirmed.
        lap: every entry at or below was found recoverable; those above `lac` are being written back.
    """

    __slots__ = (
        "_absent",
        "_acked",
        "_answered",
        "_asked",
        "_asked_again",
        "_changes",
        "_delayed",
        "_ended_reading",
        "_entry_id_without_verdict",
        "_failed",
        "_highest_lac",
        "_ignored_lacs",
        "_known",
        "_lacs",
        "_length",
        "_lengths",
        "_masks",
        "_negative",
        "_pending",
        "_positive",
        "_read_ensemble",
        "_record",
        "_replacing",
        "_residues",
        "_rules",
        "_silent",
        "_start",
        "_told",
        "_unknown",
        "_version",
        "_waited",
        "_waiting",
        "_window_bytes",
        "_window_entries",
        "_window_first",
        "_window_last",
        "_write_ensemble",
        "lac",
        "lap",
        "out",
        "status",
    )

    def __init__(
        self,
        record: LedgerMetadata,
        version: int,
        rules: Rules = RULES,
        window_entries: int = WINDOW_ENTRIES,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        self._rules = rules
        self._ignored_lacs: frozenset[BookieId] = frozenset()
        self._record = record
        self._version = version
        self._window_entries = window_entries
        self._window_bytes = window_bytes
        self.status = RecoveryStatus.NEW
        self.out: list[RecoveryEffect] = []
        ensemble_size, write_quorum = record.ensemble_size, record.write_quorum
        sets = [write_set(entry_class, ensemble_size, write_quorum) for entry_class in range(ensemble_size)]
        self._masks = [sum(1 << slot for slot in slots) for slots in sets]
        # The classes that each slot is written back; by the rule all of its own.
        self._residues = [0] * ensemble_size
        for entry_class, slots in enumerate(sets):
            for slot in rules.write_back_set(slots, record.ack_quorum):
                self._residues[slot] |= 1 << entry_class
        self._forget()

    def _forget(self) -> None:
        """Know nothing but the record: at the beginning, and when it was reread before anything was asked."""
        ensemble_size = self._record.ensemble_size
        self._read_ensemble = self._record.last_fragment.ensemble
        self._write_ensemble = self._read_ensemble
        self._known = 0  # slots that answered the fencing LAC read
        self._answered = 0  # those, and the ones that failed to
        self._highest_lac = int(NO_ENTRY)
        self._lacs = [
            int(NO_ENTRY)
        ] * ensemble_size  # what each slot said, as far as it is beyond what was recovered
        self._start = int(NO_ENTRY)
        self.lac = int(NO_ENTRY)
        self.lap = int(NO_ENTRY)
        self._length = 0
        self._ended_reading = False
        self._entry_id_without_verdict = NO_ENTRY
        # The window: votes per id as masks of slots, and the length found in the entry's header.
        self._window_first = 0
        self._window_last = -1
        self._positive: list[int] = []
        self._negative: list[int] = []
        self._unknown: list[int] = []
        self._lengths: list[int] = []
        self._asked: list[tuple[int, int] | None] = [None] * ensemble_size
        self._told = [-1] * ensemble_size  # each slot's responses cover every id up to here
        # Writing back: acknowledgements of lac + 1 .. lap as masks of slots.
        self._acked: list[int] = []
        self._pending: list[int] = []  # and their lengths
        self._changes: dict[int, tuple[BookieId, ...]] = {}
        self._delayed = 0  # failed slots that nothing has been asked for yet
        self._replacing = 0  # failed slots for which a spare is being looked for
        self._absent = 0  # failed slots without a spare
        self._failed: tuple[BookieId, ...] = ()
        self._silent = 0  # slots whose last response was no vote
        # An end is judged with care: silent bookies are waited for once, contradicted negatives asked for once more.
        self._waiting = False
        self._waited = False
        self._asked_again = False

    # --- announcing ----------------------------------------------------------------------------------------------

    def recover(self, ignored_lacs: Collection[BookieId] = ()) -> None:
        """Begin.

        Args:
            ignored_lacs: bookies whose LAC is ignored: an operator's way out where a LAC contradicts the entries.

        Effects:
            RecoveryClosed at once when the record is CLOSED; WriteMetadata with IN_RECOVERY when it is OPEN;
            fencing LAC reads when another recoverer announced it already.

        Source: BookKeeper protocol: "To recover a ledger, we first update the state in the metadata to IN_RECOVERY".
        """
        self._expect(RecoveryStatus.NEW)
        self._ignored_lacs = frozenset(ignored_lacs)
        self._begin()

    def _begin(self) -> None:
        if self._record.state is LedgerState.CLOSED:
            self._accept()
        elif self._record.state is LedgerState.OPEN:
            self.status = RecoveryStatus.ANNOUNCING
            self.out.append(WriteMetadata(self._record.in_recovery(), self._version))
        else:
            self._fence()

    def _accept(self) -> None:
        self.status = RecoveryStatus.ENDED
        self.out.append(RecoveryClosed(self._record, self._version, accepted=True))

    def metadata_written(self, record: LedgerMetadata, version: int) -> None:
        """The compare-and-swap that was asked for succeeded.

        Effects:
            fencing LAC reads after the announcement; RecoveryClosed after the close.
        """
        self._record, self._version = record, version
        if self.status is RecoveryStatus.ANNOUNCING:
            self._fence()
        elif self.status is RecoveryStatus.CLOSING:
            self.status = RecoveryStatus.ENDED
            self.out.append(RecoveryClosed(record, version, accepted=False))
        else:
            self._expect(RecoveryStatus.READING)

    def metadata_conflicted(self) -> None:
        """The record had another version; or the response was lost, and it may have been written.

        Effects:
            RereadMetadata: a conflict may be this client's own earlier success.
        """
        self._expect(RecoveryStatus.ANNOUNCING, RecoveryStatus.READING, RecoveryStatus.CLOSING)
        self.out.append(RereadMetadata())

    def metadata_read(self, record: LedgerMetadata | None, version: int) -> None:
        """What the store holds now; None when the ledger was deleted.

        Effects:
            CLOSED: RecoveryClosed with that end, whichever client set it. Announcing: again, or on with the fence.
            Closing: again on the new record; RecoveryInconclusive if its last fragment is another one.
        """
        self._expect(RecoveryStatus.ANNOUNCING, RecoveryStatus.READING, RecoveryStatus.CLOSING)
        if record is None:
            self._fail(Answer.NO_LEDGER, ())
            return
        moved = record.last_fragment != self._record.last_fragment
        was_announced = self._record.state is LedgerState.IN_RECOVERY
        self._record, self._version = record, version
        if record.state is LedgerState.CLOSED:
            self._accept()
        elif record.state is LedgerState.OPEN and was_announced:
            self._fail(Answer.ERROR, ())  # never back to OPEN
        elif self.status is RecoveryStatus.ANNOUNCING:
            self._begin()
        elif moved:
            # What was fenced is no longer the last fragment: the responses so far do not count for the new one.
            self._stop_inconclusive(NO_ENTRY)
        elif self.status is RecoveryStatus.CLOSING:
            self._close()

    # --- phase 1: fence and find the LAC ---------------------------------------------------------------------------

    def _fence(self) -> None:
        self._forget()
        self.status = RecoveryStatus.FENCING
        self.out += [SendLacRead(Slot(s), bookie, fence=True) for s, bookie in enumerate(self._read_ensemble)]

    def fence_answered(self, slot: int, answer: Answer, last_add_confirmed: int) -> None:
        """One bookie of the last fragment answered the fencing LAC read, or did not.

        A response that comes after coverage moves nothing, but its LAC may contradict an end that is judged later.

        Args:
            last_add_confirmed: the highest LAC it knows, `NO_ENTRY` if none.

        Effects:
            at coverage the first window of recovery reads; all answered without it: RecoveryInconclusive; as
            `read_answered` if its response was waited for.

        Source: BookKeeper protocol: "Once we receive a response from at least (Qw-Qa)+1 bookies from each write
        quorum in the ensemble, the ledger is fenced".
        """
        reading = self.status is RecoveryStatus.READING and not self._ended_reading
        if not reading and self.status is not RecoveryStatus.FENCING:
            return
        if answer is Answer.UNAUTHORISED:
            self._fail(answer, (self._read_ensemble[slot],))
            return
        self._answered |= 1 << slot
        if self._rules.counts_as_known(answer):
            self._known |= 1 << slot
            if self._read_ensemble[slot] not in self._ignored_lacs:
                self._lacs[slot] = last_add_confirmed
        if reading:
            if self._waiting:
                self._judge()
            return
        self._highest_lac = max(self._lacs)
        record = self._record
        if self._rules.covers(self._known, record.ensemble_size, record.write_quorum, record.ack_quorum):
            self._start = self._rules.recovery_start(self._highest_lac, record.last_fragment.first_entry)
            self.lac = self.lap = self._start
            self.status = RecoveryStatus.READING
            self._open_window()
        elif self._answered == (1 << record.ensemble_size) - 1:
            self._silent = self._answered & ~self._known
            self._stop_inconclusive(NO_ENTRY)

    # --- phase 2: read forward -------------------------------------------------------------------------------------

    def _open_window(self) -> None:
        count = self._window_entries
        self._window_first = self.lap + 1
        self._window_last = self.lap + count
        self._positive = [0] * count
        self._negative = [0] * count
        self._unknown = [0] * count
        self._lengths = [0] * count
        self._told = [self.lap] * self._record.ensemble_size
        self._ask()

    def _ask(self) -> None:
        """Ask every idle slot for the ids that its responses do not cover yet, from the first id without a verdict."""
        originals = self._rules.recovery_reads_from_original_ensemble()
        ensemble = self._read_ensemble if originals else self._write_ensemble
        for slot, bookie in enumerate(ensemble):
            if self._asked[slot] is None and self._told[slot] < self._window_last:
                first = max(self._told[slot], self.lap) + 1
                self._asked[slot] = (first, self._window_last)
                fence = self._rules.recovery_read_fences()
                self.out.append(
                    SendRecoveryRead(
                        Slot(slot), bookie, EntryId(first), EntryId(self._window_last), fence=fence
                    )
                )

    def read_answered(
        self,
        slot: int,
        answer: Answer,
        entries: Mapping[int, int],
        vouched_through: int,
        unknown: Sequence[tuple[int, int]],
    ) -> None:
        """One bookie answered its recovery read, or did not.

        Args:
            entries: id -> length in its header, of each entry that came with a valid digest, by ascending id.
            vouched_through: each id asked for up to here that did not come is not there; the response does not cover
                later ids.
            unknown: ranges for which the response is inconclusive, or whose entry came with a wrong digest.

        Effects:
            recovery adds for entries that became recoverable; further reads; WaitForAnswers before the first end, if
            a bookie is still silent; the close when reading has ended and everything is confirmed;
            RecoveryInconclusive when the next id got all its votes and no verdict, or a negative one that a LAC
            contradicts.

        Source: Vanlightly's guide, "Recovery Phase 2": "Each recovery read determines whether an entry is committed
        or uncommitted".
        """
        if self.status is not RecoveryStatus.READING or self._ended_reading:
            return
        asked = self._asked[slot]
        self._asked[slot] = None
        if asked is None:
            return
        if answer is Answer.UNAUTHORISED:
            self._fail(answer, (self._read_ensemble[slot],))
            return
        self._count_votes(slot, asked, answer, entries, vouched_through, unknown)
        self._judge()

    def _count_votes(
        self,
        slot: int,
        asked: tuple[int, int],
        answer: Answer,
        entries: Mapping[int, int],
        vouched_through: int,
        unknown: Sequence[tuple[int, int]],
    ) -> None:
        first, last = asked
        bit = 1 << slot
        base, window_last = self._window_first, self._window_last
        positive, lengths = self._positive, self._lengths
        rules = self._rules
        if answer is Answer.OK:
            size, write_quorum = self._record.ensemble_size, self._record.write_quorum
            residues = residues_of_slot(slot, size, write_quorum)
            through = told_through(first, last, tuple(entries), vouched_through, unknown, residues, size)
            absent_is_negative = rules.counts_as_negative(Answer.NO_ENTRY)
        else:
            through = last
            absent_is_negative = rules.counts_as_negative(answer)
        for entry_id, length in entries.items():
            if base <= entry_id <= window_last and first <= entry_id <= last:
                if not positive[entry_id - base]:
                    lengths[entry_id - base] = length
                positive[entry_id - base] |= bit
        for lower, upper in unknown:
            for i in range(max(lower, base) - base, min(upper, window_last) - base + 1):
                if not positive[i] & bit:
                    self._unknown[i] |= bit
        if through < first:
            # A response that does not cover the first id asked for: waiting for more would never end.
            through, absent_is_negative = last, False
        votes = self._negative if absent_is_negative else self._unknown
        for i in range(max(first, base) - base, min(through, window_last) - base + 1):
            if not (positive[i] | self._unknown[i]) & bit:
                votes[i] |= bit
        self._told[slot] = max(self._told[slot], min(through, window_last))

    def _judge(self) -> None:
        """Give verdicts from the first id without one, in order, as far as the votes reach."""
        record, rules, base = self._record, self._rules, self._window_first
        positives_needed = rules.positive_votes_needed(record.write_quorum, record.ack_quorum)
        negatives_needed = rules.negative_votes_needed(record.write_quorum, record.ack_quorum)
        ensemble_size = record.ensemble_size
        entry_id = self.lap + 1
        recovered_before = self.lap
        denied = False
        while entry_id <= self._window_last:
            i = entry_id - base
            asked_of = self._masks[entry_id % ensemble_size]
            if (self._positive[i] & asked_of).bit_count() >= positives_needed:
                self._length = self._lengths[i]
                entry_id += 1
                continue
            if (self._negative[i] & asked_of).bit_count() >= negatives_needed:
                denied = True
            elif (self._positive[i] | self._negative[i] | self._unknown[i]) & asked_of == asked_of:
                self._silent = self._unknown[i] & asked_of
                self._entry_id_without_verdict = EntryId(entry_id)
            break
        if entry_id - 1 > recovered_before:
            self._write_back(entry_id - 1)
        if self.status is not RecoveryStatus.READING:
            return
        if denied:
            self._end_reading(self.lap + 1)
        elif self._entry_id_without_verdict != NO_ENTRY:
            self._stop_inconclusive(self._entry_id_without_verdict)
        else:
            self._go_on()

    def _end_reading(self, entry_id: int) -> None:
        """Enough bookies say that `entry_id` is not there: the end, unless another bookie has it.

        Bookies whose directory was put back deny what they acknowledged. The one that still has it may only be slow,
        and a LAC may prove it: neither costs more than one short wait. A LAC may be wrong as well (a Java
        client's recovery sends bookies a LAC beyond the end that another recovery then sets): a person must say so.
        """
        if any(lac >= entry_id for lac in self._lacs):
            if self._asked_again:
                self._stop_contradicted(entry_id, self._silent_about(entry_id))
            else:
                self._asked_again = True
                self._open_window()
        elif not self._waited and (silent := self._silent_about(entry_id)):
            if not self._waiting:
                self._waiting = True
                self.out.append(WaitForAnswers(silent))
        else:
            self._waiting = False
            self._ended_reading = True
            self._go_on()

    def _silent_about(self, entry_id: int) -> tuple[BookieId, ...]:
        """The bookies that have not responded about this entry; after another round, the inconclusive ones as well.

        A bookie that holds no copy of this entry is asked too: it has answered the fence before, with its LAC.
        """
        cannot_tell = self._unknown[entry_id - self._window_first] if self._asked_again else 0
        return tuple(
            bookie
            for slot, bookie in enumerate(self._read_ensemble)
            if self._told[slot] < entry_id or cannot_tell >> slot & 1
        )

    def waited(self) -> None:
        """The time of `WaitForAnswers` is over, or none of the bookies that it names is worth waiting for.

        Effects:
            as `read_answered`.
        """
        if self.status is not RecoveryStatus.READING or not self._waiting:
            return
        self._waiting, self._waited = False, True
        self._judge()

    def _go_on(self) -> None:
        """Read further, or close."""
        if self._ended_reading:
            if self.lac == self.lap or not self._rules.recovery_waits_for_its_adds():
                self._measure()
        elif self._pending and self._pending[-1] - self._pending[0] > self._window_bytes:
            return  # goes on when some of it is confirmed
        elif self.lap < self._window_last:
            self._ask()
        elif self.lap - self.lac < self._window_entries:
            self._open_window()

    # --- phase 2: write back ---------------------------------------------------------------------------------------

    def _write_back(self, last: int) -> None:
        first = self.lap + 1
        self.lap = last
        self._acked.extend([0] * (last - first + 1))
        self._pending.extend(self._lengths[first - self._window_first : last - self._window_first + 1])
        for slot in range(self._record.ensemble_size):
            if not (self._delayed | self._replacing | self._absent) >> slot & 1:
                self._send_adds(slot, first)
        if self._absent and not self._can_still_confirm():
            return
        if self._delayed:
            self._find_replacements()

    def _send_adds(self, slot: int, first: int) -> None:
        period, residues = self._record.ensemble_size, self._residues[slot]
        if residues == (1 << period) - 1:
            period, residues = 1, 1
        elif not any(
            residues >> entry_id % period & 1 for entry_id in range(first, min(self.lap, first + period) + 1)
        ):
            return
        lac = self._rules.recovery_header_lac(self._start, self.lac)
        self.out.append(
            SendRecoveryAdds(
                Slot(slot),
                self._write_ensemble[slot],
                EntryId(first),
                EntryId(self.lap),
                period,
                residues,
                EntryId(lac),
            )
        )

    def adds_answered(self, slot: int, bookie: BookieId, first: int, last: int, answer: Answer) -> None:
        """One bookie answered a `SendRecoveryAdds`, or did not.

        Args:
            slot: as in the effect, like `bookie`, `first` and `last`. A response from a bookie that is no longer
                at its slot changes nothing.

        Effects:
            the next window or the close when entries became confirmed; FindReplacements when the bookie failed.

        Source: BookKeeper protocol: "replicating all entries it sees to the entire write quorum".
        """
        if self.status is not RecoveryStatus.READING or self._write_ensemble[slot] != bookie:
            return
        if answer is Answer.UNAUTHORISED:
            self._fail(answer, (bookie,))
        elif answer is Answer.OK:
            self._count_acks(slot, first, last)
        elif not (self._delayed | self._replacing | self._absent) >> slot & 1:
            self._delayed |= 1 << slot
            # With nothing unconfirmed the failure can wait for the next entries, which may never come.
            if self.lap > self.lac:
                self._find_replacements()

    def _count_acks(self, slot: int, first: int, last: int) -> None:
        period, residues, bit = self._record.ensemble_size, self._residues[slot], 1 << slot
        head = self.lac + 1
        for entry_id in range(max(first, head), min(last, self.lap) + 1):
            if residues >> entry_id % period & 1:
                self._acked[entry_id - head] |= bit
        self._confirm()

    def _confirm(self) -> None:
        confirms, quorum, size = self._rules.confirms, self._record.ack_quorum, self._record.ensemble_size
        head = self.lac + 1
        done = 0
        for acked in self._acked:
            if not confirms(acked, self._masks[(head + done) % size], quorum):
                break
            done += 1
        if done:
            del self._acked[:done], self._pending[:done]
            self.lac += done
            self._go_on()

    # --- bookies that fail while writing back ------------------------------------------------------------------------

    def _find_replacements(self) -> None:
        if self._replacing or not self._delayed:
            return
        self._replacing, self._delayed = self._delayed, 0
        slots = [slot for slot in range(self._record.ensemble_size) if self._replacing >> slot & 1]
        self._failed += tuple(self._write_ensemble[slot] for slot in slots)
        self.out.append(
            FindReplacements(tuple(Slot(slot) for slot in slots), self._write_ensemble, self._failed)
        )

    def replacements_found(self, replacements: Mapping[Slot, BookieId]) -> None:
        """The spares for the slots of the last `FindReplacements`; a slot left out has none and becomes absent.

        Effects:
            the unconfirmed entries again, to the new bookies; RecoveryFailed when some write set can no longer
            reach its ack quorum.

        Source: BookKeeper protocol, "Writing to the ledger": "by replacing the failed node in the current ensemble".
        The change stays local until the close.
        """
        if self.status is not RecoveryStatus.READING:
            return
        slots, self._replacing = self._replacing, 0
        changed = 0
        ensemble = list(self._write_ensemble)
        for slot, bookie in replacements.items():
            if slots >> slot & 1:
                ensemble[slot] = bookie
                changed |= 1 << slot
        self._absent |= slots & ~changed
        if changed:
            self._write_ensemble = tuple(ensemble)
            self._change(changed)
        if self._can_still_confirm():
            self._find_replacements()
            self._confirm()

    def _change(self, changed: int) -> None:
        first = self._rules.new_fragment_start(self.lac, self.lap)
        self._changes[first] = self._write_ensemble
        unset = self._rules.acks_to_unset(changed)
        self._acked = [acked & ~unset for acked in self._acked]
        if self._rules.publish_change_during_recovery():
            self._changes.clear()
            self.out.append(
                WriteMetadata(self._record.with_ensemble(first, self._write_ensemble), self._version)
            )
        if self.lap > self.lac:
            for slot in range(self._record.ensemble_size):
                if changed >> slot & 1:
                    self._send_adds(slot, self.lac + 1)

    def _can_still_confirm(self) -> bool:
        """Whether every entry on its way can still reach its ack quorum; if not, the recovery has failed."""
        rules, quorum, size = self._rules, self._record.ack_quorum, self._record.ensemble_size
        for i, acked in enumerate(self._acked):
            mask = self._masks[(self.lac + 1 + i) % size]
            if not rules.can_still_confirm(self._absent & ~acked, mask, quorum):
                absent = tuple(b for slot, b in enumerate(self._write_ensemble) if self._absent >> slot & 1)
                self._fail(Answer.READ_ONLY, absent)
                return False
        return True

    # --- phase 3: close ----------------------------------------------------------------------------------------------

    def _measure(self) -> None:
        """The length is the one in the last entry's header; if nothing was recovered that entry has to be read."""
        if self.lap == self._start and self.lap != NO_ENTRY:
            self.status = RecoveryStatus.MEASURING
            self.out.append(FindLength(EntryId(self.lap)))
        else:
            self._close()

    def length_found(self, length: int) -> None:
        """The length in the header of the entry that `FindLength` asked for."""
        self._expect(RecoveryStatus.MEASURING)
        self._length = length
        self._close()

    def length_unavailable(self, silent: Sequence[BookieId]) -> None:
        """No bookie could serve the last entry now.

        Args:
            silent: those without a conclusive response; empty when each reports that the entry is not there.

        Effects:
            FindLength once more if every bookie denies it; else RecoveryInconclusive: the entry was acknowledged, so
            it is somewhere, or the LAC that says so is wrong.
        """
        self._expect(RecoveryStatus.MEASURING)
        if silent:
            self.status = RecoveryStatus.ENDED
            self.out.append(RecoveryInconclusive(EntryId(self.lap), tuple(silent)))
        elif self._asked_again:
            self._stop_contradicted(self.lap, ())
        else:
            self._asked_again = True
            self.out.append(FindLength(EntryId(self.lap)))

    def _close(self) -> None:
        self.status = RecoveryStatus.CLOSING
        last = self._rules.recovery_end(self.lap, self._start)
        # A change that was made when everything was confirmed already holds no entry.
        changes = {first: ensemble for first, ensemble in self._changes.items() if first <= last}
        closed = self._record.closed(last, self._length, changes)
        self.out.append(WriteMetadata(closed, self._version))

    # --- ends ----------------------------------------------------------------------------------------------------------

    def _stop_inconclusive(self, entry_id: EntryId) -> None:
        self.status = RecoveryStatus.ENDED
        silent = tuple(b for slot, b in enumerate(self._read_ensemble) if self._silent >> slot & 1)
        self.out.append(RecoveryInconclusive(entry_id, silent))

    def _stop_contradicted(self, entry_id: int, silent: Sequence[BookieId]) -> None:
        told = [
            (bookie, EntryId(lac))
            for bookie, lac in zip(self._read_ensemble, self._lacs, strict=True)
            if lac >= entry_id
        ]
        self.status = RecoveryStatus.ENDED
        self.out.append(RecoveryInconclusive(EntryId(entry_id), tuple(silent), tuple(told)))

    def _fail(self, answer: Answer, bookies: tuple[BookieId, ...]) -> None:
        self.status = RecoveryStatus.ENDED
        self.out.append(RecoveryFailed(answer, bookies))

    def _expect(self, *statuses: RecoveryStatus) -> None:
        if self.status not in statuses:
            msg = f"recovery of ledger {self._record.ledger_id}: not possible while {self.status.value}"
            raise MisuseError(msg, ledger_id=self._record.ledger_id)

    def check(self) -> None:
        """Assert every invariant of the state. For tests and the checker; drivers never call it."""
        record = self._record
        record.checked()
        assert self.lac <= self.lap, "confirmed beyond what was written back"
        assert len(self._acked) == len(self._pending) == self.lap - self.lac, (
            "one mask for each unconfirmed entry"
        )
        assert not self._delayed & self._replacing, "a slot is in one list of failures"
        assert not self._absent & (self._delayed | self._replacing), "an absent slot is not looked for again"
        assert len(set(self._write_ensemble)) == len(self._write_ensemble), "a bookie has one slot"
        firsts = list(self._changes)
        assert firsts == sorted(firsts), "local changes start at ascending entries"
        if self.status in {RecoveryStatus.READING, RecoveryStatus.MEASURING, RecoveryStatus.CLOSING}:
            assert record.state is LedgerState.IN_RECOVERY, "reading forward is announced"
            assert self._rules.covers(
                self._known, record.ensemble_size, record.write_quorum, record.ack_quorum
            )
            assert self._start >= record.last_fragment.first_entry - 1, "I6: never below the last fragment"
            assert all(self._start < first <= self.lap + 1 for first in firsts), (
                "changes hold what is written back"
            )
        if self.status is RecoveryStatus.READING:
            for i in range(self._window_last - self._window_first + 1):
                assert not self._negative[i] & self._positive[i], "a slot has one vote"
                assert not self._unknown[i] & self._negative[i], "unknown is never negative"
