"""Dialogues with a repair, and what must hold of each repair whatever happens.

Source: docs/protocol/repair.md.
"""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.answers import Answer
from quire.core.errors import MisuseError
from quire.core.ids import BookieId
from quire.core.ledger.metadata import DigestType, new_ledger
from quire.core.ledger.notes import BookieHoles, EntryRange, LedgerNotes
from quire.core.repair.effects import (
    CopyRange,
    EndLimbo,
    ListReplica,
    Loss,
    ReadOnlyBookies,
    ReadRecord,
    RepairLimits,
    RepairOutcome,
    WriteRepaired,
)
from quire.core.repair.rereplication import RepairMachine
from quire.core.repair.rules import RULES
from support.repaired_ledger import RepairedLedger

B = [BookieId(f"b{number}") for number in range(6)]


def ledger(ensemble=3, write=3, ack=2, *, last=9, closed=True, changed_at=None):
    record = new_ledger(
        7, B[:ensemble], write_quorum=write, ack_quorum=ack, digest_type=DigestType.CRC32C, password=b""
    )
    if changed_at is not None:
        record = record.with_ensemble(changed_at, [*B[: ensemble - 1], B[ensemble]])
    return record.closed(last, 10 * (last + 1)) if closed else record


def full(record, last, bookies=6):
    """Disks with each entry where the record says."""
    world = RepairedLedger(record, {bookie: set() for bookie in B[:bookies]})
    for entry in range(last + 1):
        ensemble = record.ensemble_of(entry)
        for place in range(record.write_quorum):
            world.disks[ensemble[(entry + place) % record.ensemble_size]].add(entry)
    return world


def names(world):
    return [type(effect).__name__ for effect in world.log]


def test_a_bookie_that_is_gone_is_replaced_after_its_entries_are_copied():
    world = full(ledger(), 9)
    world.silent.add(B[1])
    ended = world.run(RepairMachine([B[1]], [B[3]]))
    assert ended.outcome is RepairOutcome.WHOLE
    assert ended.report.replaced == [(0, B[1], B[3])]
    assert ended.report.copied == 10
    assert world.record.fragments[0].ensemble == (B[0], B[3], B[2])
    assert world.whole()
    assert names(world) == [
        "ReadRecord",
        *["ListReplica"] * 3,
        "CopyRange",
        "ListReplica",  # the target, before the record is written
        "WriteRepaired",
        "ListReplica",  # and after it
        "RepairEnded",
    ]


def test_nothing_to_do_asks_for_the_lists_and_ends():
    world = full(ledger(), 9)
    ended = world.run(RepairMachine([], [B[3]]))
    assert ended.outcome is RepairOutcome.WHOLE
    assert ended.report.copied == 0
    assert names(world) == ["ReadRecord", *["ListReplica"] * 3, "RepairEnded"]


def test_what_the_target_has_already_is_not_copied_again():
    world = full(ledger(), 9)
    world.silent.add(B[1])
    world.disks[B[3]] = set(range(7))
    assert world.run(RepairMachine([B[1]], [B[3]])).report.copied == 3


def test_a_bookie_that_lacks_entries_is_filled_without_a_write():
    world = full(ledger(), 9)
    world.disks[B[2]] -= {3, 4, 8}
    ended = world.run(RepairMachine([], []))
    assert (ended.outcome, ended.report.copied) == (RepairOutcome.WHOLE, 3)
    assert world.whole()
    assert "WriteRepaired" not in names(world)


def test_notes_of_holes_that_are_filled_are_taken_out_of_the_record():
    world = full(ledger(), 9)
    world.disks[B[2]] -= {3, 4}
    world.notes = LedgerNotes((BookieHoles(B[2], (EntryRange(3, 4),)),))
    assert world.run(RepairMachine([], [])).outcome is RepairOutcome.WHOLE
    assert world.notes.holes == ()


