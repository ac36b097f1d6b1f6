"""Can it always still come to a good end? From every state of a small world, some state of a kind must be reachable.

This is "possible", not "certain" (EF, not AF): cheap, and enough to catch a recovery that can never close.

Source: checking reference 1.3; protocol reference 9, F1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quire.proof.explorer import Explorable
from quire.proof.parts import State
from quire.proof.world import World


def stranded(world: Explorable, good: Callable[[Any], bool], canonical: Callable[[Any], Any]) -> list[Any]:
    """The states from which no good state can be reached; empty is well."""
    first = canonical(world.initial())
    before: dict[Any, list[Any]] = {first: []}
    level = [first]
    while level:
        following = []
        for state in level:
            for _, after in world.successors(state):
                there = canonical(after)
                if there not in before:
                    before[there] = []
                    following.append(there)
                before[there].append(state)
        level = following
    hopeful = {state for state in before if good(state)}
    level = list(hopeful)
    while level:
        level = list({each for state in level for each in before[state]} - hopeful)
        hopeful.update(level)
    return [state for state in before if state not in hopeful]


def recovery_is_done(world: World) -> Callable[[State], bool]:
    """Whether a recoverer of a state has closed the ledger, or found it closed."""

    def done(state: State) -> bool:
        return any(client.result == "closed" for client in world.clients_of(state))

    return done
