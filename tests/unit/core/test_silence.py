"""Only what swallows a request and then says nothing is silent; what answers late never is."""

from __future__ import annotations

from quire.net.silence import SILENT_MS, Silence, SilenceMachine

LOOK_MS = 250


def looks(machine: SilenceMachine, until_ms: int, *, since_ms: int = 0) -> list[Silence]:
    """Looks at a connection over which nothing comes and no further request expires."""
    return [machine.look(now, received=False, expired=False) for now in range(since_ms, until_ms, LOOK_MS)]


def test_a_connection_that_nobody_asks_is_not_silent() -> None:
    assert set(looks(SilenceMachine(), 3_600_000)) == {Silence.NONE}


def test_an_expired_request_and_nothing_since() -> None:
    machine = SilenceMachine()
    assert machine.look(0, received=False, expired=True) is Silence.PROBED
    assert set(looks(machine, SILENT_MS, since_ms=LOOK_MS)) == {Silence.NONE}
    assert machine.look(SILENT_MS, received=False, expired=False) is Silence.SILENT


def test_a_further_expired_request_does_not_begin_the_wait_anew() -> None:
    machine = SilenceMachine()
    for now in range(0, SILENT_MS, LOOK_MS):
        assert machine.look(now, received=False, expired=True) is not Silence.SILENT
    assert machine.look(SILENT_MS, received=False, expired=True) is Silence.SILENT


def test_what_comes_ends_the_probe() -> None:
    machine = SilenceMachine()
    machine.look(0, received=False, expired=True)
    assert machine.look(SILENT_MS, received=True, expired=True) is Silence.NONE
    assert set(looks(machine, 60_000, since_ms=SILENT_MS + 1)) == {Silence.NONE}


def test_a_request_that_was_given_up_counts_from_its_deadline_on() -> None:
    machine = SilenceMachine()
    machine.given_up(5_000)
    machine.given_up(1_000)
    machine.given_up(3_000)
    assert set(looks(machine, 1_000)) == {Silence.NONE}
    assert machine.look(1_000, received=False, expired=False) is Silence.PROBED
    assert machine.look(1_000 + SILENT_MS, received=False, expired=False) is Silence.SILENT


def test_a_request_that_was_given_up_is_forgotten_when_something_comes() -> None:
    machine = SilenceMachine()
    machine.given_up(1_000)
    assert machine.look(500, received=True, expired=False) is Silence.NONE
    assert set(looks(machine, 60_000, since_ms=1_000)) == {Silence.NONE}


def test_an_hour_of_stalls_of_100_ms() -> None:
    """Every second look finds that something came; every look that a hasty client's request has expired."""
    machine = SilenceMachine()
    seen = {
        machine.look(now, received=number % 2 == 0, expired=True)
        for number, now in enumerate(range(0, 3_600_000, 100))
    }
    assert Silence.SILENT not in seen
