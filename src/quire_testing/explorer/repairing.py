"""The steps of the repairers in a ledger's world.

A repair begins while something is to be repaired, or may come to be; its operator says of each lost bookie
whether it is, or does not know yet.

Source: docs/protocol/repair.md; docs/decisions/006-explorer.md.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from itertools import chain, combinations, permutations
from typing import Final, TypeAlias

from quire.core.answers import Answer
from quire.core.ids import BookieId
from quire.core.ledger.metadata import LedgerMetadata
from quire.core.ledger.notes import EntryRange
from quire.core.ledger.replica import Replica, ReplicaList
from quire.core.repair.effects import CopyRange, RepairStatus
from quire_testing.explorer.clients import ClientState, Outcome, bookie_name, bookie_number
from quire_testing.explorer.messages import entries_text
from quire_testing.explorer.parts import Store, WorldParts, repaired_only
from quire_testing.explorer.repairers import LISTS, bits_of, entries_of_decided
from quire_testing.explorer.tables import Move, State

Choice: TypeAlias = Callable[[], Move]
"""A step that can be taken; calling it takes it."""

SILENT: Final = ReplicaList(Answer.TIMED_OUT)


class Repairs:
    """What repairers do in a world, and what is said of their compare-and-swaps."""

    def __init__(self, world: WorldParts) -> None:
        self._world = world

    def moves_of(self, state: State, client: int, moves: list[Move]) -> None:
        """Every step that a repairer can take by itself."""
        moves += [work() for work in self.choices_of(state, client)]

    def choices_of(self, state: State, client: int) -> list[Choice]:
        """The same; each is worked out when it is called, for who takes one of them only."""
        who = self._world.clients.parts[state[self._world.at.client + client]]
        machine = who.machine
        if machine is None:
            return self._begin_repair(state, client, who) if self.has_reason(state) else []
        found: list[Choice] = []
        driver, lost = self._world.repair_driver, self._lost(state)
        if machine._lost_bookies != {*lost}:
            there = tuple(bookie for bookie in machine._candidates if bookie not in lost)
            work = partial(driver.bookies_changed, who, lost, there)
            found.append(self._choice(state, client, "hears which bookies are gone", "gone", lost, work))
        if machine.status in LISTS:
            for name in sorted(machine.plan.awaited):
                number = state[bookie_number(name)]
                work = partial(self._listed, who, name, number)
                found.append(self._choice(state, client, f"lists {name}", "list", number, work))
        elif machine.status is RepairStatus.CLEARING:
            found += [
                partial(self._ends_limbo, state, client, who, name) for name in sorted(machine.plan.awaited)
            ]
        return [
            *found,
            *(partial(self._reads_piece, state, client, who, piece) for piece in driver.unread(who)),
        ]

    def _lost(self, state: State) -> tuple[BookieId, ...]:
        return tuple(
            bookie_name(number)
            for number in range(self._world.n)
            if self._world.bookies.parts[state[number]].lost
        )

    def has_reason(self, state: State) -> bool:
        """Whether a decided fragment wants something, or may come to want something."""
        budget = self._world.budgets.parts[state[-1]]
        record = self._world.stores.parts[state[self._world.at.store]].record
        if record is None or budget.losses or budget.crashes or budget.damages:
            return record is not None
        memo, key = self._world._memo, ("reason", *state[: self._world.at.store + 1])
        if key not in memo:
            decided = [
                (self._world.bookies.parts[state[bookie]], wanted)
                for bookie, wanted in entries_of_decided(record)
            ]
            memo[key] = any(
                bookie.lost or bookie.in_limbo or wanted & (~bookie.held | bookie.damaged)
                for bookie, wanted in decided
            )
        return bool(memo[key])

    def _begin_repair(self, state: State, client: int, who: ClientState) -> list[Choice]:
        found: list[Choice] = []
        lost, several = self._lost(state), self._world.n > self._world.configuration.ensemble + 1
        for known in chain.from_iterable(combinations(lost, size) for size in range(len(lost) + 1)):
            there = [
                bookie_name(number) for number in range(self._world.n) if bookie_name(number) not in known
            ]
            for order in permutations(there) if several else [tuple(there)]:
                command = f"repairs, gone {' '.join(known) or 'none'}"
                command += f", targets {' '.join(order)}" if several else ""
                work = partial(self._world.repair_driver.start, who, known, order)
                found.append(self._choice(state, client, command, "repair", command, work))
        return found

    def _choice(
        self,
        state: State,
        client: int,
        command: str,
        kind: str,
        key: Hashable,
        work: Callable[[], list[Outcome]],
    ) -> Choice:
        return partial(self._step, state, client, command, kind, key, work)

    def _step(
        self,
        state: State,
        client: int,
        command: str,
        kind: str,
        key: Hashable,
        work: Callable[[], list[Outcome]],
    ) -> Move:
        """A step of a repairer's own; what it comes to is worked out once for its state and `key`."""
        world = self._world
        whole = ("repair", client, state[world.at.client + client], command, key)
        found = world._memo.get(whole)
        if found is None:
            found = world._memo[whole] = world._client_moves(client, work(), command, kind=kind)
        (move,) = world._after_each(state, client, found)  # a repairer has no choice
        return move

    def _listed(self, who: ClientState, name: BookieId, number: int) -> list[Outcome]:
        return self._world.repair_driver.listed(
            who, name, self._world.bookie_driver.listed(self._world.bookies.parts[number])
        )

    def _reads_piece(self, state: State, client: int, who: ClientState, piece: CopyRange) -> Move:
        """The sources give what they can of a piece; what one has listed and does not give is rotten, or deleted there."""
        wanted, readable = bits_of([piece.entries]), 0
        rotten: dict[int, int] = {}
        for source in sorted(map(bookie_number, piece.sources)):
            bookie = self._world.bookies.parts[state[source]]
            answer = self._world.bookie_driver.readable(bookie, piece.entries.first, piece.entries.last)
            if answer is not None:
                readable |= wanted & answer
                rotten[source] = wanted & ~answer & _listed(who.machine.plan.lists[bookie_name(source)])
        command = f"reads {entries_text(wanted)} for {piece.bookie}: {entries_text(readable)}"
        work = partial(self._world.repair_driver.read, who, piece, readable, rotten)
        return self._step(state, client, command, "copy", (piece, *rotten.items()), work)

    def _ends_limbo(self, state: State, client: int, who: ClientState, name: BookieId) -> Move:
        """A bookie ends its limbo, or refuses to."""
        number = bookie_number(name)
        lsn = who.machine.plan.lists[name].response.limbo_lsn
        after, answer = self._world.bookie_driver.clear_limbo(self._world.bookies.parts[state[number]], lsn)
        after, _ = self._world._settled(state, after)
        new = self._world._with_bookie(state, number, after)
        work = partial(self._world.repair_driver.limbo_cleared, who, name, answer)
        return self._step(new, client, f"ends the limbo {lsn} of {name}: {answer.name}", "clear", name, work)

    def silences(self, state: State, client: int) -> list[Choice]:
        """A bookie does not answer a repairer in time, for every bookie that it waits for."""
        world = self._world
        found: list[Choice] = []
        who, driver = world.clients.parts[state[world.at.client + client]], world.repair_driver
        if who.machine is None:
            return []
        if who.machine.status in LISTS:
            for name in sorted(who.machine.plan.awaited):
                work = partial(driver.listed, who, name, SILENT)
                found.append(
                    self._choice(state, client, f"gives up the list of {name}", "timeout", name, work)
                )
        for piece in driver.unread(who):
            work = partial(driver.read, who, piece, 0, {})
            found.append(
                self._choice(state, client, f"gives up the sources of {piece.bookie}", "timeout", piece, work)
            )
        return found

    def judged_cas(self, state: State, before: Store, after: Store) -> Store:
        """A repairer's compare-and-swap: it changes bookies of decided fragments only, and who comes in holds its entries."""
        old, new = before.record, after.record
        assert old is not None
        assert new is not None
        if before.fault:
            return after
        if not repaired_only(old, new):
            return after._replace(fault=("RR1", "a repair changed more than bookies of decided fragments"))
        # What a collector takes in between is listed again after the compare-and-swap: `OverReplicationSteps` judges it.
        if not self._world.configuration.collects and any(
            wanted & ~self._world.bookies.parts[state[bookie]].held & ~after.lost
            for bookie, wanted in _came(old, new)
        ):
            return after._replace(
                fault=("RR2", "a repair put a bookie into the record that lacks some of its entries")
            )
        return after


def _listed(replica: Replica) -> int:
    """Entries, as bits, that a bookie's list has."""
    return bits_of(
        EntryRange(each.first, each.last, each.period, each.stripes) for each in replica.response.held
    )


def _came(old: LedgerMetadata, new: LedgerMetadata) -> list[tuple[int, int]]:
    """(bookie, its entries as bits) of those that came into a record, or into another fragment of it."""
    before = entries_of_decided(old)
    return [each for each in entries_of_decided(new) if each not in before]
