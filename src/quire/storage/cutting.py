"""Parts of runs: how much of one fits into a response, and its body cut to that.

Source: docs/decisions/029-single-reads.md; `docs/formats/run.md`.
"""

from __future__ import annotations

from bisect import bisect_right

from quire.storage.formats.footer_format import Row
from quire.wire.entry import HEADER, HEADER_BYTES, TERM_HEADER_BYTES, TERM_IDENTITY, Buffer
from quire.wire.run import RUN_HEADER_BYTES, RunView, count_ids, encode_run
from quire.wire.stored_record import RecordHeader, decode_record_header


def header_of(data: bytes, row: Row, seed: int) -> RecordHeader | None:
    """The header of the record that the bytes begin with, if it is the very one that a row names."""
    header = decode_record_header(data, row.offset, seed)
    if (
        header is not None
        and header.ledger_id == row.ledger_id
        and header.first == row.first
        and header.last == row.last
        and header.lsn == row.lsn
        and header.origin_term == row.origin_term
        and header.body_bytes == row.body_bytes
    ):
        return header
    return None


def fitting_part(run: RunView, low: int, high: int, left: int, *, more: bool) -> tuple[int, int, int]:
    """(first position, position behind the last, the id up to which they reach) of the entries that fit.

    One always does unless there is `more` in the response already; then the id may be below `low`.
    """
    start = count_ids(run.first, low - 1, run.period, run.residues) if low > run.first else 0
    end = count_ids(run.first, high, run.period, run.residues)
    offsets = run.offsets()

    def size_through(position: int) -> int:
        return RUN_HEADER_BYTES + offsets[position + 1] - offsets[start] + 4 * (position + 1 - start)

    fitting = bisect_right(range(start, end), left, key=size_through) + start
    if fitting == end:
        return start, end, high
    if fitting == start:
        if more:
            return start, start, low - 1
        fitting += 1
    return start, fitting, high if fitting == end else run.ids()[fitting - 1]


def cut_run(run: RunView, start: int, end: int, entries: Buffer) -> bytes:
    """The body of some positions of a run."""
    ids = run.ids()[start:end]
    residues = 1
    if run.period > 1:
        residues = sum({1 << entry_id % run.period for entry_id in ids})
    return encode_run(
        run.ledger_id,
        ids[0],
        ids[-1],
        [entries],
        run.sizes[start:end],
        digest_type=run.digest_type,
        period=run.period,
        residues=residues,
        origin_term=run.origin_term,
        scheme=run.scheme,
    )


def part_of(run: RunView, start: int, end: int) -> RunView:
    """The run of some positions of a run whose entries are all there."""
    offsets = run.offsets()
    return RunView.parse(cut_run(run, start, end, memoryview(run.body)[offsets[start] : offsets[end]]))


def is_entry(entry: Buffer, row: Row, entry_id: int) -> bool:
    """Whether an entry's header is that of an entry of a row."""
    if not row.origin_term:
        return len(entry) >= HEADER_BYTES and HEADER.unpack_from(entry)[:2] == (row.ledger_id, entry_id)
    identity = row.ledger_id, entry_id, row.origin_term
    return len(entry) >= TERM_HEADER_BYTES and TERM_IDENTITY.unpack_from(entry) == identity
