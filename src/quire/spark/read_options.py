"""The read options of the `quire` format: their table, and what a user's choice of them means.

A value that cannot be meant, and an option that belongs to another use, are refused here with one sentence: an error
in the data source's constructor, `schema` or `reader` reaches the user as one line without a stack of planner frames.

This module must not know Spark, Arrow or a cluster.
"""

from __future__ import annotations

import fnmatch
import json
import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from quire.core.errors import MisuseError
from quire.env.private import read_secret, secret_of_environment
from quire.log.cursors import CURSOR_NAME
from quire.spark.options import (
    Option,
    SparkOptions,
    SparkUseError,
    Use,
    choice,
    moment,
    number_of,
    option,
    options,
    rows_of,
    use_error,
)
from quire.spark.positions import AsOf, Position, from_json

EARLIEST: Final = -2
"""A starting or ending offset that means "where the log begins", as in Kafka's JSON."""
LATEST: Final = -1
"""A starting or ending offset that means "where the log ends when the read is planned"."""
ROWS_PER_BATCH: Final = 10_000
BATCH_BYTES_MAX: Final = 4 << 20

CLUSTER: Final = Option("cluster", Use.READ | Use.WRITE, otherwise="`QUIRE_CLUSTER`")
"""the cluster's URI"""
LOG: Final = Option("log", Use.READ | Use.WRITE)
"""what to load, instead of the path"""
MAX_RECORDS: Final = Option("maxRecordsPerTrigger", Use.STREAM)
"""records of a micro-batch at most, shared out over the logs by backlog"""
MAX_OFFSETS: Final = Option("maxOffsetsPerTrigger", Use.STREAM)
"""another name of it, Kafka's"""
PASSWORD_ENV: Final = Option("passwordEnv", Use.READ | Use.WRITE)
"""the environment variable with the ledgers' password, on driver and workers"""
PASSWORD_FILE: Final = Option("passwordFile", Use.READ | Use.WRITE)
"""the file with it; a password itself is no option, since options show in plans"""


class Isolation(StrEnum):
    """How far a read goes."""

    CONFIRMED = "confirmed"
    """Up to the last entry that the writer had confirmed when the read was planned."""
    SEALED = "sealed"
    """Only ledgers that are closed."""


class Verify(StrEnum):
    """What is demanded of each ledger that is read. The client checks every digest that there is, in any case."""

    CHECKSUM = "checksum"
    """The ledger's own digest, whichever it has."""
    DIGEST = "digest"
    """A message authentication code: a ledger with a plain checksum is refused."""
    NONE = "none"
    """Nothing."""


class Strategy(StrEnum):
    """Where a stream begins whose `startingTimestamp` is later than every record."""

    ERROR = "error"
    LATEST = "latest"


class Describe(StrEnum):
    """The tables about logs that can be read instead of their records."""

    LOGS = "logs"
    """One row a log."""
    SEGMENTS = "segments"
    """One row for each ledger that a log lists; `items` is another name of it."""
    ITEMS = "items"
    LEDGERS = "ledgers"
    """One row a ledger: quorums, state, end."""
    FRAGMENTS = "fragments"
    """One row for each stretch of entries with one ensemble."""
    ENTRIES = "entries"
    """One row for each entry that is confirmed."""
    CURSORS = "cursors"
    """One row for each named position of a stream in a log."""
    MARKS = "marks"
    """One row for each query that wrote a log: its last batch."""


@dataclass(frozen=True, slots=True)
class Source:
    """One thing named in `load(…)`: a log, a pattern of logs, or a raw ledger."""

    name: str
    ledger_id: int | None = None
    pattern: bool = False

    def names(self, log: str) -> bool:
        """Whether a log, or a ledger written like `ledger:17`, is this or matches it."""
        return fnmatch.fnmatchcase(log, self.name) if self.pattern else log == self.name


@dataclass(frozen=True, slots=True)
class Offsets:
    """A position for each log: one for all that are not named, and the named ones.

    Values are offsets, `EARLIEST` or `LATEST`.
    """

    default: int
    of_log: tuple[tuple[str, int], ...] = ()

    def of(self, log: str) -> int:
        """The position for one log."""
        return dict(self.of_log).get(log, self.default)


