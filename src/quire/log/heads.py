"""A log's records in the metadata store: names, heads, pages. Compare-and-swap only; it decides nothing.

Keys: `log-names/<name>`, `logs/<log id>`, `log-pages/<log id>/<page>`; ids in hex. Of ledgers it knows the keys.

Source: docs/decisions/018-log-ids.md; docs/decisions/019-paged-list.md.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from quire.core.errors import (
    AlreadyExistsError,
    CorruptMetadataError,
    MetadataUnknownError,
    NoSuchLogError,
    QuireError,
)
from quire.core.ids import LedgerId
from quire.core.log.commit import HeadChange
from quire.core.log.list import LogHead, LogItem, LogPage, PageRef
from quire.metadata.keys import named_key
from quire.metadata.paging import every_key
from quire.metadata.records import OF_LEDGERS
from quire.metadata.retries import ATTEMPTS_MAX, StoreRetries
from quire.metadata.store import (
    Create,
    Delete,
    KeyMissingError,
    MetadataStore,
    Put,
    Require,
    VersionConflictError,
    Watch,
)
from quire.wire.log_records import (
    PAGE_BYTES_MAX,
    decode_head,
    decode_name,
    decode_page,
    encode_head,
    encode_name,
    encode_page,
    name_of_bytes,
)

NAMES: Final = "log-names/"
HEADS: Final = "logs/"
PAGES: Final = "log-pages/"


def name_key(name: str) -> str:
    """The key of a name record.

    Raises:
        MisuseError: no log can have the name.
    """
    return named_key(NAMES, name, "a log")


def lost_page(head: LogHead, error: NoSuchLogError) -> CorruptMetadataError:
    """The error for a page that is missing though the head, read again, is the same: no truncation took it."""
    msg = f"page {error.ids.get('page')} of log {head.name!r} is missing, and the list still names it"
    return CorruptMetadataError(msg, log=head.name)


class LogHeads:
    """All logs of a store.

    Args:
        store: the metadata store.
        cached_pages_max: pages that are cached; they never change.
    """

    def __init__(self, store: MetadataStore, cached_pages_max: int = 256) -> None:
        self._store = store
        self._cached_max = cached_pages_max
        self._pages: OrderedDict[tuple[bytes, str], LogPage] = OrderedDict()

    # --- names -------------------------------------------------------------------------------------------------

    async def find(self, name: str) -> bytes | None:
        """The id of the log with a name, None if there is none."""
        found = await self._store.get(name_key(name))
        return None if found is None else decode_name(found.value, name)

    async def names(self) -> list[str]:
        """All names, sorted."""
        return [key.removeprefix(NAMES) async for key, _ in every_key(self._store, NAMES)]

    async def log_ids(self) -> list[bytes]:
        """The ids of all logs, those that are being deleted and those without a name included."""
        found: list[bytes] = []
        async for key, _ in every_key(self._store, HEADS):
            with contextlib.suppress(ValueError):
                found.append(bytes.fromhex(key.removeprefix(HEADS)))
        return found

    # --- heads -------------------------------------------------------------------------------------------------

    async def read(self, log_id: bytes) -> tuple[LogHead, int] | None:
        """A head and its version, None if there is no such log."""
        found = await self._store.get(HEADS + log_id.hex())
        return None if found is None else (decode_head(found.value, log_id), found.version)

    async def create(self, head: LogHead) -> None:
        """Make a log: head and name in one step.

        Raises:
            AlreadyExistsError: there is a log with this name.
            MetadataUnknownError: the outcome is unknown.
        """
        name, key = name_key(head.name), HEADS + head.log_id.hex()
        try:
            await self._store.multi((Create(key, encode_head(head)), Create(name, encode_name(head.log_id))))
        except AlreadyExistsError as error:
            msg = f"log {head.name!r} already exists: append to it, or give another name"
            raise AlreadyExistsError(msg, log=head.name) from error
        except MetadataUnknownError as unknown:
            try:
                found = await self.find(head.name)
            except QuireError as error:
                raise unknown from error
            if found != head.log_id:
                raise

    async def write(self, head: LogHead, version: int, pages: Iterable[LogPage] = ()) -> int:
        """Store the pages, then replace a head that may name them by compare-and-swap.

        Raises:
            VersionConflictError: it has another version, or is deleted.
            MetadataUnknownError: the outcome is unknown.
        """
        for page in pages:
            await self.write_page(page)
        return await self._store.put(HEADS + head.log_id.hex(), encode_head(head), version)

    async def write_all(
        self, changes: Sequence[HeadChange], required: Sequence[tuple[LedgerId, int]]
    ) -> None:
        """Store the pages, then replace all these heads or none, if these ledgers' records have these versions.

        Raises:
            VersionConflictError: a head or a record has another version, or is deleted; `ids["key"]` says which.
            MetadataUnknownError: the outcome is unknown.
        """
        for change in changes:
            for page in change.pages:
                await self.write_page(page)
        writes = [Put(HEADS + one.head.log_id.hex(), encode_head(one.head), one.version) for one in changes]
        guards = [Require(OF_LEDGERS.key(ledger_id), version) for ledger_id, version in required]
        await self._store.multi((*guards, *writes))

    async def remove(self, head: LogHead) -> None:
        """Delete head and name in one step; what is deleted already stays deleted.

        A name goes only with the head that it names: alone it may be a later log's, under a version of the former one's.
        """
        name, key = name_key(head.name), HEADS + head.log_id.hex()

        async def once() -> None:
            found = await self._store.get(name)
            if found is None or decode_name(found.value, head.name) != head.log_id:
                return
            with contextlib.suppress(KeyMissingError):  # another client has deleted both
                await self._store.multi((Delete(name, found.version), Delete(key)))

        await StoreRetries(ATTEMPTS_MAX).until_in(once, (VersionConflictError,))
        await self._remove(key)

    async def _remove(self, key: str) -> None:
        with contextlib.suppress(KeyMissingError):
            await self._store.multi((Delete(key),))

    def watch(self, log_id: bytes) -> Watch:
        """Changes of one head; the first item comes at once."""
        return self._store.watch(HEADS + log_id.hex())

    # --- pages -------------------------------------------------------------------------------------------------

    async def write_page(self, page: LogPage) -> None:
        """Store a page under its own name; idempotent.

        Raises:
            CorruptMetadataError: it is too large; the layout's figures are too high for it.
        """
        record = encode_page(page)
        if len(record) > PAGE_BYTES_MAX:
            msg = f"a page of log {page.log_id.hex()} has {len(record)} bytes, at most {PAGE_BYTES_MAX} may be stored"
            raise CorruptMetadataError(msg)
        name = name_of_bytes(record)
        key = f"{PAGES}{page.log_id.hex()}/{name}"
        try:
            await self._store.create(key, record)
        except AlreadyExistsError:
            pass  # its name says what it holds
        except MetadataUnknownError:
            if await self._store.get(key) is None:
                raise
        self._remember(page.log_id, name, page)

    async def read_page(self, log_id: bytes, name: str) -> LogPage | None:
        """A page, None if it is deleted."""
        known = self._pages.get((log_id, name))
        if known is not None:
            self._pages.move_to_end((log_id, name))
            return known
        found = await self._store.get(f"{PAGES}{log_id.hex()}/{name}")
        if found is None:
            return None
        page = decode_page(found.value, log_id, name)
        self._remember(log_id, name, page)
        return page

    async def remove_page(self, log_id: bytes, name: str) -> None:
        """Delete a page; a missing one is deleted."""
        self._pages.pop((log_id, name), None)
        await self._remove(f"{PAGES}{log_id.hex()}/{name}")

    async def remove_unnamed_page(self, head: LogHead, version: int, name: str) -> None:
        """Delete a page that a head does not name, and give the head another version; a missing one is deleted.

        Raises:
            VersionConflictError: the head has another version, or is deleted.
            MetadataUnknownError: the outcome is unknown.
        """
        key = f"{PAGES}{head.log_id.hex()}/{name}"
        if await self._store.get(key) is not None:
            newer = encode_head(replace(head, generation=head.generation + 1))
            await self._store.multi((Put(HEADS + head.log_id.hex(), newer, version), Delete(key)))

    def _remember(self, log_id: bytes, name: str, page: LogPage) -> None:
        self._pages[log_id, name] = page
        while len(self._pages) > self._cached_max:
            self._pages.popitem(last=False)

    # --- items -------------------------------------------------------------------------------------------------

    async def item_holding(self, head: LogHead, offset: int) -> list[LogItem]:
        """The items from the one that holds an offset on, as far as one page reaches; then the head's own.

        Returns:
            Not empty unless the log has no item that reaches that far.

        Raises:
            NoSuchLogError: a page is deleted: the log was truncated or deleted since the head was read.
        """
        for page in head.pages:
            if page.next_offset > offset:
                return await self._items_below(head, page, offset)
        items = head.items
        return [item for item in items if item.next_offset is None or item.next_offset > offset]

    async def _items_below(self, head: LogHead, page: PageRef, offset: int) -> list[LogItem]:
        found = await self._page(head, page)
        if found.children:
            child = next(child for child in found.children if child.next_offset > offset)
            return await self._items_below(head, child, offset)
        return [item for item in found.items if item.next_offset is None or item.next_offset > offset]

    async def _page(self, head: LogHead, page: PageRef) -> LogPage:
        found = await self.read_page(head.log_id, page.name)
        if found is None:
            msg = f"page {page.name} of log {head.name!r} is missing: the log was truncated or deleted meanwhile"
            raise NoSuchLogError(msg, log=head.name, page=page.name)
        return found

    async def all_items(self, head: LogHead, since: int = 0) -> list[LogItem]:
        """Every item that reaches above the log's start, and above `since`, oldest first.

        Raises:
            NoSuchLogError: a page is deleted, see `item_holding`.
        """
        items: list[LogItem] = []
        start = max(head.start_offset, since)
        for page in head.pages:
            await self._collect(head, page, items, start)
        kept = [item for item in items if item.next_offset is None or item.next_offset > start]
        own = [
            item for item in head.items if since == 0 or item.next_offset is None or item.next_offset > since
        ]
        return [*kept, *own]

    async def items_of(self, head: LogHead, page: PageRef) -> list[LogItem]:
        """Every item below a page of a head, oldest first.

        Raises:
            NoSuchLogError: a page is deleted, see `item_holding`.
        """
        items: list[LogItem] = []
        await self._collect(head, page, items, -1)
        return items

    async def _collect(self, head: LogHead, page: PageRef, items: list[LogItem], start: int) -> None:
        if page.next_offset <= start:
            return
        found = await self._page(head, page)
        items += found.items
        for child in found.children:
            await self._collect(head, child, items, start)
