"""A bookie's ledgers and disk under a recorder, driven step by step: everything but sockets is what ships.

What it answers is marked in the recording in the order of the disk's operations, so that each crash image knows what had
been promised. Disk jobs wait until `settle` or `step` runs them, as they would wait for the worker thread.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from crc32c import crc32c

from quire.bookie.ledgers import Ledgers
from quire.core.answers import Answer
from quire.core.errors import StorageError
from quire.core.ids import NO_ENTRY
from quire.core.ledger_metadata import DigestType
from quire.env.interfaces import Files
from quire.storage.config import KIB, StorageConfig
from quire.storage.identity import Identity, open_identity
from quire.storage.ledger_storage import LedgerStorage
from quire.storage.slices import run_through
from quire.wire.entry import EntryDigest
from quire.wire.native import Flag, Kind
from quire.wire.run import SCHEME_PLAIN, SCHEME_TERMS, RunView, encode_run
from quire_testing.crash.promises import BookieMark, Promises, Told, request
from quire_testing.crash.recorder import RecordingFiles
from quire_testing.kit.memory import MemoryFiles
from quire_testing.kit.stepped import StepClock, StepWorker

DIRECTORY = Path("/disk/bookie")
NAME, CLUSTER = "b1", "cluster-1"
SMALL = StorageConfig(
    segment_bytes=128 * KIB, group_bytes_max=16 * KIB, recent_bytes_max=0, recycled_rest_ms=0
)
"""The smallest segments, and no memory of recent runs: whatever is read comes from the disk."""
LONG_AGO_MS = 1_000_000
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
) -> tuple[Identity, LedgerStorage]:
    """Start a bookie's storage on some files, identity and all, as a process does; `served`: it has been up before."""
    chance = random.Random(seed)
    identity = open_identity(DIRECTORY, NAME, CLUSTER, files=files, chance=chance)
    storage = LedgerStorage.open(
        DIRECTORY, config, identity, files=files, worker=worker or StepWorker(), clock=StepClock(LONG_AGO_MS),
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
) -> list[tuple[int, bytes]]:
    """(id, whole entry) of some entries with a payload of `size` bytes each, all different."""
    made = []
    for entry_id in range(first, first + count):
        payload = b"%d/%d/%d " % (ledger_id, entry_id, salt)
        payload = (payload * (size // len(payload) + 1))[:size]
        if origin_term:
            head = _DIGEST.seal_with_term(ledger_id, entry_id, lac, size, payload, origin_term=origin_term)
        else:
            head = _DIGEST.seal_one(ledger_id, entry_id, lac, size, payload)
        made.append((entry_id, head + payload))
    return made


@dataclass(slots=True)
class _Waiting:
    """A response that is not out yet."""

    event: BookieMark


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
        self._lacs: dict[int, int] = {}
        self.answers: list[tuple[str, Answer]] = []
        self.make_worker: Callable[[], StepWorker] = StepWorker
        self.start()

    # --- the process ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the bookie on what is there."""
        self.worker = self.make_worker()
        identity, self.storage = open_storage(self._wrapped, self.config, worker=self.worker, seed=self._salt)
        self.ledgers = TurnedLedgers(self.storage, lambda: None)
        self.files.mark(BookieMark(Told.BOOKIE, text=identity.bookie_id))

    def kill(self) -> None:
        """The process is gone with all that it had not written; the page cache stays. Start another one."""
        self.worker.jobs.clear()
        self._deletes.clear()
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
    ) -> Answer:
        """Send a run; it is marked as added once the bookie says so. Of a stream, entries are of `term` or of another one."""
        self._salt += 1
        origin = origin_term or term
        entries = entries_for(ledger_id, first, count, size, lac=lac, salt=self._salt, origin_term=origin)
        body = bytes(
            encode_run(
                ledger_id, first, first + count - 1, [entry for _, entry in entries],
                [len(entry) for _, entry in entries], digest_type=int(DigestType.CRC32C), period=1, residues=1,
                origin_term=origin, scheme=SCHEME_TERMS if origin else SCHEME_PLAIN,
            )
        )  # fmt: skip
        asked = BookieMark(Told.ASKED_ADD, ledger_id, tuple(entries), term=term, origin_term=origin)
        self.files.mark(asked)
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
            _Waiting(replace(asked, told=Told.ADDED, value=known)),
        )
        if answer is not Answer.OK:
            self.answers.append((str(asked), answer))
        return answer

    def stored(self, tag: Any, error: StorageError | None) -> None:
        """The bookie answers an add."""
        assert isinstance(tag, _Waiting)
        self._answered(tag.event, Answer.OK if error is None else Answer.ERROR)

    def fence(self, ledger_id: int, *, term: int = 0) -> None:
        """Fence a ledger, as a recoverer does, or take a stream over in a term."""
        self.files.mark(BookieMark(Told.ASKED_FENCE, ledger_id, term=term))
        event = BookieMark(Told.FENCED, ledger_id, term=term)
        self.ledgers.fence_then(request(Kind.READ, ledger_id, term=term), partial(self._answered, event))

    def explicit_lac(self, ledger_id: int, lac: int, *, more_bytes: int = 0) -> None:
        """Send an explicit LAC; it counts as promised once it is durable, later than its response.

        Args:
            ledger_id: the ledger.
            lac: the LAC.
            more_bytes: make the body longer by so many, which a bookie keeps as it is.
        """
        body = _DIGEST.lac_body(ledger_id, lac) + bytes(range(256)) * (more_bytes // 256)
        answer = self.ledgers.explicit_lac(request(Kind.WRITE_LAC, ledger_id, body=body))
        if answer is Answer.OK:
            self._lacs[ledger_id] = max(lac, self._lacs.get(ledger_id, lac))

    def delete(self, ledger_id: int) -> None:
        """Delete a ledger, as the collector does; it counts as deleted when the disk has settled."""
        self.files.mark(BookieMark(Told.ASKED_DELETE, ledger_id), weakens=True)
        self.ledgers.delete(ledger_id, DELETED_UNTIL_MS)
        self._deletes.append(ledger_id)

    def reclaim(self) -> int:
        """Retire what is dead."""
        return self.storage.reclaim()

    def compact(self) -> int:
        """Carry over what lives in sparse segments, as on a disk that is nearly full."""
        return run_through(self.storage.compact_slices(0.0))

    def shrink(self) -> None:
        """Shrink the tombstones of all ledgers whose deletion is durable, as the collector does at their time."""
        for ledger_ids in self.storage.shrink_tombstones(DELETED_UNTIL_MS):
            for ledger_id in ledger_ids:
                self.files.mark(BookieMark(Told.FORGOTTEN, ledger_id), weakens=True)
            self.ledgers.forget(ledger_ids)

    def _answered(self, event: BookieMark, answer: Answer) -> None:
        self.answers.append((str(event), answer))
        if answer is Answer.OK:
            self.files.mark(event)

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
                self.files.mark(BookieMark(Told.DELETED, ledger_id))
        for ledger_id, lac in self._lacs.items():
            facts = self.storage.facts(ledger_id)
            if facts is not None and facts.lac >= lac:
                self.files.mark(BookieMark(Told.LAC, ledger_id, value=lac))
        self._deletes.clear()
        self._lacs.clear()

    @property
    def promises(self) -> Promises:
        """All that was said so far."""
        return Promises(self.files.recording.marks)