def one_is_full(copies=2):
    """Two fragments; b0 is in both and lacks entries of the first, of which so many other copies are left."""
    world = full(ledger(changed_at=5), 9)
    world.disks[B[0]] -= {3, 4}
    world.silent |= {B[1], B[2]} if copies == 0 else {B[1]} if copies == 1 else set()
    world.refusing[B[0]] = Answer.READ_ONLY
    return world


def test_what_a_full_bookie_lacks_goes_to_another_when_the_delay_is_over():
    world = one_is_full()
    world.notes = LedgerNotes((BookieHoles(B[0], (EntryRange(3, 4),)),))
    ended = world.run(RepairMachine([], B[4:], read_only=ReadOnlyBookies({B[0]: 300}, 300)))
    assert (ended.outcome, ended.report.replaced) == (RepairOutcome.WHOLE, [(0, B[0], B[4])])
    assert [fragment.ensemble for fragment in world.record.fragments] == [
        (B[4], B[1], B[2]),
        (B[0], B[1], B[3]),  # of this one it lacks nothing
    ]
    assert world.disks[B[4]] == {*range(5)}  # the whole share, not the hole alone
    assert world.notes.holes == ()
    copies = [effect for effect in world.log if isinstance(effect, CopyRange) and effect.bookie == B[4]]
    assert any(B[0] in piece.sources for piece in copies)  # it is a source of what it has


@pytest.mark.parametrize(
    ("copies", "seconds", "moves"),
    [(2, 299, False), (2, 300, True), (1, 0, True)],
    ids=["early", "due", "below Qa"],
)
def test_a_full_bookie_keeps_its_slot_until_the_delay_is_over_unless_too_few_copies_are_left(
    copies, seconds, moves
):
    world = one_is_full(copies)
    before = world.record
    ended = world.run(RepairMachine([], B[4:], read_only=ReadOnlyBookies({B[0]: seconds}, 300)))
    assert ended.report.read_only == {B[0]: moves}
    if moves:
        assert world.whole()
    else:
        assert (world.record, [*ended.report.left]) == (before, [B[0]])
        assert ended.outcome is RepairOutcome.INCOMPLETE


def test_without_another_bookie_a_full_one_stays_and_is_not_called_whole():
    world = one_is_full()
    world.notes = LedgerNotes((BookieHoles(B[0], (EntryRange(3, 4),)),))
    ended = world.run(RepairMachine([], [], read_only=ReadOnlyBookies({B[0]: 300}, 300)))
    assert (ended.outcome, ended.report.replaced) == (RepairOutcome.INCOMPLETE, [])
    assert world.notes.holes != ()


@pytest.mark.parametrize("full", [{}, {B[5]: 300}], ids=["none", "another"])
def test_one_that_refuses_and_is_registered_as_writable_keeps_its_slot(full):
    world = one_is_full(copies=1)
    before = world.record
    ended = world.run(RepairMachine([], B[4:], read_only=ReadOnlyBookies(full, 300)))
    assert (world.record, ended.report.read_only) == (before, {B[0]: False})


def test_what_only_a_silent_bookie_may_have_does_not_hold_up_the_part_of_a_full_one():
    world = one_is_full(copies=1)
    world.disks[B[2]] -= {4}
    ended = world.run(RepairMachine([], B[4:], read_only=ReadOnlyBookies({B[0]: 300}, 300)))
    assert (ended.report.replaced, world.disks[B[4]]) == ([(0, B[0], B[4])], {*range(4)})
    assert (ended.outcome, ended.report.unanswered) == (RepairOutcome.INCOMPLETE, (EntryRange(4, 4),))
    world.silent.clear()
    assert world.run(RepairMachine([], B[4:])).outcome is RepairOutcome.WHOLE
    assert world.whole()


def test_a_target_that_is_full_too_is_followed_by_another():
    world = one_is_full()
    world.refusing[B[4]] = Answer.READ_ONLY
    ended = world.run(RepairMachine([], B[4:], read_only=ReadOnlyBookies({B[0]: 300}, 300)))
    assert (ended.outcome, ended.report.replaced) == (RepairOutcome.WHOLE, [(0, B[0], B[5])])


