"""The steps of the readers in a ledger's world.

Source: Vanlightly's guide, "Reading from ledgers".
"""

from __future__ import annotations

from collections.abc import Iterator

from quire_testing.explorer.clients import bookie_name
from quire_testing.explorer.parts import Budget, WorldParts
from quire_testing.explorer.readers import ReaderMove
from quire_testing.explorer.tables import Label, Move, State


class Reading:
    """What readers do: each step is worked out once for a reader's state and that of the bookie that it asks."""

    def __init__(self, world: WorldParts) -> None:
        self._world = world

    def moves_of(self, state: State, budget: Budget, moves: list[Move]) -> None:
        """Every step of every reader."""
        for which in range(len(self._world.reader_names)):
            self.moves_of_reader(state, which, budget, moves)

    def moves_of_reader(self, state: State, which: int, budget: Budget, moves: list[Move]) -> None:
        """Every step of one reader."""
        world = self._world
        spent = None
        if budget.timeouts:
            spent = world.spent(state, "timeouts")[-1]
        index = world.at.reader + which
        for label, after, patient in self._reads_of(which, state, impatient=spent is not None):
            new = list(state)
            new[index] = after
            if not patient:
                assert spent is not None
                new[-1] = spent
            moves.append((label, tuple(new)))

    def _reads_of(self, which: int, state: State, *, impatient: bool) -> list[tuple[Label, int, bool]]:
        """(label, the reader afterwards, whether no bookie was dropped) of every step of one reader."""
        world = self._world
        number = state[world.at.reader + which]
        key = ("reader", which, number, state[world.at.store], impatient, *state[: world.n])
        found: list[tuple[Label, int, bool]] | None = world._memo.get(key)
        if found is None:
            found = world._memo[key] = [
                (self._reader_label(which, move), world.readers.number(move[3]), patient)
                for move, patient in self._worked_out(number, state, impatient=impatient)
                if move[3] != world.readers.parts[number]
            ]
        return found

    def _worked_out(self, number: int, state: State, *, impatient: bool) -> Iterator[tuple[ReaderMove, bool]]:
        world = self._world
        driver, reader = world.reader_driver, world.readers.parts[number]
        if reader.done:
            return
        for move in driver.reads_record(reader, world.stores.parts[state[world.at.store]].record):
            yield move, True
        for move in driver.begins(reader):
            yield move, True
        for slot in driver.poll_slots(reader):
            bookie = world.bookies.parts[state[driver.bookie_of(reader, slot)]]
            for move in driver.polls(reader, slot, bookie):
                yield move, True
        for slots, hears in (
            (driver.lac_slots(reader), driver.hears_lac),
            (driver.read_slots(reader), driver.hears_entries),
        ):
            for slot in slots:
                yield (
                    hears(reader, slot, world.bookies.parts[state[driver.bookie_of(reader, slot)]]),
                    True,
                )
                if impatient:
                    yield hears(reader, slot, None), False

    def _reader_label(self, which: int, move: ReaderMove) -> Label:
        world = self._world
        command, said, kind, _ = move
        other = command.rpartition(" from ")[2]
        known = {bookie_name(number) for number in range(world.n)}
        return Label(world.reader_names[which], command, said, other if other in known else "", kind)
