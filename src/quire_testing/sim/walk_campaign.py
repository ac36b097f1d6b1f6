"""Many walks, and what is left of a failing one when every step that it does not need is left out.

Source: docs/simulation.md, "Walks of the machines".
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from typing import Any, Final

from quire.core.errors import MisuseError
from quire_testing.explorer.configuration import Configuration
from quire_testing.explorer.mutants import OF_MACHINES
from quire_testing.explorer.story import state_rows, transcript
from quire_testing.explorer.switches import SHIPPED, Switches
from quire_testing.explorer.tables import Label
from quire_testing.sim.campaign import Failure, Tally
from quire_testing.sim.walk_mixes import WALK_MIXES
from quire_testing.sim.walks import Walk, Walks, walks_of

SHRINK_REPLAYS: Final = 1500
"""How many times a failing walk is taken again to make it shorter."""


def switches_of(mutant: str) -> Switches:
    """What the machines are without one fix; the shipped ones for no name.

    Raises:
        MisuseError: there is no such mutant.
    """
    if not mutant:
        return SHIPPED
    if mutant not in OF_MACHINES:
        msg = f"there is no mutant {mutant!r} of the machines; there are {', '.join(OF_MACHINES)}"
        raise MisuseError(msg)
    return OF_MACHINES[mutant].switches


def some_walks(mixes: Sequence[str], seeds: Sequence[int], mutant: str = "") -> Tally:
    """Take the walks of some seeds, the mixes in turn. In a process of its own, or here."""
    tally = Tally()
    switches = switches_of(mutant)
    began = time.process_time()
    collected = gc.isenabled()
    gc.disable()  # a world's tables are large and have no cycles
    try:
        # Mix by mix: the tables of one world at a time stay in the caches.
        for seed in seeds if mutant else sorted(seeds, key=lambda seed: seed % len(mixes)):
            mix = mixes[seed % len(mixes)]
            walk = walks_of(mix, switches).walk(seed)
            tally.runs[mix] += 1
            tally.events += walk.steps
            tally.seen.update(dict.fromkeys(walk.seen, 1))
            if walk.violation is not None:
                text = f"{walk.violation.invariant}: {walk.violation.text}"
                tally.failures.append(Failure(seed, mix, (text,)))
                if mutant:
                    break
    finally:
        if collected:
            gc.enable()
    tally.failures.sort(key=lambda failure: failure.seed)
    tally.cpu_seconds = time.process_time() - began
    return tally


def shortest(walk: Walk, mutant: str = "") -> Walk:
    """A failing walk with as few steps as it takes to break the same invariant.

    First fewer entries before it begins (the stripes are the same every E entries); then steps are left out, many at a
    time and one by one; what is not possible any more without them goes too.
    """
    switches = switches_of(mutant)
    with switches.applied():
        return _shortest(walks_of(walk.mix, switches), walk)


def _shortest(walks: Walks, walk: Walk) -> Walk:
    if isinstance(walks.configuration, Configuration):
        for skipped in range(walks.configuration.entries):
            other = walks.walk(walk.seed, skipped)
            if _same(walk, other) and other.steps < walk.steps:
                walk = other
                break
    labels = [label for label, _ in walk.path[1:]]
    size, left = max(1, len(labels) // 2), SHRINK_REPLAYS
    while left:
        index, shorter = 0, False
        while index < len(labels) and left:
            left -= 1
            tried = _taken_again(walks, walk, labels[:index] + labels[index + size :])
            if tried is not None and tried.steps < len(labels):
                walk, shorter = tried, True
                labels = [label for label, _ in walk.path[1:]]
            else:
                index += size
        if size == 1 and not shorter:
            break
        size = max(1, size // 2)
    return walk


def _same(walk: Walk, other: Walk) -> bool:
    one, two = walk.violation, other.violation
    return one is not None and two is not None and one.invariant == two.invariant


def _taken_again(walks: Walks, walk: Walk, labels: Sequence[Label]) -> Walk | None:
    """These steps, without those that are not possible, up to the same violation; None if it does not come."""
    other = Walk(walk.seed, walk.mix, [(None, walks.world.initial())])
    state: Any = other.path[0][1]
    moves: Sequence[tuple[Label, Any]] = walks.world.successors(state)
    for wanted in labels:
        alike = [m for m in moves if m[0].actor == wanted.actor and m[0].command == wanted.command]
        if not alike:
            continue
        label, state = next((move for move in alike if move[0].said == wanted.said), alike[0])
        other.path.append((label, state))
        other.violation = walks.watch(state)
        if other.violation is not None:
            return other if _same(walk, other) else None
        moves = walks.world.successors(state)
    if not moves and walks.stuck is not None:
        other.violation = walks.stuck(state)
    return other if _same(walk, other) else None


def walk_text(walk: Walk, mutant: str = "") -> str:
    """A walk as a transcript, in the form of the explorer's counterexamples."""
    walks = walks_of(walk.mix, switches_of(mutant))
    header = [f"walk {walk.seed}, mix {walk.mix}: {WALK_MIXES[walk.mix].what}", walks.configuration.name]
    if mutant:
        header.append(f"mutant {mutant}: {OF_MACHINES[mutant].what}")
    rows = state_rows(walks.world, walk.path[-1][1])
    return transcript(header, walk.path, walk.violation, rows)
