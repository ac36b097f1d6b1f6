"""Requests of which the explorer knows nothing, or which are one step with their responses: they pass at once.

Source: docs/testing-coverage.md, "Replay: the programs go where the explorer goes".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, Final

from quire_testing.replay.bookies import Bookie
from quire_testing.replay.clients import Program
from quire_testing.replay.frames import Sent
from quire_testing.replay.network import Line, ReplayNetwork

DURABLE: Final = ("clear_limbo", "fence", "truncate")
"""Requests that are answered once what they change is durable."""


class ImpossibleStepError(Exception):
    """The programs cannot do this step now."""


class Passing:
    """Answers requests of some kinds at once, or lets their time be over.

    Args:
        network: where they are.
    """

    def __init__(self, network: ReplayNetwork) -> None:
        self._network = network

    def answer(self, program: Program, kinds: Collection[str], bookies: Iterable[Bookie]) -> None:
        """All such requests are answered, and those that come of that; a lost bookie is silent."""
        while asked := [each for bookie in bookies for each in self._asked(program, kinds, bookie)]:
            bookie, line, sent = asked[0]
            if bookie.lost:
                self.give_up(program, kinds, bookie)
            else:
                _passes(program, bookie, line, sent)

    def give_up(self, program: Program, kinds: Collection[str], bookie: Bookie) -> None:
        """The time of all such requests to a bookie is over."""
        while asked := self._asked(program, kinds, bookie):
            for _, line, sent in asked:
                line.requests.remove(sent)
                program.give_up(bookie.name, partial(_is_number, sent.number))

    def is_back(self, writer: Program, name: str, bookies: Iterable[Bookie]) -> None:
        """A bookie answers the writer's probe, and no other does in time.

        Raises:
            ImpossibleStepError: it is not asked.
        """
        found = None
        for bookie in bookies:
            line = self._network.line(writer.number + 1, bookie.name)
            probes = [] if line is None else _probes(writer, bookie.name, line)
            if line is None or not probes:
                continue
            if bookie.name == name:
                found = bookie, line, probes[0]
            else:
                writer.give_up(bookie.name, partial(_is_probe, line))
        if found is None:
            msg = f"{name} is not asked whether it is back"
            raise ImpossibleStepError(msg)
        _passes(writer, *found)

    def _asked(
        self, program: Program, kinds: Collection[str], bookie: Bookie
    ) -> list[tuple[Bookie, Line, Sent]]:
        lines = self._network.all_lines(program.number + 1, bookie.name)
        return [(bookie, line, sent) for line in lines for sent in line.requests if sent.request[0] in kinds]


def _passes(program: Program, bookie: Bookie, line: Line, sent: Sent) -> None:
    line.requests.remove(sent)
    bookie.take(line.bookie.feed, sent, at_once=sent.request[0] in DURABLE)
    program.on_response(line, line.answers.pop())


def _probes(writer: Program, bookie: str, line: Line) -> list[Sent]:
    """What the writer asked an absent bookie now; an earlier probe that timed out may still be on its way."""
    return [s for s in line.requests if s.request == ("info",) and writer.awaits(bookie, s.number)]


def _is_number(wanted: int, number: int, _: object) -> bool:
    return number == wanted


def _is_probe(line: Line, number: int, _: object) -> bool:
    return line.text_of(number) == "info"


def first(found: Sequence[Any], wanted: Callable[[Any], bool]) -> Any:
    """The first that is wanted.

    Raises:
        ImpossibleStepError: none is.
    """
    if chosen := [each for each in found if wanted(each)]:
        return chosen[0]
    msg = f"none of {len(found)} is what the step is about"
    raise ImpossibleStepError(msg)
