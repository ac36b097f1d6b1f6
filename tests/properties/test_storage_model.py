"""A bookie's disk against a dictionary of entries: whatever is put, dropped, deleted, given back or cut, every answer is equal.

Runs overlap, of several stripes and, of a stream, of several terms. Ranges are dropped up to an LSN, ledgers
are truncated, emptied, deleted and put in limbo; segments fill and are given back, at once or in slices; the bookie stops,
is killed or loses power, and may find no descriptor for a read while it compacts.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.bookie.ledger import LedgerFacts
from quire.core.bookie.limbo import Limbo
from quire.core.ids import ID_MAX
from quire.core.ledger.quorum import stripes_of_slot
from quire.storage.formats.segment_format import SegmentRecordKind
from quire.storage.formats.state_format import DEAD_RANGES_MAX
from quire.wire.run import ids_in
from quire.wire.stored_record import RECORD_HEADER_BYTES
from quire_testing.kit.stepped import HurriedClock, StepWorker
from support.compaction_mutants import with_mistake
from support.rounds import keep_figures, rounds
from support.storage_disk import Answers, FaultyFiles, make_run, open_storage, put, read_all, settle

LEDGERS = range(1, 5)
STREAMS = range(5, 7)
TERMS = (1, 2, 3)
FILLER = 99
LAST = 60
PERIOD = 3


@dataclass
class Model:
    """What a ledger should hold.

    Attributes:
        entries: by origin term and entry id, (LSN, payload) of what was put last, if that is not dead: what kills it kills all before it.
        reached: by origin term the highest entry id that was ever put.
        pending_deletion: (first, last, LSN up to which nothing is said of them).
        limbo: of its facts.
        term_lsn: of its facts: runs from before it are not merged with later ones, so a drop up to it is exact.
        rotten: by origin term and entry id, the LSN up to which what is stored may not verify: it is unknown then, or right.
        blurred: by origin term, ids between those of a striped run that rotted: what is not here may be unknown there.
    """

    entries: dict[int, dict[int, tuple[int, bytes]]] = field(default_factory=dict)
    reached: dict[int, int] = field(default_factory=dict)
    pending_deletion: list[tuple[int, int, int]] = field(default_factory=list)
    limbo: Limbo | None = None
    term_lsn: int = 0
    rotten: dict[int, dict[int, int]] = field(default_factory=dict)
    blurred: dict[int, set[int]] = field(default_factory=dict)

    @property
    def newest(self) -> int:
        """The LSN of what was put last and is not dead, 0 if there is nothing."""
        return max((lsn for of_term in self.entries.values() for lsn, _ in of_term.values()), default=0)

    def unsure(self, term: int) -> set[int]:
        """The entries whose newest version lies where something has rotted."""
        rotten = self.rotten.get(term, {})
        of_term = self.entries.get(term, {})
        return {entry_id for entry_id, (lsn, _) in of_term.items() if lsn <= rotten.get(entry_id, 0)}

    def put(self, term: int, entry_id: int, lsn: int, payload: bytes) -> None:
        self.entries.setdefault(term, {})[entry_id] = lsn, payload
        self.reached[term] = max(entry_id, self.reached.get(term, 0))

    def kill(self, first: int, last: int, through: int) -> None:
        for of_term in self.entries.values():
            for entry_id in [one for one in of_term if first <= one <= last and of_term[one][0] <= through]:
                del of_term[entry_id]

    def is_pending_deletion(self, entry_id: int, lsn: int) -> bool:
        return any(low <= entry_id <= high and lsn <= through for low, high, through in self.pending_deletion)

    def living(self, term: int) -> dict[int, bytes]:
        """The newest of each entry; what is pending deletion is neither given nor listed."""
        of_term = self.entries.get(term, {})
        return {
            one: payload for one, (lsn, payload) in of_term.items() if not self.is_pending_deletion(one, lsn)
        }


class World:
    """A storage and what it should say; `short`: descriptors run out while it compacts and gives back."""

    put_between: Sequence[int] = (*LEDGERS, *STREAMS)
    """What is put into between two slices of compaction."""

    def __init__(self, seed: int, *, short: bool = False) -> None:
        self.chance = random.Random(seed)
        self.files = FaultyFiles(seed=seed)
        self.short = random.Random(seed) if short else None
        self.callback = Answers()
        self.models = {ledger_id: Model() for ledger_id in (*LEDGERS, *STREAMS)}
        self.filled = 0
        self.serial = 0
        self.counted: Counter[str] = Counter()
        self.work: list[Generator[Any, None, Any]] = []
        self.worker = StepWorker()
        self.storage = open_storage(self.files, worker=self.worker, clock=HurriedClock(1_000_000))

    # --- what may happen

    def put(self, ledger_id: int) -> None:
        chance, storage, model = self.chance, self.storage, self.models[ledger_id]
        term = chance.choice(TERMS) if ledger_id in STREAMS else 0
        first = chance.randrange(LAST)
        last = min(first + chance.choice((0, 1, 3, 9, 30)), LAST)
        period, stripes = 1, 1
        if chance.random() < 0.3:
            period, stripes = (
                PERIOD,
                stripes_of_slot(chance.randrange(PERIOD), PERIOD, chance.choice((1, 2))),
            )
            ids = list(ids_in(first, last, period, stripes))
            if not ids:
                return
            first, last = ids[0], ids[-1]
        self.serial += 1
        payload = b"%d " % self.serial * chance.choice((1, 1, 40, 400))
        run = make_run(
            ledger_id, first, last, period=period, stripes=stripes, payload=payload, origin_term=term
        )
        put(storage, run, self.callback, lac=chance.choice((-1, first)), recovery=chance.random() < 0.3)
        for entry_id in run.ids():
            model.put(term, entry_id, storage.journal.last_lsn, payload + b"/%d" % entry_id)
        model.pending_deletion.clear()

    def _drop(self, ledger_id: int, first: int, last: int, *, before_term: bool = False) -> None:
        through = max(0, self.storage.journal.last_lsn - self.chance.choice((0, 0, 0, 3, 20)))
        newest = self.models[ledger_id].newest
        assert newest <= through or self.storage.drops.written_since(ledger_id, through)
        if newest > through or before_term:
            # Whoever drops looks at what was put since, or names the LSN of a term: merged runs bear their highest LSN.
            through = self.models[ledger_id].term_lsn
        self.serial += 1
        told = len(self.callback.told)
        self.storage.drops.drop(ledger_id, first, last, through, self.callback, ("drop", self.serial))
        settle(self.storage)
        errors = [error for tag, error in self.callback.told[told:] if tag == ("drop", self.serial)]
        if errors == [None]:
            model = self.models[ledger_id]
            model.kill(first, last, through)
            model.pending_deletion.clear()
        else:
            assert f"has {DEAD_RANGES_MAX} dead ranges already" in str(errors[0])
            self.counted["too many ranges"] += 1

    def drop(self, ledger_id: int) -> None:
        first = self.chance.randrange(LAST)
        self._drop(ledger_id, first, min(first + self.chance.choice((0, 2, 20)), LAST))

    def drop_before_term(self, ledger_id: int) -> None:
        """What is older than the ledger's term."""
        self._drop(ledger_id, self.chance.randrange(LAST), ID_MAX, before_term=True)

    def truncate(self, ledger_id: int) -> None:
        self._drop(ledger_id, self.chance.randrange(LAST), ID_MAX)

    def truncate_terms(self, number: int) -> None:
        """Of a stream goes what earlier terms left from an id on, as far as the last of that was put."""
        ledger_id = STREAMS[number % len(STREAMS)]
        first, term = self.chance.randrange(LAST), self.chance.choice((*TERMS, TERMS[-1] + 1))
        model = self.models[ledger_id]
        model.pending_deletion.clear()
        if any(origin >= term and highest >= first for origin, highest in model.reached.items()):
            term = TERMS[-1] + 1  # a term writes behind its truncation when nothing earlier is left there
        earlier = [
            lsn
            for origin, of_term in model.entries.items()
            for entry_id, (lsn, _) in of_term.items()
            if origin < term and entry_id >= first
        ]
        self.serial += 1
        told = len(self.callback.told)
        self.storage.drops.truncate(ledger_id, first, term, self.callback, ("truncate", self.serial))
        settle(self.storage)
        [error] = [error for tag, error in self.callback.told[told:] if tag == ("truncate", self.serial)]
        if error is None:
            model.kill(first, ID_MAX, max(earlier, default=0))
        else:
            assert f"has {DEAD_RANGES_MAX} dead ranges already" in str(error)
            self.counted["too many ranges"] += 1

    def empty(self, ledger_id: int) -> None:
        self._drop(ledger_id, 0, ID_MAX)

    def set_pending_deletion(self, ledger_id: int) -> None:
        if ledger_id not in list(self.storage.states.ledgers):
            return
        first = self.chance.randrange(LAST)
        last, through = first + self.chance.choice((0, 9, 60)), self.storage.journal.last_lsn
        self.storage.drops.set_pending_deletion(ledger_id, first, last, through)
        self.models[ledger_id].pending_deletion.append((first, last, through))

    def cancel_deletion(self, ledger_id: int) -> None:
        assert self.storage.drops.is_pending_deletion(ledger_id) == bool(
            self.models[ledger_id].pending_deletion
        )
        self.storage.drops.cancel_deletion(ledger_id)
        self.models[ledger_id].pending_deletion.clear()

    def delete(self, ledger_id: int) -> None:
        """Deleted, and alive again under the same id."""
        self.storage.delete(ledger_id, 1 << 50, self.callback, "delete")
        facts = self.storage.facts(ledger_id)
        assert facts is not None
        facts.deleted_until_ms = 0
        self.storage.put_facts(facts, self.callback, "alive")
        self.models[ledger_id] = Model(limbo=facts.limbo, term_lsn=facts.term_lsn)

    def limbo(self, ledger_id: int) -> None:
        facts = self.storage.facts(ledger_id) or LedgerFacts(ledger_id)
        facts.limbo = None if facts.limbo else Limbo(self.storage.journal.last_lsn)
        self.storage.put_facts(facts, self.callback, "limbo")
        self.models[ledger_id].limbo = facts.limbo

    def take_term(self, ledger_id: int) -> None:
        facts = self.storage.facts(ledger_id) or LedgerFacts(ledger_id)
        facts.term_lsn = self.storage.journal.last_lsn
        self.storage.put_facts(facts, self.callback, "term")
        self.models[ledger_id].term_lsn = facts.term_lsn

    def append(self, ledger_id: int) -> None:
        """Short runs one after another, as writers put them: they are merged."""
        model, first = self.models[ledger_id], self.chance.randrange(LAST - 8)
        term = self.chance.choice(TERMS) if ledger_id in STREAMS else 0
        for entry_id in range(first, first + 8):
            if entry_id == first + 4 and self.chance.random() < 0.5:
                self.take_term(ledger_id)
            self.serial += 1
            payload = b"%d " % self.serial
            put(
                self.storage,
                make_run(ledger_id, entry_id, entry_id, payload=payload, origin_term=term),
                self.callback,
            )
            model.put(term, entry_id, self.storage.journal.last_lsn, payload + b"/%d" % entry_id)
        model.pending_deletion.clear()

    def fill(self, number: int) -> None:
        """A segment fills with what others may outlive; what filled those before is deleted now and then."""
        for _ in range(7):
            self.filled += 1
            put(
                self.storage, make_run(FILLER, self.filled, self.filled, payload=bytes(16_000)), self.callback
            )
            settle(self.storage)
        if number % 4:
            self.storage.delete(FILLER, 1 << 50, self.callback, "filler")
            facts = self.storage.facts(FILLER)
            assert facts is not None
            facts.deleted_until_ms = 0
            self.storage.put_facts(facts, self.callback, "filler")

    def reclaim(self, number: int) -> None:
        """At once, or in slices with whatever comes next between them."""
        if number % 2:
            self.storage.housekeeping.reclaim()
        else:
            self.work.append(self.storage.housekeeping.reclaim_slices())

    def compact(self, number: int) -> None:
        """In slices, as if the disk were nearly full; at once, or with whatever comes next between them."""
        free_share, room = self.chance.choice(((0.0, None), (0.1, 1 << 30)))  # one by one, and side by side
        self.work.append(self.storage.housekeeping.compact_slices(free_share, room))
        if number % 2:
            self.go_on(100)
            self.storage.housekeeping.reclaim()

    def go_on(self, number: int, puts: float = 0.2) -> None:
        """Some slices of what is under way; now and then something is put between two."""
        for _ in range(number):
            self.work = [one for one in self.work if self._step(one) is not self]
            if self.work and self.chance.random() < puts:
                self.put(self.chance.choice(self.put_between))

    def _step(self, work: Generator[Any, None, Any]) -> Any:
        """A slice; now and then no rows of footers are in memory, and one read finds no descriptor left."""
        if self.short is None or self.short.random() < 0.7:
            return next(work, self)
        for sequence, ledger_id in list(self.storage.reader.cache._items):
            self.storage.reader.cache.forget(sequence, ledger_id)
        self.files.short_in = self.short.randrange(1, 4)
        try:
            return next(work, self)
        finally:
            self.counted["shortages"] += not self.files.short_in
            self.files.short_in = 0

    def rot(self, ledger_id: int) -> None:
        """A bit of a run in a sealed segment is another one."""
        storage, ledger = self.storage, self.storage.states.ledgers.get(ledger_id)
        if ledger is None:
            return
        found = [
            piece
            for term in (TERMS if ledger_id in STREAMS else (0,))
            for piece in storage.reader.pieces(ledger_id, ledger, 0, LAST, term)
            if piece.row.kind == SegmentRecordKind.RUN
            and storage.segments[piece.sequence].trailer is not None
            and piece.sequence not in storage.unsealed
        ]
        if not found:
            return
        row, sequence = (piece := self.chance.choice(found)).row, piece.sequence
        at = row.offset + RECORD_HEADER_BYTES + self.chance.randrange(row.body_bytes)
        self.files.nodes[str(storage._files.path(sequence))].data[at] ^= 1 << self.chance.randrange(8)
        rotten = self.models[ledger_id].rotten.setdefault(row.origin_term, {})
        for entry_id in ids_in(row.first, row.last, row.period, row.stripes):
            rotten[entry_id] = max(row.lsn, rotten.get(entry_id, 0))
        if row.period > 1:
            self.models[ledger_id].blurred.setdefault(row.origin_term, set()).update(
                range(row.first, row.last)
            )
        self.counted["rotten runs"] += 1

    def cut(self, number: int) -> None:
        """The power is cut while segments are compacted and given back; all that was put before is acknowledged."""
        settle(self.storage)
        self.compact(0)
        self.go_on(5 + 20 * (number % 7), puts=0)
        self.storage.housekeeping.reclaim()
        for _ in range(self.chance.randrange(4)):
            if self.worker.jobs:
                self.worker.step()
        self._again()

    def stop(self, number: int) -> None:
        """Cleanly, killed, or by a power cut, after everything was acknowledged."""
        settle(self.storage)
        self._again(clean=number % 3 == 1)

    def _again(self, *, clean: bool = False) -> None:
        if not clean:
            self.worker.jobs.clear()
        self.storage.close(clean=clean)
        if not clean:
            self.files = self.files.crash()
        self.worker = StepWorker()
        self.storage = open_storage(self.files, worker=self.worker, clock=HurriedClock(1_000_000))
        self.work.clear()
        for model in self.models.values():
            model.pending_deletion.clear()
        self.check()

    # --- what must hold

    def check(self) -> None:
        assert self.storage.failure is None
        assert self.counted["rotten runs"] or self.storage.damages.kept == []
        for ledger_id in self.models:
            self.check_ledger(ledger_id)

    def check_ledger(self, ledger_id: int) -> None:
        storage, model = self.storage, self.models[ledger_id]
        terms = TERMS if ledger_id in STREAMS else (0,)
        held: dict[int, set[int]] = {}
        for each in storage.held_from(ledger_id, 0):
            ids = ids_in(each.first, each.last, each.period, each.stripes)
            assert not held.setdefault(each.origin_term, set()).intersection(ids)
            held[each.origin_term].update(ids)
        for term in terms:
            expected = model.living(term)
            unknown = {
                one: None
                for low, high, _ in model.pending_deletion
                for one in range(low, min(high, LAST) + 1)
            }
            unsure = model.unsure(term) & expected.keys()
            blurred = model.blurred.get(term, set()) - expected.keys() - unknown.keys()
            found = {
                entry_id: expected[entry_id] if entry_id in unsure and payload is None else payload
                for entry_id, payload in read_all(storage, ledger_id, 0, LAST, origin_term=term).items()
                if payload is not None or entry_id not in blurred
            }
            assert found == {**unknown, **expected}
            here = held.pop(term, set())
            assert expected.keys() - unsure <= here <= expected.keys()
        assert held == {}
        facts = storage.facts(ledger_id)
        assert (facts.limbo if facts else None) == model.limbo
        assert (facts.term_lsn if facts else 0) == model.term_lsn
        there = (entry_id for of_term in model.entries.values() for entry_id in of_term)
        assert storage.last_entry(ledger_id) == max(there, default=-1)
        assert not model.newest or storage.drops.written_since(ledger_id, model.newest - 1)


