"""Which bookies there are: their registrations, which end with them, and their cookies, which stay.

A bookie is registered under `bookies/available/` or, when it takes no writes, under `bookies/readonly/`; between the
two it is in both for a moment, and counts as read-only.

Source: BookKeeper source, `ZKRegistrationManager` and `BookieServiceInfoFormat`; docs/metadata.md, "Znodes".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from quire.core.errors import (
    AlreadyExistsError,
    CorruptMetadataError,
    IdentityReplacedError,
    MisuseError,
    QuireError,
)
from quire.core.ids import BookieId
from quire.metadata.paging import every_key
from quire.metadata.store import (
    KeyMissingError,
    MetadataStore,
    Registration,
    Versioned,
    Watch,
)
from quire.wire import bookie_service_info
from quire.wire.bookie_service_info import (
    BOOKIE_RPC,
    FEATURES_PROPERTY,
    NATIVE_PROPERTY,
    ZONE_PROPERTY,
    BookieServiceInfo,
    Endpoint,
    check_bookie_id,
    parse_features_property,
    parse_native_property,
)

PREFIX: Final = "bookies/"
AVAILABLE: Final = "bookies/available/"
READONLY: Final = "bookies/readonly/"
COOKIES: Final = "cookies/"
Result = TypeVar("Result")
_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BookieInfo:
    """A bookie as its registration shows it.

    Attributes:
        bookie_id: its name, with the incarnation of its disk: a wiped disk is another bookie.
        host: where it listens.
        port: the port of BookKeeper's protocols.
        writable: False while it takes no new entries.
        properties: whatever it announces; `quire.native` is where it speaks the native protocol.
    """

    bookie_id: BookieId
    host: str
    port: int
    writable: bool = True
    properties: dict[str, str] = field(default_factory=dict)

    @property
    def native(self) -> tuple[int, int] | None:
        """Port and version of the native protocol; None for a bookie that does not speak it."""
        return parse_native_property(self.properties.get(NATIVE_PROPERTY, ""))

    @property
    def features(self) -> frozenset[str]:
        """What its program can do, names of later programs included."""
        return parse_features_property(self.properties.get(FEATURES_PROPERTY, ""))

    @property
    def zone(self) -> str:
        """Where it stands; empty where it does not say."""
        return self.properties.get(ZONE_PROPERTY, "")

    def serialize(self) -> bytes:
        """The value to register."""
        endpoint = Endpoint("bookie", self.port, self.host, BOOKIE_RPC)
        return bookie_service_info.serialize(
            BookieServiceInfo((endpoint,), tuple(sorted(self.properties.items())))
        )

    @classmethod
    def parse(cls, bookie_id: str, value: bytes, *, writable: bool) -> BookieInfo | None:
        """What a registration says; None if it names no endpoint to connect to.

        Raises:
            CorruptMetadataError: the value cannot be read.
        """
        info = bookie_service_info.parse(value, bookie_id)
        rpc = info.bookie_rpc
        if rpc is None:
            return None
        return cls(BookieId(bookie_id), rpc.host, rpc.port, writable, dict(info.properties))


class BookieRegistration:
    """A bookie's own registration, in one of the two places; one call after the other changes it."""

    def __init__(self, store: MetadataStore, info: BookieInfo, held: Registration) -> None:
        self._store = store
        self._held = held
        self._left: Registration | None = None
        self._turn = asyncio.Lock()
        self._on_deleted: Callable[[], None] = lambda: None
        self.info = info

    def notify(self, on_deleted: Callable[[], None]) -> None:
        """Call this whenever the store responds that the registration is deleted, or another's; see `Registration.on_deleted`."""
        self._on_deleted = self._held.on_deleted = on_deleted

    def _hold(self, held: Registration) -> None:
        self._held = held
        held.on_deleted = self._on_deleted

    async def confirm(self, *, wait_ms: int) -> None:
        """Return when the bookie is registered: as it was, or again.

        Args:
            wait_ms: how long to wait for another registration of its id to end; it may be a session of its own that the
                store has not ended yet.

        Raises:
            IdentityReplacedError: it is another's.
            QuireError: the store does not respond.
        """
        async with self._turn:
            await self._withdraw()
            held = self._held
            if not held.lost.is_set():
                with suppress(KeyMissingError):
                    await held.update(held.value)
                    return
            try:
                renewed = await _register(self._store, self.info, wait_ms)
            except AlreadyExistsError as error:
                raise IdentityReplacedError(
                    f"{error.message}; this process ends. Keep the other one, and do not start this "
                    "directory again unless the other one is permanently lost",
                    bookie=self.info.bookie_id,
                ) from error
            self._hold(renewed)

    @property
    def lost(self) -> asyncio.Event:
        """Set when the registration is lost for good: the bookie must stop, another has its id or the store failed."""
        return self._held.lost

    @property
    def renewed(self) -> int:
        """How often it was registered again after its session was lost."""
        return self._held.renewed

    def shows(self, writable: bool) -> bool:
        """Whether it is registered in the place for this, and in no other."""
        return writable == self.info.writable and self._left is None

    async def set_writable(self, writable: bool) -> None:
        """Move to the other place: registered there first, withdrawn here then, so that it never seems unregistered.

        Raises:
            QuireError: the store does not respond; until a later call it may be in both places.
        """
        async with self._turn:
            await self._withdraw()
            if writable == self.info.writable:
                return
            info = replace(self.info, writable=writable)
            there = await self._store.register(_key(info), info.serialize())
            self._left = self._held
            self._hold(there)
            self.info = info
            await self._withdraw()

    async def _withdraw(self) -> None:
        """Leave the place where it was before."""
        if self._left is not None:
            await self._left.close()
            self._left = None

    async def update(self, info: BookieInfo) -> None:
        """Announce something else about the same bookie.

        Raises:
            MisuseError: it is another bookie.
        """
        if info.bookie_id != self.info.bookie_id:
            raise MisuseError(
                f"bookie {self.info.bookie_id} cannot register as {info.bookie_id}", bookie=info.bookie_id
            )
        await self.set_writable(info.writable)
        await self._held.update(info.serialize())
        self.info = info

    async def close(self) -> None:
        """Take it back: the bookie is going away."""
        await self._held.close()
        await self._withdraw()


