"""Two ledgers whose runs travel in bundles: what the world lets happen, and that renaming hides nothing of it.

Source: docs/decisions/049-one-request-for-many-ledgers.md.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from quire.core.errors import MisuseError
from quire_testing.explorer.bundle_parts import BundleConfiguration, turns_of
from quire_testing.explorer.bundle_world import BundleForm, BundleWorld
from quire_testing.explorer.check import check
from quire_testing.explorer.story import led

SENT = ("client: appends XY", "b0: takes bundle 0", "b1: takes bundle 0")
HALF = (*SENT, "client: gets OK to X of bundle 0 from b0", "client: gets OK to Y of bundle 0 from b0")


def said(configuration, *commands):
    return led(BundleWorld(configuration), commands)[-1][0].said


def test_a_bookie_takes_a_bundle_in_one_step_and_a_fence_sees_it_or_comes_before():
    world = BundleConfiguration(fences=1)
    assert said(world, *SENT[:2])[::2] == ("X: stores 0", "Y: stores 0")
    fenced = said(world, SENT[0], "b0: takes a fence of X", SENT[1])
    assert fenced[::2] == ("X: refuses: FENCED", "Y: stores 0")


def test_acknowledgements_reach_a_writer_with_its_ack_quorum():
    world = BundleConfiguration(2, 2, 2, 2)
    assert said(world, *HALF) == ()
    confirmed = said(world, *HALF, "client: gets OK to X and Y of bundle 0 from b1")
    assert [line for line in confirmed if "=>" in line] == ["X: => confirmed 0..0", "Y: => confirmed 0..0"]


def test_what_happens_to_one_ledger_alone_dissolves_the_bundle_in_the_same_step():
    lost = said(BundleConfiguration(3, 2, 2, 2, timeouts=1), *HALF, "X's writer: lost b1")
    assert lost[-3:] == (
        "bundle 0 is dissolved",
        "X gets the acknowledgement of b0",
        "Y gets the acknowledgement of b0",
    )


def test_a_frame_that_one_writer_gives_up_before_it_arrives_is_given_up_for_both():
    world = BundleWorld(BundleConfiguration(3, 2, 2, 2, timeouts=1, drops=True))
    path = led(world, [SENT[0], "X's writer: lost b1"])
    after = [f"{label.actor}: {label.command}" for label, _ in world.successors(path[-1][1])]
    assert "client: gets TIMED_OUT to Y's run 0 from b1" in after
    assert "b0: takes bundle 0" in after
    assert not any(command.startswith("b1:") for command in after)


def test_ledgers_with_other_bookies_have_no_bundle():
    world = BundleWorld(BundleConfiguration(3, 2, 2, 1, "XY-XY", timeouts=1))
    changed = (
        "X's writer: lost b0",
        "X's store: takes v0: OPEN 0:[b2 b1] from writer",
        "X's writer: hears written v1",
    )
    last = led(world, [SENT[0], *changed, SENT[0]])[-1][1]
    assert [bundle.turn for bundle in last.bundles] == [0]


@pytest.mark.parametrize(
    "configuration",
    [
        BundleConfiguration(4, 3, 3, 2, "XY-X", timeouts=1, fences=1, transit_damages=1, leaves=1),
        BundleConfiguration(3, 2, 2, 2, "XYX", recoverers=1, crashes=1),
    ],
    ids=lambda each: each.name,
)
def test_renamed_states_have_renamed_steps(configuration):
    world = BundleWorld(configuration)
    canonical = BundleForm(world)
    chance = random.Random(7)
    state = world.initial()
    for _ in range(300):
        moves = world.successors(state)
        if not moves:
            state = world.initial()
            continue
        there = canonical(state)
        assert canonical(there) == there
        assert {canonical(after) for _, after in moves} == {
            canonical(after) for _, after in world.successors(there)
        }
        state = chance.choice(moves)[1]


def test_small_worlds_come_to_everything_that_happens_to_bundles():
    seen = Counter()
    for configuration in (
        BundleConfiguration(2, 2, 2, 2, "XYX", transit_damages=1, closes=True),
        BundleConfiguration(2, 2, 2, 2, crashes=1, failures=1),
        BundleConfiguration(3, leaves=1),
        BundleConfiguration(2, turns="X-Y", timeouts=1, fences=1),
    ):
        result = check(configuration, count_kinds=True).result
        assert result.complete
        seen += result.kinds
    assert seen.keys() >= {
        "client append",
        "b0 add",
        "b0 transit damage",
        "b0 sync",
        "b0 crash",
        "b0 fence",
        "X's timeout",
        "X's close",
        "X's leaves",
        "client timeout",
        "client hears rows",
        "client hears refusal",
        "client hears alone",
    }


@pytest.mark.parametrize("text", ["", "XX", "XY-", "YX", "XYY", "XYZ"])
def test_turns_that_are_none_are_refused(text):
    with pytest.raises(MisuseError, match="XY-X"):
        turns_of(text)
