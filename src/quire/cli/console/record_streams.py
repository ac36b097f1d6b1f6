"""Records in files and pipes: lines, or records with a length before each.

The delimited form is a 4-byte big-endian length and then that many bytes, again and again.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple, TypeVar

from quire.cli.console.options import FRAMES
from quire.core.errors import MisuseError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

RECORD_BYTES_MAX: Final = 5 * 1024 * 1024 + 10 * 1024
"""A longer record is refused, unless a limit of frames is set; then the client says what fits a frame. BookKeeper's frames are
as long by default.
"""

R = TypeVar("R")


class BadInputError(RefusedError):
    """The input holds something that is no record, or one that is too long; the records before it are not concerned."""

    code = "bad_input"


_LENGTH: Final = struct.Struct(">I")


def read_records(paths: Sequence[Path], *, delimited: bool, command: str = "") -> Iterator[bytes]:
    """Every record of the files in order, or of stdin without files (or for `-`).

    Args:
        paths: what to read; each is opened when its turn comes, but looked for at once.
        delimited: length-delimited records instead of lines.
        command: as of `look_for`.

    Raises:
        FileNotFoundError: one of them is not there. MisuseError: they look like records.
        BadInputError: while it is read: a record is too long, or the last one is cut short.
    """
    look_for(paths, command)
    return split_inputs(paths, read_delimited if delimited else read_lines, longest_record())


class InputRecord(NamedTuple):
    """A log's record that may be more than a value."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None


def size_of(record: bytes | InputRecord) -> int:
    """The bytes of a record's value, key and headers."""
    if isinstance(record, bytes):
        return len(record)
    size = len(record.value or b"") + len(record.key or b"")
    return size + sum(len(name) + len(value or b"") for name, value in record.headers)


def look_for(paths: Sequence[Path], command: str = "") -> None:
    """Look whether all files are there.

    Args:
        paths: what to read; `-` is standard input.
        command: what is typed before them, if they may be records that were meant to be piped into it.

    Raises:
        FileNotFoundError: one of them is not there.
        MisuseError: none is there, and each is a plain word; it shows how to pipe them.
    """
    try:
        for path in paths:
            if str(path) != "-":
                path.stat()
    except FileNotFoundError as error:
        words = [str(path) for path in paths]
        if not command or any("/" in word or word == "-" or Path(word).exists() for word in words):
            raise
        text = f"{words[0]} is no file; records come from standard input or files: echo {quote(' '.join(words))} | {command}"
        raise MisuseError(text, path=words[0]) from error


def longest_record() -> int:
    """The longest record that is read, by the command's limit of frames."""
    return max(RECORD_BYTES_MAX, FRAMES.get() or 0)


def split_inputs(
    paths: Sequence[Path], split: Callable[[BinaryIO, str, int], Iterator[R]], bytes_max: int
) -> Iterator[R]:
    """The records of each input in turn.

    Args:
        paths: what to read; none, or `-`: stdin.
        split: the records of a stream, from its name and the longest record.
        bytes_max: the longest record.
    """
    for path in paths or [Path("-")]:
        if str(path) == "-":
            yield from split(standard_input(), "standard input", bytes_max)
        else:
            with path.open("rb") as stream:
                yield from split(stream, str(path), bytes_max)


def standard_input() -> BinaryIO:
    """Standard input, read apart from `sys.stdin`.

    A thread that waits in `sys.stdin.buffer` holds its lock; the interpreter, which closes it at the end, aborts then.
    """
    try:
        descriptor = sys.stdin.fileno()
    except (OSError, ValueError):
        return sys.stdin.buffer  # not a file: a caller in this process put something else there
    return open(descriptor, "rb", closefd=False)


def read_lines(stream: BinaryIO, name: str, bytes_max: int = RECORD_BYTES_MAX) -> Iterator[bytes]:
    """The lines of `stream` without their line feed; a carriage return before it belongs to the record."""
    for number, line in enumerate(iter(lambda: stream.readline(bytes_max + 2), b""), start=1):
        record = line.removesuffix(b"\n")
        if len(record) > bytes_max:
            text = f"Line {number} of {name} is longer than {bytes_max} bytes; use shorter lines, or --frame-bytes-max."
            raise BadInputError(text, path=name)
        yield record


def read_delimited(stream: BinaryIO, name: str, bytes_max: int = RECORD_BYTES_MAX) -> Iterator[bytes]:
    """The length-delimited records of `stream`."""
    number = 0
    while header := stream.read(_LENGTH.size):
        number += 1
        size = _LENGTH.unpack(header)[0] if len(header) == _LENGTH.size else -1
        yield read_exactly(stream, size, number, name, bytes_max)


def read_exactly(stream: BinaryIO, size: int, number: int, name: str, bytes_max: int) -> bytes:
    """The bytes of one length-delimited record.

    Args:
        stream: where they come from; what lies before them is read.
        size: how many; -1: the length itself was cut short.
        number, name: which record, of what, for sentences.
        bytes_max: more are refused.

    Raises:
        BadInputError: there are fewer, or too many.
    """
    if size > bytes_max:
        text = (
            f"Record {number} of {name} announces {size} bytes, more than {bytes_max}: "
            "are these records with a 4-byte big-endian length before each? --frame-bytes-max takes longer ones."
        )
        raise BadInputError(text, path=name)
    record = stream.read(size) if size >= 0 else b""
    if len(record) != size:
        text = f"Record {number} of {name} is cut short; the file is not whole."
        raise BadInputError(text, path=name)
    return record


def write_record(stream: BinaryIO, payload: bytes | memoryview, *, delimited: bool) -> None:
    """Write one record in the form that `read_records` reads."""
    if delimited:
        stream.write(_LENGTH.pack(len(payload)))
        stream.write(payload)
    else:
        stream.write(payload)
        stream.write(b"\n")
