"""A small world in which every interleaving of a sink's commits is walked: drivers that die, linger and lose answers.

What is real is the machine of `core/log/commit.py` and the list's own rules. The store, Spark's driver and a leader are
modelled: a driver stages two ledgers, commits, and after an error aborts and is started again under the same number,
as Spark does; one that was taken for dead may still act; a compare-and-swap whose answer was lost lands later, or never. Deletion
looks at the list first and happens only if the list is still of the version that was looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from quire.core.ids import LedgerId
from quire.core.log import commit as c
from quire.core.log.commit import (
    COMMIT_RULES,
    CommitBatch,
    CommitMachine,
    CommitOutcome,
    CommitRules,
    FoundHead,
    Part,
)
from quire.core.log.fingerprints import Fingerprint, of_input
from quire.core.log.list import ItemState, Leader, LedgerSummary, LogHead, LogItem, LogPage
from quire.core.log.sink_positions import POSITION_RULES
from quire_testing.explorer.explorer import explore
from quire_testing.explorer.invariants import Violation
from quire_testing.explorer.snapshot import clone, state_of
from quire_testing.history.logs import follows

LOG = b"\x03" * 16
WITHOUT_POSITIONS = replace(POSITION_RULES, is_replay=lambda *_: False, is_behind=lambda *_: False)
"""As if no sink position said anything."""
OTHERS = 1000
"""Ledgers of others begin here."""


@dataclass(frozen=True)
class Config:
    """How much may happen.

    Attributes:
        batches: numbered from 0.
        deaths: of a driver; `lingers` says that it may go on acting.
        gives_up: how often a commit raises after a lost answer.
        led: a leader has a ledger open and adopts.
        marked: whether the batches have a sink position.
    """

    batches: int = 2
    lost: int = 1
    deaths: int = 1
    lingers: bool = True
    gives_up: int = 1
    others: int = 1
    collects: int = 0
    led: bool = False
    marked: bool = True
    rules: CommitRules = COMMIT_RULES
    looks: bool = True


class Driver(NamedTuple):
    """One driver: what its commit waits for, and what it still has to delete."""

    machine: CommitMachine | None
    batch: int
    ledgers: tuple[int, ...]
    work: tuple[Any, ...] = ()
    alive: bool = True
    aborting: bool = False

    @property
    def key(self) -> Any:
        machine = None if self.machine is None else state_of(self.machine)
        return (machine, *self[1:])


class State(NamedTuple):
    """Everything."""

    head: LogHead
    version: int
    made: tuple[tuple[int, bool], ...]
    """Of each staged ledger its batch and whether it exists; its id is its place, from 1."""
    recorded: int
    drivers: tuple[Driver, ...]
    late: tuple[Any, ...]
    collector: tuple[Any, ...]
    lost: int
    deaths: int
    gives_up: int
    others: int
    collects: int

    @property
    def key(self) -> Any:
        return (self.head, self.version, self.made, self.recorded, *(d.key for d in self.drivers), *self[5:])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, State) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


class CommitWorld:
    """All that can happen under one configuration."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def initial(self) -> State:
        head = LogHead(LOG, "orders")
        if self.config.led:
            head = head.with_item(LogItem(LedgerId(OTHERS))).with_leader(Leader(1, "h", "b", adopts=True))
        c_ = self.config
        first = Driver(None, 0, ())
        return State(
            head, 1, (), 0, (first,), (), (), c_.lost, c_.deaths, c_.gives_up, c_.others, c_.collects
        )

    def successors(self, state: State) -> list[tuple[str, State]]:
        return [*self._steps(state)]

    def _steps(self, state: State) -> Iterator[tuple[str, State]]:
        for who, driver in enumerate(state.drivers):
            yield from self._drives(state, who, driver)
        for place, cas in enumerate(state.late):
            rest = state._replace(late=(*state.late[:place], *state.late[place + 1 :]))
            yield "a late swap lands", self._landed(rest, cas)[0]
        if state.others:
            yield from self._others(state._replace(others=state.others - 1))
        yield from self._collects(state)

    # --- drivers -----------------------------------------------------------------------------------------------

    def _drives(self, state: State, who: int, driver: Driver) -> Iterator[tuple[str, State]]:
        if driver.alive and state.deaths:
            yield from self._dies(state, who, driver)
        if driver.machine is None and not driver.aborting:
            if driver.alive and state.recorded < self.config.batches:
                yield self._stages(state, who, driver)
            return
        if driver.aborting and not driver.work:
            if driver.alive:
                yield "starts again", self._with(state, who, Driver(None, state.recorded, ()))
            return
        for place, work in enumerate(driver.work):
            rest = driver._replace(work=(*driver.work[:place], *driver.work[place + 1 :]))
            yield from self._works(state, who, rest, work)
        machine = driver.machine
        if machine is not None and machine.ended is not None and not driver.work:
            yield self._ended(state, who, driver, machine.ended.outcome)

    def _with(self, state: State, who: int, driver: Driver) -> State:
        return state._replace(drivers=(*state.drivers[:who], driver, *state.drivers[who + 1 :]))

    def _dies(self, state: State, who: int, driver: Driver) -> Iterator[tuple[str, State]]:
        state = state._replace(deaths=state.deaths - 1)
        again = Driver(None, state.recorded, ())
        writes = tuple(work for work in driver.work if work[0] == "multi")
        gone = self._with(state, who, again)
        yield "dies", gone._replace(late=(*state.late, *(cas[1] for cas in writes)))
        if self.config.lingers and driver.machine is not None:
            lingering = self._with(state, who, driver._replace(alive=False))
            yield "is taken for dead", lingering._replace(drivers=(*lingering.drivers, again))

    def _stages(self, state: State, who: int, driver: Driver) -> tuple[str, State]:
        first = len(state.made) + 1
        ids = (first, first + 1)
        items = tuple(LogItem(LedgerId(each), count=1, state=ItemState.CLOSED) for each in ids)
        query = "q" if self.config.marked else ""
        batch = CommitBatch((Part(LOG, items, _input_of(driver.batch)),), query, driver.batch)
        machine = CommitMachine(batch, name_page=page_name, rules=self.config.rules)
        machine.start()
        made = (*state.made, (driver.batch, True), (driver.batch, True))
        after = self._told(Driver(machine, driver.batch, ids), machine)
        return f"stages batch {driver.batch}", self._with(state._replace(made=made), who, after)

    def _told(self, driver: Driver, machine: CommitMachine) -> Driver:
        """What the machine asks for becomes its driver's work."""
        machine.check()
        work = list(driver.work)
        for effect in machine.out:
            match effect:
                case c.ReadHeads():
                    work.append(("read",))
                case c.LookForLedger(place, _, ledger_id):
                    work.append(("search", place, int(ledger_id)))
                case c.CasHeads():
                    work.append(("check", effect))
                case c.DeleteUnlisted(_, items):
                    work += [("look", int(item.ledger_id)) for item in items]
        machine.out = []
        return driver._replace(machine=machine, work=tuple(work))

    def _put(self, driver: Driver, put: Callable[[CommitMachine], object]) -> Driver:
        assert driver.machine is not None
        machine = clone(driver.machine)
        machine.out = []
        put(machine)
        return self._told(driver, machine)

    def _works(
        self, state: State, who: int, rest: Driver, work: tuple[Any, ...]
    ) -> Iterator[tuple[str, State]]:
        kind = work[0]
        if kind == "read":
            position = state.head.sink_position("q")
            own = (
                None if position is None else _input_of(position.batch_id)
            )  # every driver has the same checkpoint
            found = [FoundHead(state.head, state.version, own=own)]
            yield "reads", self._with(state, who, self._put(rest, lambda m: m.heads_read(found)))
            if state.gives_up and rest.machine is not None and rest.machine.may_be_in:
                spent = state._replace(gives_up=state.gives_up - 1)
                yield "gives up", self._with(spent, who, self._aborting(rest))
        elif kind == "search":
            listed = _names(state.head, work[2])
            after = self._put(rest, lambda m: m.looked(work[1], listed=listed))
            yield "searches", self._with(state, who, after)
        elif kind == "check":
            gone = any(not state.made[int(item.ledger_id) - 1][1] for item in work[1].required)
            after = rest._replace(work=(*rest.work, ("multi", work[1])))
            if gone:
                after = self._put(rest, lambda m: m.ledger_missing())
            yield "checks its ledgers", self._with(state, who, after)
        elif kind == "multi":
            yield from self._cas(state, who, rest, work[1])
        elif kind in {"look", "delete"}:
            yield self._deletes(state, who, rest, work)

    def _cas(self, state: State, who: int, rest: Driver, cas: c.CasHeads) -> Iterator[tuple[str, State]]:
        after, done = self._landed(state, cas)
        told = self._put(rest, lambda m: m.stored() if done else m.conflicted())
        yield ("swaps" if done else "conflicts"), self._with(after, who, told)
        if state.lost:
            spent = state._replace(lost=state.lost - 1, late=(*state.late, cas))
            yield "hears nothing", self._with(spent, who, self._put(rest, lambda m: m.unknown()))

    def _landed(self, state: State, cas: c.CasHeads) -> tuple[State, bool]:
        [change] = cas.changes
        exist = all(state.made[int(item.ledger_id) - 1][1] for item in cas.required)
        if change.version != state.version or not exist:
            return state, False
        # Ledgers leave a list at its front and join it at its end, whoever changes it.
        assert follows(state.head.ledger_ids, change.head.ledger_ids), (state.head, change.head)
        return state._replace(head=change.head, version=state.version + 1), True

    def _aborting(self, driver: Driver) -> Driver:
        work = tuple(("look", each) for each in driver.ledgers)
        return Driver(None, driver.batch, (), work, driver.alive, aborting=True)

    def _ended(self, state: State, who: int, driver: Driver, outcome: CommitOutcome) -> tuple[str, State]:
        if not driver.alive:
            return "is gone", self._with(state, who, Driver(None, driver.batch, (), alive=False))
        if outcome not in {CommitOutcome.COMMITTED, CommitOutcome.ALREADY}:
            assert outcome not in {CommitOutcome.IS_BEHIND, CommitOutcome.OTHER_HISTORY}, (
                "the checkpoint is whole"
            )
            return f"raises {outcome.value}", self._with(state, who, self._aborting(driver))
        recorded = driver.batch + 1
        after = self._with(state, who, Driver(None, recorded, ()))
        return f"records batch {driver.batch}", after._replace(recorded=recorded)

    # --- deletion ----------------------------------------------------------------------------------------------

    def _looked(self, state: State, work: tuple[Any, ...]) -> tuple[State, tuple[Any, ...]]:
        """One step of a guarded deletion: look, then delete if nothing has changed since."""
        ledger = work[1]
        batch, _ = state.made[ledger - 1]
        deleted = (*state.made[: ledger - 1], (batch, False), *state.made[ledger:])
        if not self.config.looks:
            return state._replace(made=deleted), ()
        if work[0] == "look":
            return state, () if _names(state.head, ledger) else (("delete", ledger, state.version),)
        if work[2] != state.version:
            return state, (("look", ledger),)
        return state._replace(made=deleted), ()

    def _deletes(self, state: State, who: int, rest: Driver, work: tuple[Any, ...]) -> tuple[str, State]:
        after, more = self._looked(state, work)
        return f"{work[0]}s ledger {work[1]}", self._with(after, who, rest._replace(work=(*rest.work, *more)))

    def _collects(self, state: State) -> Iterator[tuple[str, State]]:
        if state.collector:
            after, more = self._looked(state, state.collector[0])
            yield "the collector goes on", after._replace(collector=more)
        elif state.collects:
            for ledger, (_, exists) in enumerate(state.made, 1):
                if exists and not _names(state.head, ledger):
                    begun = state._replace(collects=state.collects - 1, collector=(("look", ledger),))
                    yield f"the collector finds ledger {ledger}", begun

    # --- others ------------------------------------------------------------------------------------------------

    def _others(self, state: State) -> Iterator[tuple[str, State]]:
        """Somebody else changes the list: a leader places what waits, or another writer appends."""
        head = replace(state.head, generation=state.head.generation + 1)
        if not self.config.led:
            item = LogItem(
                LedgerId(OTHERS + state.version),
                first_offset=head.closed_end,
                next_offset=head.closed_end + 1,
                count=1,
                state=ItemState.CLOSED,
            )
            yield "another appends", state._replace(head=head.with_item(item), version=state.version + 1)
        elif head.open_items:
            done = head.with_completed(
                head.open_items[-1].ledger_id, LedgerSummary(1)
            ).with_adoptions_placed()
            done = done.with_item(LogItem(LedgerId(OTHERS + state.version)))
            yield "the leader places", state._replace(head=done, version=state.version + 1)

    # --- what must hold ----------------------------------------------------------------------------------------

    def is_ended(self, state: State) -> bool:
        """Whether all is written."""
        return state.recorded == self.config.batches

    def broken(self, state: State) -> str:
        """What is wrong, "" if nothing."""
        listed = [int(item.ledger_id) for item in state.head.items]
        listed += [int(item.ledger_id) for each in state.head.adoptions for item in each.items]
        mine = [each for each in listed if each < OTHERS]
        if len(set(mine)) != len(mine):
            return "a ledger is listed twice"
        for each in mine:
            if not state.made[each - 1][1]:
                return f"ledger {each} is listed and deleted"
        batches = [state.made[each - 1][0] for each in mine]
        if batches != sorted(batches):
            return f"batches stand as {batches}"
        for batch in range(self.config.batches):
            count = batches.count(batch)
            if count not in {0, 2}:
                return f"batch {batch} has {count} of 2 ledgers in the list"
            if count == 0 and batch < state.recorded:
                return f"batch {batch} is recorded and not in the list"
        return ""


