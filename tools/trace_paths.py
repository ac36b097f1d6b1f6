"""Record which files and functions of `src` one append, one read, one recovery and one append to a log pass.

Three bookies (of small segments) and a client run in this process on one event loop, over the metadata store `memory:`:
the shipped programs, with real sockets, files and threads. (The store in SQLite would add eight files to a recovery; its
thread looks around every 20 ms, so recordings with it are not all alike.) Each way is walked several times, and the first walks warm it up. A callback of the event
loop, or a function, that does not run in each of the others (a timer that fired meanwhile) is left out, and of what remains
the recording with the fewest moves counts. What is counted:

- A walk begins with the call of the public method and ends when its caller goes on.
- *Functions*: Python functions of `src` that were called, lambdas too; comprehensions are part of their function. What
  protoc wrote and what a dataclass generates is not counted.
- *Files*: the files that hold these functions.
- *Moves*: calls of a function in another file than that of the call before, whoever called it.
- *Moves and returns*: as moves, but a function that goes on after it called another counts too, in each thread.

Append, read and append to a log use one bookie (E = Qw = Qa = 1): the way of one message to one bookie and back.
A recovery asks three (E = Qw = 3, Qa = 2) for a ledger whose writer is gone: ten entries, the last above the last LAC.

    python tools/trace_paths.py           # the table
    python tools/trace_paths.py append    # every step of one way
    python tools/trace_paths.py --json    # counts, and files and functions in the order in which they were reached
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCE: Final = f"{ROOT / 'src'}/"
BOOKIES: Final = 3
SEGMENT_BYTES: Final = 4 * 1024 * 1024
ENTRIES: Final = 10
WARM_UP: Final = 3
RECORDED: Final = 12
TURNS: Final = 10
PASSWORD: Final = b"a password"
PAYLOAD: Final = b"payload"


@dataclass(frozen=True, slots=True, order=True)
class Function:
    """A function of `src`: its file below `src`, and its qualified name."""

    file: str
    name: str


@dataclass(frozen=True, slots=True)
class Step:
    """A function that was called, or goes on after a call.

    Attributes:
        is_call: whether it was called.
        thread: the thread in which it ran.
        root: the function with which the event loop, or the thread, began what this belongs to.
    """

    function: Function
    is_call: bool
    thread: int
    root: Function


@dataclass(slots=True)
class Walk:
    """One recorded walk: its steps in the order in which they were taken, over all threads."""

    steps: list[Step] = field(default_factory=list)

    @property
    def roots(self) -> set[Function]:
        """Every function that the event loop or a thread began with."""
        return {step.root for step in self.steps}

    @property
    def calls(self) -> list[Function]:
        """The functions in the order of their calls."""
        return [step.function for step in self.steps if step.is_call]

    @property
    def functions(self) -> list[Function]:
        """Each function once, in the order in which it was reached."""
        return list(dict.fromkeys(self.calls))

    @property
    def files(self) -> list[str]:
        """Each file once, in the order in which it was reached."""
        return list(dict.fromkeys(each.file for each in self.calls))

    def counts(self) -> dict[str, int]:
        """What the module's docstring defines."""
        last: dict[int, str] = {}
        returns = 0
        for step in self.steps:
            returns += last.setdefault(step.thread, step.function.file) != step.function.file
            last[step.thread] = step.function.file
        return {
            "files": len(self.files),
            "functions": len(self.functions),
            "moves": sum(before.file != after.file for before, after in pairwise(self.calls)),
            "moves_and_returns": returns,
        }


class Tracer:
    """Records the functions of `src` that run while it is on, in every thread that begins after `install`."""

    def __init__(self) -> None:
        self._walk: Walk | None = None
        self._known: dict[CodeType, Function | None] = {}
        self._stacks: dict[int, list[Function]] = {}

    def install(self) -> None:
        """Begin to look; nothing is kept before `begin`."""
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def remove(self) -> None:
        """Look no more."""
        sys.setprofile(None)
        threading.setprofile(None)

    def begin(self) -> None:
        """Keep what is called from now on."""
        self._stacks = {}
        self._walk = Walk()

    def end(self) -> Walk:
        """What was called since `begin`."""
        walk, self._walk = self._walk, None
        assert walk is not None, "end() without begin()"
        return walk

    def _profile(self, frame: FrameType, event: str, _: Any) -> None:
        walk = self._walk
        if walk is None or event not in {"call", "return"}:
            return
        code = frame.f_code
        if code not in self._known:
            self._known[code] = function_of(code)
        function = self._known[code]
        if function is None:
            return
        thread = threading.get_ident()
        stack = self._stacks.setdefault(thread, [])
        if event == "call":
            stack.append(function)
        elif stack:
            root = stack[0]
            stack.pop()
            if not stack:
                return
            walk.steps.append(Step(stack[-1], False, thread, root))
            return
        else:
            return  # it was called before the walk began
        walk.steps.append(Step(function, True, thread, stack[0]))