LEDGER = st.sampled_from((*LEDGERS, *STREAMS))
STEPS: dict[str, tuple[Callable[[World, int], None], Any]] = {
    "put": (World.put, LEDGER),
    "drop": (World.drop, LEDGER),
    "truncate": (World.truncate, LEDGER),
    "drop before term": (World.drop_before_term, LEDGER),
    "truncate terms": (World.truncate_terms, st.integers(0, 1)),
    "empty": (World.empty, LEDGER),
    "pending deletion": (World.set_pending_deletion, LEDGER),
    "cancel deletion": (World.cancel_deletion, LEDGER),
    "delete": (World.delete, LEDGER),
    "limbo": (World.limbo, LEDGER),
    "take term": (World.take_term, LEDGER),
    "append": (World.append, LEDGER),
    "fill": (World.fill, st.integers(0, 3)),
    "reclaim": (World.reclaim, st.integers(0, 1)),
    "compact": (World.compact, st.integers(0, 1)),
    "go on": (World.go_on, st.integers(1, 30)),
    "rot": (World.rot, LEDGER),
    "cut": (World.cut, st.integers(0, 6)),
    "stop": (World.stop, st.integers(0, 2)),
}
OFTEN = (
    ["put"] * 14
    + ["drop"] * 6
    + ["fill"] * 2
    + ["pending deletion", "reclaim", "compact", "append"]
    + list(STEPS)
)
A_STEP = st.sampled_from(OFTEN).flatmap(lambda name: st.tuples(st.just(name), STEPS[name][1]))


