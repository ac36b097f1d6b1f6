"""The mutants of a bookie's collector: one part of its proofs taken out of each.

Source: docs/protocol/collection.md, "What goes wrong without it".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from quire.core.bookie.garbage import (
    By,
    CollectorMachine,
    Count,
    Kept,
    PassCount,
    Proof,
    StopCollection,
    StoreName,
    TombstoneMark,
)
from quire_testing.explorer.collector_parts import CollectorConfiguration
from quire_testing.explorer.collector_world import CollectorWorld
from quire_testing.explorer.mutant import Mutant, with_rules
from quire_testing.explorer.patches import Patch
from quire_testing.explorer.switches import RULES, SHIPPED, Rules


class MissingTwice(CollectorMachine):
    """What was missing in the last pass, and is again, was deleted."""

    __slots__ = ()

    def proof(self, ledger_id: int, mark: TombstoneMark | None, token: int) -> Proof | None:
        """Also without one."""
        again = Proof(By.CHAIN) if ledger_id in self.kept.reported and not self.stopped else None
        return super().proof(ledger_id, mark, token) or again


class CounterNotKept(CollectorMachine):
    """After a start the counter is the one that the store shows; what was found is on the disk."""

    __slots__ = ("_adopts",)

    def __init__(self, kept: Kept, rules: Rules = RULES) -> None:
        super().__init__(kept, rules)
        self._adopts = True

    def begin(
        self, shown: PassCount | None, store: StoreName, chain: int, lsn: int
    ) -> Count | StopCollection:
        """Take over what the store shows, once."""
        if self._adopts and shown is not None and self.kept.passes:
            self.kept.chain, self.kept.passes = shown.chain, shown.passes
        self._adopts = False
        return super().begin(shown, store, chain, lsn)


class JudgesByRevision(CollectorMachine):
    """A store went back if it shows a lower revision, whatever it shows of the counter."""

    __slots__ = ()

    def begin(
        self, shown: PassCount | None, store: StoreName, chain: int, lsn: int
    ) -> Count | StopCollection:
        """The generation that it gets is the store's revision."""
        own = self.kept
        if own.passes and store.generation >= own.store.generation:
            own.store, shown = store, PassCount(own.chain, own.passes)
        return super().begin(shown, store, chain, lsn)


class UnconfirmedGoesOn(CollectorMachine):
    """A write of the counter without a response is a step of the chain like any other."""

    __slots__ = ()

    def _count(self, store: StoreName, value: PassCount, *, fresh: bool) -> Count:
        own = self.kept
        if own.passes:
            fresh, value = False, value._replace(chain=own.chain)
        return super()._count(store, value, fresh=fresh)


class ChainWhateverTombstone(CollectorMachine):
    """A chain proves also where the tombstone of another ledger stands."""

    __slots__ = ()

    def proof(self, ledger_id: int, mark: TombstoneMark | None, token: int) -> Proof | None:
        """As without a tombstone."""
        return super().proof(ledger_id, mark, token) or super().proof(ledger_id, None, token)


class ChainWhileStopped(CollectorMachine):
    """While collection is stopped, a chain proves as ever; that nothing is dropped then is the driver's business."""

    __slots__ = ()

    def proof(self, ledger_id: int, mark: TombstoneMark | None, token: int) -> Proof | None:
        """As if collection were not stopped."""
        stopped, self.stopped = self.stopped, ""
        found = super().proof(ledger_id, mark, token)
        self.stopped = stopped
        return found


def _rules(
    name: str,
    what: str,
    configuration: CollectorConfiguration,
    *patches: Patch,
    violated: str = "G1",
    **replaced: Any,
) -> Mutant[CollectorConfiguration]:
    return with_rules(name, what, configuration, violated, *patches, **replaced)


def _machine(
    name: str,
    what: str,
    machine: type[CollectorMachine],
    configuration: CollectorConfiguration,
    violated: str = "G1",
) -> Mutant[CollectorConfiguration]:
    return Mutant(name, what, replace(SHIPPED, collector=machine), configuration, violated)


ONE = CollectorConfiguration()
FOUND_AND_DELETED = (
    "client: creates life 1",
    "client: writes to life 1",
    "bookie: reads the counter: none",
    "store: takes 1 passes of chain 1",
    "bookie: looks for the record",
    "java client: deletes life 1, without a tombstone",
)

COLLECTOR_MUTANTS: Final[tuple[Mutant[CollectorConfiguration], ...]] = (
    _machine("collector-missing-twice", "a record that is missing twice is a proof", MissingTwice, ONE),
    _rules("collector-found-once", "a record that was found once, and is missing, is a proof",
        CollectorConfiguration(passes=4, backups=2, restores=2, lost=1), chain_proves=lambda findings: findings >= 1),
    _machine("collector-counter-kept", "the counter is not kept on the disk", CounterNotKept,
        CollectorConfiguration(crashes=1, passes=4)),
    _machine("collector-zxid", "a store went back if its revision did", JudgesByRevision,
        CollectorConfiguration(revisions=True)),
    _rules("collector-went-back", "no store is taken for one that went back", ONE,
        store_went_back=lambda **_: False),
    _rules("collector-no-tombstone", "what is missing is dropped without a tombstone", ONE,
        chain_proves=lambda findings: True),
    _rules("collector-record", "a tombstone counts although a record is there",
        CollectorConfiguration(ours=True, lives=2, passes=1), violated="G4",
        look_allows_drop=lambda *, record_there, counter_is_own: counter_is_own),
    _rules("collector-counter-read", "the last look does not read the counter",
        CollectorConfiguration(ours=True), violated="G3",
        look_allows_drop=lambda *, record_there, counter_is_own: not record_there),
    _rules("collector-token", "a tombstone counts whatever token it names",
        CollectorConfiguration(ours=True, lives=2, reuses=True),
        tombstone_counts=lambda *, tombstone_token, token: True),
    _rules("collector-written-since", "what was written since the last finding goes as well",
        CollectorConfiguration(lives=2, passes=4), drop_covers=lambda through, newest: True),
    _rules("collector-order", "an order by hand counts for what was not reported before",
        CollectorConfiguration(lives=2, hands=1), Patch(CollectorMachine.proof, "ledger_id in own.reported", "True")),
    _rules("collector-late-lsn", "the LSN is taken after the counter was written",
        CollectorConfiguration(lives=2, passes=3),
        Patch(CollectorWorld._finished, "machine.finish(", "machine._lsn = state.bookie.lsn; machine.finish(")),
    Mutant("collector-unconfirmed", "a write of the counter that was not confirmed is a step of the chain",
        replace(SHIPPED, collector=UnconfirmedGoesOn),
        CollectorConfiguration(lives=2, passes=4, backups=2, restores=2, lost=1), "G1", begin=FOUND_AND_DELETED),
    _machine("collector-other-tombstone", "a chain proves although the tombstone of another ledger stands",
        ChainWhateverTombstone, CollectorConfiguration(ours=True, lives=2, reuses=True)),
    _machine("collector-stopped-tells", "what a store that went back lacks counts as proven, so that it is not reported",
        ChainWhileStopped, ONE, "G2"),
)  # fmt: skip