def function_of(code: CodeType) -> Function | None:
    """The function that is counted for this code, or None."""
    path = code.co_filename
    if not path.startswith(SOURCE) or path.endswith("_pb2.py"):
        return None
    if code.co_name.startswith("<") and code.co_name != "<lambda>":
        return None
    return Function(path.removeprefix(SOURCE), code.co_qualname.replace(".<locals>", ""))


@asynccontextmanager
async def cluster(directory: Path) -> AsyncIterator[Any]:
    """A client of three bookies that serve in this process."""
    import quire
    from quire.bookie.config import BookieConfig
    from quire.bookie.server import BookieServer
    from quire.metadata.connect import open_store
    from quire.storage.config import StorageConfig

    uri = "memory:traced"
    store = await open_store(uri, create=True)
    small = StorageConfig(segment_bytes=SEGMENT_BYTES)
    bookies = [
        BookieServer(BookieConfig(directory / f"b{number}", name=f"b{number}", storage=small), store)
        for number in range(BOOKIES)
    ]
    try:
        for bookie in bookies:
            await bookie.start()
        async with quire.connect(uri) as client:
            yield client
    finally:
        for bookie in bookies:
            await bookie.stop()
        await store.close()


Way = Callable[[], Awaitable[object]]


async def recorded(tracer: Tracer, ways: Iterable[Way]) -> Walk:
    """Walk one way several times; the recording with the fewest moves, without what the others do not have."""
    walks = []
    for way in ways:
        for _ in range(TURNS):  # what is left to do of the walk before
            await asyncio.sleep(0)
        tracer.begin()
        await way()
        walks.append(tracer.end())
    del walks[:WARM_UP]
    roots = set.intersection(*(walk.roots for walk in walks))
    always = set.intersection(*(set(walk.functions) for walk in walks))
    cleaned = [
        Walk([step for step in walk.steps if step.root in roots and step.function in always])
        for walk in walks
    ]
    return min(
        cleaned, key=lambda each: tuple(each.counts()[name] for name in ("moves", "moves_and_returns"))
    )


async def record(directory: Path, tracer: Tracer) -> dict[str, Walk]:
    """Every way, each over its own ledgers."""
    one = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}
    three = {"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2}
    times = WARM_UP + RECORDED
    found = {}
    async with cluster(directory) as client:
        ledger = await client.create_ledger(**one, password=PASSWORD)
        found["append"] = await recorded(tracer, [partial(ledger.append, PAYLOAD)] * times)
        await ledger.close()
        reader = await client.open_ledger(ledger.ledger_id, PASSWORD)

        async def read() -> None:
            async for _ in reader.read(times // 2, times // 2):
                pass

        found["read"] = await recorded(tracer, [read] * times)
        left = [await client.create_ledger(**three, password=PASSWORD) for _ in range(times)]
        for writer in left:
            for _ in range(ENTRIES):
                await writer.append(PAYLOAD)
            await writer.abandon()
        recoveries = [partial(client.open_ledger, writer.ledger_id, PASSWORD) for writer in left]
        found["recovery"] = await recorded(tracer, recoveries)
        log = client.log("traced")
        await log.create(**one)
        async with await log.open_writer() as log_writer:
            found["log append"] = await recorded(tracer, [partial(log_writer.append, PAYLOAD)] * times)
    return found


def trace() -> dict[str, Walk]:
    """Bring a cluster up, walk every way, take it down."""
    tracer = Tracer()
    tracer.install()
    try:
        with tempfile.TemporaryDirectory(prefix="quire-trace-") as directory:
            return asyncio.run(record(Path(directory), tracer))
    finally:
        tracer.remove()


def as_json(walks: dict[str, Walk]) -> dict[str, Any]:
    """Counts, files and functions of every way."""
    return {
        name: {
            "counts": walk.counts(),
            "files": walk.files,
            "functions": [f"{each.file}:{each.name}" for each in walk.functions],
        }
        for name, walk in walks.items()
    }


def table(walks: dict[str, Walk]) -> str:
    """The counts in Markdown."""
    rows = ["| way | files | functions | moves | moves and returns |", "| --- | ---: | ---: | ---: | ---: |"]
    for name, walk in walks.items():
        rows.append(f"| {name} | {' | '.join(str(count) for count in walk.counts().values())} |")
    return "\n".join(rows) + "\n"


def listing(walk: Walk) -> str:
    """Every step of a walk, a line each; a number where the file changes."""
    lines, number, last = [], 0, ("", 0)
    for step in walk.steps:
        place = (step.function.file, step.thread)
        number += place != last
        lines.append(f"{number if place != last else '':>4} {step.function.file} {step.function.name}")
        last = place
    return "\n".join(lines) + "\n"


def main() -> int:
    """Record, and print what was asked for."""
    asked = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    walks = trace()
    if unknown := [name for name in asked if name not in walks]:
        sys.stderr.write(f"no way is called {unknown[0]!r}; these are: {', '.join(walks)}\n")
        return 2
    if "--json" in sys.argv[1:]:
        sys.stdout.write(json.dumps(as_json(walks), indent=1) + "\n")
    elif asked:
        sys.stdout.write("".join(listing(walks[name]) for name in asked))
    else:
        sys.stdout.write(table(walks))
    return 0


if __name__ == "__main__":
    sys.exit(main())
