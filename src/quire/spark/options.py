"""The read options of the `quire` format: parsed, checked and explained in one place.

Spark hands every option over as text with its name in lower case. A name that is not known, a value that cannot be
meant, and an option that belongs to a part this version does not have are all refused here, because an error in the
data source's constructor reaches the user as one line without a stack of planner frames.

This module must not know Spark, Arrow or a cluster.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeVar

from quire.core.errors import MisuseError

EARLIEST: Final = -2
"""A starting or ending offset that means "where the log begins", as in Kafka's JSON."""
LATEST: Final = -1
"""A starting or ending offset that means "where the log ends when the read is planned"."""
SPLIT_BYTES: Final = 128 << 20
ROWS_PER_BATCH: Final = 10_000
BATCH_BYTES_MAX: Final = 4 << 20

READ_OPTIONS: Final = (
    "cluster",
    "log",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "splitBytes",
    "minPartitions",
    "maxPartitions",
    "rowsPerBatch",
    "includeHeaders",
    "failOnDataLoss",
    "isolation",
    "verify",
    "describe",
    "passwordEnv",
    "passwordFile",
)
STREAM_OPTIONS: Final = (
    "maxRecordsPerTrigger",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "cursor",
    "holdRetention",
    "startingTimestampStrategy",
    "checkpointLocation",
    "queryName",
)
WRITE_OPTIONS: Final = (
    "ensemble",
    "writeQuorum",
    "ackQuorum",
    "digest",
    "codec",
    "compression",
    "inlineBytes",
    "txnAppId",
    "txnVersion",
    "txnOnReset",
    "takeover",
    "allowTruncate",
    "create",
    "orderBy",
)
_SPARKS_OWN: Final = ("path", "paths")

Choice = TypeVar("Choice", bound=StrEnum)


class SparkUseError(MisuseError):
    """What a PySpark user wrote cannot be done as written. The text starts with `quire:` and ends with the remedy."""

    code = "spark_use"


class Isolation(StrEnum):
    """How far a read goes."""

    CONFIRMED = "confirmed"
    """Up to the last entry that the writer had confirmed when the read was planned."""
    SEALED = "sealed"
    """Only ledgers that are closed."""


class Verify(StrEnum):
    """What is checked of each entry that a task reads. Nothing less can be had: the client checks every digest."""

    CHECKSUM = "checksum"
    """The ledger's own digest, whichever it has."""
    DIGEST = "digest"
    """The same, and a ledger that was written without one is refused."""


class Describe(StrEnum):
    """The tables about logs that can be read instead of their records."""

    LOGS = "logs"
    """One row a log."""
    ITEMS = "items"
    """One row for each ledger that a log lists."""
    LEDGERS = "ledgers"
    """One row a ledger: quorums, state, end."""
    FRAGMENTS = "fragments"
    """One row for each stretch of entries with one ensemble."""


