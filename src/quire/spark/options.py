"""The options that Spark hands over, as text with names in lower case: known or refused, and turned into values.

What is shared by reading and writing: one error type, one way to say what a size, a count or a time looks like, and
one check of names against the tables of both sides. This module must not know Spark, Arrow or a cluster.

Source: docs/spark.md, "Options"; docs/spark-sink.md, "Options".
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from enum import Enum, Flag, auto
from typing import Any, Final, TypeVar

from quire.core.errors import MisuseError
from quire.core.settings import Choice, mistake
from quire.env import numbers
from quire.log.times import parse_time

Options = TypeVar("Options")
V = TypeVar("V")

_SPARKS_OWN: Final = ("path", "paths", "checkpointLocation", "queryName")
"""What Spark adds by itself."""
_OF_A_TABLE: Final = ("provider", "owner")
"""What Spark adds for CREATE TABLE without columns, whose schema it asks for."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DIGITS: Final = "[0-9]{1,19}"
_UNITS: Final = {"": 0, "k": 10, "m": 20, "g": 30}


class SparkUseError(MisuseError):
    """What a PySpark user wrote cannot be done as written. The text starts with `quire:` and ends with the remedy."""


def use_error(text: str, **ids: object) -> SparkUseError:
    """The error with the text of one sentence and its remedy."""
    return SparkUseError(f"quire: {text}", **ids)


def moment(ms: int) -> datetime:
    """Milliseconds since 1970 as a time in UTC.

    Raises:
        OverflowError: it lies outside the years 1 to 9999.
    """
    return _EPOCH + timedelta(milliseconds=ms)


class Use(Flag):
    """What an option is for."""

    BATCH = auto()
    STREAM = auto()
    WRITE = auto()
    READ = BATCH | STREAM


_USES: Final = {Use.BATCH: "a batch read", Use.STREAM: "a streaming read", Use.WRITE: "writing"}


@dataclass(frozen=True, slots=True)
class Option:
    """One option; what it means for users is the text below its declaration, and the documents show that.

    Attributes:
        name: as a user writes it; case does not matter.
        use: where it means something.
        default: what is read when the user writes nothing; empty when there is no such text.
        otherwise: what holds without a default, for the documents.
    """

    name: str
    use: Use
    default: str = ""
    otherwise: str = ""


def options(read: Callable[..., Any], *rows: Option) -> Any:
    """A field of a dataclass of options: the options that it is made from, and the way to read them.

    Args:
        read: gets a `SparkOptions` and the names of `rows`, and returns the field's value.
        rows: one for each option.
    """
    return field(metadata={"read": read, "rows": rows})


def option(read: Callable[..., Any], name: str, use: Use, *, default: str = "", otherwise: str = "") -> Any:
    """A field that is made from one option; see `Option` and `options`."""
    return options(read, Option(name, use, default, otherwise))


def rows_of(options: type) -> tuple[Option, ...]:
    """Every option that the fields of such a dataclass declare, in their order."""
    return tuple(row for each in fields(options) for row in each.metadata.get("rows", ()))


def choice(kind: type[Enum] | Mapping[str, Any]) -> Callable[[SparkOptions, str], Any]:
    """The way to read an option that is one of a few words: the values of an enumeration, or the names of what they mean."""
    words = kind if isinstance(kind, Mapping) else {str(each.value): each for each in kind}
    return lambda raw, name: raw.value(name, lambda text: words.get(text.strip().lower()), Choice(words))


def size_of(text: str) -> int | None:
    """Bytes from a text like 128m, 512k or 1g; None for one that is no such size, or none at all."""
    match = re.fullmatch(rf"({_DIGITS})\s*([kmg]?)(?:i?b)?", text.strip().lower())
    return int(match[1]) << _UNITS[match[2]] or None if match else None


def number_of(text: str) -> int | None:
    """A whole number from 0 to 2**63 - 1; None for a text that is none."""
    number = numbers.number_of(text)
    return number if number is not None and 0 <= number < 1 << 63 else None


