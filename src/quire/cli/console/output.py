"""How commands speak: results on stdout (text or JSON lines), everything else on stderr.

Must not know what a ledger or a log is.
"""

from __future__ import annotations

import base64
import json
import shutil
import sys
import time
from contextlib import contextmanager, suppress
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from quire.cli.console.failures import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType

Row = TypeVar("Row", bound="Mapping[str, object]")
PLAIN_INTERVAL_S: Final = 2.0
"""Without a terminal a long job says how far it is this often."""

RATE_COUNT_MIN: Final = 100
RATE_SECONDS_MIN: Final = 1.0
"""Below this count and this time no rate is shown: "58 records/s" of two records says nothing."""


class Output:
    """Where one command's results go: text or JSON lines on stdout, notes on stderr.

    Args:
        as_json: one JSON object per line instead of text.
    """

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json

    def result(self, facts: Mapping[str, object], *lines: str) -> None:
        """Print one result: `facts` as a JSON line, or the lines."""
        if self.as_json:
            sys.stdout.write(json.dumps({key: plain(value) for key, value in facts.items()}) + "\n")
        else:
            sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()

    def rows(
        self,
        columns: Sequence[str],
        rows: Sequence[Row],
        *,
        shown: Callable[[Row], Mapping[str, object]] = dict,
        most: int | None = None,
        none: str = "",
        least: Sequence[str] = (),
        title: str = "",
    ) -> None:
        """Print many results: a JSON line each, or one table.

        Args:
            columns: the keys of each row that make the table's columns.
            rows: what to print.
            shown: a row as people read it.
            most: of more rows a table has the first ones.
            none: the sentence where there are no rows; without one a table has only its head.
            least: the columns that a narrow terminal loses first, in this order; see `draw_table`.
            title: stands above the table.
        """
        if self.as_json:
            for row in rows:
                self.result(row)
            return
        if none and not rows:
            self.note(none)
            return
        texts = [[cell(row.get(column)) for column in columns] for row in map(shown, rows[:most])]
        self.table([_head(column) for column in columns], texts, [_head(column) for column in least], title)
        if most is not None and len(rows) > most:
            self.note(f"{len(rows) - most:,} more: --json lists all.")

    def table(
        self, heads: Sequence[str], rows: Sequence[Sequence[str]], least: Sequence[str] = (), title: str = ""
    ) -> None:
        """Print one table of texts; what a narrow terminal has no room for is named on stderr."""
        from quire.cli.console.tables import draw_table

        drawn = draw_table(heads, rows, terminal_width(), least)
        bold, end = ("\x1b[1m", "\x1b[0m") if terminal_width() is not None else ("", "")
        titled = [title] if title else []
        sys.stdout.write("\n".join([*titled, f"{bold}{drawn.head}{end}", *drawn.lines, ""]))
        sys.stdout.flush()
        if drawn.left_out:
            self.note(
                f"Without {', '.join(drawn.left_out)}: a wider terminal shows them, and --json has all."
            )

    def lines(self, lines: Sequence[str]) -> None:
        """Print some lines of text (nothing when JSON is wanted)."""
        if lines and not self.as_json:
            sys.stdout.write("\n".join(lines) + "\n")
            sys.stdout.flush()

    def draw(self, renderable: object) -> None:
        """Print something rich can draw (nothing when JSON is wanted)."""
        if self.as_json:
            return
        from rich.console import Console

        console = Console(file=sys.stdout, highlight=False)
        if not console.is_terminal:
            console = Console(file=sys.stdout, highlight=False, width=160)
        console.print(renderable)

    def note(self, text: str) -> None:
        """Say something that is not a result, on stderr."""
        say(text)

    def progress(self, what: str, total: int | None = None, unit: str = "entries") -> ProgressLine:
        """Show how far a long job is, on stderr, while the `with` block runs."""
        return ProgressLine(what, total, unit)


