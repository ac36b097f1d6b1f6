"""The list of a log: which ledgers it is made of, in order, and the only ways the list may change.

A `LogHead` is immutable; every function returns a new one and carries over all that it does not own, fields of later
versions (`unknown`) included. The head is small: all but the newest items live in immutable pages, which it names by
their content. The module must not know bytes (`wire/log_records.py`), stores or ledgers' entries.

Source: BookKeeper ledgers to logs; docs/formats/log-list.md; docs/decisions/019-paged-list.md;
docs/decisions/022-truncation-intent.md; docs/decisions/024-adoption.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import IntEnum, IntFlag
from itertools import pairwise
from typing import Final, TypeAlias

from quire.core.errors import CorruptMetadataError, MisuseError, PastEndError
from quire.core.ids import LedgerId
from quire.core.log.fingerprints import Fingerprint
from quire.core.settings import check_settings, number

OPEN_ITEMS_MAX: Final = 2
"""The previous ledger, whose close is deferred, and the current one."""
KEPT_ITEMS: Final = 2
"""The last two items never leave the head: an opener fences them without reading a page."""
FAN_OUT_MAX: Final = 512
"""So many of the largest possible items, or references, fit a page of 64 KiB."""
INTENTS_MAX: Final = 64
SINK_POSITIONS_MAX: Final = 256


class ItemState(IntEnum):
    """What the list says of a ledger. The numbers are stored: never renumber."""

    OPEN = 1
    CLOSED = 2


class ItemLocation(IntEnum):
    """Where an item's records are. The numbers are stored: never renumber."""

    BOOKIES = 1
    ARCHIVE = 2
    BOTH = 3
    """Copied to the archive; the ledger is there still, and is what is read."""


class ItemFlags(IntFlag):
    """What else the list says of a ledger. The numbers are stored: never renumber; others are carried along."""

    REWRITTEN = 1
    """It took the place of others that held the same records."""
    COMPACTED = 2
    """Records of some of its offsets are removed, since their keys had later ones."""


class IntentKind(IntEnum):
    """Why ledgers are about to be deleted. The numbers are stored: never renumber."""

    TRUNCATE = 1
    DELETE = 2


@dataclass(frozen=True, slots=True)
class LedgerSummary:
    """What a closed ledger holds, from its last batch header and its metadata.

    Attributes:
        records: how many records.
        payload_bytes: bytes of all its entries' payloads.
        min_time_ms: smallest time of a record, None when there is no record; likewise `max_time_ms`.
    """

    records: int
    payload_bytes: int = 0
    min_time_ms: int | None = None
    max_time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class LogItem:
    """One ledger of a log.

    Attributes:
        ledger_id: the ledger.
        token: its token, so that an id that was used again is noticed.
        first_offset: offset of its first record; None while the ledger before it is not finished.
        next_offset: the first offset after it; None while it is open. After compaction more than first + count.
        count: records; 0 while open.
        payload_bytes: bytes of its entries; 0 while open.
        state: whether the list calls it open.
        digest: BookKeeper's number of the ledger's digest type; `format`: what its entries are.
        archive: of an archived item the digest in its file's name.
    """

    ledger_id: LedgerId
    token: int = 0
    first_offset: int | None = None
    next_offset: int | None = None
    count: int = 0
    payload_bytes: int = 0
    min_time_ms: int | None = None
    max_time_ms: int | None = None
    state: ItemState = ItemState.OPEN
    location: ItemLocation = ItemLocation.BOOKIES
    digest: int = 0
    format: str = "batch1"
    flags: int = 0
    unknown: bytes = b""
    archive: bytes = b""

    @property
    def is_open(self) -> bool:
        """Whether the list calls it open; its ledger may be closed already."""
        return self.state is ItemState.OPEN

    def completed(self, first_offset: int, summary: LedgerSummary) -> LogItem:
        """The item once its ledger's end is known."""
        return replace(
            self,
            first_offset=first_offset,
            next_offset=first_offset + summary.records,
            count=summary.records,
            payload_bytes=summary.payload_bytes,
            min_time_ms=summary.min_time_ms,
            max_time_ms=summary.max_time_ms,
            state=ItemState.CLOSED,
        )


