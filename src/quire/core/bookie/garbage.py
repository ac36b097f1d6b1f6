"""Which ledgers a bookie may drop because they were deleted: those of which there is a proof, and no others.

A missing record proves nothing: a metadata store that was restored from a backup, or lost the end of its log, lacks the
records of ledgers that exist. There are two proofs.

- A *tombstone* that names the ledger's token; clients of ours leave one with each deletion. Or one that a person left
  after this bookie had reported that the ledger is unknown.
- The *chain*, for deletions that leave none: passes each of which goes on from the counter that the one before wrote.
  Before each pass the bookie raises its own counter in the store. A ledger whose record it found in two passes, before
  and after such a write, and misses while the counter is its own last one, was deleted: each state of the store that
  has this counter came after one that had the record.

A store that shows another counter than the bookie's last one went back, or is another: collection is *stopped* until the
newer store is back or a person accepts this one. Revisions and highest ids are no evidence: a restored store may show
higher ones.

One `CollectorMachine` for each bookie. Its driver reads the store, changes it by compare-and-swap, looks once more
before it drops, and keeps `CollectorMachine.kept` on the bookie's disk before each compare-and-swap and after each
pass.

Source: docs/protocol/collection.md; BookKeeper overview, "Bookkeeper metadata management".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from quire.core.bookie.rules import RULES, BookieRules

FINDINGS_KEPT: Final = 2
"""More findings of one ledger prove nothing more."""


class PassCount(NamedTuple):
    """What a bookie's counter in the store says.

    Attributes:
        chain: a random number that stays as long as the counter goes on from its own last value.
        passes: how many passes were begun.
        own: while collection is stopped, the bookie's own number of passes; 0 otherwise.
        held: why collection is stopped; empty otherwise.
        accepted: the `own` that a person accepted this store for; 0 otherwise.
    """

    chain: int
    passes: int
    own: int = 0
    held: str = ""
    accepted: int = 0


class StoreName(NamedTuple):
    """Which store it is: its instance, and its generation where it has one (else 0)."""

    instance: str
    generation: int


NO_STORE: Final = StoreName("", 0)


@dataclass(slots=True)
class Kept:
    """What a bookie keeps on its own disk between passes; lost, it begins a new chain without evidence.

    Attributes:
        store: the store of the last pass.
        chain, passes: as in the store after the last pass; `passes` 0 = none was made.
        found_lsn: the bookie's last LSN before the last complete pass asked for its counter.
        findings: ledgers found in the last complete pass, and in how many in a row (2 = two or more).
        missing: ledgers that are proven to be deleted, by a chain or by hand, and are not dropped yet, with the LSN
            through which the proof holds.
        reported: ledgers that were reported as unknown after the last complete pass.
        asked: a write of the counter was asked for, and its outcome has not come yet.
    """

    store: StoreName = NO_STORE
    chain: int = 0
    passes: int = 0
    found_lsn: int = 0
    findings: dict[int, int] = field(default_factory=dict)
    missing: dict[int, int] = field(default_factory=dict)
    reported: frozenset[int] = frozenset()
    asked: bool = False


class Count(NamedTuple):
    """Set the counter to this value by compare-and-swap, then call `counted`."""

    value: PassCount


class StopCollection(NamedTuple):
    """Drop nothing. `value`: the counter's new value, which shows operators why; None if it has it."""

    why: str
    value: PassCount | None


class By(Enum):
    """What proves that a ledger was deleted."""

    TOMBSTONE = "tombstone"
    HAND = "tombstone by hand"
    CHAIN = "chain"


class Proof(NamedTuple):
    """Why a ledger may be dropped.

    Attributes:
        by: the kind of proof.
        through: it holds for what was written up to this LSN; None: for all that was written before the last look.
    """

    by: By
    through: int | None = None


class TombstoneMark(NamedTuple):
    """What a tombstone in the store says of a ledger: its token (0 = it had none), and whether a person left it."""

    token: int
    by_hand: bool = False


