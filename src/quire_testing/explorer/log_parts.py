"""The parts of a log's world: its size, its ledgers, its handles and truncations, and the state made of them.

Source: BookKeeper ledgers to logs; docs/protocol/log.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from quire.core.log.machine import LogStatus
from quire.core.log.trimming import TrimStatus
from quire_testing.explorer.configuration import budgets_text


@dataclass(frozen=True, slots=True)
class LogConfiguration:
    """One world of one log.

    Attributes:
        handles: how often the log is opened.
        ledgers: how many can be created.
        writes: how many records are appended, by all handles.
        lost_swaps: compare-and-swaps whose response never reaches the handle.
        adopts: closed ledgers that a sink puts at the end, whatever is open (without the rule `may_place_now`).
        trims: truncations, each to any offset of a closed ledger, next to the handles.
        closes: handles may close: the ledger is closed and the leadership released.
        stages: closed ledgers that a sink commits to the log; the next leader, or the close, gives them their place.
    """

    handles: int = 2
    ledgers: int = 4
    writes: int = 3
    lost_swaps: int = 0
    adopts: int = 0
    trims: int = 0
    closes: bool = False
    stages: int = 0

    @property
    def name(self) -> str:
        """The configuration on one line."""
        name = f"log {self.handles} clients {self.ledgers} ledgers {self.writes} writes"
        return name + budgets_text(self, "handles", "ledgers", "writes")


class Ledger(NamedTuple):
    """A ledger as bookies and its record have it: whose, the records that landed, whether it is closed."""

    owner: int
    records: tuple[tuple[int, int], ...] = ()
    closed: bool = False
    deleted: bool = False


class Flight(NamedTuple):
    """One append on its way: which ledger, which number, and what became of it."""

    ledger: int
    number: int
    fate: str = ""
    seen: int = 0
    """How many writes had been acknowledged when this one began: it comes after them."""


class Handle(NamedTuple):
    """One handle and its driver's few fields; or a truncation, which asks as a handle does, and appends nothing.

    Attributes:
        machine: never changed; a step works on a copy.
        state: the number of the machine's state.
        work: what was asked and has no response yet.
        target: the ledger that appends go to; `draining` the one that gets no more.
        confirmed: the ledger of each acknowledged append.
        flights: appends on their way.
    """

    machine: Any
    state: int = -1
    work: tuple[tuple[Any, ...], ...] = ()
    target: int = 0
    draining: int = 0
    appended: int = 0
    confirmed: tuple[int, ...] = ()
    flights: tuple[Flight, ...] = ()
    fault: tuple[str, str] | None = None

    @property
    def truncates(self) -> bool:
        """Whether it is a truncation."""
        return isinstance(self.machine.status, TrimStatus)

    @property
    def name(self) -> str:
        """What labels call it, before its number."""
        return "truncation" if self.truncates else "handle"

    @property
    def ended(self) -> bool:
        """Whether it is over."""
        return self.machine.status in (LogStatus.ENDED, TrimStatus.ENDED)

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal keys mean equal behaviour."""
        if self.ended:
            return ("ended", tuple(w for w in self.work if w[0] in ("late", "delete")), self.fault)
        return (
            self.state,
            self.work,
            self.target,
            self.draining,
            self.appended,
            self.confirmed,
            self.flights,
            self.fault,
        )


class LogState(NamedTuple):
    """One state of the world. `acked`: handle and number of each acknowledged write, and how many were before it."""

    head: int
    version: int
    ledgers: tuple[Ledger, ...]
    handles: tuple[int, ...]
    written: int
    lost_swaps: int
    adopts: int
    acked: tuple[tuple[int, int, int], ...]
    trimmers: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()
    """The ledgers that truncations took from the front of the list, in order."""
    stages: int = 0
    fault: tuple[str, str] | None = None


def put(ledgers: tuple[Ledger, ...], ledger_id: int, ledger: Ledger) -> tuple[Ledger, ...]:
    """The ledgers with one in a new state."""
    return (*ledgers[: ledger_id - 1], ledger, *ledgers[ledger_id:])
