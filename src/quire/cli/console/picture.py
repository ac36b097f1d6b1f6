"""Ledgers and logs drawn as text: which bookies hold which entries, which ledgers make a log.

Pure functions from plain facts to lines, so that tests can look at them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from quire.log.records import ItemDescription

FRAGMENTS_SHOWN: Final = 40
ITEMS_SHOWN: Final = 40
_BAR_WIDTH: Final = 32


@dataclass(frozen=True, slots=True)
class FragmentFacts:
    """One fragment: `last` is None while it is still growing."""

    first: int
    last: int | None
    ensemble: tuple[str, ...]


def draw_fragments(fragments: Sequence[FragmentFacts], standing: Mapping[str, str]) -> list[str]:
    """A row per fragment, a column per bookie; a number is the bookie's slot in that fragment's ensemble.

    Args:
        fragments: in order.
        standing: what is known of each bookie now (`up`, `read-only`, `down`), shown in the legend.
    """
    bookies = list(dict.fromkeys(bookie for fragment in fragments for bookie in fragment.ensemble))
    ranges = [_range(fragment.first, fragment.last) for fragment in fragments]
    width = max((len(text) for text in ranges), default=0)
    heads = "  ".join(f"b{number}".rjust(3) for number in range(1, len(bookies) + 1))
    lines = [f"  {'entries'.ljust(width)}  {heads}"]
    for index, (fragment, text) in enumerate(zip(fragments, ranges, strict=True)):
        if (
            len(fragments) > FRAGMENTS_SHOWN
            and FRAGMENTS_SHOWN // 2 <= index < len(fragments) - FRAGMENTS_SHOWN // 2
        ):
            if index == FRAGMENTS_SHOWN // 2:
                lines.append(f"  {'…'.ljust(width)}  ({len(fragments) - FRAGMENTS_SHOWN} more fragments)")
            continue
        slots = {bookie: f"[{slot}]" for slot, bookie in enumerate(fragment.ensemble)}
        row = "  ".join(slots.get(bookie, " · ") for bookie in bookies)
        lines.append(f"  {text.ljust(width)}  {row}")
    lines.append("")
    for number, bookie in enumerate(bookies, start=1):
        lines.append(f"  b{number} = {bookie}  {standing.get(bookie, 'not registered')}")
    return lines


def draw_write_sets(ensemble_size: int, write_quorum: int, ack_quorum: int) -> list[str]:
    """Which slots hold which entries: a row per stripe of the entry id modulo E (one row when E = Qw)."""
    if ensemble_size == write_quorum:
        return [f"  every entry is in all {ensemble_size} slots; {ack_quorum} of them make it durable"]
    lines = [f"  entry mod {ensemble_size}   slots ({ack_quorum} of {write_quorum} make an entry durable)"]
    for stripe in range(ensemble_size):
        held = {(stripe + step) % ensemble_size for step in range(write_quorum)}
        cells = " ".join(f"[{slot}]" if slot in held else " · " for slot in range(ensemble_size))
        lines.append(f"  {stripe:>{len(str(ensemble_size)) + 9}}   {cells}")
    return lines


def draw_items(items: Sequence[ItemDescription], start_offset: int, shown: int = ITEMS_SHOWN) -> list[str]:
    """A row per ledger of a log with a bar for its share of the records.

    Args:
        items: in order, without those that truncation has removed.
        start_offset: the first offset that can still be read.
        shown: of more items those in the middle are left out.
    """
    counts = [max(0, item.next_offset - item.first_offset) for item in items]
    largest = max(counts, default=0) or 1
    ranges = [_range(item.first_offset, item.next_offset - 1) for item in items]
    width = max((len(text) for text in ranges), default=0)
    lines = [f"  first readable offset {start_offset:,}"]
    for index, (item, text, count) in enumerate(zip(items, ranges, counts, strict=True)):
        if len(items) > shown and shown // 2 <= index < len(items) - shown // 2:
            if index == shown // 2:
                lines.append(f"  {'…'.ljust(width)}  ({len(items) - shown} more ledgers)")
            continue
        bar, state = "█" * -(-count * _BAR_WIDTH // largest), item.state.name.lower()
        lines.append(f"  {text.ljust(width)}  {bar.ljust(_BAR_WIDTH)}  ledger {item.ledger_id}  {state}")
    return lines


def _range(first: int, last: int | None) -> str:
    if last is None:
        return f"{first:,} .."
    if last < first:
        return "(none)"
    return f"{first:,} .. {last:,}"
