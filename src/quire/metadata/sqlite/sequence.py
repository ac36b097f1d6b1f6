"""How far a metadata file had come, kept next to it: how a file that went back in time is detected.

A -wal that was damaged or cut short, and a backup that was put back, leave a sound database that is older than what was
acknowledged. The side file names a revision and the next ledger id that the database had reached. It is written after
the commit that reached them is on the disk, so the database is never behind it, unless it lost something. The side
file itself may be behind: it is written at most once a second.

It has two slots, written in turn; each is on the disk before the other is written, so that a write that was cut leaves
the one before. Slots are written under a lock on the file, read and compared first: a lower number never replaces a
higher one of the same database. Who finds the lock taken comes back later.

Source: `docs/formats/metadata.md`, "The sequence file"; Linux man-pages, flock(2): the lock ends with the
descriptor.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from quire.env.private import FILE_MODE, share_as
from quire.env.real import RealFiles
from quire.wire.layout import Field, FieldUse, Layout

SLOTS: Final = 2
SLOT_BYTES: Final = 4096
"""From one slot to the other: no sector holds bytes of both."""
SEQUENCE_VERSION: Final = 1
COUNTER_END: Final = 1 << 62
"""Counters are below this: SQLite's integers end at twice as much, and there must be room for a leap."""
_MAGIC: Final = b"\xd1QSEQ\r\n\x1a"
_USE: Final = FieldUse("the driver for SQLite", "the same, when it opens the file")
SEQUENCE: Final = Layout(
    "Sequence, one slot",
    [
        Field("magic d1 51 53 45 51 0d 0a 1a", "8s", _USE),
        Field("version", "I", _USE),
        Field("instance of the store", "36s", _USE),
        Field("generation", "Q", _USE),
        Field("revision", "Q", _USE),
        Field("next ledger id", "Q", _USE),
        Field("checksum of all before", "I", _USE),
    ],
)
_CHECKSUM_AT: Final = SEQUENCE.size - 4
_LOG: Final = logging.getLogger(__name__)


class Counters(NamedTuple):
    """What the row of counters says that changes.

    Attributes:
        revision: of the newest change.
        trimmed: the newest revision whose deletions were trimmed away.
        next_ledger: the next ledger id.
        generation: part of the identity; read with the rest because an open store must see it change.
    """

    revision: int
    trimmed: int
    next_ledger: int
    generation: int


class FileIdentity(NamedTuple):
    """What the row of counters says that changes only when the file turns out to be a copy, or to have been set back."""

    instance: str
    generation: int
    inode: str

    @property
    def text(self) -> str:
        """What stands next to the fields, to be compared with them."""
        return f"{self.instance} {self.generation} {self.inode}"


class StoreProgress(NamedTuple):
    """How far a database has come; of two of one database the greater is the later.

    Attributes:
        instance: whose database.
        generation: the store's.
        revision: of its newest change.
        next_ledger: the next ledger id that it gives.
    """

    instance: str
    generation: int
    revision: int
    next_ledger: int

    def is_behind(self, remembered: StoreProgress) -> bool:
        """Whether a database that is here now was further once: it went back.

        Each counter is compared by itself, not their sum: ids that were jumped over would make up for changes that are
        missing.

        Args:
            remembered: of the same instance.
        """
        return (
            self.generation < remembered.generation
            or self.revision < remembered.revision
            or self.next_ledger < remembered.next_ledger
        )


def encode_progress(progress: StoreProgress) -> bytes:
    """One slot."""
    _, *numbers = progress
    head = SEQUENCE.struct.pack(_MAGIC, SEQUENCE_VERSION, progress.instance.encode(), *numbers, 0)[
        :_CHECKSUM_AT
    ]
    return head + crc32c(head).to_bytes(4, "big")


def decode_progress(data: bytes) -> StoreProgress | None:
    """What a slot says; None if nothing that verifies is there, or a version that is not known."""
    if len(data) < SEQUENCE.size or data[: len(_MAGIC)] != _MAGIC:
        return None
    _, version, instance, *numbers, checksum = SEQUENCE.struct.unpack_from(data)
    if checksum != crc32c(data[:_CHECKSUM_AT]) or version != SEQUENCE_VERSION:
        return None
    return StoreProgress(instance.rstrip(b"\0").decode(errors="replace"), *numbers)


def newest_of(slots: Sequence[StoreProgress | None], instance: str) -> StoreProgress | None:
    """The latest that was written for one store."""
    return max((slot for slot in slots if slot is not None and slot.instance == instance), default=None)


