"""Each fix is taken out once, and the invariant of its row breaks: after the pinned number of steps, within seconds."""

from __future__ import annotations

import importlib
import time

import pytest

from quire_testing.explorer import mutants
from quire_testing.explorer.check import EVERY_INVARIANT, check, check_mutant
from quire_testing.explorer.invariants import NAMES
from quire_testing.explorer.mutants import MUTANTS
from quire_testing.explorer.patches import Patch, applied
from quire_testing.explorer.story import exchanges, replayed
from quire_testing.explorer.switches import RULES
from support.pinned_mutants import IN_THEIR_RINGS, PINNED
from support.rounds import FULL, keep_figures

SECONDS = 60
"""A bound against hanging; what they take of an idle core is a figure of `make full` (docs/testing-figures.md)."""


STATES_IN_TEST = 60_000 if FULL else 2_000
"""How much of a mutant's world is explored without it."""


@pytest.mark.parametrize("name", IN_THEIR_RINGS)
def test_a_mutant_breaks_its_invariant(name):
    done = check_mutant(name, seconds_max=SECONDS)
    violation = done.result.violation
    assert violation is not None
    assert violation.invariant == MUTANTS[name].violated
    assert [len(done.result.path) - 1, done.result.states] == PINNED[name]
    steps = exchanges(done.text)
    assert len(steps) == len(done.result.path) - 1
    with MUTANTS[name].switches.applied():
        assert replayed(done.world, steps)[-1][1] == done.result.path[-1][1]


NOT_AGAIN = {
    "D8",
    "D9",
    "log-fences-last-two",
    "recovery-adds-raise-lac",
    "X15",
    "X26",
    "X50",
    "listed-origin",
    "repair-limbo-open",
}
"""Their worlds are explored without the mutant elsewhere, or take seconds."""


WITHOUT_MUTANT = dict.fromkeys(
    mutant.configuration for name, mutant in MUTANTS.items() if name not in NOT_AGAIN
)


@pytest.mark.parametrize("configuration", WITHOUT_MUTANT, ids=lambda each: each.name)
def test_what_ships_holds_where_a_mutant_breaks(configuration):
    done = check(configuration, seconds_max=SECONDS, states_max=STATES_IN_TEST)
    assert done.result.violation is None, done.text


BY_PROGRAMS = ["judge_unknown", "without_record", "fence_of_deleted"]
"""The explorer's bookies know their ledger's key: `tests/unit/bookie/test_unknown_ledgers.py` takes the first two out of a
bookie. Its clients speak our own protocol: `tests/unit/bookie/test_fences_of_deleted_ledgers.py` takes out the third."""

OF_REPAIR = ["copy_priority"]
"""Turned round in `tests/unit/core/test_rereplication.py`."""

OF_AUTO_RECOVERY = ["is_gone", "seconds_to_add", "copy_is_due", "may_recover_open", "mark_may_end"]
"""`mark_may_end` is taken out in `tests/unit/autorecovery/test_decided_fragments.py`. No world of the explorer has auditors; taken out in `tests/unit/core/test_audit.py`: X39 "grace without a spare" is
`may_recover_open`; X41 "short listing is an audit" is a patch. X40 "mark deleted whatever its version" is no
rule: the store's marks are compared by version and revision (`tests/conformance/test_under_replicated_marks.py`). Whole programs without
X40 and X41 lose marks in `tests/unit/autorecovery/test_rules_taken_out.py`."""

OF_GARBAGE = ["unlisted_is_garbage", "staged_is_garbage", "watermark_counts"]
"""Taken out in `tests/unit/core/test_log_garbage.py`: they keep what is not garbage, and nothing else is wrong without them."""


def test_every_rule_has_a_mutant():
    replaced = {rule for mutant in MUTANTS.values() for rule in mutant.rules}
    without = RULES.rooms().keys() - replaced
    assert without == {
        *BY_PROGRAMS,
        *OF_REPAIR,
        *OF_GARBAGE,
        *OF_AUTO_RECOVERY,
    }


PATCHES = [patch for mutant in MUTANTS.values() for patch in mutant.switches.patches]


def made_of(code):
    return code.co_code, code.co_consts, code.co_names


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.function.__qualname__)
def test_a_patch_applies_exactly_once_and_only_for_its_time(patch):
    shipped = patch.function.__code__
    with applied([patch]):
        assert patch.function.__code__ is patch.code
        assert made_of(patch.code) != made_of(shipped)
    assert patch.function.__code__ is shipped
    for text in ("no such text", ""):
        with pytest.raises(ValueError, match=patch.function.__qualname__):
            assert Patch(patch.function, text, "").code


def test_a_mutant_changes_what_ships_or_the_world():
    for name, mutant in MUTANTS.items():
        targets = mutant.switches.targets()
        assert targets, name
        others = [each for each in targets.values() if each != "fault of the world"]
        assert all(each.startswith("quire.core.") for each in others), (name, targets)
        for each in others:
            module, _, member = each.rpartition(".")
            assert hasattr(importlib.import_module(module), member), each


@pytest.mark.parametrize(("name", "alone"), [("X3", "I7"), ("X8", "W")])
def test_a_mutant_is_seen_by_its_own_invariant_and_by_no_other(name, alone):
    """The reference: X3 by "I7 only", X8 "not visible to I1-I3": in the whole of their world."""
    mutant = MUTANTS[name]
    others = [invariant for invariant in NAMES if invariant != alone]
    done = check(mutant.configuration, mutant.switches, invariants=others)
    assert done.result.complete
    assert done.result.violation is None, done.text


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_how_long_each_mutant_takes():
    seconds = {}
    for name in MUTANTS:
        begun = time.process_time()
        assert check_mutant(name).result.violation
        seconds[name] = time.process_time() - begun
    slowest = max(seconds, key=lambda name: seconds[name])
    keep_figures(
        "explorer_mutants",
        {
            "mutants": len(seconds),
            "all_killed": True,
            "cpu_seconds": round(sum(seconds.values())),
            "slowest": slowest,
            "cpu_seconds_of_the_slowest": round(seconds[slowest], 1),
            "over_10_s": sum(each > 10 for each in seconds.values()),
        },
        seed=None,
    )


def test_every_mutant_names_an_invariant_that_exists():
    assert {mutant.violated for mutant in MUTANTS.values()} <= EVERY_INVARIANT.keys()


ROWS = (
    "D1 D2 D3 D4 D5 D7 D8 X1 X2 X3 X4 X5 X6 X7 X8 X9 X10 X11 X12 X13 X14 X15 X16 X17 X18 X19 X20-fence X20-cas X21 X22 "
    "X27 X28 X29 X30 X31 X32 X34 X37 X38 log-fences-last-two recovery-adds-raise-lac absent-below-quorum log-sends-early collector-missing-twice collector-found-once collector-counter-kept "
    "collector-zxid collector-no-tombstone collector-record X23 X24 X33 X46 X47 X48 X49 X58"
)


def test_no_two_mutants_have_one_name():
    assert len(MUTANTS) == sum(map(len, mutants.TABLES))


def test_every_row_of_the_table_is_there():
    assert set(ROWS.split()) <= MUTANTS.keys()
