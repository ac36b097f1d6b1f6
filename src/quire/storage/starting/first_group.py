"""The group that a start writes before anything is served: a record of the start, and all that it puts in limbo.

Source: `docs/formats/segment.md`, "What a crash can leave, and what the start does"; docs/protocol/bookie.md, "Limbo".
"""

from __future__ import annotations

from typing import Final

from quire.core.bookie.ledger import LedgerFacts
from quire.core.bookie.limbo import Limbo
from quire.storage.formats.record_bodies import UnnamedLimbo
from quire.storage.formats.segment_format import ALL_LEDGERS, SegmentRecordKind
from quire.storage.formats.state_format import encode_state
from quire.storage.journal import Journal
from quire.storage.segments.segment_files import Space
from quire.storage.starting.start import Start
from quire.storage.states import States, StoredLedger, facts_of, stored_state
from quire.wire.stored_record import RECORD_HEADER_BYTES, padded

ROOM_FOR_LISTS: Final = 2048
"""Left free in the group for the list of segments. Ledgers that do not fit in are put in limbo all together."""


def write_start(start: Start, states: States, journal: Journal, group_bytes_max: int) -> int:
    """Put the record of a start and what it puts in limbo in one group, so that they are there as a whole or not at all.

    Args:
        start: what was found; its report learns whether all unknown ledgers are in limbo.
        states: the ledgers; those that the start names are in limbo from here on.
        journal: nothing was put since the start.
        group_bytes_max: a group takes so many bytes.

    Returns:
        The LSN of the record of the start.

    Raises:
        StorageError: the disk fails, or has no room even for this.
    """
    space = Space.RETIREMENT  # a start must not fail for want of space while there is any
    _, _, since = journal.put(SegmentRecordKind.START, ALL_LEDGERS, b"", space)
    named = {ledger_id: _known(states, ledger_id) for ledger_id in sorted(start.named)}
    for ledger in named.values():
        facts_of(ledger).limbo = Limbo(since)
    room = min(group_bytes_max, journal.record_bytes_max // 2) - ROOM_FOR_LISTS
    bodies = [encode_state(stored_state(ledger)) for ledger in named.values()]
    if start.all_in_limbo or sum(padded(RECORD_HEADER_BYTES + len(body)) for body in bodies) > room:
        _all_enter_limbo(start, states, since)
    else:
        for ledger_id, ledger in named.items():
            states.put(SegmentRecordKind.LEDGER_STATE, ledger_id, ledger, space)
    return since


def _all_enter_limbo(start: Start, states: States, since: int) -> None:
    """One record puts every ledger in limbo. A name that is not written down, and stands nowhere else, is none."""
    before = states.unnamed_limbo
    nameless = start.all_in_limbo or start.unknown_named
    limbo = UnnamedLimbo(since, nameless or before.unknown, since if nameless else before.lost_at)
    states.put_unnamed_limbo(limbo, Space.RETIREMENT)
    start.report.unknown_in_limbo = limbo.unknown
    for ledgers in (states.ledgers, states.tombstones):
        for ledger_id, ledger in ledgers.items():
            facts = ledger.facts = ledger.facts or LedgerFacts(ledger_id)
            facts.limbo = Limbo(since)


def _known(states: States, ledger_id: int) -> StoredLedger:
    ledger = states.get(ledger_id)
    assert ledger is not None
    return ledger
