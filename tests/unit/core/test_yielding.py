"""Dialogues of what gives way: low-priority requests at a bookie, and the rate of who copies; what adds took lately."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from quire.bookie.recent_times import PERIOD_MS, RecentTimes
from quire.core.ids import BookieId
from quire.env.yielding import (
    LIMITS,
    RATE_MIN,
    UNITS_BEGIN,
    UNITS_MAX,
    UNITS_MIN,
    CopyPace,
    Entrance,
    YieldLimits,
    YieldMachine,
)

MIB = 1 << 20
B1, B2 = BookieId("b1"), BookieId("b2")


# --- at a bookie --------------------------------------------------------------------------------------------------


def test_without_adds_of_others_low_priority_is_served_at_once_as_far_as_it_may_be_in_flight() -> None:
    machine = YieldMachine()
    for _ in range(16):
        assert machine.come(MIB, None, 0) is Entrance.SERVED
    assert machine.come(1, None, 0) is Entrance.WAITS
    assert machine.come(1, None, 0) is Entrance.WAITS, "first in, first out"
    assert not machine.take(None, 50)
    machine.settled(MIB)
    assert machine.take(None, 50)
    assert machine.take(None, 50)
    assert not machine.take(None, 50)
    machine.check()


def test_beside_adds_of_others_it_waits_and_little_of_it_is_in_flight() -> None:
    machine = YieldMachine()
    for _ in range(4):
        assert machine.come(MIB // 2, 0, 0) is Entrance.WAITS
    assert machine.take(LIMITS.others_bytes, 1)
    assert machine.take(0, 1)
    assert not machine.take(0, 1), "a mebibyte is in flight"
    machine.settled(MIB // 2)
    assert not machine.take(LIMITS.others_bytes + 1, 2), "the others have much in flight"
    assert machine.take(LIMITS.others_bytes, 2)
    machine.check()


def test_a_request_that_is_larger_than_the_room_is_served_alone() -> None:
    machine = YieldMachine()
    machine.come(4 * MIB, 0, 0)
    machine.come(1, 0, 0)
    assert machine.take(0, 0)
    assert not machine.take(0, 0)
    machine.settled(4 * MIB)
    assert machine.take(0, 0)


def test_low_priority_slows_down_and_does_not_stop() -> None:
    """However much the others have in flight, one in each pause is served."""
    machine, served = YieldMachine(), []
    for _ in range(5):
        machine.come(1000, 0, 0)
    for now_ms in range(1_000):
        if machine.take(100 * MIB, now_ms):
            served.append(now_ms)
    assert served == [100, 200, 300, 400, 500]
    assert machine.due_ms is None


def test_what_waits_is_bounded_and_what_comes_then_is_refused() -> None:
    machine = YieldMachine()
    for _ in range(8):
        assert machine.come(MIB, 0, 0) is Entrance.WAITS
    assert machine.come(1, 0, 0) is Entrance.REFUSED
    assert machine.take(0, 0)
    assert machine.come(MIB, 0, 0) is Entrance.WAITS
    machine.dropped(3)
    assert (machine.waiting, machine.waiting_bytes) == (7, 7 * MIB)
    # One alone waits however large it is: it was received already.
    one = YieldMachine()
    assert one.come(100 * MIB, 0, 0) is Entrance.WAITS
    one.check()


STEPS = st.lists(
    st.tuples(st.sampled_from(["come", "take", "settle", "drop", "wait"]), st.integers(0, 40)), max_size=80
)


@given(STEPS)
def test_in_any_order_the_first_that_waits_is_served_in_time(steps: list[tuple[str, int]]) -> None:
    limits = YieldLimits(others_bytes=10, busy_bytes=20, alone_bytes=40, waiting_bytes=100, wait_ms_max=30)
    machine, now_ms, number = YieldMachine(limits), 0, 0
    waiting: deque[tuple[int, int]] = deque()
    flying: deque[int] = deque()
    for kind, amount in steps:
        others = None if amount == 40 else amount
        if kind == "come":
            number += 1
            entrance = machine.come(amount + 1, others, now_ms)
            if entrance is Entrance.SERVED:
                assert not waiting
                assert others is None
                flying.append(amount + 1)
            elif entrance is Entrance.WAITS:
                waiting.append((number, amount + 1))
            else:
                assert machine.waiting_bytes + amount + 1 > limits.waiting_bytes
        elif kind == "take":
            due = machine.due_ms
            took = machine.take(others, now_ms)
            assert took or due is None or now_ms < due
            if took:
                flying.append(waiting.popleft()[1])
        elif kind == "settle" and flying:
            machine.settled(flying.popleft())
        elif kind == "drop" and waiting:
            at = amount % len(waiting)
            machine.dropped(at)
            del waiting[at]
        elif kind == "wait":
            now_ms += amount
        machine.check()
        assert machine.waiting == len(waiting)
        assert machine.in_flight == sum(flying)
        assert machine.due_ms is None or machine.due_ms <= now_ms + limits.wait_ms_max


# --- at who copies ------------------------------------------------------------------------------------------------


def test_the_rate_is_halved_while_adds_are_slow_and_grows_back() -> None:
    pace = CopyPace()
    pace.looked({B1: 4_000, B2: 9_000}, 0, 5_000)
    pace.looked({B1: 6_000, B2: 9_000}, 400_000_000, 5_000)
    assert pace.bytes_per_s is None, "half as much more is nothing"
    pace.looked({B1: 6_500, B2: 9_000}, 400_000_000, 5_000)
    assert pace.bytes_per_s == 40_000_000
    pace.looked({B1: 7_000}, 200_000_000, 5_000)
    assert pace.bytes_per_s == 20_000_000
    pace.looked({B1: 5_000}, 100_000_000, 5_000)
    assert pace.bytes_per_s == 25_000_000
    pace.looked({B1: 5_000}, 125_000_000, 5_000)
    assert pace.bytes_per_s == 31_250_000
    # Nothing limits it any more that it could reach.
    pace.looked({B1: 5_000}, 40_000_000, 5_000)
    assert pace.bytes_per_s is None


def test_a_rate_that_was_given_is_never_passed() -> None:
    pace = CopyPace(10_000_000)
    pace.looked({B1: 4_000}, 0, 5_000)
    pace.looked({B1: 8_000}, 50_000_000, 5_000)
    assert pace.bytes_per_s == 5_000_000
    for _ in range(10):
        pace.looked({B1: 4_000}, 50_000_000, 5_000)
    assert pace.bytes_per_s == 10_000_000
    slow = CopyPace(1_000)
    slow.looked({B1: 4_000}, 0, 5_000)
    slow.looked({B1: 8_000}, 5_000, 5_000)
    assert slow.bytes_per_s == 1_000


def test_something_is_always_copied_and_nothing_is_compared_that_copies_did_not_do() -> None:
    pace = CopyPace()
    pace.looked({B1: 4_000}, 0, 5_000)
    for _ in range(3):
        pace.looked({B1: 80_000}, 5_000_000, 5_000)
        assert pace.bytes_per_s == RATE_MIN
        assert pace.units >= UNITS_MIN
    assert pace.is_least
    # The load is another one: what it takes without copies is what counts from now on.
    pace = CopyPace()
    pace.looked({B1: 4_000}, 0, 5_000)
    pace.looked({B1: 80_000}, 0, 5_000)
    pace.looked({B1: 90_000}, 5_000_000, 5_000)
    assert pace.bytes_per_s is None
    # Differences of less than a millisecond and a half are none, and a bookie without adds says nothing.
    pace.looked({}, 5_000_000, 5_000)
    quick = CopyPace()
    quick.looked({B1: 100}, 0, 5_000)
    quick.looked({B1: 1_500}, 5_000_000, 5_000)
    assert quick.bytes_per_s is None


def test_a_load_that_has_changed_during_the_copying_is_what_is_usual_after_a_while() -> None:
    """Where next to nothing is copied, and adds are slow still, it is not copies that make them slow."""
    pace = CopyPace()
    pace.looked({B1: 4_000}, 0, 5_000)
    rates = []
    for _ in range(16):
        pace.looked({B1: 40_000}, 50_000_000, 5_000)
        rates.append(pace.bytes_per_s)
    assert rates[:4] == [5_000_000, 2_500_000, 1_250_000, RATE_MIN]
    assert rates[5] == RATE_MIN * 5 // 4, "what it took at the least pace is usual now"
    assert pace.units == UNITS_MAX
    pace.looked({B1: 61_000}, 50_000_000, 5_000)
    assert pace.units == UNITS_MAX // 2


def test_small_ledgers_are_repaired_few_at_a_time_beside_others_and_many_alone() -> None:
    pace = CopyPace()
    assert pace.units == UNITS_BEGIN
    pace.looked({B1: 4_000}, 0, 5_000)
    pace.looked({B1: 4_000}, 1_000_000, 5_000)
    assert pace.units == 18
    pace.looked({B1: 6_500}, 1_000_000, 5_000)
    assert pace.units == 9
    for _ in range(3):
        pace.looked({B1: 9_000}, 1_000_000, 5_000)
    assert (pace.units, pace.is_least) == (UNITS_MIN, True)
    pace.looked({}, 1_000_000, 5_000)
    assert pace.units == UNITS_MAX


# --- what adds took -----------------------------------------------------------------------------------------------


def test_the_percentile_is_of_the_last_seconds() -> None:
    times = RecentTimes()
    assert times.p99_us(0) is None
    for number in range(100):
        times.add(500 if number else 70_000, number)
    assert times.p99_us(100) in range(500, 563)
    times.add(70_000, 100)
    assert times.p99_us(100) in range(70_000, 78_750)
    times.add(200, PERIOD_MS + 50)
    assert times.p99_us(PERIOD_MS + 50) in range(70_000, 78_750), "the period before counts"
    assert times.p99_us(2 * PERIOD_MS + 50) in range(200, 225)
    assert times.p99_us(9 * PERIOD_MS) is None


@given(st.lists(st.integers(0, 10_000_000), min_size=1, max_size=50))
def test_the_percentile_is_right_within_an_eighth(durations: list[int]) -> None:
    times = RecentTimes()
    for duration in durations:
        times.add(duration, 7)
    found = times.p99_us(7)
    assert found is not None
    assert max(durations) <= found <= max(durations) * 9 / 8 + 1
