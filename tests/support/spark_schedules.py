"""Random schedules of what befalls a stream and its checkpoint, and what must be true at their end.

A schedule feeds a log, lets something happen, and runs the stream; then it feeds it again. At the end every row is there
once. An error that a plain restart does not end may stand only where the checkpoint was cut back or copied, or where every
copy of an entry is damaged; then what is right is put back, and the stream goes on as if nothing had been tried.
"""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

ROWS_A_STEP = 12
LIVES_MAX = 8
"""So many plain restarts end every error that one can end."""
STANDING = 2
"""An error that comes again after so many restarts stands."""
KINDS = ("source", "sink", "foreachBatch")
FAULTS = ("driver", "executor", "straggler", "bookies", "damage", "cut", "copy", "commit")
STEPS_MAX = 24
"""Of the steps of a run; a source's run has fewer, so that some processes are not struck."""
REFUSALS = (
    "A whole checkpoint repeats only its last batch",
    "is in the log, made of another input",
    "already, with other rows",
    "which may be there or not",
)
"""What a checkpoint is told that is not the one that the log's sink position was made with."""


@dataclass(frozen=True)
class Event:
    """What happens in one step of a schedule.

    Attributes:
        fault: one of `FAULTS`.
        nth: the step of the run at which a process is struck.
        seconds: how long bookies stand still; `count` is how many of them, how many copies are damaged, or how many batches
            a checkpoint loses.
        first: of a copied checkpoint, whether the copy goes on before its original.
    """

    fault: str
    nth: int = 1
    seconds: int = 1
    count: int = 1
    first: bool = False