class SequenceFile:
    """The side file of one metadata file. Nothing that happens to it stops the store: it is said once.

    Args:
        database: the metadata file.

    Attributes:
        path: the side file, `<metadata file>-sequence`.
    """

    def __init__(self, database: Path) -> None:
        self.path = database.with_name(database.name + "-sequence")
        self._database = database
        self._synced: StoreProgress | None = None
        self._said = False

    def read(self) -> list[StoreProgress]:
        """What the slots say that verify, of whatever store. Damage is logged."""
        try:
            with self.path.open("rb") as file:
                data = file.read(SLOTS * SLOT_BYTES)
        except FileNotFoundError:
            return []
        except OSError as error:
            self._say("cannot be read", error)
            return []
        found = [slot for slot in _slots(data) if slot is not None]
        if not found and data.strip(b"\0") and not self._said:  # zeros: a crash cut its first write
            self._said = True
            _LOG.warning(
                "%s is damaged: no part of it has a valid checksum. It is written again; whether %s "
                "went back in time is unknown this time",
                self.path,
                self._database,
            )
        return found

    def raise_to(self, progress: StoreProgress) -> bool:
        """Write down, durably, how far the database has come; what is there already and is not lower stays.

        Args:
            progress: what is on the disk, in the database, already.

        Returns:
            False: another process is writing to it; come back later.
        """
        try:
            descriptor = self._open()
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._write(descriptor, progress)
            finally:
                os.close(descriptor)
        except BlockingIOError:
            return False
        except OSError as error:
            self._say("cannot be written", error)
        else:
            self._said = False
        return True

    def _open(self) -> int:
        try:
            return os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            pass
        # As SQLite does with its -wal: who may write the database may write this.
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        share_as(self._database, descriptor)
        return descriptor

    def _write(self, descriptor: int, progress: StoreProgress) -> None:
        slots = _slots(os.pread(descriptor, SLOTS * SLOT_BYTES, 0))
        newest = newest_of(slots, progress.instance)
        if newest is not None:
            if newest >= progress:
                return
            if newest != self._synced:
                os.fdatasync(descriptor)  # its writer may have been killed before its sync
        at = 1 if newest is not None and slots[0] == newest else 0
        data = encode_progress(progress)
        if os.pwrite(descriptor, data, at * SLOT_BYTES) != len(data):
            raise OSError(errno.EIO, "the file takes no more bytes")
        os.fdatasync(descriptor)
        if self._synced is None:
            RealFiles().sync_directory(self.path.parent)
        self._synced = progress

    def _say(self, what: str, error: OSError) -> None:
        if not self._said:
            self._said = True
            _LOG.warning(
                "%s %s (%s). The store continues; but if %s goes back in time, by a damaged -wal or "
                "an older copy, this is not noticed. Check its owner, and whether the disk is full",
                self.path,
                what,
                error.strerror,
                self._database,
            )


def _slots(data: bytes) -> list[StoreProgress | None]:
    return [decode_progress(data[at * SLOT_BYTES : at * SLOT_BYTES + SEQUENCE.size]) for at in range(SLOTS)]


def look_back(
    identity: FileIdentity, counters: Counters, slots: Sequence[StoreProgress]
) -> tuple[StoreProgress, StoreProgress | None] | str:
    """How far a database has come, and how far it had come if that was further; or what is wrong with its counters.

    Args:
        identity: whose database.
        counters: its counters, read after the slots.
        slots: what the side file says.
    """
    read: tuple[object, ...] = (identity.generation, counters.revision, counters.next_ledger)
    if not all(isinstance(number, int) and 0 <= number < COUNTER_END for number in read):  # a damaged row
        return f"its counters {counters!r} cannot be"
    now = StoreProgress(str(identity.instance), identity.generation, counters.revision, counters.next_ledger)
    remembered = newest_of(slots, now.instance)
    return now, remembered if remembered is not None and now.is_behind(remembered) else None


def after_return(now: StoreProgress, newer: StoreProgress | None, leap: int) -> StoreProgress:
    """Where a database goes on that is a copy or went back: no id, and no version of a key, comes a second time.

    Args:
        now: what it holds.
        newer: how far it had come, if that is known and is further.
        leap: over how many revisions and ledger ids to jump, because some that were assigned are unknown.
    """
    last = newer or now
    return StoreProgress(
        now.instance,
        max(now.generation, last.generation) + 1,
        max(now.revision, last.revision) + leap,
        max(now.next_ledger, last.next_ledger) + leap,
    )


def warn_of_return(
    database: Path, now: StoreProgress, remembered: StoreProgress, started: StoreProgress
) -> None:
    """Tell the operator that the store went back in time, and what to do.

    Args:
        database: the metadata file.
        now: what it was found to hold.
        remembered: what it had reached by the side file.
        started: the generation that begins with this.
    """
    _LOG.warning(
        "the metadata file %s went back in time: it holds revision %d and next ledger id %d (generation %d), but had"
        " reached revision %d and next ledger id %d (generation %d). Its -wal was damaged or cut short, or an older"
        " copy was put in its place; what was changed after revision %d is lost, or in part. It goes on as generation %d, with ledger ids"
        " from %d. Look at `quire cluster status`, then run `quire cluster accept-store`; docs/metadata.md says how",
        database,
        now.revision,
        now.next_ledger,
        now.generation,
        remembered.revision,
        remembered.next_ledger,
        remembered.generation,
        min(now.revision, remembered.revision),
        started.generation,
        started.next_ledger,
    )
