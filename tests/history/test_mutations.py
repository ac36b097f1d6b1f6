"""Each way to spoil a valid history is caught, under the number of the invariant that it breaks, with its lines."""

from __future__ import annotations

import pytest

from history.scenes import Spoiled, flipped, hashes, one_of_everything
from quire_testing.history import INVARIANTS, judge

EVERYTHING = one_of_everything()
MUTATIONS = []


def breaks(number):
    def keep(spoil):
        MUTATIONS.append(pytest.param(spoil, number, id=f"{number}-{spoil.__name__}"))
        return spoil

    return keep


def test_the_history_itself_holds_and_everything_in_it_was_looked_at():
    verdict = judge(EVERYTHING)
    assert [str(violation) for violation in verdict.violations] == []
    assert verdict.holds
    assert all(verdict.checked[number] for number in INVARIANTS), verdict.checked
    assert verdict.events == len(EVERYTHING)


# --- 1: acknowledged entries stay readable --------------------------------------------------------------------


@breaks(1)
def an_acknowledged_entry_is_said_not_to_be(h):
    h.change("read", "ok", ledger=1, process="r2", to={"hashes": hashes(0, 9), "missing": [[10, 12]]})


@breaks(1)
def a_byte_of_an_acknowledged_entry_is_another_one(h):
    h.change("read", "ok", ledger=1, process="r2", to={"hashes": flipped(hashes(0, 10), 30)})


@breaks(1)
def two_entries_change_places(h):
    h.change(
        "read",
        "ok",
        ledger=1,
        process="r2",
        to={"hashes": hashes(0, 2) + hashes(4, 4) + hashes(3, 3) + hashes(5, 10)},
    )


@breaks(1)
def an_entry_is_read_twice(h):
    h.change("read", "ok", ledger=1, process="r2", to={"hashes": hashes(0, 5) + hashes(5, 9)})


@breaks(1)
def a_recovery_closes_below_an_acknowledged_entry(h):
    h.change("recover", "ok", to={"last": 3})
    h.change("open", "ok", ledger=2, to={"last": 3, "lac": 3})
    h.change("fence", "ok", to={"lac": 3})


@breaks(1)
def a_term_begins_below_an_acknowledged_entry(h):
    h.change("takeover", "ok", 1, to={"first": 2})


@breaks(1)
def an_entry_is_acknowledged_with_two_values(h):
    h.insert(
        h.find("close", "invoke", ledger=1),
        "w9",
        "append",
        {"ledger": 1, "first": 2, "hashes": hashes(99, 99)},
        first=2,
    )


@breaks(1)
def a_delete_that_failed_clears_nothing(h):
    h.events[h.find("delete", "ok")].event = "fail"


# --- 2: read once, read always ---------------------------------------------------------------------------------


def unacknowledge_entry_5_of_ledger_2(h):
    """Its append never had an answer: it is under way for ever."""
    del h.events[h.find("append", "unknown", ledger=2)]


@breaks(2)
def an_entry_that_was_read_is_said_not_to_be(h):
    unacknowledge_entry_5_of_ledger_2(h)
    h.change("read", "ok", ledger=2, process="r1", to={"hashes": "", "missing": [[5, 5]]})


@breaks(2)
def two_readers_read_different_bytes(h):
    unacknowledge_entry_5_of_ledger_2(h)
    h.change("read", "ok", ledger=2, process="r1", to={"hashes": hashes(6, 6)})


@breaks(2)
def a_recovery_closes_below_an_entry_that_was_read(h):
    unacknowledge_entry_5_of_ledger_2(h)
    reading = {"ledger": 2, "first": 0, "last": 5}
    h.insert(h.find("fence", "invoke"), "r9", "read", reading, hashes=hashes(0, 5))
    h.change("recover", "ok", to={"last": 4})
    h.change("open", "ok", ledger=2, to={"last": 4, "lac": 4})
    h.change("read", "ok", ledger=2, process="r1", to={"hashes": "", "unsure": [[5, 5]]})
    h.change("read", "ok", ledger=2, process="r2", to={"hashes": hashes(0, 4), "missing": [[6, 7]]})


# --- 3: no gaps, no phantoms ------------------------------------------------------------------------------------


@breaks(3)
def a_closed_ledger_has_a_gap(h):
    h.change("read", "ok", ledger=2, process="r2", to={"hashes": hashes(0, 4), "missing": [[5, 7]]})


