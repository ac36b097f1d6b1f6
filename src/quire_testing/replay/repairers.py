"""Repairers of a replay: the client's own repair of a ledger, seen as the explorer sees its repairers.

A list and its response are one step of the explorer, and so is the reading of a piece from its sources: those requests
pass at once. Copies travel as requests like a writer's adds, and the record is read and written by steps.

Source: docs/testing-coverage.md, "Replay: the programs go where the explorer goes"; docs/protocol/repair.md.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from quire.client.access import LedgerAccess
from quire.client.context import ClientContext
from quire.client.repairing.ledger_repair import LedgerRepair
from quire.core.ids import BookieId
from quire.core.ledger.replica import Replica
from quire.core.ledger.shares import HeldInterval
from quire.core.repair.effects import CopyRange, EndLimbo, ListReplica, RepairEffect
from quire.core.repair.rereplication import RepairMachine
from quire_testing.explorer.bookies import LEDGER
from quire_testing.explorer.clients import ClientState, Outcome
from quire_testing.explorer.messages import entries_text
from quire_testing.explorer.repairers import RepairDriver, bits_of
from quire_testing.kit.stepped import StepClock
from quire_testing.replay.clients import BY_STEPS, FirstOfAll, Program, not_heard
from quire_testing.replay.frames import LISTS

if TYPE_CHECKING:
    from quire_testing.replay.bookies import Bookie
    from quire_testing.replay.play import Play


class ScriptedRepair(LedgerRepair):
    """The repair that ships; when it reads the record, and asks bookies, is part of the schedule.

    Attributes:
        asks: what bookies are to be asked for, with what lets that happen.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.asks: dict[RepairEffect, asyncio.Future[None]] = {}

    async def _read(self, machine: RepairMachine, access: LedgerAccess) -> Callable[[], None]:
        """What was read to learn the ledger's password is forgotten: the machine gets what the schedule reads."""
        self._read_before = None
        return await super()._read(machine, access)

    async def _do(
        self, effect: RepairEffect, machine: RepairMachine, access: LedgerAccess
    ) -> Callable[[], None]:
        if isinstance(effect, ListReplica | CopyRange | EndLimbo):
            self.asks[effect] = self._loop.create_future()
            await self.asks[effect]
        return await super()._do(effect, machine, access)


class Repairer(Program):
    """A client that repairs the ledger, again and again.

    Attributes:
        judge: holds what a repair says at its end against the disks.
        losses: the explorer's number of each doubt, by bookie and by the LSN that names it.
    """

    driver: RepairDriver
    judge: Callable[[ClientState], ClientState]
    repair: ScriptedRepair

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.losses: dict[tuple[BookieId, int], int] = {}
        self.client = self.driver.new()

    @property
    def is_asking(self) -> bool:
        """The same, bookies that are to be asked included."""
        return super().is_asking or (self.client.machine is not None and bool(self.repair.asks))

    def begin(self, gone: Collection[BookieId], candidates: Sequence[BookieId]) -> None:
        """Start with what an operator says of bookies.

        Raises:
            LookupError: it repairs already.
        """
        if self.client.machine is not None:
            raise LookupError(self.name)

        def start() -> asyncio.Task[Any]:
            self.repair = ScriptedRepair(
                LEDGER,
                ClientContext.of(
                    self.bookies,
                    self.ledgers,
                    StepClock(),
                    FirstOfAll(),
                    BY_STEPS,
                    self.recorder.machines,
                ),
                gone=gone,
                candidates=candidates,
            )
            return self.loop.create_task(self.repair.run())

        self.act(start).add_done_callback(not_heard)
        self._answer_reads()
        self._seen = 0
        self.client = ClientState((), self.recorder.logs[-1].made(), fault=self.client.fault)

    def _answer_reads(self) -> None:
        """The record is read where the explorer's repairer does not: before a repair begins, and after its end."""
        for question in [each for each in self.store.questions if each.op is None]:
            self.act(partial(self.store.answer, question))

    def hear_gone(self, gone: Sequence[BookieId]) -> None:
        """It learns which bookies are gone.

        Raises:
            LookupError: it repairs nothing.
        """
        there = [bookie for bookie in self._machine()._candidates if bookie not in gone]
        self.act(lambda: self.repair.bookies_changed(gone, there))

    def piece(self, bookie: str, entries: str) -> CopyRange:
        """The piece for a bookie with these entries, or with any, whose sources have not been read yet.

        Raises:
            LookupError: there is none.
        """
        self._machine()
        for piece in self.driver.unread(self.client):
            if piece.bookie == bookie and entries in ("", entries_text(bits_of([piece.entries]))):
                return piece
        raise LookupError(bookie, entries)

    def ask(self, effect: RepairEffect) -> None:
        """Let it ask bookies."""
        self.act(lambda: self.repair.asks.pop(effect).set_result(None))

    def ask_for(self, kind: type[ListReplica | EndLimbo], bookie: str) -> None:
        """Let it ask a bookie for its list, or to end its limbo.

        Raises:
            LookupError: that is not what it wants.
        """
        self._machine()
        found = [each for each in self.repair.asks if isinstance(each, kind) and each.bookie == bookie]
        self.ask(found[0])

    def _machine(self) -> RepairMachine:
        if self.client.machine is None:
            raise LookupError(self.name)
        machine: RepairMachine = self.client.machine
        return machine

    def sent(self, piece: CopyRange) -> None:
        """The sources were read: unless the machine knows already what came of the piece, copies are on their way."""
        if not self._told():
            sent = {*self.client.sent, piece}
            self.client = self.driver.client(self.client.machine, sent, self.client.fault)
            self.without_input.append(Outcome(self.client))

    def steps(self) -> list[Outcome]:
        """The machine's inputs since the last time, as steps of the explorer's repairer."""
        found = super().steps()
        if self.client.result:
            self._answer_reads()
            self.client = self.judge(self.client)
        return found

    def _plain(self, machine: Any) -> Any:
        """A machine whose lists are as the explorer's bookies give them: entry by entry, and doubts by number."""
        machine = super()._plain(machine)
        plan = machine._plan
        if plan is not None:
            plan.lists = {bookie: self._listed(bookie, replica) for bookie, replica in plan.lists.items()}
        return machine

    def _listed(self, bookie: BookieId, replica: Replica) -> Replica:
        told, period = replica.told, replica.period
        ids = {
            entry
            for each in told.held
            for entry in range(each.first, each.last + 1)
            if each.residues >> entry % each.period & 1
        }
        held = tuple(HeldInterval(entry, entry, period, 1 << entry % period) for entry in sorted(ids))
        lsn = self.losses.get((bookie, told.doubt_lsn), told.doubt_lsn)
        return Replica(type(told)(told.answer, held, told.limbo, lsn), period)

    def _shown(self, effect: Any, after: Any) -> Any:
        if isinstance(effect, EndLimbo):
            return EndLimbo(effect.bookie, self.losses.get((effect.bookie, effect.doubt_lsn), 0))
        return super()._shown(effect, after)


