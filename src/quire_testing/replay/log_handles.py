"""One handle of a replay: the log's programs as they ship, over a metadata store and ledgers that wait for the schedule.

Source: docs/testing-coverage.md.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from quire.core.errors import QuireError
from quire.core.log import effects as fx
from quire.core.log.list import LogHead
from quire.core.log.machine import LogMachine, LogStatus
from quire.log.config import LogConfig
from quire.log.electing import Candidacy
from quire.log.heads import HEADS, LogHeads
from quire.log.leader import LogLeader
from quire.log.log import Log
from quire.log.writer import LogWriter, RecordSender
from quire.metadata.memory import MemorySpace, MemoryStore
from quire.metadata.store import LIST_LIMIT, Put, Registration, VersionConflictError, Versioned, Watch
from quire.wire.log_records import encode_head, parse_head
from quire_testing.explorer.invariants import LOG_INVARIANTS
from quire_testing.explorer.log_world import effect_text
from quire_testing.explorer.snapshot import clone
from quire_testing.explorer.switches import Switches
from quire_testing.replay import recording
from quire_testing.replay.log_ledgers import StepClient, StepLedger, value_of
from quire_testing.replay.recording import RecordedInput
from quire_testing.replay.stage import Stage, perform
from quire_testing.replay.store import Question, ScriptedStore

LOG_ID: Final = b"\x07" * 16
NAME: Final = "orders"
KEY: Final = HEADS + LOG_ID.hex()
ELECTIONS: Final = "elections/"
BACK_OFF_MS: Final = 60_000
"""The longest wait of a handle that lost a duel; longer than any step of the simulator takes."""
CONFIG: Final = LogConfig(
    back_off_ms_min=BACK_OFF_MS,
    back_off_ms_max=BACK_OFF_MS,
    open_attempts_max=10_000,
    roll_ms=366 * 86_400_000,
    adopts=False,  # a look at the list that no schedule has
)


class HeadStore(ScriptedStore):
    """One handle's metadata store: questions about the log's head wait; the election, advice only, is apart.

    Args:
        shared: the heads' space.
        elections: the elections' space.
        blind: "open" or "roll" when such a compare-and-swap is taken now whatever the version (X20-cas, X22), and
            merged into what is there, as in the explorer's world of a log; "trim" when it is taken as it is
            (log-blind-truncation).
    """

    def __init__(self, shared: MemorySpace, elections: MemorySpace, blind: Callable[[], str]) -> None:
        super().__init__(shared, prefix=HEADS)
        self._elections = MemoryStore(elections)
        self._blindly = blind

    async def get(self, key: str) -> Versioned | None:
        """A read."""
        return await (self._elections.get(key) if key.startswith(ELECTIONS) else super().get(key))

    async def list(
        self, prefix: str, *, after: str | None = None, limit: int = LIST_LIMIT
    ) -> list[tuple[str, Versioned]]:
        """Candidates."""
        return await self._elections.list(prefix, after=after, limit=limit)

    async def register(
        self, key: str, value: bytes, *, sequential: bool = False, again: bool = True
    ) -> Registration:
        """A candidate."""
        return await self._elections.register(key, value, sequential=sequential, again=again)

    def watch(self, prefix: str) -> Watch:
        """Of candidates."""
        return self._elections.watch(prefix)

    def land(self, question: Question) -> None:
        """The compare-and-swap reaches the store; the list is merged when the store does not look at versions."""
        op = question.op
        assert op is not None
        row = self._space.rows[op.key]
        super().land(question)
        blind = self._blindly()
        if isinstance(question.landed, VersionConflictError) and blind:
            value = op.value if blind == "trim" else _merged(row.value, op.value, leads=blind == "open")
            question.landed = self._space.apply((Put(op.key, value, row.version),))


def _merged(now_value: bytes, asked_value: bytes, *, leads: bool) -> bytes:
    now, asked = parse_head(now_value, LOG_ID), parse_head(asked_value, LOG_ID)
    added = [item for item in asked.items if now.item(item.ledger_id) is None]
    merged = replace(now, items=(*now.items, *added))
    return encode_head(merged.with_leader(asked.leader) if leads else merged)


class AllMayLead:
    """An elector that names no candidate: a schedule decides which handle tries again."""

    def candidacy(self, log_id: bytes, candidate: str) -> Candidacy:  # noqa: ARG002 - an elector's
        """See `Elector`; the candidate is this elector too."""
        return self

    async def campaign(self) -> None:
        """Every handle may."""

    async def leader(self) -> str | None:
        """No candidate is named."""

    async def resign(self) -> None:
        """There is no candidate."""


class UncheckedHeads(LogHeads):
    """Heads whose reader does not ask whether the list is a possible one (a second fix that log-fences-last-two needs out)."""

    async def read(self, log_id: bytes) -> tuple[LogHead, int] | None:
        """A head as its record says."""
        found = await self._store.get(HEADS + log_id.hex())
        return None if found is None else (parse_head(found.value, log_id), found.version)


class GuessingLeader(LogLeader):
    """X21, log-sends-early: a leader that must send before a first offset is known takes 0."""

    def _serve(self, effect: fx.Serve) -> None:
        super()._serve(replace(effect, first_offset=effect.first_offset or 0))

    def _switch(self, effect: fx.SwitchLedger) -> None:
        super()._switch(replace(effect, first_offset=effect.first_offset or 0))


class KeptLog(Log):
    """A log that keeps the writer that it makes, also before it leads."""

    sender: RecordSender | None = None
    writer: LogWriter | None = None

    def _new_sender(self, leader: LogLeader, resign: Any) -> RecordSender:
        self.sender = super()._new_sender(leader, resign)
        self.writer = LogWriter(self.sender)
        return self.sender

    def _new_writer(self, _: RecordSender) -> LogWriter:
        assert self.writer is not None
        return self.writer


class GuessedLog(KeptLog):
    """A log whose leaders take 0 for a first offset that they do not know yet."""

    _leader_kind = GuessingLeader


class UncheckedLog(KeptLog):
    """A log whose lists are read without asking whether they are possible."""

    _heads_kind = UncheckedHeads


@dataclass(slots=True, eq=False)
class Append:
    """One record: its number, where it went, how many were acknowledged when it began, its caller's future."""

    number: int
    ledger: int
    seen: int
    future: asyncio.Future[int]
    acknowledged: bool = False


