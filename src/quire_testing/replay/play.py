"""Plays the steps of a counterexample with the programs that ship, and judges what has become of them.

Each step of the explorer is one thing done to a program: a response that arrives, a compare-and-swap that lands, a
caller's append, a disk that syncs, a connection that breaks. What the program said then must be what the explorer's
client said, and the state of its machine the explorer's. After each step the explorer's invariants are asked of the
programs' own state.

Source: docs/testing-coverage.md, "Replay: the programs go where the explorer goes".
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias

from quire.client.access import LedgerAccess
from quire.client.context import ClientContext
from quire.client.repairing.ledger_repair import LedgerRepair
from quire.core.answers import Answer
from quire.core.errors import NotEnoughBookiesError
from quire.core.ids import BookieId
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.placement import place_ledger, slots_for_absent
from quire.core.ledger.replica import Replica
from quire.core.ledger.stripes import HeldInterval
from quire.core.repair.effects import CopyRange, EndLimbo, ListReplica, RepairEffect
from quire.core.repair.rereplication import RepairMachine
from quire.core.transcript import record_text
from quire.metadata.memory import MemorySpace, MemoryStore
from quire.metadata.records import OF_LEDGERS, RecordStore
from quire.metadata.store import Delete, Put, VersionConflictError
from quire_testing.explorer.beginning import NOT_CREATED, record_of, shape_of
from quire_testing.explorer.bookies import LEDGER
from quire_testing.explorer.clients import ClientState, Outcome, bookie_name
from quire_testing.explorer.limbo_steps import CLEARER
from quire_testing.explorer.messages import entries_text
from quire_testing.explorer.parts import Store
from quire_testing.explorer.repairers import LIMITS, RepairDriver, bits_of
from quire_testing.explorer.switches import Switches
from quire_testing.explorer.tables import Ask, Label, State
from quire_testing.explorer.world import LedgerWorld
from quire_testing.kit.stepped import StepClock
from quire_testing.replay.bookies import CLUSTER, Bookie
from quire_testing.replay.clients import (
    BY_STEPS,
    LOOK_MS,
    SILENT_MS,
    WAIT_MS,
    FirstOfAll,
    Program,
    Recoverer,
    ThenFirst,
    Writer,
    read_error,
)
from quire_testing.replay.frames import LISTS, Said, Sent, plain
from quire_testing.replay.network import Line, ReplayNetwork
from quire_testing.replay.passing import ImpossibleStepError, Passing, first
from quire_testing.replay.recording import DriverDiffersError, Recorder
from quire_testing.replay.stage import AsyncioStage, ScriptedNetwork, Stage
from quire_testing.replay.store import Question, ScriptedStore
from quire_testing.replay.world import ProgramWorld

Path: TypeAlias = Sequence[tuple[Label | None, State]]
UNSEEN = frozenset({"look", "lac", "clear_limbo"}) | LISTS
"""Requests that are no steps of the explorer."""


class Play:
    """The programs of one world, and what a schedule may do to them.

    Args:
        script: the world whose steps are played.
        switches: what is replaced in the programs.
        stage: makes what everything runs on.

    Attributes:
        coming: the steps after this one, for what a program decides earlier than the explorer's client.
    """

    def __init__(
        self,
        script: LedgerWorld,
        switches: Switches,
        stage: Callable[[ScriptedNetwork], Stage] = AsyncioStage,
    ) -> None:
        self.script = script
        self.world = world = ProgramWorld(script.configuration, switches)
        configuration = script.configuration
        self.coming: Sequence[Label] = ()
        self._cleared, self._limbo_lsn = "", 0
        self._filled: LedgerMetadata | None = None
        self._may_end = False
        self.network = ReplayNetwork()
        self.passing = Passing(self.network)
        self.stage = stage(self.network)
        self.clock = StepClock()
        self.space = MemorySpace(CLUSTER)
        self.space.revision = -1  # so that versions count from 0, as the explorer's
        self.bookies = [
            Bookie(
                number,
                self.stage,
                self.network,
                switches.rules,
                self.clock,
                self.space,
                switches.bookie,
            )
            for number in range(configuration.bookies)
        ]
        self.store = NOT_CREATED
        self.programs: list[Program] = [
            self._program(number, name) for number, name in enumerate(world.names)
        ]
        writer = self.programs[0]
        assert isinstance(writer, Writer)
        self.writer = writer
        writer.client = world.writer_driver.no_client()
        self.repairs = RepairSteps(self)
        if not (configuration.away or configuration.closed or configuration.changed):
            self._created(record_of(configuration), ())
        for program in self.programs:
            program.store.scripted = True

    def _created(self, record: LedgerMetadata, absent: tuple[int, ...]) -> None:
        """The ledger is in the store, and its writer open."""
        created = self.writer.act(
            lambda: self.writer.loop.create_task(
                RecordStore(MemoryStore(self.space), OF_LEDGERS).create(record)
            )
        )
        assert created.result() == 0
        self.writer.open(record, 0, self.clock, absent)
        self.store = self.world.beginning.created(record, absent)

    def _creates(self, away: Sequence[BookieId]) -> None:
        """The writer places and creates the ledger while these bookies are away."""
        configuration = self.script.configuration
        everyone = [bookie_name(number) for number in range(configuration.ensemble)]
        slots = tuple(everyone.index(bookie) for bookie in away)
        ways = slots_for_absent(configuration.ensemble, configuration.away)
        there = [bookie for bookie in everyone if bookie not in away]
        try:
            placed = place_ledger(
                shape_of(configuration),
                there,
                away,
                ThenFirst(ways.index(slots)),
                rules=self.world.switches.rules,
            )
        except NotEnoughBookiesError as error:
            raise ImpossibleStepError(error.message) from error
        self._created(record_of(configuration, placed.ensemble), placed.absent)

    def _program(self, number: int, name: str) -> Program:
        world = self.world
        switches = world.switches
        recorder = Recorder(
            switches.rules,
            switches.writer,
            switches.recovery,
            [],
            keeps=True,
            window=world.configuration.window,
            repair=switches.repair,
            limits=LIMITS,
        )
        driver = world.driver_of(number)
        repairs = number > world.configuration.recoverers
        kind = Repairer if repairs else Recoverer if number else Writer
        store = ScriptedStore(self.space, blind=switches.blind_closes and not number)
        program: Program = kind(
            number, name, self.stage, self.network, store, driver, recorder, world.configuration.bookies
        )
        if isinstance(program, Repairer):
            program.judge = lambda ended: world.judged(ended, [each.view() for each in self.bookies])
        elif number:
            program.client = world.recovery_driver.new()
        return program

    def close(self) -> None:
        """Let everything go."""
        self.stage.close()

    # --- steps -------------------------------------------------------------------------------------------------------

    def do(self, label: Label, before: State, after: State) -> list[str]:
        """Do one step.

        Returns:
            What bookies and store said then; what clients said is in their `steps`.

        Raises:
            ImpossibleStepError: it cannot be done.
        """
        actor, command = label.actor, plain(label.command)
        if actor == "store" and command.startswith("reads "):
            self._bookie_named(command.rpartition(" for ")[2]).ask()
            return []
        if actor == "store":
            return self._lands(command, before, after)
        if actor == CLEARER:
            self._clears(command)
            return []
        if actor == "owner":
            return self._deletes(before)
        if re.fullmatch(r"b\d+", actor):
            return self._bookie(int(actor[1:]), command, before, after)
        self._choose(label)
        self._client(self.programs[self.world.names.index(actor)], command)
        return []

    def _choose(self, label: Label) -> None:
        """Which bookies a choice of this step may fall on."""
        chosen = [line for line in label.said if line.startswith("   chosen ")]
        names = re.findall(r"=(\S+)", " ".join(chosen))
        self.programs[self.world.names.index(label.actor)].bookies.spares = [BookieId(name) for name in names]

    def _look(self, writer: Writer) -> None:
        """What a writer that looks for bookies will find: it looks in the step in which its timer fires."""
        found = next(
            (each for each in self.coming if each.actor == writer.name and each.kind == "found"), None
        )
        absent = [writer.client.machine.ensemble[slot] for slot in writer.client.machine.absent]
        if found is None or found.command.endswith("back"):
            writer.bookies.spares = absent  # they are asked, and the response is a step
        elif found.command == "found a spare":
            self._choose(found)
            ensemble = writer.client.machine.ensemble
            everyone = [BookieId(bookie.name) for bookie in self.bookies]
            writer.bookies.spares = writer.bookies.spares or [
                each for each in everyone if each not in ensemble
            ]
        else:
            writer.bookies.spares = []

    def _client(self, program: Program, command: str) -> None:
        words = command.split()
        response = re.fullmatch(r"hears (.* to .*) from (b\d+)", command)
        given_up = re.fullmatch(r"gives up (.*) at (b\d+)", command)
        broken = re.fullmatch(r"its connection to (b\d+) breaks", command)
        if isinstance(program, Repairer) and self.repairs.do(program, command):
            pass
        elif broken:
            self._breaks(program, broken[1])
        elif response:
            self._on_response(program, response[1], response[2])
        elif given_up:
            line = self._line(program, given_up[2])
            program.give_up(given_up[2], lambda number, _: line.text_of(number) == given_up[1])
        elif words[0] == "hears" and words[1] == "nothing":
            self._no_response(program)
        elif words[0] == "hears":
            program.store.answer(first(program.store.questions, lambda q: q.landed is not None))
        elif words[0] == "reads":
            program.store.answer(first(program.store.questions, lambda q: q.op is None))
        elif isinstance(program, Writer):
            self._writer(program, command)
        elif isinstance(program, Recoverer):
            self._recoverer(program, command)
        self.stage.settle()

    def _writer(self, writer: Writer, command: str) -> None:
        lost = re.fullmatch(r"lost (b\d+)", command)
        back = re.fullmatch(r"found (b\d+) back", command)
        without = command.removeprefix("creates the ledger without ")
        if without != command:
            self._creates([BookieId(name) for name in without.split()])
        elif begins_late(self, command):
            pass
        elif command == "append 1":
            writer.append()
        elif command == "close":
            writer.close()
        elif command in ("timer", "waits no longer"):
            self._look(writer)
            writer.strike(LOOK_MS if command == "timer" else WAIT_MS)
        elif command in ("found a spare", "found nothing"):
            if not writer.ahead:
                raise ImpossibleStepError(command)
        elif back:
            self.passing.is_back(writer, back[1], self.bookies)
        elif lost:
            writer.lost(lost[1])
        else:
            raise ImpossibleStepError(command)

    def _recoverer(self, recoverer: Recoverer, command: str) -> None:
        if command.startswith("starts with"):
            recoverer.begin(LEDGER)
        elif "the length of" in command:  # whichever bookie is asked
            self.passing.answer(recoverer, ("look",), self.bookies)
        else:
            raise ImpossibleStepError(command)

    def _line(self, program: Program, bookie: str) -> Line:
        line = program.line(bookie)
        if line is None:
            msg = f"{program.name} has no connection to {bookie}"
            raise ImpossibleStepError(msg)
        return line

    def _on_response(self, program: Program, text: str, bookie: str) -> None:
        if text.startswith(Answer.UNREACHABLE.name):
            if not program.ahead:
                raise ImpossibleStepError(text)
            return
        answers = self._line(program, bookie).answers
        wanted = first(answers, lambda said: said.text == text and program.awaits(bookie, said.number))
        while True:  # whatever is in front of it changes nothing any more, or the comparison will show it
            said = answers.pop(0)
            program.on_response(self._line(program, bookie), said)
            if said is wanted:
                return

    def _no_response(self, program: Program) -> None:
        question = first(program.store.questions, lambda q: q.op is not None and q.heeded)
        if isinstance(program, Writer):
            self.stage.advance(SILENT_MS)  # its own time-out
            if question.landed is not None and question in program.store.questions:
                program.store.questions.remove(question)
            return
        program.store.silent = True
        program.act(lambda: program.store.lose(question))
        program.store.silent = False

    def _breaks(self, program: Program, bookie: str) -> None:
        line = self._line(program, bookie)
        line.cut = True
        program.lose(line, bookie)

    # --- bookies -------------------------------------------------------------------------------------------------------

    def _bookie(self, number: int, command: str, before: State, after: State) -> list[str]:
        bookie = self.bookies[number]
        at_once = self.script._syncs_at_once(before)
        taken = re.fullmatch(r"takes (.*) from (.*)", command)
        rotten = re.fullmatch(r"entry (\d+) rots", command)
        damaged = re.fullmatch(r"refuses (.*), damaged on its way", command)
        old = self._answers(bookie)
        if taken and bookie.lost:
            return self._refuses(bookie, taken[1], self.programs[self.world.names.index(taken[2])])
        if taken:
            self._takes(bookie, taken[1], self.programs[self.world.names.index(taken[2])], at_once=at_once)
        elif damaged:
            line, sent, _ = self._arriving(bookie, damaged[1], self.programs[0])
            broken = sent.frame[:-1] + bytes([sent.frame[-1] ^ 1])
            bookie.take(line.bookie.feed, sent._replace(frame=broken), at_once=at_once)
        elif command == "syncs":
            bookie.sync()
        elif command == "crashes and starts again":
            self._crashes(bookie, after)
        elif command == "is lost for ever":
            self._loses(bookie)
        elif command == "looks through the records":
            bookie.look_for_lost()
        elif command.startswith("hears that the record"):
            bookie.on_responses(at_once=at_once)
        elif command.startswith("takes clear limbo"):
            return self._ends_limbo(bookie, at_once=at_once)
        elif rotten:
            bookie.rot(int(rotten[1]))
        else:
            raise ImpossibleStepError(command)
        if not at_once:
            bookie.note(len(self.script.bookies.parts[after[number]].journal))
        new = [(program, said) for program, said in self._answers(bookie) if (program, said) not in old]
        bookie.said([said for _, said in new])
        return [f"-> {program.name} {said.text}" for program, said in new]

    def _bookie_named(self, name: str) -> Bookie:
        return self.bookies[int(name[1:])]

    def _clears(self, command: str) -> None:
        """What a client does that fills a bookie and ends its limbo."""
        words = command.split()
        if words[0] == "sees":
            self._cleared = words[-1]
            self._limbo_lsn = self._bookie_named(self._cleared).limbo_lsn()
        elif words[0] == "fills":
            self._filled = self.store.record
            target = self._bookie_named(self._cleared)
            for entry_id in map(int, command.partition(" with ")[2].replace("nothing", "").split()):
                target.fill(next(body for bookie in self.bookies for body in bookie.copies(entry_id)))
        elif words[0] == "reads":
            assert self._filled is not None
            assert self.store.record is not None
            rule = self.world.switches.rules.may_end_limbo
            self._may_end = rule(self._filled, self.store.record, BookieId(self._cleared))

    def _ends_limbo(self, bookie: Bookie, *, at_once: bool) -> list[str]:
        if not self._may_end:
            msg = f"no client ends the limbo of {bookie.name}"
            raise ImpossibleStepError(msg)
        return [bookie.clear_limbo(self._limbo_lsn, at_once=at_once).name]

    def _answers(self, bookie: Bookie) -> list[tuple[Program, Said]]:
        return [
            (program, said)
            for program in self.programs
            for line in self.network.all_lines(program.number + 1, bookie.name)
            for said in line.answers
        ]

    def _takes(self, bookie: Bookie, text: str, program: Program, *, at_once: bool) -> None:
        line, sent, _ = self._arriving(bookie, text, program)
        bookie.take(line.bookie.feed, sent, at_once=at_once)

    def _arriving(self, bookie: Bookie, text: str, program: Program) -> tuple[Line, Sent, bool]:
        """The connection and the request that reaches a bookie next, and whether others follow there."""
        for line in self.network.all_lines(program.number + 1, bookie.name):
            asked = [sent for sent in line.requests if sent.request[0] not in UNSEEN]
            if asked and asked[0].text == text:
                line.requests.remove(asked[0])
                return line, asked[0], len(asked) > 1
        msg = f"{bookie.name} is sent no {text} by {program.name}"
        raise ImpossibleStepError(msg)

    def _refuses(self, bookie: Bookie, text: str, program: Program) -> list[str]:
        """A request reaches a lost bookie: with the last one of a connection the client learns that."""
        if not self._arriving(bookie, text, program)[2]:
            self._cuts_off(bookie, [program])
        return [f"-> {program.name} {Answer.UNREACHABLE.name} to {text}"]

    def _loses(self, bookie: Bookie) -> None:
        """A bookie is lost for ever: connections to it can be made, and nothing that is sent there arrives."""
        bookie.lose()
        self._cuts_off(bookie, self.programs)

    def _cuts_off(self, bookie: Bookie, programs: Iterable[Program]) -> None:
        """Connections to a bookie break; what is under way on them is lost."""
        for program in programs:
            failed = f"hears {Answer.UNREACHABLE.name}"  # now, and seen in a step of its own
            mine = (each for each in self.coming if each.actor == program.name)
            for label in [each for each in mine if each.command.startswith(failed) and _chooses(each)][:1]:
                self._choose(label)
            for line in self.network.all_lines(program.number + 1, bookie.name):
                line.cut = True
                line.requests.clear()
                program.lose(line, bookie.name)

    def _crashes(self, bookie: Bookie, after: State) -> None:
        configuration = self.world.configuration
        self._cuts_off(bookie, self.programs)
        bookie.crash(wiped=not configuration.journal, named=configuration.named)
        if self.script._syncs_at_once(after):
            for other in self.bookies:
                other.waiting = []
                other.finish()

    def _deletes(self, before: State) -> list[str]:
        self.space.apply((Delete(OF_LEDGERS.key(LEDGER)),))
        self.store = Store(None, self.store.version + 1, self.store.closes, self.store.fault)
        for number, bookie in enumerate(self.bookies):
            known = self.script.bookies.parts[before[number]].facts is not None
            if known and bookie.machine is not None and not bookie.lost:
                bookie.delete()
                bookie.finish()
        return []

    # --- the store -----------------------------------------------------------------------------------------------------

    def _lands(self, command: str, before: State, after: State) -> list[str]:
        asked = re.fullmatch(r"takes v(-?\d+): (.*) from (.*)", command)
        if asked is None:
            raise ImpossibleStepError(command)
        program = self.programs[self.world.names.index(asked[3])]

        def wanted(question: Question) -> bool:
            op = question.op
            if op is None or question.landed is not None:
                return False
            return str(op.version) == asked[1] and record_text(question.record) == asked[2]

        heeded = self._answered(program, after) > self._answered(program, before)

        candidates = [question for question in program.store.questions if wanted(question)]
        question = first(candidates, lambda question: question.heeded == heeded or len(candidates) == 1)
        assert isinstance(question.op, Put)
        ask = Ask("swap", question.record, question.op.version)
        old = self.store
        self.store, answer = self.world.after_cas(old, ask, by_writer=not program.number)
        if answer == "written" and isinstance(program, Repairer):
            self.store = self.world.repairs.judged_cas(self.state(before), old, self.store)
        program.act(lambda: program.store.land(question))
        landed = question.landed
        happened = "written" if not isinstance(landed, VersionConflictError) else "conflict"
        if answer in ("written", "conflict") and answer != happened:
            msg = f"the store says {happened}, the explorer's {answer}"
            raise DriverDiffersError(msg)
        return [answer]

    def _answered(self, program: Program, state: State) -> int:
        """How many of a client's compare-and-swaps have landed without a response."""
        questions = self.script.asks.parts[state[self.script.at.ask + program.number]]
        return sum(1 for ask in questions if ask.kind == "swap" and ask.answer)

    # --- judging -------------------------------------------------------------------------------------------------------

    def state(self, like: State) -> State:
        """The programs' state as the explorer's; connections and budgets are those of `like`."""
        world = self.world
        return (
            *[world.bookies.number(bookie.view()) for bookie in self.bookies],
            world.stores.number(self.store),
            *[world.clients.number(program.client) for program in self.programs],
            *like[world.at.link :],
        )


