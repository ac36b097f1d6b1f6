"""A disk that loses, tears and refuses; a worker without a thread; runs to put on it."""

from __future__ import annotations

import errno
import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from crc32c import crc32c

from quire.core.ids import BookieId
from quire.core.ledger_metadata import DigestType
from quire.env.interfaces import FileStamp
from quire.env.stepped import StepClock, StepWorker
from quire.storage.config import StorageConfig
from quire.storage.identity import Identity
from quire.storage.ledger_storage import LedgerStorage
from quire.storage.slices import SLICE_NS
from quire.wire.entry import EntryDigest
from quire.wire.run import RunView, encode_run, ids_in

SECTOR = 512
IDENTITY = Identity("cluster-1", BookieId("b1.k7f3q"))
DIGEST = EntryDigest(DigestType.CRC32C, b"")
SMALL = StorageConfig(segment_bytes=128 * 1024, group_bytes_max=16 * 1024, recent_bytes_max=0)
"""Small segments, and every durable run is read from its segment."""


class Crashed(BaseException):
    """The machine stopped in the middle of a disk operation."""


class Node:
    """One file: what programs see, what is on the disk for sure, and what is on its way."""

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self.durable = bytearray(data)
        self.pending: list[tuple[int, bytes]] = []

    def write(self, data: bytes, offset: int) -> None:
        _put(self.data, data, offset)
        self.pending.append((offset, data))

    def sync(self) -> None:
        self.durable = bytearray(self.data)
        self.pending.clear()

    def crash(self, chance: random.Random) -> None:
        """Any sectors of any unsynced writes may have made it, in any order."""
        for offset, data in self.pending:
            how = chance.randrange(4)
            if how == 0:
                continue
            if how == 1:
                _put(self.durable, data, offset)
                continue
            for at in range(0, len(data), SECTOR):
                if chance.getrandbits(1):
                    _put(self.durable, data[at : at + SECTOR], offset + at)
        self.pending.clear()
        self.data = bytearray(self.durable)


def _put(target: bytearray, data: bytes, offset: int) -> None:
    if len(target) < offset + len(data):
        target.extend(bytes(offset + len(data) - len(target)))
    target[offset : offset + len(data)] = data


class FaultyFile:
    def __init__(self, files: FaultyFiles, node: Node, path: str, *, direct: bool) -> None:
        self._files, self._node, self._path, self._direct = files, node, path, direct

    def read_at(self, offset: int, size: int) -> bytes:
        self._files.reading(self._path)
        return bytes(self._node.data[offset : offset + size])

    def write_at(self, data: Any, offset: int) -> None:
        # The write is on its way when the machine stops; whether it arrives is chance.
        self._node.write(bytes(data), offset)
        self._files.step("write", self._path)
        if self._direct:
            self._node.sync()

    def sync(self) -> None:
        if not self._direct:
            self._files.step("sync", self._path)
            self._node.sync()

    def size(self) -> int:
        return len(self._node.data)

    def expect(self, offset: int, size: int) -> None:
        assert 0 <= offset < offset + size <= len(self._node.data)

    def next_data(self, offset: int) -> int:
        return offset

    def close(self) -> None:
        pass


class _Lock:
    def release(self) -> None:
        pass


