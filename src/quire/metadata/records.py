"""What clients ask of the store of their records: writers and readers of ledgers' or streams', repairs of both.

Source: docs/formats/stream.md, "Keys".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from quire.core.ledger.holes import with_holes
from quire.core.ledger.metadata import LedgerMetadata, LedgerState
from quire.core.ledger.notes import LedgerNotes
from quire.core.ledger.writer_state import Hole
from quire.metadata.store import StoreBusyError, VersionConflictError, Watch

ATTEMPTS_MAX: Final = 5
"""How often a record is read that others change meanwhile."""


class RecordStore(Protocol):
    """The records of ledgers (`LedgerStore`) or of streams (`StreamStore`), changed by compare-and-swap."""

    async def read(self, ledger_id: int, /) -> tuple[LedgerMetadata, int]:
        """A record and the version to name when changing it."""

    async def write(self, record: LedgerMetadata, version: int, /) -> int:
        """Replace the record that has a version; returns the new one."""

    async def write_with_holes(self, record: LedgerMetadata, holes: Iterable[Hole], version: int, /) -> int:
        """Replace the record that has a version, with these holes among its notes; returns the new version."""

    async def add_holes(self, ledger_id: int, holes: Sequence[Hole], /) -> None:
        """Put holes among the notes of a record, whatever else becomes of it meanwhile."""

    def watch(self, ledger_id: int, /) -> Watch:
        """Changes of one record."""


class NotedRecords(Protocol):
    """Records with their notes: of ledgers (`LedgerStore`), of streams (`StreamStore`), or of both (`AllRecords`)."""

    async def read(self, ledger_id: int, /) -> tuple[LedgerMetadata, int]:
        """A record and the version to name when changing it."""

    async def read_with_notes(self, ledger_id: int, /) -> tuple[LedgerMetadata, LedgerNotes, int]:
        """A record, its holes and accepted losses of the same moment, and the version to name."""

    async def write_with_notes(self, record: LedgerMetadata, notes: LedgerNotes, version: int, /) -> int:
        """Replace the record that has a version, and its notes with it; returns the new version."""


async def add_holes_to(records: NotedRecords, what: str, ledger_id: int, holes: Sequence[Hole]) -> None:
    """Put holes among the notes of a record, whatever else becomes of it meanwhile.

    A record that another client is recovering or taking over is left alone: its fragments may change until the end of that.

    Args:
        records: where it is.
        what: "ledger" or "stream", for the error.
        ledger_id: which.
        holes: what bookies that it names may lack.

    Raises:
        StoreBusyError: the record was changed again and again.
        QuireError: as reading and writing it.
    """
    for _ in range(ATTEMPTS_MAX):
        record, notes, version = await records.read_with_notes(ledger_id)
        after = with_holes(notes, record, holes)
        if after == notes or record.state is LedgerState.IN_RECOVERY:
            return
        try:
            await records.write_with_notes(record, after, version)
        except VersionConflictError:
            continue
        return
    msg = f"the record of {what} {ledger_id} was changed {ATTEMPTS_MAX} times while holes were put into it; try again"
    raise StoreBusyError(msg, ledger_id=ledger_id)
