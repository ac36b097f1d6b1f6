"""The ledgers whose records have settled, since the last loss, that no fence was lost.

Source: `docs/protocol/bookie.md`, "After a loss".
"""

from __future__ import annotations

from typing import Final

ASKED_MAX: Final = 1 << 16
"""So many ledgers are kept; one that was dropped costs another read."""


class AskedLedgers:
    """Ledger ids, the newest `ASKED_MAX` of them."""

    __slots__ = ("_ids",)

    def __init__(self) -> None:
        self._ids: dict[int, None] = {}

    def __contains__(self, ledger_id: object) -> bool:
        return ledger_id in self._ids

    def note(self, ledger_id: int) -> None:
        """A ledger's record settled its fence."""
        while len(self._ids) >= ASKED_MAX:
            del self._ids[next(iter(self._ids))]
        self._ids[ledger_id] = None
