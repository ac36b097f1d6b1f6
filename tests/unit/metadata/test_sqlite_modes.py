"""Who may read and write a metadata file and what lies beside it: its owner, and others only by the owner's wish."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from quire.metadata.sqlite.store import SqliteStore

BESIDE = ("-wal", "-shm", "-sequence")


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    former = os.umask(0o022)
    yield
    os.umask(former)


def modes(path: Path) -> dict[str, int]:
    """The modes of a metadata file and of all beside it, by what is added to its name."""
    sessions = path.with_name(path.name + "-sessions")
    found = [path, sessions, *sessions.iterdir(), *(path.with_name(path.name + suffix) for suffix in BESIDE)]
    assert len(found) == 6
    return {
        (one.name.removeprefix(path.name) if one.parent == path.parent else "session"): stat.S_IMODE(
            one.stat().st_mode
        )
        for one in found
    }


def expected(files: int, folder: int) -> dict[str, int]:
    return {"": files, "-sessions": folder, "session": files, **dict.fromkeys(BESIDE, files)}


async def used(path: Path, *, create: bool = False) -> dict[str, int]:
    """The modes while a store is open that has written and registered something."""
    store = await SqliteStore.open(path, create=create)
    registration = await store.register("bookies/available/b1", b"")
    found = modes(path)
    await registration.close()
    await store.close()
    return found


async def test_a_new_one_is_its_owners(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    path = tmp_path / "below" / "metadata.db"
    assert await used(path, create=True) == expected(0o600, 0o700)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert await used(path) == expected(0o600, 0o700)
    assert caplog.messages == []


async def test_one_that_an_older_version_left_open_is_closed_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    path = tmp_path / "metadata.db"

    async def opened_by_two() -> dict[str, int]:
        first = await SqliteStore.open(path, create=True)
        await first.register("bookies/available/b1", b"")
        for one in (path, *(path.with_name(path.name + suffix) for suffix in BESIDE)):
            one.chmod(0o644)
        sessions = path.with_name(path.name + "-sessions")
        sessions.chmod(0o755)
        [session] = sessions.iterdir()
        session.chmod(0o644)
        second = await SqliteStore.open(path)
        found = modes(path)
        assert await first.get("bookies/available/b1") is not None
        await second.close()
        await first.close()
        return found

    assert await opened_by_two() == expected(0o600, 0o700)
    [said] = caplog.messages
    assert said.startswith(f"the metadata file {path}, which holds passwords, was open to every user")


async def test_one_that_its_owner_opened_to_a_group_stays_so_with_all_beside_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    path = tmp_path / "metadata.db"
    await used(path, create=True)
    for one in tmp_path.iterdir():
        if one.is_file():
            one.unlink() if one != path else one.chmod(0o660)
        else:
            [left.unlink() for left in one.iterdir()]
            one.rmdir()
    assert await used(path) == expected(0o660, 0o770)
    assert caplog.messages == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
async def test_what_root_puts_beside_it_belongs_to_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    await used(path, create=True)
    for one in tmp_path.iterdir():
        if one != path:
            one.unlink() if one.is_file() else one.rmdir()
    os.chown(path, 65534, 65533)

    async def scenario() -> set[tuple[int, int]]:
        async with await SqliteStore.open(path) as store:
            await store.register("bookies/available/b1", b"")
            found = [status.stat() for status in (path, *tmp_path.rglob("*"))]
            assert len(found) == 7
            return {(status.st_uid, status.st_gid) for status in found}

    assert await scenario() == {(65534, 65533)}