@dataclass(frozen=True)
class Walked:
    """What a search found: the states, or the shortest way to what is wrong."""

    states: int
    broken: str = ""
    path: tuple[str, ...] = ()
    ended: int = 0


def walk(config: Config, states_max: int = 300_000) -> Walked:
    """Every state that a configuration can come to, or the first that is wrong."""
    return search(CommitWorld(config), states_max)


def search(world: Any, states_max: int) -> Walked:
    """Every state of a world that has `broken` and `is_ended`; more than `states_max` are a mistake."""
    ended = 0

    def look(state: Any) -> Violation | None:
        nonlocal ended
        ended += world.is_ended(state)
        wrong = world.broken(state)
        return Violation("it is broken", wrong) if wrong else None

    found = explore(world, look, states_max=states_max)
    assert found.complete or found.violation, "the world is larger than it was"
    if found.violation:
        return Walked(found.states, found.violation.text, tuple(label for label, _ in found.path[1:]))
    return Walked(found.states, ended=ended)


def _input_of(batch: int) -> Fingerprint:
    return of_input(batch, [f"{batch}"])


def _names(head: LogHead, ledger: int) -> bool:
    adopted = (item for adoption in head.adoptions for item in adoption.items)
    return any(int(item.ledger_id) == ledger for item in (*head.items, *adopted))


def page_name(page: LogPage) -> str:
    return ",".join(str(item.ledger_id) for item in page.items)
