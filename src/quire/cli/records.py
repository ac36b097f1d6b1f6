"""Records in files and pipes: lines, or records with a length before each.

The delimited form is a 4-byte big-endian length and then that many bytes, again and again.
"""

from __future__ import annotations

import struct
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from quire.core.errors import MisuseError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

RECORD_BYTES_MAX: Final = 1024 * 1024
"""A longer record is refused, unless a limit of frames is given: then the client says what fits one."""

_LENGTH: Final = struct.Struct(">I")


def read_records(
    paths: Sequence[Path], *, delimited: bool, frame_bytes_max: int | None = None
) -> Iterator[bytes]:
    """Every record of the files in order, or of stdin without files (or for `-`).

    Args:
        paths: what to read; each is opened when its turn comes, but looked for at once.
        delimited: length-delimited records instead of lines.
        frame_bytes_max: what was given as the longest frame; records may be as long.

    Raises:
        FileNotFoundError: one of them is not there.
        MisuseError: while it is read: a record is too long, or the last one is cut short.
    """
    for path in paths:
        if str(path) != "-":
            path.stat()
    return _records(paths, max(RECORD_BYTES_MAX, frame_bytes_max or 0), delimited=delimited)


def _records(paths: Sequence[Path], bytes_max: int, *, delimited: bool) -> Iterator[bytes]:
    split = read_delimited if delimited else read_lines
    for path in paths or [Path("-")]:
        with ExitStack() as opened:
            stream = standard_input() if str(path) == "-" else opened.enter_context(path.open("rb"))
            yield from split(stream, "standard input" if str(path) == "-" else str(path), bytes_max)


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
            raise MisuseError(text, path=name)
        yield record


def read_delimited(stream: BinaryIO, name: str, bytes_max: int = RECORD_BYTES_MAX) -> Iterator[bytes]:
    """The length-delimited records of `stream`."""
    number = 0
    while header := stream.read(_LENGTH.size):
        number += 1
        size = _LENGTH.unpack(header)[0] if len(header) == _LENGTH.size else -1
        if size > bytes_max:
            text = (
                f"Record {number} of {name} announces {size} bytes, more than {bytes_max}: "
                "are these records with a 4-byte big-endian length before each? --frame-bytes-max takes longer ones."
            )
            raise MisuseError(text, path=name)
        record = stream.read(size) if size >= 0 else b""
        if len(record) != size:
            text = f"Record {number} of {name} is cut short; the file is not whole."
            raise MisuseError(text, path=name)
        yield record


def write_record(stream: BinaryIO, payload: bytes | memoryview, *, delimited: bool) -> None:
    """Write one record in the form that `read_records` reads."""
    if delimited:
        stream.write(_LENGTH.pack(len(payload)))
        stream.write(payload)
    else:
        stream.write(payload)
        stream.write(b"\n")
