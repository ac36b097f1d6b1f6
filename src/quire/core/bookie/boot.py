"""Whose directory it is that a bookie starts on, and whether a bookie is still the one that has its identity.

A directory may be restored from a copy that was made some seconds before, and a copy may be started while the original
runs. Both would deny what was acknowledged. So each directory counts its boots and knows how far it got, a marker file
in it that is never touched again tells it from a copy, and the metadata store keeps the three of each bookie.

Source: `docs/decisions/015-who-a-directory-is.md`.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Marker(NamedTuple):
    """What distinguishes a marker file from a copy of it: its inode, and its change time in ns since 1970."""

    inode: int
    changed_ns: int


class BootState(NamedTuple):
    """How far a bookie's directory is, or is known to be.

    Attributes:
        boot: how often it was started; 0: that is not known.
        lsn: everything up to here is on the disk.
        marker: of the marker file.
        clean: the bookie was stopped, and not killed, with this very LSN.
        owner: random bits of the process that began this boot; 0 in a directory.
    """

    boot: int
    lsn: int
    marker: Marker
    clean: bool = False
    owner: int = 0


class Claim(Enum):
    """What the record in the store means to a process that wants to write it."""

    OURS = "ours"
    BEHIND = "behind"
    ANOTHER = "another"


def older_directory(stored: BootState | None, own: BootState) -> str | None:
    """Why a directory may lack what its bookie has acknowledged; None if it is the bookie's own and whole.

    Such a start is in limbo for everything: what it lacks it must not deny.

    Args:
        stored: what the metadata store knows; None if it knows nothing.
        own: what lies in the directory, before this start counts itself; the marker as the file is now.
    """
    if stored is None:
        return None
    if own.boot < stored.boot:
        return f"the directory has boot {own.boot}, and the cluster has recorded boot {stored.boot}"
    if own.lsn < stored.lsn:
        return f"the directory's last LSN is {own.lsn}, and the cluster has recorded LSN {stored.lsn}"
    if own.marker != stored.marker and not moved_cleanly(stored, own):
        return (
            f"the directory is a copy: its marker file has inode {own.marker.inode}, changed at "
            f"{own.marker.changed_ns} ns, and the cluster has recorded inode {stored.marker.inode}, "
            f"changed at {stored.marker.changed_ns} ns"
        )
    return None


def moved_cleanly(stored: BootState, own: BootState) -> bool:
    """Whether a copy has all that the original had: the last stop was clean, with this very boot and LSN."""
    return stored.clean and own.clean and (own.boot, own.lsn) == (stored.boot, stored.lsn)


def next_boot(stored: BootState | None, own: int) -> int:
    """The number of a start: above the directory's own, and above all that the cluster knows of."""
    return max(own, 0 if stored is None else stored.boot) + 1


def claim(stored: BootState | None, own: BootState) -> Claim:
    """Whether a process that serves as boot `own.boot` may write its record over this one.

    A record of a lower boot, or none, is that of a store that went back in time: the process that takes the identity
    over writes a higher one.
    """
    if stored is None or stored.boot < own.boot:
        return Claim.BEHIND
    if (stored.boot, stored.owner) == (own.boot, own.owner):
        return Claim.OURS
    return Claim.ANOTHER
