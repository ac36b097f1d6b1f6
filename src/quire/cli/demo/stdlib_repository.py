"""A repository made of the standard library's tree, for places where no usable history is checked out.

Packages come one by one, first in half and then whole, and some go and come back: creations, changes and removals of
some thousand paths, the same on every run for one Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from quire.cli.demo.git_history import git

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_AUTHOR: Final = b"Quire demo <demo@localhost>"
_EPOCH_S: Final = 1_600_000_000


def make_repository(target: Path, root: Path, files: list[Path]) -> Path:
    """Make a bare repository in `target` whose history builds the tree of `files`.

    Args:
        target: a directory; what it already holds is kept when it is such a repository.
        root: the files' common root.
        files: what to put in, sorted.

    Returns:
        `target`.
    """
    if (target / "made").exists():
        return target
    target.mkdir(parents=True, exist_ok=True)
    git(target, "init", "--quiet", "--bare", ".")
    git(target, "symbolic-ref", "HEAD", "refs/heads/main")
    git(target, "fast-import", "--quiet", "--force", standard_input=b"".join(_stream(root, files)))
    (target / "made").touch()
    return target


def _stream(root: Path, files: list[Path]) -> Iterator[bytes]:
    """The commits, as git's fast-import wants them."""
    packages: dict[str, list[Path]] = {}
    for path in files:
        parts = path.relative_to(root).parts
        packages.setdefault(parts[0] if len(parts) > 1 else "modules", []).append(path)
    time_s = _EPOCH_S
    removed: list[Path] = []
    for number, (package, members) in enumerate(packages.items()):
        yield _commit(time_s, f"Begin {package}")
        for path in members:
            data = path.read_bytes()
            yield _file(root, path, data[: len(data) // 2])
        yield _commit(time_s + 60, f"Finish {package}")
        for path in members:
            yield _file(root, path, path.read_bytes())
        if number % 3 == 2:
            yield _commit(time_s + 120, f"Take {package} out")
            for path in members:
                yield b"D " + _name(root, path) + b"\n"
            removed += members
        time_s += 3600
    yield _commit(time_s, "Put everything back")
    for path in removed:
        yield _file(root, path, path.read_bytes())


def _commit(time_s: int, message: str) -> bytes:
    text = message.encode("utf-8", "surrogateescape")
    head = b"commit refs/heads/main\ncommitter %s %d +0000\n" % (_AUTHOR, time_s)
    return head + b"data %d\n%s\n" % (len(text), text)


def _file(root: Path, path: Path, data: bytes) -> bytes:
    return b"M 100644 inline %s\ndata %d\n%s\n" % (_name(root, path), len(data), data)


def _name(root: Path, path: Path) -> bytes:
    return str(path.relative_to(root)).encode("utf-8", "surrogateescape")
