"""What can befall a streaming query that writes into a log: who dies, at which step of the sink; for sink_rounds.py.

A step is known by the role of the process that reaches it and its name (`Failpoints.at`). Roles and victims are Spark's: the
driver, which notes what is committed, its workers, which stage, and its planner, which commits and aborts. A bookie, the
log's leader and the metadata store die from outside, at the moment at which one of these three reaches a step.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

BATCHES = 3
STAGING = ("open", "opened", "append", "close", "closed", "staged")
STEPS = {
    "worker": STAGING,
    "commit": ("commit", "read", "fence", "swap", "swapped", "committed"),
    "abort": ("abort", "delete", "deleted"),
    "driver": ("noting", "noted"),
}
"""The steps of each role; the planner has two, since it commits and aborts."""
OUTSIDE = ("bookie", "leader", "store")
"""Victims that are no process of the query's."""
VICTIMS = ("driver", "worker", "planner", *OUTSIDE)
PHASES = {
    "staging": [("worker", step) for step in STAGING],
    "swap": [(role, step) for role in ("commit", "driver") for step in STEPS[role]],
    "inline": [("commit", step) for step in STAGING if step != "staged"],
    "abort": [("abort", step) for step in STEPS["abort"]],
    "replay": [
        *(("worker", step) for step in STAGING),
        *(("commit", step) for step in ("commit", "read", "delete", "committed")),
        *(("driver", step) for step in STEPS["driver"]),
    ],
}
"""What a batch goes through, and the steps of it: `inline` is the ledger that a commit writes of few rows, `abort` what
follows a commit that raised, `replay` a batch that is in the log and comes again."""
FAILING = [("commit", step) for step in ("commit", "read", "swap", "swapped", "committed")]
"""Where a fault makes Spark abort a batch."""


def process_of(role: str) -> str:
    """Which process of the query's does the steps of a role."""
    return "planner" if role in {"commit", "abort"} else role


PLANNED = [
    (victim, phase, role, step)
    for phase, steps in PHASES.items()
    for role, step in steps
    for victim in ("driver", *OUTSIDE, *({process_of(role)} - {"driver"}))
]
"""Every victim at every step: a driver dies whoever does the step, a worker and a planner at their own steps, and what
is outside at all of them."""


@dataclass(frozen=True)
class Fault:
    """One fault of one life.

    Attributes:
        role: whose step, and `step` its name; `batch` the batch in which it is reached.
        victim: who is killed.
        how: "kill", "stop" (the query's processes stand still, are taken for dead, and go on later), or "raise" (the
            step fails).
        nth: how many times the step must have been reached, in one process and batch.
        lingers: of a killed driver: the process that does the step finishes its work first.
        phase: what the batch was going through, for the figures; "" for a fault by the way.
    """

    role: str
    step: str
    victim: str
    batch: int = 0
    how: str = "kill"
    nth: int = 1
    lingers: bool = False
    phase: str = ""


@dataclass(frozen=True)
class Life:
    """What befalls one life of a driver.

    Attributes:
        lost: compare-and-swaps, counted from 0, whose answer is lost: "after" they are done or "before".
        away: so many calls of the store in a row, from the first compare-and-swap on, find it away.
        pids: the processes of victims outside.
        number: which life of its query it is.
    """

    faults: tuple[Fault, ...] = ()
    lost: tuple[tuple[int, str], ...] = ()
    away: int = 0
    pids: tuple[tuple[str, int], ...] = ()
    number: int = 0


def planned_lives(chance: random.Random, planned: tuple[str, str, str, str]) -> list[Life]:
    """The lives that bring a query to a step, and there kill a victim."""
    victim, phase, role, step = planned
    batch = 0 if step == "fence" else chance.randrange(BATCHES)  # only the first batch has a leader to end
    kill = Fault(role, step, victim, batch, lingers=chance.random() < 0.5, phase=phase)
    if phase == "staging":
        kill = Fault(role, step, victim, batch, nth=chance.randint(1, 2), lingers=kill.lingers, phase=phase)
    if phase == "abort":
        failing, at = chance.choice(FAILING)
        return [_by_the_way(chance, Fault(failing, at, "", batch, how="raise"), kill)]
    if phase == "replay":
        return [Life((Fault("driver", "noting", "driver", batch),)), _by_the_way(chance, kill)]
    return [_by_the_way(chance, kill)]


def _by_the_way(chance: random.Random, *faults: Fault) -> Life:
    """A life with these faults, and answers of compare-and-swaps that are lost by chance."""
    lost: tuple[tuple[int, str], ...] = ()
    if chance.random() < 0.2:
        lost = tuple((n, chance.choice(["before", "after"])) for n in chance.sample(range(3), 2))
    return Life(faults, lost, chance.choice([0, 0, 0, 0, 3]))


def any_life(chance: random.Random) -> Life:
    """A life with one fault anywhere, which may not be reached."""
    role = chance.choice(list(STEPS))
    step = chance.choice(STEPS[role])
    how = chance.choice(["kill", "kill", "raise", "stop"])
    victim = chance.choice(["driver", process_of(role)])
    batch = chance.randrange(BATCHES)
    return _by_the_way(chance, Fault(role, step, victim, batch, how, chance.randint(1, 2)))