def _sources(raw: SparkOptions, log: str = LOG.name) -> tuple[Source, ...]:
    text, several = raw.text(log) or raw.text("path") or "", raw.text("paths")
    names = json.loads(several) if not text and several is not None else text.split(",")
    sources: list[Source] = []
    for name in (part.strip() for part in names):
        if not name:
            continue
        if name.startswith("ledger:"):
            number = number_of(name.removeprefix("ledger:"))
            if number is None:
                raise use_error(f"'{name}' names no ledger: write its number, like ledger:17.")
            sources.append(Source(name, ledger_id=number))
        else:
            sources.append(Source(name, pattern=any(sign in name for sign in "*?[")))
    if not sources and raw.text("describe") is not None:
        return (Source("*", pattern=True),)
    if not sources:
        raise use_error(
            'name a log: .load("orders"). '
            "(Spark passes no options to catalog tables; use CREATE TEMPORARY VIEW.)"
        )
    return tuple(dict.fromkeys(sources))


def _offsets(raw: SparkOptions, name: str) -> Offsets:
    text = raw.text_or_default(name) or ""
    words = {"earliest": EARLIEST, "latest": LATEST}
    if text.strip().lower() in words:
        return Offsets(words[text.strip().lower()])
    sources = _sources(raw)
    example = json.dumps({sources[0].name: 23})
    problem = f"{name} is neither earliest, latest nor JSON like {example}: got '{text}'"
    try:
        parsed = json.loads(text)
    except json.JSONDecodeError as error:
        raise use_error(f"{problem} (column {error.colno}).") from error
    if not isinstance(parsed, dict):
        raise use_error(f"{problem}.")
    of_log: list[tuple[str, int]] = []
    for log, value in sorted(parsed.items()):
        if not any(source.name == log or source.pattern for source in sources):
            names = ", ".join(source.name for source in sources)
            raise use_error(f"{name} names '{log}', which is not loaded (loaded: {names}).")
        position = words.get(value.lower(), number_of(value)) if isinstance(value, str) else value
        if not isinstance(position, int) or isinstance(position, bool) or position < EARLIEST:
            raise use_error(
                f"{name}: the offset of '{log}' is a number, earliest or latest, not {json.dumps(value)}."
            )
        of_log.append((log, position))
    return Offsets(words[raw.default(name)], tuple(of_log))


def _as_of(raw: SparkOptions, as_of: str) -> AsOf | None:
    """Where each log ends for this read, in the order in which the logs are read."""
    text = raw.text(as_of)
    if text is None:
        return None
    try:
        found = from_json(json.loads(text))
    except (ValueError, SparkUseError) as error:
        raise use_error(
            "asOf is what quire.spark.read_options gives, or the endOffset of a stream's progress, like "
            f'{{"v": 1, "logs": {{"orders": {{"id": "7f3a", "offset": 23}}}}}}: got \'{text}\'.'
        ) from error
    sources = _sources(raw)
    ends: dict[str, Position] = {}
    for source in sources:
        named = [name for name in found if source.names(name)]
        if not named and not source.pattern:
            raise use_error(
                f"asOf does not name '{source.name}', which is loaded (it names {', '.join(found) or 'no log'}). "
                "Ask quire.spark.read_options again."
            )
        ends |= {name: found[name] for name in named}
    for name in found:
        if name not in ends:
            loaded = ", ".join(source.name for source in sources)
            raise use_error(f"asOf names '{name}', which is not loaded (loaded: {loaded}).")
    for name, position in ends.items():
        if position.offset < 0:
            raise use_error(f"asOf: the offset of '{name}' is a number from 0, not {position.offset}.")
    return tuple(ends.items())


def _records(raw: SparkOptions, *names: str) -> int | None:
    counts = [raw.count(name) for name in names]
    return min((count for count in counts if count is not None), default=None)


def _cursor(raw: SparkOptions, cursor: str) -> str | None:
    allowed = "1 to 128 letters, digits and any of . _ -"
    return raw.value(cursor, lambda name: name if CURSOR_NAME.fullmatch(name) else None, allowed)


