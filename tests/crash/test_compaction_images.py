"""Power cuts while segments are compacted and given back, and what the images of each mistake of a compactor show."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor

import pytest

from quire_testing.crash.bookie_run import BookieRun
from quire_testing.crash.campaign import Campaign, ImagesResult
from quire_testing.crash.workloads import compacted_in_slices
from support.compaction_mutants import MUTANTS, with_mistake
from support.rounds import keep_figures

SEED = 20261125
SETS = [(seed, direct) for seed in range(5) for direct in (False, True)]
TURNS = 20


def images_of(
    *, seed: int, direct: bool, turns: int, every: int, sample: int, points: int, deep: int
) -> tuple[ImagesResult, int]:
    """Record a run, and start on its images; with the number of slices in it."""
    run = BookieRun(direct=direct)
    compacted_in_slices(run, turns=turns, seed=seed)
    campaign = Campaign(
        run.files.recording, config=run.config, direct=direct, deep=deep, broken_max=1, seed=SEED + seed
    )
    return campaign.run(every=every, sample=sample, points=points), run.slices


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in MUTANTS if not name.startswith("the lowest")])
def test_a_compaction_with_a_mistake_shows_in_an_image(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with_mistake(monkeypatch, name)
    found, _ = images_of(seed=0, direct=False, turns=6, every=4, sample=3, points=3, deep=0)
    assert found.broken, found.images


def _one(number: int) -> tuple[ImagesResult, int]:
    seed, direct = SETS[number]
    return images_of(seed=seed, direct=direct, turns=TURNS, every=64, sample=16, points=1, deep=400)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_crash_images_of_compaction() -> None:
    images = nested = in_limbo = 0
    slices: list[int] = []
    with ProcessPoolExecutor(2) as pool:
        for result, count in pool.map(_one, range(len(SETS))):
            print(f"{result.images} images, {count} slices", flush=True)
            assert result.broken == []
            assert count >= 1_000
            slices.append(count)
            images, nested, in_limbo = (
                images + result.images,
                nested + result.nested,
                in_limbo + result.in_limbo,
            )
    figures = {
        "sets": len(SETS), "slices_at_least": min(slices), "images": images, "inside_of_starts": nested,
        "with_a_torn_write": in_limbo, "lost": 0, "refused_starts": 0,
    }  # fmt: skip
    keep_figures("crash_images_of_compaction", figures, seed=SEED)
    assert images >= 100_000