def test_of_a_striped_ledger_each_bookie_gets_its_classes_only():
    record = ledger(5, 3, 2, last=29)
    world = full(record, 29)
    expected = set(world.disks[B[4]])
    world.silent.add(B[4])
    ended = world.run(RepairMachine([B[4]], [B[5]], limits=RepairLimits(piece_entries=10)))
    assert ended.outcome is RepairOutcome.WHOLE
    assert world.disks[B[5]] == expected
    copies = [effect for effect in world.log if isinstance(effect, CopyRange)]
    assert [(piece.entries.first, piece.entries.last) for piece in copies] == [(0, 9), (10, 19), (20, 29)]
    assert {piece.entries.stripes.bit_count() for piece in copies} == {3}


def test_the_last_fragment_of_an_open_ledger_is_left_alone():
    record = ledger(closed=False, changed_at=5)
    world = full(record, 9)
    world.silent.add(B[1])
    ended = world.run(RepairMachine([B[1]], [B[4]]))
    assert world.record.fragments[0].ensemble == (B[0], B[4], B[2])
    assert world.record.fragments[1].ensemble == (B[0], B[1], B[3])
    assert ended.report.undecided == (B[1],)
    assert world.disks[B[4]] == set(range(5))


def test_an_empty_closed_ledger_is_moved_without_a_copy():
    world = RepairedLedger(ledger(last=-1), {bookie: set() for bookie in B})
    world.silent.add(B[0])
    ended = world.run(RepairMachine([B[0]], [B[5]]))
    assert (ended.outcome, ended.report.copied) == (RepairOutcome.WHOLE, 0)
    assert B[0] not in world.record.fragments[0].ensemble


def test_without_a_spare_it_says_so_and_fills_the_others():
    world = full(ledger(), 9, bookies=3)
    world.silent.add(B[1])
    world.disks[B[2]] -= {5}
    ended = world.run(RepairMachine([B[1]], B[:3]))
    assert ended.outcome is RepairOutcome.INCOMPLETE
    assert ended.report.left == {B[1]: "it is gone, and no other bookie can take its place"}
    assert ended.report.copied == 1


def test_a_target_that_refuses_copies_is_given_up_for_another():
    world = full(ledger(), 9)
    world.silent.add(B[1])
    world.refusing[B[3]] = Answer.READ_ONLY
    ended = world.run(RepairMachine([B[1]], [B[3], B[4]]))
    assert world.record.fragments[0].ensemble == (B[0], B[4], B[2])
    assert ended.report.refused == {B[3]: "it did not take copies: READ_ONLY"}
    assert ended.outcome is RepairOutcome.WHOLE


def test_silence_is_never_a_missing_copy_and_nothing_is_called_lost_by_it():
    world = full(ledger(), 9)
    world.silent.add(B[0])  # it is not gone, it does not answer now
    for bookie in (B[1], B[2]):
        world.disks[bookie] -= {4}
    ended = world.run(RepairMachine([], []))
    assert ended.outcome is RepairOutcome.INCOMPLETE
    assert (ended.report.lost, ended.report.gone_only) == ((), ())
    assert ended.report.unanswered == (EntryRange(4, 4),)


def test_what_only_a_gone_bookie_has_is_named_and_the_others_are_filled():
    world = full(ledger(), 9)
    world.silent.add(B[0])
    for bookie in (B[1], B[2]):
        world.disks[bookie] -= {4}
    world.disks[B[1]] -= {6}
    ended = world.run(RepairMachine([B[0]], [B[3]]))
    assert ended.outcome is RepairOutcome.QUIET
    assert ended.report.gone_only == (EntryRange(4, 4),)
    assert world.record.fragments[0].ensemble == tuple(B[:3])  # the gone one may be the last that has it
    assert world.disks[B[1]] == set(range(10)) - {4}


