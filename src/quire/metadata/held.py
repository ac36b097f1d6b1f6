"""Registrations that a client holds: what must be in the store until it is withdrawn or lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from quire.core.errors import AlreadyExistsError
from quire.metadata.store import Registration

_LOG: Final = logging.getLogger(__name__)


class HeldRegistrations(dict[str, Registration]):
    """The registrations of one client by their names, and a task for each that has to be renewed.

    Args:
        restore: makes one again if the store does not have it, or calls `lose`.
        outage: what it raises while the store does not respond.
        retry_s: how long to wait then; None leaves it to the next connection.
    """

    def __init__(
        self,
        restore: Callable[[str], Awaitable[None]],
        outage: tuple[type[Exception], ...],
        retry_s: float | None = None,
    ) -> None:
        super().__init__()
        self._restore = restore
        self._outage = outage
        self._retry_s = retry_s
        self._checks: dict[str, asyncio.Task[None]] = {}
        self._due: set[str] = set()
        self.unwanted: set[str] = set()
        """Names that were withdrawn, or may have been made and are not held, while the store did not respond."""

    def hold(self, name: str, registration: Registration) -> None:
        """The store has it: keep it there."""
        self.unwanted.discard(name)
        self[name] = registration

    def drop(self, name: str) -> Registration:
        """It is withdrawn."""
        self._due.discard(name)
        check = self._checks.pop(name, None)
        if check is not None and check is not asyncio.current_task():
            check.cancel()
        return self.pop(name)

    def lose(self, name: str) -> None:
        """It cannot be renewed."""
        self.drop(name).lost.set()
        _LOG.warning("the registration %s is lost", name)

    def look_after(self, name: str) -> None:
        """Something happened to it: restore it, in a task of its own; once more after one that may not have seen this."""
        if name in self._checks:
            self._due.add(name)
        elif name in self:
            check = asyncio.get_running_loop().create_task(self.check(name), name=f"look after {name}")
            self._checks[name] = check
            check.add_done_callback(lambda done: self._over(name, done))

    def _over(self, name: str, check: asyncio.Task[None]) -> None:
        if self._checks.get(name) is check:  # else the name has been withdrawn meanwhile, or registered anew
            del self._checks[name]
            if name in self._due:
                self._due.discard(name)
                self.look_after(name)

    async def check(self, name: str) -> None:
        """Restore it, or say why that is not possible now."""
        while name in self:
            try:
                await self._restore(name)
            except self._outage as error:
                _LOG.warning("the registration %s cannot be checked now: %s", name, error)
                if self._retry_s is None:
                    return
                await asyncio.sleep(self._retry_s)
            else:
                return


def made_again(
    registration: Registration,
    make: Callable[[], object],
    notify: Callable[[Callable[[], None]], None] = lambda call: call(),
) -> bool:
    """Answer for a registration that the store does not have any more: it is made again, or lost.

    Args:
        registration: whose owner is notified.
        make: makes it under the session of now.
        notify: runs a call on the owner's event loop.

    Returns:
        Whether it was made again; otherwise it is to be held no longer.
    """
    notify(registration.on_deleted)
    if registration.again:
        with suppress(AlreadyExistsError):
            make()
            registration.renewed += 1
            return True
    notify(registration.lost.set)
    return False
