"""Histories of real runs: this process's requests and responses, for the judge of `quire_testing.history`.

A line for many entries: appends are recorded by the groups in which they are sent, reads and scans in stretches, so that
recording costs a checksum per entry and little more.

Source: docs/formats/history.md.
"""

from __future__ import annotations

import time
from collections import deque
from itertools import pairwise
from typing import IO, TYPE_CHECKING, Any, Final

from quire.client.access import LedgerAccess
from quire.client.reading.range_read import open_runs
from quire.core.answers import Answer
from quire.core.ledger.metadata import LedgerMetadata, LedgerState
from quire.core.ledger.quorum import stripes_of_slot
from quire_testing.history import History, entry_hashes

try:
    from quire.core.ledger.quorum import told_through
except ImportError:  # a program of revision 9e5fe3a, with which rolling upgrades are tried
    from quire.core.ledger.reader import told_through  # type: ignore[attr-defined]

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from quire.client.client import Client
    from quire.client.reading.reader import LedgerReader
    from quire.client.writing.writer import LedgerWriter
    from quire.log.log import Log
    from quire_testing.history import Operation

STRETCH: Final = 1000
"""Entries of one line of a read."""


def history_into(file: IO[bytes]) -> History:
    """A history of this process, on the clock that all processes of this machine share.

    Args:
        file: open for writing without a buffer: what a killed process has acknowledged must be there.
    """
    return History(time.monotonic_ns, lambda line: file.write(line.encode()))


class RecordedAppends:
    """Records the appends of a ledger's only writer, a line for each group that is sent and one when all of it is answered.

    Args:
        history: where to.
        process: whose they are.
        ledger_id: of which ledger.
    """

    __slots__ = ("_history", "_ledger_id", "_next", "_process", "_waiting")

    def __init__(self, history: History, process: str, ledger_id: int) -> None:
        self._history, self._process, self._ledger_id = history, process, ledger_id
        self._next = 0
        self._waiting: deque[tuple[Operation, int, int]] = deque()
        """Each group with how many it has and how many of them were acknowledged."""

    @property
    def next_entry(self) -> int:
        """The id of the entry that comes next."""
        return self._next

    def sending(self, payloads: Sequence[bytes]) -> None:
        """These are the next entries: to be called before they are appended."""
        operation = self._history.invoke(
            self._process, "append", ledger=self._ledger_id, first=self._next, hashes=entry_hashes(payloads)
        )
        self._waiting.append((operation, len(payloads), 0))
        self._next += len(payloads)

    def acknowledged(self) -> None:
        """The next entry, in the order of their ids, was acknowledged."""
        operation, count, acknowledged = self._waiting[0]
        if acknowledged + 1 < count:
            self._waiting[0] = operation, count, acknowledged + 1
            return
        self._waiting.popleft()
        operation.ok()

    def ended(self, error: BaseException) -> None:
        """Nothing more will be acknowledged: what is left may have happened or not."""
        for operation, _, acknowledged in self._waiting:
            if acknowledged:
                operation.ok(count=acknowledged)
            else:
                operation.unknown(error)
        self._waiting.clear()


class RecordedRun:
    """One ledger's life in a load test: written here, closed, read back, every copy looked at.

    Args:
        history: where to.
    """

    def __init__(self, history: History) -> None:
        self._history = history

    def created(self, ledger_id: int) -> RecordedAppends:
        """The ledger was made, for one writer."""
        self._history.invoke("writer", "create").ok(ledger=int(ledger_id))
        return RecordedAppends(self._history, "writer", int(ledger_id))

    async def read_back(self, client: Client, writer: LedgerWriter) -> None:
        """The writer has closed it: compare everything with its responses."""
        ledger_id, last = int(writer.ledger_id), int(writer.last_add_confirmed)
        self._history.invoke("writer", "close", ledger=ledger_id).ok(last=last)
        reader = await record_open(self._history, "reader", client, ledger_id)
        await record_read(self._history, "reader", reader, last)
        await record_scan(self._history, client, ledger_id)


async def record_read(history: History, process: str, reader: LedgerReader, last: int) -> int:
    """Read entries 0 to `last` and record what they were.

    Returns:
        How many there were.
    """
    ledger = reader.ledger_id
    starts = range(0, last + 1, STRETCH)
    asked = [
        history.invoke(process, "read", ledger=ledger, first=first, last=min(first + STRETCH - 1, last))
        for first in starts
    ]
    payloads: list[bytes] = []
    count = done = 0
    async for entry in reader.read(0, last):
        payloads.append(bytes(entry.payload))
        count += 1
        if len(payloads) == STRETCH or count == last + 1:
            asked[done].ok(hashes=entry_hashes(payloads))
            done += 1
            payloads.clear()
    return count


