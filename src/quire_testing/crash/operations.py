"""What a recorded run did to the disk, operation by operation, and what it acknowledged meanwhile.

A recording is everything that is needed to make each state that a power cut could have left. Nothing here opens a file.

Source: ALICE (Pillai and others, OSDI 2014), "abstract persistence models"; CrashMonkey and ACE (OSDI 2018).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from quire_testing.kit.memory import Tree


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes were written to a file; `direct`: the call returned when they were on the disk."""

    file: int
    offset: int
    data: bytes
    direct: bool = False


@dataclass(frozen=True, slots=True)
class Resize:
    """A file got a length; what is new in it reads as zeros."""

    file: int
    size: int


@dataclass(frozen=True, slots=True)
class Sync:
    """Everything written to a file before is on the disk."""

    file: int


@dataclass(frozen=True, slots=True)
class FailedSync:
    """A sync of a file, or a direct write to it, returned an error: what was dirty may be there or not, for ever."""

    file: int


@dataclass(frozen=True, slots=True)
class CreateFile:
    """A name for a new, empty file; a file that had the name before loses it."""

    path: str
    file: int


@dataclass(frozen=True, slots=True)
class MakeDirectory:
    """A directory."""

    path: str


@dataclass(frozen=True, slots=True)
class Rename:
    """A file's name changes; whole or not at all."""

    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Remove:
    """A name is removed."""

    path: str


@dataclass(frozen=True, slots=True)
class SyncDirectory:
    """All changes of names in a directory before are on the disk."""

    path: str


@dataclass(frozen=True, slots=True)
class Milestone:
    """Something that was acknowledged, or was about to be done: no operation of the disk.

    `weakens`: from here on less has to hold (a deletion was asked for); a power cut just before it is judged without.
    """

    what: Any
    weakens: bool = False


NameChange: TypeAlias = CreateFile | MakeDirectory | Rename | Remove
Operation: TypeAlias = Write | Resize | Sync | FailedSync | NameChange | SyncDirectory | Milestone


@dataclass(slots=True)
class Recording:
    """A run.

    Attributes:
        start: what was there before.
        operations: in the order in which they returned.
    """

    start: Tree = field(default_factory=Tree)
    operations: list[Operation] = field(default_factory=list)

    @property
    def milestones(self) -> list[Any]:
        """What the milestones say, in order."""
        return [one.what for one in self.operations if isinstance(one, Milestone)]


def said(operation: Operation) -> str:
    """An operation in a few words."""
    match operation:
        case Write(file, offset, data, direct):
            return f"{'direct write' if direct else 'write'} file {file} at {offset}, {len(data)} bytes"
        case CreateFile(path, file):
            return f"create {path} (file {file})"
        case Rename(old, new):
            return f"rename {old} to {new.rpartition('/')[2]}"
        case Milestone(what):
            return f"milestone {what}"
        case MakeDirectory(path) | Remove(path) | SyncDirectory(path):
            return f"{_verb(operation)} {path}"
        case Resize(file, size):
            return f"resize file {file} to {size}"
        case Sync(file) | FailedSync(file):
            return f"{_verb(operation)} file {file}"


def _verb(operation: Operation) -> str:
    return {
        MakeDirectory: "make directory",
        Remove: "remove",
        SyncDirectory: "sync directory",
        Sync: "sync",
        FailedSync: "failed sync of",
    }[type(operation)]
