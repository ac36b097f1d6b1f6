"""The judgement of a cluster: what can be written, and what wants a person."""

import pytest

from quire.core.cluster_state import BookieStanding, ClusterBookie, ClusterHealth, judge
from quire.core.ids import BookieId
from quire.core.ledger.placement import Shape

SHAPE = Shape(3, 3, 2, 2)
LETTERS = {
    "w": BookieStanding.WRITABLE,
    "r": BookieStanding.READ_ONLY,
    "s": BookieStanding.SILENT,
    "d": BookieStanding.DOWN,
}


def cluster(letters: str) -> list[ClusterBookie]:
    """A bookie for each letter; a capital one reports something."""
    return [
        ClusterBookie(BookieId(f"b{number}"), LETTERS[letter.lower()], letter.isupper())
        for number, letter in enumerate(letters)
    ]


@pytest.mark.parametrize(
    ("letters", "health", "absent_slots"),
    [
        ("www", ClusterHealth.HEALTHY, 0),
        ("wwww", ClusterHealth.HEALTHY, 0),
        ("wwW", ClusterHealth.ATTENTION, 0),
        ("wwwd", ClusterHealth.ATTENTION, 0),
        ("wwd", ClusterHealth.ATTENTION, 1),
        ("wwr", ClusterHealth.ATTENTION, 1),
        ("wws", ClusterHealth.ATTENTION, 1),
        ("ww", ClusterHealth.UNHEALTHY, 0),
        ("wrd", ClusterHealth.UNHEALTHY, 0),
        ("wss", ClusterHealth.UNHEALTHY, 0),
        ("", ClusterHealth.UNHEALTHY, 0),
    ],
)
def test_a_cluster_is_as_well_as_what_can_be_created_on_it(
    letters: str, health: ClusterHealth, absent_slots: int
) -> None:
    judged = judge([SHAPE], cluster(letters))
    (found,) = judged.shapes
    assert (judged.health, found.absent_slots) == (health, absent_slots)
    assert bool(found.refusal) is (health is ClusterHealth.UNHEALTHY)
    assert len(judged.needy) == sum(letter != "w" for letter in letters)
    assert len(judged.writable) == letters.lower().count("w")


def test_a_store_that_takes_no_change_and_old_marks_count() -> None:
    assert judge([SHAPE], cluster("www"), takes_changes=False).health is ClusterHealth.UNHEALTHY
    assert judge([SHAPE], cluster("www"), has_old_marks=True).health is ClusterHealth.ATTENTION


def test_each_shape_is_judged_by_itself() -> None:
    assert judge([Shape(5, 3, 2, 2)], cluster("wwwdd")).health is ClusterHealth.UNHEALTHY
    assert judge([Shape(3, 3, 2, 3)], cluster("wwd")).health is ClusterHealth.UNHEALTHY
    assert judge([Shape(1, 1, 1, 1)], cluster("wdd")).shapes[0].absent_slots == 0


def test_a_log_whose_shape_cannot_be_created_needs_attention() -> None:
    judged = judge([SHAPE, Shape(5, 3, 2, 2)], cluster("www"))
    assert judged.health is ClusterHealth.ATTENTION
    assert [bool(one.refusal) for one in judged.shapes] == [False, True]
