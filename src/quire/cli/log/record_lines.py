"""A log's records in files and pipes: lines of values, length-delimited records, JSON lines; read and written alike.

The delimited form is that of `records`. A record that is not a value alone has the highest bit of its length set, and then
its bytes are:

| bytes | what |
|---|---|
| 1 | the sum of 1: it has a key; 2: it has a value (without: a tombstone); 4: it has a timestamp |
| 8 | the timestamp in milliseconds since 1970; only if it has one |
| 4 + n | the key, a length before it; only if it has one |
| 4 | how many headers |
| 4 + n, 4 + n | each header's name in UTF-8, and its value; the length -1 (all bits set) is "no value" |
| the rest | the value |

JSON lines always carry times; delimited records do where that is asked for (`--times`, `log export`).
"""

from __future__ import annotations

import base64
import json
import struct
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from quire.cli.console.output import Output, counted, payload_facts
from quire.cli.console.record_streams import (
    BadInputError,
    InputRecord,
    longest_record,
    look_for,
    read_exactly,
    read_lines,
    split_inputs,
    write_record,
)
from quire.cli.log.formats import Printer
from quire.core.errors import MisuseError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from quire.log.records import Record

_LENGTH: Final = struct.Struct(">I")
_MARK: Final = 1 << 31
_NONE: Final = (1 << 32) - 1
_TIME: Final = struct.Struct(">q")
_KEY, _VALUE, _TIMED = 1, 2, 4
_JSON_GROWTH: Final = 6
"""Most bytes that a byte of text takes in JSON (as `\\u0001`)."""
_JSON_ROOM: Final = 64 * 1024
_TAKEN: Final = {"value", "value_base64", "key", "key_base64", "headers", "timestamp_ms"}
_PASSED_OVER: Final = {"offset", "ledger_id", "entry_id", "index"}
"""What `log read` says of a record's location; the record gets another one."""


class Form(StrEnum):
    """How records are written one after another."""

    LINES = "lines"
    DELIMITED = "delimited"
    JSON = "json"


def form_of(text: str | None, *, delimited: bool, as_json: bool = False) -> Form:
    """The form that options name.

    Args:
        text: `--format`.
        delimited: `--delimited`, the same as `--format delimited`.
        as_json: `--json` of a command that prints records, the same as `--format json`.

    Raises:
        MisuseError: they name two, or none that there is.
    """
    if text is not None and text not in set(Form):
        raise MisuseError(f"--format takes lines, delimited or json, not {text!r}.")
    named = set() if text is None else {Form(text)}
    named |= {Form.DELIMITED} if delimited else set()
    named |= {Form.JSON} if as_json else set()
    if len(named) > 1:
        asked = " and ".join(sorted(str(one) for one in named))
        text = f"records cannot be {asked} at once: give one of --format, --delimited and --json."
        raise MisuseError(text)
    return next(iter(named), None) or Form.LINES


# --- in -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Added:
    """What an append gives to records that do not have it.

    Attributes:
        key: for records without a key.
        headers: after those that a record has.
        timestamp_ms: for records without a time.
        key_delimiter: in lines, what lies before the first one is the key; a line without one has no key.
        empty_is_tombstone: an empty value becomes none.
    """

    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None
    key_delimiter: bytes | None = None
    empty_is_tombstone: bool = False

    def to(self, record: bytes | InputRecord) -> bytes | InputRecord:
        """The record with what it did not have."""
        value, key, headers, time_ms = record if isinstance(record, InputRecord) else InputRecord(record)
        if self.key_delimiter is not None and value is not None:
            before, found, behind = value.partition(self.key_delimiter)
            if found:
                key, value = before, behind
        return InputRecord(
            None if value == b"" and self.empty_is_tombstone else value,
            self.key if key is None else key,
            headers + self.headers,
            self.timestamp_ms if time_ms is None else time_ms,
        )


NOTHING_ADDED: Final = Added()


def read_log_records(
    paths: Sequence[Path],
    form: Form,
    *,
    added: Added = NOTHING_ADDED,
    command: str = "",
) -> Iterator[bytes | InputRecord]:
    """Every record of the files in order, or of stdin without files (or for `-`).

    Args:
        paths: what to read; each is opened when its turn comes, but looked for at once.
        form: how the records are written.
        added: what records get that they do not have.
        command: as of `look_for`.

    Raises:
        FileNotFoundError: one of them is not there. MisuseError: they look like records.
        BadInputError: while it is read: something is no record.
    """
    look_for(paths, command)
    split = {Form.LINES: read_lines, Form.DELIMITED: read_marked, Form.JSON: read_json}[form]
    records = split_inputs(paths, split, longest_record())
    return records if added == NOTHING_ADDED else map(added.to, records)


def read_marked(stream: BinaryIO, name: str, bytes_max: int) -> Iterator[bytes | InputRecord]:
    """The length-delimited records of `stream`, with keys, headers and tombstones."""
    number = 0
    while head := stream.read(_LENGTH.size):
        number += 1
        size = _LENGTH.unpack(head)[0] if len(head) == _LENGTH.size else -1
        marked = size >= _MARK
        body = read_exactly(stream, size - _MARK if marked else size, number, name, bytes_max)
        if not marked:
            yield body
            continue
        try:
            yield _decode(body)
        except (struct.error, ValueError, IndexError) as error:
            text = (
                f"Record {number} of {name} is damaged ({error}): read the log again with --format delimited."
            )
            raise BadInputError(text, path=name) from error


