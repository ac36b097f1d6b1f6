"""Looks after the copies of a ledger: compares them, and restores those on a bookie in limbo.

Source: BookKeeper protocol, "Guarantees"; docs/protocol/repair.md, "Limbo".
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final

from quire.client.access import LedgerAccess
from quire.client.context import ClientContext
from quire.client.reading.copy_check import CopyCheck
from quire.client.reading.reader import LedgerReader
from quire.client.repairing.inspection import LOOKS_MAX, ON_ITS_WAY_S, changed_again
from quire.client.repairing.ledger_repair import LedgerRepair
from quire.core.answers import NEGATIVES, Answer
from quire.core.errors import QuireError
from quire.core.ids import NO_ENTRY, BookieId
from quire.core.ledger.notes import EntryRange, LedgerNotes
from quire.core.ledger.quorum import write_set
from quire.core.ledger.stripes import BookieStripes, bookie_stripes
from quire.core.repair.under_replication import names_same_copies
from quire.metadata.store import StoreBusyError
from quire.wire.entry import Entry
from quire.wire.native_bodies import BY_ID

_WINDOW_ENTRIES = 2048
NOT_THERE: Final = {*NEGATIVES, Answer.DAMAGED, Answer.BAD_DIGEST}
"""What a bookie says of a copy that it has not, or has damaged; any other answer is inconclusive."""


@dataclass(frozen=True, slots=True)
class MissingRange:
    """Entries first..last that one bookie should hold and does not serve, and what it said."""

    bookie: BookieId
    first: int
    last: int
    answer: Answer


@dataclass(slots=True)
class LedgerReport:
    """What reading every copy of a ledger showed.

    Attributes:
        entries: ids looked at, from 0 on; of a stream from its start.
        copies: good copies found of them.
        copies_wanted: what the write sets ask for.
        holes: copies that are not there or cannot be served, neighbours together.
        different: (entry, bookie) whose payload or length differs from what most bookies hold.
        below_ack_quorum: entries of which fewer than Qa good copies were found, as ranges.
        lost: entries without any good copy, as ranges: every bookie says so.
        unseen: entries of which no good copy was found, and some bookie did not say what it has, as ranges.
        payload_bytes: payload of all entries that have a good copy.
        recorded: the holes that the ledger's record lists, as (bookie, first, last), filled by now or not.
        guaranteed_through: with a guaranteed write quorum, the last entry that must be on all of it by now.
    """

    ledger_id: int
    last_entry: int
    closed: bool
    entries: int = 0
    copies: int = 0
    copies_wanted: int = 0
    payload_bytes: int = 0
    holes: list[MissingRange] = field(default_factory=list)
    different: list[tuple[int, BookieId]] = field(default_factory=list)
    below_ack_quorum: list[tuple[int, int]] = field(default_factory=list)
    lost: list[tuple[int, int]] = field(default_factory=list)
    unseen: list[tuple[int, int]] = field(default_factory=list)
    recorded: list[tuple[BookieId, int, int]] = field(default_factory=list)
    guaranteed_through: int = NO_ENTRY

    @property
    def below_write_quorum(self) -> list[MissingRange]:
        """What a bookie says that it lacks of entries whose write quorum is guaranteed."""
        holes = (hole for hole in self.holes if hole.first <= self.guaranteed_through)
        return [hole for hole in holes if hole.answer in {Answer.OK, *NEGATIVES}]

    @property
    def good(self) -> bool:
        """Every entry has Qa copies or more (Qw where that is guaranteed), and all copies are equal.

        Other holes do not make it bad, but incomplete.
        """
        return not self.different and not self.below_ack_quorum and not self.below_write_quorum

    @property
    def complete(self) -> bool:
        """Nothing is missing either."""
        return self.good and not self.holes

    @property
    def has_losses(self) -> bool:
        """Whether entries are lost, or copies differ."""
        return bool(self.lost or self.different)

    def add(self, part: LedgerReport) -> None:
        """Take what a later part of the ledger showed."""
        self.entries += part.entries
        self.copies += part.copies
        self.copies_wanted += part.copies_wanted
        self.payload_bytes += part.payload_bytes
        self.different += part.different
        for hole in part.holes:
            _add_hole(self.holes, hole)
        for mine, others in (
            (self.below_ack_quorum, part.below_ack_quorum),
            (self.lost, part.lost),
            (self.unseen, part.unseen),
        ):
            for each in others:
                _add_range(mine, *each)


def recorded_holes(notes: LedgerNotes) -> list[tuple[BookieId, int, int]]:
    """The holes of a record's notes, for `LedgerReport.recorded`."""
    return [(hole.bookie, part.first, part.last) for hole in notes.holes for part in hole.ranges]


