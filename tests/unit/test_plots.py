"""The pictures of the performance page: the same bytes for the same results, and a stale one is found."""

import copy
import xml.etree.ElementTree as ET

import plots
import pytest

CLAIM = {
    "claim": "P1",
    "text": "100 B adds <fast> & safe",
    "bar": 2.0,
    "ratio": 3.0,
    "worst": 2.5,
    "holds": True,
    "pairs": [{"ratio": 2.5, "load": 1.0}, {"ratio": 3.5, "load": 4.0}],
    "plots": {
        "timeline": {
            "title": "adds",
            "unit": "entries/s",
            "seconds": [0.1, 0.2, 0.3],
            "series": {"Quire": [10, 12, 11], "Java V2": [1, None, 2]},
        },
        "histogram": {"title": "times", "unit": "us", "series": {"Quire": [1.0, 2.0, 9.0], "Java": [2.0]}},
    },
}
MISSED = {**CLAIM, "claim": "P2", "ratio": 1.0, "holds": False, "plots": {}}


@pytest.fixture
def claims():
    return copy.deepcopy([CLAIM, MISSED])


def test_the_same_results_make_the_same_bytes(claims, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    names = {path.name for path in plots.write_all(plots.pictures(claims), first)}
    plots.write_all(plots.pictures(claims), second)
    assert names == {"claims.svg", "pairs.svg", "timeline-p1.svg", "histogram-p1.svg"}
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes()
        assert ET.parse(first / name).getroot().tag.endswith("svg")


def test_only_what_changed_is_drawn_again(claims, tmp_path):
    plots.write_all(plots.pictures(claims), tmp_path)
    assert plots.stale(plots.pictures(claims), tmp_path) == []
    claims[0]["plots"]["timeline"]["series"]["Quire"][0] = 9
    changed = plots.stale(plots.pictures(claims), tmp_path)
    assert [path.name for path in changed] == ["timeline-p1.svg"]
    assert plots.write_all(plots.pictures(claims), tmp_path) == changed
    assert plots.stale(plots.pictures(claims), tmp_path) == []


def test_pictures_of_claims_that_are_gone_are_removed(claims, tmp_path):
    plots.write_all(plots.pictures(claims), tmp_path)
    claims[0]["plots"] = {}
    plots.write_all(plots.pictures(claims), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"claims.svg", "pairs.svg"}


def test_no_results_no_pictures():
    assert plots.pictures([]) == []


def test_ours_has_its_own_colour():
    found = plots.colours(["Java V2", "Quire", "Java V3"])
    assert found["Quire"] == plots.FIRST_COLOUR
    assert len(set(found.values())) == 3
