"""The processes that the demo starts besides the bookies: the writer that is killed, and Spark."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

from quire.core.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class ChildFailedError(RefusedError):
    """A process of the demo ended with an error; what it said last is in the text."""

    code = "child_failed"


class WriterProcess:
    """A running `quire.cli.demo.load`, and what it has said so far.

    Args:
        cluster: its URI.
        log: the log's name.
        root: the common root of the files.
        files: the input.
        rate: records in a second at most; 0 without a limit.
        hold_at: how many records the log has when it waits to be killed; None: it writes all of them.
    """

    def __init__(
        self,
        cluster: str,
        log: str,
        root: Path,
        files: list[Path],
        rate: int,
        *,
        hold_at: int | None = None,
    ) -> None:
        command = [sys.executable, "-m", "quire.cli.demo.load", "--cluster", cluster, "--log", log]
        command += ["--root", str(root), "--records-per-second", str(rate)]
        if hold_at is not None:
            command += ["--hold-at", str(hold_at)]
        self.opened: int | None = None
        self.open_seconds = 0.0
        self.acknowledged = 0
        self.done = False
        self.error: str | None = None
        self._changed = threading.Condition()
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
        )
        assert self._process.stdin is not None
        names = "\0".join(str(path.relative_to(root)) for path in files)
        self._process.stdin.write(names.encode("utf-8", "surrogateescape"))
        self._process.stdin.close()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                if line.endswith(b"\n"):
                    self._received(json.loads(line))
                self._changed.notify_all()
        code = self._process.wait()
        with self._changed:
            if not self.done and self.error is None:
                self.error = f"it ended with status {code}"
            self._changed.notify_all()

    def _received(self, facts: dict[str, Any]) -> None:
        if "opened" in facts:
            self.opened, self.open_seconds = facts["opened"], facts["seconds"]
            self.acknowledged = facts["opened"]  # by all writers
        if "acknowledged" in facts:
            self.acknowledged = facts["acknowledged"]
        if "done" in facts:
            self.acknowledged, self.done = facts["done"], True
        if "error" in facts:
            self.error = facts["error"]["message"]

    def wait_until(self, true: Callable[[WriterProcess], bool], advance: Callable[[int], None]) -> None:
        """Wait for a condition; `advance` is called with how many more acknowledgements have come.

        Raises:
            ChildFailedError: the process ended without its coming true.
        """
        seen = self.acknowledged
        while True:
            with self._changed:
                if not true(self) and self.error is None and not self.done:
                    self._changed.wait(1.0)
                now, met = self.acknowledged, true(self)
                failed = self.error
            advance(now - seen)
            seen = now
            if met:
                return
            if failed is not None:
                raise ChildFailedError(f"The writer failed: {failed}")
            if self.done:
                raise ChildFailedError("The writer ended before it was to.")

    def kill(self) -> int:
        """Kill it with SIGKILL.

        Returns:
            The offset below which everything was acknowledged to it, as far as it could say.
        """
        self._process.kill()
        self._process.wait()
        self._listener.join()
        return self.acknowledged

    def finish(self) -> None:
        """Wait for its end."""
        self._process.wait()
        self._listener.join()

    def close(self) -> None:
        """Make sure that it has ended."""
        if self._process.poll() is None:
            self._process.kill()
        self.finish()


class SparkProcess:
    """One Spark session for all jobs of the demo, in a process that is started early because a JVM takes seconds.

    Args:
        log: the file that takes what Spark says.
    """

    def __init__(self, log: Path) -> None:
        self.log = log
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "quire.spark.jobs"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                process_group=0,
            )

    def run(self, job: str, *arguments: str) -> dict[str, Any]:
        """Run one job.

        Returns:
            Its line.

        Raises:
            ChildFailedError: with its own words.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps([job, *arguments]).encode() + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            self._process.wait()
            said = self.log.read_text("utf-8", "replace").strip().splitlines()[-1:]
            raise ChildFailedError(
                f"Spark did not run: {' '.join(said)} (all of it: {self.log})", path=str(self.log)
            )
        facts: dict[str, Any] = json.loads(line)
        if "error" in facts:
            raise ChildFailedError(
                f"The Spark job {job} failed: {facts['error']} (more: {self.log})", job=job
            )
        return facts

    def close(self) -> None:
        """End the session, and the process if it does not end by itself."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(20)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
