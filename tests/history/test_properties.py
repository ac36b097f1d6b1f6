"""Random valid histories hold, and each of them spoiled in one place does not, under the right number."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from history.scenes import Spoiled, flipped, hashes, pretty, text_of
from history.worlds import world
from quire_testing.history import HistoryFile, judge

seeds = st.integers(0, 1 << 30)


@settings(max_examples=100, deadline=None)
@given(seeds)
def test_what_is_right_holds(seed):
    events = world(seed)
    verdict = judge(events)
    assert verdict.holds, f"{pretty(events)}\n{verdict.violations}"


@settings(max_examples=30, deadline=None)
@given(seeds)
def test_a_history_is_judged_alike_from_a_file(seed):
    events = world(seed)
    again = judge(HistoryFile(text_of(events).splitlines(keepends=True)))
    assert (again.checked, again.kinds) == (judge(events).checked, judge(events).kinds)


class Chooser:
    """Finds places to spoil.

    Args:
        events: a valid history.
        chance: which place.
    """

    def __init__(self, events, chance):
        self.chance = chance
        self.spoiled = Spoiled(events)
        self.events = self.spoiled.events
        self.asked = {event.operation: event for event in self.events if event.event == "invoke"}

    def ledger_of(self, event):
        asked = self.asked.get(event.operation)
        return event.facts.get("ledger", asked and asked.facts.get("ledger"))

    def deleted(self):
        return {self.ledger_of(event) for event in self.events if event.kind == "delete"}

    def some(self, kind, what, fits=lambda event: True):
        """The index of one such event, of a ledger that stays; None if there is none."""
        gone = self.deleted()
        found = [
            index
            for index, event in enumerate(self.events)
            if event.kind == kind
            and event.event == what
            and self.ledger_of(event) not in gone - {None}
            and fits(event)
        ]
        return self.chance.choice(found) if found else None


def a_digit_of_a_final_read_is_another_one(c):
    index = c.some("read", "ok", lambda event: event.process == "r3" and event.facts.get("hashes"))
    if index is not None:
        value = c.events[index].facts["hashes"]
        c.events[index].facts["hashes"] = flipped(value, c.chance.randrange(len(value)))
        return {1, 2, 3, 7}
    return None


def the_end_of_a_final_read_is_missing(c):
    index = c.some("read", "ok", lambda event: event.process == "r3" and event.facts.get("hashes"))
    if index is not None:
        facts, last = c.events[index].facts, c.asked[c.events[index].operation].facts["last"]
        facts["hashes"] = facts["hashes"][:-8]
        facts.pop("unsure", None)
        facts["missing"] = [[len(facts["hashes"]) // 8, last]]
        return {1, 2, 3, 7}
    return None


def a_recoverer_says_another_end(c):
    index = c.some("open", "ok", lambda event: event.facts["closed"])
    if index is not None:
        c.events[index].facts["last"] += c.chance.choice([-1, 1])
        return {5}
    return None


def an_acknowledgement_is_left_out(c):
    """One that is not the last of its ledger."""
    groups = {}
    for index, event in enumerate(c.events):
        if event.kind == "append" and event.event == "ok":
            groups.setdefault(c.ledger_of(event), []).append(index)
    found = [index for indexes in groups.values() for index in indexes[:-1]]
    if found:
        del c.events[c.chance.choice(found)]
        return {4}
    return None


def two_acknowledgements_change_places(c):
    groups = {}
    for index, event in enumerate(c.events):
        if event.kind == "append" and event.event == "ok":
            groups.setdefault(c.ledger_of(event), []).append(index)
    found = [
        pair
        for indexes in groups.values()
        for pair in pairwise(indexes)
        if c.asked[c.events[pair[1]].operation].line < c.events[pair[0]].line
    ]
    if found:
        c.spoiled.swap(*c.chance.choice(found))
        return {4}
    return None


def a_lac_is_beyond_everything(c):
    index = c.some("read_lac", "ok")
    if index is not None:
        c.events[index].facts["lac"] = 10_000
        return {4}
    return None


def a_lac_goes_back(c):
    index = c.some("read_lac", "ok", lambda event: event.facts["lac"] > 0)
    if index is not None:
        asked = c.asked[c.events[index].operation]
        arguments, lac = {"ledger": asked.facts["ledger"]}, c.events[index].facts["lac"] - 1
        c.spoiled.insert(index + 1, asked.process, "read_lac", arguments, lac=lac)
        return {4}
    return None


def an_entry_is_acknowledged_after_the_close(c):
    index = c.some("metadata", "note")
    if index is not None:
        facts = c.events[index].facts
        first = facts["last"] + 1
        arguments = {"ledger": facts["ledger"], "first": first, "hashes": hashes(first, first, "late")}
        c.spoiled.insert(index, "late", "append", arguments)
        return {6}
    return None


def a_replica_has_another_digit(c):
    index = c.some("replica", "note", lambda event: event.facts["bookie"] == "b2")
    if index is not None:
        facts = c.events[index].facts
        facts["hashes"] = flipped(facts["hashes"], c.chance.randrange(len(facts["hashes"])))
        return {8}
    return None


def two_replicas_lack_something(c):
    index = c.some("metadata", "note", lambda event: event.facts["last"] >= 0)
    if index is not None:
        ledger = c.events[index].facts["ledger"]
        c.events[:] = [
            event
            for event in c.events
            if event.kind != "replica" or event.facts["ledger"] != ledger or event.facts["bookie"] == "b1"
        ]
        return {9}
    return None


def two_records_of_a_log_change_places(c):
    """Two of which one was acknowledged; two of one append of unknown outcome have no known order."""
    acknowledged = {
        event.facts["first"] for event in c.events if event.kind == "log_append" and event.event == "ok"
    }

    def fits(event):
        return len(event.facts["hashes"]) >= 16 and c.asked[event.operation].facts["first"] in acknowledged

    index = c.some("log_read", "ok", fits)
    if index is not None:
        facts = c.events[index].facts
        facts["hashes"] = facts["hashes"][8:16] + facts["hashes"][:8] + facts["hashes"][16:]
        return {10}
    return None


def a_record_of_a_log_comes_twice(c):
    index = c.some("log_read", "ok", lambda event: len(event.facts["hashes"]) >= 8)
    if index is not None:
        facts = c.events[index].facts
        facts["hashes"] += facts["hashes"][-8:]
        return {10}
    return None


def a_list_is_read_as_it_was(c):
    index = c.some("list_read", "ok", lambda event: event.facts["version"])
    if index is not None:
        c.events[index].facts["ledgers"] = [1]
        return {10}
    return None


def a_row_is_lost(c):
    index = c.some("sink_rows", "note", lambda event: event.facts["hashes"])
    if index is not None:
        c.events[index].facts["hashes"] = c.events[index].facts["hashes"][8:]
        return {11} if c.events[index].facts["hashes"] or committed(c, index) else None
    return None


def committed(c, index):
    epoch = c.events[index].facts["epoch"]
    return any(
        event.kind == "sink_commit"
        and event.event == "ok"
        and c.asked[event.operation].facts["epoch"] == epoch
        for event in c.events
    )


def a_row_comes_twice(c):
    index = c.some("sink_rows", "note", lambda event: event.facts["hashes"])
    if index is not None:
        c.events[index].facts["hashes"] += c.events[index].facts["hashes"][:8]
        return {11}
    return None


def a_register_holds_what_nobody_wrote(c):
    index = c.some("get", "ok")
    if index is not None:
        c.events[index].facts["value"] = "nobody's"
        seen = [event for event in c.events if event.kind in {"get", "swap"} and event.event == "ok"]
        return {12} if len(seen) > 1 and c.events[index] is not seen[0] else None
    return None


SPOILERS = [
    a_digit_of_a_final_read_is_another_one,
    the_end_of_a_final_read_is_missing,
    a_recoverer_says_another_end,
    an_acknowledgement_is_left_out,
    two_acknowledgements_change_places,
    a_lac_is_beyond_everything,
    a_lac_goes_back,
    an_entry_is_acknowledged_after_the_close,
    a_replica_has_another_digit,
    two_replicas_lack_something,
    two_records_of_a_log_change_places,
    a_record_of_a_log_comes_twice,
    a_list_is_read_as_it_was,
    a_row_is_lost,
    a_row_comes_twice,
    a_register_holds_what_nobody_wrote,
]


@pytest.mark.parametrize("spoil", SPOILERS, ids=lambda spoil: spoil.__name__)
@settings(max_examples=25, deadline=None)
@given(seed=seeds)
def test_what_is_spoiled_does_not_hold(spoil, seed):
    chooser = Chooser(world(seed), random.Random(seed))
    numbers = spoil(chooser)
    if numbers is None:
        return
    events = chooser.spoiled.numbered()
    verdict = judge(events)
    assert numbers & set(verdict.counts), f"{pretty(events)}\n{verdict.violations}"


@pytest.mark.parametrize("spoil", SPOILERS, ids=lambda spoil: spoil.__name__)
def test_there_is_mostly_something_to_spoil(spoil):
    found = [spoil(Chooser(world(seed), random.Random(seed))) for seed in range(40)]
    assert sum(numbers is not None for numbers in found) >= 15
