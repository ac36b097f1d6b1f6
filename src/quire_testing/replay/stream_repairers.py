"""Repairers of a stream in a replay: the client's own repair; when it asks bookies and the store is part of the schedule.

A list and its response are one step of the explorer, and so is the reading of a piece from its sources: those requests
pass at once, as in a ledger's replay. Copies travel as requests, and the record is read and written by steps.

Source: docs/testing-coverage.md, "Replay: the programs go where the explorer goes"; docs/protocol/repair.md, "Streams".
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Final

from quire.client.context import ClientContext
from quire.client.machines import Machines
from quire.core.ids import BookieId
from quire.core.repair.effects import CopyRange, EndLimbo, ListReplica, RepairEffect, RepairEnded
from quire_testing.explorer.bookies import LEDGER
from quire_testing.kit.stepped import StepClock
from quire_testing.replay.bookies import Bookie
from quire_testing.replay.clients import BY_STEPS, FirstOfAll, Program, read_error
from quire_testing.replay.frames import LISTS
from quire_testing.replay.passing import ImpossibleStepError, Passing, first
from quire_testing.replay.play import ScriptedRepair

TERMS: Final = ("fence", "truncate")
"""What goes before a list where terms only fence: a bookie takes the record's term, and drops what other terms left."""


class StreamRepairer(Program):
    """A client that repairs the stream, once."""

    machines: Machines
    passing: Passing
    bookies_of: Callable[[], Collection[Bookie]]
    repair: ScriptedRepair | None = None
    ended: asyncio.Task[RepairEnded] | None = None

    def begin(self, lost: Sequence[BookieId], candidates: Sequence[BookieId]) -> None:
        """Start with what an operator says of bookies.

        Raises:
            LookupError: it has begun.
        """
        if self.repair is not None:
            raise LookupError(self.name)
        self.bookies.spares = [*candidates]
        self.ended = self.act(partial(self._start, lost, candidates))
        assert self.ended is not None
        self.ended.add_done_callback(read_error)
        # The record is read here to learn the password, where the explorer's repairer does not.
        self.act(partial(self.store.answer, first(self.store.questions, lambda q: q.op is None)))

    def _start(self, lost: Sequence[BookieId], candidates: Sequence[BookieId]) -> asyncio.Task[RepairEnded]:
        context = ClientContext.of(
            self.bookies,
            self.records,
            StepClock(),
            FirstOfAll(),
            BY_STEPS,
            self.machines,
        )
        self.repair = ScriptedRepair(LEDGER, context, lost_bookies=lost, candidates=candidates)
        return self.loop.create_task(self.repair.run())

    def do(self, command: str) -> bool:
        """Do a step of its own; False: it is one like those of other clients."""
        begins = re.fullmatch(r"repairs, gone (.*)", command)
        reads = re.fullmatch(r"reads (\d+) of term \d+ for (b\d+): .*", command)
        asks = re.fullmatch(r"lists (b\d+)|ends the limbo \d+ of (b\d+): .*", command)
        if begins:
            lost = begins[1].removeprefix("none").split()
            there = [bookie.name for bookie in self.bookies_of() if bookie.name not in lost]
            self.begin([BookieId(name) for name in lost], [BookieId(name) for name in there])
        elif reads:
            self._ask(
                lambda each: (
                    isinstance(each, CopyRange)
                    and each.bookie == reads[2]
                    and each.entries.first == int(reads[1])
                )
            )
            self.passing.answer(self, ("look",), self.bookies_of())
        elif asks:
            kind = ListReplica if asks[1] else EndLimbo
            name = asks[1] or asks[2]
            self._ask(lambda each: isinstance(each, kind) and each.bookie == name)
            kinds = (*LISTS, *TERMS) if asks[1] else ("clear_limbo",)
            self.passing.answer(self, kinds, [each for each in self.bookies_of() if each.name == name])
        else:
            return False
        return True

    def _ask(self, wanted: Callable[[Any], bool]) -> None:
        """Let it ask bookies for what one effect wants."""
        if self.repair is None:
            raise ImpossibleStepError(self.name)
        effect: RepairEffect = first(list(self.repair.asks), wanted)
        waiting = self.repair.asks.pop(effect)
        self.act(lambda: waiting.set_result(None))
