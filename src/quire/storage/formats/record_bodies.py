"""The bodies of records that are neither runs nor ledger states.

Layouts: `docs/formats/segment.md`, "Records". Bodies were verified by their checksums before they come here; what still
does not fit was written by another version, or is damage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from quire.core.ids import ID_MAX
from quire.storage.formats.segment_format import FormatError
from quire.storage.formats.state_format import StoredLedgerState, encode_state
from quire.wire.entry import Buffer
from quire.wire.layout import Field, FieldUse, Layout

_BOOKIE = FieldUse("bookie", "bookie")
_KEPT = FieldUse("none yet", "none yet")

SEGMENT_LIST: Final = Layout(
    "Segment list (0x86)",
    [
        Field("sequence of the segment before, 0 = none", "Q", _BOOKIE),
        Field("last LSN of that segment", "Q", _BOOKIE),
        Field("ranges of sequences in use", "I", _BOOKIE),
    ],
)
SEQUENCES: Final = Layout(
    "Range of a segment list", [Field("first", "Q", _BOOKIE), Field("last", "Q", _BOOKIE)]
)
UNNAMED_LIMBO: Final = Layout(
    "Unnamed limbo (0x88)",
    [
        Field("ledgers whose state is not newer than this LSN are in limbo", "Q", _BOOKIE),
        Field("1 = ledgers unknown to the bookie may have been here", "B", _BOOKIE),
        Field(
            "LSN of the last loss that cannot be named, 0 = none",
            "Q",
            FieldUse("bookie", "bookie"),
        ),
    ],
)
DAMAGED_INTERVAL: Final = Layout(
    "Damaged interval (0x8B), as often as the record says",
    [
        Field("first id", "q", _BOOKIE),
        Field("last id", "q", _BOOKIE),
        Field("origin term", "Q", _BOOKIE),
        Field("LSN of the record that was damaged", "Q", _BOOKIE),
    ],
)
TOMBSTONE: Final = Layout(
    "Shrunk tombstones (0x8C), as often as the record says",
    [
        Field("ledger", "q", _BOOKIE),
        Field("entries up to this LSN are dead", "Q", _BOOKIE),
    ],
)
RECORD_COPY: Final = Layout(
    "Copy of a metadata record (0x0B), before the record's own bytes",
    [
        Field("version of the record in the metadata store", "q", _KEPT),
        Field("wall clock ms when it was read", "Q", _KEPT),
    ],
)
_COUNT: Final = Layout("Count, before the items of 0x87, 0x8b and 0x8c", [Field("items", "I", _BOOKIE)])
_SEQUENCE: Final = Layout("Retirement (0x87), as often as the record says", [Field("sequence", "Q", _BOOKIE)])
SEGMENTS_MAX: Final = 1 << 20
"""No bookie has more segments: 64 TiB of the usual size."""
TABLES: Final = (SEGMENT_LIST, SEQUENCES, UNNAMED_LIMBO, DAMAGED_INTERVAL, TOMBSTONE, RECORD_COPY)


# --- segments ---------------------------------------------------------------------------------------------------


class SegmentList(NamedTuple):
    """Where the segment before ended, and which segments are in use (ranges of sequences, ends included)."""

    before_sequence: int
    before_last_lsn: int
    ranges: Sequence[tuple[int, int]]


def encode_segment_list(before_sequence: int, before_last_lsn: int, sequences: Sequence[int]) -> bytes:
    """A segment list's body from the sequences in use, ascending."""
    ranges: list[list[int]] = []
    for sequence in sequences:
        if ranges and ranges[-1][1] == sequence - 1:
            ranges[-1][1] = sequence
        else:
            ranges.append([sequence, sequence])
    parts = [SEGMENT_LIST.struct.pack(before_sequence, before_last_lsn, len(ranges))]
    parts += [SEQUENCES.struct.pack(first, last) for first, last in ranges]
    return b"".join(parts)


def decode_segment_list(body: Buffer) -> SegmentList:
    """Read a segment list's body.

    Raises:
        FormatError: its count does not fit its size.
    """
    _check_size("segment list", body, SEGMENT_LIST.size, at_least=True)
    before_sequence, before_last_lsn, count = SEGMENT_LIST.struct.unpack_from(body)
    _check_size("segment list", body, SEGMENT_LIST.size + count * SEQUENCES.size)
    ranges: list[tuple[int, int]] = list(SEQUENCES.struct.iter_unpack(memoryview(body)[SEGMENT_LIST.size :]))
    ends = [end for pair in ranges for end in pair]
    used = sum(last - first + 1 for first, last in ranges)
    if ends != sorted(ends) or used > SEGMENTS_MAX:
        raise FormatError(
            f"a segment list names {used} segments in {count} ranges: ascending, at most {SEGMENTS_MAX}"
        )
    return SegmentList(before_sequence, before_last_lsn, ranges)


