"""Files and folders that belong to their owner: the modes that they get, and those that are found.

New folders are 0700 and new files 0600. A folder that gives others nothing and its group something was opened to that
group by its owner, and stays as it is. What older versions left open to everybody is closed at a start.

Source: `docs/security.md`, "What lies on disk".
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Collection
from pathlib import Path
from typing import IO, Any, Final

from quire.core.errors import MisuseError, WrongDirectoryError

_LOG: Final = logging.getLogger(__name__)
FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600
OTHERS: Final = 0o007
GROUP: Final = 0o070
_READ_AND_WRITE: Final = 0o666
_ALL: Final = 0o777
_ROOT: Final = 0


def open_private(path: Path, mode: str, *, encoding: str | None = None) -> IO[Any]:
    """Open a file as `open` does (a path takes no opener); one that is made belongs to its owner alone.

    Args:
        path: the file.
        mode: as `open` takes it.
        encoding: of text.

    Raises:
        OSError: as `open` does.
    """
    return open(path, mode, encoding=encoding, opener=_opener)


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags, FILE_MODE)


def user_folder(variable: str, default: str) -> Path:
    """Our folder among those of the user: `quire` in the folder that an environment variable names.

    Args:
        variable: `XDG_CACHE_HOME` (what can be made again), `XDG_CONFIG_HOME` or `XDG_DATA_HOME`.
        default: the folder in the user's home where the variable names none.

    Source: XDG Base Directory Specification.
    """
    named = os.environ.get(variable, "")
    # The specification says that a relative path must be ignored.
    return (Path(named) if os.path.isabs(named) else Path.home() / default) / "quire"  # noqa: PTH117 - may be empty


def file_mode(folder: Path) -> int:
    """The mode of a new file in a folder of ours: 0600, and what the folder's owner gave its group.

    Raises:
        OSError: there is no such folder.
    """
    mode = folder.stat().st_mode
    shared = 0 if mode & OTHERS else mode & GROUP & _READ_AND_WRITE
    return FILE_MODE | shared


def companion_mode(file: Path) -> int:
    """The mode of a new file that goes with another file, for the same users: the other file's.

    Raises:
        OSError: there is no such file.
    """
    return FILE_MODE | stat.S_IMODE(file.stat().st_mode) & _READ_AND_WRITE


def companion_folder_mode(file: Path) -> int:
    """The mode of a new folder that goes with a file, for the same users as the file.

    Raises:
        OSError: there is no such file.
    """
    mode = companion_mode(file)
    return FOLDER_MODE | mode | (mode & 0o444) >> 2


def share_as(file: Path, descriptor: int, *, folder: bool = False) -> None:
    """Give what this process has made the users of the file that it goes with: its mode and, as root, its owner.

    Args:
        file: the file that it goes with.
        descriptor: of the new file or folder.
        folder: it is a folder.

    Raises:
        OSError: there is no such file, or the system refuses.
    """
    found = file.stat()
    special = os.fstat(descriptor).st_mode & stat.S_ISGID
    os.fchmod(descriptor, special | (companion_folder_mode(file) if folder else companion_mode(file)))
    if os.geteuid() == _ROOT:
        os.fchown(descriptor, found.st_uid, found.st_gid)


def close_to_others(path: Path, mode: int) -> bool:
    """Give a file or folder a mode if others may do anything with it; one that gives others nothing stays as it is.

    Args:
        path: one that is missing, or a link, stays as it is.
        mode: the new permissions.

    Returns:
        Whether it was open and is closed now.

    Raises:
        PermissionError: it is open and belongs to another user.
    """
    try:
        found = path.lstat().st_mode
        if stat.S_ISLNK(found) or not found & OTHERS:
            return False
        path.chmod(stat.S_IMODE(found) & ~_ALL | mode)
    except FileNotFoundError:
        return False
    return True


def close_folder(
    folder: Path, is_ours: Callable[[str], bool], *, untouched: Collection[str] = ()
) -> list[str]:
    """Close a folder, and the files in it that are ours, to everybody but their owner, where everybody could use them.

    A folder that holds anything else stays open: another program may need it. So does one with the sticky bit. Files
    and folders whose owner opened them to a group only stay as they are.

    Args:
        folder: one that is missing is fine.
        is_ours: whether a name in it is ours, be it a file to close or a folder that is closed apart.
        untouched: names of ours whose mode must not be changed.

    Returns:
        Sentences for the log: what was closed, and what is left to a person.

    Raises:
        OSError: the folder cannot be looked at.
    """
    if not folder.is_dir():
        return []
    names = sorted(os.listdir(folder))  # noqa: PTH208 - names only, of many files
    closed, not_ours = [], [name for name in names if not is_ours(name)]
    warnings = []
    try:
        if not_ours or folder.stat().st_mode & stat.S_ISVTX:
            if folder.stat().st_mode & OTHERS:
                warnings.append(
                    f"other users can look into {folder}, which is shared or also holds what is not Quire's: run `chmod 700 {folder}` if "
                    "no other user needs it"
                )
        elif close_to_others(folder, FOLDER_MODE):
            closed.append(folder)
        mode = file_mode(folder)
        for name in names:
            path = folder / name
            if is_ours(name) and name not in untouched and path.is_file() and close_to_others(path, mode):
                closed.append(path)
    except PermissionError as error:
        warnings.append(
            f"other users can read {error.filename}, which belongs to another user than this process: run "
            f"`chmod go= {error.filename}` as its owner"
        )
    if closed:
        some = ", ".join(map(str, closed[:3])) + (", ..." if len(closed) > 3 else "")
        warnings.append(
            f"closed to other users than the owner: {len(closed)} files and folders ({some}); to let a group read them "
            "again, see docs/security.md"
        )
    return warnings


def check_owner(folder: Path) -> None:
    """Refuse a folder that another user put where everybody may put one, as in /tmp.

    Args:
        folder: one that is missing is fine.

    Raises:
        WrongDirectoryError: naming the folder and its owner.
    """
    try:
        found = folder.lstat()
        parent = folder.absolute().parent.stat()
    except OSError:
        return
    shared = bool(parent.st_mode & 0o002)
    if shared and found.st_uid not in {os.geteuid(), _ROOT}:
        msg = (
            f"{folder} belongs to user {found.st_uid}, in a folder where every user may make one: what is in it could be "
            f"theirs; if you know that it is yours, run `chown {os.geteuid()} {folder}`, else choose another directory"
        )
        raise WrongDirectoryError(msg, path=str(folder))


def is_readable_by_others(path: Path) -> bool:
    """Whether other users than the owner can read a file; root's files may be readable by a group.

    Raises:
        OSError: the file cannot be looked at.
    """
    found = path.stat()
    allowed = 0o040 if found.st_uid == _ROOT else 0
    return bool(found.st_mode & 0o044 & ~allowed)


def secret_in(data: bytes, where: str) -> str:
    """The secret that a file or an environment variable holds: one line of UTF-8, without the end of the line.

    One rule for every surface, so that one file is one password for the command line, Spark and TLS.

    Args:
        data: all of it.
        where: what holds it, the beginning of a sentence: "the password file /etc/quire/password".

    Raises:
        MisuseError: it is no text, or has more than one line.
    """
    try:
        text = data.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise MisuseError(f"{where} is not UTF-8 text (byte {error.start}): write it in UTF-8") from error
    if not {"\n", "\r"}.isdisjoint(text):
        raise MisuseError(f"{where} has more than one line: a secret is one line; remove the others")
    return text


def read_secret(path: Path, what: str, *, others_may_read: bool = False) -> str:
    """The secret that a file holds, as `secret_in` reads it.

    Args:
        path: the file.
        what: what it holds, for errors: "password".
        others_may_read: a file that other users can read is a warning only: for files that a platform mounts with its own
            modes, as Kubernetes does.

    Raises:
        MisuseError: it cannot be read, others can read it, or it is empty, no text, or has more than one line.
    """
    where = f"the {what} file {path}"
    try:
        if others_may_read:
            warn_if_others_may_read(path, f"a {what}")
        elif is_readable_by_others(path):
            msg = f"{where} can be read by other users: run `chmod 600 {path}`, and change the {what} if it was seen"
            raise MisuseError(msg, path=str(path))
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise MisuseError(f"{where} cannot be read: {reason}", path=str(path)) from error
    line = secret_in(data, where)
    if not line:
        raise MisuseError(f"{where} is empty: write the {what} into its first line", path=str(path))
    return line


def secret_of_environment(name: str) -> str | None:
    """The secret in an environment variable, as `secret_in` reads it; None where the variable is not set.

    Raises:
        MisuseError: it is no text, or has more than one line.
    """
    data = os.environb.get(name.encode())
    return None if data is None else secret_in(data, f"the environment variable {name}")


def warn_if_others_may_read(path: Path, what: str) -> None:
    """Log a warning where others can read a file with a secret that a person made; the program goes on.

    Args:
        path: the file.
        what: what it holds: "passwords".
    """
    try:
        is_readable = is_readable_by_others(path)
    except OSError:
        return
    if is_readable:
        _LOG.warning("%s holds %s and can be read by other users: run `chmod 600 %s`", path, what, path)
