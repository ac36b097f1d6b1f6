"""When a task counts as stuck: after three of its intervals without a move, whatever it does or waits for."""

from __future__ import annotations

from quire.bookie.collecting.progress import INTERVALS_MAX, STUCK_MS_MIN, TaskProgress

MINUTE = 60_000


def test_a_task_is_stuck_after_three_of_its_intervals_without_a_move() -> None:
    progress = TaskProgress(MINUTE, 1000)
    end = 1000 + INTERVALS_MAX * MINUTE
    assert progress.stuck_ms(end) == 0
    assert progress.stuck_ms(end + 1) == INTERVALS_MAX * MINUTE + 1, "it never made a pass"
    progress.moved(end, "compacting")
    assert progress.doing == "compacting"
    assert progress.stuck_ms(end + 1) == 0
    for step in range(10):
        progress.moved(end + step * MINUTE, "compacting")
        assert progress.stuck_ms(end + (step + 1) * MINUTE) == 0, "it takes long, and moves"
    assert progress.stuck_ms(end + 20 * MINUTE) == 11 * MINUTE


def test_a_short_interval_is_no_reason_for_alarm_and_none_is_none() -> None:
    hurried = TaskProgress(50, 0)
    assert hurried.stuck_ms(STUCK_MS_MIN) == 0
    assert hurried.stuck_ms(STUCK_MS_MIN + 1)
    by_hand = TaskProgress(0, 0)
    assert by_hand.stuck_ms(1 << 40) == 0
    by_hand.moved(0, "comparing")
    assert by_hand.stuck_ms(1 << 40), "a pass that a person asked for"
    by_hand.moved(0, "")
    assert by_hand.stuck_ms(1 << 40) == 0
