"""A campaign that is cut goes on where it was: each range of seeds is run once, and all of them are in the sum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from quire.core.errors import MisuseError
from quire_testing.sim.campaign import KEPT_CHUNK, Failure, Tally, campaign

SEEDS = 5 * KEPT_CHUNK + 10


def one_in_a_thousand_fails(mixes: Sequence[str], seeds: Sequence[int], mutant: str) -> Tally:
    """Runs that cost nothing."""
    failures = [Failure(seed, mixes[0], ("I1: text",)) for seed in seeds if seed % 1000 == 999]
    return Tally(
        Counter({mixes[0]: len(seeds)}), 3 * len(seeds), seen=Counter({"all": len(seeds)}), failures=failures
    )


def summed(keep: Path, **options: float) -> Tally:
    return campaign(0, SEEDS, mixes=("one",), runs=one_in_a_thousand_fails, keep=keep, **options)


def test_a_campaign_that_was_cut_is_summed(tmp_path: Path) -> None:
    keep = tmp_path / "deep" / "walks.jsonl"
    reported: list[int] = []
    whole = campaign(
        0,
        SEEDS,
        mixes=("one",),
        runs=one_in_a_thousand_fails,
        keep=keep,
        progress=lambda tally: reported.append(tally.schedules),
    )
    assert reported == [*range(KEPT_CHUNK, SEEDS, KEPT_CHUNK), SEEDS]
    text = keep.read_text()
    for cut in (len(text), len(text) - 5, text.index("\n", 200) + 1, 10, 0):
        keep.write_text(text[:cut])
        again = summed(keep)
        assert (again.runs, again.events, again.seen, again.failures) == (
            whole.runs,
            whole.events,
            whole.seen,
            whole.failures,
        )
        assert sorted(keep.read_text().splitlines()[1:]) == sorted(text.splitlines()[1:])


def test_what_is_kept_is_not_run_again(tmp_path: Path) -> None:
    keep = tmp_path / "walks.jsonl"
    summed(keep)
    assert summed(keep, seconds=0.0).schedules == SEEDS


def test_the_file_of_another_campaign_is_refused(tmp_path: Path) -> None:
    keep = tmp_path / "walks.jsonl"
    summed(keep)
    with pytest.raises(MisuseError, match="another campaign"):
        campaign(0, 10, mixes=("two",), runs=one_in_a_thousand_fails, keep=keep)
