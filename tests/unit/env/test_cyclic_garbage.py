"""What outlived a long collection is not looked at again, and is freed all the same."""

from __future__ import annotations

import gc
import weakref

from quire.env.cyclic_garbage import ShortCollections


class Thing:
    """Something that can be referred to weakly, and be part of a cycle."""

    def __init__(self) -> None:
        self.other: object = None


def test_what_outlived_a_long_collection_is_not_looked_at_again() -> None:
    gc.collect()
    watched = ShortCollections(long_ms=0)
    watched.start()
    try:
        before = gc.get_freeze_count()
        things = [Thing() for _ in range(1000)]
        gc.collect()
        assert gc.get_freeze_count() >= before + 1000
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
