"""A bookie's directory belongs to its owner: who may look into it is checked before it is used.

Source: `docs/security.md`, "What lies on disk".
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from quire.env.private import close_folder
from quire.storage.directory.boot_file import BOOT_FILE, MARKER_FILE
from quire.storage.directory.collector_file import COLLECTOR_FILE
from quire.storage.directory.identity import COOKIE_FILE
from quire.wire.stored_record import SEGMENTS_FOLDER

_LOG: Final = logging.getLogger(__name__)
_NAMES: Final = frozenset({BOOT_FILE, MARKER_FILE, COLLECTOR_FILE, COOKIE_FILE, SEGMENTS_FOLDER})


def close_directory(directory: Path) -> None:
    """Close a bookie's directory to other users where an older version left it open, and log what was done.

    For the process that has taken it, and has looked at its owner (`check_owner`) before.

    Args:
        directory: one that is missing is fine: it is made with the right mode.

    Raises:
        OSError: it cannot be looked at.
    """
    # The marker's change time distinguishes the directory from a copy of it, so the marker is not touched.
    said = close_folder(directory, _is_ours, untouched={MARKER_FILE})
    said += close_folder(directory / SEGMENTS_FOLDER, lambda _: True)
    for sentence in said:
        _LOG.warning("%s", sentence)


def _is_ours(name: str) -> bool:
    return name in _NAMES or name.endswith(".tmp")
