"""The options and arguments that commands of logs share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from quire.cli.console.options import argument, option
from quire.cli.log.ranges import RecordSpan, Until, parse_until, time_of
from quire.core.errors import MisuseError

NameArgument = Annotated[str, argument("LOG", "The log's name.")]
DelimitedOption = Annotated[
    bool,
    option("--delimited", "A 4-byte big-endian length before each record, as --format delimited has it."),
]
CreateOption = Annotated[
    bool,
    option("--create", "Make the log if it is not there (3 bookies, 3 copies, 2 to confirm)."),
]
InFormOption = Annotated[
    str | None,
    option(
        "--format -f FORM",
        "How records are written: lines (values alone), or delimited or json, which have keys, headers and tombstones "
        "too [default: lines].",
    ),
]
OutFormOption = Annotated[
    str | None,
    option(
        "--format -f FORM",
        "lines (values alone), delimited, json, or a format string as kcat's: %s value, %k key, %S and %K their "
        "sizes (-1: none), %o offset, %T timestamp in ms, %h headers, %t log, %% and \\n \\t \\xHH; nothing is added "
        "after it [default: lines].",
    ),
]
KeyDelimiterOption = Annotated[
    str | None,
    option("--key-delimiter -K TEXT", "Lines are a key, this, and a value, as kcat's -K; \\t is a tab."),
]
TimesOption = Annotated[
    bool, option("--times", "Delimited records have their timestamps (json has them always).")
]
StartOption = Annotated[int | None, option("--start", "The first offset [default: the log's start].", min=0)]
FromTimeOption = Annotated[
    str | None,
    option(
        "--from-time TIME",
        "Begin with the first record as late as this: ISO 8601 (UTC without a zone), milliseconds since 1970, or "
        "-15m, -1h, -2d before now.",
    ),
]
UntilOption = Annotated[
    str | None,
    option(
        "--until OFFSET|TIME",
        "Stop before this offset, or before the first record as late as this time (milliseconds as @1700000000000).",
    ),
]
LastOption = Annotated[int | None, option("--last -n N", "Begin N records before the end.", min=0)]
EndOption = Annotated[int | None, option("--end", "Stop before this offset [default: the log's end].", min=0)]


@dataclass(frozen=True)
class SpanOptions:
    """Which records of a log are meant."""

    start: StartOption = None
    from_time: FromTimeOption = None
    last: LastOption = None
    end: EndOption = None
    until: UntilOption = None

    def __post_init__(self) -> None:
        self.span()

    def span(self, *, follow: bool = False, recover: bool = False) -> RecordSpan:
        """The records themselves.

        Raises:
            MisuseError: options contradict each other, or one is no time.
        """
        begins = {"--start": self.start, "--from-time": self.from_time, "--last": self.last}
        if len(named := [name for name, value in begins.items() if value is not None]) > 1:
            raise MisuseError(f"{' and '.join(named)} are two beginnings: leave one out.")
        if self.end is not None and self.until is not None:
            raise MisuseError("--end and --until are two ends: leave one out.")
        stop = Until(offset=self.end) if self.until is None else parse_until(self.until)
        if self.start is not None and stop.offset is not None and stop.offset < self.start:
            raise MisuseError(f"the end {stop.offset} lies before --start {self.start}.")
        if recover and follow:
            raise MisuseError("--follow leaves a writer running, --recover ends it: leave one of them out.")
        if recover and self.last is not None:
            raise MisuseError(
                "--last counts from the end as it is now, --recover moves it: leave one of them out."
            )
        from_ms = None if self.from_time is None else time_of(self.from_time, "--from-time takes")
        return RecordSpan(self.start, from_ms, self.last, stop, follow, recover)
