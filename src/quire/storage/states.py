"""What is known of all ledgers besides their entries, and how it gets into the journal.

State is live until superseded: the newest record of a ledger is the whole of its state, wherever it lies. A deleted ledger
has a tombstone, which shrinks at its time (`tombstones.py`), and goes when nothing is left that it keeps dead.
`StoredLedger` has the rest of one ledger: where its entries are, but none of the entries.

Source: `docs/formats/segment.md`, "Ledger state", "Deleted ledgers"; docs/decisions/028-state-is-live.md.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from quire.core.bookie.ledger import LedgerFacts
from quire.storage.formats.footer_format import DirectoryEntry
from quire.storage.formats.record_bodies import UnnamedLimbo, encode_tombstones, encode_unnamed_limbo
from quire.storage.formats.segment_format import ALL_LEDGERS, SegmentRecordKind
from quire.storage.formats.state_format import DeadRange, StoredLedgerState, encode_state
from quire.storage.journal import Journal
from quire.storage.segments.segment import Segment
from quire.storage.segments.segment_files import Space
from quire.storage.slices import LEDGERS_A_STEP, Slice

SPAN_FIELDS = 6
"""Sequence, first, last, offset and number of the rows, checksum, and the highest last id of this span and those before."""
_FIRST, _LAST, _REACH = 1, 2, 5
_NONE = array("q")
"""Shared by all ledgers that no sealed segment holds: most of many are like that. Never changed."""


class Span(NamedTuple):
    """A sealed segment that holds entries of the ledger, and where its rows are in the footer."""

    sequence: int
    first: int
    last: int
    row_index: int
    rows: int
    checksum: int
    dense: bool


def span_of(sequence: int, entry: DirectoryEntry) -> Span:
    """What the directory of a sealed segment says of a ledger."""
    dense = bool(entry.flags & 1)
    return Span(sequence, entry.first, entry.last, entry.row_index, entry.rows, entry.checksum, dense)


class StoredLedger:
    """What storage keeps in memory of one ledger.

    Attributes:
        facts: all that is durably known besides entries; None if only entries were put, or only a shrunk tombstone is
            left.
        state_lsn: LSN of its newest state record, 0 if none.
        state_sequence: the segment where that lies.
        dead_through: entries with an LSN up to this are dead.
        dead_ranges: what else is dead, by first id.
        last: highest entry id that is held, -1 if none.
        spans: sealed segments that hold its entries, packed, by first id.
        holders: sealed segments in use with something of it, dead or not, that a lost tombstone would bring back.
    """

    __slots__ = (
        "dead_ranges", "dead_through", "facts", "holders", "last", "spans", "state_lsn", "state_sequence",
    )  # fmt: skip

    def __init__(self) -> None:
        self.facts: LedgerFacts | None = None
        self.state_lsn = 0
        self.state_sequence = 0
        self.dead_through = 0
        self.dead_ranges: tuple[DeadRange, ...] = ()
        self.last = -1
        self.spans = _NONE
        self.holders = 0

    @property
    def deleted(self) -> bool:
        """It is deleted, and its tombstone still has fence and key."""
        return self.facts is not None and bool(self.facts.deleted_until_ms)

    @property
    def shrunk(self) -> bool:
        """Nothing but a shrunk tombstone is left of it."""
        return self.facts is None and self.last < 0 and self.state_lsn > 0

    @property
    def reach(self) -> int:
        """The highest id in any sealed segment, dead or not; -1 if none holds entries of it."""
        return self.spans[-1] if self.spans else -1

    @property
    def partly_dead(self) -> bool:
        """Some of its entries may be dead, so that what a segment holds of it says little of what lives."""
        return bool(self.dead_through or self.dead_ranges)

    def add_span(self, sequence: int, entry: DirectoryEntry) -> None:
        """A sealed segment holds entries of this ledger; `last` is the caller's to set where it is partly dead."""
        if self.spans is _NONE:
            self.spans = array("q")
        spans = self.spans
        fields = array(
            "q",
            (
                sequence,
                entry.first,
                entry.last,
                entry.row_index << 32 | entry.rows,
                entry.checksum << 1 | (entry.flags & 1),
                entry.last,
            ),
        )
        if not spans or entry.first >= spans[-SPAN_FIELDS + _FIRST]:
            spans.extend(fields)  # as nearly always: entries come in the order of their ids
        else:
            at = SPAN_FIELDS * bisect_right(self._column(_FIRST), entry.first)
            spans[at:at] = fields
        self._set_reaches(len(spans) - SPAN_FIELDS if spans[-SPAN_FIELDS] == sequence else 0)
        if not self.partly_dead:
            self.last = max(self.last, entry.last)

    def _set_reaches(self, at: int) -> None:
        """The spans from an index on got another one before them, or lost one."""
        spans = self.spans
        reach = spans[at - 1] if at else -1
        for end in range(at + SPAN_FIELDS - 1, len(spans), SPAN_FIELDS):
            reach = spans[end] = max(reach, spans[end - SPAN_FIELDS + 1 + _LAST])

    def _column(self, field: int) -> memoryview:
        """One field of all spans."""
        return memoryview(self.spans)[field::SPAN_FIELDS]

    def has_span(self, sequence: int) -> bool:
        """Whether a sealed segment is one of those that hold its entries."""
        return sequence in self._column(0) if self.spans else False

    def drop_spans(self) -> list[int]:
        """Forget all entries; returns the segments that held some."""
        sequences = list(self.spans[::SPAN_FIELDS])
        self.spans = _NONE
        self.last = -1
        return sequences

    def drop_span(self, *sequences: int) -> None:
        """Segments are read in another way now, or nothing of the ledger lives there."""
        kept = array("q")
        for at in range(0, len(self.spans), SPAN_FIELDS):
            if self.spans[at] not in sequences:
                kept.extend(self.spans[at : at + SPAN_FIELDS])
        self.spans = kept or _NONE
        self._set_reaches(0)

    def spans_within(self, first: int, last: int) -> Iterator[Span]:
        """The sealed segments that may hold some of first..last, by first id; each is looked for when it is asked for.

        The first is found by bisection: of many segments, those before and after cost nothing.
        """
        spans = self.spans
        if not spans:
            return
        # No span before this one reaches so far.
        begin = SPAN_FIELDS * bisect_left(self._column(_REACH), first)
        for at in range(begin, len(spans), SPAN_FIELDS):
            if spans[at + _FIRST] > last:
                return
            if spans[at + _LAST] >= first:
                yield Span(
                    spans[at],
                    spans[at + _FIRST],
                    spans[at + _LAST],
                    spans[at + 3] >> 32,
                    spans[at + 3] & 0xFFFFFFFF,
                    spans[at + 4] >> 1,
                    bool(spans[at + 4] & 1),
                )


