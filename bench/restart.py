"""Claim P21: a bookie that was killed with a full 256 MiB of journal to replay serves again within 3 seconds.

The journal is filled through one client, the bookie is killed (SIGKILL), and the footers of its segments are taken
away, so that every byte has to be replayed: in operation only the newest segment, of 64 MiB, has none. Its pages are
dropped from the cache. The time goes from spawning the process to its line that says it is registered and serves.
Three loads: runs of 1 KB entries, runs of 100 B entries, and the most records that such a journal can have, 100 B
entries of many ledgers in turn, a record each. At the end all that was acknowledged is read back from that one bookie.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
from accounting import cpu_seconds, load_average, resident_mib
from harness import Claim, Comparison, say
from peers import OUT, ROOT, LoadClient

JOURNAL_MIB = 256
BAR_SECONDS = 3.0
BLOCK_BYTES = 4096


@dataclass(frozen=True)
class Load:
    """What fills the journal: entries of a size, in some ledgers in turn."""

    text: str
    size: int
    ledgers: int


LOADS = {
    "P21": Load("1 KB entries in runs", 1024, 1),
    "P21-100": Load("100 B entries in runs", 100, 1),
    "P21-records": Load("100 B entries, a record each", 100, 500),
}


class Bookie:
    """One bookie process, as `quire up` starts it, with a metadata store of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.uri = f"sqlite:{directory / 'metadata.db'}"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> float:
        """Start it; returns the seconds until it serves."""
        command = [sys.executable, "-m", "quire.cli.local.serve", "--dir", str(self.directory / "bookie")]
        command += ["--cluster", self.uri, "--name", "bookie"]
        start = time.perf_counter()
        with (self.directory / "bookie.log").open("a") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        seconds = time.perf_counter() - start
        if "address" not in json.loads(line or "{}"):
            raise RuntimeError(f"the bookie did not start: {line} (log: {self.directory / 'bookie.log'})")
        return seconds

    @property
    def pid(self) -> int:
        """The running process."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        self._process = None

    def take_footers_away(self) -> int:
        """Blank the trailers and drop the pages of the segments of the stopped bookie; returns how many it has."""
        segments = sorted((self.directory / "bookie" / "segments").glob("*.seg"))
        for segment in segments:
            with segment.open("r+b") as file:
                file.seek(-BLOCK_BYTES, os.SEEK_END)
                file.write(bytes(BLOCK_BYTES))
                file.flush()
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return len(segments)

    def client(self) -> LoadClient:
        """A load client on this bookie."""
        command = [sys.executable, str(ROOT / "bench" / "load_client.py"), "--cluster", self.uri]
        return LoadClient("Quire", command, self.directory / "client.log")


@contextmanager
def bookie_in(directory: Path) -> Iterator[Bookie]:
    """A new bookie, running; killed and removed at the end."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    bookie = Bookie(directory)
    bookie.start()
    try:
        yield bookie
    finally:
        bookie.kill()
        shutil.rmtree(directory, ignore_errors=True)


def measure_load(name: str, pairs: int) -> Comparison:
    """Fill a journal once, and restart its bookie for each pair."""
    load = LOADS[name]
    claim = Claim(
        name,
        f"restart with {JOURNAL_MIB} MiB to replay, {load.text}, against {BAR_SECONDS:.0f} s",
        "s",
        1.0,
        False,
    )
    with bookie_in(OUT / "restart") as bookie:
        with bookie.client() as client:
            filled = client.run("fill-journal", load.size, JOURNAL_MIB, load.ledgers, "e=1", "qw=1", "qa=1")
        parameters = {"journal_mib": JOURNAL_MIB, "entry_bytes": load.size, "entries": filled["entries"]}
        comparison = Comparison(claim, parameters)
        usage: list[dict[str, Any]] = []
        for _ in range(pairs):
            bookie.kill()
            segments = bookie.take_footers_away()
            before = load_average()
            seconds = bookie.start()
            comparison.add(seconds, {"bar": BAR_SECONDS}, before)
            usage.append({"cpu_s": cpu_seconds(bookie.pid), "resident_mib": resident_mib(bookie.pid)})
            say(f"  {load.text}: {seconds:.2f} s, {segments} segments, {usage[-1]}")
        with bookie.client() as client:
            client.run("read-back", load.size, *filled["ledgers"])
        bookie.kill()
        bookie.start()
        bookie.kill()
        comparison.extra["s, with footers (only the newest segment is replayed)"] = round(bookie.start(), 2)
    for figure in ("cpu_s", "resident_mib"):
        comparison.extra[figure] = round(statistics.median(one[figure] for one in usage), 2)
    return comparison


def main() -> int:
    """Parse the options and run."""
    options = harness.parser(__doc__ or "")
    options.add_argument("--load", choices=sorted(LOADS), action="append", help="only this load")
    given = options.parse_args()
    names = given.load or list(LOADS)
    return harness.main("restart", given, lambda: [measure_load(name, given.pairs) for name in names])


if __name__ == "__main__":
    sys.exit(main())