def _key(info: BookieInfo) -> str:
    return (AVAILABLE if info.writable else READONLY) + info.bookie_id


async def _register_once(store: MetadataStore, info: BookieInfo) -> Registration:
    """Register in one place while the other is empty: a copy in limbo is read-only, and its original is not."""
    other = _key(replace(info, writable=not info.writable))
    if await store.get(other) is None:
        held = await store.register(_key(info), info.serialize())
        try:
            is_alone = await store.get(other) is None
        except BaseException:
            with suppress(QuireError):
                await held.close()
            raise
        if is_alone:
            return held
        await held.close()
    raise AlreadyExistsError(f"the registration {other} already exists and its owner is alive", key=other)


async def _look_for(store: MetadataStore, bookie_id: BookieId) -> None:
    """Refuse an id that is registered."""
    for key in (AVAILABLE + bookie_id, READONLY + bookie_id):
        if await store.get(key) is not None:
            raise AlreadyExistsError(f"the registration {key} already exists", key=key)


async def _when_free(
    store: MetadataStore, bookie_id: BookieId, wait_ms: int, attempt: Callable[[], Awaitable[Result]]
) -> Result:
    """Make an attempt that an earlier registration of the id stands in the way of, until that has ended."""
    check_bookie_id(bookie_id)
    try:
        return await attempt()
    except AlreadyExistsError as error:
        taken = error
    try:
        async with asyncio.timeout(wait_ms / 1000), store.watch(PREFIX) as changes:
            async for _ in changes:
                with suppress(AlreadyExistsError):
                    return await attempt()
    except TimeoutError:
        pass
    raise AlreadyExistsError(
        f"bookie {bookie_id} is already registered: another process with its identity is alive; "
        "stop that process",
        bookie=bookie_id,
    ) from taken


