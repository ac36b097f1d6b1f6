"""What an exhibit of the incident museum is: the fault that somebody met elsewhere, our run of it, and a switch.

A run is one function of `fault`: with False it is built of what ships and must hold; with True exactly one part is
replaced by one that has the fault, and the same run must end in `RedError`, naming the property of the exhibit. The
fields are literals: `tools/exhibits.py` reads them without importing anything and makes `docs/museum.md` of them.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from quire_testing.explorer.check import check
from quire_testing.explorer.mutants import MUTANTS
from quire_testing.explorer.patches import applied
from quire_testing.explorer.switches import SHIPPED

ROOT = Path(__file__).resolve().parents[2]

STATES = 12_000
"""The shipped machines are explored this far here; completely in tests/check."""
SECONDS = 60

PROPERTIES = {
    "I1": "no acknowledged entry lies beyond the end of a closed ledger",
    "I2": "every acknowledged entry is on an ack quorum of the bookies that its record names",
    "I4": "a ledger is closed once, at one end",
    "I6": "fragments start one after another",
    "I9": "a fence or a deletion stays: no normal add is stored after it",
    "I10": "a bookie's LAC is never above what was acknowledged",
    "I12": "what a writer was told and where its ledger was closed agree",
    "L3": "only one leader of a log is acknowledged",
    "F2": "every add of a live writer is answered in the end",
    "F1": "a recovery ends",
    "starts": "a bookie starts, whatever a crash left",
    "readable": "an acknowledged entry is readable, or said to be unknown, and never denied",
    "kept": "what lives is not deleted",
    "healthy": "a ledger that lacks nothing is not marked for repair",
    "bounded": "what cannot be repaired is not tried without end",
    "replaced": "a bookie that is gone is replaced in every ledger that can be repaired",
    "bytes": "the bytes that are read are the bytes that were acknowledged",
    "refused": "a request that cannot be meant is refused at the door",
}
"""What a run can find violated. The names with a number are those of the explorer's invariants."""


class RedError(AssertionError):
    """A run found one of the properties violated."""

    def __init__(self, name: str, sentence: str) -> None:
        super().__init__(f"{name} ({PROPERTIES[name]}): {sentence}")
        self.name = name


def require(holds: object, name: str, sentence: str) -> None:
    """Raise `RedError` unless a property holds."""
    if not holds:
        raise RedError(name, sentence)


@dataclass(frozen=True, slots=True)
class Exhibit:
    """One incident and our run of it.

    Attributes:
        ref: where it is told: `issues/N` or `pull/N` of apache/bookkeeper, or another repository's whole path.
        title: in a few words.
        happened: what went wrong there.
        ours: what the run does here.
        switch: what brings the fault back.
        violates: the property that breaks then.
    """

    ref: str
    title: str
    happened: str
    ours: str
    switch: str
    violates: str


def incident(mutant: str = "", **fields: str) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """A run as two tests: what ships holds, and with the fault switched on the run is red.

    Args:
        mutant: one of the explorer's, whose patches are the fault; without one the run makes it.
        fields: of `Exhibit`.
    """
    exhibit = Exhibit(**fields)
    assert exhibit.violates in PROPERTIES

    def decorate(run: Callable[..., Any]) -> Callable[..., None]:
        @functools.wraps(run)
        def test(fault: bool, **fixtures: Any) -> None:
            if not fault:
                _call(run, fault=False, **fixtures)
                return
            patches = MUTANTS[mutant].switches.patches if mutant else ()
            with applied(patches), pytest.raises(RedError) as caught:
                _call(run, fault=True, **fixtures)
            assert caught.value.name == exhibit.violates, str(caught.value)

        test.exhibit = exhibit  # type: ignore[attr-defined]
        return pytest.mark.parametrize(
            "fault",
            [pytest.param(False, id="holds"), pytest.param(True, id="switched-on-is-red")],
        )(test)

    return decorate


def _call(run: Callable[..., Any], **arguments: Any) -> None:
    if inspect.iscoroutinefunction(run):
        asyncio.run(run(**arguments))
    else:
        run(**arguments)


def explored(mutant: str, *, fault: bool, **changes: int) -> None:
    """Every interleaving of a small world: as it ships, or with one of the explorer's mutants.

    Args:
        mutant: its name in `quire_testing.explorer`; its configuration is explored either way.
        changes: fields of the configuration that are other here.
    """
    named = MUTANTS[mutant]
    configuration = replace(named.configuration, **changes)
    switches = named.switches if fault else SHIPPED
    names = (named.violated,) if fault else None
    done = check(configuration, switches, invariants=names, seconds_max=SECONDS, states_max=STATES)
    violation = done.result.violation
    if violation is not None:
        raise RedError(violation.invariant, f"after {len(done.result.path) - 1} steps\n{done.text}")


def waiting(*, ref: str, title: str, happened: str, room: str, path: str) -> Callable[[], None]:
    """An incident of a room that is not built yet: shown as waiting, and red as soon as the room is there.

    Args:
        room: what it waits for.
        path: the file or folder whose existence ends the waiting; empty when only a text is missing.
    """

    def test() -> NoReturn:
        if path and (ROOT / path).exists():
            pytest.fail(f"{path} exists: {ref} waits no longer, write its run")
        pytest.skip(f"waits for {room}: {title} (apache/bookkeeper {ref})")

    return test