class LedgerVerifier:
    """Reads every entry from every bookie of its write set and compares the copies; of a stream those that its ranges name.

    Args:
        reader: a reader of the ledger; its LAC is how far to look.
        access: names ledger, key and digest.
        context: what it shares with the client's other handles.
    """

    def __init__(self, reader: LedgerReader, access: LedgerAccess, context: ClientContext) -> None:
        self._record = reader.metadata
        self._last = reader.last_add_confirmed
        self._closed = reader.closed
        config = context.config
        self._copies = CopyCheck(context.bookies, access, config.read_bytes_max, config.read_timeout_ms)

    async def verify(self) -> LedgerReport:
        """Look at every copy; memory stays at a few windows."""
        record = self._record
        report = LedgerReport(record.ledger_id, self._last, self._closed)
        if record.guaranteed:
            report.guaranteed_through = record.decided_through
        for _, group in groupby(bookie_stripes(record, self._last), key=lambda part: part.first):
            parts = [part.cut(part.first, self._last) for part in group]
            if record.only_fences:
                parts = [replace(part, origin_term=BY_ID) for part in parts]
            found = await self._fragment(parts)
            if found.holes and parts[0].first > record.decided_through:
                # Its writer is at work there: what is missing may be on its way.
                await asyncio.sleep(ON_ITS_WAY_S)
                found = await self._fragment(parts)
            report.add(found)
        return report

    async def _fragment(self, parts: Sequence[BookieStripes]) -> LedgerReport:
        report = LedgerReport(self._record.ledger_id, self._last, self._closed)
        at = parts[0].first
        while at <= parts[0].last:
            at = await self._window(report, parts, at, min(at + _WINDOW_ENTRIES - 1, parts[0].last))
        return report

    async def _window(
        self, report: LedgerReport, parts: Sequence[BookieStripes], first: int, last: int
    ) -> int:
        """Compare one window; returns where the next begins: after the ids that every bookie's responses cover."""
        copies = await self._copies.window(parts, first, last)
        silent = self._copies.silent.items()  # one that was only unreachable may be back for the next window
        self._copies.silent = {bookie: answer for bookie, answer in silent if answer is Answer.TIMED_OUT}
        last = min(each.through for each in copies.values())
        entries = {b: {int(one.entry_id): one for one in each.entries} for b, each in copies.items()}
        for entry_id in range(first, last + 1):
            found: list[tuple[BookieId, Entry]] = []
            is_conclusive = True
            for slot in write_set(entry_id, self._record.ensemble_size, self._record.write_quorum):
                bookie = parts[slot].bookie
                if (entry := entries[bookie].get(entry_id)) is not None:
                    found.append((bookie, entry))
                else:
                    why = copies[bookie].why_not(entry_id)
                    is_conclusive = is_conclusive and why in NOT_THERE
                    _add_hole(report.holes, MissingRange(bookie, entry_id, entry_id, why))
            self._compare(report, entry_id, found)
            if not found:
                _add_range(report.lost if is_conclusive else report.unseen, entry_id, entry_id)
        return last + 1

    def _compare(self, report: LedgerReport, entry_id: int, found: Sequence[tuple[BookieId, Entry]]) -> None:
        report.entries += 1
        report.copies_wanted += self._record.write_quorum
        good = len(found)
        if found:
            first = found[0][1]
            content = (first.length, bytes(first.payload))
            if any((entry.length, entry.payload) != content for _, entry in found):
                # Most copies are right: two different ones with a good digest cannot be damage of a disk.
                contents = [(entry.length, bytes(entry.payload)) for _, entry in found]
                content = max(contents, key=contents.count)
                odd = [bookie for (bookie, _), other in zip(found, contents, strict=True) if other != content]
                report.different += [(entry_id, bookie) for bookie in odd]
                good -= len(odd)
            report.payload_bytes += len(content[1])
        report.copies += good
        if good < self._record.ack_quorum:
            _add_range(report.below_ack_quorum, entry_id, entry_id)


