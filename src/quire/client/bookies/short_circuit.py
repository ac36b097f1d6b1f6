"""Short-circuit reads: runs of a bookie on this machine, read out of its files instead of received from it.

The bookie responds with the location of a run and does not read it. Between its response and the read the file may be
removed or become another segment: then the bytes do not verify, and the bookie is sent a read for them. So nothing is
held open or locked, and what is damaged or missing is still decided by the bookie.

A location comes from a peer and is not trusted. Before a file is opened or memory is taken, every location of a response is
checked: its file must be a segment in the directory that the bookie registered, and all locations together at most what
was asked for.

Source: `docs/formats/native-protocol.md`, "Locations"; `docs/formats/segment.md`, "Record".
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from stat import S_ISREG
from typing import Final

from quire.core.errors import MalformedFrameError
from quire.net.channel import Channel
from quire.wire.responses import ReadReply
from quire.wire.run import RunLocation, RunView, checksum
from quire.wire.stored_record import RECORD_HEADER_BYTES, SEGMENTS_FOLDER, decode_record_header

log = logging.getLogger(__name__)

MISSES_MAX: Final = 3
"""After so many misses in a row a connection's locations are not asked for any more."""
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_AT_ONCE: int | None = getattr(os, "RWF_NOWAIT", None)
"""Read only what is in memory; None where the system cannot be asked that. Not every file system can."""
_FILE_NAME: Final = re.compile(r"[0-9a-f]{16}\.seg", re.ASCII)
_SHOWN_CHARACTERS: Final = 200


class FileReadOutcome(Enum):
    """What reading the locations of one response led to."""

    READ = "every run was read"
    MISSED = "the bytes are not the run's: the segment may have been recycled meanwhile"
    CANNOT_OPEN = "a file cannot be opened here"
    TOO_SLOW = "the disk did not give the bytes in time"


class _CannotOpenError(OSError):
    """A location's file cannot be opened, or is not a regular file."""


async def read_locations(
    channel: Channel,
    reply: ReadReply,
    directory: str,
    bytes_max: int,
    memory: Callable[[int], memoryview],
    timeout_ms: int,
) -> bool:
    """Read the runs of a response that have only been located, if its locations can be trusted.

    One recycled segment is a miss and changes nothing for the next request. A file that cannot be opened, a disk that does
    not respond, `MISSES_MAX` misses in a row, or a location that no honest bookie names end short-circuit reads on the
    connection.

    Args:
        channel: the connection that the response came over.
        reply: the response; after True it has all its runs and no locations.
        directory: the directory that the bookie registered; see `registered_directory`.
        bytes_max: the bytes that were asked for.
        memory: gives memory of a size.
        timeout_ms: how long the files may take.

    Returns:
        False when the bookie must be asked for the bytes.
    """
    try:
        check_locations(reply.locations, directory, bytes_max)
    except MalformedFrameError as error:
        log.warning(
            "bookie %s: %s; no more short-circuit reads on this connection", channel.meant, error.message
        )
        channel.colocated = False
        return False
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            outcome = await fill(reply, memory)
    except TimeoutError:
        outcome = FileReadOutcome.TOO_SLOW
    if outcome is FileReadOutcome.READ:
        channel.location_misses = 0
        return True
    channel.location_misses += 1
    if outcome is not FileReadOutcome.MISSED or channel.location_misses >= MISSES_MAX:
        # What the files do not give is the bookie's to judge; from now on it is asked for everything.
        log.info(
            "short-circuit reads from bookie %s are off (%s); its entries are read over the connection",
            channel.meant,
            outcome.value,
        )
        channel.colocated = False
    return False


def registered_directory(directory: str) -> str:
    """The directory of a bookie's registration if files below it may be opened; otherwise "".

    Args:
        directory: the property as it is registered; anything a peer may have written.
    """
    plain = directory.startswith("/") and os.path.normpath(directory) == directory and "\0" not in directory
    return directory if plain else ""


def check_locations(locations: Sequence[RunLocation], directory: str, bytes_max: int) -> None:
    """Refuse locations that no honest bookie names. Nothing is opened here.

    Args:
        locations: those of one response, in its order.
        directory: the directory that the bookie registered.
        bytes_max: the bytes that were asked for; only the last location may reach beyond them.

    Raises:
        MalformedFrameError: a file is not a segment of that directory, a location is too small for a record, or the locations
            together are more than was asked for.

    Source: `docs/formats/native-protocol.md`, "Locations".
    """
    folder = os.path.join(directory, SEGMENTS_FOLDER, "")  # noqa: PTH118 - compared as text with a peer's
    left = bytes_max
    for location in locations:
        name = location.path.removeprefix(folder)
        if name == location.path or _FILE_NAME.fullmatch(name) is None:
            shown = repr(location.path[:_SHOWN_CHARACTERS])
            msg = (
                f"the bookie's response names the file {shown}, which is not a segment in the "
                f"directory {folder!r} that it registered"
            )
            raise MalformedFrameError(msg)
        if location.size <= RECORD_HEADER_BYTES:
            msg = (
                f"the bookie's response names {location.size} bytes of {location.path}, which is less "
                "than the size of a record"
            )
            raise MalformedFrameError(msg)
        if left <= 0:
            total = sum(each.size for each in locations)
            msg = (
                f"the bookie's response names {len(locations)} runs of {total} bytes in total, and "
                f"{bytes_max} bytes were requested"
            )
            raise MalformedFrameError(msg)
        left -= location.size


