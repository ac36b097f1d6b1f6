"""Choosing ensembles and replacements."""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations

import pytest

from quire.core.errors import InvalidQuorumError, NotEnoughBookiesError
from quire.core.ledger.placement import (
    Quarantine,
    Shape,
    choose_ensemble,
    choose_replacements,
    place_ledger,
    slots_for_absent,
)
from quire.core.ledger.quorum import check_min_present, write_set_masks
from quire.core.ledger.rules import RULES

BOOKIES = [f"b{number}" for number in range(1, 8)]


def test_an_ensemble_has_different_bookies_and_all_are_chosen_alike():
    chance = random.Random(1)
    counts = Counter()
    for _ in range(2000):
        ensemble = choose_ensemble(BOOKIES, 3, chance)
        assert len(set(ensemble)) == 3
        counts.update(enumerate(ensemble))
    assert len(counts) == 21
    assert min(counts.values()) > 200


def test_the_same_chance_chooses_the_same():
    assert choose_ensemble(BOOKIES, 5, random.Random(7)) == choose_ensemble(BOOKIES, 5, random.Random(7))


def test_quarantined_bookies_are_the_last_resort():
    chance = random.Random(1)
    for _ in range(100):
        assert not set(choose_ensemble(BOOKIES, 3, chance, quarantined=BOOKIES[:4])) & set(BOOKIES[:4])
        assert set(BOOKIES[4:]) <= set(choose_ensemble(BOOKIES, 4, chance, quarantined=BOOKIES[:4]))


def test_a_ledger_is_placed_on_bookies_that_are_there_while_there_are_enough():
    placed = place_ledger(Shape(3, 3, 2, 2), BOOKIES[:3], ["away"], random.Random(1))
    assert sorted(placed.ensemble) == BOOKIES[:3]
    assert placed.absent == ()


def test_an_absent_slot_names_a_bookie_that_is_away():
    chance = random.Random(1)
    seen = Counter()
    for _ in range(200):
        placed = place_ledger(Shape(3, 3, 2, 2), BOOKIES[:2], ["x", "y"], chance)
        [slot] = placed.absent
        assert placed.ensemble[slot] in ("x", "y")
        assert {*placed.ensemble} - {placed.ensemble[slot]} == {"b1", "b2"}
        seen.update([(slot, placed.ensemble[slot])])
    assert len(seen) == 6


def test_a_read_only_bookie_takes_an_absent_slot_before_one_that_is_away_unless_its_disk_failed():
    chance = random.Random(1)
    sides = {"read_only": ["full", "broken"], "failed": ["broken"]}
    for lacking, named in ((1, {"full"}), (2, {"full", "x"}), (3, {"full", "x", "broken"})):
        for _ in range(50):
            there = BOOKIES[: 6 - lacking]
            placed = place_ledger(Shape(6, 6, 3, 3), there, ["x"], chance, **sides)
            assert {placed.ensemble[slot] for slot in placed.absent} == named
            assert {*placed.ensemble} - named == {*there}


@pytest.mark.parametrize(
    ("shape", "there", "away", "says"),
    [
        (
            Shape(3, 3, 2, 3),
            2,
            ["x"],
            "at least 3 of its 3 bookies.*2 are writable: b1, b2 .not registered: x",
        ),
        (Shape(3, 3, 2, 2), 1, ["x", "y"], "2 of every write set, at its creation; 1 are writable: b1"),
        (Shape(3, 2, 2, 2), 2, ["x"], "2 of every write set"),
        (Shape(3, 3, 2, 2), 2, [], "and 0 with a cookie are not registered: none; start or add bookies"),
        (Shape(3, 3, 1, 1), 0, ["x", "y", "z"], "0 are writable: none"),
    ],
)
def test_a_ledger_that_cannot_begin_says_why(shape, there, away, says):
    with pytest.raises(NotEnoughBookiesError, match=says):
        place_ledger(shape, BOOKIES[:there], away, random.Random(1))


def test_absent_slots_are_spread_as_well_as_any_other_choice():
    """Where some choice of absent slots leaves every write set its Qa, each that is made does."""
    shapes = [(E, Qw, Qa) for E in range(1, 7) for Qw in range(1, E + 1) for Qa in range(1, Qw + 1)]
    for size, write_quorum, ack_quorum in shapes:
        masks = write_set_masks(size, write_quorum)
        for count in range(1, size + 1):

            def allowed(absent, masks=masks, size=size, ack_quorum=ack_quorum):
                present = sum(1 << slot for slot in range(size) if slot not in absent)
                return RULES.may_create(present, masks, ack_quorum, ack_quorum)

            any_choice = any(allowed(absent) for absent in combinations(range(size), count))
            assert {allowed(absent) for absent in slots_for_absent(size, count)} == {any_choice}


@pytest.mark.parametrize("least", [0, 1, 4])
def test_a_minimum_below_the_ack_quorum_or_above_the_ensemble_is_refused(least):
    with pytest.raises(
        InvalidQuorumError, match=rf"`min_present` \({least}\), the bookies that must be writable"
    ):
        check_min_present(least, 3, 2)


def test_replacements_are_new_sound_and_as_many_as_there_are():
    chance = random.Random(1)
    ensemble = ("b1", "b2", "b3")
    chosen = choose_replacements([0, 2], ensemble, BOOKIES, chance, failed=["b1", "b3", "b4"])
    assert chosen.keys() == {0, 2}
    assert set(chosen.values()) <= {"b5", "b6", "b7"}
    assert len(set(chosen.values())) == 2
    assert choose_replacements([0, 2], ensemble, BOOKIES[:4], chance, failed=["b1"]) == {0: "b4"}
    assert choose_replacements([0, 2], ensemble, BOOKIES[:3], chance) == {}


def test_a_quarantined_replacement_only_when_the_writer_would_end():
    chance = random.Random(1)
    ensemble = ("b1", "b2", "b3")
    arguments = ([1], ensemble, BOOKIES[:4], chance)
    assert choose_replacements(*arguments, quarantined=["b4"]) == {}
    assert choose_replacements(*arguments, quarantined=["b4"], required=True) == {1: "b4"}
    assert choose_replacements(*arguments, failed=["b4"], quarantined=["b4"], required=True) == {}


def test_quarantine_ends_by_time_or_by_an_answer():
    quarantine = Quarantine(100)
    quarantine.failed("b1", 0)
    quarantine.failed("b2", 50)
    assert quarantine.bookies(99) == ("b1", "b2")
    assert quarantine.bookies(100) == ("b2",)
    quarantine.clear("b2")
    assert quarantine.bookies(100) == ()
