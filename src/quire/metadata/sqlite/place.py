"""Where a metadata file may lie, whether it is one, and what SQLite's errors about it mean to a caller.

Source: SQLite documentation, "Result and Error Codes", "File Locking And Concurrency": network filesystems.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from quire.core.errors import CorruptMetadataError, DiskFullError, NoClusterError, QuireError, StorageError
from quire.core.settings import doubled
from quire.core.version import FORMAT
from quire.env.private import FILE_MODE, close_to_others, companion_folder_mode, companion_mode
from quire.env.real import RealFiles
from quire.metadata.checked import another_format
from quire.metadata.store import StoreBusyError

Result = TypeVar("Result")
_LOG: Final = logging.getLogger(__name__)

APPLICATION_ID: Final = 0x51756972  # "Quir"
SESSIONS: Final = "-sessions"
"""Added to the database's name: the folder of the session files."""
BUSY_MS: Final = 10_000
"""How long a caller waits for another process that is changing something."""
DAMAGE: Final = ("no such table", "Could not decode to UTF-8")
"""What SQLite, or Python's side of it, says of a damaged file without a code for it."""
NETWORK_FILESYSTEMS: Final = frozenset(
    [
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "afs",
        "ceph",
        "glusterfs",
        "fuse.glusterfs",
        "lustre",
        "gpfs",
        "beegfs",
        "fuse.sshfs",
        "fuse.s3fs",
    ]
)


def primary_code(error: sqlite3.Error) -> int:
    """SQLite's result code without its details; 0 where the error came from Python's side."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def retry_while_busy(attempt: Callable[[], Result], wait_ms: int = BUSY_MS) -> Result:
    """Try until no other process is in the way, in steps of 0.1 to 5 ms.

    Raises:
        sqlite3.OperationalError: SQLITE_BUSY when `wait_ms` is over.
    """
    give_up = time.monotonic() + wait_ms / 1000
    pause = 0.0001
    while True:
        try:
            return attempt()
        except sqlite3.OperationalError as error:
            if primary_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > give_up:
                raise
        time.sleep(pause)
        pause = doubled(pause, 0.005)


def explain(error: sqlite3.Error, path: Path) -> QuireError:
    """What an error of SQLite means to a caller."""
    code = primary_code(error)
    ids = {"path": str(path)}
    if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB} or any(sign in str(error) for sign in DAMAGE):
        return damaged(path, str(error))
    if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return StoreBusyError(
            f"another process has locked the metadata file {path} for {BUSY_MS // 1000} s; look for a "
            "stopped process, then try again",
            **ids,
        )
    if code == sqlite3.SQLITE_FULL:
        return DiskFullError(
            f"the disk of the metadata file {path} is full; nothing was changed: free space", **ids
        )
    if code in {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH}:
        return NoClusterError(
            f"the metadata file {path} cannot be opened for writing ({error}); check who owns it and its folder",
            **ids,
        )
    return StorageError(f"the metadata file {path} cannot be used: {error}", **ids)


def damaged(path: Path, what: str) -> CorruptMetadataError:
    """The error for a file that cannot be used any more."""
    return CorruptMetadataError(
        f"the metadata file {path} is damaged or is not one: {what}; stop the cluster, keep a copy of the file with"
        f" its -wal, and put back a backup or what `sqlite3 {path} .recover` saves; bookies then keep what it lacks until"
        " `quire cluster accept-store`",
        path=str(path),
    )


def check_kind(path: Path, application: object, version: object) -> None:
    """Refuse a database that is not ours, or of another format.

    Raises:
        CorruptMetadataError: saying whose it is.
    """
    if application != APPLICATION_ID:
        raise CorruptMetadataError(
            f"{path} is an SQLite database of another program (application id {application}), not the metadata of a"
            " cluster; name the right file",
            path=str(path),
        )
    if version != FORMAT:
        raise CorruptMetadataError(f"{path} {another_format(version)}", path=str(path))


def check_place(path: Path, *, create: bool) -> None:
    """Refuse a place where the database is missing, or where it cannot be safe; with `create` an empty file is there then.

    Raises:
        NoClusterError: saying what is there, and how a cluster is made.
    """
    ids = {"path": str(path)}
    try:
        if path.is_dir():
            raise NoClusterError(
                f"{path} is a directory; name the metadata file in it, as in sqlite:{path}/metadata.db", **ids
            )
        if not path.exists() or not path.stat().st_size:
            check_lost(path, create=create)
        if not path.exists() and not create:
            where = path.parent if path.parent.is_dir() else f"{path.parent}, which does not exist either"
            raise NoClusterError(
                f"no cluster exists at {path}: no such file in {where}; create a cluster with "
                f"`quire up --dir {path.parent}`, or name another cluster",
                **ids,
            )
        filesystem = filesystem_of(path.parent)
        if filesystem in NETWORK_FILESYSTEMS:
            raise NoClusterError(
                f"{path} lies on {filesystem}, a network filesystem, where SQLite's locks cannot be trusted; use a local"
                " disk",
                **ids,
            )
        if create:  # on the disk: SQLite syncs the file's name, not its folder's
            RealFiles().make_directory(path.parent)
            make_file(path)
    except OSError as error:
        raise _unreachable(path, error) from error


def check_lost(path: Path, *, create: bool) -> None:
    """Refuse to take a metadata file that is missing or empty for one that never was, where something shows that it was lost.

    Args:
        path: the file.
        create: it is to be made: then only data of bookies count, which a new file would know nothing of.

    Raises:
        NoClusterError: saying what is there, and that the file is to be restored.
    """
    bookies = [cookie.parent for cookie in sorted(path.parent.glob("*/VERSION")) if _has_data(cookie.parent)]
    sides = [path.with_name(path.name + suffix) for suffix in ("-sequence", SESSIONS)]
    signs = bookies or ([] if create else [side for side in sides if side.exists()])
    if signs:
        names = ", ".join(sign.name for sign in signs[:3]) + (", ..." if len(signs) > 3 else "")
        what = f"its cluster's data are still there ({names})" if bookies else f"a cluster had it ({names})"
        raise NoClusterError(
            f"the metadata file {path} was lost: {what}. Restore the file from a backup, and start again; a new one would know "
            "none of the ledgers. For a new cluster choose another directory",
            path=str(path),
        )


def _has_data(folder: Path) -> bool:
    """Whether a bookie's directory has segments."""
    return any(folder.glob("segments/*.seg"))