async def fill(reply: ReadReply, memory: Callable[[int], memoryview]) -> FileReadOutcome:
    """Read the runs of a response that have only been located; its locations have been checked.

    A disk that has to be waited for is waited for on another thread, once for all that is left.

    Args:
        reply: a bookie's response; after READ it has all its runs and no locations, otherwise it is what it was.
        memory: gives memory of a size.
    """
    locations = reply.locations
    records = [memory(location.size) for location in locations]
    try:
        read = _read_cached(locations, records)
        if read < len(locations):
            rest = locations[read:], records[read:]
            await asyncio.get_running_loop().run_in_executor(None, _read_from_disk, *rest)
        runs = list(map(_run_of, locations, records))
    except _CannotOpenError as error:
        log.debug("a run cannot be read here: %s", error)
        return FileReadOutcome.CANNOT_OPEN
    except (OSError, ValueError, OverflowError, MalformedFrameError) as error:
        log.debug("a run cannot be read here: %s", error)
        return FileReadOutcome.MISSED
    reply.runs = sorted([*runs, *reply.runs], key=lambda run: run.first)
    reply.locations = []
    return FileReadOutcome.READ


def _run_of(location: RunLocation, record: memoryview) -> RunView:
    """The run in a record's bytes.

    Raises:
        MalformedFrameError: they are not a record that was written at this location, or not a run that this client reads.
    """
    header = decode_record_header(record, location.offset, location.seed)
    body = record[RECORD_HEADER_BYTES:]
    if header is None or header.body_bytes != len(body) or header.body_checksum != checksum(body):
        msg = f"{location.path}: no record of {location.size} bytes verifies at offset {location.offset}"
        raise MalformedFrameError(msg)
    return RunView.parse_of_term(body, location.origin_term)


@contextmanager
def _opened(location: RunLocation) -> Iterator[int]:
    """The descriptor of a location's file.

    Raises:
        FileNotFoundError: it is not there (any more).
        _CannotOpenError: it cannot be opened, or is not a regular file.
    """
    try:
        file = os.open(location.path, _FLAGS)
    except FileNotFoundError:
        raise  # the segment was freed since; of a bookie whose files are not here at all, each read is such a miss
    except (OSError, ValueError) as error:
        raise _CannotOpenError(str(error)) from error
    try:
        if not S_ISREG(os.fstat(file).st_mode):
            msg = f"{location.path} is not a regular file"
            raise _CannotOpenError(msg)
        yield file
    finally:
        os.close(file)


def _read_cached(locations: Sequence[RunLocation], records: Sequence[memoryview]) -> int:
    """Fill records until the disk would have to be waited for; how many were filled."""
    for number, (location, record) in enumerate(zip(locations, records, strict=True)):
        if not _read(location, record, at_once=True):
            return number
    return len(locations)


def _read_from_disk(locations: Sequence[RunLocation], records: Sequence[memoryview]) -> None:
    """Fill records, all of which the disk fetches at one time."""
    for location in locations:
        with _opened(location) as file:
            os.posix_fadvise(file, location.offset, location.size, os.POSIX_FADV_WILLNEED)
    for location, record in zip(locations, records, strict=True):
        _read(location, record)


def _read(location: RunLocation, record: memoryview, *, at_once: bool = False) -> bool:
    """Fill a record from its file.

    Returns:
        False when it would have to be waited for, and shall be there at once.

    Raises:
        OSError: it cannot be read, or the file ends too soon.
    """
    if at_once and _AT_ONCE is None:
        return False
    flags = _AT_ONCE or 0 if at_once else 0
    with _opened(location) as file:
        # No read-ahead: after the record it could bring in blocks that a direct write is about to change.
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
        filled = 0
        while filled < location.size:
            try:
                count = os.preadv(file, [record[filled:]], location.offset + filled, flags)
            except BlockingIOError:
                return False
            except OSError as error:
                if flags and error.errno == errno.EOPNOTSUPP:  # tmpfs, and what is not on a local disk
                    return False
                raise
            if count == 0:
                end = location.offset + location.size
                msg = f"{location.path} ends before byte {end}, where a run of the bookie would end"
                raise OSError(msg)
            filled += count
    return True
