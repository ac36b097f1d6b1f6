"""A Spark driver in a process of its own that is asked in lines of JSON, and that may be gone before it answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class SparkDriverProcess:
    """Started when it is needed.

    Args:
        program: what Python is to run: a file, or `-m` and a module.
        said: a file for what it says on standard error.
        environment: what is added to this process's.
        facts: its argument, as JSON.
    """

    def __init__(
        self, program: list[str], said: Path, environment: Mapping[str, str] | None = None, **facts: Any
    ) -> None:
        self._program, self._said, self._facts = program, said, facts
        self._environment = os.environ | dict(environment or {})
        self._process: subprocess.Popen[str] | None = None

    def ask(self, **asked: Any) -> Any:
        """What it answers; None when it, or its JVM, is gone before it can."""
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(asked) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            pass
        else:
            for line in process.stdout:
                if line.startswith("{"):
                    return json.loads(line)
        self.end()
        return None

    def _start(self) -> subprocess.Popen[str]:
        with self._said.open("a") as said:
            return subprocess.Popen(
                [sys.executable, *self._program, json.dumps(self._facts)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                env=self._environment,
                text=True,
            )

    def end(self) -> None:
        """The end of its input is its end."""
        if self._process is not None:
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process.communicate()
            self._process = None