def _describe(raw: SparkOptions, name: str) -> Describe | None:
    table = choice(Describe)(raw, name)
    return Describe.SEGMENTS if table is Describe.ITEMS else table


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What one `spark.read.format("quire")`, or `readStream`, asked for; each option is declared with its field.

    Byte sizes in bytes, times in milliseconds since 1970 UTC; a start is inclusive and an end exclusive, everywhere.
    """

    cluster: str = options(SparkOptions.cluster, CLUSTER)
    sources: tuple[Source, ...] = options(_sources, LOG)
    starting: Offsets = option(_offsets, "startingOffsets", Use.READ, default="earliest")
    """inclusive: `earliest`, `latest` or JSON for each log, `{"orders": 23}`; a stream begins at `latest` only with a
    `cursor`"""
    ending: Offsets = option(_offsets, "endingOffsets", Use.BATCH, default="latest")
    """exclusive; the same words, fixed when the read is planned"""
    starting_ms: int | None = option(SparkOptions.timestamp_ms, "startingTimestamp", Use.READ)
    """ISO text (UTC without a zone) or milliseconds: a batch has the records from this time on, a stream begins at
    the first record that is as late"""
    strategy: Strategy = option(choice(Strategy), "startingTimestampStrategy", Use.STREAM, default="error")
    """when no record is as late: `error`, or `latest`, which needs a `cursor`"""
    ending_ms: int | None = option(SparkOptions.timestamp_ms, "endingTimestamp", Use.BATCH)
    """records before this time"""
    as_of: AsOf | None = option(_as_of, "asOf", Use.BATCH)
    """where each log ends for this read, with its id: what `quire.spark.read_options` gives, or the `endOffset` of a
    stream's progress; a frame without a schema of the user's has where they end when it is loaded"""
    max_records: int | None = options(_records, MAX_RECORDS, MAX_OFFSETS)
    max_bytes: int | None = option(SparkOptions.size, "maxBytesPerTrigger", Use.STREAM)
    """about the same in stored bytes; of both the tighter wins"""
    split_bytes: int | None = option(SparkOptions.size, "splitBytes", Use.READ, otherwise="256m")
    """bytes of a task; without it they may be less, so that each of the driver's CPUs has a task, down to 16 MiB"""
    min_partitions: int | None = option(SparkOptions.count, "minPartitions", Use.READ)
    """smaller tasks, so that there are about so many"""
    max_partitions: int | None = option(SparkOptions.count, "maxPartitions", Use.READ)
    """larger tasks, so that there are never more; it wins"""
    rows_per_batch: int = option(SparkOptions.count, "rowsPerBatch", Use.READ, default=str(ROWS_PER_BATCH))
    """rows of an Arrow batch, which also ends at 4 MiB"""
    include_headers: bool = option(SparkOptions.flag, "includeHeaders", Use.READ, default="false")
    """adds the column `headers`"""
    fail_on_data_loss: bool = option(SparkOptions.flag, "failOnDataLoss", Use.READ, default="true")
    """`false` steps over what is proven lost: trimmed or deleted, what a recreated log no longer has, and entries of
    which every bookie says that its copy is missing or damaged; a warning names and counts the records. What is only
    out of reach fails the read all the same"""
    cursor: str | None = option(_cursor, "cursor", Use.STREAM)
    """a name for the stream's position in each log, kept in the metadata store: holds where the stream began and
    moves when Spark has committed a batch; `quire log cursors` and `describe=cursors` show how far behind it is"""
    hold_retention: bool = option(SparkOptions.flag, "holdRetention", Use.STREAM, default="false")
    """truncating a log is refused beyond the cursor"""
    isolation: Isolation = option(choice(Isolation), "isolation", Use.READ, default="confirmed")
    """`confirmed`: up to the last add confirmed; `sealed`: closed ledgers only"""
    verify: Verify = option(choice(Verify), "verify", Use.READ, default="checksum")
    """`checksum`: every entry's own digest is checked; `digest`: and ledgers without a MAC are refused; `none` asks
    for nothing, but what has a digest is checked all the same"""
    describe: Describe | None = option(_describe, "describe", Use.BATCH)
    """a table about logs instead of their records: `logs`, `segments`, `ledgers`, `fragments`, `entries`, `cursors`,
    `marks`"""
    password_env: str | None = options(SparkOptions.text, PASSWORD_ENV)
    password_file: str | None = options(SparkOptions.text, PASSWORD_FILE)

    def password(self) -> bytes:
        """The password of raw ledgers, read where it is needed: options show in plans and event logs.

        Raises:
            SparkUseError: the variable or file that was named is not there.
        """
        return read_password(self.password_env, self.password_file)


