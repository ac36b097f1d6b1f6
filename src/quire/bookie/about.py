"""What a bookie tells people of its program and its disk; nothing rests on it."""

from __future__ import annotations

import shutil
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from quire.core.space import UNKNOWN_SPACE, FreeSpace

if TYPE_CHECKING:
    from pathlib import Path


@cache
def program_version() -> str | None:
    """The version of the installed package; None where it runs from a place that is not installed."""
    try:
        return version("quire")
    except PackageNotFoundError:
        return None


def disk_facts(directory: Path) -> dict[str, int] | None:
    """Size and free bytes of the file system that a directory lies on; None where the system does not say."""
    try:
        usage = shutil.disk_usage(directory)
    except OSError:
        return None
    return {"bytes": usage.total, "free_bytes": usage.free}


def free_space(directory: Path) -> FreeSpace:
    """What is free where a directory lies; `UNKNOWN_SPACE` where the system does not say."""
    disk = disk_facts(directory)
    return FreeSpace(disk["free_bytes"], disk["bytes"]) if disk is not None else UNKNOWN_SPACE
