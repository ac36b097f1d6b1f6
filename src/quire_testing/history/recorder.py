"""Writing a history down while it happens.

It knows no clock (it is handed one) and no file (a sink takes each line). A process that may be killed hands in a sink
that writes at once: the invocation must be out before the request is.

Source: docs/formats/history.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from quire_testing.history.events import (
    FAIL,
    HASH_DIGITS,
    HASH_NAME,
    INVOKE,
    NOTE,
    OK,
    UNKNOWN,
    VERSION,
    Event,
)

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def header_line(clock: str) -> str:
    """The first line of a history."""
    facts = {"quire_history": VERSION, "clock": clock, "hash": HASH_NAME, "hash_digits": HASH_DIGITS}
    return _encode(facts) + "\n"


def event_line(event: Event) -> str:
    """An event as a line of JSON, with its end."""
    facts: dict[str, Any] = {"at": event.at, "process": event.process, "event": event.event}
    if event.event != NOTE:
        facts["operation"] = event.operation
    return _encode({**facts, "kind": event.kind, **event.facts}) + "\n"


class History:
    """Records what happens, in the order in which it is called.

    One history has one clock and one thread. Histories of several processes of a machine are judged together by giving
    all their files to the judge.

    Args:
        now_ns: the clock, monotonic nanoseconds.
        sink: takes each line; without one the events stay in `events`.
        clock: the name of the clock; only histories of one clock can be judged together.
    """

    __slots__ = ("_next", "_now_ns", "_sink", "events")

    def __init__(
        self,
        now_ns: Callable[[], int],
        sink: Callable[[str], object] | None = None,
        *,
        clock: str = "monotonic",
    ) -> None:
        self._now_ns = now_ns
        self._sink = sink
        self._next = 0
        self.events: list[Event] = []
        if sink is not None:
            sink(header_line(clock))

    def invoke(self, process: str, kind: str, **arguments: Any) -> Operation:
        """A request: to be called before it leaves.

        Args:
            process: who asks.
            kind: a key of `OPERATIONS`.
            arguments: its fields (docs/formats/history.md).

        Returns:
            What takes the response. If no response is ever recorded, it may have happened or not.
        """
        number = self._next
        self._next += 1
        self.tell(process, INVOKE, number, kind, arguments)
        return Operation(self, process, number, kind)

    def note(self, process: str, kind: str, **facts: Any) -> None:
        """A fact that is no operation: what a bookie did, a version of metadata, a final scan."""
        self.tell(process, NOTE, -1, kind, facts)

    def tell(self, process: str, what: str, number: int, kind: str, facts: dict[str, Any]) -> None:
        """Write one event down, now."""
        event = Event(self._now_ns(), process, what, number, kind, facts)
        if self._sink is not None:
            self._sink(event_line(event))
        else:
            event.line = len(self.events) + 1
            self.events.append(event)


class Operation:
    """One thing that was asked for; takes its response, once.

    Args:
        history: where it is recorded.
        process: who asked.
        number: its number in that history.
        kind: what was asked.
    """

    __slots__ = ("_history", "kind", "number", "process")

    def __init__(self, history: History, process: str, number: int, kind: str) -> None:
        self._history = history
        self.process = process
        self.number = number
        self.kind = kind

    def ok(self, **result: Any) -> None:
        """It happened, and this was the response."""
        self._history.tell(self.process, OK, self.number, self.kind, result)

    def fail(self, error: object) -> None:
        """It did not happen; only an append that failed may nevertheless be found by a recovery."""
        self._history.tell(self.process, FAIL, self.number, self.kind, {"error": _name(error)})

    def unknown(self, error: object) -> None:
        """It may have happened or not: a time-out, a fence, a connection that broke."""
        self._history.tell(self.process, UNKNOWN, self.number, self.kind, {"error": _name(error)})


def _name(error: object) -> str:
    return type(error).__name__ if isinstance(error, BaseException) else str(error)
