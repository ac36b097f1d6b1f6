"""Every byte of a bookie's segment files has one reason, and every reason says what ends it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.storage.space_reasons import (
    REST,
    UNKNOWN_SPACE,
    WAITING,
    FreeSpace,
    Reason,
    SegmentUse,
    SpaceContext,
    bytes_by_reason,
    explain,
    is_wanted_soon,
    rest_share,
)

WHOLE = 1000


@st.composite
def uses(draw: st.DrawFn) -> SegmentUse:
    live = draw(st.integers(0, WHOLE))
    dead = draw(st.integers(0, WHOLE - live))
    unused = draw(st.integers(0, WHOLE - live - dead))
    flags = {name: draw(st.booleans()) for name in ("sealed", "lives", "stays", "retired", "pinned")}
    return SegmentUse(WHOLE, live, dead, unused, **flags)


@given(
    st.lists(uses()),
    st.integers(0, 8),
    st.integers(0, 3),
    st.integers(0, 5 * WHOLE),
    st.dictionaries(
        st.sampled_from([Reason.GRACE, Reason.OVER_REPLICATED, Reason.ORPHANS]), st.integers(0, 3 * WHOLE)
    ),
)
def test_the_reasons_are_all_bytes_and_no_more(
    segments: list[SegmentUse], spares: int, reserve: int, tombstones: int, among_live: dict[Reason, int]
) -> None:
    found = bytes_by_reason(
        segments,
        spares=spares,
        reserve=reserve,
        segment_bytes=WHOLE,
        tombstones=tombstones,
        among_live=among_live,
    )
    assert sum(found.values()) == WHOLE * (len(segments) + spares)
    assert min(found.values()) >= 0
    assert list(found) == list(Reason)


def test_what_a_segment_holds_goes_where_it_is_returned_from() -> None:
    def one(**how: bool) -> dict[Reason, int]:
        use = SegmentUse(WHOLE, 300, 500, **how)
        found = bytes_by_reason(
            [use], spares=0, reserve=2, segment_bytes=WHOLE, tombstones=50, among_live={Reason.GRACE: 100}
        )
        return {reason: size for reason, size in found.items() if size}

    kept = {Reason.LIVE: 200, Reason.GRACE: 100, Reason.TOMBSTONES: 50, Reason.PADDING: 150}
    assert one() == kept | {Reason.SPARSE: 500}
    assert one(stays=True) == kept | {Reason.DAMAGE: 500}
    assert one(lives=False) == {Reason.DELETED: WHOLE}
    assert one(lives=False, pinned=True) == {Reason.PINNED: WHOLE}
    assert one(lives=False, retired=True) == {Reason.RETIRED: WHOLE}


def test_every_reason_has_words_and_the_largest_comes_first() -> None:
    context = SpaceContext(71, 30, 60, 3000, 100, "the store went back")
    told = explain({reason: number for number, reason in enumerate(Reason, 1)}, context)
    assert [one.size for one in told] == sorted((one.size for one in told), reverse=True)
    assert {one.reason for one in told} == set(Reason)
    assert all(one.what and one.returns for one in told)
    words = {one.reason: f"{one.returns}; {one.sooner}" for one in told}
    assert "(71 % is now)" in words[Reason.SPARSE]
    assert "compact --now" in words[Reason.SPARSE]
    assert "every 60 s" in words[Reason.DELETED]
    assert "in 3000 s" in words[Reason.GRACE]
    assert "the store went back" in words[Reason.STOPPED]
    assert explain(dict.fromkeys(Reason, 0), context) == []
    (scarce,) = explain({Reason.SPARSE: 1}, context._replace(free_percent=15, sparse_percent=52))
    assert scarce.returns.endswith("every 60 s, from segments of which at most 52 % lives")
    assert scarce.sooner == "quire bookie compact --now"
    (full,) = explain({Reason.SPARSE: 1}, context._replace(free_percent=0, sparse_percent=80, full=True))
    assert full.returns.endswith("at most 80 % lives")
    assert full.sooner == "quire ledger delete; quire log truncate", "a pass has done what it can"
    never = explain({Reason.DELETED: 1}, context._replace(pass_seconds=0))
    assert never[0].returns.startswith("not by itself")


@pytest.mark.parametrize(
    ("free", "left", "waited_s", "pass_s", "wanted"),
    [
        (200, 300, 7.5, 0.0, True),  # full in 15 seconds
        (200, 300, 7.6, 0.0, False),
        (200, 300, 9.5, 1.0, True),  # a pass takes a second: full in 19
        (200, 300, 9.6, 1.0, False),
        (290, 291, 1.0, 0.0, False),  # full in five minutes
        (200, 200, 60.0, 60.0, False),  # a disk that stays nearly full asks for nothing
        (250, 200, 60.0, 60.0, False),
        (300, 1000, 1.0, 60.0, False),  # there is room enough
        (0, 1, 60.0, 0.0, True),
    ],
)
def test_space_is_wanted_before_the_next_pass_where_the_disk_would_be_full_soon(
    free: int, left: int, waited_s: float, pass_s: float, wanted: bool
) -> None:
    assert is_wanted_soon(FreeSpace(free, 1000), FreeSpace(left, 1000), waited_s, pass_s) == wanted


def test_of_a_disk_that_tells_nothing_no_space_is_wanted() -> None:
    assert not is_wanted_soon(UNKNOWN_SPACE, FreeSpace(0, 1000), 1.0, 1.0)
    assert not is_wanted_soon(FreeSpace(0, 1000), UNKNOWN_SPACE, 1.0, 1.0)


def test_compaction_rests_the_less_the_less_is_free() -> None:
    assert [rest_share(FreeSpace(free, 1000)) for free in (1000, 300, 150, 0)] == [REST, REST, REST / 2, 0]
    assert [rest_share(FreeSpace(1000, 1000), waiting) for waiting in (0, WAITING)] == [REST, REST / 2]