@breaks(3)
def an_entry_that_nobody_wrote_is_read(h):
    h.change("read", "ok", ledger=2, process="r2", to={"hashes": hashes(0, 4) + hashes(77, 77)})


@breaks(3)
def a_closed_ledger_is_read_beyond_its_end(h):
    del h.events[h.find("append", "unknown", ledger=2)]
    h.change("read", "ok", ledger=2, process="r2", to={"hashes": hashes(0, 6), "missing": [[7, 7]]})


@breaks(3)
def it_is_closed_beyond_what_was_ever_sent(h):
    for kind in ("recover", "open"):
        h.change(kind, "ok", ledger=2, to={"last": 8})


@breaks(3)
def an_append_without_an_id_is_read_at_two_places(h):
    h.drop("append", "ok", ledger=1, first=10)
    for what in ("metadata", "close"):
        for event in h.events:
            if event.kind == what and event.facts.get("last") == 10:
                event.facts["last"] = 11
    h.change("open", "ok", ledger=1, closed=True, to={"last": 11})
    h.change(
        "read",
        "ok",
        ledger=1,
        process="r2",
        to={"hashes": hashes(0, 10) + hashes(10, 10), "missing": [[12, 12]]},
    )


# --- 4: order, LAC ----------------------------------------------------------------------------------------------


@breaks(4)
def acknowledgements_change_places(h):
    h.swap(h.find("append", "ok", ledger=1, first=0), h.find("append", "ok", ledger=1, first=4))


@breaks(4)
def an_acknowledgement_is_left_out(h):
    h.drop("append", "ok", ledger=1, first=0)


@breaks(4)
def an_acknowledgement_comes_twice(h):
    h.insert(
        h.find("close", "invoke", ledger=1),
        "w1",
        "append",
        {"ledger": 1, "first": 10, "hashes": hashes(10, 10)},
        first=10,
    )


@breaks(4)
def an_entry_is_acknowledged_under_another_id(h):
    h.change("append", "ok", ledger=1, first=4, to={"first": 5})


@breaks(4)
def the_lac_of_a_reader_goes_back(h):
    h.change("read_lac", "ok", 1, to={"lac": 2})


@breaks(4)
def the_lac_runs_ahead_of_everything_confirmed(h):
    h.change("fence", "ok", to={"lac": 6})


@breaks(4)
def the_lac_of_an_open_ledger_runs_ahead(h):
    h.insert(len(h.events), "r7", "read_lac", {"ledger": 3}, lac=7)


@breaks(4)
def an_entry_below_the_lac_is_said_not_to_be(h):
    at = h.find("recover", "invoke")
    h.insert(at, "r8", "read_lac", {"ledger": 2}, lac=5)
    h.insert(at + 2, "r8", "read", {"ledger": 2, "first": 5, "last": 5}, missing=[[5, 5]])


# --- 5: closed once ---------------------------------------------------------------------------------------------


@breaks(5)
def a_second_recoverer_says_another_end(h):
    h.change("open", "ok", ledger=2, to={"last": 4, "lac": 4})


@breaks(5)
def the_record_says_another_end(h):
    h.change("metadata", "note", ledger=1, state="closed", to={"last": 9})


@breaks(5)
def a_closed_record_is_opened_again(h):
    record = dict(h.events[h.find("metadata", "note", ledger=1, version=2)].facts)
    h.note(len(h.events), "metadata", **{**record, "version": 4})


@breaks(5)
def one_version_has_two_contents(h):
    record = dict(h.events[h.find("metadata", "note", ledger=1, version=3)].facts)
    h.note(len(h.events), "metadata", **{**record, "fragments": [[0, ["b1", "b2", "b4"]]]})


@breaks(5)
def the_ensemble_of_a_closed_ledger_is_changed_by_its_writer(h):
    change = {"ledger": 2, "first": 5, "ensemble": ["b1", "b2", "b5"]}
    h.insert(h.find("close", "fail", ledger=2), "w2", "change_ensemble", change)


# --- 6: after the close, after the term -------------------------------------------------------------------------


@breaks(6)
def an_add_is_acknowledged_after_the_close(h):
    answer = h.events[h.find("append", "unknown", ledger=2)]
    answer.event, answer.facts = "ok", {}
    index = h.events.index(answer)
    h.swap(index, h.find("open", "ok", ledger=2))


