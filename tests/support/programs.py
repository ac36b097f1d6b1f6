"""Today's program and made-up older ones (`made_up.py`), as real processes."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MADE_UP = Path(__file__).with_name("made_up.py")
RUN_SECONDS = 120
STOP_SECONDS = 60
WRONG_IN_A_LOG = re.compile(
    r"Traceback|newer version|does not know|is not known here|not the native protocol|differs|cannot be read"
)
"""What a program says when it meets something that it cannot take, or when anybody fails in a way not foreseen."""


@dataclass(frozen=True)
class Program:
    """One version of Quire.

    Attributes:
        name: for people and in names of files.
        made_up: which one `made_up.py` makes of today's; None: today's.
    """

    name: str
    made_up: str | None = None

    def python(self, what: str, *arguments: str) -> list[str]:
        """A module or a script of it as a command line."""
        older = [str(MADE_UP), self.made_up] if self.made_up is not None else []
        return [sys.executable, *(older or ([] if what.endswith(".py") else ["-m"])), what, *arguments]

    def quire(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `quire ARGUMENTS` to its end."""
        return subprocess.run(
            self.python("quire.cli.main", *arguments),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=RUN_SECONDS,
            check=False,
        )


NEW = Program("new")
OLDER = Program("older", "fewer")
"""Speaks a version before today's too, and knows none of its features."""
UNRELEASED = Program("unreleased", "unreleased")
"""Has formats and frames that today's program does not know any more."""


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
        command = program.python("quire.cli.local.serve", "--dir", str(self.directory), "--name", self.name)
        command += ["--cluster", self._uri, "--port", str(self.port)]
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                command,
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