READ_OPTIONS: Final = rows_of(ReadOptions)
"""Every read option; the table of docs/spark.md is made from it."""


def read_password(env: str | None, file: str | None) -> bytes:
    """A password that is in an environment variable, or else in a file; empty when neither is named.

    Raises:
        SparkUseError: the one that was named is not there, or is not one line of UTF-8.
    """
    if env is not None and env not in os.environ:
        raise use_error(f"environment variable '{env}' (option passwordEnv) is not set here.")
    try:
        if env is not None:
            return (secret_of_environment(env) or "").encode()
        return b"" if file is None else read_secret(Path(file), "password", others_may_read=True).encode()
    except MisuseError as error:
        raise use_error(f"{error} (option {'passwordFile' if env is None else 'passwordEnv'}).") from error


def parse(raw: SparkOptions, use: Use) -> ReadOptions:
    """The options of a read.

    Args:
        raw: as Spark handed them over.
        use: `Use.BATCH` or `Use.STREAM`; `Use.READ` while it is not known which.

    Raises:
        SparkUseError: for the first thing that is wrong, with the text of one sentence and its remedy.

    Source: docs/spark.md, "Options".
    """
    raw.check_use(use)
    _check_twice(raw)
    asked = raw.read(ReadOptions)
    _check_range(asked)
    if use is Use.STREAM:
        _check_stream(asked)
    return asked


_TWICE: Final = (
    ("startingOffsets", "startingTimestamp", "where to begin"),
    ("endingOffsets", "endingTimestamp", "where to end"),
    ("passwordEnv", "passwordFile", "where the password is"),
    ("log", "path", "what to load"),
    ("log", "paths", "what to load"),
)
"""Pairs of options that say the same thing."""
_OF_RECORDS: Final = ("startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp", "asOf")
"""Options that choose records, of which a table about logs has none."""


def _check_twice(raw: SparkOptions) -> None:
    """Refuse options of which one would have to be ignored.

    Raises:
        SparkUseError: naming both.
    """
    for one, other, what in _TWICE:
        first, second = raw.text(one), raw.text(other)
        if first is not None and second is not None and (one != "log" or first != second):
            raise use_error(f"{one} and {other} both say {what}. Leave one out.")
    describe = choice(Describe)(raw, "describe")
    for name in _OF_RECORDS:
        if describe is not None and raw.text(name) is not None:
            raise use_error(
                f"describe={describe} reads a table about logs, and {name} chooses records. Leave one out."
            )


def _check_range(options: ReadOptions) -> None:
    """Refuse a read that ends before it begins.

    Raises:
        SparkUseError: naming the beginning and the end.
    """
    begin, end = options.starting_ms, options.ending_ms
    if begin is not None and end is not None and begin > end:
        raise use_error(
            f"startingTimestamp {_shown(begin)} is after endingTimestamp {_shown(end)}. Give the "
            "earlier time first."
        )
    for log in sorted({*dict(options.starting.of_log), *dict(options.ending.of_log)}):
        first, last = options.starting.of(log), options.ending.of(log)
        if first > last >= 0:
            raise use_error(
                f"log '{log}': startingOffsets {first} is after endingOffsets {last}. Give the "
                "smaller offset first."
            )


def _shown(ms: int) -> str:
    """A time as ISO text, in UTC."""
    return moment(ms).isoformat(timespec="milliseconds")


def _check_stream(options: ReadOptions) -> None:
    """What a stream cannot promise without a stored position."""
    if options.cursor is not None:
        return
    asked = None
    if LATEST in {options.starting.default, *dict(options.starting.of_log).values()}:
        asked = "startingOffsets=latest"
    elif options.strategy is Strategy.LATEST:
        asked = "startingTimestampStrategy=latest"
    if asked is not None:
        raise use_error(
            f'{asked} on a stream needs .option("cursor", NAME): without a stored start, a restart before the first '
            "commit would skip records."
        )
    if options.hold_retention:
        raise use_error('holdRetention=true needs .option("cursor", NAME): retention waits for a cursor.')
