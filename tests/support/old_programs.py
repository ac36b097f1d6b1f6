"""Programs of earlier revisions beside those of today, as real processes.

Its code comes from the repository itself (`git archive`) and is kept under `out/`. The packages it needs are the same, so
today's Python runs it: only `PYTHONPATH` differs.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

REVISION = "9e5fe3a64ea8566b37e70d298e8bd67e6e5bd330"
"""The last one that had version 1 of every format."""
BEFORE_STREAMS = "5ae51c882b533d42a19f67e72356879de2adf8d0"
"""The last one whose bookies know no terms."""
ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "out" / "old-programs"
RUN_SECONDS = 120
STOP_SECONDS = 60
WRONG_IN_A_LOG = re.compile(
    r"Traceback|newer version|does not know|is not known here|not the native protocol|differs|cannot be read"
)
"""What an old program says when it meets something that it cannot take, or when anybody fails in a way not foreseen."""


@dataclass(frozen=True)
class Program:
    """One version of Quire.

    Attributes:
        name: for people and in names of files.
        tree: the root of its tree: `src`, and the fault tests' workers in `tests`.
    """

    name: str
    tree: Path

    @property
    def environment(self) -> dict[str, str]:
        """What a process of it needs."""
        return {**os.environ, "PYTHONPATH": str(self.tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}

    def command(self, *arguments: str) -> list[str]:
        """`quire ARGUMENTS` as a command line."""
        return [sys.executable, "-m", "quire.cli.main", *arguments]

    def quire(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one command to its end."""
        return self.run(self.command(*arguments))

    def run(self, command: list[str], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run any command line with this program's code."""
        return subprocess.run(
            command,
            env=self.environment,
            cwd=cwd,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=RUN_SECONDS,
            check=False,
        )


NEW = Program("new", ROOT)


def why_not(revision: str = REVISION) -> str | None:
    """Why there can be no program of a revision here; None if there can."""
    if shutil.which("git") is None:
        return f"git is not installed: nothing was tested with programs of revision {revision[:7]}"
    asked = ["git", "-C", str(ROOT), "cat-file", "-e", f"{revision}^{{tree}}"]
    if subprocess.run(asked, capture_output=True, check=False).returncode:
        return f"this clone does not have revision {revision[:7]}: nothing was tested with programs of it"
    return None


@functools.cache
def old_program(revision: str = REVISION) -> Program | str:
    """The program of a revision; why there is none otherwise."""
    tree = KEPT / revision[:12]
    if tree.exists():
        return Program("old", tree)
    reason = why_not(revision)
    if reason is not None:
        return reason
    KEPT.mkdir(parents=True, exist_ok=True)
    asked = [
        "git",
        "-C",
        str(ROOT),
        "archive",
        "--format=zip",
        revision,
        "src",
        "tests/faults",
        "tests/support",
    ]
    archive = subprocess.run(asked, capture_output=True, check=True).stdout
    with tempfile.TemporaryDirectory(dir=KEPT) as made:
        with zipfile.ZipFile(BytesIO(archive)) as packed:
            packed.extractall(f"{made}/tree")
        with contextlib.suppress(OSError):  # another process of this run was faster
            Path(made, "tree").rename(tree)
    return Program("old", tree)


def old_or_skip(revision: str = REVISION) -> Program:
    """The old program; the test is skipped, loudly, where there is none."""
    found = old_program(revision)
    if isinstance(found, str):
        pytest.skip(found)
    return found


class BookieProcess:
    """One bookie's directory, on which now an old and now a new program serves.

    Args:
        name: the bookie's.
        directory: its data; what it says goes to files beside it.
        uri: the cluster.
    """

    def __init__(self, name: str, directory: Path, uri: str) -> None:
        self.name, self.directory, self._uri = name, directory, uri
        self.port = 0
        self.id = ""
        self.program: Program | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.logs: list[tuple[Program, Path]] = []

    def start(self, program: Program) -> None:
        """Serve with this program; returns when it serves.

        Raises:
            AssertionError: it does not come up; with what it said.
        """
        facts, said = self.try_to_start(program)
        assert "address" in facts, f"{self.name} of the {program.name} program did not start: {facts}\n{said}"

    def try_to_start(self, program: Program) -> tuple[dict[str, Any], str]:
        """Serve with this program if it can: its first line, and what it said on stderr until then."""
        log = self.directory.with_name(f"{self.name}-{len(self.logs)}-{program.name}.log")
        self.logs.append((program, log))
        command = [
            sys.executable,
            "-m",
            "quire.cli.local.serve",
            "--dir",
            str(self.directory),
            "--name",
            self.name,
        ]
        command += ["--cluster", self._uri, "--port", str(self.port)]
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                command,
                env=program.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                process_group=0,
            )
        self.program = program
        assert self.process.stdout is not None
        facts: dict[str, Any] = json.loads(self.process.stdout.readline() or b"{}")
        if "address" in facts:
            self.id, self.port = facts["id"], int(facts["address"].rpartition(":")[2])
        else:
            self._gone()
        return facts, log.read_text()

    def stop(self) -> int:
        """Stop it cleanly; its exit code."""
        return self._end(signal.SIGTERM)

    def kill(self) -> int:
        """Kill it with SIGKILL."""
        return self._end(signal.SIGKILL)

    def _end(self, number: int) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self._gone()

    def _gone(self) -> int:
        assert self.process is not None
        try:
            code = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        return code


def wrong_lines(log: Path) -> list[str]:
    """Lines of a program's stderr that it should not have had to say."""
    return [line for line in log.read_text(errors="replace").splitlines() if WRONG_IN_A_LOG.search(line)]
