"""Records that are relocated as they are, until a newer one of the same kind and ledger supersedes them.

That is each kind without the critical bit but the marks of starts and stops: copies of metadata records, and whatever a
later version may add. Nothing here looks into their bodies.

Source: `docs/formats/segment.md`, "Kept records".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from crc32c import crc32c

from quire.env.descriptors import is_shortage
from quire.storage.directory.patient_worker import shortage
from quire.storage.formats.footer_format import OFFSET_UNIT, KeptLocation
from quire.storage.journal import Journal
from quire.storage.segments.findings import Damage
from quire.storage.segments.segment import Segment
from quire.storage.segments.segment_files import SegmentFiles, Space
from quire.storage.slices import Slice
from quire.wire.entry import Buffer
from quire.wire.stored_record import RECORD_HEADER_BYTES, decode_record_header


class KeptRecords:
    """The newest kept record of each kind and ledger, and where it lies.

    Args:
        segments: those in use, by sequence.
        files: the segments' files.
        journal: where records go.
        damaged: called with what does not verify.
    """

    def __init__(
        self,
        segments: Mapping[int, Segment],
        files: SegmentFiles,
        journal: Journal,
        damaged: Callable[[Damage], None],
    ) -> None:
        self._segments = segments
        self._files = files
        self._journal = journal
        self._damaged = damaged
        # By ledger, then by kind: a deletion looks at one ledger only.
        self._locations: dict[int, dict[int, tuple[int, KeptLocation]]] = {}
        self._on_their_way: dict[int, bytes] = {}

    def __len__(self) -> int:
        return sum(map(len, self._locations.values()))

    def found(self, sequence: int, locations: Iterable[KeptLocation]) -> None:
        """Take up what a segment holds."""
        for location in locations:
            of_ledger = self._locations.setdefault(location.ledger_id, {})
            known = of_ledger.get(location.kind)
            if known is None or known[1].lsn < location.lsn:
                of_ledger[location.kind] = sequence, location

    def put(self, kind: int, ledger_id: int, body: Buffer, space: Space = Space.STATE) -> None:
        """Journal a record that is to be kept. Raises StorageError when it cannot be taken."""
        segment, offset, lsn = self._journal.put(kind, ledger_id, body, space)
        location = KeptLocation(ledger_id, lsn, offset // OFFSET_UNIT, len(body), kind)
        segment.keep_record(location)
        self.found(segment.sequence, (location,))
        waiting = self._on_their_way
        while waiting and (oldest := next(iter(waiting))) <= self._journal.durable_lsn:
            del waiting[oldest]
        waiting[lsn] = bytes(body)

    def forget(self, ledger_id: int, through: int) -> None:
        """A ledger was deleted: what was kept of it up to an LSN goes with it."""
        of_ledger = self._locations.pop(ledger_id, {})
        left = {kind: known for kind, known in of_ledger.items() if known[1].lsn > through}
        if left:
            self._locations[ledger_id] = left

    def relocate(self, segments: Sequence[Segment], part: Slice) -> Iterator[None]:
        """Journal anew whatever only these segments hold, in slices. Raises StorageError when it cannot be taken."""
        for segment in segments:
            for ledger_id in segment.contents.kept:
                for sequence, location in list(self._locations.get(ledger_id, {}).values()):
                    if sequence == segment.sequence:
                        self._relocate(sequence, location)
                if part.over:
                    yield

    def _relocate(self, sequence: int, location: KeptLocation) -> None:
        body = self._read(sequence, location)
        if body is None:
            del self._locations[location.ledger_id][location.kind]
        else:
            self.put(location.kind, location.ledger_id, body, Space.RETIREMENT)

    def _read(self, sequence: int, location: KeptLocation) -> bytes | None:
        if location.lsn > self._journal.durable_lsn:
            return self._on_their_way[location.lsn]
        offset = location.offset8 * OFFSET_UNIT
        seed = self._segments[sequence].seed
        what = "a kept record has a wrong checksum and is not copied"
        for read in (self._files.read_at, self._files.read_uncached):
            try:
                data = read(sequence, offset, RECORD_HEADER_BYTES + location.body_bytes)
            except OSError as error:
                if is_shortage(error):
                    raise shortage(self._files.directory, error) from error
                what = f"a kept record cannot be read: {error.strerror or error}"
                continue
            header = decode_record_header(data, offset, seed)
            body = data[RECORD_HEADER_BYTES:]
            if header is not None and header.lsn == location.lsn and crc32c(body) == header.body_checksum:
                return body
        self._damaged(Damage(str(self._files.path(sequence)), offset, location.ledger_id, -1, -1, what))
        return None
