"""The metadata store as everyone else sees it: keys, values, versions, watches and registrations.

Every driver passes tests/conformance/test_metadata_store.py, and test_metadata_registrations.py next to it. Ledgers,
bookies and logs are unknown here.

What every driver promises:

1. A change is one compare-and-swap: it happens whole or not at all, and its version was the stored one. Changes of
   one key are totally ordered; versions of a key only grow, also when it is deleted and created again. (On ZooKeeper
   they restart with the creation: never use ids of mutable records twice.)
2. A call that begins after another has returned, on any client of the store, sees its change. A list is of one moment.
3. `MetadataUnknownError` means that the outcome of the change is unknown; read again, then decide. Every other
   error means that it did not.
4. A watch reports every change made after its first item, at least once, in groups without an order; it may report
   too much, and instead of keys it may say `reread_all`. It does not report values: read them.
5. A registration is visible until its owner closes it, ends, or does not move for the session's timeout. An owner that
   still runs and lost it registers again by itself.

Source: BookKeeper protocol, "Ledgers": metadata is kept "in a datastore which provides a compare-and-swap operation".
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import Final, Self

from quire.core.errors import AlreadyExistsError, MisuseError, RefusedError
from quire.core.ids import ID_MAX, LedgerId
from quire.core.ledger.metadata import NEWEST_FORMAT

VALUE_BYTES_MAX: Final = 1_000_000
"""ZooKeeper takes one mebibyte with everything around it; the other drivers refuse the same values."""
KEY_LENGTH_MAX: Final = 512
ID_DIGITS: Final = 19
LIST_LIMIT: Final = 1000
RAISED_MAX: Final = 2**60
"""Ledger ids are raised above this one at most; every store can count on from there."""
SESSION_TIMEOUT_MS: Final = 10_000
PENDING_KEYS_MAX: Final = 10_000
"""A watcher that is this far behind gets `reread_all`."""


class VersionConflictError(RefusedError):
    """The key has another version than the one named: another client changed it. Read it and decide again."""


class KeyMissingError(VersionConflictError):
    """The key to change does not exist (any more)."""


class StoreBusyError(RefusedError):
    """Another process kept the store to itself for too long; nothing was changed."""

    retriable = True


class StoreAwayError(RefusedError):
    """The store did not respond in time; nothing was changed."""

    retriable = True


@dataclass(frozen=True, slots=True)
class Versioned:
    """A value and the version that a compare-and-swap must name.

    Attributes:
        revision: of the store, at the key's last change: of two changes, whatever their keys, the later one has the
            greater revision. A store that was restored from a backup may show any.
    """

    value: bytes
    version: int
    revision: int


@dataclass(frozen=True, slots=True)
class Create:
    """The key must not exist."""

    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Put:
    """The key must have this version."""

    key: str
    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Delete:
    """The key must exist, and have this version unless None."""

    key: str
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Require:
    """Changes nothing: the key must have this version, or with None must not exist."""

    key: str
    version: int | None


Op = Create | Put | Delete | Require


def putting(key: str, value: bytes, found: Versioned | None) -> Create | Put:
    """What stores a value under a key, where this was found."""
    return Create(key, value) if found is None else Put(key, value, found.version)


def check_key(key: str) -> str:
    """The key, if every driver can store it.

    Raises:
        MisuseError: it is empty or too long, begins or ends with `/`, has an empty or dotted part or a control character.
    """
    parts = key.split("/")
    if not key or len(key) > KEY_LENGTH_MAX or not key.isprintable() or not {"", ".", ".."}.isdisjoint(parts):
        msg = (
            f"{key[:80]!r} cannot be a metadata key: 1 to {KEY_LENGTH_MAX} printable characters, in parts between"
            " single slashes, no part . or .."
        )
        raise MisuseError(msg, key=key)
    return key


@lru_cache(maxsize=1024)  # who recovers or writes a ledger asks for its key again and again
def id_key(folder: str, number: int) -> str:
    """The key, in a folder, of what has an id, so that keys sort like ids.

    Raises:
        MisuseError: no ledger can have the id.
    """
    if not 0 <= number <= ID_MAX:
        raise MisuseError(f"{number} is no ledger id: they go from 0 to {ID_MAX}", ledger_id=number)
    return f"{folder}{number:0{ID_DIGITS}d}"


def check_value(key: str, value: bytes) -> bytes:
    """The value, if it is not larger than `VALUE_BYTES_MAX`.

    Raises:
        MisuseError: naming key and size.
    """
    if len(value) > VALUE_BYTES_MAX:
        msg = f"the value of {key} has {len(value)} bytes; a metadata store takes at most {VALUE_BYTES_MAX}"
        raise MisuseError(msg, key=key)
    return value


def check_ops(ops: Sequence[Op], store: str = "", bytes_max: int | None = None) -> None:
    """Refuse operations that no driver could carry out, or not this one: its store takes so many bytes at once.

    Raises:
        MisuseError: see `check_key` and `check_value`; or they are too large together.
    """
    size = 0
    for op in ops:
        check_key(op.key)
        if isinstance(op, Create | Put):
            size += len(op.key) + len(check_value(op.key, op.value))
    if bytes_max is not None and size > bytes_max:
        msg = f"these {len(ops)} operations have {size} bytes; {store} takes at most {bytes_max} at once"
        raise MisuseError(msg)


def judge(op: Op, found: int | None) -> None:
    """Decide one operation; every driver that decides itself uses this function.

    Args:
        op: what is asked.
        found: the key's version, None if it does not exist.

    Raises:
        AlreadyExistsError: a `Create` of a key that exists.
        KeyMissingError: a change of a key that does not.
        VersionConflictError: another version.
    """
    if isinstance(op, Create):
        if found is not None:
            msg = f"{op.key} exists already, with version {found}"
            raise AlreadyExistsError(msg, key=op.key, version=found)
        return
    if found is None:
        if isinstance(op, Require) and op.version is None:
            return
        msg = f"{op.key} does not exist; it may have been deleted meanwhile"
        raise KeyMissingError(msg, key=op.key)
    if op.version is None and isinstance(op, Delete):
        return
    if found != op.version:
        wanted = "none" if op.version is None else str(op.version)
        msg = (
            f"{op.key} has version {found}, not {wanted}: it was changed meanwhile; read it and decide again"
        )
        raise VersionConflictError(msg, key=op.key, version=found)


class ChangedKeys(frozenset[str]):
    """Keys that were created, changed or deleted.

    Attributes:
        reread_all: True when any key of the prefix may have changed, whether it is in this set or not: on the first
            item of a watch (which only says that the watch stands) and whenever the watcher fell behind.
    """

    reread_all: bool

    def __new__(cls, keys: Iterable[str] = (), *, reread_all: bool = False) -> Self:
        """A set of these keys."""
        self = super().__new__(cls, keys)
        self.reread_all = reread_all
        return self


class Watch:
    """Changes of the keys with one prefix: `async with store.watch(prefix) as changes: async for keys in changes`.

    The loop ends when the store is closed, and raises when the store failed. Memory is bounded: a reader that falls
    behind gets `reread_all`.
    """

    def __init__(
        self,
        prefix: str,
        attach: Callable[[Watch], Awaitable[None]],
        detach: Callable[[Watch], Awaitable[None]],
    ) -> None:
        self.prefix = prefix
        self.loop: asyncio.AbstractEventLoop | None = None
        self._attach = attach
        self._detach = detach
        self._keys: set[str] = set()
        self._reread_all = False
        self._ended = False
        self._failure: Exception | None = None
        self._wake = asyncio.Event()

    async def __aenter__(self) -> Self:
        self.loop = asyncio.get_running_loop()
        await self._attach(self)
        self.offer((), reread_all=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        await self._detach(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ChangedKeys:
        while True:
            if self._failure is not None:
                raise self._failure
            if self._ended:
                raise StopAsyncIteration
            if self._keys or self._reread_all:
                changed = ChangedKeys(self._keys, reread_all=self._reread_all)
                self._keys.clear()
                self._reread_all = False
                return changed
            self._wake.clear()
            await self._wake.wait()

    # --- for drivers, on the watch's own loop --------------------------------------------------------------------

    def offer(self, keys: Iterable[str], *, reread_all: bool = False) -> None:
        """Report changes; the reader gets them with the next item."""
        self._keys.update(keys)
        if reread_all or len(self._keys) > PENDING_KEYS_MAX:
            self._keys.clear()
            self._reread_all = True
        self._wake.set()

    def end(self, failure: Exception | None = None) -> None:
        """No more changes will come."""
        self._ended = True
        self._failure = self._failure or failure
        self._wake.set()


class Registration:
    """A key that exists as long as its owner's session.

    Attributes:
        key: the key; of a sequential registration with its number.
        value: what was registered last.
        lost: set for good when the registration does not come back: another owner has the key, the store failed, or the
            session was lost and `again` was not wanted. An owner acts on it as if it had been killed.
        on_deleted: the owner's; drivers call it when the store responds that the key is not there, or another owner's.
        again: whether it is registered again by itself after the session was lost.
        renewed: how often it had to be registered again after the session was lost.
    """

    def __init__(
        self,
        key: str,
        value: bytes,
        *,
        again: bool,
        update: Callable[[Registration, bytes], Awaitable[None]],
        close: Callable[[Registration], Awaitable[None]],
    ) -> None:
        self.key = key
        self.value = value
        self.again = again
        self.lost = asyncio.Event()
        self.renewed = 0
        self.on_deleted: Callable[[], None] = lambda: None
        self._update = update
        self._close = close

    async def update(self, value: bytes) -> None:
        """Register another value.

        Raises:
            KeyMissingError: the registration is lost or closed.
            MetadataUnknownError: the outcome is unknown; a later update, or the session's next heartbeat, settles it.
        """
        await self._update(self, check_value(self.key, value))

    async def close(self) -> None:
        """Withdraw it. Closing it twice, or when it is lost already, changes nothing."""
        await self._close(self)


class MetadataStore(ABC):
    """One client's handle on a store, of one event loop and one process: see the module's text for what it promises."""

    @property
    @abstractmethod
    def instance_id(self) -> str:
        """The cluster's instance id: a UUID that was made with the store. Another one is another cluster."""

    @property
    def generation(self) -> int:
        """How often the store was found to be a copy, or to be an older state, plus 1; 0 where it cannot tell.

        Of one open store it stays the same. A greater number than before means that what was done in between
        may be lost, and that the store may return what is no longer so.
        """
        return 0

    @property
    def is_current(self) -> bool:
        """False: the store was removed, or another one stands in its place; True says nothing of a server."""
        return True

    @property
    def ledger_format(self) -> int:
        """In which of BookKeeper's formats new ledgers' records are to be written here."""
        return NEWEST_FORMAT

    @property
    def session_timeout_ms(self) -> int:
        """How long a registration may outlive its owner's process."""
        return SESSION_TIMEOUT_MS

    @property
    def ops_max(self) -> int | None:
        """How many operations one `multi` may have; None where only their bytes count."""
        return None

    @abstractmethod
    async def get(self, key: str) -> Versioned | None:
        """A key's value, None if it does not exist."""

    def cached(self, _key: str) -> Versioned | None:
        """A key's value from this process's memory, possibly an older one. None: only `get` has it."""
        return None

    @abstractmethod
    async def list(
        self, prefix: str, *, after: str | None = None, limit: int = LIST_LIMIT
    ) -> list[tuple[str, Versioned]]:
        """Keys that begin with a prefix, ascending, at most `limit`.

        Args:
            prefix: the beginning of the keys; not a folder: `logs/1` also lists `logs/17`.
            after: the last key of the page before, for the next page.
            limit: at least 1. Fewer items than this: there are no more.
        """

    @abstractmethod
    async def multi(self, ops: Sequence[Op]) -> Sequence[int]:
        """All of these operations, or none. Later ones see the earlier ones.

        Returns:
            The version that each operation gave its key (0 for `Delete` and `Require`).

        Raises:
            AlreadyExistsError, KeyMissingError, VersionConflictError: of the first that cannot be done; its key is
                in `ids["key"]`.
            MetadataUnknownError: the outcome is unknown.
        """

    async def create(self, key: str, value: bytes) -> int:
        """Make a key.

        Returns:
            Its version.

        Raises:
            AlreadyExistsError: it exists. After a `MetadataUnknownError` that may have been you.
        """
        return (await self.multi((Create(key, value),)))[0]

    async def put(self, key: str, value: bytes, version: int) -> int:
        """Change a key that has a version.

        Returns:
            Its new version.

        Raises:
            VersionConflictError: it has another version.
            KeyMissingError: it does not exist.
        """
        return (await self.multi((Put(key, value, version),)))[0]

    async def delete(self, key: str, version: int | None = None) -> None:
        """Remove a key, whatever its version if None.

        Raises:
            VersionConflictError: it has another version.
            KeyMissingError: it does not exist.
        """
        await self.multi((Delete(key, version),))

    @abstractmethod
    def watch(self, prefix: str) -> Watch:
        """Changes of all keys that begin with a prefix. The first item comes at once and means: read now."""

    @abstractmethod
    async def register(
        self, key: str, value: bytes, *, sequential: bool = False, again: bool = True
    ) -> Registration:
        """Make a key that ends with this process.

        Args:
            key: the key; with `sequential`, what comes before the number.
            value: the value.
            sequential: append 19 digits, greater than those of every earlier registration with the same beginning.
            again: register again by itself after the session was lost while the owner lived.

        Raises:
            AlreadyExistsError: it exists, and its owner's session is not known to have ended.
        """

    @abstractmethod
    async def next_ledger_id(self) -> LedgerId:
        """An id that is issued only once. Ids may be skipped."""

    @abstractmethod
    async def raise_ledger_ids(self, above: int) -> None:
        """Give out only greater ledger ids from now on: by every handle, whatever ids it has ready.

        For a store that went back in time, and would give out ids a second time. Idempotent. What other programs do is
        in `docs/formats/metadata.md`, "Ledger ids".

        Args:
            above: from 0 to `RAISED_MAX`.

        Raises:
            MisuseError: it is beyond these. RefusedError: the cluster's layout has no ids above this one.
        """

    @abstractmethod
    async def close(self) -> None:
        """Withdraw all registrations, end all watches, release everything. May be called again."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
