"""Registrations that a client holds: what must be in the store until it is withdrawn or lost, and what must not stay there.

`HeldRegistrations` decides that, the same for every store. It does no I/O: what a driver found in its store comes in, and
what is to be done next comes out. `LookedAfter` adds a task for each that has to be looked after, for stores behind a
network.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from typing import Final

from quire.core.errors import AlreadyExistsError
from quire.metadata.store import Registration

_LOG: Final = logging.getLogger(__name__)


class Owner(Enum):
    """Whose session a key in the store belongs to."""

    NONE = auto()
    """The store does not have the key."""
    OWN = auto()
    OTHER = auto()


class Next(Enum):
    """What follows from what the store has."""

    NOTHING = auto()
    MAKE = auto()
    """Make it, unless another client has; then look again, or `lose` it."""
    LOST = auto()
    """It is no longer held, and its owner was notified."""


class HeldRegistrations(dict[str, Registration]):
    """The registrations of one client by their names.

    Args:
        notify: runs a call on the event loop of the registrations' owner.
    """

    def __init__(self, notify: Callable[[Callable[[], None]], None] = lambda call: call()) -> None:
        super().__init__()
        self._notify = notify
        self.unwanted: set[str] = set()
        """Names that were withdrawn, or may have been made and are not held, until the store does not have them."""

    def hold(self, name: str, registration: Registration) -> None:
        """The store has it: keep it there."""
        self.unwanted.discard(name)
        self[name] = registration

    def found(self, name: str, owner: Owner) -> Next:
        """The store was asked for a name: one of which the key is missing comes back if its owner wants that."""
        registration = self.get(name)
        if registration is None or owner is Owner.OWN:
            return Next.NOTHING
        self._notify(registration.on_deleted)
        if owner is Owner.NONE and registration.again:
            return Next.MAKE
        self.lose(name)
        return Next.LOST

    def made(self, name: str) -> None:
        """It was made again; it may have been withdrawn meanwhile."""
        if (registration := self.get(name)) is not None:
            registration.renewed += 1
            _LOG.warning("registered %s again", registration.key)

    def make_again(self, name: str, make: Callable[[Registration], object]) -> None:
        """The store does not have it, and answers at once: it comes back, or another client has its key and it is lost."""
        if self.found(name, Owner.NONE) is Next.MAKE:
            try:
                make(self[name])
            except AlreadyExistsError:
                self.lose(name)
            else:
                self.made(name)

    def lose(self, name: str) -> None:
        """It does not come back."""
        self._notify(self.drop(name).lost.set)
        _LOG.warning("the registration %s is lost", name)

    def drop(self, name: str) -> Registration:
        """It is held no longer, and nothing has to be removed."""
        return self.pop(name)

    def withdraw(self, name: str) -> None:
        """Its owner wants it no longer: it is to be removed."""
        self.drop(name)
        self.unwanted.add(name)

    def given_up(self, name: str) -> bool:
        """A request that may have made it, or may still, is given up: whether what it made is to be removed."""
        if name in self:
            return False
        self.unwanted.add(name)
        return True

    def is_left_over(self, name: str, owner: Owner) -> bool:
        """Whether a request that was given up has made it: a key of this session that is not held."""
        return owner is Owner.OWN and name not in self


class LookedAfter(HeldRegistrations):
    """Registrations with a task for each that has to be looked after.

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

    def drop(self, name: str) -> Registration:
        """It is held no longer, and not looked after."""
        self._due.discard(name)
        check = self._checks.pop(name, None)
        if check is not None and check is not asyncio.current_task():
            check.cancel()
        return super().drop(name)

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
