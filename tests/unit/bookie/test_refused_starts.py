"""Whatever refuses the start of a bookie leaves its directory as it was, and what ends the refusal ends it.

The table has each refusal of `BookieServer.start`; in a directory with an open segment, which any start seals, and with
leftovers, which any start removes.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from crc32c import crc32c

from quire.bookie.config import BookieConfig
from quire.bookie.server import BookieServer
from quire.core.answers import Answer
from quire.core.errors import (
    AlreadyExistsError,
    CorruptMetadataError,
    DamagedSegmentError,
    DirectoryInUseError,
    MisuseError,
    StorageError,
    WrongDirectoryError,
)
from quire.core.version import UNRELEASED
from quire.env.interfaces import FileStamp
from quire.env.real import RealFiles
from quire.metadata.bookies import BookieInfo, BookieRegistry
from quire.metadata.keys import boot_key
from quire.metadata.memory import MemorySpace, MemoryStore
from quire.storage.directory.boot_file import BOOT_FILE, MARKER_FILE, Boot, BootFile, encode_boot
from quire.storage.directory.identity import COOKIE_FILE
from quire.storage.formats.segment_format import (
    ALL_LEDGERS,
    BLOCK_BYTES,
    decode_segment_header,
    encode_segment_header,
)
from quire.storage.segments.segment_files import Space
from quire_testing.kit.memory import NoLock
from unit.bookie.test_bookie_server import World, access, world

Undo = Callable[[], object]


def contents(directory: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Names, and of each its inode, mode, time of the last change of its bytes, and bytes."""
    found = {}
    for path in [directory, *sorted(directory.rglob("*"))]:
        status = path.stat()
        data = path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(directory))] = (status.st_ino, status.st_mode, status.st_mtime_ns, data)
    return found


def rewritten(path: Path, change: Callable[[bytes], bytes]) -> Undo:
    """Change a file; returns what takes that back."""
    data = path.read_bytes()
    path.write_bytes(change(data))
    return lambda: path.write_bytes(data)


def moved(path: Path) -> Undo:
    aside = path.parent.parent / f"aside-{path.name}"
    path.rename(aside)
    return lambda: aside.rename(path)


def segments(at: World) -> list[Path]:
    return sorted((at.config.directory / "segments").glob("*.seg"))


def with_header(**other: object) -> Callable[[bytes], bytes]:
    """A segment whose header says something else, with a right checksum."""

    def change(data: bytes) -> bytes:
        header = decode_segment_header(data[:BLOCK_BYTES])._replace(**other)  # type: ignore[arg-type]
        return encode_segment_header(header) + data[BLOCK_BYTES:]

    return change


def with_format(version: int) -> Callable[[bytes], bytes]:
    """A segment whose header says another version, with a right checksum."""

    def change(data: bytes) -> bytes:
        block = data[:8] + version.to_bytes(2, "big") + data[10 : BLOCK_BYTES - 4]
        return block + crc32c(block).to_bytes(4, "big") + data[BLOCK_BYTES:]

    return change


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


# --- what refuses -------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def port_taken(at: World) -> AsyncIterator[BookieConfig]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield replace(at.config, port=other.getsockname()[1])


@contextlib.asynccontextmanager
async def id_taken(at: World) -> AsyncIterator[BookieConfig]:
    """By a process that has the same cookie, and whose lock does not keep this one out: on another machine."""
    held = await BookieRegistry(at.store).register(BookieInfo(at.bookie, "127.0.0.1", 1, writable=False))
    yield at.config
    await held.close()


@contextlib.asynccontextmanager
async def directory_locked(at: World) -> AsyncIterator[BookieConfig]:
    lock = RealFiles().lock(at.config.directory)
    yield at.config
    lock.release()


