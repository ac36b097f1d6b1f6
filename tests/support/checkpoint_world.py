"""A small world in which a stream's checkpoint is put back, copied, and used by older programs, in every interleaving.

What is real is the machine of `core/log/commit.py`, the sink positions' rules and the fingerprints. Rows arrive one by one; a
driver notes the end of its input, stages what passes the query's filter, commits, and notes that. A checkpoint may lose
its last batches, or be copied: then two drivers go on from it. A batch that is refused stands for ever: no restart ends
it. An older program compares numbers alone, and carries the fingerprint of the batch before along.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from quire.core.ids import LedgerId
from quire.core.log import commit as c
from quire.core.log.commit import COMMIT_RULES, CommitBatch, CommitMachine, CommitOutcome, FoundHead, Part
from quire.core.log.fingerprints import Fingerprint, of_input
from quire.core.log.list import ItemState, LogHead, LogItem
from quire.core.log.sink_positions import POSITION_RULES, PositionRules
from quire_testing.explorer.snapshot import clone, state_of
from support.commit_world import LOG, page_name

QUERY = "q"
NUMBERS_ALONE = replace(POSITION_RULES, is_behind=lambda *_: False, is_same_batch=lambda *_: None)
"""How a program of an earlier version judges."""


@dataclass(frozen=True)
class Config:
    """How much may happen.

    Attributes:
        rows: arrive one after the other, numbered from 0; those in `filtered` are not written.
        cuts: times that a checkpoint loses its last batches, up to two of them.
        copies: of the checkpoint.
        deaths: of a driver.
        older: batches that an older program commits.
    """

    rows: int = 3
    filtered: tuple[int, ...] = ()
    cuts: int = 0
    copies: int = 0
    deaths: int = 0
    older: int = 0
    rules: PositionRules = POSITION_RULES


class Driver(NamedTuple):
    """A checkpoint and its driver: the ends of its batches, how many are noted as committed, and what is under way."""

    ends: tuple[int, ...] = ()
    noted: int = 0
    machine: CommitMachine | None = None
    work: tuple[Any, ...] = ()
    older: bool = False
    refused: bool = False

    @property
    def key(self) -> Any:
        machine = None if self.machine is None else state_of(self.machine)
        return (self.ends, self.noted, machine, *self[3:])

    def rows_of(self, batch: int) -> range:
        return range(self.ends[batch - 1] if batch else 0, self.ends[batch])

    def input_of(self, batch: int) -> Fingerprint | None:
        return of_input(batch, [f"{self.ends[batch]}"]) if batch < len(self.ends) else None


class State(NamedTuple):
    """Everything."""

    head: LogHead
    version: int
    made: tuple[tuple[int, ...], ...]
    """The rows of each staged ledger; its id is its place, from 1."""
    arrived: int
    drivers: tuple[Driver, ...]
    cuts: int
    copies: int
    deaths: int
    older: int
    whole: bool = True

    @property
    def key(self) -> Any:
        return (*self[:4], *(driver.key for driver in self.drivers), *self[5:])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, State) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


class CheckpointWorld:
    """All that can happen under one configuration."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def initial(self) -> State:
        c_ = self.config
        return State(LogHead(LOG, "orders"), 1, (), 0, (Driver(),), c_.cuts, c_.copies, c_.deaths, c_.older)

    def successors(self, state: State) -> list[tuple[str, State]]:
        return [*self._steps(state)]

    def _steps(self, state: State) -> Iterator[tuple[str, State]]:
        if state.arrived < self.config.rows:
            yield f"row {state.arrived} arrives", state._replace(arrived=state.arrived + 1)
        for who, driver in enumerate(state.drivers):
            if driver.machine is not None:
                if state.deaths:
                    again = driver._replace(machine=None, work=(), older=False)
                    yield "dies", _with(state._replace(deaths=state.deaths - 1), who, again)
                yield from self._works(state, who, driver)
                continue
            yield from self._befalls(state, who, driver)
            if not driver.refused:
                yield from self._begins(state, who, driver)

    def _befalls(self, state: State, who: int, driver: Driver) -> Iterator[tuple[str, State]]:
        """What happens to a checkpoint while its driver is away."""
        lost = state._replace(cuts=state.cuts - 1, whole=False)
        for count in (1, 2):
            if state.cuts and len(driver.ends) >= count:
                kept = len(driver.ends) - count
                yield f"loses {count} batches", _with(lost, who, Driver(driver.ends[:kept], kept))
        if state.copies:
            copied = state._replace(copies=state.copies - 1, whole=False)
            yield "is copied", copied._replace(drivers=(*state.drivers, driver))

    def _begins(self, state: State, who: int, driver: Driver) -> Iterator[tuple[str, State]]:
        batch = driver.noted
        if batch == len(driver.ends):
            if state.arrived <= (driver.ends[-1] if driver.ends else 0):
                return
            driver = driver._replace(ends=(*driver.ends, state.arrived))
        rows = tuple(row for row in driver.rows_of(batch) if row not in self.config.filtered)
        made = (*state.made, rows) if rows else state.made
        items = (LogItem(LedgerId(len(made)), count=len(rows), state=ItemState.CLOSED),) if rows else ()
        for older in (False, *([True] if state.older else [])):
            positions = NUMBERS_ALONE if older else self.config.rules
            part = Part(LOG, items, None if older else driver.input_of(batch))
            rules = replace(COMMIT_RULES, positions=positions)
            machine = CommitMachine(CommitBatch((part,), QUERY, batch), name_page=page_name, rules=rules)
            machine.start()
            machine.out = []
            begun = driver._replace(machine=machine, work=(("read",),), older=older)
            after = state._replace(made=made, older=state.older - older)
            yield f"{who} stages batch {batch}, rows {rows}", _with(after, who, begun)

    def _works(self, state: State, who: int, driver: Driver) -> Iterator[tuple[str, State]]:
        assert driver.machine is not None
        machine = clone(driver.machine)
        machine.out = []
        if driver.work and driver.work[0][0] == "read":
            position = state.head.sink_position(QUERY)
            own = None if position is None or driver.older else driver.input_of(position.batch_id)
            machine.heads_read([FoundHead(state.head, state.version, own=own)])
            label = f"{who} reads"
        elif driver.work:
            [change] = driver.work[0][1].changes
            label = f"{who} swaps"
            if change.version == state.version:
                head = change.head
                if driver.older:
                    before = state.head.sink_position(QUERY)
                    carried = None if before is None else before.fingerprint
                    head = replace(
                        head,
                        sink_positions=tuple(
                            replace(each, fingerprint=carried) for each in head.sink_positions
                        ),
                    )
                state = state._replace(head=head, version=state.version + 1)
                machine.stored()
            else:
                machine.conflicted()
        else:
            return
        machine.check()
        if machine.ended is not None:
            idle = driver._replace(machine=None, work=(), older=False)
            if machine.ended.outcome in {CommitOutcome.COMMITTED, CommitOutcome.ALREADY}:
                yield f"{label}, and notes it", _with(state, who, idle._replace(noted=driver.noted + 1))
            else:
                yield f"{label}, and is refused", _with(state, who, idle._replace(refused=True))
            return
        work = tuple(
            ("swap", effect) if isinstance(effect, c.CasHeads) else ("read",)
            for effect in machine.out
            if isinstance(effect, c.CasHeads | c.ReadHeads)
        )
        machine.out = []
        yield label, _with(state, who, driver._replace(machine=machine, work=work))

    # --- what must hold ----------------------------------------------------------------------------------------

    def is_ended(self, state: State) -> bool:
        """Whether a checkpoint notes that all is written."""
        return any(d.noted and d.ends[d.noted - 1] == self.config.rows for d in state.drivers)

    def broken(self, state: State) -> str:
        """What is wrong, "" if nothing."""
        rows = [row for item in state.head.items for row in state.made[int(item.ledger_id) - 1]]
        if len(set(rows)) != len(rows):
            return f"rows {rows} are in the log"
        for driver in state.drivers:
            end = driver.ends[driver.noted - 1] if driver.noted else 0
            lost = [row for row in range(end) if row not in self.config.filtered and row not in rows]
            if lost:
                return f"rows {lost} are noted and not in the log"
            if driver.refused and state.whole:
                return "a whole checkpoint is refused"
        return ""


def _with(state: State, who: int, driver: Driver) -> State:
    return state._replace(drivers=(*state.drivers[:who], driver, *state.drivers[who + 1 :]))
