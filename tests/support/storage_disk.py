"""A disk that loses, tears and refuses; a worker without a thread; runs to put on it."""

from __future__ import annotations

import errno
import random
from pathlib import Path
from typing import Any

from crc32c import crc32c

from quire.core.ids import BookieId
from quire.core.ledger.metadata import DigestType
from quire.core.ledger.terms import ANY_ORIGIN
from quire.storage.config import StorageConfig
from quire.storage.directory.identity import Identity
from quire.storage.ledger_storage import LedgerStorage
from quire.wire.entry import EntryDigest
from quire.wire.run import SCHEME_PLAIN, SCHEME_TERMS, RunView, encode_run, ids_in
from quire_testing.kit.disk import DiskFile, DiskNode, FaultyDisk
from quire_testing.kit.stepped import StepClock, StepWorker

IDENTITY = Identity("cluster-1", BookieId("b1.k7f3q"))
DIGEST = EntryDigest(DigestType.CRC32C, b"")
SMALL = StorageConfig(
    segment_bytes=128 * 1024, group_bytes_max=16 * 1024, recent_bytes_max=0, recycled_rest_ms=0
)
"""Small segments, every durable run is read from its segment, and recycled files are used first."""


class FaultyFile(DiskFile):
    """An open file, whose reads can be made to fail; where its zeros begin is not known."""

    def read_at(self, offset: int, size: int) -> bytes:
        self._files.reading(self._path, offset)
        return super().read_at(offset, size)

    def next_data(self, offset: int) -> int:
        return min(offset, self.size())


class FaultyFiles(FaultyDisk):
    """A disk of the kit that keeps a record of what is done to it, and can be copied.

    Attributes:
        log: each change, as `what name`.
        bad_reads: reads of a path that contains this fail with EIO.
        bad_from: only those from this offset on, of one block.
        short_in: the read that comes as this one, counted from 1, finds no descriptor left; 0: none does.
    """

    kind = FaultyFile

    def __init__(self, *, direct: bool = False, seed: int = 0) -> None:
        super().__init__(random.Random(seed), direct=direct)
        self.log: list[str] = []
        self.bad_reads: str | None = None
        self.bad_from: int | None = None
        self.short_in = 0

    def step(self, what: str, path: str) -> None:
        self.log.append(f"{what} {path.rpartition('/')[2]}")
        super().step(what, path)

    def reading(self, path: str, offset: int) -> None:
        if self.short_in:
            self.short_in -= 1
            if not self.short_in:
                raise OSError(errno.EMFILE, "injected", path)
        here = self.bad_from is None or 0 <= offset - self.bad_from < 4096
        if self.bad_reads is not None and self.bad_reads in path and here:
            raise OSError(errno.EIO, "injected", path)

    def read_uncached(self, path: Path, offset: int, size: int) -> bytes:
        self.reading(str(path), offset)
        return super().read_uncached(path, offset, size)

    def crash(self) -> FaultyFiles:
        """What a new start finds: some of the name changes, in order, and some sectors of unsynced writes."""
        names = self._names_after_power_loss()
        after = FaultyFiles(direct=self.direct, seed=self.chance.getrandbits(32))
        after.space = self.space
        for path, node in names.items():
            copy = after.nodes[path] = after._durable[path] = node.copy()
            copy.lose_power(self.chance)
        return after

    def copy(self) -> FaultyFiles:
        """The same disk, as it is now."""
        after = FaultyFiles(direct=self.direct, seed=1)
        for path, node in self.nodes.items():
            after.nodes[path] = after._durable[path] = DiskNode(node.data)
        return after

    def segments(self) -> list[str]:
        return sorted(path for path in self.nodes if path.endswith(".seg"))