@contextlib.asynccontextmanager
async def record_of_boots_damaged(at: World) -> AsyncIterator[BookieConfig]:
    found = await at.store.get(boot_key(at.bookie))
    assert found is not None
    await at.store.put(boot_key(at.bookie), b"?", found.version)
    yield at.config
    spoilt = await at.store.get(boot_key(at.bookie))
    assert spoilt is not None
    await at.store.put(boot_key(at.bookie), found.value, spoilt.version)


@contextlib.asynccontextmanager
async def cookie_of_cluster(at: World, change: Callable[[bytes], bytes]) -> AsyncIterator[BookieConfig]:
    registry = BookieRegistry(at.store)
    found = await registry.read_cookie(at.bookie)
    assert found is not None
    version = await registry.write_cookie(at.bookie, change(found.value), found.version)
    yield at.config
    await registry.write_cookie(at.bookie, found.value, version)


@contextlib.asynccontextmanager
async def no_cookie_anywhere(at: World) -> AsyncIterator[BookieConfig]:
    registry = BookieRegistry(at.store)
    found = await registry.read_cookie(at.bookie)
    assert found is not None
    await registry.delete_cookie(at.bookie)
    undo = moved(at.config.directory / COOKIE_FILE)
    yield replace(at.config, adopt=True)
    undo()
    await registry.write_cookie(at.bookie, found.value)


def spoilt(change: Callable[[World], Undo], **config: object):
    @contextlib.asynccontextmanager
    async def refusing(at: World) -> AsyncIterator[BookieConfig]:
        undo = change(at)
        yield replace(at.config, **config)  # type: ignore[arg-type]
        undo()

    return refusing


def cookie(change: Callable[[bytes], bytes], **config: object):
    return spoilt(lambda at: rewritten(at.config.directory / COOKIE_FILE, change), **config)


def boot(change: Callable[[bytes], bytes]):
    return spoilt(lambda at: rewritten(at.config.directory / BOOT_FILE, change))


def segment(change: Callable[[bytes], bytes], **config: object):
    return spoilt(lambda at: rewritten(segments(at)[0], change), **config)


def newer_boot(_: bytes) -> bytes:
    data = bytearray(encode_boot(Boot(1, 2, 3, FileStamp(4, 5))))
    data[9] = 3
    data[-4:] = crc32c(bytes(data[:-4])).to_bytes(4, "big")
    return bytes(data).ljust(8192, b"\0")


def foreign_file(at: World) -> Undo:
    path = at.config.directory / "segments" / "photo.seg"
    path.write_bytes(b"?")
    return path.unlink


def nothing(_: World) -> Undo:
    return lambda: None


