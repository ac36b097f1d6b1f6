"""What is known of all ledgers besides their entries, and how it gets into the journal.

State is live until superseded: the newest record of a ledger is the whole of its state, wherever it lies. A deleted ledger
has a tombstone, which shrinks at its time (`tombstones.py`), and goes when nothing is left that it keeps dead.
Source: `docs/formats/segment.md`, "Ledger state", "Deleted ledgers"; docs/decisions/028-state-is-live.md.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from crc32c import crc32c

from quire.core.bookie.ledger import LedgerFacts
from quire.storage.formats.record_bodies import Suspicion, encode_suspicion, encode_tombstones
from quire.storage.formats.segment_format import ALL_LEDGERS, SegmentRecordKind
from quire.storage.formats.state_format import StoredLedgerState, encode_state
from quire.storage.journal import Journal
from quire.storage.segments.segment import Segment
from quire.storage.segments.segment_files import Space
from quire.storage.slices import LOOKED_AT, Slice
from quire.storage.stored_ledger import StoredLedger

TOMBSTONES_MAX: Final = 512
"""So many shrunk tombstones in a record: 8 KiB, and 16 KiB of a footer."""
DUE_MS: Final = 1 << 16
"""Tombstones that are to shrink within about a minute are noted together, 8 bytes each."""


class States:
    """All ledgers of a bookie.

    Args:
        ledgers: whatever a start found, deleted ledgers and shrunk tombstones too.
        suspicion, suspicion_sequence: what may have been lost without a name, and the segment that says so.
        journal: where states go.
        segments: those in use, by sequence.
        unsealed: those of them that are not sealed.

    Attributes:
        ledgers: those that are not deleted.
        tombstones: those that are, until their tombstone shrinks.
        shrunk: shrunk tombstones: ledger to the sealed segments in use that hold something that it keeps dead. All of it
            was put before now, so no LSN is kept.
        due: by their time over `DUE_MS`, the ledgers whose tombstones are to shrink; some may have changed since.
        suspicion: what may have been lost without a name.
        limbo: ledgers, not deleted, that are in doubt, in the order in which they came to be.
        doubts, doubts_all: ledgers that lost something while the process runs; no negatives for them until a start
            has looked again and written it down.
    """

    def __init__(
        self,
        ledgers: Mapping[int, StoredLedger],
        suspicion: Suspicion,
        suspicion_sequence: int,
        journal: Journal,
        segments: Mapping[int, Segment],
        unsealed: Mapping[int, Segment],
    ) -> None:
        self.ledgers = dict(ledgers)
        self.tombstones: dict[int, StoredLedger] = {}
        self.shrunk: dict[int, int] = {}
        self.due: dict[int, array[int]] = {}
        # Ledgers of which nothing is here but kept records, and sealed segments with some: a later deletion counts on.
        self._only_kept: dict[int, int] = {}
        self.suspicion = suspicion
        self._suspicion_sequence = suspicion_sequence
        self._journal = journal
        self._unsealed = unsealed
        self.limbo: dict[int, None] = {}
        self.doubts: set[int] = set()
        self.doubts_all = False
        for segment in segments.values():
            if segment.trailer is not None:
                self.hold(segment.contents.others)  # entries were counted with the directory
        self._sort_out()

    def _sort_out(self) -> None:
        """Deleted ledgers go where they belong; tombstones that keep nothing dead go."""
        everything, self.ledgers = self.ledgers, {}
        for ledger_id, ledger in everything.items():
            if ledger.shrunk:
                if ledger.holders or self._held_unsealed(ledger_id):
                    self.shrunk[ledger_id] = ledger.holders
            elif ledger.deleted:
                self.tombstones[ledger_id] = ledger
                self.note_due(ledger_id, ledger)
            else:
                self.ledgers[ledger_id] = ledger

    # --- ledgers ------------------------------------------------------------------------------------------------------

    def get(self, ledger_id: int) -> StoredLedger | None:
        """A ledger of which more than a shrunk tombstone is here."""
        return self.ledgers.get(ledger_id) or self.tombstones.get(ledger_id)

    def new(self, ledger_id: int) -> StoredLedger:
        """A ledger of which no more is here than a shrunk tombstone; for `place` when a record of it was taken."""
        ledger = StoredLedger()
        holders = self.shrunk.get(ledger_id)
        if holders is None:
            ledger.holders = self._only_kept.get(ledger_id, 0)
        else:
            ledger.holders = holders
            ledger.dead_through = self._journal.last_lsn
        return ledger

    def place(self, ledger_id: int, ledger: StoredLedger) -> None:
        """Take a ledger up among the living or the deleted, whatever it was before."""
        self.shrunk.pop(ledger_id, None)
        self._only_kept.pop(ledger_id, None)
        if ledger.deleted:
            self.ledgers.pop(ledger_id, None)
            self.tombstones[ledger_id] = ledger
            self.note_due(ledger_id, ledger)
        else:
            self.tombstones.pop(ledger_id, None)
            self.ledgers[ledger_id] = ledger

    def note_due(self, ledger_id: int, ledger: StoredLedger) -> None:
        """A tombstone is to be looked at when its time has passed."""
        time = facts_of(ledger).deleted_until_ms // DUE_MS
        some = self.due.get(time)
        if some is None:
            some = self.due[time] = array("q")
        some.append(ledger_id)

    def with_entries(self, ledger_id: int) -> StoredLedger | None:
        """The ledger of entries that a footer names, for `add_directory`, which counts that a sealed segment holds it.

        Returns:
            A new one if it is not known; None if the entries are dead for sure: it is counted here then.
        """
        ledger = self.get(ledger_id)
        if ledger is None and ledger_id in self.shrunk:
            self.shrunk[ledger_id] += 1
        elif ledger is None:
            ledger = self.new(ledger_id)
            self.place(ledger_id, ledger)
        return ledger

    def revive(self, ledger_id: int, space: Space) -> StoredLedger | None:
        """The ledger of entries that are about to be put; None if it is not known.

        Raises:
            StorageError: what is dead of it cannot be distinguished from them: that cannot be journaled.
        """
        if ledger_id in self.shrunk:
            ledger = self.new(ledger_id)
            self.put(SegmentRecordKind.LEDGER_STATE, ledger_id, ledger, space)
            self.place(ledger_id, ledger)
            return ledger
        return self.tombstones.get(ledger_id)

    # --- what keeps tombstones ------------------------------------------------------------------------------------------

    def hold(self, ledger_ids: Iterable[int]) -> None:
        """A sealed segment holds something of these ledgers, other than entries."""
        for ledger_id in ledger_ids:
            ledger = self.ledgers.get(ledger_id) or self.tombstones.get(ledger_id)
            if ledger is not None:
                ledger.holders += 1
            elif ledger_id in self.shrunk:
                self.shrunk[ledger_id] += 1
            else:
                self._only_kept[ledger_id] = self._only_kept.get(ledger_id, 0) + 1

    def release(self, ledger_ids: Iterable[int]) -> None:
        """A segment that was counted is gone, or is not sealed any more: tombstones that keep nothing dead now go."""
        for ledger_id in ledger_ids:
            ledger = self.ledgers.get(ledger_id) or self.tombstones.get(ledger_id)
            if ledger is not None:
                ledger.holders -= 1
                continue
            counts = self.shrunk if ledger_id in self.shrunk else self._only_kept
            counts[ledger_id] -= 1
            if not counts[ledger_id] and (counts is self._only_kept or not self._held_unsealed(ledger_id)):
                del counts[ledger_id]

    def keeps_dead(self, ledger_id: int, ledger: StoredLedger) -> bool:
        """Whether something of a deleted ledger is in a segment that its tombstone keeps dead."""
        return ledger.holders > 0 or self._held_unsealed(ledger_id)

    def _held_unsealed(self, ledger_id: int) -> bool:
        return any(segment.holds(ledger_id) for segment in self._unsealed.values())

    # --- putting --------------------------------------------------------------------------------------------------------

    def put(
        self, kind: SegmentRecordKind, ledger_id: int, ledger: StoredLedger, space: Space = Space.STATE
    ) -> None:
        """Journal a ledger's state as it is now. Raises StorageError when it cannot be taken."""
        body = encode_state(stored_state(ledger))
        of_stream = ledger.facts is not None and ledger.facts.term > 0
        segment, _, lsn = self._journal.put(kind, ledger_id, body, crc32c(body), space, of_stream=of_stream)
        segment.keep_state(ledger_id, lsn, body)
        ledger.state_lsn, ledger.state_sequence = lsn, segment.sequence

    def put_shrunk(self, ledger_ids: array[int], space: Space) -> None:
        """Journal shrunk tombstones in one record. Raises StorageError when it cannot be taken.

        All that is here of these ledgers was put before now, and is dead.
        """
        through = self._journal.last_lsn
        body = encode_tombstones([(ledger_id, through) for ledger_id in ledger_ids])
        segment, _, lsn = self._journal.put(
            SegmentRecordKind.TOMBSTONES, ALL_LEDGERS, body, crc32c(body), space
        )
        segment.keep_tombstones(ledger_ids, lsn, through)

    def put_suspicion(self, suspicion: Suspicion, space: Space = Space.STATE) -> None:
        """Journal what is suspected from now on. Raises StorageError when it cannot be taken."""
        body = encode_suspicion(suspicion)
        segment, _, lsn = self._journal.put(
            SegmentRecordKind.SUSPICION, ALL_LEDGERS, body, crc32c(body), space
        )
        segment.keep_state(ALL_LEDGERS, lsn, body)
        self.suspicion, self._suspicion_sequence = suspicion, segment.sequence

    # --- carrying over --------------------------------------------------------------------------------------------------

    def newest_in(self, segment: Segment) -> Iterator[int]:
        """How many states a sealed segment holds that are the newest of their ledger, in pieces to be added up."""
        sequence = segment.sequence
        for ledger_ids in _some(segment.contents.stated):
            ledgers = map(self.get, ledger_ids)
            yield sum(ledger is not None and ledger.state_sequence == sequence for ledger in ledgers)

    def carry_over(self, segments: Sequence[Segment], part: Slice) -> Iterator[None]:
        """Journal anew whatever only these segments hold, in slices. Raises StorageError when it cannot be taken."""
        for segment in segments:
            yield from self._carry_states(segment, segment.contents.stated, part)
            yield from self._carry_shrunk(segment, part)
        if any(segment.sequence == self._suspicion_sequence for segment in segments):
            self.put_suspicion(self.suspicion, Space.RETIREMENT)

    def _carry_states(self, segment: Segment, ledger_ids: array[int], part: Slice) -> Iterator[None]:
        for some in _some(ledger_ids):
            for ledger_id in some:
                ledger = self.get(ledger_id)
                if ledger is not None and ledger.state_sequence == segment.sequence:
                    self.put(SegmentRecordKind.LEDGER_STATE, ledger_id, ledger, Space.RETIREMENT)
                    if part.over:
                        yield
            if part.over:
                yield

    def _carry_shrunk(self, segment: Segment, part: Slice) -> Iterator[None]:
        for some in _some(segment.contents.shrunk, TOMBSTONES_MAX):
            shrunk = array("q", (ledger_id for ledger_id in some if ledger_id in self.shrunk))
            if shrunk:
                self.put_shrunk(shrunk, Space.RETIREMENT)
            # With entries and without facts a ledger's state is one too.
            yield from self._carry_states(segment, some, part)

    # --- doubts ---------------------------------------------------------------------------------------------------------

    def in_doubt(self, ledger_id: int) -> bool:
        """Something of it may have been lost since the start."""
        return self.doubts_all or ledger_id in self.doubts

    def note_limbo(self, ledger_id: int, ledger: StoredLedger) -> None:
        """A ledger's facts have changed."""
        if ledger.facts is not None and ledger.facts.limbo and not ledger.deleted:
            self.limbo[ledger_id] = None
        else:
            self.limbo.pop(ledger_id, None)

    def note_all_limbo(self) -> None:
        """The start has written down what may be lost."""
        for ledger_id, ledger in self.ledgers.items():
            self.note_limbo(ledger_id, ledger)

    def suspects(self, ledger_id: int) -> bool:
        """Whether "not here" must become "unknown" for this ledger."""
        if self._journal.failure is not None or self.in_doubt(ledger_id):
            return True
        ledger = self.get(ledger_id)
        if ledger is None or ledger.facts is None:
            return self.suspicion.unknown
        return ledger.facts.limbo


def _some(ledger_ids: array[int], count: int = LOOKED_AT) -> Iterator[array[int]]:
    return (ledger_ids[at : at + count] for at in range(0, len(ledger_ids), count))


def stored_state(ledger: StoredLedger) -> StoredLedgerState:
    """All of a ledger's state as it is stored."""
    return StoredLedgerState(ledger.facts, ledger.dead_through, dead_ranges=ledger.dead_ranges)


def facts_of(ledger: StoredLedger) -> LedgerFacts:
    """The facts of a ledger that has some."""
    assert ledger.facts is not None
    return ledger.facts
