"""What is said of a ledger whose bookies hold another ledger's entries under the same id.

Source: `docs/metadata.md`, "Restoring a backup".
"""

from __future__ import annotations

from collections.abc import Iterable

from quire.core.errors import LedgerIdReusedError
from quire.core.ids import BookieId


def reused_id(ledger_id: int, bookies: Iterable[BookieId]) -> LedgerIdReusedError:
    """The error for a ledger that was opened or read, and to which these bookies responded WRONG_TOKEN."""
    named = tuple(bookies)
    return LedgerIdReusedError(
        f"ledger {ledger_id}: id {ledger_id} was used before by another ledger, and "
        f"{', '.join(named)} hold entries of that ledger under it; no entry of this ledger can be "
        "read there; if the metadata store was restored from a backup, see docs/metadata.md, "
        "'Restoring a backup'",
        ledger_id=ledger_id,
        bookies=named,
    )
