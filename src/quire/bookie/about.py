"""What a bookie says of its disk."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from quire.storage.space_reasons import UNKNOWN_SPACE, FreeSpace

if TYPE_CHECKING:
    from pathlib import Path


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