TOMBSTONES_MAX: Final = 512
"""So many shrunk tombstones in a record: 8 KiB, and 16 KiB of a footer."""
DUE_MS: Final = 1 << 16
"""Tombstones that are to shrink within about a minute are noted together, 8 bytes each."""


class States:
    """What storage keeps in memory of all ledgers of a bookie.

    Args:
        ledgers: whatever a start found, deleted ledgers and shrunk tombstones too.
        unnamed_limbo, unnamed_limbo_sequence: what may have been lost without a name, and the segment that says so.
        journal: where states go.
        segments: those in use, by sequence.
        unsealed: those of them that are not sealed.

    Attributes:
        ledgers: those that are not deleted, in no order. All facts would cost a copy each; their ids cost nearly nothing.
        tombstones: those that are, until their tombstone shrinks.
        shrunk: shrunk tombstones: ledger to the sealed segments in use that hold something that it keeps dead. All of it
            was put before now, so no LSN is kept.
        due: by their time over `DUE_MS`, the ledgers whose tombstones are to shrink; some may have changed since.
        unnamed_limbo: what may have been lost without a name.
        limbo: ledgers, not deleted, that are in limbo, in the order in which they came to be.
        unrecorded_limbo, unrecorded_limbo_all: ledgers that lost something while the process runs, or that all may have; no
            negatives for them until a start has looked again and written it down.
    """

    def __init__(
        self,
        ledgers: Mapping[int, StoredLedger],
        unnamed_limbo: UnnamedLimbo,
        unnamed_limbo_sequence: int,
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
        self.unnamed_limbo = unnamed_limbo
        self._unnamed_limbo_sequence = unnamed_limbo_sequence
        self._journal = journal
        self._unsealed = unsealed
        self.limbo: dict[int, None] = {}
        self.unrecorded_limbo: set[int] = set()
        self.unrecorded_limbo_all = False
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
        """A segment that was counted was freed, or is not sealed any more: tombstones that keep nothing dead now go."""
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
        segment, _, lsn = self._journal.put(kind, ledger_id, body, space, of_stream=of_stream)
        segment.keep_state(ledger_id, lsn, body)
        ledger.state_lsn, ledger.state_sequence = lsn, segment.sequence

    def put_shrunk(self, ledger_ids: array[int], space: Space) -> None:
        """Journal shrunk tombstones in one record. Raises StorageError when it cannot be taken.

        All that is here of these ledgers was put before now, and is dead.
        """
        through = self._journal.last_lsn
        body = encode_tombstones([(ledger_id, through) for ledger_id in ledger_ids])
        segment, _, lsn = self._journal.put(SegmentRecordKind.TOMBSTONES, ALL_LEDGERS, body, space)
        segment.keep_tombstones(ledger_ids, lsn, through)

    def put_unnamed_limbo(self, limbo: UnnamedLimbo, space: Space = Space.STATE) -> None:
        """Journal what is in limbo without a name from now on. Raises StorageError when it cannot be taken."""
        body = encode_unnamed_limbo(limbo)
        segment, _, lsn = self._journal.put(SegmentRecordKind.UNNAMED_LIMBO, ALL_LEDGERS, body, space)
        segment.keep_state(ALL_LEDGERS, lsn, body)
        self.unnamed_limbo, self._unnamed_limbo_sequence = limbo, segment.sequence

    # --- relocating --------------------------------------------------------------------------------------------------

    def newest_in(self, segment: Segment) -> Iterator[int]:
        """How many states a sealed segment holds that are the newest of their ledger, in pieces to be added up."""
        sequence = segment.sequence
        for ledger_ids in _some(segment.contents.stated):
            ledgers = map(self.get, ledger_ids)
            yield sum(ledger is not None and ledger.state_sequence == sequence for ledger in ledgers)

    def relocate(self, segments: Sequence[Segment], part: Slice) -> Iterator[None]:
        """Journal anew whatever only these segments hold, in slices. Raises StorageError when it cannot be taken."""
        for segment in segments:
            yield from self._relocate_states(segment, segment.contents.stated, part)
            yield from self._relocate_shrunk(segment, part)
        if any(segment.sequence == self._unnamed_limbo_sequence for segment in segments):
            self.put_unnamed_limbo(self.unnamed_limbo, Space.RETIREMENT)

    def _relocate_states(self, segment: Segment, ledger_ids: array[int], part: Slice) -> Iterator[None]:
        for some in _some(ledger_ids):
            for ledger_id in some:
                ledger = self.get(ledger_id)
                if ledger is not None and ledger.state_sequence == segment.sequence:
                    self.put(SegmentRecordKind.LEDGER_STATE, ledger_id, ledger, Space.RETIREMENT)
                    if part.over:
                        yield
            if part.over:
                yield

    def _relocate_shrunk(self, segment: Segment, part: Slice) -> Iterator[None]:
        for some in _some(segment.contents.shrunk, TOMBSTONES_MAX):
            shrunk = array("q", (ledger_id for ledger_id in some if ledger_id in self.shrunk))
            if shrunk:
                self.put_shrunk(shrunk, Space.RETIREMENT)
            # With entries and without facts a ledger's state is one too.
            yield from self._relocate_states(segment, some, part)

    # --- limbo ----------------------------------------------------------------------------------------------------------

    def in_unrecorded_limbo(self, ledger_id: int) -> bool:
        """Something of it may have been lost since the start: it is in limbo, and that is not written down."""
        return self.unrecorded_limbo_all or ledger_id in self.unrecorded_limbo

    def note_limbo(self, ledger_id: int, ledger: StoredLedger) -> None:
        """A ledger's facts have changed."""
        if ledger.facts is not None and ledger.facts.in_limbo and not ledger.deleted:
            self.limbo[ledger_id] = None
        else:
            self.limbo.pop(ledger_id, None)

    def note_all_limbo(self) -> None:
        """The start has written down what may be lost."""
        for ledger_id, ledger in self.ledgers.items():
            self.note_limbo(ledger_id, ledger)

    def in_limbo(self, ledger_id: int) -> bool:
        """Whether "not here" must become "unknown" for this ledger."""
        if self._journal.failure is not None or self.in_unrecorded_limbo(ledger_id):
            return True
        ledger = self.get(ledger_id)
        if ledger is None or ledger.facts is None:
            return self.unnamed_limbo.unknown
        return ledger.facts.in_limbo


def _some(ledger_ids: array[int], count: int = LEDGERS_A_STEP) -> Iterator[array[int]]:
    return (ledger_ids[at : at + count] for at in range(0, len(ledger_ids), count))


def stored_state(ledger: StoredLedger) -> StoredLedgerState:
    """All of a ledger's state as it is stored."""
    return StoredLedgerState(ledger.facts, ledger.dead_through, dead_ranges=ledger.dead_ranges)


def facts_of(ledger: StoredLedger) -> LedgerFacts:
    """The facts of a ledger that has some."""
    assert ledger.facts is not None
    return ledger.facts
