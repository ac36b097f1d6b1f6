"""A bookie's process, `quire.cli.local.serve`, that notes the CPU time of each callback of its loop.

    python -m support.timed_bookie FIGURES SEGMENT-BYTES SERVE-OPTIONS…

When it ends it writes to FIGURES, as JSON, how many callbacks there were and the longest ones: [ms, seconds since 1970, what].
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from quire.storage.config import StorageConfig

KEPT = 40


class LoopTime:
    """What the callbacks of asyncio's loops took."""

    def __init__(self) -> None:
        self.callbacks = 0
        self.longest: list[tuple[float, float, str]] = []
        self._run = asyncio.Handle._run  # type: ignore[attr-defined]

    def watch(self) -> None:
        """From now on."""
        run, took = self._run, self._took

        def measured(handle: Any) -> None:
            callback = handle._callback  # a timer forgets it
            before = time.thread_time()
            run(handle)
            took(time.thread_time() - before, callback)

        asyncio.Handle._run = measured  # type: ignore[attr-defined]

    def _took(self, seconds: float, callback: Any) -> None:
        self.callbacks += 1
        if len(self.longest) < KEPT or seconds > self.longest[0][0]:
            item = (seconds, time.time(), _name(callback))
            (heapq.heappush if len(self.longest) < KEPT else heapq.heapreplace)(self.longest, item)

    def figures(self) -> dict[str, Any]:
        """What was noted."""
        longest = sorted(self.longest, reverse=True)
        return {
            "callbacks": self.callbacks,
            "longest": [[round(1000 * seconds, 2), at, what] for seconds, at, what in longest],
        }


def _name(callback: Any) -> str:
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return f"task {owner.get_name()}"
    return repr(callback)[:300]


def main() -> int:
    """Serve until standard input ends."""
    figures, segment_bytes, *options = sys.argv[1:]
    sys.modules["uvloop"] = None  # type: ignore[assignment] - its callbacks cannot be watched
    from quire.cli.local import serve

    storage = StorageConfig(segment_bytes=int(segment_bytes))
    serve.BookieConfig = partial(serve.BookieConfig, storage=storage)  # type: ignore[misc, assignment]
    found = LoopTime()
    found.watch()
    collections: list[float] = []

    def collected(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            collections.append(time.thread_time())
        else:
            collections[-1] = round(1000 * (time.thread_time() - collections[-1]), 2)

    gc.callbacks.append(collected)
    code = serve.main(options)
    gc.callbacks.remove(collected)
    told = found.figures() | {
        "collections": len(collections),
        "longest_collection": max(collections, default=0),
    }
    Path(figures).write_text(json.dumps(told))
    return code


if __name__ == "__main__":
    raise SystemExit(main())
