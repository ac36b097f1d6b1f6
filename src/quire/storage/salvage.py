"""What of a run whose body does not verify still does: its entries have digests of their own.

Compaction carries over those that verify, and journals the others as damaged, so that the segment can be given back.

Source: docs/decisions/040-damage-is-carried.md; `docs/formats/segment.md`, "Damaged intervals".
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final, NamedTuple

from quire.core.errors import DigestMismatchError, MalformedFrameError
from quire.core.ledger.metadata import DigestType
from quire.storage.cutting import is_entry, part_of
from quire.storage.formats.footer_format import Row
from quire.wire.entry import Buffer, EntryDigest
from quire.wire.run import SCHEME_PLAIN, RunView, count_ids, ids_in

CHECKED_DIGESTS: Final = frozenset({DigestType.CRC32, DigestType.CRC32C})
"""Digests that a bookie can verify without the ledger's password."""


class Salvage(NamedTuple):
    """What is left of the wanted ids of a run.

    Attributes:
        runs: of the entries that verify, ascending.
        damaged: (first, last) of the others; between the ends are the ids of the run's residues.
    """

    runs: Sequence[RunView]
    damaged: Sequence[tuple[int, int]]


def ends_of(row: Row, low: int, high: int) -> tuple[int, int] | None:
    """The lowest and the highest id of a row within low..high; None if it has none there."""
    low, high = max(low, row.first), min(high, row.last)
    first = next(iter(ids_in(low, min(high, low + row.period - 1), row.period, row.residues)), None)
    if first is None:
        return None
    return first, ids_in(max(low, high - row.period + 1), high, row.period, row.residues)[-1]


def positions_of(row: Row, low: int, high: int) -> tuple[int, int]:
    """Positions start:end of the ids low..high in the run of a row."""
    low, high = max(low, row.first), min(high, row.last)
    start = count_ids(row.first, low - 1, row.period, row.residues) if low > row.first else 0
    return start, max(start, count_ids(row.first, high, row.period, row.residues)) if high >= low else start


def salvage(body: Buffer, row: Row, low: int, high: int) -> Salvage:
    """Look at each entry of low..high in the body of a run that as a whole does not verify.

    Args:
        body: what lies on the disk; its record's header verifies.
        row: of the run.
        low: lowest id of interest.
        high: highest id of interest.
    """
    ends = ends_of(row, low, high)
    if ends is None:
        return Salvage((), ())
    everything = Salvage((), (ends,))
    if row.digest_type not in CHECKED_DIGESTS:  # or none at all: an old client's, before the type was known
        return everything
    try:
        run = RunView.parse_table(body)
    except MalformedFrameError:
        return everything
    if (run.ledger_id, run.first, run.last, run.count) != (row.ledger_id, row.first, row.last, row.entries):
        return everything
    ids, offsets, view = run.ids(), run.offsets(), memoryview(body)
    digest = EntryDigest(DigestType(row.digest_type), b"")

    def verifies(position: int) -> bool:
        entry = view[offsets[position] : offsets[position + 1]]
        if not is_entry(entry, row, ids[position]):
            return False
        opened = digest.open if run.scheme == SCHEME_PLAIN else digest.open_with_term
        try:
            opened(entry, row.ledger_id, ids[position])
        except (MalformedFrameError, DigestMismatchError):
            return False
        return True

    runs: list[RunView] = []
    damaged: list[tuple[int, int]] = []
    for good, group in groupby(range(*positions_of(row, *ends)), key=verifies):
        positions = list(group)
        start, end = positions[0], positions[-1] + 1
        if good:
            runs.append(part_of(run, start, end))
        else:
            damaged.append((ids[start], ids[end - 1]))
    return Salvage(runs, damaged)