class Answers:
    """A callback that remembers its calls, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, Any]] = []

    def stored(self, tag: object, error: Any) -> None:
        self.told.append((tag, error))

    @property
    def ok(self) -> list[Any]:
        return [tag for tag, error in self.told if error is None]


def make_run(
    ledger_id: int,
    first: int,
    last: int,
    *,
    period: int = 1,
    stripes: int = 1,
    payload: bytes = b"x" * 100,
    lac: int = -1,
    origin_term: int = 0,
) -> RunView:
    """A run whose entries all have the payload followed by their id; of a stream, with an origin term."""
    ids = list(ids_in(first, last, period, stripes))
    payloads = [payload + b"/%d" % entry_id for entry_id in ids]
    entries: list[bytes] = []
    sizes: list[int] = []
    for entry_id, one in zip(ids, payloads, strict=True):
        if origin_term:
            head = DIGEST.seal_with_term(ledger_id, entry_id, lac, 1, one, origin_term=origin_term)
        else:
            head = DIGEST.seal_one(ledger_id, entry_id, lac, 1, one)
        entries += [head, one]
        sizes.append(len(head) + len(one))
    body = encode_run(
        ledger_id,
        first,
        last,
        entries,
        sizes,
        digest_type=int(DigestType.CRC32C),
        period=period,
        stripes=stripes,
        origin_term=origin_term,
        scheme=SCHEME_TERMS if origin_term else SCHEME_PLAIN,
    )
    return RunView.parse(body)


def put(
    storage: LedgerStorage,
    run: RunView,
    callback: Any,
    tag: Any = None,
    *,
    lac: int = -1,
    recovery: bool = False,
) -> None:
    storage.put_run(run, crc32c(run.body), lac=lac, token=0, recovery=recovery, callback=callback, tag=tag)


def open_storage(
    files: Any,
    config: StorageConfig = SMALL,
    *,
    worker: StepWorker | None = None,
    clock: StepClock | None = None,
    identity: Identity = IDENTITY,
    directory: str = "/bookie",
) -> LedgerStorage:
    return LedgerStorage.open(
        directory,
        config,
        identity,
        files=files,
        worker=worker or StepWorker(),
        clock=clock or StepClock(1_000_000),
        chance=random.Random(7),
    )


def settle(storage: LedgerStorage) -> None:
    """Everything that was put is durable or has failed."""
    storage.journal.finish()
    storage.flush()


FILLER = 99
"""A ledger that fills segments."""


def fill_oldest(storage: LedgerStorage, callback: Any, sequence: int | None = None) -> int:
    """Put entries of `FILLER` until the oldest segment, or that of a sequence, is sealed; returns its number."""
    first, number = min(storage.segments) if sequence is None else sequence, 0
    while storage.segments[first].trailer is None:
        put(storage, make_run(FILLER, number, number, payload=bytes(12_000)), callback)
        settle(storage)
        number += 1
    return first


def payload_of(entry: memoryview, ledger_id: int, entry_id: int, origin_term: int) -> bytes:
    """The payload of an entry that must be of an origin term."""
    if not origin_term:
        return bytes(DIGEST.open(entry, ledger_id, entry_id).payload)
    found = DIGEST.open_with_term(entry, ledger_id, entry_id)
    assert origin_term in {found.origin_term, ANY_ORIGIN}
    return bytes(found.entry.payload)


def read_all(
    storage: LedgerStorage,
    ledger_id: int,
    first: int,
    last: int,
    bytes_max: int = 1 << 20,
    *,
    origin_term: int = 0,
) -> dict[int, Any]:
    """entry id -> payload, or None where it is unknown, of first..last; what is missing is conclusively absent."""
    found: dict[int, Any] = {}
    at = first
    while at <= last:
        held = storage.read(ledger_id, at, last, bytes_max, origin_term=origin_term)
        for low, high in held.unknown:
            for entry_id in range(max(low, first), min(high, last) + 1):
                found.setdefault(entry_id, None)
        for body in held.runs:
            run = RunView.parse(body)
            for entry_id, entry in run.entries():
                if at <= entry_id <= last:
                    found[entry_id] = payload_of(entry, ledger_id, entry_id, run.origin_term)
        if held.conclusive_through < at:
            for entry_id in range(at, last + 1):  # the response does not cover it
                found.setdefault(entry_id, None)
            return found
        at = held.conclusive_through + 1
    return found
