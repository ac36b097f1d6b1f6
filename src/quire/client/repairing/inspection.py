"""What the bookies of a ledger list of it, next to what its record says that they should.

Only lists of entries are asked for, no entry is read: a copy that is damaged counts as held (`LedgerVerifier` finds it).
A look counts only if the record, read again after the lists, still names the same copies: else they were lists of
something that was deleted or moved meanwhile, and the ledger is looked at again. The last fragment of a ledger that is
not closed is compared up to its LAC, and what is missing there is asked for twice: a copy may be on its way.

Source: `docs/formats/native-protocol.md`, LIST_ENTRIES; `docs/formats/metadata.md`, "Holes and accepted losses";
docs/protocol/repair.md, "What is missing".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from quire.client.access import LedgerAccess
from quire.client.bookies.bookies import BookieClient
from quire.client.reading.lac_read import newest_lac
from quire.client.repairing.ledger_repair import access_of
from quire.client.repairing.replica_lists import replica_list
from quire.core.answers import Answer
from quire.core.ids import NO_ENTRY, BookieId
from quire.core.ledger.metadata import LedgerMetadata, LedgerState
from quire.core.ledger.notes import LedgerNotes
from quire.core.ledger.replica import Replica, ReplicaList, gaps
from quire.core.ledger.stripes import BookieStripes, bookie_stripes
from quire.core.repair.under_replication import names_same_copies
from quire.metadata.records import AllRecords
from quire.metadata.store import StoreBusyError

LOOKS_MAX: Final = 8
"""So often a ledger is looked at whose record changes each time."""
ON_ITS_WAY_S: Final = 1.0
"""A copy of the last fragment that is missing for so long is not on its way."""


class LedgerLook(NamedTuple):
    """What the bookies of a ledger list.

    Attributes:
        record, notes: as they were read after the lists.
        version: of the record.
        lac: how far the last fragment was looked at; -1 of a closed ledger.
        lists: of those that were asked.
    """

    record: LedgerMetadata
    notes: LedgerNotes
    version: int
    lac: int
    lists: Mapping[BookieId, ReplicaList]


async def look_at(
    ledger_id: int,
    records: AllRecords,
    bookies: BookieClient,
    *,
    password: bytes | None = None,
    lost: Callable[[BookieId], bool] = lambda _: False,
    timeout_ms: int,
) -> LedgerLook:
    """Ask the bookies of a ledger or stream what they hold of it.

    Args:
        ledger_id: which.
        records: of the cluster.
        bookies: the connections.
        password: of a ledger whose record has none.
        lost: whether a bookie is permanently lost, and not asked.
        timeout_ms: how long one may take for each page of its list.

    Raises:
        NoSuchLedgerError: there is none (any more).
        StoreBusyError: its record changed during each look.
        QuireError: the record cannot be read, or its password is not known.
    """
    for _ in range(LOOKS_MAX):
        record, notes, version = await records.read_with_notes(ledger_id)
        access, lac = access_of(record, password), int(NO_ENTRY)
        if record.state is not LedgerState.CLOSED:
            lac = await newest_lac(record, access, bookies, timeout_ms=timeout_ms)
        named = {bookie for fragment in record.fragments for bookie in fragment.ensemble}
        asked = sorted(bookie for bookie in named if not lost(bookie))
        lists = await _lists(bookies, asked, record, access, timeout_ms)
        if lacking := _lacking_at_the_end(record, lists, lac):
            await asyncio.sleep(ON_ITS_WAY_S)
            lists |= await _lists(bookies, lacking, record, access, timeout_ms)
        now, notes_now, version_now = await records.read_with_notes(ledger_id)
        if version_now == version or names_same_copies((record, notes), (now, notes_now)):
            return LedgerLook(now, notes_now, version_now, lac, lists)
    raise StoreBusyError(changed_again(ledger_id), ledger_id=ledger_id)


def changed_again(ledger_id: int) -> str:
    """Why nothing is said of a ledger's copies."""
    return f"the record of ledger {ledger_id} changed during each of {LOOKS_MAX} looks: look again later"


async def _lists(
    bookies: BookieClient,
    asked: Sequence[BookieId],
    record: LedgerMetadata,
    access: LedgerAccess,
    timeout_ms: int,
) -> dict[BookieId, ReplicaList]:
    found = await asyncio.gather(
        *(replica_list(bookies, bookie, record, access, timeout_ms=timeout_ms) for bookie in asked)
    )
    return dict(zip(asked, found, strict=True))


def _lacking_at_the_end(
    record: LedgerMetadata, lists: Mapping[BookieId, ReplicaList], lac: int
) -> list[BookieId]:
    """The bookies that lack entries of a last fragment that its writer may still change."""
    found = dict[BookieId, None]()
    for part in bookie_stripes(record, lac) if lac > record.decided_through else ():
        response = lists.get(part.bookie)
        if (
            part.first > record.decided_through
            and response is not None
            and HeldStripes.counts(response.answer)
            and gaps(part, Replica.of(response, record))
        ):
            found[part.bookie] = None
    return list(found)


@dataclass(frozen=True, slots=True)
class HeldStripes:
    """What one bookie holds of its stripes of one fragment.

    Attributes:
        part: what it should hold.
        answer: the code of its response; other than OK (or NO_LEDGER: it holds nothing), what it holds is unknown.
        missing: what of that it does not hold.
        holes: what of that the record calls holes, whether they are filled by now or not.
    """

    part: BookieStripes
    answer: Answer
    missing: tuple[BookieStripes, ...]
    holes: tuple[tuple[int, int], ...]

    @property
    def bookie(self) -> BookieId:
        """Which bookie it is."""
        return self.part.bookie

    @staticmethod
    def counts(answer: Answer) -> bool:
        """Whether a response says what its bookie holds."""
        return answer in (Answer.OK, Answer.NO_LEDGER)

    @property
    def is_known(self) -> bool:
        """Whether the response is conclusive."""
        return self.counts(self.answer)

    @property
    def missing_count(self) -> int:
        """How many of these entries it does not hold."""
        return sum(part.count for part in self.missing)


def held_stripes(look: LedgerLook) -> list[HeldStripes]:
    """What each bookie holds: one for each fragment that is not empty and each slot, in their order."""
    found: list[HeldStripes] = []
    replicas = {bookie: Replica.of(response, look.record) for bookie, response in look.lists.items()}
    for part in bookie_stripes(look.record, look.lac):
        answer = look.lists[part.bookie].answer
        missing = tuple(gaps(part, replicas[part.bookie])) if HeldStripes.counts(answer) else ()
        found.append(HeldStripes(part, answer, missing, tuple(_holes_in(part, look.notes))))
    return found


def _holes_in(part: BookieStripes, notes: LedgerNotes) -> Iterator[tuple[int, int]]:
    for hole in notes.holes:
        if hole.bookie == part.bookie:
            for each in hole.ranges:
                first, last = max(each.first, part.first), min(each.last, part.last)
                if first <= last:
                    yield first, last
