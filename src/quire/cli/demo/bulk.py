"""The bulk input: every line, as bytes, of the Python standard library's source files.

Every machine that runs Quire has them, and their digests are an independent truth: the log never sees a file as a
whole, so files put together again from the table prove that no line was lost, doubled, changed or moved.
"""

from __future__ import annotations

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from quire.core.errors import MisuseError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LINE_BYTES_MAX: Final = 256 * 1024
"""A longer line becomes several records; put together they are the same bytes."""

_NOT_THE_LIBRARY: Final = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}
"""Installed packages, and the library's own tests, which many systems leave out."""


@dataclass(frozen=True, slots=True)
class InputLine:
    """One record of the bulk input.

    Attributes:
        key: the path of the file relative to the root, as bytes.
        value: the line with its line feed (the last one may have none).
    """

    key: bytes
    value: bytes


def library_root() -> Path:
    """Where this Python keeps its standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def source_files(root: Path) -> list[Path]:
    """The Python files below `root`, sorted by path, without installed packages and tests."""
    found = (path for path in root.rglob("*.py") if _NOT_THE_LIBRARY.isdisjoint(path.relative_to(root).parts))
    return sorted(path for path in found if path.is_file() and not path.is_symlink())


def input_files(path: Path) -> tuple[Path, list[Path]]:
    """The user's own input: a file, or every file below a directory.

    Returns:
        The common root, and the files.

    Raises:
        MisuseError: there is nothing to read.
    """
    root = path.absolute()
    files = sorted(each for each in root.rglob("*") if each.is_file() and not each.is_symlink())
    if root.is_file():
        root, files = root.parent, [root]
    if not any(each.stat().st_size for each in files):
        raise MisuseError(f"{path} is missing or empty: --input takes a file, or a directory with files.")
    return root, files


def lines_of(root: Path, files: Iterable[Path]) -> Iterator[InputLine]:
    """Every line of the files, in order."""
    for path in files:
        key = str(path.relative_to(root)).encode("utf-8", "surrogateescape")
        with path.open("rb") as stream:
            while value := stream.readline(LINE_BYTES_MAX):
                yield InputLine(key, value)


def digests_of(root: Path, files: Iterable[Path]) -> dict[str, str]:
    """The truth: SHA-256 of each file, by its relative path; empty files, which have no lines, are left out."""
    digests = {}
    for path in files:
        data = path.read_bytes()
        if data:
            digests[str(path.relative_to(root))] = hashlib.sha256(data).hexdigest()
    return digests


def differences(truth: dict[str, str], seen: dict[str, str], most: int = 5) -> list[str]:
    """What differs between two sets of digests, a sentence each, at most `most`."""
    found = []
    for path in sorted(truth.keys() | seen.keys()):
        if truth.get(path) == seen.get(path):
            continue
        if path not in seen:
            found.append(f"{path} is missing")
        elif path not in truth:
            found.append(f"{path} was never written")
        else:
            found.append(f"{path} differs: {seen[path][:12]} instead of {truth[path][:12]}")
        if len(found) == most:
            break
    return found
