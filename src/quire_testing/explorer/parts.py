"""The parts of a ledger's world, each with a number for every state that it comes to.

After what all worlds of actors have (`ActorWorld`) its states have readers, then one index for who clears limbo, where it is
cleared, then budgets. Its clients are the writer, then the recoverers, then the repairers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from quire.core.ledger.metadata import LedgerMetadata, LedgerState
from quire.core.ledger.notes import NO_NOTES, LedgerNotes
from quire.core.repair.effects import RepairOutcome
from quire_testing.explorer.actors import ActorWorld
from quire_testing.explorer.bookies import BookieDriver, BookieState
from quire_testing.explorer.clients import ClientState, LedgerWriterDriver
from quire_testing.explorer.configuration import Configuration
from quire_testing.explorer.messages import Reply
from quire_testing.explorer.readers import ReaderDriver, ReaderState
from quire_testing.explorer.recoverers import RecoveryDriver
from quire_testing.explorer.repairers import RepairDriver, bits_of, entries_of_decided, judged
from quire_testing.explorer.switches import SHIPPED, Switches
from quire_testing.explorer.tables import State, Table


class Store(NamedTuple):
    """The metadata store: the record (None once deleted), its version, closes so far, what went wrong, the notes.

    `whole`: where bookies collect, a repair has said of this very version that all is there.
    """

    record: LedgerMetadata | None
    version: int
    closes: int = 0
    fault: tuple[str, str] | None = None
    notes: LedgerNotes = NO_NOTES
    whole: bool = False

    @property
    def lost(self) -> int:
        """Entries, as bits, whose loss was accepted."""
        return bits_of(entries for loss in self.notes.losses for entries in loss.ranges)


class Budget(NamedTuple):
    """What may still go wrong."""

    timeouts: int
    crashes: int
    breaks: int
    lost_swaps: int
    damages: int
    deletions: int
    losses: int
    reruns: int
    transit_damages: int
    returns: int = 0


class Clearing(NamedTuple):
    """A client that fills bookies in limbo and ends it, one after another.

    Attributes:
        left: how often it may still begin.
        step: "" between two, "filling", "filled", or "sent": the request to end the limbo is on its way.
        bookie: whose limbo.
        lsn: of that limbo.
        filled: the record that it was filled from.
    """

    left: int
    step: str = ""
    bookie: int = 0
    lsn: int = 0
    filled: LedgerMetadata | None = None


def legal(old: LedgerMetadata, new: LedgerMetadata) -> bool:
    """Whether a compare-and-swap is legal in the protocol: state by state, and fragments only where they may change.

    Source: BookKeeper protocol, "Ledgers"; docs/protocol/README.md, "The ledger's record".
    """
    if old.state is LedgerState.OPEN:
        return new.state is not LedgerState.IN_RECOVERY or new.fragments == old.fragments
    if old.state is LedgerState.IN_RECOVERY and new.state is LedgerState.CLOSED:
        return True
    return repaired_only(old, new)


def repaired_only(old: LedgerMetadata, new: LedgerMetadata) -> bool:
    """Whether a record differs from another by bookies of decided fragments only, however many they are.

    Source: docs/protocol/repair.md, "Publishing".
    """
    if replace(new, fragments=old.fragments, creation_token=old.creation_token) != old:
        return False
    if len(new.fragments) != len(old.fragments):
        return False
    return all(
        after == before
        or (
            after.first_entry == before.first_entry
            and len(after.ensemble) == len(before.ensemble) == len({*after.ensemble})
            and old.last_entry_of_fragment(index) is not None
        )
        for index, (before, after) in enumerate(zip(old.fragments, new.fragments, strict=True))
    )


class WorldParts(ActorWorld):
    """The tables of a ledger's world, and what its states say."""

    def __init__(self, configuration: Configuration, switches: Switches = SHIPPED) -> None:
        c = self.configuration = configuration
        self.switches = switches
        kinds = (("recoverer", c.recoverers), ("repairer", c.repairers), ("reader", c.readers))
        recoverers, repairers, self.reader_names = (
            [kind] if count == 1 else [f"{kind} {number + 1}" for number in range(count)]
            for kind, count in kinds
        )
        super().__init__(c.bookies, ["writer", *recoverers, *repairers], c.repairers)
        self.bookie_driver = BookieDriver(configuration, switches.rules, switches.bookie)
        self.writer_driver = LedgerWriterDriver(configuration)
        self.recovery_driver = RecoveryDriver(configuration, switches.rules, switches.recovery)
        self.repair_driver = RepairDriver(configuration, switches.rules, switches.repair)
        self.bookies: Table[BookieState] = Table()
        self.stores: Table[Store] = Table()
        self.clients: Table[ClientState] = Table(lambda client: client.key)
        self.budgets: Table[Budget] = Table()
        self.clearings: Table[Clearing] = Table()
        self.readers: Table[ReaderState] = Table(lambda reader: reader.key)
        self.reader_driver = ReaderDriver(self.bookie_driver, switches.rules)
        self.at_clearing = self.at.reader + configuration.readers
        self.at_budget = self.at_clearing + bool(configuration.clears)
        self._quiet: dict[int, bool] = {}
        self._at_once: dict[int, bool] = {}

    def driver_of(self, client: int) -> Any:
        """What drives a client."""
        if client == 0:
            return self.writer_driver
        return self.recovery_driver if client < self.first_repairer else self.repair_driver

    def _judged(self, new: list[int], number: int) -> int:
        ended = self.clients.parts[number]
        bookies = [self.bookies.parts[each] for each in new[: self.n]]
        store = self.stores.parts[new[self.at.store]]
        if self.configuration.collects and ended.result == RepairOutcome.WHOLE.name:
            whole = store.whole or ended.machine.plan.version == store.version
            new[self.at.store] = self.stores.number(store._replace(whole=whole))
        return self.clients.number(self.judged(ended, bookies, self._asked_for(store)))

    def _asked_for(self, store: Store) -> list[int] | None:
        """Where bookies collect, what repairs ask each for: no copy that the record does not give it, or that is lost."""
        if not self.configuration.collects or store.record is None:
            return None
        own = [0] * self.n
        for number, wanted in entries_of_decided(store.record):
            own[number] |= wanted & ~store.lost
        return own

    def judged(
        self, ended: ClientState, bookies: Sequence[BookieState], asked_for: Sequence[int] | None = None
    ) -> ClientState:
        """A repairer that has just ended, judged by the disks."""
        c = self.configuration
        held = [bookie.held for bookie in bookies]
        readable = [bookie.held & ~bookie.damaged for bookie in bookies]
        if asked_for is not None:
            readable = [some & own for some, own in zip(readable, asked_for, strict=True)]
        return judged(ended, held, readable, sound=not (c.crashes or c.damages or c.deletions))

    def _syncs_at_once(self, state: State) -> bool:
        """Without a crash to come the moment of a sync makes no difference."""
        number = state[-1]
        at_once = self._at_once.get(number)
        if at_once is None:
            at_once = self._at_once[number] = not (
                self.budgets.parts[number].crashes or self.configuration.slow_disks
            )
        return at_once

    def _settled(self, state: State, bookie: BookieState) -> tuple[BookieState, list[tuple[int, Reply]]]:
        """A bookie after a step of a state: with all that waits for its disk, where the moment of a sync makes no difference."""
        return self._synced(bookie) if self._syncs_at_once(state) else (bookie, [])

    def clients_of(self, state: State) -> Iterator[ClientState]:
        """The clients of a state."""
        for index in range(self.at.client, self.at.link):
            yield self.clients.parts[state[index]]

    def sizes(self) -> dict[str, int]:
        """How many states each kind of part reached."""
        return {
            "bookie": len(self.bookies),
            "client": len(self.clients),
            "connection": len(self.links),
            "record": len(self.stores),
        }
