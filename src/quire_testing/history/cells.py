"""Write-once cells: for each id its one value, what is known of it, and where that was said.

Ranges are handled as slices of bytes, so that a run of a thousand entries costs little more than one entry. A cell
takes as many bytes as a hash and one more; pages that are not touched take none.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final

SENT: Final = 1
"""Its writer sent it; the cell has what was sent."""
ACKED: Final = 2
"""It was acknowledged; the cell has that value."""
READ: Final = 4
"""A read had this value."""
ENDED: Final = 8
"""Its append ended without an acknowledgement."""
SCANNED: Final = 16
"""The final scan found it on a bookie; the cell has that value unless another is known better."""

FIRM: Final = ACKED | READ
PAGE: Final = 4096

_WITH: Final = [bytes(mark for mark in range(256) if mark & bits) for bits in range(32)]
_OR: Final = [bytes(mark | bits & 0xFF for mark in range(256)) for bits in range(32)]


class Page:
    """`PAGE` cells in a row.

    Args:
        width: bytes of a value.
    """

    __slots__ = ("marks", "values")

    def __init__(self, width: int) -> None:
        self.marks = bytearray(PAGE)
        self.values = bytearray(PAGE * width)


class Cells:
    """The cells of one ledger or log.

    Args:
        width: bytes of a value.
    """

    __slots__ = ("_pages", "others", "width")

    def __init__(self, width: int) -> None:
        self.width = width
        self._pages: dict[int, Page] = {}
        self.others: dict[int, set[bytes]] = {}
        """Values that were sent for a cell besides the one in it."""

    def pieces(self, first: int, count: int) -> Iterator[tuple[Page, int, int, int]]:
        """A range cut at the pages: (page, first cell in it, cell after the last, how many cells came before)."""
        done = 0
        while done < count:
            number, start = divmod(first + done, PAGE)
            page = self._pages.get(number)
            if page is None:
                page = self._pages[number] = Page(self.width)
            end = min(PAGE, start + count - done)
            yield page, start, end, done
            done += end - start

    def fresh(self, first: int, count: int) -> bool:
        """Nothing is known of any cell of a range."""
        return not any(
            page.marks[start:end].strip(b"\0") for page, start, end, _ in self.pieces(first, count)
        )

    def all_have(self, first: int, count: int, bits: int) -> bool:
        """Every cell of a range has at least one of these marks."""
        wanted = _WITH[bits]
        return not any(
            page.marks[start:end].strip(wanted) for page, start, end, _ in self.pieces(first, count)
        )

    def none_have(self, first: int, count: int, bits: int) -> bool:
        """No cell of a range has any of these marks."""
        wanted = _WITH[bits]
        return all(
            len(page.marks[start:end].translate(None, wanted)) == end - start
            for page, start, end, _ in self.pieces(first, count)
        )

    def same(self, first: int, data: bytes) -> bool:
        """Every cell of a range has the value of `data` (whatever is known of it)."""
        width = self.width
        return all(
            page.values[start * width : end * width] == data[done * width : (done + end - start) * width]
            for page, start, end, done in self.pieces(first, len(data) // width)
        )

    def write(self, first: int, data: bytes, bits: int) -> None:
        """Put values and marks into a range, whatever was there."""
        width = self.width
        for page, start, end, done in self.pieces(first, len(data) // width):
            page.values[start * width : end * width] = data[done * width : (done + end - start) * width]
            page.marks[start:end] = page.marks[start:end].translate(_OR[bits])

    def mark(self, first: int, count: int, bits: int) -> None:
        """Put marks on a range."""
        for page, start, end, _ in self.pieces(first, count):
            page.marks[start:end] = page.marks[start:end].translate(_OR[bits])

    def look(self, number: int) -> tuple[int, bytes]:
        """Marks and value of one cell."""
        page = self._pages.get(number // PAGE)
        if page is None:
            return 0, b""
        cell = number % PAGE
        return page.marks[cell], bytes(page.values[cell * self.width : (cell + 1) * self.width])

    def marked(self, bits: int, without: int = 0) -> Iterator[int]:
        """The cells that have one of `bits` and none of `without`, ascending."""
        for number in sorted(self._pages):
            marks = self._pages[number].marks
            if not marks.strip(b"\0"):
                continue
            for cell, mark in enumerate(marks):
                if mark & bits and not mark & without:
                    yield number * PAGE + cell

    def candidate(self, number: int, value: bytes) -> bool:
        """Whether this value was sent for the cell."""
        mark, known = self.look(number)
        return bool(mark & SENT and known == value) or value in self.others.get(number, ())


class Runs:
    """Where something was said of ranges, in the order in which it was said: three numbers a range."""

    __slots__ = ("_firsts", "_lasts", "_places")

    def __init__(self) -> None:
        self._firsts, self._lasts, self._places = array("q"), array("q"), array("q")

    def add(self, first: int, last: int, place: int) -> None:
        """It was said of `first..last`, by the event at `place`."""
        self._firsts.append(first)
        self._lasts.append(last)
        self._places.append(place)

    def place_of(self, number: int) -> int:
        """The first event that said it of this one, or -1."""
        for first, last, place in zip(self._firsts, self._lasts, self._places, strict=True):
            if first <= number <= last:
                return place
        return -1


def ranges(numbers: Iterator[int]) -> Iterator[tuple[int, int]]:
    """Ascending numbers as ranges of neighbours, both ends included."""
    first = last = None
    for number in numbers:
        if last is not None and number == last + 1:
            last = number
            continue
        if first is not None and last is not None:
            yield first, last
        first = last = number
    if first is not None and last is not None:
        yield first, last
