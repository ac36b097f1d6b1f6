"""Requests that wait for a connection's transport, counted by their senders, so that they can be forgotten meanwhile."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable
from typing import Any, Protocol, TypeAlias


class AnswerSink(Protocol):
    """The sender of a request, which gets its one response."""

    def answered(self, tag: object, response: Any) -> None:
        """The response to the request with this tag, as its type of request has it; the receiver's to keep."""


Waiting: TypeAlias = tuple[Any, Any, int, AnswerSink]
"""A request that waits: its name among all that are outstanding, what is sent, how many bytes, and who asked."""


class SendQueue:
    """What waits, first in, first out.

    Attributes:
        entries: what waits; only the methods change it.
    """

    __slots__ = ("_bytes", "_unsent", "entries")

    def __init__(self) -> None:
        self.entries: deque[Waiting] = deque()
        self._unsent: dict[AnswerSink, int] = {}
        self._bytes = 0

    def put(self, name: Any, frame: Any, size: int, sink: AnswerSink) -> None:
        """A request waits until the transport takes it."""
        self.entries.append((name, frame, size, sink))
        self._unsent[sink] = self._unsent.get(sink, 0) + size
        self._bytes += size

    def take(self, bytes_max: int) -> Iterable[Waiting]:
        """The requests that are sent next: all, or the first of them until they have so many bytes."""
        if self._bytes <= bytes_max:
            entries = self.entries
            self.clear()
            return entries
        taken: list[Waiting] = []
        end = self._bytes - bytes_max
        while self._bytes > end:
            taken.append(entry := self.entries.popleft())
            _, _, size, sink = entry
            self._bytes -= size
            left = self._unsent[sink] - size
            if left:
                self._unsent[sink] = left
            else:
                del self._unsent[sink]
        return taken

    def unsent_bytes(self, sink: AnswerSink) -> int:
        """Bytes of a sender's requests that wait."""
        return self._unsent.get(sink, 0)

    def drop(self, sink: AnswerSink) -> None:
        """What a sender has not sent yet never will be."""
        if size := self._unsent.pop(sink, 0):
            self._bytes -= size
            self.entries = deque(entry for entry in self.entries if entry[3] is not sink)

    def drop_named(self, names: Container[Any]) -> None:
        """The requests with these names are over."""
        entries = self.entries
        self.clear()
        for entry in entries:
            if entry[0] not in names:
                self.put(*entry)

    def clear(self) -> None:
        """Nothing is sent any more."""
        self.entries = deque()
        self._unsent.clear()
        self._bytes = 0
