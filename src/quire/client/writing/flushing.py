"""Does what the flush of a ledger's writer asks: a timer, and bookies that are sent nothing more. `core/ledger/flush.py` decides.

Source: `docs/protocol/closing.md`, "What bookies have not been sent".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from quire.client.access import LedgerAccess
from quire.client.config import ClientConfig
from quire.client.sending.bundles import SlotConnection
from quire.client.sending.outgoing import Outgoing
from quire.core.answers import Answer
from quire.core.errors import NoSuchLedgerError, NoSuchStreamError
from quire.core.ids import BookieId, LedgerId
from quire.core.ledger.effects import SetTimer
from quire.core.ledger.flush import BookieGivenUp, FlushMachine, FlushStatus
from quire.core.ledger.placement import Quarantine
from quire.core.ledger.writer_state import Hole
from quire.env.interfaces import Clock
from quire.metadata.records import RecordStore

log = logging.getLogger(__name__)

KNOWN_SILENT = 10
"""What the usual time-out is divided by for a bookie that failed lately: of many closes in a row, one waits it out."""


async def record_holes(
    records: RecordStore, ledger_id: LedgerId, holes: Sequence[Hole], timeout_ms: int
) -> None:
    """Put into a ledger's record what its bookies lack. A failure is only logged: the ledger is closed.

    After a time-out it is tried once more: a process that was suspended meanwhile finds that its time is over when it goes on.
    """
    try:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await records.add_holes(ledger_id, holes)
        except TimeoutError:
            async with asyncio.timeout(timeout_ms / 1000):
                await records.add_holes(ledger_id, holes)
    except (NoSuchLedgerError, NoSuchStreamError):
        log.info("ledger %d was deleted", ledger_id)
    except Exception as error:  # noqa: BLE001 - whatever a driver raises, its effect is unknown
        some = ", ".join(f"{hole.bookie} may lack {hole.first}..{hole.last}" for hole in holes[:8])
        more = f" and {len(holes) - 8} more" if len(holes) > 8 else ""
        log.error("ledger %d: the record may lack a hole: %s%s: %r", ledger_id, some, more, error)  # noqa: TRY400


class LedgerFlush:
    """Waits until every bookie has acknowledged the entries confirmed to callers, or is abandoned.

    Args:
        access: the ledger.
        lac: the last entry that was confirmed to callers.
        outgoing: the runs that were sent to bookies.
        quarantine: bookies that failed lately; one that is abandoned is among them.
        clock: monotonic time.
        config: how long bookies are waited for.
    """

    __slots__ = ("_access", "_clock", "_machine", "_outgoing", "_quarantine", "_timer", "_when_done")

    def __init__(
        self,
        access: LedgerAccess,
        lac: int,
        outgoing: Outgoing,
        quarantine: Quarantine,
        clock: Clock,
        config: ClientConfig,
    ) -> None:
        now_ms, timeout_ms = clock.now_ms(), config.flush_ms
        failed_lately = quarantine.bookies(now_ms)

        def timeout_ms_of(bookie: BookieId) -> int:
            return timeout_ms // KNOWN_SILENT if bookie in failed_lately else timeout_ms

        self._access = access
        self._outgoing = outgoing
        self._quarantine = quarantine
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._when_done: tuple[Callable[[], None], ...] = ()
        copies = outgoing.unacknowledged(now_ms, timeout_ms_of)
        self._machine = FlushMachine(lac, copies, now_ms, latest_ms=config.add_timeout_ms)
        self._perform()

    @property
    def holes(self) -> tuple[Hole, ...]:
        """What the abandoned bookies lack."""
        return self._machine.holes

    @property
    def done(self) -> bool:
        """Whether no bookie is waited for."""
        return self._machine.status is FlushStatus.DONE

    def when_done(self, call: Callable[[], None]) -> None:
        """Call this too when no bookie is waited for any more; only while one is."""
        self._when_done += (call,)

    def answered(self, connection: SlotConnection, run: int, answer: Answer) -> None:
        """A bookie's response to a run."""
        if answer is Answer.OK:
            self._machine.acked(connection.slot, run, self._clock.now_ms())
        else:
            self._machine.failed(connection.slot, self._clock.now_ms())
        self._perform()

    def stop(self) -> None:
        """Stop waiting."""
        self._machine.give_up(self._clock.now_ms())
        self._perform()

    def _perform(self) -> None:
        machine = self._machine
        while machine.out:
            out, machine.out = machine.out, []
            for effect in out:
                if isinstance(effect, BookieGivenUp):
                    self._give_up(effect)
                elif isinstance(effect, SetTimer):
                    delay_ms = max(0, effect.at_ms - self._clock.now_ms())
                    loop = asyncio.get_running_loop()
                    self._timer = loop.call_later(delay_ms / 1000, self._timer_fired)
                else:
                    self._finish()

    def _give_up(self, effect: BookieGivenUp) -> None:
        log.warning(
            "ledger %d: bookie %s has not acknowledged all entries that it was sent; the ledger's "
            "record gets a hole",
            self._access.ledger_id,
            effect.bookie,
        )
        self._quarantine.failed(effect.bookie, self._clock.now_ms())
        self._outgoing.retire(effect.slot)
        self._outgoing.release()

    def _timer_fired(self) -> None:
        self._timer = None
        now_ms = self._clock.now_ms()
        for connection in self._outgoing.connections:
            if self._outgoing.moves(connection, now_ms):
                self._machine.moved(connection.slot, now_ms)
        self._machine.timer_fired(now_ms)
        self._perform()

    def _finish(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for call in self._when_done:
            call()