async def record_log_read(history: History, process: str, log: Log) -> int:
    """Read a log from its start to its end and record what was there.

    Returns:
        How many records there were.
    """
    values: list[bytes] = []
    first = count = 0
    asked: Operation | None = None
    async for record in log.read():
        if asked is None:
            first = record.offset
            asked = history.invoke(process, "log_read", log=log.name, first=first)
        if record.offset != first + len(values):
            asked.ok(hashes=entry_hashes(values), missing=[[first + len(values), record.offset - 1]])
            asked = history.invoke(process, "log_read", log=log.name, first=record.offset)
            first, values = record.offset, []
        values.append(bytes(record.value or b""))
        count += 1
        if len(values) == STRETCH:
            asked.ok(hashes=entry_hashes(values))
            asked, values = None, []
    if asked is not None:
        asked.ok(hashes=entry_hashes(values))
    return count


async def record_open(
    history: History,
    process: str,
    client: Client,
    ledger_id: int,
    *,
    recover: bool = True,
    password: bytes = b"",
) -> LedgerReader:
    """Open a ledger and record what was found."""
    asked = history.invoke(process, "open", ledger=ledger_id, recover=recover)
    reader = await client.open_ledger(ledger_id, password, recover=recover)
    if reader.closed:
        asked.ok(closed=True, last=int(reader.last_add_confirmed))
    else:
        asked.ok(closed=False, lac=int(reader.last_add_confirmed))
    return reader


async def record_scan(history: History, client: Client, ledger_id: int) -> int:
    """Ask every bookie of a closed ledger for all that it should hold, and record it with the ledger's record.

    Returns:
        How many copies were not there.
    """
    record, version = await client.records.ledgers.read(ledger_id)
    facts: dict[str, Any] = {"state": "open"}
    if record.state is LedgerState.CLOSED:
        facts = {"state": "closed", "last": int(record.last_entry)}
    history.note(
        "metadata",
        "metadata",
        ledger=int(ledger_id),
        version=int(version),
        ensemble_size=record.ensemble_size,
        write_quorum=record.write_quorum,
        ack_quorum=record.ack_quorum,
        fragments=[[int(f.first_entry), [str(b) for b in f.ensemble]] for f in record.fragments],
        **facts,
    )
    access = LedgerAccess.of(record)
    silent: set[str] = set()
    holes = 0
    ends = [int(fragment.first_entry) for fragment in record.fragments] + [int(record.last_entry) + 1]
    for fragment, (first, end) in zip(record.fragments, pairwise(ends), strict=True):
        for slot, bookie in enumerate(fragment.ensemble):
            complete, copies = await _scan_slot(
                history, client, record, access, (slot, bookie), (first, end - 1)
            )
            if not complete:
                silent.add(str(bookie))
            wanted = stripes_of_slot(slot, record.ensemble_size, record.write_quorum)
            holes += len(_ids_of(first, end - 1, record.ensemble_size, wanted)) - copies
    for name in sorted({str(bookie) for fragment in record.fragments for bookie in fragment.ensemble}):
        if name not in silent:
            history.note("scan", "scanned", bookie=name, ledger=int(ledger_id))
    return holes


def _ids_of(first: int, last: int, period: int, stripes: int) -> list[int]:
    return [number for number in range(first, last + 1) if stripes >> number % period & 1]


async def _scan_slot(
    history: History,
    client: Client,
    record: LedgerMetadata,
    access: LedgerAccess,
    member: tuple[int, Any],
    entries: tuple[int, int],
) -> tuple[bool, int]:
    """One bookie's copies of one fragment.

    Returns:
        Whether it reported all of them, and how many it has.
    """
    slot, bookie = member
    first, last = entries
    stripes = stripes_of_slot(slot, record.ensemble_size, record.write_quorum)
    copies = 0
    while first <= last:
        reply = await client.bookies.read(bookie, access, first, last, client.config.read_bytes_max)
        if reply.answer is Answer.NO_ENTRY:
            return True, copies
        if reply.answer is not Answer.OK:
            return False, copies
        found, bad, _ = open_runs(reply.runs, access, first, last)
        through = told_through(
            first,
            last,
            found.entry_ids,
            reply.conclusive_through,
            reply.unknown + bad,
            stripes,
            record.ensemble_size,
        )
        if bad or reply.unknown or through < first:
            return False, copies
        copies += len(found.entry_ids)
        _note_copies(history, str(bookie), record, (found.entry_ids, found.payloads), stripes)
        first = through + 1
    return True, copies


def _note_copies(
    history: History,
    bookie: str,
    record: LedgerMetadata,
    found: tuple[Sequence[int], Iterable[bytes | memoryview]],
    stripes: int,
) -> None:
    numbers, payloads = found[0], list(found[1])
    if not numbers:
        return
    ledger, period = int(record.ledger_id), record.ensemble_size
    striped = period > record.write_quorum
    if striped and list(numbers) == _ids_of(numbers[0], numbers[-1], period, stripes):
        which = {"period": period, "residues": stripes}
        hashes = entry_hashes(payloads)
        history.note(
            "scan", "replica", bookie=bookie, ledger=ledger, first=numbers[0], hashes=hashes, **which
        )
        return
    start = 0
    for index in range(1, len(numbers) + 1):
        if index == len(numbers) or numbers[index] != numbers[index - 1] + 1:
            hashes = entry_hashes(payloads[start:index])
            history.note("scan", "replica", bookie=bookie, ledger=ledger, first=numbers[start], hashes=hashes)
            start = index
