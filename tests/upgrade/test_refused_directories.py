"""A directory that today's program has opened is refused by one of revision 9e5fe3a, as docs/upgrading.md says."""

from __future__ import annotations

import errno
import json
import random
import sys
from pathlib import Path

import pytest

from quire.env.real import RealFiles
from quire.storage.config import StorageConfig
from quire.storage.directory.identity import open_identity
from quire.storage.ledger_storage import LedgerStorage
from quire_testing.kit.stepped import StepClock, StepWorker
from support.golden import BOOKIE, CLUSTER, FOLDER, unpack
from support.old_programs import old_or_skip
from support.upgrading_page import documented

OPENER = Path(__file__).parent / "makers" / "open_directory.py"
NAMES = tuple(json.loads((FOLDER / "directories.json").read_text()))


class FullDisk(RealFiles):
    """No room for another file."""

    def allocate(self, path: Path, size: int) -> None:
        raise OSError(errno.ENOSPC, "no space left on device", str(path))


def opened_by_today(directory: Path, *, clean: bool, files: RealFiles | None = None) -> None:
    files = files or RealFiles()
    identity = open_identity(directory, BOOKIE, CLUSTER, files=files)
    storage = LedgerStorage.open(
        directory,
        StorageConfig(segment_bytes=128 * 1024, direct=False),
        identity,
        files=files,
        worker=StepWorker(),
        clock=StepClock(1_000_000),
        chance=random.Random(9),
        served=True,
    )
    storage.close(clean=clean)
    identity.release()


def said_by_the_old(directory: Path) -> str:
    done = old_or_skip().run([sys.executable, str(OPENER), str(directory)])
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_the_old_program_takes_what_only_it_has_opened(name: str, tmp_path: Path) -> None:
    assert said_by_the_old(unpack(FOLDER / f"directory-{name}.tar.xz", tmp_path / "bookie")) == ""


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_it_refuses_what_today_has_opened_once(name: str, clean: bool, tmp_path: Path) -> None:
    directory = unpack(FOLDER / f"directory-{name}.tar.xz", tmp_path / "bookie")
    opened_by_today(directory, clean=clean)
    said = said_by_the_old(directory)
    assert documented(said).startswith("DIR/segments/N.seg at offset 0: written by a newer version (format 2")
    # Again, and after another start of today's.
    assert said_by_the_old(directory) == said
    opened_by_today(directory, clean=True)
    assert documented(said_by_the_old(directory))


def test_it_refuses_a_segment_of_its_own_that_a_full_disk_made_today_go_on_in(tmp_path: Path) -> None:
    directory = unpack(FOLDER / "directory-clean.tar.xz", tmp_path / "bookie")
    for spare in (*directory.glob("segments/*.fresh"), *directory.glob("segments/*.used")):
        spare.unlink()
    before = sorted(path.name for path in directory.glob("segments/*.seg"))
    opened_by_today(directory, clean=True, files=FullDisk())
    assert sorted(path.name for path in directory.glob("segments/*.seg")) == before
    assert "a record of kind 0x8d from a newer version" in documented(said_by_the_old(directory))