class CollectorMachine:
    """Decides what one bookie's collector drops.

    The driver makes one pass after the other:

    1. `begin` with the counter as the store shows it. `Count`: keep `kept` on the disk, do the compare-and-swap, then
       `counted`. `StopCollection`: nothing is dropped; the pass may go on to report what is missing.
    2. `look` for one stretch of ledger ids after the other, in any order.
    3. `judge` for each of `missing`. With a proof: one look that reads in one moment that the record is absent, the
       tombstone stands and the counter is this pass's own; with that `may_drop` says whether it is dropped, and
       `dropped` says that it was.
    4. `finish`, if every stretch was looked at, with those that have none; then `kept` goes to the disk.

    A pass that ends early, for whatever reason, changes no evidence.

    Args:
        kept: what the disk kept; a new `Kept` if nothing.
        rules: the protocol's rules (`core/rules.py`); only tests pass changed ones.

    Attributes:
        kept: what is to be on the disk before each compare-and-swap, and after `finish`.
        stopped: why nothing is dropped; empty if it may be.
        missing: ledgers of this pass whose record is not there.
        unknown: those of the last complete pass for which there is no proof, ascending.
    """

    __slots__ = (
        "_before", "_begun", "_by_hand", "_due", "_fresh", "_looking", "_lsn", "_passed", "_rules", "kept", "missing", "stopped", "unknown",
    )  # fmt: skip

    def __init__(self, kept: Kept, rules: BookieRules = RULES) -> None:
        self.kept = kept
        self.stopped = ""
        self.missing: list[int] = []
        self.unknown: list[int] = []
        self._begun: tuple[StoreName, PassCount] | None = None
        self._fresh = False
        self._before = False
        self._looking: dict[int, int] = {}
        self._due: dict[int, int] = {}
        self._by_hand: list[int] = []
        self._lsn = 0
        self._passed: tuple[tuple[int, int], ...] = ()
        self._rules = rules

    # --- the counter ---------------------------------------------------------------------------------------------

    def begin(
        self, shown: PassCount | None, store: StoreName, chain: int, lsn: int
    ) -> Count | StopCollection:
        """Begin a pass.

        Args:
            shown: the bookie's counter as the store shows it; None if there is none.
            store: which store that is.
            chain: a random number, not 0, for a chain that begins now.
            lsn: the bookie's last LSN, taken before this pass asked the store anything.
        """
        self._begun = None
        self._new_pass(lsn)
        own = self.kept
        if shown is not None and own.passes and shown.accepted == own.passes:
            self.stopped = ""
            return self._count(store, PassCount(chain, max(own.passes, shown.passes) + 1), fresh=True)
        self.stopped = why = self._why_stopped(shown, store)
        if why:
            at = shown or PassCount(0, 0)
            if at.held and at.own == own.passes:
                self.stopped = why = at.held  # said when it began, of the store as it was then
            value = PassCount(at.chain, at.passes, own.passes, why)
            return StopCollection(why, None if shown == value else value)
        passes = 0 if shown is None else shown.passes
        # A write whose outcome has not come may stand in a copy of the store, under the version of the next one: the
        # chain cannot go on through it. More passes than were kept are such writes as well.
        fresh = not own.passes or own.asked or passes > own.passes
        return self._count(store, PassCount(chain if fresh else own.chain, passes + 1), fresh=fresh)

    def compare(self, shown: PassCount | None, store: StoreName) -> None:
        """Before the first pass: see whether the store is the one of the last pass, as `begin` will."""
        self.stopped = self._why_stopped(shown, store)

    def _why_stopped(self, shown: PassCount | None, store: StoreName) -> str:
        own = self.kept
        if not own.passes:
            return ""
        if own.store.instance != store.instance:
            return f"this store is of instance {store.instance}, the one before was of {own.store.instance}"
        if own.store.generation != store.generation:
            return f"this store is of generation {store.generation}, the one before was of {own.store.generation}"
        if shown is None:
            return f"the store has no counter of this bookie's passes, whose last value was {own.passes}"
        if self._rules.store_went_back(
            own_chain=own.chain, own=own.passes, shown_chain=shown.chain, shown=shown.passes
        ):
            of = "" if own.chain == shown.chain else " of another chain"
            return f"the store shows {shown.passes} passes{of}, this bookie has made {own.passes}"
        return ""

    def _count(self, store: StoreName, value: PassCount, *, fresh: bool) -> Count:
        self._begun, self._fresh, self._before = (store, value), fresh, self.kept.asked
        self.kept.asked = True
        return Count(value)

    def not_counted(self) -> None:
        """The write of `begin` was refused, or never sent: nothing was written, and this pass finds nothing anew."""
        if self._begun is not None:  # a stopped collection has asked for nothing
            self._begun = None
            self.kept.asked = self._before

    def is_own(self, shown: PassCount | None) -> bool:
        """Whether the store shows this bookie's last counter as it was written: a pass may drop without another one.

        So it collects on a disk that is too full to keep the next counter.
        """
        own = self.kept
        return bool(own.passes) and not own.asked and shown == PassCount(own.chain, own.passes)

    def counted(self) -> None:
        """The compare-and-swap of `begin` succeeded: the store has the counter of this pass, which may look now."""
        assert self._begun is not None
        own = self.kept
        own.store, (own.chain, own.passes, *_) = self._begun
        own.asked = False
        if self._fresh:
            own.findings, own.missing, own.reported = {}, {}, frozenset()

    def _new_pass(self, lsn: int) -> None:
        self._lsn = lsn
        self._looking, self._due, self.missing, self._by_hand = {}, {}, [], []

    # --- the look ------------------------------------------------------------------------------------------------

    def look(self, held: Iterable[int], found: Collection[int]) -> None:
        """Note which ledgers of one stretch of ids have a record.

        Args:
            held: the ledgers of the stretch that this bookie holds.
            found: those whose record is there.
        """
        findings, looking = self.kept.findings, self._looking
        for ledger_id in held:
            if ledger_id in found:
                looking[ledger_id] = min(findings.get(ledger_id, 0) + 1, FINDINGS_KEPT)
            else:
                self.missing.append(ledger_id)

    def proof(self, ledger_id: int, mark: TombstoneMark | None, token: int) -> Proof | None:
        """What proves that a missing ledger was deleted; None: that is unknown.

        Args:
            ledger_id: the ledger.
            mark: its tombstone in the store, if there is one.
            token: what this bookie knows as the ledger's token; 0 if nothing.
        """
        own = self.kept
        if mark is not None and mark.by_hand:
            self._by_hand.append(ledger_id)
            # A tombstone by hand covers what had been reported before it, not what was written since.
            if ledger_id in own.reported:
                return Proof(By.HAND, own.found_lsn)
        if mark is not None:
            if self._rules.tombstone_counts(tombstone_token=mark.token, token=token):
                return Proof(By.TOMBSTONE)
            if token and (mark.token or not mark.by_hand):
                return None  # another ledger with this id was deleted: it may be the one that was found
        if self.stopped:
            return None  # what was found in another store proves nothing in this one
        if ledger_id in own.missing:
            return Proof(By.CHAIN, own.missing[ledger_id])
        if self._rules.chain_proves(own.findings.get(ledger_id, 0)):
            return Proof(By.CHAIN, own.found_lsn)
        return None

    def judge(
        self, ledger_id: int, mark: TombstoneMark | None, token: int, written_since: Callable[[int], bool]
    ) -> Proof | None:
        """As `proof`, for all that is here; a ledger with one is due: it will be judged again if this pass keeps it.

        Args:
            written_since: whether the ledger was written to after an LSN.
        """
        proof = self.proof(ledger_id, mark, token)
        if proof is not None and proof.through is not None:
            if not self._covers(proof.through, written_since):
                return None
            self._due[ledger_id] = proof.through
        return proof

    def may_drop(
        self, through: int, written_since: Callable[[int], bool], *, record_there: bool, counter_is_own: bool
    ) -> bool:
        """Whether the last look allows the drop, and nothing was written since that the proof does not cover.

        Args:
            through: for what was written up to this LSN there is a proof.
            written_since: whether the ledger was written to after an LSN, now.
            record_there, counter_is_own: what the store showed in one moment.
        """
        allowed = self._rules.look_allows_drop(record_there=record_there, counter_is_own=counter_is_own)
        return allowed and self._covers(through, written_since)

    def _covers(self, through: int, written_since: Callable[[int], bool]) -> bool:
        return self._rules.drop_covers(through, through + written_since(through))

    def dropped(self, ledger_id: int) -> None:
        """The ledger is dropped."""
        self._due.pop(ledger_id, None)

    def finish(self, unknown: Iterable[int]) -> None:
        """Every stretch was looked at: what was found is evidence from now on. While collection is stopped, nothing is.

        Args:
            unknown: the missing ledgers for which there is no proof.
        """
        self.unknown = sorted(unknown)
        if self._begun is None:
            return
        own = self.kept
        own.findings, own.missing = self._looking, self._due
        # Only what was written before the counter was asked for: a ledger made later may go with a backup.
        own.found_lsn = self._lsn
        # A tombstone by hand that stood already does not cover what this pass reports.
        own.reported = frozenset(self.unknown)
        if self._by_hand:
            own.reported = own.reported.difference(self._by_hand)
        self._begun = None
        self._new_pass(0)

    def watermark(self, begun_ms: int, revision: int, late_ms: int) -> int:
        """Up to which revision no tombstone is needed here any more; 0 if nothing is known yet.

        A bookie that was slow gets adds of a ledger after it was deleted, and after a pass that did not find it here.

        Args:
            begun_ms: when this pass wrote its counter.
            revision: of that write.
            late_ms: how long after a deletion an add may come.
        """
        passed = (*self._passed, (begun_ms, revision))
        old = [each for each in passed if self._rules.watermark_counts(begun_ms - each[0], late_ms)]
        self._passed = (*old[-1:], *passed[len(old) :])
        return old[-1][1] if old else 0


def tombstones_over(revisions: Iterable[tuple[int, int]], watermarks: Collection[int]) -> list[int]:
    """Which tombstones have done their work: every bookie has dropped what was deleted up to its watermark.

    Args:
        revisions: (ledger id, revision of its tombstone).
        watermarks: of every bookie that collects and has a cookie; none: nothing ends.
    """
    if not watermarks:
        return []
    through = min(watermarks)
    return [ledger_id for ledger_id, revision in revisions if revision <= through]


def id_to_leap_over(unknown: Collection[int], highest_found: int, id_max: int) -> int | None:
    """The highest ledger id here that a store that went back may give out again; None if there is none.

    Args:
        unknown: ledgers here whose record is missing without a proof.
        highest_found: the highest id that has a record; -1 if none has.
        id_max: ids above this were chosen by callers, and are not drawn.
    """
    above = [ledger_id for ledger_id in unknown if highest_found < ledger_id <= id_max]
    return max(above, default=None)