async def _register(store: MetadataStore, info: BookieInfo, wait_ms: int) -> Registration:
    """See `BookieRegistry.register`."""
    return await _when_free(store, info.bookie_id, wait_ms, lambda: _register_once(store, info))


class BookieRegistry:
    """Registrations and cookies over a metadata store."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def register(self, info: BookieInfo, *, wait_ms: int = 0) -> BookieRegistration:
        """Register a bookie.

        Args:
            info: what it announces.
            wait_ms: how long to wait for an earlier registration of the same id to end: a predecessor that was stopped
                and not killed keeps it for its session's timeout.

        Raises:
            AlreadyExistsError: a bookie with this id is registered.
        """
        return BookieRegistration(self._store, info, await _register(self._store, info, wait_ms))

    async def await_free(self, bookie_id: BookieId, *, wait_ms: int = 0) -> None:
        """Return when no bookie is registered with an id. Nothing is written: for a start, before it touches its disk.

        Args:
            bookie_id: the id.
            wait_ms: see `register`.

        Raises:
            AlreadyExistsError: a bookie with this id is registered.
        """
        await _when_free(self._store, bookie_id, wait_ms, lambda: _look_for(self._store, bookie_id))

    async def available(self) -> dict[BookieId, BookieInfo]:
        """All registered bookies, the read-only ones too, in the order of their ids.

        One whose registration cannot be read is left out with a warning: it must not hide the others.
        """
        found: dict[BookieId, BookieInfo] = {}
        # One list for both places: one that moves meanwhile is in the first or the second, or in both and read-only.
        for key, value in await self._all(PREFIX):
            prefix = next((place for place in (AVAILABLE, READONLY) if key.startswith(place)), None)
            if prefix is None:
                continue
            try:
                info = BookieInfo.parse(key.removeprefix(prefix), value.value, writable=prefix == AVAILABLE)
            except CorruptMetadataError as error:
                _LOG.warning("%s", error)
                continue
            if info is not None:
                found[info.bookie_id] = info
        return dict(sorted(found.items()))

    def watch(self) -> Watch:
        """Changes of any registration; then ask `available` again."""
        return self._store.watch(PREFIX)

    # --- cookies -------------------------------------------------------------------------------------------------

    async def read_cookie(self, bookie_id: str) -> Versioned | None:
        """A bookie's cookie: what its directories are and which cluster they belong to. None if it never had one."""
        return await self._store.get(COOKIES + check_bookie_id(bookie_id))

    async def write_cookie(self, bookie_id: str, cookie: bytes, version: int | None = None) -> int:
        """Store a cookie.

        Args:
            bookie_id: the bookie.
            cookie: the text that also lies in its directories.
            version: of the cookie to replace; None: there is none yet.

        Raises:
            AlreadyExistsError: there is one.
            VersionConflictError: it is another one by now.
        """
        key = COOKIES + check_bookie_id(bookie_id)
        if version is None:
            return await self._store.create(key, cookie)
        return await self._store.put(key, cookie, version)

    async def delete_cookie(self, bookie_id: str, version: int | None = None) -> None:
        """Remove a bookie that will not come back.

        Raises:
            KeyMissingError: it has none.
            VersionConflictError: it has another version.
        """
        await self._store.delete(COOKIES + check_bookie_id(bookie_id), version)

    async def list_cookies(self) -> dict[BookieId, Versioned]:
        """The cookies of all bookies that the cluster ever had and did not remove."""
        return {BookieId(key.removeprefix(COOKIES)): value for key, value in await self._all(COOKIES)}

    async def _all(self, prefix: str) -> list[tuple[str, Versioned]]:
        return [found async for found in every_key(self._store, prefix)]
