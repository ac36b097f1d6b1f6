"""What the states of a world are made of: numbers for the states of parts, labels of steps, questions to the store."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.notes import NO_NOTES, LedgerNotes
from quire_testing.explorer.messages import Request

State: TypeAlias = tuple[int, ...]
T = TypeVar("T")

CAS_LOST: Final = "hears nothing of its compare-and-swap"
"""The step of a client, or a bookie, whose response from the store is lost."""


class Label(NamedTuple):
    """One step, for people: who does what, and everything that was said then."""

    actor: str
    command: str
    said: tuple[str, ...] = ()
    other: str = ""
    """Who sent what is delivered, for the diagram."""
    kind: str = ""


class Ask(NamedTuple):
    """One question to the store: a compare-and-swap on its way or answered, or a read."""

    kind: str
    record: LedgerMetadata | None
    version: int
    answer: str = ""
    waits: bool = True
    notes: LedgerNotes = NO_NOTES


class Table(Generic[T]):
    """Numbers for the states of a kind of part."""

    def __init__(self, key: Callable[[T], Hashable] = lambda part: part) -> None:
        self._key = key
        self._numbers: dict[Hashable, int] = {}
        self.parts: list[T] = []

    def number(self, part: T) -> int:
        """The part's number, a new one if it is new."""
        key = self._key(part)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.parts)
            self.parts.append(part)
        return number

    def __len__(self) -> int:
        return len(self.parts)


Move: TypeAlias = tuple[Label, State]
ClientMove: TypeAlias = tuple[Label, int, tuple[tuple[int, Request], ...], tuple[tuple[Any, ...], ...]]
"""A client's step: its label, the client's number after it, what it sends, what it asks the store."""
