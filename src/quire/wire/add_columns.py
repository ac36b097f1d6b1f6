"""Adds of V2 and V3 by the hundred: frames of one size are taken apart, and put together, column by column.

What the interpreter would do for each entry is one call for all of them. Where anything does not fit, the caller looks
at each frame by itself, with `v2.py` and `v3.py`. Pure functions.

Layouts: `docs/formats/bookkeeper-protocol.md`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from quire.wire import v2, v3
from quire.wire.bookkeeper import ENTRY_BYTES_MIN
from quire.wire.entry import HEADER_BYTES, Buffer
from quire.wire.run import RunView

COLUMNS_MIN: Final = 4
"""Fewer frames than these are not worth it."""
_HIGH: Final = bytes(range(0x80, 0x100))
_FIELDS: Final = 4


class Adds(NamedTuple):
    """Adds of one ledger from one sender, as they came.

    Attributes:
        version: of V2's packets, None in V3.
        entry_ids: ascending.
        lac: the highest that an entry's header says, of those that it may say: what is below the entry itself.
        txns: V3's transaction ids as they stand in the frames, empty in V2.
    """

    version: int | None
    ledger_id: int
    key: bytes
    recovery: bool
    entry_ids: Sequence[int]
    entries: Sequence[bytes]
    lac: int
    txns: Sequence[bytes]


def take_v2(data: Buffer, starts: range) -> Adds | None:
    """ADDs of one ledger with one key, whose frames have one size; None if they are not all that.

    Args:
        data: a chunk.
        starts: where the frames begin in it, all of the same size.
    """
    at, size, count = starts.start, starts.step, len(starts)
    _, header = v2.HEAD.unpack_from(data, at)
    version, opcode, flags = v2.split_packet_header(header)
    if opcode != v2.Op.ADD or version > v2.VERSION or size < v2.ADD_ENTRY_AT + ENTRY_BYTES_MIN:
        return None
    columns = struct.unpack_from(f"{v2.ADD_ENTRY_AT}s{size - v2.ADD_ENTRY_AT}s" * count, data, at)
    heads = columns[0::2]
    if heads.count(heads[0]) != count:
        return None
    found = _headers(data, starts, v2.ADD_ENTRY_AT)
    if found is None:
        return None
    ledger_id, entry_ids, lac = found
    recovery = bool(flags & v2.V2Flag.RECOVERY_ADD)
    return Adds(version, ledger_id, heads[0][8:], recovery, entry_ids, columns[1::2], lac, ())


def take_v3(data: Buffer, starts: range) -> Adds | None:
    """ADD_ENTRYs of one ledger with one key, in Java's layout, whose frames have one size; None if they are not all that.

    Args:
        data: a chunk.
        starts: where the frames begin in it, all of the same size.
    """
    at, size, count = starts.start, starts.step, len(starts)
    first = v3.places_of_add(data, at)
    if first is None or first.body_end - first.body_at < ENTRY_BYTES_MIN:
        return None
    cuts = (first.txn_at, first.txn_end, first.entry_at, first.entry_end, first.body_at, first.body_end)
    sizes = [end - start for start, end in pairwise((at, *cuts, at + size))]
    columns = struct.unpack_from("".join([f"{part}s" for part in sizes]) * count, data, at)
    same = [columns[index :: len(sizes)] for index in (0, 2, 4, 6)]
    if any(column.count(column[0]) != count for column in same):
        return None
    txns, numbers = columns[1 :: len(sizes)], columns[3 :: len(sizes)]
    found = _headers(data, starts, first.body_at - at)
    if found is None or found[0] != first.ledger_id or not _are_numbers(b"".join(txns), sizes[1]):
        return None
    ledger_id, entry_ids, lac = found
    if v3.numbers(entry_ids) != list(numbers):
        return None
    return Adds(None, ledger_id, first.key, first.recovery, entry_ids, columns[5 :: len(sizes)], lac, txns)


def _headers(data: Buffer, starts: range, at: int) -> tuple[int, Sequence[int], int] | None:
    """(ledger id, entry ids, LAC) of entries that begin so far into each frame; None if they do not go together."""
    count = len(starts)
    rest = starts.step - at - HEADER_BYTES
    fields: tuple[int, ...] = struct.unpack_from(">" + f"{at}x4q{rest}x" * count, data, starts.start)
    ledger_id, ids, lacs = fields[0], fields[1::_FIELDS], fields[2::_FIELDS]
    first = ids[0]
    if (
        ledger_id < 0
        or first < 0
        or min(fields[3::_FIELDS]) < 0
        or fields[0::_FIELDS].count(ledger_id) != count
    ):
        return None
    entry_ids: Sequence[int] = range(first, first + count)
    if ids != tuple(entry_ids):
        entry_ids = ids
        if any(high <= low for low, high in pairwise(ids)):
            return None
    # No writer has confirmed the entry that it is sending; who says otherwise is not believed beyond it.
    lac = max(lacs)
    if lac >= first:
        lac = max(min(one, entry_id - 1) for one, entry_id in zip(lacs, ids, strict=True))
    return ledger_id, entry_ids, lac


def _are_numbers(joined: bytes, size: int) -> bool:
    """Whether these are protobuf's numbers of so many bytes each, one after another, and none of them is too large."""
    last = joined[size - 1 :: size]
    return size < 10 and last.isascii() and not any(
        joined[index::size].translate(None, _HIGH) for index in range(size - 1)
    )  # fmt: skip


