"""Plays a counterexample of streams with the programs that ship: take-overs, writers, bookies, frames, storage, records.

Each step of the explorer is one thing done to a program, as in `play.py`. What is compared after it is what the programs
have done to the world: which requests are on their way, what bookies hold and know, the record, and what callers
know; and the explorer's invariants are asked of that. A reader is no whole program here: it reads the record, asks one
bookie for its LAC and for entries in real frames, and goes by the rule that ships, or by the mutant's.

Source: docs/testing-coverage.md, "Replay: the programs go where the explorer goes"; docs/protocol/streams.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from quire.client.machines import Machines
from quire.client.recovering.recovery import STRAGGLER_WAIT_MS
from quire.client.sending.bundles import SlotConnection
from quire.client.streams.take_over import AWAITED_PAUSE_MS
from quire.core.answers import Answer
from quire.core.bookie.ledger import LedgerFacts
from quire.core.ids import NO_ENTRY, BookieId
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.writer_state import WriterLimits
from quire.core.recovery.take_over import TakeOverMachine
from quire.core.repair.rereplication import RepairMachine
from quire.core.transcript import record_text
from quire.metadata.keys import STREAMS
from quire.metadata.memory import MemorySpace
from quire.metadata.records import OF_STREAMS
from quire.metadata.store import Create, VersionConflictError
from quire.wire.stream_metadata import encode_stream
from quire_testing.explorer.bookies import LEDGER
from quire_testing.explorer.invariants import Violation
from quire_testing.explorer.repairers import LIMITS
from quire_testing.explorer.stream_bookies import StreamBookie
from quire_testing.explorer.stream_parts import StreamStoreState
from quire_testing.explorer.stream_watch import STREAM_INVARIANTS, StreamWatch
from quire_testing.explorer.stream_world import StreamWorld
from quire_testing.explorer.switches import Switches
from quire_testing.explorer.tables import Label, State
from quire_testing.kit.stepped import StepClock
from quire_testing.replay.bookies import CLUSTER, Bookie
from quire_testing.replay.clients import SILENT_MS, Program
from quire_testing.replay.frames import Sent, plain
from quire_testing.replay.network import Line, ReplayNetwork
from quire_testing.replay.passing import ImpossibleStepError, Passing, first
from quire_testing.replay.recording import DriverDiffersError, Recorder
from quire_testing.replay.replay import Path, Played
from quire_testing.replay.stage import AsyncioStage, ScriptedNetwork, Stage
from quire_testing.replay.store import ScriptedStore
from quire_testing.replay.stream_bookies import StreamBookieProgram
from quire_testing.replay.stream_clients import LAC_MS, ReadingClient, StreamLeader
from quire_testing.replay.stream_reading import StreamReading
from quire_testing.replay.stream_repairers import StreamRepairer


class StreamPlay:
    """The programs of one stream's world, and what a schedule may do to them.

    Args:
        script: the world whose steps are played.
        switches: what is replaced in the programs.
        stage: makes what everything runs on.
    """

    def __init__(
        self,
        script: StreamWorld,
        switches: Switches,
        stage: Callable[[ScriptedNetwork], Stage] = AsyncioStage,
    ) -> None:
        self.script, self._switches = script, switches
        c = script.configuration
        self.network = ReplayNetwork()
        self.passing = Passing(self.network)
        self.stage = stage(self.network)
        self.space = MemorySpace(CLUSTER)
        self.space.revision = -1  # so that versions count from 0, as the explorer's
        clock = StepClock()
        self.bookies = [
            StreamBookieProgram(
                number, self.stage, self.network, switches.rules, clock, self.space, switches.bookie
            )
            for number in range(c.bookies)
        ]
        for bookie in self.bookies:
            bookie.only_fences = c.fencing
        named = list(enumerate(script.names))
        self.leaders = [self._client(StreamLeader, *each) for each in named[: script.first_repairer]]
        self.repairers = [self._client(StreamRepairer, *each) for each in named[script.first_repairer :]]
        self.programs: list[StreamLeader | StreamRepairer] = [*self.leaders, *self.repairers]
        for repairer in self.repairers:
            repairer.passing, repairer.bookies_of = self.passing, lambda: self.bookies
        self.readers = [
            self._client(ReadingClient, len(self.programs) + number, name)
            for number, name in enumerate(script.reader_names)
        ]
        self.reading = StreamReading(self.passing, self.bookies, switches.rules, self.space)
        self.begun = [0] * len(self.leaders)
        self.coming: Sequence[Label] = ()
        self.store = StreamStoreState(*self._created())
        for program in (*self.programs, *self.readers):
            program.store.scripted = not isinstance(program, ReadingClient)

    def _client(self, kind: type[Any], number: int, name: str) -> Any:
        store = ScriptedStore(self.space, prefix=STREAMS)
        recorder = Recorder.shipped()
        program = kind(
            number,
            name,
            self.stage,
            self.network,
            store,
            self.script.driver,
            recorder,
            self.script.configuration.bookies,
        )
        program.machines = self._machines()
        return program

    def _machines(self) -> Machines:
        switches, window = self._switches, self.script.configuration.window

        def writer(
            record: LedgerMetadata, version: int, limits: WriterLimits, last: int = NO_ENTRY, length: int = 0
        ) -> Any:
            return switches.writer(
                record, version, rules=switches.rules, limits=limits, last=last, length=length
            )

        def take_over(record: LedgerMetadata, version: int, owner: int) -> TakeOverMachine:
            return switches.take_over(record, version, owner, switches.rules, window)

        def repair(*bookies: Any, **more: Any) -> RepairMachine:
            return switches.repair(*bookies, limits=LIMITS, rules=switches.rules, **more)

        return Machines(writer=writer, take_over=take_over, repair=repair)

    def _created(self) -> tuple[LedgerMetadata, int]:
        state = self.script.initial()
        store = self.script.stores.parts[state[self.script.at.store]]
        self.space.apply((Create(OF_STREAMS.key(LEDGER), encode_stream(store.record)),))
        self.leaders[0].create(store.record)
        return store.record, store.version

    def close(self) -> None:
        """Let everything go."""
        self.stage.close()

    # --- steps -------------------------------------------------------------------------------------------------------

    def do(self, label: Label) -> list[str]:
        """Do one step.

        Returns:
            What a bookie or the store said then.

        Raises:
            ImpossibleStepError, LookupError: it cannot be done.
        """
        actor, command = label.actor, plain(label.command)
        if actor == "store":
            return self._lands(command)
        if re.fullmatch(r"b\d+", actor):
            return self._bookie(self.bookies[int(actor[1:])], command)
        if actor in self.script.reader_names:
            self.reading.step(self.readers[self.script.reader_names.index(actor)], command)
            return []
        program = self.programs[self.script.names.index(actor)]
        if isinstance(program, StreamRepairer):
            if not program.do(command):
                self._common(program, command)
            self.stage.settle()
            return []
        leader = program
        leader.bookies.spares = _chosen(label)
        self._leader(leader, command)
        self.stage.settle()
        if leader.waits_for_stragglers:
            self.stage.advance(STRAGGLER_WAIT_MS)
        return []

    def _leader(self, leader: StreamLeader, command: str) -> None:
        given_up = re.fullmatch(r"gives up (.*) at (b\d+)", command)
        lost = re.fullmatch(r"lost (b\d+)", command)
        if command.startswith("takes over with"):
            number = leader.number
            owner = 1 + number + self.script.count * self.begun[number]
            self.begun[number] += 1
            leader.begin(self.store.record, self.store.version, owner)
        elif command == "append 1":
            leader.append()
        elif given_up or lost:
            self._gives_up(
                leader, *((given_up[1], given_up[2]) if given_up else ("", lost[1] if lost else ""))
            )
        elif "the length of" in command:
            self.passing.answer(leader, ("look",), self.bookies)
        elif command == "waited for bookies":
            self.stage.advance(AWAITED_PAUSE_MS)
        elif command == "timer":
            leader.bookies.spares = self._found_next(leader)
            leader.look()
        elif command.startswith("found"):
            self._found(leader, command)
        else:
            self._common(leader, command)

    def _found_next(self, leader: StreamLeader) -> list[BookieId]:
        """What a writer that looks for bookies will find: it looks in the step in which its timer fires."""
        found = next(
            (each for each in self.coming if each.actor == leader.name and each.kind == "found"), None
        )
        if found is None or not found.command.startswith("found a spare"):
            return leader.absent  # they are asked, and the response is a step
        return _chosen(found) or [
            each for each in (BookieId(bookie.name) for bookie in self.bookies) if each not in leader.ensemble
        ]

    def _found(self, leader: StreamLeader, command: str) -> None:
        """What a writer found that looked for bookies. A spare it has chosen already."""
        back = re.fullmatch(r"found (b\d+) back", command)
        if back is None:
            return
        if self._switches.returning_truncates:
            leader.truncate(BookieId(back[1]))
        self.passing.is_back(leader, back[1], self.bookies)

    def _common(self, program: StreamLeader | StreamRepairer, command: str) -> None:
        """The steps that leaders and repairers share."""
        response = re.fullmatch(r"hears (.* to .*) from (b\d+)", command)
        broken = re.fullmatch(r"its connection to (b\d+) breaks", command)
        if broken:
            line = self._line(program, broken[1])
            line.cut = True
            program.lose(line, broken[1])
        elif response:
            self._on_response(program, response[1], response[2])
        elif command.startswith("hears nothing"):
            self._no_response(program)
        elif command.startswith("hears "):
            program.store.answer(first(program.store.questions, lambda q: q.landed is not None))
        elif command.startswith("reads "):
            program.store.answer(first(program.store.questions, lambda q: q.op is None))
        else:
            raise ImpossibleStepError(command)

    def _gives_up(self, leader: StreamLeader, text: str, bookie: str) -> None:
        """The time of one request is over, or a writer gives a bookie up."""
        line = self._line(leader, bookie)

        def wanted(number: int, requester: Any) -> bool:
            if text:
                return line.text_of(number) == text
            return isinstance(requester, SlotConnection) and not requester.retired

        leader.give_up(bookie, wanted)
        if text.startswith("no-op"):
            leader.give_up(bookie, wanted)  # both frames of it

    def _line(self, program: Program, bookie: str) -> Line:
        line = program.line(bookie)
        if line is None:
            msg = f"{program.name} has no connection to {bookie}"
            raise ImpossibleStepError(msg)
        return line

    def _on_response(self, leader: StreamLeader | StreamRepairer, text: str, bookie: str) -> None:
        if text.startswith(Answer.UNREACHABLE.name):
            return  # all that waited has failed at once
        line = self._line(leader, bookie)
        said = [each for each in line.answers if each.text == text]
        # That of a bookie which a writer has dropped arrives too, and nothing waits for it.
        wanted = first(sorted(said, key=lambda each: not leader.awaits(bookie, each.number)), lambda _: True)
        line.answers.remove(wanted)
        leader.on_response(line, wanted)

    def _no_response(self, leader: StreamLeader | StreamRepairer) -> None:
        question = first(leader.store.questions, lambda q: q.op is not None and q.heeded)
        if isinstance(leader, StreamLeader) and leader.writer is not None:
            self.stage.advance(SILENT_MS)  # its own time-out
            if question.landed is not None and question in leader.store.questions:
                leader.store.questions.remove(question)
            return
        leader.store.silent = True
        leader.act(lambda: leader.store.lose(question))
        leader.store.silent = False

    def _lands(self, command: str) -> list[str]:
        asked = re.fullmatch(r"takes v(-?\d+): (.*) from (.*)", command)
        if asked is None:
            raise ImpossibleStepError(command)
        leader = self.programs[self.script.names.index(asked[3])]
        question = first(
            leader.store.questions,
            lambda q: (
                q.op is not None
                and q.landed is None
                and str(q.op.version) == asked[1]
                and record_text(q.record) == asked[2]
            ),
        )
        before, record = self.store, question.record
        leader.act(lambda: leader.store.land(question))
        if isinstance(question.landed, VersionConflictError):
            return ["conflict"]
        if isinstance(leader, StreamRepairer):
            bookies, after = (
                [each.stream_view() for each in self.bookies],
                StreamStoreState(record, before.version + 1, before.fault),
            )
            self.store = self.script.repairs.judged_cas(bookies, before, after)
            return ["written"]
        fault = before.fault
        writes = leader.take_over is None
        if record.term < before.record.term:
            fault = fault or ("U4", f"the record's term fell to {record.term}")
        elif writes and record.term != leader.written[-1].term:
            own = leader.written[-1].term
            fault = fault or ("U5", f"a writer of term {own} changed the record in term {record.term}")
        self.store = StreamStoreState(record, before.version + 1, fault)
        return ["written"]

    # --- bookies -------------------------------------------------------------------------------------------------------

    def _bookie(self, bookie: StreamBookieProgram, command: str) -> list[str]:
        taken = re.fullmatch(r"takes (.*) from (.*)", command)
        before = [said for program in self.programs for said in self._said(program, bookie)]
        if taken:
            leader = self.programs[self.script.names.index(taken[2])]
            line, sent = self._arriving(bookie, taken[1], leader)
            bookie.take(line.bookie.feed, sent, at_once=True)
        elif command == "loses its disk":
            for leader in self.programs:
                for line in self.network.all_lines(leader.number + 1, bookie.name):
                    line.cut = True
                    line.requests.clear()
                    leader.lose(line, bookie.name)
            bookie.lose_disk()
        elif command.startswith("reads term"):
            bookie.ask()
            bookie.on_responses(at_once=True)
        else:
            raise ImpossibleStepError(command)
        return [
            f"-> {leader.name} {said.text}"
            for leader in self.programs
            for said in self._said(leader, bookie)
            if said not in before
        ]

    def _said(self, leader: Program, bookie: Bookie) -> list[Any]:
        lines = self.network.all_lines(leader.number + 1, bookie.name)
        return [said for line in lines for said in line.answers]

    def _arriving(self, bookie: Bookie, text: str, leader: Program) -> tuple[Line, Sent]:
        """The request that reaches a bookie next."""
        explicit = text.startswith("explicit lac")
        lines = self.network.all_lines(leader.number + 1, bookie.name)
        if explicit and not any(sent.text == text for line in lines for sent in line.requests):
            self.stage.advance(LAC_MS + 10)
        for line in lines:
            asked = [sent for sent in line.requests if (sent.request[0] == "lac") is explicit]
            if asked and asked[0].text == text:
                line.requests.remove(asked[0])
                return line, asked[0]
        msg = f"{bookie.name} is sent no {text} by {leader.name}"
        raise ImpossibleStepError(msg)

    # --- judging -------------------------------------------------------------------------------------------------------

    def state(self, like: State) -> State:
        """The programs' state as the explorer's; connections and budgets are those of `like`."""
        world = self.script
        return (
            *[world.bookies.number(bookie.stream_view()) for bookie in self.bookies],
            world.stores.number(self.store),
            *[world.clients.number(leader.view()) for leader in self.leaders],
            *[world.clients.number(world.repairs.driver.new()) for _ in self.repairers],
            *like[world.at.link : world.at.reader],
            *[world.readers.number(reader.reader) for reader in self.readers],
            like[-1],
        )

    def compare(self, label: Label, said: Sequence[str], after: State) -> None:
        """Compare one step with the explorer's.

        Raises:
            DriverDiffersError: naming the step and both sides.
        """
        world, where = self.script, f"{label.actor}: {label.command}"
        wanted = [plain(line) for line in label.said if line.startswith("-> ")]
        if label.actor[0] == "b" and (missing := [line for line in wanted if line not in said]):
            msg = f"{where}: expected {missing}, said {list(said)}"
            raise DriverDiffersError(msg)
        sides: list[tuple[str, object, object]] = []
        for number, bookie in enumerate(self.bookies):
            sides.append(
                (bookie.name, _seen(bookie.stream_view()), _seen(world.bookies.parts[after[number]]))
            )
        store = world.stores.parts[after[world.at.store]]
        sides.append(("the record", self.store, store))
        for leader, client in zip(self.leaders, world.clients_of(after), strict=True):
            sides.append((leader.name, leader.acked, tuple(sorted(client.acked))))
            sides.append((leader.name, leader.written, client.written))
        for reader, model in zip(self.readers, world.readers_of(after), strict=True):
            sides.append((reader.name, reader.reader, model))
        for name, real, model_side in sides:
            if real != model_side:
                msg = f"{where}: {name} is {real}, the explorer's {model_side}"
                raise DriverDiffersError(msg)


def _chosen(label: Label) -> list[BookieId]:
    """The bookies on which a step's choice fell."""
    said = " ".join(line for line in label.said if line.startswith("   chosen "))
    return [BookieId(name) for name in re.findall(r"=(\S+)", said)]


