"""What BookKeeper's two protocols, V2 and V3, share: frames, status codes, and the list of a ledger's entries.

A frame is a u32 length and as many bytes. Layouts: `docs/formats/bookkeeper-protocol.md`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final

from quire.core.answers import Answer
from quire.core.errors import MalformedFrameError
from quire.core.ids import ENSEMBLE_MAX, ID_MAX
from quire.wire.entry import Buffer
from quire.wire.run import count_ids

FRAME_BYTES_MAX: Final = 5_253_120
"""Longest frame by default, its length field included: 5 MiB and 10 KiB, as Pulsar sets bookies and clients of Java.

Java's own default is 5 MiB. Both are its `nettyMaxFrameSizeBytes`.
"""
ENTRY_BYTES_MIN: Final = 32
"""No digest makes an entry shorter than its header; the Java product takes 24 bytes, which cannot be read back."""
KEY_BYTES: Final = 20
LAST_ENTRY: Final = -1
"""As the entry of a read: the last one that is stored."""
AUTH_DISABLED: Final = "AuthDisabledPlugin"
"""The plugin that a bookie without authentication names in its response."""

_LENGTH = struct.Struct(">I")
_LIST_HEADER = struct.Struct(">II56x")
_GROUP = struct.Struct(">qqii")
_STRETCHES_LISTED_MAX: Final = 1 << 16
"""So many stretches are unpacked from groups that stand for several, which no known bookie writes."""

_STRETCH_MIN: Final = 4
"""Fewer frames of one size are not a stretch."""
_PERIODS: Final = range(2, 17)
"""Ensemble sizes that are looked for in the ids of a chunk."""
_STRIPES_MIN: Final = 4
"""Fewer entries than this are not worth looking."""

# (V2, V3) codes of each response. "Unknown" is 107 in V2's list, but a Java client closes the connection on it.
_CODES: Final[dict[Answer, tuple[int, int]]] = {
    Answer.OK: (0, 0),
    Answer.NO_LEDGER: (1, 402),
    Answer.NO_ENTRY: (2, 403),
    Answer.BAD_REQUEST: (100, 404),
    Answer.ERROR: (101, 501),
    Answer.DAMAGED_IN_TRANSIT: (101, 501),
    Answer.UNKNOWN: (101, 507),
    Answer.DAMAGED: (101, 507),
    Answer.UNAUTHORISED: (102, 502),
    Answer.WRONG_TOKEN: (102, 502),
    Answer.WRONG_BOOKIE: (102, 502),
    Answer.FENCED: (104, 504),
    Answer.DELETED: (104, 504),
    Answer.INVALID_TERM: (104, 504),
    Answer.READ_ONLY: (105, 505),
    Answer.TOO_BUSY: (106, 506),
}
BAD_VERSION: Final = (103, 503)
_V2_ANSWERS: Final = {
    0: Answer.OK, 1: Answer.NO_LEDGER, 2: Answer.NO_ENTRY, 100: Answer.BAD_REQUEST, 101: Answer.ERROR,
    102: Answer.UNAUTHORISED, 103: Answer.BAD_REQUEST, 104: Answer.FENCED, 105: Answer.READ_ONLY,
    106: Answer.TOO_BUSY, 107: Answer.UNKNOWN,
}  # fmt: skip
_V3_ANSWERS: Final = {
    0: Answer.OK, 402: Answer.NO_LEDGER, 403: Answer.NO_ENTRY, 404: Answer.BAD_REQUEST, 501: Answer.ERROR,
    502: Answer.UNAUTHORISED, 503: Answer.BAD_REQUEST, 504: Answer.FENCED, 505: Answer.READ_ONLY,
    506: Answer.TOO_BUSY, 507: Answer.UNKNOWN,
}  # fmt: skip


def v2_code(answer: Answer) -> int:
    """The error code of V2."""
    return _CODES[answer][0]


def v3_code(answer: Answer) -> int:
    """The status of V3."""
    return _CODES[answer][1]


def v2_answer(code: int) -> Answer:
    """What a bookie's V2 error code says; a code that is not known says no more than that it failed."""
    return _V2_ANSWERS.get(code, Answer.ERROR)


def v3_answer(status: int) -> Answer:
    """What a bookie's V3 status says."""
    return _V3_ANSWERS.get(status, Answer.ERROR)


