"""What goes wrong in a run: a list of faults, drawn at its beginning, each with its moment, so that each can be left out.

A fault names who it strikes and how long it lasts; the world carries it out and heals it.

Source: docs/simulation.md, "The world".
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from quire_testing.sim.loop import MS, SECOND


class Phase(StrEnum):
    """What a fault's moment is counted from."""

    BEGIN = "begin"
    """The workload begins."""
    TAKEOVER = "take-over"
    """The first recovery, or the second leader, begins."""


class FaultKind(StrEnum):
    """What goes wrong.

    BREAK closes connections. CUT holds back what one host sends another, ISOLATE what one and all others send each other:
    it arrives once that is over. SILENCE has the connections of two hosts swallow what is sent.
    """

    KILL = "kill"
    POWER = "power"
    PAUSE = "pause"
    BREAK = "break"
    CUT = "cut"
    ISOLATE = "isolate"
    SLOW_LINK = "slow link"
    SLOW_DISK = "slow disk"
    DISK_FAILS = "disk fails"
    DISK_FULL = "disk full"
    ROT = "rot"
    STORE_CUT = "no metadata store"
    SESSION_LOST = "session lost"
    CLOCK_JUMP = "clock jump"
    DIES_WRITING = "dies writing"
    KILL_CLIENT = "kill client"
    SILENCE = "silent connection"
    FEW_DESCRIPTORS = "few descriptors"
    LOST = "lost for ever"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        phase: what its moment is counted from.
        after_ns: how long after.
        kind: what.
        who: a host.
        other: the other end, of links.
        amount: how much slower, how far the clock jumps (ms), how many descriptors are left.
        lasts_ns: until it is healed; 0: until the end of the run.
    """

    phase: Phase
    after_ns: int
    kind: FaultKind
    who: str
    other: str = ""
    amount: int = 0
    lasts_ns: int = 0

    def __str__(self) -> str:
        parts = [f"{self.phase} + {self.after_ns / MS:.2f} ms: {self.kind} {self.who}"]
        if self.other:
            parts.append(f"-> {self.other}")
        if self.amount:
            parts.append(f"by {self.amount}")
        parts.append(f"for {self.lasts_ns / MS:.0f} ms" if self.lasts_ns else "to the end")
        return " ".join(parts)


LINKS: Final = frozenset({FaultKind.BREAK, FaultKind.CUT, FaultKind.SLOW_LINK, FaultKind.SILENCE})
ON_CLIENTS: Final = frozenset({FaultKind.KILL_CLIENT})
ON_ANY: Final = frozenset(
    {FaultKind.PAUSE, FaultKind.STORE_CUT, FaultKind.SESSION_LOST, FaultKind.CLOCK_JUMP, FaultKind.ISOLATE}
)


def draw_faults(
    chance: random.Random,
    weights: dict[FaultKind, int],
    count: int,
    bookies: Sequence[str],
    clients: Sequence[str],
) -> list[Fault]:
    """As many faults, by chance.

    Only one bookie's bytes rot in a run: what is acknowledged survives the loss of Qa - 1 disks, and Qa is 2 at least
    where disks rot.
    """
    kinds = [kind for kind, weight in weights.items() for _ in range(weight)]
    rotten = chance.choice(bookies)
    found: list[Fault] = []
    for _ in range(count):
        kind = chance.choice(kinds)
        phase = Phase.TAKEOVER if chance.random() < 0.7 else Phase.BEGIN
        who, other = chance.choice(bookies), ""
        if kind in ON_CLIENTS:
            who = chance.choice(clients)
        elif kind in ON_ANY:
            who = chance.choice([*bookies, *clients])
        elif kind in LINKS:
            other = chance.choice(clients)
            if chance.getrandbits(1):
                who, other = other, who
        elif kind is FaultKind.ROT:
            who = rotten
        found.append(
            Fault(
                phase,
                _moment(chance),
                kind,
                who,
                other,
                _amount(chance, kind),
                _length(chance) if chance.random() < 0.8 else 0,
            )
        )
    found.sort(key=lambda fault: (fault.phase.value, fault.after_ns))
    return found


def _moment(chance: random.Random) -> int:
    """Most within milliseconds, some within a second."""
    return min(int(2 * MS * (1.0 - chance.random()) ** -1.0) - 2 * MS + chance.randrange(3 * MS), 2 * SECOND)


def _length(chance: random.Random) -> int:
    return min(int(30 * MS * (1.0 - chance.random()) ** -1.0), 5 * SECOND)


def _amount(chance: random.Random, kind: FaultKind) -> int:
    if kind in {FaultKind.SLOW_LINK, FaultKind.SLOW_DISK}:
        return chance.choice((10, 100, 1000))
    if kind is FaultKind.CLOCK_JUMP:
        return chance.choice((-86_400_000, -3_600_000, -1000, 1000, 3_600_000, 86_400_000))
    if kind is FaultKind.FEW_DESCRIPTORS:
        return chance.randrange(4)
    if kind is FaultKind.DIES_WRITING:
        return 1 + chance.randrange(12)
    return 0
