"""Breadth-first search through every state of a world, and the shortest way to one that breaks an invariant.

It knows a world only by `initial` and `successors`. States are kept with the state that they were first reached from,
so a way back costs no more than the visit; its labels are worked out again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from quire_testing.explorer.invariants import Violation

PROGRESS_SECONDS = 1.0


class Explorable(Protocol):
    """What can be explored."""

    def initial(self) -> Any:
        """Where everything begins."""

    def successors(self, state: Any) -> Sequence[tuple[Any, Any]]:
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


class Pace:
    """Says how far a search is, about once a second, and when it is to be stopped."""

    def __init__(
        self, progress: Callable[[Progress], None] | None, states_max: int | None, seconds_max: float | None
    ) -> None:
        self._progress = progress
        self._states_max = states_max
        self._seconds_max = seconds_max
        self._begun = self._reported = time.perf_counter()

    @property
    def seconds(self) -> float:
        """How long the search has been going."""
        return time.perf_counter() - self._begun

    def over(self, states: int, transitions: int, depth: int, frontier: int) -> bool:
        """Whether a limit is reached; reports on the way."""
        now = time.perf_counter()
        if self._progress is not None and now - self._reported >= PROGRESS_SECONDS:
            self._reported = now
            self._progress(Progress(states, transitions, depth, frontier, now - self._begun))
        too_many = self._states_max is not None and states > self._states_max
        return too_many or (self._seconds_max is not None and now - self._begun > self._seconds_max)


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
    begin: Sequence[tuple[Any, Any]] = (),
) -> Result:
    """Visit every state that can be reached, nearest first, until one breaks an invariant.

    Args:
        violation_in: the invariants.
        deadlock_in: asked of states without a next step.
        canonical: one representative for states that differ by names only.
        progress: called about once a second.
        states_max, seconds_max: stop, incomplete, beyond these.
        count_kinds: count the kinds of steps.
        begin: a path from the initial state on, as in `Result.path`, behind whose end the search begins.
    """
    pace = Pace(progress, states_max, seconds_max)
    result = Result()
    begin = begin or [(None, world.initial())]
    first = begin[-1][1] if canonical is None else canonical(begin[-1][1])
    came_from: dict[Hashable, Any] = {first: None}
    kinds = result.kinds
    bad = None
    successors = world.successors
    result.violation = violation_in(first)
    level = [first] if result.violation is None else []
    given_up = False
    while level and result.violation is None and not given_up:
        following: list[Any] = []
        for index, state in enumerate(level):
            moves = successors(state)
            if not moves and deadlock_in is not None:
                result.violation, bad = deadlock_in(state), state
            result.transitions += len(moves)
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
            if result.violation is not None:
                break
            if not index & 1023:
                frontier = len(level) - index + len(following)
                given_up = pace.over(len(came_from), result.transitions, result.depth, frontier)
                if given_up:
                    break
        result.depth += bool(following)
        level = following
    result.states = len(came_from)
    result.complete = result.violation is None and not given_up
    if result.violation is not None:
        result.path = way_to(world, came_from, first if bad is None else bad, canonical, begin)
    result.seconds = pace.seconds
    return result


def way_to(
    world: Explorable,
    came_from: dict[Hashable, Any],
    state: Any,
    canonical: Callable[[Any], Any] | None,
    begin: Sequence[tuple[Any, Any]],
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
    path = list(begin)
    here = path[-1][1]
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
