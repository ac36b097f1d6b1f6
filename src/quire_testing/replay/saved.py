"""A saved failure, judged again: the transcript that `quire check` or `quire simulate` wrote, with what is there now.

| written by | its header has | done again |
| --- | --- | --- |
| `quire check --save` | configuration, mutant | its steps in the explorer, then by the programs |
| `quire simulate --level machines --transcript` | walk, configuration, mutant | the same |
| `quire simulate --transcript` | seed, mix, faults, mutant | the run, without the faults that were dropped |

Steps that are not possible any more are left out: a fix makes some of them impossible, and what is left must break nothing.

Source: docs/testing.md, "A failure that was saved".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

from quire.core.errors import MisuseError
from quire.core.transcript import NOTHING
from quire_testing.explorer.bundle_parts import BundleConfiguration
from quire_testing.explorer.check import Setting, setting_of
from quire_testing.explorer.collector_parts import CollectorConfiguration
from quire_testing.explorer.configuration import Configuration
from quire_testing.explorer.directory_world import DirectoryConfiguration
from quire_testing.explorer.explorer import Explorable
from quire_testing.explorer.log_parts import LogConfiguration
from quire_testing.explorer.log_world import LogWorld
from quire_testing.explorer.mutants import MUTANTS, AnyConfiguration
from quire_testing.explorer.story import exchanges
from quire_testing.explorer.stream_parts import StreamConfiguration
from quire_testing.explorer.stream_world import StreamWorld
from quire_testing.explorer.switches import SHIPPED, Switches
from quire_testing.explorer.world import LedgerWorld
from quire_testing.replay.log_replay import replay_log
from quire_testing.replay.replay import replay
from quire_testing.replay.streams import replay_stream
from quire_testing.sim.mixes import MIXES
from quire_testing.sim.mutants import parts_of
from quire_testing.sim.run import simulate

_LEDGER: Final = re.compile(r"(\d+) bookies (\d+)/(\d+)/(\d+) N=(\d+)(.*)")
_LOG: Final = re.compile(r"log (\d+) clients (\d+) ledgers (\d+) writes(.*)")
_STREAM: Final = re.compile(
    r"stream (\d+) bookies (\d+)/(\d+)/(\d+) N=(\d+) clients=(\d+) take overs=(\d+)(.*)"
)
_COLLECTOR: Final = re.compile(r"collector (java|ours)( mixed)? (\d+) lives (\d+) writes (\d+) passes(.*)")
_BUNDLES: Final = re.compile(r"bundles (\d+) bookies (\d+)/(\d+)/(\d+) turns=([XY-]+)(.*)")
_MORE: Final = re.compile(r"([a-z][a-z ]*)=(\w+)")
_RUN: Final = re.compile(r"seed (\d+), mix ([^:]+):")
_DROPPED: Final = re.compile(r"fault (\d+) \(dropped\)")
_VIOLATED: Final = re.compile(r"^(?:# )?VIOLATED +(invariant \d+|\w+)")


@dataclass(slots=True)
class Again:
    """What came of a saved failure this time.

    Attributes:
        mutant: the fix that is out; empty: what ships.
        named: the invariant that broke when it was saved.
        violations: what breaks now: "I1: ...".
        steps: that were taken.
        skipped: of the explorer, those that are not possible any more.
    """

    mutant: str
    named: str
    violations: list[str] = field(default_factory=list)
    steps: int = 0
    skipped: list[str] = field(default_factory=list)

    @property
    def is_as_it_should(self) -> bool:
        """What ships breaks nothing any more; with a fix out the same invariant still breaks."""
        if not self.mutant:
            return not self.violations
        return any(re.match(rf"{self.named}\b", violation) for violation in self.violations)


def configuration_of(name: str) -> AnyConfiguration | None:
    """The configuration that has this name, None if it is no name of one."""
    log, ledger = _LOG.fullmatch(name), _LEDGER.fullmatch(name)
    found = log or ledger
    if found is None:
        return _directories_of(name) or _collector_of(name) or _stream_of(name) or _bundles_of(name)
    *sizes, rest = found.groups()
    more = _more(rest)
    kind: Any = LogConfiguration if log else Configuration
    configuration: AnyConfiguration = kind(*map(int, sizes), **more)
    return configuration if configuration.name == name else None


def _directories_of(name: str) -> DirectoryConfiguration | None:
    numbers = re.findall(r"\d+", name)
    if len(numbers) != len(fields(DirectoryConfiguration)):
        return None
    configuration = DirectoryConfiguration(*map(int, numbers))
    return configuration if configuration.name == name else None


def _stream_of(name: str) -> StreamConfiguration | None:
    found = _STREAM.fullmatch(name)
    if found is None:
        return None
    *sizes, rest = found.groups()
    names = ("bookies", "ensemble", "write_quorum", "ack_quorum", "entries", "clients", "take_overs")
    fields: dict[str, Any] = dict(zip(names, map(int, sizes), strict=True))
    configuration = StreamConfiguration(**fields | _more(rest))
    return configuration if configuration.name == name else None


def _bundles_of(name: str) -> BundleConfiguration | None:
    found = _BUNDLES.fullmatch(name)
    if found is None:
        return None
    *sizes, turns, rest = found.groups()
    names = ("bookies", "ensemble", "write_quorum", "ack_quorum")
    fields: dict[str, Any] = dict(zip(names, map(int, sizes), strict=True))
    configuration = BundleConfiguration(**fields | _more(rest), turns=turns)
    return configuration if configuration.name == name else None


def _collector_of(name: str) -> CollectorConfiguration | None:
    found = _COLLECTOR.fullmatch(name)
    if found is None:
        return None
    whose, mixed, lives, writes, passes, rest = found.groups()
    more: dict[str, Any] = {
        {"lost_answers": "lost"}.get(key, key): value for key, value in _more(rest).items()
    }
    configuration = CollectorConfiguration(
        whose == "ours", bool(mixed), int(lives), int(writes), int(passes), **more
    )
    return configuration if configuration.name == name else None


def _more(rest: str) -> dict[str, int | bool]:
    return {key.replace(" ", "_"): _value(value) for key, value in _MORE.findall(rest)}


def _value(text: str) -> int | bool:
    return {"yes": True, "no": False}[text] if text in ("yes", "no") else int(text)


def judge_again(text: str) -> Again:
    """Do what a saved failure says, and judge what comes of it.

    Raises:
        MisuseError: it is no transcript of a failure.
    """
    lines = text.splitlines()
    header = [line.removeprefix("# ") for line in lines if line.startswith("# ")]
    mutant = next((line.split(":")[0].split()[1] for line in header if line.startswith("mutant ")), "")
    named = next((found[1] for found in map(_VIOLATED.match, lines) if found), "")
    again = Again(mutant, named)
    configurations = [found for found in map(configuration_of, header) if found is not None]
    run = next((found for found in map(_RUN.match, header) if found), None)
    if configurations:
        _steps_again(again, configurations[0], text)
    elif run is not None and run[2] in MIXES:
        dropped = frozenset(int(found[1]) for found in map(_DROPPED.match, header) if found)
        outcome = simulate(int(run[1]), run[2], parts=parts_of(mutant), dropped=dropped)
        again.violations, again.steps = outcome.violations, outcome.events
    else:
        msg = "this is no saved failure: its header names neither a configuration nor a seed and a mix"
        raise MisuseError(msg)
    return again


def _steps_again(again: Again, configuration: AnyConfiguration, text: str) -> None:
    if again.mutant and again.mutant not in MUTANTS:
        msg = f"there is no mutant {again.mutant!r}"
        raise MisuseError(msg)
    switches = MUTANTS[again.mutant].switches if again.mutant else SHIPPED
    # A mutant may break several; the one that the failure is about is looked at.
    with switches.applied():
        setting = setting_of(configuration, switches, [again.named] if again.mutant else None)
        path = _walked(again, setting, exchanges(text))
        again.steps = len(path) - 1
        if not again.violations:
            again.violations = _programs_again(setting, configuration, switches, path)


def _walked(
    again: Again, setting: Setting, steps: Sequence[tuple[str, tuple[str, ...]]]
) -> list[tuple[Any, Any]]:
    world: Explorable = setting.world
    state = world.initial()
    path: list[tuple[Any, Any]] = [(None, state)]
    for command, said in steps:
        moves = [move for move in world.successors(state) if f"{move[0].actor}: {move[0].command}" == command]
        if not moves:
            again.skipped.append(command)
            continue
        label, state = next((move for move in moves if (move[0].said or (NOTHING,)) == said), moves[0])
        path.append((label, state))
        violation = setting.violation_in(state)
        if violation is not None:
            again.violations = [f"{violation.invariant}: {violation.text}"]
            return path
    if setting.deadlock_in is not None and not world.successors(state):
        deadlock = setting.deadlock_in(state)
        again.violations = [f"{deadlock.invariant}: {deadlock.text}"] if deadlock else []
    return path


def is_replayed(configuration: Configuration) -> bool:
    """Whether programs can be led through this world: not through one with readers."""
    return not configuration.readers


def _programs_again(
    setting: Setting, configuration: AnyConfiguration, switches: Switches, path: Sequence[tuple[Any, Any]]
) -> list[str]:
    """What breaks when the programs go the same way, as far as they can."""
    world = setting.world
    if isinstance(world, LogWorld):
        played: Any = replay_log(world, path, switches, strict=False, to_the_end=True)
    elif isinstance(world, StreamWorld):
        played = replay_stream(world, path, switches, strict=False)
    elif not isinstance(world, LedgerWorld) or (
        isinstance(configuration, Configuration) and not is_replayed(configuration)
    ):
        return []  # a replay has no readers, collectors, directories and bundles; the explorer has asked about theirs
    else:
        played = replay(world, path, switches, strict=False)
    violation = played.violation
    return [f"{violation.invariant}: {violation.text} (the programs)"] if violation else []
