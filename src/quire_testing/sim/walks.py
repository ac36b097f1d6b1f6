"""One random walk over the worlds of the explorer: the machines that ship, a thousand times cheaper than the programs.

A seed decides everything. Steps are chosen by a priority schedule: each source of steps has an index in a random order,
the first that can make a step makes it, and at change points one source moves elsewhere. So a connection, a disk or a
client is slow for a whole walk, which uniform chance never gives. Faults come when the take-over begins, or anywhere. A
walk begins behind a random number of entries that are everywhere already, and stops when nothing is left to decide.

Source: docs/simulation.md, "Walks of the machines"; Burckhardt and others: priority schedules.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from quire_testing.explorer.check import setting_of
from quire_testing.explorer.configuration import Configuration
from quire_testing.explorer.invariants import NAMES, InvariantWatch, Violation
from quire_testing.explorer.log_world import LogWorld
from quire_testing.explorer.mutants import AnyConfiguration
from quire_testing.explorer.sources import FAULTS, Source, SourcesWorld
from quire_testing.explorer.switches import SHIPPED, Switches
from quire_testing.explorer.tables import Move, State
from quire_testing.sim.walk_mixes import WALK_MIXES

STEPS_MAX = 400
PARTS_MAX = 60_000
"""States of clients after which a world's tables begin anew, some 400 MB; no walk depends on them."""

CHANGES = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0)
"""How likely a source moves elsewhere in the order after a step; one of these for a walk."""

GOES_BACK = frozenset({"timer", "found", "record", "close", "repair"})
"""Steps that could be taken again and again: an actor that took one waits for the others."""


@dataclass(slots=True)
class Walk:
    """The result of a walk: its path is (label, state after it), the first with label None."""

    seed: int
    mix: str
    path: list[tuple[Any, Any]] = field(default_factory=list)
    violation: Violation | None = None
    seen: tuple[str, ...] = ()

    @property
    def steps(self) -> int:
        """How many steps it took."""
        return len(self.path) - 1


@dataclass(slots=True)
class _Plan:
    """What one walk of a ledger's world is like.

    Attributes:
        skipped: entries that are written, everywhere and acknowledged when it begins.
        takeovers: for each recoverer, the add at which it begins.
        faults: (kind, whether it counts steps from the take-over, how many steps), still to come.
        victim: the client whose time-outs and breaks happen, -1 for any client's.
        change: how likely a source moves after a step.
        order: the sources, the first to make a step first.
        aims: the requests for which faults are kept, by the kind of fault.
        phases: what each recoverer is about, in walks that aim: when that changes, other links of it are slow.
    """

    skipped: int
    takeovers: list[int]
    faults: list[tuple[str, bool, int]]
    victim: int
    change: float
    order: list[Source]
    aims: dict[str, str]
    phases: dict[int, Any] = field(default_factory=dict)


