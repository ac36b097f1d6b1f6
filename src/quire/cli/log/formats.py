r"""Format strings of `log read -f`, after kcat's: what is printed of each record, with nothing added after it.

| token | prints |
|---|---|
| `%s` | the value; nothing for a tombstone |
| `%S` | bytes of the value, -1 for a tombstone |
| `%R` | the same as a 4-byte big-endian integer |
| `%k` | the key; nothing without one |
| `%K` | bytes of the key, -1 without one |
| `%o` | the offset |
| `%T` | the timestamp in milliseconds since 1970 |
| `%h` | the headers: `name=value,name=value`; NULL for one without a value |
| `%t` | the log's name |
| `%%` | a percent sign |

Escapes are `\n`, `\r`, `\t`, `\\`, `\0` and `\xHH`. All else stands for itself.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from quire.core.errors import MisuseError

if TYPE_CHECKING:
    from quire.log.records import Record

Printer: TypeAlias = "Callable[[Record], bytes]"
"""Gives what is printed of a record."""

_ESCAPES: Final = {"n": b"\n", "r": b"\r", "t": b"\t", "\\": b"\\", "0": b"\0"}
_HEX: Final = frozenset("0123456789abcdefABCDEF")


def _size(payload: bytes | None) -> int:
    return -1 if payload is None else len(payload)


def _headers(record: Record) -> bytes:
    return b",".join(
        name.encode() + b"=" + (b"NULL" if value is None else value) for name, value in record.headers
    )


_TOKENS: Final[dict[str, Printer]] = {
    "s": lambda record: record.value or b"",
    "S": lambda record: b"%d" % _size(record.value),
    "R": lambda record: struct.pack(">i", _size(record.value)),
    "k": lambda record: record.key or b"",
    "K": lambda record: b"%d" % _size(record.key),
    "o": lambda record: b"%d" % record.offset,
    "T": lambda record: b"%d" % record.timestamp_ms,
    "h": _headers,
}


def is_format(text: str) -> bool:
    """Whether `text` is meant as a format string and not as the name of a form."""
    return "%" in text or "\\" in text


def printer(text: str, log: str) -> Printer:
    """What a format string prints of a record.

    Args:
        text: the format string.
        log: the name of the log.

    Raises:
        MisuseError: a token or an escape is unknown or cut short.
    """
    parts: list[Printer] = []
    plain = bytearray()
    index = 0
    while index < len(text):
        char = text[index]
        if char == "\\":
            taken, index = _escape(text, index)
            plain += taken
            continue
        index += 1
        if char != "%":
            plain += char.encode()
            continue
        kind = text[index : index + 1]
        index += 1
        if kind in {"%", "t"}:
            plain += b"%" if kind == "%" else log.encode()
            continue
        if kind not in _TOKENS:
            raise MisuseError(
                f"the format string {text!r} has %{kind} at character {index - 1}: the tokens are %s %S %R (value, its "
                "size, its size in binary), %k %K (key, its size), %o (offset), %T (timestamp), %h (headers), %t (log) "
                "and %%."
            )
        if plain:
            parts.append(_constant(bytes(plain)))
            plain.clear()
        parts.append(_TOKENS[kind])
    if plain:
        parts.append(_constant(bytes(plain)))
    return lambda record: b"".join([part(record) for part in parts])


def escaped(text: str, option: str) -> bytes:
    """The bytes of an option's value in which escapes may stand, as of a delimiter.

    Raises:
        MisuseError: it is empty, or an escape is unknown.
    """
    found = bytearray()
    index = 0
    while index < len(text):
        if text[index] == "\\":
            taken, index = _escape(text, index)
            found += taken
        else:
            found += text[index].encode()
            index += 1
    if not found:
        raise MisuseError(f"{option} is empty: give one or more characters, as in {option} ':'.")
    return bytes(found)


def _constant(text: bytes) -> Printer:
    return lambda _record: text


def _escape(text: str, index: int) -> tuple[bytes, int]:
    r"""The byte of the escape that begins at `index`, and the index after it."""
    kind = text[index + 1 : index + 2]
    if kind in _ESCAPES:
        return _ESCAPES[kind], index + 2
    digits = text[index + 2 : index + 4]
    if kind == "x" and len(digits) == 2 and set(digits) <= _HEX:
        return bytes([int(digits, 16)]), index + 4
    raise MisuseError(
        f"{text!r} has \\{kind} at character {index + 1}: the escapes are \\n, \\r, \\t, \\\\, \\0 and \\xHH with two "
        "hexadecimal digits."
    )
