"""A metadata store in memory, for one process: tests, the simulator, and clusters that need not outlive it.

Several clients share a *space* by its name, also from several threads, each on its own event loop. Nothing here waits,
so a simulated loop stays deterministic.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from quire.core.errors import MisuseError
from quire.core.ids import LedgerId
from quire.metadata.held import HeldRegistrations
from quire.metadata.id_floor import check_raised
from quire.metadata.keys import sequential_key
from quire.metadata.store import (
    LIST_LIMIT,
    Create,
    Delete,
    KeyMissingError,
    MetadataStore,
    Op,
    Put,
    Registration,
    Require,
    Versioned,
    Watch,
    check_key,
    check_ops,
    check_value,
    judge,
)


@dataclass(frozen=True, slots=True)
class _Row:
    value: bytes
    version: int
    session: int


class MemorySpace:
    """What the clients of one name share."""

    def __init__(self, instance_id: str | None = None) -> None:
        self.instance_id = instance_id or str(uuid.uuid4())
        self.lock = threading.RLock()
        self.revision = 0
        self.sessions = 0
        self.ledger_ids = 0
        self.rows: dict[str, _Row] = {}
        self.keys: list[str] = []
        self.watches: list[Watch] = []

    def apply(self, ops: Sequence[Op], session: int = 0) -> list[int]:
        """Decide all, then change all, then notify the watchers."""
        with self.lock:
            revision = self.revision + 1
            staged: dict[str, _Row | None] = {}
            for op in ops:
                row = staged[op.key] if op.key in staged else self.rows.get(op.key)
                judge(op, row.version if row else None)
                if isinstance(op, Create):
                    staged[op.key] = _Row(op.value, revision, session)
                elif isinstance(op, Put) and row is not None:
                    staged[op.key] = _Row(op.value, revision, row.session)
                elif isinstance(op, Delete):
                    staged[op.key] = None
            if staged:
                self.revision = revision
                self._take(staged)
            return [0 if isinstance(op, Delete | Require) else revision for op in ops]

    def _take(self, staged: dict[str, _Row | None]) -> None:
        for key, row in staged.items():
            known = key in self.rows
            if row is None:
                if known:
                    del self.rows[key]
                    del self.keys[bisect_left(self.keys, key)]
                continue
            self.rows[key] = row
            if not known:
                insort(self.keys, key)
        for watch in self.watches:
            changed = [key for key in staged if key.startswith(watch.prefix)]
            if changed:
                _on_loop_of(watch, changed)

    def page(self, prefix: str, after: str | None, limit: int) -> list[tuple[str, Versioned]]:
        """One page of keys with a prefix."""
        with self.lock:
            start = bisect_left(self.keys, prefix)
            if after is not None:
                start = max(start, bisect_right(self.keys, after))
            found: list[tuple[str, Versioned]] = []
            for key in self.keys[start : start + limit]:
                if not key.startswith(prefix):
                    break
                row = self.rows[key]
                found.append((key, Versioned(row.value, row.version, row.version)))
            return found

    def end_session(self, session: int) -> None:
        """Remove everything that a session registered."""
        with self.lock:
            ended: dict[str, _Row | None] = {
                key: None for key, row in self.rows.items() if row.session == session
            }
            if ended:
                self.revision += 1
                self._take(ended)


def _on_loop_of(watch: Watch, keys: list[str]) -> None:
    loop = watch.loop
    try:
        here = asyncio.get_running_loop()
    except RuntimeError:
        here = None
    if loop is here:
        watch.offer(keys)
    elif loop is not None and not loop.is_closed():
        loop.call_soon_threadsafe(watch.offer, keys)


_SPACES: Final[dict[str, MemorySpace]] = {}
_SPACES_LOCK: Final = threading.Lock()


def space(name: str) -> MemorySpace:
    """The space of a name, made when it is first asked for; it exists as long as the process."""
    with _SPACES_LOCK:
        return _SPACES.setdefault(name, MemorySpace())


class MemoryStore(MetadataStore):
    """One client of a space."""

    def __init__(self, shared: MemorySpace | None = None) -> None:
        self._space = shared or MemorySpace()
        self._held = HeldRegistrations()
        self._watches: list[Watch] = []
        self._closed = False
        self._session = self._new_session()

    @property
    def instance_id(self) -> str:
        return self._space.instance_id

    async def get(self, key: str) -> Versioned | None:
        self._check_open()
        with self._space.lock:
            row = self._space.rows.get(check_key(key))
        return Versioned(row.value, row.version, row.version) if row else None

    async def list(
        self, prefix: str, *, after: str | None = None, limit: int = LIST_LIMIT
    ) -> list[tuple[str, Versioned]]:
        self._check_open()
        if limit < 1:
            msg = f"a page has at least 1 item, not {limit}"
            raise MisuseError(msg)
        return self._space.page(prefix, after, limit)

    async def multi(self, ops: Sequence[Op]) -> Sequence[int]:
        self._check_open()
        check_ops(ops)
        return self._space.apply(ops)

    def watch(self, prefix: str) -> Watch:
        return Watch(prefix, self._attach, self._detach)

    async def register(
        self, key: str, value: bytes, *, sequential: bool = False, again: bool = True
    ) -> Registration:
        self._check_open()
        with self._space.lock:
            if sequential:
                key = sequential_key(key, self._space.revision + 1)
            self._space.apply((Create(check_key(key), check_value(key, value)),), self._session)
        registration = Registration(key, value, again=again, update=self._update, close=self._take_back)
        self._held.hold(key, registration)
        return registration

    async def next_ledger_id(self) -> LedgerId:
        self._check_open()
        with self._space.lock:
            self._space.ledger_ids += 1
            return LedgerId(self._space.ledger_ids)

    async def raise_ledger_ids(self, above: int) -> None:
        self._check_open()
        with self._space.lock:
            self._space.ledger_ids = max(self._space.ledger_ids, check_raised(above))

    async def close(self) -> None:
        self.abandon()

    def abandon(self) -> None:
        """End as a killed process would: registrations vanish, and only the watchers of others are notified."""
        if self._closed:
            return
        self._closed = True
        for watch in list(self._watches):
            self._drop(watch)
        self._space.end_session(self._session)

    def lose_session(self) -> None:
        """What happens to an owner that was paused for the session's timeout and then runs on."""
        self._space.end_session(self._session)
        self._session = self._new_session()
        for key in list(self._held):
            self._held.make_again(
                key, lambda one: self._space.apply((Create(one.key, one.value),), self._session)
            )

    # --- inside --------------------------------------------------------------------------------------------------

    def _new_session(self) -> int:
        with self._space.lock:
            self._space.sessions += 1
            return self._space.sessions

    def _check_open(self) -> None:
        if self._closed:
            msg = "this metadata store is closed; open another"
            raise MisuseError(msg)

    async def _attach(self, watch: Watch) -> None:
        self._check_open()
        self._watches.append(watch)
        with self._space.lock:
            self._space.watches.append(watch)

    async def _detach(self, watch: Watch) -> None:
        if watch in self._watches:
            self._drop(watch)

    def _drop(self, watch: Watch) -> None:
        self._watches.remove(watch)
        with self._space.lock:
            self._space.watches.remove(watch)
        watch.end()

    async def _update(self, registration: Registration, value: bytes) -> None:
        self._check_open()
        with self._space.lock:
            row = self._space.rows.get(registration.key)
            if row is None or row.session != self._session or not self._holds(registration):
                msg = f"the registration {registration.key} was lost; register again"
                raise KeyMissingError(msg, key=registration.key)
            self._space.apply((Put(registration.key, value, row.version),))
        registration.value = value

    def _holds(self, registration: Registration) -> bool:
        return self._held.get(registration.key) is registration

    async def _take_back(self, registration: Registration) -> None:
        if not self._holds(registration):
            return
        del self._held[registration.key]
        with self._space.lock:
            row = self._space.rows.get(registration.key)
            if not self._closed and row is not None and row.session == self._session:
                self._space.apply((Delete(registration.key, row.version),))