REFUSALS = {
    "no name": (spoilt(nothing, name="a/b"), MisuseError, "not a valid bookie name"),
    "port taken": (port_taken, MisuseError, "is in use"),
    "id registered": (id_taken, AlreadyExistsError, "is already registered"),
    "directory locked": (directory_locked, DirectoryInUseError, "in use by another bookie process"),
    "another name": (spoilt(nothing, name="other"), WrongDirectoryError, "not to one called other"),
    "an address": (
        spoilt(nothing, id_from_address=True, advertise=("10.0.0.7", 3181)),
        WrongDirectoryError,
        "start it without --id-from-address",
    ),
    "cookie lost": (
        spoilt(lambda at: moved(at.config.directory / COOKIE_FILE)),
        WrongDirectoryError,
        "no VERSION file",
    ),
    "cookie lost everywhere": (no_cookie_anywhere, WrongDirectoryError, "no VERSION file"),
    "adopted, and of a newer version": (
        spoilt(
            lambda at: both(
                moved(at.config.directory / COOKIE_FILE),
                rewritten(at.config.directory / BOOT_FILE, newer_boot),
            ),
            adopt=True,
        ),
        WrongDirectoryError,
        "newer version",
    ),
    "cookie unreadable": (
        spoilt(lambda at: directory_instead(at.config.directory / COOKIE_FILE)),
        StorageError,
        "cannot be read",
    ),
    "cookie cut": (cookie(lambda text: text[:-3]), WrongDirectoryError, "VERSION is damaged"),
    "bit of the name": (
        cookie(lambda text: text.replace(b"bookie.", b"boojie.")),
        WrongDirectoryError,
        "VERSION is damaged.*Keep the directory as it is.*--adopt",
    ),
    "bit of the incarnation": (
        cookie(lambda text: flipped(text, text.index(b"bookie.") + 8)),
        WrongDirectoryError,
        "VERSION is damaged.*Keep the directory as it is.*--adopt",
    ),
    "bit of the cluster": (
        cookie(lambda text: flipped(text, text.index(b"instanceId") + 15)),
        WrongDirectoryError,
        "VERSION is damaged.*Keep the directory as it is.*--adopt",
    ),
    "bit of a path": (
        cookie(lambda text: flipped(text, text.index(b"journalDir") + 15)),
        WrongDirectoryError,
        "VERSION is damaged.*Keep the directory as it is.*--adopt",
    ),
    "cookie of another directory": (
        lambda at: cookie_of_cluster(at, lambda text: text.replace(b"/bookie", b"/elsewhere")),
        WrongDirectoryError,
        "not the directory of that bookie",
    ),
    "record of boots damaged": (record_of_boots_damaged, CorruptMetadataError, "boot record of bookie"),
    "boot damaged": (boot(lambda data: b"x" * len(data)), WrongDirectoryError, "BOOT is damaged"),
    "boot of a newer version": (boot(newer_boot), WrongDirectoryError, "newer version"),
    "marker lost": (
        spoilt(lambda at: moved(at.config.directory / MARKER_FILE)),
        WrongDirectoryError,
        "MARKER is missing",
    ),
    "segment of another bookie": (
        segment(with_header(bookie_id="other.aaaaa")),
        WrongDirectoryError,
        "belongs to bookie other.aaaaa",
    ),
    "segment of a newer version": (segment(with_format(9)), DamagedSegmentError, "newer version"),
    "segment of an older version": (
        segment(with_format(1)),
        DamagedSegmentError,
        f"format 1 was written by {UNRELEASED}",
    ),
    "segment without a header": (
        segment(lambda data: bytes(BLOCK_BYTES) + data[BLOCK_BYTES:]),
        DamagedSegmentError,
        "restore it, or move it away",
    ),
    "no segment": (spoilt(foreign_file), DamagedSegmentError, "not a segment's name"),
}


def both(*undo: Undo) -> Undo:
    return lambda: [one() for one in undo]


def directory_instead(path: Path) -> Undo:
    undo = moved(path)
    path.mkdir()
    return lambda: (path.rmdir(), undo())


async def fill_and_kill(at: World) -> None:
    """The directory as a kill leaves it: an open segment and leftovers."""
    for number in range(20):
        assert await at.add(access(), [number]) is Answer.OK
    await at.server.stop(clean=False)
    for name in ("9.fresh.tmp", "00000000000000aa.fresh"):
        (at.config.directory / "segments" / name).write_bytes(b"left over")


async def check_all_is_there(at: World) -> None:
    reply = await at.read(access(), 0, 19)
    assert [entry_id for run in reply.runs for entry_id, _ in run.entries()] == list(range(20))


@pytest.mark.parametrize("name", REFUSALS)
async def test_who_is_refused_has_written_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing, kind, sentence = REFUSALS[name]
    monkeypatch.setattr(MemoryStore, "session_timeout_ms", 50)
    async with world(tmp_path, name="bookie") as at:
        await fill_and_kill(at)
        async with refusing(at) as config:
            before = contents(config.directory)
            with pytest.raises(kind, match=sentence) as refused:
                await BookieServer(config, at.store).start()
            assert "empty th" not in str(refused.value), "whoever follows that advice loses the copies"
            assert contents(config.directory) == before
        before = contents(at.config.directory)
        await at.restart(clean=False)
        assert contents(at.config.directory).keys() != before.keys(), "a start that is not refused writes"
        await check_all_is_there(at)


