"""Looks after the copies of a ledger: compares them, and restores those on a bookie in limbo.

Source: BookKeeper protocol, "Guarantees"; `docs/formats/native-protocol.md`, CLEAR_LIMBO.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from quire.client.access import LedgerAccess
from quire.client.bookies import AddSink
from quire.client.context import ClientContext
from quire.client.copying import copies
from quire.client.range_read import open_runs
from quire.client.reader import LedgerReader
from quire.core.answers import Answer
from quire.core.errors import QuireError, RefusedError
from quire.core.ids import BookieId
from quire.core.ledger_metadata import LedgerMetadata
from quire.core.quorum import residues_of_slot, told_through, write_set
from quire.core.rules import RULES
from quire.core.shares import HeldInterval, not_held, shares
from quire.wire.entry import Entry
from quire.wire.requests import AddRun
from quire.wire.responses import ReadReply
from quire.wire.run import ids_in

_WINDOW_ENTRIES = 2048
_ROUNDS_MAX = 3
"""So often a record may have changed when it is read after the filling."""


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
        entries: ids looked at, from 0 on.
        copies: good copies found of them.
        copies_wanted: what the write sets ask for.
        holes: copies that are not there or cannot be served, neighbours together.
        different: (entry, bookie) whose payload or length differs from what most bookies hold.
        below_ack_quorum: entries with fewer than Qa good copies, as ranges.
        lost: entries without any good copy, as ranges.
        payload_bytes: payload of all entries that have a good copy.
        recorded: the holes that the ledger's record lists, as (bookie, first, last), filled by now or not.
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
    recorded: list[tuple[BookieId, int, int]] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Every entry has Qa copies or more, and all copies are equal. Holes do not make it bad, but incomplete."""
        return not self.different and not self.below_ack_quorum

    @property
    def complete(self) -> bool:
        """Nothing is missing either."""
        return self.good and not self.holes


class _Told(NamedTuple):
    """One bookie's responses about a window: its copies, why others are missing, and which are damaged."""

    entries: dict[int, Entry]
    answer: Answer
    damaged: Sequence[tuple[int, int]] = ()

    def why_not(self, entry_id: int) -> Answer:
        """Why an entry is not among the copies."""
        if any(first <= entry_id <= last for first, last in self.damaged):
            return Answer.DAMAGED
        return self.answer


class LedgerVerifier:
    """Reads every entry from every bookie of its write set and compares the copies.

    Args:
        reader: a reader of the ledger; its LAC is how far to look.
        access: names ledger, key and digest.
        context: what it shares with the client's other handles.
    """

    def __init__(self, reader: LedgerReader, access: LedgerAccess, context: ClientContext) -> None:
        self._record = reader.metadata
        self._last = reader.last_add_confirmed
        self._closed = reader.closed
        self._access, self._bookies, self._config = access, context.bookies, context.config
        self._hung: set[BookieId] = set()

    async def verify(self) -> LedgerReport:
        """Look at every copy; memory stays at a few windows."""
        record = self._record
        report = LedgerReport(record.ledger_id, self._last, self._closed)
        for index, fragment in enumerate(record.fragments):
            following = record.fragments[index + 1 : index + 2]
            end = min(self._last, following[0].first_entry - 1 if following else self._last)
            first = int(fragment.first_entry)
            while first <= end:
                first = await self._window(
                    report, fragment.ensemble, first, min(first + _WINDOW_ENTRIES - 1, end)
                )
        return report

    async def _window(
        self, report: LedgerReport, ensemble: tuple[BookieId, ...], first: int, last: int
    ) -> int:
        """Compare one window; returns where the next begins: after the ids that every bookie's responses cover."""
        told = await asyncio.gather(*(self._ask(slot, b, first, last) for slot, b in enumerate(ensemble)))
        last = min(through for _, through in told)
        for entry_id in range(first, last + 1):
            self._compare(report, ensemble, entry_id, [what for what, _ in told])
        return last + 1

    async def _ask(self, slot: int, bookie: BookieId, first: int, last: int) -> tuple[_Told, int]:
        """One bookie's response, and the last id that it covers."""
        size, write_quorum = self._record.ensemble_size, self._record.write_quorum
        if bookie in self._hung:  # waited for once is enough
            return _Told({}, Answer.TIMED_OUT), last
        reply: ReadReply = await self._bookies.read(
            bookie,
            self._access,
            first,
            last,
            self._config.read_bytes_max,
            timeout_ms=self._config.read_timeout_ms,
        )
        if reply.answer is Answer.TIMED_OUT:
            self._hung.add(bookie)
        if reply.answer is not Answer.OK:
            return _Told({}, reply.answer), last
        entries, bad, _ = open_runs(reply.runs, self._access, first, last)
        residues = residues_of_slot(slot, size, write_quorum)
        through = told_through(
            first, last, entries.entry_ids, reply.vouched_through, reply.unknown + bad, residues, size
        )
        answer = Answer.NO_ENTRY
        if through < first:
            answer, through = Answer.UNKNOWN, last
        elif bad or reply.unknown:
            answer = Answer.BAD_DIGEST if bad else Answer.UNKNOWN
        return _Told({entry.entry_id: entry for entry in entries}, answer, reply.damaged), through

    def _compare(
        self,
        report: LedgerReport,
        ensemble: tuple[BookieId, ...],
        entry_id: int,
        told: list[_Told],
    ) -> None:
        record = self._record
        found: list[tuple[BookieId, Entry]] = []
        report.entries += 1
        for slot in write_set(entry_id, record.ensemble_size, record.write_quorum):
            report.copies_wanted += 1
            entry = told[slot].entries.get(entry_id)
            if entry is None:
                _add_hole(
                    report.holes,
                    MissingRange(ensemble[slot], entry_id, entry_id, told[slot].why_not(entry_id)),
                )
            else:
                found.append((ensemble[slot], entry))
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
        if good < record.ack_quorum:
            _add_range(report.below_ack_quorum, entry_id)
        if not found:
            _add_range(report.lost, entry_id)


