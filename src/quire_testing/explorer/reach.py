"""Can it always still come to a good end? From every state of a small world, some state of a kind must be reachable.

This is "possible", not "certain" (EF, not AF): cheap, and enough to catch a recovery that can never close. No further
fault may be needed for it: steps that spend the budget of faults do not count as a way out.

Source: docs/counterexamples.md, "What must hold": F1; docs/testing-figures.md, "What the explorer has seen".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from quire.core.log.machine import LogStatus
from quire_testing.explorer.explorer import Explorable
from quire_testing.explorer.log_parts import LogState
from quire_testing.explorer.log_world import LogWorld
from quire_testing.explorer.repairers import entries_of_decided
from quire_testing.explorer.tables import CAS_LOST, Label, State
from quire_testing.explorer.world import LedgerWorld

FAULTS: Final = frozenset(
    {"timeout", "crash", "break", "lost swap", "damage", "delete", "loss", "transit damage"}
)
"""Kinds of steps that spend the budget of faults."""


def is_fault(label: Label) -> bool:
    """Whether a step is something that goes wrong."""
    return label.kind in FAULTS or label.command == CAS_LOST


def stranded(
    world: Explorable, good: Callable[[Any], bool], canonical: Callable[[Any], Any] = lambda state: state
) -> list[Any]:
    """The states from which no good state can be reached without a further fault; empty is well."""
    first = canonical(world.initial())
    before: dict[Any, list[Any]] = {first: []}
    level = [first]
    while level:
        following = []
        for state in level:
            for label, after in world.successors(state):
                there = canonical(after)
                if there not in before:
                    before[there] = []
                    following.append(there)
                if not is_fault(label):
                    before[there].append(state)
        level = following
    hopeful = {state for state in before if good(state)}
    level = list(hopeful)
    while level:
        level = list({each for state in level for each in before[state]} - hopeful)
        hopeful.update(level)
    return [state for state in before if state not in hopeful]


def recovery_is_done(world: LedgerWorld) -> Callable[[State], bool]:
    """Whether a recoverer of a state has closed the ledger, or found it closed."""

    def done(state: State) -> bool:
        return any(client.result == "closed" for client in world.clients_of(state))

    return done


def is_repaired(world: LedgerWorld) -> Callable[[State], bool]:
    """Whether no decided fragment of a state lacks anything, and none names a lost bookie."""

    def repaired(state: State) -> bool:
        record = world.stores.parts[state[world.at.store]].record
        if record is None:
            return False
        decided = [(world.bookies.parts[state[bookie]], own) for bookie, own in entries_of_decided(record)]
        return not any(bookie.lost or own & ~bookie.held for bookie, own in decided)

    return repaired


def log_is_settled(world: LogWorld) -> Callable[[LogState], bool]:
    """Whether every handle of a state leads or has ended (or waits for a ledger that the world has not), no truncation waits."""

    def settled(state: LogState) -> bool:
        starved = len(state.ledgers) >= world.configuration.ledgers
        for number in state.handles:
            handle = world.handles.parts[number]
            over = handle.machine.status in (LogStatus.SERVING, LogStatus.ENDED)
            if not over and not (starved and ("create",) in handle.work):
                return False
        return all(world.trimmers.parts[number].ended for number in state.trimmers)

    return settled
