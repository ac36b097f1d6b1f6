"""A bookie's ledgers and disk under a recorder, driven step by step: everything but sockets is what ships.

What it answers is marked in the recording in the order of the disk's operations, so that each crash image knows what had
been promised. Disk jobs wait until `settle` or `step` runs them, as they would wait for the worker thread.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from crc32c import crc32c

from quire.bookie.ledgers.ledgers import Ledgers
from quire.core.answers import Answer
from quire.core.errors import StorageError
from quire.core.ids import ID_MAX, NO_ENTRY
from quire.core.ledger.metadata import DigestType
from quire.core.ledger.terms import NO_TERM
from quire.env.interfaces import Clock, Files
from quire.storage.config import KIB, StorageConfig
from quire.storage.directory.identity import Identity, open_identity
from quire.storage.formats.footer_format import SECTOR_BYTES
from quire.storage.ledger_storage import LedgerStorage
from quire.storage.slices import run_through
from quire.wire.entry import NO_OP, EntryDigest
from quire.wire.native import Flag, Kind
from quire.wire.run import SCHEME_PLAIN, SCHEME_TERMS, RunView, encode_run
from quire.wire.stored_record import RECORD_HEADER_BYTES
from quire_testing.crash.promises import BookieMilestone, MilestoneKind, Promises, request
from quire_testing.crash.recorder import RecordingFiles
from quire_testing.kit.memory import MemoryFiles
from quire_testing.kit.stepped import HurriedClock, StepClock, StepWorker

DIRECTORY = Path("/disk/bookie")
NAME, CLUSTER = "b1", "cluster-1"
SMALL = StorageConfig(
    segment_bytes=128 * KIB, group_bytes_max=16 * KIB, recent_bytes_max=0, recycled_rest_ms=0
)
"""The smallest segments, and no memory of recent runs: whatever is read comes from the disk."""
ROLL_BYTES = 12_000
"""Entries of this size fill a segment with nine of them."""
LONG_AGO_MS = 1_000_000
TABLE_ROOM = 200
"""Header and table of a run of a few entries are shorter."""
DELETED_UNTIL_MS = 1 << 50
_DIGEST = EntryDigest(DigestType.CRC32C, b"")


class TurnedLedgers(Ledgers):
    """A bookie's ledgers without an event loop: the driver flushes."""

    def flush_soon(self) -> None:
        """The driver does."""


def open_storage(
    files: Files,
    config: StorageConfig = SMALL,
    *,
    served: bool = False,
    worker: StepWorker | None = None,
    seed: int = 7,
    clock: Clock | None = None,
) -> tuple[Identity, LedgerStorage]:
    """Start a bookie's storage on some files, identity and all, as a process does; `served`: it has been up before."""
    chance = random.Random(seed)
    identity = open_identity(DIRECTORY, NAME, CLUSTER, files=files, chance=chance)
    storage = LedgerStorage.open(
        DIRECTORY, config, identity, files=files, worker=worker or StepWorker(),
        clock=clock or StepClock(LONG_AGO_MS),
        chance=chance, served=served,
    )  # fmt: skip
    return identity, storage