class SparkOptions:
    """The options of one `DataFrameReader` or `DataFrameWriter`.

    Args:
        options: as Spark hands them over.
        known: every option of the format; a name that is none of them is refused here, with a short traceback.

    Raises:
        SparkUseError: naming the option that is nearest.
    """

    def __init__(self, options: Mapping[str, str], known: Iterable[Option]) -> None:
        self._text = {name.lower(): value for name, value in options.items()}
        self._known = {option.name.lower(): option for option in known}
        own = {name.lower() for name in _SPARKS_OWN}
        if not self._text.keys().isdisjoint(_OF_A_TABLE):
            raise use_error(
                "Spark keeps no options for a catalog table, so nothing could be read from it or written to it. Use "
                "CREATE TEMPORARY VIEW ... USING quire OPTIONS (path 'LOG', cluster 'URI'), and .save(\"LOG\") to write."
            )
        for name in self._text:
            if name not in self._known and name not in own:
                raise self._unknown(name)

    def _unknown(self, name: str) -> SparkUseError:
        near = difflib.get_close_matches(name, self._known, n=1)
        hint = f" Did you mean '{self._known[near[0]].name}'?" if near else ""
        lists = ""
        for use, what in ((Use.READ, "read"), (Use.WRITE, "write")):
            names = [option.name for option in self._known.values() if option.use & use]
            lists += f"{'; ' if lists and names else ''}{what} options: {', '.join(names)}" if names else ""
        return use_error(f"unknown option '{name}'.{hint} ({lists})")

    def check_use(self, use: Use) -> None:
        """Refuse the options that mean nothing here.

        Raises:
            SparkUseError: naming the first one and where it belongs.
        """
        for name in self._text:
            option = self._known.get(name)
            if option is not None and not option.use & use:
                there = " and ".join(text for each, text in _USES.items() if each & option.use)
                here = " or ".join(text for each, text in _USES.items() if each & use)
                raise use_error(f"option '{option.name}' belongs to {there}, this is {here}. Leave it out.")

    def read(self, options: type[Options], **others: object) -> Options:
        """A dataclass of options, each field by its own declaration.

        Args:
            options: the dataclass; see `option`.
            others: values of the fields that no option declares.

        Raises:
            SparkUseError: for the first value that is wrong.
        """
        found = {
            each.name: each.metadata["read"](self, *(row.name for row in each.metadata["rows"]))
            for each in fields(options)  # type: ignore[arg-type]  # a dataclass
            if each.metadata
        }
        return options(**found, **others)

    # --- values ------------------------------------------------------------------------------------------------

    def text(self, name: str) -> str | None:
        """An option as it was written, None if it was not."""
        return self._text.get(name.lower())

    def default(self, name: str) -> str:
        """What is read when an option is not written; empty when there is no such text."""
        return self._known[name.lower()].default

    def text_or_default(self, name: str) -> str | None:
        """An option as it was written, or its default; None without either."""
        written = self.text(name)
        return (self.default(name) or None) if written is None else written

    def value(self, name: str, parse: Callable[[str], V | None], allowed: object) -> V | None:
        """What an option, as it was written or by default, means; None without either.

        Args:
            name: the option's.
            parse: the meaning of a text; None for one that has none.
            allowed: what the option may be.

        Raises:
            SparkUseError: it is something else.
        """
        text = self.text_or_default(name)
        found = None if text is None else parse(text)
        if text is not None and found is None:
            raise use_error(f"{mistake(name, allowed, text)}.")
        return found

    def cluster(self, name: str) -> str:
        """The cluster's URI, from the option or the environment.

        Raises:
            SparkUseError: none is named, or one that other processes cannot reach.
        """
        cluster = self.text(name) or os.environ.get("QUIRE_CLUSTER", "")
        if not cluster:
            raise use_error(
                'name the cluster: .option("cluster", "sqlite:PATH") or QUIRE_CLUSTER; `quire up` prints it.'
            )
        if cluster.startswith("memory:"):
            raise use_error(
                "a memory: cluster lives in one process and Spark's workers are others. `quire up` starts one."
            )
        return cluster

    def timestamp_ms(self, name: str) -> int | None:
        """Milliseconds since 1970, from ISO text or a number."""
        text = self.text(name)
        if text is None:
            return None
        try:
            return parse_time(
                text, f"{name} is ISO text like 2026-11-20T08:00:00Z or milliseconds since 1970"
            )
        except MisuseError as error:
            raise use_error(str(error)) from error

    def size(self, name: str) -> int | None:
        """Bytes, at least one; None when nothing was written and there is no default."""
        return self.value(name, size_of, "a size like 128m, 512k or 1g")

    def count(self, name: str) -> int | None:
        """A whole number from 1; None when nothing was written and there is no default."""
        return self.value(name, lambda text: number_of(text) or None, "an integer from 1")

    def flag(self, name: str) -> bool:
        """True or false; one that has no default is false."""
        flags = {"true": True, "false": False}
        return bool(self.value(name, lambda text: flags.get(text.strip().lower()), Choice(flags)))
