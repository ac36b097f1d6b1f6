"""Who a bookie's directory belongs to: settled at its creation, kept in it, locked while it is used.

`find_identity` locks the directory, looks and refuses, and writes nothing; `take` writes, once nothing may refuse any more.

A bookie's id is a name and the incarnation of its disk (`name.k7f3q`): a new or wiped directory is a new bookie, so
it is not taken for the one that held the entries. An id that is an address (`10.0.0.7:3181`), for old Java clients, has
no incarnation; therefore the cluster's cookie keeps a second directory from it. The file `VERSION` holds BookKeeper's cookie text.

Source: `docs/formats/segment.md`, "The directory"; BookKeeper source, `Cookie`: layout version 5.
"""

from __future__ import annotations

import errno
import random
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from quire.core.errors import (
    DirectoryInUseError,
    DiskFullError,
    MisuseError,
    StorageError,
    WrongDirectoryError,
)
from quire.core.ids import BookieId
from quire.core.ledger.placement import RandomSource
from quire.env.descriptors import is_shortage
from quire.env.interfaces import Files, Lock
from quire.env.real import RealFiles
from quire.storage.directory.patient_worker import shortage
from quire.storage.formats.segment_format import (
    BLOCK_BYTES,
    FormatError,
    SegmentHeader,
    decode_segment_header,
)
from quire.wire.stored_record import SEGMENTS_FOLDER

COOKIE_FILE = "VERSION"
LAYOUT_VERSION = "5"
FLIPPED_BITS_MAX: Final = 4
"""So few bits tell no two clusters or bookies apart: their ids have random letters."""
_LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"  # 32, without those that are easily confused
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,62}[A-Za-z0-9])?")
_ADDRESS = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?:[1-9][0-9]{0,4}")
_LINE = re.compile(r'(\w+): "((?:[^"\\]|\\.)*)"')
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", '"': '"', "\\": "\\", "'": "'"}


@dataclass(slots=True)
class Identity:
    """A bookie and its directory.

    Attributes:
        cluster_instance: the cluster's id.
        bookie_id: the bookie's, with the incarnation of this directory.
        cookie: the text that the cluster's metadata keeps too.
        lock: on the directory; None before `take` where there is no directory yet.
        directory: the bookie's.
        is_new: the cookie is not in the directory yet.
    """

    cluster_instance: str
    bookie_id: BookieId
    cookie: bytes = b""
    lock: Lock | None = None
    directory: Path = Path()
    is_new: bool = False

    def take(self, files: Files) -> None:
        """Make the directory this bookie's: it is there, durably, and locked, and has the cookie.

        Raises:
            DirectoryInUseError: another process has taken the directory since it was looked at.
            DiskFullError: there is no room for the cookie of a new bookie; the directory stays empty, so it can be tried again.
            StorageError: the directory cannot be made or locked, or its cookie cannot be written.
        """
        path = self.directory / COOKIE_FILE
        try:
            files.make_directory(self.directory)
            if self.lock is None:
                self.lock = _locked(self.directory, files)
        except OSError as error:
            raise _unusable(self.directory, error) from error
        if not self.is_new:
            return
        try:
            if files.exists(path):
                raise _directory_in_use(self.directory)
            files.write_whole(path, self.cookie)
        except OSError as error:
            raise _cookie_failed(path, error) from error
        self.is_new = False

    def release(self) -> None:
        """Let another process use the directory."""
        if self.lock is not None:
            self.lock.release()
            self.lock = None


def encode_cookie(
    bookie_id: str,
    journal_directories: list[str],
    ledger_directories: list[str],
    cluster_instance: str | None,
    index_directories: list[str] | None = None,
) -> bytes:
    """BookKeeper's cookie text, layout version 5."""
    lines = [
        LAYOUT_VERSION,
        f"bookieHost: {_quoted(bookie_id)}",
        f"journalDir: {_quoted(','.join(journal_directories))}",
        f"ledgerDirs: {_quoted(_counted(ledger_directories))}",
    ]
    if cluster_instance is not None:
        lines.append(f"instanceId: {_quoted(cluster_instance)}")
    if index_directories is not None:
        lines.append(f"indexDirs: {_quoted(_counted(index_directories))}")
    return ("\n".join(lines) + "\n").encode()