def entries_for(
    ledger_id: int,
    first: int,
    count: int,
    size: int,
    *,
    lac: int = NO_ENTRY,
    salt: int = 0,
    origin_term: int = 0,
    no_op: bool = False,
) -> list[tuple[int, bytes]]:
    """(id, whole entry) of some entries with a payload of `size` bytes each, all different; or of no-ops, without one."""
    flags = NO_OP if no_op else 0
    made = []
    for entry_id in range(first, first + count):
        payload = b"%d/%d/%d " % (ledger_id, entry_id, salt)
        payload = (payload * (size // len(payload) + 1))[:size]
        if origin_term:
            head = _DIGEST.seal_with_term(
                ledger_id, entry_id, lac, size, payload, origin_term=origin_term, flags=flags
            )
        else:
            head = _DIGEST.seal_one(ledger_id, entry_id, lac, size, payload)
        made.append((entry_id, head + payload))
    return made


@dataclass(slots=True)
class _Waiting:
    """A response that is not out yet."""

    event: BookieMilestone


class BookieRun:
    """One bookie, recorded.

    Args:
        config: its disk's settings.
        direct: whether the disk is written past the page cache.
        capacity: bytes of all files together; None: no limit.
        wrap: puts something between storage and recorder, for faults and mutants.
        below: puts something between recorder and memory: what fails there is recorded as failed.

    Attributes:
        memory: the files.
        files: the recorder around them.
        slices: of compaction and reclaiming that were taken.
        answers: (what was asked, the response) of everything, in order.
    """

    def __init__(
        self,
        config: StorageConfig = SMALL,
        *,
        direct: bool = False,
        capacity: int | None = None,
        wrap: Callable[[Files], Files] = lambda files: files,
        below: Callable[[Files], Files] = lambda files: files,
    ) -> None:
        self.config = replace(config, direct=direct)
        self.memory = MemoryFiles(direct=direct, capacity=capacity)
        self.files = RecordingFiles(below(self.memory), Path("/disk"))
        self._wrapped = wrap(self.files)
        self._salt = 0
        self._deletes: list[int] = []
        self._drops: list[BookieMilestone] = []
        self._lacs: dict[int, int] = {}
        self.answers: list[tuple[str, Answer]] = []
        self.make_worker: Callable[[], StepWorker] = StepWorker
        self.slices = 0
        self._put: dict[int, list[tuple[int, int, int, bytes]]] = {}
        self.start()

    # --- the process ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the bookie on what is there."""
        self.worker = self.make_worker()
        identity, self.storage = open_storage(
            self._wrapped, self.config, worker=self.worker, seed=self._salt, clock=HurriedClock(LONG_AGO_MS)
        )
        self.ledgers = TurnedLedgers(self.storage, lambda: None)
        self.files.milestone(BookieMilestone(MilestoneKind.BOOKIE, text=identity.bookie_id))

    def kill(self) -> None:
        """The process ends, and all that it had not written is lost; the page cache stays. Start another one."""
        self.worker.jobs.clear()
        self._deletes.clear()
        self._drops.clear()
        self._lacs.clear()
        self._salt += 1
        self.start()

    def stop(self) -> None:
        """Stop cleanly, and start again."""
        self.ledgers.save_lacs()
        self.storage.close()
        self._settled()
        self._salt += 1
        self.start()

    # --- requests -------------------------------------------------------------------------------------------------

    def add(
        self,
        ledger_id: int,
        first: int,
        count: int = 1,
        size: int = 100,
        *,
        lac: int = NO_ENTRY,
        recovery: bool = False,
        term: int = 0,
        origin_term: int = 0,
        no_op: bool = False,
    ) -> Answer:
        """Send a run; it is marked as added once the bookie says so. Of a stream, entries are of `term` or of another one."""
        self._salt += 1
        origin = origin_term or term
        entries = entries_for(
            ledger_id, first, count, size, lac=lac, salt=self._salt, origin_term=origin, no_op=no_op
        )
        body = bytes(
            encode_run(
                ledger_id, first, first + count - 1, [entry for _, entry in entries],
                [len(entry) for _, entry in entries], digest_type=int(DigestType.CRC32C), period=1, stripes=1,
                origin_term=origin, scheme=SCHEME_TERMS if origin else SCHEME_PLAIN,
            )
        )  # fmt: skip
        asked = BookieMilestone(
            MilestoneKind.ASKED_ADD, ledger_id, tuple(entries), term=term, origin_term=origin
        )
        self.files.milestone(asked)
        known = NO_ENTRY if recovery else lac
        answer = self.ledgers.add(
            request(
                Kind.ADD,
                ledger_id,
                body=body,
                body_crc=crc32c(body),
                lac=lac,
                flags=Flag.RECOVERY if recovery else 0,
                term=term,
            ),
            RunView.parse(body),
            self,
            _Waiting(replace(asked, kind=MilestoneKind.ADDED, value=known)),
        )
        if answer is not Answer.OK:
            self.answers.append((str(asked), answer))
        else:
            lsn = self.storage.journal.last_lsn
            self._put.setdefault(ledger_id, []).extend((lsn, origin, *each) for each in entries)
        return answer

    def stored(self, tag: Any, error: StorageError | None) -> None:
        """The bookie answers an add."""
        if tag is None:  # a drop, which counts when the disk has settled
            return
        assert isinstance(tag, _Waiting)
        self._answered(tag.event, Answer.OK if error is None else Answer.ERROR)

    def fence(self, ledger_id: int, *, term: int = 0) -> None:
        """Fence a ledger, as a recoverer does, or take a stream over in a term."""
        self.files.milestone(BookieMilestone(MilestoneKind.ASKED_FENCE, ledger_id, term=term))
        event = BookieMilestone(MilestoneKind.FENCED, ledger_id, term=term)
        self.ledgers.fence(request(Kind.READ, ledger_id, term=term), partial(self._answered, event))

    def truncate(self, ledger_id: int, first: int, *, term: int) -> None:
        """Truncate a stream, as a take-over does whose terms only fence: what earlier terms left from an id on goes."""
        asked = BookieMilestone(MilestoneKind.ASKED_TRUNCATE, ledger_id, value=first, term=term)
        self.files.milestone(asked, weakens=True)
        event = replace(asked, kind=MilestoneKind.TRUNCATED)
        what = first, ID_MAX, NO_TERM
        self.ledgers.truncate(
            what, request(Kind.TRUNCATE, ledger_id, term=term), partial(self._answered, event)
        )

    def explicit_lac(self, ledger_id: int, lac: int, *, more_bytes: int = 0) -> None:
        """Send an explicit LAC; it counts as promised once it is durable, later than its response.

        Args:
            ledger_id: the ledger.
            lac: the LAC.
            more_bytes: bytes added to the body, which a bookie keeps as it is.
        """
        body = _DIGEST.lac_body(ledger_id, lac) + bytes(range(256)) * (more_bytes // 256)
        answer = self.ledgers.explicit_lac(request(Kind.WRITE_LAC, ledger_id, body=body))
        if answer is Answer.OK:
            self._lacs[ledger_id] = max(lac, self._lacs.get(ledger_id, lac))

    def delete(self, ledger_id: int) -> None:
        """Delete a ledger, as the collector does; it counts as deleted when the disk has settled."""
        self.files.milestone(BookieMilestone(MilestoneKind.ASKED_DELETE, ledger_id), weakens=True)
        self.ledgers.delete(ledger_id, DELETED_UNTIL_MS)
        self._deletes.append(ledger_id)

    def drop(self, ledger_id: int, first: int, last: int, through: int) -> None:
        """Drop entries that were put up to an LSN, as the collector of over-replicated entries does."""
        dead: dict[int, list[tuple[int, bytes]]] = {}
        left = self._put.get(ledger_id, [])
        for lsn, origin, entry_id, entry in left:
            if lsn <= through and first <= entry_id <= last:
                dead.setdefault(origin, []).append((entry_id, entry))
        milestones = [
            BookieMilestone(MilestoneKind.ASKED_DROP, ledger_id, tuple(some), origin_term=origin)
            for origin, some in dead.items()
        ]
        for milestone in milestones:
            self.files.milestone(milestone, weakens=True)
        self._drops += [replace(milestone, kind=MilestoneKind.DROPPED) for milestone in milestones]
        self.storage.drops.drop(ledger_id, first, last, through, self, None)

    def rot(self, ledger_id: int) -> None:
        """A byte in the first long run of a ledger in a sealed segment is another one: its entries need not be readable."""
        sealed = {number for number, one in self.storage.segments.items() if one.trailer is not None}
        for one in self.storage.scan():
            start = one.offset + RECORD_HEADER_BYTES
            sector = -(-(start + TABLE_ROOM) // SECTOR_BYTES) * SECTOR_BYTES
            if (
                one.ledger_id == ledger_id
                and one.segment in sealed
                and one.verifies
                and one.body_bytes > TABLE_ROOM + 2 * SECTOR_BYTES
            ):
                break
        else:
            return
        rotten = [
            (entry_id, entry)
            for _, _, entry_id, entry in self._put[ledger_id]
            if one.first <= entry_id <= one.last
        ]
        self.files.milestone(BookieMilestone(MilestoneKind.ROTTED, ledger_id, tuple(rotten)), weakens=True)
        path = DIRECTORY / "segments" / f"{one.segment:016x}.seg"
        data = bytearray(self.memory.read_uncached(path, sector, SECTOR_BYTES))
        data[7] ^= 1
        file = self._wrapped.open_to_write(path, direct=False)
        file.write_at(bytes(data), sector)
        file.sync()
        file.close()

    def in_slices(self, steps: Generator[None, None, int], between: Callable[[int], None]) -> int:
        """Take all slices of some work; `between` is called in each pause with their number."""
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: int = end.value
                return result
            self.slices += 1
            between(self.slices)

    def reclaim(self) -> int:
        """Retire what is dead."""
        return self.storage.housekeeping.reclaim()

    def compact(self) -> int:
        """Relocate what lives in sparse segments, as on a disk that is nearly full."""
        return run_through(self.storage.housekeeping.compact_slices(0.0))

    def shrink(self) -> None:
        """Shrink the tombstones of all ledgers whose deletion is durable, as the collector does at their time."""
        for ledger_ids in self.storage.housekeeping.shrink_tombstones(DELETED_UNTIL_MS):
            for ledger_id in ledger_ids:
                self.files.milestone(BookieMilestone(MilestoneKind.FORGOTTEN, ledger_id), weakens=True)
            self.ledgers.forget(ledger_ids)

    def _answered(self, event: BookieMilestone, answer: Answer) -> None:
        self.answers.append((str(event), answer))
        if answer is Answer.OK:
            self.files.milestone(event)

    # --- time -----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """The end of a loop turn."""
        self.ledgers.flush()

    def step(self) -> bool:
        """Let the worker do one job; False if it has none."""
        if not self.worker.jobs:
            return False
        self.worker.step()
        return True

    def settle(self) -> None:
        """Everything that was asked for is on the disk, or has failed."""
        self.flush()
        while self.step():
            self.flush()
        self._settled()

    def _settled(self) -> None:
        if self.storage.failure is not None:
            return
        for ledger_id in self._deletes:
            facts = self.storage.facts(ledger_id)
            if facts is not None and facts.deleted_until_ms:  # else a full disk refused it
                self.files.milestone(BookieMilestone(MilestoneKind.DELETED, ledger_id))
        for milestone in self._drops:
            self.files.milestone(milestone)
        self._drops.clear()
        for ledger_id, lac in self._lacs.items():
            facts = self.storage.facts(ledger_id)
            if facts is not None and facts.lac >= lac:
                self.files.milestone(BookieMilestone(MilestoneKind.LAC, ledger_id, value=lac))
        self._deletes.clear()
        self._lacs.clear()

    @property
    def promises(self) -> Promises:
        """All that was said so far."""
        return Promises(self.files.recording.milestones)