async def test_a_record_of_a_newer_version_refuses_before_anything_is_written(at: World) -> None:
    storage = at.server.storage
    storage.journal.put(0x9F, ALL_LEDGERS, b"", Space.STATE)
    storage.flush()
    await storage.drain()
    await fill_and_kill(at)
    before = contents(at.config.directory)
    with pytest.raises(DamagedSegmentError, match="from a newer version; start that version"):
        await BookieServer(at.config, at.store).start()
    assert contents(at.config.directory) == before
    shutil.rmtree(at.config.directory)  # the rest of the world needs a bookie that can be stopped
    await at.restart(clean=False)


async def test_a_new_directory_is_not_even_made_for_who_is_refused(tmp_path: Path, at: World) -> None:
    config = replace(at.config, directory=tmp_path / "deep" / "new", port=at.server.address[1])
    with pytest.raises(MisuseError, match="is in use"):
        await BookieServer(config, at.store).start()
    assert not (tmp_path / "deep").exists()


async def test_two_starts_at_one_moment_make_one_bookie(tmp_path: Path) -> None:
    space = MemorySpace()
    stores = [MemoryStore(space) for _ in range(4)]
    config = BookieConfig(directory=tmp_path / "bookie", garbage_seconds=0)
    servers = [BookieServer(config, store) for store in stores]
    ended = await asyncio.gather(*(server.start() for server in servers), return_exceptions=True)
    refused = [error for error in ended if error is not None]
    assert len(refused) == 3
    assert all(isinstance(error, DirectoryInUseError) for error in refused), refused
    assert len(await BookieRegistry(stores[0]).list_cookies()) == 1
    for server, store in zip(servers, stores, strict=True):
        await server.stop()
        await store.close()


# --- a directory that another process has opened all the same ------------------------------------------------------


class Unlocked(RealFiles):
    """A file system whose locks hold nobody off, as two machines see one directory."""

    def lock(self, directory: Path) -> NoLock:  # type: ignore[override]
        return NoLock()


def opened_by_another(at: World) -> None:
    """What any start does to a directory, in a process that was not kept out."""
    BootFile(at.config.directory, RealFiles()).begin(0)


def replaced_by_a_copy(at: World) -> None:
    aside = at.config.directory.with_name("aside")
    at.config.directory.rename(aside)
    shutil.copytree(aside, at.config.directory)


@pytest.mark.parametrize("lose", [opened_by_another, replaced_by_a_copy])
async def test_a_bookie_whose_directory_is_anothers_stops_writing_and_denies_nothing(
    lose: Callable[[World], None], at: World, caplog: pytest.LogCaptureFixture
) -> None:
    assert await at.add(access(), [0]) is Answer.OK
    lose(at)
    before = contents(at.config.directory)
    at.server.storage.check_disk()
    at.server.alerts.look()
    assert "is not this bookie's any more" in caplog.text
    assert await at.add(access(), [1]) is Answer.ERROR
    reply = await at.read(access(), 0, 5)
    assert [entry_id for run in reply.runs for entry_id, _ in run.entries()] == [0]
    assert reply.conclusive_through == -1, "what it does not have is unknown"
    assert (await at.read(access(2), 0, 5)).answer is not Answer.NO_LEDGER
    assert not at.server._writable()
    await at.server.stop()
    assert contents(at.config.directory) == before, "not even a clean stop is written"


async def test_a_new_segment_is_not_begun_in_a_directory_that_is_anothers(at: World) -> None:
    assert await at.add(access(), [0]) is Answer.OK
    at.server._tasks[0].cancel()  # which looks now and then
    opened_by_another(at)
    before = {path.name for path in segments(at)}
    answers = {await at.add(access(), [number], text=bytes(100_000)) for number in range(1, 20)}
    assert answers == {Answer.OK, Answer.ERROR}
    assert {path.name for path in segments(at)} == before
