"""A replay in the simulator: each program is a process of it, on its timeline; the schedule is the network and the disks.

Source: docs/testing-coverage.md, "Replay: the programs go where the explorer goes".
"""

from __future__ import annotations

import asyncio

from quire_testing.replay.stage import ScriptedNetwork
from quire_testing.sim.loop import MS, ProcessLoop, Timeline

STEP_MS = 50
"""A turn of a process takes a little time; a step takes this much, and no timer is that short."""
EVENTS_MAX = 100_000


class SimulatorStage:
    """Each program a process of the simulator, on its timeline."""

    def __init__(self, network: ScriptedNetwork) -> None:
        self._network = network
        self._timeline = Timeline()
        self._loops: dict[str, ProcessLoop] = {}

    def loop_of(self, name: str) -> asyncio.AbstractEventLoop:
        """The process of this name."""
        if name not in self._loops:
            loop = self._loops[name] = ProcessLoop(self._timeline, name)  # type: ignore[abstract]
            loop.network = self._network
        return self._loops[name]

    def settle(self) -> None:
        """Run what is due; timers are later."""
        self._run(STEP_MS)

    def advance(self, ms: int) -> None:
        """Let time pass."""
        self._run(ms)

    def close(self) -> None:
        """The world ends."""
        for loop in self._loops.values():
            loop.bury()

    def _run(self, ms: int) -> None:
        end = self._timeline.now_ns + ms * MS
        self._timeline.run(lambda: False, until_ns=end, events_max=EVENTS_MAX)
        if self._timeline.now_ns < end and ms > STEP_MS:
            self._timeline.now_ns = end