def make_file(path: Path) -> None:
    """Make an empty file where it is missing, before SQLite makes one that everybody can read.

    Raises:
        NoClusterError: it cannot be made.
    """
    try:
        # Not opened: closing a descriptor would drop the locks that this process has on the file.
        os.mknod(path, FILE_MODE | stat.S_IFREG)
    except (FileExistsError, PermissionError):
        return  # SQLite says what is not allowed
    except OSError as error:
        raise _unreachable(path, error) from error


def close_files(path: Path) -> None:
    """Make the database its owner's: what an older version left open to everybody is closed.

    Files that SQLite and this program put next to it get its mode, so an owner may open all to a group with one `chmod`. What
    another user owns stays as it is: that user's next start closes it.

    Raises:
        NoClusterError: it cannot be reached.
    """
    try:
        sessions = path.with_name(path.name + SESSIONS)
        closed = close_to_others(path, FILE_MODE)
        files = [path.with_name(path.name + suffix) for suffix in ("-wal", "-shm", "-sequence")]
        for file in [*files, *(sessions.iterdir() if sessions.is_dir() else ())]:
            closed |= file.is_file() and close_to_others(file, companion_mode(path))
        closed |= close_to_others(sessions, companion_folder_mode(path))
    except PermissionError:
        return
    except OSError as error:
        raise _unreachable(path, error) from error
    if closed:
        _LOG.warning(
            "the metadata file %s, which holds passwords, was open to every user: it is its owner's now, with the files next to"
            " it; `chmod 660` of all of them would let a group use the cluster (docs/security.md)",
            path,
        )


def _unreachable(path: Path, error: OSError) -> NoClusterError:
    return NoClusterError(f"the metadata file {path} cannot be reached: {error.strerror}", path=str(path))


def filesystem_of(folder: Path, mounts: str | None = None) -> str | None:
    """The type of the filesystem that holds a folder; None where the system does not report it.

    Args:
        folder: an absolute path without symbolic links.
        mounts: the text of /proc/self/mountinfo, read if None.
    """
    if mounts is None:
        try:
            mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:
            return None
    best, kind = -1, None
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        point = fields[4].replace("\\040", " ")
        inside = point == "/" or str(folder) == point or str(folder).startswith(point + os.sep)
        if inside and len(point) >= best:  # of two on one point the later one is on top
            best, kind = len(point), after.split(" ")[0]
    return kind
