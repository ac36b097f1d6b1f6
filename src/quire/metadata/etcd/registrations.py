"""Registrations of one client: keys on its lease, made again when the lease or a key was lost.

The lease is the client's session. It is taken with the first registration and kept alive three times in its life. A
registration is watched, so that one that another client deletes is made again at once, as does one whose lease has
ended.

Source: etcd v3 API, "Lease".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

import grpc.aio

from quire.core.errors import AlreadyExistsError, MetadataUnknownError, QuireError
from quire.metadata.checked import seal
from quire.metadata.etcd.changes import Changes
from quire.metadata.etcd.connection import (
    GRANT,
    KEEP_ALIVE,
    RETRY_DELAY_S,
    REVOKE,
    EtcdConnection,
    LeaseGoneError,
    StoreFullError,
)
from quire.metadata.etcd.formats import NUMBERS_KEY, number_in
from quire.metadata.etcd.keys import KeyLayout, absent, delete, leased, put, read, unchanged
from quire.metadata.etcd.watches import EtcdWatches, WatchedRange
from quire.metadata.held import LookedAfter, Next, Owner
from quire.metadata.keys import sequential_key
from quire.metadata.retries import ATTEMPTS_MAX, CONFLICTS_MAX, Attempts, StoreRetries
from quire.metadata.store import KeyMissingError, Registration, StoreBusyError
from quire.wire.proto.etcd_pb2 import (
    Event,
    KeyValue,
    LeaseGrantRequest,
    LeaseKeepAliveRequest,
    LeaseRevokeRequest,
    RangeRequest,
)

CLOSE_S: Final = 1.0
"""How long a client that is closed tries to say so; without, its registrations end by their time."""
_LOG: Final = logging.getLogger(__name__)


class EtcdRegistrations:
    """The registrations of one client.

    Args:
        connection: for the lease.
        changes: for the keys.
        layout: where they are.
        watches: to be notified of their end.
    """

    def __init__(
        self,
        connection: EtcdConnection,
        changes: Changes,
        layout: KeyLayout,
        watches: EtcdWatches,
    ) -> None:
        self._connection = connection
        self._changes = changes
        self._layout = layout
        self._watches = watches
        self._held = LookedAfter(self._restore, (QuireError,), RETRY_DELAY_S)
        self._places: dict[str, WatchedRange] = {}
        self._making: set[str] = set()
        self._renewing = asyncio.Lock()
        self._turn = asyncio.Lock()
        self._beat: asyncio.Task[None] | None = None
        self._ttl_s = max(1, -(-connection.address.options.session_timeout_ms // 1000))
        self._numbers = (0, 0)  # the counter as it was last seen, and its version
        self.lease = 0

    # --- making them -------------------------------------------------------------------------------------------------

    async def register(self, key: str, value: bytes, *, sequential: bool, again: bool) -> Registration:
        """See `MetadataStore.register`. A lost response is settled here."""
        name = await (self._make_numbered(key, value) if sequential else self._make(key, value))
        registration = Registration(name, value, again=again, update=self._update, close=self._take_back)
        self._held.hold(name, registration)

        def on_events(events: Iterable[Event], reread: bool) -> None:
            if reread or any(event.type == Event.DELETE for event in events):
                self._held.look_after(name)

        def on_failed(failure: Exception) -> None:
            _LOG.warning("the registration %s is not watched any more: %s", name, failure)

        try:
            self._places[name] = await self._watches.add(self._layout.key(name), b"", on_events, on_failed)
            await self._restore(name)  # it may have ended before the watch stood
        except BaseException:
            with suppress(QuireError):
                await self._take_back(registration)
            raise
        return registration

    async def _make(self, name: str, value: bytes) -> str:
        if name in self._making:
            raise AlreadyExistsError(f"{name} is being registered already", key=name)
        self._making.add(name)
        try:
            async with self._turn:  # not while it is being taken back
                return await self._put_on_lease(name, value)
        finally:
            self._making.discard(name)

    async def _put_on_lease(self, name: str, value: bytes) -> str:
        key = self._layout.key(name)
        ours = name in self._held.unwanted  # one that could not be withdrawn yet
        unknown = False
        try:
            async for _ in Attempts(f"{name} was registered"):
                lease = await self._session()
                condition = leased(key, lease) if ours else absent(key)
                try:
                    answer = await self._changes.commit(
                        [condition],
                        [put(key, seal(name, value), lease=lease)],
                        [read(key)],
                        f"{name} was registered",
                    )
                except MetadataUnknownError as error:
                    unknown = True
                    if isinstance(error, StoreFullError):
                        raise
                    found = (await self._changes.range(RangeRequest(key=key))).kvs
                    ours = self._held.is_left_over(name, owner_of(found, lease))
                    continue
                except LeaseGoneError:
                    await self._renew(lease)
                    continue
                if answer.succeeded:
                    return name
                found = answer.responses[0].response_range.kvs
                ours = self._held.is_left_over(name, owner_of(found, lease))
                if found and not ours:
                    raise AlreadyExistsError(f"{name} is registered already", key=name)
        except BaseException as error:
            if unknown or isinstance(error, asyncio.CancelledError):
                self._held.given_up(name)  # it is deleted with the next keep-alive, if it was made
            raise
        raise AssertionError  # attempts end with an error

    async def _make_numbered(self, prefix: str, value: bytes) -> str:
        """A counter in the same transaction: the one that is visible first has the smaller number."""
        counter = self._layout.numbers
        retries = StoreRetries(ATTEMPTS_MAX)
        for _ in range(CONFLICTS_MAX):
            number, version = self._numbers
            name = sequential_key(prefix, number + 1)
            key, lease = self._layout.key(name), await self._session()
            conditions = [unchanged(counter, version) if version else absent(counter), absent(key)]
            effects = [
                put(counter, seal(NUMBERS_KEY, b"%d" % (number + 1))),
                put(key, seal(name, value), lease=lease),
            ]
            try:
                answer = await self._changes.commit(
                    conditions, effects, [read(counter)], f"{name} was registered"
                )
            except MetadataUnknownError as error:
                # The number is ours or unused: what was made is withdrawn, and another number drawn.
                self._held.given_up(name)
                await retries.failed(error, retry=True)
                await self._remove(name)
                continue
            except asyncio.CancelledError:
                self._held.given_up(name)
                raise
            except LeaseGoneError:
                await self._renew(lease)
                continue
            if answer.succeeded:
                self._numbers = (number + 1, answer.header.revision)
                return name
            found = answer.responses[0].response_range.kvs
            self._numbers = (number_in(found[0].value), found[0].mod_revision) if found else (0, 0)
        raise StoreBusyError(f"other clients took {CONFLICTS_MAX} numbers below {prefix} first; try again")

    # --- for the registration's owner -------------------------------------------------------------------------------

    async def _update(self, registration: Registration, value: bytes) -> None:
        name = registration.key
        key = self._layout.key(name)
        async for _ in Attempts(f"{name} was changed"):
            if self._held.get(name) is not registration:
                break
            lease = self.lease
            try:
                stored = seal(name, value)
                answer = await self._changes.settled(
                    [leased(key, lease)], [put(key, stored, lease=lease)], [read(key)], f"{name} was changed"
                )
            except LeaseGoneError:
                await self._renew(lease)
                continue
            if answer.succeeded:
                registration.value = value
                return
            await self._restore(name)
        raise KeyMissingError(f"the registration {name} was lost; register again", key=name)

    async def _take_back(self, registration: Registration) -> None:
        name = registration.key
        if self._held.get(name) is not registration:
            return
        self._held.withdraw(name)
        self._unwatch(name)
        try:
            await self._remove(name)
        except QuireError as error:
            _LOG.warning("the registration %s is deleted later: %s", name, error)

    def _unwatch(self, name: str) -> None:
        if (place := self._places.pop(name, None)) is not None:
            self._watches.drop(place)

    async def _remove(self, name: str) -> None:
        """Delete what is ours and unwanted."""
        key = self._layout.key(name)
        async with self._turn:
            if name in self._held.unwanted:
                await self._changes.settled(
                    [leased(key, self.lease)], [delete(key)], [], f"{name} was taken back"
                )
                self._held.unwanted.discard(name)

    # --- looking after them ------------------------------------------------------------------------------------------

    async def _restore(self, name: str) -> None:
        """Make a held registration if it is missing."""
        key = self._layout.key(name)
        async for _ in Attempts(f"{name} was registered again"):
            lease = self.lease
            found = (await self._changes.range(RangeRequest(key=key))).kvs
            follows = self._held.found(name, owner_of(found, lease))
            if follows is Next.LOST:
                self._unwatch(name)
            if follows is not Next.MAKE:
                return
            try:
                answer = await self._changes.commit(
                    [absent(key)],
                    [put(key, seal(name, self._held[name].value), lease=lease)],
                    [],
                    f"{name} was registered again",
                )
            except StoreFullError:
                raise
            except MetadataUnknownError:
                continue
            except LeaseGoneError:
                await self._renew(lease)
                continue
            if answer.succeeded:
                self._held.made(name)

    # --- the lease -----------------------------------------------------------------------------------------------------

    async def _session(self) -> int:
        """The lease; taken when it is first asked for."""
        async with self._renewing:
            if not self.lease:
                await self._grant()
                self._beat = asyncio.get_running_loop().create_task(self._keep_alive(), name="etcd lease")
            return self.lease

    async def _grant(self) -> None:
        answer = await self._connection.read(GRANT, LeaseGrantRequest(TTL=self._ttl_s))
        self.lease, self._ttl_s = answer.ID, max(answer.TTL, self._ttl_s)

    async def _renew(self, ended: int) -> None:
        """Take another lease instead of one that has ended, and have everything made again on it."""
        async with self._renewing:
            if self.lease != ended:
                return
            _LOG.warning("the lease at etcd %s has ended; registering again", self._connection.hosts)
            await self._grant()
        self._held.unwanted.clear()
        for name in list(self._held):
            self._held.look_after(name)

    async def _keep_alive(self) -> None:
        while True:
            lease = self.lease
            try:
                if not await self._still_alive(lease):
                    await self._renew(lease)
                for name in self._held.unwanted - self._making:
                    await self._remove(name)
            except (QuireError, grpc.aio.AioRpcError, TimeoutError) as error:
                _LOG.warning(
                    "the lease of this client at etcd %s could not be kept alive: %s",
                    self._connection.hosts,
                    error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error) or "no answer",
                )
                await asyncio.sleep(RETRY_DELAY_S)
            else:
                await asyncio.sleep(self._ttl_s / 3)

    async def _still_alive(self, lease: int) -> bool:
        server = await self._connection.connected()
        call = await self._connection.stream(server, KEEP_ALIVE)
        try:
            async with asyncio.timeout(self._ttl_s / 3):  # a silent server must leave time to ask another one
                await call.write(LeaseKeepAliveRequest(ID=lease))
                answer = await call.read()
        except (grpc.aio.AioRpcError, TimeoutError) as error:
            if isinstance(error, grpc.aio.AioRpcError):
                self._connection.forget_token(error.details())
            self._connection.pass_over(server)
            raise
        finally:
            call.cancel()
        return answer is not grpc.aio.EOF and answer.TTL > 0

    # --- the end -------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Withdraw everything at once, if the store responds."""
        self.abandon()
        if self.lease:
            try:
                async with asyncio.timeout(CLOSE_S):
                    await self._connection.read(REVOKE, LeaseRevokeRequest(ID=self.lease))
            except (QuireError, TimeoutError, LeaseGoneError) as error:
                _LOG.info("the registrations of this client expire with their lease: %s", error)

    def abandon(self) -> None:
        """Stop looking after them."""
        if self._beat is not None:
            self._beat.cancel()
        for name in list(self._held):
            self._held.drop(name)


def owner_of(found: Sequence[KeyValue], lease: int) -> Owner:
    """Whose a key is that was asked for: keys of this client are on its lease."""
    if not found:
        return Owner.NONE
    return Owner.OWN if found[0].lease == lease else Owner.OTHER
