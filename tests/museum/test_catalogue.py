"""The museum is complete, and its page says what its sources say."""

from __future__ import annotations

import re
from collections import Counter

import exhibits
import pytest

WANTED = {
    *(f"issues/{n}" for n in (4651, 4097, 1591, 2614, 2615, 2612, 2908, 870, 4459, 4261, 1046, 4659, 4812)),
    *(f"pull/{n}" for n in (4462, 4701, 4607, 4557)),
    # The catalogue of BookKeeper's own defects; where a row names several threads, the one that tells most.
    *(f"issues/{n}" for n in (2485, 2563, 4668, 3316, 1197, 3692, 3887, 4226)),
    *(f"pull/{n}" for n in (2706, 3329, 4740, 3956, 4404, 4789, 4163)),
    "https://issues.apache.org/jira/browse/BOOKKEEPER-584",
    "pravega/pravega/issues/1900",
}
SHOWN = exhibits.exhibits()


def test_every_incident_that_was_asked_for_is_there() -> None:
    assert {one.fields["ref"] for one in SHOWN} >= WANTED


@pytest.mark.parametrize("one", SHOWN, ids=lambda one: one.test)
def test_an_exhibit_says_what_it_must(one: exhibits.Shown) -> None:
    wanted = {
        "incident": {"ref", "title", "happened", "ours", "switch", "violates"},
        "waiting": {"ref", "title", "happened", "room", "path"},
    }[one.kind]
    assert one.fields.keys() - {"mutant"} == wanted
    assert all(value and value == value.strip() for name, value in one.fields.items() if name != "path")
    assert "|" not in "".join(one.fields.values()), "it would end a cell of the table"
    assert re.fullmatch(
        r"https://(github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+|issues\.apache\.org/.*)", one.address
    )
    number = one.fields["ref"].rpartition("/")[2].rpartition("-")[2]
    assert number in one.test, "a test's name has the number of its thread"


def test_a_thread_is_waited_for_or_played() -> None:
    kinds = {
        kind: {one.fields["ref"] for one in SHOWN if one.kind == kind} for kind in ("incident", "waiting")
    }
    assert not kinds["incident"] & kinds["waiting"]
    assert max(Counter(one.test for one in SHOWN).values()) == 1