def decode_cookie(text: bytes) -> dict[str, str]:
    """The fields of a cookie by their names.

    Raises:
        ValueError: it is none.
    """
    lines = text.decode().split("\n")
    if lines[0] != LAYOUT_VERSION or lines[-1]:
        raise ValueError(f"layout version {lines[0][:20]!r} where 5 is expected, or cut")
    fields: dict[str, str] = {}
    for line in lines[1:-1]:
        match = _LINE.fullmatch(line)
        if match is None or match[1] in fields:
            raise ValueError(f"the line {line[:80]!r} does not belong there")
        fields[match[1]] = re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), match[2])
    return fields


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t").replace("\n", "\\n")
    return f'"{escaped}"'


def _counted(directories: list[str]) -> str:
    return "\t".join([str(len(directories)), *directories])


def is_address(name: str) -> bool:
    """Whether a name or an id is host:port."""
    return ":" in name


def find_identity(
    directory: Path | str,
    name: str,
    cluster_instance: str,
    *,
    files: Files | None = None,
    chance: RandomSource | None = None,
    adopt: Mapping[BookieId, bytes] | None = None,
    taken: Collection[BookieId] = (),
) -> Identity:
    """Find out whose directory it is, and lock it if it is there; one that is empty becomes a new bookie's. Writes nothing.

    Args:
        directory: it need not be there; the caller calls `Identity.take` before anything is written.
        name: what people call the bookie; the id adds the incarnation. Or an address, host:port, which is the id then.
        cluster_instance: the cluster's id in the metadata store.
        files: the file system.
        chance: where incarnations come from.
        adopt: a person's word: a directory with segments but without a cookie takes its own of these again, the cookies
            that the cluster keeps.
        taken: ids that the cluster keeps a cookie of, so that a new directory cannot have them.

    Raises:
        DirectoryInUseError: another process uses it.
        WrongDirectoryError: it is another bookie's or another cluster's, or its cookie is lost or damaged; or it is
            new, and the id that it would get is taken.
        StorageError: the directory cannot be locked, or its cookie cannot be read.
        MisuseError: the name is none.
    """
    if _NAME.fullmatch(name) is None and _ADDRESS.fullmatch(name) is None:
        raise MisuseError(
            f"{name!r} is not a valid bookie name: use letters, digits, '-', '_' and '.', at most 64; or "
            "host:port with a host name or an IPv4 address"
        )
    directory = Path(directory)
    files = files or RealFiles()
    try:
        lock = _locked(directory, files)
    except FileNotFoundError:
        lock = None  # `take` makes it
    except OSError as error:
        raise _unusable(directory, error) from error
    try:
        cookie, is_new = _cookie(
            directory, name, cluster_instance, files, chance or random.SystemRandom(), adopt or {}, taken
        )
        bookie_id = _check(directory, name, cluster_instance, cookie, files)
    except BaseException as error:
        if lock is not None:
            lock.release()
        if isinstance(error, OSError):
            raise _cookie_failed(directory / COOKIE_FILE, error) from error
        raise
    return Identity(cluster_instance, bookie_id, cookie, lock, directory, is_new)


def open_identity(directory: Path | str, name: str, cluster_instance: str, **more: Any) -> Identity:
    """Find out whose directory it is, and take it at once; see `find_identity`."""
    identity = find_identity(directory, name, cluster_instance, **more)
    try:
        identity.take(more.get("files") or RealFiles())
    except BaseException:
        identity.release()
        raise
    return identity