@dataclass(frozen=True, slots=True)
class PageRef:
    """A page as the head or a higher page names it.

    Attributes:
        name: made from the log's id and the page's content.
        level: 0 for a page of items, n + 1 for a page of references to pages of level n.
        first_offset: offset of the first record below it; `next_offset` is the first one after it.
        items: ledgers below it.
        count: records below it.
    """

    name: str
    level: int
    first_offset: int
    next_offset: int
    items: int
    count: int = 0
    payload_bytes: int = 0
    min_time_ms: int | None = None
    max_time_ms: int | None = None
    unknown: bytes = b""


@dataclass(frozen=True, slots=True)
class LogPage:
    """An immutable page: items (level 0) or references (above), oldest first."""

    log_id: bytes
    level: int = 0
    items: tuple[LogItem, ...] = ()
    children: tuple[PageRef, ...] = ()
    unknown: bytes = b""

    def reference(self, name: str) -> PageRef:
        """How others name this page."""
        parts: tuple[LogItem | PageRef, ...] = self.items or self.children
        lows = [part.min_time_ms for part in parts if part.min_time_ms is not None]
        highs = [part.max_time_ms for part in parts if part.max_time_ms is not None]
        return PageRef(
            name,
            self.level,
            parts[0].first_offset or 0,
            parts[-1].next_offset or 0,
            len(self.items) or sum(child.items for child in self.children),
            sum(part.count for part in parts),
            sum(part.payload_bytes for part in parts),
            min(lows, default=None),
            max(highs, default=None),
        )


@dataclass(frozen=True, slots=True)
class Leader:
    """Who may write. Opening adds one to the epoch; `holder` names one open handle, "" after a clean close.

    Attributes:
        adopts: the handle places closed ledgers that others commit to the log while it leads.
    """

    epoch: int = 0
    holder: str = ""
    host: str = ""
    adopts: bool = False
    unknown: bytes = b""


@dataclass(frozen=True, slots=True)
class SinkPosition:
    """The last batch of a query that is in the log (exactly once).

    Attributes:
        incarnation: of a named transaction, the checkpoint that counts its batches.
        fingerprint: distinguishes the batch from another one of its number; of another batch where a program of an
            earlier version has moved the sink position on.
    """

    query_id: str
    batch_id: int
    time_ms: int = 0
    incarnation: str = ""
    unknown: bytes = b""
    fingerprint: Fingerprint | None = None


@dataclass(frozen=True, slots=True)
class Adoption:
    """Closed ledgers that were committed to the log and wait for their offsets, in the order of their commits."""

    items: tuple[LogItem, ...]
    query_id: str = ""
    batch_id: int = 0
    unknown: bytes = b""


@dataclass(frozen=True, slots=True)
class Intent:
    """Ledgers and pages that are no longer in the list and are about to be deleted.

    Attributes:
        before: everything wholly below this offset goes.
        since: what lies wholly below this offset went with an earlier intent.
        items: items taken from the head.
        pages: pages taken from the head, and the one that reaches beyond `before` and stays.
    """

    kind: IntentKind
    before: int
    since: int = 0
    items: tuple[LogItem, ...] = ()
    pages: tuple[PageRef, ...] = ()
    created_ms: int = 0
    unknown: bytes = b""

    def covers(self, part: LogItem | PageRef) -> bool:
        """Whether an item, or all of a page, is to be deleted."""
        if self.kind is IntentKind.DELETE:
            return True
        return part.next_offset is not None and part.next_offset <= self.before

    def still_to_delete(self, item: LogItem) -> bool:
        """Whether a page's item is this intent's business: not above it, not done by an earlier one."""
        return self.covers(item) and (self.since == 0 or (item.next_offset or 0) > self.since)


@dataclass(frozen=True, slots=True)
class LogSettings:
    """How the ledgers of a log are made. The digest type is BookKeeper's number.

    Attributes:
        min_present: how many bookies of a new ledger's ensemble must be there; 0: the creator of the ledger decides.
    """

    ensemble_size: int = 3
    write_quorum: int = 3
    ack_quorum: int = 2
    digest: int = 3
    unknown: bytes = b""
    min_present: int = 0


