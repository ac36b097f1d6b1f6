"""Entries on their way to a bookie that should hold them: made into runs again, sent as recovery adds.

Used by recovery (entries to write back) and by the repair of a replica.

Source: BookKeeper protocol, "Closing a ledger as a reader": "replicating all entries it sees".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from quire.client.access import LedgerAccess
from quire.wire.entry import NO_OP, Buffer, Entry, NoOp
from quire.wire.run import SCHEME_PLAIN, SCHEME_TERMS, checksum, encode_run


class Copies(NamedTuple):
    """One run of recovered entries, ready to be written back."""

    first: int
    last: int
    body: bytes
    body_crc: int


def copies(
    entries: Iterable[Entry],
    access: LedgerAccess,
    bytes_max: int,
    *,
    period: int = 1,
    stripes: int = 1,
    lac: int | None = None,
    origin_term: int = 0,
) -> Iterator[Copies]:
    """Entries as runs of at most about `bytes_max`.

    Args:
        entries: by ascending id; a gap begins another run.
        access: the ledger's.
        bytes_max: a run is cut before it would grow larger; one entry at least.
        period: 1, or the ensemble size of a striped ledger.
        stripes: with a period above 1, the stripes that the bookie stores; other entries are left out.
        lac: the LAC for all headers; None keeps the one that each entry was found with.
        origin_term: of a stream: the term in which all of them were written, which stays theirs.

    Yields:
        Runs with the entries' ids, lengths and payloads as they were found.
    """
    group: list[Entry] = []
    size, expected = 0, -1
    for entry in entries:
        entry_id = entry.entry_id
        if period > 1 and not stripes >> entry_id % period & 1:
            continue
        if group and (_has_gap(expected, entry_id, period, stripes) or size + len(entry.payload) > bytes_max):
            yield _run(group, access, period, stripes, lac, origin_term)
            group, size = [], 0
        group.append(entry)
        size += len(entry.payload) + access.digest.overhead
        expected = entry_id + 1
    if group:
        yield _run(group, access, period, stripes, lac, origin_term)


def _has_gap(expected: int, entry_id: int, period: int, stripes: int) -> bool:
    """Whether an id of these stripes lies between two entries, so that they cannot be one run."""
    if period == 1:
        return entry_id != expected
    return entry_id - expected >= period or any(
        stripes >> skipped % period & 1 for skipped in range(expected, entry_id)
    )


def _run(
    group: Sequence[Entry],
    access: LedgerAccess,
    period: int,
    stripes: int,
    lac: int | None,
    origin_term: int,
) -> Copies:
    buffers: list[Buffer] = []
    sizes: list[int] = []
    digest = access.digest
    seal_one = partial(digest.seal_with_term, origin_term=origin_term) if origin_term else digest.seal_one
    seal_no_op = partial(digest.seal_with_term, origin_term=origin_term, flags=NO_OP)
    for entry in group:
        ledger_id, entry_id, found_lac, length, payload = entry
        seal = seal_no_op if type(entry) is NoOp else seal_one
        header = seal(ledger_id, entry_id, found_lac if lac is None else lac, length, payload)
        buffers += (header, payload)
        sizes.append(len(header) + len(payload))
    first, last = group[0].entry_id, group[-1].entry_id
    if period > 1:
        # A run names only stripes that it has entries of.
        stripes = sum({1 << entry.entry_id % period for entry in group})
    body = encode_run(
        access.ledger_id,
        first,
        last,
        buffers,
        sizes,
        digest_type=access.digest.digest_type,
        period=period,
        stripes=stripes,
        origin_term=origin_term,
        scheme=SCHEME_TERMS if origin_term else SCHEME_PLAIN,
    )
    return Copies(first, last, body, checksum(body))