def whole_frames(data: Buffer, frame_bytes_max: int = FRAME_BYTES_MAX) -> tuple[list[Sequence[int]], int]:
    """The whole frames at the start of a buffer, in order, and where the first one begins that is cut or too long.

    Args:
        data: the buffer.
        frame_bytes_max: longest frame, its length field included.

    Returns:
        Where each begins: a `range` for each stretch of frames of one size, its step, and lists for what is between.

    Raises:
        MalformedFrameError: a length that is too short for a frame.
    """
    stretches: list[Sequence[int]] = []
    loose: list[int] = []
    at, end, before = 0, len(data), 0
    unpack = _LENGTH.unpack_from
    while end - at >= 4:
        size: int = unpack(data, at)[0] + 4
        if not 8 <= size <= frame_bytes_max:
            if size < 8:
                msg = f"a frame of {size} bytes: V2 and V3 frames have 8 at least, with their length field"
                raise MalformedFrameError(msg)
            break
        if size > end - at:
            break
        if size == before:
            # The second of its size: with the first, the beginning of a stretch, if there are more.
            start = loose[-1]
            alike = _alike(data, start, size)
            if alike >= _STRETCH_MIN:
                loose.pop()
                if loose:
                    stretches.append(loose)
                    loose = []
                at = start + alike * size
                stretches.append(range(start, at, size))
                before = 0
                continue
        loose.append(at)
        before = size
        at += size
    if loose:
        stretches.append(loose)
    return stretches, at


def _alike(data: Buffer, start: int, size: int) -> int:
    """How many whole frames of one size stand one after another from an offset on; the first is known to be one.

    Looks further only while all fit, so that no client can make it look often at what does not.
    """
    view = memoryview(data)
    length = bytes(view[start : start + 4])
    most = (len(view) - start) // size
    count, step = 1, _STRETCH_MIN
    while count < most:
        step = min(step, most - count)
        at, end = start + count * size, start + (count + step) * size
        found = step
        for index in range(4):
            column = view[at + index : end : size].tobytes()
            found = min(found, len(column) - len(column.lstrip(length[index : index + 1])))
        count += found
        if found < step:
            break
        step *= 8
    return count


def run_shapes(ids: Sequence[int], likely_period: int = 1) -> list[tuple[int, int, int, int]]:
    """How entries that came one by one fit into runs.

    Args:
        ids: ascending.
        likely_period: looked for first: an ensemble size that fitted before.

    Returns:
        (start, end, period, stripes) of the positions that make a run each: one for consecutive ids or for a regular
        part of them, else one for each consecutive stretch.
    """
    first, last, count = ids[0], ids[-1], len(ids)
    if last - first + 1 == count:
        return [(0, count, 1, 1)]
    if count >= _STRIPES_MIN:
        for period in (likely_period, *_PERIODS):
            stripes = sum({1 << entry_id % period for entry_id in ids})
            if period > 1 and count_ids(first, last, period, stripes) == count:
                return [(0, count, period, stripes)]
    shapes: list[tuple[int, int, int, int]] = []
    start = 0
    for position in range(1, count + 1):
        if position == count or ids[position] != ids[position - 1] + 1:
            shapes.append((start, position, 1, 1))
            start = position
    return shapes


def encode_entry_list(intervals: Iterable[tuple[int, int, int, int]]) -> bytes:
    """The ids that a bookie holds, as GET_LIST_OF_ENTRIES_OF_LEDGER answers them.

    Args:
        intervals: (first, last, period, stripes) each, ascending and disjoint, as `LedgerStorage.held` has them.

    Returns:
        A header of 64 bytes (version 0, number of groups) and 24 bytes for each group of equal stretches.
    """
    groups: list[tuple[int, int, int, int]] = []
    for first, last, period, stripes in intervals:
        if period == 1:
            groups += _stretches(first, last)
            continue
        for low, high in _stretches_of(stripes, period):
            # Ids whose stripe is in low..high; the stretches at either end may be cut by first and last.
            start = first - first % period + low
            for begin, size in _striped(start, high - low + 1, period, first, last):
                groups.append((*begin, size, period if begin[0] != begin[1] else 0))
    groups.sort()
    return _LIST_HEADER.pack(0, len(groups)) + b"".join(_GROUP.pack(*group) for group in groups)


