"""Whose directory it is."""

from __future__ import annotations

import errno
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from quire.core.errors import (
    DirectoryInUseError,
    DiskFullError,
    MisuseError,
    StorageError,
    WrongDirectoryError,
)
from quire.core.ids import BookieId
from quire.env.real import RealFiles
from quire.storage.directory.identity import decode_cookie, encode_cookie, open_identity

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "cookies.json").read_text())


@pytest.mark.parametrize("vector", VECTORS)
def test_cookies_are_the_bytes_that_java_writes(vector: dict[str, object]) -> None:
    text = str(vector["text"]).encode()
    made = encode_cookie(
        vector["bookie_id"],  # type: ignore[arg-type]
        vector["journal_dirs"],  # type: ignore[arg-type]
        vector["ledger_dirs"],  # type: ignore[arg-type]
        vector["instance_id"],  # type: ignore[arg-type]
        vector["index_dirs"],  # type: ignore[arg-type]
    )
    assert made == text
    fields = decode_cookie(text)
    assert fields["bookieHost"] == vector["bookie_id"]
    assert fields.get("instanceId") == vector["instance_id"]


def test_a_new_directory_is_a_new_bookie_and_stays_it(tmp_path: Path) -> None:
    first = open_identity(tmp_path / "a", "b1", "cluster", chance=random.Random(1))
    first.release()
    again = open_identity(tmp_path / "a", "b1", "cluster")
    assert again.bookie_id == first.bookie_id
    assert again.cookie == first.cookie
    other = open_identity(tmp_path / "b", "b1", "cluster")
    assert other.bookie_id != first.bookie_id
    assert other.bookie_id.startswith("b1.")
    assert len(other.bookie_id) == len("b1.k7f3q")
    again.release()
    other.release()


def test_a_directory_is_used_once_at_a_time(tmp_path: Path) -> None:
    held = open_identity(tmp_path, "b1", "cluster")
    with pytest.raises(DirectoryInUseError, match="in use"):
        open_identity(tmp_path, "b1", "cluster")
    code = (
        "import sys; from quire.core.errors import DirectoryInUseError; from quire.storage.directory.identity import open_identity\n"
        "try: open_identity(sys.argv[1], 'b1', 'cluster')\n"
        "except DirectoryInUseError: print('refused')"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "refused\n"
    held.release()
    open_identity(tmp_path, "b1", "cluster").release()


def test_the_wrong_directory_is_refused(tmp_path: Path) -> None:
    open_identity(tmp_path, "b1", "cluster").release()
    with pytest.raises(WrongDirectoryError, match="not to other"):
        open_identity(tmp_path, "b1", "other")
    with pytest.raises(WrongDirectoryError, match="start each bookie on its own directory"):
        open_identity(tmp_path, "b2", "cluster")
    cookie = (tmp_path / "VERSION").read_bytes()
    for damaged in (
        b"",
        b"5\n",
        cookie[:-3],
        b"4" + cookie[1:],
        cookie.replace(b"bookieHost", b"bookieHosf"),
    ):
        (tmp_path / "VERSION").write_bytes(damaged)
        with pytest.raises(WrongDirectoryError, match=r"VERSION is damaged .* Keep the directory as it is"):
            open_identity(tmp_path, "b1", "cluster")
    (tmp_path / "VERSION").unlink()
    (tmp_path / "segments").mkdir()
    (tmp_path / "segments" / "0000000000000001.seg").touch()
    with pytest.raises(WrongDirectoryError, match="so its bookie is unknown"):
        open_identity(tmp_path, "b1", "cluster")


class Refusing(RealFiles):
    """A disk that refuses small files."""

    def __init__(self, number: int) -> None:
        self.number = number

    def write_whole(self, path: Path, data: bytes) -> None:
        raise OSError(self.number, "refused by the disk", str(path))


@pytest.mark.parametrize(
    ("number", "kind", "remedy"),
    [
        (errno.ENOSPC, DiskFullError, "Free space"),
        (errno.EDQUOT, DiskFullError, "Free space"),
        (errno.EIO, StorageError, "the disk works"),
        (errno.EACCES, StorageError, "this user may"),
    ],
)
def test_a_cookie_that_cannot_be_written_is_told_with_path_and_remedy(
    tmp_path: Path, number: int, kind: type[StorageError], remedy: str
) -> None:
    """It came out as a bare `OSError` that said neither what the file is for nor what to do."""
    with pytest.raises(StorageError, match="refused by the disk") as told:
        open_identity(tmp_path, "b1", "cluster", files=Refusing(number))
    assert type(told.value) is kind
    assert remedy in str(told.value)
    assert told.value.ids == {"path": str(tmp_path / "VERSION")}
    open_identity(tmp_path, "b1", "cluster").release()  # the lock was let go, and nothing is in the way


def test_a_cookie_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "VERSION").mkdir()
    with pytest.raises(StorageError, match=r"VERSION cannot be read or written: Is a directory"):
        open_identity(tmp_path, "b1", "cluster")


def test_an_address_is_an_id_as_it_is_and_stays_with_its_directory(tmp_path: Path) -> None:
    first = open_identity(tmp_path / "a", "10.0.0.7:3181", "cluster")
    first.release()
    assert first.bookie_id == "10.0.0.7:3181"
    again = open_identity(tmp_path / "a", "10.0.0.7:3181", "cluster", taken={first.bookie_id})
    again.release()
    assert again.bookie_id == first.bookie_id
    for other in ("10.0.0.7:3182", "b1"):
        with pytest.raises(WrongDirectoryError, match=r"--id-from-address --advertise 10\.0\.0\.7:3181"):
            open_identity(tmp_path / "a", other, "cluster")
    open_identity(tmp_path / "b", "b1", "cluster").release()
    with pytest.raises(WrongDirectoryError, match="an id stays with its directory"):
        open_identity(tmp_path / "b", "10.0.0.7:3181", "cluster")


def test_a_new_directory_cannot_have_an_id_that_has_been_in_the_cluster(tmp_path: Path) -> None:
    with pytest.raises(WrongDirectoryError, match="none of that bookie's entries") as refused:
        open_identity(tmp_path / "a", "10.0.0.7:3181", "cluster", taken={BookieId("10.0.0.7:3181")})
    assert refused.value.ids["bookie"] == "10.0.0.7:3181"
    assert not (tmp_path / "a" / "VERSION").exists()
    open_identity(tmp_path / "a", "b1", "cluster").release()  # another id, and the directory is free


@pytest.mark.parametrize(
    "name", ["h:0", "h:", ":1", "h:012", "h:123456", "::1:3181", "[::1]:3181", "a b:1", "a/b:1", "h:1:2"]
)
def test_addresses_that_are_no_ids(tmp_path: Path, name: str) -> None:
    with pytest.raises(MisuseError, match="IPv4"):
        open_identity(tmp_path / "d", name, "cluster")


@pytest.mark.parametrize("name", ["", "../x", "a/b", "-", "a b", "x" * 65, "é"])
def test_names_are_checked(tmp_path: Path, name: str) -> None:
    with pytest.raises(MisuseError):
        open_identity(tmp_path / "d", name, "cluster")
    assert not (tmp_path / "d").exists()
