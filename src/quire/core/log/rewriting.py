"""Replacing closed ledgers of a log by one that holds the same records: what happens to the log's list.

After the records are copied, one compare-and-swap changes the list: exactly the items of the old ledgers go, the item of the
new one takes their place, all offsets stay. `RewriteMachine` makes it once, also when responses are lost. Ledgers that leave
the list this way stay readable until the collector's grace time is over, so a reader that has planned with the old list can
end. The module must not know bytes, stores or what a record is.

Source: docs/spark-jobs.md, "Rewrite": exactly the copied ledgers go, refused if any of them changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import Final, TypeAlias

from quire.core.errors import ListChangedError, MisuseError
from quire.core.ids import LedgerId
from quire.core.log.cas import HeadCas
from quire.core.log.effects import ReadHead, WriteHead
from quire.core.log.list import (
    KEPT_ITEMS,
    ItemFlags,
    ItemLocation,
    ItemState,
    LogHead,
    LogItem,
    LogPage,
    PageLayout,
    PageNamer,
    PageRef,
    paged,
)
from quire.core.state_table import StateTable

PagedItems: TypeAlias = Sequence[tuple[PageRef, Sequence[LogItem]]]
"""For each of a head's pages all items below it, oldest first."""


class RewriteStatus(Enum):
    """Where a rewrite of a list is."""

    IDLE = "idle"
    READING = "reading"
    STORING = "storing"
    ENDED = "ended"


REWRITE: Final = StateTable(
    RewriteStatus,
    {
        "start": "idle > reading",
        "head_read": "reading > storing ended",
        "head_written": "storing > ended",
        "head_conflicted": "storing > reading",
    },
    refused=("start",),
)
"""Which input does what in which status."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """Some neighbours in a list, and the one item that takes their place, with their offsets.

    Attributes:
        old: the items, oldest first, as they were when their records were copied.
        new: what stands there afterwards.
    """

    old: tuple[LogItem, ...]
    new: LogItem

    @classmethod
    def by_copy(cls, old: Sequence[LogItem], copy: LogItem, *, compacted: bool = False) -> Replacement:
        """Neighbours that were copied into one ledger.

        Args:
            old: closed items, oldest first.
            copy: the new ledger's item, without offsets.
            compacted: records were left out, since their keys have later ones.

        Raises:
            MisuseError: they are no neighbours, or the copy does not hold as many records.
        """
        if any(before.next_offset != after.first_offset for before, after in pairwise(old)):
            raise MisuseError("only neighbours can become one item")
        records = sum(item.count for item in old)
        if copy.count > records or (copy.count != records and not compacted):
            msg = f"ledger {copy.ledger_id} holds {copy.count} records, the old ones {records}"
            raise MisuseError(msg, ledger_id=copy.ledger_id)
        first, last = old[0].first_offset, old[-1].next_offset
        flags = copy.flags | ItemFlags.REWRITTEN
        if compacted or any(item.flags & ItemFlags.COMPACTED for item in old):
            flags |= ItemFlags.COMPACTED
        new = replace(copy, first_offset=first, next_offset=last, state=ItemState.CLOSED, flags=flags)
        return cls(tuple(old), new)

    @classmethod
    def by_move(cls, old: LogItem, location: ItemLocation, archive: bytes) -> Replacement:
        """An item whose records are (also, or only) in the archive's file with this digest now."""
        return cls((old,), replace(old, location=location, archive=archive))


def replaceable(head: LogHead, items: Sequence[LogItem]) -> list[LogItem]:
    """The items of a list that may be replaced: closed, wholly above the log's start, not one of the last two.

    Args:
        head: the list.
        items: all its items, those of pages included.
    """
    kept = {item.ledger_id for item in head.items[-KEPT_ITEMS:]}
    return [
        item
        for item in items
        if not item.is_open
        and item.ledger_id not in kept
        and item.first_offset is not None
        and item.first_offset >= head.start_offset
    ]


def is_done(items: Sequence[LogItem], replacements: Sequence[Replacement]) -> bool:
    """Whether a list holds all the new items: a compare-and-swap whose response was lost has happened."""
    listed = {item.ledger_id: item.location for item in items}
    return all(listed.get(each.new.ledger_id) is each.new.location for each in replacements)


