"""Memory is given back once a crowd has gone for a while, and not while a load only goes up and down."""

from __future__ import annotations

from quire.env.memory import QUIET_MS, WORTH_BYTES, MemoryPeakMachine

CROWD = 20 * WORTH_BYTES


def given_back(machine: MemoryPeakMachine, held: int, since_ms: int, until_ms: int) -> list[int]:
    """When memory was given back, of looks once a second."""
    return [now for now in range(since_ms, until_ms, 1000) if machine.look(now, held)]


def test_once_after_a_crowd_has_gone() -> None:
    machine = MemoryPeakMachine()
    assert given_back(machine, CROWD, 0, 60_000) == []
    assert given_back(machine, 0, 60_000, 600_000) == [60_000 + QUIET_MS]


def test_within_a_minute() -> None:
    assert QUIET_MS <= 30_000


def test_not_while_a_load_goes_up_and_down() -> None:
    machine = MemoryPeakMachine()
    for now in range(0, 3_600_000, 2000):
        assert not machine.look(now, CROWD)
        assert not machine.look(now + 1000, 0)


def test_little_is_not_worth_it() -> None:
    machine = MemoryPeakMachine()
    machine.look(0, WORTH_BYTES - 1)
    assert given_back(machine, 0, 1000, 600_000) == []


def test_the_next_crowd_counts_anew() -> None:
    machine = MemoryPeakMachine()
    machine.look(0, CROWD)
    assert len(given_back(machine, 0, 1000, 60_000)) == 1
    machine.look(60_000, CROWD)
    assert len(given_back(machine, 0, 61_000, 120_000)) == 1
