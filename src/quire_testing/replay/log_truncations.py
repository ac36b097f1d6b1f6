"""One truncation of a replay: `Log.truncate` as it ships, over a metadata store and ledgers that wait for the schedule.

Source: docs/decisions/022-truncation-intent.md; docs/testing-coverage.md, "Replay: the programs go where the explorer goes".
"""

from __future__ import annotations

import random
from typing import Any

from quire.core.log.trimming import TrimMachine, TrimStatus
from quire.log.log import Log
from quire.metadata.memory import MemorySpace
from quire_testing.explorer.log_world import trim_text
from quire_testing.explorer.switches import Switches
from quire_testing.replay import recording
from quire_testing.replay.log_handles import CONFIG, NAME, HeadStore, read_error, work_of
from quire_testing.replay.log_ledgers import StepClient, StepLedger
from quire_testing.replay.recording import RecordedInput
from quire_testing.replay.stage import Stage, perform


class LogTruncation:
    """One client that truncates the log, once.

    Args:
        number: in its name.
        before: the log's new start.
        stage: what it runs on.
        spaces: of heads, and of elections.
        ledgers: of the world.
        switches: what is replaced.
    """

    def __init__(
        self,
        number: int,
        before: int,
        stage: Stage,
        spaces: tuple[MemorySpace, MemorySpace],
        ledgers: list[StepLedger],
        switches: Switches,
    ) -> None:
        self.name, self.stage = f"truncation {number}", stage
        self.loop = stage.loop_of(self.name)
        self.switches = switches
        self.store = HeadStore(*spaces, lambda: "trim" if switches.blind_lists == "trim" else "")
        self.client = StepClient(ledgers, self.store, random.Random(number))
        client: Any = self.client
        self.log = Log(client, NAME, config=CONFIG, trim=self._made)
        self._looked = 0
        self.act(lambda: self.loop.create_task(self.log.truncate(before)).add_done_callback(read_error))

    def _made(self, before: int | None, **settings: Any) -> TrimMachine:
        """Its machine records its inputs; from here on the schedule answers."""
        self.store.scripted = True
        kind = self.switches.trim

        def made(kind: type[TrimMachine] = kind) -> TrimMachine:
            return kind(before, **settings)

        machine: Any = made(recording.recording(kind, recording.TRIM_INPUTS))
        machine.log = self.recorded = recording.InputLog(kind, made)
        self._machine: TrimMachine = machine
        return machine  # type: ignore[no-any-return]

    def act(self, what: Any) -> Any:
        """Do something in the program."""
        return perform(self.stage, self.loop, what)

    @property
    def machine(self) -> TrimMachine:
        """A plain copy; what must hold in it was asked."""
        machine: TrimMachine = recording.plain_copy(self._machine, self.recorded.kind)
        machine.check()
        return machine

    @property
    def ended(self) -> bool:
        """Whether it is over."""
        return self._machine.status is TrimStatus.ENDED

    @property
    def work(self) -> list[tuple[Any, ...]]:
        """What was asked and has no response yet."""
        return work_of(self.client, self.store, ended=self.ended)

    def new_inputs(self) -> list[RecordedInput]:
        """Its machine's inputs since the last call."""
        new = self.recorded.inputs[self._looked :]
        self._looked = len(self.recorded.inputs)
        return new

    def said(self) -> tuple[str, ...]:
        """What its machine said since the last question, as the explorer says it."""
        return tuple(trim_text(effect) for step in self.new_inputs() for effect in step.said)
