"""Reading a segment's records in order, and naming what is wrong with them.

It decides nothing about the bookie: it reports what it found, whose ledgers may have lost something, and whether the
end is torn or damaged. Source: `docs/formats/segment.md`, "What a crash can leave, and what the start does".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from crc32c import crc32c

from quire.core.errors import DamagedSegmentError
from quire.storage.formats.footer_format import OFFSET_UNIT, ROW, KeptLocation, Row, RowFlag
from quire.storage.formats.record_bodies import (
    DamagedInterval,
    decode_damaged,
    decode_retirement,
    decode_segment_list,
    decode_tombstones,
)
from quire.storage.formats.segment_format import (
    ALL_LEDGERS,
    BLOCK_BYTES,
    GROUP_HEADER_BYTES,
    GROUP_MAGIC,
    STATE_KINDS,
    U64,
    FormatError,
    GroupHeader,
    RecordFlag,
    SegmentHeader,
    SegmentRecordKind,
    check_understood,
    decode_group_header,
    is_kept,
    seed_of,
)
from quire.storage.segments.findings import Damage, Scan, Torn
from quire.storage.segments.segment_files import SegmentFiles
from quire.wire.run import count_ids
from quire.wire.stored_record import RECORD_HEAD, RECORD_HEADER_BYTES, RecordHeader, decode_record_header

_READ_BYTES = 1 << 20
U32_MAX = (1 << 32) - 1
_RUN = int(SegmentRecordKind.RUN)
_RECORD = struct.Struct(RECORD_HEAD.format + "I")
_FLAGS_KNOWN = RecordFlag.RECOVERY | RecordFlag.RELOCATED


@dataclass(slots=True)
class _Trouble:
    """What did not verify in one group, until it is known whether that group is the torn end."""

    head: GroupHeader
    damages: list[Damage] = field(default_factory=list)
    damaged_rows: list[tuple[Row, int]] = field(default_factory=list)
    named: set[int] = field(default_factory=set)
    all_in_limbo: bool = False
    retired: list[int] = field(default_factory=list)


class SegmentScanner:
    """Reads one segment.

    Args:
        files: the segments' files.
        header: the segment's block 0.
        end_lsn: the last LSN in it, if a later segment says so; what lies behind was cut before.
        newest: no valid segment follows: an invalid end may be a write that was under way.

    Attributes:
        found: what was found so far.
    """

    def __init__(
        self, files: SegmentFiles, header: SegmentHeader, *, end_lsn: int | None, newest: bool
    ) -> None:
        self._files = files
        self._header = header
        self._sequence = header.sequence
        self._seed = seed_of(header.sequence, header.nonce)
        self._size = header.segment_bytes
        self._file_bytes = files.file_bytes(header.sequence)
        self._path = str(files.path(header.sequence))
        self._end_lsn = end_lsn
        self._newest = newest
        self.found = Scan()
        self._last_kind = 0
        self._ahead = b""
        self._ahead_at = 0

    def scan(self) -> Scan:
        """Read it all.

        Raises:
            DamagedSegmentError: a record that verifies needs a newer version.
        """
        for _ in self.steps():
            pass
        return self.found

    def steps(self) -> Iterator[None]:
        """What `scan` does, with a pause after each group; `found` is complete at the end."""
        found = self.found
        trouble: _Trouble | None = None
        offset = BLOCK_BYTES
        for head in self._groups():
            complete = head.offset == offset
            if not complete:
                self._hole(offset, f"no valid group up to offset {head.offset}")
            if self._end_lsn is not None and head.first_lsn > self._end_lsn:
                self._group(head)  # the torn end, cut at an earlier start: what verifies in it was kept
                offset = head.end
                break
            self._commit(trouble)
            if complete and head.before_checksum != found.before_checksum:
                self._hole(offset, f"a group before it is missing, after LSN {found.before_lsn}")
            trouble = self._group(head)
            offset = head.end
            yield
        found.data_end = offset
        self._end(trouble, offset)

    def headers(self) -> Iterator[tuple[int, RecordHeader, bytes | None]]:
        """(offset, header, body or None if it does not verify) of each record that can be found."""
        for head in self._groups():
            data = self._files.read_around(self._sequence, head.offset + GROUP_HEADER_BYTES, head.data_bytes)
            yield from self._records(head, data)

    def _read(self, offset: int, size: int) -> bytes:
        """Bytes of the segment, a large piece at a time: nothing is written while it is scanned, so reading ahead is safe."""
        at = offset - self._ahead_at
        if at < 0 or at + size > len(self._ahead):
            kept = self._ahead[at:] if at >= 0 else b""
            rest = max(size - len(kept), _READ_BYTES)
            self._ahead = kept + self._files.read_around(self._sequence, offset + len(kept), rest)
            self._ahead_at, at = offset, 0
        return self._ahead[at : at + size]

    # --- groups ---------------------------------------------------------------------------------------------------

    def _groups(self) -> Iterator[GroupHeader]:
        """The valid groups in the order of the file; between two of them may lie what is none."""
        offset = BLOCK_BYTES
        while (head := self._group_at(offset) or self._find_group(offset)) is not None:
            assert offset <= head.offset < head.end, "a scan never goes back in the file"
            yield head
            offset = head.end

    def _written(self, offset: int) -> Iterator[tuple[int, bytes]]:
        """(offset, bytes) of what was ever written, in whole blocks from one on: the rest of a file may be untouched."""
        position = offset
        while position < self._file_bytes:
            found = self._files.next_data(self._sequence, position) // BLOCK_BYTES * BLOCK_BYTES
            # The last block of a file that was cut within it begins before `position` when nothing follows.
            position = max(position, found)
            data = self._files.read_around(self._sequence, position, _READ_BYTES)
            if not data:
                return
            yield position, data
            position += _READ_BYTES

    def _group_at(self, offset: int) -> GroupHeader | None:
        if offset + GROUP_HEADER_BYTES > self._size:
            return None
        data = self._read(offset, GROUP_HEADER_BYTES)
        head = decode_group_header(data, offset, self._sequence, self._seed)
        if head is None:
            data = self._files.read_around(self._sequence, offset, GROUP_HEADER_BYTES, cached=False)
            head = decode_group_header(data, offset, self._sequence, self._seed)
        if head is not None and head.end > self._size:
            return None
        return head

    def _find_group(self, offset: int) -> GroupHeader | None:
        """The next valid group of this segment after an offset."""
        wanted = GROUP_MAGIC + U64.pack(self._sequence)
        for position, data in self._written(offset + BLOCK_BYTES):
            at = data.find(wanted)  # whole blocks: a group's magic never straddles two reads
            while at >= 0:
                if at % BLOCK_BYTES == 0 and (head := self._group_at(position + at)) is not None:
                    return head
                at = data.find(wanted, at + 1)
        return None

    def _group(self, head: GroupHeader) -> _Trouble | None:
        """Take up a group's records; what is wrong with them is returned."""
        found = self.found
        trouble = _Trouble(head)
        start = head.offset + GROUP_HEADER_BYTES
        data = self._read(start, head.data_bytes)
        if self._whole_group(head, data):
            return None
        records = list(self._records(head, data))
        if not _all_good(head, records):
            data = self._files.read_around(self._sequence, start, head.data_bytes, cached=False)
            records = list(self._records(head, data))
        found.bytes_read += GROUP_HEADER_BYTES + head.data_bytes
        retired = len(found.retired)
        for offset, record, body in records:
            if body is None:
                self._bad_body(trouble, offset, record)
            else:
                self._take(offset, record, body)
        found.first_lsn = found.first_lsn or head.first_lsn
        found.before_lsn, found.before_checksum = head.last_lsn, head.checksum
        if _all_good(head, records):
            found.valid_groups += 1
            found.last_lsn = max(found.last_lsn, head.last_lsn)
            return None
        self._last_kind = 0
        # The states that must outlive a retired segment may be what the group lost: if it is torn, nothing is retired.
        trouble.retired = found.retired[retired:]
        del found.retired[retired:]
        end = records[-1][0] + records[-1][1].length if records else start
        if end != start + head.data_bytes:
            self._bad_header(trouble, end)
        return trouble

    def _whole_group(self, head: GroupHeader, data: bytes) -> bool:
        """Take up a group of which everything verifies, as in nearly all of them; False leaves all of it to `_group`.

        A journal of 256 MiB can have a million records, so what is done for each is written out here.
        """
        seed, base, size = self._seed, head.offset + GROUP_HEADER_BYTES, head.data_bytes
        view, unpack, pack, crc, head_bytes = (
            memoryview(data),
            _RECORD.unpack_from,
            ROW.pack,
            crc32c,
            RECORD_HEADER_BYTES,
        )
        rows: list[bytes] = []
        lacs = self.found.lacs
        others: list[tuple[int, RecordHeader, bytes]] = []
        position = kind = 0
        if len(data) < size:
            return False
        while position + head_bytes <= size:
            record = unpack(data, position)
            (
                length, kind, codec, digest_type, period, lsn, ledger_id, first, last, term, _, lac, stripes, entries,
                key_id, tenant, flags, body_bytes, body_checksum, zero, checksum,
            ) = record  # fmt: skip
            offset, body = base + position, position + head_bytes
            if (
                length != (head_bytes + body_bytes + 7) & ~7
                or position + length > size
                or crc(data[position : body - 4], seed ^ (offset & 0xFFFFFFFF)) != checksum
                or crc(view[body : body + body_bytes]) != body_checksum
            ):
                return False
            if kind != _RUN:
                others.append((offset, RecordHeader._make(record[:-1]), data[body : body + body_bytes]))
            elif codec or key_id or tenant or zero or flags & ~_FLAGS_KNOWN:
                return False
            else:
                recovery = flags & RecordFlag.RECOVERY
                rows.append(
                    pack(
                        ledger_id, term, first, last, lsn, offset // OFFSET_UNIT, body_bytes, entries, period,
                        RowFlag.RECOVERY if recovery else 0, digest_type, kind, stripes,
                    )
                )  # fmt: skip
                if recovery:
                    lac = -1
                if lac > lacs.get(ledger_id, -2):
                    lacs[ledger_id] = lac  # whatever becomes of the group, this run verifies
            position += length
        if position != size:
            return False
        self._take_whole(head, rows)
        for one in others:
            self._take(*one)
        self._last_kind = kind
        return True

    def _take_whole(self, head: GroupHeader, rows: list[bytes]) -> None:
        found = self.found
        found.rows += b"".join(rows)
        found.bytes_read += GROUP_HEADER_BYTES + head.data_bytes
        found.first_lsn = found.first_lsn or head.first_lsn
        found.before_lsn, found.before_checksum = head.last_lsn, head.checksum
        found.valid_groups += 1
        found.last_lsn = max(found.last_lsn, head.last_lsn)

    def _records(self, head: GroupHeader, data: bytes) -> Iterator[tuple[int, RecordHeader, bytes | None]]:
        view = memoryview(data)
        position = 0
        while position < head.data_bytes:
            offset = head.offset + GROUP_HEADER_BYTES + position
            record = decode_record_header(view[position : position + RECORD_HEADER_BYTES], offset, self._seed)
            if record is None or position + record.length > head.data_bytes:
                return
            start = position + RECORD_HEADER_BYTES
            body = view[start : start + record.body_bytes]
            good = len(body) == record.body_bytes and crc32c(body) == record.body_checksum
            yield offset, record, bytes(body) if good else None
            assert record.length > 0
            position += record.length

    # --- records --------------------------------------------------------------------------------------------------

    def _take(self, offset: int, record: RecordHeader, body: bytes) -> None:
        try:
            check_understood(record)
            self._take_understood(offset, record, body)
        except FormatError as error:
            raise DamagedSegmentError(
                f"{self._path} at offset {offset}: {error}", path=self._path, offset=offset
            ) from error

    def _take_understood(self, offset: int, record: RecordHeader, body: bytes) -> None:
        found, kind = self.found, record.kind
        self._last_kind = kind
        if kind == SegmentRecordKind.RUN:
            found.rows += ROW.pack(*row_of(offset, record))
            found.raise_lac(record.ledger_id, lac_of(record))
        elif kind in STATE_KINDS:
            found.states.append((record.ledger_id, record.lsn, body))
        elif kind == SegmentRecordKind.UNNAMED_LIMBO:
            found.states.append((ALL_LEDGERS, record.lsn, body))
        elif kind == SegmentRecordKind.SEGMENT_LIST:
            found.lists = decode_segment_list(body)
        elif kind == SegmentRecordKind.RETIREMENT:
            found.retired += decode_retirement(body)
        elif kind == SegmentRecordKind.TOMBSTONES:
            found.states += [(ledger_id, record.lsn, state) for ledger_id, state in decode_tombstones(body)]
        elif kind == SegmentRecordKind.DAMAGED:
            for one in decode_damaged(body):
                found.rows += ROW.pack(*damaged_row(offset, record, one))
            found.raise_lac(record.ledger_id, -1)
        elif is_kept(kind):
            location = offset // OFFSET_UNIT
            found.kept.append(KeptLocation(record.ledger_id, record.lsn, location, record.body_bytes, kind))

    def _bad_body(self, trouble: _Trouble, offset: int, record: RecordHeader) -> None:
        what = f"the body of a record of kind {record.kind:#x} does not verify"
        ids = record.ledger_id, record.first, record.last
        trouble.damages.append(Damage(self._path, offset, *ids, what, record.origin_term))
        if record.kind == SegmentRecordKind.RUN:
            row = row_of(offset, record)
            trouble.damaged_rows.append((row._replace(flags=row.flags | RowFlag.DAMAGED), lac_of(record)))
        elif is_kept(record.kind):
            pass  # evidence at best: nothing that this bookie says rests on it
        elif record.ledger_id == ALL_LEDGERS:
            # A list of segments or a retirement that is lost makes files seem missing or in use, never the reverse. Shrunk
            # tombstones that are lost bring back what was dead, and no limbo of what is missing helps against that.
            trouble.all_in_limbo = trouble.all_in_limbo or record.kind == SegmentRecordKind.UNNAMED_LIMBO
        else:
            trouble.named.add(record.ledger_id)

    def _bad_header(self, trouble: _Trouble, offset: int) -> None:
        head = trouble.head
        named = "of the ledgers that its group names" if head.names_all else "of any ledger"
        what = f"a record's header does not verify: records {named} up to LSN {head.last_lsn} may be lost"
        trouble.damages.append(Damage(self._path, offset, -1, -1, -1, what))
        trouble.named.update(ledger_id for ledger_id, _, _ in head.ranges)
        trouble.all_in_limbo = trouble.all_in_limbo or not head.names_all

    # --- judging --------------------------------------------------------------------------------------------------

    def _hole(self, offset: int, what: str) -> None:
        self.found.damages.append(
            Damage(self._path, offset, -1, -1, -1, what + ": records of any ledger may be lost")
        )
        self.found.all_in_limbo = True

    def _commit(self, trouble: _Trouble | None) -> None:
        """Something valid follows: what did not verify is damage."""
        if trouble is None:
            return
        found = self.found
        found.damages += trouble.damages
        for row, lac in trouble.damaged_rows:
            found.rows += ROW.pack(*row)
            found.raise_lac(row.ledger_id, lac)
        found.named |= trouble.named
        found.retired += trouble.retired
        found.all_in_limbo = found.all_in_limbo or trouble.all_in_limbo
        found.last_lsn = max(found.last_lsn, trouble.head.last_lsn)

    def _end(self, trouble: _Trouble | None, offset: int) -> None:
        found = self.found
        if self._file_bytes < self._size:
            self._commit(trouble)
            self._hole(self._file_bytes, f"the file is truncated: it should have {self._size} bytes")
            return
        if self._end_lsn is not None:
            self._commit(trouble)
            if found.last_lsn < self._end_lsn:
                self._hole(offset, f"LSN {found.last_lsn + 1} to {self._end_lsn} are missing")
            return
        stopped_clean = self._last_kind == SegmentRecordKind.CLEAN_STOP
        tail_invalid = not self._blank(offset)
        if not self._newest:
            self._commit(trouble)
            if tail_invalid:
                self._hole(offset, "no valid group, and no later segment says that the records end here")
        elif trouble is not None or tail_invalid:
            # Also after a clean stop: a process that went on there may have been cut while it wrote its start.
            self._torn(trouble, offset, tail_invalid=tail_invalid)
        else:
            found.clean = stopped_clean

    def _torn(self, trouble: _Trouble | None, offset: int, *, tail_invalid: bool) -> None:
        """An invalid end after an unclean stop: torn or damaged, that is unknown, so its ledgers go to limbo."""
        found = self.found
        # In a recycled file the blank block after a group is part of its write, and may be what is missing.
        if tail_invalid and (trouble is None or not self._header.recycled):
            # Behind a group that was being written nothing can have been: that one was complete, and is damaged.
            self._commit(trouble)
            found.torn.append(Torn(self._path, offset, None))
            found.all_in_limbo = True
            return
        assert trouble is not None
        head = trouble.head
        ledgers = tuple(ledger_id for ledger_id, _, _ in head.ranges)
        found.torn.append(Torn(self._path, head.offset, ledgers if head.names_all else None))
        found.named.update(ledgers)
        found.all_in_limbo = found.all_in_limbo or not head.names_all

    def _blank(self, offset: int) -> bool:
        """Whether nothing was written at an offset where the next group would begin."""
        if offset + BLOCK_BYTES > self._size:
            return True
        block = self._files.read_around(self._sequence, offset, BLOCK_BYTES)
        if any(block):
            block = self._files.read_around(self._sequence, offset, BLOCK_BYTES, cached=False)
            return not any(block)
        if self._header.recycled:
            return True
        # The file was all zeros once. The last blocks may hold a footer that was being written.
        return all(data.count(0) == len(data) for _, data in self._written(offset + BLOCK_BYTES))


