"""A bookie's directory that an older version left open to everybody."""

from __future__ import annotations

import logging
import stat
from pathlib import Path

import pytest

from quire.env.real import RealFiles
from quire.storage.directory.boot_file import MARKER_FILE
from quire.storage.directory.owned_directory import close_directory

FILES = ("VERSION", "BOOT", "COLLECTOR", "segments/0000000000000001.seg", "segments/1.fresh")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """As an older version made it."""
    folder = tmp_path / "bookie"
    for made in (folder, folder / "segments"):
        made.mkdir()
        made.chmod(0o755)
    for name in (*FILES, MARKER_FILE):
        (folder / name).touch()
        (folder / name).chmod(0o644)
    return folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_it_is_closed_and_stays_the_same_directory(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    marker = RealFiles().stamp(directory / MARKER_FILE)
    close_directory(directory)
    assert {mode(directory), mode(directory / "segments")} == {0o700}
    assert {mode(directory / name) for name in FILES} == {0o600}
    assert RealFiles().stamp(directory / MARKER_FILE) == marker, "else the bookie would start in limbo"
    assert len(caplog.messages) == 2
    close_directory(directory)
    assert len(caplog.messages) == 2


def test_segments_that_a_group_may_read_stay_so(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    for path in (directory, directory / "segments"):
        path.chmod(0o750)
    for name in FILES:
        (directory / name).chmod(0o640)
    close_directory(directory)
    assert mode(directory) == mode(directory / "segments") == 0o750
    assert {mode(directory / name) for name in FILES} == {0o640}
    assert caplog.messages == []
