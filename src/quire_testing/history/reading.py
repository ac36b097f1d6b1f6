"""Reading histories that were written down: a header, then a line of JSON for each event.

Files belong to the caller, which opens them and hands in their lines. What is no event is refused with its line. The
last line of a process that was killed may be torn; it is left out, and that is said.

Source: docs/formats/history.md.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator
from typing import Any

from quire_testing.history.events import INVOKE, NOTE, OUTCOMES, VERSION, Event, MalformedHistoryError

RESERVED = frozenset({"at", "process", "event", "operation", "kind"})
"""The fields that every line has; all others belong to its kind."""

DIGITS_MAX = 128


class HistoryFile:
    """One file's events, in order.

    Args:
        lines: its lines with their ends, as bytes.
        name: what errors and violations call it; empty if it is the only one.

    Raises:
        MalformedHistoryError: the first line is no header of a version that is known.
    """

    def __init__(self, lines: Iterable[bytes], name: str = "") -> None:
        self._lines = iter(lines)
        self.name = name
        self.torn = False
        """The last line was cut off and left out; known when all has been read."""
        header = self._object(next(self._lines, b""), 1)
        version = header.get("quire_history")
        if version != VERSION:
            raise self._malformed(
                1, f'the first line must be a header like {{"quire_history": {VERSION}, ...}} of this version'
            )
        self.clock = str(header.get("clock", "monotonic"))
        self.hash = str(header.get("hash", "crc32c"))
        digits = header.get("hash_digits", 8)
        if type(digits) is not int or digits < 2 or digits > DIGITS_MAX or digits % 2:
            raise self._malformed(
                1, f"hash_digits must be an even number of 2 to {DIGITS_MAX}, not {digits!r}"
            )
        self.hash_digits: int = digits

    def __iter__(self) -> Iterator[Event]:
        before = 0
        for number, line in enumerate(self._lines, 2):
            try:
                record = self._object(line, number)
            except MalformedHistoryError:
                if line.endswith(b"\n"):
                    raise
                self.torn = True
                return
            event = self._event(record, number)
            if event.at < before:
                raise self._malformed(
                    number, f"time goes back: at is {event.at}, and {before} on a line before"
                )
            before = event.at
            yield event

    def _object(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            what = "the file is empty" if number == 1 and not line else f"this is no JSON: {error}"
            raise self._malformed(number, what) from None
        if not isinstance(record, dict):
            raise self._malformed(number, "this is no JSON object")
        return record

    def _event(self, record: dict[str, Any], number: int) -> Event:
        at, what, kind = record.get("at"), record.get("event"), record.get("kind")
        process, operation = record.get("process"), record.get("operation", -1)
        if type(at) is not int or at < 0:
            raise self._malformed(number, f"at must be nanoseconds, a whole number of 0 or more, not {at!r}")
        if not isinstance(process, str) or not isinstance(kind, str):
            raise self._malformed(number, "process and kind must be texts")
        if (
            what != NOTE
            and (what == INVOKE or what in OUTCOMES)
            and (type(operation) is not int or operation < 0)
        ):
            raise self._malformed(
                number, "an invocation and its answer need operation, a whole number of 0 or more"
            )
        facts = {name: value for name, value in record.items() if name not in RESERVED}
        return Event(at, process, str(what), operation, kind, facts, number, self.name)

    def _malformed(self, number: int, what: str) -> MalformedHistoryError:
        where = f"{self.name}, line {number}" if self.name else f"line {number}"
        return MalformedHistoryError(f"{where}: {what}", line=number, file=self.name)


def merged(files: list[HistoryFile]) -> Iterator[Event]:
    """The events of several histories in the order of their one clock.

    What happened at the same nanosecond is taken to overlap: invocations come first.

    Raises:
        MalformedHistoryError: they have different clocks or hashes, so that they cannot be compared.
    """
    for other in files[1:]:
        for what in ("clock", "hash", "hash_digits"):
            mine, its = getattr(files[0], what), getattr(other, what)
            if mine != its:
                text = f"{files[0].name} has the {what} {mine} and {other.name} {its}: they cannot be judged together"
                raise MalformedHistoryError(text)
    return heapq.merge(*files, key=_order)


def _order(event: Event) -> tuple[int, bool]:
    return event.at, event.event != INVOKE