def _locked(directory: Path, files: Files) -> Lock:
    try:
        return files.lock(directory)
    except BlockingIOError as error:
        raise _directory_in_use(directory) from error


def _directory_in_use(directory: Path) -> DirectoryInUseError:
    return DirectoryInUseError(
        f"{directory} is in use by another bookie process: stop that process, or choose another directory",
        path=str(directory),
    )


def _unusable(directory: Path, error: OSError) -> StorageError:
    if is_shortage(error):
        return shortage(directory, error)
    return StorageError(f"{directory} cannot be used: {error.strerror or error}", path=str(directory))


def _cookie(
    directory: Path,
    name: str,
    cluster_instance: str,
    files: Files,
    chance: RandomSource,
    adopt: Mapping[BookieId, bytes],
    taken: Collection[BookieId],
) -> tuple[bytes, bool]:
    """The directory's cookie, or the one that it is to have, and whether that is still to be written."""
    path = directory / COOKIE_FILE
    if files.exists(path):
        return files.read_whole(path), False
    if _segments(directory, files):
        # A first start writes the cookie before the first segment.
        witness = _witness(directory, files)
        found = None if witness is None else adopt.get(BookieId(witness.bookie_id))
        if found is None:
            raise WrongDirectoryError(
                f"{directory} has segments but no {COOKIE_FILE} file, so its bookie is unknown. "
                f"Restore {path}; or, if you are certain that it is this bookie's directory, start "
                "the bookie once with --adopt, which takes the cookie that the cluster keeps; or "
                "keep the directory aside, and start a new bookie on another one",
                path=str(path),
            )
        return found, True
    bookie_id = name
    if not is_address(name):
        bookie_id += "." + "".join(_LETTERS[chance.getrandbits(5)] for _ in range(5))
    if bookie_id in taken:
        raise WrongDirectoryError(
            f"{directory} is empty, and bookie {bookie_id} has been in this cluster with another directory or before "
            "this one was emptied: it would answer that it has none of that bookie's entries. Start the bookie on its own "
            "directory; or without --id-from-address, which makes it a new bookie; or copy its entries elsewhere and "
            "remove its cookie first",
            path=str(path),
            bookie=bookie_id,
        )
    return encode_cookie(bookie_id, [str(directory)], [str(directory)], cluster_instance), True


def _segments(directory: Path, files: Files) -> list[str]:
    return [one for one in files.names(directory / SEGMENTS_FOLDER) if one.endswith(".seg")]


def instance_of(directory: Path) -> str:
    """The id of the cluster whose data a directory has; empty where it has none, or that is unknown."""
    try:
        fields = decode_cookie((directory / COOKIE_FILE).read_bytes())
    except (OSError, ValueError):
        return ""
    return fields.get("instanceId", "") if _segments(directory, RealFiles()) else ""


def _witness(directory: Path, files: Files) -> SegmentHeader | None:
    """The header of a segment, whose checksum holds: it names the bookie and the cluster that wrote it."""
    for name in _segments(directory, files):
        file = files.open_to_read(directory / SEGMENTS_FOLDER / name, random=True)
        try:
            return decode_segment_header(file.read_at(0, BLOCK_BYTES))
        except (FormatError, UnicodeDecodeError):
            continue
        finally:
            file.close()
    return None


def _cookie_failed(path: Path, error: OSError) -> StorageError:
    """The message about a cookie that could not be read or written, with what to do about it."""
    if is_shortage(error):
        return shortage(path.parent, error)
    why = error.strerror or str(error)
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return DiskFullError(
            f"{path} cannot be written: {why}. Free space on that disk and start again; nothing was "
            "stored yet",
            path=str(path),
        )
    return StorageError(
        f"{path} cannot be read or written: {why}. Check that this user may read and write it and its "
        "directory, and that the disk works, then start again; a bookie starts only when it is "
        "certain whose directory it is",
        path=str(path),
    )


