"""`Entries`: a sequence of entries that is kept in columns, against plain lists."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from quire.core.ids import EntryId, LedgerId
from quire.wire.entries import Entries
from quire.wire.entry import Entry


def made(ids: list[int]) -> list[Entry]:
    return [Entry(LedgerId(7), EntryId(i), EntryId(i - 1), 10 * i, b"%d" % i) for i in ids]


ascending = st.lists(st.integers(0, 60), unique=True, max_size=12).map(sorted)


@given(ids=ascending, index=st.slices(12))
def test_it_is_the_sequence_of_its_entries(ids: list[int], index: slice) -> None:
    rows = made(ids)
    entries = Entries.of(7, rows)
    assert list(entries) == rows
    assert len(entries) == len(rows)
    assert list(entries[index]) == rows[index]
    assert [entries[at] for at in range(-len(rows), len(rows))] == 2 * rows
    assert all(type(entry) is Entry for entry in entries)
    assert list(entries.payloads) == [entry.payload for entry in rows]
    assert list(entries.entry_ids) == ids


@given(ids=ascending, cuts=st.lists(st.integers(0, 12), max_size=3).map(sorted))
def test_parts_are_joined_as_lists_are(ids: list[int], cuts: list[int]) -> None:
    rows = made(ids)
    bounds = [0, *cuts, len(rows)]
    parts = [Entries.of(7, rows[a:b]) for a, b in pairwise(bounds) if a < b]
    joined = Entries.join(7, parts)
    assert list(joined) == rows
    consecutive = bool(ids) and ids == list(range(ids[0], ids[-1] + 1))
    assert isinstance(joined.entry_ids, range) is consecutive


@given(ids=ascending, first=st.integers(0, 60))
def test_what_follows_without_a_gap(ids: list[int], first: int) -> None:
    expected: list[int] = []
    if ids and ids[0] == first:
        expected = [i for index, i in enumerate(ids) if i == first + index]
    assert list(Entries.of(7, made(ids)).without_gap(first).entry_ids) == expected


def test_it_says_what_it_is() -> None:
    assert repr(Entries.of(7, made([3, 4, 5]))) == "<3 entries of ledger 7, 3..5>"
    assert repr(Entries.join(7, ())) == "<no entries of ledger 7>"
