"""How fast a worker repairs, and what that says of the time that is left.

Source: docs/autorecovery.md, "What an operator sees".
"""

from __future__ import annotations

import pytest

from quire.core.repair.rate import LATELY_MS, RepairRate, seconds_left

MB = 1_000_000


def left(rate: RepairRate, ledgers: int, size: int) -> float | None:
    return seconds_left(ledgers, size, rate.ledgers_per_hour, rate.bytes_per_s)


def test_small_ledgers_are_counted_and_of_large_ones_the_bytes() -> None:
    small, large = RepairRate(), RepairRate()
    for _ in range(10):
        small.looked(1_000, 50, 50 * 10_000, busy=True)
        large.looked(10_000, 1, 800 * MB, busy=True)
    assert left(small, 3_000, 30 * MB) == pytest.approx(60)
    assert left(large, 5, 4_000 * MB) == pytest.approx(50)
    # More of the one kind than what was repaired so far leads to expect.
    assert left(large, 5, 8_000 * MB) == pytest.approx(100)
    assert left(small, 6_000, 30 * MB) == pytest.approx(120)


def test_before_anything_was_repaired_nobody_knows() -> None:
    rate = RepairRate()
    assert left(rate, 10, 100) is None
    rate.looked(1_000, 0, 0, busy=True)
    assert left(rate, 10, 100) is None
    rate.looked(1_000, 0, 4 * MB, busy=True)
    assert left(rate, 10, 8 * MB) == pytest.approx(4), "a large ledger is under way"


def test_the_last_minute_of_work_counts_and_no_time_without_work() -> None:
    rate = RepairRate()
    for _ in range(100):
        rate.looked(1_000, 100, MB, busy=True)
    for _ in range(1000):
        rate.looked(10_000, 0, 0, busy=False)
    assert (rate.ledgers_per_hour, rate.bytes_per_s) == (0, 0)
    rate.looked(1_000, 100, MB, busy=True)
    assert (rate.ledgers_per_hour, rate.bytes_per_s) == (360_000, MB)
    for _ in range(LATELY_MS // 1_000):
        rate.looked(1_000, 1, 2 * MB, busy=True)
    assert (rate.ledgers_per_hour, rate.bytes_per_s) == (3_600, 2 * MB)


def test_one_look_may_be_longer_than_a_minute() -> None:
    rate = RepairRate()
    rate.looked(1_000, 100, MB, busy=True)
    rate.looked(100_000, 100, 100 * MB, busy=False)
    assert (rate.ledgers_per_hour, rate.bytes_per_s) == (3_600, MB)