def _chooses(label: Label) -> bool:
    return any(line.startswith("   chosen ") for line in label.said)


def begins_late(play: Play, command: str) -> bool:
    """Do what has happened before the search begins; False: this is no such step."""
    configuration, writer = play.script.configuration, play.writer
    if not command.startswith(("has closed, lacking: ", "has changed the ensemble: ")):
        return False
    play._created(record_of(configuration), ())
    if configuration.closed:
        lacking = {(int(entry), name) for entry, name in re.findall(r"(\d+) at (b\d+)", command)}
        for entry in range(configuration.entries):
            _append(play, [name for each, name in lacking if each == entry])
        writer.close()
        _write(play)
    else:
        _append(play, ())
        writer.append()
        left = bookie_name(configuration.ensemble - 1)
        writer.bookies.spares = [bookie_name(configuration.ensemble)]
        writer.lost(left)
        _write(play)
        if configuration.gone:
            play._loses(play._bookie_named(left))
    writer.steps()
    writer.without_input = [Outcome(writer.client)]
    return True


def _append(play: Play, lacking: Collection[str]) -> None:
    """An append that is on the disks of its bookies and acknowledged; what some lack never arrives."""
    writer = play.writer
    writer.append()
    for bookie in play.bookies:
        for line in play.network.all_lines(writer.number + 1, bookie.name):
            for sent in [each for each in line.requests if each.request[0] == "add"]:
                line.requests.remove(sent)
                if BookieId(bookie.name) not in lacking:
                    bookie.take(line.bookie.feed, sent, at_once=True)
                    writer.on_response(line, line.answers.pop())


