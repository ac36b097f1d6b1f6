"""What a worker repairs next, and when it tries again: dialogues, and random inputs against the promises.

Source: docs/protocol/repair-queue.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from quire.core.ids import BookieId
from quire.core.ledger.metadata import DigestType, new_ledger
from quire.core.ledger.notes import EntryRange
from quire.core.repair.effects import RepairOutcome, RepairReport
from quire.core.repair.under_replicated_marks import WaitsFor
from quire.core.repair.work_queue import (
    LIMITS,
    BeginRepair,
    MarkedLedger,
    MarkStatus,
    NoteAttempts,
    QueuedMark,
    QueueLimits,
    RemoveMarks,
    RepairQueue,
    StopRepair,
    is_whole,
    queued_mark,
)

B1, B2, B3 = map(BookieId, ("b1", "b2", "b3"))
MARK = QueuedMark(1, (B1,), 2, 100)
SOME = (EntryRange(0, 9),)
LEFT = RepairReport(left={B1: "no other bookie can take its place"})
OPEN = RepairReport(undecided=(B1,))
HELD = RepairReport(gone_only=SOME)
LOST = RepairReport(lost=SOME)


def queue(**limits: int) -> RepairQueue:
    found = RepairQueue(limits=QueueLimits(**limits))
    found.switched(on=True)
    return found


def said(found: RepairQueue) -> list[Any]:
    found.check()
    out, found.out = found.out, []
    return out


def begun(found: RepairQueue, now_ms: int = 0) -> list[int]:
    found.tick(now_ms)
    return [effect.ledger_id for effect in said(found) if isinstance(effect, BeginRepair)]


def test_the_fewest_copies_come_first_and_then_the_fewest_bytes() -> None:
    some = queue(units_max=1)
    for ledger_id, copies, size in ((1, 2, 5), (2, 1, 900), (3, 1, 10), (4, 2, 1)):
        some.marked(ledger_id, QueuedMark(1, (B1,), copies, size))
    order = begun(some)
    while some.repairing:
        some.whole(order[-1])
        removed, *more = said(some)
        assert removed == RemoveMarks(order[-1])
        order += [effect.ledger_id for effect in more]
    assert order == [3, 2, 4, 1]
    assert some.counts.repaired == 4


def test_large_ledgers_take_more_room_and_are_not_passed() -> None:
    some = queue(units_max=8)
    mib = LIMITS.unit_bytes
    for ledger_id, size in ((1, 3 * mib), (2, 100 * mib), (3, 200 * mib)):
        some.marked(ledger_id, QueuedMark(1, (B1,), 2, size))
    assert begun(some) == [1]
    some.whole(1)
    assert [each for each in said(some) if isinstance(each, BeginRepair)] == [BeginRepair(2)]


def test_less_is_repaired_side_by_side_while_that_is_wanted_and_one_whatever_it_needs() -> None:
    some = queue(units_max=8)
    for ledger_id in range(1, 7):
        some.marked(ledger_id, QueuedMark(1, (B1,), 2, 3 * LIMITS.unit_bytes))
    some.bounded(2)
    assert len(begun(some)) == 1, "it needs three"
    some.bounded(6)
    assert [type(each) for each in said(some)] == [BeginRepair]
    some.bounded(100)
    assert not said(some), "there is room for eight, whatever is said"
    some.check()


def test_pauses_double_and_after_the_fifth_attempt_one_follows_each_hour_or_an_event() -> None:
    some, now_ms, pauses = queue(), 0, []
    some.marked(1, MARK)
    for attempt in range(1, 6):
        assert begun(some, now_ms) == [1]
        some.ended(1, LEFT, "full", None, now_ms)
        (noted,) = said(some)
        assert isinstance(noted, NoteAttempts)
        assert (noted.attempts.count, noted.attempts.why) == (attempt, "full")
        if attempt < 5:
            assert noted.attempts.waits is WaitsFor.ATTEMPT
            due_ms = some.due_ms
            assert due_ms is not None
            pauses.append(due_ms - now_ms)
            assert begun(some, due_ms - 1) == []
            now_ms = due_ms
    assert pauses == [10_000, 20_000, 40_000, 80_000]
    assert noted.attempts.waits is WaitsFor.BOOKIE
    assert some.ledgers[1].status is MarkStatus.GIVEN_UP
    for _ in range(3):
        assert begun(some, now_ms + LIMITS.given_up_ms - 1) == []
        now_ms += LIMITS.given_up_ms
        assert begun(some, now_ms) == [1]
        some.ended(1, None, "away", None, now_ms)
        (noted,) = said(some)
        assert (noted.attempts.count, noted.attempts.waits) == (LIMITS.attempts_max, WaitsFor.BOOKIE)
    some.bookies_came([B3])
    assert begun(some, now_ms) == [1]
    assert some.ledgers[1].attempts == 0


def test_a_bookie_that_is_writable_again_may_take_copies_and_has_no_other_entries() -> None:
    some = queue()
    reports = {1: LEFT, 2: OPEN, 3: HELD, 4: LOST}
    for ledger_id in reports:
        some.marked(ledger_id, MARK)
    assert sorted(begun(some)) == [*reports]
    for ledger_id, report in reports.items():
        some.ended(ledger_id, report, "", None, 0)
    said(some)
    some.room_came()
    assert sorted(begun(some)) == [1, 2]
    some.room_came()
    some.ended(1, LEFT, "", None, 0)
    assert BeginRepair(1) in said(some), "it came during the repair"


def test_what_only_a_gone_bookie_has_waits_for_that_bookie() -> None:
    some = queue()
    some.marked(1, MARK)
    assert begun(some) == [1]
    some.ended(1, HELD, "", None, 0)
    assert said(some)[0].attempts.waits is WaitsFor.GONE_BOOKIE
    some.bookies_came([B2, B3])
    assert begun(some, 10**9) == []
    some.bookies_came([B1])
    assert begun(some) == [1]


def test_lost_entries_are_not_tried_again_without_an_event() -> None:
    some = queue()
    some.marked(1, MARK)
    begun(some)
    some.ended(1, LOST, "", None, 0)
    assert said(some)[0].attempts.waits is WaitsFor.NOTHING
    some.marked(1, MARK)
    assert begun(some, 10**9) == []
    some.marked(1, MARK._replace(said=2))
    assert begun(some) == [1]


def test_an_open_ledger_is_looked_at_when_its_writer_had_its_time_and_that_is_no_attempt() -> None:
    some = queue()
    some.marked(1, MARK)
    begun(some)
    some.ended(1, OPEN, "", 42_000, 0)
    assert said(some)[0].attempts.waits is WaitsFor.WRITER
    assert some.due_ms == 42_000
    now_ms = 42_000
    for _ in range(8):  # no spare: longer and longer, and never given up
        assert begun(some, now_ms) == [1]
        some.ended(1, OPEN, "", None, now_ms)
        said(some)
        due_ms = some.due_ms
        assert due_ms is not None
        assert due_ms - now_ms <= LIMITS.pause_ms_max
        now_ms = due_ms
    assert some.ledgers[1].attempts == 0


def test_what_happens_during_a_repair_is_not_forgotten() -> None:
    some = queue()
    some.marked(1, MARK)
    begun(some)
    some.bookies_came([B3])
    some.ended(1, LEFT, "", None, 0)
    assert [type(effect) for effect in said(some)] == [NoteAttempts, BeginRepair]
    some.marked(1, MARK._replace(said=2))
    some.whole(1)
    assert said(some) == [BeginRepair(1)], "the marks that it repaired are not those that stand"
    some.whole(1)
    assert said(some) == [RemoveMarks(1)]


def test_a_lock_of_another_worker_is_no_attempt() -> None:
    some = queue()
    some.marked(1, MARK)
    begun(some)
    some.released(1, 0)
    assert said(some) == []
    assert (some.ledgers[1].attempts, some.due_ms) == (0, LIMITS.pause_ms)
    some.unmarked(1)
    assert begun(some, 10**9) == []


def test_switched_off_all_stops_and_on_it_goes_on() -> None:
    some = queue()
    some.marked(1, MARK)
    some.marked(2, MARK)
    assert sorted(begun(some)) == [1, 2]
    some.switched(on=False)
    assert said(some) == [StopRepair(1), StopRepair(2)]
    for ledger_id in (1, 2):
        some.released(ledger_id, 0)
    assert begun(some, 10**9) == []
    some.switched(on=True)
    assert len(said(some)) == 2


def test_marks_of_ledgers_that_are_deleted_or_whole_go() -> None:
    assert is_whole(RepairOutcome.DELETED, RepairReport())
    assert is_whole(RepairOutcome.WHOLE, RepairReport())
    assert not is_whole(RepairOutcome.WHOLE, OPEN)
    assert not is_whole(RepairOutcome.QUIET, LOST)
    assert not is_whole(RepairOutcome.INCOMPLETE, LEFT)


def test_what_lacks_nothing_but_accepted_losses_is_whole() -> None:
    other = (EntryRange(20, 29),)
    assert is_whole(RepairOutcome.QUIET, replace(LOST, accepted=SOME))
    assert is_whole(RepairOutcome.QUIET, RepairReport(lost=SOME, gone_only=other, accepted=(*SOME, *other)))
    assert not is_whole(RepairOutcome.QUIET, replace(LOST, accepted=other))
    assert not is_whole(RepairOutcome.QUIET, replace(LOST, accepted=SOME, undecided=(B1,)))
    some = queue()
    some.marked(1, MARK)
    begun(some)
    some.ended(1, RepairReport(lost=other, gone_only=SOME, accepted=SOME), "", None, 0)
    assert said(some)[0].attempts.waits is WaitsFor.NOTHING, "no gone bookie is waited for"


def test_urgency_is_by_the_write_set_with_the_fewest_copies() -> None:
    record = new_ledger(
        7, [B1, B2, B3], write_quorum=2, ack_quorum=2, digest_type=DigestType.CRC32C, password=b""
    )
    record = replace(record.closed(9, 300))
    assert queued_mark(1, record, [B1]) == QueuedMark(1, (B1,), 1, 200)
    assert queued_mark(1, record, [B1, B2]).copies == 0
    assert queued_mark(1, record, []).copies == 2
    assert queued_mark(1, None, [B1]) == QueuedMark(1, (B1,), 0, 0)


REPORTS = st.sampled_from([LEFT, OPEN, HELD, LOST, None])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("marked"), st.integers(1, 4), st.integers(1, 2)),
        st.tuples(st.just("unmarked"), st.integers(1, 4)),
        st.tuples(st.just("bookies_came"), st.sampled_from([B1, B2])),
        st.tuples(st.just("room_came"), st.none()),
        st.tuples(st.just("tick"), st.integers(0, 400_000)),
        st.tuples(st.just("ended"), REPORTS),
        st.tuples(st.just("whole"), st.none()),
        st.tuples(st.just("released"), st.none()),
        st.tuples(st.just("switched"), st.booleans()),
    ),
    max_size=60,
)


@given(STEPS)
@settings(max_examples=150, deadline=None)
def test_whatever_happens_no_mark_is_forgotten_and_attempts_are_bounded(steps: list[tuple[Any, ...]]) -> None:
    some, now_ms = queue(units_max=2), 0
    running: list[int] = []
    removed, marked = set[int](), dict[int, int]()
    tried = dict.fromkeys(range(1, 5), 0)

    def hear() -> None:
        for effect in said(some):
            if isinstance(effect, BeginRepair):
                assert effect.ledger_id not in running, "one repair of a ledger at a time"
                running.append(effect.ledger_id)
                tried[effect.ledger_id] += 1
                assert tried[effect.ledger_id] <= LIMITS.attempts_max + looks[effect.ledger_id]
            elif isinstance(effect, RemoveMarks):
                removed.add(effect.ledger_id)
                marked.pop(effect.ledger_id, None)

    looks = dict.fromkeys(range(1, 5), 1)
    for name, *given_ in steps:
        if name == "marked":
            ledger_id, number = given_
            if marked.get(ledger_id) != number:
                tried[ledger_id] = 0
            marked[ledger_id] = number
            some.marked(ledger_id, MARK._replace(said=number))
        elif name == "unmarked":
            marked.pop(given_[0], None)
            some.unmarked(given_[0])
            tried[given_[0]] = 0
        elif name == "bookies_came":
            some.bookies_came(given_)
            tried = dict.fromkeys(tried, 0)
        elif name == "room_came":
            some.room_came()
            tried = dict.fromkeys(tried, 0)
        elif name == "tick":
            now_ms += given_[0]
            for ledger_id, one in some.ledgers.items():  # an attempt each hour, beside those that are bounded
                looks[ledger_id] += one.status is MarkStatus.GIVEN_UP and one.due_ms <= now_ms
            some.tick(now_ms)
        elif name == "switched":
            some.switched(on=given_[0])
        elif running:
            ledger_id = running.pop(0)
            if name == "ended":
                looks[ledger_id] += given_[0] is OPEN
                some.ended(ledger_id, given_[0], "", None, now_ms)
            elif name == "whole":
                some.whole(ledger_id)
                tried[ledger_id] = 0
            else:
                looks[ledger_id] += 1
                some.released(ledger_id, now_ms)
        hear()
        assert set(some.ledgers) == set(marked), "what is marked is known, until its marks are removed"


def test_a_repair_begins_only_where_one_is_waited_for() -> None:
    one = MarkedLedger(MARK)
    one.begin()
    assert one.status is MarkStatus.REPAIRING
    assert one.units == 1
