"""Entries asked for one by one, looked up together: requests that came in one chunk share what one of them fetched.

A lookup is used in one loop turn, so it never hands out what has changed meanwhile.
"""

from __future__ import annotations

from typing import Final

from quire.bookie.ledgers.ledgers import Found, Ledgers
from quire.core.answers import Answer
from quire.core.ids import NO_ENTRY
from quire.wire.bookkeeper import LAST_ENTRY
from quire.wire.entry import Buffer
from quire.wire.native import Flag, Kind, Request
from quire.wire.run import RunView

AHEAD_ENTRIES: Final = 1024
AHEAD_BYTES: Final = 256 * 1024
"""How far beyond an entry a chunk's second request for the ledger looks."""
LEDGERS_MAX: Final = 64


def as_request(
    kind: Kind,
    ledger_id: int,
    *,
    key: bytes = b"",
    flags: Flag = Flag.NONE,
    lac: int = NO_ENTRY,
    body: Buffer = b"",
) -> Request:
    """A request of BookKeeper's protocols as the machines know requests."""
    return Request(kind, 0, flags, 0, 0, ledger_id, 0, key, 0, lac, NO_ENTRY, 0, memoryview(body))


class _Looked:
    """What one look at a ledger showed, from `first` on."""

    __slots__ = ("first", "found", "views")

    def __init__(self, first: int, found: Found) -> None:
        self.first = first
        self.found = found
        self.views = [RunView.parse(body) for body in found.runs]

    def says(self, entry_id: int) -> tuple[Answer, Buffer] | None:
        """What it says of an entry; None when it did not look there."""
        for view in self.views:
            if view.holds(entry_id):
                return Answer.OK, view.entry(view.position(entry_id))
        if entry_id < self.first:
            return None
        if self.found.answer is not Answer.OK:
            return self.found.answer, b""
        if any(low <= entry_id <= high for low, high in self.found.unknown):
            return Answer.UNKNOWN, b""
        return (Answer.NO_ENTRY, b"") if entry_id <= self.found.conclusive_through else None


class Lookup:
    """What requests of one turn see of the ledgers."""

    def __init__(self, ledgers: Ledgers) -> None:
        self._ledgers = ledgers
        self._looked: dict[int, _Looked] = {}

    def clear(self) -> None:
        """A new turn begins, or something was stored."""
        if self._looked:
            self._looked.clear()

    def entry(self, ledger_id: int, entry_id: int) -> tuple[Answer, Buffer, int]:
        """(response, entry, known LAC) for an entry, or for the last one that is here."""
        if entry_id == LAST_ENTRY:
            last = self._ledgers.last_entry(ledger_id)
            if last != NO_ENTRY:
                return self.entry(ledger_id, last)
            answer, _, lac = self.entry(ledger_id, 0)
            return answer, b"", lac
        looked = self._looked.get(ledger_id)
        said = looked.says(entry_id) if looked is not None else None
        if said is None:
            bytes_max, last = (1, entry_id) if looked is None else (AHEAD_BYTES, entry_id + AHEAD_ENTRIES)
            found = self._ledgers.read(as_request(Kind.READ, ledger_id), entry_id, last, bytes_max)
            if len(self._looked) >= LEDGERS_MAX:
                self._looked.clear()
            looked = self._looked[ledger_id] = _Looked(entry_id, found)
            said = looked.says(entry_id) or (Answer.UNKNOWN, b"")
        assert looked is not None
        return *said, looked.found.lac

    def entries(
        self, ledger_id: int, first: int, count_max: int, bytes_max: int
    ) -> tuple[Answer, list[Buffer]]:
        """Entries from `first` on without a gap: one at least if it is here, then as many as fit.

        Args:
            count_max: no more than these; 0 or less: any number.
            bytes_max: of the response, by the count that Java keeps: 36, and each entry with 4 more.
        """
        found: list[Buffer] = []
        size = 36
        answer = Answer.OK
        while count_max <= 0 or len(found) < count_max:
            said, entry, _ = self.entry(ledger_id, first + len(found))
            if said is not Answer.OK:
                answer = answer if found else said
                break
            size += len(entry) + 4
            if found and size > bytes_max:
                break
            found.append(entry)
        return answer, found