def _write(play: Play) -> None:
    """The writer's change of the record is written, and it hears that."""
    writer = play.writer
    (question,) = writer.store.questions
    assert question.op is not None
    ask = Ask("swap", question.record, question.op.version)
    play.store, _ = play.world.after_cas(play.store, ask, by_writer=True)
    writer.act(lambda: writer.store.land(question))
    writer.act(lambda: writer.store.answer(question))


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

    A list and its response are one step of the explorer, and so is the reading of a piece from its sources: those requests
    pass at once. Copies travel as requests like a writer's adds, and the record is read and written by steps.

    Attributes:
        judge: holds what a repair says at its end against the disks.
        losses: the explorer's number of each limbo, by bookie and by the LSN that names it.
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

    def begin(self, lost: Collection[BookieId], candidates: Sequence[BookieId]) -> None:
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
                    self.records,
                    StepClock(),
                    FirstOfAll(),
                    BY_STEPS,
                    self.recorder.machines,
                ),
                lost_bookies=lost,
                candidates=candidates,
            )
            return self.loop.create_task(self.repair.run())

        self.act(start).add_done_callback(read_error)
        self._answer_reads()
        self._seen = 0
        self.client = ClientState((), self.recorder.logs[-1].made(), fault=self.client.fault)

    def _answer_reads(self) -> None:
        """The record is read where the explorer's repairer does not: before a repair begins, and after its end."""
        for question in [each for each in self.store.questions if each.op is None]:
            self.act(partial(self.store.answer, question))

    def learn_lost(self, lost: Sequence[BookieId]) -> None:
        """It learns which bookies are lost.

        Raises:
            LookupError: it repairs nothing.
        """
        there = [bookie for bookie in self._machine()._candidates if bookie not in lost]
        self.act(lambda: self.repair.bookies_changed(lost, there))

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
        if not self._new_inputs():
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
        """A machine whose lists are as the explorer's bookies give them: entry by entry, and limbo by number."""
        machine = super()._plain(machine)
        plan = machine._plan
        if plan is not None:
            plan.lists = {bookie: self._listed(bookie, replica) for bookie, replica in plan.lists.items()}
        return machine

    def _listed(self, bookie: BookieId, replica: Replica) -> Replica:
        listed, period = replica.response, replica.period
        ids = {
            entry
            for each in listed.held
            for entry in range(each.first, each.last + 1)
            if each.stripes >> entry % each.period & 1
        }
        held = tuple(HeldInterval(entry, entry, period, 1 << entry % period) for entry in sorted(ids))
        lsn = self.losses.get((bookie, listed.limbo_lsn), listed.limbo_lsn)
        return Replica(type(listed)(listed.answer, held, listed.limbo, lsn), period)

    def _shown(self, effect: Any, after: Any) -> Any:
        if isinstance(effect, EndLimbo):
            return EndLimbo(effect.bookie, self.losses.get((effect.bookie, effect.limbo_lsn), 0))
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
            repairer.learn_lost([BookieId(each.name) for each in self._play.bookies if each.lost])
        elif command.startswith("lists "):
            name = command.split()[1]
            if lsn := self._bookie(name).limbo_lsn():
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

    def _begins(self, repairer: Repairer, lost: Sequence[str], targets: Sequence[str]) -> None:
        there = targets or [each.name for each in self._play.bookies if each.name not in lost]
        repairer.begin([BookieId(name) for name in lost], [BookieId(name) for name in there])

    def _bookie(self, name: str) -> Bookie:
        return self._play._bookie_named(name)

    def _pass(self, repairer: Repairer, kinds: Collection[str], name: str) -> None:
        """Requests to one bookie pass at once; a lost one does not take them."""
        bookie = self._bookie(name)
        if bookie.lost:
            self._play._cuts_off(bookie, [repairer])
        else:
            self._play.passing.answer(repairer, kinds, [bookie])

    def _reads(self, repairer: Repairer, piece: CopyRange) -> None:
        repairer.ask(piece)
        self._play.passing.answer(repairer, ("look",), self._play.bookies)
        repairer.sent(piece)

    def _gives_up(self, repairer: Repairer, kinds: Collection[str], name: str) -> None:
        self._play.passing.give_up(repairer, kinds, self._bookie(name))
