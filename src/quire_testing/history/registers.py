"""Is there an order of these operations that one register could have taken?

A Wing-Gong search with Lowe's memory of configurations, one register at a time, cut where nothing was under way: what may
have been the state there is all that has to be remembered. Operations of unknown outcome stay possible for ever.

It does not know what a register holds: a model says what an operation does to a state.

Source: docs/formats/history.md, "What is judged": 12; Wing and Gong; Lowe, section 3.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final

CONFIGURATIONS_MAX: Final = 100_000
"""One cut's search gives up beyond this many."""

Model = Callable[[Hashable, "Call"], Hashable | None]
"""`model(state, call)`: the state after the call, or None if the call cannot have had its response in this state."""


@dataclass(slots=True, eq=False)
class Call:
    """One operation on a register.

    Args:
        kind: what was asked.
        arguments: with what.
        invoked: place of the invocation, which is its number among the events in the order of judgement.
        result: the response; None while there is none.
        answered: place of the response.
        known: it was answered ok; an operation of unknown outcome may have happened or not.
    """

    kind: str
    arguments: Any
    invoked: int
    result: Any = None
    answered: int = -1
    known: bool = False


Configuration = tuple[Hashable, frozenset[Call]]
"""What the register may hold, and the operations of unknown outcome that have not happened yet."""


class RegisterSearch:
    """One register's operations in the order in which they come.

    Args:
        initial: what it holds at first; `ANYTHING` if that is not known: the first response tells.
        model: what operations do.
    """

    __slots__ = ("_configurations", "_finished", "_model", "_under_way", "exhausted", "given_up", "length")

    def __init__(self, initial: Hashable, model: Model) -> None:
        self._model = model
        self._configurations: set[Configuration] = {(initial, frozenset())}
        self._under_way: set[Call] = set()
        self._finished: list[Call] = []
        self.length = 0
        self.given_up = False
        """Nothing more is judged: there was a violation, or too much to look at."""
        self.exhausted = False
        """There was too much to look at."""

    def invoke(self, call: Call) -> None:
        """An operation begins."""
        self._under_way.add(call)

    def fail(self, call: Call) -> None:
        """It did not happen."""
        self._under_way.discard(call)

    def unknown(self, call: Call) -> None:
        """It may have happened, or may happen yet."""
        self._under_way.discard(call)
        self._configurations = {(state, waiting | {call}) for state, waiting in self._configurations}

    def ok(self, call: Call, result: Any, place: int) -> Call | None:
        """It happened. If nothing is under way any more, all since the last cut is judged.

        Returns:
            The first call, in order of responses, that fits nowhere; None if all is well so far.
        """
        self._under_way.discard(call)
        call.result, call.answered, call.known = result, place, True
        self._finished.append(call)
        self.length += 1
        return None if self._under_way else self.cut()

    def cut(self) -> Call | None:
        """Judge what has been answered since the last cut.

        Returns:
            The first call, in order of responses, that fits nowhere; None if there is none.
        """
        calls, self._finished = self._finished, []
        for call in self._under_way:
            self._configurations = {(state, waiting | {call}) for state, waiting in self._configurations}
        self._under_way.clear()
        if not calls or self.given_up:
            return None
        found = self._search(calls)
        if found is None:
            self.given_up = self.exhausted = True
            return None
        after, furthest = found
        if after:
            self._configurations = after
            return None
        self.given_up = True
        return furthest

    def _search(self, calls: list[Call]) -> tuple[set[Configuration], Call] | None:
        """Every configuration that an order of all these calls can end in, and the call that nothing got beyond.

        None if that is too much to look at.

        Calls are bits of a number, in the order of their responses: the lowest bit left is the next that must be over.
        """
        concurrent = _concurrent(calls)
        seen: set[tuple[Hashable, frozenset[Call], int]] = set()
        todo = [(state, waiting, (1 << len(calls)) - 1) for state, waiting in self._configurations]
        ends: set[Configuration] = set()
        furthest = 0
        while todo:
            here = todo.pop()
            if here in seen:
                continue
            seen.add(here)
            if len(seen) > CONFIGURATIONS_MAX:
                return None
            state, waiting, left = here
            if not left:
                ends.add((state, waiting))
                continue
            next_over = (left & -left).bit_length() - 1
            furthest = max(furthest, next_over)
            todo += self._steps(here, calls, concurrent[next_over], calls[next_over].answered)
        return ends, calls[furthest]

    def _steps(
        self,
        here: tuple[Hashable, frozenset[Call], int],
        calls: list[Call],
        candidates: list[int],
        answered: int,
    ) -> list[tuple[Hashable, frozenset[Call], int]]:
        """Where one more call leads. One that changes nothing is taken at once: waiting cannot help it."""
        state, waiting, left = here
        steps = []
        for index in candidates:
            if not left >> index & 1:
                continue
            then = self._model(state, calls[index])
            if then is None:
                continue
            step = then, waiting, left & ~(1 << index)
            if then == state:
                return [step]
            steps.append(step)
        for call in waiting:
            if call.invoked < answered and (then := self._model(state, call)) is not None:
                steps.append((then, waiting - {call}, left))
        return steps


def _concurrent(calls: list[Call]) -> list[list[int]]:
    """For each call, in order of responses, those that may come before it is over: they were invoked by then."""
    by_invocation = sorted(range(len(calls)), key=lambda index: calls[index].invoked)
    invoked = [calls[index].invoked for index in by_invocation]
    found = []
    open_calls: list[int] = []
    begun = 0
    for index, call in enumerate(calls):
        more = bisect_left(invoked, call.answered, begun)
        open_calls = [other for other in open_calls if other >= index] + by_invocation[begun:more]
        begun = more
        found.append([other for other in open_calls if other >= index])
    return found


ABSENT: Final = ("absent",)
ANYTHING: Final = ("anything",)
"""The state of a register of which nothing is known yet."""


def register(state: Hashable, call: Call) -> Hashable | None:
    """A metadata register: `get`, and `swap` from what is expected to a value; null is an absent key."""
    if call.kind == "get":
        value = _held(call.result)
        return value if state in {value, ANYTHING} else None
    expected, value = call.arguments
    return _held(value) if state in {_held(expected), ANYTHING} else None


def _held(value: str | None) -> Hashable:
    return ABSENT if value is None else value


def log_list(state: Hashable, call: Call) -> Hashable | None:
    """The list of a log: (version, ledgers); -1 is the version of a list that is not there."""
    if call.kind == "list_read":
        return call.result if state in {call.result, ANYTHING} else None
    expected, ledgers = call.arguments
    if state != ANYTHING and (not isinstance(state, tuple) or state[0] != expected):
        return None
    if call.known:
        return call.result, ledgers
    return expected + 1, ledgers
