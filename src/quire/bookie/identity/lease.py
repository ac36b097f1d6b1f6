"""Checks that this process owns its bookie's identity; while that is unknown responses are deferred.

When another process has the identity, this one ends.

`core/bookie/identity_lease.py` decides; this asks the metadata store, and keeps the record of the bookie's boots,
outside the data path: a store that is silent delays that record and nothing else.

Source: `docs/protocol/bookie.md`, "The identity lease".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from quire.bookie.identity.boots import BootRecord
from quire.core.bookie.identity_lease import IdentityLeaseMachine
from quire.core.bookie.rules import RULES, BookieRules
from quire.core.errors import IdentityReplacedError, QuireError

if TYPE_CHECKING:
    from quire.core.bookie.boot import BootState
    from quire.env.interfaces import Clock
    from quire.metadata.bookies import BookieRegistration
    from quire.storage.ledger_storage import LedgerStorage

RECORD_EVERY_S: Final = 1.0
"""A copy of the directory that is older than this is known for one when it is put back."""
RETRY_S: Final = 0.25
LOOKS_A_PAUSE: Final = 8
STOP_S: Final = 2.0
"""How long a clean stop waits for the store to take its record."""
log = logging.getLogger(__name__)


class DeferringConnection(Protocol):
    """What defers its responses: a client's connection, which stands above."""

    def defer_responses(self) -> None:
        """Keep the responses that are ready, until `send_deferred`."""

    def send_deferred(self) -> None:
        """Send what was deferred, serve what waited."""


def pause_of(session_timeout_ms: int) -> int:
    """How long a process may be stopped and still be sure of its session.

    Less than the session: that lasts from the last beat that the store has seen, and not from the last turn of the loop.
    """
    return max(1, session_timeout_ms // 2)


class IdentityLease:
    """Watches over one bookie's identity.

    Args:
        clock: goes on while the machine sleeps.
        session_timeout_ms: how long a registration may outlive its owner.
        connections: whose responses are deferred.
        rules: the protocol's rules (`core/rules.py`); only tests pass changed ones.

    Attributes:
        pending: adds, fences and negative responses wait.
        ended: called when the identity is another's for good.
        error: why it is; None until then.
    """

    def __init__(
        self,
        clock: Clock,
        session_timeout_ms: int,
        connections: Callable[[], list[DeferringConnection]],
        rules: BookieRules = RULES,
    ) -> None:
        self._clock = clock
        self._pause_ms = pause_of(session_timeout_ms)
        self._connections = connections
        self._machine = IdentityLeaseMachine(self._pause_ms, clock.boot_ms(), rules)
        self._session_ms = session_timeout_ms
        self._wake = asyncio.Event()
        self._tick: asyncio.TimerHandle | None = None
        self._record: BootRecord | None = None
        self._storage: LedgerStorage | None = None
        self._owner = 0
        self._registration: Callable[[], BookieRegistration | None] = lambda: None
        self._logged_away = False
        self.pending = True
        self.ended: Callable[[], None] = lambda: None
        self.error: IdentityReplacedError | None = None

    def look(self) -> bool:
        """Before responses leave, and now and then: whether it is pending."""
        if self._machine.look(self._clock.boot_ms()) and not self.pending:
            self._suspend()
        return self.pending

    def registration_lost(self) -> None:
        """The store answered that the registration is not there, or is another's."""
        self._machine.registration_lost()
        self._suspend()

    @property
    def why(self) -> str:
        """The last reason why it was pending."""
        return self._machine.why

    def never(self) -> None:
        """There is no registration to lose: nothing is ever deferred."""
        self._machine = IdentityLeaseMachine(sys.maxsize, self._clock.boot_ms())
        self._machine.confirmed(self._machine.round)
        self.pending = False

    # --- its life ------------------------------------------------------------------------------------------------

    async def begin(
        self,
        record: BootRecord,
        storage: LedgerStorage,
        owner: int,
        registration: Callable[[], BookieRegistration | None],
    ) -> None:
        """The bookie is registered: write its boot to the cluster, then serve.

        Args:
            record: what the cluster knows of its boots.
            storage: the bookie's disk.
            owner: random bits of this process.
            registration: the bookie's.

        Raises:
            IdentityReplacedError: another process has its identity.
            QuireError: the store does not take the record.
        """
        self._record, self._storage, self._owner, self._registration = record, storage, owner, registration
        self._look_again()
        begun_in = self._machine.round
        own = self._state()
        if own is not None:
            await record.write(own, None if storage.report.older else storage.found)
        if self._machine.confirmed(begun_in):
            self._release()

    async def run(self) -> None:
        """Keep the record, and settle what made the lease pending, until the identity is another's."""
        while True:
            try:
                if self.pending:
                    await self._settle()
                else:
                    await self._tell()
                self._logged_away = False
            except IdentityReplacedError as error:
                self._replaced(error)
                return
            except QuireError as error:
                if not self._logged_away:
                    log.warning("the boot record of this bookie could not be written yet: %s", error)
                self._logged_away = True
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S if self.pending else RECORD_EVERY_S):
                    await self._wake.wait()

    def sealed(self) -> None:
        """A segment is full: the record is written now."""
        self._wake.set()

    async def stopped(self) -> None:
        """The directory was closed cleanly: write that to the cluster, if the store responds."""
        own = self._state()
        if self._record is not None and own is not None and self.error is None:
            with contextlib.suppress(QuireError, TimeoutError):
                async with asyncio.timeout(STOP_S):
                    await self._record.write(own)

    def close(self) -> None:
        """Look no more."""
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None

    # --- pieces --------------------------------------------------------------------------------------------------

    def _look_again(self) -> None:
        self.look()
        seconds = self._pause_ms / 1000 / LOOKS_A_PAUSE
        self._tick = asyncio.get_running_loop().call_later(seconds, self._look_again)

    def _state(self) -> BootState | None:
        """How far the directory is now; None where a full disk keeps no count."""
        state = None if self._storage is None else self._storage.boot_state
        return None if state is None else state._replace(owner=self._owner)

    async def _tell(self) -> None:
        own = self._state()
        if own is not None and self._record is not None and own != self._record.stored:
            await self._record.write(own)

    async def _settle(self) -> None:
        """Ask the store whether this process still is the bookie; what it says ends the wait, or the process."""
        begun_in = self._machine.round
        own, registration, record = self._state(), self._registration(), self._record
        if record is not None and own is not None:
            await record.check(own)  # a replaced process need not wait for the registration
        if registration is not None:
            await registration.confirm(wait_ms=2 * self._session_ms)
        if record is not None and own is not None:
            # In this order: while it is registered no other process claims the record.
            await record.write(own)
        if self._machine.confirmed(begun_in):
            self._release()

    def _suspend(self) -> None:
        if not self.pending:
            self.pending = True
            # `BookieAlerts` reports it to the operator, in one line.
            log.info(
                "the identity lease is pending; deferring adds, fences and negative responses: %s",
                self._machine.why,
            )
            for connection in self._connections():
                connection.defer_responses()
        self._wake.set()

    def _release(self) -> None:
        self.pending = False
        if self._machine.round:
            log.info("registered again; serving all requests")
        for connection in self._connections():
            connection.send_deferred()

    def _replaced(self, error: IdentityReplacedError) -> None:
        self._machine.replaced_by(error.message)
        self._suspend()
        self.error = error
        log.error("%s", error.message)
        self.ended()
