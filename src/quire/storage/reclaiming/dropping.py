"""Dropping entries of a ledger that lives: a range of it, or all of it, as far as it was put up to an LSN.

Before the metadata store is asked for the last time whether a range may go, the range is *pending deletion*: reads do not give
it and do not deny it, and an add to the ledger cancels that. A drop is a new state of the ledger, with the range among the dead
ones; fence and key stay, and no tombstone is left. A truncation, of a stream whose terms only fence, is a drop of what earlier terms left.
A sealed segment in which nothing of the ledger lives any more is forgotten by it.

Source: `docs/formats/segment.md`, "Dead ranges"; docs/protocol/collection.md, "Over-replicated entries".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple

from quire.core.bookie.ledger import LedgerFacts
from quire.core.bookie.rules import BookieRules
from quire.core.errors import StorageError
from quire.core.ids import ID_MAX
from quire.core.ledger.terms import ANY_ORIGIN, NO_TERM
from quire.storage.damages import Damages
from quire.storage.dead_ranges import Dead, below_dead, is_dead, last_id, living, with_range
from quire.storage.formats.footer_format import lsns_of
from quire.storage.formats.segment_format import SegmentRecordKind
from quire.storage.formats.state_format import DEAD_RANGES_MAX, DeadRange
from quire.storage.holding import Segments
from quire.storage.index import RowTable, RunPiece
from quire.storage.journal import Journal
from quire.storage.reading import RunReader, is_unreadable
from quire.storage.reclaiming.forgetting import Look, RangeForgetter, look_sealed, look_unsealed
from quire.storage.reclaiming.kept_records import KeptRecords
from quire.storage.segments.segment import Segment, WriteCallback
from quire.storage.segments.segment_files import Space
from quire.storage.states import Span, States, StoredLedger

WINDOW_IDS = 64
"""How many of the highest ids are looked at first for the last entry that lives."""
_HIGHEST = itemgetter(0)


class _Before(NamedTuple):
    """What a drop changes of a ledger, as it was."""

    facts: LedgerFacts | None
    dead_through: int
    dead_ranges: Dead


class EntryDropper:
    """Drops entries of ledgers that live.

    Args:
        segments: those in use.
        reader: finds what lives.
        states: all ledgers.
        kept: records that go with all of a ledger's entries.
        journal: where states go.
        damages: those of what is dropped are over.
        forgetter: says which dead ranges of a stream are needed no more.
        rules: the protocol's rules (`core/rules.py`).
    """

    def __init__(
        self,
        segments: Segments,
        reader: RunReader,
        states: States,
        kept: KeptRecords,
        journal: Journal,
        damages: Damages,
        forgetter: RangeForgetter,
        rules: BookieRules,
    ) -> None:
        self._segments = segments
        self._reader = reader
        self._states = states
        self._kept = kept
        self._journal = journal
        self._damages = damages
        self._forgetter = forgetter
        self._rules = rules

    def settle(self) -> None:
        """After a start, which knew only the bounds of what sealed segments hold: look into the rows where it matters."""
        for ledger_id, ledger in self._states.ledgers.items():
            if ledger.partly_dead:
                self._settle(ledger_id, ledger)

    # --- pending deletion ------------------------------------------------------------------------------------------------

    def set_pending_deletion(self, ledger_id: int, first: int, last: int, through: int) -> None:
        """Say nothing of first..last, as far as it was put up to an LSN: it may be dropped soon, and is unknown until then.

        An add to the ledger ends that, as a drop, a deletion and `cancel_deletion` do, and a restart.
        """
        pending = self._reader.pending_deletions
        pending[ledger_id] = with_range(pending.get(ledger_id, ()), DeadRange(first, last, through))

    def unsaid(self, ledger_id: int, first: int, last: int) -> list[tuple[int, int]]:
        """What of first..last is pending deletion: neither here nor not here."""
        pending = self._reader.pending_deletions.get(ledger_id, ())
        found = [(max(first, one.first), min(last, one.last)) for one in pending]
        return [each for each in found if each[0] <= each[1]]

    def is_pending_deletion(self, ledger_id: int) -> bool:
        """Whether the deletion of some of a ledger's entries is pending: nothing of it was put since."""
        return ledger_id in self._reader.pending_deletions

    def cancel_deletion(self, ledger_id: int) -> None:
        """The deletion of a ledger's entries is not pending any more: they are found again."""
        self._reader.pending_deletions.pop(ledger_id, None)

    # --- dropping -----------------------------------------------------------------------------------------------------

    def drop(
        self, ledger_id: int, first: int, last: int, through: int, callback: WriteCallback, tag: object
    ) -> None:
        """Kill entries of a ledger that lives on, with its fence and key, and without a tombstone.

        Args:
            ledger_id: the ledger; of one that is not known, or deleted, there is nothing to drop.
            first: of the entries, of whatever origin term; 0..`ID_MAX` are all.
            last: the last of them.
            through: only what was put up to this LSN dies. What is put later, under the same ids, lives.
            callback: is called with `tag` once that is durable; with an error, nothing was dropped: the disk is full or has
                failed, or the ledger has as many dead ranges as its state can hold.
            tag: whatever the caller knows the drop by.
        """
        ledger = self._states.ledgers.get(ledger_id)
        if ledger is None:
            callback.stored(tag, None)
        else:
            self._drop(ledger_id, ledger, [DeadRange(first, last, through)], callback, tag)

    def _drop(
        self,
        ledger_id: int,
        ledger: StoredLedger,
        ranges: Sequence[DeadRange],
        callback: WriteCallback,
        tag: object,
        *,
        by_id: bool = False,
    ) -> None:
        """Let ranges die; `by_id`: whatever their origin terms, ids alone name the ledger's entries."""
        before = _Before(ledger.facts, ledger.dead_through, ledger.dead_ranges)
        try:
            for one in ranges:
                self._let_die(ledger_id, ledger, one, by_id=by_id)
            ledger.facts = ledger.facts or LedgerFacts(ledger_id)
            self._states.put(SegmentRecordKind.LEDGER_STATE, ledger_id, ledger, Space.DELETE)
        except StorageError as error:
            ledger.facts, ledger.dead_through, ledger.dead_ranges = before
            self._journal.refuse(callback, tag, error)
            return
        self.cancel_deletion(ledger_id)
        for first, last, through in ranges:
            if (first, last) == (0, ID_MAX):
                self._kept.forget(ledger_id, through)
            if not self.written_since(ledger_id, through):
                self._damages.dropped(ledger_id, first, last)
        self._settle(ledger_id, ledger)
        self._journal.wait(callback, tag)

    def truncate(
        self,
        ledger_id: int,
        first: int,
        term: int,
        callback: WriteCallback,
        tag: object,
        *,
        last: int = ID_MAX,
        kept: int = NO_TERM,
    ) -> None:
        """Kill what earlier terms left of a stream from an id on, for a take-over whose terms only fence.

        Its own entries were put later than all of that, and live; what is put later lives too. Where there is nothing to kill
        no dead range is kept.

        Args:
            ledger_id: the stream.
            first: entries from here on go whose origin term is below `term`, and all that was put before them there.
            term: the take-over's.
            callback: as of `drop`; an error too where what is there cannot be read now.
            tag: as of `drop`.
            last: the last id, where a repair truncates what is decided.
            kept: then, the origin term of what belongs there: all goes under whose id an entry of another one was put last.
        """
        ledger = self._states.ledgers.get(ledger_id)
        if ledger is None:
            callback.stored(tag, None)
            return
        self.cancel_deletion(ledger_id)
        try:
            if kept:
                ranges = self._others(ledger_id, ledger, first, last, kept)
            else:
                ranges = self._earlier(ledger_id, ledger, first, last, term)
            if not ranges:  # a truncation before it may be on its way to the disk
                self._states.put(SegmentRecordKind.LEDGER_STATE, ledger_id, ledger)
        except StorageError as error:
            self._journal.refuse(callback, tag, error)
            return
        if ranges:
            self._drop(ledger_id, ledger, ranges, callback, tag, by_id=True)
        else:
            self._journal.wait(callback, tag)

    def _earlier(
        self, ledger_id: int, ledger: StoredLedger, first: int, last: int, term: int
    ) -> list[DeadRange]:
        """What a truncate of a term takes of some ids: all up to the highest LSN of what is of an earlier one.

        Of a ledger that has nothing of this term yet it takes all that was put so far, and looks at no entry.

        Raises:
            StorageError: what is there cannot be read now.
        """
        origins, unknown = self._reader.origin_terms(ledger_id, ledger, first, last)
        if unknown is not None:
            raise _unreadable(ledger_id, first)
        taken = [origin for origin in origins if self._rules.truncate_takes(origin, term)]
        if taken == origins:
            return [DeadRange(first, last, self._journal.last_lsn)] if ledger.last >= first else []
        newest = 0
        for origin in taken:
            for piece in self._readable(ledger_id, ledger, first, last, origin):
                if last_id(piece) >= first:
                    newest = max(newest, piece.row.lsn)
        return [DeadRange(first, last, newest)] if newest else []

    def _others(
        self, ledger_id: int, ledger: StoredLedger, first: int, last: int, kept: int
    ) -> list[DeadRange]:
        """The ids of first..last under which an entry of another origin term than `kept` was put last, and what is there.

        Those with nothing that stays between them are one range: a state holds few.

        Raises:
            StorageError: what is there cannot be read now.
        """
        ranges: list[DeadRange] = []
        follows = False
        for piece in self._readable(ledger_id, ledger, first, last, ANY_ORIGIN):
            low, high = max(piece.first, piece.row.first, first), min(last_id(piece), last)
            if low > high:  # of a striped run, what is left may hold no id
                continue
            goes, lsn = self._rules.copy_drops_others(piece.row.origin_term, kept), piece.row.lsn
            if goes and follows:
                one = ranges.pop()
                ranges.append(DeadRange(one.first, high, max(one.through, lsn)))
            elif goes:
                ranges.append(DeadRange(low, high, lsn))
            follows = goes
        return ranges

    def _readable(
        self, ledger_id: int, ledger: StoredLedger, first: int, last: int, origin: int
    ) -> Iterator[RunPiece]:
        """The pieces of first..last, all of which are known.

        Raises:
            StorageError: what is there cannot be read now.
        """
        for piece in self._reader.pieces(ledger_id, ledger, first, last, origin):
            if is_unreadable(piece.row):
                raise _unreadable(ledger_id, first)
            yield piece

    def _let_die(self, ledger_id: int, ledger: StoredLedger, new: DeadRange, *, by_id: bool) -> None:
        if (new.first, new.last) == (0, ID_MAX):
            ledger.dead_through = max(ledger.dead_through, new.through)
            ledger.dead_ranges = tuple(one for one in ledger.dead_ranges if one.through > ledger.dead_through)
            return
        ranges = with_range(ledger.dead_ranges, new)
        if len(ranges) > DEAD_RANGES_MAX:
            oldest = self._oldest(ledger_id)
            ranges = tuple(one for one in ranges if one.through >= oldest)
        if len(ranges) > DEAD_RANGES_MAX and by_id:
            ranges = self._forgetter.needed(ledger_id, ledger, ranges)
        if len(ranges) > DEAD_RANGES_MAX:
            raise StorageError(
                f"ledger {ledger_id} has {DEAD_RANGES_MAX} dead ranges already: nothing more of it is dropped until the "
                "segments with older data are freed",
                ledger_id=ledger_id,
            )
        ledger.dead_ranges = ranges

    def _oldest(self, ledger_id: int) -> int:
        """The lowest first LSN of the segments that hold entries of a ledger, dead or not."""
        holding = (one.first_lsn for one in self._segments.segments.values() if _holds(one, ledger_id))
        return min(holding, default=1 << 64)

    def _settle(self, ledger_id: int, ledger: StoredLedger) -> None:
        """Forget the segments in which nothing of a ledger lives, and find its last entry anew."""
        dead = [
            span.sequence for span in self._sealed_spans(ledger) if not self._lives(ledger_id, ledger, span)
        ]
        for sequence in dead:
            self._segments.segments[sequence].live -= 1
        if dead:
            ledger.drop_span(*dead)
        ledger.last = self._last_living(ledger_id, ledger)

    def _sealed_spans(self, ledger: StoredLedger) -> Iterator[Span]:
        """Those that are read through a footer; one that is being installed, or read again, is found in its table."""
        unsealed = self._segments.unsealed
        return (span for span in ledger.spans_within(0, ID_MAX) if span.sequence not in unsealed)

    def _lives(self, ledger_id: int, ledger: StoredLedger, span: Span) -> bool:
        """Whether anything of a ledger lives in a sealed segment; its rows are read only where its bounds do not tell."""
        segment, ranges, through = (
            self._segments.segments[span.sequence],
            ledger.dead_ranges,
            ledger.dead_through,
        )
        if segment.last_lsn <= through or is_dead(ranges, span.first, span.last, segment.last_lsn):
            return False
        # An entry stands at either end, dead or not.
        ends = all(is_dead(ranges, end, end, 0) for end in (span.first, span.last))
        if segment.first_lsn > through and not ends:
            return True
        return any(
            last_id(piece) >= 0
            for stream in look_sealed(self._reader, ledger_id, span)(0, ID_MAX)
            for piece in living(stream, through, ranges)
        )

    def _last_living(self, ledger_id: int, ledger: StoredLedger) -> int:
        reader, segments, best = self._reader, self._segments, -1
        found: list[tuple[int, int, Look]] = [
            (span.last, segments.segments[span.sequence].last_lsn, look_sealed(reader, ledger_id, span))
            for span in self._sealed_spans(ledger)
        ]
        for segment in segments.unsealed.values():
            table = segment.table
            if table is not None and table.holds_ledger(ledger_id):
                look = look_unsealed(table, ledger_id, segment.sequence)
                found.append((table.span(ledger_id)[1], table.newest_lsn(ledger_id), look))
        for highest, lsn, pieces_of in sorted(found, key=_HIGHEST, reverse=True):
            if highest <= best:
                break
            for low, high in _downwards(below_dead(ledger.dead_ranges, highest, lsn), best + 1):
                pieces = (
                    piece
                    for stream in pieces_of(low, high)
                    for piece in living(stream, ledger.dead_through, ledger.dead_ranges)
                )
                best = max(best, max(map(last_id, pieces), default=-1))
                if best >= low:
                    break
        return best

    # --- what was put -------------------------------------------------------------------------------------------------

    def written_since(self, ledger_id: int, lsn: int) -> bool:
        """Whether a run of a ledger that is not dead was put after an LSN; True if that is unknown."""
        ledger = self._states.get(ledger_id)
        if ledger is None:
            return False
        lsn = max(lsn, ledger.dead_through)
        for segment in self._segments.unsealed.values():
            table = segment.table
            if table is None or segment.last_lsn <= lsn or not table.holds_ledger(ledger_id):
                continue
            if table.newest_lsn(ledger_id) > lsn:
                return True
        for span in self._sealed_spans(ledger):
            segment = self._segments.segments[span.sequence]
            if segment.last_lsn <= lsn:
                continue
            if segment.first_lsn > lsn:
                return True
            rows = self._reader.rows(ledger_id, span)
            newest = rows.newest_lsn(ledger_id) if isinstance(rows, RowTable) else max(lsns_of(rows))
            if newest > lsn:
                return True
        return False


def _unreadable(ledger_id: int, first: int) -> StorageError:
    return StorageError(
        f"ledger {ledger_id}: what is here from entry {first} on cannot be read, so it is not truncated",
        ledger_id=ledger_id,
    )


def _downwards(last: int, first: int) -> Iterator[tuple[int, int]]:
    """The ids of first..last from the last down, always as many again as before."""
    count = WINDOW_IDS
    while last >= first:
        yield max(first, last - count + 1), last
        last -= count
        count *= 2


def _holds(segment: Segment, ledger_id: int) -> bool:
    """Whether a segment holds entries of a ledger, dead or not."""
    table = segment.table
    return ledger_id in segment.contents.entries if table is None else table.holds_ledger(ledger_id)
