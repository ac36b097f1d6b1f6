"""Replacing closed ledgers of a log by one that holds the same records: the list's side of it.

After the records are copied, one compare-and-swap changes the list: exactly the old items go, the new one stands where
they stood, all offsets stay. Ledgers that leave the list this way stay readable until the collector's grace time is
over, so a reader that has planned with the old list can end. The module must not know bytes, stores or what a record
is.

Source: docs/spark-jobs.md, "Rewrite": exactly the copied ledgers go, refused if any of them changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from quire.core.errors import ListChangedError, MisuseError
from quire.core.ids import LedgerId
from quire.core.log_list import (
    KEPT_ITEMS,
    ItemFlags,
    ItemState,
    LogHead,
    LogItem,
    LogPage,
    PageLayout,
    PageNamer,
    PageRef,
    Place,
    paged,
)


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
            copy: the new ledger's line, without offsets.
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
    def by_move(cls, old: LogItem, place: Place, archive: bytes) -> Replacement:
        """An item whose records are (also, or only) in the archive's file with this digest now."""
        return cls((old,), replace(old, place=place, archive=archive))


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
    listed = {item.ledger_id: item.place for item in items}
    return all(listed.get(each.new.ledger_id) is each.new.place for each in replacements)


def with_replaced(
    head: LogHead,
    paged_items: Sequence[tuple[PageRef, Sequence[LogItem]]],
    replacements: Sequence[Replacement],
    layout: PageLayout,
    name_page: PageNamer,
) -> tuple[LogHead, tuple[LogPage, ...]]:
    """A list with some items replaced, and the pages that have to be stored before it is.

    Pages before the first replaced item stay as they are; the others are made anew. The places of the items behind the
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
    # What a truncation took out of a page that reaches beyond the start is gone: it must not come back as an item.
    left = [item for item in left if (item.next_offset or 0) > head.start_offset]
    before = [*left, *head.items]
    allowed = {item.ledger_id: item for item in replaceable(head, before)}
    after: list[LogItem] = []
    place = 0
    while place < len(before):
        found = by_first.pop(before[place].ledger_id, None)
        if found is None:
            after.append(before[place])
            place += 1
            continue
        now = before[place : place + len(found.old)]
        if [allowed.get(item.ledger_id) for item in now] != list(found.old):
            raise _changed(head, found)
        after.append(found.new)
        place += len(found.old)
    for found in by_first.values():
        raise _changed(head, found)
    last_place = head.first_item_place + len(head.items)
    fresh = replace(head, pages=tuple(page for page, _ in paged_items[:untouched]), items=tuple(after))
    made, pages = paged(fresh, layout, name_page)
    made = replace(made, dropped_items=0)
    return replace(made, dropped_items=last_place - made.item_count).checked(), pages


def _changed(head: LogHead, found: Replacement) -> ListChangedError:
    first, last = found.old[0].ledger_id, found.old[-1].ledger_id
    msg = (
        f"log {head.name!r}: its list no longer has ledgers {first} to {last} as they were planned "
        "(truncated, or replaced by another job); plan again"
    )
    return ListChangedError(msg, log=head.name)
