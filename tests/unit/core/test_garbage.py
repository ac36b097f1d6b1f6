"""The judgements of a bookie's collector; `tests/check` explores them in a world."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.core.bookie.garbage import (
    By,
    CollectorMachine,
    Count,
    Kept,
    PassCount,
    Proof,
    StopCollection,
    StoreName,
    TombstoneMark,
    id_to_leap_over,
    tombstones_over,
)
from quire.core.ids import ID_MAX

STORE = StoreName("11111111-1111-1111-1111-111111111111", 1)
HELD = (1, 2, 3)


def never(_: int) -> bool:
    """Nothing was written since."""
    return False


class Machine(CollectorMachine):
    """A machine and a store that does as it is told."""

    def __init__(self, kept: Kept | None = None) -> None:
        super().__init__(kept or Kept())
        self.shown: PassCount | None = None
        self.store = STORE

    def begins(self, chain: int = 7, lsn: int = 10) -> Count | StopCollection:
        step = self.begin(self.shown, self.store, chain, lsn)
        if step.value is not None:
            self.shown = step.value
        return step

    def passes(self, found: Iterable[int], held: Iterable[int] = HELD, *, lsn: int = 10) -> list[int]:
        """One whole pass; the ledgers with a proof by chain, which are dropped."""
        step = self.begins(lsn=lsn)
        if isinstance(step, Count):
            self.counted()
        self.look(held, set(found))
        proofs = {ledger_id: self.judge(ledger_id, None, 0, never) for ledger_id in self.missing}
        if isinstance(step, Count):
            for ledger_id, proof in proofs.items():
                if proof is not None:
                    self.dropped(ledger_id)
        self.finish([ledger_id for ledger_id, proof in proofs.items() if proof is None])
        return (
            []
            if isinstance(step, StopCollection)
            else [one for one, proof in proofs.items() if proof is not None]
        )


def test_found_in_two_passes_and_missing_in_the_next_is_a_proof() -> None:
    machine = Machine()
    assert machine.passes(HELD) == machine.passes(HELD) == []
    assert machine.passes((1, 3)) == [2]
    assert machine.unknown == []
    assert machine.shown == PassCount(7, 3)


def test_found_once_or_never_is_none() -> None:
    machine = Machine()
    machine.passes((1, 2))
    assert machine.unknown == [3]
    assert machine.passes((1,)) == []
    assert machine.unknown == [2, 3]
    assert machine.passes((1,)) == [], "missing twice is no proof"
    assert machine.unknown == [2, 3]


def test_a_proof_covers_what_was_written_before_the_last_finding() -> None:
    machine = Machine()
    machine.passes(HELD, lsn=10)
    machine.passes(HELD, lsn=20)
    assert isinstance(machine.begins(lsn=30), Count)
    machine.counted()
    machine.look(HELD, {1, 3})
    assert machine.judge(2, None, 0, lambda lsn: lsn == 20) is None, "it was written to since"
    assert machine.judge(2, None, 0, never) == Proof(By.CHAIN, 20)
    machine.finish([])
    assert machine.kept.missing == {2: 20}, (
        "it was not dropped: the next pass judges it again, by the same proof"
    )
    assert machine.passes((1, 3), lsn=40) == [2]
    assert machine.kept.missing == {}


def test_what_is_found_again_begins_anew() -> None:
    machine = Machine()
    machine.passes(HELD)
    machine.passes((1, 3))
    machine.passes(HELD)
    assert machine.passes((1, 3)) == []
    assert machine.unknown == [2]


@pytest.mark.parametrize(
    ("mark", "token", "by"),
    [
        (TombstoneMark(5), 5, By.TOMBSTONE),
        (TombstoneMark(5), 6, None),
        (TombstoneMark(5), 0, None),
        (TombstoneMark(0), 0, None),
        (TombstoneMark(0), 5, None),
        (TombstoneMark(0, by_hand=True), 5, None),
        (TombstoneMark(0, by_hand=True), 0, None),
        (None, 5, None),
    ],
)
def test_a_tombstone_is_of_the_ledger_whose_token_it_names(
    mark: TombstoneMark | None, token: int, by: By | None
) -> None:
    machine = Machine()
    machine.begins()
    machine.counted()
    machine.look(HELD, {1, 3})
    assert machine.proof(2, mark, token) == (None if by is None else Proof(by))


def test_an_order_by_hand_is_about_what_the_bookie_had_told_of() -> None:
    machine, order = Machine(), TombstoneMark(0, by_hand=True)
    machine.passes((1, 3), lsn=10)
    assert machine.unknown == [2]
    machine.begins(lsn=20)
    machine.counted()
    machine.look(HELD, {1})
    assert machine.proof(2, order, 5) == Proof(By.HAND, 10), "what was written since is no part of it"
    assert machine.proof(3, order, 5) is None, "nobody had been told of it"
    machine.finish([2, 3])
    machine.begins()
    machine.counted()
    machine.look(HELD, {1})
    assert machine.proof(2, order, 5) is None, "the order stood before this was told"


def test_an_order_that_was_not_carried_out_is_judged_again() -> None:
    machine, order = Machine(), TombstoneMark(0, by_hand=True)
    machine.passes((1, 3), lsn=10)
    machine.begins(lsn=20)
    machine.counted()
    machine.look(HELD, {1, 3})
    assert machine.judge(2, order, 5, never) == Proof(By.HAND, 10)
    machine.finish([])
    machine.begins(lsn=30)
    machine.counted()
    machine.look(HELD, {1, 3})
    assert machine.proof(2, order, 5) == Proof(By.CHAIN, 10)


@pytest.mark.parametrize(
    ("mark", "token", "proven"),
    [
        (TombstoneMark(6), 5, False),
        (TombstoneMark(5), 0, True),
        (TombstoneMark(0), 0, True),
        (TombstoneMark(0), 5, False),
        (TombstoneMark(0, by_hand=True), 5, True),
        (TombstoneMark(6, by_hand=True), 5, False),
        (TombstoneMark(5, by_hand=True), 5, True),
    ],
)
def test_the_tombstone_of_another_ledger_with_this_id_breaks_a_chain(
    mark: TombstoneMark, token: int, *, proven: bool
) -> None:
    """What was found may have been that one. A bookie that knows no token cannot tell."""
    machine = Machine()
    machine.passes(HELD)
    machine.passes(HELD)
    machine.begins()
    machine.counted()
    machine.look(HELD, {1, 3})
    assert (machine.proof(2, mark, token) is not None) == proven


@pytest.mark.parametrize(
    ("shown", "says"),
    [
        (PassCount(7, 1), "shows 1 passes, this bookie has made 2"),
        (None, "has no counter"),
        (PassCount(8, 2), "of another chain"),
        (PassCount(8, 1), "of another chain"),
    ],
)
def test_a_store_that_went_back_is_held_against(shown: PassCount | None, says: str) -> None:
    machine = Machine()
    machine.passes(HELD)
    machine.passes(HELD)
    newer, machine.shown = machine.shown, shown
    assert machine.passes((1, 3)) == []
    assert machine.unknown == [2], "it may be missing because the store went back, and people are told"
    assert says in machine.stopped
    assert machine.shown is not None
    assert (machine.shown.own, machine.shown.held) == (2, machine.stopped), "people can read it in the store"
    step = machine.begins()
    assert isinstance(step, StopCollection), "it is stopped for as long as the store is that one"
    assert step.value is None, "and writes it once"
    machine.shown = newer
    assert machine.passes((1, 3)) == [2], "the newer store is back"
    assert machine.stopped == ""


@pytest.mark.parametrize(
    ("store", "says"),
    [(StoreName("22222222", 1), "of instance 22222222"), (StoreName(STORE.instance, 2), "of generation 2")],
)
def test_another_instance_or_generation_is_held_against(store: StoreName, says: str) -> None:
    machine = Machine()
    machine.passes(HELD)
    machine.passes(HELD)
    machine.store = store
    assert machine.passes((1, 3)) == []
    assert says in machine.stopped


def test_a_hold_whose_reason_was_not_written_forgets_no_write_of_the_counter() -> None:
    machine = Machine()
    machine.passes(HELD)
    machine.passes(HELD)
    newer = machine.shown
    machine.begins()
    machine.shown = PassCount(7, 1)
    assert isinstance(machine.begins(), StopCollection)
    machine.not_counted()
    assert machine.kept.asked
    machine.shown = newer
    assert machine.begins(chain=9) == Count(PassCount(9, 3)), "nobody heard of it: the chain does not go on"


def test_a_person_accepts_the_store_and_evidence_begins_anew() -> None:
    machine = Machine()
    machine.passes(HELD)
    machine.passes(HELD)
    machine.shown = PassCount(7, 1)
    machine.passes((1, 3))
    assert machine.shown is not None
    machine.shown = machine.shown._replace(accepted=machine.shown.own)
    assert isinstance(machine.begins(chain=9), Count)
    machine.counted()
    assert machine.shown == PassCount(9, 3)
    machine.look(HELD, {1, 3})
    assert machine.proof(2, None, 0) is None, "what was found in the other store proves nothing here"
    machine.finish([2])
    assert machine.passes((1, 3)) == []
    machine.passes((1, 3))
    assert machine.passes((1,)) == [3], "and it collects again"


def test_an_old_acceptance_counts_for_nothing() -> None:
    machine = Machine()
    machine.passes(HELD)
    machine.passes(HELD)
    machine.shown = PassCount(7, 1, own=1, held="once", accepted=1)
    assert isinstance(machine.begins(), StopCollection)


@pytest.mark.parametrize("shown", [PassCount(7, 2), PassCount(7, 3), PassCount(8, 3)])
def test_after_a_write_that_was_not_heard_of_a_new_chain_begins(shown: PassCount) -> None:
    """It may stand in a copy of the store, under the version of the next write."""
    machine = Machine()
    machine.passes(HELD)
    machine.passes(HELD)
    machine.begins()
    again = Machine(machine.kept)
    assert again.kept.asked, "the disk knows it before the store is asked"
    again.shown = shown
    step = again.begins(chain=9)
    assert step == Count(PassCount(9, shown.passes + 1)), "nor is the store taken for one that went back"
    again.counted()
    again.look(HELD, {1, 3})
    assert again.proof(2, None, 0) is None


@pytest.mark.parametrize("shown", [PassCount(7, 9), PassCount(8, 9)])
def test_a_store_that_is_further_than_the_disk_begins_a_new_chain(shown: PassCount) -> None:
    machine = Machine()
    machine.passes(HELD)
    machine.passes(HELD)
    copy = Machine(machine.kept)
    copy.shown = shown
    assert copy.passes((1, 3)) == []
    assert copy.unknown == [2]


def test_a_lost_file_adopts_the_counter_without_evidence() -> None:
    machine = Machine()
    machine.shown = PassCount(7, 9, own=9, held="before")
    assert isinstance(machine.begins(chain=8), Count)
    assert machine.shown == PassCount(8, 10)


def test_a_pass_that_ends_early_changes_no_evidence() -> None:
    machine = Machine()
    machine.passes(HELD)
    machine.passes(HELD)
    machine.begins()
    machine.counted()
    machine.look((1,), {1})
    assert machine.passes((1, 3)) == [2]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 99))), st.lists(st.integers(0, 99)))
def test_a_tombstone_ends_when_every_watermark_has_passed_it(
    stones: list[tuple[int, int]], marks: list[int]
) -> None:
    over = tombstones_over(stones, marks)
    assert over == [
        number for number, revision in stones if marks and all(revision <= mark for mark in marks)
    ]


@given(st.sets(st.integers(0, ID_MAX)), st.integers(-1, ID_MAX))
def test_ids_leap_over_what_a_restored_store_may_give_again(unknown: set[int], highest: int) -> None:
    leap = id_to_leap_over(unknown, highest, 1 << 62)
    again = {one for one in unknown if highest < one <= 1 << 62}
    assert leap == max(again, default=None)
