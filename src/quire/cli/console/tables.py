"""Tables as text that fit a terminal: a narrow one loses columns, and no id is ever cut or folded."""

from __future__ import annotations

import textwrap
from itertools import zip_longest
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

WIDTH: Final = 160
"""Where there is no terminal, sentences are folded so that a row has about this width."""
_FOLDED_TO: Final = 24
"""A column of sentences may become as narrow as this."""
_GAP: Final = "  "


class Drawn(NamedTuple):
    """A table, drawn as text.

    Attributes:
        head: the line above the rows.
        lines: the rows.
        left_out: the columns for which there is no room.
    """

    head: str
    lines: list[str]
    left_out: list[str]


def draw_table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], width: int | None, least: Sequence[str] = ()
) -> Drawn:
    """The columns for which there is room.

    Args:
        heads: what stands above the columns; the first is the row's id and stays.
        rows: the texts of each row.
        width: of the terminal; None: there is none, and nothing is left out.
        least: the columns that are left out first, in this order; after them the others from the right.
    """
    columns = [[head, *(row[index] for row in rows)] for index, head in enumerate(heads)]
    natural = [max(map(cells, column)) for column in columns]
    narrow = [min(size, _narrowest(column)) for size, column in zip(natural, columns, strict=True)]
    if any(" " in row[-1] for row in rows):
        narrow[-1] = min(natural[-1], _FOLDED_TO)  # a long word at a line's end does not move a column
    order = [*least, *(head for head in reversed(heads[1:]) if head not in least)]
    shown = list(range(len(heads)))
    while width is not None and order and _total(narrow[index] for index in shown) > width:
        shown.remove(heads.index(order.pop(0)))
    widths = {index: narrow[index] for index in shown}
    room = (width or WIDTH) - _total(widths.values())
    for index in shown:
        more = min(max(room, 0), natural[index] - widths[index])
        widths[index], room = widths[index] + more, room - more
    head, *lines = (
        line
        for number in range(len(rows) + 1)
        for line in _lines([(columns[index][number], widths[index]) for index in shown])
    )
    return Drawn(head, lines, [head for index, head in enumerate(heads) if index not in shown])


def cells(text: str) -> int:
    """How many columns of a terminal a text takes."""
    from rich.cells import cell_len

    return len(text) if text.isascii() else cell_len(text)


def _narrowest(column: Sequence[str]) -> int:
    """A sentence may be folded between its words; an id, an address, a number may not."""
    return max(_FOLDED_TO, *(cells(word) for text in column for word in text.split()))


def _total(widths: Iterable[int]) -> int:
    sizes = list(widths)
    return sum(sizes) + len(_GAP) * (len(sizes) - 1)


def _lines(row: Sequence[tuple[str, int]]) -> Iterator[str]:
    """The lines of one row, from its texts and their widths."""
    folded = [
        [text]
        if cells(text) <= width
        else textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
        for text, width in row
    ]
    for parts in zip_longest(*folded, fillvalue=""):
        padded = (part + " " * (width - cells(part)) for part, (_, width) in zip(parts, row, strict=True))
        yield _GAP.join(padded).rstrip()
