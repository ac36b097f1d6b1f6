"""The identities of the protocol and their limits.

Source: BookKeeper protocol, "Ledgers": a ledger's id is "a 64bit integer, unique within the system".
"""

from __future__ import annotations

from typing import Final, NewType

LedgerId = NewType("LedgerId", int)
"""A ledger's id, 0 .. 2**63 - 1."""

EntryId = NewType("EntryId", int)
"""An entry's index in its ledger, from 0, without gaps; `NO_ENTRY` (-1) means "none"."""

Slot = NewType("Slot", int)
"""A position in an ensemble, 0 .. E - 1."""

BookieId = NewType("BookieId", str)
"""A bookie's name. It includes the incarnation of its disk, so a wiped disk is another bookie."""

Term = NewType("Term", int)
"""A writer's turn on an unbounded ledger; 0 on an ordinary ledger, which has no terms."""

NO_ENTRY: Final = EntryId(-1)
ID_MAX: Final = 2**63 - 1
ENSEMBLE_MAX: Final = 64
"""A set of stripes, of a run or a hole, is a mask of 64 bits."""