@dataclass(frozen=True, slots=True)
class PageLayout:
    """When items move from the head to pages. Both figures at least 2, at most `FAN_OUT_MAX`."""

    page_items: int = number(128, 2, FAN_OUT_MAX)
    fan_out: int = number(128, 2, FAN_OUT_MAX)

    def __post_init__(self) -> None:
        check_settings(self)


DEFAULT_LAYOUT: Final = PageLayout()


@dataclass(frozen=True, slots=True)
class LogHead:
    """The record that is the log: changed only by compare-and-swap, one generation a change.

    Attributes:
        start_offset: records below are trimmed; a reader clips inside a batch.
        dropped_items: items that left the list at its front since the log began.
        pages: older items, oldest first; levels never rise from one to the next.
        items: the newest items, oldest first.
        archive: the directory of the files of archived items.
        positions_dropped: sink positions that were dropped since the log began; `positions_dropped_ms` is the time of the newest.
        compacted_below: records below this offset whose key has a later one below it may be removed.
    """

    log_id: bytes
    name: str = ""
    settings: LogSettings = field(default_factory=LogSettings)
    generation: int = 0
    leader: Leader = field(default_factory=Leader)
    start_offset: int = 0
    dropped_items: int = 0
    pages: tuple[PageRef, ...] = ()
    items: tuple[LogItem, ...] = ()
    adoptions: tuple[Adoption, ...] = ()
    sink_positions: tuple[SinkPosition, ...] = ()
    intents: tuple[Intent, ...] = ()
    created_ms: int = 0
    positions_dropped: int = 0
    positions_dropped_ms: int = 0
    unknown: bytes = b""
    archive: str = ""
    compacted_below: int = 0

    # --- questions ---------------------------------------------------------------------------------------------

    @property
    def ledger_ids(self) -> tuple[LedgerId, ...]:
        """The ledgers of the head's own items, in order."""
        return tuple(item.ledger_id for item in self.items)

    @property
    def open_items(self) -> tuple[LogItem, ...]:
        """The items that the list calls open."""
        return tuple(item for item in self.items if item.is_open)

    @property
    def closed_end(self) -> int:
        """The first offset after everything that the list calls closed."""
        for item in reversed(self.items):
            if item.next_offset is not None:
                return item.next_offset
            if item.first_offset is not None:
                return item.first_offset
        return self.pages[-1].next_offset if self.pages else self.start_offset

    @property
    def item_count(self) -> int:
        """Items of the list, pages included."""
        return sum(page.items for page in self.pages) + len(self.items)

    @property
    def first_item_index(self) -> int:
        """The index of the head's first own item, counted from the log's beginning."""
        return self.dropped_items + sum(page.items for page in self.pages)

    @property
    def is_being_deleted(self) -> bool:
        """Whether the log is on its way out: it cannot be opened any more."""
        return any(intent.kind is IntentKind.DELETE for intent in self.intents)

    def item(self, ledger_id: int) -> LogItem | None:
        """The head's own item of a ledger, or None."""
        return next((item for item in self.items if item.ledger_id == ledger_id), None)

    def sink_position(self, query_id: str) -> SinkPosition | None:
        """What is known of a query's batches, or None."""
        return next((position for position in self.sink_positions if position.query_id == query_id), None)

    # --- changes -----------------------------------------------------------------------------------------------

    def with_item(self, item: LogItem) -> LogHead:
        """The list with an item at its end.

        Raises:
            MisuseError: the ledger is in it already, or two items are open.
        """
        if self.item(item.ledger_id) is not None:
            msg = f"log {self.name!r}: ledger {item.ledger_id} is in the list already"
            raise MisuseError(msg, log=self.name, ledger_id=item.ledger_id)
        if item.is_open and item.first_offset is None and not self.open_items:
            item = replace(item, first_offset=self.closed_end)
        return replace(self, items=(*self.items, item)).without_leftovers()

    def with_completed(self, ledger_id: int, summary: LedgerSummary) -> LogHead:
        """The list once an open item's ledger has its end; the next item's first offset is fixed by it.

        Unchanged when the list calls the item closed already, or holds it no more.

        Raises:
            MisuseError: the item before it is still open, so its first offset is not known.

        Source: docs/decisions/020-next-ledger-waits.md; docs/decisions/021-batch-header.md.
        """
        items = list(self.items)
        for index, item in enumerate(items):
            if item.ledger_id == ledger_id and item.is_open:
                if item.first_offset is None:
                    msg = f"log {self.name!r}: ledger {ledger_id} is completed before its predecessor"
                    raise MisuseError(msg, log=self.name, ledger_id=ledger_id)
                items[index] = done = item.completed(item.first_offset, summary)
                if index + 1 < len(items) and items[index + 1].first_offset is None:
                    items[index + 1] = replace(items[index + 1], first_offset=done.next_offset)
                return replace(self, items=tuple(items)).without_leftovers()
        return self

    def without_leftovers(self) -> LogHead:
        """The list without items that a truncation had to leave, open or last then, and that are neither now.

        Left in it they would get into a page, where they could not be distinguished from ledgers that are deleted.
        """
        items = self.items
        count = 0
        while (
            not self.pages
            and count < len(items) - 1
            and not items[count].is_open
            and (items[count].next_offset or 0) <= self.start_offset
            and self.start_offset
        ):
            count += 1
        if not count:
            return self
        removed, intents = items[:count], self.intents
        if intents and intents[-1].kind is IntentKind.TRUNCATE:
            intents = (*intents[:-1], replace(intents[-1], items=(*intents[-1].items, *removed)))
        else:
            start = self.start_offset
            intents = (*intents, Intent(IntentKind.TRUNCATE, start, start, removed))
        return replace(self, dropped_items=self.dropped_items + count, items=items[count:], intents=intents)

    def with_adoptions_placed(self) -> LogHead:
        """The list with all waiting adoptions at its end; unchanged while an item is open.

        Source: docs/decisions/024-adoption.md; docs/decisions/016-open-items-are-recovered.md: placed only in a
        compare-and-swap that also calls all earlier items closed.
        """
        if self.open_items or not self.adoptions:
            return self
        items, end = list(self.items), self.closed_end
        for adoption in self.adoptions:
            for item in adoption.items:
                items.append(
                    replace(item, first_offset=end, next_offset=end + item.count, state=ItemState.CLOSED)
                )
                end += item.count
        return replace(self, items=tuple(items), adoptions=())

    def with_truncation(self, before: int, end: int, now_ms: int) -> LogHead:
        """The list without what lies wholly below an offset, and the intent to delete that.

        Args:
            before: the new start; any record's offset, or the end of the log.
            end: the log's end as far as the caller knows, the open ledger's confirmed records included.
            now_ms: wall time, for people.

        Returns:
            Unchanged when the log starts there or later already.

        Raises:
            PastEndError: the log does not reach that far.
            MisuseError: too many intents wait; finish them first.

        Source: docs/decisions/022-truncation-intent.md.
        """
        if before <= self.start_offset:
            return self
        if before > max(end, self.closed_end):
            msg = f"log {self.name!r} ends at offset {max(end, self.closed_end)}; it cannot start at {before}"
            raise PastEndError(msg, log=self.name)
        if len(self.intents) >= INTENTS_MAX:
            msg = f"log {self.name!r} has {len(self.intents)} unfinished truncations: finish them first"
            raise MisuseError(msg, log=self.name)
        gone_pages = [page for page in self.pages if page.next_offset <= before]
        kept_pages = self.pages[len(gone_pages) :]
        straddling = [page for page in kept_pages[:1] if page.first_offset < before]
        gone_items: list[LogItem] = []
        if not kept_pages:
            # Never an open item, and never the last one: it has the end of the log.
            for item in self.items[:-1]:
                if item.is_open or item.next_offset is None or item.next_offset > before:
                    break
                gone_items.append(item)
        intents = self.intents
        if gone_pages or straddling or gone_items:
            pages = (*gone_pages, *straddling)
            intent = Intent(IntentKind.TRUNCATE, before, self.start_offset, tuple(gone_items), pages, now_ms)
            intents = (*intents, intent)
        return replace(
            self,
            start_offset=before,
            dropped_items=self.dropped_items + sum(page.items for page in gone_pages) + len(gone_items),
            pages=kept_pages,
            items=self.items[len(gone_items) :],
            intents=intents,
        )

    def with_deletion(self, now_ms: int) -> LogHead:
        """The record of a log that is about to vanish: nothing listed, all of it in one intent, no leader."""
        if self.is_being_deleted:
            return self
        items = (*self.items, *(item for adoption in self.adoptions for item in adoption.items))
        intent = Intent(IntentKind.DELETE, self.closed_end, 0, items, self.pages, now_ms)
        return replace(
            self,
            leader=Leader(self.leader.epoch + 1),
            dropped_items=self.dropped_items + self.item_count,
            start_offset=self.closed_end,
            pages=(),
            items=(),
            adoptions=(),
            intents=(*self.intents, intent),
        )

    def without_intent(self, intent: Intent) -> LogHead:
        """The record once an intent is carried out."""
        return replace(self, intents=tuple(other for other in self.intents if other != intent))

    def with_leader(self, leader: Leader) -> LogHead:
        """The record with another leader; fields of later versions stay."""
        return replace(self, leader=replace(leader, unknown=self.leader.unknown))

    # --- what must hold ----------------------------------------------------------------------------------------

    def checked(self) -> LogHead:
        """This record, if it is a possible one.

        Raises:
            CorruptMetadataError: saying which rule it breaks.
        """
        open_indexes = [index for index, item in enumerate(self.items) if item.is_open]
        if len(open_indexes) > OPEN_ITEMS_MAX:
            raise self._corrupt(
                f"{len(open_indexes)} of its ledgers are open, and at most {OPEN_ITEMS_MAX} may be"
            )
        if open_indexes and open_indexes[-1] - open_indexes[0] != len(open_indexes) - 1:
            raise self._corrupt("a closed ledger stands between two open ones")
        if open_indexes and open_indexes[-1] != len(self.items) - 1:
            raise self._corrupt("a closed ledger follows an open one")
        if len(set(self.ledger_ids)) != len(self.items):
            raise self._corrupt("it names a ledger twice")
        if any((item.location is ItemLocation.BOOKIES) != (not item.archive) for item in self.items):
            raise self._corrupt("an item is in the archive and has no file there, or the reverse")
        parts: tuple[LogItem | PageRef, ...] = (*self.pages, *self.items)
        for before, after in pairwise(parts):
            if after.first_offset != before.next_offset:
                raise self._corrupt(f"offset {after.first_offset} follows {before.next_offset}")
        levels = [page.level for page in self.pages]
        if levels != sorted(levels, reverse=True):
            raise self._corrupt(f"its pages have levels {levels}, which must not rise")
        return self

    def _corrupt(self, what: str) -> CorruptMetadataError:
        msg = f"the list of log {self.name!r} ({self.log_id.hex()}) is impossible: {what}"
        return CorruptMetadataError(msg, log=self.name)


