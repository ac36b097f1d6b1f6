"""What compaction puts: runs that keep their LSN, and what is damaged of those that do not verify.

Source: `docs/formats/segment.md`, "Relocated runs", "Damaged intervals".
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.storage.damages import Damages
from quire.storage.formats.footer_format import OFFSET_UNIT, Row, RowFlag
from quire.storage.formats.record_bodies import DamagedInterval, encode_damaged
from quire.storage.formats.segment_format import RecordFlag, SegmentRecordKind
from quire.storage.index import RecentRuns, RunPiece
from quire.storage.journal import IdsOfRecord, Journal
from quire.storage.segments.findings import Damage
from quire.storage.segments.segment_files import SegmentFiles, Space
from quire.storage.states import States
from quire.wire.run import RunView, count_ids


class Relocator:
    """Puts what is relocated, and notes where it is found from then on.

    Args:
        journal: where it goes.
        states: all ledgers.
        recent: bodies in memory.
        files: the segments' files.
        damages: what is damaged.
    """

    def __init__(
        self, journal: Journal, states: States, recent: RecentRuns, files: SegmentFiles, damages: Damages
    ) -> None:
        self._journal = journal
        self._states = states
        self._recent = recent
        self._files = files
        self._damages = damages

    def _token(self, ledger_id: int) -> int:
        ledger = self._states.get(ledger_id)
        return 0 if ledger is None or ledger.facts is None else ledger.facts.token

    def put_run(self, run: RunView, piece: RunPiece, space: Space) -> None:
        """Put a run, or what is left of one, that keeps its LSN. Raises StorageError when it cannot be taken."""
        row, body = piece.row, run.body
        recovery = row.flags & RowFlag.RECOVERY
        segment, offset, place_lsn = self._journal.put(
            SegmentRecordKind.RUN,
            row.ledger_id,
            body,
            space,
            run,
            token=self._token(row.ledger_id),
            flags=RecordFlag.RELOCATED | (RecordFlag.RECOVERY if recovery else 0),
            relocated_lsn=row.lsn,
        )
        assert segment.table is not None
        segment.table.add_relocated(
            Row(
                row.ledger_id, row.origin_term, run.first, run.last, row.lsn, offset // OFFSET_UNIT, len(body), run.count,
                run.period, recovery, run.digest_type, SegmentRecordKind.RUN, run.stripes,
            )
        )  # fmt: skip
        self._recent.add(segment.sequence, offset, body, place_lsn)

    def put_damaged(self, piece: RunPiece, intervals: Sequence[tuple[int, int]], space: Space) -> None:
        """Journal that ids of a run are damaged, before its segment is freed. Raises StorageError as `put_run`."""
        row = piece.row
        for first, last in intervals:
            body = encode_damaged([DamagedInterval(first, last, row.origin_term, row.lsn)])
            segment, offset, _ = self._journal.put(
                SegmentRecordKind.DAMAGED,
                row.ledger_id,
                body,
                space,
                IdsOfRecord(first, last, row.period, row.stripes, 1),
                token=self._token(row.ledger_id),
                of_stream=row.origin_term > 0,
            )
            assert segment.table is not None
            segment.first_lsn = min(segment.first_lsn, row.lsn)
            segment.table.add_relocated(
                Row(
                    row.ledger_id, row.origin_term, first, last, row.lsn, offset // OFFSET_UNIT, len(body),
                    count_ids(first, last, row.period, row.stripes), row.period, RowFlag.DAMAGED, 0,
                    SegmentRecordKind.DAMAGED, row.stripes,
                )
            )  # fmt: skip
            path = str(self._files.path(segment.sequence))
            what = "damaged in a segment that was freed"
            self._damages.found(Damage(path, offset, row.ledger_id, first, last, what, row.origin_term))
