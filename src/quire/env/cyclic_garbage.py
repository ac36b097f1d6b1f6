"""Keeps Python's own garbage collector from holding a process that has very many objects.

A full collection looks at every object that can be part of a cycle: with some hundred thousand ledgers in memory that
takes a tenth of a second and more, and nothing else happens meanwhile. What has outlived a full collection that took
long is not looked at again; it is still freed when nothing refers to it, as nearly everything is. When as much again has
been left out as at the last look at everything, everything is looked at once more: so cycles that die later are found too,
and they never take more memory than what is alive.
"""

from __future__ import annotations

import gc
import time
from typing import Any, Final

LONG_MS: Final = 5
OFTEN: Final = 2
"""How many collections of the middle generation come before a full one: each looks at little, since what outlived it is left out."""
_OLDEST: Final = 2


class ShortCollections:
    """Watches the collections of this process.

    Args:
        long_ms: a full collection of this many ms or more is one that took long.
    """

    def __init__(self, long_ms: int = LONG_MS) -> None:
        self._long_ns = long_ms * 1_000_000
        self._begun_ns = 0
        self._left_out = 0  # at the last look at everything
        self._since = 0  # left out since then, at most: some of it may be freed
        self._everything = False
        self._threshold = gc.get_threshold()

    def start(self) -> None:
        """From now on; what is there already is not looked at again: modules, mostly."""
        gc.collect()
        gc.freeze()
        gc.collect()  # of nothing: else Python waits until as much as a quarter of what is left out has come
        self._left_out = gc.get_freeze_count()
        self._threshold = gc.get_threshold()
        gc.set_threshold(*self._threshold[:2], OFTEN)
        gc.callbacks.append(self._collecting)

    def stop(self) -> None:
        """As it was before: all objects are looked at again."""
        gc.callbacks.remove(self._collecting)
        gc.set_threshold(*self._threshold)
        gc.unfreeze()

    def _collecting(self, phase: str, info: dict[str, Any]) -> None:
        if info["generation"] != _OLDEST:
            return
        if phase == "start":
            self._begun_ns = time.perf_counter_ns()
        elif time.perf_counter_ns() - self._begun_ns >= self._long_ns:
            self._leave_out()

    def _leave_out(self) -> None:
        if self._everything:
            gc.freeze()
            self._left_out, self._since, self._everything = self._left_out + self._since, 0, False
            return
        self._since += len(gc.get_objects(_OLDEST))
        gc.freeze()
        if self._since >= self._left_out:
            # Counting goes through all of them, a fifth of the time of a look at them: it is done as rarely.
            self._since = gc.get_freeze_count() - self._left_out
            if self._since >= self._left_out:
                gc.unfreeze()  # the next full collection looks at everything
                self._everything = True