class LedgerWalks:
    """Walks of one mix over a ledger's world."""

    def __init__(self, mix: str, configuration: Configuration, switches: Switches) -> None:
        self._mix = mix
        self.configuration = configuration
        self._switches = switches
        self._fresh()

    def _fresh(self) -> None:
        self.world = SourcesWorld(self.configuration, self._switches)
        self.watch = InvariantWatch(self.world, NAMES)
        self.stuck = self.watch.deadlock
        self._sources = self.world.sources()
        first = 1 + self.configuration.recoverers
        self._repairers = {each for each in self._sources if each[0] == "client" and each[1] >= first}
        self._written: list[list[tuple[Any, Any]]] = [[(None, self.world.initial())]]

    def walk(self, seed: int, skipped: int | None = None) -> Walk:
        """The walk of a seed.

        Args:
            seed: decides everything.
            skipped: how many entries are everywhere at the beginning, instead of what the seed says.
        """
        with self._switches.applied():
            return self._walk(seed, skipped)

    def _walk(self, seed: int, skipped: int | None) -> Walk:
        if len(self.world.clients) > PARTS_MAX:
            self._fresh()
        chance = random.Random(seed)
        plan = self._plan(chance)
        if skipped is not None:
            plan.takeovers = [each - plan.skipped + skipped for each in plan.takeovers]
            plan.skipped = skipped
        path = list(self._after(plan.skipped))
        walk = Walk(seed, self._mix, path)
        kinds: set[tuple[str, str]] = set()
        took_over = -1
        recoverers = range(1, 1 + self.configuration.recoverers)
        state = path[-1][1]
        walk.violation = self.watch(state)
        while walk.violation is None and len(path) < STEPS_MAX and not self.world.is_over(state):
            if took_over < 0 and any(self.world.began(state, client) for client in recoverers):
                took_over = len(path)
            move = self._fault(chance, plan, state, len(path), took_over) or self._step(chance, plan, state)
            if move is None:
                walk.violation = self._stuck(state)
                break
            path.append(move)
            label, state = move
            kinds.add((label.actor, label.kind))
            if plan.aims:
                self._change_links(chance, plan, state)
            walk.violation = self.watch(state)
        walk.seen = (*_seen(kinds), *self._results(state))
        return walk

    def _plan(self, chance: random.Random) -> _Plan:
        c = self.configuration
        order = list(self._sources)
        chance.shuffle(order)
        if chance.random() < 0.3:
            # One bookie is slow for the whole walk: what it is sent comes last.
            slow = chance.randrange(c.bookies)
            order.sort(key=lambda source: source[0] == "request" and source[2] == slow)
        skipped = 0 if chance.random() < 0.4 else chance.randrange(max(1, c.entries - 4))
        first = skipped + chance.choice((0, 1, 1, 2, 2, 3, 4, 8))
        takeovers = [min(first, c.entries)]
        takeovers += [min(first + chance.choice((0, 0, 1, 4)), c.entries) for _ in range(c.recoverers - 1)]
        faults = []
        for kind in FAULTS:
            for _ in range(getattr(c, kind)):
                if chance.random() < 0.8:
                    late = chance.random() < 0.6
                    faults.append((kind, late, chance.choice((0, 1, 2, 4, 8, 12, 16, 24))))
        victim = chance.choice((-1, *range(c.recoverers + 1)))
        change = chance.choice(CHANGES)
        aims = dict(WALK_MIXES[self._mix].aims)
        if aims and chance.random() < 0.2:
            aims = {}
        if aims and victim == 0:
            victim = -1
        if aims and chance.random() < 0.6:
            takeovers[1:] = [c.entries] * (c.recoverers - 1)  # the others come when nothing else happens
        return _Plan(skipped, takeovers, faults, victim, change, order, aims)

    def _after(self, entries: int) -> list[tuple[Any, Any]]:
        """The path along which this many entries are written one by one, with no other client."""
        run = self.configuration.run
        while len(self._written) <= entries:
            path = list(self._written[-1])
            state, wanted = path[-1][1], "append"
            while True:
                moves = self._quiet_steps(state, wanted)
                if not moves:
                    break
                path.append(moves[0])
                state, wanted = moves[0][1], ""
            assert self.world.written(state) == len(self._written) * run
            self._written.append(path)
        return self._written[entries]

    def _quiet_steps(self, state: State, wanted: str) -> list[Move]:
        if wanted:
            found = self.world.steps_of(state, ("client", 0, 0, 0, -1))
            return [move for move in found if move[0].kind == wanted]
        for source in self._sources:
            if source[0] in ("request", "reply", "disk"):
                found = self.world.steps_of(state, source)
                if found:
                    return found
        return []

    def _fault(
        self, chance: random.Random, plan: _Plan, state: State, steps: int, took_over: int
    ) -> Move | None:
        """A fault whose time has come, if it can happen now; if not, it waits."""
        begun = len(self._written[plan.skipped])
        for number, (kind, late, after) in enumerate(plan.faults):
            since = took_over if late else begun
            if since < 0 or steps - since < after:
                continue
            found = self.world.faults_of(state, kind, plan.victim, plan.aims.get(kind, ""))
            if found:
                del plan.faults[number]
                return chance.choice(chance.choice(found)[1]())
        return None

    def _step(self, chance: random.Random, plan: _Plan, state: State) -> Move | None:
        """The step of the first source that can make one."""
        order = plan.order
        written = None
        held_back: list[Source] = []
        steps_of = self.world.steps_of
        silent = "disk" if self.world.syncs_at_once(state) else ""
        for source in order:
            if state[source[3]] == source[4] or source[0] == silent:
                continue
            waits = source[0] == "client" and 0 < source[1] <= self.configuration.recoverers
            if waits and not self.world.began(state, source[1]):
                if written is None:
                    written = self.world.written(state) // self.configuration.run
                if written < plan.takeovers[source[1] - 1]:
                    held_back.append(source)
                    continue
            if source in self._repairers:
                found = self._repair_step(chance, state, source[1])
            else:
                found = steps_of(state, source)
            if found:
                return self._taken(chance, plan, source, found)
        for source in held_back:
            found = steps_of(state, source)
            if found:
                return self._taken(chance, plan, source, found)
        return None

    def _repair_step(self, chance: random.Random, state: State, client: int) -> list[Move]:
        """One step of a repairer's own; the others that it could take are not worked out."""
        choices = self.world.repairs.choices_of(state, client)
        if not choices:
            return []
        return [(choices[0] if len(choices) == 1 else chance.choice(choices))()]

    def _taken(self, chance: random.Random, plan: _Plan, source: Source, found: Sequence[Move]) -> Move:
        order = plan.order
        move = found[0]
        if len(found) > 1:
            appends = [each for each in found if each[0].kind == "append"]
            move = appends[0] if appends and chance.random() < 0.9 else chance.choice(found)
        if move[0].kind in GOES_BACK:
            order.remove(source)
            order.append(source)
        if plan.change and chance.random() < plan.change:
            moved = order.pop(chance.randrange(len(order)))
            order.insert(chance.randrange(len(order) + 1), moved)
        return move

    def _change_links(self, chance: random.Random, plan: _Plan, state: State) -> None:
        """A change point where it matters: a recoverer that begins something new finds other bookies slow."""
        for client in range(1, self.world.count):
            phase = self.world.phase(state, client)
            if plan.phases.get(client) is phase:
                continue
            plan.phases[client] = phase
            indexes = [
                index
                for index, (kind, one, *_) in enumerate(plan.order)
                if one == client and kind in ("request", "reply", "late")
            ]
            sources = [plan.order[index] for index in indexes]
            chance.shuffle(sources)
            for index, source in zip(indexes, sources, strict=True):
                plan.order[index] = source

    def _stuck(self, state: State) -> Violation | None:
        """No actor can make a step: allowed unless a client waits, and no fault could happen."""
        return None if self.world.successors(state) else self.stuck(state)

    def _results(self, state: State) -> list[str]:
        clients = list(self.world.clients_of(state))
        found = [f"writer ends: {clients[0].machine.status.value}"] if clients[0].idle else []
        return [*found, *(f"recovery ends: {each.result}" for each in clients[1:] if each.result)]