def test_a_loss_that_a_person_accepts_stands_in_the_record():
    world = full(ledger(), 9)
    world.silent.add(B[0])
    for bookie in (B[1], B[2]):
        world.disks[bookie] -= {4}
    ended = world.run(RepairMachine([B[0]], [B[3]], accepted=Loss(123, "anna")))
    assert world.record.fragments[0].ensemble == (B[3], B[1], B[2])
    [loss] = world.notes.losses
    assert (loss.ranges, loss.accepted_ms, loss.accepted_by, loss.lost_bookies) == (
        (EntryRange(4, 4),),
        123,
        "anna",
        (B[0],),
    )
    assert ended.report.copied == 9
    assert ended.outcome is RepairOutcome.QUIET
    assert ended.report.accepted == ended.report.lost == (EntryRange(4, 4),)
    assert world.run(RepairMachine([], [])).report.is_settled


def test_a_bookie_that_comes_back_with_an_accepted_loss_is_a_source_of_it():
    world = full(ledger(), 9)
    world.silent.add(B[0])
    for bookie in (B[1], B[2]):
        world.disks[bookie] -= {4}
    world.run(RepairMachine([B[0]], [B[3]], accepted=Loss(123, "anna")))
    world.silent.clear()
    ended = world.run(RepairMachine([], [], sources=[B[0]]))
    assert ended.outcome is RepairOutcome.WHOLE
    assert world.whole()


def test_an_entry_that_every_member_lacks_is_lost_and_keeps_nobody_in_limbo():
    world = full(ledger(), 9)
    for bookie in B[:3]:
        world.disks[bookie] -= {4}
    world.limbo.add(B[1])
    ended = world.run(RepairMachine([], []))
    assert ended.outcome is RepairOutcome.QUIET
    assert ended.report.lost == (EntryRange(4, 4),)
    assert not ended.report.is_settled
    assert ended.report.cleared == [B[1]]


def test_a_copy_that_rots_at_its_source_comes_from_another_one():
    world = full(ledger(), 9)
    world.disks[B[2]] -= {4}
    world.disks[B[0]] -= {4}
    world.rotten[B[0]] = {4}
    ended = world.run(RepairMachine([], []))
    assert ended.outcome is RepairOutcome.WHOLE
    assert world.whole()  # the damaged copy was made anew as well


def test_limbo_ends_after_a_record_that_was_read_after_the_filling():
    world = full(ledger(), 9)
    world.disks[B[1]] -= {2, 3}
    world.limbo.add(B[1])
    ended = world.run(RepairMachine([], []))
    assert ended.report.cleared == [B[1]]
    last_read = max(place for place, effect in enumerate(world.log) if isinstance(effect, ReadRecord))
    copied = max(place for place, effect in enumerate(world.log) if isinstance(effect, CopyRange))
    cleared = next(place for place, effect in enumerate(world.log) if isinstance(effect, EndLimbo))
    assert copied < last_read < cleared


def test_limbo_of_a_bookie_that_an_undecided_fragment_names_stays():
    record = ledger(closed=False, changed_at=5)
    world = full(record, 9)
    world.disks[B[0]] -= {2}
    world.limbo.add(B[0])
    ended = world.run(RepairMachine([], []))
    assert ended.report.cleared == []
    assert world.limbo == {B[0]}
    assert ended.report.left == {B[0]: "it stays in limbo: a fragment whose end is not decided names it"}


def test_a_conflict_makes_it_choose_again_for_the_record_as_it_is():
    world = full(ledger(), 9)
    world.silent |= {B[1]}

    def meanwhile(effect):
        if (
            isinstance(effect, WriteRepaired) and world.version == 1
        ):  # another repairer was faster, with this target
            world.record = world.record.with_replaced(0, 0, {B[2]: B[3]})
            world.disks[B[3]] = set(range(10))
            world.version = 2

    world.before = meanwhile
    world.run(RepairMachine([B[1]], [B[3], B[4]]))
    assert world.record.fragments[0].ensemble == (B[0], B[4], B[3])
    assert world.whole()


