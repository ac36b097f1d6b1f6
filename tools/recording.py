"""Makes docs/pictures/first-minute.svg: README's first commands, then a bookie killed, as two terminals showed them.

    tools/recording.py            run the commands in an empty home and draw what they printed
    tools/recording.py --check    run them and say whether the picture still shows what they print

The words are those of a real run; the pauses between them are not. The log of the dead bookie is left out, white space at a
line's end is cut, long lines are broken where a terminal breaks them, and the home's path is shown as /home/you. A viewer
that plays no animations shows the last moment.
"""

from __future__ import annotations

import difflib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

from cli_tour import replaced

ROOT = Path(__file__).resolve().parent.parent
PATH = ROOT / "docs" / "pictures" / "first-minute.svg"
TEXT = "Two terminals: a cluster starts, a record is written and read, a bookie is killed, and the next record is written and read"
HOME: Final = "/home/you"
WAIT_S: Final = 120
COLUMNS, LINE, CHARACTER = 100, 18, 8.3
PAPER, BAR, EDGE, INK, PROMPT, QUIET = "#0d1117", "#21262d", "#484f58", "#e6edf3", "#56d364", "#9da7b3"
OUTPUT_S, TYPED_S, END_S = 0.35, 1.6, 8.0


@dataclass(frozen=True)
class Line:
    """A line of a terminal.

    Args:
        pane: 0, where the cluster runs, or 1.
        text: as it was shown; one that was typed begins with a dollar.
    """

    pane: int
    text: str