def _stretches(first: int, last: int) -> list[tuple[int, int, int, int]]:
    """Consecutive ids as groups; a group's size has 31 bits."""
    step = 0x7FFF_FFFF
    return [(at, at, min(step, last - at + 1), 0) for at in range(first, last + 1, step)]


def _stretches_of(stripes: int, period: int) -> list[tuple[int, int]]:
    """The stretches of set bits in a mask, as (low, high)."""
    found: list[tuple[int, int]] = []
    for stripe in range(period):
        if not stripes >> stripe & 1:
            continue
        if found and found[-1][1] == stripe - 1:
            found[-1] = (found[-1][0], stripe)
        else:
            found.append((stripe, stripe))
    return found


def _striped(
    start: int, size: int, period: int, first: int, last: int
) -> Iterable[tuple[tuple[int, int], int]]:
    """((first stretch, last stretch), ids in each) for stretches that repeat with a period, clipped to first..last."""
    count = (last - start) // period + 1
    if count <= 0:
        return
    whole_from, whole_to = start, start + (count - 1) * period
    if whole_from < first:
        left = size - (first - whole_from)
        if left > 0:
            low = min(left, last - first + 1)
            yield (first, first), low
        whole_from += period
    if whole_to >= whole_from and whole_to + size - 1 > last:
        yield (whole_to, whole_to), last - whole_to + 1
        whole_to -= period
    if whole_to >= whole_from:
        yield (whole_from, whole_to), size


def decode_entry_list(data: Buffer) -> list[tuple[int, int, int, int]]:
    """The ids in a response to GET_LIST_OF_ENTRIES_OF_LEDGER.

    Returns:
        Intervals (first, last, period, stripes) by ascending first id; consecutive ids have period and stripes 1.

    Raises:
        MalformedFrameError: another version, cut, groups that are none, or groups that stand for very many stretches.
    """
    if len(data) < _LIST_HEADER.size:
        msg = f"a list of entries of {len(data)} bytes is shorter than its header"
        raise MalformedFrameError(msg)
    version, count = _LIST_HEADER.unpack_from(data)
    if version != 0 or len(data) != _LIST_HEADER.size + count * _GROUP.size:
        msg = f"a list of entries of version {version} with {count} groups does not have {len(data)} bytes"
        raise MalformedFrameError(msg)
    found: list[tuple[int, int, int, int]] = []
    for start, end, size, period in _GROUP.iter_unpack(memoryview(data)[_LIST_HEADER.size :]):
        repeats = 1 if period == 0 else (end - start) // period + 1 if period > 0 else 0
        if (
            not 0 <= start <= end <= ID_MAX - size
            or size < 1
            or repeats < 1
            or (period == 0 and end != start)
            or (repeats > 1 and period < size)
        ):
            msg = f"a list of entries has the group {start}..{end}, size {size}, period {period}"
            raise MalformedFrameError(msg)
        found += _intervals(start, size, period, repeats)
        if len(found) > count + _STRETCHES_LISTED_MAX:
            msg = f"a list of {count} groups of entries has more than {_STRETCHES_LISTED_MAX} stretches in addition"
            raise MalformedFrameError(msg)
    found.sort()
    return _joined(found)


def _intervals(start: int, size: int, period: int, repeats: int) -> Iterable[tuple[int, int, int, int]]:
    """One group: as one interval if it can be, for it may stand for any number of stretches."""
    if repeats == 1 or period == size:
        return [(start, start + (repeats - 1) * period + size - 1, 1, 1)]
    if period <= ENSEMBLE_MAX:
        stripes = sum(1 << (start + i) % period for i in range(size))
        return [(start, start + (repeats - 1) * period + size - 1, period, stripes)]
    starts = range(start, start + min(repeats, _STRETCHES_LISTED_MAX + 2) * period, period)
    return [(at, at + size - 1, 1, 1) for at in starts]


def _joined(intervals: Sequence[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    joined: list[tuple[int, int, int, int]] = []
    for interval in intervals:
        first, last, period, _ = interval
        if joined and period == 1 == joined[-1][2] and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]), 1, 1)
        else:
            joined.append(interval)
    return joined