class FaultyFiles:
    """Files in memory, with a switch for each thing that disks do to people.

    Attributes:
        steps: changing operations so far, by which faults are placed.
        crash_at: stop the machine at this step.
        fail_at: this step and all later ones on that file fail with EIO.
        space: bytes that may still be allocated.
        bad_reads: reads of a path that contains this fail with EIO.
    """

    def __init__(self, *, direct: bool = False, seed: int = 0) -> None:
        self.names_now: dict[str, Node] = {}
        self.names_durable: dict[str, Node] = {}
        self._name_operations: list[Callable[[dict[str, Node]], None]] = []
        self.direct = direct
        self.chance = random.Random(seed)
        self.steps = 0
        self.log: list[str] = []
        self.crash_at: int | None = None
        self.fail_at: int | None = None
        self.space: int | None = None
        self.bad_reads: str | None = None

    # --- faults

    def step(self, what: str, path: str) -> None:
        self.steps += 1
        self.log.append(f"{what} {path.rpartition('/')[2]}")
        if self.steps == self.crash_at:
            raise Crashed
        if self.fail_at is not None and self.steps >= self.fail_at:
            raise OSError(errno.EIO, "injected", path)

    def reading(self, path: str) -> None:
        if self.bad_reads is not None and self.bad_reads in path:
            raise OSError(errno.EIO, "injected", path)

    def crash(self) -> FaultyFiles:
        """What a new start finds: some of the name changes, in order, and some sectors of unsynced writes."""
        names = dict(self.names_durable)
        kept = self.chance.randint(0, len(self._name_operations))
        for operation in self._name_operations[:kept]:
            operation(names)
        after = FaultyFiles(direct=self.direct, seed=self.chance.getrandbits(32))
        for path, node in names.items():
            copy = Node()
            copy.data, copy.durable = bytearray(node.data), bytearray(node.durable)
            copy.pending = list(node.pending)
            copy.crash(self.chance)
            after.names_now[path] = after.names_durable[path] = copy
        after.space = self.space
        return after

    def copy(self) -> FaultyFiles:
        """The same disk, as it is now."""
        after = FaultyFiles(direct=self.direct, seed=1)
        for path, node in self.names_now.items():
            after.names_now[path] = after.names_durable[path] = Node(bytes(node.data))
        return after

    def segments(self) -> list[str]:
        return sorted(path for path in self.names_now if path.endswith(".seg"))

    # --- the interface

    def writes_direct(self, directory: Path) -> tuple[bool, str]:
        return self.direct, "memory"

    def make_directory(self, path: Path) -> None:
        pass

    def names(self, directory: Path) -> list[str]:
        prefix = f"{directory}/"
        return sorted(path[len(prefix) :] for path in self.names_now if path.startswith(prefix))

    def exists(self, path: Path) -> bool:
        return str(path) in self.names_now

    def stamp(self, path: Path) -> FileStamp:
        return FileStamp(zlib.crc32(str(path).encode()), 0)

    def read_whole(self, path: Path) -> bytes:
        return bytes(self.names_now[str(path)].data)

    def write_whole(self, path: Path, data: bytes) -> None:
        self.step("write whole", str(path))
        self.names_now[str(path)] = self.names_durable[str(path)] = Node(data)

    def allocate(self, path: Path, size: int) -> None:
        self.step("allocate", str(path))
        if str(path) in self.names_now:
            raise FileExistsError(errno.EEXIST, "exists", str(path))
        if self.space is not None:
            if size > self.space:
                raise OSError(errno.ENOSPC, "no space left", str(path))
            self.space -= size
        node = Node(bytes(size))
        self._rename_later(lambda names: names.__setitem__(str(path), node))
        self.sync_directory(path.parent)

    def _file(self, path: Path, *, direct: bool) -> FaultyFile:
        if str(path) not in self.names_now:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return FaultyFile(self, self.names_now[str(path)], str(path), direct=direct)

    def open_to_read(self, path: Path, *, random: bool) -> FaultyFile:
        return self._file(path, direct=False)

    def open_to_write(self, path: Path, *, direct: bool) -> FaultyFile:
        return self._file(path, direct=direct)

    def read_uncached(self, path: Path, offset: int, size: int) -> bytes:
        return self._file(path, direct=False).read_at(offset, size)

    def forget_cached(self, path: Path) -> None:
        pass

    def _rename_later(self, operation: Callable[[dict[str, Node]], None]) -> None:
        operation(self.names_now)
        self._name_operations.append(operation)

    def rename(self, old: Path, new: Path) -> None:
        self.step("rename", str(new))
        self._rename_later(lambda names: names.__setitem__(str(new), names.pop(str(old))))

    def remove(self, path: Path) -> None:
        self.step("remove", str(path))
        if self.space is not None:
            self.space += len(self.names_now[str(path)].data)
        self._rename_later(lambda names: names.pop(str(path), None))

    def sync_directory(self, directory: Path) -> None:
        self.step("sync directory", str(directory))
        self.names_durable = dict(self.names_now)
        self._name_operations.clear()

    def lock(self, path: Path) -> _Lock:
        return _Lock()


class HurriedClock(StepClock):
    """Each slice of work is over after one look at it."""

    def now_ns(self) -> int:
        self.ms += 1
        return self.ms * SLICE_NS


class Answers:
    """A sink that remembers what it was told, in order."""

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
    residues: int = 1,
    payload: bytes = b"x" * 100,
    lac: int = -1,
) -> RunView:
    """A run whose entries all have the payload followed by their id."""
    ids = list(ids_in(first, last, period, residues))
    payloads = [payload + b"/%d" % entry_id for entry_id in ids]
    entries: list[bytes] = []
    sizes: list[int] = []
    for entry_id, one in zip(ids, payloads, strict=True):
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
        residues=residues,
    )
    return RunView.parse(body)


def put(
    storage: LedgerStorage, run: RunView, sink: Any, tag: Any = None, *, lac: int = -1, recovery: bool = False
) -> None:
    storage.put_run(run, crc32c(run.body), lac=lac, token=0, recovery=recovery, sink=sink, tag=tag)


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
    storage._journal.finish()
    storage.flush()


def read_all(
    storage: LedgerStorage, ledger_id: int, first: int, last: int, bytes_max: int = 1 << 20
) -> dict[int, Any]:
    """entry id -> payload, or None where it is unknown, of first..last; what is missing is vouched for."""
    found: dict[int, Any] = {}
    at = first
    while at <= last:
        held = storage.read(ledger_id, at, last, bytes_max)
        for low, high in held.unknown:
            for entry_id in range(max(low, first), min(high, last) + 1):
                found.setdefault(entry_id, None)
        for body in held.runs:
            run = RunView.parse(body)
            for entry_id, entry in run.entries():
                if at <= entry_id <= last:
                    found[entry_id] = bytes(DIGEST.open(entry, ledger_id, entry_id).payload)
        if held.vouched_through < at:
            for entry_id in range(at, last + 1):  # nothing is vouched for
                found.setdefault(entry_id, None)
            return found
        at = held.vouched_through + 1
    return found
