"""Short-circuit reads: runs of a bookie on this machine, read out of its files instead of received from it.

The bookie says where a run lies and does not look at it. Between its answer and the read the file may be removed or
become another segment: then the bytes do not verify, and the bookie is asked for them. So nothing is held open and
nothing locked, and what is damaged, or missing, is still the bookie's to say.

Source: `docs/formats/native-protocol.md`, "Places"; `docs/formats/segment.md`, "Record".
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from stat import S_ISREG

from quire.client.replies import ReadReply
from quire.core.errors import MalformedFrameError
from quire.storage.segment_format import RECORD_HEADER_BYTES, decode_record_header
from quire.wire.run import RunPlace, RunView, checksum

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_AT_ONCE: int | None = getattr(os, "RWF_NOWAIT", None)
"""Read only what is in memory; None where the system cannot be asked that."""
_SUFFIX = ".seg"


async def fill(reply: ReadReply, memory: Callable[[int], memoryview]) -> bool:
    """Read the runs of a reply that have only been placed.

    A disk that has to be waited for is waited for on another thread.

    Args:
        reply: a bookie's; afterwards it has all its runs and no places.
        memory: gives memory of a size.

    Returns:
        False when one cannot be read here or is not there any more; then the reply is what it was.
    """
    runs: list[RunView] = []
    waits = False
    for number, place in enumerate(reply.places):
        record = memory(place.size)
        try:
            if not _read(place, record, at_once=True):
                if not waits:
                    _expect(reply.places[number:])
                    waits = True
                await asyncio.get_running_loop().run_in_executor(None, _read, place, record)
            header = decode_record_header(record, place.offset, place.seed)
            body = record[RECORD_HEADER_BYTES:]
            if header is None or header.body_bytes != len(body) or header.body_checksum != checksum(body):
                return False
            runs.append(RunView.parse(body))
        except (OSError, MalformedFrameError):
            return False
    reply.runs = sorted([*runs, *reply.runs], key=lambda run: run.first)
    reply.places = []
    return True


@contextmanager
def _opened(place: RunPlace) -> Iterator[int]:
    """The descriptor of a place's file.

    Raises:
        OSError: it cannot be opened, or is no segment.
    """
    if not place.path.endswith(_SUFFIX):
        raise OSError
    file = os.open(place.path, _FLAGS)
    try:
        if not S_ISREG(os.fstat(file).st_mode):
            raise OSError
        yield file
    finally:
        os.close(file)


def _expect(places: Sequence[RunPlace]) -> None:
    """Let the disk fetch all of them at one time."""
    for place in places:
        with _opened(place) as file:
            os.posix_fadvise(file, place.offset, place.size, os.POSIX_FADV_WILLNEED)


def _read(place: RunPlace, record: memoryview, *, at_once: bool = False) -> bool:
    """Fill a record from its file.

    Returns:
        False when it would have to be waited for, and shall be there at once.

    Raises:
        OSError: it cannot be read, ends too soon, or is no segment.
    """
    if at_once and _AT_ONCE is None:
        return False
    flags = _AT_ONCE or 0 if at_once else 0
    with _opened(place) as file:
        # No read-ahead: behind the record it could bring in blocks that a direct write is about to change.
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
        filled = 0
        while filled < place.size:
            try:
                count = os.preadv(file, [record[filled:]], place.offset + filled, flags)
            except BlockingIOError:
                return False
            if count == 0:
                raise OSError
            filled += count
    return True
