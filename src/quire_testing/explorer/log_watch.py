"""What must hold in every state of a log's world: L1 to L7, by the names and texts of `invariants.LOG_INVARIANTS`.

Source: BookKeeper ledgers to logs; docs/counterexamples.md, "What must hold".
"""

from __future__ import annotations

from collections.abc import Iterator

from quire.core.log.list import LogHead
from quire_testing.explorer.invariants import LOG_INVARIANTS, Violation
from quire_testing.explorer.log_parts import LogState
from quire_testing.explorer.log_world import LogWorld


class LogWatch:
    """Looks at states of a log's world."""

    def __init__(self, world: LogWorld, names: tuple[str, ...] = tuple(LOG_INVARIANTS)) -> None:
        self._world = world
        self._names = frozenset(names)

    def __call__(self, state: LogState) -> Violation | None:
        """The violation in a state, if there is one."""
        for found in self._found(state):
            if found is not None and found[0] in self._names:
                return Violation(*found)
        return None

    def _found(self, state: LogState) -> Iterator[tuple[str, str] | None]:
        yield state.fault
        for number in state.handles:
            yield self._world.handles.parts[number].fault
        for number in state.trimmers:
            yield self._world.trimmers.parts[number].fault
        head = self._world.heads.parts[state.head]
        listed = [int(ledger_id) for ledger_id in head.ledger_ids]
        yield from self._ledgers(state, head, listed)
        trimmed = sum(len(state.ledgers[ledger_id - 1].records) for ledger_id in state.dropped)
        if trimmed > head.start_offset:
            yield "L1", f"{trimmed} records were deleted, and the log starts at {head.start_offset}"
        ever = [*state.dropped, *listed]
        staged = {int(item.ledger_id) for adoption in head.adoptions for item in adoption.items}
        for number, ledger in enumerate(state.ledgers, 1):
            if ledger.owner < 0 and (number in ever) == (number in staged):
                yield "L1", f"a sink committed ledger {number}: it must wait for its place or have one, once"
        kept = [record for ledger_id in ever for record in state.ledgers[ledger_id - 1].records]
        yield from self._records(state, kept)

    def _ledgers(self, state: LogState, head: LogHead, listed: list[int]) -> Iterator[tuple[str, str] | None]:
        """L1 about deletion, L3, L6."""
        leader = head.leader.holder
        for ledger_id in listed:
            ledger = state.ledgers[ledger_id - 1]
            item = head.item(ledger_id)
            assert item is not None
            if ledger.deleted:
                yield "L1", f"ledger {ledger_id} is in the list and deleted"
            if not ledger.closed and f"h{ledger.owner}" != leader:
                yield (
                    "L3",
                    f"{leader or 'nobody'} leads, and handle {ledger.owner} can write to ledger {ledger_id}",
                )
            if not ledger.closed and not item.is_open:
                yield "L6", f"the list calls ledger {ledger_id} closed, and it is not"
        if len(head.open_items) > 2:
            yield "L6", f"the list calls {len(head.open_items)} ledgers open"

    def _records(self, state: LogState, kept: list[tuple[int, int]]) -> Iterator[tuple[str, str] | None]:
        """L1, L2, L7, of everything that is listed or was before a truncation."""
        acked = [record[:2] for record in state.acked]
        missing = [record for record in acked if record not in kept]
        if missing:
            yield (
                "L1",
                f"write {missing[0][1]} of handle {missing[0][0]} was acknowledged and is not in the log",
            )
        indexes = {record: index for index, record in enumerate(kept)}
        late = any(
            indexes.get(before, -1) > indexes.get(record[:2], len(kept))
            for record in state.acked
            for before in acked[: record[2]]
        )
        if late or len(indexes) != len(kept):
            yield "L2", "the log's order is not the order of acknowledgement"
        for who in range(len(state.handles)):
            numbers = [number for owner, number in kept if owner == who]
            if numbers != list(range(len(numbers))):
                yield "L7", f"the log keeps {numbers} of handle {who}"