def encode_v2(run: RunView, key: bytes, flags: int) -> bytes:
    """The ADDs of a run's entries, one after another."""
    v2.check_key(key)
    header = v2.packet_header(v2.VERSION, v2.Op.ADD, flags)
    entries = _entries(run)
    heads = {
        size: v2.HEAD.pack(v2.ADD_ENTRY_AT - 4 + size, header) + key for size in dict.fromkeys(run.sizes)
    }
    if len(heads) == 1:
        head = heads[run.sizes[0]]
        return head + head.join(entries)
    return _interleaved([heads[size] for size in run.sizes], entries)


def encode_v3(txn_id: int, run: RunView, key: bytes, *, recovery: bool, priority: int) -> bytes:
    """The ADD_ENTRYs of a run's entries, with transaction ids from `txn_id` on."""
    count, sizes = run.count, run.sizes
    txns, numbers = v3.numbers(range(txn_id, txn_id + count)), v3.numbers(run.ids())

    def around(txn_size: int, entry_id_size: int, body_size: int) -> tuple[bytes, bytes, bytes, bytes]:
        return v3.around_add(
            txn_size, entry_id_size, body_size, run.ledger_id, key, recovery=recovery, priority=priority
        )

    # Both numbers ascend, so that their first and last have the fewest and the most bytes.
    alike = len(txns[0]) == len(txns[-1]) and len(numbers[0]) == len(numbers[-1])
    if alike and sizes.count(sizes[0]) == count:
        before, between, behind, end = around(len(txns[0]), len(numbers[0]), sizes[0])
        return _interleaved(
            [before] * count, txns, [between] * count, numbers, [behind] * count, _entries(run), [end] * count
        )
    shapes = list(zip(map(len, txns), map(len, numbers), sizes, strict=True))
    fixed = {shape: around(*shape) for shape in dict.fromkeys(shapes)}
    befores, betweens, behinds, ends = zip(*[fixed[shape] for shape in shapes], strict=True)
    return _interleaved(befores, txns, betweens, numbers, behinds, _entries(run), ends)


def _entries(run: RunView) -> Sequence[bytes]:
    sizes = run.sizes
    alike = sizes.count(sizes[0]) == len(sizes)
    layout = f"{sizes[0]}s" * len(sizes) if alike else "".join([f"{size}s" for size in sizes])
    return struct.unpack_from(layout, run.body, len(run.body) - sum(sizes))


def _interleaved(*columns: Sequence[Buffer]) -> bytes:
    """The first of each column, then the second of each, and so on."""
    parts: list[Any] = [b""] * (len(columns) * len(columns[0]))
    for index, column in enumerate(columns):
        parts[index :: len(columns)] = column
    return b"".join(parts)