@breaks(6)
def an_old_term_is_acknowledged_beyond_the_new_one(h):
    answer = h.events[h.find("append", "unknown", ledger=3)]
    answer.event, answer.facts = "ok", {}


@breaks(6)
def a_term_is_taken_twice(h):
    h.change("takeover", "invoke", 1, to={"term": 1})


# --- 7: there or not --------------------------------------------------------------------------------------------


@breaks(7)
def a_fenced_add_is_there_for_one_and_not_for_the_other(h):
    h.change("read", "ok", ledger=2, process="r1", to={"hashes": "", "missing": [[5, 5]]})


@breaks(7)
def an_entry_that_was_called_lost_is_acknowledged_and_read(h):
    h.change("resolve", "invoke", to={"hashes": hashes(3, 3)})


@breaks(7)
def an_entry_is_called_lost_that_had_been_acknowledged(h):
    h.change("resolve", "invoke", to={"first": 2, "hashes": hashes(2, 2)})


@breaks(7)
def an_entry_is_called_kept_that_is_another(h):
    h.change("resolve", "ok", to={"kept": True})


@breaks(7)
def a_fenced_add_beyond_the_end_is_read(h):
    h.change("read", "ok", ledger=2, process="r2", to={"hashes": hashes(0, 6), "missing": [[7, 7]]})


@breaks(7)
def a_fenced_add_has_two_values(h):
    h.change("read", "ok", ledger=2, process="r1", to={"hashes": hashes(6, 6)})


# --- 8: replicas ------------------------------------------------------------------------------------------------


@breaks(8)
def a_replica_has_another_byte(h):
    h.change("replica", "note", ledger=1, bookie="b2", to={"hashes": flipped(hashes(0, 10), 87)})


@breaks(8)
def a_striped_replica_has_another_byte(h):
    share = h.events[h.find("replica", "note", ledger=4, bookie="b3")].facts
    share["hashes"] = flipped(share["hashes"], 10)


@breaks(8)
def a_bookie_stored_what_nobody_sent(h):
    h.change("stored", "note", ledger=1, to={"hashes": flipped(hashes(0, 3), 1)})


@breaks(8)
def a_truncated_replica_still_has_what_was_cut(h):
    h.drop("stored", "note", ledger=3)


@breaks(8)
def replicas_differ_though_nobody_read_them(h):
    h.drop("read", "ok", ledger=2, process="r1")
    for bookie, tag in (("b1", "entry"), ("b2", "lost")):
        h.note(len(h.events), "replica", bookie=bookie, ledger=9, first=0, hashes=hashes(0, 2, tag))
    h.note(len(h.events), "metadata", ledger=9, version=1, state="closed", last=2)


# --- 9: copies --------------------------------------------------------------------------------------------------


@breaks(9)
def a_replica_is_shorter(h):
    h.change("replica", "note", ledger=1, bookie="b1", to={"hashes": hashes(0, 7)})


@breaks(9)
def a_replica_is_not_there(h):
    h.drop("replica", "note", ledger=1, bookie="b4")


@breaks(9)
def not_even_the_acknowledging_quorum_has_it(h):
    h.change("quiescent", "note", to={"guaranteed": False})
    h.drop("replica", "note", ledger=1, bookie="b4")
    h.drop("replica", "note", ledger=1, bookie="b2")


@breaks(9)
def a_striped_replica_has_a_hole(h):
    share = h.events[h.find("replica", "note", ledger=4, bookie="b1")].facts
    share["hashes"] = share["hashes"][:-8]


# --- 10: logs ---------------------------------------------------------------------------------------------------


@breaks(10)
def two_swaps_of_one_version_are_won(h):
    answer = h.events[h.find("list_swap", "fail")]
    answer.event, answer.facts = "ok", {"version": 2}


@breaks(10)
def a_swap_is_won_with_a_version_that_was_gone(h):
    h.insert(
        len(h.events), "l1", "list_swap", {"log": "orders", "expected": 2, "ledgers": [11, 12, 14]}, version=4
    )


@breaks(10)
def a_ledger_vanishes_from_the_middle_of_the_list(h):
    h.change("list_swap", "invoke", log="orders", expected=1, process="l2", to={"ledgers": [10, 12]})
    h.change("list_swap", "invoke", log="orders", expected=2, to={"ledgers": [12]})
    h.change("log_list", "note", to={"ledgers": [12]})


