"""A log's records in files and pipes: lines of values, length-delimited records, JSON lines; read and written alike.

The delimited form is that of `records`. A record that is not a value alone has the highest bit of its length set, and then
its bytes are:

| bytes | what |
|---|---|
| 1 | 1: it has a key; 2: it has a value (without: a tombstone) |
| 4 + n | the key, a length before it; only if it has one |
| 4 | how many headers |
| 4 + n, 4 + n | each header's name in UTF-8, and its value; the length -1 (all bits set) is "no value" |
| the rest | the value |

Times are carried by JSON lines only.
"""

from __future__ import annotations

import base64
import json
import struct
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from quire.cli.output import Output, payload_facts
from quire.cli.records import (
    GivenRecord,
    bytes_max_of,
    look_for,
    read_exactly,
    read_lines,
    split_inputs,
    write_record,
)
from quire.core.errors import MisuseError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Iterator, Sequence

    from quire.log.records import Record
    from quire.log.writer import LogWriter

_LENGTH: Final = struct.Struct(">I")
_MARK: Final = 1 << 31
_NONE: Final = (1 << 32) - 1
_KEY, _VALUE = 1, 2
_JSON_GROWTH: Final = 6
"""A byte of text takes at most so many in JSON (as `\\u0001`)."""
_JSON_ROOM: Final = 64 * 1024
_TAKEN: Final = {"value", "value_base64", "key", "key_base64", "headers", "timestamp_ms"}
_PASSED_OVER: Final = {"offset", "ledger_id", "entry_id", "index"}
"""What `log read` says of a record's place; the record gets another one."""


class Form(StrEnum):
    """How records are written one after another."""

    LINES = "lines"
    DELIMITED = "delimited"
    JSON = "json"


def form_of(form: Form | None, *, delimited: bool, as_json: bool = False) -> Form:
    """The form that options name.

    Args:
        form: `--format`.
        delimited: `--delimited`, the same as `--format delimited`.
        as_json: `--json` of a command that prints records, the same as `--format json`.

    Raises:
        MisuseError: they name two.
    """
    named = {form} - {None}
    named |= {Form.DELIMITED} if delimited else set()
    named |= {Form.JSON} if as_json else set()
    if len(named) > 1:
        asked = " and ".join(sorted(str(one) for one in named))
        text = f"records cannot be {asked} at once: give one of --format, --delimited and --json."
        raise MisuseError(text)
    return next(iter(named), None) or Form.LINES


# --- in -----------------------------------------------------------------------------------------------------------


def read_log_records(
    paths: Sequence[Path], form: Form, *, frame_bytes_max: int | None = None
) -> Iterator[bytes | GivenRecord]:
    """Every record of the files in order, or of stdin without files (or for `-`).

    Args:
        paths: what to read; each is opened when its turn comes, but looked for at once.
        form: how the records are written.
        frame_bytes_max: what was given as the longest frame; records may be as long.

    Raises:
        FileNotFoundError: one of them is not there.
        MisuseError: while it is read: something is no record.
    """
    look_for(paths)
    split = {Form.LINES: read_lines, Form.DELIMITED: read_marked, Form.JSON: read_json}[form]
    return split_inputs(paths, split, bytes_max_of(frame_bytes_max))


def read_marked(stream: BinaryIO, name: str, bytes_max: int) -> Iterator[bytes | GivenRecord]:
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
            raise MisuseError(text, path=name) from error


def read_json(stream: BinaryIO, name: str, bytes_max: int) -> Iterator[GivenRecord]:
    """The records of JSON lines, as `log read --json` writes them."""
    for number, line in enumerate(
        read_lines(stream, name, bytes_max * _JSON_GROWTH + _JSON_ROOM),
        start=1,
    ):
        try:
            yield _of_facts(json.loads(line))
        except (ValueError, TypeError, KeyError) as error:
            text = (
                f"Line {number} of {name} is no record ({error}): give an object with `value` (null: a tombstone) or "
                "`value_base64`, and what there is of `key`, `key_base64`, `headers` and `timestamp_ms`."
            )
            raise MisuseError(text, path=name) from error


