"""The guard of every change (P26): the CPU time per entry of a fixed loop, against the last commit's in the same run.

The loop is the whole product within one process and one thread: a client that seals runs, frames encoded and parsed,
three bookies that admit and journal them, everything read back with its digests checked and compared. Connections are
copies in memory and the journals lie in a tmpfs where there is one, so nothing but CPU time is spent, and the same work
is done each time.

Each side runs its own copy of this file on its own source, by turns, in a process of its own. Where there is nothing to
compare with (no git, a clone without history, an older loop) it says so and ends well.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

ROOT = Path(__file__).resolve().parent.parent
LOOP = 1
"""The loop's number: figures of different loops are not compared. Raise it when `PARTS` or what is done changes."""

ROUNDS = 5
MARGIN_PERCENT = 35.0
ROUND_SECONDS_MAX = 60
TMPFS = Path("/dev/shm")  # noqa: S108 - the journals lie here so that no disk is measured
ROOM_BYTES = 1 << 30
SEGMENT_BYTES = 8 << 20
BOOKIES = 3
PAYLOADS = 64
STEPS_PER_WINDOW = 10


class NothingToCompareError(Exception):
    """There is no other side; the text says why."""


# --- the comparison -----------------------------------------------------------------------------------------------------


def change_percent(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """How much more we need: the median of the pairs' ratios, since neighbours slow down both rounds of a pair."""
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    return (statistics.median(ratios) - 1) * 100


def verdict(
    rounds: Sequence[tuple[dict[str, float], dict[str, float]]], base: str, margin: float
) -> tuple[str, bool]:
    """What to print, and whether the change is within the margin.

    Args:
        rounds: (ours, theirs) of each pair: CPU microseconds per entry, by part and for `all`.
        base: the commit that is compared with.
        margin: in percent.
    """
    changes = {
        part: change_percent([ours[part] for ours, _ in rounds], [theirs[part] for _, theirs in rounds])
        for part in rounds[0][0]
    }
    mine, other = (statistics.median(side[number]["all"] for side in rounds) for number in (0, 1))
    whole = changes.pop("all")
    parts = ", ".join(f"{part} {change:+.0f} %" for part, change in changes.items())
    fine = whole <= margin
    text = (
        f"guard (P26): {mine:.2f} us CPU per entry, {other:.2f} us at {base}: {whole:+.1f} % in {len(rounds)} pairs "
        f"({parts}); fails past +{margin:g} %: {'fine' if fine else 'FAILED'}"
    )
    return text, fine


def last_commit(root: Path) -> str:
    """The commit to compare with: the last one when the source differs from it, else the one before its last change.

    Raises:
        NothingToCompareError: no git, or no such commit here.
    """
    if shutil.which("git") is None or not git(root, "rev-parse", "--is-inside-work-tree"):
        raise NothingToCompareError("no git repository here")
    if git(root, "status", "--porcelain", "--", "src/quire"):
        return "HEAD"
    changed = git(root, "rev-list", "-1", "HEAD", "--", "src/quire")
    if not changed or not git(root, "rev-parse", "--verify", "--quiet", f"{changed}^"):
        raise NothingToCompareError("the clone has no commit before the last change of src/quire")
    return f"{changed}^"


def git(root: Path, *words: str) -> str:
    """What git says, "" when it refuses."""
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def unpack(root: Path, commit: str, directory: Path) -> None:
    """Put a commit's source and its own guard into a directory.

    Raises:
        NothingToCompareError: the commit has no guard.
    """
    command = ["git", "-C", str(root), "archive", "--format=zip", commit, "src/quire", "bench/guard.py"]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise NothingToCompareError("that commit has no guard yet")
    with zipfile.ZipFile(io.BytesIO(done.stdout)) as archive:
        archive.extractall(directory)


def one_round(root: Path) -> dict[str, float]:
    """Run the loop of the tree at `root` once, in a process of its own.

    Raises:
        RuntimeError: it failed.
        NothingToCompareError: it has another loop.
    """
    command = [sys.executable, str(root / "bench" / "guard.py"), "--once"]
    with tempfile.TemporaryDirectory(prefix="quire-guard-", dir=journal_directory()) as directory:
        env = {**os.environ, "TMPDIR": directory}
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=False,
                cwd=root,
                env=env,
                timeout=ROUND_SECONDS_MAX,
            )
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"the loop of {root} did not end within {ROUND_SECONDS_MAX} s") from error
    if done.returncode:
        raise RuntimeError(f"the loop of {root} failed:\n{done.stderr.strip()[-1000:]}")
    result = json.loads(done.stdout.splitlines()[-1])
    if result["loop"] != LOOP:
        raise NothingToCompareError(f"that commit has loop {result['loop']}, this one loop {LOOP}")
    return cast("dict[str, float]", result["cpu_us"])


