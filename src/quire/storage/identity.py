"""Who a bookie's directory belongs to: taken at its creation, kept in it, locked while it is used.

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

from quire.core.descriptors import is_shortage
from quire.core.errors import (
    DirectoryInUseError,
    DiskFullError,
    MisuseError,
    StorageError,
    WrongDirectoryError,
)
from quire.core.ids import BookieId
from quire.env.interfaces import Chance, Files, Lock
from quire.env.real import RealFiles
from quire.storage.patient_worker import shortage
from quire.storage.segment_format import BLOCK_BYTES, FormatError, decode_segment_header

COOKIE_FILE = "VERSION"
LOCK_FILE = "LOCK"
LAYOUT_VERSION = "5"
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
    """

    cluster_instance: str
    bookie_id: BookieId
    cookie: bytes = b""
    lock: Lock | None = None

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


def open_identity(
    directory: Path | str,
    name: str,
    cluster_instance: str,
    *,
    files: Files | None = None,
    chance: Chance | None = None,
    adopt: Mapping[BookieId, bytes] | None = None,
    taken: Collection[BookieId] = (),
) -> Identity:
    """Take a directory for this process; one that is empty becomes a new bookie's.

    Args:
        directory: made if it is not there.
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
        DiskFullError: there is no room for the cookie of a new bookie; the directory stays empty, so it can be tried again.
        StorageError: the directory cannot be made or locked, or its cookie cannot be read or written.
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
        files.make_directory(directory)
        lock = files.lock(directory / LOCK_FILE)
    except BlockingIOError as error:
        raise DirectoryInUseError(
            f"{directory} is in use by another bookie process: stop that process, or choose another "
            "directory",
            path=str(directory),
        ) from error
    except OSError as error:
        if is_shortage(error):
            raise shortage(directory, error) from error
        raise StorageError(
            f"{directory} cannot be used: {error.strerror or error}", path=str(directory)
        ) from error
    try:
        cookie = _cookie(
            directory, name, cluster_instance, files, chance or random.SystemRandom(), adopt or {}, taken
        )
        bookie_id = _check(directory, name, cluster_instance, cookie)
    except OSError as error:
        lock.release()
        if is_shortage(error):
            raise shortage(directory, error) from error
        raise _cookie_failed(directory / COOKIE_FILE, error) from error
    except BaseException:
        lock.release()
        raise
    return Identity(cluster_instance, bookie_id, cookie, lock)


def _cookie(
    directory: Path,
    name: str,
    cluster_instance: str,
    files: Files,
    chance: Chance,
    adopt: Mapping[BookieId, bytes],
    taken: Collection[BookieId],
) -> bytes:
    path = directory / COOKIE_FILE
    if files.exists(path):
        return files.read_whole(path)
    segments = [one for one in files.names(directory / "segments") if one.endswith(".seg")]
    if segments:
        # A first start writes the cookie before the first segment.
        found = _adopted(directory / "segments", segments, files, adopt)
        if found is None:
            raise WrongDirectoryError(
                f"{directory} has segments but no {COOKIE_FILE} file, so its bookie is unknown. "
                f"Restore {path}; or, if you are certain that it is this bookie's directory, start "
                "the bookie once with --adopt, which takes the cookie that the cluster keeps; or "
                "empty the directory and let the entries be copied from the other bookies",
                path=str(path),
            )
        files.write_whole(path, found)
        return found
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
    cookie = encode_cookie(bookie_id, [str(directory)], [str(directory)], cluster_instance)
    files.write_whole(path, cookie)
    return cookie


def _adopted(
    directory: Path, segments: list[str], files: Files, adopt: Mapping[BookieId, bytes]
) -> bytes | None:
    """The cookie of the bookie that a segment names, if there is one."""
    for name in segments:
        file = files.open_to_read(directory / name, random=True)
        try:
            bookie_id = decode_segment_header(file.read_at(0, BLOCK_BYTES)).bookie_id
        except FormatError:
            continue
        finally:
            file.close()
        return adopt.get(BookieId(bookie_id))
    return None


def _cookie_failed(path: Path, error: OSError) -> StorageError:
    """The message about a cookie that could not be read or written, with what to do about it."""
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


def _check(directory: Path, name: str, cluster_instance: str, cookie: bytes) -> BookieId:
    path = str(directory / COOKIE_FILE)
    try:
        fields = decode_cookie(cookie)
        bookie_id = fields["bookieHost"]
    except (ValueError, KeyError) as error:
        raise WrongDirectoryError(
            f"{path} is damaged ({error}): restore it from the metadata store", path=path
        ) from error
    if fields.get("instanceId") != cluster_instance:
        raise WrongDirectoryError(
            f"{directory} belongs to cluster {fields.get('instanceId')}, not to {cluster_instance}: "
            "give the --cluster that it belongs to, or the directory of this cluster",
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
            "--id-from-address, or give an empty directory",
            path=path,
        )
    if bookie_id.rpartition(".")[0] != name:
        raise WrongDirectoryError(
            f"{directory} belongs to bookie {bookie_id}, not to one called {name}: directories must not be swapped",
            path=path,
        )
    return BookieId(bookie_id)