def _check(directory: Path, name: str, cluster_instance: str, cookie: bytes, files: Files) -> BookieId:
    path = str(directory / COOKIE_FILE)
    try:
        fields = decode_cookie(cookie)
        bookie_id, instance = fields["bookieHost"], fields["instanceId"]
    except (ValueError, KeyError) as error:
        raise damaged_cookie(directory, str(error)) from error
    _compare_with_segments(directory, (cluster_instance, name), (instance, bookie_id), files)
    if instance != cluster_instance:
        if is_nearly(instance, cluster_instance):
            raise damaged_cookie(directory, f"it names cluster {instance}, where {cluster_instance} is meant")
        raise WrongDirectoryError(
            f"{directory} belongs to cluster {instance}, not to {cluster_instance}: give the --cluster that it belongs "
            "to, or the directory of this cluster; if the cluster's metadata store was lost and made anew, restore it "
            "from a backup: a new one knows none of the ledgers",
            path=path,
        )
    if bookie_id == name and is_address(name):
        return BookieId(bookie_id)
    if is_address(bookie_id):
        raise WrongDirectoryError(
            f"{directory} belongs to bookie {bookie_id}, whose id is its address: start it with "
            f"--id-from-address --advertise {bookie_id}",
            path=path,
        )
    if is_address(name):
        raise WrongDirectoryError(
            f"{directory} belongs to bookie {bookie_id}, and an id stays with its directory: start it without "
            "--id-from-address, or give another directory, which is empty",
            path=path,
        )
    if _stable_name(bookie_id) != name:
        raise WrongDirectoryError(
            f"{directory} belongs to bookie {bookie_id}, not to one called {name}: start each bookie on its own directory",
            path=path,
        )
    return BookieId(bookie_id)


def _stable_name(bookie_id: str) -> str:
    return bookie_id if is_address(bookie_id) else bookie_id.rpartition(".")[0]


def _compare_with_segments(
    directory: Path, meant: tuple[str, str], says: tuple[str, str], files: Files
) -> None:
    """Refuse a cookie as damaged where a segment, which has a checksum, shows that the directory is the right one.

    Args:
        directory: the bookie's.
        meant: the cluster, and the bookie's name, with which the bookie is started.
        says: the cluster and the bookie's id in the cookie.
        files: the file system.

    Raises:
        WrongDirectoryError: the segment has what was meant, or nearly what the cookie says.
    """
    witness = _witness(directory, files)
    if witness is None or says == (witness.cluster_instance, witness.bookie_id):
        return
    is_meant = meant == (witness.cluster_instance, _stable_name(witness.bookie_id))
    if is_meant or is_nearly(" ".join(says), f"{witness.cluster_instance} {witness.bookie_id}"):
        raise damaged_cookie(
            directory,
            f"it names bookie {says[1]} of cluster {says[0]}, and the segments next to it are of bookie "
            f"{witness.bookie_id} of cluster {witness.cluster_instance}",
        )


def is_nearly(one: str | bytes, other: str | bytes) -> bool:
    """Whether two texts differ as a damaged one does from what it was: in one byte, or in a few bits."""
    first, second = (text.encode() if isinstance(text, str) else text for text in (one, other))
    if len(first) != len(second):
        return False
    flipped = [(left ^ right).bit_count() for left, right in zip(first, second, strict=True) if left != right]
    return len(flipped) == 1 or 0 < sum(flipped) <= FLIPPED_BITS_MAX


def damaged_cookie(directory: Path, why: str) -> WrongDirectoryError:
    """The error for a cookie that is not as it was written; the rest of the directory is to be kept."""
    path = directory / COOKIE_FILE
    return WrongDirectoryError(
        f"{path} is damaged ({why}). Keep the directory as it is: move {COOKIE_FILE} away and start the bookie once with "
        "--adopt, which takes the cookie that the cluster keeps; or restore the file from a copy",
        path=str(path),
    )