@given(st.lists(A_STEP, max_size=40), st.integers(0, 1000))
def test_every_answer_is_that_of_a_dictionary(steps: list[tuple[str, int]], seed: int) -> None:
    world = World(seed)
    for name, number in steps:
        STEPS[name][0](world, number)
        world.check()
    world.stop(seed)


def at_length(seed: int, operations: int, *, short: bool = False) -> Counter[str]:
    """A long life; each kind of step happens in it."""
    world, chance = World(seed, short=short), random.Random(seed)
    counted = world.counted
    relocated = merged = 0
    for number in range(operations):
        name = chance.choice(OFTEN)
        of_ledger = STEPS[name][1] is LEDGER
        argument = chance.choice(list(world.models)) if of_ledger else chance.randrange(7)
        segments = set(world.storage.segments)
        STEPS[name][0](world, argument)
        if of_ledger:
            world.check_ledger(argument)
        if not number % 50:
            world.check()
            world.callback.told.clear()
            world.files.log.clear()
        counted[name] += 1
        counted["given back"] += len(segments - set(world.storage.segments))
        relocated, before = world.storage.statistics()["carried_bytes"], relocated
        counted["carried"] += relocated > before
        merged, before = world.storage.statistics()["merged_runs"], merged
        counted["merged"] += max(merged - before, 0)
    world.stop(2)
    world.storage.close()
    return counted