@dataclass(frozen=True, slots=True)
class Source:
    """One thing named in `load(…)`: a log, a pattern of logs, or a raw ledger."""

    name: str
    ledger_id: int | None = None
    pattern: bool = False


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


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What one `spark.read.format("quire")` asked for.

    Byte sizes in bytes, times in milliseconds since 1970 UTC; a start is inclusive and an end exclusive, everywhere.
    """

    cluster: str
    sources: tuple[Source, ...]
    starting: Offsets
    ending: Offsets
    starting_ms: int | None = None
    ending_ms: int | None = None
    split_bytes: int = SPLIT_BYTES
    min_partitions: int | None = None
    max_partitions: int | None = None
    rows_per_batch: int = ROWS_PER_BATCH
    include_headers: bool = False
    fail_on_data_loss: bool = True
    isolation: Isolation = Isolation.CONFIRMED
    verify: Verify = Verify.CHECKSUM
    describe: Describe | None = None
    password_env: str | None = None
    password_file: str | None = None

    def password(self) -> bytes:
        """The password of raw ledgers, read where it is needed: options show in plans and event logs.

        Raises:
            SparkUseError: the variable or file that was named is not there.
        """
        if self.password_env is not None:
            value = os.environ.get(self.password_env)
            if value is None:
                raise _use(
                    f"environment variable '{self.password_env}' (option passwordEnv) is not set here."
                )
            return value.encode()
        if self.password_file is not None:
            try:
                return Path(self.password_file).read_bytes().rstrip(b"\n")
            except OSError as error:
                raise _use(
                    f"cannot read '{self.password_file}' (option passwordFile): {error.strerror}."
                ) from error
        return b""


def parse(options: Mapping[str, str]) -> ReadOptions:
    """The options of a batch read.

    Args:
        options: as Spark hands them over: any case of the names, text values.

    Raises:
        SparkUseError: for the first thing that is wrong, with the text of one sentence and its remedy.

    Source: spark.md 5.2 and 5.5.
    """
    given = {name.lower(): value for name, value in options.items()}
    _check_names(given)
    describe = _choice(given, "describe", Describe, None)
    sources = _sources(given, needed=describe is None)
    return ReadOptions(
        cluster=_cluster(given),
        sources=sources,
        starting=_offsets(given, "startingOffsets", EARLIEST, sources),
        ending=_offsets(given, "endingOffsets", LATEST, sources),
        starting_ms=_timestamp_ms(given, "startingTimestamp"),
        ending_ms=_timestamp_ms(given, "endingTimestamp"),
        split_bytes=_size(given, "splitBytes", SPLIT_BYTES),
        min_partitions=_count(given, "minPartitions", None),
        max_partitions=_count(given, "maxPartitions", None),
        rows_per_batch=_count(given, "rowsPerBatch", ROWS_PER_BATCH) or ROWS_PER_BATCH,
        include_headers=_flag(given, "includeHeaders", default=False),
        fail_on_data_loss=_flag(given, "failOnDataLoss", default=True),
        isolation=_choice(given, "isolation", Isolation, Isolation.CONFIRMED) or Isolation.CONFIRMED,
        verify=_choice(given, "verify", Verify, Verify.CHECKSUM) or Verify.CHECKSUM,
        describe=describe,
        password_env=given.get("passwordenv"),
        password_file=given.get("passwordfile"),
    )


def _use(text: str, **ids: object) -> SparkUseError:
    return SparkUseError(f"quire: {text}", **ids)


def _check_names(given: Mapping[str, str]) -> None:
    readable = {name.lower() for name in (*READ_OPTIONS, *_SPARKS_OWN)}
    for name in given:
        if name in readable:
            continue
        for later, what in ((STREAM_OPTIONS, "streams"), (WRITE_OPTIONS, "writing from Spark")):
            spelled = {known.lower(): known for known in later}.get(name)
            if spelled is not None:
                raise _use(
                    f"option '{spelled}' belongs to {what}, which this version does not have: "
                    "it reads logs as a batch. Leave the option out."
                )
        near = difflib.get_close_matches(name, [known.lower() for known in READ_OPTIONS], n=1)
        spelling = {known.lower(): known for known in READ_OPTIONS}
        hint = f" Did you mean '{spelling[near[0]]}'?" if near else ""
        raise _use(f"unknown option '{name}'.{hint} (read options: {', '.join(READ_OPTIONS)})")


def _cluster(given: Mapping[str, str]) -> str:
    cluster = given.get("cluster") or os.environ.get("QUIRE_CLUSTER", "")
    if not cluster:
        raise _use(
            'name the cluster: .option("cluster", "sqlite:PATH") or QUIRE_CLUSTER; `quire up` prints it.'
        )
    if cluster.startswith("memory:"):
        raise _use(
            "a memory: cluster lives in one process and Spark's workers are others. `quire up` starts one."
        )
    return cluster


def _sources(given: Mapping[str, str], *, needed: bool) -> tuple[Source, ...]:
    text = given.get("log") or given.get("path") or ""
    names = json.loads(given["paths"]) if not text and "paths" in given else text.split(",")
    sources: list[Source] = []
    for name in (part.strip() for part in names):
        if not name:
            continue
        if name.startswith("ledger:"):
            number = name.removeprefix("ledger:")
            if not number.isdigit():
                raise _use(f"'{name}' names no ledger: write its number, like ledger:17.")
            sources.append(Source(name, ledger_id=int(number)))
        else:
            sources.append(Source(name, pattern=any(sign in name for sign in "*?[")))
    if not sources and not needed:
        return (Source("*", pattern=True),)
    if not sources:
        raise _use(
            'name a log: .load("orders"). '
            "(Spark passes no options to catalog tables; use CREATE TEMPORARY VIEW.)"
        )
    return tuple(dict.fromkeys(sources))


def _offsets(given: Mapping[str, str], name: str, default: int, sources: tuple[Source, ...]) -> Offsets:
    text = given.get(name.lower())
    if text is None:
        return Offsets(default)
    words = {"earliest": EARLIEST, "latest": LATEST}
    if text.strip().lower() in words:
        return Offsets(words[text.strip().lower()])
    example = json.dumps({sources[0].name: 23})
    problem = f"{name} is neither earliest, latest nor JSON like {example}: got '{text}'"
    try:
        parsed = json.loads(text)
    except json.JSONDecodeError as error:
        raise _use(f"{problem} (column {error.colno}).") from error
    if not isinstance(parsed, dict):
        raise _use(f"{problem}.")
    of_log: list[tuple[str, int]] = []
    for log, value in sorted(parsed.items()):
        if not any(source.name == log or source.pattern for source in sources):
            names = ", ".join(source.name for source in sources)
            raise _use(f"{name} names '{log}', which is not loaded (loaded: {names}).")
        position = words.get(value.lower()) if isinstance(value, str) else value
        if not isinstance(position, int) or isinstance(position, bool) or position < EARLIEST:
            raise _use(
                f"{name}: the offset of '{log}' is a number, earliest or latest, not {json.dumps(value)}."
            )
        of_log.append((log, position))
    return Offsets(default, tuple(of_log))


def _timestamp_ms(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    if re.fullmatch(r"-?\d+", text.strip()):
        return int(text)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise _use(
            f"{name} is ISO text like 2026-11-20T08:00:00Z or milliseconds since 1970: got '{text}'."
        ) from error
    # Without a zone the time is UTC, as session() sets Spark's own zone; a machine's zone would differ by worker.
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return round(aware.timestamp() * 1000)


def _size(given: Mapping[str, str], name: str, default: int) -> int:
    text = given.get(name.lower())
    if text is None:
        return default
    match = re.fullmatch(r"(\d+)\s*([kmg]?)(?:i?b)?", text.strip().lower())
    if not match or int(match[1]) == 0:
        raise _use(f"{name} is a size like 128m, 512k or 1g: got '{text}'.")
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[match[2]]


def _count(given: Mapping[str, str], name: str, default: int | None) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return default
    if not text.strip().isdigit() or int(text) == 0:
        raise _use(f"{name} is a whole number from 1: got '{text}'.")
    return int(text)


def _flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name.lower(), str(default)).strip().lower()
    if text not in {"true", "false"}:
        raise _use(f"{name} is true or false: got '{text}'.")
    return text == "true"


def _choice(given: Mapping[str, str], name: str, kind: type[Choice], default: Choice | None) -> Choice | None:
    text = given.get(name.lower())
    if text is None:
        return default
    values = [choice.value for choice in kind]
    if text.strip().lower() not in values:
        raise _use(f"{name} is one of {', '.join(values)}: got '{text}'.")
    return kind(text.strip().lower())
