"""Another user of the machine: what a running cluster keeps on disk is its owner's, also after an older version left it open."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import quire
from quire.cli.local.local_cluster import LocalCluster
from quire.core.errors import WrongDirectoryError
from quire.core.ids import LedgerId
from quire.env.private import close_folder
from quire.storage.directory.boot_file import MARKER_FILE

PASSWORD, PAYLOAD = b"the password of a ledger", b"what nobody else shall read " * 10
NOBODY = 65534
FIND = ["find", ".", "-exec", "cat", "{}", "+", "-print"]
needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can act as another user: what another user reads is NOT tested here"
)


@pytest.fixture(scope="module")
def shared() -> Iterator[Path]:
    """A folder that everybody may look into, as pytest's own are not."""
    former = os.umask(0o022)
    folder = Path(tempfile.mkdtemp(prefix="quire-shared-"))
    folder.chmod(0o755)
    yield folder
    os.umask(former)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def running(shared: Path) -> Iterator[LocalCluster]:
    """A cluster there, of one bookie."""
    with LocalCluster(shared / "cluster", 1) as local:
        yield local


@pytest.fixture(scope="module")
async def ledger_id(running: LocalCluster) -> LedgerId:
    """The ledger in it."""
    return await written(running.uri)


async def written(uri: str) -> LedgerId:
    async with (
        quire.connect(uri) as client,
        await client.create_ledger(
            ensemble_size=1, write_quorum=1, ack_quorum=1, password=PASSWORD
        ) as ledger,
    ):
        await ledger.append(PAYLOAD)
    return ledger.ledger_id


async def read(uri: str, ledger_id: LedgerId) -> list[bytes]:
    async with quire.connect(uri) as client, await client.open_ledger(ledger_id, PASSWORD) as ledger:
        return [bytes(entry.payload) async for entry in ledger.read()]


def modes(folder: Path) -> dict[str, set[int]]:
    """The modes of a folder and all that is below it."""
    found: dict[str, set[int]] = {"folders": set(), "files": set()}
    for path in (folder, *folder.rglob("*")):
        kind = "folders" if path.is_dir() else "files"
        found[kind].add(stat.S_IMODE(path.stat().st_mode))
    return found


def seen_by_another_user(folder: Path) -> bytes:
    """All names and bytes below a folder that another user can have."""
    done = subprocess.run(
        FIND, cwd=folder, user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, check=False
    )
    return done.stdout


def open_to_everybody(folder: Path) -> None:
    """As older versions made it; the marker's change time is kept, for it tells a directory from its copy."""
    for path in (folder, *folder.rglob("*")):
        if path.name != MARKER_FILE:
            path.chmod(0o755 if path.is_dir() else 0o644)


CLOSED = {"folders": {0o700}, "files": {0o600}}


@pytest.mark.usefixtures("ledger_id")
def test_what_a_cluster_keeps_is_its_owners(running: LocalCluster) -> None:
    assert (running.directory / "metadata.db-wal").exists(), "it is looked at while it is in use"
    assert modes(running.directory) == CLOSED


@needs_root
@pytest.mark.usefixtures("ledger_id")
def test_another_user_reads_nothing(shared: Path, running: LocalCluster) -> None:
    (shared / "control").write_bytes(PAYLOAD)
    mine = b"".join(path.read_bytes() for path in running.directory.rglob("*") if path.is_file())
    assert PASSWORD in mine
    assert PAYLOAD in mine
    theirs = seen_by_another_user(shared)
    assert b"./control" in theirs
    assert theirs.count(PAYLOAD) == 1, "only the control, which everybody may read"
    assert PASSWORD not in theirs
    assert b"metadata.db" not in theirs


async def test_what_an_older_version_left_open_is_closed_at_the_start(
    running: LocalCluster, ledger_id: LedgerId
) -> None:
    running.stop()
    open_to_everybody(running.directory)
    with LocalCluster(running.directory) as again:
        assert await read(again.uri, ledger_id) == [PAYLOAD]
        assert modes(again.directory) == CLOSED
        said = again.bookies[0].log.read_text()
        assert "closed to other users than the owner" in said
        assert "metadata.db, which holds passwords, was open to every user" in said
        assert "limbo" not in said, "the bookie does not take its directory for a copy"


@needs_root
def test_a_directory_that_another_user_put_there_is_refused(shared: Path) -> None:
    shared.chmod(0o1777)
    directory = shared / "theirs"
    directory.mkdir()
    os.chown(directory, NOBODY, NOBODY)
    with pytest.raises(WrongDirectoryError, match=f"{directory} belongs to user {NOBODY}"):
        LocalCluster(directory, 1).start()
    assert list(directory.iterdir()) == []


@needs_root
def test_what_belongs_to_somebody_else_is_left_and_the_command_is_named(shared: Path) -> None:
    folder = shared / "somebody's"
    folder.mkdir()
    folder.chmod(0o755)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setresuid(NOBODY, NOBODY, NOBODY)
            os.write(writer, "\n".join(close_folder(folder, lambda _: True)).encode())
            os._exit(0)
        finally:
            os._exit(1)
    os.close(writer)
    with open(reader, encoding="utf-8") as pipe:
        said = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    assert said.endswith(f"run `chmod go= {folder}` as its owner")
    assert folder.stat().st_mode & 0o777 == 0o755