def _of_facts(facts: Any) -> GivenRecord:
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
    return GivenRecord(_payload(facts, "value"), _payload(facts, "key"), tuple(headers), time_ms)


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


def _decode(body: bytes) -> GivenRecord:
    flags, place = body[0], 1
    if flags > _KEY | _VALUE:
        raise ValueError(f"unknown flags {flags}")

    def taken(size: int) -> bytes:
        nonlocal place
        place += size
        if place > len(body):
            raise ValueError("it is shorter than it says")
        return body[place - size : place]

    def sized() -> bytes | None:
        size: int = _LENGTH.unpack(taken(_LENGTH.size))[0]
        return None if size == _NONE else taken(size)

    key = sized() if flags & _KEY else None
    headers = []
    for _ in range(_LENGTH.unpack(taken(_LENGTH.size))[0]):
        header = sized()
        if header is None:
            raise ValueError("a header has no name")
        headers.append((header.decode(), sized()))
    rest = taken(len(body) - place)
    if rest and not flags & _VALUE:
        raise ValueError("a tombstone has a value")
    return GivenRecord(rest if flags & _VALUE else None, key, tuple(headers))


class LogAppender:
    """Gives a log's writer records with all that they have."""

    def __init__(self, writer: LogWriter) -> None:
        self._writer = writer

    def append_nowait(self, record: bytes | GivenRecord, /) -> asyncio.Future[int]:
        """Start one append; the future gives its offset."""
        if isinstance(record, GivenRecord):
            return self._writer.append_nowait(*record)
        return self._writer.append_nowait(record)

    async def drain(self) -> None:
        """Wait until everything that was started is acknowledged."""
        await self._writer.drain()


# --- out ----------------------------------------------------------------------------------------------------------


async def print_records(out: Output, records: AsyncIterator[Record], form: Form, *, at_once: bool) -> None:
    """Print what an iterator of records gives; `at_once` flushes after each.

    Lines hold values alone. A tombstone prints nothing there, and a sentence on stderr says what was left out.
    """
    stdout = sys.stdout.buffer
    tombstones = others = 0
    try:
        async for record in records:
            match form:
                case Form.JSON:
                    stdout.write(json.dumps(_facts(record)).encode() + b"\n")
                case Form.DELIMITED:
                    _write_marked(stdout, record)
                case Form.LINES if record.value is None:
                    tombstones += 1
                case Form.LINES:
                    others += record.key is not None or bool(record.headers) or b"\n" in record.value
                    write_record(stdout, record.value, delimited=False)
            if at_once:
                stdout.flush()
        stdout.flush()
    finally:
        if tombstones or (others and not sys.stdout.isatty()):
            out.note(
                f"Lines hold values alone. Left out: {_many(tombstones, 'tombstone')}. With keys, headers or line "
                f"feeds: {_many(others, 'record')}. --format json or --format delimited has everything."
            )


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def _facts(record: Record) -> dict[str, object]:
    return {
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        **payload_facts("key", record.key),
        **payload_facts("value", record.value),
        "headers": [{"name": name, **payload_facts("value", value)} for name, value in record.headers],
        "ledger_id": record.ledger_id,
        "entry_id": record.entry_id,
        "index": record.index,
    }


def _write_marked(stream: BinaryIO, record: Record) -> None:
    if record.value is not None and record.key is None and not record.headers:
        write_record(stream, record.value, delimited=True)
        return
    parts = [bytes([_KEY * (record.key is not None) | _VALUE * (record.value is not None)])]
    if record.key is not None:
        parts += [_LENGTH.pack(len(record.key)), record.key]
    parts.append(_LENGTH.pack(len(record.headers)))
    for name, value in record.headers:
        parts += [_LENGTH.pack(len(name.encode())), name.encode()]
        parts += [_LENGTH.pack(_NONE)] if value is None else [_LENGTH.pack(len(value)), value]
    parts.append(record.value or b"")
    stream.write(_LENGTH.pack(sum(map(len, parts)) | _MARK))
    stream.writelines(parts)