def _all_good(head: GroupHeader, records: list[tuple[int, RecordHeader, bytes | None]]) -> bool:
    """Whether these are all records of a group, and all verify."""
    if any(body is None for _, _, body in records):
        return False
    end = records[-1][0] + records[-1][1].length if records else head.offset + GROUP_HEADER_BYTES
    return end == head.offset + GROUP_HEADER_BYTES + head.data_bytes


def row_of(offset: int, record: RecordHeader) -> Row:
    """The row of a run's record."""
    return Row(
        record.ledger_id,
        record.origin_term,
        record.first,
        record.last,
        record.lsn,
        offset // OFFSET_UNIT,
        record.body_bytes,
        record.entries,
        record.period,
        RowFlag.RECOVERY if record.flags & RecordFlag.RECOVERY else 0,
        record.digest_type,
        record.kind,
        record.stripes,
    )


def damaged_row(offset: int, record: RecordHeader, interval: DamagedInterval) -> Row:
    """The row of an interval of a record of damaged ones: in the index it stands for a run that does not verify."""
    first, last, term, lsn = interval
    period, stripes = max(record.period, 1), record.stripes or 1
    return Row(
        record.ledger_id, term, first, last, lsn, offset // OFFSET_UNIT, record.body_bytes,
        min(count_ids(first, last, period, stripes), U32_MAX), period, RowFlag.DAMAGED, 0, record.kind, stripes,
    )  # fmt: skip


def lac_of(record: RecordHeader) -> int:
    """The LAC that a run raises: none if a recoverer sent it."""
    return -1 if record.flags & RecordFlag.RECOVERY else record.lac
