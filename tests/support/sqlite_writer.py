"""Changes a metadata file, one transaction after the other, and prints what was acknowledged, until it is killed.

Called with the file, the number of the last change, the beginning of its keys, and `settle_ms`: prints lines of a change's
number and a ledger id. With a settle_ms of -1 the -wal is left alone, and the sequence is written down after each change.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from quire.metadata.sqlite.file import SETTLE_MS, SqliteOptions
from quire.metadata.sqlite.store import SqliteStore
from quire.metadata.store import Create, Delete, Put
from support.sqlite_inside import file_of, on_its_thread


async def change(store, number, prefix=""):
    """Two keys get this number in one transaction, while a third one comes and goes."""
    text = b"%d " % number * 500
    ops = []
    for key in (prefix + "a", prefix + "b"):
        found = await store.get(key)
        ops.append(Put(key, text, found.version) if found else Create(key, text))
    third = await store.get(prefix + "c")
    ops.append(Delete(prefix + "c", third.version) if third else Create(prefix + "c", text))
    await store.multi(ops)


async def main(path, number, prefix="", settle_ms=SETTLE_MS):
    by_itself = SqliteOptions(settle_ms=settle_ms if settle_ms >= 0 else 1_000_000)
    store = await SqliteStore.open(path, options=by_itself)
    file = file_of(store)
    while True:
        number += 1
        await change(store, number, prefix)
        ledger_id = await store.next_ledger_id()
        if settle_ms < 0:
            assert await on_its_thread(store, lambda: file.sequence.raise_to(file.progress))
        print(number, ledger_id, flush=True)


def writer(path, number=0, *more):
    """A process that does this."""
    tests = Path(__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": f"{tests.parent / 'src'}:{tests}"}
    command = [sys.executable, "-m", "support.sqlite_writer", *map(str, (path, number, *more))]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def killed_writer(path, number, lines_first, *more):
    """What a process was told of its changes after a number, until SIGKILL came somewhere behind so many lines."""
    with writer(path, number, *more) as process:
        return kill(process, lines_first)


def kill(process, lines_first):
    """The same of one that was started before."""
    lines = [process.stdout.readline() for _ in range(lines_first)]
    process.kill()
    lines += process.stdout.readlines()
    return [tuple(map(int, line.split())) for line in lines if line.endswith("\n")]


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:4], *map(int, sys.argv[4:])))
