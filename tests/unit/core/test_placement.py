"""Choosing ensembles and replacements."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from quire.core.errors import NotEnoughBookiesError
from quire.core.placement import Quarantine, choose_ensemble, choose_replacements

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


def test_too_few_bookies_are_named():
    with pytest.raises(NotEnoughBookiesError, match="there are 2: b1, b2"):
        choose_ensemble(BOOKIES[:2], 3, random.Random(1))
    with pytest.raises(NotEnoughBookiesError, match="none"):
        choose_ensemble([], 1, random.Random(1))


def test_replacements_are_new_sound_and_as_many_as_there_are():
    chance = random.Random(1)
    ensemble = ("b1", "b2", "b3")
    chosen = choose_replacements([0, 2], ensemble, BOOKIES, chance, failed=["b1", "b3", "b4"])
    assert chosen.keys() == {0, 2}
    assert set(chosen.values()) <= {"b5", "b6", "b7"}
    assert len(set(chosen.values())) == 2
    assert choose_replacements([0, 2], ensemble, BOOKIES[:4], chance, failed=["b1"]) == {0: "b4"}
    assert choose_replacements([0, 2], ensemble, BOOKIES[:3], chance) == {}


def test_a_doubtful_replacement_only_when_the_writer_would_end():
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
    quarantine.forgive("b2")
    assert quarantine.bookies(100) == ()
