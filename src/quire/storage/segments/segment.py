"""One segment in memory: its groups, how full it is, what it holds, and how it is sealed.

A group is the records that one write and one sync make durable, laid out where they will stay.

Layout: `docs/formats/segment.md`, "Group header".
"""

from __future__ import annotations

import mmap
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Final, Protocol, TypeAlias

from crc32c import crc32c

from quire.core.errors import StorageError
from quire.env.interfaces import File
from quire.storage.formats.footer_format import (
    DIRECTORY_BYTES,
    KEPT_RECORD,
    ROW_BYTES,
    STATE_HEAD,
    KeptLocation,
    Trailer,
    build_directory,
    encode_kept,
    encode_states,
    encode_trailer,
    footer_bytes,
    sort_rows,
)
from quire.storage.formats.record_bodies import DAMAGED_INTERVAL, TOMBSTONE
from quire.storage.formats.segment_format import (
    ALL_LEDGERS,
    BLOCK_BYTES,
    GROUP_HEADER_BYTES,
    RANGES_MAX,
    STATE_KINDS,
    U32,
    GroupFlag,
    SegmentHeader,
    SegmentRecordKind,
    aligned,
    is_kept,
    write_group_header,
)
from quire.storage.formats.state_format import SHRUNK_STATE, StoredLedgerState, brings_life, encode_state
from quire.storage.index import RowTable
from quire.storage.segments.contents import NOTHING, Contents, contents_of
from quire.wire.plain_adds import OrdinaryRun
from quire.wire.stored_record import RECORD_HEAD, RECORD_HEADER_BYTES, seed_at

NO_TABLE: Final = None
_RUN: Final = int(SegmentRecordKind.RUN)
_PADDING: Final = bytes(8)


