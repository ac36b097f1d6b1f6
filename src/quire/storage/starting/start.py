"""What a start makes of the directory: segments, ledgers, and what may have been lost.

Footers are read, segments without one are scanned. Whatever two records say, the higher LSN is right. Nothing is written
here, so that a directory that is refused stays as it is; `LedgerStorage` writes down what is in limbo before it serves.

Source: `docs/formats/segment.md`, "What a crash can leave, and what the start does";
docs/decisions/026-torn-or-damaged.md; docs/protocol/bookie.md, "Limbo".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from crc32c import crc32c

from quire.core.bookie.ledger import LedgerFacts
from quire.core.bookie.limbo import Limbo
from quire.core.bookie.rules import RULES, BookieRules
from quire.core.errors import DamagedSegmentError
from quire.storage.dead_ranges import is_dead
from quire.storage.formats.footer_format import DirectoryEntry, KeptLocation, row_at
from quire.storage.formats.record_bodies import (
    SegmentList,
    UnnamedLimbo,
    decode_segment_list,
    decode_unnamed_limbo,
)
from quire.storage.formats.segment_format import (
    ALL_LEDGERS,
    BLOCK_BYTES,
    GROUP_HEADER_BYTES,
    LSN_GAP,
    FormatError,
    SegmentHeader,
    SegmentRecordKind,
    decode_group_header,
    seed_of,
)
from quire.storage.formats.state_format import check_acted_on, decode_state
from quire.storage.segments.findings import Damage, Scan, Torn
from quire.storage.segments.footers import decode_quietly, read_footer
from quire.storage.segments.replay import SegmentScanner
from quire.storage.segments.segment import Segment
from quire.storage.segments.segment_files import SegmentFiles, Space
from quire.storage.states import StoredLedger
from quire.wire.stored_record import RECORD_HEADER_BYTES, decode_record_header

MISSING_NAMED_MAX = 1024
"""Of more missing segments than these, the others are counted."""


@dataclass(slots=True)
class StartReport:
    """What a start found; damages found later by reads are added.

    Attributes:
        clean: the last process stopped cleanly (or there was none).
        torn: writes that were cut.
        damages: what is not as it was written, with file and offset; `damages_more` counts those not kept.
        limbo: ledgers that were put in limbo by this start.
        unknown_in_limbo: ledgers that are not known may have been here.
        older: why the directory may lack what was acknowledged, whatever lies in it; empty if it is the bookie's own.
        replayed_bytes: read from segments without a footer.
        segments: how many are in use.
        write_path: how the disk is written.
    """

    clean: bool = True
    torn: list[Torn] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)
    damages_more: int = 0
    limbo: list[int] = field(default_factory=list)
    unknown_in_limbo: bool = False
    older: str = ""
    replayed_bytes: int = 0
    segments: int = 0
    write_path: str = ""


class Start:
    """Brings a bookie's storage up from the segments of its directory.

    Args:
        files: the segments' files.
        rules: the protocol's rules (`core/rules.py`).

    Attributes:
        segments: in use, by sequence; without a trailer they are still to be sealed.
        ledgers: all that are known, shrunk tombstones too.
        kept: records that are relocated as they are, with the segment of each.
        unnamed_limbo: what earlier starts put in limbo without a name, and is there still.
        unnamed_limbo_place: the LSN of the record that says so, and its segment's sequence.
        resume: the segment to go on in, after a clean stop without any damage.
        all_in_limbo, named: what this start must put in limbo.
        unknown_named: of some of those that are named nothing else is known.
        leftover: sequences whose files hold nothing that lives, to be recycled once the new list is durable.
        expendable: those of them that are not the only sign of a loss: on a full disk one may be recycled before that.
        before_last: the newest segment and its last LSN, for the next segment's list.
        last_lsn, next_sequence: where numbers go on.
    """

    def __init__(self, files: SegmentFiles, rules: BookieRules = RULES) -> None:
        self._files = files
        self.rules = rules
        self._headers: dict[int, SegmentHeader] = {}
        self._directories: list[tuple[int, list[DirectoryEntry]]] = []
        self.segments: dict[int, Segment] = {}
        self.ledgers: dict[int, StoredLedger] = {}
        self.kept: list[tuple[int, list[KeptLocation]]] = []
        self.unnamed_limbo = UnnamedLimbo()
        self.unnamed_limbo_place = (0, 0)
        self.resume: Segment | None = None
        self.all_in_limbo = False
        self.named: set[int] = set()
        self.unknown_named = False
        self.leftover: list[int] = []
        self.expendable: list[int] = []
        self._continued: Segment | None = None
        self.before_last = (0, 0)
        self.last_lsn = 0
        self.next_sequence = 1
        self.report = StartReport()

    def run(self, *, served: bool = False) -> None:
        """Read everything.

        Args:
            served: the bookie has been up before, so there was a segment.

        Raises:
            DamagedSegmentError, WrongDirectoryError: a segment's header is damaged or foreign.
        """
        sequences = self._files.load()
        if not sequences:
            if served:  # finding nothing, it has lost everything
                self._all_missing()
            return
        self._headers = {sequence: self._files.header(sequence) for sequence in sequences}
        self.next_sequence = sequences[-1] + 1
        newest, scan = self._newest(sequences)
        if newest is not None:
            self._older([sequence for sequence in sequences if sequence < newest], newest, scan)
            self._add_scanned(newest, scan)
            self._decide_resume(newest, scan)
        else:
            self.last_lsn += LSN_GAP
        self._add_directories()
        self._enter_limbo()
        if self.resume is None:
            self._find_room()
        self.report.segments = len(self.segments)

    @property
    def found_lsn(self) -> int:
        """The last LSN that is there; none that was skipped after an unclean stop."""
        return self.before_last[1]

    def judge(self, older: str | None, stored_lsn: int) -> None:
        """After `run`: the directory may be older than what its bookie acknowledged. Then anything may be missing.

        Args:
            older: why; None if it is not.
            stored_lsn: an LSN that the bookie has assigned.
        """
        if older is None:
            return
        self.report.older = older
        self.report.clean = False
        self.all_in_limbo = True
        self.last_lsn = max(self.last_lsn, stored_lsn) + LSN_GAP  # no LSN is assigned twice
        if self.resume is not None and self.resume is not self._continued:
            self._continued, self.resume = self.resume, None
            self._find_room()
        self._enter_limbo()

    # --- which segments ---------------------------------------------------------------------------------------

    def _newest(self, sequences: list[int]) -> tuple[int | None, Scan]:
        """The newest segment with a valid group; void ones after it are leftovers."""
        scan = Scan()
        only_sign = -1
        for sequence in reversed(sequences):
            scan = SegmentScanner(self._files, self._headers[sequence], end_lsn=None, newest=True).scan()
            if scan.valid_groups or scan.lists or scan.rows or scan.states:
                if scan.shows_loss:
                    self.expendable = list(self.leftover)
                return sequence, scan
            # Nothing in it was acknowledged, or all of it is lost.
            self._take_unnamed_limbo(scan)
            self.leftover.append(sequence)
            self.report.clean = False
            if scan.shows_loss and only_sign >= 0:
                self.expendable.append(only_sign)  # a start made it that had seen this one: it says no more
            if scan.shows_loss:
                only_sign = sequence
            else:
                self.expendable.append(sequence)
        return None, scan

    def _older(self, sequences: list[int], newest: int, scan: Scan) -> None:
        """Bring in the segments before the newest: those in its list, without those retired since."""
        if scan.lists is None:
            listed = set(
                sequences
            )  # its list is damaged; what was retired holds only what is known to be dead
        else:
            retired = set(scan.retired)
            listed = {
                sequence
                for first, last in scan.lists.ranges
                for sequence in range(first, last + 1)
                if sequence not in retired and sequence != newest
            }
        missing = sorted(listed - set(sequences))
        if missing:
            self._missing(missing)
        retired_before = [sequence for sequence in sequences if sequence not in listed]
        self.leftover += retired_before
        self.expendable += retired_before
        follower = newest
        for sequence in sorted(listed & set(sequences), reverse=True):
            self._older_segment(sequence, follower)
            follower = sequence

    def _missing(self, sequences: list[int]) -> None:
        self.all_in_limbo = True
        self.report.damages_more += len(sequences[MISSING_NAMED_MAX:])
        for sequence in sequences[:MISSING_NAMED_MAX]:
            path = str(self._files.path(sequence))
            self._damaged(
                Damage(path, 0, -1, -1, -1, "the segment is missing: records of any ledger are lost")
            )

    def _all_missing(self) -> None:
        """A start leaves a segment before the bookie is registered, and the last one is never removed."""
        self.report.clean = False
        self.all_in_limbo = True
        what = "all segments are missing, and this bookie has stored entries before: all its entries are lost"
        self._damaged(Damage(str(self._files.directory), 0, -1, -1, -1, what))
        self._enter_limbo()

    def _first_list(self, sequence: int) -> SegmentList | None:
        """The segment list that a segment begins with, or None if it does not verify."""
        header = self._headers[sequence]
        seed = seed_of(sequence, header.nonce)
        data = self._files.read_around(sequence, BLOCK_BYTES, GROUP_HEADER_BYTES + RECORD_HEADER_BYTES)
        group = decode_group_header(data, BLOCK_BYTES, sequence, seed)
        if group is None:
            return None
        offset = BLOCK_BYTES + GROUP_HEADER_BYTES
        record = decode_record_header(data[GROUP_HEADER_BYTES:], offset, seed)
        if record is None or record.kind != SegmentRecordKind.SEGMENT_LIST:
            return None
        body = self._files.read_around(sequence, offset + RECORD_HEADER_BYTES, record.body_bytes)
        return decode_segment_list(body) if crc32c(body) == record.body_checksum else None

    def _older_segment(self, sequence: int, follower: int) -> None:
        header = self._headers[sequence]
        segment = Segment(header, seed_of(sequence, header.nonce))
        try:
            if self._read_footer(segment):
                return
        except FormatError as error:
            location = header.segment_bytes - BLOCK_BYTES
            path = str(self._files.path(sequence))
            self._damaged(Damage(path, location, -1, -1, -1, f"{error}; the records were read instead"))
        with self._refusing(follower):
            after = self._first_list(follower)
        end_lsn = after.before_last_lsn if after is not None and after.before_sequence == sequence else None
        scan = SegmentScanner(self._files, header, end_lsn=end_lsn, newest=False).scan()
        self._add_scanned(sequence, scan)

    # --- footers ------------------------------------------------------------------------------------------------

    def _read_footer(self, segment: Segment) -> bool:
        """Take up a sealed segment; False if it has no trailer, FormatError if its footer is damaged."""
        read = read_footer(self._files, segment)
        if read is None:
            return False
        trailer, states, entries, kept = read
        segment.contents = read.contents()
        segment.first_lsn, segment.last_lsn = trailer.first_lsn, trailer.last_lsn
        segment.data_end = trailer.data_end
        segment.sealed(trailer)
        self._files.sealed(segment.sequence)
        for ledger_id, lsn, body in states:
            self._state(segment.sequence, ledger_id, lsn, body)
        self._directories.append((segment.sequence, entries))
        self.kept.append((segment.sequence, kept))
        self.segments[segment.sequence] = segment
        self.last_lsn = max(self.last_lsn, trailer.last_lsn)
        return True

    def _add_directories(self) -> None:
        """Places of entries and kept records come after all states, which say what is dead."""
        for sequence, entries in sorted(self._directories):
            self.segments[sequence].live = add_directory(self._ledger, sequence, entries)
        self._directories.clear()
        for ledger in self.ledgers.values():
            ledger.last = (
                ledger.reach
            )  # where something is dead, storage lowers it when it can look into the rows
        for sequence in sorted(self.segments):
            table = self.segments[sequence].table
            if table is None:
                continue
            for ledger_id in table.ledgers():
                ledger = self._ledger(ledger_id)
                if table.newest_lsn(ledger_id) > ledger.dead_through:
                    ledger.last = max(ledger.last, table.span(ledger_id)[1])
                    raise_lac(ledger, table.lacs[ledger_id])
        for ledger in self.ledgers.values():
            if ledger.deleted and ledger.last >= 0:
                # A tombstone refuses entries as long as it stands: these are of another ledger with its id.
                ledger.facts = None
        self.kept = [
            (
                sequence,
                [location for location in locations if location.lsn > self._dead_through(location.ledger_id)],
            )
            for sequence, locations in self.kept
        ]

    def _dead_through(self, ledger_id: int) -> int:
        ledger = self.ledgers.get(ledger_id)
        return 0 if ledger is None else ledger.dead_through

    def _ledger(self, ledger_id: int) -> StoredLedger:
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            ledger = self.ledgers[ledger_id] = StoredLedger()
        return ledger

    # --- scans --------------------------------------------------------------------------------------------------

    def _add_scanned(self, sequence: int, scan: Scan) -> None:
        header = self._headers[sequence]
        segment = segment_of(header, scan)
        self.segments[sequence] = segment
        for ledger_id, lsn, body in scan.states:
            self._state(sequence, ledger_id, lsn, body)
        self.kept.append((sequence, scan.kept))
        self.last_lsn = max(self.last_lsn, scan.last_lsn, max(scan.lsns(), default=0))
        self._take_unnamed_limbo(scan)

    def _take_unnamed_limbo(self, scan: Scan) -> None:
        for damage in scan.damages:
            self._damaged(damage)
        self.report.torn += scan.torn
        self.report.replayed_bytes += scan.bytes_read
        self.all_in_limbo = self.all_in_limbo or scan.all_in_limbo
        self.named |= scan.named

    def _damaged(self, damage: Damage) -> None:
        self.report.damages.append(damage)

    def _decide_resume(self, newest: int, scan: Scan) -> None:
        self.before_last = (newest, scan.last_lsn)
        self.report.clean = self.report.clean and scan.clean
        segment = self.segments[newest]
        header = segment.header
        sealed = decode_quietly(self._files, header)
        if sealed is not None:
            # A segment is sealed only when the next one is on disk.
            self._missing([newest + 1])
        if (
            self.report.clean
            and sealed is None
            and not (self.all_in_limbo or self.named or self.report.damages)
        ):
            self.resume = segment
        else:
            self.last_lsn += LSN_GAP
            if sealed is None and not (scan.shows_loss or scan.damages):
                self._continued = segment

    def _find_room(self) -> None:
        """A start needs a segment for what it writes down; on a full disk a few of them would use up the reserve.

        So the file of a segment that was never filled is used again, if what it shows can be seen elsewhere too, or the
        newest segment is continued, if nothing at its end looks as if it had been cut.
        """
        if self._files.make_spares(self._files.kept_back(Space.ADDS)):
            return
        if self.expendable:
            sequence = self.expendable[0]
            self.leftover.remove(sequence)
            self._files.recycle(sequence, keep=len(self._files.spares) + 1)
        else:
            self.resume = self._continued

    # --- states ---------------------------------------------------------------------------------------------------

    def _state(self, sequence: int, ledger_id: int, lsn: int, body: bytes | memoryview) -> None:
        if ledger_id == ALL_LEDGERS:
            if lsn > self.unnamed_limbo_place[0]:
                with self._refusing(sequence):
                    self.unnamed_limbo = decode_unnamed_limbo(body)
                self.unnamed_limbo_place = (lsn, sequence)
            return
        ledger = self._ledger(ledger_id)
        if lsn <= ledger.state_lsn:
            return
        with self._refusing(sequence):
            state = decode_state(ledger_id, body)
            check_acted_on(ledger_id, state)
        ledger.facts, ledger.dead_through = state.facts, state.dead_through
        ledger.dead_ranges = state.dead_ranges
        ledger.state_lsn, ledger.state_sequence = lsn, sequence

    @contextmanager
    def _refusing(self, sequence: int) -> Iterator[None]:
        """What a segment says and this program cannot act on refuses the directory, with the file's name."""
        try:
            yield
        except FormatError as error:
            path = str(self._files.path(sequence))
            raise DamagedSegmentError(
                f"{path}: {error}; start the version that wrote it", path=path
            ) from error

    def _enter_limbo(self) -> None:
        """Put in limbo whatever may have lost something, by earlier losses and by new ones; its fence is unknown then."""
        limbo_through = self.unnamed_limbo.limbo_through
        for ledger_id in sorted(self.named):
            ledger = self._ledger(ledger_id)
            self.unknown_named = self.unknown_named or ledger.shrunk or not ledger.state_lsn
        for ledger_id, ledger in self.ledgers.items():
            if ledger.shrunk and ledger_id not in self.named:
                continue  # deleted for good; what else may have been lost of it counts as an unknown ledger's
            old = 0 < limbo_through >= ledger.state_lsn
            new = self.rules.start_enters_limbo(named=ledger_id in self.named, nameless=self.all_in_limbo)
            if not (old or new):
                continue
            if ledger.facts is None:
                ledger.facts = LedgerFacts(ledger_id)
            if new and not ledger.facts.in_limbo:
                self.report.limbo.append(ledger_id)
            # A new limbo gets its LSN when the start is written down.
            since = ledger.facts.limbo.lsn if ledger.facts.limbo is not None else 0
            ledger.facts.limbo = Limbo(max(since, limbo_through if old else 0))
        self.report.limbo.sort()
        self.report.unknown_in_limbo = self.unnamed_limbo.unknown or self.all_in_limbo


