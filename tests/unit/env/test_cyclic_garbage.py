"""What outlived a long collection is not looked at again, and is freed all the same."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

import quire
from quire.env.cyclic_garbage import ShortCollections
from support.rounds import keep_figures


class Thing:
    """Something that can be referred to weakly, and be part of a cycle."""

    def __init__(self) -> None:
        self.other: object = None


def test_what_outlived_a_long_collection_is_not_looked_at_again() -> None:
    gc.collect()
    watched = ShortCollections(long_ms=0)
    watched.start()
    try:
        things = [Thing() for _ in range(1000)]
        gc.collect()
        assert not any(one in things for one in gc.get_objects() if isinstance(one, Thing))
        gone = weakref.ref(things.pop())
        assert gone() is None, "nobody refers to it"
        younger = Thing()
        younger.other = younger
        cycle = weakref.ref(younger)
        del younger
        gc.collect()
        assert cycle() is None, "a cycle of the young ones is found"
    finally:
        watched.stop()
    assert gc.get_freeze_count() == 0


class Counted(Thing):
    """Says how many of it there are."""

    alive = 0

    def __init__(self) -> None:
        self.other = self
        Counted.alive += 1

    def __del__(self) -> None:
        Counted.alive -= 1


def test_cycles_that_die_after_they_were_left_out_are_found() -> None:
    gc.collect()
    watched = ShortCollections(long_ms=0)
    watched.start()
    most, start = 0, gc.get_freeze_count()
    each = start // 4
    try:
        for _ in range(10):
            things = [Counted() for _ in range(each)]
            gc.collect()  # all of them are left out from now on
            assert len(things) == each
            del things
            most = max(most, Counted.alive)
        assert each < most <= 2 * start + 2 * each, "never much more than what is alive"
    finally:
        watched.stop()
        gc.collect()
    assert Counted.alive == 0


def test_a_program_asks_for_it_and_the_library_never_does() -> None:
    before = list(gc.callbacks)
    watched = quire.keep_collections_short()
    try:
        assert len(gc.callbacks) == len(before) + 1
    finally:
        watched.stop()
    assert gc.callbacks == before
    source = Path(quire.__file__).parent
    callers = [
        str(path.relative_to(source))
        for path in source.rglob("*.py")
        if re.search(r"keep_collections_short\(\)|ShortCollections\(\)", path.read_text())
    ]
    assert sorted(callers) == ["__init__.py", "cli/local/serve.py"]


CONNECTS = """
import asyncio, os
from pathlib import Path
import quire
from quire.metadata.connect import open_store

def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

async def connects(count):
    for _ in range(count):
        async with quire.connect("memory:collections") as client:
            cycle = {"client": client, "bytes": bytes(10_000)}
            cycle["itself"] = cycle

async def measured():
    store = await open_store("memory:collections", create=True)
    await connects(2_000)
    before = resident_bytes()
    await connects(8_000)
    print(before, resident_bytes())
    await store.close()

quire.keep_collections_short()
asyncio.run(measured())
"""
"""A process of its own: what is left out grows with what is alive, and a worker of tests has very much."""


@pytest.mark.slow
def test_ten_thousand_connects_with_cycles_between_them_leave_memory_flat() -> None:
    done = subprocess.run([sys.executable, "-c", CONNECTS], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    keep_figures(
        "connects_with_cycles",
        {"connects": 10_000, "resident_bytes_after_2000": before, "after_10000": after},
        seed=0,
    )
    assert after - before < 16 * 2**20


def test_after_a_short_collection_all_is_looked_at_again() -> None:
    watched = ShortCollections(long_ms=1_000_000)
    watched.start()
    try:
        before = gc.get_freeze_count()
        things = [Thing() for _ in range(1000)]
        gc.collect()
        assert gc.get_freeze_count() <= before
        assert any(one is things[0] for one in gc.get_objects())
    finally:
        watched.stop()
