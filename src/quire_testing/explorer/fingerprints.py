"""The same search with a 64-bit fingerprint for each state it has seen, for worlds that would not fit into memory.

A state costs about 70 bytes so, not 450 to 750. Two states of one fingerprint would be taken for one: at 50 million
states the chance that this happens anywhere is below one in ten thousand. There is no way back from a fingerprint, so
a violation is looked for again with `explorer.explore`, which keeps the states.

Source: docs/decisions/006-explorer.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quire_testing.explorer.explorer import Explorable, Pace, Progress, Result
from quire_testing.explorer.invariants import Violation


def explore_by_fingerprints(
    world: Explorable,
    violation_in: Callable[[Any], Violation | None],
    deadlock_in: Callable[[Any], Violation | None] | None = None,
    *,
    canonical: Callable[[Any], Any] = lambda state: state,
    progress: Callable[[Progress], None] | None = None,
    states_max: int | None = None,
    seconds_max: float | None = None,
) -> Result:
    """Visit every state that can be reached, nearest first; the arguments are those of `explore`.

    Returns:
        A result without a path, even if there is a violation.
    """
    pace = Pace(progress, states_max, seconds_max)
    result = Result()
    first = canonical(world.initial())
    seen = {hash(first)}
    result.violation = violation_in(first)
    level = [first]
    given_up = False
    successors = world.successors
    while level and result.violation is None and not given_up:
        following: list[Any] = []
        for index, state in enumerate(level):
            moves = successors(state)
            if not moves and deadlock_in is not None:
                result.violation = deadlock_in(state)
            result.transitions += len(moves)
            for _, after in moves:
                there = canonical(after)
                fingerprint = hash(there)
                if fingerprint not in seen:
                    seen.add(fingerprint)
                    following.append(there)
                    result.violation = result.violation or violation_in(there)
            if result.violation is not None:
                break
            if not index & 1023:
                frontier = len(level) - index + len(following)
                given_up = pace.over(len(seen), result.transitions, result.depth, frontier)
                if given_up:
                    break
        result.depth += bool(following)
        level = following
    result.states = len(seen)
    result.complete = result.violation is None and not given_up
    result.seconds = pace.seconds
    return result