class RepairSteps:
    """What a schedule may do to the repairers of a world."""

    def __init__(self, play: Play) -> None:
        self._play = play

    def do(self, repairer: Repairer, command: str) -> bool:
        """Do a repairer's own step; False: it is one like those of other clients."""
        begins = re.fullmatch(r"repairs, gone (.*?)(?:, targets (.*))?", command)
        reads = re.fullmatch(r"reads (.*) for (b\d+): .*", command)
        if begins:
            self._begins(repairer, begins[1].removeprefix("none").split(), (begins[2] or "").split())
        elif reads:
            self._reads(repairer, repairer.piece(reads[2], reads[1]))
        elif command == "hears which bookies are gone":
            repairer.hear_gone([BookieId(each.name) for each in self._play.bookies if each.gone])
        elif command.startswith("lists "):
            name = command.split()[1]
            if lsn := self._bookie(name).doubt_lsn():
                repairer.losses[BookieId(name), lsn] = self._bookie(name).losses
            repairer.ask_for(ListReplica, name)
            self._pass(repairer, LISTS, name)
        elif command.startswith("gives up the list of "):
            name = command.rsplit(maxsplit=1)[-1]
            repairer.ask_for(ListReplica, name)
            self._gives_up(repairer, LISTS, name)
        elif command.startswith("gives up the sources of "):
            piece = repairer.piece(command.rsplit(maxsplit=1)[-1], "")
            repairer.ask(piece)
            for source in piece.sources:
                self._gives_up(repairer, ("look",), source)
            repairer.sent(piece)
        elif command.startswith("ends the limbo "):
            name = command.partition(":")[0].rsplit(maxsplit=1)[-1]
            repairer.ask_for(EndLimbo, name)
            self._pass(repairer, ("clear_limbo",), name)
        else:
            return False
        return True

    def _begins(self, repairer: Repairer, gone: Sequence[str], targets: Sequence[str]) -> None:
        there = targets or [each.name for each in self._play.bookies if each.name not in gone]
        repairer.begin([BookieId(name) for name in gone], [BookieId(name) for name in there])

    def _bookie(self, name: str) -> Bookie:
        return self._play._bookie_named(name)

    def _pass(self, repairer: Repairer, kinds: Collection[str], name: str) -> None:
        """Requests to one bookie pass at once; one that is gone does not take them."""
        bookie = self._bookie(name)
        if bookie.gone:
            self._play._cuts_off(bookie, [repairer])
        else:
            self._play.passing.answer(repairer, kinds, [bookie])

    def _reads(self, repairer: Repairer, piece: CopyRange) -> None:
        repairer.ask(piece)
        self._play.passing.answer(repairer, ("look",), self._play.bookies)
        repairer.sent(piece)

    def _gives_up(self, repairer: Repairer, kinds: Collection[str], name: str) -> None:
        self._play.passing.give_up(repairer, kinds, self._bookie(name))
