"""How the demo tells its story: numbered steps of sentences; as JSON, what was counted in each."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from quire.cli.console.output import PLAIN_INTERVAL_S, running_clock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from quire.cli.console.output import Output, ProgressLine


@dataclass(slots=True)
class Step:
    """One step: its counts, by what they count, in the order they were found; people read them in sentences."""

    number: int
    title: str
    counts: dict[str, object] = field(default_factory=dict)
    seconds: float = 0.0


class Narrator:
    """Tells the steps as they happen: text, or one JSON object per finished step."""

    def __init__(self, out: Output) -> None:
        self.out = out
        self.steps: list[Step] = []
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._began

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        """One step; it is over, and counted, when the block ends well."""
        step = Step(len(self.steps) + 1, title)
        began = time.monotonic()
        if not self.out.as_json:
            print(f"\n{step.number}. {title}", flush=True)
        yield step
        step.seconds = time.monotonic() - began
        self.steps.append(step)
        facts = {
            "step": step.number,
            "title": title,
            "seconds": round(step.seconds, 3),
            "counts": step.counts,
        }
        self.out.result(facts, f"   ({step.seconds:.1f} s)")

    def say(self, text: str) -> None:
        """One thing that happened within a step."""
        if not self.out.as_json:
            print(f"   {text}", flush=True)

    @contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """Something that does not count: how long it has been going, on stderr.

        A terminal shows a clock that runs; elsewhere a line comes after 2 seconds, after 4, 8 and so on.
        """
        if sys.stderr.isatty() and not self.out.as_json:
            with running_clock(f"   {what}"):
                yield
            return
        began, over = time.monotonic(), threading.Event()

        def show() -> None:
            interval = PLAIN_INTERVAL_S
            while not over.wait(interval):
                seconds = interval = time.monotonic() - began
                self.out.note(f"   {what}: {seconds:.0f} s")

        shown = threading.Thread(target=show, name="demo progress", daemon=True)
        shown.start()
        try:
            yield
        finally:
            over.set()
            shown.join()

    def progress(self, what: str, total: int, unit: str = "records") -> ProgressLine:
        """A bar for something that takes seconds."""
        return self.out.progress(f"   {what}", total=total, unit=unit)
