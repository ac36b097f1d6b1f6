"""The history input: a git repository's own past as the edit log of a name space.

This is the use the ledger store was made for: every creation, change and removal of a path is one record, and
replaying the log gives the name space. git itself is the independent truth: the replayed state at a commit must be
what `git ls-tree -r` says of that commit.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from quire.cli.console.failures import VerificationError
from quire.core.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable

EVENTS_MIN: Final = 100
"""A repository with a shorter history is too small to show anything."""

_ACTIONS: Final = {"A": "create", "D": "delete", "M": "modify", "T": "modify"}


@dataclass(frozen=True, slots=True)
class TreeEdit:
    """One change of the name space.

    Attributes:
        action: `create`, `modify` or `delete`.
        path: the path as git has it, bytes.
        mode: the new mode, six octal digits (`000000` after a removal).
        blob: the id of the new content (zeros after a removal).
        commit: the commit that did it.
    """

    action: str
    path: bytes
    mode: str
    blob: str
    commit: str

    def encode(self) -> bytes:
        """The record's value; its key is the path."""
        return f"{self.action} {self.mode} {self.blob} {self.commit}".encode("ascii")

    @classmethod
    def decode(cls, path: bytes, value: bytes) -> Self:
        """The edit that `encode` wrote."""
        fields = value.decode("ascii").split(" ")
        if len(fields) != 4:
            text = f"The record of {path!r} is no edit of a name space: {value[:60]!r}."
            raise VerificationError(text)
        return cls(fields[0], path, fields[1], fields[2], fields[3])


class NameSpace:
    """Paths with their mode and content id, as edits have left them."""

    __slots__ = ("paths",)

    def __init__(self, paths: dict[bytes, tuple[str, str]] | None = None) -> None:
        self.paths = paths if paths is not None else {}

    def apply(self, edit: TreeEdit) -> None:
        """Do one edit.

        Raises:
            VerificationError: it is impossible here, so an edit was lost, doubled or moved.
        """
        exists = edit.path in self.paths
        if exists != (edit.action != "create"):
            state = "exists already" if exists else "does not exist"
            text = f"Replay stopped at commit {edit.commit}: cannot {edit.action} {edit.path!r}, it {state}."
            raise VerificationError(text)
        if edit.action == "delete":
            del self.paths[edit.path]
        else:
            self.paths[edit.path] = (edit.mode, edit.blob)

    def snapshot(self) -> bytes:
        """The whole state as bytes, in the form of `git ls-tree -z` without the type."""
        return b"".join(
            f"{mode} {blob}\t".encode("ascii") + path + b"\0"
            for path, (mode, blob) in sorted(self.paths.items())
        )

    @classmethod
    def from_snapshot(cls, data: bytes) -> NameSpace:
        """The state that `snapshot` wrote."""
        paths = {}
        for item in data.split(b"\0")[:-1]:
            facts, _, path = item.partition(b"\t")
            mode, blob = facts.decode("ascii").split(" ")
            paths[path] = (mode, blob)
        return cls(paths)


class NotUsableError(RefusedError):
    """This repository cannot be the demo's input; the text says why."""

    code = "repository_not_usable"


def repository_of(place: Path) -> Path:
    """The root of the git repository that holds `place`.

    Raises:
        NotUsableError: there is none, or git is missing.
    """
    return Path(os.fsdecode(git(place, "rev-parse", "--show-toplevel").rstrip(b"\n")))


def usable_edits(repository: Path) -> list[TreeEdit]:
    """The whole history of a repository, oldest first.

    Raises:
        NotUsableError: it is a shallow clone, or too short.
    """
    if git(repository, "rev-parse", "--is-shallow-repository").strip() == b"true":
        text = f"{repository} is a shallow clone: its history is not all here."
        raise NotUsableError(text)
    edits = read_edits(repository)
    if len(edits) < EVENTS_MIN:
        text = (
            f"{repository} has only {len(edits)} events in its history; the demo wants at least {EVENTS_MIN}."
        )
        raise NotUsableError(text)
    return edits


def read_edits(repository: Path, until: str = "HEAD") -> list[TreeEdit]:
    """Every edit on the line of first parents up to `until`, oldest first."""
    settings = [
        "-c",
        "log.showRoot=true",
        "-c",
        "log.showSignature=false",
        "-c",
        "diff.ignoreSubmodules=none",
    ]
    wanted = [
        "--first-parent",
        "--reverse",
        "-m",
        "--raw",
        "--no-renames",
        "--no-abbrev",
        "-z",
        "--no-ext-diff",
    ]
    return parse_log(git(repository, *settings, "log", *wanted, "--format=commit %H", until, "--"))


def parse_log(output: bytes) -> list[TreeEdit]:
    """Parse what `git log --raw -z --format='commit %H'` printed.

    Between NUL bytes stand `commit <id>`, `:<mode> <mode> <blob> <blob> <status>` and, after each of the latter, a
    path, which may hold any byte but NUL.
    """
    edits = []
    commit = ""
    tokens = iter(output.split(b"\0"))
    for raw in tokens:
        token = raw.lstrip(b"\n")
        if token.startswith(b"commit "):
            commit = token[7:].decode("ascii").strip()
        elif token.startswith(b":"):
            _, mode, _, blob, status = token[1:].decode("ascii").split(" ")
            edits.append(TreeEdit(_ACTIONS[status[0]], next(tokens), mode, blob, commit))
        elif token:
            text = f"git log printed something unexpected: {token[:60]!r}."
            raise NotUsableError(text)
    return edits


def tree_at(repository: Path, commit: str) -> dict[bytes, tuple[str, str]]:
    """The truth: what `git ls-tree -r` says of a commit."""
    paths = {}
    for item in git(repository, "ls-tree", "-r", "-z", "--full-tree", commit).split(b"\0")[:-1]:
        facts, _, path = item.partition(b"\t")
        mode, _, blob = facts.decode("ascii").split(" ")
        paths[path] = (mode, blob)
    return paths


def replay(edits: Iterable[TreeEdit], onto: NameSpace | None = None) -> NameSpace:
    """The name space after the edits, from nothing or from a snapshot."""
    space = onto or NameSpace()
    for edit in edits:
        space.apply(edit)
    return space


def middle_commit(edits: list[TreeEdit]) -> tuple[str, int]:
    """An earlier commit near the middle of the history, and how many edits had been made when it was done."""
    commit = edits[len(edits) // 2].commit
    last = max(place for place, edit in enumerate(edits) if edit.commit == commit)
    if last == len(edits) - 1:
        # One huge last commit: the one before it, so that a tail remains to be replayed.
        first = min(place for place, edit in enumerate(edits) if edit.commit == commit)
        if first:
            return edits[first - 1].commit, first
    return commit, last + 1


def git(place: Path, *arguments: str, standard_input: bytes | None = None) -> bytes:
    """What git prints, run in `place`, whatever the caller's own repository is.

    Raises:
        NotUsableError: git is missing or said no.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    environment |= {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            ["git", "-C", str(place), *arguments],
            input=standard_input,
            capture_output=True,
            check=False,
            env=environment,
        )
    except FileNotFoundError as error:
        text = "git is not installed; install it (`apt-get install git`) and try again."
        raise NotUsableError(text) from error
    if done.returncode:
        reason = done.stderr.decode("utf-8", "replace").strip()
        text = f"git {arguments[0]} in {place} failed: {reason}"
        raise NotUsableError(text, path=str(place))
    return done.stdout
