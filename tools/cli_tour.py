"""Make docs/cli-tour.md: a session with every command, run on a real cluster, and what each answered.

    tools/cli_tour.py            write the page
    tools/cli_tour.py --check    run the session and say whether the page still shows what it answers

The page has what the commands printed. Only what differs from run to run, or from machine to machine, is replaced, by the
rules of `REPLACED`; every other figure is as it was printed, and is compared.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tour_script import STEPS, Heading, Step

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "cli-tour.md"
WAIT_S = 120
HOME = "/tmp/quire"  # noqa: S108 -- shown, not used
INTRODUCTION = """# A tour of the command line

A session with every command, recorded by `tools/cli_tour.py` on a cluster of this machine: each does its work once, then its
most frequent mistakes are made. Lines with `[exit N]` show an exit code other than 0 ([what they mean](command-line.md#exit-codes)).
Where `^C` stands, Ctrl-C was pressed. These are as the commands printed them, but for: ids and names that are drawn by lot,
ports, process ids, times of day, how long bookies have run, free space, and the speed of `quire bench`, which stand for those of
your machine.
"""


def _uptime(found: re.Match[str]) -> str:
    """In a table: the width stays."""
    return found[1] + "8s".ljust(len(found[2]))


def _durations(found: re.Match[str]) -> str:
    return re.sub(r"[\d.]+ (us|ms|s)\b", "1.0 ms", found[0])


REPLACED: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    # Names and ids that are drawn by lot.
    (r"[\w.-]+-\d+-[0-9a-f]{8}\b", "this-machine-4711-5e9a7b1d"),
    (r"(bookie-\d)\.[0-9a-z]{5}\b", r"\1.k3x9q"),
    (
        r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b",
        "b6d1c7e2-5f0a-4c39-9d8e-2f7a61b0c4d3",
    ),
    (r"\b[0-9a-f]{32}\b", "0f3c5e9a7b1d4826a5c0e8d2f6b49173"),
    # Ports (not port 1, which the script names itself) and processes.
    (r"127\.0\.0\.1:(?!1/|1\b)\d+", "127.0.0.1:40001"),
    (r"\bpid \d+", "pid 4711"),
    (r"(\"pid\": |\"port\": )\d+", r"\g<1>4711"),
    # Times: of day, since 1970, and how long a bookie has run, which stands behind its version or its space.
    (r"\b20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00| UTC)?", "2026-01-01 12:00:00"),
    (r"^\d\d:\d\d:\d\d(?=  )", "12:00:00"),
    (r"(\"timestamp_ms\": )\d{13}\b", r"\g<1>1767268800000"),
    (r"( \d\.\d\.\d +)((?:\d+[hms] ?)+)(?= )", _uptime),
    (r"(GiB  )((?:\d+[hms] ?)+)(?= |$)", _uptime),
    # The room on the disk.
    (r"[\d.]+ [KMGT]iB of [\d.]+ [KMGT]iB( free)?", r"50.0 GiB of 100.0 GiB\1"),
    # The speed of the machine: `quire bench`, and how long a probe took.
    (
        r"^[\d,]+ entries of (.*) in [\d.]+ s, (.*): [\d,]+ entries/s, [\d.]+ \w+/s\.",
        r"10,000 entries of \1 in 0.2 s, \2: 50,000 entries/s, 4.8 MiB/s.",
    ),
    (r"^From the append to its acknowledgement: .*", _durations),
    (r"(\"seconds\": )[\d.]+", r"\g<1>0.1"),
    # The machine, and its Python.
    (r"at [\w.-]+:\d+ (?=\(epoch)", "at this-machine:4711 "),
    (r"(Python )3\.\d+\.\d+", r"\g<1>3.11.7"),
)
"""What differs, and what stands in its place. A pattern sees one line."""


@dataclass
class Session:
    """Where the commands run.

    Args:
        folder: a directory of its own, shown as /tmp/quire.
    """

    folder: Path

    def environment(self) -> dict[str, str]:
        """As a newcomer's shell."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("QUIRE_")}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return kept | {
            "PATH": path,
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "XDG_DATA_HOME": str(self.folder / "share"),
            "NO_COLOR": "1",
            "LC_ALL": "C.UTF-8",
            "QUIRE_LOG_LEVEL": "ERROR",
        }

    def run(self, step: Step) -> str:
        """One step as it looks at a terminal."""
        lines = f"cd {self.folder}\n{step.before}\n{step.line}"
        if step.after:
            lines += f"\ncode=$?\n{step.after}\nexit $code"
        terminal, taken = pty.openpty() if step.columns else (-1, subprocess.PIPE)
        process = subprocess.Popen(  # noqa: S603 -- the script's own lines
            ["bash", "-c", lines],  # noqa: S607 -- that of the PATH
            env=self.environment()
            | {
                "QUIRE_CLUSTER": f"sqlite:{self.folder}/data/metadata.db",
                "COLUMNS": str(step.columns or 110),
            },
            stdin=subprocess.DEVNULL,
            stdout=taken,
            stderr=taken if step.columns else subprocess.STDOUT,
            start_new_session=True,
        )
        if step.columns:
            os.close(taken)
            shown = self.fixed(_all_of(terminal))
            process.wait()
        elif step.until:
            before, after = self._until(process, step.until)
            shown = self.fixed(before) + "^C\n" + self.fixed(after)
        else:
            shown = self.fixed(process.communicate(timeout=WAIT_S)[0])
        return shown + (f"[exit {process.returncode}]\n" if process.returncode else "")

    def _until(self, process: subprocess.Popen[bytes], wanted: str) -> tuple[bytes, bytes]:
        """Read until a text has come, then press Ctrl-C."""
        assert process.stdout is not None
        said = bytearray()
        timer = threading.Timer(WAIT_S, process.kill)
        timer.start()
        while wanted.encode() not in said and (more := os.read(process.stdout.fileno(), 65536)):
            said += more
        os.killpg(process.pid, signal.SIGINT)
        rest = process.stdout.read()
        process.wait()
        timer.cancel()
        return bytes(said), rest

    def fixed(self, said: bytes) -> str:
        """The text without what differs from run to run; columns of tables stay where they are."""
        text, folder = said.decode("utf-8", "replace"), str(self.folder)
        shorter = len(folder) - len(HOME)
        text = re.sub(re.escape(folder) + r"(\S*)(  )(?=(yes|no)\b)", rf"{HOME}\1\2{' ' * shorter}", text)
        text = text.replace(folder, HOME).replace(str(Path.home()), "~")
        return "".join(f"{replaced(line).rstrip()}\n" for line in text.splitlines())


def _all_of(terminal: int) -> bytes:
    """What is written to a terminal until its programs have ended, without colours."""
    said = bytearray()
    with contextlib.suppress(OSError), os.fdopen(terminal, "rb", buffering=0) as stream:
        while more := stream.read(65536):
            said += more
    return re.sub(rb"\x1b\[[0-9;]*m|\r", b"", bytes(said))


def replaced(line: str) -> str:
    """A line without what differs from run to run."""
    for pattern, instead in REPLACED:
        line = re.sub(pattern, instead, line)
    return line


def page() -> str:
    """Run the session."""
    parts = [INTRODUCTION]
    with tempfile.TemporaryDirectory() as name:
        session = Session(Path(name).resolve())
        cluster = subprocess.Popen(  # noqa: S603 -- the same
            ["bash", "-c", f"cd {session.folder} && exec quire up --dir data"],  # noqa: S607 -- the same
            env=session.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            assert cluster.stdout is not None
            for line in cluster.stdout:
                if b"Ctrl-C" in line:
                    break
            for in_block, steps in itertools.groupby(STEPS, lambda step: isinstance(step, Step)):
                if not in_block:
                    parts += [f"\n{step.text}\n" for step in steps if isinstance(step, Heading)]
                    continue
                shown = [f"$ {step.line}\n{session.run(step)}" for step in steps if isinstance(step, Step)]
                parts.append(
                    "\n<!-- not run: tools/cli_tour.py recorded it -->\n```console\n"
                    + "\n".join(shown)
                    + "```\n"
                )
        finally:
            os.killpg(cluster.pid, signal.SIGINT)
            cluster.wait()
    return "".join(parts)


def squeezed(text: str) -> list[str]:
    """The words of each line: a table's width follows what stood in it, and an ensemble's order is drawn by lot."""
    text = re.sub(r"^( *b\d = )bookie-\d", r"\1bookie-N", text, flags=re.MULTILINE)
    return [" ".join(re.sub(r"[─━]+", "-", line).split()) for line in text.splitlines()]


def main() -> int:
    """Write or check the page."""
    made = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(made, encoding="utf-8")
        return 0
    import difflib

    differs = list(
        difflib.unified_diff(squeezed(PAGE.read_text("utf-8")), squeezed(made), "docs", "now", lineterm="")
    )
    sys.stdout.write("\n".join([*differs, ""]) if differs else "")
    return 1 if differs else 0


if __name__ == "__main__":
    raise SystemExit(main())