def terminal_width() -> int | None:
    """The columns of the terminal that stdout is; None where it is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _head(column: str) -> str:
    return column.replace("_", " ")


class ProgressLine:
    """How far a job is: a bar on a terminal, a plain line now and then elsewhere.

    Args:
        what: what is being done, a few words.
        total: how many units there are, if known.
        unit: the name of a unit, plural.
    """

    def __init__(self, what: str, total: int | None, unit: str) -> None:
        self.what, self.total, self.unit = what, total, unit
        self.count = 0
        self.bytes = 0
        self._started = self._last = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        self._started = self._last = time.monotonic()
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

            columns = [
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[now]}"),
            ]
            if self.total is not None:
                columns.append(TimeRemainingColumn())
            # What is printed meanwhile must stay on stdout where that is no terminal.
            both = sys.stdout.isatty()
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=both)
            self._bar.start()
            self._task = self._bar.add_task(self.what, total=self.total, now="")
        return self

    def advance(self, count: int, size: int = 0) -> None:
        """`count` more units, `size` more bytes, are done."""
        self.count += count
        self.bytes += size
        now = time.monotonic()
        interval = 0.1 if self._bar is not None else PLAIN_INTERVAL_S
        if now - self._last < interval:
            return
        self._last = now
        if self._bar is not None:
            self._bar.update(self._task, completed=self.count, now=self.summary)
        else:
            say(f"{self.what}: {self.summary}")

    @property
    def seconds(self) -> float:
        """How long it has been going."""
        return time.monotonic() - self._started

    @property
    def summary(self) -> str:
        """Count and rate so far."""
        of = f" of {self.total:,}" if self.total is not None else ""
        text = f"{self.count:,}{of} {self.unit}"
        if (rate := rate_of(self.count, self.seconds)) is None:
            return text
        size = f", {human_bytes(self.bytes / self.seconds)}/s" if self.bytes else ""
        return f"{text}, {rate:,}/s{size}"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def say(text: str) -> None:
    """Write a line to stderr. Where that takes nothing, a message is no reason to end or to fail."""
    with suppress(OSError, ValueError):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


@contextmanager
def running_clock(what: str) -> Iterator[None]:
    """How long something has been going, on a terminal; nothing stays of it."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = [SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()]
    console, both = Console(stderr=True), sys.stdout.isatty()
    with Progress(*columns, console=console, transient=True, redirect_stdout=both) as clock:
        clock.add_task(what, total=None)
        yield


def cell(value: object) -> str:
    """One value as it stands in a table."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.2f}"
    if isinstance(value, list | tuple):
        return ", ".join(cell(item) for item in value)
    return str(value)


def human_bytes(size: float) -> str:
    """`size` bytes with a unit: `1.5 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def counted(count: int, noun: str, plural: str = "") -> str:
    """A count with its noun: `1 bookie`, `1,200 bookies`.

    Args:
        count: how many.
        noun: the singular.
        plural: where it is not the singular with an s (`entry` is known).
    """
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {plural or (noun[:-1] + 'ies' if noun.endswith('ry') else noun + 's')}"


def rate_of(count: int, seconds: float) -> int | None:
    """How many a second; None where too few were counted, or for too short a time, to say."""
    return round(count / seconds) if count >= RATE_COUNT_MIN and seconds >= RATE_SECONDS_MIN else None


def rate_text(count: int, seconds: float, unit: str) -> str:
    """A rate after a sentence: ` (1,200 records/s)`; empty where there is none."""
    rate = rate_of(count, seconds)
    return "" if rate is None else f" ({rate:,} {unit}/s)"


def human_duration(seconds: float) -> str:
    """`seconds` in the two largest units that it has: `3d 4h`, `12m 5s`, `8s`."""
    whole = int(seconds)
    parts = [(whole // 86400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "m"), (whole % 60, "s")]
    first = next((index for index, (number, _) in enumerate(parts) if number), len(parts) - 1)
    return " ".join(f"{number}{unit}" for number, unit in parts[first : first + 2] if number) or "0s"


def attributes(thing: object, names: str) -> dict[str, Any]:
    """Some attributes of an object for a JSON line, in this order; a member of an enumeration by its name."""
    found = {name: getattr(thing, name) for name in names.split()}
    return {name: value.name.lower() if isinstance(value, Enum) else value for name, value in found.items()}


def payload_facts(name: str, payload: bytes | memoryview | None) -> dict[str, object]:
    """Bytes for a JSON line: `name` when they are UTF-8 text, else `name_base64`."""
    if payload is None:
        return {name: None}
    data = bytes(payload)
    try:
        return {name: data.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode("ascii")}
