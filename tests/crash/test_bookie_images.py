"""A bookie starts on every state that a power cut could have left of its disk, and keeps what it had promised."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from itertools import product

import pytest

from quire_testing.crash.bookie_run import BookieRun
from quire_testing.crash.campaign import Campaign, ImagesResult, go_through
from quire_testing.crash.workloads import ROLL_BYTES, WORKLOADS
from support.rounds import FULL, keep_figures, rounds

SEED = 20261121
CASES = [(workload, direct) for workload in WORKLOADS for direct in (False, True)]
TAKE_OVERS = ("take-overs", "truncations", "dead take-overs")
"""Where a stream goes from one writer to the next."""
QUICK = ("groups", "fences", "rolls", "rebuild")
"""For `make check`: tenths of a second each."""
LONGER = {"truncations": 12, "killed anywhere": 32, "killed while starting": 12, "killed while recycling": 12}
"""Recordings with many starts in them: of their points fewer are looked at."""


def one(number):
    """The images of one recorded run; runs in a process of its own in `make full`."""
    workload, direct = CASES[number]
    result = go_through(
        workload,
        direct=direct,
        every=rounds(8, 256),
        sample=rounds(4, 160),
        points=rounds(LONGER.get(workload.name, 4), 1),
        deep=rounds(100, 150),
        seed=SEED + number,
    )
    return result, f"{workload.name}, {'direct' if direct else 'buffered'}"


@pytest.mark.skipif(FULL, reason="make full goes through all of them at once")
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, id=f"{w.name}-{d}", marks=() if w.name in QUICK else pytest.mark.long)
        for number, (w, d) in enumerate(CASES)
    ],
)
def test_a_bookie_starts_on_every_image(number) -> None:
    result, name = one(number)
    assert result.broken == [], name
    assert result.images > 20


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_crash_images() -> None:
    """All of them, on both cores, in `make full`."""
    total = ImagesResult()
    with ProcessPoolExecutor(2) as pool:
        for result, name in pool.map(one, range(len(CASES))):
            print(f"{name}: {result.images} images, {result.nested} of them inside of starts", flush=True)
            assert result.broken == [], name
            total.images += result.images
            total.nested += result.nested
            total.in_limbo += result.in_limbo
    figures = {
        "recorded runs": len(CASES),
        "images": total.images,
        "inside of starts": total.nested,
        "with a torn write": total.in_limbo,
        "acknowledged lost": 0,
        "refused starts": 0,
    }
    keep_figures("crash_images", {key.replace(" ", "_"): value for key, value in figures.items()}, seed=SEED)
    assert total.images >= 100_000


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_crash_images_of_take_overs() -> None:
    """A truncated entry never returns, and what was acknowledged, a no-op too, never goes."""
    numbers = [number for number, (workload, _) in enumerate(CASES) if workload.name in TAKE_OVERS]
    total = ImagesResult()
    for number in numbers:
        result, name = one(number)
        print(f"{name}: {result.images} images, {result.nested} of them inside of starts", flush=True)
        assert result.broken == [], name
        total.images += result.images
        total.nested += result.nested
    figures = {
        "recorded_runs": len(numbers),
        "images": total.images,
        "inside_of_starts": total.nested,
        "truncated_entries_back": 0,
        "acknowledged_lost": 0,
    }
    keep_figures("crash_images_of_take_overs", figures, seed=SEED)
    assert total.images >= rounds(200, 20_000)


# --- every workload of up to three operations ---------------------------------------------------------------------

STEPS = {
    "add": lambda run, at: (run.add(1, 10 + at, size=120, lac=9), run.settle()),
    "add and go": lambda run, at: (run.add(1, 10 + at, size=700), run.flush()),
    "roll": lambda run, at: (run.add(3, at, size=4 * ROLL_BYTES), run.settle()),
    "fence": lambda run, at: (run.fence(1), run.settle()),
    "lac": lambda run, at: (run.explicit_lac(1, 9), run.settle()),
    "delete": lambda run, at: (run.delete(2), run.settle()),
    "reclaim": lambda run, at: (run.reclaim(), run.settle()),
    "kill": lambda run, at: run.kill(),
    "stop": lambda run, at: run.stop(),
}


def small_workload(names, *, direct):
    """From a disk with a sealed segment of ledger 2 and entries of ledger 1 in a nearly full one."""
    run = BookieRun(direct=direct)
    for entry_id in range(16):
        run.add(2, entry_id, size=ROLL_BYTES)
    run.add(1, 0, count=10, size=30)
    run.settle()
    first = len(run.files.recording.operations)
    for at, name in enumerate(names):
        STEPS[name](run, at)
    campaign = Campaign(run.files.recording, config=run.config, direct=direct, deep=0, seed=SEED)
    return campaign.run(every=rounds(8, 64), sample=rounds(4, 16), first_point=first)


SMALL = [names for length in (1, 2, 3) for names in product(STEPS, repeat=length)]


def some_small(start):
    """Every so many of the small workloads, from one on."""
    images, broken = 0, []
    for number in range(start, len(SMALL), 2):
        result = small_workload(SMALL[number], direct=bool(number & 2))
        images += result.images
        broken += [f"{SMALL[number]}: {line}" for line in result.broken]
    return images, broken


@pytest.mark.long
@pytest.mark.parametrize("direct", [pytest.param(False, marks=pytest.mark.slow), True])
def test_every_workload_of_up_to_two_operations(direct) -> None:
    images = 0
    for number, names in enumerate(SMALL):
        if len(names) <= 2 and (FULL or direct == (number & 1 == 1) or len(names) == 1):
            result = small_workload(names, direct=direct)
            assert result.broken == [], names
            images += result.images
    assert images > 300


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_every_small_workload() -> None:
    images = 0
    with ProcessPoolExecutor(2) as pool:
        for count, broken in pool.map(some_small, range(2)):
            assert broken == []
            images += count
    keep_figures("crash_images_of_small_workloads", {"workloads": len(SMALL), "images": images}, seed=SEED)
    assert len(SMALL) == 9 + 81 + 729
