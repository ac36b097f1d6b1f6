"""Which states of a bookie are news, and when its loop is slow."""

from __future__ import annotations

from quire.core.bookie.conditions import AGAIN_MS, LATE_MS, REMEMBERED_MS, Announcements, Condition, SlowLoop

ONE = Condition("limbo", "ledger 5", "recover it")


def test_a_state_is_told_when_it_begins_and_when_it_is_over() -> None:
    told = Announcements()
    assert told.look([], 0) == ([], [])
    assert told.look([ONE], 1) == ([ONE], [])
    other = ONE._replace(what="ledgers 5, 6")
    assert told.look([other], 2 * AGAIN_MS) == ([], []), "it lasts, whatever it says now"
    assert told.look([], 2 * AGAIN_MS + 1) == ([], [ONE])
    assert told.look([], 2 * AGAIN_MS + 2) == ([], [])


def test_two_of_a_kind_are_told_apart() -> None:
    told = Announcements()
    full, failed = ONE._replace(about="full"), ONE._replace(about="failed")
    assert told.look([full], 0).began == [full]
    assert told.look([full, failed], 1).began == [failed]
    assert told.look([failed], 2).over == [full]


def test_what_comes_and_goes_is_told_once_a_minute() -> None:
    told = Announcements()
    began = over = 0
    for second in range(180):
        news = told.look([ONE] if second % 2 else [], 1000 * second)
        began, over = began + len(news.began), over + len(news.over)
    assert 2 <= began <= 3
    assert over in {began, began - 1}


def test_a_loop_is_slow_for_a_minute_after_it_was_late() -> None:
    loop = SlowLoop()
    loop.came(LATE_MS - 1, 0, 0)
    assert loop.late_ms(0) == 0
    loop.came(2600, 130, 5000)
    assert not loop.suspended
    loop.came(1200, 1, 6000)
    assert not loop.suspended
    assert loop.late_ms(6000) == 2600, "the worst is told"
    assert loop.late_ms(5000 + REMEMBERED_MS - 1) == 2600
    assert loop.late_ms(5000 + REMEMBERED_MS) == 0
    loop.came(1200, 59, 5000 + REMEMBERED_MS)
    assert loop.suspended
    assert loop.late_ms(5001 + REMEMBERED_MS) == 1200