def _add_hole(holes: list[MissingRange], hole: MissingRange) -> None:
    for i in range(len(holes) - 1, max(len(holes) - 65, -1), -1):
        before = holes[i]
        if before.bookie == hole.bookie:
            if before.answer is hole.answer and before.last + 1 == hole.first:
                holes[i] = MissingRange(hole.bookie, before.first, hole.last, hole.answer)
                return
            break
    holes.append(hole)


def _add_range(ranges: list[tuple[int, int]], first: int, last: int) -> None:
    if ranges and ranges[-1][1] == first - 1:
        ranges[-1] = (ranges[-1][0], last)
    else:
        ranges.append((first, last))


async def verify_copies(
    opened: Callable[[], Awaitable[LedgerReader]], context: ClientContext
) -> LedgerReport:
    """Read every copy of a ledger or stream and compare them; again, if its record names other copies meanwhile.

    Args:
        opened: opens it for reading.
        context: what it shares with the client's other handles.

    Raises:
        StoreBusyError: its record changed during each look.
    """
    for _ in range(LOOKS_MAX):
        reader = await opened()
        record = reader.metadata
        report = await LedgerVerifier(reader, LedgerAccess.of(record), context).verify()
        now, notes, _ = await context.records.read_with_notes(record.ledger_id)
        report.recorded = recorded_holes(notes)
        if report.complete or names_same_copies((record, notes), (now, notes)):
            return report
    raise StoreBusyError(changed_again(record.ledger_id), ledger_id=record.ledger_id)


@dataclass(slots=True)
class LimboReport:
    """What was done about bookies where a ledger is in limbo.

    Attributes:
        cleared: bookies where the limbo ended.
        refilled: bookies that were not in limbo, and got back what had been damaged there.
        copied: entries that were copied to them all.
        left: bookies that stay as they are, and why.
        lost: entries that have no copy left, but for those whose loss a person accepted.
    """

    cleared: list[BookieId] = field(default_factory=list)
    refilled: list[BookieId] = field(default_factory=list)
    copied: int = 0
    left: dict[BookieId, str] = field(default_factory=dict)
    lost: list[EntryRange] = field(default_factory=list)


class LimboClearing:
    """Repairs a closed ledger where a bookie of it is in limbo, or knows damage: nothing where none is.

    A bookie that may have lost what it held responds "unknown" instead of "no such entry". Once the ledger is closed,
    what it should hold is known: a `LedgerRepair` copies what it lacks, and ends the limbo.

    Args:
        reader: of the closed ledger.
        access: names ledger, key and digest.
        context: what it shares with the client's other handles.
    """

    def __init__(self, reader: LedgerReader, access: LedgerAccess, context: ClientContext) -> None:
        assert reader.closed, "which entries a bookie should hold is known only when the ledger is closed"
        self._record, self._access, self._context = reader.metadata, access, context

    async def clear(self) -> LimboReport:
        """Ask every bookie of every fragment; repair the ledger if one is in limbo or knows damage."""
        record, report = self._record, LimboReport()
        everyone = sorted({bookie for fragment in record.fragments for bookie in fragment.ensemble})
        timeout_ms = self._context.config.read_timeout_ms
        bookies = self._context.bookies
        infos = await asyncio.gather(
            *(bookies.info(bookie, self._access, timeout_ms=timeout_ms) for bookie in everyone)
        )
        reports = {
            bookie: info
            for bookie, (answer, info) in zip(everyone, infos, strict=True)
            if answer is Answer.OK
        }
        damaged = [bookie for bookie, info in reports.items() if info.get("damaged") is True]
        if not damaged and not any(info.get("limbo") for info in reports.values()):
            return report
        repair = LedgerRepair(record.ledger_id, self._context, password=record.password)
        try:
            ended = (await repair.run()).report
        except QuireError as error:
            report.left = {
                bookie: str(error) for bookie in reports if bookie in damaged or reports[bookie].get("limbo")
            }
            return report
        report.cleared, report.copied, report.left = ended.cleared, ended.copied, ended.left
        report.lost = [each for each in ended.lost if each not in ended.accepted]
        report.refilled = [
            bookie for bookie in damaged if bookie not in ended.cleared and bookie not in ended.left
        ]
        return report
