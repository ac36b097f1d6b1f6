"""Registrations of one ZooKeeper session: ephemeral znodes that come back with their owner.

A session's znodes end with it. On the first connection of a new session, and when another client deleted one, it is
made again, unless another owner has taken its place.

Source: BookKeeper source, `ZKRegistrationManager`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError
from kazoo.protocol.serialization import Create, Exists, GetChildren, GetData, SetData

from quire.core.errors import AlreadyExistsError, CorruptMetadataError, MetadataUnknownError, QuireError
from quire.metadata.held import LookedAfter, Next, Owner
from quire.metadata.retries import settled
from quire.metadata.store import KeyMissingError, Registration
from quire.metadata.zookeeper.nodes import EPHEMERAL, SEQUENTIAL, Nodes
from quire.metadata.zookeeper.paths import SEQUENCE_ZEROS, KeyPaths
from quire.metadata.zookeeper.session import LOST, ZookeeperSession
from quire.metadata.zookeeper.watches import ZookeeperWatches

ATTEMPTS_MAX: Final = 20
RETRY_SECONDS: Final = 1.0
UNKNOWN: Final = (asyncio.CancelledError, MetadataUnknownError)
"""After these a request that was sent may have made what it asked for."""
_LOG: Final = logging.getLogger(__name__)


class ZookeeperRegistrations:
    """What one store has registered.

    Args:
        session: the session.
        nodes: znodes.
        paths: where keys are.
        watches: reports when a registration was deleted.
    """

    def __init__(
        self, session: ZookeeperSession, nodes: Nodes, paths: KeyPaths, watches: ZookeeperWatches
    ) -> None:
        self._session = session
        self._nodes = nodes
        self._paths = paths
        self._watches = watches
        self._held = LookedAfter(self._ready_restore, (QuireError, *LOST))
        self._turn = asyncio.Lock()
        self._leaving: set[str] = set()
        self._cleaners: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def register(self, key: str, value: bytes, *, sequential: bool, again: bool) -> Registration:
        """Make a registration; a lost response is settled here.

        Raises:
            AlreadyExistsError: another owner has the key.
            MetadataUnknownError: the connection was lost again and again.
        """
        path = self._paths.path(key + SEQUENCE_ZEROS if sequential else key)
        async with self._turn:
            if sequential:
                path = await self._make_numbered(path, value)
            else:
                await self._make(path, value, key)
            made = self._paths.key(path)
            if made is None:
                raise CorruptMetadataError(f"ZooKeeper numbered the registration {key} as {path}", path=path)
            registration = Registration(made, value, again=again, update=self._update, close=self._take_back)
            self._held.hold(path, registration)
        try:
            with suppress(QuireError):  # the next connection sets it
                await self._watches.add_place(path)
            await self._held.check(path)  # it may have ended before the watch stood
        except BaseException:
            if self._held.get(path) is registration:
                self._withdraw(path)
            raise
        return registration

    async def _make(self, path: str, value: bytes, key: str) -> None:
        may_be_made = False

        async def once(lost: bool) -> bool | None:
            nonlocal may_be_made
            may_be_made = lost
            try:
                await self._nodes.create(path, value, EPHEMERAL)
            except NodeExistsError as error:
                owner = await self._nodes.owner(path)
                if owner is None:
                    return None
                if not self._is_left_over(path, owner):
                    msg = f"the registration {key} already exists and its owner is alive"
                    raise AlreadyExistsError(msg, key=key) from error
                if not lost or path in self._held.unwanted:
                    if await self._nodes.remove_own(path):
                        self._held.unwanted.discard(path)
                    return None
            return True

        try:
            await settled(once, f"the registration {key}", "made", key=key)
        except BaseException as error:
            if (may_be_made or isinstance(error, UNKNOWN)) and self._held.given_up(path):
                self._start(self._remove_unwanted())  # or the next connection does, if it was made
            raise

    def _is_left_over(self, path: str, owner: int) -> bool:
        """One that is being taken back is none: the request that removes it may be on its way, and is for no other znode."""
        return self._held.is_left_over(path, self._owner_of(owner)) and path not in self._leaving

    def _owner_of(self, session: int | None) -> Owner:
        if session is None:
            return Owner.NONE
        return Owner.OWN if session == self._session.session_id else Owner.OTHER

    async def _make_numbered(self, path: str, value: bytes) -> str:
        may_be_made = False

        async def once(lost: bool) -> str:
            nonlocal may_be_made
            may_be_made = lost
            found = await self._lost_number(path) if lost else None
            return found or await self._nodes.create(path, value, EPHEMERAL | SEQUENTIAL)

        try:
            return await settled(once, f"the registration {path}", "made")
        except BaseException as error:
            if may_be_made or isinstance(error, UNKNOWN):
                self._remove_lost_number(path)
            raise

    def _remove_lost_number(self, path: str) -> None:
        """Remove what has no holder: the session lives on, and would keep it for as long."""
        if path not in self._cleaners:
            cleaner = asyncio.get_running_loop().create_task(
                self._until_no_lost_number(path), name=f"remove a lost registration {path}"
            )
            self._cleaners[path] = cleaner
            cleaner.add_done_callback(lambda _: self._cleaners.pop(path, None))

    async def _until_no_lost_number(self, path: str) -> None:
        while True:
            try:
                async with self._turn:
                    found = await self._lost_number(path)
                    if found is None:
                        return
                    _LOG.warning("removing %s, which was registered although its response was lost", found)
                    await self._nodes.remove_own(found)
            except (QuireError, *LOST):
                await asyncio.sleep(RETRY_SECONDS)

    async def _lost_number(self, path: str) -> str | None:
        """The znode that a create whose response was lost has made, if it has."""
        folder = path.rpartition("/")[0]
        try:
            names, _ = await self._session.read(GetChildren(folder, None))
        except NoNodeError:
            return None
        for name in names:
            other = f"{folder}/{name}"
            if not other.startswith(path) or other in self._held:
                continue
            if await self._nodes.owner(other) == self._session.session_id:
                return other
        return None

    # --- for the registration's owner -------------------------------------------------------------------------------

    async def _update(self, registration: Registration, value: bytes) -> None:
        path = self._paths.path(registration.key)
        for _ in range(ATTEMPTS_MAX):
            if self._held.get(path) is not registration:
                raise self._lost(registration)
            try:
                (_, stat), _ = await self._session.read(GetData(path, None))
                if stat.ephemeralOwner != self._session.session_id:
                    raise self._lost(registration)
                await self._session.change(SetData(path, value, stat.version), f"{path} was changed")
            except NoNodeError:
                await self._held.check(path)
                continue
            except BadVersionError:
                continue
            registration.value = value
            return
        raise self._lost(registration)

    @staticmethod
    def _lost(registration: Registration) -> KeyMissingError:
        return KeyMissingError(
            f"the registration {registration.key} was lost; register again", key=registration.key
        )

    async def _take_back(self, registration: Registration) -> None:
        path = self._paths.path(registration.key)
        if self._held.get(path) is registration:
            await asyncio.shield(self._withdraw(path))

    def _withdraw(self, path: str) -> asyncio.Task[None]:
        """Remove what is held; it goes on if its owner does not wait for it."""
        self._held.withdraw(path)
        self._leaving.add(path)
        self._watches.remove_place(path)
        return self._start(self._remove_leaving(path))

    async def _remove_leaving(self, path: str) -> None:
        try:
            if await self._nodes.remove_own(path):
                self._held.unwanted.discard(path)
        finally:
            self._leaving.discard(path)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name="take registrations back")
        self._tasks.add(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.warning("a registration could not be taken back: %s", error)

    # --- for the session --------------------------------------------------------------------------------------------

    def deleted(self, path: str) -> None:
        """A watched znode was deleted; if it is held, look after it."""
        self._held.look_after(path)

    async def _ready_restore(self, path: str) -> None:
        await self._session.ready()
        await self._restore(path)

    async def connected(self) -> None:
        """Make everything again that a new session does not have."""
        for path in list(self._held):
            await self._restore(path)
        for path in list(self._held.unwanted):
            stat, _ = await self._session.submit(Exists(path, None))
            if stat is None or stat.ephemeralOwner != self._session.session_id:
                self._held.unwanted.discard(path)
        if self._held.unwanted:
            self._start(self._remove_unwanted())

    async def _remove_unwanted(self) -> None:
        for path in self._held.unwanted - self._leaving:
            async with self._turn:  # it may have been registered again
                if path in self._held.unwanted and await self._nodes.remove_own(path):
                    self._held.unwanted.discard(path)

    async def _restore(self, path: str) -> None:
        """Make a held registration if it is missing. Uses the connection as it is, which may be one in set-up."""
        while True:
            stat, _ = await self._session.submit(Exists(path, None))
            follows = self._held.found(path, self._owner_of(None if stat is None else stat.ephemeralOwner))
            if follows is Next.LOST:
                self._watches.remove_place(path)
            if follows is not Next.MAKE:
                return
            value = self._held[path].value
            try:
                await self._session.submit(Create(path, value, self._session.acl, EPHEMERAL))
            except NodeExistsError:
                continue
            except NoNodeError:
                with suppress(NodeExistsError):
                    await self._session.submit(Create(path.rpartition("/")[0], b"", self._session.acl, 0))
                continue
            self._held.made(path)
            return

    def end(self) -> None:
        """The session has ended for good."""
        self._stop_cleaners()
        for path in list(self._held):
            self._held.lose(path)
            self._watches.remove_place(path)

    def forget(self) -> None:
        """The store is being closed: its registrations end with its session."""
        self._stop_cleaners()
        for path in list(self._held):
            self._held.drop(path)

    def _stop_cleaners(self) -> None:
        for cleaner in list(self._cleaners.values()):
            cleaner.cancel()
