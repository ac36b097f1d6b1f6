"""The parts of a collector's world: its size, the metadata store, the bookie with its pass, and the state made of them.

Source: docs/protocol/collection.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from quire.core.bookie.garbage import PassCount, Proof
from quire_testing.explorer.configuration import budgets_text

LEDGER = 1
"""The one ledger id of this world."""


@dataclass(frozen=True, slots=True)
class CollectorConfiguration:
    """One world of one bookie's collector and one ledger id.

    Attributes:
        ours: ledgers are made and deleted by clients of ours, which give them tokens and leave tombstones; without it
            by Java's, which do neither.
        mixed: both kinds of clients delete; a tombstone of Java's ledger has no token.
        lives: how often the id is created.
        writes: how many entries each life's writer adds, at any time, also long after the deletion.
        passes: how many passes the collector begins.
        backups: how often the store is copied, at any step.
        restores: how often a copy is put back, at any step.
        crashes: how often the bookie stops and starts again with what its disk holds.
        lost: answers of the store that never reach the bookie: to a compare-and-swap of its counter, which lands now,
            later or never, or to a look at the records.
        hands: how often a person orders the deletion of an orphan.
        accepts: how often a person accepts the store as it is.
        full: passes at whose beginning the bookie's disk is full: what it found so far is not written, nor the counter.
        reuses: the id may come again while the bookie holds entries of another life that was not deleted.
        revisions: the store's generation is its revision, as higher after a restore as after a write.
        expires: the bookie's own tombstone ends at some time, and the id can be written to again.
    """

    ours: bool = False
    mixed: bool = False
    lives: int = 1
    writes: int = 1
    passes: int = 3
    backups: int = 1
    restores: int = 1
    crashes: int = 0
    lost: int = 0
    hands: int = 0
    accepts: int = 0
    full: int = 0
    expires: bool = False
    reuses: bool = False
    revisions: bool = False

    @property
    def name(self) -> str:
        """The configuration on one line."""
        whose = ("ours" if self.ours else "java") + (" mixed" if self.mixed else "")
        name = f"collector {whose} {self.lives} lives {self.writes} writes {self.passes} passes"
        rest = budgets_text(self, "ours", "mixed", "lives", "writes", "passes")
        return name + rest.replace(" lost=", " lost answers=")


class Tomb(NamedTuple):
    """The ledger's tombstone in the store."""

    token: int
    by_hand: bool
    version: int


class MetaStore(NamedTuple):
    """The metadata store, as a backup keeps it.

    `record` is the life that has the id, 0 if none. `version` is that of the key of the bookie's counter.
    """

    record: int = 0
    tomb: Tomb | None = None
    counter: PassCount | None = None
    version: int = -1


class CounterCas(NamedTuple):
    """A write of the bookie's counter on its way: by compare-and-swap at `version` (-1: made anew) to `value`."""

    value: PassCount
    version: int


class Look(NamedTuple):
    """The last look, asked or answered; `through`: the LSN up to which the proof covers what was written."""

    proof: Proof
    through: int
    tomb_version: int
    """That of the tombstone that must stand; -1: none is needed."""


class Pass(NamedTuple):
    """How far the bookie's pass is: the name of its step, and what that step knows."""

    step: str
    cas: CounterCas | None = None
    landed: bool = False
    look: Look | None = None
    version: int = -1
    """The counter's, written in this pass."""


IDLE = Pass("idle")


class CollectorBookie(NamedTuple):
    """The bookie: what it holds of the ledger, its collector's machine and what the disk keeps of that.

    `machine` and `disk` are their numbers in the world's tables. `held` has (life, LSN of its newest entry) for each life
    that has entries here. `dead`: its own tombstone refuses adds.
    """

    machine: int
    disk: int
    held: tuple[tuple[int, int], ...] = ()
    token: int = 0
    dead: bool = False
    lsn: int = 0
    at: Pass = IDLE


class CollectorState(NamedTuple):
    """One state of the world: store, its copies, the bookie, and what is left of each budget.

    `written`: entries of each life; `deleted`: lives that were deleted, in whatever time line; `late`: compare-and-swaps
    that may still reach the store; `faults`: invariants that broke on the way here, and how.
    """

    store: MetaStore
    copies: tuple[MetaStore, ...]
    bookie: CollectorBookie
    written: tuple[int, ...]
    deleted: frozenset[int]
    late: tuple[CounterCas, ...]
    passes: int
    backups: int
    restores: int
    crashes: int
    lost: int
    hands: int
    accepts: int
    full: int
    revision: int = 0
    faults: tuple[tuple[str, str], ...] = ()


def count_text(count: PassCount) -> str:
    """A counter in a transcript."""
    text = f"{count.passes} passes of chain {count.chain}"
    text += f", held at {count.own}" if count.own else ""
    return text + (f", accepted for {count.accepted}" if count.accepted else "")


def tomb_text(tomb: Tomb | None) -> str:
    """A tombstone in a transcript."""
    if tomb is None:
        return "none"
    token = f"token {tomb.token}" if tomb.token else "without a token"
    return f"{token}, by hand" if tomb.by_hand else token


def store_text(store: MetaStore) -> str:
    """A store, or a copy of one, in a transcript."""
    record = f"life {store.record}" if store.record else "no record"
    tomb = "" if store.tomb is None else f", tombstone {tomb_text(store.tomb)}"
    count = "no counter" if store.counter is None else count_text(store.counter)
    return f"{record}{tomb}, {count}"
