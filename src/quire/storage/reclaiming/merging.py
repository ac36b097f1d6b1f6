"""Merging relocated runs: what lives of a ledger in a sparse segment lies in many short runs, and is put again in few.

A merged run bears the highest LSN of its pieces. That is right because each piece holds its ids: what another run holds
with a higher LSN is in no piece, and what is put meanwhile has a higher one than all in a sealed segment. A drop up to an LSN
is made only when nothing of the ledger was put since, so it reaches all of a merged run or, of one that is younger, nothing; but
not a truncation, which takes entries of lower origin terms up to the LSN of the newest of them. So nothing is merged across the
LSN at which the ledger's term was taken: what was put before it never gets an LSN as high as what was put in the term. Pieces that
wait while the ledger loses something are taken back, and looked for again.

Source: docs/decisions/036-compaction-through-the-journal.md; `docs/formats/segment.md`, "Relocated runs".
"""

from __future__ import annotations

from typing import Final

from quire.storage.formats.footer_format import Row, RowFlag
from quire.storage.index import RunPiece
from quire.wire.run import RunView, count_ids, encode_run

MERGED_BYTES_MAX: Final = 1 << 20
"""Runs are merged up to this size, or to the `SEGMENT_SHARE`th part of a small segment."""
SEGMENT_SHARE: Final = 8
MERGED_RUNS_MAX: Final = 1024
"""So many runs become one at most: more would hold the loop for several milliseconds."""


def may_merge(one: Row, other: Row, term_lsn: int) -> bool:
    """Whether runs with these rows may become one, as far as their LSNs and origins say.

    Args:
        one, other: of one ledger.
        term_lsn: of the last record before the ledger's term was taken: what lies on its two sides keeps its order.
    """
    assert one.ledger_id == other.ledger_id
    if one.origin_term != other.origin_term or (one.lsn <= term_lsn) != (other.lsn <= term_lsn):
        return False
    return one.flags & RowFlag.RECOVERY == other.flags & RowFlag.RECOVERY


def merged_lsn(pieces: list[RunPiece]) -> int:
    """The LSN that a run of these pieces bears."""
    return max(piece.row.lsn for piece in pieces)


class Merging:
    """Pieces of one ledger that follow one another, and what is left of their runs.

    Args:
        bytes_max: how long the merged run may become.

    Attributes:
        pieces: those that were found, by ascending id.
        runs: what lives of each, cut.
    """

    __slots__ = ("_bytes", "_bytes_max", "_count", "_stripes", "pieces", "runs")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.pieces: list[RunPiece] = []
        self.runs: list[RunView] = []
        self._bytes = self._count = self._stripes = 0

    @property
    def first(self) -> int:
        """The lowest id of the pieces that are here."""
        return self.pieces[0].first

    def fits(self, piece: RunPiece, run: RunView, term_lsn: int) -> bool:
        """Whether a run is the next one of those that are here."""
        if not self.runs:
            return True
        first, before = self.runs[0], self.runs[-1]
        if (
            self._bytes + len(run.body) > self._bytes_max
            or len(self.runs) == MERGED_RUNS_MAX
            or (run.period, run.scheme, run.digest_type) != (first.period, first.scheme, first.digest_type)
            or not all(may_merge(one.row, piece.row, term_lsn) for one in (self.pieces[0], self.pieces[-1]))
        ):
            return False
        # The ids of a run are all of its stripes between its ends.
        count = count_ids(first.first, run.last, run.period, self._stripes | run.stripes)
        return run.first > before.last and count == self._count + run.count

    def add(self, piece: RunPiece, run: RunView) -> None:
        """Take a run that fits."""
        self.pieces.append(piece)
        self.runs.append(run)
        self._bytes += len(run.body)
        self._count += run.count
        self._stripes |= run.stripes

    def clear(self) -> None:
        """Forget all of them."""
        self.pieces, self.runs = [], []
        self._bytes = self._count = self._stripes = 0

    def merged(self) -> tuple[RunView, RunPiece]:
        """One run of all of them, and a piece that bears its LSN."""
        piece = self.pieces[0]
        return joined_run(self.runs), piece._replace(row=piece.row._replace(lsn=merged_lsn(self.pieces)))


def joined_run(runs: list[RunView]) -> RunView:
    """The run of the entries of runs that follow one another."""
    if len(runs) == 1:
        return runs[0]
    first = runs[0]
    stripes = 0
    entries: list[memoryview] = []
    sizes: list[int] = []
    for run in runs:
        offsets = run.offsets()
        entries.append(memoryview(run.body)[offsets[0] : offsets[-1]])
        sizes += run.sizes
        stripes |= run.stripes
    return RunView.parse(
        encode_run(
            first.ledger_id,
            first.first,
            runs[-1].last,
            entries,
            sizes,
            digest_type=first.digest_type,
            period=first.period,
            stripes=stripes,
            origin_term=first.origin_term,
            scheme=first.scheme,
        )
    )
