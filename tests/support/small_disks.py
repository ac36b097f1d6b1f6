"""File systems of a size, mounted for a test: ext4 in a file, and tmpfs. Only root can mount; others skip, loudly."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


def _done(*command: str) -> None:
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"{' '.join(command)}: {made.stderr.strip()}: a file system cannot be mounted here")


@contextlib.contextmanager
def small_disk(kind: str, place: Path, mib: int) -> Iterator[Path]:
    """A file system of `kind` ("ext4" or "tmpfs") of so many MiB; yields a folder in it."""
    if os.geteuid():
        pytest.skip("only root can mount a file system")
    mount = place / "mount"
    mount.mkdir(parents=True)
    if kind == "tmpfs":
        _done("mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(mount))
    else:
        image = place / "disk.img"
        with image.open("wb") as file:
            file.truncate(mib << 20)
        _done("mkfs.ext4", "-q", "-m", "0", str(image))
        _done("mount", "-o", "loop", str(image), str(mount))
    try:
        yield mount / "bookie"
    finally:
        subprocess.run(["umount", str(mount)], check=True)
