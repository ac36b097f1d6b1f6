"""The modes of what is made, and of what is found."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

import pytest

from quire.core.errors import WrongDirectoryError
from quire.env import private
from quire.env.real import RealFiles

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
NOBODY = 65534


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True)
def usual_umask():
    former = os.umask(0o022)
    yield
    os.umask(former)


def test_what_is_made_is_its_owners(tmp_path: Path) -> None:
    files, folder = RealFiles(), tmp_path / "a" / "b"
    files.make_directory(folder)
    files.allocate(folder / "segment", 4096)
    files.write_whole(folder / "cookie", b"x")
    with private.open_private(folder / "log", "a", encoding="utf-8") as log:
        log.write("line")
    assert {mode(path) for path in (folder, folder.parent)} == {0o700}
    assert {mode(path) for path in folder.iterdir()} == {0o600}


def test_a_folder_that_its_owner_opened_to_a_group_stays_open(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    folder.chmod(0o750)
    assert private.close_folder(folder, lambda _: True) == []
    RealFiles().allocate(folder / "segment", 4096)
    assert (mode(folder), mode(folder / "segment")) == (0o750, 0o640)
    folder.chmod(0o755)
    assert private.file_mode(folder) == 0o600, "what everybody may use was opened by nobody"


def test_what_an_older_version_left_open_is_closed_and_said(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir(0o755)
    for name in ("one", "two", "marker"):
        (folder / name).touch(0o644)
    (folder / "link").symlink_to(tmp_path)
    (folder / "below").mkdir(0o755)
    untouched = (folder / "marker").stat()
    [said] = private.close_folder(folder, lambda _: True, untouched={"marker"})
    assert said.startswith("closed to other users than the owner: 3 files and folders")
    assert (mode(folder), mode(folder / "one"), mode(folder / "two")) == (0o700, 0o600, 0o600)
    assert (folder / "marker").stat() == untouched, "not even its change time is another"
    assert mode(folder / "below") == 0o755, "it is closed apart"
    assert private.close_folder(folder, lambda _: True) != []
    assert private.close_folder(folder, lambda _: True) == []
    assert private.close_folder(tmp_path / "missing", lambda _: True) == []


@pytest.mark.parametrize("sticky", [False, True])
def test_a_folder_with_other_things_stays_open_and_the_command_is_named(
    tmp_path: Path, *, sticky: bool
) -> None:
    folder = tmp_path / "a"
    folder.mkdir(0o755)
    if sticky:
        folder.chmod(0o1777)
    else:
        (folder / "somebody's").touch(0o644)
    (folder / "ours").touch(0o644)
    before = mode(folder)
    left, closed = private.close_folder(folder, lambda name: name == "ours")
    assert f"run `chmod 700 {folder}`" in left
    assert "1 files and folders" in closed
    assert (mode(folder), mode(folder / "ours")) == (before, 0o600)
    if not sticky:
        assert mode(folder / "somebody's") == 0o644


@needs_root
def test_a_folder_that_another_user_made_where_everybody_may_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "shared" / "quire"
    folder.mkdir(parents=True)
    folder.parent.chmod(0o1777)
    private.check_owner(folder)
    private.check_owner(folder.parent / "missing")
    os.chown(folder, NOBODY, NOBODY)
    with pytest.raises(WrongDirectoryError, match=f"{folder} belongs to user {NOBODY}"):
        private.check_owner(folder)
    folder.parent.chmod(0o755)
    private.check_owner(folder)


def test_a_folder_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert private.user_folder("XDG_CACHE_HOME", ".cache") == tmp_path / ".cache" / "quire"
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert private.user_folder("XDG_CACHE_HOME", ".cache") == Path("/elsewhere/quire")


def test_a_file_with_a_secret_that_others_can_read_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    path = tmp_path / "jaas.conf"
    private.warn_if_others_may_read(path, "passwords")
    path.touch(0o600)
    private.warn_if_others_may_read(path, "passwords")
    assert caplog.messages == []
    path.chmod(0o644)
    private.warn_if_others_may_read(path, "passwords")
    assert caplog.messages == [
        f"{path} holds passwords and can be read by other users: run `chmod 600 {path}`"
    ]
