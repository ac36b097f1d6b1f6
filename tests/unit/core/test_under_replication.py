"""What a ledger lacks, counted by why and by how many copies are left, against a count entry by entry."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from quire.core.answers import Answer
from quire.core.ids import BookieId, LedgerId
from quire.core.ledger.metadata import DigestType, new_ledger
from quire.core.ledger.notes import NO_NOTES, BookieHoles, EntryRange, LedgerNotes
from quire.core.ledger.quorum import write_set
from quire.core.ledger.replica import ReplicaList
from quire.core.ledger.stripes import HeldInterval
from quire.core.repair.under_replication import (
    MissingKind,
    MissingReason,
    under_replication_of,
)

BOOKIES = [BookieId(f"b{number}") for number in range(6)]


def ledger(size, write_quorum, last):
    record = new_ledger(
        LedgerId(5),
        BOOKIES[:size],
        write_quorum=write_quorum,
        ack_quorum=1,
        digest_type=DigestType.CRC32C,
        password=b"",
    )
    return record.closed(last, 10 * (last + 1))


def listed(entries, **said):
    return ReplicaList(
        Answer.OK, tuple(HeldInterval(entry, entry, 1, 1) for entry in sorted(entries)), **said
    )


@given(st.sampled_from([(3, 3), (4, 3), (3, 2), (5, 3)]), st.integers(0, 20), st.data())
def test_every_missing_copy_is_counted_once(quorums, last, data):
    size, write_quorum = quorums
    record = ledger(size, write_quorum, last)
    gone = data.draw(st.lists(st.sampled_from(BOOKIES[:size]), unique=True, max_size=2))
    holds = {
        bookie: set(data.draw(st.lists(st.integers(0, last), unique=True)))
        for bookie in BOOKIES[:size]
        if bookie not in gone
    }
    lacking = under_replication_of(record, NO_NOTES, {b: listed(some) for b, some in holds.items()}, gone)
    wanted = Counter()
    for entry in range(last + 1):
        members = [BOOKIES[slot] for slot in write_set(entry, size, write_quorum)]
        holders = {bookie for bookie, some in holds.items() if entry in some}
        for member in members:
            if member not in holders and holders:
                reason = MissingReason.GONE if member in gone else MissingReason.HOLE
                wanted[MissingKind(reason, len(holders), member)] += 1
        if not holders:
            silent = any(member in gone for member in members)
            wanted[MissingKind(MissingReason.GONE_ONLY if silent else MissingReason.LOST, 0)] += 1
    assert {kind[0::2] for kind in lacking.entries} == {kind[0::2] for kind in wanted}
    by_bookie = Counter()
    for kind, count in lacking.entries.items():
        by_bookie[kind.reason, kind.bookie] += count
    exact = Counter()
    for kind, count in wanted.items():
        exact[kind.reason, kind.bookie] += count
    assert by_bookie == exact
    # Of a piece, the fewest copies that one of its entries has are what counts.
    least = min((kind.copies_left for kind in wanted), default=0)
    assert min((kind.copies_left for kind in lacking.entries), default=0) <= least
    assert set(lacking.lost_bookies) == set(gone)
    assert lacking.is_complete == (not wanted and not gone)


def test_what_a_bookie_lacks_is_named_by_what_it_says_of_itself():
    record = ledger(3, 3, 9)
    some, every = listed(range(5)), listed(range(10))
    for said, reason in (
        (some, MissingReason.HOLE),
        (replace(some, damaged=True), MissingReason.DAMAGED),
        (replace(some, limbo=True), MissingReason.LIMBO),
    ):
        lacking = under_replication_of(
            record, NO_NOTES, {BOOKIES[0]: said, BOOKIES[1]: every, BOOKIES[2]: every}, []
        )
        assert lacking.entries == {MissingKind(reason, 2, BOOKIES[0]): 5}
        assert (lacking.copyable, lacking.entry_bytes, lacking.needs_repair, lacking.is_complete) == (
            5,
            10,
            True,
            False,
        )


def test_a_bookie_that_does_not_list_lacks_nothing_for_sure():
    record = ledger(3, 3, 9)
    every = listed(range(10))
    silent = ReplicaList(Answer.TIMED_OUT)
    lacking = under_replication_of(
        record, NO_NOTES, {BOOKIES[0]: silent, BOOKIES[1]: every, BOOKIES[2]: every}, []
    )
    assert (lacking.entries, lacking.silent) == ({}, {BOOKIES[0]: Answer.TIMED_OUT})
    assert not lacking.is_complete
    assert not lacking.needs_repair
    lacking = under_replication_of(
        record, NO_NOTES, {BOOKIES[0]: silent, BOOKIES[1]: every, BOOKIES[2]: listed(())}, []
    )
    assert lacking.entries == {MissingKind(MissingReason.HOLE, 1, BOOKIES[2]): 10}


def test_a_fragment_whose_end_is_open_is_left_out_and_its_gone_bookies_are_named():
    record = new_ledger(
        LedgerId(5), BOOKIES[:3], write_quorum=3, ack_quorum=2, digest_type=DigestType.CRC32C, password=b""
    )
    lacking = under_replication_of(
        record, NO_NOTES, {BOOKIES[1]: listed(()), BOOKIES[2]: listed(())}, [BOOKIES[0]]
    )
    assert (lacking.lost_bookies, lacking.undecided, lacking.entries) == ((), (BOOKIES[0],), {})
    assert not lacking.needs_repair
    changed = record.with_ensemble(4, [BOOKIES[3], *BOOKIES[1:3]])
    lists = {bookie: listed(range(4)) for bookie in BOOKIES[1:4]}
    lacking = under_replication_of(changed, NO_NOTES, lists, [BOOKIES[0]])
    assert (lacking.lost_bookies, lacking.undecided) == ((BOOKIES[0],), ())
    assert lacking.entries == {MissingKind(MissingReason.GONE, 3, BOOKIES[0]): 4}


def test_a_fragment_whose_end_is_open_is_compared_up_to_its_lac_and_nothing_is_copied_there():
    record = new_ledger(
        LedgerId(5), BOOKIES[:3], write_quorum=3, ack_quorum=2, digest_type=DigestType.CRC32C, password=b""
    )
    lists = {BOOKIES[0]: listed(range(8)), BOOKIES[1]: listed(range(8)), BOOKIES[2]: listed(range(3))}
    lacking = under_replication_of(record, NO_NOTES, lists, [], lac=5)
    assert lacking.entries == {MissingKind(MissingReason.OPEN, 2, BOOKIES[2]): 3}
    assert (lacking.of_open, lacking.copyable, lacking.needs_repair) == (3, 0, False)
    assert not lacking.is_complete
    nowhere = under_replication_of(record, NO_NOTES, dict.fromkeys(BOOKIES[:3], listed([0, 1])), [], lac=2)
    assert nowhere.has_losses, "an entry up to the LAC was on Qa bookies"


def test_notes_of_holes_that_are_filled_need_a_repair_that_copies_nothing():
    notes = LedgerNotes((BookieHoles(BOOKIES[0], (EntryRange(2, 3),)),))
    every = dict.fromkeys(BOOKIES[:3], listed(range(10)))
    lacking = under_replication_of(ledger(3, 3, 9), notes, every, [])
    assert (lacking.entries, lacking.stale_notes, lacking.needs_repair, lacking.is_complete) == (
        {},
        True,
        True,
        True,
    )
