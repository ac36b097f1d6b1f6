"""Which notes a ledger's record gets from what its writer knows that bookies lack."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from quire.core.ids import BookieId, EntryId, LedgerId
from quire.core.ledger.holes import RANGES_MAX, joined, with_holes
from quire.core.ledger.metadata import DigestType, Fragment, LedgerMetadata, new_ledger
from quire.core.ledger.notes import NO_NOTES, AcceptedLoss, BookieHoles, EntryRange, LedgerNotes
from quire.core.ledger.quorum import write_set
from quire.core.ledger.writer_state import Hole
from support.records import is_hole

B = [BookieId(f"b{number}") for number in range(6)]


def record(
    size: int, write_quorum: int, *fragments: tuple[int, list[BookieId]], last: int = 99
) -> LedgerMetadata:
    made = new_ledger(
        LedgerId(7),
        fragments[0][1],
        write_quorum=write_quorum,
        ack_quorum=1,
        digest_type=DigestType.CRC32C,
        password=b"",
    )
    parts = tuple(Fragment(EntryId(first), tuple(ensemble)) for first, ensemble in fragments)
    assert made.ensemble_size == size
    return replace(made, fragments=parts).closed(last, 0)


def test_a_hole_is_a_range_of_its_bookie() -> None:
    made = record(3, 3, (0, B[:3]))
    notes = with_holes(NO_NOTES, made, [Hole(1, B[1], 5, 9), Hole(1, B[1], 10, 12), Hole(2, B[2], 0, 0)])
    assert notes.holes == (BookieHoles(B[1], (EntryRange(5, 12),)), BookieHoles(B[2], (EntryRange(0, 0),)))
    assert with_holes(notes, made, [Hole(1, B[1], 7, 8)]) is notes, "it says so already"
    assert with_holes(notes, made, []) is notes


def test_only_what_the_record_names_the_bookie_for_is_a_hole() -> None:
    made = record(3, 3, (0, B[:3]), (10, [B[0], B[3], B[2]]), (20, B[:3]))
    notes = with_holes(NO_NOTES, made, [Hole(1, B[1], 5, 25), Hole(1, B[4], 5, 25), Hole(1, B[3], 0, 9)])
    assert notes.holes == (BookieHoles(B[1], (EntryRange(5, 9), EntryRange(20, 25))),)


def test_with_striping_only_its_classes_are() -> None:
    made = record(4, 2, (0, B[:4]))
    notes = with_holes(NO_NOTES, made, [Hole(1, B[1], 0, 40), Hole(3, B[3], 4, 5)])
    assert notes.holes == (BookieHoles(B[1], (EntryRange(0, 40, 4, 0b0011),)),), "b3 stores neither 4 nor 5"


def test_what_stands_there_stays() -> None:
    lost = AcceptedLoss((EntryRange(3, 3),), 1, "me")
    before = LedgerNotes((BookieHoles(B[1], (EntryRange(0, 1),), b"later"),), (lost,), b"more", b"yet more")
    after = with_holes(before, record(3, 3, (0, B[:3])), [Hole(0, B[0], 4, 4), Hole(1, B[1], 2, 3)])
    assert after.holes == (
        BookieHoles(B[0], (EntryRange(4, 4),)),
        BookieHoles(B[1], (EntryRange(0, 3),), b"later"),
    )
    assert (after.losses, after.unknown_of_holes, after.unknown_of_losses) == ((lost,), b"more", b"yet more")


def test_too_many_ranges_become_fewer_that_hold_them_all() -> None:
    holes = [Hole(0, B[0], 10 * number, 10 * number) for number in range(RANGES_MAX)]
    holes += [Hole(1, B[1], 3 * number, 3 * number) for number in range(RANGES_MAX)]
    notes = with_holes(NO_NOTES, record(3, 3, (0, B[:3]), last=10 * RANGES_MAX), holes).checked(7)
    assert sum(len(hole.ranges) for hole in notes.holes) == RANGES_MAX
    assert all(is_hole(notes, hole.bookie, hole.first) for hole in holes)
    assert not is_hole(notes, B[0], 15), "the narrowest gaps go first"


RANGES = st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 60), st.integers(0, 12)).map(
    lambda some: Hole(some[0], B[some[1]], some[2], some[2] + some[3])
)


@given(
    holes=st.lists(RANGES, max_size=12),
    more=st.lists(RANGES, max_size=6),
    quorum=st.integers(1, 4),
    starts=st.lists(st.integers(1, 60), max_size=3, unique=True).map(sorted),
    ensembles=st.lists(st.permutations(B).map(lambda some: some[:4]), min_size=4, max_size=4),
)
def test_the_notes_say_what_the_holes_and_the_record_say(
    holes: list[Hole], more: list[Hole], quorum: int, starts: list[int], ensembles: list[list[BookieId]]
) -> None:
    made = record(4, quorum, *zip([0, *starts], ensembles, strict=False), last=80)
    first = with_holes(NO_NOTES, made, holes).checked(7)
    notes = with_holes(first, made, more).checked(7)
    for entry in range(81):
        stores = {made.ensemble_of(entry)[slot] for slot in write_set(entry, 4, quorum)}
        for bookie in B:
            lacks = any(
                hole.bookie == bookie and hole.first <= entry <= hole.last for hole in (*holes, *more)
            )
            assert is_hole(notes, bookie, entry) == (lacks and bookie in stores)
    assert notes == with_holes(NO_NOTES, made, [*more, *holes])


@given(st.lists(RANGES, max_size=12))
def test_joined_holes_are_the_same_entries(holes: list[Hole]) -> None:
    def entries(some: list[Hole]) -> set[tuple[int, BookieId, int]]:
        return {
            (hole.slot, hole.bookie, entry) for hole in some for entry in range(hole.first, hole.last + 1)
        }

    after = joined(holes)
    assert entries(list(after)) == entries(holes)
    assert sum(hole.last - hole.first + 1 for hole in after) == len(entries(holes))
