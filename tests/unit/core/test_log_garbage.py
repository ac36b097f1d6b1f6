"""What may be cleared of logs, and when; and what goes wrong with each of its rules taken out."""

from __future__ import annotations

import pytest

from quire.core.bookie.garbage import CollectorMachine, Kept
from quire.core.log.unlisted import LogGarbage
from quire_testing.explorer.switches import RULES

GRACE_MS = 100


def test_a_thing_goes_that_was_unlisted_for_the_grace_time():
    garbage = LogGarbage(GRACE_MS)
    assert garbage.looked([1, "page"], 0) == set()
    assert garbage.looked([1, "page"], 99) == set()
    assert garbage.looked([1, "page", 2], 100) == {1, "page"}
    garbage.cleared([1, "page"])
    assert garbage.suspected == 1
    assert garbage.looked([2], 199) == set()


def test_what_was_listed_in_between_begins_anew():
    garbage = LogGarbage(GRACE_MS)
    garbage.looked([1], 0)
    garbage.looked([], 50)
    assert garbage.looked([1], 100) == set()
    assert garbage.looked([1], 200) == {1}


@pytest.mark.parametrize(
    ("log_gone", "replayed", "age_ms", "over"),
    [
        (True, False, None, True),
        (False, True, 0, True),
        (False, False, 99, False),
        (False, False, 100, True),
        (False, False, None, False),
    ],
)
def test_what_a_sink_staged_goes_when_it_cannot_be_committed_any_more(log_gone, replayed, age_ms, over):
    garbage = LogGarbage(GRACE_MS)
    assert garbage.staged_is_over(log_gone=log_gone, replayed=replayed, age_ms=age_ms) == over


def test_without_the_grace_time_a_ledger_goes_that_its_leader_is_about_to_list():
    rules = RULES.but(unlisted_is_garbage=lambda unlisted_ms, grace_ms: True)
    assert LogGarbage(GRACE_MS, rules).looked([1], 0) == {1}
    assert LogGarbage(GRACE_MS).looked([1], 0) == set()


def test_without_its_rule_a_staged_ledger_goes_before_its_batch_is_committed():
    rules = RULES.but(staged_is_garbage=lambda **_: True)
    assert LogGarbage(GRACE_MS, rules).staged_is_over(log_gone=False, replayed=False, age_ms=0)


def watermarks(machine, *passes):
    return [machine.watermark(begun_ms, revision, 60) for begun_ms, revision in passes]


def test_a_watermark_is_that_of_a_pass_after_which_no_add_comes_late():
    passes = [(0, 5), (30, 6), (60, 7), (85, 8), (90, 9), (200, 10)]
    assert watermarks(CollectorMachine(Kept()), *passes) == [0, 0, 5, 5, 6, 9]


def test_without_its_rule_a_tombstone_ends_while_a_late_add_may_bring_its_ledger_back():
    rules = RULES.but(watermark_counts=lambda age_ms, late_ms: True)
    assert watermarks(CollectorMachine(Kept(), rules), (0, 5)) == [5]