@breaks(10)
def the_store_has_another_list(h):
    h.change("log_list", "note", to={"ledgers": [11, 13]})


@breaks(10)
def an_old_list_is_read(h):
    h.insert(len(h.events), "r1", "list_read", {"log": "orders"}, version=2, ledgers=[10, 11, 12])


@breaks(10)
def an_acknowledged_record_is_not_in_the_log(h):
    log = hashes(0, 3, "log") + hashes(5, 9, "log")
    h.change("log_read", "ok", to={"hashes": log})


@breaks(10)
def an_acknowledged_record_is_said_not_to_be(h):
    h.change("log_read", "ok", 1, to={"missing": [[0, 5]]})


@breaks(10)
def an_append_of_unknown_outcome_is_in_the_log_twice(h):
    log = hashes(0, 6, "log") + hashes(5, 5, "log")
    h.drop("log_append", "ok", process="l2")
    h.drop("log_append", "invoke", process="l2")
    h.change("log_read", "ok", to={"hashes": log})


@breaks(10)
def an_acknowledged_append_is_in_the_log_twice(h):
    h.change("log_read", "ok", to={"hashes": hashes(0, 9, "log") + hashes(9, 9, "log")})


@breaks(10)
def appends_are_acknowledged_out_of_order(h):
    h.change("log_append", "ok", process="l2", to={"first": 3})


@breaks(10)
def the_old_leader_goes_on_after_the_swap(h):
    late = {"log": "orders", "leader": 1, "hashes": hashes(20, 20, "log")}
    h.insert(len(h.events), "l1", "log_append", late, first=10)


@breaks(10)
def the_old_leader_wins_a_swap_after_the_new_one(h):
    swap = {"log": "orders", "leader": 1, "expected": 3, "ledgers": [11, 12, 15]}
    h.insert(len(h.events), "l1", "list_swap", swap, version=4)


# --- 11: sinks --------------------------------------------------------------------------------------------------


@breaks(11)
def a_row_is_missing_in_the_sink(h):
    h.change("sink_rows", "note", epoch=0, to={"hashes": hashes(0, 4, "row 0")})


@breaks(11)
def a_row_is_in_the_sink_twice(h):
    h.change("sink_rows", "note", epoch=0, to={"hashes": hashes(0, 5, "row 0") + hashes(2, 2, "row 0")})


@breaks(11)
def a_row_of_another_epoch_is_in_the_sink(h):
    h.change("sink_rows", "note", epoch=0, to={"hashes": hashes(0, 4, "row 0") + hashes(5, 5, "row 1")})


@breaks(11)
def an_epoch_that_was_given_up_is_in_the_sink(h):
    h.note(len(h.events), "sink_rows", sink="table", epoch=2, hashes=hashes(0, 5, "row 2"))


@breaks(11)
def half_of_an_uncertain_epoch_is_in_the_sink(h):
    h.note(len(h.events), "source_rows", sink="table", epoch=3, hashes=hashes(0, 5, "row 3"))
    h.note(len(h.events), "sink_rows", sink="table", epoch=3, hashes=hashes(0, 2, "row 3"))


# --- 12: registers ----------------------------------------------------------------------------------------------


@breaks(12)
def a_register_is_read_as_it_was(h):
    h.change("get", "ok", 1, to={"value": "a"})


@breaks(12)
def a_register_goes_back(h):
    h.insert(len(h.events), "c", "get", {"key": "leader"}, value="b")


@breaks(12)
def two_swaps_from_one_value_are_won(h):
    h.insert(len(h.events), "b", "swap", {"key": "leader", "expected": "a", "value": "d"})


@pytest.mark.parametrize(("spoil", "number"), MUTATIONS)
def test_it_is_caught(spoil, number):
    spoiled = Spoiled(EVERYTHING)
    spoil(spoiled)
    verdict = judge(spoiled.numbered())
    told = [str(violation) for violation in verdict.violations]
    assert number in verdict.counts, told
    mine = [violation for violation in verdict.violations if violation.number == number]
    assert all(violation.lines for violation in mine), told
    assert not verdict.holds


def test_there_are_enough_of_them():
    assert len(MUTATIONS) >= 25
    assert {parameters.values[1] for parameters in MUTATIONS} == set(INVARIANTS)
