"""A range read against a naive idea of it: an entry comes if any bookie of its write set serves it, and only then."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from quire.core.answers import NEGATIVES, Answer
from quire.core.ledger.effects import LacFound, LacUnavailable, ReadDone, ReadFailed, SendRead, SetTimer
from quire.core.ledger.quorum import covers_exactly, told_through, write_set
from quire.core.ledger.reader import LacMachine, ReadMachine

QUORUMS = [(1, 1), (2, 2), (3, 3), (3, 2), (4, 3), (6, 3), (5, 2)]
HOLDS, LACKS, DAMAGED = "holds", "lacks", "damaged"


class Bookie:
    """Copies of a bookie's stripes, some missing, some damaged; an answer is of limited size, and may say less than it could."""

    def __init__(
        self, chance: random.Random, slot: int, first: int, last: int, quorums: tuple[int, int]
    ) -> None:
        E, Qw = quorums
        good = chance.choice([0.5, 0.9, 1.0])
        self.chance = chance
        self.down = chance.choice([None, None, None, Answer.TIMED_OUT, Answer.UNREACHABLE, Answer.NO_LEDGER])
        self.limbo = chance.random() < 0.2
        self.copies = {
            e: HOLDS if chance.random() < good else chance.choice([LACKS, DAMAGED])
            for e in range(first - 3, last + 4)
            if slot in write_set(e % E, E, Qw)
        }

    def read(self, first: int, last: int) -> tuple[Answer, list[int], int, list[tuple[int, int]]]:
        if self.down is not None:
            return self.down, [], -1, []
        through = self.chance.randint(first, last)
        held = [e for e, copy in self.copies.items() if first <= e <= through and copy == HOLDS]
        if self.limbo:
            return Answer.OK, held, first - 1, []
        damaged = [(e, e) for e, copy in self.copies.items() if first <= e <= through and copy == DAMAGED]
        return Answer.OK, held, through, damaged

    def serves(self, entry_id: int) -> bool:
        return self.down is None and self.copies.get(entry_id) == HOLDS

    def denies(self, entry_id: int) -> bool:
        return self.down in NEGATIVES or (
            self.down is None and not self.limbo and self.copies.get(entry_id) == LACKS
        )


@settings(max_examples=500, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(QUORUMS), st.integers(0, 40), st.integers(1, 30))
def test_an_entry_comes_if_anybody_serves_it(seed, quorums, first, count) -> None:
    E, Qw = quorums
    chance = random.Random(seed)
    last = first + count - 1
    bookies = [Bookie(chance, slot, first, last, quorums) for slot in range(E)]
    names = [f"b{i}" for i in range(E)]
    machine = ReadMachine(
        first,
        last,
        names,
        Qw,
        prefer=chance.randrange(E),
        avoid=chance.getrandbits(E),
        speculate_after_ms=chance.choice([0, 50]),
    )
    now, waiting, result, got = 0, [], None, set()
    machine.read(now)
    for _ in range(10_000):
        machine.check()
        out, machine.out = machine.out, []
        for effect in out:
            if isinstance(effect, SendRead):
                assert first <= effect.first <= effect.last <= last
                waiting.append(effect)
            elif not isinstance(effect, SetTimer):
                assert result is None
                result = effect
        if result is not None:
            break
        if chance.random() < 0.2:
            now += chance.randint(1, 60)
            machine.timer_fired(now)
            continue
        ask = waiting.pop(chance.randrange(len(waiting)))
        answer, held, through, damaged = bookies[ask.slot].read(ask.first, ask.last)
        got.update(held)
        machine.answered(ask.slot, answer, held, through, damaged, now)
    # A limbo bookie's short answer may hide what lies behind it; what it did not bring counts as not served.
    available = {e for e in range(first, last + 1) if e in got}
    if isinstance(result, ReadDone):
        assert available == set(range(first, last + 1))
        return
    assert isinstance(result, ReadFailed)
    lowest = min(set(range(first, last + 1)) - available)
    assert result.entry_id == lowest
    asked = [bookies[slot] for slot in write_set(lowest, E, Qw)]
    assert result.conclusive == all(bookie.denies(lowest) for bookie in asked)
    assert not any(bookie.serves(lowest) and not bookie.limbo for bookie in asked)
    assert {bookie for bookie, _ in result.answers} == {names[slot] for slot in write_set(lowest, E, Qw)}


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([(3, 3, 2), (4, 3, 2), (5, 3, 2), (6, 3, 3), (2, 2, 1)]))
def test_a_lac_is_the_highest_of_a_covering_set(seed, quorums) -> None:
    E, Qw, Qa = quorums
    chance = random.Random(seed)
    machine = LacMachine([f"b{i}" for i in range(E)], Qw, Qa)
    machine.read()
    machine.out.clear()
    known, highest = 0, -1
    for slot in chance.sample(range(E), E):
        answer = chance.choice(
            [Answer.OK, Answer.NO_ENTRY, Answer.NO_LEDGER, Answer.TIMED_OUT, Answer.UNKNOWN]
        )
        lac = chance.randint(0, 9) if answer is Answer.OK else -1
        machine.answered(slot, answer, lac)
        machine.check()
        if answer is Answer.OK or answer in NEGATIVES:
            known |= 1 << slot
            highest = max(highest, lac)
        if covers_exactly(known, E, Qw, Qa):
            assert machine.out == [LacFound(highest)]
            return
    (result,) = machine.out
    assert isinstance(result, LacUnavailable)
    assert result.highest == highest
    assert set(result.silent) == {f"b{slot}" for slot in range(E) if not known >> slot & 1}


@given(
    st.integers(0, 20),
    st.integers(0, 20),
    st.lists(st.integers(0, 40), unique=True).map(sorted),
    st.integers(-1, 50),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 5)), max_size=3),
    st.sampled_from([(1, 1), (0b011, 3), (0b101, 4)]),
)
def test_how_far_an_answer_tells(first, count, held, conclusive, spans, shape) -> None:
    stripes, period = shape
    last = first + count
    held = [e for e in held if first <= e <= last and stripes >> e % period & 1]
    unknown = [(lower, lower + length) for lower, length in spans]
    through = told_through(first, last, held, conclusive, unknown, stripes, period)
    assert first - 1 <= through <= last

    def told(e: int) -> bool:
        in_unknown = any(lower <= e <= upper for lower, upper in unknown)
        return e <= conclusive or e in held or in_unknown or not stripes >> e % period & 1

    assert all(told(e) for e in range(first, through + 1)), "nothing is claimed that was not told"
