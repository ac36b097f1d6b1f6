"""Which ledgers a sealed segment says something about: columns of plain ids, as there are many segments and ledgers."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Final, NamedTuple

from quire.storage.formats.segment_format import ALL_LEDGERS
from quire.storage.formats.state_format import brings_life, is_shrunk
from quire.wire.entry import Buffer


class Contents(NamedTuple):
    """The ledgers of one segment, each id once in a column.

    Attributes:
        entries: those with entries here, dead or not.
        others: the rest of those with kept records or the state of a living ledger here. That, and entries, could come back
            if a newer tombstone were lost. The state of a deleted ledger and a shrunk tombstone cannot.
        stated: those with a state here that is no shrunk tombstone.
        shrunk: those with a shrunk tombstone here.
        kept: those with records here that are relocated as they are; -1 if they concern all.
    """

    entries: array[int]
    others: array[int]
    stated: array[int]
    shrunk: array[int]
    kept: array[int]

    @property
    def held(self) -> tuple[array[int], array[int]]:
        """The ledgers of which something is here that could come back, in two columns."""
        return self.entries, self.others


_NONE: Final = array("q")
NOTHING: Final = Contents(_NONE, _NONE, _NONE, _NONE, _NONE)
"""Of a segment that is not sealed. Never changed."""


def contents_of(
    ledgers: Iterable[int], states: Iterable[tuple[int, Buffer]], kept: Iterable[int]
) -> Contents:
    """The contents of a segment.

    Args:
        ledgers: those with entries in it, each once.
        states: (ledger or -1 for the unnamed limbo, body) of the newest state of each.
        kept: the ledgers of its kept records.
    """
    of_kept = set(kept)
    others = set(of_kept)
    stated, shrunk = array("q"), array("q")
    for ledger_id, body in states:
        if ledger_id == ALL_LEDGERS:
            continue
        if is_shrunk(body):
            shrunk.append(ledger_id)
            continue
        stated.append(ledger_id)
        if brings_life(body):
            others.add(ledger_id)
    entries = array("q", ledgers)
    others.discard(ALL_LEDGERS)
    others.difference_update(entries)
    return Contents(entries, array("q", others), stated, shrunk, array("q", of_kept))
