"""One form for states of a collector's world that differ in nothing that matters: chains' names, and how high numbers are.

A chain, the number that a pass counter keeps while it goes on from its own last value, is only compared with another, and so
are numbers of passes and LSNs. What is renamed stays what it is to every rule.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from quire.core.bookie.garbage import CollectorMachine, Kept, PassCount, Proof
from quire_testing.explorer.collector_parts import (
    CollectorBookie,
    CollectorState,
    CounterCas,
    MetaStore,
    Pass,
)
from quire_testing.explorer.collector_world import CollectorWorld
from quire_testing.explorer.snapshot import clone

TWO = 2
OTHER = (0, 2, 1)


def _renamed(store: MetaStore, *, ours: bool) -> MetaStore:
    """A store in which two lives have changed their numbers."""
    tomb = store.tomb
    if tomb is not None and ours:
        tomb = tomb._replace(token=OTHER[tomb.token])
    return store._replace(record=OTHER[store.record], tomb=tomb)


class Renaming(NamedTuple):
    """New names: of chains, in order of their first appearance; passes are so many lower; LSNs are below `newest` or not.

    `newest` is that of the entries here, 0 if there are none. What a proof covers now it covers until the next entry, and
    what it does not cover it never will.
    """

    chains: tuple[int, ...]
    passes: int
    newest: int
    step: str
    """That of the pass: what one that ended left in the machine is nothing."""

    def chain(self, chain: int) -> int:
        """The chain's new name; 0 is none."""
        return self.chains.index(chain) + 1 if chain else 0

    def counter(self, count: PassCount | None) -> PassCount | None:
        """A counter, its sentence about why collection is stopped made one."""
        if count is None:
            return None
        lower = self.passes
        passes, own, accepted = (n and n - lower for n in (count.passes, count.own, count.accepted))
        return PassCount(self.chain(count.chain), passes, own, count.held and "held", accepted)

    def lsn(self, lsn: int) -> int:
        """1 where it covers all entries here, else 0."""
        return int(0 < self.newest <= lsn)

    def cas(self, cas: CounterCas) -> CounterCas:
        """A compare-and-swap with its counter renamed."""
        value = self.counter(cas.value)
        assert value is not None
        return CounterCas(value, cas.version)

    def kept(self, kept: Kept) -> Kept:
        """Evidence with other names."""
        new = replace(kept)
        new.chain, new.passes = self.chain(kept.chain), kept.passes and kept.passes - self.passes
        new.found_lsn = self.lsn(kept.found_lsn)
        new.missing = {ledger: self.lsn(lsn) for ledger, lsn in kept.missing.items()}
        return new


class CollectorForm:
    """The one form of each state; for `explore(canonical=...)`."""

    def __init__(self, world: CollectorWorld) -> None:
        self._world = world
        self._machines: dict[tuple[int, Renaming], int] = {}
        self._disks: dict[tuple[int, Renaming], int] = {}

    def __call__(self, state: CollectorState) -> CollectorState:
        """The state's form."""
        state = self._lives(state)
        world, bookie = self._world, state.bookie
        machine, disk = world.machines.parts[bookie.machine], world.disks.parts[bookie.disk]
        counts = [
            state.store.counter,
            *(copy.counter for copy in state.copies),
            *(cas.value for cas in state.late),
        ]
        counts += [bookie.at.cas.value] if bookie.at.cas else []
        shown = [count for count in counts if count is not None]
        chains = dict.fromkeys([machine.kept.chain, disk.chain, *(count.chain for count in shown)])
        chains.pop(0, None)
        numbers = [n for count in shown for n in (count.passes, count.own, count.accepted) if n]
        # A bookie without a pass yet counts from the beginning; else one number is as good as another.
        lowest = min(machine.kept.passes, disk.passes if state.crashes else machine.kept.passes, *numbers) - 1
        lowest = max(lowest, 0)
        newest = max((lsn for _, lsn in bookie.held), default=0)
        names = Renaming(tuple(chains), lowest, newest, bookie.at.step)
        return state._replace(
            store=self._store(state.store, names),
            copies=world.sorted_copies(self._store(copy, names) for copy in state.copies),
            late=tuple(sorted(map(names.cas, state.late), key=repr)),
            bookie=self._bookie(bookie, names),
        )

    def _lives(self, state: CollectorState) -> CollectorState:
        """Two lives in the order of what became of them; a token is its life's number."""
        if len(state.written) != TWO:
            return state
        one, two = (self._fate(state, life) for life in (1, 2))
        if one <= two:
            return state
        bookie, ours = state.bookie, self._world.configuration.ours
        return state._replace(
            store=_renamed(state.store, ours=ours),
            copies=tuple(_renamed(copy, ours=ours) for copy in state.copies),
            bookie=bookie._replace(
                held=tuple(sorted((OTHER[life], lsn) for life, lsn in bookie.held)), token=OTHER[bookie.token]
            ),
            written=state.written[::-1],
            deleted=frozenset(OTHER[life] for life in state.deleted),
        )

    def _fate(self, state: CollectorState, life: int) -> tuple[object, ...]:
        stores = (state.store, *state.copies)
        return (
            state.store.record == life,
            life in state.deleted,
            state.written[life - 1],
            any(each == life for each, _ in state.bookie.held),
            [store.record == life for store in stores],
            [store.tomb is not None and store.tomb.token == life for store in stores],
        )

    def _store(self, store: MetaStore, names: Renaming) -> MetaStore:
        return store._replace(counter=names.counter(store.counter))

    def _bookie(self, bookie: CollectorBookie, names: Renaming) -> CollectorBookie:
        at: Pass = bookie.at
        if at.cas is not None:
            at = at._replace(cas=names.cas(at.cas))
        if at.look is not None:
            at = at._replace(
                look=at.look._replace(proof=Proof(at.look.proof.by), through=names.lsn(at.look.through))
            )
        return bookie._replace(
            machine=self._machine(bookie.machine, names),
            disk=self._disk(bookie.disk, names),
            at=at,
            held=tuple((life, 1) for life, _ in bookie.held),
            lsn=1,
        )

    def _machine(self, number: int, names: Renaming) -> int:
        found = self._machines.get((number, names))
        if found is None:
            machine: CollectorMachine = clone(self._world.machines.parts[number])
            machine.kept = names.kept(machine.kept)
            machine.stopped = "stopped" if machine.stopped else ""
            self._stage(machine, names)
            found = self._machines[number, names] = self._world.machines.number(machine)
        return found

    def _disk(self, number: int, names: Renaming) -> int:
        found = self._disks.get((number, names))
        if found is None:
            found = self._disks[number, names] = self._world.disks.number(
                names.kept(self._world.disks.parts[number])
            )
        return found

    def _stage(self, machine: CollectorMachine, names: Renaming) -> None:
        """What a machine has of the pass that runs."""
        runs = names.step not in {"idle", "keep"}
        if machine._begun is not None:
            store, value = machine._begun
            renamed = names.counter(value) if runs else None
            machine._begun = None if renamed is None else (store, renamed)
        machine._fresh = machine._fresh and names.step == "swap"
        machine._before = machine._before and names.step == "swap"
        machine._lsn = names.lsn(machine._lsn) if runs else 0
        machine._due = {ledger: names.lsn(lsn) for ledger, lsn in machine._due.items()} if runs else {}
        if not runs:
            machine._looking, machine.missing, machine._by_hand = {}, [], []