def with_replaced(
    head: LogHead,
    paged_items: PagedItems,
    replacements: Sequence[Replacement],
    layout: PageLayout,
    name_page: PageNamer,
) -> tuple[LogHead, tuple[LogPage, ...]]:
    """A list with some items replaced, and the pages that have to be stored before it is.

    Pages before the first replaced item stay as they are; the others are made anew. The indexes of the items after the
    replaced ones do not change.

    Args:
        head: the list.
        paged_items: for each of the head's pages all items below it, oldest first.
        replacements: what to replace, in the list's order.
        layout: how many items make a page.
        name_page: the name of a page.

    Raises:
        ListChangedError: an item is not in the list any more, or not as it was, or may not be replaced.
    """
    by_first = {each.old[0].ledger_id: each for each in replacements}
    touched: set[LedgerId] = {item.ledger_id for each in replacements for item in each.old}
    untouched = 0
    for _, items in paged_items:
        if any(item.ledger_id in touched for item in items):
            break
        untouched += 1
    left = [item for _, items in paged_items[untouched:] for item in items]
    # What a truncation took out of a page that reaches beyond the start is deleted: it must not come back as an item.
    left = [item for item in left if (item.next_offset or 0) > head.start_offset]
    before = [*left, *head.items]
    allowed = {item.ledger_id: item for item in replaceable(head, before)}
    after: list[LogItem] = []
    index = 0
    while index < len(before):
        found = by_first.pop(before[index].ledger_id, None)
        if found is None:
            after.append(before[index])
            index += 1
            continue
        now = before[index : index + len(found.old)]
        if [allowed.get(item.ledger_id) for item in now] != list(found.old):
            raise _changed(head, found)
        after.append(found.new)
        index += len(found.old)
    for found in by_first.values():
        raise _changed(head, found)
    last_index = head.first_item_index + len(head.items)
    fresh = replace(head, pages=tuple(page for page, _ in paged_items[:untouched]), items=tuple(after))
    made, pages = paged(fresh, layout, name_page)
    made = replace(made, dropped_items=0)
    return replace(made, dropped_items=last_index - made.item_count).checked(), pages


@dataclass(frozen=True, slots=True)
class RewriteEnded:
    """The list holds all the new items."""


RewriteEffect: TypeAlias = ReadHead | WriteHead | RewriteEnded


class RewriteMachine:
    """One change of a list for some replacements. Use a new machine for the next one.

    Args:
        replacements: what to replace, in the list's order.
        layout: how many items make a page.
        name_page: the name of a page.
        archive: the directory with the files of items that move there; empty if none does.
        compacted_below: up to where later records were looked for, if some were left out for their sake.
    """

    __slots__ = (
        "_archive",
        "_cas",
        "_compacted_below",
        "_layout",
        "_name_page",
        "_replacements",
        "out",
        "status",
    )  # fmt: skip

    def __init__(
        self,
        replacements: Sequence[Replacement],
        layout: PageLayout,
        name_page: PageNamer,
        *,
        archive: str = "",
        compacted_below: int = 0,
    ) -> None:
        self._replacements = tuple(replacements)
        self._layout, self._name_page = layout, name_page
        self._archive, self._compacted_below = archive, compacted_below
        self._cas: HeadCas[LogHead, int] = HeadCas(-1)
        self.status = RewriteStatus.IDLE
        self.out: list[RewriteEffect] = []

    def start(self) -> None:
        """Begin. Effects: ReadHead."""
        assert REWRITE.acts["start"][self.status]
        self._read()

    def head_read(self, head: LogHead, version: int, paged_items: PagedItems) -> None:
        """The list as it is now.

        Effects:
            WriteHead; RewriteEnded if the new items are in it, by an earlier compare-and-swap of this machine or of
            another one for the same copies.

        Raises:
            ListChangedError, MisuseError: it cannot be done in this list, which is unchanged.
        """
        if not REWRITE.acts["head_read"][self.status]:
            return
        self._cas.found(head, version)
        if self._archive and head.archive not in {"", self._archive}:
            msg = f"log {head.name!r} has its archive at {head.archive}, not at {self._archive}"
            raise MisuseError(msg, log=head.name)
        if is_done([*(item for _, items in paged_items for item in items), *head.items], self._replacements):
            self._end()
            return
        made, pages = with_replaced(head, paged_items, self._replacements, self._layout, self._name_page)
        made = replace(
            made,
            generation=head.generation + 1,
            archive=self._archive or head.archive,
            compacted_below=max(head.compacted_below, self._compacted_below),
        )
        self._cas.write(made)
        self.status = REWRITE.moved[self.status, RewriteStatus.STORING]
        self.out.append(WriteHead(made, version, pages))

    def head_written(self) -> None:
        """The compare-and-swap succeeded. Effects: RewriteEnded."""
        if REWRITE.acts["head_written"][self.status]:
            self._cas.written(self._cas.version)  # nothing is written at the new one
            self._end()

    def head_conflicted(self) -> None:
        """The list is another one by now, or what became of the compare-and-swap is unknown. Effects: ReadHead."""
        if REWRITE.acts["head_conflicted"][self.status]:
            self._read()

    def _read(self) -> None:
        self._cas.read()
        self.status = REWRITE.moved[self.status, RewriteStatus.READING]
        self.out.append(ReadHead())

    def _end(self) -> None:
        self.status = REWRITE.moved[self.status, RewriteStatus.ENDED]
        self.out.append(RewriteEnded())

    def check(self) -> None:
        """Assert what must hold between any two inputs."""
        assert (self.status is RewriteStatus.READING) == self._cas.awaits("found"), "a read is asked for once"
        assert (self.status is RewriteStatus.STORING) == self._cas.awaits("written"), (
            "one compare-and-swap is in flight"
        )


def _changed(head: LogHead, found: Replacement) -> ListChangedError:
    first, last = found.old[0].ledger_id, found.old[-1].ledger_id
    msg = (
        f"log {head.name!r}: its list no longer has ledgers {first} to {last} as they were planned "
        "(truncated, or replaced by another job); plan again"
    )
    return ListChangedError(msg, log=head.name)
