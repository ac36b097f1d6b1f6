"""Deleted ledgers on a disk against a simple model: nothing of them comes back, whatever is put, given back or cut.

Ledgers live, are deleted, are forgotten when their tombstones shrink, and live again under the same id. In between,
segments fill and are given back, the bookie stops, is killed or loses power. Once nothing of a ledger is on the disk its
tombstone is gone, and not before.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from quire.core.bookie.ledger import LedgerFacts
from quire.storage.formats.segment_format import SegmentRecordKind
from quire.storage.ledger_storage import LedgerStorage
from quire_testing.kit.stepped import HurriedClock
from support.rounds import rounds
from support.storage_disk import (
    Answers,
    FaultyFiles,
    make_run,
    open_storage,
    put,
    read_all,
    settle,
)

LEDGERS = range(1, 7)
FILLER = 99
LAST = 40


@dataclass
class Life:
    """What a ledger was told, since it was forgotten last."""

    entries: dict[int, bytes] = field(default_factory=dict)
    token: int = 0
    until_ms: int = 0
    shrunk: bool = False
    settled: bool = True


class World:
    """A storage and what it should say."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.files = FaultyFiles(seed=seed)
        self.callback = Answers()
        self.lives = {ledger_id: Life() for ledger_id in LEDGERS}
        self.filled = 0
        self.serial = 0
        self.work: list[Generator[Any, None, Any]] = []
        self.open()

    def open(self) -> None:
        self.storage = open_storage(self.files, clock=HurriedClock(1_000_000))
        self.work.clear()

    # --- what may happen

    def put(self, ledger_id: int) -> None:
        life = self.lives[ledger_id]
        if life.until_ms and not life.shrunk:
            return  # its tombstone refuses
        if life.shrunk:
            life = self.lives[ledger_id] = Life()
        if not life.token and self.chance.random() < 0.6:
            self.serial += 1
            life.token = self.serial
            self.storage.put_facts(
                LedgerFacts(ledger_id, key=b"k" * 20, token=life.token), self.callback, "facts"
            )
        self.serial += 1
        first = self.chance.randrange(LAST - 3)
        payload = b"%d " % self.serial * self.chance.choice((10, 400, 4000))
        put(self.storage, make_run(ledger_id, first, first + 2, payload=payload), self.callback, "run")
        life.entries.update({i: payload + b"/%d" % i for i in range(first, first + 3)})
        settle(self.storage)

    def delete(self, ledger_id: int) -> None:
        life = self.lives[ledger_id]
        if life.until_ms:
            return
        life.until_ms, life.settled = self.chance.choice((1, 5)), False
        self.storage.delete(ledger_id, life.until_ms, self.callback, "delete")

    def settle(self, _: int) -> None:
        settle(self.storage)
        for life in self.lives.values():
            life.settled = True

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
        self.settle(0)

    def shrink(self, wall_ms: int) -> None:
        for ledger_ids in self.storage.housekeeping.shrink_tombstones(wall_ms):
            self._forgotten(ledger_ids)

    def _forgotten(self, ledger_ids: list[int]) -> None:
        for ledger_id in ledger_ids:
            if ledger_id != FILLER:
                assert self.lives[ledger_id].until_ms
                self.lives[ledger_id].shrunk = True

    def reclaim(self, number: int) -> None:
        """At once, or in slices with whatever comes next between them."""
        if number % 2:
            self.storage.housekeeping.reclaim()
        else:
            self.work.append(self.storage.housekeeping.reclaim_slices())

    def go_on(self, number: int) -> None:
        for _ in range(number):
            self.work = [one for one in self.work if next(one, self) is not self]

    def stop(self, number: int) -> None:
        """Cleanly, killed, or by a power cut that the deletions and the work of the collector may not have outlived."""
        if number % 3:
            self.settle(0)
        self.storage.close(clean=number % 3 == 1)
        if number % 3 != 1:
            self.files = self.files.crash()
        self.open()
        for ledger_id, life in self.lives.items():
            facts = self.storage.facts(ledger_id)
            deleted = facts is not None and facts.deleted_until_ms
            if not life.settled and not deleted and not life.shrunk:
                life.until_ms = 0  # it had not been acknowledged
            life.settled = True
            if deleted:
                life.shrunk = False  # its tombstone is there again, until it shrinks again

    # --- what must hold

    def check(self) -> None:
        storage, states = self.storage, self.storage.states
        assert storage.failure is None
        assert storage.damages.kept == []
        for ledger_id, life in self.lives.items():
            found, facts = read_all(storage, ledger_id, 0, LAST), storage.facts(ledger_id)
            if life.until_ms:
                assert found == {}
                assert storage.last_entry(ledger_id) == -1
                assert (facts is not None and facts.deleted_until_ms > 0) or life.shrunk
                assert (facts is None) or facts.deleted_until_ms > 0
                assert ledger_id not in list(storage.states.ledgers)
                continue
            assert found == life.entries
            assert storage.token(ledger_id) == life.token
            assert (ledger_id in list(storage.states.ledgers)) == bool(life.entries or life.token)
        assert not states.shrunk.keys() & (states.ledgers.keys() | states.tombstones.keys())
        if storage.journal.busy:
            return
        held = held_on_disk(storage)
        for ledger_id, count in states.shrunk.items():
            sealed = sum(
                ledger_id in one for sequence, one in held.items() if sequence not in storage.unsealed
            )
            assert count == sealed
            assert any(ledger_id in one for one in held.values())
        for one in held.values():
            for ledger_id in one:
                assert ledger_id in states.shrunk or states.get(ledger_id) is not None


