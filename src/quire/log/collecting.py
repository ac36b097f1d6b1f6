"""Finds what crashes left of logs: ledgers that no list holds, pages that no list names, intents; clears them.

`core/log/unlisted.py` decides what may go. A commit that comes later than the grace time still finds out, because its
compare-and-swap requires the ledgers that it lists; and the deletion itself requires the list that was looked at
(`listing.py`).

Everything is looked up by what the ledger's own metadata says (`quire.log`); a short or failed listing shows less, so
it deletes less.

Source: docs/decisions/019-paged-list.md; docs/spark-sink.md, "Garbage".
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from typing import Final

from quire.client.client import Client
from quire.core.errors import CorruptMetadataError, NoSuchLogError
from quire.core.ids import LedgerId
from quire.core.log.list import LogHead
from quire.core.log.sink_positions import is_replay
from quire.core.log.trimming import TrimMachine
from quire.core.log.unlisted import LogGarbage, Thing
from quire.log.config import LogConfig
from quire.log.cursors import LogCursors
from quire.log.heads import HEADS, PAGES, LogHeads
from quire.log.ledgers import LOG_KEY, LogLedgers
from quire.log.listing import Listing, delete_unlisted, delete_unlisted_page, read_listing
from quire.log.staging import StagedBy
from quire.log.trimming import LogTrimmer
from quire.metadata.paging import every_key
from quire.metadata.store import LIST_LIMIT
from quire.wire import ledger_metadata

log = logging.getLogger(__name__)

GRACE_MS: Final = 86_400_000
DELETES_MAX: Final = 1000
"""Most deletions in one pass: an error in here stays small."""


@dataclass(frozen=True, slots=True)
class Collected:
    """What one pass of a log's collector did.

    Attributes:
        ledgers: deleted ledgers, by id.
        pages: deleted pages, by key.
        intents: truncations and deletions that were begun and not finished, by the log's key.
        suspected: things that are unlisted and not old enough.
    """

    ledgers: tuple[LedgerId, ...]
    pages: tuple[str, ...]
    intents: tuple[str, ...]
    suspected: int


@dataclass(frozen=True, slots=True)
class _Made:
    """A ledger that says which log it was made for."""

    ledger_id: LedgerId
    log_id: bytes
    staged_by: StagedBy | None
    created_ms: int | None


class LogCollector:
    """Collects for all logs of a cluster. Keep one and call `collect` every now and then.

    Args:
        client: the cluster.
        grace_ms: how long a thing must have been unlisted.
    """

    def __init__(self, client: Client, grace_ms: int = GRACE_MS) -> None:
        self._client = client
        self._garbage = LogGarbage(grace_ms)
        self._ledgers = LogLedgers(client)

    async def collect(self) -> Collected:
        """Look once; delete what was unlisted for the grace time and is so now."""
        heads = LogHeads(self._client.store)  # a new one each time: nothing that it caches may be stale
        listings: dict[bytes, Listing | None] = {}
        unlisted = {
            made.ledger_id: made
            for made in await self._made_for_logs()
            if not await self._names(heads, listings, made.log_id, made.ledger_id)
        }
        unlisted_pages = {
            key: (log_id, name)
            for key, log_id, name in await self._pages()
            if not await self._names(heads, listings, log_id, name)
        }
        now = self._client.clock.now_ms()
        waiting = await self._intents(heads)
        due = self._garbage.looked([*unlisted, *unlisted_pages, *waiting], now)
        due.update(ledger_id for ledger_id, made in unlisted.items() if self._is_over(made, listings))
        ledgers = [
            made.ledger_id
            for made in [made for made in unlisted.values() if made.ledger_id in due][:DELETES_MAX]
            if await delete_unlisted(
                self._client.store, self._client.records.ledgers, heads, made.log_id, made.ledger_id
            )
        ]
        pages = [
            key
            for key in [key for key in unlisted_pages if key in due][:DELETES_MAX]
            if await delete_unlisted_page(self._client.store, heads, *unlisted_pages[key])
        ]
        intents = [
            each for each in waiting if each in due and await self._is_carried_out(heads, waiting[each])
        ]
        cleared: list[Thing] = [*ledgers, *pages, *intents]
        self._garbage.cleared(cleared)
        return Collected(tuple(ledgers), tuple(pages), tuple(intents), self._garbage.suspected)

    def _is_over(self, made: _Made, listings: dict[bytes, Listing | None]) -> bool:
        """Whether a ledger that a sink staged, and that no list names, may go now."""
        by, listing = made.staged_by, listings[made.log_id]
        if by is None or listing is None:
            return False
        head, created_ms = listing.head, made.created_ms
        position = head.sink_position(by.query) if head is not None and by.query and not by.consents else None
        return self._garbage.staged_is_over(
            log_gone=head is None,
            replayed=position is not None
            and position.incarnation == by.incarnation
            and is_replay(by.batch, position),
            age_ms=None if created_ms is None else self._client.clock.wall_ms() - created_ms,
        )

    async def _intents(self, heads: LogHeads) -> dict[str, LogHead]:
        """The logs with a truncation or deletion under way, by their oldest intent. Damaged heads say nothing."""
        found: dict[str, LogHead] = {}
        for log_id in await heads.log_ids():
            try:
                head = await heads.read(log_id)
            except CorruptMetadataError:
                continue
            if head is not None and head[0].intents:
                intent = head[0].intents[0]
                found[f"{HEADS}{log_id.hex()} {intent.kind.name.lower()} {intent.before}"] = head[0]
        return found

    async def _is_carried_out(self, heads: LogHeads, head: LogHead) -> bool:
        """Carry a truncation or deletion out; False where a damaged record stops it, which stops no other log's."""
        machine = TrimMachine(None if head.is_being_deleted else -1)
        cursors = LogCursors(self._client.store, self._client.clock.wall_ms)
        try:
            await LogTrimmer(head, heads, self._ledgers, LogConfig(), cursors).run(machine)
        except NoSuchLogError:
            pass
        except CorruptMetadataError as error:
            log.warning("log %r: its truncation or deletion is not finished: %s", head.name, error)
            return False
        return True

    async def _made_for_logs(self) -> list[_Made]:
        """Every ledger that says which log it was made for. One whose record is damaged says nothing."""
        found: list[_Made] = []
        after: int | None = None
        while True:
            page = await self._client.records.ledgers.page(after)
            for ledger_id, stored in page:
                try:
                    record = ledger_metadata.parse(stored.value, ledger_id)
                    log_id = bytes.fromhex((record.custom_value(LOG_KEY) or b"").decode())
                except (CorruptMetadataError, ValueError):
                    continue
                if log_id:
                    found.append(_Made(ledger_id, log_id, StagedBy.of(record), record.created_ms))
            if len(page) < LIST_LIMIT:
                return found
            after = page[-1][0]

    async def _pages(self) -> list[tuple[str, bytes, str]]:
        """Every stored page: key, log id, name."""
        found: list[tuple[str, bytes, str]] = []
        async for key, _ in every_key(self._client.store, PAGES):
            log_id, _, name = key.removeprefix(PAGES).partition("/")
            with contextlib.suppress(ValueError):
                found.append((key, bytes.fromhex(log_id), name))
        return found

    async def _names(
        self, heads: LogHeads, known: dict[bytes, Listing | None], log_id: bytes, thing: int | str
    ) -> bool:
        """Whether a log's records name a ledger or page; True as well when that is unknown."""
        if log_id not in known:
            known[log_id] = await read_listing(self._client.store, heads, log_id)
        listing = known[log_id]
        return listing is None or thing in listing.ledgers or thing in listing.pages