PageNamer: TypeAlias = Callable[[LogPage], str]


def paged(head: LogHead, layout: PageLayout, name_page: PageNamer) -> tuple[LogHead, tuple[LogPage, ...]]:
    """Move closed items from the head to pages, and pages under higher pages, until the head is small again.

    Args:
        head: the list.
        layout: how many make a page.
        name_page: the name of a page, from its content: the same content has the same name.

    Returns:
        The head, and the pages to be stored before it is; pages that no head refers to are collected.

    Source: docs/decisions/019-paged-list.md: pages are immutable, named by their content, and created before the head
    that names them.
    """
    made: list[LogPage] = []
    items, pages = head.items, list(head.pages)
    while True:
        movable = next((index for index, item in enumerate(items) if item.is_open), len(items))
        if min(movable, len(items) - KEPT_ITEMS) < layout.page_items:
            break
        page = LogPage(head.log_id, 0, items[: layout.page_items])
        items = items[layout.page_items :]
        made.append(page)
        pages.append(page.reference(name_page(page)))
    level = 0
    while level <= max((page.level for page in pages), default=-1):
        same = [index for index, page in enumerate(pages) if page.level == level][: layout.fan_out]
        if len(same) == layout.fan_out:
            page = LogPage(head.log_id, level + 1, (), tuple(pages[index] for index in same))
            made.append(page)
            pages[same[0] : same[-1] + 1] = [page.reference(name_page(page))]
        else:
            level += 1
    if not made:
        return head, ()
    return replace(head, items=items, pages=tuple(pages)), tuple(made)