def encode_retirement(sequences: Sequence[int]) -> bytes:
    """A retirement's body."""
    return _counted(len(sequences), (_SEQUENCE.struct.pack(sequence) for sequence in sequences))


def decode_retirement(body: Buffer) -> list[int]:
    """The sequences that are retired.

    Raises:
        FormatError: its count does not fit its size.
    """
    return [sequence for (sequence,) in _items("retirement", body, _SEQUENCE)]


# --- losses -----------------------------------------------------------------------------------------------------


class UnnamedLimbo(NamedTuple):
    """What may have been lost without a name.

    Ledgers whose newest state is not above `limbo_through` are in limbo; `unknown`: ledgers that are not known may
    have been here too. `lost_at`: the LSN of the last loss that cannot be named, kept for the life of the
    incarnation, whatever has been settled since.
    """

    limbo_through: int = 0
    unknown: bool = False
    lost_at: int = 0


def encode_unnamed_limbo(limbo: UnnamedLimbo) -> bytes:
    """The body of an unnamed limbo."""
    return UNNAMED_LIMBO.struct.pack(limbo.limbo_through, limbo.unknown, limbo.lost_at)


def decode_unnamed_limbo(body: Buffer) -> UnnamedLimbo:
    """Read the body of an unnamed limbo.

    Raises:
        FormatError: it has another size, or flags that are not known.
    """
    _check_size("unnamed limbo", body, UNNAMED_LIMBO.size)
    limbo_through, flags, lost_at = UNNAMED_LIMBO.struct.unpack(body)
    if flags > 1:
        raise FormatError(f"an unnamed limbo has flags {flags:#x} of a newer version")
    return UnnamedLimbo(limbo_through, bool(flags), lost_at)


class DamagedInterval(NamedTuple):
    """Entries that were stored under an LSN and whose bytes do not match their checksum any more.

    Of those between the ends, as many as the stripes of the record's header say, as of a run.
    """

    first: int
    last: int
    origin_term: int
    lsn: int


def encode_damaged(intervals: Sequence[DamagedInterval]) -> bytes:
    """The body of a record of damaged intervals of one ledger."""
    return _counted(len(intervals), (DAMAGED_INTERVAL.struct.pack(*one) for one in intervals))


def decode_damaged(body: Buffer) -> list[DamagedInterval]:
    """The damaged intervals of one ledger.

    Raises:
        FormatError: the count does not fit the size, or an interval is none.
    """
    found = list(map(DamagedInterval._make, _items("record of damaged intervals", body, DAMAGED_INTERVAL)))
    for one in found:
        if not 0 <= one.first <= one.last <= ID_MAX:
            raise FormatError(f"a record of damaged intervals has {one.first}..{one.last}")
    return found


# --- deleted ledgers, and copies of records ---------------------------------------------------------------------


def encode_tombstones(tombstones: Sequence[tuple[int, int]]) -> bytes:
    """The body of a record of shrunk tombstones, (ledger, LSN through which its entries are dead) each."""
    return _counted(len(tombstones), (TOMBSTONE.struct.pack(*one) for one in tombstones))


def decode_tombstones(body: Buffer) -> list[tuple[int, bytes]]:
    """(ledger, body of its shrunk state) of each tombstone in a record.

    Raises:
        FormatError: the count does not fit the size, or a ledger is none.
    """
    found: list[tuple[int, bytes]] = []
    state, through = b"", -1
    for ledger_id, dead_through in _items("record of tombstones", body, TOMBSTONE):
        if ledger_id < 0:
            raise FormatError(f"a record of tombstones names ledger {ledger_id}")
        if dead_through != through:  # one for all that were written together: there may be very many
            state, through = encode_state(StoredLedgerState(None, dead_through)), dead_through
        found.append((ledger_id, state))
    return found


# --- pieces -----------------------------------------------------------------------------------------------------


def _counted(count: int, items: Iterator[bytes]) -> bytes:
    return _COUNT.struct.pack(count) + b"".join(items)


def _items(what: str, body: Buffer, layout: Layout) -> Iterator[tuple[int, ...]]:
    _check_size(what, body, _COUNT.size, at_least=True)
    (count,) = _COUNT.struct.unpack_from(body)
    _check_size(what, body, _COUNT.size + count * layout.size)
    return layout.struct.iter_unpack(memoryview(body)[_COUNT.size :])


def _check_size(what: str, body: Buffer, size: int, *, at_least: bool = False) -> None:
    if len(body) < size or (len(body) > size and not at_least):
        article = "an" if what[0] in "aeiou" else "a"
        raise FormatError(f"{article} {what} has {len(body)} bytes where {size} belong")
