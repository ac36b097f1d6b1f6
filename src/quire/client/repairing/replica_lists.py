"""What one bookie says that it holds of a ledger, asked in whatever way that bookie knows.

A bookie of ours lists its entries and says whether it is in limbo. A bookie of Java lists them in V3, but its list may lag
behind what it has acknowledged, and some of its storages have none: what such a list lacks is read, so that what is not
there is denied and not only unlisted. A bookie that answers reads and no list (Java's DbLedgerStorage) is asked for none
again by the same client.

Source: docs/protocol/repair.md, "Listing"; `docs/formats/native-protocol.md`, LIST_ENTRIES and INFO.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Final

from quire.client.access import LedgerAccess
from quire.client.bookies.bookies import BookieClient
from quire.client.reading.copy_check import CopyCheck
from quire.core.answers import NEGATIVES, Answer
from quire.core.ids import BookieId
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.notes import EntryRange
from quire.core.ledger.replica import Replica, ReplicaList, period_of
from quire.core.ledger.stripes import BookieStripes, HeldInterval, Stretch, bookie_stripes, stretches_of
from quire.core.ledger.terms import needs_of

READ_BYTES: Final = 1 << 20
"""So many bytes one low-priority read asks for."""


async def replica_list(
    bookies: BookieClient,
    bookie: BookieId,
    record: LedgerMetadata,
    access: LedgerAccess,
    *,
    stored: Sequence[EntryRange] = (),
    timeout_ms: int,
) -> ReplicaList:
    """Ask a bookie what it holds of a ledger.

    Args:
        bookies: the connections.
        bookie: which is asked.
        record: the ledger's record.
        access: the ledger's.
        stored: what it has acknowledged to this caller, in addition to its stripes.
        timeout_ms: how long it may take for each response.
    """
    if record.terms is not None and bookie in bookies.unable(needs_of(record.terms)):
        return ReplicaList(Answer.UNREACHABLE)  # its program is an older one now, which knows no origin terms
    if bookies.speaks_native(bookie):
        return await _native_list(bookies, bookie, access, timeout_ms)
    answer, held = Answer.TIMED_OUT, list[HeldInterval]()
    if bookie not in bookies.without_lists:
        answer, held = await bookies.list_entries(bookie, access, timeout_ms=timeout_ms)
        if answer is Answer.UNREACHABLE:
            return ReplicaList(answer)
    listed = answer is Answer.OK or answer in NEGATIVES
    found = ReplicaList(Answer.OK, tuple(_by_stripes(held, period_of(record))))
    ids: list[int] = []
    to_read = _unlisted(found, [*stored, *_expected(record, bookie, everything=not listed)])
    if answer is Answer.TIMED_OUT and not to_read and bookie not in bookies.without_lists:
        return ReplicaList(answer)
    check = CopyCheck(bookies, access, READ_BYTES, timeout_ms, low_priority=True)
    for first, last in to_read:
        said, some = await _read_ids(check, bookie, first, last)
        if said is not Answer.OK:
            return ReplicaList(said)
        ids += some
    if answer is Answer.TIMED_OUT:  # it answers reads, and no list
        bookies.without_lists.add(bookie)
    return ReplicaList(Answer.OK, (*found.held, *_intervals(ids)))


def limbo_lsn(info: dict[str, Any]) -> int:
    """The LSN of a ledger's limbo in what a bookie says of it; 0 where it names none."""
    lsn = info.get("doubt_lsn")
    return lsn if isinstance(lsn, int) and 0 <= lsn < 1 << 64 else 0


async def _native_list(
    bookies: BookieClient, bookie: BookieId, access: LedgerAccess, timeout_ms: int
) -> ReplicaList:
    """The limbo is asked for before the list: a loss that comes between them is not ended by what the list says."""
    known, (answer, info) = await asyncio.gather(
        bookies.read_lac(bookie, access, timeout_ms=timeout_ms),
        bookies.info(bookie, access, timeout_ms=timeout_ms),
    )
    if known.answer is not Answer.OK and known.answer not in NEGATIVES:
        return ReplicaList(known.answer)  # a list does not look at key and token
    if answer is not Answer.OK:
        return ReplicaList(answer)
    answer, held = await bookies.list_entries(bookie, access, timeout_ms=timeout_ms)
    return ReplicaList(
        answer, tuple(held), bool(info.get("limbo")), limbo_lsn(info), info.get("damaged") is True
    )


async def _read_ids(check: CopyCheck, bookie: BookieId, first: int, last: int) -> tuple[Answer, list[int]]:
    """The ids of first..last that a bookie can read; other answers than OK say why that is not known."""
    ids: list[int] = []
    at = first
    while at <= last:
        copies = await check.read(BookieStripes(bookie, at, last, 1, 1))
        if copies.answer in NEGATIVES:
            break
        if copies.answer is not Answer.OK:
            return copies.answer, []
        ids += copies.entries.entry_ids
        at = copies.through + 1
    return Answer.OK, ids


def _expected(record: LedgerMetadata, bookie: BookieId, *, everything: bool) -> list[EntryRange]:
    """The stripes of a bookie; or all of the ledger, where a bookie that the record does not name cannot list."""
    everyone = list(bookie_stripes(record))
    mine = [part for part in everyone if part.bookie == bookie]
    if everything and not mine:
        return sorted({EntryRange(part.first, part.last) for part in everyone})
    return [
        EntryRange(part.first, part.last)
        if part.is_whole
        else EntryRange(part.first, part.last, part.period, part.stripes)
        for part in mine
    ]


def _unlisted(found: ReplicaList, wanted: Iterable[EntryRange]) -> list[Stretch]:
    """The stretches of some entries of which not all are listed."""
    replicas: dict[int, Replica] = {}
    lacking: list[Stretch] = []
    for each in wanted:
        replica = replicas.setdefault(each.period, Replica(found, each.period))
        for stripe in range(each.period):
            if each.stripes >> stripe & 1:
                lacking += replica.lacks(stripe, each.first, each.last)
    return sorted(set(lacking))


def _by_stripes(held: Iterable[HeldInterval], period: int) -> Iterable[HeldInterval]:
    """The same entries; those that were listed with another period than the ledger's become intervals without stripes."""
    for each in held:
        if each.period in {1, period}:
            yield each
        else:
            ids = (e for e in range(each.first, each.last + 1) if each.stripes >> e % each.period & 1)
            yield from _intervals(ids)


def _intervals(ids: Iterable[int]) -> list[HeldInterval]:
    return [HeldInterval(*stretch, 1, 1) for stretch in stretches_of(sorted(ids))]
