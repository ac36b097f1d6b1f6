"""Dialogues with an auditor, and what must hold of audits whatever happens to the cluster and to the store.

Source: docs/protocol/audit.md.
"""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quire.core.repair.audit_effects import (
    AuditStatus,
    EndCount,
    ListLedgers,
    MarkLedgers,
    ReadBookies,
)
from quire.core.repair.open_last_fragments import GraceLimits, OpenLastFragments
from quire.core.repair.rules import RULES
from quire_testing.explorer.patches import applied
from support.audited_cluster import DELAY_S, SHORT_LISTING_IS_AN_AUDIT, TICK_S, AuditedCluster, B, ledger


def names(effects):
    return [type(effect).__name__ for effect in effects]


def test_a_ledger_is_marked_when_the_delay_of_its_bookie_is_over_and_once():
    cluster = AuditedCluster([ledger(1), ledger(2, (1, 2, 3))])
    auditor = cluster.auditor()
    cluster.ticks(auditor)
    assert names(cluster.log) == ["ReadBookies", "ListLedgers", "AuditEnded"]
    cluster.log.clear()
    cluster.leave(B[0])
    cluster.say(auditor, "bookies_changed")
    cluster.run(auditor)
    assert names(cluster.log) == ["ReadBookies", "CountTime", "ListLedgers", "AuditEnded"]
    assert auditor.due == frozenset()
    cluster.ticks(auditor, DELAY_S // TICK_S - 1)
    assert (auditor.away, cluster.marks) == ({B[0]: DELAY_S - TICK_S}, {})
    cluster.ticks(auditor)
    assert (auditor.due, cluster.marks) == ({B[0]}, {1: {B[0]}})
    cluster.log.clear()
    cluster.ticks(auditor, 9)
    assert names(cluster.log) == ["ReadBookies"] * 9  # nothing is counted, read or marked any more


def test_what_has_fewest_copies_is_marked_first_and_below_the_ack_quorum_at_once():
    records = [
        ledger(1),
        ledger(2, (0, 1, 2)),
        ledger(3, (2, 3, 4)),
        ledger(4, (0, 3), 2, 2),
        ledger(5, (1, 3, 4)),
        ledger(6, (1,), 1, 1),
        ledger(7, (0, 2, 1, 3, 4), 3, 2),
    ]
    cluster = AuditedCluster(records)
    auditor = cluster.auditor()
    cluster.leave(B[0], B[1])
    cluster.ticks(auditor, 2)
    [marks] = cluster.said(MarkLedgers)  # at once, and in this order; not ledger 5, which has two copies left
    assert [(mark.ledger_id, mark.copies, mark.bookies) for mark in marks.marks] == [
        (6, 0, (B[1],)),
        (1, 1, (B[0], B[1])),
        (2, 1, (B[0], B[1])),
        (4, 1, (B[0],)),
        (7, 1, (B[0], B[1])),
    ]
    cluster.ticks(auditor, DELAY_S // TICK_S)
    assert cluster.marks[5] == {B[1]}
    assert 3 not in cluster.marks
    assert [mark.copies for mark in cluster.said(MarkLedgers)[-1].marks] == [0, 1, 1, 1, 1, 2]


def test_urgent_marks_do_not_wait_for_the_end_of_the_listing():
    cluster = AuditedCluster([ledger(1), ledger(2, (0, 1), 2, 2), ledger(3, (0, 2), 2, 2)], page=1, delay_s=0)
    auditor = cluster.auditor()
    cluster.leave(B[0])
    cluster.ticks(auditor)
    assert names(cluster.log[2:]) == [
        "ListLedgers",
        "ListLedgers",
        "MarkLedgers",
        "ListLedgers",
        "MarkLedgers",
        "AuditEnded",
    ]
    assert [[mark.ledger_id for mark in effect.marks] for effect in cluster.said(MarkLedgers)] == [
        [2],
        [3, 1],
    ]


def test_a_clock_that_leaps_adds_a_tick_and_one_that_goes_back_nothing():
    cluster = AuditedCluster([ledger(1)])
    auditor = cluster.auditor()
    cluster.leave(B[0])
    cluster.ticks(auditor)
    for seconds, counted in ((86_400, 10), (-86_400, 10), (3, 13), (10, 23), (11, 33)):
        cluster.ticks(auditor, seconds=seconds)
        assert cluster.counts[B[0]].seconds == counted
    for ms in (400, 400, 400):  # parts of seconds are not lost
        cluster.now_ms += ms
        cluster.ticks(auditor, seconds=0)
    assert cluster.counts[B[0]].seconds == 34


def test_another_auditor_neither_resets_nor_skips_the_delay():
    cluster = AuditedCluster([ledger(1)])
    cluster.leave(B[0])
    seen = []
    for _ in range(6):
        auditor = cluster.auditor()  # one after another, each for three ticks
        cluster.ticks(auditor, 3)
        seen.append(cluster.counts[B[0]].seconds)
    assert seen == [20, 40, 60, 60, 60, 60]  # who comes next adds nothing at first: the tick may be counted
    assert cluster.marks == {1: {B[0]}}


def test_a_rolling_restart_marks_nothing():
    five = ledger(2, (0, 1, 2, 3, 4), 3, 2)
    cluster = AuditedCluster([ledger(1), five])
    auditor = cluster.auditor()
    for bookie in B[:5]:
        cluster.leave(bookie)
        cluster.ticks(auditor, 3)
        cluster.registered[bookie] = True
        cluster.ticks(auditor)
        assert cluster.counts == {}
    assert cluster.marks == {}
    assert len(cluster.said(EndCount)) == 5


def test_while_nobody_is_registered_nobody_is_taken_for_gone():
    cluster = AuditedCluster([ledger(1), ledger(2, (0, 1), 2, 2)])
    auditor = cluster.auditor()
    cluster.ticks(auditor)
    cluster.leave(*B)
    cluster.log.clear()
    cluster.ticks(auditor, 3)
    assert cluster.said(ListLedgers) == cluster.said(MarkLedgers) == []


def test_while_it_is_switched_off_nothing_is_marked():
    cluster = AuditedCluster([ledger(1)], delay_s=0)
    cluster.enabled = False
    auditor = cluster.auditor()
    cluster.leave(B[0])
    cluster.ticks(auditor, 3)
    assert cluster.said(ListLedgers) == []
    cluster.enabled = True
    cluster.ticks(auditor)
    assert cluster.marks == {1: {B[0]}}


@pytest.mark.parametrize("what", ["list_fails", "marks_fail"])
def test_an_audit_that_fails_concludes_nothing_and_is_done_again_with_growing_pauses(what):
    cluster = AuditedCluster([ledger(1)], delay_s=0)
    setattr(cluster, what, True)
    auditor = cluster.auditor()
    cluster.leave(B[0])
    cluster.ticks(auditor, 16)
    assert [report.concluded for report in cluster.reports] == [False] * 5  # at ticks 1, 2, 4, 8 and 16
    assert all("away" in report.why for report in cluster.reports)
    assert cluster.marks == {}
    setattr(cluster, what, False)
    cluster.ticks(auditor, 16)
    assert cluster.reports[-1].concluded
    assert cluster.marks == {1: {B[0]}}


def test_a_listing_that_is_short_or_goes_back_concludes_nothing():
    cluster = AuditedCluster([ledger(1), ledger(2)], delay_s=0)
    for pages in (
        [[(2, cluster.records[2]), (1, cluster.records[1])]],
        [[]],
        [[(1, cluster.records[1])], []],
    ):
        auditor = cluster.auditor()
        cluster.leave(B[0])
        auditor.tick(0)
        cluster.answer(auditor, auditor.out.pop(0))
        after = None
        for page in pages:
            auditor.out.clear()
            cluster.say(auditor, "ledgers_listed", after, page, last=False)
            after = page[-1][0] if page else after
        [ended] = auditor.out
        assert not ended.report.concluded
        cluster.say(auditor, "ledgers_listed", after, [], last=True)  # late
        assert auditor.out == [ended]


def test_a_record_that_cannot_be_read_is_named_and_hides_no_other():
    cluster = AuditedCluster([ledger(1), ledger(3)], delay_s=0)
    cluster.records[2] = None
    auditor = cluster.auditor()
    cluster.leave(B[0])
    cluster.ticks(auditor)
    [report] = cluster.reports
    assert (report.concluded, report.ledgers, report.unreadable, report.marked) == (True, 3, (2,), 2)
    assert {*cluster.marks} == {1, 3}


def test_a_bookie_that_only_records_name_is_known_from_the_first_audit_on():
    cluster = AuditedCluster([ledger(1)], delay_s=TICK_S)
    cluster.leave(B[0])
    cluster.cookies.remove(B[0])
    auditor = cluster.auditor()
    cluster.ticks(auditor)
    assert auditor.away == {}
    cluster.ticks(auditor, 2)
    assert cluster.marks == {1: {B[0]}}
    cluster.records[1] = ledger(1, (1, 2, 3))  # repaired: nobody names it any more
    cluster.ticks(auditor, 361)
    assert cluster.said(EndCount)[-1].bookie == B[0]
    assert cluster.counts == {}


def test_how_long_a_bookie_is_read_only_is_counted_and_a_restart_does_not_begin_it_anew():
    cluster = AuditedCluster([ledger(1)])
    auditor = cluster.auditor()
    cluster.registered[B[0]] = False
    cluster.ticks(auditor, 3)
    assert cluster.read_only_for[B[0]].seconds == 2 * TICK_S
    cluster.leave(B[0])
    cluster.ticks(auditor)
    assert (cluster.read_only_for[B[0]].seconds, cluster.counts[B[0]].seconds) == (2 * TICK_S, 0)
    cluster.registered[B[0]] = False
    cluster.ticks(auditor, 20)
    assert cluster.read_only_for[B[0]].seconds == DELAY_S
    assert (cluster.counts, cluster.marks, auditor.due) == ({}, {}, frozenset())
    cluster.registered[B[0]] = True
    cluster.ticks(auditor)
    assert cluster.read_only_for == {}


def test_a_read_only_bookie_that_no_record_names_and_that_has_no_cookie_is_counted_too():
    cluster = AuditedCluster([ledger(1)])
    auditor = cluster.auditor()
    cluster.ticks(auditor)
    cluster.registered["guest"] = False
    cluster.ticks(auditor, DELAY_S // TICK_S + 3)
    assert cluster.read_only_for["guest"].seconds == DELAY_S


def test_ledgers_that_were_made_since_are_found_by_a_later_audit():
    cluster = AuditedCluster([ledger(1)], delay_s=0)
    auditor = cluster.auditor(again_s=100)
    cluster.leave(B[0])
    cluster.ticks(auditor)
    cluster.records[2] = ledger(2)
    cluster.ticks(auditor, 9)
    assert 2 not in cluster.marks
    cluster.ticks(auditor)
    assert 2 in cluster.marks


def test_who_is_back_in_the_middle_of_an_audit_is_left_out_of_what_is_not_marked_yet():
    cluster = AuditedCluster([ledger(number) for number in range(4)], delay_s=0)
    auditor = cluster.auditor(marks_at_once=2)
    cluster.leave(B[0])

    def back(effect):
        if isinstance(effect, MarkLedgers):
            cluster.registered[B[0]] = True
            cluster.say(auditor, "bookies_changed")

    cluster.between = back
    cluster.ticks(auditor)
    assert {*cluster.marks} == {0, 1}
    assert auditor.status is AuditStatus.IDLE
    cluster.between = lambda effect: None
    cluster.leave(B[0])
    cluster.ticks(auditor)
    assert {*cluster.marks} == {0, 1, 2, 3}


def test_who_goes_in_the_middle_of_an_audit_is_in_the_next_one():
    cluster = AuditedCluster([ledger(1), ledger(2, (3, 4, 2))], delay_s=0)
    auditor = cluster.auditor()
    cluster.leave(B[0])

    def away(effect):
        if isinstance(effect, ListLedgers) and B[3] in cluster.registered:
            cluster.leave(B[3])
            cluster.say(auditor, "bookies_changed")

    cluster.between = away
    cluster.ticks(auditor)
    assert cluster.marks == {1: {B[0]}, 2: {B[3]}}


def test_a_store_that_does_not_say_who_is_there_ends_what_was_under_way():
    cluster = AuditedCluster([ledger(number) for number in range(4)], delay_s=0)
    auditor = cluster.auditor(marks_at_once=2)
    cluster.bookies_fail = True
    cluster.ticks(auditor)
    assert names(cluster.log) == ["ReadBookies"]
    cluster.bookies_fail = False
    cluster.leave(B[0])

    def lost(effect):
        if isinstance(effect, MarkLedgers):
            cluster.bookies_fail = True
            cluster.say(auditor, "bookies_changed")

    cluster.between = lost
    cluster.ticks(auditor)
    assert [report.concluded for report in cluster.reports] == [False]
    assert len(cluster.marks) == 2


def test_an_input_that_nothing_awaits_changes_nothing():
    cluster = AuditedCluster()
    for name, given_ in (
        ("bookies_unread", ()),
        ("ledgers_listed", (None, [])),
        ("listing_failed", ("x",)),
        ("marked", ()),
        ("marking_failed", ("x",)),
        ("bookies_read", (None,)),
    ):
        auditor = cluster.auditor()
        named = {"last": True} if name == "ledgers_listed" else {}
        cluster.say(auditor, name, *given_, **named)
        assert auditor.out == []
    auditor.tick(0)
    cluster.say(auditor, "tick", 99_000)
    assert auditor.out == [ReadBookies()]


# --- whatever happens --------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("tick"), st.integers(0, 1), st.sampled_from([10, 10, 10, 1, 0, 86_400, -86_400])),
        st.tuples(st.sampled_from(["leave", "return", "cookie"]), st.integers(0, 4), st.just(0)),
        st.tuples(
            st.sampled_from(["fails", "page", "new", "auditor", "enabled"]), st.integers(0, 3), st.just(0)
        ),
    ),
    max_size=40,
)


def checked(steps, rules=RULES):
    """Two auditors and a cluster; how long each bookie was away, at most, goes by the ticks of the one that ticks more."""
    cluster = AuditedCluster(
        [ledger(1), ledger(2, (1, 2, 3)), ledger(3, (0, 4), 2, 2), ledger(4, (0, 1, 2, 3, 4))]
    )
    auditors = [cluster.auditor(rules), cluster.auditor(rules)]
    ticks = {}  # of each auditor, since a bookie left
    stayed = set(B[:5])
    fewest = len(cluster.registered)
    for kind, number, seconds in steps:
        bookie = B[number]
        if kind == "tick":
            for of_bookie in ticks.values():
                of_bookie[number] += 1
            cluster.ticks(auditors[number], seconds=seconds)
        elif kind == "leave" and bookie in cluster.registered:
            cluster.leave(bookie)
            stayed.discard(bookie)
            ticks[bookie] = [0, 0]
        elif kind == "return" and bookie in ticks and bookie not in cluster.registered:
            cluster.registered[bookie] = True
            for auditor in auditors:
                cluster.say(auditor, "bookies_changed")
                cluster.run(auditor)
            if cluster.bookies_fail:
                cluster.leave(bookie)  # nobody saw it come: as if it had not
            else:
                del ticks[bookie]
        elif kind == "fails":
            cluster.list_fails, cluster.marks_fail = bool(number & 1), bool(number & 2)
        elif kind == "page":
            cluster.page = number + 1
        elif kind == "new":
            cluster.records[max(cluster.records) + 1] = ledger(1, (number, number + 1), 2, 1)
        elif kind == "auditor":
            auditors[number & 1] = cluster.auditor(rules)
        elif kind == "enabled":
            cluster.enabled = not cluster.enabled
        fewest = min(fewest, len(cluster.registered))
        for gone, (one, other) in ticks.items():
            counted = cluster.counts.get(gone)
            assert counted is None or counted.seconds <= TICK_S * (one + other), "faster than ticks"
        assert not stayed & {each for named in cluster.marks.values() for each in named}, (
            "it was there throughout"
        )
    return cluster, auditors


@given(STEPS)
@example([("leave", 0, 0), ("tick", 0, 10), ("tick", 1, 10), ("tick", 0, 10), ("tick", 1, 10)])
def test_whatever_happens_what_is_due_is_marked_in_the_end_and_nothing_else(steps):
    cluster, auditors = checked(steps)
    cluster.list_fails = cluster.marks_fail = False
    cluster.enabled = True
    cluster.ticks(auditors[0], 60)
    gone = {bookie for bookie in B[:5] if bookie not in cluster.registered}
    if cluster.registered:
        for ledger_id, record in cluster.records.items():
            named = gone & {*record.last_fragment.ensemble}
            assert named <= cluster.marks.get(ledger_id, set()), ledger_id
    assert {bookie for bookie, _ in cluster.counts.items()} == gone
    cluster.log.clear()
    cluster.ticks(auditors[0], 3)
    assert names(cluster.log) == ["ReadBookies"] * 3


@given(st.lists(st.sampled_from([0, 1]), min_size=1, max_size=60))
def test_two_auditors_count_no_faster_than_one(turns):
    cluster = AuditedCluster([ledger(1)], delay_s=10_000)
    auditors = [cluster.auditor(), cluster.auditor()]
    cluster.leave(B[0])
    cluster.ticks(auditors[0])
    begun = cluster.now_ms
    for number in turns:
        cluster.now_ms += 5000
        cluster.ticks(auditors[number], seconds=0)
    assert 1000 * cluster.counts[B[0]].seconds <= cluster.now_ms - begun + 1000 * TICK_S


MUTANTS = {
    "is_gone": lambda **_: True,  # whoever is known is gone
    "seconds_to_add": lambda elapsed_s, _tick_s: max(0, elapsed_s),
    "copy_is_due": lambda **_: False,
}


@pytest.mark.parametrize("name", MUTANTS)
def test_each_rule_that_is_taken_out_is_noticed(name):
    goes_wrong(RULES.but(**{name: MUTANTS[name]}))


def test_a_short_listing_that_is_an_audit_is_noticed():
    with applied([SHORT_LISTING_IS_AN_AUDIT]):
        goes_wrong(RULES)


def goes_wrong(rules):
    ticks = [("tick", 0, 10)] * 2
    steps = [("leave", 0, 0), ("fails", 1, 0), *ticks, ("tick", 0, 86_400), *ticks * 3, ("fails", 0, 0)]
    with pytest.raises(AssertionError):
        cluster, auditors = checked(steps, rules)
        cluster.ticks(auditors[0], 60)
        assert cluster.marks.get(1) == {B[0]}, "AR2: no mark is lost"


# --- open ledgers ------------------------------------------------------------------------------------------------


def tails_after(*looks, rules=RULES, **limits):
    """What a process knows that looked every ten seconds, and saw these bookies, as often as is said."""
    fragments, now_ms = OpenLastFragments(GraceLimits(**limits), rules), 0
    for count, writable in looks:
        for _ in range(count):
            fragments.looked({bookie: bookie in writable for bookie in writable}, B[:5], now_ms)
            now_ms += 10_000
    return fragments


def test_an_open_ledger_is_recovered_after_a_spare_was_there_for_the_whole_grace_time():
    without_0 = [B[1], B[2], B[3]]
    assert not tails_after((6, without_0)).may_recover(ledger(1))
    assert tails_after((7, without_0)).may_recover(ledger(1))
    assert not tails_after((7, without_0)).may_recover(ledger(1).closed(3, 4))
    assert not tails_after((9, without_0)).may_recover(ledger(1, (1, 2, 3)))  # it names nobody that is gone


def test_without_a_spare_no_open_ledger_is_recovered_however_long_its_bookie_is_gone():
    three = [B[1], B[2]]
    assert not tails_after((999, three)).may_recover(ledger(1))
    # A spare that goes and comes begins anew, and so does another one; the bookie too.
    spare, other = [*three, B[3]], [*three, B[4]]
    assert not tails_after((99, three), (4, spare), (1, three), (6, spare)).may_recover(ledger(1))
    assert not tails_after((99, three), (4, spare), (4, other)).may_recover(ledger(1))
    assert not tails_after((9, spare), (1, [*spare, B[0]]), (6, spare)).may_recover(ledger(1))
    # One that takes no entries is no spare.
    fragments = OpenLastFragments()
    for look in range(20):
        fragments.looked({B[1]: True, B[2]: True, B[3]: False}, B[:5], 10_000 * look)
    assert not fragments.may_recover(ledger(1))


def test_the_grace_time_is_never_shorter_than_twice_the_wait_of_an_idle_writer():
    looks = (7, [B[1], B[2], B[3]])
    assert tails_after(looks, grace_s=10, idle_wait_s=30).may_recover(ledger(1))
    assert not tails_after(looks, grace_s=10, idle_wait_s=31).may_recover(ledger(1))


def test_a_process_that_stood_still_has_seen_a_tick():
    fragments = OpenLastFragments()
    for now_ms in (0, 86_400_000):
        fragments.looked({B[1]: True, B[2]: True, B[3]: True}, B[:5], now_ms)
    assert not fragments.may_recover(ledger(1))


def test_grace_without_a_spare_would_end_writers_that_nothing_could_help():
    """X39: in a cluster of three with one bookie away every living writer would be fenced."""
    rules = RULES.but(may_recover_open=lambda *, names_gone, **_: names_gone)
    assert tails_after((7, [B[1], B[2]]), rules=rules).may_recover(ledger(1))
