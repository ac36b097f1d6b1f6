"""The flush of a writer that has ended: who is waited for, how long, and which holes are left."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quire.core.ids import BookieId
from quire.core.ledger.effects import SetTimer
from quire.core.ledger.flush import BookieGivenUp, Flushed, FlushMachine, FlushStatus, UnacknowledgedCopies
from quire.core.ledger.holes import joined
from quire.core.ledger.writer_state import Hole

PATIENCE = 1_000
LATEST = 10_000


def copies(slot: int, *runs: tuple[int, int], since_ms: int = 0) -> UnacknowledgedCopies:
    numbered = {first: (first, last) for first, last in runs}
    return UnacknowledgedCopies(slot, BookieId(f"b{slot}"), numbered, since_ms, PATIENCE)


def said(machine: FlushMachine) -> list[object]:
    machine.check()
    out, machine.out = machine.out, []
    return list(out)


def test_nothing_is_waited_for_where_everything_is_acknowledged() -> None:
    machine = FlushMachine(9, [copies(0, (10, 12))], 0, latest_ms=LATEST)
    assert said(machine) == [Flushed()], "entries above the LAC were promised to nobody"
    assert machine.holes == ()


def test_the_last_acknowledgement_ends_it() -> None:
    machine = FlushMachine(9, [copies(0, (0, 4), (5, 9)), copies(2, (5, 9))], 0, latest_ms=LATEST)
    assert said(machine) == [SetTimer(PATIENCE)]
    machine.acked(0, 5, 10)
    machine.acked(2, 5, 20)
    machine.acked(2, 5, 30)
    assert (said(machine), machine.status) == ([], FlushStatus.WAITING)
    machine.acked(0, 0, 40)
    assert (said(machine), machine.holes) == ([Flushed()], ())


def test_a_bookie_that_acknowledges_nothing_is_given_up() -> None:
    machine = FlushMachine(9, [copies(0, (0, 4), (5, 9)), copies(1, (5, 9))], 0, latest_ms=LATEST)
    machine.acked(0, 0, 900)
    said(machine)
    machine.timer_fired(PATIENCE)
    assert said(machine) == [BookieGivenUp(1, BookieId("b1")), SetTimer(1_900)], "b0 has moved meanwhile"
    machine.timer_fired(1_900)
    assert said(machine) == [BookieGivenUp(0, BookieId("b0")), Flushed()]
    assert machine.holes == (Hole(1, BookieId("b1"), 5, 9), Hole(0, BookieId("b0"), 5, 9))


def test_a_bookie_that_answers_single_entries_is_waited_for() -> None:
    """A large run on a bookie that takes few entries at a time: its acknowledgement comes after all of them."""
    machine = FlushMachine(9, [copies(1, (0, 9))], 0, latest_ms=LATEST)
    said(machine)
    machine.moved(1, 900)
    machine.timer_fired(1_000)
    assert machine.status is FlushStatus.WAITING
    machine.moved(0, 1_500)  # it has acknowledged everything
    machine.timer_fired(1_900)
    assert BookieGivenUp(1, BookieId("b1")) in said(machine)


def test_a_bookie_that_was_silent_before_the_end_is_given_up_at_once() -> None:
    machine = FlushMachine(9, [copies(1, (0, 4), (5, 9), since_ms=0)], 1_500, latest_ms=LATEST)
    assert said(machine) == [BookieGivenUp(1, BookieId("b1")), Flushed()]
    assert machine.holes == (Hole(1, BookieId("b1"), 0, 9),)


def test_a_refusal_is_a_hole() -> None:
    machine = FlushMachine(9, [copies(1, (0, 9))], 0, latest_ms=LATEST)
    said(machine)
    machine.failed(1, 5)
    machine.failed(0, 5)
    assert said(machine) == [BookieGivenUp(1, BookieId("b1")), Flushed()]


def test_a_bookie_that_is_slow_for_ever_is_not_waited_for_ever() -> None:
    machine = FlushMachine(99, [copies(0, *((entry, entry) for entry in range(100)))], 0, latest_ms=LATEST)
    said(machine)
    for entry in range(20):
        machine.acked(0, entry, 600 * entry)
    assert BookieGivenUp(0, BookieId("b0")) in said(machine)
    [hole] = machine.holes
    assert (hole.first >= LATEST // 600, hole.last) == (True, 99)


def test_nobody_is_waited_for_any_more() -> None:
    machine = FlushMachine(9, [copies(0, (0, 9))], 0, latest_ms=LATEST)
    said(machine)
    machine.give_up(10)
    assert (said(machine), machine.status) == (
        [BookieGivenUp(0, BookieId("b0")), Flushed()],
        FlushStatus.DONE,
    )
    machine.give_up(20)
    machine.timer_fired(PATIENCE)
    assert said(machine) == []


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ack", "fail", "wait"]), st.integers(0, 2), st.integers(0, 9), st.integers(0, 700)
    ),
    max_size=60,
)


@given(
    sent=st.lists(st.frozensets(st.integers(0, 9), max_size=10), min_size=3, max_size=3),
    lac=st.integers(-1, 45),
    steps=STEPS,
)
def test_what_is_not_acknowledged_is_a_hole_and_nothing_else_is(
    sent: list[frozenset[int]], lac: int, steps: list[tuple[str, int, int, int]]
) -> None:
    """Runs of four entries, in any order of answers, failures and time; in the end somebody's patience is over."""
    given_out = [
        copies(slot, *((4 * run, 4 * run + 3) for run in sorted(runs))) for slot, runs in enumerate(sent)
    ]
    machine, now_ms, at_ms = FlushMachine(lac, given_out, 0, latest_ms=LATEST), 0, 0
    acked: set[tuple[int, int]] = set()
    flushed = 0
    for word, slot, run, wait_ms in [*steps, *[("wait", 0, 0, 2 * LATEST)] * 5]:
        if word == "ack" and slot in machine._unacknowledged and run in sent[slot]:
            machine.acked(slot, 4 * run, now_ms)
            acked.add((slot, run))
        elif word == "fail":
            machine.failed(slot, now_ms)
        elif machine.status is FlushStatus.WAITING:
            now_ms = max(now_ms, min(now_ms + wait_ms, at_ms))
            if now_ms == at_ms:
                machine.timer_fired(now_ms)
        for effect in said(machine):
            at_ms = effect.at_ms if isinstance(effect, SetTimer) else at_ms
            flushed += isinstance(effect, Flushed)
    while machine.status is FlushStatus.WAITING:
        now_ms = at_ms
        machine.timer_fired(now_ms)
        for effect in said(machine):
            at_ms = effect.at_ms if isinstance(effect, SetTimer) else at_ms
            flushed += isinstance(effect, Flushed)
    assert (flushed, now_ms <= LATEST) == (1, True)
    missing = {
        (slot, entry)
        for slot, runs in enumerate(sent)
        for run in runs
        for entry in range(4 * run, min(4 * run + 3, lac) + 1)
        if (slot, run) not in acked
    }
    assert {
        (hole.slot, entry) for hole in machine.holes for entry in range(hole.first, hole.last + 1)
    } == missing
    assert sorted(joined(machine.holes)) == sorted(machine.holes), "neighbours are one hole"
