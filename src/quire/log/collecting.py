"""Finds what crashes left of logs: ledgers that no list holds, pages that no list names, intents; clears them later.

A thing goes only when it was unlisted at one look and, a grace time after that, at every look until another one: a
leader that has created a ledger and not listed it yet has that long. Everything is looked up by what the ledger's own
metadata says (`quire.log`); a short or failed listing shows less, so it deletes less.

Source: design, "A log, and what a reader calls a position", last point; decision F-29: "collected after the grace time".
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Final

from quire.client.client import Client
from quire.core.errors import CorruptMetadataError, NoSuchLogError
from quire.core.ids import LedgerId
from quire.core.log_list import LogHead, LogItem, PageRef
from quire.core.log_trimming import TrimMachine
from quire.log.config import LogConfig
from quire.log.heads import HEADS, PAGES, LogHeads
from quire.log.ledgers import LOG_KEY, LogLedgers
from quire.log.trimming import LogTrimmer
from quire.metadata.store import LIST_LIMIT
from quire.wire import ledger_metadata

GRACE_MS: Final = 86_400_000
DELETES_MAX: Final = 1000
"""At most so many in one pass: an error in here stays small."""


@dataclass(frozen=True, slots=True)
class Collected:
    """What one pass did.

    Attributes:
        ledgers: deleted ledgers, by id.
        pages: deleted pages, by key.
        intents: truncations and deletions that somebody had left half done, by the log's key.
        suspected: things that are unlisted and not old enough.
    """

    ledgers: tuple[LedgerId, ...]
    pages: tuple[str, ...]
    intents: tuple[str, ...]
    suspected: int


@dataclass(slots=True)
class _Listed:
    """What a log's records name."""

    ledgers: set[int]
    pages: set[str]


class LogCollector:
    """Collects for all logs of a cluster. Keep one and call `collect` every now and then.

    Args:
        client: the cluster.
        grace_ms: how long a thing must have been unlisted.
    """

    def __init__(self, client: Client, grace_ms: int = GRACE_MS) -> None:
        self._client = client
        self._grace_ms = grace_ms
        self._ledgers = LogLedgers(client)
        self._since: dict[int | str, int] = {}

    async def collect(self) -> Collected:
        """Look once; delete what was unlisted for the grace time and is so now."""
        heads = LogHeads(self._client.store)  # a new one each time: nothing that it remembers may be stale
        listed: dict[str, _Listed | None] = {}
        unlisted_ledgers = [
            ledger_id
            for ledger_id, log_id in await self._made_for_logs()
            if not await self._names(heads, listed, log_id, ledger_id)
        ]
        unlisted_pages = [
            key
            for key, log_id, name in await self._pages()
            if not await self._names(heads, listed, log_id, name)
        ]
        now = self._client.clock.now_ms()
        waiting = await self._intents(heads)
        found: list[int | str] = [*unlisted_ledgers, *unlisted_pages, *waiting]
        # Whatever was listed in between begins anew.
        self._since = {thing: self._since.get(thing, now) for thing in found}
        due = {thing for thing, since in self._since.items() if now - since >= self._grace_ms}
        ledgers = [each for each in unlisted_ledgers if each in due][:DELETES_MAX]
        pages = [each for each in unlisted_pages if each in due][:DELETES_MAX]
        for ledger_id in ledgers:
            await self._ledgers.delete(ledger_id)
        for key in pages:
            log_id, _, name = key.removeprefix(PAGES).partition("/")
            await heads.remove_page(bytes.fromhex(log_id), name)
        intents = [each for each in waiting if each in due]
        for each in intents:
            await self._carry_out(heads, waiting[each])
        gone: set[int | str] = {*ledgers, *pages, *intents}
        self._since = {thing: since for thing, since in self._since.items() if thing not in gone}
        return Collected(tuple(ledgers), tuple(pages), tuple(intents), len(self._since))

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

    async def _carry_out(self, heads: LogHeads, head: LogHead) -> None:
        machine = TrimMachine(None if head.is_being_deleted else -1)
        with contextlib.suppress(NoSuchLogError):
            await LogTrimmer(head, heads, self._ledgers, LogConfig()).run(machine)

    async def _made_for_logs(self) -> list[tuple[LedgerId, str]]:
        """Every ledger that says which log it was made for. One whose record is damaged says nothing."""
        found: list[tuple[LedgerId, str]] = []
        after: int | None = None
        while True:
            page = await self._client.ledger_store.page(after)
            for ledger_id, stored in page:
                try:
                    record = ledger_metadata.parse(stored.value, ledger_id)
                except CorruptMetadataError:
                    continue
                log_id = record.custom_value(LOG_KEY)
                if log_id is not None:
                    found.append((ledger_id, log_id.decode(errors="replace")))
            if len(page) < LIST_LIMIT:
                return found
            after = page[-1][0]

    async def _pages(self) -> list[tuple[str, str, str]]:
        """Every stored page: key, log id, name."""
        found: list[tuple[str, str, str]] = []
        after: str | None = None
        while True:
            page = await self._client.store.list(PAGES, after=after)
            for key, _ in page:
                log_id, _, name = key.removeprefix(PAGES).partition("/")
                found.append((key, log_id, name))
            if len(page) < LIST_LIMIT:
                return found
            after = page[-1][0]

    async def _names(
        self, heads: LogHeads, known: dict[str, _Listed | None], log_id: str, thing: int | str
    ) -> bool:
        """Whether a log's records name a ledger or page; yes as well when that cannot be told."""
        if log_id not in known:
            known[log_id] = await self._listed(heads, log_id)
        listed = known[log_id]
        return listed is None or thing in listed.ledgers or thing in listed.pages

    async def _listed(self, heads: LogHeads, log_id: str) -> _Listed | None:
        """All that a log's records name, None when they cannot be read now. A log that is gone names nothing."""
        try:
            raw = bytes.fromhex(log_id)
        except ValueError:
            return None
        if await self._client.store.get(HEADS + log_id) is None:
            return _Listed(set(), set())
        try:
            found = await heads.read(raw)
            if found is None:
                return None
            head = found[0]
            listed = _Listed(set(), set())
            self._note(listed, head.items)
            for adoption in head.adoptions:
                self._note(listed, adoption.items)
            for intent in head.intents:
                self._note(listed, intent.items)
            for page in (*head.pages, *(page for intent in head.intents for page in intent.pages)):
                await self._walk(heads, head, page, listed)
        except (CorruptMetadataError, NoSuchLogError):
            return None
        return listed

    @staticmethod
    def _note(listed: _Listed, items: tuple[LogItem, ...]) -> None:
        listed.ledgers.update(item.ledger_id for item in items)

    async def _walk(self, heads: LogHeads, head: LogHead, page: PageRef, listed: _Listed) -> None:
        listed.pages.add(page.name)
        stored = await heads.read_page(head.log_id, page.name)
        if stored is None:
            return  # truncated: what it named is gone, or in an intent
        self._note(listed, stored.items)
        for child in stored.children:
            await self._walk(heads, head, child, listed)
