"""Plays the steps of a counterexample with the programs that ship, and judges what has become of them.

Each step of the explorer is one thing done to a program: a response that arrives, a compare-and-swap that lands, a
caller's append, a disk that syncs, a connection that breaks. What the program said then must be what the explorer's
client said, and the state of its machine the explorer's. After each step the explorer's invariants are asked of the
programs' own state.

Source: docs/testing-coverage.md, "Replay: the programs go where the explorer goes".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from quire.core.answers import Answer
from quire.core.errors import NotEnoughBookiesError
from quire.core.ids import BookieId
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.placement import place_ledger, slots_for_absent
from quire.core.transcript import record_text
from quire.metadata.ledgers import LedgerStore, ledger_key
from quire.metadata.memory import MemorySpace, MemoryStore
from quire.metadata.store import Delete, Put, VersionConflictError
from quire_testing.explorer.beginning import NOT_CREATED, record_of, shape_of
from quire_testing.explorer.bookies import LEDGER
from quire_testing.explorer.clients import bookie_name
from quire_testing.explorer.doubts import CLEARER
from quire_testing.explorer.parts import Ask, Label, State, Store
from quire_testing.explorer.repairers import LIMITS
from quire_testing.explorer.switches import Switches
from quire_testing.explorer.world import LedgerWorld
from quire_testing.kit.stepped import StepClock
from quire_testing.replay.beginning import begins_late
from quire_testing.replay.bookies import CLUSTER, Bookie
from quire_testing.replay.clients import LOOK_MS, SILENT_MS, WAIT_MS, Program, Recoverer, ThenFirst, Writer
from quire_testing.replay.frames import LISTS, Said, Sent, plain
from quire_testing.replay.network import Line, ReplayNetwork
from quire_testing.replay.passing import ImpossibleStepError, Passing, first
from quire_testing.replay.recording import DriverDiffersError, Recorder
from quire_testing.replay.repairers import Repairer, RepairSteps
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
        self._cleared, self._doubt_lsn = "", 0
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
        writer.client = world.writer_driver.nobody()
        self.repairs = RepairSteps(self)
        if not (configuration.away or configuration.closed or configuration.changed):
            self._created(record_of(configuration), ())
        for program in self.programs:
            program.store.scripted = True

    def _created(self, record: LedgerMetadata, absent: tuple[int, ...]) -> None:
        """The ledger is in the store, and its writer open."""
        created = self.writer.act(
            lambda: self.writer.loop.create_task(LedgerStore(MemoryStore(self.space)).create(record))
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
        heard = re.fullmatch(r"hears (.* to .*) from (b\d+)", command)
        given_up = re.fullmatch(r"gives up (.*) at (b\d+)", command)
        broken = re.fullmatch(r"its connection to (b\d+) breaks", command)
        if isinstance(program, Repairer) and self.repairs.do(program, command):
            pass
        elif broken:
            self._breaks(program, broken[1])
        elif heard:
            self._hears(program, heard[1], heard[2])
        elif given_up:
            line = self._line(program, given_up[2])
            program.give_up(given_up[2], lambda number, _: line.text_of(number) == given_up[1])
        elif words[0] == "hears" and words[1] == "nothing":
            self._hears_nothing(program)
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

    def _hears(self, program: Program, text: str, bookie: str) -> None:
        if text.startswith(Answer.UNREACHABLE.name):
            if not program.ahead:
                raise ImpossibleStepError(text)
            return
        answers = self._line(program, bookie).answers
        wanted = first(answers, lambda said: said.text == text and program.awaits(bookie, said.number))
        while True:  # whatever is in front of it changes nothing any more, or the comparison will show it
            said = answers.pop(0)
            program.hear(self._line(program, bookie), said)
            if said is wanted:
                return

    def _hears_nothing(self, program: Program) -> None:
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
        if taken and bookie.gone:
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
            bookie.hear(at_once=at_once)
        elif command.startswith("takes clear limbo"):
            return self._ends_doubt(bookie, at_once=at_once)
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
        """What a client does that fills a bookie and ends its doubt."""
        words = command.split()
        if words[0] == "sees":
            self._cleared = words[-1]
            self._doubt_lsn = self._bookie_named(self._cleared).doubt_lsn()
        elif words[0] == "fills":
            self._filled = self.store.record
            target = self._bookie_named(self._cleared)
            for entry_id in map(int, command.partition(" with ")[2].replace("nothing", "").split()):
                target.fill(next(body for bookie in self.bookies for body in bookie.copies(entry_id)))
        elif words[0] == "reads":
            assert self._filled is not None
            assert self.store.record is not None
            rule = self.world.switches.rules.may_end_doubt
            self._may_end = rule(self._filled, self.store.record, BookieId(self._cleared))

    def _ends_doubt(self, bookie: Bookie, *, at_once: bool) -> list[str]:
        if not self._may_end:
            msg = f"nobody ends the doubt of {bookie.name}"
            raise ImpossibleStepError(msg)
        return [bookie.clear_limbo(self._doubt_lsn, at_once=at_once).name]

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
        """A request reaches a bookie that is gone: with the last one of a connection the client learns that."""
        if not self._arriving(bookie, text, program)[2]:
            self._cuts_off(bookie, [program])
        return [f"-> {program.name} {Answer.UNREACHABLE.name} to {text}"]

    def _loses(self, bookie: Bookie) -> None:
        """A bookie goes for ever: connections to it can be made, and nothing that is sent there arrives."""
        bookie.lose()
        self._cuts_off(bookie, self.programs)

    def _cuts_off(self, bookie: Bookie, programs: Iterable[Program]) -> None:
        """Connections to a bookie break; what is under way on them is lost."""
        for program in programs:
            failed = f"hears {Answer.UNREACHABLE.name}"  # now, and heard of in a step of its own
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
        self.space.apply((Delete(ledger_key(LEDGER)),))
        self.store = Store(None, self.store.version + 1, self.store.closes, self.store.fault)
        for number, bookie in enumerate(self.bookies):
            known = self.script.bookies.parts[before[number]].facts is not None
            if known and bookie.machine is not None and not bookie.gone:
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
        self.store, answer = self.world.swapped(old, ask, by_writer=not program.number)
        if answer == "written" and isinstance(program, Repairer):
            self.store = self.world.repairs.judged_swap(self.state(before), old, self.store)
        program.act(lambda: program.store.land(question))
        landed = question.landed
        happened = "written" if not isinstance(landed, VersionConflictError) else "conflict"
        if answer in ("written", "conflict") and answer != happened:
            msg = f"the store says {happened}, the explorer's {answer}"
            raise DriverDiffersError(msg)
        return [answer]

    def _answered(self, program: Program, state: State) -> int:
        """How many of a client's compare-and-swaps have landed without a response."""
        questions = self.script.asks.parts[state[self.script.at_ask + program.number]]
        return sum(1 for ask in questions if ask.kind == "swap" and ask.answer)

    # --- judging -------------------------------------------------------------------------------------------------------

    def state(self, like: State) -> State:
        """The programs' state as the explorer's; connections and budgets are those of `like`."""
        world = self.world
        return (
            *[world.bookies.number(bookie.view()) for bookie in self.bookies],
            world.stores.number(self.store),
            *[world.clients.number(program.client) for program in self.programs],
            *like[world.at_link :],
        )


def _chooses(label: Label) -> bool:
    return any(line.startswith("   chosen ") for line in label.said)
