"""Dialogues with a repair of a stream: an entry is its id and the term that the record's ranges name there.

Source: docs/protocol/repair.md, "Streams"; docs/protocol/streams.md.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.answers import Answer
from quire.core.ids import BookieId, EntryId, LedgerId
from quire.core.ledger.metadata import DigestType, Fragment, LedgerMetadata, new_ledger, new_stream
from quire.core.ledger.quorum import write_set
from quire.core.ledger.replica import ReplicaList
from quire.core.ledger.stripes import HeldInterval
from quire.core.repair.effects import CopyRange, ReadRecord, RepairEffect, RepairOutcome
from quire.core.repair.rereplication import RepairMachine
from quire.core.repair.rules import RULES
from quire.core.repair.under_replication import under_replication_of
from support.repaired_ledger import RepairedLedger

B = [BookieId(f"b{number}") for number in range(6)]
Value = tuple[int, int]


def stream(*begins: int, ends: Sequence[int] = (), ensemble: int = 3, write: int = 3) -> LedgerMetadata:
    """A stream in term 1 + len(begins), each later term from an id on; `ends`: where the ensemble changed."""
    ledger = new_ledger(
        LedgerId(7),
        B[:ensemble],
        write_quorum=write,
        ack_quorum=2,
        digest_type=DigestType.CRC32C,
        password=b"",
    )
    record = new_stream(ledger, 1)
    for number, first in enumerate(begins):
        record = record.taken_over(record.term + 1, number + 2).opened(first - 1, record.fragments)
    for number, first in enumerate(ends):
        record = record.with_ensemble(
            first, [*B[1 : ensemble - number], *B[ensemble : ensemble + number + 1]]
        )
    return record


class RepairedStream(RepairedLedger):
    """A stream, each of whose copies is an id and an origin term.

    Attributes:
        values: what each bookie holds.
        terms: the term of each bookie.
    """

    def __init__(self, record: LedgerMetadata, count: int, bookies: int = 6) -> None:
        super().__init__(record, {bookie: set() for bookie in B[:bookies]})
        self.values: dict[BookieId, set[Value]] = {bookie: set() for bookie in B[:bookies]}
        self.terms = dict.fromkeys(self.values, 0)
        for entry in range(count):
            ensemble = record.ensemble_of(entry)
            for slot in write_set(entry, record.ensemble_size, record.write_quorum):
                self.values[ensemble[slot]].add((entry, record.origin_of(entry)))

    def listed(self, bookie: BookieId) -> ReplicaList:
        if bookie in self.silent:
            return ReplicaList(Answer.TIMED_OUT)
        held = tuple(
            HeldInterval(entry, entry, 1, 1, origin) for entry, origin in sorted(self.values[bookie])
        )
        return ReplicaList(Answer.OK, held, bookie in self.limbo, 7)

    def _copy(
        self,
        machine: RepairMachine,
        piece: CopyRange,
        bookie: BookieId,
        wanted: Sequence[int],
        sources: Sequence[BookieId],
    ) -> None:
        if piece.term < self.terms[bookie]:
            machine.copied(piece, Answer.INVALID_TERM)
            return
        self.terms[bookie] = piece.term
        asked = {(entry, piece.origin_term) for entry in wanted}
        stored = asked & set().union(*(self.values[source] for source in sources))
        self.values[bookie] |= stored
        machine.copied(piece, Answer.OK, {}, len(stored))

    def whole(self) -> bool:
        record = self.record
        assert record is not None
        decided = record.last_fragment.first_entry
        return all(
            (entry, record.origin_of(entry)) in self.values[record.ensemble_of(entry)[slot]]
            for entry in range(decided)
            for slot in write_set(entry, record.ensemble_size, record.write_quorum)
        )


def copies_of(world: RepairedStream) -> list[tuple[int, int, int, int]]:
    """(first, last, origin term, sender's term) of each copy."""
    pieces = [each for each in world.log if isinstance(each, CopyRange)]
    return [(each.entries.first, each.entries.last, each.origin_term, each.term) for each in pieces]


def test_each_copy_is_of_one_origin_term_and_carries_the_records() -> None:
    record = stream(4, 7, ends=[10])
    world = RepairedStream(record, 10)
    ended = world.run(RepairMachine([B[0]], [B[4], B[5]]))
    assert ended.outcome is RepairOutcome.WHOLE
    assert ended.report.replaced == [(0, B[0], B[4])]
    assert copies_of(world) == [(0, 3, 1, 3), (4, 6, 2, 3), (7, 9, 3, 3)]
    assert world.values[B[4]] == {(entry, record.origin_of(entry)) for entry in range(10)}
    assert world.terms[B[4]] == 3
    assert world.whole()


def test_what_an_earlier_term_left_is_no_copy_and_is_not_copied() -> None:
    record = stream(2, ends=[4])
    world = RepairedStream(record, 4)
    world.values[B[4]] |= {(2, 1), (3, 1)}  # the target has the leftovers of term 1
    world.values[B[1]] |= {(2, 1)}
    ended = world.run(RepairMachine([B[0]], [B[4]]))
    assert ended.outcome is RepairOutcome.WHOLE
    assert world.values[B[4]] == {(0, 1), (1, 1), (2, 2), (3, 2), (2, 1), (3, 1)}
    assert ended.report.copied == 4


def test_an_entry_of_which_only_another_terms_is_there_is_lost() -> None:
    record = stream(2, ends=[4])
    world = RepairedStream(record, 4)
    for bookie in B[:3]:
        world.values[bookie].discard((3, 2))
        world.values[bookie].add((3, 1))
    lacking = under_replication_of(
        record, world.notes, {bookie: world.listed(bookie) for bookie in B[:3]}, []
    )
    assert [(each.first, each.last) for each in lacking.lost] == [(3, 3)]
    ended = world.run(RepairMachine([], []))
    assert ended.outcome is RepairOutcome.QUIET
    assert [(each.first, each.last) for each in ended.report.lost] == [(3, 3)]


def test_a_bookie_of_a_higher_term_makes_the_record_be_read_again() -> None:
    """T11: the stream was taken over since the record was read; what is read then has a term that the bookie takes."""
    record = stream(2, ends=[4])
    world = RepairedStream(record, 4)

    def meanwhile(effect: RepairEffect) -> None:
        if isinstance(effect, CopyRange) and world.terms[B[4]] == 0:
            assert world.record is not None
            world.record, world.version = world.record.taken_over(3, 9), world.version + 1
            world.terms[B[4]] = 3

    world.before = meanwhile
    ended = world.run(RepairMachine([B[0]], [B[4]]))
    assert ended.outcome is RepairOutcome.WHOLE
    assert {term for *_, term in copies_of(world)} == {2, 3}
    assert sum(isinstance(each, ReadRecord) for each in world.log) == 2
    assert ended.report.refused == {}


def test_a_bookie_that_stays_ahead_of_the_record_ends_the_repair() -> None:
    world = RepairedStream(stream(2, ends=[4]), 4)
    world.terms[B[4]] = 5
    ended = world.run(RepairMachine([B[0]], [B[4]]))
    assert ended.outcome is RepairOutcome.INCOMPLETE
    assert ended.report.stopped


def test_the_open_fragment_is_left_to_the_writer_and_a_closed_stream_has_none() -> None:
    record = stream(2, ends=[4])
    for each in (record, record.taken_over(3, 9)):
        world = RepairedStream(each, 6)
        ended = world.run(RepairMachine([B[1]], [B[4], B[5]]))
        assert ended.report.undecided == (B[1],)
        assert ended.report.replaced == [(0, B[1], B[4])]
    world = RepairedStream(record.taken_over(3, 9).closed(5, 60), 6)
    ended = world.run(RepairMachine([B[1]], [B[4], B[5]]))
    assert ended.report.undecided == ()
    assert {first for first, *_ in ended.report.replaced} == {0, 4}
    assert ended.outcome is RepairOutcome.WHOLE


def test_what_lies_before_the_start_is_not_asked_for() -> None:
    record = stream(2, ends=[4])
    assert record.terms is not None
    record = replace(record, terms=replace(record.terms, start=EntryId(3)))
    world = RepairedStream(record, 4)
    for bookie in B[:3]:
        world.values[bookie] -= {(0, 1), (1, 1), (2, 2)}
    ended = world.run(RepairMachine([B[0]], [B[4]]))
    assert ended.outcome is RepairOutcome.WHOLE
    assert copies_of(world) == [(3, 3, 2, 2)]


def scattered(seed: int, rules: object = RULES) -> None:
    """A stream of several terms and fragments whose bookies have leftovers and lack some: a repair makes it whole."""
    chance = random.Random(seed)
    count = chance.randint(2, 12)
    shape = chance.choice([(3, 3), (3, 2)])
    begins = sorted(chance.choices(range(count), k=chance.randint(0, 3)))
    record = stream(*begins, ensemble=shape[0], write=shape[1])
    record = replace(
        record, fragments=(*record.fragments, Fragment(EntryId(count), record.fragments[0].ensemble))
    )
    world = RepairedStream(record, count)
    for bookie in B:
        for _ in range(chance.randint(0, 6)):
            world.values[bookie].add((chance.randrange(count + 2), chance.randint(1, record.term)))
    gone = chance.choice([[], [B[0]]])
    for bookie in B[1:2]:
        world.values[bookie] -= {value for value in world.values[bookie] if chance.random() < 0.4}
    world.silent |= {*gone}
    ended = world.run(RepairMachine(gone, [B[4], B[5]], rules=rules), chance)
    if ended.outcome is RepairOutcome.WHOLE:
        assert world.whole()
        assert world.record is not None
        assert not {*gone} & {*world.record.fragments[0].ensemble}


@given(st.integers(0, 2**32))
def test_whole_means_that_each_bookie_has_the_entries_that_the_ranges_name(seed: int) -> None:
    scattered(seed)


def test_without_the_rule_it_does_not() -> None:
    rules = RULES.but(counts_as_listed=lambda _origin, _named: True)
    for seed in range(1000):
        try:
            scattered(seed, rules)
        except AssertionError:
            return
    pytest.fail("a listed entry may be of any term, and nothing goes wrong")