class WorldWalks:
    """Walks of one mix over a world of logs or streams: what one actor does with another is a source."""

    def __init__(self, mix: str, configuration: AnyConfiguration, switches: Switches) -> None:
        self._mix = mix
        self.configuration = configuration
        self._switches = switches
        self._fresh()

    def _fresh(self) -> None:
        setting = setting_of(self.configuration, self._switches, None)
        self.world: Any = setting.world
        self.watch = setting.violation_in
        self.stuck = setting.deadlock_in

    def walk(self, seed: int, skipped: int | None = None) -> Walk:
        """The walk of a seed; such a walk skips nothing."""
        del skipped
        with self._switches.applied():
            return self._walk(seed)

    def _walk(self, seed: int) -> Walk:
        if len(self.world.handles if isinstance(self.world, LogWorld) else self.world.clients) > PARTS_MAX:
            self._fresh()
        chance = random.Random(seed)
        change = chance.choice(CHANGES)
        ranks: dict[Any, float] = {}
        state = self.world.initial()
        walk = Walk(seed, self._mix, [(None, state)])
        kinds: set[tuple[str, str]] = set()
        while walk.violation is None and walk.steps < STEPS_MAX:
            move = self._step(chance, ranks, change, dict(self.world.sources(state)))
            if move is None:
                walk.violation = self.stuck(state) if self.stuck is not None else None
                break
            walk.path.append(move)
            label, state = move
            kinds.add((label.actor, label.kind))
            walk.violation = self.watch(state)
        walk.seen = _seen(kinds)
        return walk

    @staticmethod
    def _step(
        chance: random.Random, ranks: dict[Any, float], change: float, sources: dict[Any, Callable[[], Any]]
    ) -> Any:
        """The step of the first source that can make one; the steps of those behind it are not worked out."""
        for source in sources:
            if source not in ranks:
                ranks[source] = chance.random()
        for source in sorted(sources, key=ranks.__getitem__):
            moves = list(sources[source]())
            if moves:
                if chance.random() < max(change, 0.05):
                    ranks[chance.choice(list(sources))] = chance.random()
                return chance.choice(moves)
        return None


def _seen(kinds: set[tuple[str, str]]) -> tuple[str, ...]:
    return tuple(sorted({f"{actor.split()[0]} {kind}" for actor, kind in kinds}))


Walks = LedgerWalks | WorldWalks


def walks_of(mix: str, switches: Switches = SHIPPED) -> Walks:
    """The walks of a mix in a world of these switches; this process keeps the latest."""
    return _walks_of(mix, switches)


@lru_cache(maxsize=2 * len(WALK_MIXES))
def _walks_of(mix: str, switches: Switches) -> Walks:
    world = WALK_MIXES[mix].world
    kind: Callable[..., Walks] = LedgerWalks if isinstance(world, Configuration) else WorldWalks
    return kind(mix, world, switches)
