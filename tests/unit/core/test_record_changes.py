"""A change of a ledger's record that the protocol does not allow is refused, with the reason."""

from __future__ import annotations

import pytest

from quire.core.errors import MisuseError
from quire.core.ids import BookieId, EntryId, LedgerId
from quire.core.ledger.metadata import DigestType, Fragment, StoredFragments, new_ledger

B = [BookieId(f"b{number}") for number in range(6)]
OPEN = new_ledger(
    LedgerId(7), B[:3], write_quorum=3, ack_quorum=2, digest_type=DigestType.CRC32C, password=b""
).with_ensemble(10, B[1:4])


def test_a_fragment_begins_neither_before_the_last_one_nor_in_a_closed_ledger() -> None:
    with pytest.raises(MisuseError, match="a fragment at 9 would start before the last, 10"):
        OPEN.with_ensemble(9, B[2:5])
    with pytest.raises(MisuseError, match="closed: no fragment can be added"):
        OPEN.in_recovery().closed(20, 100).with_ensemble(21, B[2:5])


@pytest.mark.parametrize(
    ("index", "first", "changes", "why"),
    [
        (0, 1, {B[0]: B[4]}, "no fragment 0 that begins at 1: read the record again"),
        (2, 20, {B[0]: B[4]}, "no fragment 2"),
        (1, 10, {B[1]: B[4]}, "is not decided and changes with its writer only"),
        (0, 0, {B[5]: B[4]}, "fragment 0 does not name b5"),
        (0, 0, {B[0]: B[1]}, "would name a bookie twice: b1, b1, b2"),
    ],
)
def test_a_bookie_is_replaced_in_a_decided_fragment_only(
    index: int, first: int, changes: dict[BookieId, BookieId], why: str
) -> None:
    with pytest.raises(MisuseError, match=why):
        OPEN.with_replaced(index, first, changes)
    assert OPEN.with_replaced(0, 0, {B[0]: B[4]}).fragments[0].ensemble == (B[4], B[1], B[2])


def test_fragments_that_stay_in_the_store_are_read_one_by_one() -> None:
    kept = [Fragment(EntryId(first), tuple(B[:3])) for first in (0, 10, 20)]
    stored = StoredFragments(LedgerId(7), 3, 3, lambda: [0, 10, 20], kept.__getitem__)
    assert stored[1:] == tuple(kept[1:])
    assert stored[-1] == kept[2]