@dataclass
class Schedule:
    """What is to happen, and what did.

    Attributes:
        refused: errors that stood, of checkpoints that were not whole.
        struck: processes that were.
        lost: the error of an entry whose every copy is damaged; it ends the schedule.
        wrong: what must not be.
    """

    seed: int
    kind: str
    events: list[Event]
    refused: list[str] = field(default_factory=list)
    struck: int = 0
    lost: str = ""
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Take events as they are kept in a file."""
        self.events = [event if isinstance(event, Event) else Event(**event) for event in self.events]


def schedule_of(seed: int, faults: tuple[str, ...] = FAULTS, steps: int = 3) -> Schedule:
    """A schedule by chance; the kinds follow each other as seeds are counted up."""
    chance = random.Random(seed)
    counts = {"bookies": (1, 4), "damage": (1, 3), "cut": (1, 5)}
    events = []
    for _ in range(steps):
        fault = chance.choice(faults)
        events.append(
            Event(
                fault,
                chance.randint(1, STEPS_MAX),
                round(60 ** chance.random()),
                chance.randint(*counts.get(fault, (1, 1))),
                chance.random() < 0.5,
            )
        )
    return Schedule(seed, KINDS[seed % len(KINDS)], events)


class Cluster(Protocol):
    """Where a schedule is played."""

    def create(self, log: str) -> None:
        """Make a log."""

    def append(self, log: str, rows: list[str]) -> None:
        """Write rows into a log, and close its ledger."""

    def values(self, log: str) -> list[str]:
        """What a log holds."""

    def stand_still(self, count: int, seconds: int) -> Callable[[], None]:
        """Stop some bookies for so long; the function returned waits for the end of that."""

    def damage(self, row: str, count: int) -> int:
        """Damage so many copies of the entry that holds a row; how many undamaged ones there are left."""


class Player:
    """Plays schedules.

    Args:
        cluster: where.
        run: runs a fate (`spark_streams.py`); None when the driver is gone.
        folder: for checkpoints.
    """

    def __init__(
        self, cluster: Cluster, run: Callable[[dict[str, Any]], dict[str, Any] | None], folder: Path
    ) -> None:
        self._cluster, self._run, self._root = cluster, run, folder

    def play(self, this: Schedule) -> Schedule:
        """Play a schedule, and say what is wrong at its end."""
        self._this, self._chance, self._life = this, random.Random(this.seed), 0
        self._folder = self._root / f"{this.seed}"
        self._folder.mkdir()
        self._rows: list[str] = []
        self._checkpoint = self._folder / "checkpoint"
        self._in, self._out = f"in-{this.seed}", f"out-{this.seed}"
        for log in (self._in, self._out):
            self._cluster.create(log)
        self._feed()
        self._finish()
        for event in this.events:
            self._feed()
            getattr(self, f"_{event.fault}")(event)
            if this.lost or this.wrong:
                break
            self._finish()
        self._judge()
        return this

    # --- runs --------------------------------------------------------------------------------------------------

    def _feed(self) -> None:
        first = len(self._rows)
        new = [f"row {self._this.seed}/{n:05}." for n in range(first, first + ROWS_A_STEP)]
        self._rows += new
        self._cluster.append(self._in, new)

    def _once(self, checkpoint: Path | None = None, victim: str = "none", nth: int = 0) -> str | None:
        """One run; the error it ended with, "" for none, None when the driver is gone."""
        self._life += 1
        fate = {
            "folder": str(self._folder),
            "checkpoint": (checkpoint or self._checkpoint).name,
            "kind": self._this.kind,
            "source": self._in,
            "target": self._out,
            "life": self._life,
            "victim": victim,
            "nth": nth,
        }
        answer = self._run(fate)
        if answer is None:
            return None
        return "" if answer["ended"] else str(answer["error"]) or "an error without a word"

    def _finish(self) -> None:
        """Restart until all is written: with a whole checkpoint no error stands."""
        error: str | None = None
        for _ in range(LIVES_MAX):
            error = self._once()
            if error == "":
                return
            if error is not None and any(text in error for text in REFUSALS):
                break
        self._this.wrong.append(f"a whole checkpoint does not end: {error}")

    def _standing(self, checkpoint: Path | None = None, says: tuple[str, ...] = REFUSALS) -> str:
        """The error that restarts do not end, "" when one did. It stands when it says the same a few times.

        Any other one may be of a machine that is too busy to start Spark's workers in time: restarts must end it.
        """
        error: str | None = None
        standing = 0
        for _ in range(LIVES_MAX):
            error = self._once(checkpoint)
            if error == "":
                return ""
            standing += error is not None and any(text in error for text in says)
            if standing == STANDING:
                break
        return error or "the driver is gone"

    # --- faults ------------------------------------------------------------------------------------------------

    def _driver(self, event: Event) -> None:
        self._once(victim="driver", nth=event.nth)

    def _executor(self, event: Event) -> None:
        self._once(victim="executor", nth=event.nth)

    def _straggler(self, event: Event) -> None:
        self._once(victim="straggler", nth=event.nth)

    def _bookies(self, event: Event) -> None:
        wait = self._cluster.stand_still(event.count, event.seconds)
        self._once()
        wait()

    def _damage(self, event: Event) -> None:
        row = self._chance.choice(self._rows[-ROWS_A_STEP:])
        left = self._cluster.damage(row, event.count)
        if left:
            return
        error = self._standing(says=("",))
        if error == "":
            self._this.wrong.append(f"{row!r} is damaged everywhere, and nothing says so")
        self._this.lost = error

    def _commit(self, event: Event) -> None:
        del event
        last = max(self._numbers("commits"))
        for name in (f"{last}", f".{last}.crc"):
            (self._checkpoint / "commits" / name).unlink(missing_ok=True)

    def _cut(self, event: Event) -> None:
        """The checkpoint loses its newest batches. What it had is put back if it is refused."""
        whole = shutil.copytree(self._checkpoint, self._folder / f"whole-{self._life}")
        kept = max(self._numbers("offsets")) - event.count
        for folder in ("offsets", "commits"):
            for number in self._numbers(folder):
                if number > kept:
                    for name in (f"{number}", f".{number}.crc"):
                        (self._checkpoint / folder / name).unlink(missing_ok=True)
        error = self._standing()
        if error:
            self._refused(error)
            shutil.rmtree(self._checkpoint)
            shutil.copytree(whole, self._checkpoint)

    def _copy(self, event: Event) -> None:
        """A copy goes on before or after its original; the one that is refused is given up."""
        copy = self._folder / f"copy-{self._life}"
        shutil.copytree(self._checkpoint, copy)
        kept = self._folder / f"rows-{self._checkpoint.name}"
        if kept.exists():
            shutil.copytree(kept, self._folder / f"rows-{copy.name}")
        first, second = (copy, self._checkpoint) if event.first else (self._checkpoint, copy)
        self._checkpoint = first
        self._finish()
        self._feed()
        error = self._standing(second)
        if error:
            self._refused(error)
        elif self._this.kind == "source":
            self._judge_source(second)
        else:
            self._checkpoint = second  # it was at the very same point, and has gone on

    def _refused(self, error: str) -> None:
        if self._this.kind == "source" or not any(text in error for text in REFUSALS):
            self._this.wrong.append(f"a checkpoint that was cut or copied ends with: {error}")
        self._this.refused.append(error)

    def _numbers(self, folder: str, checkpoint: Path | None = None) -> list[int]:
        found = (checkpoint or self._checkpoint) / folder
        return sorted(int(path.name) for path in found.iterdir() if path.name.isdecimal())

    # --- the end -----------------------------------------------------------------------------------------------

    def _judge(self) -> None:
        self._this.struck = len(list(self._folder.glob("struck-*")))
        if self._this.kind == "source":
            self._judge_source(self._checkpoint)
            return
        count = Counter(self._cluster.values(self._out))
        twice = [row for row, times in count.items() if times > 1]
        strange = [row for row in count if row not in self._rows]
        missing = [row for row in self._rows if row not in count]
        if twice or strange or (missing and not self._this.lost):
            self._this.wrong.append(f"twice {twice}, missing {missing}, of nobody {strange}")

    def _judge_source(self, checkpoint: Path) -> None:
        """Each batch is the records between the offsets that its checkpoint notes; together they are all."""
        begin = 0
        committed = set(self._numbers("commits", checkpoint))
        for number in self._numbers("offsets", checkpoint):
            if number not in committed:
                continue
            lines = (checkpoint / "offsets" / f"{number}").read_text().splitlines()
            end = int(json.loads(lines[-1])["logs"][self._in]["offset"])
            kept = self._folder / f"rows-{checkpoint.name}" / f"{number}"
            wanted = [[offset, self._rows[offset]] for offset in range(begin, end)]
            if json.loads(kept.read_text()) != wanted:
                self._this.wrong.append(f"batch {number} of {checkpoint.name} is not {begin}..{end - 1}")
            begin = end
        if begin != len(self._rows) and not self._this.lost:
            self._this.wrong.append(f"{checkpoint.name} ends at {begin} of {len(self._rows)}")
