"""Cursors: named positions of readers in logs, in the metadata store, so that each reader's lag is visible.

A cursor belongs to one log by its id (or to one ledger), never to a name, so a log that was deleted and created again
has none of the old ones. It is created where a reader begins, put-if-absent, and moves when the reader commits a
position; it is not needed to read. One reader at a time: `holder` identifies the one that took a cursor over, and the
former one's next move is refused.

Source: docs/formats/log-list.md, "Cursors"; docs/spark.md, "Streams".
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from quire.core.errors import MisuseError, RefusedError
from quire.core.log.list import LogHead
from quire.metadata.paging import every_key
from quire.metadata.retries import StoreRetries
from quire.metadata.store import (
    Create,
    Delete,
    KeyMissingError,
    MetadataStore,
)
from quire.wire.log_cursors import CURSOR_CODEC, Cursor

CURSORS: Final = "log-cursors/"
_ATTEMPTS_MAX: Final = 10
CURSOR_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")


class CursorTakenError(RefusedError):
    """Another reader uses the cursor now."""


class CursorHoldsError(RefusedError):
    """A cursor keeps records from being truncated."""


@dataclass(frozen=True, slots=True)
class CursorUse:
    """Who moves a cursor.

    Attributes:
        name: the cursor's.
        holder: identifies this reader.
        hold: whether a truncation of records from its offset on is refused.
    """

    name: str
    holder: str
    hold: bool = False


class LogCursors:
    """The cursors of a store.

    Args:
        store: the metadata store.
        wall_ms: wall time, for people.
    """

    def __init__(self, store: MetadataStore, wall_ms: Callable[[], int]) -> None:
        self._store = store
        self._wall_ms = wall_ms

    async def read(self, owner: str, name: str) -> Cursor | None:
        """One cursor, None if there is none.

        Args:
            owner: the log's id in hex, or `ledger-` and the ledger's number and token.
            name: the cursor's name.
        """
        found = await self._store.get(cursor_key(owner, name))
        return None if found is None else CURSOR_CODEC.decode(found.value, owner, name)

    async def of(self, owner: str) -> list[Cursor]:
        """All cursors of one log, by name."""
        return [
            CURSOR_CODEC.decode(stored.value, owner, key.rpartition("/")[2])
            async for key, stored in every_key(self._store, f"{CURSORS}{owner}/")
        ]

    async def begin(self, owner: str, use: CursorUse, offset: int) -> Cursor:
        """Take the cursor: where it is, or, if there is none, at an offset. Idempotent.

        Args:
            owner: as in `read`.
            use: who takes it.
            offset: where it begins if it does not exist; else it stays where it is.
        """
        return await self._change(owner, use, lambda cursor: cursor, offset)

    async def move(self, owner: str, use: CursorUse, offset: int, *, take: bool) -> Cursor:
        """Say how far the reader is; creates a cursor that is not there.

        Args:
            owner: as in `read`.
            use: who moves it.
            offset: everything below it is done.
            take: whether to take it from another reader; a reader does so once, at its first move.

        Raises:
            CursorTakenError: another reader took it meanwhile.
        """

        def moved(cursor: Cursor) -> Cursor:
            if cursor.holder != use.holder and not take:
                raise CursorTakenError(
                    f"cursor '{use.name}' was taken over by another stream: each stream needs its own cursor",
                    cursor=use.name,
                )
            return replace(cursor, offset=offset)

        return await self._change(owner, use, moved, offset)

    async def _change(
        self, owner: str, use: CursorUse, change: Callable[[Cursor], Cursor], offset: int
    ) -> Cursor:
        key = cursor_key(owner, use.name)

        async def once() -> Cursor:
            found = await self._store.get(key)
            now = self._wall_ms()
            if found is None:
                cursor = Cursor(owner, use.name, offset, offset, use.hold, use.holder, now, now)
                await self._store.multi((Create(key, CURSOR_CODEC.encode(cursor)),))
                return cursor
            old = CURSOR_CODEC.decode(found.value, owner, use.name)
            cursor = replace(change(old), hold=use.hold, holder=use.holder)
            if cursor != old:
                cursor = replace(cursor, moved_ms=now)
                await self._store.put(key, CURSOR_CODEC.encode(cursor), found.version)
            return cursor

        # Every change here is idempotent.
        return await StoreRetries(_ATTEMPTS_MAX).until_in(once)

    async def remove(self, owner: str, name: str) -> bool:
        """Delete a cursor; whether there was one."""
        try:
            await self._store.multi((Delete(cursor_key(owner, name)),))
        except KeyMissingError:
            return False
        return True

    async def remove_all(self, owner: str) -> None:
        """Delete all cursors of a log that is no more, damaged ones too."""
        async for key, _ in every_key(self._store, f"{CURSORS}{owner}/"):
            with contextlib.suppress(KeyMissingError):
                await self._store.multi((Delete(key),))

    async def check_truncation(self, head: LogHead, before: int) -> None:
        """Refuse a truncation of records that a cursor holds.

        Raises:
            CursorHoldsError: naming the cursor that is furthest behind.
        """
        holding = [cursor for cursor in await self.of(head.log_id.hex()) if cursor.hold]
        last = min(holding, key=lambda cursor: cursor.offset, default=None)
        if last is not None and last.offset < before:
            raise CursorHoldsError(
                f"log {head.name!r}: cursor '{last.name}' retains records from offset {last.offset} "
                "on; truncate before that offset, or remove the cursor (`await log.remove_cursor(name)`)",
                log=head.name,
                cursor=last.name,
            )


def cursor_key(owner: str, name: str) -> str:
    """The key of a cursor's record.

    Raises:
        MisuseError: the name cannot be one.
    """
    if not CURSOR_NAME.fullmatch(name):
        raise MisuseError(
            f"{name!r} is not a valid cursor name: use 1 to 128 letters, digits and any of . _ -"
        )
    return f"{CURSORS}{owner}/{name}"


def ledger_owner(ledger_id: int, token: int) -> str:
    """What stands for a raw ledger where a log has its id."""
    return f"ledger-{ledger_id}-{token:016x}"
