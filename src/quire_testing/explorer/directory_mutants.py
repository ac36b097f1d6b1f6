"""The mutants of a bookie's identity: one rule of starts or of pauses taken out of each.

Source: docs/decisions/015-who-a-directory-is.md.
"""

from __future__ import annotations

from typing import Final

from quire.core.bookie.boot import BootState, older_directory
from quire_testing.explorer.directory_world import DirectoryConfiguration
from quire_testing.explorer.mutant import Mutant, with_rules


def _by_numbers(stored: BootState | None, own: BootState) -> str | None:
    return None if stored is None else older_directory(stored, own._replace(marker=stored.marker))


def _by_marker(stored: BootState | None, own: BootState) -> str | None:
    return None if stored is None else older_directory(stored._replace(boot=0, lsn=0), own)


DIRECTORY_MUTANTS: Final[tuple[Mutant[DirectoryConfiguration], ...]] = (
    with_rules(
        "directory-older",
        "an older directory denies entries",
        DirectoryConfiguration(),
        "W1",
        older_directory=lambda stored, own: None,
    ),
    with_rules(
        "directory-numbers",
        "a copy is known by its boot and its LSN alone",
        DirectoryConfiguration(),
        "W1",
        older_directory=_by_numbers,
    ),
    with_rules(
        "directory-marker",
        "a copy is known by its marker alone",
        DirectoryConfiguration(),
        "W1",
        older_directory=_by_marker,
    ),
    with_rules(
        "directory-unregistered",
        "acknowledged without a registration",
        DirectoryConfiguration(),
        "W1",
        pending_after_pause=lambda apart_ms, pause_ms: False,
    ),
)