def try_out(other: Path) -> None:
    """Run the other side's loop a first time, which also compiles its files.

    Raises:
        NothingToCompareError: it cannot run here.
    """
    try:
        one_round(other)
    except RuntimeError as error:
        raise NothingToCompareError(str(error)) from error


def compare(root: Path, pairs: int, margin: float, against: str = "") -> int:
    """Run both sides by turns and say what came out; 1 when it is past the margin, else 0."""
    ours = one_round(root)  # a loop that does not run here is a failure, whatever the other side is
    try:
        commit = against or last_commit(root)
        with tempfile.TemporaryDirectory(prefix="quire-guard-") as directory:
            other = Path(directory)
            unpack(root, commit, other)
            try_out(other)
            rounds = [(one_round(root), one_round(other)) for _ in range(pairs)]
    except NothingToCompareError as reason:
        say(f"guard (P26): {ours['all']:.2f} us CPU per entry; NOT COMPARED: {reason}")
        return 0
    text, fine = verdict(rounds, git(root, "rev-parse", "--short", commit), margin)
    say(text)
    return 0 if fine else 1


def say(text: str) -> None:
    """One line for whoever runs the tests."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


# --- the loop -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """Some entries of one size in one ledger.

    Args:
        name: for the report.
        size: of a payload, in bytes.
        count: how many.
        window: outstanding at most; 1 waits for each.
    """

    name: str
    size: int
    count: int
    window: int


WARM_UP = (Part("warm", 100, 4000, 2000), Part("warm", 1024, 200, 1))
PARTS = (
    Part("100 B", 100, 160_000, 5000),
    Part("1 KB", 1024, 45_000, 2000),
    Part("one at a time", 1024, 1200, 1),
)


class Pipe(asyncio.Transport):
    """One direction of a connection in memory: what is written here is received there, in a later loop turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._parts: deque[memoryview] = deque()
        self._scheduled = False
        self.closing = False
        self.paused = False
        self.other: Pipe
        self.protocol: asyncio.BufferedProtocol

    def write(self, data: Any) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Any) -> None:
        self._parts.extend(memoryview(part) for part in list_of_data if len(part))
        self.schedule()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ARG002 - asyncio's signature
        return default

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False
        self.other.schedule()

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        for end in (self, self.other):
            if not end.closing:
                end.closing = True
                self._loop.call_soon(end.protocol.connection_lost, None)

    def schedule(self) -> None:
        """What waits is received in the next turn."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._scheduled = False
        receiver = self.other
        while self._parts and not receiver.paused and not self.closing:
            room = receiver.protocol.get_buffer(-1)
            filled = self._fill(cast("memoryview", room))
            receiver.protocol.buffer_updated(filled)

    def _fill(self, room: memoryview) -> int:
        filled = 0
        while self._parts and filled < len(room):
            part = self._parts.popleft()
            size = min(len(part), len(room) - filled)
            room[filled : filled + size] = part[:size]
            filled += size
            if size < len(part):
                self._parts.appendleft(part[size:])
        return filled


class Listening:
    """What `create_server` returns, without a socket."""

    def __init__(self, port: int) -> None:
        self.sockets = [self]
        self._name = ("in memory", port)

    def getsockname(self) -> tuple[str, int]:
        """The address that was given to it."""
        return self._name

    async def start_serving(self) -> None:
        """It serves from its beginning."""

    def close(self) -> None:
        """Nothing to close."""

    async def wait_closed(self) -> None:
        """Nothing to wait for."""


class MemoryLoop(asyncio.SelectorEventLoop):
    """An event loop whose connections are pipes in memory."""

    def __init__(self) -> None:
        super().__init__()
        self._listening: dict[int, Callable[[], Any]] = {}

    async def create_server(self, protocol_factory: Any, *_: Any, **__: Any) -> Any:
        port = len(self._listening) + 1
        self._listening[port] = protocol_factory
        return Listening(port)

    async def create_connection(  # type: ignore[override]  # only what the client uses of it
        self, protocol_factory: Any, _host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        near, far = Pipe(self), Pipe(self)
        near.other, far.other = far, near
        near.protocol, far.protocol = protocol_factory(), self._listening[port]()
        far.protocol.connection_made(far)
        near.protocol.connection_made(near)
        return near, near.protocol


class LoopWorker:
    """Does the journal's jobs on the loop, one per turn: no thread, so the same groups each time."""

    def __init__(self) -> None:
        self._jobs: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()

    def submit(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run the job in a later turn."""
        self._jobs.append((job, done))
        try:
            asyncio.get_running_loop().call_soon(self._next)
        except RuntimeError:
            return  # no loop: `finish` will do it

    def finish(self) -> None:
        """Run what waits, here."""
        while self._jobs:
            self._next()

    def close(self) -> None:
        """Run what waits; there is no thread."""
        self.finish()

    def _next(self) -> None:
        if self._jobs:
            job, done = self._jobs.popleft()
            result: Any
            try:
                result = job()
            except Exception as error:  # noqa: BLE001 - handed to whoever submitted the job
                result = error
            done(result)


def journal_directory() -> str | None:
    """A tmpfs with enough room, or None: then the usual temporary directory serves."""
    if TMPFS.is_dir() and os.access(TMPFS, os.W_OK) and shutil.disk_usage(TMPFS).free > ROOM_BYTES:
        return str(TMPFS)
    return None


async def run_loop(directory: Path) -> dict[str, float]:
    """Start the bookies, run every part; the CPU microseconds per entry of each, and of all."""
    import quire
    from quire.bookie.config import BookieConfig
    from quire.bookie.server import BookieServer
    from quire.metadata.connect import open_store
    from quire.storage.config import StorageConfig

    end_on_failure()
    servers = []
    for number in range(BOOKIES):
        storage = StorageConfig(segment_bytes=SEGMENT_BYTES)
        config = BookieConfig(directory=directory / str(number), name=f"b{number}", storage=storage)
        server = BookieServer(config, await open_store("memory:guard", create=True), worker=LoopWorker())
        await server.start()
        servers.append(server)
    async with quire.connect("memory:guard") as client:
        for part in WARM_UP:
            await run_part(client, part)
        used = {part.name: await run_part(client, part) for part in PARTS}
    for server in servers:
        await server.stop()
        await server.store.close()
    counts = {part.name: part.count for part in PARTS}
    figures = {name: seconds / counts[name] * 1e6 for name, seconds in used.items()}
    return {**figures, "all": sum(used.values()) / sum(counts.values()) * 1e6}


def end_on_failure() -> None:
    """A callback that fails leaves somebody waiting for ever: the loop ends with it."""
    main_task = asyncio.current_task()

    def failed(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        loop.default_exception_handler(context)
        if main_task is not None:
            main_task.cancel()

    asyncio.get_running_loop().set_exception_handler(failed)


async def run_part(client: Any, part: Part) -> float:
    """Write, read back, compare; the CPU seconds that took."""
    chance = random.Random(7)
    payloads = [chance.randbytes(part.size) for _ in range(PAYLOADS)]
    ledger = await client.create_ledger(password=b"guard")
    start = time.process_time()
    step = max(1, part.window // STEPS_PER_WINDOW)
    steps_out = min(part.window, STEPS_PER_WINDOW)
    waiting: deque[asyncio.Future[int]] = deque()
    for first in range(0, part.count, step):
        for number in range(first, first + step):
            last = ledger.append_nowait(payloads[number % PAYLOADS])
        waiting.append(last)
        while len(waiting) >= steps_out:
            await waiting.popleft()
    while waiting:
        await waiting.popleft()
    await ledger.close()
    reader = await client.open_ledger(ledger.ledger_id, password=b"guard")
    seen = 0
    async for entry in reader.read(0, part.count - 1):
        if entry.entry_id != seen or entry.payload != payloads[seen % PAYLOADS]:
            raise ValueError(f"entry {seen} came back as something else")
        seen += 1
    if seen != part.count:
        raise ValueError(f"{seen} of {part.count} entries came back")
    return time.process_time() - start


def once() -> None:
    """Run the loop here and print its figures as JSON."""
    sys.path.insert(0, str(ROOT / "src"))
    import quire

    if not Path(quire.__file__).is_relative_to(ROOT):
        raise RuntimeError(f"measures {quire.__file__}, not {ROOT}")
    with tempfile.TemporaryDirectory() as directory, asyncio.Runner(loop_factory=MemoryLoop) as runner:
        cpu_us = runner.run(run_loop(Path(directory)))
    say(json.dumps({"loop": LOOP, "cpu_us": cpu_us}))


def main() -> int:
    """Parse the options and run."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument(
        "--pairs", type=int, default=ROUNDS, help="rounds of each side (default %(default)s)"
    )
    options.add_argument(
        "--margin",
        type=float,
        default=MARGIN_PERCENT,
        help="percent of more CPU that fails (default %(default)s)",
    )
    options.add_argument("--against", default="", help="the commit to compare with (default: the last one)")
    options.add_argument(
        "--once",
        action="store_true",
        help="run the loop of this tree once, its journals in TMPDIR, and print JSON",
    )
    given = options.parse_args()
    if given.once:
        once()
        return 0
    try:
        return compare(ROOT, given.pairs, given.margin, given.against)
    except RuntimeError as error:
        say(f"guard (P26): FAILED: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
