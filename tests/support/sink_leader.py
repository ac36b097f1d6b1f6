"""A log's leader beside a sink, in a process of its own: it appends, and gives what the sink commits its offsets."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import quire
from quire.core.errors import QuireError
from quire.log.config import LogConfig

PAUSE_S = 0.1


def lead(uri: str, log: str, said: str, number: int) -> None:
    """Lead a log until somebody else does, or the process is killed.

    Args:
        uri: the cluster.
        log: the log's name.
        said: a file that holds how many records were acknowledged; it is there as soon as one was.
        number: which leader of the log it is, for the records.
    """
    asyncio.run(_lead(uri, log, Path(said), number))


async def _lead(uri: str, log: str, said: Path, number: int) -> None:
    try:
        async with quire.connect(uri) as client:
            writer = await client.log(log, config=LogConfig(host="beside")).open_writer(
                wait_for_leadership=True
            )
            done = 0
            while True:
                await writer.append(b"leader %d/%d" % (number, done))
                done += 1
                written = said.with_suffix(".new")
                written.write_text(str(done))
                written.replace(said)
                await _pause()
    except QuireError:
        os._exit(1)  # another one leads, or the query has ended it


async def _pause() -> None:
    """A turn of the query's: appending without a break would only fill the log."""
    done = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(PAUSE_S, done.set_result, None)
    await done
