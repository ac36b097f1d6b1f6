"""The mutants of a bookie's identity: one judgement of starts or of pauses taken out of each.

Source: docs/decisions/015-who-a-directory-is.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from quire.core.boot import BootState, older_directory
from quire.core.rules import RULES
from quire.proof.directory_world import DirectoryConfiguration
from quire.proof.switches import SHIPPED, Switches


@dataclass(frozen=True, slots=True)
class DirectoryMutant:
    """One judgement taken out; the fields are those of `mutants.Mutant`."""

    name: str
    what: str
    switches: Switches
    configuration: DirectoryConfiguration
    violated: str
    rules: tuple[str, ...] = ()


def _rules(name: str, what: str, violated: str, **swapped: Any) -> DirectoryMutant:
    switches = replace(SHIPPED, rules=replace(RULES, **swapped))
    return DirectoryMutant(name, what, switches, DirectoryConfiguration(), violated, tuple(swapped))


def _by_numbers(stored: BootState | None, own: BootState) -> str | None:
    return None if stored is None else older_directory(stored, own._replace(marker=stored.marker))


def _by_marker(stored: BootState | None, own: BootState) -> str | None:
    return None if stored is None else older_directory(stored._replace(boot=0, lsn=0), own)


DIRECTORY_MUTANTS: Final[tuple[DirectoryMutant, ...]] = (
    _rules(
        "directory-older",
        "an older directory vouches",
        "W1",
        older_directory=lambda stored, own: None,
    ),
    _rules(
        "directory-numbers",
        "a copy is known by its boot and its LSN alone",
        "W1",
        older_directory=_by_numbers,
    ),
    _rules(
        "directory-marker",
        "a copy is known by its marker alone",
        "W1",
        older_directory=_by_marker,
    ),
    _rules(
        "directory-unregistered",
        "acknowledged without a registration",
        "W1",
        holds_after_pause=lambda apart_ms, pause_ms: False,
    ),
)
