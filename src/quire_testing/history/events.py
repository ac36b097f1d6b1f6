"""One event of a history, and how it stands on a line.

A history is the requests of clients and their responses, with what was seen at bookies and in the metadata store, in
the order in which it happened. Nothing here knows what is right.

Source: docs/formats/history.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import crc32c

from quire.core.errors import RefusedError

VERSION: Final = 1
HASH_NAME: Final = "crc32c"
HASH_DIGITS: Final = 8

INVOKE: Final = "invoke"
OK: Final = "ok"
FAIL: Final = "fail"
UNKNOWN: Final = "unknown"
NOTE: Final = "note"
OUTCOMES: Final = frozenset({OK, FAIL, UNKNOWN})


class MalformedHistoryError(RefusedError):
    """A line is no event, or no event that can come here; the text names the line."""


@dataclass(slots=True)
class Event:
    """One line of a history.

    Args:
        at: monotonic nanoseconds; events of one history never go back.
        process: who; one process remembers what it has seen.
        event: `invoke`, `ok`, `fail`, `unknown` or `note`.
        operation: the number that an invocation and its response share; -1 in a note.
        kind: a key of `KINDS`.
        facts: the fields of that kind.
        line: where it stands in its file, counted from 1; in memory, which it is.
        file: of which file, if several are judged together.
    """

    at: int
    process: str
    event: str
    operation: int
    kind: str
    facts: dict[str, Any]
    line: int = 0
    file: str = ""


def entry_hash(payload: bytes | bytearray | memoryview) -> str:
    """The hash of one entry's payload: eight hexadecimal digits of its CRC-32C."""
    return f"{crc32c.crc32c(payload):08x}"


def entry_hashes(payloads: Iterable[bytes | bytearray | memoryview]) -> str:
    """The hashes of consecutive entries, one after another: the form that `hashes` has in every event."""
    return b"".join([crc32c.crc32c(payload).to_bytes(4, "big") for payload in payloads]).hex()