def test_the_same_at_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.storage.reclaiming.compaction.LEDGERS_A_STEP", 2)
    counted = sum((at_length(seed, 300) for seed in range(3)), Counter())
    assert all(counted[name] > 5 for name in [*STEPS, "given back", "carried", "merged"]), counted


def test_the_same_while_descriptors_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.storage.reclaiming.compaction.LEDGERS_A_STEP", 2)
    counted = sum((at_length(seed, 150, short=True) for seed in range(1, 5)), Counter())
    assert all(counted[name] > 5 for name in ["shortages", "given back", "carried", "merged"]), counted


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("relocated rows get new LSNs", 0),
        ("a relocated row wins over a newer one", 0),
        ("the source retires before the copies are synced", 0),
        ("a state only in a retired segment is not relocated", 4),
        ("damage is forgotten", 2),
        ("the LSN bound of a drop is left out", 0),
        ("a merge across terms", 22),
        ("the lowest LSN of a merged run", 0),
    ],
)
def test_a_compaction_with_a_mistake_is_found(monkeypatch: pytest.MonkeyPatch, name: str, seed: int) -> None:
    monkeypatch.setattr("quire.storage.reclaiming.compaction.LEDGERS_A_STEP", 2)
    with_mistake(monkeypatch, name)
    with pytest.raises(AssertionError):
        at_length(seed, 300)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_million_operations() -> None:
    counted = at_length(39, rounds(20_000, 1_000_000))
    assert all(counted[name] > 100 for name in [*STEPS, "given back", "carried", "merged"]), counted
    keep_figures("storage_against_a_dictionary", dict(sorted(counted.items())), seed=39)