def test_what_a_collector_took_after_the_cas_is_copied_again():
    world = full(ledger(), 9)
    world.silent.add(B[1])
    lists = []

    def meanwhile(effect):
        if isinstance(effect, ListReplica) and effect.bookie == B[3]:
            lists.append(effect)
            if len(lists) == 3:
                world.disks[B[3]] = {9}

    world.before = meanwhile
    ended = world.run(RepairMachine([B[1]], [B[3]]))
    assert ended.report.copied == 19
    assert world.whole()


def test_a_deleted_ledger_ends_it():
    world = full(ledger(), 9)
    world.record = None
    assert world.run(RepairMachine([B[1]], [B[3]])).outcome is RepairOutcome.DELETED


def test_a_bookie_that_is_back_stops_the_copying_for_it():
    world = full(ledger(last=99), 99)
    world.silent.add(B[1])
    machine = RepairMachine([B[1]], [B[3]], limits=RepairLimits(piece_entries=10, pieces_max=1))

    def meanwhile(effect):
        if isinstance(effect, CopyRange) and effect.entries.first == 20:
            world.silent.clear()
            machine.bookies_changed([], [B[3]])

    world.before = meanwhile
    ended = world.run(machine)
    assert ended.report.copied == 30  # what was under way, and no more
    assert world.record.fragments[0].ensemble == tuple(B[:3])


def test_a_record_that_changes_each_time_ends_it():
    world = full(ledger(), 9)
    world.silent.add(B[1])

    def meanwhile(effect):
        if isinstance(effect, WriteRepaired):
            world.version += 1

    world.before = meanwhile
    ended = world.run(RepairMachine([B[1]], [B[3]]))
    assert (ended.outcome, ended.report.stopped) == (RepairOutcome.INCOMPLETE, "the record changed each time")


def test_it_runs_once():
    machine = RepairMachine([], [])
    machine.start()
    with pytest.raises(MisuseError, match="use a new machine"):
        machine.start()


QUORUMS = [(3, 3, 2), (3, 2, 2), (4, 2, 1), (5, 3, 2), (1, 1, 1)]


def repaired(seed, quorums, rules=RULES):
    """Repair a ledger of which much is wrong, by chance, and judge what comes of it."""
    chance = random.Random(seed)
    last = chance.choice([-1, 0, 3, 11])
    closed = chance.random() < 0.7
    changed = chance.randint(0, last + 1) if chance.random() < 0.5 and quorums[0] < 5 else None
    record = ledger(*quorums, last=last, closed=closed, changed_at=changed)
    world = full(record, last)
    for bookie in B:
        for entry in sorted(world.disks[bookie]):
            if chance.random() < 0.15:
                world.disks[bookie].discard(entry)
                if chance.random() < 0.3:
                    world.rotten.setdefault(bookie, set()).add(entry)
        if chance.random() < 0.2:
            world.limbo.add(bookie)
    world.silent = {bookie for bookie in B if chance.random() < 0.2}
    gone = {bookie for bookie in world.silent if chance.random() < 0.7}
    candidates = [bookie for bookie in chance.sample(B, 6) if bookie not in world.silent]
    world.refusing = {bookie: Answer.READ_ONLY for bookie in B if chance.random() < 0.2}
    read_only = ReadOnlyBookies({bookie: chance.choice((0, 300)) for bookie in world.refusing}, 300)
    before = {entry for entries in world.disks.values() for entry in entries}

    def meanwhile(effect):
        if isinstance(effect, WriteRepaired) and chance.random() < 0.2:
            world.version += 1
        if isinstance(effect, WriteRepaired) and effect.version == world.version:
            for index, fragment in enumerate(effect.record.fragments):
                came = set(fragment.ensemble) - set(world.record.fragments[index].ensemble)
                end = effect.record.last_entry_of_fragment(index)
                assert end is not None or not came
                for bookie in came:
                    slot = fragment.ensemble.index(bookie)
                    old = world.record.fragments[index].ensemble[slot]
                    for entry in range(fragment.first_entry, (end or 0) + 1):
                        if (slot - entry) % quorums[0] < quorums[1]:
                            # A full bookie may be followed by one that lacks no more than it does.
                            lacked = old not in gone and entry not in world.disks[old]
                            assert lacked or entry in world.disks[bookie], (old, bookie, entry)

    world.before = meanwhile
    ended = world.run(
        RepairMachine(
            gone,
            candidates,
            read_only=read_only,
            limits=RepairLimits(piece_entries=3, pieces_max=2),
            rules=rules,
        ),
        chance,
    )
    assert {entry for entries in world.disks.values() for entry in entries} == before
    for each in ended.report.lost:
        for entry in range(each.first, each.last + 1):
            if each.holds(entry):
                assert entry not in before
    if ended.outcome is RepairOutcome.WHOLE:
        assert world.whole()
        for index, fragment in enumerate(world.record.fragments):
            if world.record.last_entry_of_fragment(index) is not None:
                assert not set(fragment.ensemble) & gone