class Cluster:
    """`quire up` in its terminal, and what it has printed."""

    def __init__(self, command: str, environment: dict[str, str]) -> None:
        self.lines: list[str] = []
        self._process = subprocess.Popen(  # noqa: S603 -- README's own line
            ["bash", "-c", f"exec {command}"],  # noqa: S607 -- that of the PATH
            env=environment,
            cwd=environment["HOME"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def until(self, text: str) -> int:
        """Read until a line has this text; how many lines there are then."""
        assert self._process.stdout is not None
        timer = threading.Timer(WAIT_S, self._process.kill)
        timer.start()
        try:
            for line in self._process.stdout:
                self.lines.append(line.rstrip())
                if text in line:
                    return len(self.lines)
        finally:
            timer.cancel()
        raise RuntimeError(f"the cluster ended without {text!r}: {self.lines}")

    def stop(self) -> None:
        """Press Ctrl-C and wait."""
        os.killpg(self._process.pid, signal.SIGINT)
        self._process.communicate(timeout=WAIT_S)


def readme_block() -> str:
    """README's first block of commands with what they print."""
    found = re.search(
        r"^```console\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert found is not None
    return found[1]


def readme_lines() -> list[str]:
    """Its lines, without remarks."""
    return [line.partition("  # ")[0].rstrip() for line in readme_block().splitlines() if line.strip()]


@contextmanager
def empty_home() -> Iterator[dict[str, str]]:
    """The environment of somebody who has just installed the package."""
    with tempfile.TemporaryDirectory() as name:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        yield {
            **({"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}),
            "HOME": str(Path(name).resolve()),
            "PATH": path,
            "COLUMNS": str(COLUMNS),
            "LC_ALL": "C.UTF-8",
            "NO_COLOR": "1",
        }


def record() -> list[Line]:
    """Run README's commands, kill the second bookie, append and read again."""
    first, *others = [line.removeprefix("$ ") for line in readme_lines() if line.startswith("$ ")]
    lines: list[Line] = []
    with empty_home() as environment:

        def shown(pane: int, *texts: str) -> None:
            lines.extend(
                Line(pane, text.replace(environment["HOME"], HOME).rstrip()) for text in texts if text.strip()
            )

        def typed(command: str) -> None:
            done = subprocess.run(  # noqa: S603 -- README's own lines
                ["bash", "-c", command],  # noqa: S607 -- that of the PATH
                env=environment,
                cwd=environment["HOME"],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=WAIT_S,
                check=True,
            )
            shown(1, f"$ {command}", *done.stdout.splitlines())

        cluster = Cluster(first, environment)
        try:
            served = cluster.until("Ctrl-C stops it")
            shown(0, f"$ {first}", *cluster.lines)
            for command in others:
                typed(command)
            pid = next(
                found[1] for line in cluster.lines if (found := re.search(r"bookie-2\b.* pid (\d+)", line))
            )
            typed(f"kill -9 {pid}")
            cluster.until("or restart")
            shown(0, *cluster.lines[served:-1])
            typed("echo still here | quire log append greetings")
            typed("quire log read greetings")
        finally:
            cluster.stop()
    return lines


def broken(lines: list[Line]) -> list[Line]:
    """The lines as a terminal breaks them."""
    return [
        Line(line.pane, line.text[start : start + COLUMNS])
        for line in lines
        for start in range(0, max(1, len(line.text)), COLUMNS)
    ]


def svg(lines: list[Line]) -> str:
    """The picture; the same lines make the same bytes."""
    lines = broken(lines)
    heights = [LINE * sum(line.pane == pane for line in lines) + 46 for pane in (0, 1)]
    tops = [10, 10 + heights[0] + 10]
    width, height = round(COLUMNS * CHARACTER) + 44, sum(heights) + 30
    moments = [0.0]
    for line in lines[1:]:
        moments.append(moments[-1] + (TYPED_S if line.text.startswith("$ ") else OUTPUT_S))
    length = moments[-1] + END_S
    rules, texts, used = [], [], [0, 0]
    for number, (line, moment) in enumerate(zip(lines, moments, strict=True)):
        begins = 100 * moment / length
        if begins:
            rules.append(
                f"@keyframes k{number}{{0%,{begins:.2f}%{{opacity:0}}{begins + 0.01:.2f}%,100%{{opacity:1}}}}"
            )
            rules.append(f".l{number}{{animation:k{number} {length:.1f}s infinite}}")
        y = tops[line.pane] + 48 + LINE * used[line.pane]
        used[line.pane] += 1
        texts.append(text_of(line, number, y))
    panes = [
        pane(top, width, each, title)
        for top, each, title in zip(tops, heights, ("terminal 1", "terminal 2"), strict=True)
    ]
    style = "\n".join(
        [
            "text{white-space:pre}",
            *rules,
            "@media (prefers-reduced-motion:reduce){text{animation:none!important}}",
        ]
    )
    return "\n".join(
        [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
                'font-family="ui-monospace, Menlo, Consolas, \'DejaVu Sans Mono\', monospace" font-size="13">'
            ),
            f"<title>{escape(TEXT)}</title>",
            f"<style>\n{style}\n</style>",
            *panes,
            *texts,
            "</svg>\n",
        ]
    )


def pane(top: int, width: int, height: int, title: str) -> str:
    """A terminal's window without its text."""
    return (
        f'<rect x="10" y="{top}" width="{width - 20}" height="{height}" rx="8" fill="{PAPER}" stroke="{EDGE}" stroke-width="1.5"/>\n'
        f'<path d="M10.75 {top + 26}h{width - 21.5}v-18a7.25 7.25 0 0 0 -7.25 -7.25h-{width - 36}a7.25 7.25 0 0 0 -7.25 7.25z" '
        f'fill="{BAR}"/>\n'
        f'<text class="title" x="22" y="{top + 18}" fill="{QUIET}">{title}</text>'
    )


def text_of(line: Line, number: int, y: int) -> str:
    """One line where it stands."""
    where = f'class="l{number}" x="22" y="{y}" xml:space="preserve"'
    if line.text.startswith("$ "):
        rest = escape(line.text.removeprefix("$"))
        return f'<text {where} fill="{INK}" font-weight="700"><tspan fill="{PROMPT}">$</tspan>{rest}</text>'
    return f'<text {where} fill="{INK}">{escape(line.text)}</text>'


def words(lines: list[str]) -> list[str]:
    """Lines without what differs from run to run."""
    return [" ".join(re.sub(r"kill -9 \d+", "kill -9 4711", replaced(line)).split()) for line in lines]


def kept() -> list[str]:
    """The lines of the picture that is committed, those of a terminal that were broken together again."""
    texts = [
        "".join(each.itertext())
        for each in ET.fromstring(PATH.read_text("utf-8")).iter("{http://www.w3.org/2000/svg}text")  # noqa: S314 -- our own file
        if each.get("class") != "title"
    ]
    whole: list[str] = []
    goes_on = False
    for text in texts:
        if goes_on:
            whole[-1] += text
        else:
            whole.append(text)
        goes_on = len(text) == COLUMNS
    return whole


def main() -> int:
    """Write or check the picture."""
    lines = record()
    if "--check" not in sys.argv[1:]:
        PATH.parent.mkdir(parents=True, exist_ok=True)
        PATH.write_text(svg(lines), encoding="utf-8")
        return 0
    differs = list(
        difflib.unified_diff(
            words(kept()), words([line.text for line in lines]), "picture", "now", lineterm=""
        )
    )
    sys.stdout.write("\n".join([*differs, ""]) if differs else "")
    return 1 if differs else 0


if __name__ == "__main__":
    raise SystemExit(main())