def _seen(bookie: StreamBookie) -> tuple[object, ...]:
    """What is compared: not what a bookie keeps for a ledger's sake."""
    known: LedgerFacts = bookie.known
    return known.term, known.lac, known.lac_term, known.fenced, known.in_limbo, bookie.entries


def replay_stream(
    script: StreamWorld,
    path: Path,
    switches: Switches,
    invariants: Iterable[str] = tuple(STREAM_INVARIANTS),
    *,
    stage: Callable[[ScriptedNetwork], Stage] = AsyncioStage,
    strict: bool = True,
) -> Played:
    """Play a path of a stream's world with the programs; as `replay`.

    Raises:
        DriverDiffersError: a program did something else than the explorer's client or bookie.
        ImpossibleStepError: a step cannot be done.
    """
    play = StreamPlay(script, switches, stage)
    watch = StreamWatch(script, invariants)
    played = Played()
    labels = [label for label, _ in path[1:] if label is not None]
    try:
        for number, (label, after) in enumerate(path[1:], 1):
            assert label is not None
            play.coming = labels[number:]
            try:
                said = play.do(label)
            except (ImpossibleStepError, LookupError) as error:
                if strict:
                    raise
                played.skipped.append(f"{label.actor}: {label.command}: {error}")
                said = []
            played.steps = number
            if strict:
                play.compare(label, said, after)
                played.compared += 1
            violation: Violation | None = watch(play.state(after))
            if played.violation is None and violation is not None:
                played.violation, played.at = violation, number
    finally:
        play.close()
    return played