def held_on_disk(storage: LedgerStorage) -> dict[int, set[int]]:
    """By segment: the ledgers with entries in it, or with a living ledger's state, out of its records."""
    held: dict[int, set[int]] = {}
    newest: dict[tuple[int, int], tuple[int, int]] = {}
    for record in storage.scan():
        of_segment = held.setdefault(record.segment, set())
        if record.kind == SegmentRecordKind.RUN:
            of_segment.add(record.ledger_id)
        elif record.kind in {SegmentRecordKind.LEDGER_STATE, SegmentRecordKind.DELETE}:
            place = record.segment, record.ledger_id
            newest[place] = max(newest.get(place, (0, 0)), (record.lsn, record.offset))
    for (sequence, ledger_id), (_, offset) in newest.items():
        body = storage._files.read_at(sequence, offset + 104, 40)
        if body[1] != 128 and not any(body[32:40]):
            held[sequence].add(ledger_id)
    for segment in storage.housekeeping.reclaimer._recycled:
        held.setdefault(segment.sequence, set()).update(*segment.contents.held)
    return held


STEPS = {
    "put": (World.put, st.sampled_from(LEDGERS)),
    "delete": (World.delete, st.sampled_from(LEDGERS)),
    "settle": (World.settle, st.just(0)),
    "fill": (World.fill, st.integers(0, 3)),
    "shrink": (World.shrink, st.sampled_from((1, 5))),
    "reclaim": (World.reclaim, st.integers(0, 1)),
    "go on": (World.go_on, st.integers(1, 30)),
    "stop": (World.stop, st.integers(0, 2)),
}
OFTEN = ["put"] * 2 + ["delete"] * 2 + ["fill"] * 4 + ["shrink", "reclaim"] * 2 + list(STEPS)
A_STEP = st.sampled_from(OFTEN).flatmap(lambda name: st.tuples(st.just(name), STEPS[name][1]))


@given(st.lists(A_STEP, max_size=40), st.integers(0, 1000))
def test_nothing_deleted_comes_back(steps: list[tuple[str, int]], seed: int) -> None:
    world = World(seed)
    for name, number in steps:
        STEPS[name][0](world, number)
        world.check()
    # Everything is deleted and given back in the end.
    for ledger_id in LEDGERS:
        world.delete(ledger_id)
    world.fill(1)
    for _ in range(4):
        world.shrink(5)
        world.go_on(1000)
        world.storage.housekeeping.reclaim()
        world.settle(0)
        world.check()
        world.fill(1)
    assert world.storage.states.shrunk.keys() | world.storage.states.tombstones.keys() == set()
    world.stop(seed)
    world.check()
    assert world.storage.states.shrunk == {}


def test_the_same_steps_at_length() -> None:
    """Long lives, which a list of random steps seldom comes to; each kind of step happens in them."""
    counted: Counter[str] = Counter()
    seeds = rounds(8, 20)
    for seed in range(seeds):
        world, chance = World(seed), random.Random(seed)
        for _ in range(150):
            name = chance.choice(OFTEN)
            number = chance.choice((1, 5)) if name == "shrink" else chance.randrange(1, 7)
            shrunk, segments = dict(world.storage.states.shrunk), set(world.storage.segments)
            STEPS[name][0](world, number)
            world.check()
            counted[name] += 1
            counted["packed"] += len(world.storage.states.shrunk.keys() - shrunk.keys())
            counted["went"] += len(shrunk.keys() - world.storage.states.shrunk.keys())
            counted["given back"] += len(segments - set(world.storage.segments))
        world.storage.close()
    assert all(counted[name] > 2.5 * seeds for name in [*STEPS, "packed", "went", "given back"]), counted