def read_json(stream: BinaryIO, name: str, bytes_max: int) -> Iterator[InputRecord]:
    """The records of JSON lines, as `log read --json` writes them."""
    for number, line in enumerate(
        read_lines(stream, name, bytes_max * _JSON_GROWTH + _JSON_ROOM),
        start=1,
    ):
        try:
            yield _of_facts(json.loads(line))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            text = (
                f"Line {number} of {name} is no record ({error}): give an object with `value` (null: a tombstone) or "
                "`value_base64`, and what there is of `key`, `key_base64`, `headers` and `timestamp_ms`."
            )
            raise BadInputError(text, path=name) from error


def _of_facts(facts: Any) -> InputRecord:
    if not isinstance(facts, dict):
        raise TypeError("it is not an object")
    if unknown := sorted(facts.keys() - _TAKEN - _PASSED_OVER):
        raise ValueError(f"unknown: {', '.join(unknown)}")
    if not facts.keys() & {"value", "value_base64"}:
        raise ValueError("it has no value")
    time_ms = facts.get("timestamp_ms")
    if time_ms is not None and type(time_ms) is not int:
        raise TypeError("timestamp_ms is not an integer")
    headers = []
    for header in facts.get("headers") or ():
        if not isinstance(header, dict) or not isinstance(header.get("name"), str):
            raise TypeError("a header is an object with `name`, and `value` or `value_base64`")
        header["name"].encode()  # a lone surrogate is not text
        headers.append((header["name"], _payload(header, "value")))
    return InputRecord(_payload(facts, "value"), _payload(facts, "key"), tuple(headers), time_ms)


def _payload(facts: dict[str, Any], name: str) -> bytes | None:
    """What `payload_facts` made of some bytes."""
    text, coded = facts.get(name), facts.get(f"{name}_base64")
    if text is not None and coded is not None:
        raise ValueError(f"it has {name} and {name}_base64")
    if not isinstance(text, str | None) or not isinstance(coded, str | None):
        raise TypeError(f"{name} is not a string")
    if coded is not None:
        return base64.b64decode(coded, validate=True)
    return None if text is None else text.encode()


def _decode(body: bytes) -> InputRecord:
    flags, index = body[0], 1
    if flags > _KEY | _VALUE | _TIMED:
        raise ValueError(f"unknown flags {flags}")

    def taken(size: int) -> bytes:
        nonlocal index
        index += size
        if index > len(body):
            raise ValueError("it is shorter than it says")
        return body[index - size : index]

    def sized() -> bytes | None:
        size: int = _LENGTH.unpack(taken(_LENGTH.size))[0]
        return None if size == _NONE else taken(size)

    time_ms: int | None = _TIME.unpack(taken(_TIME.size))[0] if flags & _TIMED else None
    key = sized() if flags & _KEY else None
    headers = []
    for _ in range(_LENGTH.unpack(taken(_LENGTH.size))[0]):
        header = sized()
        if header is None:
            raise ValueError("a header has no name")
        headers.append((header.decode(), sized()))
    rest = taken(len(body) - index)
    if rest and not flags & _VALUE:
        raise ValueError("a tombstone has a value")
    return InputRecord(rest if flags & _VALUE else None, key, tuple(headers), time_ms)


# --- out ----------------------------------------------------------------------------------------------------------


async def print_records(
    out: Output, records: AsyncIterator[Record], form: Form | Printer, *, at_once: bool
) -> None:
    """Print what an iterator of records gives; `at_once` flushes after each.

    Lines hold values alone. A tombstone prints nothing there, and a sentence on stderr says what was left out.
    """
    stdout = sys.stdout.buffer
    tombstones = others = 0
    try:
        async for record in records:
            match form:
                case Form.JSON:
                    stdout.write(json_line(record))
                case Form.DELIMITED:
                    stdout.write(marked(record))
                case Form.LINES if record.value is None:
                    tombstones += 1
                case Form.LINES if record.value is not None:
                    others += record.key is not None or bool(record.headers) or b"\n" in record.value
                    write_record(stdout, record.value, delimited=False)
                case _ if callable(form):
                    stdout.write(form(record))
            if at_once:
                stdout.flush()
        stdout.flush()
    finally:
        if tombstones or (others and not sys.stdout.isatty()):
            left_out = f" Left out: {counted(tombstones, 'tombstone')}." if tombstones else ""
            more = f" With keys, headers or line feeds: {counted(others, 'record')}." if others else ""
            out.note(
                f"Lines hold values alone.{left_out}{more} --format json or --format delimited has everything."
            )


def json_line(record: Record) -> bytes:
    """A record as a JSON line."""
    facts = {
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        **payload_facts("key", record.key),
        **payload_facts("value", record.value),
        "headers": [{"name": name, **payload_facts("value", value)} for name, value in record.headers],
        "ledger_id": record.ledger_id,
        "entry_id": record.entry_id,
        "index": record.index,
    }
    return json.dumps(facts).encode() + b"\n"


def marked(record: Record, *, times: bool = False) -> bytes:
    """A length-delimited record; `times`: with its timestamp."""
    if record.value is not None and record.key is None and not record.headers and not times:
        return _LENGTH.pack(len(record.value)) + record.value
    flags = _KEY * (record.key is not None) | _VALUE * (record.value is not None) | _TIMED * times
    parts = [bytes([flags])]
    if times:
        parts.append(_TIME.pack(record.timestamp_ms))
    if record.key is not None:
        parts += [_LENGTH.pack(len(record.key)), record.key]
    parts.append(_LENGTH.pack(len(record.headers)))
    for name, value in record.headers:
        parts += [_LENGTH.pack(len(name.encode())), name.encode()]
        parts += [_LENGTH.pack(_NONE)] if value is None else [_LENGTH.pack(len(value)), value]
    parts.append(record.value or b"")
    return b"".join((_LENGTH.pack(sum(map(len, parts)) | _MARK), *parts))
