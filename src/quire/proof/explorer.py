"""Breadth-first search through every state of a world, and the shortest way to one that breaks an invariant.

It knows a world only by `initial` and `successors`. States are kept with the state that they were first reached from,
so a way back costs no more than the visit; its labels are worked out again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from quire.proof.invariants import Violation

PROGRESS_SECONDS = 1.0


class Explorable(Protocol):
    """What can be explored."""

    def initial(self) -> Any:
        """Where everything begins."""

    def successors(self, state: Any) -> Iterable[tuple[Any, Any]]:
        """Every (label, state after it)."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a search is."""

    states: int
    generated: int
    depth: int
    frontier: int
    seconds: float

    @property
    def rate(self) -> float:
        """Transitions a second."""
        return self.generated / self.seconds if self.seconds else 0.0


@dataclass(slots=True)
class Result:
    """What a search found.

    Attributes:
        states: distinct states.
        generated: the initial state and every transition.
        transitions: every transition.
        depth: steps to the farthest state.
        complete: every state was visited.
        violation: what is wrong, if anything.
        path: the shortest way there: (label, state after it), the first with label None.
        kinds: how often each kind of step occurred.
    """

    states: int = 0
    transitions: int = 0
    depth: int = 0
    seconds: float = 0.0
    complete: bool = False
    violation: Violation | None = None
    path: list[tuple[Any, Any]] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)

    @property
    def generated(self) -> int:
        """Initial states and transitions, as TLC counts."""
        return self.transitions + 1

    @property
    def rate(self) -> float:
        """Transitions a second."""
        return self.transitions / self.seconds if self.seconds else 0.0


def explore(
    world: Explorable,
    violation_in: Callable[[Any], Violation | None],
    deadlock_in: Callable[[Any], Violation | None] | None = None,
    *,
    canonical: Callable[[Any], Any] | None = None,
    progress: Callable[[Progress], None] | None = None,
    states_max: int | None = None,
    seconds_max: float | None = None,
    count_kinds: bool = False,
) -> Result:
    """Visit every state that can be reached, nearest first, until one breaks an invariant.

    Args:
        violation_in: the invariants.
        deadlock_in: asked of states without a next step.
        canonical: one representative for states that differ by names only.
        progress: called about once a second.
        states_max, seconds_max: stop, incomplete, beyond these.
        count_kinds: count the kinds of steps.
    """
    begun = time.perf_counter()
    result = Result()
    first = world.initial()
    if canonical is not None:
        first = canonical(first)
    came_from: dict[Hashable, Any] = {first: None}
    level: list[Any] = [first]
    kinds: Counter[str] = Counter()
    result.violation = violation_in(first)
    transitions, depth, last_report = 0, 0, begun
    bad = first if result.violation else None
    successors = world.successors
    while level and bad is None:
        following: list[Any] = []
        for index, state in enumerate(level):
            moves = successors(state)
            if not moves and deadlock_in is not None:
                result.violation = deadlock_in(state)
                if result.violation is not None:
                    bad = state
                    break
            transitions += len(moves)  # type: ignore[arg-type]
            for label, after in moves:
                if canonical is not None:
                    after = canonical(after)  # noqa: PLW2901
                if count_kinds:
                    kinds[f"{label.actor.split()[0]} {label.kind}"] += 1
                if after in came_from:
                    continue
                came_from[after] = state
                following.append(after)
                violation = violation_in(after)
                if violation is not None:
                    result.violation, bad = violation, after
                    break
            if bad is not None:
                break
            if not index & 1023:
                now = time.perf_counter()
                if progress is not None and now - last_report >= PROGRESS_SECONDS:
                    last_report = now
                    frontier = len(level) - index + len(following)
                    progress(Progress(len(came_from), transitions, depth, frontier, now - begun))
                if (states_max and len(came_from) > states_max) or (
                    seconds_max and now - begun > seconds_max
                ):
                    result.states, result.transitions, result.depth = len(came_from), transitions, depth
                    result.seconds, result.kinds = now - begun, kinds
                    return result
        if following:
            depth += 1
        level = following
    result.complete = bad is None
    result.states, result.transitions, result.depth = len(came_from), transitions, depth
    result.kinds = kinds
    if bad is not None:
        result.path = way_to(world, came_from, bad, canonical)
    result.seconds = time.perf_counter() - begun
    return result


def way_to(
    world: Explorable, came_from: dict[Hashable, Any], state: Any, canonical: Callable[[Any], Any] | None
) -> list[tuple[Any, Any]]:
    """The labels and states from the beginning to a state.

    With a `canonical` form the states on the way are representatives; the way is walked again from the beginning with
    the names as they are.
    """
    chain = []
    while state is not None:
        chain.append(state)
        state = came_from[state]
    chain.reverse()
    here = world.initial()
    path: list[tuple[Any, Any]] = [(None, here)]
    for wanted in chain[1:]:
        for label, after in world.successors(here):
            if (canonical(after) if canonical is not None else after) == wanted:
                here = after
                path.append((label, here))
                break
        else:  # pragma: no cover - the search took this step before
            msg = "a step of the way is not possible any more"
            raise AssertionError(msg)
    return path
