"""Shrinking the tombstones of deleted ledgers when their time has passed.

Until then a tombstone refuses late adds, for which it keeps fence and key. After that it only keeps dead what segments
still hold: many fit into one record, and one of which nothing is held any more goes without a record.

Source: `docs/formats/segment.md`, "Deleted ledgers".
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from quire.core.errors import StorageError
from quire.env.interfaces import Clock
from quire.storage.journal import Journal
from quire.storage.segments.segment_files import Space
from quire.storage.slices import LEDGERS_A_STEP, Slice
from quire.storage.states import DUE_MS, TOMBSTONES_MAX, States, facts_of


class TombstoneShrinker:
    """Shrinks the records of deleted ledgers once late adds are impossible.

    Args:
        states: the tombstones.
        journal: where they go.
        clock: for the length of a slice.
    """

    def __init__(self, states: States, journal: Journal, clock: Clock) -> None:
        self._states = states
        self._journal = journal
        self._clock = clock

    def steps(self, wall_ms: int) -> Iterator[list[int]]:
        """Shrink what was to refuse adds until `wall_ms` or earlier, in slices.

        Yields:
            The ledgers of a slice: nothing is refused for them any more. On a full or failed disk it ends early.
        """
        states, part = self._states, Slice(self._clock)
        packed: dict[int, None] = {}  # a ledger may be noted twice
        removed: list[int] = []
        not_yet: list[int] = []
        try:
            for ledger_id in self._due(wall_ms, not_yet):
                if ledger_id is None:
                    pass
                elif states.keeps_dead(ledger_id, states.tombstones[ledger_id]):
                    packed[ledger_id] = None
                else:
                    del states.tombstones[ledger_id]
                    removed.append(ledger_id)
                over = part.over
                if len(packed) == TOMBSTONES_MAX or over:
                    removed += self._shrink(packed)
                    packed = {}
                if over:
                    yield removed
                    removed = []
                    part.begin()
            removed += self._shrink(packed)
            packed = {}
        except StorageError:
            pass  # they stay as they are; a later call tries again
        finally:
            for ledger_id in (*packed, *not_yet):
                ledger = states.tombstones.get(ledger_id)
                if ledger is not None:
                    states.note_due(ledger_id, ledger)
        if removed:
            yield removed

    def _due(self, wall_ms: int, not_yet: list[int]) -> Iterator[int | None]:
        """The tombstones that are to shrink now, taken off the notes; those that must wait are added to a list.

        None: nothing, but it is time to look at the clock.
        """
        due, tombstones = self._states.due, self._states.tombstones
        for time in [time for time in due if time <= wall_ms // DUE_MS]:
            some = due[time]
            while some:
                ledger_id = some.pop()
                ledger = tombstones.get(ledger_id)
                if ledger is None or facts_of(ledger).deleted_until_ms // DUE_MS != time or ledger.last >= 0:
                    continue  # another note is right, or there is none: it lives again, or has newer entries
                # While a power cut may undo the deletion its tombstone stands for it.
                if (
                    facts_of(ledger).deleted_until_ms > wall_ms
                    or ledger.state_lsn > self._journal.durable_lsn
                ):
                    not_yet.append(ledger_id)
                    if not len(not_yet) % LEDGERS_A_STEP:
                        yield None
                    continue
                yield ledger_id
            due.pop(time, None)

    def _shrink(self, ledger_ids: dict[int, None]) -> dict[int, None]:
        states = self._states
        if ledger_ids:
            states.put_shrunk(array("q", ledger_ids), Space.ADDS)
            for ledger_id in ledger_ids:
                states.shrunk[ledger_id] = states.tombstones.pop(ledger_id).holders
            self._journal.flush(inline=False)
        return ledger_ids
