"""What every handle of one client shares, handed to each as one value."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Self

from quire.client.bookies.bookies import BookieClient
from quire.client.config import ClientConfig
from quire.client.leaving import LeavingWriter
from quire.client.machines import SHIPPED, Machines
from quire.client.sending.bundles import LoopTurn
from quire.client.sending.lac_sending import LacFrames
from quire.client.sending.ticks import Ticks
from quire.core.ledger.placement import Quarantine, RandomSource
from quire.env.interfaces import Clock
from quire.metadata.records import AllRecords


@dataclass(frozen=True, slots=True)
class ClientContext:
    """What the writers, readers and recoveries of one client share.

    Attributes:
        bookies: connections and registrations.
        records: those of ledgers and streams.
        clock: monotonic time.
        chance: draws replacements.
        config: sizes and times.
        machines: makes the state machines of writers and recoveries.
        quarantine: bookies that failed lately.
        ticks: the writers' timer.
        lacs: sends their LACs together, one frame a bookie.
        turn: the end of the loop turn, when they hand over what they collected.
    """

    bookies: BookieClient
    records: AllRecords
    clock: Clock
    chance: RandomSource
    config: ClientConfig
    machines: Machines
    quarantine: Quarantine
    ticks: Ticks
    lacs: LacFrames
    turn: LoopTurn

    @classmethod
    def of(
        cls,
        bookies: BookieClient,
        records: AllRecords,
        clock: Clock,
        chance: RandomSource,
        config: ClientConfig,
        machines: Machines = SHIPPED,
    ) -> Self:
        """A client's context, with a quarantine, a timer and LAC frames of its own."""
        quarantine = Quarantine(config.quarantine_ms)
        ticks = Ticks(config.slow_after_ms / 2, config.explicit_lac_after_ms, lambda: bookies.anything_unsent)
        lacs = LacFrames(bookies, config)
        return cls(
            bookies,
            records,
            clock,
            chance,
            config,
            machines,
            quarantine,
            ticks,
            lacs,
            LoopTurn(bookies, config),
        )

    @property
    def unfinished(self) -> Collection[LeavingWriter]:
        """The writers of ledgers that hold something (see `sending/ticks.py`), or are to be asked to leave."""
        writers = (*self.ticks.unfinished, *self.turn.unfinished)
        return dict.fromkeys(writers)
