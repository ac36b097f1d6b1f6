"""How often a bookie was started on a directory, how far that got, and how to recognise a copy of the directory.

`MARKER` is made once and never touched again: a copy of the directory has another inode or change time there. `BOOT` has
two slots, written in turn; the newest that verifies counts, so that a write that was cut leaves the one before, and a full
disk has room for the next.

Source: `docs/formats/segment.md`, "The identity of a directory".
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from quire.core.bookie.boot import BootState, Marker, next_boot
from quire.core.errors import WrongDirectoryError
from quire.env.interfaces import Files, FileStamp
from quire.storage.formats.segment_format import BLOCK_BYTES, FormatError
from quire.wire.entry import Buffer
from quire.wire.layout import Field, FieldUse, Layout

BOOT_FILE: Final = "BOOT"
MARKER_FILE: Final = "MARKER"
BOOT_VERSION: Final = 2
SLOTS: Final = 2
_MAGIC: Final = b"\xd1QBOO\r\n\x1a"
_CLEAN: Final = 1
_MARKER_TEXT: Final = (
    b"Never touch this file: its inode and its change time tell the directory from a copy of it.\n"
)
_BOOKIE = FieldUse("bookie", "bookie")

BOOT: Final = Layout(
    "Boot, one slot",
    [
        Field("magic d1 51 42 4f 4f 0d 0a 1a", "8s", _BOOKIE),
        Field("version", "H", _BOOKIE),
        Field("flags: 1 = stopped cleanly with this very LSN", "H", _BOOKIE),
        Field("zero", "I", _BOOKIE),
        Field("boot number", "Q", FieldUse("bookie", "client, by the hello")),
        Field("writes of this file", "Q", _BOOKIE),
        Field("durable LSN", "Q", _BOOKIE),
        Field("inode of the marker", "Q", _BOOKIE),
        Field("change time of the marker, ns since 1970", "q", _BOOKIE),
        Field("checksum of all before", "I", _BOOKIE),
    ],
)
TABLES: Final = (BOOT,)
_CHECKSUM_AT: Final = BOOT.size - 4


class Boot(NamedTuple):
    """The content of one of the file's two slots.

    Attributes:
        number: how often the bookie was started on this directory; the first start is 1.
        writes: how often this was written: the higher is the newer.
        durable_lsn: what was durable when it was written.
        marker: of the marker file at that time.
        clean: the last process stopped cleanly, with this very LSN.
    """

    number: int
    writes: int
    durable_lsn: int
    marker: FileStamp
    clean: bool = False


def encode_boot(boot: Boot) -> bytes:
    """One slot."""
    head = BOOT.struct.pack(
        _MAGIC,
        BOOT_VERSION,
        _CLEAN if boot.clean else 0,
        0,
        boot.number,
        boot.writes,
        boot.durable_lsn,
        boot.marker.inode,
        boot.marker.changed_ns,
        0,
    )[:_CHECKSUM_AT]
    return head + crc32c(head).to_bytes(4, "big")


def decode_boot(data: Buffer) -> Boot | None:
    """What a slot says; None if nothing that verifies is there.

    Raises:
        FormatError: a newer version wrote it.
    """
    if len(data) < BOOT.size or bytes(data[:8]) != _MAGIC:
        return None
    _, version, flags, zero, number, writes, lsn, inode, changed_ns, checksum = BOOT.struct.unpack_from(data)
    if checksum != crc32c(memoryview(data)[:_CHECKSUM_AT]):
        return None
    if version != BOOT_VERSION or flags & ~_CLEAN or zero:
        raise FormatError(
            f"written by a newer version (boot {version}, flags {flags:#x}); start that version"
        )
    return Boot(number, writes, lsn, FileStamp(inode, changed_ns), bool(flags & _CLEAN))


class BootFile:
    """The file `BOOT` of one directory, in two slots that are written in turn.

    Attributes:
        last: what was written last, by this process or the one before; None before the first start.
    """

    def __init__(self, directory: Path, files: Files) -> None:
        self._path = directory / BOOT_FILE
        self._marker = directory / MARKER_FILE
        self._files = files
        self.last: Boot | None = self._read()

    def _read(self) -> Boot | None:
        """The newest slot that verifies.

        Raises:
            WrongDirectoryError: the file is there and neither slot verifies, or a newer version wrote one; or the marker
                is missing.
            OSError: it cannot be read.
        """
        if not self._files.exists(self._path):
            return None
        try:
            newest = self._newest()
        except FormatError as error:
            raise WrongDirectoryError(f"{self._path}: {error}", path=str(self._path)) from error
        if newest is None:
            raise WrongDirectoryError(
                f"{self._path} is damaged, so the number of starts of this bookie is unknown. If the "
                "directory is the bookie's own and not a copy, remove this file; the bookie then "
                "starts as on a copy, and every ledger is in limbo",
                path=str(self._path),
            )
        if not self._files.exists(self._marker):
            raise WrongDirectoryError(
                f"{self._marker} is missing, so it is unknown whether this directory is the bookie's "
                "own or a copy. Restore the whole directory; or create an empty file of that name: "
                "the bookie then starts as on a copy, and every ledger is in limbo",
                path=str(self._marker),
            )
        return newest

    def _newest(self) -> Boot | None:
        """The newest slot that verifies; FormatError if a newer version wrote one."""
        data = self._files.read_whole(self._path)
        slots = [decode_boot(data[at : at + BLOCK_BYTES]) for at in (0, BLOCK_BYTES)]
        return max((slot for slot in slots if slot is not None), key=lambda slot: slot.writes, default=None)

    def other_writer(self) -> str:
        """Who else has written the file since this process did; empty if that is not known of anybody.

        A file that is missing or damaged says nothing: the next start finds that out, and puts every ledger in limbo.
        """
        try:
            newest = self._newest()
        except FormatError as error:
            return f"{self._path} was {error}"
        except OSError:
            return ""
        if newest is None or newest == self.last:
            return ""
        return (
            f"another process has started on it as boot {newest.number}, and this one is boot {self.number}"
        )

    @property
    def number(self) -> int:
        """The boot number of this process once it has begun; 0 before the first start."""
        return 0 if self.last is None else self.last.number

    def own(self, lsn: int) -> BootState:
        """What the directory is, before this start counts itself.

        Args:
            lsn: the last one that is there.

        Raises:
            OSError: the marker cannot be looked at.
        """
        there = self._files.exists(self._marker)
        marker = Marker(*self._files.stamp(self._marker)) if there else Marker(0, 0)
        last = self.last
        return BootState(
            self.number, lsn, marker, last is not None and last.clean and last.durable_lsn == lsn
        )

    def begin(self, durable_lsn: int, stored: BootState | None = None) -> None:
        """Count a start, before anything is served, and take the marker file as it is now.

        Args:
            durable_lsn: what is durable.
            stored: what the cluster knows of this bookie; the new number is above that one too.

        Raises:
            OSError: it cannot be written.
        """
        if not self._files.exists(self._marker):
            self._files.write_whole(self._marker, _MARKER_TEXT)
        number, marker = next_boot(stored, self.number), self._files.stamp(self._marker)
        if self.last is not None:
            self._write(Boot(number, self.last.writes + 1, durable_lsn, marker))
            return
        boot = Boot(number, SLOTS, durable_lsn, marker)
        # The first time as a whole: a slot that was cut has no other to fall back on.
        self._files.write_whole(self._path, encode_boot(boot).ljust(SLOTS * BLOCK_BYTES, b"\0"))
        self.last = boot

    def stopped(self, durable_lsn: int) -> None:
        """Note a clean stop.

        Raises:
            OSError: it cannot be written.
        """
        if self.last is not None:
            self._write(Boot(self.number, self.last.writes + 1, durable_lsn, self.last.marker, clean=True))

    def _write(self, boot: Boot) -> None:
        file = self._files.open_to_write(self._path, direct=False)
        try:
            file.write_at(encode_boot(boot), boot.writes % SLOTS * BLOCK_BYTES)
            file.sync()
        finally:
            file.close()
        self.last = boot