# --- pieces that `LedgerStorage` and `rebuild` use too ----------------------------------------------------------


def segment_of(header: SegmentHeader, scan: Scan) -> Segment:
    """A segment in memory, from its records."""
    segment = Segment(header, seed_of(header.sequence, header.nonce))
    table = segment.table
    assert table is not None
    rows = scan.rows_by_lsn()
    table.extend(rows, scan.lacs)
    for ledger_id, lsn, body in scan.states:
        segment.keep_state(ledger_id, lsn, body)
    for location in scan.kept:
        segment.keep_record(location)
    segment.data_end = scan.data_end
    segment.first_lsn, segment.last_lsn = scan.first_lsn, scan.last_lsn
    if rows:
        segment.first_lsn = min(scan.first_lsn, row_at(rows, 0).lsn)  # of a relocated run
    segment.before_lsn, segment.before_checksum = scan.before_lsn, scan.before_checksum
    return segment


def raise_lac(ledger: StoredLedger, lac: int) -> None:
    """A run said that entries up to `lac` are confirmed."""
    facts = ledger.facts
    if facts is not None and lac > facts.lac:
        # Of a stream, the run's writer had this term or an earlier one: a reader that knows the later one knows both.
        facts.lac, facts.lac_term = lac, facts.term


def add_directory(
    find: Callable[[int], StoredLedger | None], sequence: int, entries: list[DirectoryEntry]
) -> int:
    """Note which ledgers a sealed segment holds; returns how many of them have entries in it that live.

    Args:
        find: the ledger with an id, None if all of it is dead; that the segment holds it is counted, there else.
        sequence: the segment's.
        entries: its directory.
    """
    live = 0
    for entry in entries:
        ledger = find(entry.ledger_id)
        if ledger is None:
            continue
        ledger.holders += 1
        newest = entry.highest_lsn
        if newest <= ledger.dead_through or is_dead(ledger.dead_ranges, entry.first, entry.last, newest):
            continue
        ledger.add_span(sequence, entry)
        raise_lac(ledger, entry.lac)
        live += 1
    return live