class LogHandle:
    """One handle.

    Args:
        number: in its name.
        stage: what it runs on.
        spaces: of heads, and of elections.
        ledgers: of the world.
        switches: what is replaced.
        kind: the log's class.

    Attributes:
        ahead: inputs that a later step of the schedule is about.
        fault: what its machine did against an invariant.
        raised: the machine as it was when an input failed; the driver has dropped it since.
    """

    def __init__(
        self,
        number: int,
        stage: Stage,
        spaces: tuple[MemorySpace, MemorySpace],
        ledgers: list[StepLedger],
        switches: Switches,
        kind: type[KeptLog],
    ) -> None:
        self.number, self.name, self.stage = number, f"handle {number}", stage
        self.loop = stage.loop_of(self.name)
        self.switches = switches
        self.ledgers = ledgers
        self.store = HeadStore(*spaces, self._blind)
        self.client = StepClient(ledgers, self.store, random.Random(number))
        client: Any = self.client
        self.log = kind(client, NAME, config=CONFIG, machine=self._made, elector=AllMayLead())
        self.appends: list[Append] = []
        self.ahead: list[RecordedInput] = []
        self.fault: tuple[str, str] | None = None
        self.raised: LogMachine | None = None
        self.recorded: recording.InputLog | None = None
        self._looked = 0
        self._seen: dict[int, int] = {}
        perform(stage, self.loop, lambda: self._task(self._opened()))

    async def _opened(self) -> LogWriter:
        return await self.log.open_writer()

    def _made(self, _: str, **settings: Any) -> LogMachine:
        """Its machine records its inputs; from here on the schedule answers."""
        self.store.scripted = True
        settings["host"] = ""
        kind, rules = self.switches.log, self.switches.rules

        def made(kind: type[LogMachine] = kind) -> LogMachine:
            return kind(f"h{self.number}", **settings, rules=rules)

        machine: Any = made(recording.recording(kind, recording.LOG_INPUTS))
        machine.log = self.recorded = recording.InputLog(kind, made, keeps=True)
        self._machine: LogMachine = machine
        return machine  # type: ignore[no-any-return]

    def _blind(self) -> str:
        now = "open" if self._machine.status is LogStatus.STORING else "roll"
        return now if self.switches.blind_lists == now else ""

    def act(self, what: Callable[[], Any]) -> Any:
        """Do something in the program."""
        return perform(self.stage, self.loop, what)

    def _task(self, work: Any) -> None:
        task = self.loop.create_task(work)
        task.add_done_callback(read_error)

    # --- what a user does --------------------------------------------------------------------------------------------

    @property
    def writer(self) -> LogWriter:
        """Its writer."""
        assert self.log.writer is not None
        return self.log.writer

    @property
    def sender(self) -> RecordSender:
        """Its working half."""
        assert self.log.sender is not None
        return self.log.sender

    def append(self, seen: int) -> None:
        """Append a record; `seen` were acknowledged before."""
        number = len(self.appends)
        ledger = self.target
        value = value_of(self.number, number)
        future = self.act(lambda: self.writer.append_nowait(value))
        future.add_done_callback(read_error)
        self.appends.append(Append(number, ledger, seen, future))

    def roll(self) -> None:
        """Ask for a new ledger."""
        self.act(lambda: self._task(self.writer.roll()))

    def close(self) -> None:
        """Give the lead back."""
        self.act(lambda: self._task(self.writer.close()))

    # --- what it is ----------------------------------------------------------------------------------------------------

    @property
    def machine(self) -> LogMachine:
        """A plain copy."""
        assert self.recorded is not None
        machine: LogMachine = recording.plain_copy(self._machine, self.recorded.kind)
        return machine

    @property
    def ended(self) -> bool:
        """Whether it is over."""
        return self._machine.status is LogStatus.ENDED

    @property
    def status(self) -> LogStatus:
        """Where its machine is."""
        return self._machine.status

    @property
    def target(self) -> int:
        """The ledger that appends go to; 0: none."""
        target = self.sender.target
        return int(target.ledger.ledger_id) if target is not None else 0

    @property
    def draining(self) -> int:
        """The ledger that gets no more."""
        return int(self.sender._draining or 0)

    @property
    def work(self) -> list[tuple[Any, ...]]:
        """What was asked and has no response yet, with the lists themselves."""
        return work_of(self.client, self.store, ended=self.ended)

    def acknowledged(self) -> list[Append]:
        """Appends that were confirmed to callers since the last call."""
        new = [
            each
            for each in self.appends
            if not each.acknowledged
            and each.future.done()
            and not each.future.cancelled()
            and each.future.exception() is None
        ]
        for each in new:
            each.acknowledged = True
        return new

    def new_inputs(self) -> list[RecordedInput]:
        """Its machine's inputs since the last call; each state is checked as it was."""
        assert self.recorded is not None
        new = self.recorded.inputs[self._looked :]
        self._looked = len(self.recorded.inputs)
        for step in new:
            self._judge(step)
        return new

    def _judge(self, step: RecordedInput) -> None:
        error: Exception | None = step.error
        if error is None:
            machine = clone(step.after)
            machine._seen = self._seen
            try:
                machine.check()
            except (AssertionError, QuireError) as failed:
                error = failed
        elif self.raised is None:
            self.raised = step.after
        if error is not None:
            # As the explorer's world of a log: an error that names no invariant is one of the items that are not closed.
            name, _, rest = str(error).partition(": ")
            self.fault = self.fault or ((name, rest) if name in LOG_INVARIANTS else ("L6", str(error)))


def lines_of(steps: Sequence[RecordedInput]) -> tuple[str, ...]:
    """What was said, as the explorer says it: without a drain's responses, which it gives in the same turn."""
    return tuple(effect_text(effect) for each in steps if each.name != "drained" for effect in each.said)


def work_of(client: StepClient, store: HeadStore, *, ended: bool) -> list[tuple[Any, ...]]:
    """What a program asked its client and its store and has no response to, as the explorer has it, with the lists."""
    found: list[tuple[Any, ...]] = [request.work for request in client.requests]
    for question in store.questions:
        if question.op is None:
            found.append(("read",))
        elif question.landed is None:
            waits = question.heeded and not ended
            head = parse_head(question.op.value, LOG_ID)
            found.append(("swap" if waits else "late", head, question.op.version))
        elif isinstance(question.landed, VersionConflictError):
            found.append(("answer", "conflict", 0))
        else:
            found.append(("answer", "written", question.landed[0]))
    return found


def read_error(done: asyncio.Future[Any]) -> None:
    """Read an outcome, so that asyncio does not log it as lost."""
    if not done.cancelled():
        done.exception()