def _add_hole(holes: list[MissingRange], hole: MissingRange) -> None:
    for i in range(len(holes) - 1, max(len(holes) - 65, -1), -1):
        before = holes[i]
        if before.bookie == hole.bookie:
            if before.answer is hole.answer and before.last + 1 == hole.first:
                holes[i] = MissingRange(hole.bookie, before.first, hole.last, hole.answer)
                return
            break
    holes.append(hole)


def _add_range(ranges: list[tuple[int, int]], entry_id: int) -> None:
    if ranges and ranges[-1][1] == entry_id - 1:
        ranges[-1] = (ranges[-1][0], entry_id)
    else:
        ranges.append((entry_id, entry_id))


@dataclass(slots=True)
class LimboReport:
    """What was done about bookies where a ledger is in limbo.

    Attributes:
        cleared: bookies where the limbo ended.
        refilled: bookies that were not in limbo, and got back what had been damaged there.
        copied: entries that were copied to them all.
        left: bookies still in limbo, and why.
    """

    cleared: list[BookieId] = field(default_factory=list)
    refilled: list[BookieId] = field(default_factory=list)
    copied: int = 0
    left: dict[BookieId, str] = field(default_factory=dict)


class LimboClearing(AddSink):
    """Gives bookies in limbo what they should hold of a closed ledger, then ends the limbo.

    A bookie that may have lost what it held responds "unknown" instead of "no such entry". Once the ledger is closed,
    what it should hold is known; what it lacks is copied from its peers. Then the record is read once more, and
    `rules.may_end_doubt` says whether the bookie's doubt may end by it.

    Args:
        reader: of the closed ledger.
        access: names ledger, key and digest.
        context: what it shares with the client's other handles.
    """

    def __init__(self, reader: LedgerReader, access: LedgerAccess, context: ClientContext) -> None:
        assert reader.closed, "which entries a bookie should hold is known only when the ledger is closed"
        self._reader, self._access = reader, access
        self._bookies, self._config, self._records = context.bookies, context.config, context.ledgers
        self._answered: dict[object, asyncio.Future[Answer]] = {}

    async def clear(self) -> LimboReport:
        """Look at every bookie of every fragment; clear those in limbo, and copy anew what is damaged on others."""
        record = self._reader.metadata
        report = LimboReport()
        everyone = sorted({bookie for fragment in record.fragments for bookie in fragment.ensemble})
        timeout_ms = self._config.read_timeout_ms
        infos = await asyncio.gather(
            *(self._bookies.info(bookie, self._access, timeout_ms=timeout_ms) for bookie in everyone)
        )
        try:
            for bookie, (answer, info) in zip(everyone, infos, strict=True):
                if answer is Answer.OK and info.get("limbo"):
                    await self._clear_one(bookie, record, _doubt_lsn(info), report)
                elif answer is Answer.OK and info.get("damaged") is True:
                    await self._refill(bookie, record, report)
        finally:
            self._bookies.forget(self)
        return report

    async def _clear_one(
        self, bookie: BookieId, record: LedgerMetadata, lsn: int, report: LimboReport
    ) -> None:
        """Fill a bookie up and end the doubt that it was in before: what it loses meanwhile, it stays in doubt of."""
        try:
            for _ in range(_ROUNDS_MAX):
                filled = record
                report.copied += await self._fill(bookie, filled)
                record, _ = await self._records.read(filled.ledger_id)
                if RULES.may_end_doubt(filled, record, bookie):
                    break
            else:
                msg = (
                    f"the record of ledger {record.ledger_id} changed, or it is not known yet which "
                    "entries the bookie should hold"
                )
                raise RefusedError(msg, ledger_id=record.ledger_id, bookie=bookie)
        except QuireError as error:
            report.left[bookie] = str(error)
            return
        answer = await self._bookies.clear_limbo(bookie, self._access, lsn)
        if answer is Answer.OK:
            report.cleared.append(bookie)
        else:
            report.left[bookie] = f"the bookie did not end limbo: {answer.name}"

    async def _refill(self, bookie: BookieId, record: LedgerMetadata, report: LimboReport) -> None:
        try:
            report.copied += await self._fill(bookie, record)
        except QuireError as error:
            report.left[bookie] = str(error)
        else:
            report.refilled.append(bookie)

    async def _fill(self, bookie: BookieId, record: LedgerMetadata) -> int:
        """Copy what a bookie lacks of its share of a record; returns how many entries that were."""
        answer, intervals = await self._bookies.list_entries(bookie, self._access)
        if answer is not Answer.OK:
            msg = f"the bookie did not list its entries: {answer.name}"
            raise RefusedError(msg, ledger_id=record.ledger_id, bookie=bookie)
        copied = 0
        for first, last, residues in lacking(record, bookie, intervals):
            copied += await self._copy(bookie, first, last, residues)
        return copied

    async def _copy(self, bookie: BookieId, first: int, last: int, residues: int) -> int:
        """Copy the bookie's share of first..last from a bookie that holds it, as it was stored."""
        size = self._reader.metadata.ensemble_size
        period, residues = (1, 1) if residues == (1 << size) - 1 else (size, residues)
        count = 0
        async for entries in self._reader.read_runs(first, last):
            for run in copies(
                entries, self._access, self._config.run_bytes_max, period=period, residues=residues
            ):
                answer = await self._add(bookie, run.body, run.body_crc)
                if answer is not Answer.OK:
                    msg = f"entries {run.first}..{run.last} could not be copied to {bookie}: {answer.name}"
                    raise RefusedError(msg, ledger_id=self._access.ledger_id, bookie=bookie)
                count += len(ids_in(run.first, run.last, period, residues))
        return count

    async def _add(self, bookie: BookieId, body: bytes, body_crc: int) -> Answer:
        tag = object()
        answered = self._answered[tag] = asyncio.get_running_loop().create_future()
        run = AddRun(self._access, body, body_crc, -1, recovery=True)
        self._bookies.add_run(bookie, run, self, tag, self._config.recovery_timeout_ms)
        answer: Answer = await answered
        return answer

    def add_answered(self, tag: object, answer: Answer) -> None:
        """The bookie's response to a run that was copied to it."""
        self._answered.pop(tag).set_result(answer)


def _doubt_lsn(info: dict[str, Any]) -> int:
    """The LSN of a ledger's doubt in what a bookie says of it; 0 where it names none (version 1)."""
    lsn = info.get("doubt_lsn")
    return lsn if isinstance(lsn, int) and 0 <= lsn < 1 << 64 else 0


def lacking(
    record: LedgerMetadata, bookie: BookieId, intervals: Sequence[HeldInterval]
) -> Iterator[tuple[int, int, int]]:
    """The ranges (first, last, residues) of which a bookie should hold its share and does not hold all of it.

    Args:
        record: a closed ledger's record.
        bookie: whose share.
        intervals: what it holds.
    """
    for share in shares(record):
        if share.bookie != bookie:
            continue
        for first in range(share.first, share.last + 1, _WINDOW_ENTRIES):
            missing = not_held(share.cut(first, first + _WINDOW_ENTRIES - 1), intervals)
            if missing:
                yield missing[0], missing[-1], share.residues