@given(st.integers(0, 2**32), st.sampled_from(QUORUMS))
def test_whatever_happens_the_record_names_only_who_has_what_is_left(seed, quorums):
    repaired(seed, quorums)


MUTANTS = {
    "fragment_is_decided": lambda _record, _index: True,
    "may_publish": lambda **_: True,
    "counts_as_missing": lambda _answer: True,
    "is_lost": lambda **_: True,
}


@pytest.mark.parametrize("name", MUTANTS)
def test_without_a_rule_a_repair_goes_wrong(name):
    rules = RULES.but(**{name: MUTANTS[name]})
    for seed in range(1000):
        try:
            repaired(seed, QUORUMS[seed % len(QUORUMS)], rules)
        except (AssertionError, MisuseError):
            return
    pytest.fail(f"nothing goes wrong without {name}")


def test_what_has_the_fewest_copies_left_is_copied_first():
    world = full(ledger(last=29), 29)
    world.disks[B[2]] -= {*range(30)}
    world.disks[B[1]] -= {*range(10, 20)}
    world.run(RepairMachine([], [], limits=RepairLimits(piece_entries=10)))
    copies = [effect for effect in world.log if isinstance(effect, CopyRange)]
    assert [(piece.bookie, piece.entries.first) for piece in copies] == [
        (B[1], 10),
        (B[2], 10),
        (B[2], 0),
        (B[2], 20),
    ]


def test_of_a_ledger_that_is_deleted_meanwhile_nothing_is_called_lost():
    """Bookies drop a deleted ledger: their lists are empty then, and the record that was read before is worth nothing."""
    world = full(ledger(last=2), 2)

    def meanwhile(effect):
        if isinstance(effect, ListReplica):
            world.record = None

    world.before = meanwhile
    ended = world.run(RepairMachine([], []))
    assert ended.outcome is RepairOutcome.DELETED
    assert ended.report.lost == ()


def test_after_a_cas_in_an_empty_fragment_what_others_lack_is_copied():
    """Nothing is to be listed of a bookie that holds nothing: the machine goes on with the lists that it has."""
    record = ledger(last=2, closed=False).with_ensemble(3, (B[0], B[1], B[3])).closed(2, 0)
    world = full(record, 2)
    world.disks[B[1]].discard(1)
    ended = world.run(RepairMachine([B[3]], [B[4]]))
    assert ended.outcome is RepairOutcome.WHOLE
    assert world.record.fragments[1].ensemble == (B[0], B[1], B[4])
    assert [type(effect) for effect in world.log].index(WriteRepaired) < [
        type(effect) for effect in world.log
    ].index(CopyRange)
