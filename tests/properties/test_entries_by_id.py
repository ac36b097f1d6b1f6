"""A stream whose terms only fence against a dictionary: of each id the entry that was put last, whatever its origin term.

The life of a disk is that of `test_storage_model.py`, of streams only, without rot. Besides, what other terms than one have put
last goes, as before a repair copies.

Source: docs/protocol/streams.md, "Terms that only fence".
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from properties.test_storage_model import LAST, STEPS, STREAMS, TERMS, World
from quire.core.ledger.terms import ANY_ORIGIN
from quire.storage.formats.state_format import DEAD_RANGES_MAX
from support.rounds import keep_figures, rounds
from support.storage_disk import read_all, settle


class WorldById(World):
    """A storage, and what a read of an id alone should say."""

    put_between = STREAMS
    """Nothing of the ledgers is ever dropped here: what is put over and over would fill the disk."""

    def named(self, stream: int) -> dict[int, tuple[int, int, bytes]]:
        """By id (LSN, origin term, payload) of what was put last; nothing of what is pending deletion."""
        found: dict[int, tuple[int, int, bytes]] = {}
        model = self.models[stream]
        for term, of_term in model.entries.items():
            for entry_id, (lsn, payload) in of_term.items():
                if not model.is_pending_deletion(entry_id, lsn):
                    found[entry_id] = max(found.get(entry_id, (0, 0, b"")), (lsn, term, payload))
        return found

    def drop_others(self, number: int) -> None:
        """All goes that stands under ids where an entry of another origin term than one was put last."""
        stream, chance = STREAMS[number % len(STREAMS)], self.chance
        first, kept = chance.randrange(LAST), chance.choice(TERMS)
        last = min(first + chance.choice((0, 3, 20)), LAST)
        self.models[stream].pending_deletion.clear()
        goes = [
            one for one, (_, term, _) in self.named(stream).items() if first <= one <= last and term != kept
        ]
        self.serial += 1
        told, tag = len(self.callback.told), ("others", self.serial)
        self.storage.drops.truncate(stream, first, TERMS[-1] + 1, self.callback, tag, last=last, kept=kept)
        settle(self.storage)
        [error] = [error for each, error in self.callback.told[told:] if each == tag]
        if error is None:
            for one in goes:
                self.models[stream].kill(one, one, self.storage.journal.last_lsn)
        else:
            assert f"has {DEAD_RANGES_MAX} dead ranges already" in str(error)
            self.counted["too many ranges"] += 1

    def check_ledger(self, ledger_id: int) -> None:
        super().check_ledger(ledger_id)
        if ledger_id in STREAMS:
            pending = self.models[ledger_id].pending_deletion
            unknown = {one: None for low, high, _ in pending for one in range(low, min(high, LAST) + 1)}
            expected = {one: payload for one, (_, _, payload) in self.named(ledger_id).items()}
            assert read_all(self.storage, ledger_id, 0, LAST, origin_term=ANY_ORIGIN) == {
                **unknown,
                **expected,
            }


STREAM = st.sampled_from(STREAMS)
OF_STREAMS: dict[str, tuple[Callable[[Any, int], None], Any]] = {
    **{
        name: (step, st.integers(0, 6) if name in {"fill", "reclaim", "compact", "cut", "stop"} else STREAM)
        for name, (step, _) in STEPS.items()
        if name not in {"rot", "truncate terms", "go on"}
    },
    "truncate terms": (World.truncate_terms, st.integers(0, 1)),
    "go on": (World.go_on, st.integers(1, 30)),
    "drop others": (WorldById.drop_others, st.integers(0, 1)),
}
OFTEN = ["put"] * 10 + ["append", "drop others", "truncate terms", "compact"] * 2 + list(OF_STREAMS)
A_STEP = st.sampled_from(OFTEN).flatmap(lambda name: st.tuples(st.just(name), OF_STREAMS[name][1]))


@given(st.lists(A_STEP, max_size=25), st.integers(0, 1000))
def test_a_read_by_id_gives_what_was_put_last(steps: list[tuple[str, int]], seed: int) -> None:
    world = WorldById(seed)
    for name, number in steps:
        OF_STREAMS[name][0](world, number)
        for stream in STREAMS:
            world.check_ledger(stream)
    world.stop(seed)


def at_length(seed: int, operations: int) -> Counter[str]:
    """A long life; what was counted of it."""
    world, chance = WorldById(seed), random.Random(seed)
    for number in range(operations):
        name = chance.choice(OFTEN)
        of_stream = OF_STREAMS[name][1] is STREAM
        OF_STREAMS[name][0](world, chance.choice(STREAMS) if of_stream else chance.randrange(7))
        for stream in STREAMS:
            world.check_ledger(stream)
        if not number % 50:
            world.callback.told.clear()
            world.files.log.clear()
        world.counted[name] += 1
    world.stop(2)
    world.storage.close()
    return world.counted


def test_the_same_at_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.storage.reclaiming.compaction.LEDGERS_A_STEP", 2)
    counted = at_length(1, 250)
    assert all(counted[name] for name in OF_STREAMS), counted


@pytest.mark.slow
@pytest.mark.timeout(36_000)
def test_a_million_operations_by_id() -> None:
    """Truncations and overwrites of several terms."""
    counted = at_length(41, rounds(5_000, 1_000_000))
    assert all(counted[name] > 20 for name in OF_STREAMS), counted
    keep_figures("entries_by_id_against_a_dictionary", dict(sorted(counted.items())), seed=41)