class Segment:
    """A segment while it is filled, and afterwards.

    Attributes:
        header: its block 0.
        sequence: its number, never assigned to another.
        recycled: the file held another segment before: what was not written yet is not blank.
        seed: what its checksums start from, see `segment_format.py`.
        data_end: where the next group goes; all below is assigned.
        blanked_end: below it, what is behind `data_end` has been written with zeros.
        first_lsn, last_lsn: of the records in it, 0 if none.
        before_lsn, before_checksum: of the group that was closed last, for the next one's header.
        table: its runs; None once it is sealed and the footer holds them.
        states: newest (LSN, ledger state body) of each ledger in it, -1 for the unnamed limbo (entries of any ledger may
            have been lost); empty once sealed.
        kept: newest record of each (kind, ledger) that is relocated as it is; empty once sealed.
        live: ledgers with entries in it that are not dead; counted once it is sealed.
        contents: the ledgers that it says something about, once it is sealed.
        file: open for writing, None before activation and after sealing.
        spare: the name of the spare that it will be made of, empty afterwards.
        trailer: set once it is sealed.
    """

    __slots__ = (
        "_kept_ledgers",
        "_states_bytes",
        "before_checksum",
        "before_lsn",
        "blanked_end",
        "contents",
        "data_end",
        "file",
        "first_lsn",
        "header",
        "kept",
        "last_lsn",
        "live",
        "recycled",
        "seed",
        "sequence",
        "spare",
        "states",
        "table",
        "trailer",
    )

    def __init__(self, header: SegmentHeader, seed: int) -> None:
        self.header = header
        self.sequence = header.sequence
        self.recycled = header.recycled
        self.seed = seed
        self.data_end = BLOCK_BYTES
        self.blanked_end = 0
        self.first_lsn = 0
        self.last_lsn = 0
        self.before_lsn = 0
        self.before_checksum = 0
        self.table: RowTable | None = RowTable()
        self.states: dict[int, tuple[int, bytes]] = {}
        self._states_bytes = 0
        self.kept: dict[tuple[int, int], KeptLocation] = {}
        self._kept_ledgers: set[int] = set()
        self.live = 0
        self.contents: Contents = NOTHING
        self.file: File | None = None
        self.spare = ""
        self.trailer: Trailer | None = None

    def keep_state(self, ledger_id: int, lsn: int, body: bytes) -> None:
        """Remember the newest state of a ledger for the footer."""
        old = self.states.get(ledger_id)
        if old is not None:
            if old[0] > lsn:
                return
            self._states_bytes -= STATE_HEAD.size + len(old[1])
        self._states_bytes += STATE_HEAD.size + len(body)
        self.states[ledger_id] = (lsn, body)

    def keep_tombstones(self, ledger_ids: array[int], lsn: int, dead_through: int) -> None:
        """Remember shrunk tombstones out of one record, all dead through one LSN."""
        item = lsn, encode_state(StoredLedgerState(None, dead_through))
        states = self.states
        for ledger_id in ledger_ids:
            # Nothing newer is here, and what these replace may stay in the sum: too much room for a footer does no harm.
            states[ledger_id] = item
        self._states_bytes += len(ledger_ids) * (STATE_HEAD.size + SHRUNK_STATE.size)

    def keep_record(self, location: KeptLocation) -> None:
        """Remember the newest record of a kind and ledger that is relocated as it is."""
        self._kept_ledgers.add(location.ledger_id)
        known = self.kept.get((location.kind, location.ledger_id))
        if known is None or known.lsn < location.lsn:
            self.kept[location.kind, location.ledger_id] = location

    def holds(self, ledger_id: int) -> bool:
        """Whether it is filled, and something of a ledger is here that a lost tombstone would bring back."""
        if self.table is None:
            return False
        if self.table.holds_ledger(ledger_id) or ledger_id in self._kept_ledgers:
            return True
        state = self.states.get(ledger_id)
        return state is not None and brings_life(state[1])

    def fits(self, end: int, ledger_id: int, kind: int, size: int, left_over: int) -> bool:
        """Whether a group may grow to `end` with one more record and the footer still has its place.

        Args:
            end: first byte after the group's records.
            ledger_id: the new record's ledger.
            kind: the record's; `size`: bytes of its body.
            left_over: so many bytes stay free for others.
        """
        table = self.table
        assert table is not None
        rows, ledgers, rest = len(table.rows), len(table.lacs), self._states_bytes + left_over
        if self.kept:
            rest += len(self.kept) * KEPT_RECORD.size
        if kind is SegmentRecordKind.RUN:
            rows += ROW_BYTES
            if ledger_id not in table.lacs:
                ledgers += 1
        else:
            rest += footer_share(kind, size)
        return self._holds(end, rest + rows + ledgers * DIRECTORY_BYTES)

    def fits_runs(self, end: int, count: int) -> bool:
        """As `fits`, for so many runs of ledgers that may all be new here, with nothing left free for others."""
        table = self.table
        assert table is not None
        ledgers = len(table.lacs) + count
        rest = self._states_bytes + len(self.kept) * KEPT_RECORD.size
        return self._holds(end, rest + len(table.rows) + count * ROW_BYTES + ledgers * DIRECTORY_BYTES)

    def _holds(self, end: int, footer: int) -> bool:
        """Whether groups up to `end`, a footer of so many bytes and the trailer have room."""
        # `aligned`, without its calls: this is asked for every record.
        blocks = -(-end // BLOCK_BYTES) + -(-footer // BLOCK_BYTES) + (2 if self.recycled else 1)
        return blocks * BLOCK_BYTES <= self.header.segment_bytes

    def seal(self) -> tuple[Trailer, bytes]:
        """Write footer and trailer, each synced. May run on the worker; nothing may be put here any more.

        Returns:
            The trailer and the directory.
        """
        table, file = self.table, self.file
        assert table is not None
        assert file is not None
        rows = sort_rows(table.rows)
        directory = build_directory(rows, table.lacs, self.seed)
        states = encode_states((ledger, *self.states[ledger]) for ledger in sorted(self.states))
        kept = encode_kept(self.kept[key] for key in sorted(self.kept))
        parts = states + rows + directory + kept
        self.contents = contents_of(
            table.ledgers(),
            ((ledger_id, body) for ledger_id, (_, body) in self.states.items()),
            self._kept_ledgers,
        )
        size = self.header.segment_bytes
        start = size - BLOCK_BYTES - aligned(len(parts))
        assert start >= self.data_end, "the footer must not reach into the groups"
        trailer = Trailer(
            sequence=self.sequence,
            data_end=self.data_end,
            first_lsn=self.first_lsn,
            last_lsn=self.last_lsn,
            states_offset=start,
            rows_offset=start + len(states),
            directory_offset=start + len(states) + len(rows),
            directory_end=start + len(parts) - len(kept),
            states=len(self.states),
            rows=len(rows) // ROW_BYTES,
            ledgers=len(directory) // DIRECTORY_BYTES,
            states_checksum=crc32c(states, seed_at(self.seed, start)),
            directory_checksum=crc32c(directory, seed_at(self.seed, start + len(states) + len(rows))),
            kept_offset=start + len(parts) - len(kept),
            kept=len(self.kept),
            kept_checksum=crc32c(kept, seed_at(self.seed, start + len(parts) - len(kept))),
        )
        if parts:
            with mmap.mmap(-1, aligned(len(parts))) as buffer:
                buffer[: len(parts)] = parts
                file.write_at(buffer, start)
            file.sync()
        with mmap.mmap(-1, BLOCK_BYTES) as buffer:
            buffer[:] = encode_trailer(trailer, self.seed, size - BLOCK_BYTES)
            file.write_at(buffer, size - BLOCK_BYTES)
        file.sync()
        return trailer, directory

    def blank(self, start: int, end: int) -> None:
        """Write zeros where nothing was written yet. Runs on the worker; groups there come after it."""
        assert self.file is not None
        with mmap.mmap(-1, end - start) as buffer:
            self.file.write_at(buffer, start)
        self.file.sync()

    def unseal(self) -> None:
        """Blank the trailer: its records have to be read at the next start."""
        assert self.file is not None
        with mmap.mmap(-1, BLOCK_BYTES) as buffer:
            self.file.write_at(buffer, self.header.segment_bytes - BLOCK_BYTES)
        self.file.sync()

    def sealed(self, trailer: Trailer) -> list[dict[Any, Any]]:
        """Its footer holds all now: let go of the file, and of the memory.

        Returns:
            What it had in memory of each ledger. It may be much: the caller empties it in slices.
        """
        self.trailer = trailer
        leftover: list[dict[Any, Any]] = (
            [self.states] if self.table is None else [self.states, *self.table.parts()]
        )
        self.table = NO_TABLE
        self.states = {}
        self._states_bytes = 0
        self.kept = {}
        self._kept_ledgers = set()
        self.close()
        return leftover

    def close(self) -> None:
        """Close the file for writing."""
        if self.file is not None:
            self.file.close()
            self.file = None


def footer_share(kind: int, body_bytes: int) -> int:
    """How much of a footer a record takes that is no run."""
    if kind in STATE_KINDS or kind == SegmentRecordKind.UNNAMED_LIMBO:
        return STATE_HEAD.size + body_bytes
    if kind == SegmentRecordKind.DAMAGED:
        return DIRECTORY_BYTES + ROW_BYTES * (body_bytes // DAMAGED_INTERVAL.size)
    if kind == SegmentRecordKind.TOMBSTONES:
        return (STATE_HEAD.size + SHRUNK_STATE.size) * (body_bytes // TOMBSTONE.size)
    return KEPT_RECORD.size if is_kept(kind) else 0


def footer_room(segment_bytes: int) -> int:
    """The longest record that fits into an empty segment with its list of segments and its footer."""
    blocks = 5  # header, list of segments with a group's header, a blank block, footer, trailer
    return segment_bytes - blocks * BLOCK_BYTES - footer_bytes(0, 1, 1)


class WriteCallback(Protocol):
    """What a caller of storage passes with each put, as BookKeeper's interface of this name; the tag is its `ctx`."""

    def stored(self, tag: object, error: StorageError | None) -> None:
        """What was put with this tag is durable (no error), or failed for ever."""


DurableCallback: TypeAlias = Callable[[StorageError | None], None]
"""Called once what was put is durable, or with the error that prevents it."""


class _NoCallback:
    def stored(self, tag: Any, error: StorageError | None) -> None:
        """No response depends on this."""


class _CallTag:
    """For a put whose tag is a `DurableCallback`: calls it with the error."""

    def stored(self, tag: Any, error: StorageError | None) -> None:
        assert callable(tag)
        tag(error)


NO_CALLBACK = _NoCallback()
CALL_TAG = _CallTag()

Item: TypeAlias = tuple[WriteCallback, object, StorageError | None]


class Group:
    """Records that will be written and synced together, in the buffer that will be written."""

    __slots__ = ("first_lsn", "flags", "items", "last_lsn", "offset", "opens", "ranges", "records", "segment",
                 "used", "view")  # fmt: skip

    def __init__(self, segment: Segment, buffer: memoryview, *, opens: bool) -> None:
        self.segment = segment
        self.view = buffer
        self.offset = segment.data_end
        self.opens = opens
        self.used = GROUP_HEADER_BYTES
        self.first_lsn = 0
        self.last_lsn = 0
        self.records = 0
        self.flags = 0
        self.ranges: dict[int, tuple[int, int]] = {}
        self.items: list[Item] = []

    def name(self, ledger_id: int, first: int, last: int) -> None:
        """Note for the group's header that it says something about a ledger."""
        if ledger_id == ALL_LEDGERS:
            self.flags |= GroupFlag.CONCERNS_ALL
            return
        known = self.ranges.get(ledger_id)
        if known is not None:
            if first >= 0:
                self.ranges[ledger_id] = (
                    first if known[0] < 0 else min(known[0], first),
                    max(known[1], last),
                )
        elif len(self.ranges) < RANGES_MAX:
            self.ranges[ledger_id] = (first, last)
        else:
            self.flags |= GroupFlag.UNNAMED

    def room_for(self, runs: Sequence[OrdinaryRun], lengths: Sequence[int]) -> int:
        """How many of the first of these runs go in here together, whose records have these lengths; 0 if the first does not."""
        end, room = self.offset + self.used, len(self.view) - BLOCK_BYTES - self.used
        count, total = len(lengths), sum(lengths)
        if total > room:
            count, total = bisect_right(list(accumulate(lengths)), room), room
        if self.segment.fits_runs(end + total, count):
            return count
        # Near the end of a segment it counts that a ledger has runs there already, and each record's own length.
        ledger_id, size = runs[0][0], len(runs[0][3])
        fits = self.segment.fits(end + lengths[0], ledger_id, SegmentRecordKind.RUN, size, 0)
        return 1 if count and fits else 0

    def put_runs(self, runs: Sequence[OrdinaryRun], lengths: Sequence[int], lsn: int) -> list[int]:
        """Lay out the records of runs, for which there is room, one after another; the first gets this LSN.

        Returns:
            Where in the segment each begins.
        """
        segment, ranges, at = self.segment, self.ranges, self.used
        seed, offset, pack, word = segment.seed, self.offset + at, RECORD_HEAD.pack, U32.pack
        named = not self.flags & GroupFlag.UNNAMED
        self.first_lsn = self.first_lsn or lsn
        segment.first_lsn = min(segment.first_lsn or lsn, lsn)
        parts: list[bytes] = []
        offsets: list[int] = []
        for run, length in zip(runs, lengths, strict=True):
            ledger_id, token, lac, body, body_crc, digest_type, first, last, count = run
            size = len(body)
            head = pack(
                length, _RUN, 0, digest_type, 1, lsn, ledger_id, first, last, 0, token, lac, 1, count, 0, 0, 0, size,
                body_crc, 0,
            )  # fmt: skip
            parts += (head, word(crc32c(head, seed ^ (offset & 0xFFFFFFFF))), body)
            if length != RECORD_HEADER_BYTES + size:
                parts.append(_PADDING[: length - RECORD_HEADER_BYTES - size])
            if named or ledger_id in ranges:
                self.name(ledger_id, first, last)
                named = not self.flags & GroupFlag.UNNAMED
            offsets.append(offset)
            offset += length
            lsn += 1
        self.used = offset - self.offset
        self.view[at : self.used] = b"".join(parts)
        self.records += len(offsets)
        self.last_lsn = segment.last_lsn = lsn - 1
        return offsets

    def close(self) -> None:
        """Write the header: nothing more comes in."""
        segment = self.segment
        segment.before_checksum = write_group_header(
            self.view,
            self.offset,
            (self.first_lsn, self.last_lsn),
            (segment.before_lsn, segment.before_checksum),
            self.used - GROUP_HEADER_BYTES,
            self.records,
            self.flags,
            [(ledger_id, *span) for ledger_id, span in self.ranges.items()],
            segment.sequence,
            segment.seed,
        )
        segment.before_lsn = self.last_lsn
        end = -(-self.used // BLOCK_BYTES) * BLOCK_BYTES
        segment.data_end = self.offset + end
        if segment.recycled:
            end += BLOCK_BYTES
        self.view[self.used : end] = bytes(end - self.used)
        self.used = end

    def write(self, activate: Callable[[Segment], None]) -> None:
        """Write and sync; `activate` opens the segment if this is its first group. May run on the worker."""
        if self.opens and self.segment.spare:
            activate(self.segment)
        file = self.segment.file
        assert file is not None
        file.write_at(self.view[: self.used], self.offset)
        file.sync()
