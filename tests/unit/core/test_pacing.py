"""The dialogue of a connection with a bookie that takes only so many entries: what leaves, what comes, and the pauses."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.net.pacing import IN_FLIGHT_MAX, PAUSE_MS_MAX, PAUSE_MS_MIN, PacingMachine


def test_so_many_leave_and_others_when_these_are_answered() -> None:
    machine = PacingMachine()
    assert machine.may_leave(0) == IN_FLIGHT_MAX
    machine.left(IN_FLIGHT_MAX)
    assert machine.may_leave(0) == 0
    machine.accepted(300)
    assert machine.may_leave(0) == 300
    machine.given_up(200)
    assert machine.may_leave(0) == 500
    assert machine.answered == 300


def test_one_round_of_refusals_halves_what_may_be_in_flight_once() -> None:
    machine = PacingMachine()
    machine.left(IN_FLIGHT_MAX)
    for _ in range(1_000):
        machine.refused(50)
        machine.check()
    assert machine.allowed == IN_FLIGHT_MAX // 2
    assert machine.may_leave(50 + PAUSE_MS_MIN - 1) == 0, "a pause"
    assert machine.may_leave(50 + PAUSE_MS_MIN) == 0, "too many are in flight"
    machine.accepted(IN_FLIGHT_MAX - 1_000)
    assert machine.may_leave(50 + PAUSE_MS_MIN) == IN_FLIGHT_MAX // 2


def test_pauses_double_until_something_is_accepted() -> None:
    machine, now_ms = PacingMachine(), 0
    pauses: list[int] = []
    for _ in range(10):
        machine.left(1)
        machine.refused(now_ms)
        assert machine.resume_ms is not None
        pauses.append(machine.resume_ms - now_ms)
        now_ms = machine.resume_ms
        assert machine.may_leave(now_ms) == 1
    assert pauses == [min(PAUSE_MS_MIN * 2**number, PAUSE_MS_MAX) for number in range(10)]
    assert machine.refuses
    machine.left(1)
    machine.accepted(1)
    assert not machine.refuses
    machine.left(1)
    machine.refused(now_ms)
    assert machine.resume_ms == now_ms + PAUSE_MS_MIN


def test_a_request_that_waits_has_more_time_while_others_are_accepted() -> None:
    machine = PacingMachine()
    assert machine.may_wait_until(10_000) == 0, "nothing was ever accepted"
    machine.left(2)
    machine.accepted(1)
    machine.look(4_000)
    machine.look(9_000)
    assert machine.may_wait_until(10_000) == 14_000
    machine.refused(9_500)
    machine.look(9_500)
    assert machine.may_wait_until(10_000) == 14_000, "a refusal is no sign that it goes on"


@pytest.mark.parametrize("limit", [1, 8, 1_000, 3_999])
def test_a_bookie_of_any_limit_gets_everything(limit: int) -> None:
    """It takes one entry a millisecond, and refuses at once what finds more than its limit there."""
    machine, to_send, now_ms, refused = PacingMachine(), 20_000, 0, 0
    there: deque[int] = deque()
    while to_send or there:
        now_ms += 1
        count = min(machine.may_leave(now_ms), to_send)
        machine.left(count)
        for _ in range(count):
            if len(there) < limit:
                there.append(now_ms)
                to_send -= 1
            else:
                machine.refused(now_ms)
                refused += 1
        for _ in range(min(len(there), max(1, limit // 4))):
            there.popleft()
            machine.accepted(1)
        machine.check()
    assert refused < 20_000, "what is refused is little beside what is accepted"


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["left", "accepted", "refused", "given_up", "time"]), st.integers(1, 5_000)
        ),
        max_size=60,
    )
)
def test_never_more_than_allowed(inputs: list[tuple[str, int]]) -> None:
    machine, now_ms = PacingMachine(), 0
    for what, count in inputs:
        match what:
            case "left":
                machine.left(min(count, machine.may_leave(now_ms)))
            case "accepted":
                machine.accepted(min(count, machine.in_flight))
            case "given_up":
                machine.given_up(min(count, machine.in_flight))
            case "refused" if machine.in_flight:
                machine.refused(now_ms)
            case "time":
                now_ms += count
        machine.check()
        assert machine.in_flight <= IN_FLIGHT_MAX
        assert machine.has_room(1) <= (machine.may_leave(now_ms) >= 1)
